"""The arrays of `octavo.index.flex` as torch's flex attention takes them.

flex_attention weighs keys it masks by 0, so every slot of the pool it runs over must be finite.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch.nn.attention.flex_attention import BlockMask

from octavo.index import Flex

Mask = Callable[[Any, Any, torch.Tensor, torch.Tensor], torch.Tensor]


def block_mask(arrays: Flex, device: torch.device | str = "cpu") -> BlockMask:
    """The block mask of queries [1, H, T, dim] and a pool of keys [1, kv_heads, slots, dim].

    It has no lists of query blocks by key block, which only a backward pass reads.
    O(what the arrays hold): each is copied to ``device``.
    """
    fields = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")
    lists = {name: torch.tensor(getattr(arrays, name), device=device) for name in fields}
    return BlockMask.from_kv_blocks(
        **lists,
        BLOCK_SIZE=(arrays.query_block, arrays.kv_block),
        mask_mod=mask_mod(arrays, device),
        seq_lengths=(arrays.positions.size, arrays.kv_len),
        compute_q_blocks=False,
    )


def mask_mod(arrays: Flex, device: torch.device | str = "cpu") -> Mask:
    """Whether query token q sees slot k of the pool, as flex_attention asks it.

    A row holds a page if the page stands in the one column of the row's table it can stand in.
    """
    names = ("block_table", "columns", "token_rows", "first_keys", "last_keys")
    table, columns, rows, first, last = (
        torch.tensor(getattr(arrays, name), device=device) for name in names
    )
    size, sinks = arrays.page, arrays.sink_tokens

    def sees(_batch: Any, _head: Any, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        page = k // size
        column = columns[page]
        position = column * size + k % size
        held = table[rows[q], column] == page
        seen = (position >= first[q]) | (position < sinks)
        return held & seen & (position <= last[q])

    return sees
