"""A step cut into tiles for the torch backend: which pages each piece of work reads, and its mask.

A tile is a run of one row's queries and the keys they can see, or several rows of one query and of
similar lengths. Tiles are built once per step and shared by every layer with the same window; each
reads only the pages its queries see, so a windowed layer costs its window and a full one its
context, never the pool. Knows integers, not keys and values.
"""

from collections import defaultdict
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import torch

from octavo.attention.kernels.oracle import visible
from octavo.attention.parameters import Seen
from octavo.errors import uncopied
from octavo.index.rows import StepRows

_BLOCK = 256
"""Queries of a masked tile: its mask is _BLOCK * context bytes, and its keys are gathered once."""
_BESIDE = 16
"""Rows of a tile at most: more save little more, and their keys leave a core's caches."""


class Tile:
    """Queries of n rows of a step and the keys they see; n > 1: one query each.

    Attributes:
        starts: first query token of each row.
        count: queries of each row.
        tokens: the queries among the step's tokens: a slice, or int64[n].
        pages: int64[n, m], pages to gather.
        skip: slots to drop from the front of the gathered pages.
        keys: keys behind them, at most m * page_size - skip; 0: the queries see nothing.
        mask: bool[n, 1, count, keys], or None where every key is seen (or ``triangle``).
        beyond: bool[n, 1, page_size, 1], slots of the last page that are not the row's to read, and
            so may hold anything; None: all can be read.
        triangle: query i sees keys 0..i: causal attention without a past.
        blind: whether a query sees no key.
    """

    __reduce__ = uncopied("it is a part of one step")

    def __init__(
        self, starts: list[int], count: int, pages: torch.Tensor, skip: int, keys: int
    ) -> None:
        self.starts, self.count = starts, count
        self.pages, self.skip, self.keys = pages, skip, keys
        self.tokens: slice | torch.Tensor = slice(starts[0], starts[0] + count)
        if len(starts) > 1:
            self.tokens = torch.tensor(starts, device=pages.device)
        self.mask: torch.Tensor | None = None
        self.beyond: torch.Tensor | None = None
        self.triangle = False
        self.blind = keys == 0
        self._rows: dict[tuple[int, int], torch.Tensor] = {}

    def rows(self, kv_heads: int, page_rows: int) -> torch.Tensor:
        """Index of the pages' head rows, [n * kv_heads * m], as n, heads, pages; built once.

        Args:
            kv_heads: heads of the layer.
            page_rows: rows from a page to the next; row p * page_rows + h is head h of page p.

        Cost: O(n * kv_heads * m) the first time, O(1) after.
        """
        index = self._rows.get((kv_heads, page_rows))
        if index is None:
            heads = torch.arange(kv_heads, device=self.pages.device)
            index = (self.pages[:, None] * page_rows + heads[:, None]).reshape(-1)
            self._rows[kv_heads, page_rows] = index
        return index


class _TileRow(NamedTuple):
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


class Tiles:
    """The work of a step in tiles: lengths as ints and a page table on the device, cut on demand.

    Args:
        rows: the step's rows.
        device: where the keys and values are.

    Cost: O(rows * width).
    """

    __reduce__ = uncopied("it is the work of one step")

    def __init__(self, rows: StepRows, device: torch.device) -> None:
        self._page_size, self._device = rows.page_size, device
        table = torch.from_numpy(rows.table.astype(np.int64)).to(device)
        ints = (array.tolist() for array in (rows.start, rows.count, rows.past, rows.base))
        self._rows = [
            _TileRow(start, start + count, past, past + count, base, table[row])
            for row, (start, count, past, base) in enumerate(zip(*ints, strict=True))
            if count
        ]
        self._tiles: dict[tuple[Seen, int], list[Tile]] = {}

    def of(self, seen: Seen, short: int) -> list[Tile]:
        """All work of a layer whose queries see ``seen``; together the tiles cover every query.

        Args:
            seen: which keys a query sees.
            short: most slots of a one-query row that still shares a tile with others.

        Cost: O(rows * width + queries * keys of masked tiles) the first time in a step, O(1) after.
        """
        tiles = self._tiles.get((seen, short))
        if tiles is None:
            cut = [tile for row in self._rows for tile in self._cut(row, seen)]
            tiles = self._tiles[seen, short] = list(_joined(cut, self._page_size, short))
        return tiles

    def _cut(self, row: _TileRow, seen: Seen) -> list[Tile]:
        """The tiles of one row: one where no mask is needed, else one per block of queries."""
        count = row.stop - row.start
        unmasked = seen.window is None and not seen.causal
        if _is_triangle(row, seen):
            tile = self._tile(row, self._reach(row, 0, count, seen), 0, count)
            tile.triangle = count > 1
            return [tile]
        size = count if unmasked else _BLOCK
        blocks = ((first, min(first + size, count)) for first in range(0, count, size))
        return [self._masked(row, first, last, seen) for first, last in blocks]

    def _reach(self, row: _TileRow, first: int, last: int, seen: Seen) -> _Reach:
        """The keys that queries first..last-1 of a row can see between them."""
        size, base = self._page_size, row.base
        stop = row.past + last if seen.causal else row.context
        low = base if seen.window is None else max(base, row.past + first - seen.window + 1)
        near = (low - base) // size
        sinks = max(0, min(seen.sink_tokens, low) - base)
        far = min(-(-sinks // size), near)
        skip = 0 if sinks else low - base - near * size
        return _Reach(far, near, max(near, -(-(stop - base) // size)), skip, stop)

    def _tile(self, row: _TileRow, reach: _Reach, first: int, last: int) -> Tile:
        pages = row.table[reach.near : reach.behind]
        if reach.far:
            pages = torch.cat((row.table[: reach.far], pages))
        beyond = row.base + reach.behind * self._page_size - reach.stop
        keys = max(0, pages.numel() * self._page_size - reach.skip - beyond)
        return Tile([row.start + first], last - first, pages[None], reach.skip, keys)

    def _masked(self, row: _TileRow, first: int, last: int, seen: Seen) -> Tile:
        """A tile, with its mask unless its queries see all of its keys."""
        reach = self._reach(row, first, last, seen)
        tile = self._tile(row, reach, first, last)
        lone = last - first == 1 and not seen.sink_tokens and row.past >= row.base
        if lone or tile.keys == 0:
            return tile
        far = np.arange(row.base, row.base + reach.far * self._page_size)
        near = np.arange(row.base + reach.near * self._page_size + reach.skip, reach.stop)
        queries = np.arange(row.past + first, row.past + last)
        mask = visible(queries, np.concatenate((far, near)), **seen._asdict())
        tile.blind = not bool(mask.any(axis=1).all())
        if not mask.all():
            tile.mask = torch.from_numpy(mask[None, None]).to(self._device)
        return tile


def _is_triangle(row: _TileRow, seen: Seen) -> bool:
    """Whether a row's keys are its own queries, each seeing all before it."""
    count = row.stop - row.start
    within = seen.window is None or seen.window >= count
    return seen.causal and row.past == row.base == 0 and within


def _joined(tiles: list[Tile], page_size: int, short: int) -> Iterator[Tile]:
    """The tiles, those of one query and of similar lengths up to ``short`` slots put together."""
    alike: dict[int, list[Tile]] = defaultdict(list)
    for tile in tiles:
        width = _rounded(tile.pages.shape[1])
        joins = tile.count == 1 and tile.keys and tile.mask is None and width * page_size <= short
        alike[width if joins else 0].append(tile)
    yield from alike.pop(0, ())
    for width, lone in alike.items():
        for first in range(0, len(lone), _BESIDE):
            part = lone[first : first + _BESIDE]
            yield part[0] if len(part) == 1 else _beside(part, width, page_size)


def _rounded(pages: int) -> int:
    """``pages`` or up to a quarter more, so that few counts occur: 1 to 8, 10, 12, 14, 16, 20..."""
    step = 1 << max(0, (pages - 1).bit_length() - 3)
    return -(-pages // step) * step


def _beside(tiles: list[Tile], width: int, page_size: int) -> Tile:
    """Tiles of one query each as one of ``width`` pages per row.

    Pages are added in front, so that every row ends in the last column. They repeat the row's first
    one, which is full where there are others: what is read by the way was written.
    """
    device = tiles[0].pages.device
    short = np.array([width - tile.pages.shape[1] for tile in tiles])
    pages: list[torch.Tensor] = []
    for tile, added in zip(tiles, short.tolist(), strict=True):
        if added:
            pages += [tile.pages[:, :1]] * added
        pages.append(tile.pages)
    starts = [tile.starts[0] for tile in tiles]
    joined = Tile(starts, 1, torch.cat(pages, dim=1).view(-1, width), 0, width * page_size)
    first = short * page_size + [tile.skip for tile in tiles]
    last = first + [tile.keys for tile in tiles]
    slots = np.arange(joined.keys)
    seen = (slots >= first[:, None]) & (slots < last[:, None])
    if not seen.all():
        joined.mask = torch.from_numpy(seen[:, None, None]).to(device)
        joined.beyond = ~joined.mask[..., -page_size:].transpose(2, 3)
    return joined
