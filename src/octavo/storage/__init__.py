"""The tensors of a plan in torch: `Storage`; host copies of pages; pages in files."""

from octavo.storage.addresses import PageIndex
from octavo.storage.fields import WriteIndex
from octavo.storage.keyvalues import LayerView
from octavo.storage.layers import LayerStore
from octavo.storage.store import Storage

__all__ = ["LayerStore", "LayerView", "PageIndex", "Storage", "WriteIndex"]
