"""The plan of every rank of a request: its pages' components, where they lie, where bytes go.

Exact integers; knows no device and allocates nothing. `octavo.planner.request` checks arguments.
"""

from dataclasses import replace
from math import gcd
from types import MappingProxyType

from octavo.errors import PlanError
from octavo.model.layers import Cross, Shared, State
from octavo.model.lifetimes import Lifetime, group_name, lifetime_of
from octavo.model.spec import ModelSpec
from octavo.planner.budget import Budget, divide
from octavo.planner.components import STATES, Component, components_of
from octavo.planner.geometry import Part, Row, fit_geometry
from octavo.planner.layouts import (
    Flat,
    Layout,
    TensorPlan,
    flat_components,
    flat_slab,
    lay_flat,
    lay_packed,
)
from octavo.planner.packing import Limits, Packing, pack
from octavo.planner.pools import (
    MAX_PAGES,
    GroupPlan,
    PlanRequest,
    PoolPlan,
    in_flight_pages,
    largest,
    largest_from,
    longest_of,
    max_sequences,
    parents,
)

_SCORED_LENGTH = 2**15  # tokens a packed layout is chosen for where no longest sequence is known
_STATE_ALIGNMENT = 16  # tokens pages grow by where they must cover a state


def plan_ranks(request: PlanRequest) -> PoolPlan | None:
    """The plan of all ranks; None: the sequences wanted do not fit."""
    made = [_plan_rank(stage, request, None, MAX_PAGES) for stage in request.stages]
    found = [one for one in made if one is not None]
    if len(found) < len(made):
        return None
    one = found[0] if len(found) == 1 else _agree(found, request)
    return None if one is None else replace(one, _request=request)


def longest_alone(plan: PoolPlan, *, in_flight: bool = False) -> int:
    """Tokens of the longest sequence that fits alone into the memory of a plan. O(plans).

    Of a packed plan another one may be cut better for a length; any other is what it is.

    Args:
        plan: what fits.
        in_flight: whether a step of ``max_step_tokens`` must fit beside it.
    """
    request, held = plan._request, longest_of(plan, 1, in_flight=in_flight)
    if request is None or not plan.packed:
        return held
    unbounded = request.wanted is None and request.stages[0].max_length is None
    if unbounded:
        return held
    return _longest_planned(request._replace(sequences=1 if in_flight else None), held)


def _longest_planned(request: PlanRequest, start: int) -> int:
    """The longest sequence that a plan of this memory accepts, looked for from ``start``."""

    def fits(length: int) -> bool:
        return plan_ranks(request._replace(wanted=length)) is not None

    low = max(1, start)
    return largest_from(fits, low, request.page_size) if fits(low) else largest(fits, low - 1)


def _agree(made: list[PoolPlan], request: PlanRequest) -> PoolPlan | None:
    """Page ids are one space for all ranks: the K of one of them, and the fewest pages of any.

    Of the K that ranks would choose for themselves those in which the most sequences fit count.
    """
    if any(set(one.groups) != set(made[0].groups) for one in made):
        raise PlanError("pp", len(made), "each rank must have layers of every group")
    request = request._replace(page_size=max(one.page_size for one in made))
    length = scored_length(request.stages[0], request)
    leaders: dict[tuple[tuple[int, int], ...], int] = {}
    for number, one in enumerate(made):
        if one.packed or not leaders:
            cuts = tuple((group.pages_per_parent, group.parts) for group in one.groups.values())
            leaders.setdefault(cuts, number)
    found = [_led(made, number, request) for number in leaders.values()]
    fit = [one for one in found if one is not None]
    return max(fit, key=lambda one: max_sequences(one, length), default=None)


def _led(made: list[PoolPlan], leader: int, request: PlanRequest) -> PoolPlan | None:
    """The plan of the rank with the fewest pages where all have the K of rank ``leader``."""
    like = made[leader] if made[leader].packed else None
    pages, ranks = MAX_PAGES, made
    room: list[int] = []
    for _ in range(2):  # the second time with no more pages than any rank had room for
        tried = [_plan_rank(stage, request, like, pages) for stage in request.stages]
        ranks = [one for one in tried if one is not None]
        if len(ranks) < len(tried):
            return None
        room = room or [one.num_pages for one in ranks]
        pages = min(one.num_pages for one in ranks)
    left = [one.budget.remainder if one.budget else 0 for one in ranks]
    rank = min(range(len(ranks)), key=lambda at: (room[at], at != leader, left[at]))
    longest = min(one.max_length or MAX_PAGES for one in ranks)
    stages = tuple(replace(one, max_length=longest) for one in ranks)
    return replace(ranks[rank], max_length=longest, stages=stages, _rank=rank, _leader=leader)


def _plan_rank(
    spec: ModelSpec, request: PlanRequest, like: PoolPlan | None, most: int
) -> PoolPlan | None:
    """The plan of one rank, of at most ``most`` pages; ``like``: with the K of that plan."""
    lifetimes = _lifetimes(spec, request.draft)
    layout = request.layout or ("component" if len(lifetimes) == 1 else "packed")
    page_size = request.page_size
    if layout != "packed" and any(life.form == "state" for life in lifetimes.values()):
        page_size = _covering(spec, request, page_size)
    components = _components(spec, request, page_size)
    groups = {name: [c for c in components if c.group == name] for name in lifetimes}
    if layout == "packed":
        made = _plan_packed(spec, request, lifetimes, groups, like, most)
    else:
        flat = flat_slab(groups) if layout == "slab" else flat_components(components)
        made = _plan_flat(spec, request, lifetimes, groups, flat, page_size, layout, most)
    return None if made is None else _with_length(made, request)


def _components(spec: ModelSpec, request: PlanRequest, page_size: int) -> list[Component]:
    found = components_of(spec, request.elements, page_size, request.order)
    if request.draft is not None:
        found += components_of(
            request.draft, request.elements, page_size, request.order, draft=True
        )
    return found


def _lifetimes(spec: ModelSpec, draft: ModelSpec | None) -> dict[str, Lifetime]:
    kinds = spec.kinds() + ([] if draft is None else draft.kinds())
    distinct = dict.fromkeys(kind for _, kind in kinds if not isinstance(kind, Shared))
    found = {group_name(kind): lifetime_of(kind) for kind in distinct}
    return dict(sorted(found.items(), key=lambda item: _ORDER[item[1].form]))


_ORDER = {"tokens": 0, "rows": 1, "state": 2, "cross": 3}


def _covering(spec: ModelSpec, request: PlanRequest, page_size: int) -> int:
    """The page size at which the widest row covers every state, where ids count in every group."""
    rows: dict[tuple[str, int], list[Part]] = {}
    for component in _components(spec, request, 1):
        is_state = component.name in STATES
        part = Part(component.name, *((0, component.bytes) if is_state else (component.bytes, 0)))
        layer = -1 - component.layer if component.draft else component.layer
        rows.setdefault((component.group, layer), []).append(part)
    listed = [Row(group, layer, tuple(parts)) for (group, layer), parts in rows.items()]
    if not any(row.slot_bytes for row in listed):
        return page_size
    return fit_geometry(listed, page_size, _STATE_ALIGNMENT).page_size


def _plan_flat(
    spec: ModelSpec,
    request: PlanRequest,
    lifetimes: dict[str, Lifetime],
    groups: dict[str, list[Component]],
    flat: Flat,
    page_size: int,
    layout: Layout,
    most: int,
) -> PoolPlan | None:
    total, block = request.memory.available, flat.page_bytes
    pages = flat.most_pages(total, min(most, MAX_PAGES // page_size))
    if pages < 2:
        return None
    held = _sizes([item for found in groups.values() for item in found])
    budget = divide(total, flat.size(pages), block, *((pages - 1) * size for size in held))
    plans = {
        name: _group(name, lifetimes[name], found, sum(c.bytes for c in found))
        for name, found in groups.items()
    }
    tensors = tuple(lay_flat(flat, pages))
    return _made(spec, request, page_size, pages, plans, budget, tensors, layout)


def _plan_packed(
    spec: ModelSpec,
    request: PlanRequest,
    lifetimes: dict[str, Lifetime],
    groups: dict[str, list[Component]],
    like: PoolPlan | None,
    most: int,
) -> PoolPlan | None:
    page_size, total = request.page_size, request.memory.available
    length = scored_length(spec, request)
    input_pages = -(-_input_tokens(spec) // page_size)
    alone = {"state": 1, "cross": max(1, input_pages)}
    pages = {
        name: alone.get(life.form) or max(1, life.steady_pages(length, page_size))
        for name, life in lifetimes.items()
    }
    if any(sum(part.bytes for part in found) > total for found in groups.values()):
        return None  # not even one page
    states = next((name for name, life in lifetimes.items() if life.form == "state"), None)
    fixed = (
        None
        if like is None
        else {g.name: (g.pages_per_parent, g.parts) for g in like.groups.values()}
    )
    limits = Limits(most - 1, 2**31 // page_size - 1)
    wish = {name: _wished(life, request, spec) for name, life in lifetimes.items()}
    packing = pack(groups, states, pages, total, limits, _state_layers(request), fixed, wish)
    if packing is None:
        return None
    per, loads = packing.per_parent, packing.loads
    budget = _packed_budget(total, packing, groups)
    plans = {
        name: _group(
            name, lifetimes[name], found, packing.page_bytes(name), per[name], loads[name].parts
        )
        for name, found in groups.items()
    }
    tensors = tuple(lay_packed(packing))
    return _made(spec, request, page_size, packing.parents + 1, plans, budget, tensors, "packed")


def _wished(lifetime: Lifetime, request: PlanRequest, spec: ModelSpec) -> int:
    """Pages of a group, a state as one, that the sequences wanted take at once."""
    many, length = request.sequences or 1, request.wanted or spec.max_length or 1
    if lifetime.form in ("state", "cross"):
        return many * (
            1 if lifetime.form == "state" else -(-_input_tokens(spec) // request.page_size)
        )
    pages = many * lifetime.steady_pages(length, request.page_size)
    if request.sequences is None:
        return pages
    step = request.max_step_tokens
    return pages + in_flight_pages(lifetime, many, length, request.page_size, step)


def _input_tokens(spec: ModelSpec) -> int:
    """Positions of the longest input that cross attention sees; 0: unknown."""
    inputs = [kind.length or 0 for _, kind in spec.kinds() if isinstance(kind, Cross)]
    return max(inputs, default=0)


def _state_layers(request: PlanRequest) -> int:
    """What divides the layers that keep states on every rank, which parts of a state must too."""
    drafts = [] if request.draft is None else request.draft.kinds()
    counts = [
        sum(isinstance(kind, State) for _, kind in stage.kinds() + drafts)
        for stage in request.stages
    ]
    return gcd(*counts)


def _packed_budget(total: int, packing: Packing, groups: dict[str, list[Component]]) -> Budget:
    """Groups share the pool: its parts are those of the sequences the layout was chosen for."""
    pool, whole = packing.parents * packing.parent_bytes, 0
    parts = [0, 0, 0]
    for name, found in groups.items():
        load = packing.loads[name]
        whole += load.pages * packing.page_bytes(name)
        for at, size in enumerate(_sizes(found)):
            parts[at] += load.pages // load.parts * size
    null = packing.null_bytes
    return divide(total, null + pool, null, *(pool * part // whole for part in parts))


def scored_length(spec: ModelSpec, request: PlanRequest) -> int:
    """Tokens of the sequences a packed layout is chosen for. O(1)."""
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
    request: PlanRequest,
    page_size: int,
    num_pages: int,
    groups: dict[str, GroupPlan],
    budget: Budget,
    tensors: tuple[TensorPlan, ...],
    layout: Layout,
) -> PoolPlan:
    if "cross" in groups:
        groups = groups | {"cross": replace(groups["cross"], input_tokens=_input_tokens(spec))}
    return PoolPlan(
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


def _with_length(made: PoolPlan, request: PlanRequest) -> PoolPlan | None:
    """The plan with its longest sequence; None: the sequences wanted do not fit."""
    assert made.spec is not None
    if not parents(made, 1, MAX_PAGES):
        raise PlanError("spec", made.spec.name, "cross inputs alone are planned by their length")
    many, in_flight = request.sequences or 1, request.sequences is not None
    if parents(made, many, request.wanted or 1, in_flight=in_flight) > made.usable_pages:
        return None
    runs = longest_of(made, 1, in_flight=True)
    longest = request.wanted or min(made.spec.max_length or MAX_PAGES, runs)
    return replace(made, max_length=longest)
