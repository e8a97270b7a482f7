"""Every law after every rule: the state machine, the stress run, and proof that they can fail.

Longer: ``python -m octavo.testing --rules 1000000 --seed 1``.
"""

import pytest
from hypothesis import settings

from octavo import Cache
from octavo.testing import SHAPES, Shape, World, stress
from octavo.testing.machine import CacheMachine
from octavo.testing.rules import RULES

TestCache = CacheMachine.TestCase
TestCache.settings = settings(settings.default, max_examples=60, stateful_step_count=50)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_stress(seed):
    """Thousands of random rules over all shapes, contents compared after each."""
    report = stress(6_000, seed)

    assert set(RULES) == set(report.rules)
    assert 6_000 == report.rules.total()
    assert report.hits > 500
    assert report.evicted > 100


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_every_raising_verb_is_compared_in_depth(shape):
    """With a deep snapshot around every verb that raises: nothing at all is changed by it."""
    report = stress(150, 4, (shape,), deep_every=1)

    assert 150 == report.rules.total()


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
    """Evicts before it knows whether a step can be had."""

    def extend(self, rows, counts=1, *, ahead=0):
        """Empties the prefix cache when pages run short."""
        try:
            return super().extend(rows, counts, ahead=ahead)
        except MemoryError:
            scratch = super().admit([0], reuse=False)
            room = self.available()["full"] * self.plan.page_size
            room = min(room, scratch.limit)
            super().abort(super().extend(scratch, max(1, room), ahead=max(1, room)))
            super().release(scratch)
            raise


class Shallow(Cache):
    """Truncates inside published pages as if nobody else could read them."""

    def truncate(self, sequence, length, *, exclusive=False):
        """Claims that all is still computed."""
        return max(super().truncate(sequence, length, exclusive=exclusive), length)


@pytest.mark.parametrize("kind", [Keeping, Forgetful, Careless, Shallow])
def test_a_faulty_cache_is_noticed(kind):
    """Each of these faults is one an engine shipped; the rules find every one of them."""

    class Faulty(World):
        def make_cache(self, shape):
            sound = super().make_cache(shape)
            return kind(sound.plan, max_sequences=sound.max_sequences, max_length=sound.max_length)

    with pytest.raises(AssertionError, match="seed 0, Shape"):
        stress(4_000, 0, (Shape(9, 4, 3), Shape(24, 4, 6)), deep_every=1, world_type=Faulty)
