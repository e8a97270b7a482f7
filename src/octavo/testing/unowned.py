"""Which slots nobody owns, so that a test can fill them with NaN and see that nothing changes."""

from typing import NamedTuple

from octavo.cache.cache import Cache


class Unowned(NamedTuple):
    """Slots of one group that no computation may read.

    Attributes:
        pages: pages wholly unowned: neither held nor published; the null page is not among them.
        tails: (page, offset) of open pages: from the offset on nothing is scheduled.
    """

    pages: list[int]
    tails: list[tuple[int, int]]


def unowned_slots(cache: Cache, group: str | None = None) -> Unowned:
    """The slots of ``group`` that are unowned now. O(pages + sequences).

    Args:
        group: default: the first token group.

    Raises:
        KeyError: no such group.
    """
    ledger = cache._ledger
    number = _number(cache, group)
    _, published = ledger.pool.state(number)
    pages = ledger.pool.vacant(number).tolist()
    ends: dict[int, int] = {}
    for sequence in cache._home if number in ledger.token_groups else ():
        column, offset = divmod(sequence.scheduled, ledger.page_size)
        if offset and not sequence.preempted:
            page = int(sequence._rows.tables[number][sequence._row, column])
            if not published[page]:
                ends[page] = max(offset, ends.get(page, 0))
    return Unowned(pages, sorted(ends.items()))


def _number(cache: Cache, group: str | None) -> int:
    names = cache._ledger.names
    if group is None:
        return (cache._ledger.token_groups or [0])[0]
    if group not in names:
        raise KeyError(f"no group {group!r}; groups are {', '.join(names)}")
    return names.index(group)
