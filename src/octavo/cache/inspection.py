"""A cache seen from inside, page by page: what tests and tools ask that no verb answers.

Reads the core; changes nothing.
"""

import numpy as np

from octavo.cache.arguments import read_prompt
from octavo.cache.cache import Cache
from octavo.cache.prompt import Prompt
from octavo.errors import PlanError, UnknownGroup


def group_number(cache: Cache, name: str | None) -> int:
    """The place of a group among the plan's; default: the first that keeps tokens. O(groups).

    Raises:
        UnknownGroup: no such group.
    """
    if not isinstance(cache, Cache):
        raise PlanError("cache", cache, "it must be an octavo.Cache")
    names = list(cache.plan.groups)
    if name is None:
        kept = [group.number for group in cache._core.groups if group.keeps_tokens]
        return int(kept[0]) if kept else 0
    if not isinstance(name, str) or name not in names:
        raise UnknownGroup(name, names)
    return names.index(name)


def is_own(cache: Cache, group: str, page: int) -> bool:
    """Whether a page of a group may be written: one holder, not published. O(1)."""
    space = cache._core.pool.spaces[group_number(cache, group)]
    return bool(space.holders[page] == 1 and not space.node[page])


def published_pages(cache: Cache, prompt: Prompt) -> dict[str, list[int]]:
    """By token group, the page of each computed column of a prompt, 0 where none is kept.

    Up to where the prompt is not known, or its last token is reached. O(len(prompt) x groups).
    """
    core, prefixes = cache._core, cache._prefixes
    nodes = core.path[: prefixes.look(read_prompt(core, prompt)).chain]
    count, held = len(core.groups), core.index.held
    return {
        core.names[group.number]: [int(held[node * count + group.number]) for node in nodes]
        for group in core.groups
        if group.keeps_tokens
    }


def vacant_pages(cache: Cache, group: str | None = None) -> list[int]:
    """Pages of a group that hold nothing, in parents no other group is bound to. O(pages)."""
    number, pool = group_number(cache, group), cache._core.pool
    space, owner = pool.spaces[number], np.asarray(pool.owner)
    vacant = (np.asarray(space.holders)[1:] == 0) & (np.asarray(space.node)[1:] == 0)
    mine = (owner == 0) | (owner == number + 1) if pool.packed else owner >= 0
    found: list[int] = (np.flatnonzero(vacant & mine.repeat(space.per_parent)) + 1).tolist()
    return found


def open_ends(cache: Cache, group: str | None = None) -> dict[int, int]:
    """Open pages that are not published, and the offset each is written at next. O(sequences)."""
    number, core = group_number(cache, group), cache._core
    ends: dict[int, int] = {}
    if not core.groups[number].keeps_tokens:
        return ends
    for sequence in cache._sequences():
        column, offset = divmod(sequence.scheduled, core.size)
        if offset and not sequence.preempted:
            page = core.groups[number].entry(sequence.row, column)
            if not core.pool.spaces[number].node[page]:
                ends[page] = max(offset, ends.get(page, 0))
    return ends
