"""Page tables: from logical positions to slots, and the Step, a frozen view of one forward pass.

A slot is page * page_size + offset. Knows arrays; not pools, nodes or how sequences live.
"""

from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from operator import index
from typing import TYPE_CHECKING, Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError, UnknownGroup

if TYPE_CHECKING:
    from octavo.cache.sequence import Sequence

Ints = NDArray[np.int32]
_MAX_SLOT = 2**31 - 1


def slot_mapping(
    pages: Ints | Items[int], page_size: int, start: int, stop: int, out: Ints | None = None
) -> Ints:
    """Slots of positions ``start..stop-1`` of a sequence.

    The slot of position ``i`` is ``pages[i // page_size] * page_size + i % page_size``.

    Args:
        pages: physical pages of the sequence, in logical order.
        page_size: tokens a page holds.
        start: first position.
        stop: position behind the last one.
        out: int32 array of at least ``stop - start``, written and returned cut to size.

    Returns:
        int32[stop - start].

    Raises:
        LengthError: page size below 1, or an interval that is reversed or beyond the pages.
        CapacityError: ``out`` is too small, or a slot is beyond int32; nothing was written.

    Cost: O(stop - start), one vectorised pass over the pages touched.
    """
    try:
        if stop - start == 1 and start >= 0 and page_size > 0 and start // page_size < len(pages):
            page = index(pages[start // page_size])
            return _single(page * page_size + start % page_size, out)
    except (TypeError, ValueError):  # told apart below
        pass
    try:
        held = len(pages)
    except TypeError:
        right = "a list or array of physical pages"
        raise LengthError("pages", pages, None, None, right) from None
    page_size = check_int("page_size", page_size, 1)
    start, stop = check_int("start", start, -_MAX_SLOT), check_int("stop", stop, -_MAX_SLOT)
    if not 0 <= start <= stop <= held * page_size:
        low, high = (0, stop) if start > stop or start < 0 else (start, held * page_size)
        name, value = ("start", start) if start > stop or start < 0 else ("stop", stop)
        raise LengthError(name, value, low, high, f"{held} pages of {page_size}")
    count = stop - start
    if out is not None:
        _check_out(out, count)
    first, begin = divmod(start, page_size)
    touched = _page_numbers(pages[first : -(-stop // page_size)], page_size)
    bases = (touched * np.int32(page_size)).repeat(page_size)[begin : begin + count]
    target = bases if out is None else out[:count]
    np.add(bases, _offsets(page_size, begin + count)[begin:], out=target)
    return target


_OFFSETS: dict[int, Ints] = {}


def _offsets(page_size: int, count: int) -> Ints:
    """``i % page_size`` for i in 0..count-1; remembered, as modulo is what costs. O(count) once."""
    known = _OFFSETS.get(page_size)
    if known is None or known.size < count:
        known = _OFFSETS[page_size] = np.arange(2 * count, dtype=np.int32) % np.int32(page_size)
    return known[:count]


def _page_numbers(pages: Ints | Items[int], page_size: int) -> Ints:
    """``pages`` as int32, refused where a slot would be beyond it."""
    wide = np.asarray(pages)
    if wide.ndim == 1 and not wide.dtype.isnative:
        wide = wide.astype(wide.dtype.newbyteorder("="))
    if not wide.size:
        return wide.astype(np.int32)
    if wide.dtype.kind not in "iu" or wide.ndim != 1:
        raise LengthError("pages", wide.tolist(), 0, None, "each is a physical page")
    # Read as unsigned, a negative page is larger than any other.
    top = int(np.maximum.reduce(wide.view(f"u{wide.itemsize}")))
    last = (top + 1) * page_size - 1
    if last > _MAX_SLOT:
        if int(wide.min()) < 0:
            raise LengthError("pages", int(wide.min()), 0, None, "each is a physical page")
        raise CapacityError("slot", last, _MAX_SLOT, "beyond int32")
    return wide.astype(np.int32, copy=False)


def _check_out(out: Ints, count: int) -> None:
    fits = isinstance(out, np.ndarray) and out.dtype == np.int32 and out.ndim == 1
    if not fits or not out.flags.writeable:
        raise LengthError("out", out, None, None, "a writeable int32 array of one axis")
    if out.size < count:
        raise CapacityError("stop - start", count, out.size, "out is too small")


def _single(slot: int, out: Ints | None) -> Ints:
    if slot > _MAX_SLOT:
        raise CapacityError("slot", slot, _MAX_SLOT, "beyond int32")
    if slot < 0:
        raise LengthError("page", slot, 0, None, "each is a physical page")
    if out is None:
        return np.array((slot,), np.int32)
    _check_out(out, 1)
    out[0] = slot
    return out[:1]


class GroupView(NamedTuple):
    """One token group's addresses in a step of n rows and T tokens.

    Attributes:
        slots: int32[T], where each new token's KV goes.
        table: int32[n, width], physical page of each column; 0, the null page, where none is held.
            For a batch a view of its table, where later steps add columns and windows clear what
            they no longer see; whatever else happens to a row leaves it as it is.
        base: int32[n], first position the table's column 0 stands for: 0 in the steps a cache
            makes; index functions may emit others.
    """

    slots: Ints
    table: Ints
    base: Ints


class StateView(NamedTuple):
    """One state group's addresses in a step of n rows.

    Attributes:
        source: int32[n, parts], pages of the state to start from.
        table: int32[n, 1 + rollback, parts]: [i, j] is where the state after the row's last
            position but j goes; as many of them as the row has new positions are written.
        has_state: bool[n], whether ``source`` holds a state; else start from zeros.
    """

    source: Ints
    table: Ints
    has_state: NDArray[np.bool_]


class CrossView(NamedTuple):
    """One cross group's addresses in a step of n rows.

    Attributes:
        table: int32[n, width], physical pages of each row's cross input.
        lengths: int32[n], its tokens; 0: the row has none.
        fresh: bool[n], whether the row's step must write it.
    """

    table: Ints
    lengths: Ints
    fresh: NDArray[np.bool_]


View = GroupView | StateView | CrossView


def state_view(
    table: Ints, units: int, parts: int, past: NDArray[np.int64], ends: NDArray[np.int64]
) -> StateView:
    """Units by position: the state after length L stands in unit (L - 1) % units. O(rows).

    Args:
        table: int32[n, at least units * parts], pages of the units, one after another.
        past, ends: int64[n], positions of each row before and after the step.
    """
    ring = table[:, : units * parts].reshape(len(table), units, parts)
    at = np.arange(len(table))[:, None]
    targets = ((ends - 1)[:, None] - np.arange(units)) % units
    return StateView(ring[at[:, 0], (past - 1) % units], ring[at, targets], past > 0)


def cross_view(table: Ints, page_size: int, lengths: Ints, fresh: Items[int] = ()) -> CrossView:
    """The columns the longest input takes; the step writes rows ``fresh``. O(rows)."""
    written = np.zeros(len(table), np.bool_)
    written[list(fresh)] = True
    width = -(-int(lengths.max()) // page_size)
    return CrossView(table[:, :width], lengths, written)


class Delta(NamedTuple):
    """Entries of a batch's table that changed since its last step, for device tables and mirrors.

    Attributes:
        rows, columns, pages: int32[k] each; a later entry for the same place counts.
    """

    rows: Ints
    columns: Ints
    pages: Ints


class Copies(NamedTuple):
    """Pages to copy, int32[k] each: ``target[i]`` becomes what ``source[i]`` is.

    No target stands twice. A page may be both: read all sources before writing any target.
    """

    source: Ints
    target: Ints


@dataclass(slots=True, eq=False, repr=False)
class Step:
    """One forward pass: n rows (sequences) with T new tokens together.

    Storage operations run in this order: ``copies``, the forward pass, ``snapshots``; steps in the
    order they were extended. All arrays are int32 unless said.

    Attributes:
        sequences: the rows.
        counts: int32[n], new tokens of each row; a row with 0 sits out.
        input_ids: int32[T], known token ids; 0 beyond what is known.
        positions: int32[T], position of each new token in its sequence.
        query_start: int32[n + 1], where each row's tokens begin in T.
        past: int32[n], tokens scheduled before this step.
        context: int32[n], past + counts.
        last: int32[n], index in T of each row's last token (logit rows); -1 where it sits out.
        wants_token: bool[n], whether the step reaches the end of the known tokens, so that a token
            is to be sampled from ``last``; not where the row knows, or will know from steps that
            are open, as many as its limit allows.
        groups: addresses by group name.
        copies: by group name, pages to copy before the forward pass.
        snapshots: by group name, pages to copy after it.
        fresh: by group name, pages taken for this step, whose old content means nothing.
    """

    sequences: "tuple[Sequence, ...]"
    counts: Ints
    input_ids: Ints
    positions: Ints
    query_start: Ints
    past: Ints
    context: Ints
    last: Ints
    wants_token: NDArray[np.bool_]
    groups: dict[str, View]
    copies: dict[str, Copies] = field(default_factory=dict)
    snapshots: dict[str, Copies] = field(default_factory=dict)
    fresh: dict[str, Ints] = field(default_factory=dict)
    _changes: dict[str, list[Any]] | None = None
    _kept_states: "list[tuple[Sequence, int, tuple[int, ...], int]]" = field(default_factory=list)
    _batch: Any = None
    _clock: int = 0

    @property
    def delta(self) -> dict[str, Delta]:
        """Changes of the batch's tables since its last step, by group name. O(changes)."""
        found = {}
        for name, changes in (self._changes or {}).items():
            columns = zip(*changes, strict=True)
            parts = [np.concatenate([np.atleast_1d(part) for part in column]) for column in columns]
            found[name] = Delta(*(part.astype(np.int32) for part in parts))
        return found

    @property
    def open(self) -> bool:
        """Whether its cache waits for it: neither committed nor aborted. O(steps open).

        From then on its slots may be another's, and no pass may run on it. Copies of a step are
        never open.
        """
        return bool(self.sequences) and self in self.sequences[0]._cache._open

    @property
    def gone(self) -> "tuple[Sequence, ...]":
        """Rows with tokens in it that were released or preempted since: those mean nothing now.

        Their slots may be another's from the next step on. O(rows).
        """
        rows = zip(self.sequences, self.counts.tolist(), strict=True)
        return tuple(row for row, count in rows if count and not row._takes_part(self._clock))

    @property
    def max_query(self) -> int:
        """Most new tokens of a row."""
        return int(self.counts.max())

    @property
    def max_context(self) -> int:
        """Longest context of a row."""
        return int(self.context.max())

    @property
    def common_pages(self) -> int:
        """Leading columns of the first token group that hold the same page in every row."""
        if not any(isinstance(view, GroupView) for view in self.groups.values()):
            return 0
        table = self.group().table
        differ = (table != table[0]).any(axis=0) | (table[0] == 0)
        return int(differ.argmax()) if differ.any() else table.shape[1]

    @overload
    def group(self, name: None = ...) -> GroupView: ...

    @overload
    def group(self, name: str) -> Any: ...

    def group(self, name: str | None = None) -> Any:
        """The addresses of group ``name``; default: the first token group. O(1).

        Raises:
            UnknownGroup: no such group in this plan.
        """
        if name is not None:
            if name not in self.groups:
                raise UnknownGroup(name, list(self.groups))
            return self.groups[name]
        for view in self.groups.values():
            if isinstance(view, GroupView):
                return view
        raise UnknownGroup(None, list(self.groups))

    def __repr__(self) -> str:
        return f"<Step of {len(self.sequences)} rows and {self.input_ids.size} tokens>"
