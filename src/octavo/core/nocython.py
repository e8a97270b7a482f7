"""Stands in for the module ``cython`` where the core is interpreted.

A module of the core that needs to know writes ``from octavo.core import nocython as cython``, in
these words: the build hook makes ``import cython`` of them, so that ``cython.compiled`` is a
constant for the C compiler and Cython is never loaded at run time.
"""

from contextlib import nullcontext

compiled = False


def boundscheck(on: bool) -> nullcontext[None]:
    """Switches checks of indices in C, for a block that has checked its own; here nothing does."""
    del on
    return nullcontext()
