"""Whatever requests come: each ends as it was promised, with the tokens it gets alone."""

import pytest

from octavo.scheduling.order import Order
from octavo.scheduling.scheduler import Scheduler
from octavo.testing import ModelStore, traffic

REQUESTS = 600
GUESSED = ("drafts guessed", "drafts accepted", "lookups guessed", "lookups accepted")


def test_traffic():
    """Some hundred requests on all kinds of pools; everything that may happen does."""
    counts = traffic(REQUESTS, seed=7)
    wanted = ("finished", "cancelled", "deadline", "failed", "refused", "forked", "forked later")

    more = ("preemptions", "cached", *GUESSED)
    assert [] == [what for what in (*wanted, *more) if not counts[what]]
    children = counts["forked"] + counts["forked later"]
    assert REQUESTS + children == sum(counts[what] for what in wanted[:5])


def _lazy(self, group, sources, targets):
    """A storage that forgets its copies."""


def _first(self):
    """A scheduler that preempts the first in order."""
    request = next(iter(self.running))
    self.running[request] = self.running.pop(request)
    return PREEMPT_LAST(self)


PREEMPT_LAST = Scheduler._preempt_last


@pytest.mark.parametrize(
    ("kind", "name", "broken", "message"),
    [
        (ModelStore, "copy", _lazy, "holds something else"),
        (Scheduler, "_preempt_last", _first, "the first was preempted"),
        (Order, "late", lambda self, now: [], "late"),
    ],
)
def test_traffic_notices(monkeypatch, kind, name, broken, message):
    """What is broken on purpose is found."""
    monkeypatch.setattr(kind, name, broken)
    with pytest.raises(AssertionError, match=message):
        traffic(2000, seed=7)
