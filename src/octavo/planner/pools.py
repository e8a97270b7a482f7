"""The pool of a plan as plain data, and how many pages and sequences that is, in exact integers.

Knows no device and allocates nothing. Bytes are in `octavo.planner.sizes`; what users hold is the
`octavo.Plan` made of it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from octavo.checks import check_flag, check_int
from octavo.errors import PlanError, UnknownGroup
from octavo.model.dtypes import DType
from octavo.model.lifetimes import FULL, Lifetime
from octavo.model.spec import ModelSpec
from octavo.planner.budget import Budget, Memory
from octavo.planner.components import Elements, Order
from octavo.planner.layouts import Layout, TensorPlan

__all__ = [
    "GroupPlan",
    "PlanRequest",
    "PoolPlan",
    "dtype",
    "in_flight_pages",
    "largest",
    "largest_from",
    "longest_of",
    "max_length_for",
    "max_sequences",
    "max_sequences_in_flight",
    "pages",
    "parents",
]

if TYPE_CHECKING:
    from fractions import Fraction

MAX_PAGES = 2**31 - 1
"""Page ids and lengths are int32."""


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Layers that keep tokens for equally long and share one page table.

    Attributes:
        name: full, window_W, window_W_sS, chunked_C, every_N, state, cross, or the engine's own.
        layers: indices in the model.
        page_bytes: bytes of one page over all its layers, of a packed plan with its padding.
        lifetime: how long it keeps what it holds.
        pages_per_parent: K: its pages in a parent of a packed plan; 1 where all groups share pages.
        parts: pages one state takes; 1 for groups that keep tokens.
        kept_bytes: bytes of a page (of a state) that hold something, without any padding; 0 for a
            plan without bytes.
        input_tokens: positions of the input that cross attention sees, where it is always as long.
    """

    name: str
    layers: tuple[int, ...] = ()
    page_bytes: int = 0
    lifetime: Lifetime = FULL
    pages_per_parent: int = 1
    parts: int = 1
    kept_bytes: int = 0
    input_tokens: int = 0

    def steady_pages(self, length: int, page_size: int) -> int:
        """Pages of a sequence of ``length`` tokens; unknown cross inputs as none. O(1)."""
        if self.grows:
            return self.lifetime.steady_pages(length, page_size)
        return self.parts if self.lifetime.form == "state" else -(-self.input_tokens // page_size)

    def kept_tokens(self, length: int) -> int:
        """Tokens, or rows, it keeps of a sequence of ``length``, without page rounding. O(1)."""
        if not self.grows:
            return self.input_tokens
        rows = self.lifetime.form == "rows"
        return length // self.every if rows else self.lifetime.steady_pages(length, 1)

    def unit_bytes(self, page_size: int) -> int:
        """Bytes of one token, or row, over all its layers, without any padding. O(1)."""
        return self.kept_bytes // self.lifetime.units(page_size)

    @property
    def grows(self) -> bool:
        """Whether it keeps tokens, or rows of them, more of a longer sequence."""
        return self.lifetime.form in ("tokens", "rows")

    @property
    def every(self) -> int:
        """Tokens that one of its rows stands for."""
        return getattr(self.lifetime, "every", 1)

    @property
    def slides(self) -> bool:
        """Whether it drops tokens of a sequence that goes on: windows and chunks."""
        return self.lifetime.slides


class PlanRequest(NamedTuple):
    """What every rank of a plan has in common; as the arguments of `octavo.plan`.

    Attributes:
        sequences: None: one, in the steady state; else so many with a step in flight.
        stages: each rank's share of the model, by pipeline stage.
        spec: the whole model.
    """

    memory: Memory
    page_size: int
    elements: Elements
    wanted: int | None
    sequences: int | None
    order: Order
    layout: Layout | None
    draft: ModelSpec | None
    max_step_tokens: int
    tp: int
    stages: list[ModelSpec]
    spec: ModelSpec


@dataclass(frozen=True, slots=True)
class PoolPlan:
    """A pool's geometry: the data of an `octavo.Plan`.

    Attributes:
        page_size: tokens per page.
        num_pages: physical pages (packed: parents), the null page 0 included.
        groups: group name to its GroupPlan.
        max_length: longest sequence in tokens; None: bounded by the pages alone.
        spec: the model, or None for a plan without bytes.
        elements: element types, or None for a plan without bytes.
        order: ``token`` or ``head``: which axis of a page comes first.
        budget: where the bytes go, or None for a plan without bytes.
        memory: how much of a device it was given, or None.
        tensors: the views of the arena; empty for a plan without bytes.
        layout: ``component``, ``slab`` or ``packed``.
        max_step_tokens: most tokens per step, which windows hold in flight.
        tp: ranks that share each layer.
        stages: with pipeline ranks, the plan of each; they number their pages alike.
        _rank: which of the stages this is: the one with room for the fewest pages.
        _leader: the stage that chose how many pages a parent holds, on all.
        _request: what it was planned for, or None for a plan without bytes.
    """

    page_size: int
    num_pages: int
    groups: Mapping[str, GroupPlan]
    max_length: int | None = None
    spec: ModelSpec | None = None
    elements: Elements | None = None
    order: Order = "token"
    budget: Budget | None = None
    memory: Memory | None = None
    tensors: tuple[TensorPlan, ...] = field(default=(), repr=False)
    layout: Layout = "component"
    max_step_tokens: int = 2048
    tp: int = 1
    stages: tuple["PoolPlan", ...] = field(default=(), repr=False)
    _rank: int = field(default=0, repr=False)
    _leader: int = field(default=0, repr=False)
    _request: PlanRequest | None = field(default=None, repr=False, compare=False)

    def __reduce__(self) -> tuple[Callable[..., "PoolPlan"], tuple[object, ...]]:
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return _remake, (type(self), values | {"groups": dict(self.groups)})

    @property
    def packed(self) -> bool:
        """Whether groups number their pages each for itself, within parents."""
        return self.layout == "packed"

    @property
    def usable_pages(self) -> int:
        """Pages (packed: parents) that can be handed out: all but the null page."""
        return self.num_pages - 1

    @property
    def page_bytes(self) -> int:
        """Bytes of one page over all layers (packed: of a parent); 0 for a plan without bytes."""
        if self.packed:
            return max(g.page_bytes * g.pages_per_parent for g in self.groups.values())
        return sum(group.page_bytes for group in self.groups.values())

    @property
    def draft(self) -> Self | None:
        """The same pages as the draft model has them: its layers and tensors; None: there is none.

        O(tensors).
        """
        if self._request is None or self._request.draft is None:
            return None
        tensors = tuple(tensor._replace(draft=False) for tensor in self.tensors if tensor.draft)
        request = self._request._replace(spec=self._request.draft, draft=None)
        return replace(self, spec=request.spec, tensors=tensors, _request=request)

    def ids(self, group: str) -> int:
        """Page ids of ``group``, the null page included. O(1).

        Raises:
            UnknownGroup: the plan has no group of that name.
        """
        if not isinstance(group, str) or group not in self.groups:
            raise UnknownGroup(group, list(self.groups))
        return 1 + self.usable_pages * self.groups[group].pages_per_parent


def _remake(kind: type[PoolPlan], values: dict[str, Any]) -> PoolPlan:
    """A plan that was pickled, its groups read-only again."""
    return kind(**values | {"groups": MappingProxyType(values["groups"])})


def dtype(plan: PoolPlan) -> DType | None:
    """Element type of keys and values, or None for a plan without bytes. O(1)."""
    return None if plan.elements is None else plan.elements.kv


def pages(plan: PoolPlan, length: int) -> int:
    """Pages (packed: parents) that one sequence of ``length`` tokens takes. O(groups).

    Windows count as they are when it runs token by token; unknown cross inputs are left out.
    """
    return parents(plan, 1, check_int("length", length, 0))


def parents(plan: PoolPlan, sequences: int, length: int, *, in_flight: bool = False) -> int:
    """Pages (packed: parents) of so many sequences, each group in its own. O(groups).

    Args:
        plan: of the pool.
        sequences: how many.
        length: tokens of each.
        in_flight: whether a step of ``max_step_tokens`` runs beside them.
    """
    step = plan.max_step_tokens if in_flight else 0
    return sum(-(-pages // each) for pages, each in _group_pages(plan, sequences, length, step))


def _group_pages(
    plan: PoolPlan, sequences: int, length: int, step: int = 0
) -> Iterator[tuple[int, int]]:
    """(pages of so many sequences beside a step, pages per parent) of each group."""
    size = plan.page_size
    for group in plan.groups.values():
        pages = sequences * group.steady_pages(length, size)
        pages += in_flight_pages(group.lifetime, sequences, length, size, step)
        yield pages, group.pages_per_parent


def in_flight_pages(
    lifetime: Lifetime, sequences: int, length: int, page_size: int, step: int
) -> int:
    """Pages a step of so many tokens may hold beside the steady state of sequences. O(1).

    Those of the step's tokens, before windows slide on: never more than the sequences' own pages.
    """
    if not lifetime.slides:
        return 0
    dropped = -(-length // page_size) - lifetime.steady_pages(length, page_size)
    return min(-(-step // page_size), sequences * dropped)


def max_sequences(plan: PoolPlan, length: int) -> "Fraction":
    """Sequences of ``length`` tokens that fit at once: see `octavo.Plan.max_sequences`.

    Raises:
        LengthError: ``length`` is less than 1.
        PlanError: there is nothing but cross inputs, of unknown length.
    """
    from fractions import Fraction  # here: it costs a tenth of importing octavo

    length = check_int("length", length, 1)
    steady = list(_group_pages(plan, 1, length))
    share = sum((Fraction(pages, each) for pages, each in steady), Fraction(0))
    if not share:
        raise PlanError("groups", list(plan.groups), "an input's length must be known")
    cut = sum(each > 1 for _, each in steady)  # each may leave a parent that is not full
    sure = (plan.usable_pages - max(0, cut - 1)) / share
    whole = max(0, int(sure))
    while parents(plan, whole + 1, length) <= plan.usable_pages:
        whole += 1
    return max(sure, Fraction(whole))


def max_sequences_in_flight(plan: PoolPlan, length: int) -> int:
    """Whole sequences of ``length`` tokens that fit beside a step of ``max_step_tokens``.

    As many as a prompt computed in such steps leaves room for: at most `max_sequences`.
    O(groups).

    Raises:
        LengthError: ``length`` is less than 1.
    """

    def fits(many: int) -> bool:
        return parents(plan, many, length, in_flight=True) <= plan.usable_pages

    return largest(fits, int(max_sequences(plan, length)))


def longest_of(plan: PoolPlan, sequences: int, *, in_flight: bool = False) -> int:
    """Tokens of the longest ``sequences`` that all usable pages hold. O(groups).

    2**31 - 1 where nothing grows with the length.
    """

    def fits(length: int) -> bool:
        return parents(plan, sequences, length, in_flight=in_flight) <= plan.usable_pages

    return largest(fits, MAX_PAGES)


def max_length_for(plan: PoolPlan, sequences: int, *, in_flight: bool = False) -> int:
    """Longest length at which ``sequences`` of them fit at once, 0 for none. O(groups).

    Args:
        plan: of the pool.
        sequences: how many.
        in_flight: whether a step of ``max_step_tokens`` must fit beside them.

    Raises:
        LengthError: ``sequences`` is less than 1.
    """
    sequences = check_int("sequences", sequences, 1)
    length = longest_of(plan, sequences, in_flight=check_flag("in_flight", in_flight))
    return length if plan.max_length is None else min(length, plan.max_length)


def largest(fits: Callable[[int], bool], high: int, low: int = 0) -> int:
    """The largest number in ``low..high`` that fits, where ``low`` does. O(log(high)) calls."""
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low


def largest_from(
    fits: Callable[[int], bool], low: int, step: int = 1, high: int = MAX_PAGES
) -> int:
    """As `largest`, with few calls where the answer is near ``low``, looked for in such steps."""
    while low < high:
        further = min(low + step, high)
        if not fits(further):
            return largest(fits, further - 1, low)
        low, step = further, 8 * step
    return low
