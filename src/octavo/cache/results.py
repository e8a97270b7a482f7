"""What a cache answers: small named results without any behaviour but a pin's release."""

from typing import Any, NamedTuple, Self

import numpy as np

from octavo.arrays import NDArray
from octavo.cache.sequence import Sequence
from octavo.cache.verbs import verb
from octavo.errors import uncopied

__all__ = ["Committed", "Explanation", "Fit", "Held", "Match", "Pin", "Repointed", "Stats"]

Ints = NDArray[np.int32]


class Repointed(NamedTuple):
    """A table entry moved to an equal page that was published before."""

    sequence: Sequence
    group: str
    column: int
    old: int
    new: int


class Committed(NamedTuple):
    """What a commit did: pages newly published, entries repointed, pages windows gave back."""

    published: int
    repointed: tuple[Repointed, ...]
    dropped: int


class Held(NamedTuple):
    """What a sequence holds of a group.

    Attributes:
        columns: int32[k], logical pages, ascending; of states, places of its table.
        pages: int32[k], the page of each.
    """

    columns: Ints
    pages: Ints


class Match(NamedTuple):
    """What the prefix cache holds of a prompt.

    Attributes:
        tokens: leading tokens whose KV could be reused now.
        by_group: the same by group name, each for itself.
        pending: further pages of the prompt that admitted sequences are computing now.
    """

    tokens: int
    by_group: dict[str, int]
    pending: int


class Explanation(NamedTuple):
    """Why a prompt would hit as much as it does; ``str()`` gives the reason.

    Attributes:
        tokens: leading tokens that would be reused.
        limit: most that could be: full pages, at least one token left.
        by_group: tokens each group could serve alone.
        group: the group that set the boundary; None: the prompt's end did.
        reason: in words.
    """

    tokens: int
    limit: int
    by_group: dict[str, int]
    group: str | None
    reason: str

    def __str__(self) -> str:
        return self.reason


class Fit(NamedTuple):
    """Whether requests can all run to their limits at once; true when they can.

    Attributes:
        short: pages missing by group name, 0 where none are.
    """

    short: dict[str, int]

    def __bool__(self) -> bool:
        return not any(self.short.values())


class Stats(NamedTuple):
    """Counts of a cache at one moment, and totals since it was made.

    Attributes:
        pages: usable pages (packed: parents), ``live + evictable + free``.
        live: pages held (packed: parents with a held page).
        evictable: published pages nobody holds (packed: parents with such pages only).
        free: pages that hold nothing.
        peak_live: most ``live`` ever.
        sequences: sequences admitted and not released.
        prompt_tokens: tokens of all prompts admitted so far.
        cached_tokens: those of them found in the prefix cache; resumed sequences do not count.
        evicted: published pages given up for new tokens so far.
        preemptions: sequences preempted so far.
        snapshots: states kept for later prompts now.
    """

    pages: int
    live: int
    evictable: int
    free: int
    peak_live: int
    sequences: int
    prompt_tokens: int
    cached_tokens: int
    evicted: int
    preemptions: int
    snapshots: int


class Pin:
    """A published prefix held until it is released, so that it is not evicted. Made by `Cache.pin`.

    As a context manager it is released at the end.

    Attributes:
        tokens: leading tokens held.
        pages: the pages held, by group number; read-only. Chunks that are whole need none.
        node: the last page held in the prefix index, which stays known; 0: none.
    """

    __reduce__ = uncopied("it holds pages of its cache; pin the prefix once more")

    def __init__(self, cache: Any, tokens: int, pages: list[Ints], node: int) -> None:
        for held in pages:
            held.flags.writeable = False
        self._cache, self.tokens, self.pages, self.node = cache, tokens, tuple(pages), node

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.release()

    @verb
    def release(self) -> None:
        """Let go. O(pages).

        Raises:
            StepError: released before, or its cache was reset.
        """
        self._cache._unpin(self)
