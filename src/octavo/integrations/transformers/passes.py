"""One forward pass over a batch: which row and column of transformers' is which token of a step.

Knows NumPy arrays; no tensors and no models.
"""

from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Step

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]


@dataclass(eq=False)
class ModelPass:
    """One forward pass of the model, as a step of the sequences in its rows.

    Attributes:
        step: its rows are the sequences; None: none has a new token.
        owner: int64[B], the step's row that each row of the batch reads; -1: padding so far.
        leader: int64[n], the first row of the batch that reads each row of the step.
        real: bool[B, L], columns that are tokens, those of this pass included.
        past: columns before this pass.
        places: int64[T], which of the B * (L - past) new columns each token of the step is; None:
            all of them, one after another.
        paged: the same as the layers write and read it; set by the cache.
        attends: whether the model attends by octavo's own attention.
        axes: int64[axes, B, past], what rotations count columns before this pass by; None: their
            positions.
        indices: where columns lie, by shape of a layer; for `ColumnReader`.
        done: whether the model has run.
        thread: that runs it.
    """

    step: Step | None
    owner: Index
    leader: Index
    real: Bools
    past: int
    places: Index | None
    paged: Any = None
    attends: bool = False
    axes: Any = None
    indices: dict[Any, Any] = field(default_factory=dict)
    done: bool = False
    thread: int = field(default_factory=get_ident)

    @property
    def new(self) -> int:
        """Columns of this pass."""
        return int(self.real.shape[1]) - self.past

    @property
    def source(self) -> Index | None:
        """int64[B], the row whose output each row takes, that of its leader; None: its own."""
        rows = np.arange(len(self.owner))
        found = rows.copy()
        found[self.owner >= 0] = self.leader[self.owner[self.owner >= 0]]
        return None if np.array_equal(found, rows) else found

    @property
    def positions(self) -> Index:
        """int64[B, L], which token of its row each column is; meaningless at padding. O(B L)."""
        return self.real.cumsum(axis=1, dtype=np.int64) - 1
