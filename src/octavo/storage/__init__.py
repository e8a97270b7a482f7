"""The tensors of a plan in torch: `Storage`; pages in host memory, in files, and whole prefixes."""

from octavo.storage.addresses import PageIndex
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
    "load_pages",
    "load_prefix",
    "save_pages",
    "save_prefix",
]
