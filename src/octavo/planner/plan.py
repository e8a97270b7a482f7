"""A plan: pages of groups, the tensors they lie in, and what fits: pure questions to exact numbers.

Knows no device and allocates nothing. `octavo.planner.request` makes plans from specs.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from octavo.checks import check_int
from octavo.errors import PlanError
from octavo.model.dtypes import DType
from octavo.model.layers import Attention, LayerKind, State
from octavo.model.lifetimes import FULL, Lifetime, lifetime_of
from octavo.model.spec import ModelSpec
from octavo.planner.budget import Budget, Memory
from octavo.planner.components import Elements, Order, components_of
from octavo.planner.layouts import Layout, TensorPlan

if TYPE_CHECKING:
    from fractions import Fraction

    from octavo.planner.solve import Request

MAX_PAGES = 2**31 - 1
"""Page ids and lengths are int32."""


def slides(lifetime: Lifetime) -> bool:
    """Whether it drops tokens of a sequence that goes on: windows and chunks. O(1)."""
    return lifetime.floor(2**62) > 0


def in_flight_pages(
    lifetime: Lifetime, sequences: int, length: int, page_size: int, step: int
) -> int:
    """Pages a step of so many tokens may hold beside the steady state of sequences. O(1).

    Those of the step's tokens, before windows slide on: never more than the sequences' own pages.
    """
    if not slides(lifetime):
        return 0
    dropped = -(-length // page_size) - lifetime.steady_pages(length, page_size)
    return min(-(-step // page_size), sequences * dropped)


@dataclass(frozen=True, slots=True)
class GroupPlan:
    """Layers that keep tokens for equally long and share one page table.

    Attributes:
        name: full, window_W, window_W_sS, chunked_C, state, cross, or the engine's own.
        layers: indices in the model.
        page_bytes: bytes of one page over all its layers, of a packed plan with its padding.
        lifetime: how long it keeps what it holds.
        pages_per_parent: K: its pages in a parent of a packed plan; 1 where all groups share pages.
        parts: pages one state takes; 1 for groups that keep tokens.
        kept_bytes: bytes of a page (of a state) that hold something: of one token times the page
            size, without any padding; 0 for a plan without bytes.
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
        if self.lifetime.form == "tokens":
            return self.lifetime.steady_pages(length, page_size)
        return self.parts if self.lifetime.form == "state" else -(-self.input_tokens // page_size)

    def kept_tokens(self, length: int) -> int:
        """Tokens it keeps of a sequence of ``length``, without page rounding. O(1)."""
        if self.lifetime.form == "tokens":
            return self.lifetime.steady_pages(length, 1)
        return self.input_tokens

    @property
    def slides(self) -> bool:
        """Whether it drops tokens of a sequence that goes on: windows and chunks."""
        return slides(self.lifetime)


@dataclass(frozen=True, slots=True)
class Plan:
    """A pool's geometry and capacity; made by `plan` or `Plan.from_pages`.

    Attributes:
        page_size: tokens a page holds.
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
        max_step_tokens: most tokens a step computes, which windows hold in flight.
        tp: ranks that share each layer.
        stages: with pipeline ranks, the plan of each; they number their pages alike.
        rank: which of the stages this is: the one with room for the fewest pages.
        leader: the stage whose pages a parent all stages took.
        request: what was asked for, or None for a plan without bytes.
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
    stages: tuple["Plan", ...] = field(default=(), repr=False)
    rank: int = 0
    leader: int = 0
    request: "Request | None" = field(default=None, repr=False, compare=False)

    @classmethod
    def from_pages(
        cls,
        num_pages: int,
        page_size: int,
        groups: Mapping[str, LayerKind] | None = None,
        *,
        max_length: int | None = None,
        pages_per_parent: Mapping[str, int] | None = None,
        parts: Mapping[str, int] | None = None,
        page_bytes: Mapping[str, int] | None = None,
    ) -> "Plan":
        """A plan of page numbers only, for an engine with its own storage.

        Args:
            num_pages: physical pages, the null page counted: one less can be used.
            page_size: tokens a page holds.
            groups: group name to the kind of its layers; None: one full group.
            max_length: longest sequence in tokens; None: as many as fit.
            pages_per_parent: makes the plan packed: ``num_pages - 1`` parents, each cut into this
                many pages of the group it is bound to; a group not named gets 1.
            parts: pages one state takes, for state groups that are cut; a group not named takes 1.
            page_bytes: bytes of one page of a group, where something is bounded in bytes.

        Raises:
            LengthError: a number out of range, or pages too few for one of ``max_length``.

        Cost: O(1).
        """
        page_size = check_int("page_size", page_size, 1)
        num_pages = check_int("num_pages", num_pages, 2, MAX_PAGES, "page 0 is the null page")
        kinds = {"full": Attention(1, 1, 1)} if groups is None else groups
        if not kinds:
            raise PlanError("groups", groups, "a plan has at least one group")
        per_parent, cut, sizes = pages_per_parent or {}, parts or {}, page_bytes or {}
        for name in (*per_parent, *cut, *sizes):
            if name not in kinds:
                raise PlanError("group", name, f"the plan's groups are {', '.join(kinds)}")
        for name, kind in kinds.items():
            if not isinstance(kind, LayerKind):
                raise PlanError(f"groups[{name!r}]", kind, "it must be Attention, State or Cross")
            if name in cut and not isinstance(kind, State):
                raise PlanError(f"parts[{name!r}]", cut[name], "only states are cut into parts")
        plans = {
            name: GroupPlan(
                name,
                page_bytes=check_int("page_bytes", sizes.get(name, 0), 0),
                lifetime=lifetime_of(kind),
                pages_per_parent=check_int("pages_per_parent", per_parent.get(name, 1), 1),
                parts=check_int("parts", cut.get(name, 1), 1),
            )
            for name, kind in kinds.items()
        }
        for group in plans.values():
            ids = 1 + (num_pages - 1) * group.pages_per_parent
            if ids * page_size > 2**31:
                right = f"slots must be int32: at most {2**31} for pages x page_size of a group"
                raise PlanError("num_pages", num_pages, right)
        layout: Layout = "component" if pages_per_parent is None else "packed"
        made = cls(page_size, num_pages, MappingProxyType(plans), max_length, layout=layout)
        if max_length is not None:
            max_length = check_int("max_length", max_length, 1, MAX_PAGES)
            made = replace(made, max_length=max_length)
            need = 1 + made.pages(max_length)
            why = f"the null page and one sequence of {max_length} tokens"
            check_int("num_pages", num_pages, need, MAX_PAGES, why)
        return made

    @property
    def packed(self) -> bool:
        """Whether groups number their pages each for itself, within parents."""
        return self.layout == "packed"

    @property
    def dtype(self) -> DType | None:
        """Element type of keys and values, or None for a plan without bytes."""
        return None if self.elements is None else self.elements.kv

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
    def bytes_per_token(self) -> int:
        """Bytes one token adds while every layer keeps it, without padding. O(groups)."""
        return self._token_bytes(g for g in self.groups.values() if g.lifetime.form == "tokens")

    @property
    def bytes_per_token_beyond_windows(self) -> int:
        """Bytes one token adds once every window is full. O(groups)."""
        return self._token_bytes(g for g in self.groups.values() if g.lifetime == FULL)

    def _token_bytes(self, groups: Iterable[GroupPlan]) -> int:
        return sum(group.kept_bytes for group in groups) // self.page_size

    @property
    def fixed_bytes_per_sequence(self) -> int:
        """Bytes whatever the length: a state of each group of states, a cross input. O(groups)."""
        return self.state_bytes + sum(
            group.kept_bytes // self.page_size * group.input_tokens
            for group in self.groups.values()
        )

    @property
    def state_bytes(self) -> int:
        """Bytes of one state, or snapshot, of every group that keeps states. O(groups)."""
        return sum(g.kept_bytes for g in self.groups.values() if g.lifetime.form == "state")

    @property
    def state_tokens(self) -> int:
        """Tokens that take as many bytes as one state, rounded up; 0 where nothing is kept a token.

        A state saved less often than that costs less than the tokens between.
        """
        return -(-self.state_bytes // self.bytes_per_token) if self.bytes_per_token else 0

    def saved_states(self, length: int, interval: int) -> tuple[int, int]:
        """States saved every ``interval`` tokens of a sequence, and their bytes. O(groups).

        Raises:
            LengthError: an argument is less than 1.
        """
        length, interval = check_int("length", length, 1), check_int("interval", interval, 1)
        count = -(-length // interval) if self.state_bytes else 0
        return count, count * self.state_bytes

    @property
    def depth_bytes(self) -> int:
        """Bytes of a running sequence in the depth decoder's cache, not planned here. O(layers)."""
        depth = self.spec and self.spec.depth
        if depth is None or self.elements is None:
            return 0
        found = components_of(depth, self.elements, depth.max_length or 1, self.order)
        return sum(component.bytes for component in found)

    @property
    def reuse_tokens(self) -> int:
        """Tokens between the boundaries at which a prefix can be reused: those of a page."""
        return self.page_size

    @property
    def in_flight_bytes(self) -> int:
        """Bytes a step of ``max_step_tokens`` may hold in windows before they slide. O(groups)."""
        longest, pages = self.max_length or MAX_PAGES, -(-self.max_step_tokens // self.page_size)
        sliding = [
            group
            for group in self.groups.values()
            if group.slides and group.kept_tokens(longest) < longest
        ]
        return pages * sum(self.cost(group) for group in sliding)

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence that fits alone: the most that ``max_length`` may be.

        A packed plan for that length may cut its parents otherwise than this one; where no length
        is known at all it is what this one holds. Cost: some plans where it is packed, else
        O(groups).
        """
        unbounded = self.spec is not None and self.spec.max_length is None
        if self.request is None or not self.packed or (unbounded and self.request.wanted is None):
            return self.longest_of(1)
        from octavo.planner.solve import longest_alone

        return longest_alone(self.request, self.longest_of(1))

    @property
    def arena_bytes(self) -> int:
        """Bytes to allocate for all tensors; 0 for a plan without bytes."""
        b = self.budget
        return 0 if b is None else b.total - b.remainder

    def cost(self, group: GroupPlan) -> int:
        """Bytes one page of ``group`` takes from the pool: in flat layouts those of all groups."""
        return group.page_bytes if self.packed else self.page_bytes

    def ids(self, group: str) -> int:
        """Page ids of ``group``, the null page included. O(1)."""
        return 1 + self.usable_pages * self.groups[group].pages_per_parent

    def kept_bytes(self, length: int) -> int:
        """Bytes a sequence of ``length`` tokens needs, without pages and padding. O(groups)."""
        return sum(self.kept_in(group, length) for group in self.groups.values())

    def kept_in(self, group: GroupPlan, length: int) -> int:
        """Those of one group: of its tokens, of one state, or of an input. O(1)."""
        if group.lifetime.form == "state":
            return group.kept_bytes
        return group.kept_bytes // self.page_size * group.kept_tokens(length)

    def sequence_bytes(self, length: int) -> int:
        """Bytes of the pages a sequence of ``length`` tokens takes. O(groups)."""
        return sum(
            group.steady_pages(length, self.page_size) * self.cost(group)
            for group in self.groups.values()
        )

    def pages(self, length: int) -> int:
        """Pages (packed: parents) that one sequence of ``length`` tokens takes. O(groups).

        Windows count as they are when it runs token by token; unknown cross inputs are left out.
        """
        return self.parents(1, length)

    def max_sequences(self, length: int | None = None) -> "Fraction":
        """Sequences of ``length`` tokens, by default the longest, that fit at once. O(groups).

        The steady state: one state each and no snapshot, and windows as they are when sequences
        run token by token; what a step holds in flight is not taken off (see
        `max_sequences_in_flight`). The whole part can be held with each group in parents of its
        own. The fraction is ``(parents - (groups cut from parents - 1)) / parents a sequence
        takes``, as each such group but one may leave a parent half full, or the whole part where
        that is more.

        Raises:
            LengthError: ``length`` is less than 1.
            PlanError: there is nothing but cross inputs, of unknown length.
        """
        from fractions import Fraction  # here: it costs a tenth of importing octavo

        if length is None:
            length = self.max_length or self.tokens
        steady = self._steady(check_int("length", length, 1))
        share = sum((Fraction(pages, each) for pages, each in steady), Fraction(0))
        if not share:
            raise PlanError("groups", list(self.groups), "an input's length must be known")
        cut = sum(each > 1 for _, each in steady)  # each may leave a parent that is not full
        sure = (self.usable_pages - max(0, cut - 1)) / share
        whole = max(0, int(sure))
        while self.parents(whole + 1, length) <= self.usable_pages:
            whole += 1
        return max(sure, Fraction(whole))

    def max_sequences_in_flight(self, length: int) -> int:
        """Whole sequences of ``length`` tokens that fit beside a step of ``max_step_tokens``.

        As many as a prompt computed in such steps leaves room for: at most `max_sequences`.
        O(groups).

        Raises:
            LengthError: ``length`` is less than 1.
        """
        low, high = 0, int(self.max_sequences(length))
        while low < high:
            middle = (low + high + 1) // 2
            if self.parents(middle, length, in_flight=True) <= self.usable_pages:
                low = middle
            else:
                high = middle - 1
        return low

    def max_length_for(self, sequences: int, *, in_flight: bool = False) -> int:
        """Longest length at which ``sequences`` of them fit at once, 0 for none. O(groups).

        Args:
            sequences: how many.
            in_flight: whether a step of ``max_step_tokens`` must fit beside them.

        Raises:
            LengthError: ``sequences`` is less than 1.
        """
        length = self.longest_of(check_int("sequences", sequences, 1), in_flight=in_flight)
        return length if self.max_length is None else min(length, self.max_length)

    def _steady(self, length: int) -> list[tuple[int, int]]:
        """(pages, pages a parent) of each group for one sequence of ``length`` tokens."""
        return [
            (group.steady_pages(length, self.page_size), group.pages_per_parent)
            for group in self.groups.values()
        ]

    def parents(self, sequences: int, length: int, *, in_flight: bool = False) -> int:
        """Pages (packed: parents) of so many sequences, each group in its own. O(groups).

        Args:
            sequences: how many.
            length: tokens of each.
            in_flight: whether a step of ``max_step_tokens`` runs beside them.
        """
        step = self.max_step_tokens if in_flight else 0
        return sum(
            -(
                -(
                    sequences * group.steady_pages(length, self.page_size)
                    + in_flight_pages(group.lifetime, sequences, length, self.page_size, step)
                )
                // group.pages_per_parent
            )
            for group in self.groups.values()
        )

    def longest_of(self, sequences: int, *, in_flight: bool = False) -> int:
        """Tokens of the longest ``sequences`` that all usable pages hold. O(groups).

        By bisection; 2**31 - 1 where nothing grows with the length.
        """
        low, high = 0, MAX_PAGES
        while low < high:
            middle = (low + high + 1) // 2
            if self.parents(sequences, middle, in_flight=in_flight) <= self.usable_pages:
                low = middle
            else:
                high = middle - 1
        return low

    def explain(self) -> str:
        """The plan in words, with the arithmetic. O(layers)."""
        from octavo.planner.explain import explain_plan

        return explain_plan(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data; names are stable. O(groups)."""
        from octavo.planner.data import plan_as_dict

        return plan_as_dict(self)
