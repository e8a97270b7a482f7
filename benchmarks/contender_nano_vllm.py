"""nano-vllm's side: its block manager, from the checkout that NANO_VLLM names."""

from typing import Any

from checkout import digest, open_checkout
from workloads import PAGE_SIZE, Contender, as_list

open_checkout("NANO_VLLM", "nanovllm:nanovllm")

from nanovllm.engine import block_manager  # noqa: E402
from nanovllm.engine.sequence import Sequence  # noqa: E402


class NanoVllm(Contender):
    """`BlockManager` and `Sequence`, called as its scheduler does; no arrays for a kernel."""

    name = "nano-vllm"
    version = digest(block_manager)

    def __init__(self) -> None:
        Sequence.block_size = PAGE_SIZE

    def build(self, pages: int) -> block_manager.BlockManager:
        """It has no null block."""
        return block_manager.BlockManager(pages, PAGE_SIZE)

    def prepare(self, tokens: Any) -> Sequence:
        """A sequence of its own, with a copy of the ids."""
        return Sequence(as_list(tokens))

    def admit(self, request: Sequence) -> Sequence:
        """As a prefill step of its scheduler: look up, allocate, hash, learn a token."""
        found = self.manager.can_allocate(request)
        if found < 0:
            raise MemoryError("the pool is too small")
        self.manager.allocate(request, found)
        request.num_found = found * PAGE_SIZE
        request.num_scheduled_tokens = request.num_tokens - request.num_found
        self._computed(request, 1)
        request.is_prefill = False
        return request

    def _computed(self, sequence: Sequence, token: int) -> None:
        """As its scheduler's postprocess."""
        self.manager.hash_blocks(sequence)
        sequence.num_cached_tokens += sequence.num_scheduled_tokens
        sequence.num_scheduled_tokens = 0
        sequence.append_token(token)

    def hit(self, handle: Sequence) -> int:
        """It counts in whole blocks, and never the last."""
        return handle.num_found

    def finish(self, handle: Sequence) -> None:
        """One call."""
        self.manager.deallocate(handle)

    def step(self, tokens: list[int]) -> None:
        """A block where one is needed, then what was sampled."""
        manager = self.manager
        for sequence in self.rows:
            if not manager.can_append(sequence):
                raise MemoryError("the pool is too small")
            sequence.num_scheduled_tokens = 1
            manager.may_append(sequence)
        for sequence, token in zip(self.rows, tokens, strict=True):
            self._computed(sequence, token)
