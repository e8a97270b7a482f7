"""Lanes by themselves: who waits where, and who goes first."""

import random

import numpy as np
import pytest

from octavo.cache.lanes import LANE_BITS, Clock, Heap, Lanes, Queue, Ring
from octavo.cache.policies import LRU, SLRU


def add(lanes, *pages, cold=False):
    """Let pages wait."""
    lanes.add(np.array(pages, np.intp), cold=cold)


def remove(lanes, *pages):
    """Take pages out."""
    lanes.remove(np.array(pages, np.intp))


def test_first_in_first_out():
    """Pages leave in the order they came, whatever their numbers."""
    lanes = Lanes(10, 9, LRU())
    add(lanes, 5, 2)
    add(lanes, 9)

    assert 3 == len(lanes)
    assert [5, 2] == lanes.pop(2).tolist()
    assert [9] == lanes.pop(1).tolist()
    assert 0 == len(lanes)


def test_a_page_that_left_and_came_back():
    """Its old entry is stale; it waits at its new place, once."""
    lanes = Lanes(10, 9, LRU())
    add(lanes, 1, 2, 3)
    remove(lanes, 1)
    add(lanes, 1)

    assert [2, 3, 1] == lanes.pop(3).tolist()


def test_the_cold_end():
    """Cold pages go before all others, the first cold first."""
    lanes = Lanes(10, 9, LRU())
    add(lanes, 1)
    add(lanes, 2, cold=True)
    add(lanes, 3, cold=True)

    assert lanes.stamp[2] < lanes.stamp[3] < lanes.stamp[1]
    assert [2, 3, 1] == lanes.pop(3).tolist()


def test_a_share_that_is_full_gives_its_oldest_down():
    """With 20 % of ten pages protected, the third reused page moves the first one down."""
    lanes = Lanes(11, 10, SLRU(20))
    lanes.reused[:] = True
    for page in (1, 2, 3):
        add(lanes, page)

    assert [1, 2, 2] == (lanes.stamp[1:4] >> LANE_BITS).tolist()
    assert [0, 1, 2] == lanes.waiting
    assert [1, 2, 3] == lanes.pop(3).tolist()


@pytest.mark.parametrize("policy", [LRU(), SLRU(10), SLRU(50)], ids=["lru", "slru 10", "slru 50"])
def test_lanes_against_lists(policy):
    """Thousands of random moves give what plain lists give; the rings are compacted many times."""
    chance, lanes, usable = random.Random(4), Lanes(60, 59, policy), 59
    plain = [[] for _ in range(policy.lanes + 1)]
    for _ in range(4_000):
        waiting = [page for lane in plain for page in lane]
        others = sorted(set(range(1, 60)) - set(waiting))
        act = chance.choice(["add", "add", "remove", "pop"])
        if act == "add" and others:
            pages = chance.sample(others, chance.randint(1, min(6, len(others))))
            cold = chance.random() < 0.2
            for page in pages:
                lanes.reused[page] = chance.random() < 0.4
            add(lanes, *pages, cold=cold)
            for page in pages:
                plain[0 if cold else policy.lane(reused=bool(lanes.reused[page]))].append(page)
            for lane in range(policy.lanes, 1, -1):
                count = policy.excess(lane, len(plain[lane]), usable) if plain[lane] else 0
                plain[lane - 1] += plain[lane][:count]
                del plain[lane][:count]
        elif act == "remove" and waiting:
            pages = chance.sample(waiting, chance.randint(1, min(6, len(waiting))))
            remove(lanes, *pages)
            plain = [[page for page in lane if page not in pages] for lane in plain]
        elif act == "pop" and waiting:
            count = chance.randint(1, min(6, len(waiting)))
            assert waiting[:count] == lanes.pop(count).tolist()
            gone = set(waiting[:count])
            plain = [[page for page in lane if page not in gone] for lane in plain]

        assert [len(lane) for lane in plain] == lanes.waiting
        assert sorted(p for lane in plain for p in lane) == lanes.stamp.nonzero()[0].tolist()


def test_lanes_of_one_clock_can_be_compared():
    """What became idle later has the higher stamp, whatever the id space."""
    clock = Clock()
    one, other = (Lanes(10, 9, LRU(), clock) for _ in range(2))
    add(one, 1)
    add(other, 1)
    add(one, 2)

    assert one.stamp[1] < other.stamp[1] < one.stamp[2]


def test_a_ring_grows_with_what_is_current_alone():
    """A page that comes and goes a thousand times leaves no more behind than there are entries."""
    stamp = np.zeros(10, np.int64)
    ring = Ring(stamp)
    for time in range(1, 1_001):
        ring.reserve(1)
        ring.append(np.array([time % 2]), np.array([time]))
        stamp[time % 2] = time

    assert 64 == ring.ids.size
    assert [1, 0] == ring.pop(5).tolist()
    assert [] == ring.pop(1).tolist()


def test_a_ring_that_cannot_grow_changes_nothing(monkeypatch):
    """Room is made before anything waits."""
    lanes = Lanes(200, 199, LRU())
    add(lanes, *range(1, 60))
    before = lanes.stamp.copy()

    def exhausted(*_):
        raise MemoryError

    monkeypatch.setattr("octavo.cache.lanes.np.zeros", exhausted)
    with pytest.raises(MemoryError):
        add(lanes, *range(60, 130))

    assert 59 == len(lanes)
    assert before.tolist() == lanes.stamp.tolist()


def test_a_lane_is_scanned_in_steps():
    """Oldest first, from where the last scan ended, over entries whose page has left."""
    lanes = Lanes(10, 9, LRU())
    add(lanes, 5, 2, 7, 1)
    remove(lanes, 2)
    first, place = lanes.scan(1, 0, 3)
    rest, end = lanes.scan(1, place, 3)

    assert ([5, 7], [1]) == (first.tolist(), rest.tolist())
    assert end == lanes.end(1)
    assert 3 == len(lanes)
    add(lanes, 2)
    assert [2] == lanes.scan(1, end, 3)[0].tolist()


def test_a_heap_drops_what_is_no_longer_so():
    """Only entries whose id still has their stamp are found; old ones do not pile up."""
    stamp = np.zeros(10, np.int64)
    heap = Heap(stamp)
    for time in range(1, 1_001):
        stamp[time % 10] = 2_000 - time
        heap.push(np.array([time % 10]), stamp[[time % 10]])
    assert len(heap) <= 100
    stamp[0] = 0

    assert 1_001 == heap.lowest(5_000)
    assert 9 == heap.pop()
    assert 500 == heap.lowest(500)


@pytest.mark.parametrize("late", [0.0, 0.3])
def test_a_queue_against_a_dict(late):
    """Lowest stamp first, whatever came out of order, over the lanes one after the other."""
    chance, queue, plain = random.Random(6), Queue(50, 3), {}
    times = iter(range(1_000, 10**6))
    for _ in range(3_000):
        ids = chance.sample(range(50), chance.randint(1, 8))
        if chance.random() < 0.5:
            lanes = [chance.choice([0, 1, 1, 2]) << LANE_BITS for _ in ids]
            early = 999 if chance.random() < late else 0
            stamps = [lane + next(times) - early for lane in lanes]
            if len({*plain.values(), *stamps}) < len(plain) + len(stamps):
                continue
            queue.add(np.array(ids), np.array(stamps))
            plain.update(zip(ids, stamps, strict=True))
        elif chance.random() < 0.3:
            queue.remove(np.array(ids))
            plain = {number: stamp for number, stamp in plain.items() if number not in ids}
        else:
            expected = sorted(plain, key=plain.get)[: len(ids)]
            assert expected == queue.pop(len(ids)).tolist()
            plain = {number: stamp for number, stamp in plain.items() if number not in expected}
        assert plain == {i: s for i, s in enumerate(queue.stamp.tolist()) if s}
        assert len(queue) <= 800
