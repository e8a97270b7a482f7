"""Pages of preempted requests in host memory: who is copied out, and who is copied back.

A request that has lost its pages is computed again, or its pages are copied out and back, whichever
takes less time by this estimate, which goes by numbers alone::

    copying      bytes / copy_rate          bytes of its pages; twice as many when they are to go
    computing    tokens / prefill_rate      tokens of it that are computed and would be lost

It is made when a request is preempted, as if nothing of it were found again; and when it comes
back, of what is not. Copying back is a step like any other, whose pages are filled and not computed
(as `octavo.storage.load_prefix` does): what is whole is published, and others find it.

Knows no tensors and no clock. Where copying fails, or there is no room, requests are computed.
"""

import warnings
from collections.abc import Mapping
from typing import Any, Generic, NamedTuple, Protocol

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.cache import Cache
from octavo.cache.results import Held, Ints
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.checks import check_number
from octavo.errors import OutOfPages, PlanError, uncopied
from octavo.scheduling.requests import R


class Host(Protocol):
    """How much host memory there is, and what the estimate goes by.

    Attributes:
        host_memory: most bytes of pages in it.
        copy_rate: bytes copied per second, either way.
        prefill_rate: tokens computed per second.
    """

    @property
    def host_memory(self) -> int: ...  # noqa: D102

    @property
    def copy_rate(self) -> float: ...  # noqa: D102

    @property
    def prefill_rate(self) -> float: ...  # noqa: D102


class Filling(NamedTuple):
    """Pages of a group that are to be filled from host memory.

    Attributes:
        places: int64[k], which of the pages that were copied out.
        pages: int32[k], where each goes.
    """

    places: NDArray[np.int64]
    pages: Ints


class Copier(Protocol):
    """What copies pages out and back; a simulator has none."""

    def save(self, pages: Mapping[str, Ints]) -> Any:
        """Copy pages by group to host memory; what keeps them, until it is collected."""
        ...

    def fill(self, content: Any, step: Step, pages: Mapping[str, Filling]) -> None:
        """Run a step that copies pages of ``content`` and computes nothing, its copies too."""
        ...


class Saved(NamedTuple):
    """What a preempted request has in host memory.

    Attributes:
        computed: its positions that were computed.
        columns: by group, which columns are there.
        content: what the copier keeps them in.
    """

    computed: int
    columns: dict[str, Ints]
    content: Any


class HostPages(Generic[R]):
    """The pages in host memory of the requests of one scheduler.

    Args:
        cache: whose pages they were; its plan knows bytes.
        host: how much there may be, and the rates of the estimate; read whenever they are needed.
        copier: None: pages are counted only.

    Attributes:
        cache: as given.
        saved: by request that is preempted, what it has here.
        restored_tokens: positions that were copied back.
        copied_bytes: what was copied out and back.

    Raises:
        PlanError: the plan knows no bytes.
    """

    __reduce__ = uncopied("it keeps pages of one cache's requests")

    def __init__(self, cache: Cache, host: Host, copier: Copier | None = None) -> None:
        plan = cache.plan
        if not all(group.page_bytes for group in plan.groups.values()):
            raise PlanError("host_memory", host.host_memory, "this plan knows no bytes of a page")
        self.cache, self._host, self._copier = cache, host, copier
        self._bytes = {name: group.page_bytes for name, group in plan.groups.items()}
        self._grows = {name for name, group in plan.groups.items() if group.grows}
        states = any(group.lifetime.form == "state" for group in plan.groups.values())
        # what windows do not hold in the end is taken for a moment, so in chunks; of a state, only
        # the last is there
        self._in_chunks = not states and any(group.slides for group in plan.groups.values())
        self.saved = dict[R, Saved]()
        self.restored_tokens = self.copied_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Bytes of pages in host memory. O(saved x groups)."""
        return sum(self._size(each.columns) for each in self.saved.values())

    def save(self, request: R, sequence: Sequence) -> None:
        """Copy out what a request is about to lose, where there is room and it pays. O(bytes)."""
        held, computed = self.cache.held(sequence), sequence.computed
        columns = {name: each.columns for name, each in held.items()}
        size = self._size(columns)
        if not size or not self._pays(2 * size, computed):
            return
        if size > self._host.host_memory - self.used_bytes:
            return
        content = None
        if self._copier is not None:
            try:
                content = self._copier.save({name: each.pages for name, each in held.items()})
            except Exception as error:  # noqa: BLE001, whatever a device raises
                _warn("out", error)
                return
        self.saved[request] = Saved(computed, columns, content)
        self.copied_bytes += size

    def drop(self, request: R) -> None:
        """Forget what a request has here, if anything. O(1)."""
        self.saved.pop(request, None)

    def restore(self, request: R, sequence: Sequence, most: int) -> bool:
        """Let a request that was resumed stand where it was preempted, where that pays.

        What it has here is given up in any case.

        Args:
            sequence: of the request; it stands behind what was found of it.
            most: tokens whose pages are taken at once.

        Returns:
            Whether it can go on from where it stands now; else it is preempted again.

        Cost: O(bytes).
        """
        saved, start = self.saved.pop(request, None), sequence.computed
        if saved is None or start >= saved.computed:
            return True
        missing = self._size(_behind(saved, start // self.cache.plan.page_size, self._grows))
        if not self._pays(missing, saved.computed - start):
            return True
        most = most if self._in_chunks else saved.computed
        try:
            while sequence.computed < saved.computed:
                self._fill(saved, sequence, most)
        except OutOfPages:  # windows hold more at once than afterwards
            self.cache.preempt(sequence)
            return False
        except Exception as error:  # noqa: BLE001, whatever a device raises
            _warn("back", error)
            return False
        self.restored_tokens += saved.computed - start
        return True

    def _fill(self, saved: Saved, sequence: Sequence, most: int) -> None:
        """One step that copies: the next pages of a sequence, at most ``most`` tokens of them.

        Where that fails the sequence is preempted. OutOfPages: it has no room.
        """
        step = self._extend(sequence, min(most, saved.computed - sequence.computed))
        try:
            pages = self._targets(saved, sequence, step)
            if self._copier is not None:
                self._copier.fill(saved.content, step, pages)
        except BaseException:
            self.cache.preempt(sequence)  # first: where windows have slid, nothing goes back
            self.cache.abort(step)
            raise
        self.cache.slide(sequence, saved.computed)
        self.cache.commit(step)
        self.copied_bytes += sum(
            self._bytes[name] * each.pages.size for name, each in pages.items()
        )

    def _extend(self, sequence: Sequence, most: int) -> Step:
        """A step of ``most`` tokens; in chunks, of half as many until there is room."""
        while True:
            try:
                return self.cache.extend(sequence, most)
            except OutOfPages:
                if not self._in_chunks or most <= self.cache.plan.page_size:
                    raise
                most //= 2

    def _targets(self, saved: Saved, sequence: Sequence, step: Step) -> dict[str, Filling]:
        """Which of the saved pages go into which pages of a step of one row. O(columns)."""
        size, last = self.cache.plan.page_size, step.context[0] == saved.computed
        first, stop = -(-int(step.past[0]) // size), -(-int(step.context[0]) // size)
        found = {}
        for name, held in self.cache.held(sequence).items():
            columns = saved.columns[name]
            if name in self._grows:
                mine = (columns >= first) & (columns < stop)
            elif self.cache.plan.groups[name].lifetime.form == "state":
                mine = np.full(columns.size, last)
            else:
                mine = np.full(columns.size, bool(step.group(name).fresh[0]))
            if mine.any():
                found[name] = Filling(np.flatnonzero(mine), _pages_of(held, columns[mine]))
        return found

    def _size(self, columns: Mapping[str, Ints]) -> int:
        return sum(self._bytes[name] * each.size for name, each in columns.items())

    def _pays(self, size: int, tokens: int) -> bool:
        """Whether copying so many bytes takes less time than computing so many tokens."""
        return size / self._host.copy_rate < tokens / self._host.prefill_rate


def check_rate(name: str, value: object) -> float:
    """A rate of copying or computing, checked. O(1).

    Raises:
        PlanError: it is no finite number above 0.
    """
    rate = check_number(name, value)
    if rate <= 0:
        raise PlanError(name, value, "it must be above 0")
    return rate


def _behind(saved: Saved, column: int, grows: set[str]) -> dict[str, Ints]:
    """The columns that are not found where a prefix of ``column`` pages is."""
    return {
        name: each[each >= column] if name in grows else each
        for name, each in saved.columns.items()
    }


def _pages_of(held: Held, columns: Ints) -> Ints:
    """The pages of some columns that are all held."""
    found: Ints = held.pages[np.searchsorted(held.columns, columns)]
    return found


def _warn(way: str, error: Exception) -> None:
    text = f"pages could not be copied {way} and are computed again: {error!r}"
    warnings.warn(text, RuntimeWarning, stacklevel=2)
