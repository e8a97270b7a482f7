"""A format of arrays, and a step on its way into them; formats stand beside this."""

from collections.abc import Mapping
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Ints, Step
from octavo.core.emit import (
    Base,
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
from octavo.index.arguments import MOST, Options, bounded, check_fill, check_rows, read_options
from octavo.index.buffers import BOOL, Arrays, Shape, arrays_of, fill
from octavo.planner.plan import Plan


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


COMMON = {"slot_mapping": Slots, "positions": Positions, "logit_rows": Last, "base": Base}
"""The fields of every format but `flex`, and what fills them."""
_BY_TOKEN = (Slots, Positions)
_STARTS = (QueryStarts, KeyStarts, PageStarts)
_TABLES = (Table, PageBlocks)


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
        rows: rows, padding included.
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
        self.rows = check_rows(found.step, options.rows)
        source = found.source
        self.most = bounded("max_query_len", source.most, options.max_query_len)
        self.longest = bounded("max_seq_len", source.longest, options.max_seq_len)
        roles = self.format.roles
        if source.keys > MOST and "cu_seqlens_k" in roles:
            raise CapacityError("keys of all rows", source.keys, MOST, "beyond int32")
        if found.pages * self._stride > MOST + 1 and "block_offsets" in roles:
            last = found.top() * self._stride + self._values
            if last > MOST:
                raise CapacityError("block offset", last, MOST, f"{self._stride} blocks a page")

    def shapes(self) -> dict[str, Shape]:
        """Least shapes of the arrays with a role. O(arrays).

        Raises:
            LengthError: rows of which a table cannot have so many.
        """
        source, rows = self.found.source, (self.rows,)
        by_token, starts = (source.tokens + self.rows - source.count,), (self.rows + 1,)
        found: dict[str, Shape] = {}
        for name, role in self.format.roles.items():
            if role in _BY_TOKEN:
                found[name] = by_token
            elif role in _STARTS:
                found[name] = starts
            elif role is Pages:
                found[name] = (source.pages - source.skip * source.count,)
            elif role in _TABLES:
                sides = (2,) if role is PageBlocks else ()
                found[name] = (self.rows, *sides, source.width)
                self.check_rows(found[name])
            else:
                found[name] = rows
        return found

    def check_rows(self, shape: Shape) -> None:
        """Refuse rows of which an array cannot have so many. O(1).

        Raises:
            LengthError: it names how many there may be.
        """
        if prod(shape) > MOST:
            each = prod(shape[1:])
            real = self.found.source.count
            raise LengthError("rows", self.rows, real, MOST // each, f"{each} entries a row")

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
        in_order = [arrays[name] for name in kind._fields if name in arrays]
        return kind._make((*in_order, *self.numbers()))

    def bounds(self) -> Ints:
        """int32[3], ONNX Runtime's bounds; the last is 0, unknown, where the caller named it."""
        least = 0 if self.options.max_seq_len is not None else self.longest
        return np.array([self.most, self.longest, least], np.int32)

    def numbers(self) -> tuple[int, ...]:
        """What stands behind the arrays, where the format has numbers."""
        has = self.format.kind._fields[-1].startswith("max_")
        return (self.most, self.longest) if has else ()
