"""A model's KV memory without a model: the content of a slot tells the tokens it was computed from.

What a real model writes for a position depends on every token up to it, on the adapter and on the
media behind placeholder tokens, and on nothing else. The store writes exactly that, so whatever is
read through a step's addresses can be compared with what the sequence's own tokens would have
written: a stale, foreign or overwritten slot shows at once.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from itertools import count
from typing import Any

from octavo.cache.identity import CrossInput, Media
from octavo.cache.step import Step
from octavo.errors import uncopied
from octavo.testing.shapes import Shape

_numbers = count()
Writable = Callable[[str, int], bool]
"""Whether a page of a group may be written: one holder, not published."""


class Text:
    """Token ids of a sequence, and what a model would keep of each position.

    Args:
        root: what the whole sequence depends on.
        media: what some of its tokens stand for.
    """

    def __init__(
        self, tokens: Iterable[int], root: Hashable = (), media: Sequence[Media] = ()
    ) -> None:
        self.tokens: list[int] = []
        self.contents: list[int] = []
        self._root = hash(root)
        self._media = [(m.start, m.stop, m.digest or next(_numbers)) for m in media]
        self.add(tokens)

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, tokens: Iterable[int]) -> None:
        """Append ids."""
        for token in tokens:
            before = self.contents[-1] if self.contents else self._root
            self.contents.append(hash((before, token, self._behind(len(self.tokens)))))
            self.tokens.append(token)

    def cut(self, length: int) -> None:
        """Forget ids from ``length`` on."""
        del self.tokens[length:], self.contents[length:]

    def copy(self) -> "Text":
        """The same, to go on differently."""
        other = Text(())
        other.tokens, other.contents = list(self.tokens), list(self.contents)
        other._root, other._media = self._root, self._media
        return other

    def _behind(self, position: int) -> object:
        return next((d for start, stop, d in self._media if start <= position < stop), -1)


class ModelStore:
    """Contents by group, page and offset.

    Args:
        shape: the groups and the page size.
        writable: called before every write into a page of tokens or a state.
    """

    __reduce__ = uncopied("it is the memory of one cache's pages; make another of its shape")

    def __init__(self, shape: Shape, writable: Writable = lambda group, page: True) -> None:
        self._shape, self._size, self._writable = shape, shape.page_size, writable
        self._lifetimes = shape.lifetimes
        self._held: dict[str, dict[int, Any]] = {name: {} for name in shape.groups}

    def run(
        self,
        step: Step,
        contents: Sequence[Sequence[int]],
        cross: Sequence[CrossInput | None] = (),
    ) -> None:
        """Run the step as storage and model would: copies, writes, reads, snapshots.

        Args:
            contents: of each row's positions 0 .. context - 1, drafts included.
            cross: each row's cross input.

        Raises:
            AssertionError: something is read that these tokens did not write, or written where
                others read.

        Cost: O(context of all rows).
        """
        for name, (source, target) in step.copies.items():
            self.copy(name, source.tolist(), target.tolist())
        for name, pages in step.fresh.items():  # the later of the two times it may be done
            self._clear(name, pages.tolist())
        for name, life in self._lifetimes.items():
            if life.form in ("tokens", "rows"):
                self._read(name, step, contents)
                self._write(name, step, contents)
            elif life.form == "state":
                self._run_states(name, step, contents)
            else:
                self._run_cross(name, step, cross)
        for name, (source, target) in step.snapshots.items():
            self.copy(name, source.tolist(), target.tolist())

    def copy(self, group: str, sources: Sequence[int], targets: Sequence[int]) -> None:
        """Pages at once, as a device copies them: all are read before any is written."""
        held, size = self._held[group], self._size
        found = [[held.get(page * size + at) for at in range(size)] for page in sources]
        for page, items in zip(targets, found, strict=True):
            assert page > 0, f"a copy goes to the null page of {group}"
            held.update(zip(range(page * size, (page + 1) * size), items, strict=True))

    def page(self, group: str, page: int) -> list[Any]:
        """What ``page`` holds, by offset."""
        start = page * self._size
        return [self._held[group].get(start + at) for at in range(self._size)]

    def put(self, group: str, page: int, items: Sequence[Any]) -> None:
        """Let a page hold what `page` gave of one.

        Raises:
            AssertionError: others read it.
        """
        assert self._writable(group, page), f"page {page} of {group} is filled and shared"
        start = page * self._size
        self._held[group].update(zip(range(start, start + self._size), items, strict=True))

    def _clear(self, group: str, pages: Sequence[int]) -> None:
        for page in pages:
            for slot in range(page * self._size, (page + 1) * self._size):
                self._held[group].pop(slot, None)

    def _write(self, group: str, step: Step, contents: Sequence[Sequence[int]]) -> None:
        view, size = step.group(group), self._size
        held, slots, table = self._held[group], view.slots.tolist(), view.table.tolist()
        positions, starts = step.positions.tolist(), step.query_start.tolist()
        assert len(set(slots)) == len(slots) == len(positions), "two positions share a slot"
        for page in {slot // size for slot in slots}:
            assert page > 0, f"a slot of group {group} is in the null page"
            assert self._writable(group, page), f"page {page} of {group} is written and shared"
        for row, items in enumerate(contents):
            for at in range(starts[row], starts[row + 1]):
                column, offset = divmod(positions[at], size)
                assert slots[at] == table[row][column] * size + offset, "a slot is off its table"
                held[slots[at]] = items[positions[at]]

    def _read(self, group: str, step: Step, contents: Sequence[Sequence[int]]) -> None:
        """Every earlier position a query of the step can see, before anything is written."""
        life, size, held = self._lifetimes[group], self._size, self._held[group]
        table = step.group(group).table.tolist()
        spans = zip(step.past.tolist(), step.context.tolist(), strict=True)
        for row, (past, context) in enumerate(spans):
            if past == context:
                continue
            floor = life.floor(past)
            seen = (*range(min(life.sinks, floor)), *range(floor, past))
            for position in seen:
                page = table[row][position // size]
                found = held.get(page * size + position % size)
                where = f"position {position} of row {row} in page {page} of {group}"
                assert found == contents[row][position], f"{where} holds something else"

    def _run_states(self, group: str, step: Step, contents: Sequence[Sequence[int]]) -> None:
        """Start from a state, leave those of the last positions."""
        view, size, held = step.group(group), self._size, self._held[group]
        for row, (past, context) in enumerate(
            zip(step.past.tolist(), step.context.tolist(), strict=True)
        ):
            assert bool(view.has_state[row]) == (past > 0) or past == context
            for part, page in enumerate(view.source[row].tolist() if context > past > 0 else ()):
                found, right = held.get(page * size), (past, part, contents[row][past - 1])
                assert found == right, f"row {row} starts from {found} in {group}, not {right}"
        for row, (past, context) in enumerate(
            zip(step.past.tolist(), step.context.tolist(), strict=True)
        ):
            for back in range(min(context - past, view.table.shape[1])):
                length = context - back
                for part, page in enumerate(view.table[row, back].tolist()):
                    assert page > 0
                    assert self._writable(group, page), f"state page {page} is shared"
                    held[page * size] = (length, part, contents[row][length - 1])

    def _run_cross(self, group: str, step: Step, cross: Sequence[CrossInput | None]) -> None:
        """Written once, read by every row that has the input."""
        view, size, held = step.group(group), self._size, self._held[group]
        for row, item in enumerate(cross):
            if not step.counts[row]:
                continue
            assert int(view.lengths[row]) == (item.length if item else 0)
            pages = view.table[row].tolist()
            slots = [
                pages[at // size] * size + at % size for at in range(item.length if item else 0)
            ]
            if view.fresh[row]:
                held.update((slot, (item, at)) for at, slot in enumerate(slots))
            for at, slot in enumerate(slots):
                assert held.get(slot) == (item, at), f"cross input {item} is not in row {row}"
