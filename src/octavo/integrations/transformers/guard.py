"""Who may call a drop-in cache, and whether a call was left half done.

One thread at a time is let in, and none between the passes of another's call. A call that an
interrupt leaves has changed nobody knows what: the next one begins anew. Knows no pages and no
rows.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import RLock, get_ident
from typing import Any

from octavo.errors import OctavoError, StepError, uncopied


class Guard:
    """The way into a cache.

    Attributes:
        thread: whose call is not at its end; None: nobody's.
        torn: whether a call was left half done.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(self) -> None:
        self._lock = RLock()
        self.thread: int | None = None
        self.torn = False

    @contextmanager
    def entered(self, begin_anew: Callable[[], None], *, alone: bool = False) -> Iterator[None]:
        """For the time of a call of the cache.

        Args:
            begin_anew: makes the cache one that nothing is taken of, whatever it is.
            alone: whether another thread's call that is not at its end keeps this one out.

        Raises:
            StepError: it does.
        """
        with self._lock:
            if alone and self.thread not in (None, get_ident()):
                raise StepError("another thread began a call on this cache; reset() ends it")
            if self.torn:
                begin_anew()
            self.torn = True
            try:
                yield
            except Exception as error:  # of octavo's own: nothing was changed
                self.torn = isinstance(error, MemoryError) and not isinstance(error, OctavoError)
                raise
            self.torn = False


def alone(method: Callable[..., Any]) -> Any:
    """Let a method of a cache in where no other thread's call is not at its end."""

    @functools.wraps(method)
    def guarded(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.guard.entered(self.begin_anew, alone=True):
            return method(self, *args, **kwargs)

    return guarded
