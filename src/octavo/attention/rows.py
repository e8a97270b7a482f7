"""The rows of a step in one group as arrays a backend can run over: lengths and pages, checked.

Made once a step and used by every layer. Knows integers, not keys and values.
"""

import numpy as np
from numpy.typing import NDArray

from octavo.errors import LengthError
from octavo.spec import check_int
from octavo.table import Step


class Rows:
    """Lengths and page tables of a step, copied, so that the step may be reused.

    Args:
        step: rows, lengths and page tables.
        page_size: tokens a page holds.
        group: whose page table; None: the first token group.

    Attributes:
        tokens: query tokens.
        page_size: tokens a page holds.
        start: int64[n], first query token of each row.
        count: int64[n], its query tokens.
        past: int64[n], position of the first of them.
        context: int64[n], its keys end before this position.
        base: int64[n], and begin at this one.
        table: int32[n, width], its pages; 0 behind the last one.

    Raises:
        LengthError: a table too narrow for a context, or a page below 0.
        UnknownGroup: no such group.

    Cost: O(rows * width).
    """

    def __init__(self, step: Step, *, page_size: int, group: str | None = None) -> None:
        view = step.group(group)
        self.tokens = int(step.query_start[-1])
        self.page_size = page_size
        self.start = step.query_start[:-1].astype(np.int64)
        self.count = np.diff(step.query_start).astype(np.int64)
        self.context = step.context.astype(np.int64)
        self.past = self.context - self.count
        self.base = view.base.astype(np.int64)
        held = np.maximum(0, -(-(self.context - self.base) // page_size)) * (self.count > 0)
        width = int(held.max(initial=0))
        check_int("columns of the page table", view.table.shape[1], width, None, "the contexts'")
        self.table = self._owned(view.table[:, :width], held)
        self._top = int(self.table.max(initial=0))
        if self.table.size and int(self.table.min()) < 0:
            raise LengthError("page", int(self.table.min()), 0, None, "each is a physical page")

    def require(self, pages: int) -> None:
        """Refuse a cache of fewer pages than the tables name. O(1).

        Raises:
            LengthError: a page beyond the last one.
        """
        if self._top >= pages:
            raise LengthError("page", self._top, 0, pages - 1, "a page of key_cache")

    def _owned(self, table: NDArray[np.int32], held: NDArray[np.int64]) -> NDArray[np.int32]:
        """A copy without what stands behind the pages a row holds."""
        beyond = np.arange(table.shape[1]) >= held[:, None]
        return np.ascontiguousarray(np.where(beyond, np.int32(0), table), dtype=np.int32)
