"""A model's KV memory without a model: the content of a slot tells the tokens it was computed from.

What a real model writes for a position depends on every token up to it, and on nothing else. The
store writes exactly that, so whatever is read through a page table can be compared with what the
sequence's own tokens would have written: a stale, foreign or overwritten slot shows at once.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

from octavo.table import Step


def contents(tokens: Iterable[int]) -> list[int]:
    """What positions 0, 1, ... hold: each a hash of the tokens up to and with it. O(tokens)."""
    return list(accumulate(tokens, lambda before, token: hash((before, token)), initial=0))[1:]


class ModelStore:
    """Contents by group and slot.

    Args:
        page_size: tokens a page holds.
    """

    def __init__(self, page_size: int) -> None:
        self._page_size = page_size
        self._slots: dict[tuple[str, int], int] = {}

    def run(self, step: Step, contexts: Sequence[Sequence[int]]) -> None:
        """Run the model: read every row's past through its table, then write the new positions.

        Args:
            step: any open step.
            contexts: token ids of each row's positions 0 .. context - 1, drafts included.

        Raises:
            AssertionError: a position of the past does not hold what these tokens wrote.

        Cost: O(context of all rows).
        """
        for name in step.groups:
            view = step.group(name)
            for row, tokens in enumerate(contexts):
                past = int(step.past[row])
                self.check(name, view.table[row].tolist(), tokens[:past])
            for row, tokens in enumerate(contexts):
                new = slice(int(step.past[row]), int(step.context[row]))
                at = slice(int(step.query_start[row]), int(step.query_start[row + 1]))
                self.write(name, view.slots[at].tolist(), contents(tokens)[new])

    def write(self, group: str, slots: Sequence[int], values: Sequence[int]) -> None:
        """Put ``values`` into ``slots``; the null page is never written. O(len(slots)).

        Raises:
            AssertionError: a slot of the null page, or one slot a value is missing.
        """
        for slot, value in zip(slots, values, strict=True):
            assert slot >= self._page_size, f"slot {slot} of group {group} is in the null page"
            self._slots[group, slot] = value

    def check(self, group: str, pages: Sequence[int], tokens: Sequence[int]) -> None:
        """Compare the first positions of a page table with what ``tokens`` wrote. O(len(tokens)).

        Raises:
            AssertionError: a slot holds something else; names position, page and slot.
        """
        for position, value in enumerate(contents(tokens)):
            page = pages[position // self._page_size]
            slot = page * self._page_size + position % self._page_size
            found = self._slots.get((group, slot))
            where = f"position {position} of {list(tokens)} in page {page}, slot {slot} of {group}"
            assert value == found, f"{where} holds something else"
