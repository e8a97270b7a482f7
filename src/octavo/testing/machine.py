"""The rules as a Hypothesis state machine, which looks for short sequences of them that fail.

The one module here that needs Hypothesis. An engine author runs it on an own cache so::

    class MyWorld(World):
        def make_cache(self, shape):
            return MyCache(shape.plan(), **shape.options)


    class MyMachine(CacheMachine):
        world_type = MyWorld


    TestMyCache = MyMachine.TestCase
"""

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from octavo.testing.drawing import Draw
from octavo.testing.rules import RULES
from octavo.testing.shapes import SHAPES, Shape
from octavo.testing.world import World

_T = TypeVar("_T")


class Drawn:
    """Choices made, and shrunk, by Hypothesis."""

    def __init__(self, data: Any) -> None:
        self._data = data

    def integer(self, low: int, high: int) -> int:
        """Any int in ``low..high``."""
        return int(self._data.draw(st.integers(low, high)))


def from_hypothesis(make: Callable[[Draw], _T]) -> Any:
    """The Hypothesis strategy of what ``make`` makes."""
    return st.builds(lambda data: make(Drawn(data)), st.data())


class CacheMachine(RuleBasedStateMachine):
    """Every rule of `octavo.testing.rules`, all laws checked after each.

    Attributes:
        world_type: the World to drive; its `make_cache` makes the cache under test.
        shapes: caches to choose from.
    """

    world_type: ClassVar[type[World]] = World
    shapes: ClassVar[Sequence[Shape]] = SHAPES

    def __init__(self) -> None:
        super().__init__()
        self.world: World | None = None

    @initialize(data=st.data())
    def start(self, data: Any) -> None:
        """Make a world of one of the shapes."""
        at = Drawn(data).integer(0, len(self.shapes) - 1)
        self.world = self.world_type(self.shapes[at])

    @invariant()
    def laws(self) -> None:
        """Both sides agree and nothing is lost, shared wrongly or overwritten."""
        if self.world is not None:
            self.world.check()

    def teardown(self) -> None:
        """Everything is released, and nothing is left."""
        if self.world is not None:
            self.world.finish()


def _add_rules() -> None:
    """One Hypothesis rule for each entry of ``RULES``."""
    for name, entry in RULES.items():
        setattr(CacheMachine, f"rule_{name}", _as_rule(name, entry))


def _as_rule(name: str, entry: Any) -> Any:
    def act(self: CacheMachine, data: Any) -> None:
        entry.act(self.world, Drawn(data))

    act.__name__, act.__doc__ = f"rule_{name}", entry.act.__doc__
    needs = precondition(lambda self: self.world is not None and entry.needs(self.world))
    return needs(rule(data=st.data())(act))


_add_rules()
