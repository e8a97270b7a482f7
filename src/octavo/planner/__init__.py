"""What fits: from a model's spec and a budget of bytes to pages, groups and tensors."""

from octavo.lazy import on_use

__getattr__ = on_use(__name__)
