"""Bytes of a plan: of a token, of a state, of a sequence; all 0 for a plan without bytes.

Exact integers. *Kept* bytes are those of keys, values and states alone, without pages and padding.
"""

from collections.abc import Iterable
from math import lcm

from octavo.checks import check_int
from octavo.model.layers import State
from octavo.model.spec import ModelSpec
from octavo.planner.components import components_of
from octavo.planner.pools import MAX_PAGES, GroupPlan, PoolPlan

__all__ = [
    "arena_bytes",
    "buffer_bytes",
    "bytes_per_token",
    "bytes_per_token_beyond_windows",
    "cost",
    "depth_bytes",
    "fixed_bytes_per_sequence",
    "in_flight_bytes",
    "kept_bytes",
    "kept_in",
    "saved_states",
    "sequence_bytes",
    "state_bytes",
    "state_tokens",
]


def arena_bytes(plan: PoolPlan) -> int:
    """Bytes to allocate for all tensors; 0 for a plan without bytes. O(1)."""
    return 0 if plan.budget is None else plan.budget.total - plan.budget.remainder


def bytes_per_token(plan: PoolPlan) -> int:
    """Bytes one token adds while every layer keeps it, without padding. O(groups)."""
    return _token_bytes(plan, (group for group in plan.groups.values() if group.grows))


def bytes_per_token_beyond_windows(plan: PoolPlan) -> int:
    """Bytes one token adds once every window is full. O(groups)."""
    kept = (group for group in plan.groups.values() if group.grows and not group.slides)
    return _token_bytes(plan, kept)


def _token_bytes(plan: PoolPlan, groups: Iterable[GroupPlan]) -> int:
    """Those of a token, and of a row of several tokens its part; rounded up."""
    rows = [(group.unit_bytes(plan.page_size), group.every) for group in groups]
    whole = lcm(*(every for _, every in rows))
    return -(-sum(size * (whole // every) for size, every in rows) // whole)


def fixed_bytes_per_sequence(plan: PoolPlan) -> int:
    """Bytes whatever the length: a state of each group of states, a cross input.

    Without `buffer_bytes`, which are told by themselves. O(layers).
    """
    inputs = (
        group.unit_bytes(plan.page_size) * group.input_tokens for group in plan.groups.values()
    )
    return state_bytes(plan) - buffer_bytes(plan) + sum(inputs)


def buffer_bytes(plan: PoolPlan) -> int:
    """Bytes per sequence of what rows of several tokens are computed from. O(layers)."""
    if plan.spec is None or plan.elements is None or not _has_buffers(plan.spec):
        return 0
    found = components_of(plan.spec, plan.elements, plan.page_size, plan.order)
    return sum(component.bytes for component in found if component.name == "buffer")


def _has_buffers(spec: ModelSpec) -> bool:
    return any(isinstance(kind, State) and kind.buffer for _, kind in spec.kinds())


def state_bytes(plan: PoolPlan) -> int:
    """Bytes of one state, or snapshot, of every group that keeps states. O(groups)."""
    return sum(g.kept_bytes for g in plan.groups.values() if g.lifetime.form == "state")


def state_tokens(plan: PoolPlan) -> int:
    """Tokens that take as many bytes as one state, rounded up; 0 where nothing is kept per token.

    A state saved less often than that costs less than the tokens between.
    """
    token = bytes_per_token(plan)
    return -(-state_bytes(plan) // token) if token else 0


def saved_states(plan: PoolPlan, length: int, interval: int) -> tuple[int, int]:
    """States saved every ``interval`` tokens of a sequence, and their bytes. O(groups).

    Raises:
        LengthError: an argument is less than 1.
    """
    length, interval = check_int("length", length, 1), check_int("interval", interval, 1)
    size = state_bytes(plan)
    count = -(-length // interval) if size else 0
    return count, count * size


def depth_bytes(plan: PoolPlan) -> int:
    """Bytes of a running sequence in the depth decoder's cache, not planned here. O(layers)."""
    depth = plan.spec and plan.spec.depth
    if depth is None or plan.elements is None:
        return 0
    found = components_of(depth, plan.elements, depth.max_length or 1, plan.order)
    return sum(component.bytes for component in found)


def cost(plan: PoolPlan, group: GroupPlan) -> int:
    """Bytes one page of ``group`` takes from the pool: in flat layouts those of all groups."""
    return group.page_bytes if plan.packed else plan.page_bytes


def kept_bytes(plan: PoolPlan, length: int) -> int:
    """Bytes a sequence of ``length`` tokens needs, without pages and padding. O(groups)."""
    return sum(kept_in(plan, group, length) for group in plan.groups.values())


def kept_in(plan: PoolPlan, group: GroupPlan, length: int) -> int:
    """Those of one group: of its tokens, of one state, or of an input. O(1)."""
    if group.lifetime.form == "state":
        return group.kept_bytes
    return group.unit_bytes(plan.page_size) * group.kept_tokens(length)


def sequence_bytes(plan: PoolPlan, length: int) -> int:
    """Bytes of the pages a sequence of ``length`` tokens takes. O(groups)."""
    return sum(
        group.steady_pages(length, plan.page_size) * cost(plan, group)
        for group in plan.groups.values()
    )


def in_flight_bytes(plan: PoolPlan) -> int:
    """Bytes a step of ``max_step_tokens`` may hold in windows before they slide. O(groups)."""
    longest, pages = plan.max_length or MAX_PAGES, -(-plan.max_step_tokens // plan.page_size)
    sliding = [
        group
        for group in plan.groups.values()
        if group.slides and group.kept_tokens(longest) < longest
    ]
    return pages * sum(cost(plan, group) for group in sliding)
