"""What a caller may ask of every format, and its checks."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypedDict

from octavo.checks import check_int
from octavo.errors import CapacityError, PlanError

Form = Literal["absolute", "compact"]


class Options(TypedDict, total=False):
    """The keywords all formats share; explained in `octavo.index`."""

    rows: int | None
    kernel: str | None
    kernel_page: int | None
    form: Form
    slot_fill: int
    page_fill: int | None
    max_query_len: int | None
    max_seq_len: int | None


class Choice(NamedTuple):
    """The same, with what stands where nothing is said."""

    rows: int | None = None
    kernel: str | None = None
    kernel_page: int | None = None
    form: Form = "absolute"
    slot_fill: int = -1
    page_fill: int | None = None
    max_query_len: int | None = None
    max_seq_len: int | None = None


def read_options(options: Mapping[str, Any]) -> Choice:
    """Options as given, with what stands where nothing is said. O(options).

    Raises:
        PlanError: one that is not known.
    """
    try:
        return Choice(**options)
    except TypeError:
        unknown = next(name for name in options if name not in Choice._fields)
        right = f"known options are: {', '.join(Choice._fields)}"
        raise PlanError("option", unknown, right) from None


def check_fill(name: str, value: int) -> int:
    """``value``, if a kernel can tell it from an address. O(1).

    Raises:
        PlanError: it is neither -1 nor 0.
    """
    if type(value) is not int or value not in (-1, 0):
        raise PlanError(
            name, value, "it must be -1, which is no address, or 0, which lies in the null page"
        )
    return value


def bounded(name: str, longest: int, bound: int | None) -> int:
    """The bound a caller named, or ``longest`` itself. O(1).

    Raises:
        LengthError: the bound is no int of at least 1.
        CapacityError: ``longest`` is beyond it.
    """
    if bound is None:
        return longest
    if longest > check_int(name, bound, 1, 2**31 - 1):
        raise CapacityError(name, longest, bound, "the bound named for all steps")
    return bound
