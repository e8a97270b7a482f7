"""InfiniLM's side: its Python engine's block manager, from the checkout that INFINILM names."""

from itertools import count
from typing import Any

from checkout import digest, open_checkout
from workloads import DRAFTS, KEPT, PAGE_SIZE, Contender, as_list

open_checkout("INFINILM", "python/infinilm:infinilm", "python/infinilm/llm:infinilm.llm")

from infinilm.llm import cache_manager  # noqa: E402
from infinilm.llm.request import InferenceRequest  # noqa: E402


class InfiniLM(Contender):
    """`BlockManager` and `InferenceRequest`, called as its scheduler does; slots are lists.

    Its scheduler's walk over all blocks before each admission is not timed.
    """

    name = "InfiniLM"
    version = digest(cache_manager)

    def __init__(self) -> None:
        self.ids = count()

    def build(self, pages: int) -> cache_manager.BlockManager:
        """It has no null block."""
        return cache_manager.BlockManager(pages, PAGE_SIZE)

    def prepare(self, tokens: Any) -> InferenceRequest:
        """A request whose blocks are not hashed yet."""
        return InferenceRequest(str(next(self.ids)), prompt_token_ids=as_list(tokens))

    def admit(self, request: InferenceRequest) -> InferenceRequest:
        """Hash, look up, allocate; then publish and learn a token."""
        manager, length = self.manager, request.get_prompt_length()
        request.initialize_block_hashes(PAGE_SIZE, True)
        blocks, found = manager.get_computed_blocks(request.block_hashes, length - 1)
        made = manager.allocate_slots(length - found, found, blocks)
        if made is None:
            raise MemoryError("the pool is too small")
        request.block_table, request.slot_mapping = made
        request.num_local_cached_tokens = request.num_computed_tokens = found
        request.num_cache_indexed_blocks = len(blocks)
        self._computed(request, length)
        request.append_generated_token_id(1)
        return request

    def _computed(self, request: InferenceRequest, length: int) -> None:
        """As its scheduler's commit_computed_tokens."""
        if length // PAGE_SIZE > request.num_cache_indexed_blocks:
            request.num_cache_indexed_blocks = self.manager.publish_computed_blocks(
                request.block_table,
                request.block_hashes,
                request.num_cache_indexed_blocks,
                length,
            )

    def hit(self, handle: InferenceRequest) -> int:
        """The request remembers."""
        found: int = handle.num_computed_tokens
        return found

    def finish(self, handle: InferenceRequest) -> None:
        """One call; blocks are looked for when they are needed."""
        self.manager.free_blocks(handle.block_table)

    def _append(self, request: InferenceRequest) -> int:
        """A slot for the newest token; the length with it."""
        length: int = request.get_total_length()
        request.block_table, slot = self.manager.append_slot(request.block_table, length)
        request.slot_mapping = [slot]
        request.num_blocks = len(request.block_table)
        return length

    def step(self, tokens: list[int]) -> None:
        """A slot each, then what was sampled."""
        lengths = [self._append(request) for request in self.rows]
        for request, length, token in zip(self.rows, lengths, tokens, strict=True):
            self._computed(request, length)
            request.append_generated_token_id(token)

    def draft(self, flat: list[int]) -> None:
        """Slots of the drafts beside the newest token's, given back where they were wrong."""
        manager = self.manager
        lengths = [self._append(request) for request in self.rows]
        for request, length in zip(self.rows, lengths, strict=True):
            request.block_table, request.slot_mapping = manager.append_slots(
                list(request.block_table), length + 1, DRAFTS
            )
        for row, (request, length) in enumerate(zip(self.rows, lengths, strict=True)):
            request.block_table = manager.truncate_blocks(request.block_table, length + KEPT)
            self._computed(request, length)
            for token in flat[row * (KEPT + 1) : (row + 1) * (KEPT + 1)]:
                request.append_generated_token_id(token)
            self._computed(request, length + KEPT)

    def slots(self, pages: list[int], page_size: int, start: int, stop: int) -> list[int]:
        """One token at a time; its one block costs nothing beside it."""
        found: list[int] = cache_manager.BlockManager(1, page_size).update_blocks_slot(
            pages, start, stop
        )
        return found
