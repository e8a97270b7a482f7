"""From sequences and their new counts to a Step: the arrays of one forward pass.

Reads sequences and tables and changes neither.
"""

import numpy as np

from octavo.sequences import Ints, Sequence
from octavo.table import GroupView, PageTables, Step, slot_mapping


def build_step(
    group: str,
    sequences: tuple[Sequence, ...],
    news: list[int],
    tables: PageTables,
    page_size: int,
) -> Step:
    """The Step in which each of ``sequences`` runs its next ``news`` positions.

    The pages for them are in ``tables`` already; ``scheduled`` has not moved yet.

    Cost: O(rows + new tokens + table entries of the rows).
    """
    counts = np.array(news, np.int32)
    past = np.array([s.scheduled for s in sequences], np.int32)
    known = np.array([s.length for s in sequences], np.int32)
    starts = np.zeros(counts.size + 1, np.int32)
    np.cumsum(counts, out=starts[1:])
    spans = [(s, s.scheduled, s.scheduled + n) for s, n in zip(sequences, news, strict=True)]
    slots = [slot_mapping(tables.row(s._row), page_size, a, b) for s, a, b in spans]
    view = GroupView(
        np.concatenate(slots),
        tables.gather([s._row for s in sequences]),
        np.zeros(counts.size, np.int32),
    )
    return Step(
        sequences=sequences,
        counts=counts,
        input_ids=np.concatenate([_known_ids(s, a, b) for s, a, b in spans]),
        positions=np.concatenate([np.arange(a, b, dtype=np.int32) for _, a, b in spans]),
        query_start=starts,
        past=past,
        context=past + counts,
        last=np.where(counts > 0, starts[1:] - 1, -1).astype(np.int32),
        wants_token=(counts > 0) & (past + counts >= known),
        groups={group: view},
    )


def _known_ids(sequence: Sequence, start: int, stop: int) -> Ints:
    """Known ids of positions ``start..stop-1``, 0 beyond them."""
    ids = np.zeros(stop - start, np.int32)
    known = sequence._buffer[start : min(stop, sequence.length)]
    ids[: known.size] = known
    return ids
