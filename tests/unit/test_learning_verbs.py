"""`Cache.learn` and `Cache.keep`: ids told without a step, and states kept where an engine says."""

import pytest

from octavo import Attention, Cache, Plan, State
from octavo.errors import CapacityError, LengthError, StepError, TokenError

GROUPS = {"full": Attention(1, 1, 1), "state": State(1)}


def stateful():
    """A cache of token pages and states, pages of 4."""
    return Cache(Plan.from_pages(60, 4, GROUPS), max_sequences=4)


def compute(cache, seq, end):
    """One step to position ``end``."""
    cache.commit(cache.extend(seq, end - seq.computed))


def test_learned_ids_are_computed_and_published_like_a_prompts():
    """A turn that is learned is what the next prompt with the same beginning finds."""
    cache = Cache(Plan.from_pages(20, 4))
    seq = cache.admit([1, 2, 3, 4, 5])
    compute(cache, seq, 5)
    cache.learn(seq, [6, 7, 8, 9])
    assert (seq.length, seq.computed) == (9, 5)
    compute(cache, seq, 9)
    cache.release(seq)
    assert cache.peek([1, 2, 3, 4, 5, 6, 7, 8, 9]).tokens == 8
    cache.check()


def test_forks_with_states_go_different_ways():
    """Each fork learns its own token and takes it without being able to go back."""
    cache = stateful()
    seq = cache.admit([1, 2, 3, 4, 5, 6])
    compute(cache, seq, 6)
    (child,) = cache.fork(seq)
    cache.learn(seq, [7])
    cache.learn(child, [8])
    step = cache.extend([seq, child])
    assert step.input_ids.tolist() == [7, 8]
    cache.commit(step)
    assert (seq.tokens()[-1], child.tokens()[-1]) == (7, 8)
    cache.check()


def test_learning_is_refused_by_name():
    """No ids, ids beyond the limit, and a sequence whose step is open."""
    cache = stateful()
    seq = cache.admit([1, 2, 3], limit=4)
    with pytest.raises(TokenError):
        cache.learn(seq, [-1])
    with pytest.raises(CapacityError):
        cache.learn(seq, [4, 5])
    step = cache.extend(seq, 3)
    with pytest.raises(StepError):
        cache.learn(seq, [4])
    cache.abort(step)
    assert seq.tokens().tolist() == [1, 2, 3]


def test_a_state_is_kept_where_it_was_asked_for():
    """A chunk that ends at 8 leaves a state there, which the prompt's own stop, 12, would not."""
    cache = stateful()
    prompt = list(range(1, 15))
    seq = cache.admit(prompt)
    cache.keep(seq, 8)
    compute(cache, seq, 8)
    compute(cache, seq, 14)
    cache.release(seq)
    assert cache.peek(prompt).tokens == 8
    cache.check()


def test_keeping_is_refused_by_name():
    """Positions inside a page, and those that are behind."""
    cache = stateful()
    seq = cache.admit(list(range(1, 15)))
    for position in (6, 0):
        with pytest.raises(LengthError):
            cache.keep(seq, position)
    compute(cache, seq, 8)
    with pytest.raises(LengthError):
        cache.keep(seq, 8)
