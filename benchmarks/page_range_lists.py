"""Slot mapping as lists of Python ints: what octavo's own is measured against."""

import numpy as np
from numpy.typing import NDArray


def page_range_lists(pages: list[int], page_size: int, start: int, stop: int) -> list[int]:
    """Slots built one page at a time, as consecutive ranges; one token has its own path."""
    if stop - start == 1:
        page, offset = divmod(start, page_size)
        return [pages[page] * page_size + offset]
    slots: list[int] = []
    position = start
    while position < stop:
        page, offset = divmod(position, page_size)
        count = min(page_size - offset, stop - position)
        first = pages[page] * page_size + offset
        slots.extend(range(first, first + count))
        position += count
    return slots


def page_range_array(pages: list[int], page_size: int, start: int, stop: int) -> NDArray[np.int32]:
    """The same as an array, which is what kernels take."""
    return np.array(page_range_lists(pages, page_size, start, stop), np.int32)


def per_token_formula(pages: list[int], page_size: int, start: int, stop: int) -> list[int]:
    """Slots one token at a time."""
    return [pages[i // page_size] * page_size + i % page_size for i in range(start, stop)]
