"""The packed layout: groups of different page size cut from parents of one size, in one arena.

A *plane* carries every n-th layer of each group, where n divides the layer counts of all groups. A
page of group g takes S_g bytes of every plane it has layers in, a parent B bytes over all planes,
so K_g = B / (n S_g) pages of g fit into a parent, for whichever group it is bound to. Exact
integers; floats only order candidates that are then compared exactly. Knows components and bytes;
not devices, and not who holds a page.
"""

from collections.abc import Mapping, Sequence
from itertools import groupby
from math import gcd, lcm
from typing import NamedTuple

import numpy as np

from octavo.arrays import NDArray
from octavo.planner.components import Component

GRAIN = 256
"""Bytes every page of a plane begins at a multiple of."""
_PART_GRAIN = 16  # bytes every component begins at a multiple of
_MOST_PARTS = 32  # pages one state is cut into at most
_WORTH = 1.001  # more parts, or planes, must hold so many times as much
_LARGEST_SHARE = 64  # a parent takes at most this part of the budget
_CANDIDATES = 128  # sizes of a parent tried for each group
_MOST_WISHED = 2**48  # pages, beyond which nothing fits anyway
_STEPS = 64  # how far below the most pages of a parent a divisor is looked for
Int64s = NDArray[np.int64]
_Layer = list[Component]


class PackedComponent(NamedTuple):
    """Where a component lies: its plane, and its offset in a page of that plane.

    Attributes:
        part: which page of a state holds it; 0 for groups that keep tokens.
    """

    component: Component
    part: int
    plane: int
    offset: int


class Load(NamedTuple):
    """One group before it is packed.

    Attributes:
        placed: its components.
        layers: layers of one of its pages.
        plane_bytes: bytes of one page in one plane, a multiple of GRAIN.
        parts: pages one state takes; 1 for groups that keep tokens.
        pages: pages a sequence is counted with.
    """

    placed: tuple[PackedComponent, ...]
    layers: int
    plane_bytes: int
    parts: int
    pages: int


class Limits(NamedTuple):
    """What page numbers allow.

    Attributes:
        parents_each: most parents.
        ids: most usable pages of a group.
    """

    parents_each: int
    ids: int

    def parents(self, wanted: int, per_parent: int) -> int:
        """At most ``wanted`` parents of so many pages. O(1)."""
        return min(wanted, self.parents_each, self.ids // per_parent)


class Packing(NamedTuple):
    """A packed layout.

    Attributes:
        planes: n.
        parents: parents, all usable.
        parent_bytes: B, over all planes.
        null_bytes: bytes over all planes in which page 0 of every group lies.
        per_parent: K by group.
        loads: what each group's page holds.
    """

    planes: int
    parents: int
    parent_bytes: int
    null_bytes: int
    per_parent: dict[str, int]
    loads: dict[str, Load]

    def holds(self, pages: Sequence[int]) -> bool:
        """Whether so many pages of each group fit at once, each in parents of its own."""
        each = zip(pages, self.per_parent.values(), strict=True)
        return sum(-(-many // found) for many, found in each) <= self.parents

    def stride(self, group: str) -> int:
        """Bytes from a page of ``group`` to the next, in one plane: S_g. O(1)."""
        return self.parent_bytes // (self.planes * self.per_parent[group])

    def page_bytes(self, group: str) -> int:
        """Bytes of a page of ``group`` over all planes, padding included. O(1)."""
        return self.stride(group) * self.planes

    def address(self, placed: PackedComponent) -> int:
        """First byte of page 0 of a component in the arena; page p is ``p * stride`` further."""
        plane_bytes = (self.null_bytes + self.parents * self.parent_bytes) // self.planes
        zero = self.null_bytes // self.planes - self.stride(placed.component.group)
        return placed.plane * plane_bytes + zero + placed.offset


def pack(
    groups: Mapping[str, Sequence[Component]],
    states: str | None,
    pages: Mapping[str, int],
    budget: int,
    limits: Limits,
    state_layers: int,
    fixed: Mapping[str, tuple[int, int]] | None = None,
    wish: Mapping[str, int] | None = None,
) -> Packing | None:
    """The layout in which the most sequences fit; None: not one parent per group fits the budget.

    One that holds all of ``wish`` comes before any that does not.

    Args:
        groups: components by group, in the order of the layers.
        states: the group that keeps states, which may be cut into parts by layers.
        pages: pages of each group one sequence is counted with, a state as one.
        budget: bytes.
        limits: what page numbers allow.
        state_layers: what the parts of a state divide: the layers that keep states on every rank.
        fixed: by group, pages of a parent and parts of a state that another rank has; None: free.
        wish: pages of each group that must fit at once, a state as one; None: no more than one.

    Cost: O(layers + candidates).
    """
    layers = {name: _by_layer(found) for name, found in groups.items()}
    choices = [1]
    if states is not None:
        most = min(_MOST_PARTS, state_layers)
        choices = [parts for parts in range(1, most + 1) if state_layers % parts == 0]
        choices = choices if fixed is None else [fixed[states][1]]
    even = all(map(_are_even, layers.values()))
    best: tuple[bool, float, Packing] | None = None
    for parts in choices:
        cut = {name: parts if name == states else 1 for name in groups}
        for planes in _plane_counts(layers, cut, even=even):
            loads = {
                name: _load(found, cut[name], planes, pages[name] * cut[name])
                for name, found in layers.items()
            }
            wished = [min(cut[name] * (wish or {}).get(name, 1), _MOST_WISHED) for name in groups]
            if fixed is None:
                solved = _solve(loads, planes, budget, limits, wished)
            else:
                solved = _solve_like(loads, planes, budget, limits, fixed)
            if solved is None:
                continue
            packing = _packing(loads, planes, budget, limits, *solved[1:])
            holds = packing.holds(wished)
            worth = _WORTH if best is not None and holds == best[0] else 1
            if best is None or (holds, solved[0]) > (best[0], best[1] * worth):
                best = holds, solved[0], packing
    return None if best is None else best[2]


def _plane_counts(
    layers: Mapping[str, list[_Layer]], cut: Mapping[str, int], *, even: bool
) -> tuple[int, ...]:
    """As many planes as divide all layer counts; one plane too where layers differ in size.

    Planes are equally wide, so that layers of different size waste room in several of them.
    """
    most = gcd(*(len(found) // cut[name] for name, found in layers.items()))
    return (most,) if even or most == 1 else (most, 1)


def _packing(
    loads: dict[str, Load],
    planes: int,
    budget: int,
    limits: Limits,
    size: int,
    per_parent: dict[str, int],
) -> Packing:
    null = max(size // found for found in per_parent.values())
    parents = limits.parents((budget - null) // size, max(per_parent.values()))
    return Packing(planes, parents, size, null, per_parent, loads)


def _solve_like(
    loads: Mapping[str, Load],
    planes: int,
    budget: int,
    limits: Limits,
    fixed: Mapping[str, tuple[int, int]],
) -> tuple[float, int, dict[str, int]] | None:
    """As `_solve`: the smallest parent with as many pages of each group as another rank has."""
    per_parent = {name: fixed[name][0] for name in loads}
    widest = max(load.plane_bytes * per_parent[name] for name, load in loads.items())
    size = _up(widest, GRAIN * lcm(*per_parent.values())) * planes
    parents = _packing(dict(loads), planes, budget, limits, size, per_parent).parents
    return None if parents < len(loads) else (float(parents), size, per_parent)


def _by_layer(components: Sequence[Component]) -> list[_Layer]:
    return [list(found) for _, found in groupby(components, lambda item: (item.draft, item.layer))]


def _are_even(layers: list[_Layer]) -> bool:
    """Whether all layers of a group take as many bytes."""
    sizes = {sum(_up(item.bytes, _PART_GRAIN) for item in components) for components in layers}
    return len(sizes) == 1


def _load(layers: list[_Layer], parts: int, planes: int, pages: int) -> Load:
    """Components of a group side by side in their planes: layer i of a part in plane i mod n."""
    count = len(layers) // parts
    used: dict[tuple[int, int], int] = {}
    placed = []
    for at, components in enumerate(layers):
        part, plane = at // count, at % count % planes
        offset = used.get((part, plane), 0)
        for component in components:
            offset = _up(offset, _PART_GRAIN)
            placed.append(PackedComponent(component, part, plane, offset))
            offset += component.bytes
        used[part, plane] = offset
    return Load(tuple(placed), count, _up(max(used.values()), GRAIN), parts, pages)


def _solve(
    loads: Mapping[str, Load], planes: int, budget: int, limits: Limits, wish: Sequence[int]
) -> tuple[float, int, dict[str, int]] | None:
    """(score, parent bytes, K by group) of the best parent size; ties go to the smaller one.

    The score is sequences that fit, counted with one partial parent for each further group; sizes
    in which the wish does not fit come last.
    """
    sizes = [load.plane_bytes * planes for load in loads.values()]
    candidates = _candidates(sizes, budget)
    units = candidates // (GRAIN * planes)
    per_parent = [_largest_divisors(units, candidates // size) for size in sizes]
    fits = np.logical_and.reduce([found > 0 for found in per_parent])
    candidates = candidates[fits]
    per_parent = [found[fits] for found in per_parent]
    if not candidates.size:
        return None
    null = np.maximum.reduce([candidates // found for found in per_parent])
    parents = np.minimum((budget - null) // candidates, limits.parents_each)
    parents = np.minimum(parents, limits.ids // np.maximum.reduce(per_parent))
    share = sum(load.pages / found for load, found in zip(loads.values(), per_parent, strict=True))
    scores = np.where(parents >= len(sizes), (parents - len(sizes) + 1) / share, -1.0)
    need = sum(-(-many // found) for many, found in zip(wish, per_parent, strict=True))
    holds = (need <= parents) & (scores > 0)
    if holds.any():
        scores = np.where(holds, scores, -1.0)
    best = int(scores.argmax())
    if scores[best] <= 0:
        return None
    close = np.flatnonzero(scores >= scores[best] * (1 - 1e-9))
    at = min(close.tolist(), key=lambda i: _exact(i, loads, per_parent, parents, candidates))
    chosen = {name: int(found[at]) for name, found in zip(loads, per_parent, strict=True)}
    return float(scores[at]), int(candidates[at]), chosen


def _exact(
    at: int,
    loads: Mapping[str, Load],
    per_parent: list[Int64s],
    parents: Int64s,
    candidates: Int64s,
) -> tuple[object, int]:
    """What orders candidates exactly: parents a sequence takes per parent there is, then size."""
    from fractions import Fraction

    share = sum(
        (
            Fraction(load.pages, int(found[at]))
            for load, found in zip(loads.values(), per_parent, strict=True)
        ),
        Fraction(0),
    )
    return share / (int(parents[at]) - len(loads) + 1), int(candidates[at])


def _candidates(sizes: list[int], budget: int) -> Int64s:
    """Multiples of each group's page that hold any page and are not too large a share."""
    top = max(sizes)
    most = max(top, budget // _LARGEST_SHARE)
    found = []
    for size in sizes:
        first = -(-top // size)
        last = max(first, min(most // size, first + _CANDIDATES))
        found.append(np.arange(first, last + 1, dtype=np.int64) * size)
    return np.unique(np.concatenate(found))


def _largest_divisors(numbers: Int64s, limits: Int64s) -> Int64s:
    """The largest divisor of each number that is at most its limit; 0: none near it."""
    trials = limits[:, None] - np.arange(_STEPS)
    hits = (trials > 0) & (numbers[:, None] % np.maximum(trials, 1) == 0)
    first = hits.argmax(axis=1)
    rows = np.arange(numbers.size)
    return np.where(hits[rows, first], trials[rows, first], 0)


def _up(value: int, grain: int) -> int:
    return -(-value // grain) * grain
