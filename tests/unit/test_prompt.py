"""A prompt that is read once and asked about often."""

import copy
import pickle

import numpy as np
import pytest

from octavo import Adapter, Cache, CrossInput, Media, Plan, Prompt, Salt
from octavo.errors import IdentityError, LengthError, TokenError
from octavo.scheduling import Scheduler


@pytest.fixture
def cache():
    """Forty usable pages of four tokens."""
    return Cache(Plan.from_pages(41, 4), max_sequences=8)


def publish(cache, tokens, extra=()):
    """Compute some tokens and let them go."""
    row = cache.admit(tokens, extra=extra)
    cache.commit(cache.extend(row, row.length - row.computed))
    cache.release(row)


@pytest.fixture
def matches(monkeypatch):
    """How many times a prompt was matched."""
    from octavo.cache.match import Prefixes

    found, find = [], Prefixes.find

    def counted(self, *args):
        found.append(args)
        return find(self, *args)

    monkeypatch.setattr(Prefixes, "find", counted)
    return found


def test_a_prompt_is_what_its_ids_are(cache):
    """Every verb answers as for plain ids and extras."""
    extra = [Media("cat", 5, 7), Salt("ann"), Adapter("a", 2)]
    publish(cache, range(12), extra)
    prompt = Prompt(range(14), extra)

    assert cache.peek(range(14), extra) == cache.peek(prompt)
    assert cache.explain_match(range(14), extra) == cache.explain_match(prompt)
    assert cache.fits([(range(14), 20, extra)]) == cache.fits([(prompt, 20)])
    with cache.pin(prompt) as pin:
        assert 12 == pin.tokens
    assert 12 == cache.admit(prompt).cached
    assert 0 == cache.admit(Prompt(range(14))).cached


def test_a_prompt_is_matched_once_while_nothing_changes(cache, matches):
    """Looked up, asked for room and admitted: the index is walked once."""
    publish(cache, range(12))
    matches.clear()
    prompt = Prompt(range(14))
    cache.peek(prompt)
    cache.fits([(prompt, 20)])
    cache.explain_match(prompt)
    row = cache.admit(prompt)

    assert (1, 12) == (len(matches), row.cached)


@pytest.mark.parametrize(
    "change",
    [
        lambda cache: publish(cache, range(8)),
        lambda cache: cache.admit(range(8)),
        lambda cache: cache.reset(),
        lambda cache: publish(cache, [*range(100, 260)]),  # evicts all
        lambda cache: publish(cache, range(8), [Salt("bob")]),
    ],
)
def test_a_prompt_is_matched_again_after_a_change(cache, change):
    """Published, awaited, forgotten or evicted in between: the answer is that of plain ids."""
    publish(cache, range(4))
    prompts = [Prompt(range(14)), Prompt(range(14), [Salt("bob")])]
    for prompt in prompts:
        cache.peek(prompt)
        kept = change(cache)

        assert cache.peek(range(14), prompt.extra) == cache.peek(prompt)
        cache.check()
        del kept


def test_a_match_in_between_is_no_mistake(cache):
    """Another prompt looked up meanwhile leaves nothing of its own behind."""
    publish(cache, range(12))
    publish(cache, range(50, 62))
    one, other = Prompt(range(14)), Prompt(range(50, 64))
    cache.peek(one)
    cache.fits([(one, 20), (other, 20), (one, 20)])
    cache.peek(range(3))
    rows = [cache.admit(prompt) for prompt in (one, other)]
    cache.check()

    assert [12, 12] == [row.cached for row in rows]


def test_a_prompt_is_a_copy_that_does_not_change():
    """Neither with what it was made of, nor through what it shows."""
    ids = np.arange(6, dtype=np.int32)
    prompt = Prompt(ids, Salt("ann"), cross=("film", 9))
    ids[:] = 7

    assert [0, 1, 2, 3, 4, 5] == prompt.tokens.tolist()
    assert (6, (Salt("ann"), CrossInput("film", 9))) == (len(prompt), prompt.extra)
    with pytest.raises(ValueError, match="read-only"):
        prompt.tokens[0] = 1
    sent = pickle.loads(pickle.dumps(prompt))  # noqa: S301, our own
    for other in (copy.deepcopy(prompt), sent):
        assert (prompt.tokens.tolist(), prompt.extra) == (other.tokens.tolist(), other.extra)


def test_a_malformed_prompt_is_refused_when_it_is_made(cache):
    """By the error of `admit`; and extras belong to the prompt."""
    with pytest.raises(LengthError):
        Prompt([])
    with pytest.raises(TokenError):
        Prompt([1, -1])
    with pytest.raises(IdentityError):
        Prompt([1], [Salt("a"), Salt("b")])
    prompt = Prompt(range(6))
    for refused in (
        lambda: cache.admit(prompt, extra=[Salt("a")]),
        lambda: cache.admit(prompt, cross=("film", 9)),
        lambda: cache.peek(prompt, [Salt("a")]),
        lambda: cache.pin(prompt, Salt("a")),
        lambda: cache.fits([(prompt, 9, [Salt("a")])]),
    ):
        with pytest.raises(IdentityError, match="a Prompt has its own"):
            refused()
    assert 0 == cache.stats().sequences


def test_a_guarantee_that_leaves_a_shorter_hit_takes_a_prompt(cache):
    """What others are owed is left; the rest of the prefix is held."""
    publish(cache, range(80))
    owed = cache.admit(range(500, 510), limit=100, guarantee=True)
    prompt = Prompt(range(81))
    cache.peek(prompt)
    row = cache.admit(prompt)
    cache.check()

    assert (60, 100) == (row.cached, owed.limit)


class Request:
    """A request of a scheduler, whose prompt has extras."""

    def __init__(self, prompt, limit):
        self.prompt, self.limit, self.sequence = prompt, limit, None


def test_the_scheduler_matches_a_prompt_once(cache, matches):
    """And takes prompts that have extras, so that salts are kept apart."""
    publish(cache, range(12), [Salt("ann")])
    scheduler = Scheduler(cache, 64)
    matches.clear()
    scheduler.add(Request(Prompt(range(14), [Salt("ann")]), 20))
    scheduler.add(Request(Prompt(range(14), [Salt("bob")]), 20))
    scheduler.add(Request(list(range(14)), 20))
    turn = scheduler.schedule()
    found = [request.sequence.cached for request in turn.admitted]
    cache.abort(turn.step)

    assert ([12, 0, 0], 3) == (found, len(matches))
