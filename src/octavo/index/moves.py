"""How the arrays of each format move on when every row of a batch runs its next token."""

from typing import Any, ClassVar

import numpy as np

from octavo.cache.batch import Change
from octavo.cache.step import Ints, Step
from octavo.cache.striding import Stride
from octavo.index.formats import Flash, Flashinfer, Onnxruntime, Tensorrt, Vllm

_MAX = 2**31 - 1


class Moving:
    """Arrays of one format that were emitted for a step of a run of one token a row.

    Args:
        arrays: what was emitted, as it may be written.
        step: for which; the newest of its run.
        run: that run.
        group: the token group.
        blocks: blocks of a page, where the format counts in blocks.
        values: how far behind a page's key block its value block lies.

    Attributes:
        longest: the longest row's context.

    Subclasses name the fields that hold each row's context and past, and say whether the largest
    counts stand behind the arrays, as numbers.
    """

    contexts: ClassVar[tuple[str, ...]] = ()
    pasts: ClassVar[tuple[str, ...]] = ()
    has_numbers: ClassVar[bool] = True

    def __init__(
        self, arrays: Any, step: Step, run: Stride, group: str, blocks: int, values: int
    ) -> None:
        self.arrays, self.rows, self.blocks, self.values = arrays, step.past.size, blocks, values
        self.longest = int(np.maximum.reduce(step.context))
        self._run, self._number, self._group = run, run.extended, group
        self._width = self.width(arrays)
        self._slots = arrays.slot_mapping[: self.rows]
        self._pasts = [getattr(arrays, name)[: self.rows] for name in (*self.pasts, "positions")]
        self._contexts = [getattr(arrays, name)[: self.rows] for name in self.contexts]

    @staticmethod
    def width(arrays: Any) -> int:
        """Columns of the table."""
        return int(arrays.block_table.shape[1])

    def leads_to(self, step: Step) -> bool:
        """Whether ``step`` is the next of the run, as it was made, and there is room for it. O(1).

        Its numbers are the run's word, and so are the entries of the table that changed.
        """
        run = self._run
        if step._batch is None or step._batch._run_to(step) is not run:
            return False
        return run.extended == self._number + 1 and self.has_room()

    def has_room(self) -> bool:
        """Whether the arrays can take what the step brings. O(1)."""
        return self._run.width <= self._width

    def move(self, step: Step) -> None:
        """Write what the step changes. O(rows + changed entries)."""
        changes = step._changes and step._changes.get(self._group)
        if changes:
            self.change(changes)
        self._number += 1
        self.longest += 1
        self._slots[:] = step.groups[self._group].slots  # type: ignore[union-attr]
        for past in self._pasts:
            past[:] = step.past
        for context in self._contexts:
            context[:] = step.context

    def change(self, changes: list[Change]) -> None:
        """Write entries of the table; pages that rows begin come last."""
        for rows, columns, pages in changes:
            self.arrays.block_table[rows, columns] = pages


class MovingVllm(Moving):
    """`Vllm`: lengths and the table."""

    contexts = ("seq_lens",)


class MovingFlash(Moving):
    """`Flash`: its running sum of keys grows by one a row."""

    contexts = ("cache_seqlens",)

    def __init__(self, arrays: Flash, *args: Any) -> None:
        super().__init__(arrays, *args)
        self._sums, self._keys = arrays.cu_seqlens_k, int(arrays.cu_seqlens_k[-1])
        more = np.arange(self._sums.size, dtype=np.int32)
        self._more = np.minimum(more, np.int32(self.rows))

    def has_room(self) -> bool:
        """Whether also the sums stay within int32. O(1)."""
        return super().has_room() and self._keys + self.rows <= _MAX

    def move(self, step: Step) -> None:
        """Add a key a row."""
        self._sums += self._more
        self._keys += self.rows
        super().move(step)


class MovingOnnxruntime(Moving):
    """`Onnxruntime`: bounds in an array."""

    pasts = ("past_seqlens",)
    has_numbers = False

    def move(self, step: Step) -> None:
        """Write exact bounds, unless the caller named them: then the last of them is 0."""
        super().move(step)
        bounds = self.arrays.attention_metadata
        if bounds[2]:
            bounds[1:] = self.longest


class MovingTensorrt(Moving):
    """`Tensorrt`: two block offsets a page."""

    contexts = ("sequence_length",)
    pasts = ("host_past_key_value_lengths", "context_lengths")

    @staticmethod
    def width(arrays: Any) -> int:
        """Columns of the offsets."""
        return int(arrays.block_offsets.shape[2])

    def change(self, changes: list[Change]) -> None:
        """Write the block of keys and that of values; none where there is no page."""
        offsets, width = self.arrays.block_offsets.reshape(-1), self._width
        for rows, columns, pages in changes:
            keys, at = pages * self.blocks, rows * (2 * width) + columns
            offsets[at] = keys
            offsets[at + width] = keys + self.values * (pages > 0)


class MovingFlashinfer(Moving):
    """`Flashinfer`: pages behind a row that begins one move up.

    Attributes:
        total: pages of all rows.
    """

    @staticmethod
    def width(arrays: Any) -> int:
        """Pages that fit; columns there are none."""
        return int(arrays.kv_indices.size)

    def __init__(self, arrays: Flashinfer, *args: Any) -> None:
        super().__init__(arrays, *args)
        self._starts = arrays.kv_indptr[: self.rows + 1]
        self._after = arrays.kv_indptr[self.rows + 1 :]
        self._last = arrays.kv_last_page_len[: self.rows]
        self._pages = arrays.kv_indices.data
        self._shifts: dict[int, Ints] = {}
        self.total = int(arrays.kv_indptr[-1])

    def has_room(self) -> bool:
        """Whether there is room for a page more of each row that begins one. O(1)."""
        return self.total + self._run.turned.rows.size <= self._width

    def move(self, step: Step) -> None:
        """Last pages hold a token more, those just begun one."""
        self._last += 1
        super().move(step)

    def change(self, changes: list[Change]) -> None:
        """Write entries of rows as they stand, then move stretches apart for the pages begun."""
        turned = self._run.turned.rows
        others, begun = (changes[:-1], changes[-1][2]) if turned.size else (changes, None)
        for rows, columns, pages in others:
            self.arrays.kv_indices[self._starts[rows] + columns] = pages
        if begun is not None:
            self._insert(begun)
            self._starts += self._shift()
            self._after[:] = self.total
            self._last[turned] = 1

    def _insert(self, begun: Ints) -> None:
        """A page behind each row that begins one; the last stretch moves first."""
        pages, end, up = self._pages, self.total, begun.size
        ends = self._starts[self._run.turned.rows + 1].tolist()
        self.total += up
        for start, page in zip(reversed(ends), reversed(begun.tolist()), strict=True):
            pages[start + up : end + up] = pages[start:end]
            up, end = up - 1, start
            pages[start + up] = page

    def _shift(self) -> Ints:
        """int32[n + 1], rows that begin a page before each row; O(rows) once in a page."""
        turned = self._run.turned.rows
        shift = self._shifts.get(id(turned))
        if shift is None:
            shift = self._shifts[id(turned)] = np.zeros(self.rows + 1, np.int32)
            shift[turned + 1] = 1
            np.add.accumulate(shift, out=shift)
        return shift


MOVES: dict[type, type[Moving]] = {
    Vllm: MovingVllm,
    Flash: MovingFlash,
    Flashinfer: MovingFlashinfer,
    Onnxruntime: MovingOnnxruntime,
    Tensorrt: MovingTensorrt,
}
"""By format."""
