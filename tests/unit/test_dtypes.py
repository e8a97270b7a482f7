"""Element types by name."""

import pytest
import torch

from octavo.errors import PlanError
from octavo.model.dtypes import DTYPES, dtype


@pytest.mark.parametrize(
    ("name", "bits", "torch_name"),
    [
        ("fp64", 64, "float64"),
        ("fp32", 32, "float32"),
        ("fp16", 16, "float16"),
        ("bf16", 16, "bfloat16"),
        ("fp8", 8, "float8_e4m3fn"),
        ("fp8_e5m2", 8, "float8_e5m2"),
        ("int8", 8, "int8"),
    ],
)
def test_types_are_found_by_either_name(name, bits, torch_name):
    """A type is found by octavo's name, by torch's and by itself, and knows its size."""
    found = dtype(name)

    assert (name, bits, torch_name) == tuple(found)
    assert 6 * bits // 8 == found.size(6)
    assert found is dtype(torch_name)
    assert found is dtype(getattr(torch, torch_name))
    assert found is dtype(found)
    assert name == str(found)


@pytest.mark.parametrize("name", ["int7", "", "BF16", None, 16, []])
def test_unknown_types_are_refused_with_the_known_ones(name):
    """An unknown name raises PlanError that lists what is known."""
    with pytest.raises(PlanError) as caught:
        dtype(name)

    assert {"field": "dtype", "value": name} == vars(caught.value)
    assert f"dtype is {name!r}; known types are: {', '.join(DTYPES)}" == str(caught.value)


def test_two_elements_of_int4_share_a_byte():
    """Elements that do not fill whole bytes are refused; no torch name means int4."""
    assert 3 == dtype("int4").size(6)
    assert dtype("uint4" if "uint4" in DTYPES else "int4") is DTYPES["int4"]
    with pytest.raises(PlanError, match="7 elements do not fill whole bytes"):
        dtype("int4").size(7)
