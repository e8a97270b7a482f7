"""What a commit is told: which token ids became known and which positions of the step are kept.

Reads the forms a caller may give them in, and checks them before anything is changed.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from itertools import chain, pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.cache.batch import Counts
from octavo.cache.step import Step
from octavo.checks import MAX_TOKEN, Ints, Tokens, check_int, check_tokens
from octavo.errors import LengthError, TokenError

Learned = NDArray[np.integer[Any]] | Items[Any] | tuple[Items[int], Items[int]] | None
Int64s = NDArray[np.int64]
NO_IDS = np.empty(0, np.int32)


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


class Told(NamedTuple):
    """Token ids newly known.

    Attributes:
        ids: int32[T], those of the first row, then those of the next, and so on.
        counts: int64[n], how many are whose.
        each: whether each row learns one.
    """

    ids: Ints
    counts: Int64s
    each: bool

    def each_row(self) -> list[Ints]:
        """The ids of each row, as views. O(rows)."""
        ends = self.counts.cumsum().tolist()
        return [self.ids[start:stop] for start, stop in pairwise([0, *ends])]


def read_learned(tokens: Learned, step: Step) -> Told:
    """Token ids newly known, row by row. O(rows + tokens).

    Args:
        tokens: one id a row (ignored where ``step.wants_token`` is False); or an array a row; or
            (flat ids, counts a row); or None: nothing is learned.

    Raises:
        TokenError: an entry is no token id.
        LengthError: not one entry a row, or the counts do not sum to the ids.
    """
    rows = len(step.sequences)
    if tokens is None:
        return Told(NO_IDS, np.zeros(rows, np.int64), each=False)
    if isinstance(tokens, tuple) and len(tokens) == 2 and not _is_id(tokens[0]):
        ids = check_tokens(tokens[0])
        return _told(ids, _sizes(tokens[1], rows, ids.size))
    if not isinstance(tokens, Iterable):
        raise LengthError("tokens", tokens, None, None, "one entry a row of the step")
    if isinstance(tokens, np.ndarray) and tokens.shape == (rows,) and tokens.dtype.kind in "iu":
        return _wanted(tokens, step)
    items = list(tokens)
    if len(items) != rows:
        raise LengthError("len(tokens)", len(items), rows, rows, "one entry a row of the step")
    if items and all(issubclass(kind, Iterable) for kind in set(map(type, items))):
        return _joined(items)
    wants = step.wants_token.tolist()
    wanted = [item if want else 0 for item, want in zip(items, wants, strict=True)]
    array = np.asarray(wanted) if isinstance(tokens, np.ndarray) else wanted
    return _wanted(check_tokens(array), step)


def _told(ids: Ints, counts: Int64s) -> Told:
    each = ids.size == counts.size and not np.count_nonzero(counts != 1)
    return Told(ids, counts, each)


def _wanted(tokens: NDArray[Any], step: Step) -> Told:
    """The id of each row that wants one, nothing for the others."""
    wants = step.wants_token
    counts = wants.astype(np.int64)
    if np.logical_and.reduce(wants):
        return Told(check_tokens(tokens), counts, each=True)
    try:
        return Told(check_tokens(tokens[wants]), counts, each=False)
    except TokenError:
        check_tokens(np.where(wants, tokens, 0))  # says in which row
        raise


def _joined(items: list[Any]) -> Told:
    """One entry a row, each some token ids."""
    flat: Tokens
    kinds = set(map(type, items))
    if kinds == {list}:
        flat = list(chain.from_iterable(items))
    elif kinds == {np.ndarray} and {(i.ndim, i.dtype) for i in items} == {(1, items[0].dtype)}:
        flat = np.concatenate(items)
    else:
        items = [check_tokens(item) for item in items]
        flat = np.concatenate(items)
    try:
        ids = check_tokens(flat)
    except TokenError:
        for item in items:  # says where in its row
            check_tokens(item)
        raise
    return _told(ids, np.array([len(item) for item in items], np.int64))


def read_kept(kept: Counts | None, step: Step) -> Int64s | None:
    """Positions of the step whose KV is kept, int64[rows]; None: all. O(rows).

    Raises:
        LengthError: not one entry a row, or an entry outside 0..count.
    """
    if kept is None:
        return None
    if not isinstance(kept, Iterable):
        raise LengthError("kept", kept, None, None, "one entry a row of the step")
    items = kept if isinstance(kept, np.ndarray) else list(kept)
    plain = as_ints(items, step.counts.size)
    if plain is None or np.count_nonzero((plain < 0) | (plain > step.counts)):
        plain = _each_kept(items, step.counts.tolist())
    return plain if np.count_nonzero(plain != step.counts) else None


def _each_kept(kept: NDArray[Any] | list[Any], counts: list[int]) -> Int64s:
    """`read_kept` one by one, which finds what is wrong."""
    items = kept.tolist() if isinstance(kept, np.ndarray) else kept
    if not isinstance(items, list) or len(items) != len(counts):
        raise LengthError("len(kept)", np.size(items), len(counts), len(counts), "one entry a row")
    pairs = zip(items, counts, strict=True)
    return np.array([check_int("kept", item, 0, count) for item, count in pairs], np.int64)


def as_ints(items: NDArray[Any] | list[Any], rows: int) -> Int64s | None:
    """``items`` as int64[rows], where they are so many plain ints; else None. O(rows)."""
    if isinstance(items, list):
        if len(items) != rows or set(map(type, items)) != {int}:
            return None
        items = np.array(items)
    if items.shape != (rows,) or items.dtype.kind not in "iu":
        return None
    return items.astype(np.int64)


def _is_id(item: object) -> bool:
    return hasattr(item, "__index__") and not isinstance(item, np.ndarray)


def _sizes(counts: Items[int], rows: int, ids: int) -> Int64s:
    """``counts`` as int64[rows]; they sum to ``ids``."""
    listed = np.asarray(counts)
    sizes = as_ints(listed, rows)
    if sizes is not None and not np.count_nonzero((sizes < 0) | (sizes > ids)):
        total, found = int(np.add.reduce(sizes)), rows
    else:
        checked = [check_int("count", c, 0) for c in listed.tolist()]
        total, found = sum(checked), len(checked)
    if found != rows or total != ids:
        raise LengthError("sum(counts)", total, ids, ids, f"{ids} ids for {rows} rows")
    return sizes if sizes is not None else np.array(checked, np.int64)
