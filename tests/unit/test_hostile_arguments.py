"""Arguments that used to get through: odd integers, wild policies, impossible sizes, copies."""

import copy
import gc
import pickle

import numpy as np
import pytest

from octavo import (
    Attention,
    Cache,
    CrossInput,
    IdentityError,
    LengthError,
    Media,
    NeverFits,
    OctavoError,
    Plan,
    PlanError,
    State,
    Step,
    UnknownGroup,
    UnknownSequence,
)
from octavo.cache.policies import SLRU
from octavo.testing import freeze


@pytest.fixture
def cache():
    """Room for three short sequences."""
    return Cache(Plan.from_pages(20, 4), max_sequences=3)


def run(cache, seq, token=1):
    """Compute what is known and learn one more id."""
    cache.commit(cache.extend(seq, seq.length - seq.computed), [token])


@pytest.mark.parametrize("kind", [np.uint8, np.uint32, np.int64, np.uint64])
def test_any_integer_type_counts_as_an_int(kind):
    """NumPy integers never wrap: they mean what the int does."""
    cache = Cache(Plan.from_pages(kind(50), kind(4)))
    seq = cache.admit(list(range(20)), limit=kind(40))
    run(cache, seq)

    assert 5 == cache.truncate(seq, kind(5))
    assert {"full": 0} == cache.fits([([1] * 5, kind(9))]).short
    assert Media("x", 6, 11) == Media("x", kind(6), kind(11))
    assert CrossInput("x", 9) == CrossInput("x", kind(9))
    cache.check()


@pytest.mark.parametrize("percent", [-1, 101, 1.5])
def test_shares_are_checked(percent):
    """A share of the protected lane is an int of per cent."""
    with pytest.raises(LengthError):
        SLRU(percent)


def test_a_policy_is_asked_only_for_lanes_it_has():
    """A lane a policy does not have is refused when the cache is made."""

    class Wild(SLRU):
        def lane(self, *, reused):
            return 7 if reused else 8

    with pytest.raises(LengthError, match="lane"):
        Cache(Plan.from_pages(9, 4), policy=Wild())


def test_slots_stay_int32():
    """A pool whose slots would not be int32 is refused before it is made."""
    with pytest.raises(PlanError, match="int32"):
        Plan.from_pages(100, 2**25)
    with pytest.raises(PlanError, match="int32"):
        Plan.from_pages(2**20, 16, pages_per_parent={"full": 1000})


def test_many_groups():
    """More groups than fit into a byte."""
    groups = {f"g{i}": Attention(1, 1, 1, window=i + 1) for i in range(130)}
    cache = Cache(Plan.from_pages(500, 4, groups))
    seq = cache.admit([1, 2, 3])
    cache.commit(cache.extend(seq, 3))
    cache.check()


@pytest.mark.parametrize("rollback", [2**31 - 1, 2**62])
def test_any_rollback(rollback):
    """More than positions there are is all of them; states for so many never fit."""
    window = {"full": Attention(1, 1, 1), "w": Attention(1, 1, 1, window=3)}
    cache = Cache(Plan.from_pages(60, 4, window), rollback=rollback)
    run(cache, cache.admit([1] * 60))
    cache.check()
    cache = Cache(
        Plan.from_pages(60, 4, {"state": State(1)}, parts={"state": 3}), rollback=rollback
    )
    with pytest.raises(NeverFits):
        cache.admit([1])


def test_handles_are_not_copied():
    """A copy of a handle would give its pages back twice."""
    cache = Cache(Plan.from_pages(9, 4))
    seq = cache.admit([1, 2, 3])
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(TypeError, match="cannot be copied or pickled: it is a handle"):
            copied(seq)


def test_a_packed_pool_does_not_grow():
    """What a pool remembers of pages is bounded by the pages there are."""
    cache, sizes = Cache(Plan.from_pages(20, 4, pages_per_parent={"full": 4})), []
    for _ in range(100):
        seq = cache.admit([1] * 33, limit=40)
        run(cache, seq)
        cache.release(seq)
        sizes.append(len(pickle.dumps(freeze(cache))))

    assert max(sizes[:20]) == max(sizes[-20:])


def test_a_batch_stepped_by_rows_remembers_little():
    """Changes of a table nobody asks for are kept once a place."""
    cache = Cache(Plan.from_pages(20, 4))
    seq = cache.admit([1], limit=60)
    batch = cache.batch([seq])
    for _ in range(700):
        step = cache.extend([seq], 1, ahead=1)
        cache.abort(step)
        cache.commit(cache.extend([seq], 1, ahead=1), [[2, 3]][:1], kept=[1])
        cache.truncate(seq, 1)
    delta = cache.extend(batch, [1], ahead=1).delta["full"]

    assert delta.rows.size <= 1001


def test_wrong_things_are_named():
    """No verb lets a bare TypeError or KeyError through."""
    cache = Cache(Plan.from_pages(9, 4))
    seq = cache.admit([1, 2, 3])
    with pytest.raises(UnknownSequence):
        cache.extend(None)
    with pytest.raises(IdentityError, match="hashable"):
        cache.admit([1], id=[])
    with pytest.raises(PlanError, match="plan"):
        Cache({"num_pages": 9})
    with pytest.raises(LengthError, match="request"):
        cache.fits([([1, 2],)])
    with pytest.raises(LengthError):
        cache.truncate(seq, np.array([1]))
    with pytest.raises(UnknownGroup, match="full"):
        cache.extend(seq, 3).group("window_8")
    with pytest.raises(KeyError):
        Cache(Plan.from_pages(9, 4)).extend(seq)


def test_steps_are_not_copied_or_pickled(cache):
    """What the cache made, what it replaced and what was put together by hand alike."""
    step = cache.extend(cache.admit([1, 2, 3]), 3)

    for each in (step, step.replace(), Step()):
        for attempt in (copy.copy, copy.deepcopy, pickle.dumps):
            with pytest.raises(TypeError, match="cannot be copied or pickled"):
                attempt(each)


def test_what_an_interrupted_admission_left_is_taken_back(cache, monkeypatch):
    """A handle that was collected before it had its name leaves nothing behind."""

    def interrupted(handle):
        raise KeyboardInterrupt

    monkeypatch.setattr("octavo.cache.cache.ref", interrupted)
    with pytest.raises(KeyboardInterrupt):
        cache.admit([1, 2, 3])
    monkeypatch.undo()
    gc.collect()

    assert 0 == cache.stats().sequences
    cache.check()


@pytest.mark.parametrize("name", ["reuse", "guarantee"])
def test_flags_are_flags(cache, name):
    """No array and no text stands for one."""
    with pytest.raises(PlanError, match=name):
        cache.admit([1, 2], **{name: np.array([1, 2])})
    with pytest.raises(LengthError, match="ahead"):
        cache.extend(cache.admit([1, 2]), 1, ahead=np.array([1, 2]))


def test_limits_beyond_all_numbers(cache):
    """What can never fit is said to be short, whatever the limit."""
    assert not cache.fits([([1], 10**30)])


class Scalar:
    """Iterable to isinstance, and without entries, as a tensor of no axis is."""

    ndim = 0

    def __iter__(self):
        raise TypeError("iteration over a 0-d tensor")


@pytest.mark.parametrize(
    "wrong", [np.array(3), Scalar(), memoryview(np.zeros((2, 2), np.int32))], ids=type
)
def test_scalars_and_planes_are_no_lists(cache, wrong):
    """They pass for iterables and are not: refused by name wherever a list is read."""
    seq = cache.admit([1, 2, 3])
    step = cache.extend(seq, 3)
    before = freeze(cache)
    for call in (
        lambda: cache.admit(wrong),
        lambda: cache.admit([1], extra=wrong),
        lambda: cache.peek(wrong),
        lambda: cache.learn(seq, wrong),
        lambda: cache.batch(wrong),
        lambda: cache.fits(wrong),
        lambda: cache.fits([(wrong, 3)]),
        lambda: cache.need(wrong),
        lambda: cache.commit(step, wrong),
        lambda: cache.commit(step, kept=wrong),
    ):
        with pytest.raises(OctavoError):
            call()
    assert freeze(cache) == before
    cache.commit(step, [4])
    with pytest.raises(OctavoError):
        cache.extend(wrong)
    cache.check()
