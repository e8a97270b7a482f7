"""The laws between pool, index and page tables, checked as equations over the core's arrays."""

from collections.abc import Collection, Iterable, Iterator
from itertools import chain
from typing import Any

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.results import Pin
from octavo.core.commits import Core
from octavo.core.eviction import Lanes
from octavo.core.groups import Group
from octavo.core.index import PrefixIndex
from octavo.core.pages import PagePool
from octavo.core.spaces import Space
from octavo.errors import IntegrityError

Ints = NDArray[np.int32]


def check_core(core: Core, rows: Iterable[int], pins: Collection[Pin]) -> None:
    """Raise IntegrityError at the first equation that does not hold. O(pages + sequences).

    Args:
        rows: of all sequences admitted.
        pins: prefixes held.
    """
    _check_pool(core.pool)
    listed = list(rows)
    active = [row for row in listed if not core.preempted[row]]
    _check_index(core, active, pins)
    holders = _count_holders(core, active, pins)
    for number, space in enumerate(core.pool.spaces):
        _equal_arrays(f"entries of pages == holders in group {number}", holders[id(space)], space)
    for row in listed:
        _check_row(core, row)
    core.question()
    if core.pool.is_short(False):
        short = list(core.pool.lack)
        raise IntegrityError("pages short of what is guaranteed", short, [0] * len(short))


def check_equal(equation: str, left: object, right: object) -> None:
    """Raise IntegrityError unless both sides of ``equation`` are equal. O(1)."""
    if left != right:
        raise IntegrityError(equation, left, right)


def _array(numbers: Any) -> Ints:
    return np.asarray(numbers)


def _equal_arrays(equation: str, found: NDArray[Any], space: Space) -> None:
    wrong = np.flatnonzero(found != _array(space.holders))
    if wrong.size:
        page = int(wrong[0])
        raise IntegrityError(f"{equation}: page {page}", int(found[page]), space.holders[page])


# -- the pool ----------------------------------------------------------------------------------


def _check_pool(pool: PagePool) -> None:
    owner, live = _array(pool.owner), _array(pool.live)
    bound = np.flatnonzero(owner)
    quiet = bound[live[bound] == 0]
    free = [*pool.stack[: pool.stacked], *range(pool.touched, pool.parents)]
    check_equal("distinct free parents == free", len(set(free)), pool.free())
    check_equal("bound free parents == 0", int(np.count_nonzero(owner[free])), 0)
    check_equal("bound parents == all - free", bound.size, pool.parents - pool.free())
    check_equal("bound parents without live pages == quiet", quiet.size, pool.quiet.count)
    check_equal("parents with live pages == busy", bound.size - quiet.size, pool.busy())
    waiting = _waiting(pool.quiet)
    check_equal("waiting parents == quiet", sorted(chain.from_iterable(waiting)), quiet.tolist())
    check_equal("waiting by lane", [len(lane) for lane in waiting], list(pool.quiet.waiting))
    for number, space in enumerate(pool.spaces):
        if pool.packed or number == 0:
            _check_space(pool, space, np.flatnonzero(owner == number + 1) if pool.packed else bound)


def _check_space(pool: PagePool, space: Space, bound: NDArray[Any]) -> None:
    shape = pool.parents, space.per_parent
    held = (_array(space.holders)[1:] > 0).reshape(shape)
    idle = ((_array(space.holders)[1:] == 0) & (_array(space.node)[1:] != 0)).reshape(shape)
    live, vacant = _array(pool.live)[bound], _array(pool.vacant)[bound]
    check_equal("holders of the null page == 0", space.holders[0], 0)
    check_equal("live pages by parent", held[bound].sum(1).tolist(), live.tolist())
    found = space.per_parent - held[bound].sum(1) - idle[bound].sum(1)
    check_equal("vacant pages by parent", found.tolist(), vacant.tolist())
    check_equal("live pages of the space", int(held.sum()), space.live)
    check_equal("live and evictable pages are in bound parents", int((held | idle).sum()),
                int((held | idle)[bound].sum()))  # fmt: skip
    check_equal("parents with live pages", int(held.any(1).sum()), space.mixed)
    if space.per_parent > 1:
        _check_rings(pool, space, idle, bound)


def _check_rings(pool: PagePool, space: Space, idle: NDArray[Any], bound: NDArray[Any]) -> None:
    beside = idle & (_array(pool.live) > 0)[:, None]
    rings = _waiting(space.beside)
    pages = (np.flatnonzero(beside.ravel()) + 1).tolist()
    check_equal("evictable pages beside live ones wait", sorted(chain.from_iterable(rings)), pages)
    check_equal("how many wait beside live ones", len(pages), space.beside.count)
    for vacant in range(space.per_parent):
        listed = sorted(_ring(pool.right, space.rings + vacant, pool.parents))
        live, free = _array(pool.live)[bound], _array(pool.vacant)[bound]
        mine = (live > 0) & (free == vacant) if vacant else (live == 0) & (free > 0)
        check_equal(f"parents listed with {vacant} vacant pages", listed, bound[mine].tolist())
        if listed and vacant:
            check_equal("fullest parent", vacant >= space.fullest, True)


def _waiting(lanes: Lanes) -> list[list[int]]:
    """What waits in each lane, the coldest first."""
    heads = range(lanes.size, lanes.size + lanes.lanes)
    return [_ring(lanes.after, head, lanes.size) for head in heads]


def _ring(after: Any, ring: int, end: int) -> list[int]:
    """What is linked behind ``ring``, up to where rings begin."""
    found: list[int] = []
    at = after[ring]
    while at < end and len(found) <= end:  # a ring may be damaged
        found.append(int(at))
        at = after[at]
    return found


# -- the index ---------------------------------------------------------------------------------


def _check_index(core: Core, active: list[int], pins: Collection[Pin]) -> None:
    index, groups = core.index, core.index.groups
    nodes = _nodes(index)
    check_equal("nodes in buckets and roots == nodes", len(nodes), index.count)
    users = dict.fromkeys([0, *nodes], 0)
    coming = dict(users)
    users[0] = 1
    for node in nodes:
        if index.parent[node] >= 0:
            users[index.parent[node]] += 1
    for pin in pins:
        users[pin.node] += 1
    for row in active:
        users[core.front[row]] += 1
        for node in _coming(core, row):
            coming[node] += 1
    held = _array(index.held)[: index.end * groups].reshape(-1, groups)
    for node, number in np.argwhere(held).tolist():
        check_equal(f"node {node} is known", node in users, True)
        users[node] += 1
        page = int(held[node, number])
        check_equal(f"node of page {page}", core.pool.spaces[number].node[page], node)
    found = {node: index.users[node] for node in users}
    check_equal("children + pages + sequences == users", users, found)
    found = {node: index.coming[node] for node in coming}
    check_equal("sequences that know and have not computed == coming", coming, found)
    _check_published(core, held)


def _coming(core: Core, row: int) -> list[int]:
    """Nodes of the full pages a row knows and has not computed, the last first."""
    found, node = [], core.front[row]
    shared = core.shared[row] if core.publishes and not core.private[row] else 0
    ends = (
        min(positions, shared) // core.size for positions in (core.computed[row], core.known[row])
    )
    for _ in range(*ends):
        found.append(int(node))
        node = core.index.parent[node]
    check_equal(f"tip of row {row} == its last computed page", int(node), core.tip[row])
    return found


def _nodes(index: PrefixIndex) -> list[int]:
    """All nodes but the first root: first children, those in buckets, and the other roots."""
    children = _array(index.child)[: index.end]
    found = [*index.keys, *children[np.flatnonzero(children)].tolist()]
    following = _array(index.following)
    for first in _array(index.buckets)[np.flatnonzero(_array(index.buckets))].tolist():
        node = first
        while node:
            found.append(node)
            node = int(following[node])
    return found


def _check_published(core: Core, held: NDArray[Any]) -> None:
    """Every page that stands for a node is the node's, or in its bundle."""
    pages = {id(space): set(np.flatnonzero(_array(space.node))) for space in core.pool.spaces}
    bundles = core.index.bundles
    check_equal("bundles of all groups == bundled", sum(map(len, bundles)), core.index.bundled)
    for number, space in enumerate(core.pool.spaces):
        mine = set(held[:, number][held[:, number] > 0].tolist())
        for node, bundle in bundles[number].items():
            check_equal(f"bundle of node {node}", bundle[0], int(held[node, number]))
            mine |= set(bundle)
        idle = {node for node, bundle in bundles[number].items() if not space.holders[bundle[0]]}
        check_equal(f"bundles nobody holds == idle of {number}", idle, set(core.index.idle[number]))
        if not core.groups[number].keeps_tokens:
            check_equal(f"pages of nodes == bundles of {number}", np.count_nonzero(held[:, number]),
                        len(bundles[number]))  # fmt: skip
        pages[id(space)] -= mine
    left = [sorted(map(int, rest)) for rest in pages.values() if rest]
    check_equal("published pages that no node has", left, [])


# -- rows --------------------------------------------------------------------------------------


def _count_holders(core: Core, active: list[int], pins: Collection[Pin]) -> dict[int, NDArray[Any]]:
    """By space, holders of each page as tables, fetches, pins, steps and copies have them."""
    found = {id(space): np.zeros(space.size, np.int64) for space in core.pool.spaces}
    for number, pages in _held(core, active, pins):
        np.add.at(found[id(core.pool.spaces[number])], np.asarray(pages, np.intp), 1)
    return found


def _held(core: Core, active: list[int], pins: Collection[Pin]) -> Iterator[tuple[int, Any]]:
    """(group, pages) of all that holds any: tables, fetched states, pins, steps, copies."""
    for row in active:
        for group in core.groups:
            if core.columns(group, row):
                yield group.number, group.held(row, core.columns(group, row))
        for number, pages in core.fetches[row] or ():
            yield number, list(pages)
    for pin in pins:
        yield from enumerate(pin.pages)
    for step in core.open:
        for _, number, kept, _ in step.kept:
            yield number, list(kept)
    for (number, _), source in core.pending.items():
        yield number, [source]


def _check_row(core: Core, row: int) -> None:
    computed, scheduled = core.computed[row], core.scheduled[row]
    known, limit = core.known[row], core.limit[row]
    if not 0 <= computed <= min(scheduled, known) or known > limit:
        right = (scheduled, known, limit)
        raise IntegrityError("computed <= scheduled, known <= limit", computed, right)
    if not core.moving[row]:
        check_equal(f"computed == scheduled of row {row}, in no open step", computed, scheduled)
    for group in core.groups if not core.preempted[row] else ():
        if group.keeps_tokens:
            _check_columns(core, group, row)
        elif group.keeps_state:
            held = len(group.held(row, core.columns(group, row)))
            check_equal(f"states of row {row}", held in (0, group.units * group.parts), True)


def _check_columns(core: Core, group: Group, row: int) -> None:
    """Held columns: the sinks, and from the first one kept to the last one scheduled."""
    columns, first = core.columns(group, row), group.first[row]
    held = [column for column in range(columns) if group.entry(row, column)]
    expected = [*range(min(group.sinks, first)), *range(first, columns)]
    check_equal(f"columns of row {row} in group {group.number}", held, expected)
