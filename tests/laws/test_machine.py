"""Every law after every rule: the state machine, the stress run, and proof that they can fail.

Longer: ``python -m octavo.testing --rules 1000000 --seed 1``.
"""

from dataclasses import replace

import pytest
from hypothesis import settings

from octavo import Attention, Cache, Media, Salt
from octavo.testing import SHAPES, World, stress
from octavo.testing.drawing import Chance, any_shape
from octavo.testing.machine import CacheMachine
from octavo.testing.rules import RULES

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
            next(iter(rows)).core.pool.give_up_all()
            raise


class Boasting(Cache):
    """Counts what resumed sequences find as hits."""

    more = 0

    def resume(self, sequence):
        """Adds to the totals."""
        found = super().resume(sequence)
        self.more += found + 1
        return found

    def stats(self):
        """With what was added."""
        stats = super().stats()
        return stats._replace(cached_tokens=stats.cached_tokens + self.more)


class Loose(Cache):
    """Does not hold all pages it found."""

    def admit(self, tokens, **options):
        """The first page of a hit has a holder less than sequences."""
        row = super().admit(tokens, **options)
        if row.cached:
            row.core.pool.release(0, row.core.groups[0].entry(row.row, 0), False)
        return row


class Blind(Cache):
    """Tells prompts apart by their tokens alone, or by some of the rest."""

    ignored = Salt, Media

    def seen(self, extra):
        """What is left of extras."""
        return [item for item in extra if not isinstance(item, self.ignored)]

    def admit(self, tokens, *, extra=(), **options):
        """Without what is ignored."""
        return super().admit(tokens, extra=self.seen(extra), **options)

    def peek(self, tokens, extra=()):
        """The same."""
        return super().peek(tokens, self.seen(extra))

    def explain_match(self, tokens, extra=()):
        """The same."""
        return super().explain_match(tokens, self.seen(extra))


class BlindToSalts(Blind):
    """Media count."""

    ignored = Salt


class BlindToMedia(Blind):
    """Salts count."""

    ignored = Media


def notice(kind, shapes, windows=None):
    """Some law fails soon of caches of this kind, whose windows are others than they should be."""

    class Faulty(World):
        freeze_every = 2

        def make_cache(self, shape):
            shape = replace(shape, groups=shape.groups | (windows or {}))
            return kind(shape.plan(), on_event=self.router, **shape.options)

    with pytest.raises(AssertionError, match="seed 0, world"):
        stress(4_000, 0, shapes, world_type=Faulty)


@pytest.mark.parametrize("kind", [Keeping, Forgetful, Careless, Boasting])
def test_a_faulty_cache_is_noticed(kind):
    """Each of these faults is one an engine shipped."""
    notice(kind, SHAPES[:4])


@pytest.mark.parametrize(
    ("kind", "shape", "windows"),
    [
        (BlindToSalts, "full", {}),
        (BlindToMedia, "full", {}),
        (Loose, "packed", {}),
        (Cache, "window", {"w": Attention(1, 1, 1, window=3)}),
        (Cache, "window, sinks", {"w": Attention(1, 1, 1, window=6)}),
    ],
    ids=["salts", "media", "holders", "window", "sinks"],
)
def test_a_fault_inside_is_noticed(kind, shape, windows):
    """Something is ignored that tells prompts apart, is held, or is still seen."""
    notice(kind, [found for found in SHAPES if found.name == shape], windows)
