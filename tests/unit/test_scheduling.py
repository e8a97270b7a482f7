"""The scheduler: who is admitted, who takes part in a step with how much, who gives way."""

from dataclasses import dataclass

import numpy as np
import pytest

from octavo import Attention, Cache, CapacityError, NeverFits, OutOfPages, Plan, PlanError, State
from octavo.errors import IdentityError, LengthError, StepError
from octavo.scheduling import Scheduler

PAGE = 4


class Prompt:
    """The least a scheduler wants of a request."""

    def __init__(self, size, limit, start=0):
        self.prompt, self.limit = np.arange(start, start + size, dtype=np.int32), limit
        self.sequence = None


def _drive(scheduler):
    """Run steps to the end of every request; the order in which they end."""
    ended = []
    while (turn := scheduler.schedule()) is not None:
        scheduler.cache.commit(turn.step, np.zeros(len(turn.requests), np.int32))
        scheduler.cache.check()
        for request in turn.requests:
            if request.sequence.length == request.limit:
                scheduler.remove(request)
                ended.append(request)
    return ended


def test_every_request_ends():
    """However tight the pool, the oldest is never preempted, and the order is first come."""
    scheduler = Scheduler(Cache(Plan.from_pages(9, PAGE)), 16)
    requests = [Prompt(5 + 3 * n, 32, 100 * n) for n in range(8)]
    for request in requests:
        scheduler.add(request)

    assert requests == _drive(scheduler)
    assert scheduler.cache.stats().preemptions > 0
    assert not scheduler


def test_a_step_stays_within_its_tokens():
    """Rows that decode take one, and the oldest that is behind as many as are left."""
    scheduler = Scheduler(Cache(Plan.from_pages(99, PAGE)), 10)
    for number in range(3):
        scheduler.add(Prompt(14, 20, 100 * number))
    counts = []
    while (turn := scheduler.schedule()) is not None and len(counts) < 6:
        counts.append(turn.step.counts.tolist())
        scheduler.cache.commit(turn.step, np.zeros(len(turn.requests), np.int32))

    assert [[8, 1, 1], [6, 3, 1], [1, 8, 1], [1, 2, 7], [1, 1, 4], [1, 1, 1]] == counts


def test_an_aborted_step_is_made_again():
    """Nothing but the forward pass is lost."""
    scheduler = Scheduler(Cache(Plan.from_pages(99, PAGE)), 10)
    scheduler.add(Prompt(14, 16))
    first = scheduler.schedule()
    scheduler.cache.abort(first.step)
    again = scheduler.schedule()

    assert [10] == first.step.counts.tolist() == again.step.counts.tolist()
    assert ([first.requests[0]], []) == (first.admitted, again.admitted)


def test_pages_of_others():
    """Where sequences of the cache's other users hold the pages, that is said and nothing lost."""
    cache = Cache(Plan.from_pages(9, PAGE))
    scheduler, request = Scheduler(cache, 64), Prompt(8, 12)
    foreign = cache.admit(list(range(50, 80)))
    cache.commit(cache.extend(foreign, 30))
    scheduler.add(request)
    with pytest.raises(OutOfPages, match="short 3"):
        scheduler.schedule()
    cache.release(foreign)

    assert [request] == _drive(scheduler)


def test_chunks_shrink_where_a_window_alone_fills_the_pool():
    """A chunk holds more of a window than is kept: one that runs alone takes smaller ones."""
    plan = Plan.from_pages(9, PAGE, {"near": Attention(1, 8, 8, window=8)})
    scheduler = Scheduler(Cache(plan), 64)
    request = Prompt(60, 64)
    scheduler.add(request)

    assert [request] == _drive(scheduler)


def test_chunks_shrink_before_anybody_is_preempted():
    """Where a chunk holds more of a window than is free, it is cut, and all run on beside it."""
    plan = Plan.from_pages(41, PAGE, {"near": Attention(1, 8, 8, window=32)})
    scheduler = Scheduler(Cache(plan), 128)
    requests = [Prompt(100, 140, 200 * n) for n in range(4)]
    for request in requests:
        scheduler.add(request)

    assert set(requests) == set(_drive(scheduler))
    assert (0, 0) == (scheduler.cache.stats().preemptions, scheduler.recomputed_tokens)


def test_the_watermark_is_left_when_one_is_admitted_beside_others():
    """Beside others a request waits for room that leaves a share of the pool; alone it does not."""
    admitted = {}
    for watermark in (0, 0.25, 0.5):
        scheduler = Scheduler(Cache(Plan.from_pages(21, PAGE)), 64, watermark=watermark)
        for number in range(5):
            scheduler.add(Prompt(15, 20, 100 * number))
        scheduler.schedule()
        admitted[watermark] = len(scheduler.running)
    whole = Scheduler(Cache(Plan.from_pages(21, PAGE)), 64, watermark=0.9)
    whole.add(Prompt(75, 80))

    assert {0: 5, 0.25: 3, 0.5: 2} == admitted
    assert 1 == len(_drive(whole))
    for wrong in (1, -0.1, "1%", float("nan")):
        with pytest.raises(PlanError, match="watermark"):
            Scheduler(Cache(Plan.from_pages(21, PAGE)), 64, watermark=wrong)


def test_a_hit_that_leaves_no_room_is_not_used():
    """A state that is kept beside the request's own is one page too many: it runs without."""
    groups = {"full": Attention(1, 1, 1), "state": State(1)}
    scheduler = Scheduler(Cache(Plan.from_pages(8, PAGE, groups)), 64)
    first, again = Prompt(20, 20), Prompt(20, 24)
    scheduler.add(first)
    _drive(scheduler)
    scheduler.add(again)

    assert scheduler.cache.peek(again.prompt).tokens > 0
    assert not scheduler.cache.fits([(again.prompt, 24)])
    assert scheduler.cache.fits([(again.prompt, 24)], reuse=False)
    assert [again] == _drive(scheduler)
    assert 0 == scheduler.cache.stats().cached_tokens


def test_what_a_rollback_never_fits_is_refused_when_it_is_added():
    """Windows keep more where rows may be cut back: admission would refuse it later, for good."""
    plan = Plan.from_pages(5, PAGE, {"near": Attention(1, 8, 8, window=8)})
    with pytest.raises(NeverFits):
        Scheduler(Cache(plan, rollback=12), 16).add(Prompt(40, 60))
    scheduler = Scheduler(Cache(plan), 16)
    scheduler.add(last := Prompt(40, 60))

    assert [last] == _drive(scheduler)


def test_prompts_as_lists():
    """A prompt may be a list of ids, waiting or preempted."""
    scheduler = Scheduler(Cache(Plan.from_pages(9, PAGE)), 16)
    requests = [Prompt(5 + 3 * n, 32, 100 * n) for n in range(4)]
    for request in requests:
        request.prompt = request.prompt.tolist()
        scheduler.add(request)

    assert requests == _drive(scheduler)
    assert scheduler.cache.stats().preemptions > 0


def test_what_can_never_run_is_refused_when_it_is_added():
    """It would block all behind it."""

    @dataclass
    class Equal:
        prompt: list[int]
        limit: int
        sequence: None = None

    scheduler = Scheduler(Cache(Plan.from_pages(9, PAGE), max_length=30), 16)
    with pytest.raises(IdentityError, match="eq=False"):
        scheduler.add(Equal([1], 2))
    with pytest.raises(LengthError, match=r"len\(request.prompt\) is 0"):
        scheduler.add(Prompt(0, 4))
    with pytest.raises(LengthError, match=r"request.limit is 4"):
        scheduler.add(Prompt(5, 4))
    with pytest.raises(NeverFits, match="need 9 pages but the whole pool has 8"):
        scheduler.add(Prompt(5, 33))
    with pytest.raises(CapacityError, match="limit is 31, at most 30"):
        scheduler.add(Prompt(5, 31))

    assert not scheduler
    scheduler.add(last := Prompt(5, 30))
    assert [last] == _drive(scheduler)


def test_a_turn_ends_before_the_next():
    """A second turn is refused while the step of the first is open, whatever the cache allows."""
    cache = Cache(Plan.from_pages(20, PAGE), depth=2)
    scheduler = Scheduler(cache, 8)
    scheduler.add(Prompt(3, 6))
    turn = scheduler.schedule()

    with pytest.raises(StepError, match="the turn before is open"):
        scheduler.schedule()
    cache.abort(turn.step)
    again = scheduler.schedule()
    assert 3 == again.step.tokens
    cache.commit(again.step, [4])
    assert 1 == scheduler.schedule().step.tokens


def test_higher_priorities_go_first():
    """Among those that wait, and in the tokens of a step; equals in the order they came."""
    scheduler = Scheduler(Cache(Plan.from_pages(99, PAGE), max_sequences=1), 64)
    requests = [Prompt(6, 8, 100 * n) for n in range(5)]
    for request, priority in zip(requests, (0, 1, -3, 1, 0), strict=True):
        scheduler.add(request, priority=priority)
    assert [requests[at] for at in (1, 3, 0, 4, 2)] == _drive(scheduler)

    scheduler = Scheduler(Cache(Plan.from_pages(99, PAGE)), 10)
    low, high = Prompt(20, 24), Prompt(20, 24, 100)
    scheduler.add(low)
    _run_a_step(scheduler)
    scheduler.add(high, priority=1)
    _run_a_step(scheduler)

    assert [high, low] == [*scheduler.running]
    assert (9, 11) == (high.sequence.computed, low.sequence.computed)


def _run_a_step(scheduler):
    turn = scheduler.schedule()
    scheduler.cache.commit(turn.step, np.zeros(len(turn.requests), np.int32))
    scheduler.cache.check()


def test_those_behind_give_way():
    """A request of higher priority takes the pages of lower ones that run, the last first."""
    scheduler = Scheduler(Cache(Plan.from_pages(11, PAGE)), 64)
    low = [Prompt(9, 16, 100 * n) for n in range(3)]
    for request in low:
        scheduler.add(request)
    _run_a_step(scheduler)
    scheduler.add(high := Prompt(14, 18, 500), priority=2)
    scheduler.add(mid := Prompt(14, 18, 700), priority=1)
    _run_a_step(scheduler)

    assert [high, mid] == [*scheduler.running]
    assert low == scheduler.waiting
    assert scheduler.full
    assert [high, mid, *low] == _drive(scheduler)


def test_nobody_gives_way_to_an_equal_or_without_preemption():
    """First come, first served; and who was admitted to reach its end does."""
    for priority, preemption in ((0, True), (5, False)):
        scheduler = Scheduler(Cache(Plan.from_pages(9, PAGE)), 64, preemption=preemption)
        scheduler.add(first := Prompt(20, 24))
        _run_a_step(scheduler)
        scheduler.add(second := Prompt(20, 24, 100), priority=priority)

        assert [first, second] == _drive(scheduler)
        assert 0 == scheduler.cache.stats().preemptions


@pytest.mark.parametrize("gap", [1, 2])
def test_so_many_later_ones_go_before_a_request(gap):
    """However many of a higher priority come, `patience` of them per priority and no more."""
    scheduler = Scheduler(Cache(Plan.from_pages(9, PAGE), max_sequences=1), 64, patience=3)
    scheduler.add(first := Prompt(6, 8))  # runs, and its row is not taken from it
    _run_a_step(scheduler)
    scheduler.add(low := Prompt(6, 8, 100))
    higher = [Prompt(6, 8, 200 + 100 * n) for n in range(12)]
    for request in higher:
        scheduler.add(request, priority=gap)

    assert [first, *higher[: 3 * gap], low, *higher[3 * gap :]] == _drive(scheduler)


def test_deadlines():
    """Those whose deadline has come end, waiting, running or preempted; the clock is given."""
    scheduler = Scheduler(Cache(Plan.from_pages(9, PAGE)), 64)
    runs, waits, free = Prompt(20, 32), Prompt(20, 24, 100), Prompt(5, 8, 200)
    scheduler.add(runs, deadline=5)
    scheduler.add(waits, deadline=4.5)
    scheduler.add(free)
    _run_a_step(scheduler)

    assert [] == scheduler.expire(4.4)
    assert [waits] == scheduler.expire(4.5)
    assert [] == scheduler.expire(4.5)
    assert (True, False, True) == tuple(each in scheduler for each in (runs, waits, free))
    assert [runs] == scheduler.expire(100)
    assert 0 == scheduler.cache.stats().live
    assert [free] == _drive(scheduler)


def test_malformed_priorities_and_deadlines():
    """They are refused by name, and nothing is queued."""
    scheduler = Scheduler(Cache(Plan.from_pages(9, PAGE)), 64)
    for priority in ("high", 0.5, True, None, 2**31):
        with pytest.raises(LengthError, match="priority"):
            scheduler.add(Prompt(5, 8), priority=priority)
    for deadline in ("soon", float("nan"), float("inf"), True):
        with pytest.raises(PlanError, match="deadline"):
            scheduler.add(Prompt(5, 8), deadline=deadline)
    for patience in (0, -1, 1.5):
        with pytest.raises(LengthError, match="patience"):
            Scheduler(scheduler.cache, 64, patience=patience)
    assert not scheduler
    scheduler.add(once := Prompt(5, 8))
    with pytest.raises(IdentityError, match="added before"):
        scheduler.add(once)
    assert [once] == _drive(scheduler)


def test_parts_of_a_turn_that_failed():
    """Each with the tokens it was to have; one that was removed meanwhile sits out."""
    scheduler = Scheduler(Cache(Plan.from_pages(40, PAGE)), 20)
    requests = [Prompt(9, 12, 100 * n) for n in range(4)]
    for request in requests:
        scheduler.add(request)
    turn = scheduler.schedule()
    with pytest.raises(StepError, match="the turn before is open"):
        scheduler.part(turn, requests[:2])
    scheduler.cache.abort(turn.step)
    first = scheduler.part(turn, requests[:2])
    scheduler.cache.commit(first.step, [0, 0])
    scheduler.remove(requests[2])
    rest = scheduler.part(turn, requests[2:])

    assert (requests[:2], requests[3:]) == (first.requests, rest.requests)
    whole = turn.step.counts.tolist()
    assert (whole[:2], whole[3:]) == (first.step.counts.tolist(), rest.step.counts.tolist())
    scheduler.cache.commit(rest.step, [0])
    assert {*requests} - {requests[2]} == {*_drive(scheduler)}


def test_overtaken_sequences_keep_their_rows():
    """Preempted sequences hold rows: a higher priority waits for one that ends, and is not lost."""
    scheduler = Scheduler(Cache(Plan.from_pages(9, PAGE), max_sequences=2), 64)
    low = [Prompt(12, 30, 100 * n) for n in range(2)]
    for request in low:
        scheduler.add(request)
    while scheduler.cache.stats().preemptions == 0:
        _run_a_step(scheduler)
    scheduler.add(high := Prompt(6, 8, 500), priority=9)

    assert [low[0], high, low[1]] == _drive(scheduler)


@pytest.mark.parametrize("pages", [40, 9])
def test_forks(pages):
    """A fork runs beside its parent on the same pages; without room it waits right behind it."""
    cache = Cache(Plan.from_pages(pages, PAGE), max_sequences=4)
    scheduler, children = Scheduler(cache, 64), [Prompt(18, 24) for _ in range(4)]
    scheduler.add(parent := Prompt(18, 24), priority=1, deadline=8)
    scheduler.add(later := Prompt(3, 5, 100))
    _run_a_step(scheduler)
    runs = [scheduler.fork(parent, child, 7 + at) for at, child in enumerate(children)]
    cache.check()

    assert (2 if pages == 40 else 1) == sum(runs)
    assert [parent, *children[: sum(runs)], later] == [*scheduler.running]
    assert children[sum(runs) :] == scheduler.waiting
    for at, child in enumerate(children[: sum(runs)]):
        assert [*range(18), 7 + at] == child.sequence.tokens().tolist()
    with pytest.raises(IdentityError, match="added before"):
        scheduler.fork(parent, children[0], 1)
    assert [parent, *children] == sorted(scheduler.expire(8), key=[parent, *children].index)
    assert [later] == _drive(scheduler)
