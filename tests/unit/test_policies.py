"""Eviction policies: the same laws for each, and what makes the better one better."""

import pytest

from octavo import Attention, Cache, LengthError, OutOfPages, Plan, PlanError
from octavo.cache.events import Removed
from octavo.cache.policies import LRU, POLICIES, SLRU, Policy, find_policy
from octavo.testing import Shape, freeze, stress


class ThirdChance:
    """An engine's own policy: three lanes by share."""

    name = "third chance"
    lanes = 3

    def lane(self, *, reused):
        """Reused pages on top, others below."""
        return 3 if reused else 1

    def excess(self, lane, waiting, usable):
        """Each upper lane holds a tenth."""
        return max(0, waiting - usable // 10) if lane > 1 else 0


EVERY = [*POLICIES, ThirdChance()]
LAWS = pytest.mark.parametrize("policy", EVERY, ids=lambda p: p if isinstance(p, str) else p.name)


@LAWS
@pytest.mark.parametrize("packed", [False, True])
def test_every_policy_obeys_the_laws(policy, packed):
    """Hundreds of rules with each of them, in a pool of pages and in one of parents."""
    groups = {"full": Attention(1, 1, 1), "w": Attention(1, 1, 1, window=6)}
    shape = Shape(
        "any",
        groups,
        12 if packed else 26,
        4,
        {"full": 2, "w": 3} if packed else None,
        options={"max_sequences": 5, "policy": policy},
        listens=True,
    )
    report = stress(500, 3, (shape,))

    assert report.counts["evicted"] > 30


def finished(cache, tokens):
    """Compute a prompt and release it."""
    row = cache.admit(tokens)
    cache.commit(cache.extend(row, row.length - row.computed))
    cache.release(row)


@LAWS
@pytest.mark.parametrize("per_parent", [None, {"full": 1}])
def test_every_policy_gives_up_every_idle_page_and_no_other(policy, per_parent):
    """Held pages never go; all that wait can be had, each once."""
    told = []
    plan = Plan.from_pages(11, 1, pages_per_parent=per_parent)
    cache = Cache(plan, policy=policy, on_event=told.append)
    finished(cache, range(8))
    finished(cache, range(5))
    pin, row = cache.pin(range(3)), cache.admit([9] * 9)
    told.clear()
    with pytest.raises(OutOfPages):
        cache.extend(row, 9)

    assert [] == told
    cache.commit(cache.extend(row, 8))
    assert [Removed] * 6 == [type(event) for event in told[:6]]
    assert [2, 2] == [pin.tokens, cache.peek(range(9)).tokens]
    cache.check()


@LAWS
def test_every_policy_takes_the_tail_of_a_chain_first(policy):
    """Of four equally used pages of one prompt the last is evicted, one after the other."""
    cache = Cache(Plan.from_pages(5, 4), policy=policy)
    row = cache.admit([1] * 16)
    cache.commit(cache.extend(row, 16))
    cache.release(row)
    found = []
    for count in range(1, 4):
        other = cache.admit([2] * (4 * count - 3))
        step = cache.extend(other, other.length)
        found.append(cache.peek([1] * 17).tokens)
        cache.abort(step)
        cache.release(other)

    assert [12, 8, 4] == found
    cache.check()


@LAWS
def test_every_policy_gives_cold_pages_first(policy):
    """What a window left behind goes before what anybody may ask for again."""
    plan = Plan.from_pages(12, 1, {"w": Attention(1, 1, 1, window=3)})
    cache = Cache(plan, policy=policy)
    finished(cache, [5, 5])
    row = cache.admit([1])
    for token in range(2, 9):
        cache.commit(cache.extend(row, 1), [token])
    other, found = cache.admit([9] * 12), []
    for more in (5, 1):
        step = cache.extend(other, cache.stats().free + more)
        found.append((cache.peek([5, 5, 5]).tokens, cache.stats().evicted))
        cache.abort(step)

    assert [(2, 5), (1, 6)] == found


def survivors(policy):
    """Whether a prompt used twice outlives a flood of prompts that never come again."""
    cache = Cache(Plan.from_pages(21, 4), policy=policy)
    for prompt in [[1] * 12, [1] * 12, *([token] * 16 for token in range(2, 12))]:
        row = cache.admit(prompt)
        cache.commit(cache.extend(row, row.length - row.computed))
        cache.release(row)
    return cache.peek([1] * 13).tokens


def test_slru_keeps_what_was_reused():
    """LRU forgets it, SLRU does not."""
    assert 0 == survivors("lru")
    assert 8 <= survivors("slru")


def test_the_protected_share_is_bounded():
    """Beyond 20 % of the pages reused ones wait like all others."""
    assert (0, 1, 0) == (
        SLRU().excess(2, 20, 100),
        SLRU().excess(2, 21, 100),
        SLRU().excess(1, 50, 100),
    )
    assert (1, 1) == (LRU().lane(reused=False), LRU().lane(reused=True))


@pytest.mark.parametrize("name", POLICIES)
def test_policies_are_found_by_name(name):
    """And are what the protocol asks for."""
    policy = find_policy(name)

    assert isinstance(policy, Policy)
    assert name == policy.name
    assert policy is find_policy(policy)


@pytest.mark.parametrize("policy", ["fifo", "", 3, object(), None])
def test_unknown_policies_are_refused(policy):
    """A PlanError with the names there are, or what an object must have."""
    with pytest.raises(PlanError) as caught:
        Cache(Plan.from_pages(4, 4), policy=policy)

    assert ("policy", policy) == (caught.value.field, caught.value.value)
    assert "lru, slru" in str(caught.value) or "name, lanes" in str(caught.value)


@pytest.mark.parametrize("answer", [None, "x", 0.5, float("nan"), ZeroDivisionError()])
def test_nonsense_about_excess_changes_nothing(answer):
    """It is asked when pages have to be given up, before anything is changed, and checked."""

    class Odd:
        name, lanes, odd = "odd", 2, False

        def lane(self, *, reused):
            """Two lanes."""
            return 2 if reused else 1

        def excess(self, lane, waiting, usable):  # noqa: ARG002
            """Nonsense, once it is odd."""
            if self.odd and isinstance(answer, Exception):
                raise answer
            return answer if self.odd else 0

    policy = Odd()
    cache = Cache(Plan.from_pages(10, 1), policy=policy)
    finished(cache, range(5))
    finished(cache, range(5))
    policy.odd = True
    row = cache.admit([9] * 9)
    before = freeze(cache)
    with pytest.raises((LengthError, ZeroDivisionError)) as caught:
        cache.extend(row, 9)
    assert isinstance(answer, Exception) or "excess is" in str(caught.value)

    assert before == freeze(cache)
    policy.odd = False
    cache.commit(cache.extend(row, 9))
    cache.check()


def test_a_class_is_no_policy():
    """An object of it is."""
    with pytest.raises(PlanError, match="an object"):
        find_policy(SLRU)
