"""What makes a method a verb of a cache: nothing else is inside it, and events come after it.

A verb reads and writes the core in several calls. A second thread between two of them, or a policy
or an argument that calls the cache back, would find it half done, and is refused.
"""

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from octavo.errors import CacheInUse

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")


def verb(call: Callable[Concatenate[S, P], R]) -> Callable[Concatenate[S, P], R]:
    """A method of a cache, or of a handle that has its ``_cache``, as a verb. O(1) beside it.

    `octavo.Cache.extend` and `octavo.Cache.commit`, which every step runs, say the same inline.

    Raises:
        CacheInUse: another verb is inside the cache; this one changed nothing.
    """

    @wraps(call)
    def entered(self: S, /, *args: P.args, **kwargs: P.kwargs) -> R:
        cache: Any = getattr(self, "_cache", self)
        if cache._inside:
            raise CacheInUse(call.__name__)
        try:
            cache._inside = True  # in time: Python changes threads at calls and in loops alone
            done = call(self, *args, **kwargs)
        finally:
            cache._inside = False
        if cache._log is not None:  # last: a listener may call verbs
            cache._log.deliver()
        return done

    return entered
