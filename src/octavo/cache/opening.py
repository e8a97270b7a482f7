"""The steps of one cache that are open: in which order they end, and what they will teach.

Knows steps and their sequences; not pages, and not how a step is made or ended.
"""

from collections.abc import Iterator

import numpy as np

from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.errors import StepError


class OpenSteps:
    """Up to ``depth`` steps, oldest first."""

    def __init__(self, depth: int) -> None:
        self.depth = depth
        self._steps: list[Step] = []

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[Step]:
        return iter(self._steps)

    @property
    def later(self) -> list[Step]:
        """All but the oldest."""
        return self._steps[1:]

    def check_room(self) -> None:
        """Raise StepError where no further step may be opened."""
        if len(self) >= self.depth:
            count = len(self)
            raise StepError(f"{count} steps are open, this cache's depth: commit the oldest first")

    def check_oldest(self, step: Step) -> None:
        """Raise StepError unless ``step`` is the one to commit."""
        if not (self._steps and self._steps[0] is step):
            self._check_open(step)
            raise StepError("this is not the oldest open step: steps commit oldest first")

    def check_newest(self, step: Step) -> None:
        """Raise StepError unless ``step`` is the one to abort."""
        if not (self._steps and self._steps[-1] is step):
            self._check_open(step)
            raise StepError("this is not the newest open step: steps abort newest first")

    def check_closed(self, sequence: Sequence) -> None:
        """Raise StepError while ``sequence`` is a row of an open step."""
        if any(sequence in step.sequences for step in self):
            raise StepError(f"a step of sequence {sequence.id!r} is open; commit or abort it first")

    def add(self, step: Step) -> None:
        """A new step is open. O(1); O(rows) where a row comes near its limit."""
        if self._steps and self._is_tight(step):
            self._want_less(step)
        self._steps.append(step)

    def end_oldest(self) -> None:
        """The oldest step is committed."""
        self._steps.pop(0)

    def end_newest(self) -> None:
        """The newest step is aborted."""
        self._steps.pop()

    def waiting(self) -> dict[Sequence, int]:
        """Tokens each sequence will learn from the steps that are open. O(rows)."""
        waiting: dict[Sequence, int] = {}
        for step in self:
            for sequence, wants in zip(step.sequences, step.wants_token.tolist(), strict=True):
                waiting[sequence] = waiting.get(sequence, 0) + wants
        return waiting

    def _check_open(self, step: Step) -> None:
        if not any(step is other for other in self):
            raise StepError("this step is not open: it was committed or aborted, or is not of here")

    def _want_less(self, step: Step) -> None:
        """Rows whose limit is reached with what open steps will teach them want no token more."""
        waiting = self.waiting()
        rooms = [s.limit - s.length - waiting.get(s, 0) for s in step.sequences]
        step.wants_token = step.wants_token & (np.array(rooms) > 0)

    def _is_tight(self, step: Step) -> bool:
        """Whether open steps may teach a row as many tokens as its limit allows."""
        if step._batch is not None:
            rows, n = step._batch._rows, len(step.sequences)
            return bool(np.minimum.reduce(rows.limit[:n] - rows.known[:n]) <= len(self))
        return any(s.limit - s.length <= len(self) for s in step.sequences)
