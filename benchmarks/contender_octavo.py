"""octavo's side of the comparison."""

from typing import Any

from workloads import PAGE_SIZE, Contender, Ints

import octavo
from octavo import Sequence


class Octavo(Contender):
    """A `Cache` over one full-attention group."""

    name = "octavo"

    def __init__(self, page_size: int = PAGE_SIZE, max_sequences: int = 256) -> None:
        self.page_size, self.max_sequences = page_size, max_sequences

    def build(self, pages: int) -> octavo.Cache:
        """One page more: the null page cannot be used."""
        plan = octavo.Plan.from_pages(pages + 1, self.page_size)
        return octavo.Cache(plan, max_sequences=self.max_sequences)

    def prepare(self, tokens: Ints) -> Ints:
        """An int32 array it is."""
        return tokens

    def admit(self, request: Ints) -> Sequence:
        """Also makes the arrays of the prefill step."""
        cache = self.manager
        sequence: Sequence = cache.admit(request)
        step = cache.extend(sequence, request.size - sequence.computed)
        cache.commit(step, request[:1])
        return sequence

    def hit(self, handle: Sequence) -> int:
        """The sequence remembers."""
        return handle.cached

    def finish(self, handle: Sequence) -> None:
        """One verb."""
        self.manager.release(handle)

    def start(self, handles: list[Any]) -> None:
        """A batch."""
        self.batch = self.manager.batch(handles)

    def choose(self, tokens: Ints) -> Ints:
        """An int32 array it stays."""
        return tokens

    def step(self, tokens: Ints) -> None:
        """Block table, slots, lengths and positions are arrays of the step."""
        step = self.manager.extend(self.batch)
        self.read = (*step.group(), step.context, step.positions)
        self.manager.commit(step, tokens)
