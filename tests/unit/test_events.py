"""Events: what is stored, removed and cleared, told as it happens."""

import warnings

import pytest

from octavo import Attention, Cache, Media, Plan, Salt, State
from octavo.cache.events import Cleared, Removed, Stored, page_digests
from octavo.testing import freeze


def listening(usable=12, groups=None, **options):
    """A cache and the list its events go to."""
    told = []
    return Cache(Plan.from_pages(usable + 1, 4, groups), on_event=told.append, **options), told


def run(cache, tokens):
    """Compute a prompt in chunks that end where states are kept, and release it."""
    row = cache.admit(tokens)
    while row.computed < row.length:
        stop = row.next_stop or row.length
        cache.commit(cache.extend(row, stop - row.computed))
    cache.release(row)


def test_pages_are_told_when_they_are_published():
    """At commit, in order, each with its parent; nothing at admission, extension or abort."""
    cache, told = listening()
    row = cache.admit(range(9))
    cache.abort(cache.extend(row, 9))
    step = cache.extend(row, 9)

    assert [] == told
    cache.commit(step)
    assert [Stored, Stored] == [type(event) for event in told]
    assert told[0].digest == told[1].parent
    assert ("full", 1, 1) == told[0][2:]
    assert [1, 2] == [event.page for event in told]


def test_equal_pages_are_told_once():
    """A page computed again is repointed, not stored."""
    cache, told = listening()
    rows = [cache.admit(range(8)), cache.admit(range(8))]
    cache.commit(cache.extend(rows, 8))

    assert 2 == len(told)


def test_evicted_pages_are_told():
    """Tail first, with the reason and how many groups still have the node."""
    cache, told = listening(4)
    run(cache, range(16))
    stored = [event.digest for event in told]
    told.clear()
    other = cache.admit([9] * 3)
    cache.extend(other, 3)

    assert [Removed(stored[3], "full", "evicted", 0)] == told


def test_copies_count_groups():
    """A node that two groups have is stored twice and removed twice: 1, 2, then 1, 0."""
    groups = {"full": Attention(1, 1, 1), "w": Attention(1, 1, 1, window=9)}
    cache, told = listening(12, groups)
    run(cache, range(4))
    cache.reset()

    assert [("full", 1), ("w", 2)] == [(event.group, event.copies) for event in told[:2]]
    assert [1, 0] == [event.copies for event in told[2:4]]
    assert 1 == len({event.digest for event in told[:4]})
    assert [Cleared()] == told[4:]


def test_kept_states_are_told():
    """A state has the digest of its boundary; one that gives way to another says why."""
    groups = {"full": Attention(1, 1, 1), "state": State(1)}
    told = []
    plan = Plan.from_pages(60, 4, groups, page_bytes={"state": 100})
    cache = Cache(plan, snapshot_bytes=100, on_event=told.append)
    run(cache, range(6))
    run(cache, [7] * 6)
    states = [event for event in told if event.group == "state"]

    assert [Stored, Removed, Stored] == [type(event) for event in states]
    assert "snapshot_bytes" == states[1].reason
    assert states[0].digest == states[1].digest
    assert 1 == cache.stats().snapshots


def test_states_leave_no_event_for_each_of_their_pages():
    """A state of three pages is stored once and removed once."""
    groups = {"full": Attention(1, 1, 1), "state": State(1)}
    told = []
    plan = Plan.from_pages(60, 4, groups, parts={"state": 3})
    cache = Cache(plan, on_event=told.append)
    run(cache, range(6))
    cache.reset()

    kinds = [type(event) for event in told if getattr(event, "group", "") == "state"]
    assert [Stored, Removed] == kinds


def test_nobody_listens(monkeypatch):
    """No digest is computed then."""
    made = []
    monkeypatch.setattr("octavo.cache.events.page_digest", lambda *page: made.append(page) or b"")
    run(Cache(Plan.from_pages(13, 4)), range(9))
    assert [] == made
    run(listening()[0], range(9))

    assert 2 == len(made)


@pytest.mark.parametrize("verb", ["peek", "admit", "pin", "fork", "truncate"])
def test_verbs_that_publish_nothing_tell_nothing(verb):
    """Looking, holding, sharing and going back."""
    cache, told = listening()
    row = cache.admit(range(9))
    cache.commit(cache.extend(row, 9))
    told.clear()
    calls = {
        "peek": lambda: cache.peek(range(9)),
        "admit": lambda: cache.release(cache.admit(range(9))),
        "pin": lambda: cache.pin(range(9)).release(),
        "fork": lambda: cache.release(cache.fork(row)[0]),
        "truncate": lambda: cache.truncate(row, 2),
    }
    calls[verb]()

    assert [] == told
    assert freeze(cache)


def test_a_listener_that_raises_is_a_warning_and_the_verb_has_happened():
    """Whatever a listener raises, the cache is as if nobody had listened."""

    def fail(_):
        raise ValueError("not now")

    cache = Cache(Plan.from_pages(4, 4), on_event=fail)
    seq = cache.admit([1] * 9)
    with pytest.warns(RuntimeWarning, match="not now"):
        cache.commit(cache.extend(seq, 9), [2])

    cache.check()
    assert 10 == seq.length
    cache.release(seq)
    other = cache.admit([3] * 12)
    with pytest.warns(RuntimeWarning, match="has happened"):
        cache.extend(other, 12)
    cache.check()


def test_a_listener_may_call_the_cache():
    """Events are told when the verb is done, so that a listener finds the cache as it is."""
    found = []
    cache = Cache(Plan.from_pages(6, 4), on_event=lambda _: found.append(cache.peek([1] * 9)))
    seq = cache.admit([1] * 9)
    cache.commit(cache.extend(seq, 9), [2])

    assert [8, 8] == [match.tokens for match in found]


@pytest.mark.parametrize("extra", [(), [Salt("a")], [Media("x", 2, 6)], [Media(None, 5, 6)]])
def test_digests_of_a_prompt_are_those_the_events_tell(extra):
    """A router computes from the prompt what the cache tells of its pages."""
    stored = []
    cache = Cache(Plan.from_pages(9, 4), on_event=stored.append)
    seq = cache.admit(list(range(13)), extra=extra)
    cache.commit(cache.extend(seq, 13), [2])

    assert [event.digest for event in stored] == page_digests(range(13), 4, extra)


def test_a_listener_may_call_the_cache_for_each_of_many_events():
    """What its calls do is told after what it is being told: nothing nests, nothing is lost."""
    told = []

    def listener(event):
        told.append(event)
        if not isinstance(event, Cleared):
            for child in cache.fork(row):
                cache.release(child)

    cache = Cache(Plan.from_pages(2_100, 1), on_event=listener)
    row = cache.admit([7])
    other = cache.admit(list(range(2_000)))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        cache.commit(cache.extend(other, 2_000))

    assert 2_000 == len(told)
    cache.check()


def test_a_listener_that_raises_where_warnings_are_errors(capsys):
    """The verb has happened and gives its result; what was raised is told on stderr."""

    def listener(event):
        raise ValueError("no")

    cache = Cache(Plan.from_pages(10, 4), on_event=listener)
    row = cache.admit(range(9))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        done = cache.commit(cache.extend(row, 9), [1])

    assert 2 == done.published
    assert 2 == capsys.readouterr().err.count("on_event raised ValueError('no')")


def test_a_listener_may_commit_the_next_step():
    """What a commit says is its own, whatever its listener does meanwhile."""
    cache, steps = None, []

    def listen(event):
        if len(steps) > 1:
            cache.commit(steps.pop(), [7])

    cache = Cache(Plan.from_pages(20, 4), depth=2, on_event=listen)
    row = cache.admit(range(9))
    steps += [cache.extend(row, 9), cache.extend(row, 4, ahead=4)]

    assert 2 == cache.commit(steps[0], [9, 10, 11, 12][:1]).published
