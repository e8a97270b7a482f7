"""Whatever requests come: each ends as it was promised, with the tokens it gets alone."""

import pytest

from octavo.cache.cache import Cache
from octavo.scheduling.host import HostPages
from octavo.scheduling.order import Order
from octavo.scheduling.scheduler import Scheduler
from octavo.testing import ModelStore, traffic
from octavo.testing.__main__ import main
from octavo.testing.hosting import MockCopier

REQUESTS = 600
GUESSED = ("drafts guessed", "drafts accepted", "lookups guessed", "lookups accepted")


def test_traffic():
    """Some hundred requests on all kinds of pools; everything that may happen does."""
    counts = traffic(REQUESTS, seed=5)
    wanted = ("finished", "cancelled", "deadline", "failed", "refused", "forked", "forked later")

    more = ("preemptions", "restored", "cached", *GUESSED)
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
        (MockCopier, "fill", lambda *_: None, "holds something else"),
        (Cache, "slide", lambda *_: None, "holds something else"),
        (HostPages, "drop", lambda *_: None, "saved of one that runs"),
    ],
)
def test_traffic_notices(monkeypatch, kind, name, broken, message):
    """What is broken on purpose is found."""
    monkeypatch.setattr(kind, name, broken)
    with pytest.raises(AssertionError, match=message):
        traffic(2000, seed=5)


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--requests", "-5"], "--requests: '-5' is not a whole number of at least 1"),
        (["--requests", "0"], "--requests: '0' is not a whole number"),
        (["--rules", "-3"], "--rules: '-3' is not a whole number"),
        (["--rules", "1e3"], "--rules: '1e3' is not a whole number"),
        (["--rules", "9" * 5000], "at most 1,000,000,000,000"),
        (["--requests", "3", "--rules", "5"], "not allowed with"),
        (["--requests", "3", "--shape", "full"], "--shape goes with --rules"),
        (["--shape", "full", "--shape", "round"], "shapes are: full"),
        (["--seed", "x"], "--seed: invalid int value"),
    ],
)
def test_the_command_refuses_what_it_cannot_run(words, why, monkeypatch, capsys):
    """Counts below 1 or beyond all patience, and options that would be passed over."""
    monkeypatch.setattr("sys.argv", ["octavo.testing", *words])
    with pytest.raises(SystemExit) as stopped:
        main()

    assert 2 == stopped.value.code
    assert why in capsys.readouterr().err


def test_the_command(monkeypatch, capsys):
    """It says what came of so many requests."""
    monkeypatch.setattr("sys.argv", ["octavo.testing", "--requests", "5", "--seed", "2"])
    main()

    assert capsys.readouterr().out.startswith("seed 2: 5 requests in ")
