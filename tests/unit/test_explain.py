"""A plan told in words."""

import re

import pytest

import octavo
from octavo import Attention, ModelSpec, Plan
from octavo.model.spec import Latent, State
from octavo.planner import pools
from octavo.planner.budget import parse_memory
from octavo.planner.figures import amount, enough


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 bytes"),
        (1023, "1,023 bytes"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**20, "1 MiB"),
        (2**30 + 2**28, "1.25 GiB"),
        (100 * 2**30, "100 GiB"),
        (2**40, "1 TiB"),
        (2**50, "1,024 TiB"),
        (2**40 - 1, "1,024 GiB"),
        (2**20 + 2**19 + 1, "1.5 MiB"),
        (10**400 * 2**40, f"{10**400:,} TiB"),
    ],
)
def test_amounts_in_binary_units(size, text):
    """The largest unit of which there is one, without zeros nobody needs."""
    assert text == amount(size)


@pytest.mark.parametrize("size", [1, 1023, 1025, 2**20 - 1, 2**20 + 1, 65_618_720_996, 2**40 + 1])
def test_an_amount_to_type_is_enough(size):
    """Rounded up, by less than a hundredth of its unit: what is read again is no less."""
    again = parse_memory(enough(size))

    assert size <= again <= size + max(size // 100, 1)
    assert amount(again) == amount(again, up=True)


def test_explanation_of_a_model():
    """Each line gives a figure and the arithmetic behind it."""
    spec = ModelSpec("small", (Attention(2, 16, 16),) * 2 + (Attention(1, 24, 8),), 64)
    plan = octavo.plan(spec, "1MiB", page_size=4)
    one = "2 layers x 2 heads x (16 + 16) x 2 bytes + 1 layer x 1 head x (24 + 8) x 2 bytes"
    parts = (
        "818 pages x 1,280 = 1,047,040 + null page (page 0, never handed out) 1,280 + remainder 256"
    )

    used = "1,020 KiB of it, and 2.75 KiB is free, too little for one more."

    assert [
        "small, bf16 cache, 1 MiB: 51 sequences of 64 tokens fit (51.12), weights not counted.",
        "Each sequence of 64 tokens takes 20 KiB: 320 bytes per token.",
        f"Left for the cache: all 1 MiB, weights not given; 51 sequences take {used}",
        "",
        "model      small, 3 layers",
        "pages      of 4 tokens; bf16; component layout",
        f"one token  {one} = 320 bytes",
        "one page   4 tokens = 1,280 bytes",
        "sequence   of 64 tokens: full 16 pages x 1,280 = 20,480 bytes",
        f"memory     1,048,576 bytes (1 MiB) = {parts}",
        "capacity   3,272 tokens: 51.12 sequences of 64",
        "reuse      prefixes in steps of 4 tokens",
        "note       weights: not given; the memory is the cache's alone",
    ] == plan.explain().splitlines()


MIXED = """
mixed, bf16 cache, 1 MiB: 52 sequences of 64 tokens fit (52.46), 31 while a prompt is computed, weights not counted.
Each sequence of 64 tokens takes 19.5 KiB: 512 bytes per token until its windows are full and 256 from then on, and 328 bytes whatever its length.
Left for the cache: all 1 MiB, weights not given; 31 sequences and what a step of 2,048 tokens adds to windows take 1,008 KiB of it, and 15 KiB is free, too little for one more.

model       mixed, 4 layers
pages       of 4 tokens; bf16, states fp32, convolutions bf16; packed layout

group     layers  keeps              bytes per token  page bytes  padding  pages if all  pages per parent
window_8       2  the last 8 tokens              256       1,024        0         1,023                 1
full           2  every token                    256       1,024        0         1,023                 1
state          2  one state                        -         512      184         2,046                 2
(parent: memory bound to one group at a time and cut into its pages; pages if all: as many as there would be if all parents were bound to that group)

one token   4 layers x 2 heads x (16 + 16) x 2 bytes = 512 bytes; 256 once every window is full
fixed       2 layers x (4 x 8 x 4 bytes + 6 x 3 x 2 bytes) = 328 bytes per sequence, whatever its length
one parent  1,024 bytes, bound to one group at a time: 1 page of window_8, or 1 page of full, or 2 pages of state
sequence    of 64 tokens: window_8 3 pages x 1,024 + full 16 pages x 1,024 + state 1 page x 512 = 19,968 bytes; an engine that keeps every token in every layer takes 33,096
memory      1,048,576 bytes (1 MiB) = 1,023 parents x 1,024 = 1,047,552 + null page (page 0, never handed out) 1,024
filled      1,047,552 bytes = kept 1,037,899 + padding 9,653, as sequences of 64 tokens fill parents
capacity    4,076 tokens: 52.46 sequences of 64
reuse       prefixes in steps of 4 tokens, at saved states only (328 bytes each, as many as 1 token)
in flight   524,288 bytes that windows hold while a step of 2,048 tokens runs, once for all sequences: 31 sequences of 64 with it
note        weights: not given; the memory is the cache's alone
"""  # noqa: E501


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
        ({"utilization": 0.5}, "activations: not given; what the utilization leaves is set aside"),
        (
            {"tp": 2},
            "small, 1 layer; bytes are per rank (tp 2), sequences and tokens of all together",
        ),
        ({"draft": ModelSpec("d", (Attention(1, 4, 4),))}, "x 2 bytes + 16 of the draft = 144"),
        ({}, "depth      1,024 bytes per running sequence beside this cache, for 8 positions"),
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


@pytest.mark.parametrize("layout", ["component", "slab", "packed"])
@pytest.mark.parametrize(
    "options", [{}, {"dtype": "int8"}, {"draft": ModelSpec("d", (Attention(1, 4, 4),))}]
)
def test_the_memory_can_be_checked(layout, options):
    """Pages times their bytes are what they hold and padding; with the rest they are the memory."""
    layers = (Attention(2, 16, 16, window=8), (Attention(2, 16, 16), State((4, 8), (6, 3)))) * 2
    plan = octavo.plan(ModelSpec("m", layers, 64), 10**6, page_size=4, layout=layout, **options)
    lines = {text[:10].strip(): text[11:] for text in plan.explain().splitlines()}
    memory = re.sub(r" \([^)]*\)", "", lines["memory"]).partition("=")[2]
    count, size, pool, *rest = map(number, re.findall(r"\d[\d,]*", memory))

    assert pool == count * size
    assert 10**6 == pool + sum(rest)
    if "filled" in lines:
        told = re.sub(r" \([^)]*\)", "", lines["filled"]).partition(", as")[0]
        whole, *parts = map(number, re.findall(r"\d[\d,]*", told))
        assert pool == whole == sum(parts)
    else:
        assert plan.budget.payload == pool


def number(text):
    """An int with separators."""
    return int(text.replace(",", ""))


def test_what_a_step_leaves_room_for_is_told():
    """Where fewer whole sequences fit beside a step the text and the data say how many."""
    plan = octavo.plan(ModelSpec("w", (Attention(2, 16, 16, window=8),), 64), 10**5, page_size=4)

    assert plan.to_dict()["max_sequences_in_flight"] < int(plan.max_sequences(64))
    assert f": {pools.max_sequences_in_flight(plan, 64)} sequences of 64 with it" in plan.explain()


def test_grown_pages_long_lengths_and_prediction_layers_are_told():
    """What the plan did on its own, or left out, is said."""
    spec = ModelSpec("h", (Attention(1, 8, 8), State((64, 64))), 1024, mtp=(Attention(1, 8, 8),))
    text = octavo.plan(spec, 10**7, max_length=2000, layout="slab").explain()

    assert "512 tokens (grown from 16 so that a page covers a state)" in text
    assert "(beyond the model's own 1,024)" in text
    assert "1 prediction layer of the config: --mtp 1" in text
    assert "1 layer x (64 x 64 x 4 bytes) = 16,384 bytes per sequence" in text


def test_the_rank_that_decides_is_named():
    """The rank with room for the fewest pages, and the one with the pages a parent of all."""
    layers = (Attention(2, 16, 16, window=8), Attention(2, 16, 16))
    spec = ModelSpec("deep", layers * 4 + (Attention(2, 16, 16),), 128)
    plan = octavo.plan(spec, 300_000, page_size=4, pp=2)
    rank = plan.to_dict()["rank"]

    assert (
        f"rank {rank + 1}, which has room for the fewest pages; pages per parent are its own"
        in plan.explain()
    )
    assert plan.stages[rank].groups == plan.groups


def test_a_pool_too_small_for_the_models_own_length_says_so():
    """Where the model's longest sequence does not fit, the plan does not boast of a shorter one."""
    spec = ModelSpec("small", (Attention(2, 16, 16),), 8192)

    text = octavo.plan(spec, "1MiB", page_size=4).explain()

    assert "capacity   8,188 tokens: 1.00 sequences of 8,188, less than the model's 8,192\n" in text


def test_inputs_alone_are_not_counted_twice():
    """Where nothing but another input has a fixed size, its bytes stand once."""
    spec = ModelSpec("crossed", layers=((Attention(2, 8, 8), octavo.Cross(2, 8, 8)),))
    fixed = next(
        line
        for line in octavo.plan(spec, "1GiB", max_length=64, input_tokens=32).explain().splitlines()
        if line.startswith("fixed")
    )

    assert "other inputs and drafts = 2,048 bytes per sequence" in fixed
    assert 1 == fixed.count("2,048")
