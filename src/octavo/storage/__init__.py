"""The bytes of a plan: `Storage` in torch; pages in host memory, in files, and whole prefixes.

Importing the package does not load torch; using one of its names does, but for `copy_pages`.
"""

from importlib.util import find_spec
from typing import TYPE_CHECKING

from octavo.lazy import on_use

if TYPE_CHECKING:
    from octavo.storage.addresses import PageIndex
    from octavo.storage.copies import copy_pages
    from octavo.storage.fields import WriteIndex
    from octavo.storage.files import PageFile, load_pages, save_pages
    from octavo.storage.keyvalues import LayerView
    from octavo.storage.layers import LayerStore
    from octavo.storage.mirror import HostMirror
    from octavo.storage.prefixes import load_prefix, save_prefix
    from octavo.storage.store import Storage

__all__ = [
    "HostMirror",
    "LayerStore",
    "LayerView",
    "PageFile",
    "PageIndex",
    "Storage",
    "WriteIndex",
    "copy_pages",
    "load_pages",
    "load_prefix",
    "save_pages",
    "save_prefix",
]

_HOMES = {
    "HostMirror": "mirror",
    "LayerStore": "layers",
    "LayerView": "keyvalues",
    "PageFile": "files",
    "PageIndex": "addresses",
    "Storage": "store",
    "WriteIndex": "fields",
    "copy_pages": "copies",
    "load_pages": "files",
    "load_prefix": "prefixes",
    "save_pages": "files",
    "save_prefix": "prefixes",
}

__getattr__ = on_use(__name__, _HOMES)


def __dir__() -> list[str]:
    """What `help` shows and editors complete: what is imported on use too, where it can be."""
    return sorted({*globals(), *(__all__ if find_spec("torch") else ())})
