"""NumPy's type of arrays for annotations, by which checkers read element types and `help` does not.

At run time ``NDArray[np.int32]`` is ``numpy.ndarray``, which is what signatures then show.
"""

from typing import TYPE_CHECKING

import numpy as np

__all__ = ["NDArray"]

if TYPE_CHECKING:
    from numpy.typing import NDArray
else:

    class NDArray:
        """An array; element types are for checkers."""

        def __class_getitem__(cls, _: object) -> type[np.ndarray]:
            return np.ndarray
