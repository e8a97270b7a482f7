"""Sequences, pages and the prefix index as plain loops over flat arrays.

One text: ordinary Python in ``X.py``, the C types of its variables in ``X.pxd`` beside it. Where it
was compiled when octavo was installed, the extensions run; else the source as it stands, to the
same results.

Attributes:
    compiled: whether the extensions run.
    why_not: why the source runs, or None.
"""

from octavo.core import build

why_not = build.choose(__path__)
compiled = why_not is None

__all__ = ["compiled", "why_not"]
