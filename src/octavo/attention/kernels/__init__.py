"""One module a backend of attention, named as `octavo.attention.backend` names it."""

from octavo.lazy import on_use

__getattr__ = on_use(__name__)
