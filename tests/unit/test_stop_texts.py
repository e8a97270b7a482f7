"""Stop texts and the text of answers: found across tokens, cut exactly, never shown too early."""

import random

import pytest

import octavo
from octavo.engine import SamplingParams
from octavo.engine.texts import StopTexts, stops_of


class Pieces:
    """A tokenizer whose tokens are these bytes; the last may be a control token."""

    def __init__(self, *pieces, control=None):
        self.pieces = [piece.encode() if isinstance(piece, str) else piece for piece in pieces]
        self.added_tokens_decoder = {}
        if control is not None:
            self.added_tokens_decoder = {len(pieces): Control(control)}

    def decode(self, tokens, **_):
        """The text of ``tokens``; control tokens have none."""
        shown = (self.pieces[token] for token in tokens if token not in self.added_tokens_decoder)
        return b"".join(shown).decode(errors="replace")


class Control(str):
    """What transformers calls an AddedToken."""

    __slots__ = ()
    special = True


def run(tokenizer, tokens, *texts, **options):
    """What is found, after how many tokens, the final text, and all that were shown before."""
    stops, shown = StopTexts(texts, tokenizer, **options), []
    for count, token in enumerate(tokens, start=1):
        found = stops.push(token)
        if found is not None:
            return found, count, stops.text(done=True), shown
        shown.append(stops.text(done=False))
    return None, len(tokens), stops.text(done=True), shown


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("and so END", ("END", "and so ")),
        ("and so EN", (None, "and so EN")),
        ("x" * 100 + "###", ("###", "x" * 100)),
        ("", (None, "")),
        ("EEND", ("END", "E")),
        ("ENEND", ("END", "EN")),
    ],
)
def test_stop_texts_letter_by_letter(text, expected):
    """A stop text is found with the token that completes it, and the text ends before it."""
    letters = Pieces(*"abcdefghijklmnopqrstuvwxyz #END")
    tokens = [letters.pieces.index(letter.encode()) for letter in text]
    found, count, shown, _ = run(letters, tokens, "END", "###")

    assert expected == (found, shown)
    assert len(text) == count


def test_across_and_within_tokens():
    """A text may begin in one token, end in another, and have more text behind it."""
    tokenizer = Pieces("Hello <", "|st", "op|> and on", " more")
    found, count, text, shown = run(tokenizer, [0, 1, 2, 3], "<|stop|>")

    assert ("<|stop|>", 3, "Hello ") == (found, count, text)
    assert ["Hello ", "Hello "] == shown
    assert "Hello <|stop|>" == run(tokenizer, [0, 1, 2], "<|stop|>", include=True)[2]


def test_the_first_of_several_counts():
    """Where one token completes two texts, the answer ends before the one that begins first."""
    tokenizer = Pieces("a", "bcd")

    assert ("bcd", "a") == run(tokenizer, [0, 1], "d", "bcd")[::2]
    assert ("abcd", "") == run(tokenizer, [0, 1], "cd", "abcd")[::2]


def test_what_was_held_back_is_shown_when_it_is_no_stop_text():
    """The text so far never shows what it takes back, and in the end shows everything."""
    tokenizer = Pieces("one", " EN", "D", "E", " two")

    assert ["one", "one ", "one EN"] == run(tokenizer, [0, 1, 3], "END")[3]
    assert "one ENE" == run(tokenizer, [0, 1, 3], "END")[2]
    assert "one EN" == run(tokenizer, [0, 1], "END")[2]


def test_characters_of_several_tokens():
    """Bytes of one character in two tokens; the stop text is found with its last byte."""
    euro = "€".encode()
    tokenizer = Pieces("5 ", euro[:1], euro[1:], "!")
    found, count, text, shown = run(tokenizer, [0, 1, 2, 3], "€")

    assert ("€", 3, "5 ") == (found, count, text)
    assert ["5 ", "5 "] == shown
    assert "5 \ufffd" == run(tokenizer, [0, 1], "€")[2]


def test_a_control_token_is_a_stop_text():
    """Its text is shown nowhere; as a stop text it is found all the same."""
    tokenizer = Pieces("hello", " end", control="<|end|>")

    assert ("<|end|>", 2, "hello") == run(tokenizer, [0, 2, 1], "<|end|>")[:3]
    assert (None, 3, "hello end") == run(tokenizer, [0, 2, 1], "other")[:3]


def test_a_minimum_of_tokens():
    """A text that is complete before the minimum does not count; a later one does."""
    tokenizer = Pieces("END", "x")

    assert ("END", 4, "ENDENDx") == run(tokenizer, [0, 0, 1, 0], "END", minimum=3)[:3]
    assert ("END", 3, "ENDx") == run(tokenizer, [0, 1, 0], "END", minimum=3)[:3]


def test_any_cut_into_tokens_gives_the_same_text():
    """Random texts in random tokens: the text before the first stop text, whatever the borders."""
    chance = random.Random(1)
    for _ in range(300):
        text = "".join(chance.choices("ab€", k=chance.randint(1, 14)))
        stops = ["".join(chance.choices("ab€", k=chance.randint(1, 3))) for _ in range(2)]
        pieces, left = [], text.encode()
        while left:
            size = chance.randint(1, 5)
            pieces, left = [*pieces, left[:size]], left[size:]
        found, count, shown, before = run(Pieces(*pieces), range(len(pieces)), *stops)
        done = b"".join(pieces[:count]).decode(errors="ignore")
        starts = [done.find(stop) for stop in stops if stop in done]

        assert bool(starts) == (found is not None)
        assert shown == (done[: min(starts)] if starts else text)
        assert all(shown.startswith(part) for part in before)
        if not starts:
            assert not any(stop in text for stop in stops)


def test_stop_texts_need_a_tokenizer():
    """They are refused without one, and looked for only where there are some."""
    assert stops_of(SamplingParams(), None) is None
    with pytest.raises(octavo.SamplingError, match="stop is .*tokenizer"):
        stops_of(SamplingParams(stop="END"), None)
