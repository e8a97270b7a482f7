"""How the arrays of each format move on when every row of a batch runs its next token."""

from typing import Any, ClassVar

import numpy as np

from octavo.index.formats import Flash, Flashinfer, Onnxruntime, Tensorrt, Vllm
from octavo.index.tracks import Rows, Turn
from octavo.table import Ints, Step

_MAX = 2**31 - 1


class Moving:
    """Arrays of one format that were emitted for n rows of one token each.

    Args:
        arrays: what was emitted, as it may be written.
        group: the token group.
        rows: n.
        stride: blocks of a page, where the format counts in blocks.
        values: how far behind a page's key block its value block lies.

    Subclasses name the fields that hold each row's context and past.
    """

    contexts: ClassVar[tuple[str, ...]] = ()
    pasts: ClassVar[tuple[str, ...]] = ()

    def __init__(self, arrays: Any, group: str, rows: int, stride: int, values: int) -> None:
        self.arrays, self.rows, self.stride, self.values = arrays, rows, stride, values
        self._group, self._width = group, self.width(arrays)
        self._slots = arrays.slot_mapping[:rows]
        self._pasts = [getattr(arrays, name)[:rows] for name in (*self.pasts, "positions")]
        self._contexts = [getattr(arrays, name)[:rows] for name in self.contexts]

    @staticmethod
    def width(arrays: Any) -> int:
        """Columns of the table."""
        return int(arrays.block_table.shape[1])

    def has_room(self, turn: Turn) -> bool:
        """Whether the arrays can take what the step brings. O(1)."""
        return turn.due.end <= self._width

    def move(self, step: Step, turn: Turn, longest: int) -> tuple[int, ...]:
        """Write what the step changes; returns the numbers behind the arrays.

        Cost: O(rows + changed entries).
        """
        for entry in turn.others:
            self.put(*entry)
        if turn.pages.size:
            self.turn(turn)
        self._slots[:] = step.groups[self._group].slots  # type: ignore[union-attr]
        for past in self._pasts:
            past[:] = step.past
        for context in self._contexts:
            context[:] = step.context
        return 1, longest

    def put(self, rows: Rows, columns: Rows, pages: Ints) -> None:
        """Write entries of the table."""
        self.arrays.block_table[rows, columns] = pages

    def turn(self, turn: Turn) -> None:
        """Write the pages that rows begin."""
        self.put(turn.due.rows, turn.due.columns, turn.pages)


class MovingVllm(Moving):
    """`Vllm`: lengths and the table."""

    contexts = ("seq_lens",)


class MovingFlash(Moving):
    """`Flash`: its running sum of keys grows by one a row."""

    contexts = ("cache_seqlens",)

    def __init__(self, arrays: Flash, group: str, rows: int, stride: int, values: int) -> None:
        super().__init__(arrays, group, rows, stride, values)
        self._sums = arrays.cu_seqlens_k
        self._more = np.minimum(np.arange(self._sums.size, dtype=np.int32), np.int32(rows))

    def has_room(self, turn: Turn) -> bool:
        """Whether also the sums stay within int32. O(1)."""
        return super().has_room(turn) and int(self._sums[-1]) + self.rows <= _MAX

    def move(self, step: Step, turn: Turn, longest: int) -> tuple[int, ...]:
        """Add a key a row."""
        self._sums += self._more
        return super().move(step, turn, longest)


class MovingOnnxruntime(Moving):
    """`Onnxruntime`: bounds in an array."""

    pasts = ("past_seqlens",)

    def move(self, step: Step, turn: Turn, longest: int) -> tuple[int, ...]:
        """Write exact bounds, unless the caller named them: then the last of them is 0."""
        super().move(step, turn, longest)
        bounds = self.arrays.attention_metadata
        if bounds[2]:
            bounds[1:] = longest
        return ()


class MovingTensorrt(Moving):
    """`Tensorrt`: two block offsets a page."""

    contexts = ("sequence_length",)
    pasts = ("host_past_key_value_lengths", "context_lengths")

    def has_room(self, turn: Turn) -> bool:
        """Whether also the offsets stay within int32. O(turned rows)."""
        if not super().has_room(turn):
            return False
        pages = [page for *_, pages in turn.others for page in pages.tolist()] + turn.pages.tolist()
        return not pages or max(pages) * self.stride + self.values <= _MAX

    @staticmethod
    def width(arrays: Any) -> int:
        """Columns of the offsets."""
        return int(arrays.block_offsets.shape[2])

    def put(self, rows: Rows, columns: Rows, pages: Ints) -> None:
        """Write the block of keys and that of values; none where there is no page."""
        offsets = self.arrays.block_offsets
        keys = pages * self.stride
        offsets[rows, 0, columns] = keys
        offsets[rows, 1, columns] = keys + self.values * (pages > 0)


class MovingFlashinfer(Moving):
    """`Flashinfer`: pages behind a row that begins one move up.

    Attributes:
        total: pages of all rows.
    """

    @staticmethod
    def width(arrays: Any) -> int:
        """Pages that fit; columns there are none."""
        return int(arrays.kv_indices.size)

    def __init__(self, arrays: Flashinfer, group: str, rows: int, stride: int, values: int) -> None:
        super().__init__(arrays, group, rows, stride, values)
        self._starts = arrays.kv_indptr[: rows + 1]
        self._after = arrays.kv_indptr[rows + 1 :]
        self._last = arrays.kv_last_page_len[:rows]
        self._pages = arrays.kv_indices.data
        self.total = int(arrays.kv_indptr[-1])

    def has_room(self, turn: Turn) -> bool:
        """Whether there is room for a page more of each row that begins one. O(1)."""
        return self.total + turn.pages.size <= self._width

    def put(self, rows: Rows, columns: Rows, pages: Ints) -> None:
        """Write entries of rows as they stand."""
        self.arrays.kv_indices[self._starts[rows] + columns] = pages

    def turn(self, turn: Turn) -> None:
        """Move the stretches between the rows that begin a page, the last one first."""
        pages, end, up = self._pages, self.total, turn.pages.size
        ends = self._starts[turn.due.rows + 1].tolist()
        for start, page in zip(reversed(ends), reversed(turn.pages.tolist()), strict=True):
            pages[start + up : end + up] = pages[start:end]
            up, end = up - 1, start
            pages[start + up] = page
        self.total += turn.pages.size
        self._starts += turn.due.shift
        self._after[:] = self.total

    def move(self, step: Step, turn: Turn, longest: int) -> tuple[int, ...]:
        """Last pages hold a token more, those just begun one."""
        self._last += 1
        self._last[turn.due.rows] = 1
        return super().move(step, turn, longest)


MOVES: dict[type, type[Moving]] = {
    Vllm: MovingVllm,
    Flash: MovingFlash,
    Flashinfer: MovingFlashinfer,
    Onnxruntime: MovingOnnxruntime,
    Tensorrt: MovingTensorrt,
}
"""By format."""
