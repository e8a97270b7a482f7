"""Text in, tokens out, and back without half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from octavo.checkpoints.text import (
    Detokenizer,
    decode,
    encode_chat,
    encode_raw,
    has_chat_template,
)
from octavo.errors import UnsupportedModel

TEMPLATE = (
    "{% for m in messages %}<s>{{ m.role }}: {{ m.content }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant: {% endif %}"
)

ENDS = {"bos_token": "<s>", "eos_token": "</s>"}


def _tokenizer(template=TEMPLATE):
    """One token a byte, and two control tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: i for i, token in enumerate(["<s>", "</s>", *alphabet])}
    backend = Tokenizer(models.BPE(vocabulary, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend, chat_template=template, **ENDS)


BYTES = _tokenizer()
CONTINUE = encode_raw(BYTES, "\u20ac\u00e9")  # bytes that begin and continue a character


def test_chat_ends_where_the_answer_starts():
    """A prompt becomes a user turn followed by the opening of the assistant's."""
    tokens = encode_chat(BYTES, "hi", system="be kind")

    written = "<s>system: be kind</s><s>user: hi</s><s>assistant: "
    assert written == BYTES.decode(tokens, skip_special_tokens=False)


def test_chat_of_several_turns_begins_like_the_chat_before():
    """Turns of user and model alternate, and a longer conversation begins with the shorter one."""
    tokens = encode_chat(BYTES, "hi", "ho", "hm", system="be kind")

    written = "<s>user: hi</s><s>assistant: ho</s><s>user: hm</s><s>assistant: "
    assert BYTES.decode(tokens, skip_special_tokens=False).endswith(written)
    first = encode_chat(BYTES, "hi", system="be kind")
    assert first == tokens[: len(first)]


def test_chat_without_a_template_is_refused():
    """A model that has no chat format is not given an invented one."""
    plain = _tokenizer(None)

    assert not has_chat_template(plain)
    with pytest.raises(UnsupportedModel, match="no chat template"):
        encode_chat(plain, "hi")


def test_failing_template_is_reported():
    """What a template refuses becomes one error."""
    strict = _tokenizer("{{ raise_exception('no user turns here') }}")

    with pytest.raises(UnsupportedModel, match="chat template failed: no user turns here"):
        encode_chat(strict, "hi")


def test_raw_text_is_taken_as_it_stands():
    """No control tokens are added around a raw prompt."""
    assert "hi there" == decode(BYTES, encode_raw(BYTES, "hi there"))


def test_unfinished_character_is_held_back():
    """Nothing is shown of a character until its last byte has come."""
    tokens = encode_raw(BYTES, "a\u20acb")
    growing = Detokenizer(BYTES)

    assert ["a", "", "", "\u20ac", "b"] == [growing.push(token) for token in tokens]
    assert "" == growing.finish()


def test_character_that_never_ends_is_shown_as_a_replacement():
    """Half a character at the end of the answer is not lost silently."""
    growing = Detokenizer(BYTES)
    for token in encode_raw(BYTES, "\u20ac")[:2]:
        assert "" == growing.push(token)

    assert "\ufffd" == growing.finish()
    assert "" == growing.finish()


def test_control_tokens_are_not_shown():
    """The token that ends an answer adds no text."""
    growing = Detokenizer(BYTES)
    tokens = [*encode_raw(BYTES, "ok"), BYTES.eos_token_id]

    assert "ok" == "".join(growing.push(token) for token in tokens) + growing.finish()


class Counted:
    """A tokenizer that counts the tokens it is given to decode."""

    def __init__(self, tokenizer):
        self.tokenizer = tokenizer
        self.tokens = 0

    def decode(self, tokens, **options):
        """The text of ``tokens``."""
        self.tokens += len(tokens)
        return self.tokenizer.decode(tokens, **options)


@pytest.mark.parametrize("name", ["stray", "leading", "control", "broken"])
def test_tokens_that_never_make_text_cost_no_more_each(name):
    """Thousands of stray bytes or control tokens are decoded in linear time and add up."""
    letters = encode_raw(BYTES, "\u20acab")  # three bytes of one character, and two letters
    runs = {
        "stray": [letters[1]],
        "leading": [letters[0]],
        "control": [BYTES.eos_token_id],
        "broken": letters[:2],
    }
    tokens = [letters[3], *runs[name] * 1000, *letters]
    counted = Counted(BYTES)
    growing = Detokenizer(counted)
    pieces = [growing.push(token) for token in tokens]

    assert counted.tokens < 700 * len(tokens)
    assert decode(BYTES, tokens) == "".join(pieces) + growing.finish()


class Runs:
    """A decoder that judges all bytes of a run together, as byte fallback does."""

    def decode(self, tokens, **_):
        """Each token is a byte; a run that is no UTF-8 shows a replacement for each of them."""
        raw = bytes(tokens)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "\ufffd" * len(raw)


def test_endless_run_of_bytes_that_is_judged_as_a_whole():
    """Where no cut is good the text is shown in the end, and nothing is decoded forever."""
    counted = Counted(Runs())
    growing = Detokenizer(counted)
    tokens = [0x80, *"\u00e9".encode() * 1000]
    pieces = [growing.push(token) for token in tokens]

    assert counted.tokens < 3000 * len(tokens)
    assert "\ufffd" * len(tokens) == "".join(pieces) + growing.finish()


@given(st.lists(st.integers(0, len(BYTES) - 1) | st.sampled_from(CONTINUE), max_size=120))
def test_pieces_of_any_tokens_add_up(tokens):
    """The pieces together are the text of all tokens, valid UTF-8 or not."""
    growing = Detokenizer(BYTES)
    pieces = [growing.push(token) for token in tokens]

    assert decode(BYTES, tokens) == "".join(pieces) + growing.finish()


@given(st.text(max_size=20))
def test_pieces_of_any_text_add_up(written):
    """Text comes back as it went in, and no piece shows a broken character."""
    growing = Detokenizer(BYTES)
    pieces = [growing.push(token) for token in encode_raw(BYTES, written)]

    assert written == "".join(pieces) + growing.finish()
    assert "\ufffd" in written or not any("\ufffd" in piece for piece in pieces)
