"""What `check_kernel` is told, made tuples of names, sizes and pairs, or refused by name."""

from collections.abc import Collection
from typing import Any

from octavo.checks import check_choice, check_int, check_number
from octavo.errors import PlanError


def names(name: str, told: object, known: Collection[str]) -> tuple[str, ...]:
    """``told`` as names, each one of ``known``. O(told).

    Raises:
        PlanError: another name, or no sequence.
    """
    return tuple(check_choice(name, each, sorted(known)) for each in _items(name, told))


def sizes(name: str, told: object) -> tuple[int, ...]:
    """``told`` as ints of at least 1. O(told).

    Raises:
        PlanError: no sequence. LengthError: another value in it.
    """
    return tuple(check_int(name, each, 1) for each in _items(name, told))


def pairs(name: str, told: object) -> tuple[tuple[int, int], ...]:
    """``told`` as pairs of ints of at least 1. O(told).

    Raises:
        PlanError: no sequence of pairs. LengthError: another value in one.
    """
    found = [sizes(name, each) for each in _items(name, told)]
    for pair in found:
        if len(pair) != 2:
            raise PlanError(name, told, "each must be a pair")
    return tuple((first, second) for first, second in found)


def head_pairs(name: str, told: object) -> tuple[tuple[int, int], ...]:
    """``told`` as pairs of query and key/value heads. O(told).

    Raises:
        PlanError, LengthError: as of `pairs`, or query heads that are no multiple.
    """
    found = pairs(name, told)
    for pair in found:
        if pair[0] % pair[1]:
            raise PlanError(name, pair, "query heads must be a multiple of key/value heads")
    return found


def tolerance(told: object) -> float:
    """``told`` as a finite number of at least 0. O(1).

    Raises:
        PlanError: it is none.
    """
    number = check_number("tolerance", told)
    if number < 0:
        raise PlanError("tolerance", told, "it must be a finite number of at least 0")
    return number


def functions(**told: object) -> None:
    """Refuse what cannot be called. O(told).

    Raises:
        PlanError: the argument's name and value.
    """
    for name, each in told.items():
        if not callable(each):
            raise PlanError(name, each, "it must be a function")


def _items(name: str, told: Any) -> tuple[Any, ...]:
    try:
        return tuple(told)
    except TypeError:
        raise PlanError(name, told, "it must be a sequence") from None
