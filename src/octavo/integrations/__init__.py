"""octavo inside other libraries: a module or package each, imported on use."""

from octavo.lazy import on_use

__getattr__ = on_use(__name__)
