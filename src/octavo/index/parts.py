"""What formats are put together from: the arrays of one step and group, padded to rows."""

from math import prod
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Ints, Step
from octavo.errors import LengthError
from octavo.index.addresses import Addresses, read_addresses
from octavo.index.buffers import Field
from octavo.index.options import Options, ask, bounded, check_fill
from octavo.index.steps import MOST, check_rows
from octavo.planner.plan import Plan

PAD = -1
NULL = 0


class Parts:
    """The arrays of ``step`` that formats share.

    Args:
        kernel: whose rule for pages holds, beside that of the one the caller names.
        page_fill: what stands in tables where there is no page, unless the caller says.

    Attributes:
        found: the addresses, checked.
        rows: rows, padding included.
        max_query, max_keys: the largest of the rows', or the bounds the caller named.
    """

    def __init__(
        self,
        step: Step,
        plan: Plan,
        group: str | None,
        options: Options,
        kernel: str | None = None,
        page_fill: int = NULL,
    ) -> None:
        asked = ask(options)
        self._slot_fill = check_fill("slot_fill", asked.slot_fill)
        fill = page_fill if asked.page_fill is None else asked.page_fill
        self._page_fill = check_fill("page_fill", fill)
        kernels = (kernel, asked.kernel)
        self.step = step
        self.found = read_addresses(step, plan, group, kernels, asked.kernel_page, asked.form)
        self.rows = check_rows(step, asked.rows)
        most = int(np.maximum.reduce(step.counts, initial=0))
        self.max_query = bounded("max_query_len", most, asked.max_query_len)
        self.max_keys = bounded("max_seq_len", self.found.longest, asked.max_seq_len)
        self.is_bounded = asked.max_seq_len is not None

    def common(self) -> dict[str, Field]:
        """What every format has."""
        step = self.step
        tokens = (step.positions.size + self.rows - step.counts.size,)
        return {
            "slot_mapping": Field(self.found.slots, tokens, self._slot_fill),
            "positions": Field(step.positions, tokens, 0),
            "logit_rows": self.by_row(step.last, PAD),
            "base": self.by_row(self.found.base),
        }

    def table(self) -> Field:
        """The kernel pages, row by row, with what the caller wants where there is none."""
        pages, fill = self.found.table, self._page_fill
        if fill != NULL:
            pages = np.where(pages > 0, pages, np.int32(fill))
        return self.by_row(pages, fill, fresh=True, columns=self.found.ends)

    def by_row(
        self,
        values: NDArray[Any],
        pad: int = 0,
        *,
        fresh: bool = False,
        columns: Ints | None = None,
    ) -> Field:
        """One entry a row, ``pad`` in padded ones; of a table with the columns each row needs.

        Raises:
            LengthError: rows of which an array cannot have so many.
        """
        shape = (self.rows, *values.shape[1:])
        if values.ndim > 1 and prod(shape) > MOST:
            most = MOST // prod(shape[1:])
            why = f"{prod(shape[1:])} entries a row"
            raise LengthError("rows", self.rows, self.step.counts.size, most, why)
        return Field(values, shape, pad, fresh, columns)

    def query_start(self) -> Field:
        """Where each row's tokens begin."""
        return self.running(self.step.query_start, fresh=False)

    def running(self, sums: Ints, *, fresh: bool = True) -> Field:
        """Running sums, from 0; padded rows repeat the last one."""
        return Field(sums, (self.rows + 1,), int(sums[-1]), fresh)


def whole(values: list[int]) -> Field:
    """These numbers and no padding."""
    return Field(np.array(values, np.int32), (len(values),), 0, fresh=True)


def shared_columns(found: Addresses) -> int:
    """Leading columns that are the same page in every row and lie before all new positions."""
    before = int(found.step.past.min()) // found.page
    differ = (found.table[:, :before] != found.table[0, :before]).any(axis=0)
    return int(differ.argmax()) if differ.any() else before
