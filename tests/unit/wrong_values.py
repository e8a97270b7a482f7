"""What people pass by mistake, by name: numbers that are none, scalars and planes of array
libraries, texts, handles of others, and objects that lie about what they are.
"""

import array
from collections import deque
from decimal import Decimal
from fractions import Fraction

import numpy as np
import torch

import octavo
from octavo import Cache, Plan


class Int(int):
    """An int of a class of its own."""


class Text(str):
    """A text of a class of its own."""

    __slots__ = ()


class FailingIndex:
    """It says it is an int, and fails."""

    def __index__(self):
        raise RuntimeError("no index")


class TextIndex:
    """It says it is an int, and is a text."""

    def __index__(self):
        return "3"  # noqa: PLE0305, that is the point


class FailingLength:
    """A sequence without a length."""

    def __len__(self):
        raise RuntimeError("no length")

    def __getitem__(self, at):
        raise RuntimeError("no item")

    def __iter__(self):
        raise RuntimeError("no entries")


class WrongLength(list):
    """A list that says it is longer than it is."""

    def __len__(self):
        return 7


class FailingArray:
    """It says it is an array, and fails."""

    ndim, shape, dtype = 1, (2,), np.dtype(np.int32)

    def __array__(self, *args, **kwargs):
        raise RuntimeError("no array")


class Silent:
    """It can be neither shown, compared, hashed nor tested."""

    def __repr__(self):
        raise RuntimeError("no words")

    __str__ = __repr__

    def __bool__(self):
        raise RuntimeError("no truth")

    def __eq__(self, other):
        raise RuntimeError("no equal")

    def __hash__(self):
        raise RuntimeError("no hash")


class FailingIterator:
    """It fails in the middle."""

    def __iter__(self):
        yield 1
        raise RuntimeError("no more")


def _numbers():
    yield from (
        *(True, False, np.True_, 0, -1, 3, 2**31 - 1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64),
        *(10**100, 10**5000, -(2**31) - 1, -(2**63), -(2**63) - 1, -(2**70), 1.0, 1.5, -0.5),
        *(float("nan"), float("inf"), -float("inf"), 1e300, 1j, np.float32(2), np.float64("nan")),
        *(np.int8(-1), np.int8(3), np.int16(3), np.uint8(255), np.int64(-(2**63))),
        *(np.uint64(2**64 - 1), np.complex64(1), np.datetime64("2026-01-01"), Int(3), Int(-1)),
        *(Decimal(3), Decimal("NaN"), Fraction(3, 1), FailingIndex(), TextIndex()),
    )


def _arrays():
    yield from (np.array(3), np.array(3.0), np.array(None), np.array([]), np.array([], np.int32))
    yield from (np.array([1.0, 2.0]), np.array([np.nan]), np.array([1, 2], object))
    yield from (np.array([None, "x"], object), np.array([1 + 1j]), np.array([True, False]))
    yield from (np.array([1, 2], ">i4"), np.array([1, 2], ">u8"), np.array([2**63], np.uint64))
    yield from (np.array([-1, 2], np.int8), np.array([1, 2], np.int16), np.array([["a", "b"]]))
    yield from (np.ones((2, 2), np.int32), np.ones((1, 0), np.int32), np.array([[1], [2]]))
    yield from (np.arange(8, dtype=np.int32)[::3], np.array(["2026-01-01"], "datetime64[D]"))
    yield from (np.zeros(2, [("a", "i4")]), np.ma.array([1, 2], mask=[True, False]))
    locked = np.array([1, 2], np.int32)
    locked.flags.writeable = False
    yield locked
    yield from (torch.tensor(3), torch.tensor([1, 2]), torch.tensor([1.5]), torch.tensor([True]))
    yield from (torch.ones(2, 2, dtype=torch.int32), torch.empty(2, device="meta"))
    yield torch.ones(2, requires_grad=True)


def _others():
    yield from (None, "no", "", Text("full"), b"12", bytearray(b"12"), "\ud800", "x" * 10_000)
    yield from ([], [1, 2], (1, 2), [[1], [2]], [[1, 2], [3]], [None], ["a"], [True], [1.5])
    yield from ([2**70], [-1], (), (1,), (1, 2, 3), [[]], {}, {1: 2}, {"full": 1}, set(), {1, 2})
    yield from (frozenset({1}), range(3), deque([1, 2]), iter([1, 2]), (n for n in (1, 2)))
    yield from (array.array("i", [1, 2]), array.array("d", [1.0]), memoryview(b"ab"))
    yield from (memoryview(np.ones((2, 2), np.int32)), object(), int, list, len, lambda: 0)
    yield from (
        Ellipsis,
        NotImplemented,
        ValueError("x"),
        FailingLength(),
        FailingArray(),
        Silent(),
    )
    yield from (FailingIterator(), WrongLength([1, 2]), [FailingIndex()], [Silent()], [np.array(3)])
    yield from ([torch.tensor(3)], [np.int8(-1)], [np.True_], [float("nan")], ([1], [2], [3]))
    yield from (([1, 2], [1, 1]), (np.array([1]), [-1]), ([1], None), (None, [1]), ("ab", [1, 1]))


def _handles():
    cache = Cache(Plan.from_pages(9, 4))
    stale, seq = cache.admit([1]), cache.admit([1, 2])
    cache.release(stale)
    yield from (cache, stale, seq, cache.batch(), cache.plan, octavo.Step(), octavo.Salt("a"))
    yield from ([seq], [stale], (seq, 3), [(seq, 3)], cache.extend(seq, 2), cache.stats())


def wrong_values():
    """(name, value) of each, made anew."""
    for make in (_numbers, _arrays, _others, _handles):
        for at, value in enumerate(make()):
            yield f"{make.__name__[1:]}-{at}-{type(value).__name__}", value
