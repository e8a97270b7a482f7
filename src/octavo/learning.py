"""What a commit is told: which token ids became known and which positions of the step are kept.

Reads the forms a caller may give them in, and checks them before anything is changed.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.batch import Counts
from octavo.errors import LengthError, TokenError
from octavo.sequences import MAX_TOKEN, Ints, check_tokens
from octavo.spec import check_int
from octavo.table import Step

Learned = NDArray[np.integer[Any]] | Items[Any] | tuple[Items[int], Items[int]] | None
NO_IDS = np.empty(0, np.int32)


def ids_each(tokens: Learned, step: Step) -> Ints | None:
    """``tokens`` as int32[rows] where they are one id a row, 0 where none is wanted; else None.

    Raises:
        TokenError: an entry that is wanted is no token id.

    Cost: O(rows).
    """
    rows = len(step.sequences)
    if isinstance(tokens, np.ndarray) and tokens.shape == (rows,) and tokens.dtype.kind in "iu":
        if np.logical_and.reduce(step.wants_token):
            return check_tokens(tokens)
        return check_tokens(np.where(step.wants_token, tokens, 0))
    if isinstance(tokens, list) and len(tokens) == rows and type(tokens[0]) is int:
        wants = step.wants_token.tolist()
        ids = [item if want else 0 for item, want in zip(tokens, wants, strict=True)]
        return check_tokens(ids)
    return None


def one_id(tokens: Learned, step: Step) -> Ints | None:
    """What `read_learned` says of a step of one row, where it is told one id or none; else None.

    Raises:
        TokenError: it is no token id.

    Cost: O(1).
    """
    if tokens is None:
        return NO_IDS
    if isinstance(tokens, np.ndarray) and tokens.shape == (1,) and tokens.dtype.kind in "iu":
        token = int(tokens[0])
    elif type(tokens) is list and len(tokens) == 1 and type(tokens[0]) is int:
        token = tokens[0]
    else:
        return None
    if not step.wants_token[0]:
        return NO_IDS
    if not 0 <= token <= MAX_TOKEN:
        raise TokenError(0, token)
    return np.array((token,), np.int32)


def read_learned(tokens: Learned, step: Step) -> list[Ints]:
    """Token ids newly known, an int32 array a row of ``step``. O(rows + tokens).

    Args:
        tokens: one id a row (ignored where ``step.wants_token`` is False); or an array a row; or
            (flat ids, counts a row); or None: nothing is learned.

    Raises:
        TokenError: an entry is no token id.
        LengthError: not one entry a row, or the counts do not sum to the ids.
    """
    rows = len(step.sequences)
    if tokens is None:
        return [NO_IDS] * rows
    if isinstance(tokens, tuple) and len(tokens) == 2 and not _is_id(tokens[0]):
        return _split(check_tokens(tokens[0]), tokens[1], rows)
    if not isinstance(tokens, Iterable):
        raise LengthError("tokens", tokens, 0, None, "one entry a row of the step")
    ids = ids_each(tokens, step)
    if ids is not None:
        return one_each(ids, step)
    items = list(tokens)
    if len(items) != rows:
        raise LengthError("len(tokens)", len(items), rows, rows, "one entry a row of the step")
    if all(isinstance(item, Iterable) for item in items) and items:
        return [check_tokens(item) for item in items]
    wants = step.wants_token.tolist()
    wanted = [item if want else 0 for item, want in zip(items, wants, strict=True)]
    array = np.asarray(wanted) if isinstance(tokens, np.ndarray) else wanted
    return one_each(check_tokens(array), step)


def one_each(ids: Ints, step: Step) -> list[Ints]:
    """The id of each row that wants one, nothing for the others."""
    wants = step.wants_token.tolist()
    return [ids[i : i + 1] if want else NO_IDS for i, want in enumerate(wants)]


def read_kept(kept: Counts | None, step: Step) -> list[int]:
    """Positions of the step whose KV is kept, a row each; default all of them. O(rows).

    Raises:
        LengthError: not one entry a row, or an entry outside 0..count.
    """
    counts: list[int] = step.counts.tolist()
    if kept is None:
        return counts
    if not isinstance(kept, Iterable):
        raise LengthError("kept", kept, 0, None, "one entry a row of the step")
    items = kept.tolist() if isinstance(kept, np.ndarray) else list(kept)
    if not isinstance(items, list) or len(items) != len(counts):
        raise LengthError("len(kept)", np.size(items), len(counts), len(counts), "one entry a row")
    return [check_int("kept", item, 0, count) for item, count in zip(items, counts, strict=True)]


def _is_id(item: object) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, np.ndarray)


def _split(flat: Ints, counts: Items[int], rows: int) -> list[Ints]:
    sizes = [check_int("count", c, 0) for c in np.asarray(counts).tolist()]
    if len(sizes) != rows or sum(sizes) != flat.size:
        low = flat.size
        raise LengthError("sum(counts)", sum(sizes), low, low, f"{flat.size} ids for {rows} rows")
    ends = np.cumsum([0, *sizes]).tolist()
    return [flat[a:b] for a, b in pairwise(ends)]
