"""A plan told in words."""

import pytest

import octavo
from octavo import Attention, ModelSpec, Plan
from octavo.budget import parse_memory
from octavo.explain import amount, enough
from octavo.spec import Latent, State


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


@pytest.mark.parametrize("size", [1, 1023, 1025, 2**20 - 1, 2**20 + 1, 65_618_720_996, 2**40 + 1])
def test_an_amount_to_type_is_enough(size):
    """Rounded up, by less than a hundredth of its unit: what is read again is no less."""
    again = parse_memory(enough(size).removesuffix("bytes"))

    assert size <= again <= size + max(size // 100, 1)
    assert amount(again) == amount(again, up=True)


def test_explanation_of_a_model():
    """Each line gives a figure and the arithmetic behind it."""
    spec = ModelSpec("small", (Attention(2, 16, 16),) * 2 + (Attention(1, 24, 8),), 64)
    plan = octavo.plan(spec, "1MiB", page_size=4)
    one = "2 layers x 2 heads x (16 + 16) x 2 bytes + 1 layer x 1 head x (24 + 8) x 2 bytes"
    parts = "818 pages 1,047,040 + null page 1,280 + remainder 256"

    assert [
        "model      small, 3 layers",
        "pages      of 4 tokens; bf16; component layout",
        f"one token  {one} = 320 bytes",
        "one page   4 tokens = 1,280 bytes",
        f"memory     1 MiB = {parts} bytes",
        "capacity   3,272 tokens: 51.12 sequences of 64",
        "reuse      prefixes in steps of 4 tokens",
    ] == plan.explain().splitlines()


MIXED = """
model       mixed, 4 layers
pages       of 4 tokens; bf16, states fp32, convolutions bf16; packed layout

group     layers  keeps              bytes a token  page bytes  padding  pages  a parent
window_8       2  the last 8 tokens            256       1,024        0  1,023         1
full           2  every token                  256       1,024        0  1,023         1
state          2  one state                      -         512      184  2,046         2

one token   4 layers x 2 heads x (16 + 16) x 2 bytes = 512 bytes; 256 once every window is full
sequence    328 bytes whatever its length
one parent  1,024 bytes: 1 page of window_8, or 1 page of full, or 2 pages of state
memory      1 MiB = 1,023 parents 1,037,899 + null page 1,024 + padding 9,653 bytes
capacity    4,076 tokens: 52.46 sequences of 64
reuse       prefixes in steps of 4 tokens, at saved states only (328 bytes each, as many as 1 token)
in flight   524,288 bytes while a step of 2,048 tokens runs, once for all sequences
"""


def test_explanation_of_groups():
    """Where groups differ there is a table of them, and each term of a token and of a parent."""
    layers = (Attention(2, 16, 16, window=8), (Attention(2, 16, 16), State((4, 8), (6, 3)))) * 2
    plan = octavo.plan(ModelSpec("mixed", layers, 64), "1MiB", page_size=4)

    assert plan.explain().splitlines() == MIXED.splitlines()[1:]


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            {"dtype": "int8"},
            "1 layer x 2 heads x (16 + 16) x 1 byte + 1 layer x 4 scales x 4 bytes",
        ),
        ({"dtype": "int4", "scales": "token"}, "x 4/8 bytes + 1 layer x 2 scales x 4 bytes"),
        ({"dtype": "fp8"}, "1 layer x (512 + 4 scales x 4 + 64 x 2) bytes = 656 bytes"),
        ({"weights": 1000, "utilization": 0.5}, "524,288 x 0.5 - 1,000 weights = 261,144 bytes"),
        ({"tp": 2}, "small, 1 layer; all figures are of one rank (tp 2)"),
        ({"draft": ModelSpec("d", (Attention(1, 4, 4),))}, "x 2 bytes + 16 of the draft = 144"),
        ({}, "depth      1,024 bytes a running sequence beside this cache, for 8 positions"),
    ],
)
def test_each_choice_is_told(options, line):
    """Quantisation, ranks, a draft and what a device keeps for others show up in the text."""
    depth = ModelSpec("depth", (Attention(2, 16, 16),), 8)
    latent = options.get("dtype") == "fp8"
    kind = Latent(512, 64) if latent else Attention(2, 16, 16)
    spec = ModelSpec("small", (kind,), 64, depth=depth)

    assert line in octavo.plan(spec, 2**19, page_size=4, **options).explain()


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

    text = octavo.plan(spec, "1MiB", page_size=4).explain()

    assert "capacity   8,188 tokens: 1.00 sequences of 8,188, less than the model's 8,192\n" in text
