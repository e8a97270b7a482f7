"""Arguments: what is taken, as which type, and what is refused by name."""

import numpy as np
import pytest

from octavo.checks import (
    check_choice,
    check_flag,
    check_int,
    check_number,
    check_positive,
    check_tokens,
)
from octavo.errors import LengthError, PlanError, TokenError


@pytest.mark.parametrize("value", [3, np.int32(3), np.int64(3)])
def test_check_int_takes_anything_that_counts(value):
    """Ints of Python and NumPy come back as a plain int."""
    assert int is type(check_int("n", value, 1))
    assert 3 == check_int("n", value, 1, 3)


@pytest.mark.parametrize(
    ("value", "high", "message"),
    [
        (0, None, "n is 0; it must be an int of at least 1"),
        (5, 4, "n is 5; it must be an int of at least 1 and at most 4"),
        (True, None, "n is True; it must be an int of at least 1"),
        (2.0, None, "n is 2.0; it must be an int of at least 1"),
        ("2", None, "n is '2'; it must be an int of at least 1"),
        (None, None, "n is None; it must be an int of at least 1"),
    ],
)
def test_check_int_refuses_the_rest(value, high, message):
    """Numbers outside the range, bools, floats and text raise LengthError."""
    with pytest.raises(LengthError) as caught:
        check_int("n", value, 1, high)

    assert {"name": "n", "value": value, "low": 1, "high": high} == vars(caught.value)
    assert message == str(caught.value)


@pytest.mark.parametrize("value", [2, 2.0, np.float32(2), np.int8(2)])
def test_numbers_are_floats(value):
    """Any real number of Python or NumPy is a float."""
    assert float is type(check_number("n", value)) is type(check_positive("n", value))
    assert 2 == check_number("n", value) == check_positive("n", value, "float32")


@pytest.mark.parametrize("value", [True, "2", None, np.nan, float("inf"), 10**400, np.ones(1)])
def test_what_is_no_finite_number(value):
    """Bools, texts, arrays and numbers without an end are refused by name."""
    with pytest.raises(PlanError, match=r"^n is .*; it must be a finite number$"):
        check_number("n", value)
    with pytest.raises(PlanError, match=r"^n is .*; it must be a finite number above 0$"):
        check_positive("n", value)


def test_numbers_that_a_type_does_not_hold():
    """Neither overflow nor 0 in the type that is named; 0 itself is a number, but not above 0."""
    assert 0 == check_number("n", 0, "float32")
    for value in (1e39, 1e-50):
        assert value == check_number("n", value)
        with pytest.raises(PlanError, match="that float32 holds"):
            check_number("n", value, "float32")
    for value in (0, -1):
        with pytest.raises(PlanError, match="above 0"):
            check_positive("n", value)


def test_flags_and_choices():
    """Bools of Python and NumPy, and one of some names."""
    assert [True, False] == [check_flag("f", np.True_), check_flag("f", False)]
    assert "a" == check_choice("c", "a", ("a", "b"))
    with pytest.raises(PlanError, match="f is 1; it must be True or False"):
        check_flag("f", 1)
    for value in ("c", None, 1):
        with pytest.raises(PlanError, match="one of a, b"):
            check_choice("c", value, ("a", "b"))


@pytest.mark.parametrize(
    "tokens", [[1, 2], (1, np.int64(2)), range(1, 3), np.array([1, 2], np.uint8)]
)
def test_tokens_are_int32(tokens):
    """Ids of any sequence or integer array are an int32 array; an int32 one is not copied."""
    found = check_tokens(tokens)

    assert ([1, 2], np.int32) == (found.tolist(), found.dtype)
    assert found is check_tokens(found)
    assert 0 == check_tokens([]).size


@pytest.mark.parametrize(
    ("tokens", "index"),
    [
        ([1, -1], 1),
        ([1, 2**31], 1),
        ([1, 2**70], 1),
        ([1, True], 1),
        ([1.0], 0),
        ("12", 0),
        (5, 0),
        (np.array([1, -1], np.int32), 1),
        (np.array([1, 2**31], np.int64), 1),
        (np.ones((1, 1), np.int32), 0),
        (np.array([1.0]), 0),
    ],
)
def test_what_is_no_token_is_named(tokens, index):
    """The first entry that is no id in 0..2**31-1 is the one an error names."""
    with pytest.raises(TokenError) as caught:
        check_tokens(tokens)

    assert index == caught.value.index
