"""Every law after every rule: the state machine, the stress run, and proof that they can fail.

Longer: ``python -m octavo.testing --rules 1000000 --seed 1``.
"""

import pytest
from hypothesis import settings

from octavo import Cache
from octavo.cache import matching
from octavo.cache.ledger import Ledger
from octavo.cache.parents import ParentPool
from octavo.cache.prefix import ROOT, PrefixIndex
from octavo.cache.runs import Keys
from octavo.testing import SHAPES, World, stress
from octavo.testing.drawing import Chance
from octavo.testing.machine import CacheMachine
from octavo.testing.rules import RULES
from octavo.testing.strategies import any_shape

TestCache = CacheMachine.TestCase
TestCache.settings = settings(settings.default, max_examples=25, stateful_step_count=40)

DONE = ["abort", "admit", "commit", "dropped", "evicted", "extend", "extends of batches", "forget"]
DONE += ["fork", "hits", "pin", "preempt", "proofs", "refused", "release", "repointed", "resume"]
DONE += ["extends of lists", "truncate", "OutOfPages", "StepError", "RollbackUnsupported"]


@pytest.mark.parametrize("seed", [1, 2])
def test_stress(seed):
    """Thousands of random rules over all shapes, contents compared in every step."""
    report = stress(10_500, seed)

    assert set(RULES) == set(report.rules)
    assert 10_500 == report.rules.total()
    assert not [name for name in DONE if report.counts[name] < 15]
    assert report.counts["extends of batches"] > 1_000


@pytest.mark.parametrize("seed", range(4))
def test_stress_of_any_shape(seed):
    """Groups, pools and options at random."""
    shapes = [any_shape(Chance(f"{seed}/{number}")) for number in range(8)]
    report = stress(1_200, seed, shapes)

    assert 1_200 == report.rules.total()


class Exacting(World):
    """Compares everything around every verb that may raise."""

    freeze_every = 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_raising_verb_is_compared(shape):
    """Whatever is refused has changed nothing at all."""
    report = stress(60, 4, (shape,), world_type=Exacting)

    assert 60 == report.rules.total()


# -- faults the rules must find --------------------------------------------------------------------


class Keeping(Cache):
    """Ignores which drafts were rejected."""

    def commit(self, step, tokens=None, **_):
        """Keeps every position."""
        return super().commit(step, tokens)


class Forgetful(Cache):
    """Admits without looking for a prefix."""

    def admit(self, tokens, **options):
        """Never reuses."""
        return super().admit(tokens, **options | {"reuse": False})


class Careless(Cache):
    """Empties the prefix cache when pages run short."""

    def extend(self, rows, counts=1, *, ahead=0):
        """Evicts before it knows whether a step can be had."""
        try:
            return super().extend(rows, counts, ahead=ahead)
        except MemoryError:
            self._ledger.evict_all()
            raise


class Boasting(Cache):
    """Counts what resumed sequences find as hits."""

    def resume(self, sequence):
        """Adds to the totals."""
        found = super().resume(sequence)
        self._cached_tokens += found + 1
        return found


@pytest.mark.parametrize("kind", [Keeping, Forgetful, Careless, Boasting])
def test_a_faulty_cache_is_noticed(kind):
    """Each of these faults is one an engine shipped."""

    class Faulty(World):
        freeze_every = 2

        def make_cache(self, shape):
            return kind(shape.plan(), on_event=self.router, **shape.options)

    with pytest.raises(AssertionError, match="seed 0, world"):
        stress(4_000, 0, SHAPES[:4], world_type=Faulty)


def _slide_too_far(ledger, group, position):
    floor = ledger.groups[group].lifetime.floor(max(0, position + ledger.page_size))
    first = floor // ledger.page_size
    return min(ledger.sink_columns(group), first), first


FAULTS = {
    "windows slide too far": (Ledger, "kept_columns", _slide_too_far, "window"),
    "salts are ignored": (PrefixIndex, "find_root", lambda index, root: ROOT, "full"),
    "sinks are given back": (Ledger, "sink_columns", lambda ledger, group: 0, "window, sinks"),
    "what is held is evicted": (ParentPool, "retain", lambda pool, pages, group=0: None, "packed"),
    "media are ignored": (
        matching,
        "page_keys",
        lambda ids, identity, size, first, stop: Keys(
            ids[first * size : stop * size].tobytes(), 4 * size, {}
        ),
        "full",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_inside_is_noticed(monkeypatch, fault):
    """One function of the cache replaced by a wrong one: some law fails soon."""
    owner, name, wrong, shape = FAULTS[fault]
    monkeypatch.setattr(owner, name, wrong)
    shapes = [found for found in SHAPES if found.name == shape]
    with pytest.raises(AssertionError, match="seed 0, world"):
        stress(3_000, 0, shapes)
