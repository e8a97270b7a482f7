"""A cache is for one thread at a time: another that comes inside is noticed and refused."""

import sys
import threading

import pytest

from octavo import Attention, Cache, Plan
from octavo.cache.policies import SLRU
from octavo.errors import CacheInUse, OctavoError
from octavo.testing import freeze


def make():
    """A cache in the midst of its work, and what it handed out."""
    groups = {"full": Attention(1, 1, 1), "w": Attention(1, 1, 1, window=8)}
    cache = Cache(Plan.from_pages(60, 4, groups), max_sequences=8)
    seq, other = cache.admit([1, 2, 3, 4, 5]), cache.admit([7, 8, 9])
    batch = cache.batch([seq])
    cache.commit(cache.extend(batch, 5), [6])
    return cache, seq, other, batch, cache.pin([1, 2, 3, 4, 5]), cache.extend(batch)


def verbs(cache, seq, other, batch, pin, step):
    """A call of each verb, right but for who is inside."""
    return {
        "peek": lambda: cache.peek([1]),
        "explain_match": lambda: cache.explain_match([1]),
        "check_limit": lambda: cache.check_limit(1, 9),
        "fits": lambda: cache.fits([(seq, 9)]),
        "need": lambda: cache.need(other, 3),
        "available": cache.available,
        "vacated": cache.vacated,
        "stats": cache.stats,
        "check": cache.check,
        "admit": lambda: cache.admit([1]),
        "release": lambda: cache.release(other),
        "reset": cache.reset,
        "pin": lambda: cache.pin([1, 2, 3, 4, 5]),
        "batch": lambda: cache.batch([other]),
        "extend": lambda: cache.extend(other, 3),
        "commit": lambda: cache.commit(step, [1]),
        "abort": lambda: cache.abort(step),
        "learn": lambda: cache.learn(other, [1]),
        "keep": lambda: cache.keep(other, 8),
        "slide": lambda: cache.slide(other, 8),
        "held": lambda: cache.held(other),
        "truncate": lambda: cache.truncate(other, 2),
        "drop": lambda: cache.drop(other, 1),
        "fork": lambda: cache.fork(other),
        "preempt": lambda: cache.preempt(other),
        "resume": lambda: cache.resume(other),
        "add": lambda: batch.add(other),
        "remove": lambda: batch.remove(seq),
        "pin.release": pin.release,
    }


def test_every_verb_is_among_them():
    """No verb of a cache was left out here."""
    public = {name for name, value in vars(Cache).items() if name[0] != "_" and callable(value)}

    assert public == set(verbs(*make())) - {"add", "remove", "pin.release"}


def test_a_second_thread_is_refused():
    """While one is inside, no verb of another changes or answers anything; then all goes on."""
    parts = make()
    cache, before, refused = parts[0], freeze(parts[0]), {}

    def call_all():
        for name, call in verbs(*parts).items():
            try:
                refused[name] = call()
            except CacheInUse as error:
                refused[name] = error.verb

    def extras():
        thread = threading.Thread(target=call_all)
        thread.start()
        thread.join()
        yield from ()

    cache.peek([1, 2, 3], extra=extras())

    assert {name: name.removeprefix("pin.") for name in verbs(*parts)} == refused
    assert before == freeze(cache)
    cache.commit(parts[5], [1])
    cache.check()


def test_what_a_verb_calls_cannot_call_verbs():
    """A policy that calls back in the midst of a verb is refused; the cache stays whole."""

    class Curious(SLRU):
        def excess(self, lane, waiting, usable):
            with pytest.raises(CacheInUse, match="stats was called while another verb is inside"):
                cache.stats()
            seen.append(lane)
            return super().excess(lane, waiting, usable)

    seen = []
    cache = Cache(Plan.from_pages(4, 4), policy=Curious(), max_length=12)
    for token in (0, 0, 1, 1, 2):  # of which some are used again, and wait in the lane above
        seq = cache.admit([token] * 9)
        cache.commit(cache.extend(seq, seq.length - seq.computed))
        cache.release(seq)

    assert seen
    cache.check()


def test_a_failure_leaves_nobody_inside():
    """After an error, octavo's or another's, the next verb runs."""

    def extras():
        raise KeyboardInterrupt
        yield

    cache = make()[0]
    for wrong in ([-1], None):
        with pytest.raises(OctavoError):
            cache.peek(wrong)
    with pytest.raises(KeyboardInterrupt):
        cache.peek([1], extra=extras())
    with pytest.raises(OctavoError):
        cache.extend(None)

    cache.check()


def test_threads_that_meet_break_nothing():
    """Whatever two threads do at once, the laws hold: each call is done whole or refused."""
    cache = Cache(Plan.from_pages(200, 4), max_sequences=40, depth=4)
    problems, start = [], threading.Barrier(4)

    def work(number):
        sequence = None
        start.wait()
        for at in range(2000):
            try:
                if sequence is None:
                    sequence = cache.admit([number, at, 3], id=(number, at))
                step = cache.extend(sequence, sequence.length - sequence.computed)
                cache.commit(step, [at])
                if at % 7 == 0:
                    cache.release(sequence)
                    sequence = None
            except OctavoError:
                pass
            except BaseException as error:  # noqa: BLE001, whatever broke
                problems.append(error)
                return

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)

    assert [] == problems
    cache.check()
