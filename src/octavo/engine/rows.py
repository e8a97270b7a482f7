"""A step's rows one after another, for models whose code takes no ragged batch.

Such a model is run as transformers' own generate() does, a sequence at a time: it attends by its
own code, under its own masks, to keys and values that are gathered from the row's pages. Knows
passes and layers; no requests.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import DynamicCache

from octavo.cache.step import GroupView, Step
from octavo.checks import Ints
from octavo.engine.mixers import StateCache
from octavo.errors import StepError, uncopied
from octavo.integrations.transformers.layers import token_layer
from octavo.integrations.transformers.paged import PagedPass, paged_layers
from octavo.integrations.transformers.passes import ModelPass
from octavo.storage.layers import LayerStore


class Pass(NamedTuple):
    """A forward pass over some rows of a step.

    Attributes:
        rows: of the step, ascending; those of a pass by the model's own attention are one.
        ahead: int32[k], ids of the tokens behind the one row's that its tokens see, and that are
            computed for that alone; None: tokens see what is before them.
    """

    rows: list[int]
    ahead: Ints | None = None


def passes_of(step: Step, ahead: Mapping[int, Ints], *, by_rows: bool) -> list[Pass]:
    """The passes that compute a step. O(rows).

    Args:
        step: open.
        ahead: of each row whose tokens see later ones, the ids of those behind it.
        by_rows: whether each row has a pass; else all have one, but for those with ``ahead``.
    """
    rows = np.flatnonzero(step.counts).tolist()
    if by_rows:
        return [Pass([row], ahead.get(row)) for row in rows]
    together = [row for row in rows if row not in ahead]
    return [*([Pass(together)] if together else []), *(Pass([r], ids) for r, ids in ahead.items())]


def part_of(step: Step, rows: Sequence[int]) -> Step:
    """Some rows of a step as a step of its own; open while it is. O(their tokens).

    What moves pages is left out: that is the whole step's.
    """
    places, counts = places_of(step, rows), step.counts[rows]
    ends = counts.cumsum(dtype=np.int32)
    return step.replace(
        sequences=tuple(step.sequences[row] for row in rows),
        input_ids=step.input_ids[places],
        positions=step.positions[places],
        query_start=np.concatenate([np.zeros(1, np.int32), ends]),
        last=ends - np.int32(1),
        **{name: getattr(step, name)[rows] for name in _BY_ROW},
        groups={name: _view(step.group(name), rows, places) for name in step.group_names},
        copies={},
        snapshots={},
        fresh={},
        delta={},
        unknown=None,
    )


def places_of(step: Step, rows: Sequence[int]) -> NDArray[np.int64]:
    """Which of a step's tokens those of some rows are, int64. O(of what it returns)."""
    start = step.query_start.tolist()
    return np.concatenate([np.arange(start[row], start[row + 1]) for row in rows])


_BY_ROW = ("counts", "past", "context", "wants_token", "known")


def _view(view: Any, rows: Sequence[int], places: NDArray[np.int64]) -> Any:
    """A group's addresses of some rows."""
    if isinstance(view, GroupView):
        return GroupView(view.slots[places], view.table[rows], view.base[rows])
    return type(view)(*(array[rows] for array in view))


@dataclass
class OpenRow:
    """Where the row stands that a model runs, as the layers of its cache ask.

    Attributes:
        max_length: longest sequence.
        now: the pass; None: none has begun.
    """

    max_length: int
    now: ModelPass | None = None

    @property
    def length(self) -> int:
        """Tokens before the pass."""
        return 0 if self.now is None else self.now.past

    def open_pass(self) -> ModelPass:
        """The pass.

        Raises:
            StepError: none has begun.
        """
        if self.now is None:
            raise StepError("no step has begun; run the model through a Runner")
        return self.now


class RowCache(StateCache):
    """What a model takes for its cache where it runs one row: as transformers', but on pages.

    Args:
        model: which takes it.
        storage: of a plan for it.
    """

    __reduce__ = uncopied("it is a part of one runner")

    def __init__(self, model: Any, storage: LayerStore) -> None:
        self._storage, plan, self._ahead = storage, storage.plan, 0
        self._row, self._paged = OpenRow(plan.max_length or plan.tokens), paged_layers(plan)
        assert plan.spec is not None
        slides = DynamicCache(config=model.config.get_text_config(decoder=True)).is_sliding
        slides += [True] * (len(plan.spec.layers) - len(slides))  # of layers that run again
        layers = [
            token_layer(storage, self._row, self._paged.get(at), whole=not sliding)
            for at, sliding in enumerate(slides)
        ]
        super().__init__(layers=layers)

    def begin(self, step: Step, ahead: int = 0) -> None:
        """Stand where the step's one row stands. O(tokens of the row).

        Args:
            step: of one row.
            ahead: tokens behind its own that are computed with them, and kept nowhere.
        """
        (context,), (past,), self._ahead = step.context.tolist(), step.past.tolist(), ahead
        first, places = np.zeros(1, np.int64), np.arange(context - past) if ahead else None
        paged = PagedPass(self._storage, step, (1, context - past + ahead), places)
        real = np.arange(context + ahead)[None] < context
        self._row.now = ModelPass(step, first, first, real, past, places, paged)

    def count_by(self, axes: torch.Tensor) -> None:
        """Say what rotations count the row's tokens before the pass by, int64[axes, past]. O(1).

        The last three of several axes are those of time, height and width.
        """
        self._row.open_pass().axes = axes[-3:, None] if len(axes) > 1 else None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """See `TokenLayer.update`; the keys and values of tokens ahead are those of this pass."""
        keys, values = super().update(key_states, value_states, *args, **kwargs)
        if self._ahead:
            keys[:, :, -self._ahead :] = key_states[:, :, -self._ahead :]
            values[:, :, -self._ahead :] = value_states[:, :, -self._ahead :]
        return keys, values

    def check(self) -> None:
        """Check that every layer has kept what its tokens need.

        Raises:
            UnsupportedModel: one has not; the model's output cannot be trusted.
        """
        self._row.open_pass().paged.check_written(self._paged.values())
