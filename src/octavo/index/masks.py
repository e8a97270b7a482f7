"""A dense mask over gathered pages, for attention that knows nothing of pages."""

from typing import Unpack

import numpy as np
from numpy.typing import NDArray

from octavo.cache.step import Step
from octavo.index.addresses import Addresses
from octavo.index.buffers import deliver
from octavo.index.formats import Dense
from octavo.index.options import Options
from octavo.index.parts import PAD, Parts
from octavo.planner.plan import Plan


def dense(
    step: Step,
    group: str | None = None,
    *,
    plan: Plan,
    out: Dense | None = None,
    **options: Unpack[Options],
) -> Dense:
    """A boolean mask for every query and key; arguments and errors as `octavo.index` says.

    Cost: O(rows x longest query x keys).
    """
    parts = Parts(step, plan, group, options, page_fill=PAD)
    fields = parts.common() | {
        "mask": parts.by_row(_mask(parts.found), fresh=True),
        "block_table": parts.table(),
        "seq_lens": parts.by_row(parts.found.keys),
        "query_start_loc": parts.query_start(),
    }
    numbers = {"max_query_len": parts.max_query, "max_seq_len": parts.max_keys}
    return deliver(Dense, fields, out, numbers, step)


def _mask(found: Addresses) -> NDArray[np.bool_]:
    """Whether query j of row i sees key k: not after it, and in its window or a sink."""
    step = found.step
    order = np.arange(found.table.shape[1] * found.page)
    keys = (order + np.where(order >= found.sinks, found.base[:, None], 0))[:, None, :]
    ahead = np.arange(int(step.counts.max(initial=0)))
    queries = (step.past[:, None] + ahead).astype(np.int64)
    floors = found.lifetime.floors(queries)[:, :, None]
    seen = (keys <= queries[:, :, None]) & ((keys >= floors) | (keys < found.lifetime.sinks))
    there: NDArray[np.bool_] = ahead < step.counts[:, None]
    return seen & there[:, :, None]
