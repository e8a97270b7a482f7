"""vLLM's side: its KV cache manager. Its worker's index arrays are not timed."""

import os
from itertools import count
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
import vllm
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_manager import KVCacheManager
from vllm.v1.core.kv_cache_utils import (
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_cache_interface import (
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request
from workloads import PAGE_SIZE, Contender, as_list


class Vllm(Contender):
    """`KVCacheManager` with prefix caching, called as the scheduler does; hashing is timed too."""

    name = "vLLM"
    version = vllm.__version__

    def __init__(self) -> None:
        init_none_hash(sha256)
        self.hasher = get_request_block_hasher(PAGE_SIZE, sha256)
        self.ids = count()
        self.sampling = SamplingParams(max_tokens=4_096)

    def build(self, pages: int) -> KVCacheManager:
        """One block more: the null block cannot be used."""
        spec = FullAttentionSpec(
            block_size=PAGE_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
        )
        group = KVCacheGroupSpec(layer_names=["layer"], kv_cache_spec=spec)
        config = KVCacheConfig(num_blocks=pages + 1, kv_cache_tensors=[], kv_cache_groups=[group])
        return KVCacheManager(
            kv_cache_config=config,
            max_model_len=32_768,
            scheduler_block_size=PAGE_SIZE,
            hash_block_size=PAGE_SIZE,
            enable_caching=True,
        )

    def prepare(self, tokens: Any) -> Request:
        """A request whose blocks are not hashed yet."""
        return Request(str(next(self.ids)), as_list(tokens), self.sampling, None)

    def admit(self, request: Request) -> Request:
        """Hash, look up, allocate and cache."""
        request._block_hasher = self.hasher
        request.update_block_hashes()
        blocks, found, _ = self.manager.get_computed_blocks(request)
        new = request.num_tokens - found
        if self.manager.allocate_slots(request, new, found, blocks) is None:
            raise MemoryError("the pool is too small")
        request.num_computed_tokens = request.num_tokens
        request.append_output_token_ids(1)
        request.num_preemptions = found  # a number its manager does not use here
        return request

    def hit(self, handle: Request) -> int:
        """Kept by `admit`."""
        found: int = handle.num_preemptions
        return found

    def finish(self, handle: Request) -> None:
        """One call."""
        self.manager.free(handle)

    def step(self, tokens: list[int]) -> None:
        """The scheduler's part alone."""
        allocate = self.manager.allocate_slots
        for request, token in zip(self.rows, tokens, strict=True):
            if allocate(request, 1) is None:
                raise MemoryError("the pool is too small")
            request.num_computed_tokens += 1
            request.append_output_token_ids(token)
