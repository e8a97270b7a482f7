"""A step cut into tiles for the torch backend: which pages each piece of work reads, and its mask.

A tile is a run of one row's queries and the keys they can see. Tiles are built once a step and
shared by every layer with the same window; each reads only the pages its queries see, so a windowed
layer costs its window and a full one its context, never the pool. Knows integers, not keys and
values.
"""

from typing import NamedTuple

import numpy as np
import torch

from octavo.attention.oracle import visible
from octavo.attention.rows import Rows
from octavo.table import Step

_BLOCK = 256
"""Queries of a masked tile: its mask is _BLOCK * context bytes, and its keys are gathered once."""


class Seen(NamedTuple):
    """What decides which keys a query sees.

    Attributes:
        causal: only its own and earlier positions.
        window: keys it sees, its own included; None: all.
        sink_tokens: first positions seen beside the window.
    """

    causal: bool = True
    window: int | None = None
    sink_tokens: int = 0


class Tile:
    """Queries start..stop-1 of a step and the keys they see.

    Attributes:
        start: first query token.
        stop: token behind the last one.
        pages: int64[m], pages to gather.
        skip: slots to drop from the front of the gathered pages.
        keys: keys behind them, at most m * page_size - skip; 0: the queries see nothing.
        mask: bool[queries, keys], or None where every key is seen (or ``triangle``).
        triangle: query i sees keys 0..i: causal attention without a past.
        blind: whether a query sees no key.
    """

    __slots__ = ("_rows", "blind", "keys", "mask", "pages", "skip", "start", "stop", "triangle")

    def __init__(self, start: int, stop: int, pages: torch.Tensor, skip: int, keys: int) -> None:
        self.start, self.stop = start, stop
        self.pages, self.skip, self.keys = pages, skip, keys
        self.mask: torch.Tensor | None = None
        self.triangle = False
        self.blind = keys == 0
        self._rows: dict[tuple[int, int], torch.Tensor] = {}

    def rows(self, kv_heads: int, page_rows: int) -> torch.Tensor:
        """Index of the pages' head rows, [kv_heads * m], heads outermost; built once.

        Args:
            kv_heads: heads of the layer.
            page_rows: rows from a page to the next; row p * page_rows + h is head h of page p.

        Cost: O(kv_heads * m) the first time, O(1) after.
        """
        index = self._rows.get((kv_heads, page_rows))
        if index is None:
            heads = torch.arange(kv_heads, device=self.pages.device)
            index = (self.pages * page_rows + heads[:, None]).reshape(-1)
            self._rows[kv_heads, page_rows] = index
        return index


class _Row(NamedTuple):
    start: int  # first query token
    stop: int  # token behind the last one
    past: int  # position of the first query
    context: int  # keys that exist
    base: int  # position of the table's column 0
    table: torch.Tensor  # int64[width]


class _Reach(NamedTuple):
    far: int  # columns 0..far-1 hold sink tokens before the window
    near: int  # columns near..behind-1 hold the window, or everything
    behind: int
    skip: int  # slots of the first gathered page that no query sees
    stop: int  # position behind the last key


class TorchStep:
    """A step prepared for the torch backend: lengths as ints, a page table tensor, tiles on demand.

    Build it once a step and pass it to every layer's `octavo.attention.torch.paged_attention`
    instead of the step.

    Args:
        step: rows, lengths and page tables; copied, so the step may be reused.
        page_size: tokens a page holds.
        group: whose page table; None: the first token group.
        device: where the keys and values are.

    Attributes:
        tokens: query tokens.
        page_size: tokens a page holds.
        require: refuses a cache of fewer pages than the tables name; see Rows.

    Raises:
        LengthError, UnknownGroup: see Rows.

    Cost: O(rows * width).
    """

    def __init__(
        self,
        step: Step,
        *,
        page_size: int,
        group: str | None = None,
        device: torch.device | str = "cpu",
    ) -> None:
        rows = Rows(step, page_size=page_size, group=group)
        self.tokens, self.page_size, self.require = rows.tokens, page_size, rows.require
        self._require_seen = rows.require_seen
        self._device = torch.device(device)
        table = torch.from_numpy(rows.table.astype(np.int64)).to(self._device)
        ints = (array.tolist() for array in (rows.start, rows.count, rows.past, rows.base))
        self._rows = [
            _Row(start, start + count, past, past + count, base, table[row])
            for row, (start, count, past, base) in enumerate(zip(*ints, strict=True))
            if count
        ]
        self._tiles: dict[Seen, list[Tile]] = {}

    def tiles(self, seen: Seen) -> list[Tile]:
        """All work of a layer whose queries see ``seen``; together the tiles cover every query.

        Raises:
            LengthError: a query sees keys that no page holds, as a window has dropped them.

        Cost: O(rows + queries * keys of masked tiles) the first time a step, O(1) after.
        """
        tiles = self._tiles.get(seen)
        if tiles is None:
            self._require_seen(seen.window, seen.sink_tokens)
            tiles = [tile for row in self._rows for tile in self._cut(row, seen)]
            self._tiles[seen] = tiles
        return tiles

    def _cut(self, row: _Row, seen: Seen) -> list[Tile]:
        """The tiles of one row: one where no mask is needed, else one a block of queries."""
        count = row.stop - row.start
        unmasked = seen.window is None and not seen.causal
        if _is_triangle(row, seen):
            tile = self._tile(row, self._reach(row, 0, count, seen), 0, count)
            tile.triangle = count > 1
            return [tile]
        size = count if unmasked else _BLOCK
        blocks = ((first, min(first + size, count)) for first in range(0, count, size))
        return [self._masked(row, first, last, seen) for first, last in blocks]

    def _reach(self, row: _Row, first: int, last: int, seen: Seen) -> _Reach:
        """The keys that queries first..last-1 of a row can see between them."""
        size, base = self.page_size, row.base
        stop = row.past + last if seen.causal else row.context
        low = base if seen.window is None else max(base, row.past + first - seen.window + 1)
        near = (low - base) // size
        sinks = max(0, min(seen.sink_tokens, low) - base)
        far = min(-(-sinks // size), near)
        skip = 0 if sinks else low - base - near * size
        return _Reach(far, near, max(near, -(-(stop - base) // size)), skip, stop)

    def _tile(self, row: _Row, reach: _Reach, first: int, last: int) -> Tile:
        pages = row.table[reach.near : reach.behind]
        if reach.far:
            pages = torch.cat((row.table[: reach.far], pages))
        beyond = row.base + reach.behind * self.page_size - reach.stop
        keys = max(0, pages.numel() * self.page_size - reach.skip - beyond)
        return Tile(row.start + first, row.start + last, pages, reach.skip, keys)

    def _masked(self, row: _Row, first: int, last: int, seen: Seen) -> Tile:
        """A tile, with its mask unless its queries see all of its keys."""
        reach = self._reach(row, first, last, seen)
        tile = self._tile(row, reach, first, last)
        lone = last - first == 1 and not seen.sink_tokens and row.past >= row.base
        if lone or tile.keys == 0:
            return tile
        far = np.arange(row.base, row.base + reach.far * self.page_size)
        near = np.arange(row.base + reach.near * self.page_size + reach.skip, reach.stop)
        queries = np.arange(row.past + first, row.past + last)
        mask = visible(queries, np.concatenate((far, near)), **seen._asdict())
        tile.blind = not bool(mask.any(axis=1).all())
        if not mask.all():
            tile.mask = torch.from_numpy(mask).to(self._device)
        return tile


def _is_triangle(row: _Row, seen: Seen) -> bool:
    """Whether a row's keys are its own queries, each seeing all before it."""
    count = row.stop - row.start
    within = seen.window is None or seen.window >= count
    return seen.causal and row.past == row.base == 0 and within
