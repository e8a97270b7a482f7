"""octavo's side of the comparison, and what it alone can do (`octavo_steps`)."""

import sys
from typing import Any

import numpy as np
from octavo_steps import FIGURES
from workloads import DRAFTS, KEPT, PAGE_SIZE, ROWS, Contender, Ints

import octavo
from octavo.slots import slot_mapping


def mode() -> str:
    """Whether a module of octavo that is loaded is an extension."""
    loaded = [str(getattr(m, "__file__", "")) for n, m in sys.modules.items() if "octavo." in n]
    return "compiled" if any(file.endswith((".so", ".pyd")) for file in loaded) else "interpreted"


class Octavo(Contender):
    """A `Cache` over one full-attention group; slots and table are arrays in each step."""

    name = "octavo"
    version = f"{octavo.__version__} {mode()}"
    takes_arrays = True
    figures = FIGURES
    ones, kept = np.ones(ROWS, np.int32), np.full(ROWS, KEPT + 1, np.int32)

    def __init__(self, page_size: int = PAGE_SIZE, max_sequences: int = ROWS) -> None:
        self.page_size, self.max_sequences = page_size, max_sequences

    def build(self, pages: int) -> octavo.Cache:
        """One page more: the null page cannot be used."""
        plan = octavo.Plan.from_pages(pages + 1, self.page_size)
        return octavo.Cache(plan, max_sequences=self.max_sequences)

    def prepare(self, tokens: Any) -> Any:
        """An array or a list, as it came."""
        return tokens

    def admit(self, request: Any) -> octavo.Sequence:
        """A prefill step of the prompt alone."""
        cache = self.manager
        sequence: octavo.Sequence = cache.admit(request)
        step = cache.extend(sequence, sequence.length - sequence.computed)
        self._read(step)
        cache.commit(step, request[:1])
        return sequence

    def _read(self, step: octavo.Step) -> None:
        view = step.group()
        self.read = view.slots, view.table, step.context, step.positions

    def hit(self, handle: octavo.Sequence) -> int:
        """The sequence remembers."""
        return handle.cached

    def finish(self, handle: octavo.Sequence) -> None:
        """One verb."""
        self.manager.release(handle)

    def start(self, handles: list[Any]) -> None:
        """A batch."""
        super().start(handles)
        self.batch = self.manager.batch(handles)

    def choose(self, tokens: Ints) -> Ints:
        """An int32 array it stays."""
        return tokens

    def step(self, tokens: Ints) -> None:
        """Both verbs, and the arrays between them."""
        step = self.manager.extend(self.batch)
        self._read(step)
        self.manager.commit(step, tokens)

    def turn(self, ended: list[int], requests: list[Any], tokens: Ints) -> None:
        """Prompts of those who join are prefilled in the step in which the others decode."""
        cache, batch, rows = self.manager, self.batch, self.rows
        for row in ended:
            batch.remove(rows[row])
            cache.release(rows[row])
            rows[row] = rows[-1]
            rows.pop()
        counts: Any = 1
        if requests:
            counts = self.ones.copy()
            for request in requests:
                sequence = cache.admit(request)
                counts[batch.add(sequence)] = sequence.length - sequence.cached
                rows.append(sequence)
            tokens = np.concatenate([tokens, self.ones[: len(requests)]])
        step = cache.extend(batch, counts)
        self._read(step)
        cache.commit(step, tokens)

    def draft(self, flat: Ints) -> None:
        """What was right is cut by `kept`."""
        step = self.manager.extend(self.batch, 1 + DRAFTS, ahead=DRAFTS)
        self._read(step)
        self.manager.commit(step, (flat, self.kept), kept=self.kept)

    def slots(self, pages: Ints, page_size: int, start: int, stop: int) -> Ints:
        """An array of an array."""
        return slot_mapping(pages, page_size, start, stop)
