"""A plan told in words."""

import pytest

import octavo
from octavo import Attention, ModelSpec, Plan
from octavo.explain import amount


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1 MiB"),
        (2**30 + 2**28, "1.25 GiB"),
        (100 * 2**30, "100 GiB"),
        (2**40, "1 TiB"),
        (2**50, "1024 TiB"),
        (2**40 - 1, "1024 GiB"),
        (2**20 + 2**19 + 1, "1.5 MiB"),
        (10**400 * 2**40, f"{10**400} TiB"),
    ],
)
def test_amounts_in_binary_units(size, text):
    """The largest unit of which there is one, without zeros nobody needs."""
    assert text == amount(size)


def test_explanation_of_a_model():
    """Each line gives a figure and the arithmetic behind it."""
    spec = ModelSpec("small", (Attention(2, 16, 16),) * 2 + (Attention(1, 24, 8),), 64)
    plan = octavo.plan(spec, "1MiB", page_size=4)
    one = "2 layers x 2 heads x (16 + 16) x 2 bytes + 1 layers x 1 heads x (24 + 8) x 2 bytes"
    parts = "818 pages 1,047,040 + null page 1,280 + remainder 256"

    assert [
        "model      small, 3 layers",
        f"one token  {one} = 320 bytes",
        "one page   4 tokens = 1,280 bytes",
        f"memory     1 MiB = {parts} bytes",
        "capacity   3,272 tokens: 51.12 sequences of 64",
    ] == plan.explain().splitlines()


def test_windows_are_mentioned():
    """Where layers slide the text says that their tokens are all kept."""
    spec = ModelSpec("sliding", (Attention(2, 16, 16, window=8), Attention(2, 16, 16)), 64)

    assert plan_lines(spec)[-1] == "windows    1 layers slide, but all their tokens are kept"


def test_explanation_without_bytes():
    """A plan of page numbers says how many tokens fit and whose matter the bytes are."""
    assert (
        "8 pages of 4 tokens and the null page: 32 tokens; bytes are the engine's own matter"
        == Plan.from_pages(9, 4).explain()
    )


def test_parts_of_the_memory_are_all_told():
    """The parts in the memory line are the parts of the budget."""
    spec = ModelSpec("odd", (Attention(1, 3, 5),))
    plan = octavo.plan(spec, 100_003, page_size=1)
    line = next(text for text in plan.explain().splitlines() if text.startswith("memory"))

    for part in (plan.budget.payload, plan.budget.null_page, plan.budget.remainder):
        assert f"{part:,}" in line


def test_a_pool_too_small_for_the_models_own_length_says_so():
    """Where the model's longest sequence does not fit, the plan does not boast of a shorter one."""
    spec = ModelSpec("small", (Attention(2, 16, 16),), 8192)

    last = octavo.plan(spec, "1MiB", page_size=4).explain().splitlines()[-1]

    assert last == "capacity   8,188 tokens: less than one sequence of the model's 8,192"


def plan_lines(spec):
    """The lines of a plan's explanation."""
    return octavo.plan(spec, "1MiB", page_size=4).explain().splitlines()
