"""However rows are given to a step, it is the same: a batch, and its sequences as a list."""

import pytest

from octavo.testing import SHAPES, World
from octavo.testing.drawing import Chance
from octavo.testing.rules import RULES
from octavo.testing.stress import choose


class Listed(World):
    """Gives the rows of a batch as a list."""

    def as_rows(self, rows, batch):  # noqa: ARG002  # that is the point
        """Never the batch itself."""
        return [row.handle for row in rows]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_batch_steps_like_its_rows(shape):
    """The same verbs give the same pages, slots, copies, publications, hits and errors."""
    worlds = World(shape), Listed(shape)
    chances = Chance(f"paths/{shape}"), Chance(f"paths/{shape}")
    for at in range(260):
        names = [choose(*pair) for pair in zip(worlds, chances, strict=True)]
        for world, chance, name in zip(worlds, chances, names, strict=True):
            RULES[name].act(world, chance)
            world.check()

        assert worlds[0].digest == worlds[1].digest, f"rule {at}, {names[0]}"
