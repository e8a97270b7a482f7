"""The planner: a model's spec and a memory budget to a pool of pages, explained to the byte.

Exact integers only; no float on the way to a byte count. Knows no device and allocates nothing.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard, get_args

from octavo.budget import Budget, Memory, available_memory
from octavo.components import Component, Elements, Order, components_of, read_elements
from octavo.dtypes import DType
from octavo.errors import BudgetTooSmall, PlanError
from octavo.geometry import Part, Row, fit_geometry
from octavo.layouts import (
    Flat,
    Layout,
    TensorPlan,
    flat_components,
    flat_slab,
    lay_flat,
    lay_packed,
)
from octavo.lifetimes import FULL, Lifetime, group_name, lifetime_of
from octavo.packing import pack
from octavo.parallel import shard, stages_of
from octavo.spec import Attention, LayerKind, ModelSpec, Shared, State, check_int

if TYPE_CHECKING:
    from fractions import Fraction

_MAX_PAGES = 2**31 - 1
_SCORED_LENGTH = 2**15  # tokens a packed layout is chosen for where no longest sequence is known
_STATE_ALIGNMENT = 16  # tokens pages grow by where they must cover a state


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
    """

    name: str
    layers: tuple[int, ...] = ()
    page_bytes: int = 0
    lifetime: Lifetime = FULL
    pages_per_parent: int = 1
    parts: int = 1
    kept_bytes: int = 0

    def steady_pages(self, length: int, page_size: int) -> int:
        """Pages of a sequence of ``length`` tokens, cross inputs left out. O(1)."""
        if self.lifetime.form == "tokens":
            return self.lifetime.steady_pages(length, page_size)
        return self.parts if self.lifetime.form == "state" else 0

    def kept_tokens(self, length: int) -> int:
        """Tokens it keeps of a sequence of ``length``, without page rounding. O(1)."""
        return self.lifetime.steady_pages(length, 1) if self.lifetime.form == "tokens" else 0


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
        num_pages = check_int("num_pages", num_pages, 2, _MAX_PAGES, "page 0 is the null page")
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
            max_length = check_int("max_length", max_length, 1, _MAX_PAGES)
            made = replace(made, max_length=max_length)
            need = 1 + made.pages(max_length)
            why = f"the null page and one sequence of {max_length} tokens"
            check_int("num_pages", num_pages, need, _MAX_PAGES, why)
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
        """Bytes of one state of every group that keeps states. O(groups)."""
        return sum(g.kept_bytes for g in self.groups.values() if g.lifetime.form == "state")

    @property
    def in_flight_bytes(self) -> int:
        """Bytes a step of ``max_step_tokens`` may hold in windows before they slide. O(groups)."""
        pages = -(-self.max_step_tokens // self.page_size)
        sliding = [g for g in self.groups.values() if g.lifetime.floor(2**62) > 0]
        return sum(pages * group.page_bytes for group in sliding)

    @property
    def tokens(self) -> int:
        """Tokens of the longest sequence all usable pages could hold. O(groups)."""
        return self._longest(1)

    @property
    def arena_bytes(self) -> int:
        """Bytes to allocate for all tensors; 0 for a plan without bytes."""
        b = self.budget
        return 0 if b is None else b.total - b.remainder

    def ids(self, group: str) -> int:
        """Page ids of ``group``, the null page included. O(1)."""
        return 1 + self.usable_pages * self.groups[group].pages_per_parent

    def kept_bytes(self, length: int) -> int:
        """Bytes a sequence of ``length`` tokens needs, without pages and padding. O(groups)."""
        tokens = sum(
            group.kept_bytes // self.page_size * group.kept_tokens(length)
            for group in self.groups.values()
            if group.lifetime.form == "tokens"
        )
        return tokens + self.fixed_bytes_per_sequence

    def sequence_bytes(self, length: int) -> int:
        """Bytes of the pages a sequence of ``length`` tokens takes. O(groups)."""
        if not self.packed:
            return self.pages(length) * self.page_bytes
        return sum(
            group.steady_pages(length, self.page_size) * group.page_bytes
            for group in self.groups.values()
        )

    def pages(self, length: int) -> int:
        """Pages (packed: parents) that one sequence of ``length`` tokens takes. O(groups).

        Windows count as they are when it runs token by token; cross inputs are left out.
        """
        return self._parents(1, length)

    def max_sequences(self, length: int) -> "Fraction":
        """Sequences of ``length`` tokens that fit at once, exactly. O(groups).

        The steady state: one state each and no snapshot, and windows as they are when sequences
        run token by token; what a step holds in flight is not taken off.

        Raises:
            LengthError: ``length`` is less than 1.
        """
        from fractions import Fraction  # here: it costs a tenth of importing octavo

        steady = self._steady(check_int("length", length, 1))
        return self.usable_pages / sum((Fraction(n, k) for n, k in steady), Fraction(0))

    def max_length_for(self, sequences: int) -> int:
        """Longest length at which ``sequences`` of them fit at once, 0 for none. O(groups).

        Raises:
            LengthError: ``sequences`` is less than 1.
        """
        length = self._longest(check_int("sequences", sequences, 1))
        return length if self.max_length is None else min(length, self.max_length)

    def _steady(self, length: int) -> list[tuple[int, int]]:
        """(pages, pages a parent) of each group for one sequence of ``length`` tokens."""
        return [
            (group.steady_pages(length, self.page_size), group.pages_per_parent)
            for group in self.groups.values()
        ]

    def _parents(self, sequences: int, length: int) -> int:
        return sum(-(-sequences * n // k) for n, k in self._steady(length))

    def _longest(self, sequences: int) -> int:
        """By bisection; 2**31 - 1 where nothing grows with the length."""
        low, high = 0, _MAX_PAGES
        while low < high:
            middle = (low + high + 1) // 2
            if self._parents(sequences, middle) <= self.usable_pages:
                low = middle
            else:
                high = middle - 1
        return low

    def explain(self) -> str:
        """The plan in words, with the arithmetic. O(layers)."""
        from octavo.explain import explain_plan

        return explain_plan(self)

    def to_dict(self) -> dict[str, Any]:
        """The plan as JSON-ready data; names are stable. O(groups)."""
        from octavo.explain import plan_as_dict

        return plan_as_dict(self)


class Request(NamedTuple):
    """What every rank of a plan has in common; as the arguments of `plan`."""

    memory: Memory
    page_size: int
    elements: Elements
    wanted: int | None
    order: Order
    layout: Layout | None
    draft: ModelSpec | None
    max_step_tokens: int
    tp: int


def plan(
    spec: ModelSpec,
    memory: int | str,
    *,
    page_size: int = 16,
    dtype: str | DType = "bf16",
    scales: str | None = None,
    state_dtype: str | DType = "fp32",
    conv_dtype: str | DType | None = None,
    max_length: int | None = None,
    order: Order = "token",
    layout: Layout | None = None,
    draft: ModelSpec | None = None,
    max_step_tokens: int = 2048,
    tp: int = 1,
    pp: int = 1,
    utilization: float | str = 1,
    weights: int | str = 0,
    activations: int | str = 0,
    other: int | str = 0,
) -> Plan:
    """How many pages of ``spec`` fit into ``memory``, and where each byte goes.

    Args:
        spec: what the model's layers keep.
        memory: of one rank, in bytes or as text such as ``"16GiB"`` (1024s) or ``"16GB"`` (1000s).
        page_size: tokens a page holds, at most the longest sequence. In the flat layouts pages
            grow until they cover a state.
        dtype: element type of the stored keys and values.
        scales: of quantised keys and values: ``none``, ``tensor``, ``token`` or ``head``; None:
            ``head`` for int8 and int4, else ``none``.
        state_dtype: element type of recurrent tensors.
        conv_dtype: element type of convolution inputs; None: as keys and values.
        max_length: longest sequence in tokens, which must fit; None: the model's own, or as many
            tokens as fit if that is less.
        order: ``token``: a page is (page_size, kv_heads, dim); ``head``: (kv_heads, page_size,
            dim).
        layout: ``component``, ``slab`` or ``packed``; None: packed where groups differ.
        draft: a draft model whose layers keep pages beside the model's.
        max_step_tokens: most tokens a step computes.
        tp: ranks that share each layer's heads. pp: ranks that each take some of the layers.
        utilization: share of ``memory`` that may be used.
        weights, activations, other: bytes of it that are not the cache's.

    Raises:
        PlanError: an argument out of range; it names the argument and what would be right.
        BudgetTooSmall: the memory does not hold the null page and one page, or not one sequence of
            the ``max_length`` asked for; it names every term.

    Cost: O(layers + sizes of a parent tried).
    """
    for name, model in (("spec", spec), ("draft", draft)):
        if not isinstance(model, ModelSpec) and (name == "spec" or model is not None):
            raise PlanError(name, model, "it must be a ModelSpec, as of ModelSpec.from_config")
    if order not in get_args(Order):
        raise PlanError("order", order, "it must be 'token' or 'head'")
    if layout is not None and layout not in get_args(Layout):
        raise PlanError("layout", layout, f"it must be one of {', '.join(get_args(Layout))}")
    wanted = None if max_length is None else _check("max_length", max_length, None)
    request = Request(
        available_memory(memory, utilization, weights, activations, other),
        _check("page_size", page_size, wanted or spec.max_length),
        read_elements(dtype, scales, state_dtype, conv_dtype),
        wanted,
        order,
        layout,
        None if draft is None else shard(draft, _check("tp", tp, None)),
        _check("max_step_tokens", max_step_tokens, None),
        _check("tp", tp, None),
    )
    parts = stages_of(shard(spec, request.tp), _check("pp", pp, len(spec.layers)))
    made = [_plan_rank(part, request, None, _MAX_PAGES) for part in parts]
    return made[0] if len(made) == 1 else _agree(parts, made, request)


def _agree(parts: list[ModelSpec], made: list[Plan], request: Request) -> Plan:
    """Page ids are one space for all ranks: K of the fullest one, and the fewest pages of any."""
    length = _scored_length(parts[0], request)
    fullest = min(made, key=lambda one: one.max_sequences(length))
    names = {name for one in made for name in one.groups}
    if fullest.packed and names != set(fullest.groups):
        raise PlanError("pp", len(made), "each rank must have layers of every group")
    like = fullest if fullest.packed else None
    made = [_plan_rank(part, request, like, _MAX_PAGES) for part in parts]
    pages = min(one.num_pages for one in made)
    made = [_plan_rank(part, request, like, pages) for part in parts]
    fullest = min(made, key=lambda one: one.budget.remainder if one.budget else 0)
    longest = min(one.max_length or _MAX_PAGES for one in made)
    return replace(fullest, stages=tuple(replace(one, max_length=longest) for one in made))


def _plan_rank(spec: ModelSpec, request: Request, like: Plan | None, most: int) -> Plan:
    """The plan of one rank, of at most ``most`` pages; ``like``: with the K of that plan."""
    lifetimes = _lifetimes(spec, request.draft)
    layout = request.layout or ("component" if len(lifetimes) == 1 else "packed")
    page_size = request.page_size
    if layout != "packed":
        page_size = _covering(spec, request, page_size)
    components = components_of(spec, request.elements, page_size, request.order)
    if request.draft is not None:
        components += components_of(
            request.draft, request.elements, page_size, request.order, draft=True
        )
    groups = {name: [c for c in components if c.group == name] for name in lifetimes}
    if layout == "packed":
        made = _plan_packed(spec, request, lifetimes, groups, like, most)
    else:
        flat = flat_slab(groups) if layout == "slab" else flat_components(components)
        made = _plan_flat(spec, request, lifetimes, groups, flat, page_size, layout, most)
    return _with_length(made, request)


def _lifetimes(spec: ModelSpec, draft: ModelSpec | None) -> dict[str, Lifetime]:
    kinds = spec.kinds() + ([] if draft is None else draft.kinds())
    found = {
        group_name(kind): lifetime_of(kind) for _, kind in kinds if not isinstance(kind, Shared)
    }
    return dict(sorted(found.items(), key=lambda item: _ORDER[item[1].form]))


_ORDER = {"tokens": 0, "state": 1, "cross": 2}


def _covering(spec: ModelSpec, request: Request, page_size: int) -> int:
    """The page size whose widest row covers every state, where one id counts in every group."""
    sizes = {1: components_of(spec, request.elements, 1, request.order)}
    rows: dict[tuple[str, int], list[Part]] = {}
    for component in sizes[1]:
        is_state = component.name in ("recurrent", "conv")
        part = Part(component.name, *((0, component.bytes) if is_state else (component.bytes, 0)))
        rows.setdefault((component.group, component.layer), []).append(part)
    listed = [Row(group, layer, tuple(parts)) for (group, layer), parts in rows.items()]
    if not any(row.constant_bytes for row in listed):
        return page_size
    if not any(row.slot_bytes for row in listed):
        return page_size
    return fit_geometry(listed, page_size, _STATE_ALIGNMENT).page_size


def _plan_flat(
    spec: ModelSpec,
    request: Request,
    lifetimes: dict[str, Lifetime],
    groups: dict[str, list[Component]],
    flat: Flat,
    page_size: int,
    layout: Layout,
    most: int,
) -> Plan:
    total, block = request.memory.available, flat.page_bytes
    limit = min(most, _MAX_PAGES // page_size)
    pages = flat.most_pages(total, limit)
    least = 2 if request.wanted is None else 1 + _pages_of(lifetimes, request.wanted, page_size)
    if pages < least:
        terms = f"{least} pages (the null page and {least - 1}) of {page_size} tokens"
        need = flat.size(least)
        raise BudgetTooSmall(need, total, f"{terms}, {block} bytes each, and alignment")
    used, usable = flat.size(pages), pages - 1
    kept, scales, reserved = (sum(_sizes(found)[i] for found in groups.values()) for i in range(3))
    budget = Budget(
        total=total,
        payload=usable * kept,
        padding=used - pages * block + usable * (block - kept - scales - reserved),
        null_page=block,
        scales=usable * scales,
        reserved=usable * reserved,
        remainder=total - used,
    )
    plans = {
        name: _group(name, lifetimes[name], found, sum(c.bytes for c in found))
        for name, found in groups.items()
    }
    tensors = tuple(lay_flat(flat, pages))
    return _made(spec, request, page_size, pages, plans, budget, tensors, layout)


def _pages_of(lifetimes: dict[str, Lifetime], length: int, page_size: int) -> int:
    return sum(
        life.steady_pages(length, page_size) if life.form == "tokens" else life.form == "state"
        for life in lifetimes.values()
    )


def _plan_packed(
    spec: ModelSpec,
    request: Request,
    lifetimes: dict[str, Lifetime],
    groups: dict[str, list[Component]],
    like: Plan | None,
    most: int,
) -> Plan:
    page_size, total = request.page_size, request.memory.available
    length = _scored_length(spec, request)
    pages = {
        name: max(1, life.steady_pages(length, page_size)) if life.form == "tokens" else 1
        for name, life in lifetimes.items()
    }
    states = next((name for name, life in lifetimes.items() if life.form == "state"), None)
    fixed = (
        None
        if like is None
        else {g.name: (g.pages_per_parent, g.parts) for g in like.groups.values()}
    )
    limit = min(most - 1, _MAX_PAGES // page_size)
    packing = pack(groups, states, pages, total, limit, fixed)
    parents = packing.parents
    kept = {name: _sizes(found) for name, found in groups.items()}
    parts = {name: packing.loads[name].parts for name in groups}
    per = packing.per_parent
    worst = min(groups, key=lambda name: sum(kept[name]) * per[name] // parts[name])
    shares = [size * per[worst] // parts[worst] for size in kept[worst]]
    used = packing.size(parents)
    budget = Budget(
        total=total,
        payload=parents * shares[0],
        padding=parents * (packing.parent_bytes - sum(shares)),
        null_page=packing.null_bytes,
        scales=parents * shares[1],
        reserved=parents * shares[2],
        remainder=total - used,
    )
    plans = {
        name: _group(name, lifetimes[name], found, packing.page_bytes(name), per[name], parts[name])
        for name, found in groups.items()
    }
    tensors = tuple(lay_packed(packing))
    return _made(spec, request, page_size, parents + 1, plans, budget, tensors, "packed")


def _scored_length(spec: ModelSpec, request: Request) -> int:
    return request.wanted or spec.max_length or _SCORED_LENGTH


def _sizes(components: list[Component]) -> tuple[int, int, int]:
    """Bytes of a page: what is kept, its scales, and those of a draft."""
    kept = sum(c.bytes for c in components if not c.is_scale and not c.draft)
    scales = sum(c.bytes for c in components if c.is_scale and not c.draft)
    return kept, scales, sum(c.bytes for c in components if c.draft)


def _group(
    name: str,
    lifetime: Lifetime,
    components: list[Component],
    page_bytes: int,
    per_parent: int = 1,
    parts: int = 1,
) -> GroupPlan:
    layers = tuple(dict.fromkeys(c.layer for c in components if not c.draft))
    kept = sum(component.bytes for component in components)
    return GroupPlan(name, layers, page_bytes, lifetime, per_parent, parts, kept)


def _made(
    spec: ModelSpec,
    request: Request,
    page_size: int,
    num_pages: int,
    groups: dict[str, GroupPlan],
    budget: Budget,
    tensors: tuple[TensorPlan, ...],
    layout: Layout,
) -> Plan:
    return Plan(
        page_size=page_size,
        num_pages=num_pages,
        groups=MappingProxyType(groups),
        spec=spec,
        elements=request.elements,
        order=request.order,
        budget=budget,
        memory=request.memory,
        tensors=tensors,
        layout=layout,
        max_step_tokens=request.max_step_tokens,
        tp=request.tp,
    )


def _with_length(made: Plan, request: Request) -> Plan:
    """The plan with its longest sequence, which must fit where one was asked for."""
    assert made.spec is not None
    wanted = request.wanted
    if wanted is not None and made.pages(wanted) > made.usable_pages:
        short = made.pages(wanted) - made.usable_pages
        need = request.memory.available + short * made.page_bytes
        terms = f"{made.pages(wanted)} pages of {made.page_bytes} bytes and the null page"
        raise BudgetTooSmall(need, request.memory.available, terms)
    return replace(made, max_length=wanted or min(made.spec.max_length or _MAX_PAGES, made.tokens))


def _check(name: str, value: object, high: int | None) -> int:
    upper = "" if high is None else f" and at most {high}"
    upper += ", the longest sequence" if high is not None and name == "page_size" else ""
    if not _is_int(value) or value < 1 or (high is not None and value > high):
        raise PlanError(name, value, f"it must be an int of at least 1{upper}")
    return value


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
