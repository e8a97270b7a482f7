"""The metadata of a GGUF file: its header is read, no tensor.

Knows the format's key-value pairs; no layers.
"""

import struct
from typing import TYPE_CHECKING, Any, BinaryIO

from octavo.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

_SCALARS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
_STRING, _ARRAY = 8, 9
_MOST = 2**24  # bytes of a string, items of an array, pairs: more is no metadata

ARCHITECTURE = "general.architecture"


def gguf_metadata(file: "Path") -> dict[str, Any]:
    """The metadata of a GGUF file about its architecture, by keys without its name. O(metadata).

    Raises:
        ConfigError: no GGUF file, or a damaged one, or one with a key twice.
    """
    try:
        with file.open("rb") as stream:
            found = _pairs(stream)
    except ConfigError:
        raise
    except (OSError, ValueError, struct.error) as error:
        raise ConfigError("path", str(file), f"no GGUF file that can be read: {error}") from None
    prefix = f"{found.get(ARCHITECTURE)}."
    own = {key.removeprefix(prefix): item for key, item in found.items() if key.startswith(prefix)}
    return {ARCHITECTURE: found.get(ARCHITECTURE), **own}


def _pairs(stream: BinaryIO) -> dict[str, Any]:
    if stream.read(4) != b"GGUF":
        raise ValueError("it does not begin as one")
    version, _, count = struct.unpack("<IQQ", stream.read(20))
    if version not in (2, 3) or count > _MOST:
        raise ValueError(f"version {version} with {count} pairs")
    found = dict[str, Any]()
    for _ in range(count):
        key, value = _string(stream), _value(stream, _number(stream, "<I"))
        if key in found:
            raise ConfigError(key, value, f"it stands twice in the file, first as {found[key]!r}")
        found[key] = value
    return found


def _value(stream: BinaryIO, kind: int) -> Any:
    if kind == _STRING:
        return _string(stream)
    if kind == _ARRAY:
        inner, size = _number(stream, "<I"), _size(stream)
        return [_value(stream, inner) for _ in range(size)]
    if kind not in _SCALARS:
        raise ValueError(f"a value of type {kind}")
    return _number(stream, _SCALARS[kind])


def _string(stream: BinaryIO) -> str:
    return stream.read(_size(stream)).decode("utf-8", errors="replace")


def _size(stream: BinaryIO) -> int:
    size: int = _number(stream, "<Q")
    if size > _MOST:
        raise ValueError(f"{size} items")
    return size


def _number(stream: BinaryIO, form: str) -> Any:
    return struct.unpack(form, stream.read(struct.calcsize(form)))[0]
