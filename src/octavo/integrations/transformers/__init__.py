"""A drop-in cache for transformers: pages, prefixes and forks under `model.generate()`."""

from octavo.integrations.transformers.cache import OctavoCache

TESTED_WITH = ("5.24.0",)
"""Versions of transformers that the tests of this package were run with."""

__all__ = ["TESTED_WITH", "OctavoCache"]
