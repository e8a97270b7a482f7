"""A static cache whose attention sees the active prefix alone."""

from octavo.lazy import on_use

__getattr__ = on_use(__name__)
