"""What makes two equal pages of tokens different, and how identity leaves the process.

Extras are typed: a salt never equals an adapter of the same name. Inside the process they are
compared by value; outside, a page is named by a framed SHA-256 chain that is equal across processes
and interpreter seeds.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from octavo.checks import check_int, entries_of
from octavo.errors import IdentityError

__all__ = [
    "Adapter",
    "CrossInput",
    "Identity",
    "Media",
    "Salt",
    "page_digest",
    "read_extras",
    "root_digest",
]

MediaKey = tuple[tuple[str | bytes | None, int, int], ...]
"""Digests of the media in a page, and where each begins and ends relative to it."""
_MAX_POSITION = 2**31 - 1
_DOMAIN = b"octavo.page.v1"


@dataclass(frozen=True, slots=True)
class Salt:
    """Keeps one tenant's pages from everybody else's."""

    value: str

    def __post_init__(self) -> None:
        _check_text("Salt.value", self.value)


@dataclass(frozen=True, slots=True)
class Adapter:
    """The weights a sequence runs with beside the base model's: name and version."""

    id: str
    version: str | int = 0

    def __post_init__(self) -> None:
        _check_text("Adapter.id", self.id)
        if not isinstance(self.version, (str, int)) or isinstance(self.version, bool):
            raise IdentityError("Adapter.version", self.version, "it must be text or an int")


@dataclass(frozen=True, slots=True)
class Media:
    """What placeholder tokens ``start..stop-1`` stand for.

    Attributes:
        digest: identity of content and processing options, compared whole; None: unknown, so that
            pages from here on are never shared.
    """

    digest: str | bytes | None
    start: int
    stop: int

    def __post_init__(self) -> None:
        if self.digest is not None and not (isinstance(self.digest, (str, bytes)) and self.digest):
            raise IdentityError("Media.digest", self.digest, "it must be text or bytes, or None")
        start = check_int("Media.start", self.start, 0, _MAX_POSITION)
        object.__setattr__(self, "start", start)
        stop = check_int("Media.stop", self.stop, start + 1, _MAX_POSITION)
        object.__setattr__(self, "stop", stop)


@dataclass(frozen=True, slots=True)
class CrossInput:
    """Another input, such as an encoded recording, that a sequence attends to.

    Attributes:
        digest: identity of its content, compared whole.
        length: its tokens.
    """

    digest: str | bytes
    length: int

    def __post_init__(self) -> None:
        if not (isinstance(self.digest, (str, bytes)) and self.digest):
            raise IdentityError("cross.digest", self.digest, "it must be text or bytes")
        length = check_int("cross.length", self.length, 1, _MAX_POSITION)
        object.__setattr__(self, "length", length)


Extra = Salt | Adapter | Media | CrossInput
RootKey = tuple[Salt | Adapter | CrossInput, ...]
"""What whole sequences depend on beside their tokens."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The extras of one sequence, sorted by where they apply.

    Attributes:
        root: what the whole sequence depends on: salts and adapters, in a fixed order.
        media: media in order of position.
        cross: the input that cross attention reads; part of ``root`` too.
    """

    root: RootKey = ()
    media: tuple[Media, ...] = ()
    cross: CrossInput | None = None

    def page_keys(self, page_size: int, columns: int) -> dict[int, MediaKey]:
        """`page_key` of each page with media among the first, by column. O(media + these pages)."""
        found: dict[int, list[tuple[str | bytes | None, int, int]]] = {}
        for m in self.media:
            for column in range(m.start // page_size, min(columns, -(-m.stop // page_size))):
                start = column * page_size
                found.setdefault(column, []).append((m.digest, m.start - start, m.stop - start))
        return {column: tuple(key) for column, key in found.items()}

    def page_key(self, start: int, stop: int) -> MediaKey:
        """What tells the page of positions ``start..stop-1`` from its like in tokens. O(media)."""
        return tuple(
            (m.digest, m.start - start, m.stop - start)
            for m in self.media
            if m.start < stop and m.stop > start
        )

    @property
    def shared_until(self) -> int | None:
        """First position whose content is unknown, so that no page from there on is shared."""
        if not self.media:
            return None
        return min((m.start for m in self.media if m.digest is None), default=None)


NO_EXTRAS = Identity()


def read_extras(
    extras: Iterable[Extra], cross: CrossInput | tuple[str | bytes, int] | None = None
) -> Identity:
    """Check and sort ``extras``, and the cross input the whole sequence depends on. O(n log n).

    Raises:
        IdentityError: not Salt, Adapter, Media or CrossInput, two of a kind that stands alone, or
            media that overlap.
    """
    if cross is None and isinstance(extras, tuple) and not extras:
        return NO_EXTRAS
    items = [extras] if isinstance(extras, Extra) else _extras_in(extras)
    if cross is not None:
        items.append(_read_cross(cross))
    for item in items:
        if not isinstance(item, Extra):
            right = "it must hold Salt, Adapter, Media and CrossInput only"
            raise IdentityError("extra", item, right)
    root: list[Salt | Adapter | CrossInput] = []
    for kind in (Salt, Adapter, CrossInput):
        found = [item for item in items if isinstance(item, kind)]
        if len(found) > 1:
            raise IdentityError("extra", found, f"at most one {kind.__name__}")
        root += found
    media = sorted((m for m in items if isinstance(m, Media)), key=lambda m: m.start)
    for before, after in pairwise(media):
        if after.start < before.stop:
            raise IdentityError("extra", (before, after), "media must not overlap")
    inputs = [item for item in root if isinstance(item, CrossInput)]
    return Identity(tuple(root), tuple(media), inputs[0] if inputs else None)


def _extras_in(extras: object) -> list[Any]:
    right = "it must be a list of Salt, Adapter, Media and CrossInput"
    listed = list(extras) if isinstance(extras, (set, frozenset)) else extras  # they are sorted
    return entries_of(listed, lambda: IdentityError("extra", extras, right))


def _read_cross(cross: object) -> CrossInput:
    if isinstance(cross, tuple) and len(cross) == 2:
        return CrossInput(*cross)
    if not isinstance(cross, CrossInput):
        raise IdentityError("cross", cross, "it must be (digest, length)")
    return cross


def root_digest(root: RootKey) -> bytes:
    """Digest of the node before the first page of sequences with these salts and adapters."""
    fields: list[bytes] = [_DOMAIN]
    for item in root:
        if isinstance(item, Salt):
            fields += [b"salt", item.value.encode("utf-8", "surrogatepass")]
        elif isinstance(item, Adapter):
            kind = b"i" if isinstance(item.version, int) else b"s"
            version = kind + str(item.version).encode("utf-8", "surrogatepass")
            fields += [b"adapter", item.id.encode("utf-8", "surrogatepass"), version]
        elif isinstance(item, CrossInput):
            fields += [b"cross", _content(item.digest), str(item.length).encode()]
    return _framed(fields)


def page_digest(parent: bytes, tokens: bytes, key: MediaKey) -> bytes:
    """Digest of a page after ``parent``: SHA-256 of length-prefixed fields. O(page)."""
    fields = [parent, tokens]
    for digest, start, stop in key:
        fields += [b"media", _content(digest), str(start).encode(), str(stop).encode()]
    return _framed(fields)


def _content(digest: object) -> bytes:
    """The bytes of a digest; bytes and text never give the same."""
    if isinstance(digest, bytes):
        return b"b" + digest
    return b"s" + str(digest).encode("utf-8", "surrogatepass")


def _framed(fields: Iterable[bytes]) -> bytes:
    from hashlib import sha256  # here: pages are named only for somebody who listens

    digest = sha256()
    for item in fields:
        digest.update(len(item).to_bytes(8, "little"))
        digest.update(item)
    return digest.digest()


def _check_text(name: str, value: object) -> None:
    if not isinstance(value, str) or not value:
        raise IdentityError(name, value, "it must be text of at least one character")
