"""The Step: what a model's forward pass over some rows reads and writes, as arrays.

A slot is page * page_size + offset. Knows arrays and the core that filled them; not how sequences
live.
"""

from collections.abc import Callable
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, overload

import numpy as np

from octavo.cache.views import (
    Bools,
    Copies,
    CrossView,
    Delta,
    GroupView,
    Ints,
    StateView,
    Unknown,
    View,
)
from octavo.core.rows import Pass
from octavo.errors import StepError, UnknownGroup, uncopied

__all__ = ["Copies", "CrossView", "Delta", "GroupView", "StateView", "Step", "Unknown"]

if TYPE_CHECKING:
    from octavo.cache.sequence import Sequence

T = TypeVar("T")


def _once(make: Callable[[Any], T]) -> Callable[[Any], T]:
    """What ``make`` gives when it is read first, of a step by hand what it was given."""
    name = make.__name__

    @wraps(make)
    def read(step: Any) -> T:
        values = step._values
        found: T | None = values.get(name)
        if found is None:
            if step.core is None:
                raise AttributeError(f"this step was put together without {name}")
            found = values[name] = make(step)
        return found

    return read


class Step(Pass):
    """One forward pass: n rows (sequences) with T new tokens together. Made by `Cache.extend`.

    Storage operations run in this order: ``copies``, the forward pass, ``snapshots``; steps in the
    order they were extended. Who clears ``fresh`` does so before the forward pass. All arrays are
    int32 unless said, and read-only but ``input_ids``.
    Tables and deltas are gathered when they are first read, which must be while the step is open.

    Args:
        sequences: the rows.
        values: any attribute by name, of a step put together by hand, such as a kernel's test
            needs; such a step is never open.

    Attributes:
        sequences: the rows.
    """

    __slots__ = ("_earlier", "_origin", "_values", "sequences")

    __reduce__ = uncopied("it is its cache's; `replace` makes one with other arrays")

    def __init__(self, sequences: "tuple[Sequence, ...]" = (), **values: Any) -> None:
        super().__init__()
        self.sequences = sequences
        self._values: dict[str | int, Any] = values  # type: ignore[assignment]  # views by number
        self._origin: Step | None = None  # of which this is a copy
        self._earlier: tuple[Step, ...] = ()  # open when this was made, where it runs ahead

    def replace(self, **changes: Any) -> "Step":
        """A step by hand with the arrays of this one but for ``changes``; open while this is. O(T).

        Raises:
            StepError: the step is over and its tables were never read.
        """
        values = {name: getattr(self, name) for name in _ARRAYS if name not in changes}
        step = Step(changes.pop("sequences", self.sequences), **values, **changes)
        step._origin = self._origin or self
        return step

    # -- rows and tokens -----------------------------------------------------------------------

    @property
    @_once
    def input_ids(self) -> Ints:
        """int32[T], known token ids; 0 where ``unknown`` says. The engine may write here."""
        ids: Ints = self.ids
        return ids

    @property
    @_once
    def unknown(self) -> Unknown:
        """The places of ``input_ids`` the engine fills in, and whose sampled tokens go there.

        Raises:
            StepError: the step is over and this was never read.

        Cost: O(rows + places), and O(rows) a step that was open; once.
        """
        self._check_open("unknown ids")
        return Unknown(*map(_shut, self.core.unknown(self, list(self._earlier))))

    @property
    @_once
    def known(self) -> Ints:
        """int32[n], tokens each row knew when the step was made."""
        return self._part(6)

    @property
    @_once
    def counts(self) -> Ints:
        """int32[n], new tokens of each row; a row with 0 sits out."""
        return self._part(1)

    @property
    @_once
    def past(self) -> Ints:
        """int32[n], tokens scheduled before this step."""
        return self._part(2)

    @property
    @_once
    def context(self) -> Ints:
        """int32[n], past + counts.

        Kernels call it ``seq_lens`` or ``cache_seqlens``. The arrays of `octavo.index` of that name
        have 0 in padded rows, and in the compact form are shorter by the positions left out.
        """
        return self._part(3)

    @property
    @_once
    def last(self) -> Ints:
        """int32[n], index in T of each row's last token; -1 where it sits out.

        The arrays of `octavo.index` name it ``logit_rows`` and pad it with -1.
        """
        return self._part(4)

    @property
    @_once
    def wants_token(self) -> Bools:
        """bool[n], whether the step reaches the end of the known tokens.

        A token is then to be sampled from ``last``; not where the row knows, or will know from
        steps that are open, as many as its limit allows.
        """
        wants: Bools = _shut(self._part(5) != 0)
        return wants

    @property
    def sample(self) -> Ints:
        """int32[k], rows a token is to be sampled for, ascending: those of ``wants_token``.

        ``last[sample]`` are their places in T. `Cache.commit` takes ids for these rows alone. O(n).
        """
        rows: Ints = _shut(np.flatnonzero(self.wants_token).astype(np.int32))
        return rows

    @property
    @_once
    def query_start(self) -> Ints:
        """int32[n + 1], where each row's tokens begin in T."""
        return self._part(7, 1)

    @property
    @_once
    def positions(self) -> Ints:
        """int32[T], position of each new token in its sequence."""
        at = len(self.core.names) + 8 * self.count + 1 + self.tokens
        positions: Ints = self.array[at : at + self.tokens]
        return positions

    @property
    def max_query(self) -> int:
        """Most new tokens of a row: what kernels call ``max_query_len`` or ``max_seqlen_q``.

        In the arrays of `octavo.index` it is the bound instead, where one was named.
        """
        return int(self.counts.max())

    @property
    def max_context(self) -> int:
        """Longest context of a row: what kernels call ``max_seq_len`` or ``max_seqlen_k``.

        In the arrays of `octavo.index` it is the bound instead, where one was named, and in the
        compact form it is shorter, as their lengths are.
        """
        return int(self.context.max())

    # -- addresses -----------------------------------------------------------------------------

    @overload
    def group(self, name: None = ...) -> GroupView: ...

    @overload
    def group(self, name: str) -> Any: ...

    def group(self, name: str | None = None) -> Any:
        """The addresses of group ``name``; default: the first token group.

        Raises:
            UnknownGroup: no such group in this plan.
            StepError: the step is over and its tables were never read.

        Cost: O(rows x columns), once.
        """
        values = self._values
        if "groups" in values:
            return self._given_group(name)
        number = self.group_number(name)
        found = values.get(number)
        if found is None:
            found = values[number] = self._view(number)
        return found

    def slots(self, name: str | None = None) -> Ints:
        """int32[T], where each new token's KV goes in a token group. O(1).

        Raises:
            UnknownGroup: no such group, or it keeps no tokens.
        """
        if "groups" in self._values:
            slots: Ints = self.group(name).slots
            return slots
        number = self.group_number(name)
        if not self.core.groups[number].keeps_tokens:
            raise UnknownGroup(name, self.group_names)
        found: Ints = self.core.slots(self, number)
        return found

    @property
    def groups(self) -> dict[str, View]:
        """Addresses by group name. O(rows x columns), once."""
        if "groups" in self._values:
            given: dict[str, View] = self._values["groups"]
            return given
        return {name: self.group(name) for name in self.group_names}

    @property
    def group_names(self) -> list[str]:
        """The plan's groups, in order."""
        if "groups" in self._values:
            return list(self._values["groups"])
        names: list[str] = self.core.names
        return names

    def group_number(self, name: str | None = None) -> int:
        """The place of a group among all; default: the first token group. O(groups).

        Raises:
            UnknownGroup: no such group in this plan.
        """
        core = self.core
        number: int = -1
        if name is None:
            number = core.main
        elif isinstance(name, str) and name in core.names:
            number = core.names.index(name)
        if number < 0:
            raise UnknownGroup(name, core.names)
        return number

    @property
    def common_pages(self) -> int:
        """Leading columns of the first token group that hold the same page in every row."""
        if not any(isinstance(view, GroupView) for view in self.groups.values()):
            return 0
        table = self.group().table
        differ = (table != table[0]).any(axis=0) | (table[0] == 0)
        return int(differ.argmax()) if differ.any() else table.shape[1]

    # -- pages that move -----------------------------------------------------------------------

    @property
    @_once
    def copies(self) -> dict[str, Copies]:
        """By group name, pages to copy before the forward pass."""
        return self._moves(self.before)

    @property
    @_once
    def snapshots(self) -> dict[str, Copies]:
        """By group name, pages to copy after it."""
        return self._moves(self.behind)

    @property
    @_once
    def fresh(self) -> dict[str, Ints]:
        """By group name, pages taken for this step whose old content means nothing.

        None of them is written by ``copies`` or ``snapshots``: they can be cleared at any time
        before the forward pass.
        """
        found = {}
        for number, name in enumerate(self.core.names):
            pages = self.core.taken(self, number)
            if name in self.copies:
                pages = _shut(pages[~np.isin(pages, self.copies[name].target)])
            if pages.size:
                found[name] = pages
        return found

    @property
    @_once
    def delta(self) -> dict[str, Delta]:
        """Changes of the batch's tables since its last step, by group name.

        Raises:
            StepError: the step is over and its delta was never read.

        Cost: O(changes), once.
        """
        if self.log is None:
            return {}
        self._check_open("changes")
        found = {}
        for number, name in enumerate(self.core.names):
            changed = self.core.delta(self, number)
            if changed is not None:
                found[name] = Delta(*map(_shut, changed))
        return found

    # -- whether it still means anything -------------------------------------------------------

    @property
    def open(self) -> bool:
        """Whether its cache waits for it: neither committed nor aborted.

        From then on its slots may be another's, and no pass may run on it.
        """
        return bool((self._origin or self).is_open)

    @property
    def gone(self) -> "tuple[Sequence, ...]":
        """Rows with tokens in it that were released or preempted since: those mean nothing now.

        Their slots may be another's from the next step on. O(rows).
        """
        step = self._origin or self
        if step.core is None:
            return ()
        return tuple(step.sequences[place] for place in step.core.gone(step))

    def __repr__(self) -> str:
        if self.core is None:
            return f"<Step put together by hand, of {len(self.sequences)} rows>"
        return f"<Step of {len(self.sequences)} rows and {self.tokens} tokens>"

    # -- inside --------------------------------------------------------------------------------

    def _part(self, number: int, more: int = 0) -> Ints:
        """One of the columns of the block; see `octavo.core.rows.Pass`."""
        at = len(self.core.names) + number * self.count
        part: Ints = self.array[at : at + self.count + more]
        return part

    def _part_from_earlier(self) -> None:
        """Note which ids are unknown when an earlier step has ended: its rows live on with it."""
        if self._earlier:
            self.unknown  # noqa: B018  # remembers it
            self._earlier = ()

    def _given_group(self, name: str | None) -> Any:
        groups = self._values["groups"]
        if name is not None:
            if not isinstance(name, str) or name not in groups:
                raise UnknownGroup(name, list(groups))
            return groups[name]
        for view in groups.values():
            if isinstance(view, GroupView):
                return view
        raise UnknownGroup(None, list(groups))

    def _view(self, number: int) -> View:
        core = self.core
        group = core.groups[number]
        if group.keeps_state:
            source, table = core.state_units(self, number)
            return StateView(source, table, _shut(self.past > 0))
        self._check_open("tables")
        table = core.gather(self, number)
        if group.keeps_tokens:
            return GroupView(core.slots(self, number), table, core.zeros[: self.count])
        lengths, fresh = core.cross_inputs(self, number)
        return CrossView(table, lengths, _shut(fresh != 0))

    def _check_open(self, what: str) -> None:
        """Entries of the core's tables are the step's while it is open."""
        if not self.is_open:
            raise StepError(f"this step was committed or aborted before its {what} were read")

    def _moves(self, moves: list[tuple[int, int, int]]) -> dict[str, Copies]:
        """Each target once: a later copy into a page takes the place of an earlier one."""
        last = {(number, target): source for number, source, target in moves}
        found: dict[str, tuple[list[int], list[int]]] = {}
        for (number, target), source in last.items():
            sources, targets = found.setdefault(self.core.names[number], ([], []))
            sources.append(source)
            targets.append(target)
        return {name: Copies(_array(a), _array(b)) for name, (a, b) in found.items()}


_ARRAYS = (
    "input_ids",
    "counts",
    "past",
    "context",
    "last",
    "wants_token",
    "known",
    "query_start",
    "positions",
    "groups",
    "copies",
    "snapshots",
    "fresh",
    "delta",
    "unknown",
)


def _shut(array: Any) -> Any:
    """The same array, read-only."""
    array.setflags(False)
    return array


def _array(numbers: list[int]) -> Ints:
    found: Ints = _shut(np.array(numbers, np.int32))
    return found
