"""A format of arrays, and a step on its way into them; formats stand beside this."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.step import Step
from octavo.cache.views import Ints
from octavo.checks import check_int
from octavo.core.emit import (
    Base,
    Ids,
    KeyStarts,
    Last,
    PageBlocks,
    Pages,
    PageStarts,
    Positions,
    QueryStarts,
    Slots,
    Table,
    Target,
)
from octavo.errors import CapacityError, LengthError, uncopied
from octavo.index.addresses import Addresses
from octavo.index.arguments import (
    MOST,
    Options,
    bounded,
    check_fill,
    name_row,
    padded,
    read_options,
)
from octavo.index.out import BOOL, Arrays, Shape, arrays_of, fill
from octavo.planner.plan import Plan

_PAGED = {"block_table", "block_offsets", "kv_indices"}
_SIZES: dict[type[Target], int] = {
    **dict.fromkeys((Slots, Ids, Positions), 1),
    **dict.fromkeys((QueryStarts, KeyStarts, PageStarts), 2),
    Pages: 3,
    Table: 4,
    PageBlocks: 5,
}
"""By role, which of `Format.shapes` it has; others have one number per row."""


class Format(NamedTuple):
    """How the arrays of a kernel's format are filled.

    Attributes:
        name: the function of `octavo.index` that gives it.
        kind: what it is handed out as.
        roles: by field, what fills it; where pages begin before the pages. Other fields depend on
            more than a row.
        kernel: the kernel, if its rule for pages always holds.
        page_fill: what stands in tables where there is no page, unless the caller says.
        by_entry: whether arrays of another step differ by what changed in the page table.
    """

    name: str
    kind: type[Any]
    roles: Mapping[str, type[Target]]
    kernel: str | None = None
    page_fill: int = 0
    by_entry: bool = True

    def shapes(self, rows: int, columns: int, tokens: int) -> dict[str, Shape]:
        """Shapes of the arrays with a role, of so many rows, columns and tokens. O(arrays)."""
        has = ((rows,), (tokens,), (rows + 1,), (rows * columns,))
        all_of = (*has, (rows, columns), (rows, 2, columns))
        return {name: all_of[_SIZES.get(role, 0)] for name, role in self.roles.items()}


COMMON: dict[str, type[Target]] = {
    "slot_mapping": Slots,
    "input_ids": Ids,
    "positions": Positions,
    "logit_rows": Last,
    "base": Base,
}
"""The fields of every format but `flex`, and what fills them."""


class Emission:
    """A step on its way into the arrays of one format.

    Args:
        format: its fields, and what fills them.
        step, plan, group, options: as `octavo.index` says.
        layers, kv_factor: as of `tensorrt`.

    Attributes:
        options: what the caller chose.
        found: the addresses, checked.
        changes_by_entry: whether arrays of another step differ by what changed in the page table.
        rows, columns, tokens: how many there are, padding included.
        most, longest: most new tokens and keys of a row, or the bounds the caller named.

    Raises:
        As `octavo.index` says.
    """

    __reduce__ = uncopied("it reads one step")

    def __init__(
        self,
        format: Format,
        step: Step,
        plan: Plan,
        group: str | None,
        options: Options,
        layers: int = 1,
        kv_factor: int = 2,
    ) -> None:
        self.format, self.options = format, read_options(options)
        asked = self.options
        none = self.format.page_fill if asked.page_fill is None else asked.page_fill
        self._no_slot = check_fill("slot_fill", asked.slot_fill)
        self._no_page = check_fill("page_fill", none)
        self._stride, self._values = layers * kv_factor, kv_factor - 1
        kernels = (self.format.kernel, asked.kernel)
        self.found = Addresses(step, plan, group, kernels, asked.kernel_page, asked.form)
        plain = self.found.source.ratio == 1 and not self.found.source.compact
        self.changes_by_entry = plain and format.by_entry
        self.measure()

    def measure(self) -> None:
        """Check the sizes of the step that was read last. O(1).

        Raises:
            LengthError, CapacityError: as `octavo.index` says.
        """
        found, options = self.found, self.options
        source = found.source
        self.rows, self.columns, self.tokens = source.count, source.width, source.tokens
        self.most, self.longest = source.most, source.longest
        if options.rows is not None:
            self.rows = padded("rows", source.count, options.rows, MOST - 1)
        if options.columns is not None:
            self.columns = self._columns(options.columns)
        if options.tokens is not None:
            self.tokens = padded("tokens", source.tokens, options.tokens)
        else:
            self.tokens += self.rows - source.count
        if options.max_query_len is not None:
            self.most = bounded("max_query_len", source.most, options.max_query_len)
        if options.max_seq_len is not None:
            self.longest = bounded("max_seq_len", source.longest, options.max_seq_len)
        roles = self.format.roles
        if source.keys > MOST and "cu_seqlens_k" in roles:
            raise CapacityError("keys of all rows", source.keys, MOST, "beyond int32")
        if found.pages * self._stride > MOST + 1 and "block_offsets" in roles:
            last = found.top() * self._stride + self._values
            if last > MOST:
                raise CapacityError("block offset", last, MOST, f"{self._stride} blocks per page")

    def shapes(self) -> dict[str, Shape]:
        """Least shapes of the arrays with a role. O(arrays).

        Raises:
            LengthError: rows or columns of which a table cannot have so many.
        """
        found = self.format.shapes(self.rows, self.columns, self.tokens)
        for name in found.keys() & _PAGED:
            if name == "kv_indices":
                found[name] = (self.pages(),)
            else:
                self.check_rows(found[name])
        return found

    def pages(self) -> int:
        """Pages of all rows one after another, padding included. O(1).

        Raises:
            LengthError: rows of which an array cannot have so many.
        """
        if self.options.columns is not None:
            self.check_rows((self.rows, self.columns))
            return self.rows * self.columns
        source = self.found.source
        return source.pages - source.skip * source.count

    def _columns(self, wanted: int) -> int:
        """Columns to pad to; refuses fewer than a row needs, by its name."""
        real = self.found.source.width
        if type(wanted) is int and real <= wanted <= MOST:
            return wanted
        row = name_row(self.found.step, self.found.widest())
        return check_int("columns", wanted, real, MOST, f"{row} needs {real}")

    def check_rows(self, shape: Shape) -> None:
        """Refuse rows, or columns, of which an array cannot have so many. O(1).

        Raises:
            LengthError: it names how many there may be.
        """
        each, real = prod(shape[1:]), self.found.source.count
        if real * each > MOST:
            most = self.columns * MOST // (real * each)
            raise LengthError("columns", self.columns, 0, most, f"{real} rows have them")
        if shape[0] * each > MOST:
            raise LengthError("rows", self.rows, real, MOST // each, f"{each} entries per row")

    def targets(self, arrays: Arrays) -> list[Target]:
        """The arrays with a role, for loops to fill. O(arrays)."""
        return [self.target(name, arrays[name]) for name in self.format.roles]

    def target(self, name: str, array: NDArray[Any]) -> Target:
        """The array of a field with a role, for loops to fill. O(1)."""
        role = self.format.roles[name]
        if role is Slots:
            return Slots(array, self._no_slot)
        if role is PageBlocks:
            return PageBlocks(array.reshape(-1), array.shape[2], self._stride, self._values)
        if role is Table:
            width = array.shape[1]
            return Table(array.reshape(-1), self._no_page, width, width)
        return role(array)

    def give(self, out: Any, others: Mapping[str, NDArray[Any]] | None = None) -> Any:
        """The format, in ``out``'s arrays where given.

        Args:
            others: arrays of fields without a role, copied; 0 stands behind them.

        Raises:
            LengthError, CapacityError: as `octavo.index` says of ``out``; nothing was written.
        """
        others = others or {}
        shapes = self.shapes() | {name: array.shape for name, array in others.items()}
        dtypes = {"mask": BOOL} if "mask" in others else {}
        found, kind = self.found, self.format.kind
        arrays = arrays_of(kind, shapes, out, found.step, dtypes, found.widest)
        found.source.write(self.targets(arrays), None, True)
        for name, values in others.items():
            fill(arrays[name], values)
        shown = arrays if out is None else out._asdict()
        in_order = [shown[name] for name in kind._fields if name in arrays]
        return kind._make((*in_order, *self.numbers()))

    def bounds(self) -> Ints:
        """int32[3], ONNX Runtime's bounds; the last is 0, unknown, where the caller named it."""
        least = 0 if self.options.max_seq_len is not None else self.longest
        return np.array([self.most, self.longest, least], np.int32)

    def numbers(self) -> tuple[int, ...]:
        """What stands behind the arrays, where the format has numbers."""
        has = self.format.kind._fields[-1].startswith("max_")
        return (self.most, self.longest) if has else ()
