"""transformers' side: the paged cache of its continuous batching, one layer of one small head.

Its tensors are as small as they can be, so that its bookkeeping is what is timed.
"""

from itertools import count
from typing import Any

import torch
import transformers
from transformers import ContinuousBatchingConfig, LlamaConfig
from transformers.generation.continuous_batching.cache import PagedAttentionCache
from transformers.generation.continuous_batching.distributed import DistributedHelper
from transformers.generation.continuous_batching.requests import RequestState
from workloads import PAGE_SIZE, Contender, as_list


class Transformers(Contender):
    """`PagedAttentionCache`, called as its scheduler does for one prefill and for decode steps."""

    name = "transformers"
    version = transformers.__version__

    def __init__(self) -> None:
        self.ids = count()
        self.config = LlamaConfig(
            num_hidden_layers=1,
            num_attention_heads=1,
            num_key_value_heads=1,
            hidden_size=2,
            head_dim=2,
            vocab_size=64,
        )
        self.config._attn_implementation = "flash_attention_2"  # no mask is planned for

    def build(self, pages: int) -> PagedAttentionCache:
        """Two sectors more are its own padding."""
        batching = ContinuousBatchingConfig(
            page_size=PAGE_SIZE,
            num_blocks=pages,
            max_batch_tokens=2_048,
            max_memory_percent=0.9,
            max_blocks_per_request=128,
        )
        return PagedAttentionCache(
            self.config, batching, "cpu", DistributedHelper(None, None), torch.float32
        )

    def prepare(self, tokens: Any) -> RequestState:
        """A request state with a list of ids."""
        return RequestState(str(next(self.ids)), as_list(tokens))

    def admit(self, request: RequestState) -> RequestState:
        """As `Scheduler` and the batch's end do; the slots written are listed too."""
        cache, ids = self.manager, request.initial_tokens
        found = cache.search_prefix_match(request.request_id, ids)
        request.position_offset = found
        request.allocated_blocks = found
        new = len(ids) - found
        self._store(request, new)
        complete = cache.count_new_complete_blocks(request, new)
        cache.extend_read_and_write_indices(request.request_id, found, new, None, [[]])
        request.position_offset = len(ids)
        request.generated_tokens.append(1)
        cache.mark_complete_blocks(request, complete)
        return request

    def _store(self, state: RequestState, new: int) -> None:
        """Room for new tokens, where there is none by giving up all it keeps for reuse."""
        cache = self.manager
        if not cache.can_store_request_tokens(state, new):
            cache.evict_cached_blocks()
            if not cache.can_store_request_tokens(state, new):
                raise MemoryError("the pool is too small")

    def hit(self, handle: RequestState) -> int:
        """Kept where its scheduler has no use for a number."""
        found: int = handle.allocated_blocks
        return found

    def finish(self, handle: RequestState) -> None:
        """One call."""
        self.manager.free_blocks(handle.request_id)

    def start(self, handles: list[Any]) -> None:
        """Its kernel's block table is a tensor a group."""
        super().start(handles)
        self.table = torch.zeros((1, len(handles), 128), dtype=torch.int32)

    def step(self, tokens: list[int]) -> None:
        """Block tables and write slots, as for its fast decode path."""
        cache = self.manager
        slots: list[list[int]] = [[]]
        done = []
        for row, state in enumerate(self.rows):
            past = state.position_offset
            self._store(state, 1)
            done.append(cache.count_new_complete_blocks(state, 1))
            cache.fill_block_table(state.request_id, past, 1, self.table[:, row])
            cache.extend_read_and_write_indices(state.request_id, past, 1, None, slots)
        for state, token, complete in zip(self.rows, tokens, done, strict=True):
            state.generated_tokens.append(token)
            state.position_offset += 1
            cache.mark_complete_blocks(state, complete)
