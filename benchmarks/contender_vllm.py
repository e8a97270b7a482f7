"""vLLM's side: its KV cache manager, in an interpreter of its own that is asked for single rounds.

Run by `bench_authority.py --vllm-python`; reads ``row turn`` lines, answers with a JSON line each.
"""

import json
import os
import sys
from itertools import count
from typing import Any

os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
sys.stdout, answers = sys.stderr, sys.stdout  # whatever it prints is not an answer

import torch  # noqa: E402
import vllm  # noqa: E402
from vllm.sampling_params import SamplingParams  # noqa: E402
from vllm.utils.hashing import sha256  # noqa: E402
from vllm.v1.core.kv_cache_manager import KVCacheManager  # noqa: E402
from vllm.v1.core.kv_cache_utils import (  # noqa: E402
    get_request_block_hasher,
    init_none_hash,
)
from vllm.v1.kv_cache_interface import (  # noqa: E402
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroupSpec,
)
from vllm.v1.request import Request  # noqa: E402
from workloads import PAGE_SIZE, Contender, Ints, run_row  # noqa: E402


class Vllm(Contender):
    """`KVCacheManager` with prefix caching, called as the scheduler does; hashing is timed too."""

    name = "vLLM"

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

    def prepare(self, tokens: Ints) -> Request:
        """A request whose blocks are not hashed yet."""
        return Request(str(next(self.ids)), tokens.tolist(), self.sampling, None)

    def admit(self, request: Request) -> Request:
        """Hash, look up, allocate and cache."""
        request._block_hasher = self.hasher
        request.update_block_hashes()
        blocks, found, _ = self.manager.get_computed_blocks(request)
        new = request.num_tokens - found
        if self.manager.allocate_slots(request, new, found, blocks) is None:
            raise MemoryError("the pool is too small")
        request.num_computed_tokens = request.num_tokens
        request.num_preemptions = found  # a number its manager does not use here
        return request

    def hit(self, handle: Request) -> int:
        """Kept by `admit`."""
        found: int = handle.num_preemptions
        return found

    def finish(self, handle: Request) -> None:
        """One call."""
        self.manager.free(handle)

    def start(self, handles: list[Any]) -> None:
        """Each has sampled a token."""
        self.rows = handles
        for request in handles:
            request.append_output_token_ids(1)

    def step(self, tokens: list[int]) -> None:
        """The manager's part alone: its worker's index arrays are not timed."""
        allocate = self.manager.allocate_slots
        for request, token in zip(self.rows, tokens, strict=True):
            if allocate(request, 1) is None:
                raise MemoryError("the pool is too small")
            request.num_computed_tokens += 1
            request.append_output_token_ids(token)


def main() -> None:
    """Answer until the input ends."""
    contender = Vllm()
    print(json.dumps({"version": vllm.__version__}), file=answers, flush=True)
    for line in sys.stdin:
        row, turn = line.split()
        try:
            reply: dict[str, object] = run_row(contender, row, int(turn))._asdict()
        except Exception as error:  # noqa: BLE001, told to whoever asked
            reply = {"error": repr(error)}
        print(json.dumps(reply), file=answers, flush=True)


if __name__ == "__main__":
    main()
