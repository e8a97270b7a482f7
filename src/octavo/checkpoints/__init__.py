"""What gets a model and runs none: named models, wheels, GGUF files, loading, text."""

from octavo.lazy import on_use

__getattr__ = on_use(__name__)
