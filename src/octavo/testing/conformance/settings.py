"""The arguments of `check_kernel`, made tuples of names, sizes and pairs, or refused by name."""

from collections.abc import Collection
from typing import Any

from octavo.checks import check_choice, check_int, check_number
from octavo.errors import PlanError


def names(name: str, given: object, known: Collection[str]) -> tuple[str, ...]:
    """``given`` as names, each one of ``known``. O(given).

    Raises:
        PlanError: another name, or no sequence.
    """
    return tuple(check_choice(name, each, sorted(known)) for each in _items(name, given))


def sizes(name: str, given: object) -> tuple[int, ...]:
    """``given`` as ints of at least 1. O(given).

    Raises:
        PlanError: no sequence. LengthError: another value in it.
    """
    return tuple(check_int(name, each, 1) for each in _items(name, given))


def pairs(name: str, given: object) -> tuple[tuple[int, int], ...]:
    """``given`` as pairs of ints of at least 1. O(given).

    Raises:
        PlanError: no sequence of pairs. LengthError: another value in one.
    """
    found = [sizes(name, each) for each in _items(name, given)]
    for pair in found:
        if len(pair) != 2:
            raise PlanError(name, given, "each must be a pair")
    return tuple((first, second) for first, second in found)


def head_pairs(name: str, given: object) -> tuple[tuple[int, int], ...]:
    """``given`` as pairs of query and key/value heads. O(given).

    Raises:
        PlanError, LengthError: as of `pairs`, or query heads that are no multiple.
    """
    found = pairs(name, given)
    for pair in found:
        if pair[0] % pair[1]:
            raise PlanError(name, pair, "query heads must be a multiple of key/value heads")
    return found


def tolerance(given: object) -> float:
    """``given`` as a finite number of at least 0. O(1).

    Raises:
        PlanError: it is none.
    """
    number = check_number("tolerance", given)
    if number < 0:
        raise PlanError("tolerance", given, "it must be a finite number of at least 0")
    return number


def functions(**given: object) -> None:
    """Refuse what cannot be called. O(given).

    Raises:
        PlanError: the argument's name and value.
    """
    for name, each in given.items():
        if not callable(each):
            raise PlanError(name, each, "it must be a function")


def _items(name: str, given: Any) -> tuple[Any, ...]:
    try:
        return tuple(given)
    except TypeError:
        raise PlanError(name, given, "it must be a sequence") from None
