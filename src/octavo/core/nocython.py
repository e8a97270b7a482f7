"""Stands in for the module ``cython`` where the core is interpreted.

A module of the core that needs to know writes ``from octavo.core import nocython as cython``, in
these words: the build hook makes ``import cython`` of them, so that ``cython.compiled`` is a
constant for the C compiler and Cython is never loaded at run time.
"""

from collections.abc import Callable
from typing import TypeVar

compiled = False
_T = TypeVar("_T")


def boundscheck(check: bool) -> Callable[[_T], _T]:
    """Whether C checks each index of a function: off where it has checked the whole range."""
    del check
    return lambda function: function
