"""Element types by name."""

import pytest

from octavo.dtypes import DTYPES, dtype
from octavo.errors import PlanError


@pytest.mark.parametrize(
    ("name", "size", "torch_name"),
    [
        ("fp64", 8, "float64"),
        ("fp32", 4, "float32"),
        ("fp16", 2, "float16"),
        ("bf16", 2, "bfloat16"),
    ],
)
def test_types_are_found_by_either_name(name, size, torch_name):
    """A type is found by octavo's name, by torch's and by itself, and knows its size."""
    found = dtype(name)

    assert (name, size, torch_name) == tuple(found)
    assert found is dtype(torch_name)
    assert found is dtype(found)
    assert name == str(found)


@pytest.mark.parametrize("name", ["int7", "", "BF16", None, 16, []])
def test_unknown_types_are_refused_with_the_known_ones(name):
    """An unknown name raises PlanError that lists what is known."""
    with pytest.raises(PlanError) as caught:
        dtype(name)

    assert {"field": "dtype", "value": name} == vars(caught.value)
    assert f"dtype is {name!r}; known types are: {', '.join(DTYPES)}" == str(caught.value)
