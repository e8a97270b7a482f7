"""A step's rows one after another, for models whose code takes no ragged batch.

Such a model is run as transformers' own generate() does, a sequence at a time: it attends by its
own code, under its own masks, to keys and values that are gathered from the row's pages. Knows
passes and layers; no requests.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from transformers import DynamicCache

from octavo.cache.step import GroupView, Step
from octavo.engine.mixers import StateCache
from octavo.errors import StepError, uncopied
from octavo.integrations.transformers.attention import PagedPass, paged_layers
from octavo.integrations.transformers.layers import token_layer
from octavo.integrations.transformers.passes import ModelPass
from octavo.storage import Storage


def rows_of(step: Step) -> Iterator[Step]:
    """The rows of a step that have new tokens, each as a step of its own; open while it is. O(T).

    What moves pages is left out: that is the whole step's.
    """
    for row in np.flatnonzero(step.counts).tolist():
        one, tokens = slice(row, row + 1), slice(*step.query_start[row : row + 2].tolist())
        count = tokens.stop - tokens.start
        yield step.replace(
            sequences=step.sequences[one],
            input_ids=step.input_ids[tokens],
            positions=step.positions[tokens],
            query_start=np.array([0, count], np.int32),
            last=np.array([count - 1], np.int32),
            **{name: getattr(step, name)[one] for name in _BY_ROW},
            groups={name: _view(step.group(name), one, tokens) for name in step.group_names},
            copies={},
            snapshots={},
            fresh={},
            delta={},
            unknown=None,
        )


_BY_ROW = ("counts", "past", "context", "wants_token", "known")


def _view(view: Any, one: slice, tokens: slice) -> Any:
    """A group's addresses of one row."""
    if isinstance(view, GroupView):
        return GroupView(view.slots[tokens], view.table[one], view.base[one])
    return type(view)(*(array[one] for array in view))


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

    def __init__(self, model: Any, storage: Storage) -> None:
        self._storage, plan = storage, storage.plan
        self._row, self._paged = OpenRow(plan.max_length or plan.tokens), paged_layers(plan)
        assert plan.spec is not None
        slides = DynamicCache(config=model.config.get_text_config(decoder=True)).is_sliding
        slides += [True] * (len(plan.spec.layers) - len(slides))  # of layers that run again
        layers = [
            token_layer(storage, self._row, self._paged.get(at), whole=not sliding)
            for at, sliding in enumerate(slides)
        ]
        super().__init__(layers=layers)

    def begin(self, step: Step) -> None:
        """Stand where the step's one row stands. O(tokens of the row)."""
        (context,), (past,) = step.context.tolist(), step.past.tolist()
        first = np.zeros(1, np.int64)
        paged = PagedPass(self._storage, step, (1, context - past))
        real = np.ones((1, context), np.bool_)
        self._row.now = ModelPass(step, first, first, real, past, None, paged)

    def check(self) -> None:
        """Check that every layer has kept what its tokens need.

        Raises:
            UnsupportedModel: one has not; the model's output cannot be trusted.
        """
        self._row.open_pass().paged.check_written(self._paged.values())
