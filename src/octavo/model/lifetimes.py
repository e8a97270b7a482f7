"""How long the layers of a group keep what they hold: one small class a lifetime.

Pure arithmetic on positions and columns (logical pages). A lifetime answers three questions: which
columns a sequence must still hold, which columns a prefix hit needs, and how far back it can go.
"""

from dataclasses import dataclass
from math import gcd, lcm
from typing import Literal

import numpy as np

from octavo.arrays import NDArray
from octavo.checks import check_int
from octavo.model.layers import Attention, Compressed, Cross, Latent, LayerKind, State

Int64s = NDArray[np.int64]
Form = Literal["tokens", "rows", "state", "cross"]


@dataclass(frozen=True, slots=True)
class Lifetime:
    """Base: every token is kept (full attention).

    Attributes:
        form: what a page holds: consecutive tokens, rows of several tokens each, one state, or part
            of a cross-attended input.
    """

    form: Form = "tokens"

    def floor(self, position: int) -> int:
        """First position, sinks apart, that a query at ``position`` or later can see. O(1)."""
        del position
        return 0

    def floors(self, positions: Int64s) -> Int64s:
        """`floor` of each of ``positions``. O(n)."""
        return np.zeros_like(positions)

    def first_after(self, floor: int) -> int:
        """Lowest position with a `floor` of at least ``floor``: how far back it can go. O(1)."""
        return floor

    def turns(self, page_size: int) -> int | None:
        """The place in a page of all positions where `floor` comes to a new page; None: various."""
        del page_size
        return 0

    def units(self, page_size: int) -> int:
        """What a page holds at most: tokens, or rows that stand for several of them."""
        return page_size

    @property
    def sinks(self) -> int:
        """Leading positions that are always seen."""
        return 0

    @property
    def slides(self) -> bool:
        """Whether it drops tokens of a sequence that goes on: windows and chunks."""
        return self.floor(2**62) > 0

    def steady_pages(self, length: int, page_size: int, spare: int = 0) -> int:
        """Most pages a sequence of ``length`` tokens holds when it runs token by token. O(1).

        Args:
            spare: positions kept beyond what queries see, for rollback and steps in flight.
        """
        del spare
        return -(-length // page_size)


@dataclass(frozen=True, slots=True)
class Window(Lifetime):
    """The last ``window`` tokens, the query's own included, and the first ``sink_tokens``."""

    window: int = 1
    sink_tokens: int = 0

    def floor(self, position: int) -> int:
        """A query at q sees keys k with q - window < k <= q. O(1)."""
        return max(0, position - self.window + 1)

    def floors(self, positions: Int64s) -> Int64s:
        """`floor` of each of ``positions``. O(n)."""
        return np.maximum(positions - (self.window - 1), 0)

    def first_after(self, floor: int) -> int:
        """Lowest position with a `floor` of at least ``floor``. O(1)."""
        return floor + self.window - 1 if floor else 0

    def turns(self, page_size: int) -> int:
        """The place in a page of all positions where `floor` comes to a new page. O(1)."""
        return (self.window - 1) % page_size

    @property
    def sinks(self) -> int:
        """Leading positions that are always seen."""
        return self.sink_tokens

    def steady_pages(self, length: int, page_size: int, spare: int = 0) -> int:
        """Sinks, and a window that begins anywhere in a page. O(1)."""
        spread = -(-(self.window - 1 + spare) // page_size) + 1
        return min(-(-length // page_size), spread + -(-self.sink_tokens // page_size))


@dataclass(frozen=True, slots=True)
class Chunked(Lifetime):
    """The tokens of the query's own chunk of ``chunk`` positions."""

    chunk: int = 1

    def floor(self, position: int) -> int:
        """A query at q sees keys from the start of its chunk. O(1)."""
        return position // self.chunk * self.chunk

    def floors(self, positions: Int64s) -> Int64s:
        """`floor` of each of ``positions``. O(n)."""
        return positions // self.chunk * self.chunk

    def first_after(self, floor: int) -> int:
        """Lowest position with a `floor` of at least ``floor``. O(1)."""
        return -(-floor // self.chunk) * self.chunk

    def turns(self, page_size: int) -> int | None:
        """Where chunks begin at pages or pages at chunks: there. O(1)."""
        return None if self.chunk % page_size and page_size % self.chunk else 0

    def steady_pages(self, length: int, page_size: int, spare: int = 0) -> int:
        """A chunk, and the page it shares with the one before; two where some is spare. O(1)."""
        tokens = self.chunk - 1 + (self.chunk + spare if spare else 0)
        return min(-(-length // page_size), -(-tokens // page_size) + 1)


@dataclass(frozen=True, slots=True)
class Rows(Lifetime):
    """A row for every ``every`` tokens, as long as its sequence lives.

    A page holds the rows of ``page_size`` tokens, or where that is no whole number of them, of the
    fewest pages' tokens that is one.
    """

    every: int = 1

    def units(self, page_size: int) -> int:
        """Rows a page holds."""
        return page_size // gcd(page_size, self.every)

    def steady_pages(self, length: int, page_size: int, spare: int = 0) -> int:
        """Pages whose tokens have begun. O(1)."""
        del spare
        return -(-length // lcm(page_size, self.every))


FULL = Lifetime()
"""Every token, as long as its sequence lives."""


def lifetime_of(kind: LayerKind) -> Lifetime:
    """The lifetime of a layer kind that keeps something. O(1)."""
    if isinstance(kind, State):
        return Lifetime("state")
    if isinstance(kind, Cross):
        return Lifetime("cross")
    if isinstance(kind, Compressed):
        return Rows("rows", every=check_int("every", kind.every, 2))
    if isinstance(kind, Attention | Latent) and kind.window is not None:
        sinks = kind.sink_tokens if isinstance(kind, Attention) else 0
        window = check_int("window", kind.window, 1)
        return Window(window=window, sink_tokens=check_int("sink_tokens", sinks, 0))
    if isinstance(kind, Attention) and kind.chunk is not None:
        return Chunked(chunk=check_int("chunk", kind.chunk, 1))
    return Lifetime()


def group_name(kind: LayerKind) -> str:
    """Name of the group of layers that keep things as long as ``kind``. O(1)."""
    lifetime = lifetime_of(kind)
    if isinstance(lifetime, Window):
        sinks = f"_s{lifetime.sink_tokens}" if lifetime.sink_tokens else ""
        return f"window_{lifetime.window}{sinks}"
    if isinstance(lifetime, Chunked):
        return f"chunked_{lifetime.chunk}"
    if isinstance(lifetime, Rows):
        return f"every_{lifetime.every}"
    return "full" if lifetime.form == "tokens" else lifetime.form
