"""Who runs an engine: its caller, step by step, or a thread of its own.

Only one thread at a time runs a model, its cache and its scheduler. What other threads ask goes
through an inbox, a queue of calls that whoever runs the engine makes before the next step; nobody
waits for a lock. Knows no requests, no pages and no model.
"""

import os
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any
from weakref import WeakKeyDictionary

from octavo.errors import StepError, uncopied


class Inbox:
    """Calls that any thread may leave, for the one that runs the engine to make. O(1) each."""

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self) -> None:
        self._calls: SimpleQueue[Callable[[], object]] = SimpleQueue()

    def put(self, call: Callable[[], object]) -> None:
        """Leave a call; wakes who waits."""
        self._calls.put(call)

    def wait(self) -> None:
        """Wait for a call, and make it."""
        self._calls.get()()

    def read(self) -> None:
        """Make all calls that are there."""
        while True:
            try:
                call = self._calls.get_nowait()
            except Empty:
                return
            call()


class Claim:
    """That an engine runs its model now.

    Args:
        engine: which one.
        loops: whether a thread of its own runs it, not a step of its caller's.
    """

    __reduce__ = uncopied("it is a part of one engine")

    __slots__ = ("engine", "loops", "thread")

    def __init__(self, engine: object, *, loops: bool = False) -> None:
        self.engine, self.loops = engine, loops
        self.thread = threading.get_ident()


class Guard:
    """Who runs a model: one at a time. Nobody waits for it; who comes second is refused.

    Attributes:
        holder: the claim that stands. Whoever made it sets None when it is over, in a ``finally``
            without a call in it, because Ctrl-C comes at calls.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(self) -> None:
        self.holder: Claim | None = None

    def take(self, claim: Claim) -> None:
        """Let ``claim`` stand.

        Raises:
            StepError: another one does; the message says whose, and what to do.
        """
        if self.holder is None:
            self.holder = claim  # in time: Python changes threads at calls and in loops alone
        held = self.holder
        if held is claim:
            return
        if held.engine is not claim.engine:
            raise StepError("another engine runs this model now; stop() it, or let its step end")
        if held.loops:
            raise StepError("a thread of its own runs this engine; stop() it first")
        if held.thread == claim.thread:
            raise StepError("a step of this engine is under way: on_token may submit and cancel")
        raise StepError("another thread steps this engine; start() it, and any thread may ask")


_guards: WeakKeyDictionary[Any, Guard] = WeakKeyDictionary()
if hasattr(os, "register_at_fork"):  # whoever ran a model runs it in the parent alone
    os.register_at_fork(after_in_child=_guards.clear)


def guard_of(model: Any) -> Guard:
    """The one guard of a model, whatever engines it has."""
    return _guards.setdefault(model, Guard())


def release_alone(guard: Guard, releases: Iterable[Callable[[], None]]) -> None:
    """Give an engine's models back, unless another engine runs one: that does when it closes."""
    claim = Claim(None)
    with suppress(StepError):
        try:
            guard.take(claim)
            for release in releases:
                release()
        finally:
            if guard.holder is claim:
                guard.holder = None


class Loop:
    """A thread that steps as long as there is work, and waits for calls when there is none.

    Args:
        inbox: what it waits for.
        step: reads the inbox and makes a step; returns whether work remains.
        ended: called in the thread as its last deed, with the error that ended it, or None.
    """

    __reduce__ = uncopied("it is a part of one engine")

    def __init__(
        self,
        inbox: Inbox,
        step: Callable[[], bool],
        ended: Callable[[BaseException | None], None],
    ) -> None:
        self._inbox, self._step, self._ended = inbox, step, ended
        self._stopping = False
        # a daemon, lest the interpreter waits for it before it asks it to stop
        self._thread = threading.Thread(target=self._run, name="octavo-engine", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def is_here(self) -> bool:
        """Whether the caller is the thread."""
        return self._thread is threading.current_thread()

    def stop(self) -> None:
        """Let the step under way end, then the thread; wait for it, but in the thread itself."""
        self._stopping = True
        self._inbox.put(lambda: None)
        if not self.is_here():
            self._thread.join()

    def _run(self) -> None:
        error: BaseException | None = None
        try:
            works = True
            while not self._stopping:
                if not works:
                    self._inbox.wait()
                works = self._step()
        except BaseException as found:  # noqa: BLE001, every handle raises it
            error = found
        self._ended(error)
