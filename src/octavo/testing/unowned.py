"""Which slots nobody owns, so that a test can fill them with NaN and see that nothing changes."""

from typing import NamedTuple

from octavo.cache.cache import Cache
from octavo.cache.inspection import open_ends, vacant_pages


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
        UnknownGroup: no such group.
    """
    return Unowned(vacant_pages(cache, group), sorted(open_ends(cache, group).items()))
