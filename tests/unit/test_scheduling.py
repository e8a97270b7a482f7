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
