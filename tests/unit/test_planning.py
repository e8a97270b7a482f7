"""The planner: pages, tensors and capacity, exact to the byte."""

import json
from fractions import Fraction

import pytest

import octavo
from octavo import Attention, BudgetTooSmall, LengthError, ModelSpec, Plan, PlanError
from octavo.geometry import ALIGNMENT, align
from octavo.planning import parse_memory
from octavo.spec import State

SPEC = ModelSpec("small", (Attention(2, 16, 16), Attention(1, 24, 8)), 64)
TOKEN = (2 * 32 + 32) * 2  # bytes of one token in bf16


@pytest.mark.parametrize(
    ("text", "size"),
    [
        (0, 0),
        (1000, 1000),
        ("1000", 1000),
        ("7b", 7),
        ("7 B", 7),
        ("1KiB", 1024),
        ("1kb", 1000),
        (" 512MiB ", 512 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("80GB", 80 * 10**9),
        ("2TiB", 2**41),
        ("0.1KiB", 102),
    ],
)
def test_memory_is_understood(text, size):
    """Ints are bytes; KiB, MiB, GiB, TiB are 1024s and KB, MB, GB, TB are 1000s."""
    assert size == parse_memory(text)


@pytest.mark.parametrize(
    "memory",
    [-1, "-1", "", "much", "1 GiBs", "1,5GiB", "1e9", True, 1.5, None, b"1", "٣GiB", "1 XB"],
)
def test_other_memory_is_refused(memory):
    """Anything else raises PlanError that shows both forms."""
    with pytest.raises(PlanError) as caught:
        parse_memory(memory)

    assert {"field": "memory", "value": memory} == vars(caught.value)
    assert f"memory is {memory!r}; give bytes as an int, or text such as '16GiB' or '16GB'" == str(
        caught.value
    )


@pytest.mark.parametrize("memory", [2**63, "8388608TiB", 10**400])
def test_memory_beyond_64_bits_is_refused(memory):
    """2**63 bytes and more are no memory; a byte less is."""
    with pytest.raises(PlanError, match="it must be at most 9223372036854775807 bytes"):
        parse_memory(memory)
    assert 2**63 - 1 == parse_memory(2**63 - 1)


@pytest.mark.parametrize("memory", ["9" * 5000, "9" * 41 + "GiB"])
def test_endless_digits_are_refused(memory):
    """Text longer than any number of bytes is not understood."""
    with pytest.raises(PlanError, match="give bytes as an int"):
        parse_memory(memory)


@pytest.mark.parametrize(
    "spec", [None, "llama", {"model_type": "llama"}, ModelSpec("states", (State(8),))]
)
def test_refuses_what_is_no_spec_of_attention(spec):
    """A plan with bytes needs a ModelSpec whose layers are all attention."""
    with pytest.raises(PlanError, match="spec is"):
        octavo.plan(spec, "1MiB")


def test_the_largest_memory_is_planned_and_explained():
    """The most memory that can be asked for gives a plan and its text."""
    plan = octavo.plan(SPEC, 2**63 - 1)

    assert 2**31 - 1 == plan.num_pages
    assert "8388608 TiB" in plan.explain()
    assert plan.to_dict()["budget"]["total"] == 2**63 - 1


def test_a_plan_by_hand():
    """Every figure of a small plan, worked out by hand."""
    plan = octavo.plan(SPEC, 100_000, page_size=4)
    page = 4 * TOKEN

    assert page == plan.page_bytes
    assert TOKEN == plan.bytes_per_token
    assert 100_000 // page == plan.num_pages == 130
    assert 129 == plan.usable_pages
    assert 129 * 4 == plan.tokens
    assert 64 == plan.max_length
    assert 16 == plan.pages(64)
    assert (0, 1, 1, 2) == tuple(plan.pages(n) for n in (0, 1, 4, 5))
    assert Fraction(129, 16) == plan.max_sequences(64)
    assert Fraction(129, 16) == plan.max_sequences(61)
    assert 64 == plan.max_length_for(8)
    assert 12 == plan.max_length_for(40)
    assert 0 == plan.max_length_for(130)
    assert {"full"} == set(plan.groups)
    assert ("full", (0, 1), page) == (
        plan.groups["full"].name,
        plan.groups["full"].layers,
        plan.groups["full"].page_bytes,
    )


def test_tensors_lie_one_after_the_other():
    """Keys and values of each layer in turn, aligned, inside the arena, in the order asked for."""
    plan = octavo.plan(SPEC, 100_000, page_size=4)
    n = plan.num_pages
    strides = [4 * 2 * 16 * 2, 4 * 2 * 16 * 2, 4 * 24 * 2, 4 * 8 * 2]

    assert [(0, "key"), (0, "value"), (1, "key"), (1, "value")] == [
        (t.layer, t.component) for t in plan.tensors
    ]
    assert [(n, 4, 2, 16), (n, 4, 2, 16), (n, 4, 1, 24), (n, 4, 1, 8)] == [
        t.shape for t in plan.tensors
    ]
    assert strides == [t.page_stride for t in plan.tensors]
    assert [n * stride for stride in strides] == [t.bytes for t in plan.tensors]
    end = 0
    for tensor in plan.tensors:
        assert align(end) == tensor.offset
        assert 0 == tensor.offset % ALIGNMENT
        end = tensor.offset + tensor.bytes
    assert align(end) == plan.arena_bytes


def test_head_order_swaps_two_axes():
    """order='head' puts the heads before the offsets and changes no byte count."""
    token, head = (octavo.plan(SPEC, 100_000, page_size=4, order=o) for o in ("token", "head"))

    assert (head.num_pages, 2, 4, 16) == head.tensors[0].shape
    assert [t.bytes for t in token.tensors] == [t.bytes for t in head.tensors]
    assert token.budget == head.budget


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "float32", "fp64"])
def test_bytes_follow_the_dtype(dtype):
    """Half the element, half the page."""
    plan = octavo.plan(SPEC, 10**6, dtype=dtype)

    assert TOKEN // 2 * plan.dtype.bytes == plan.bytes_per_token


def test_one_more_byte_makes_one_more_page():
    """At the exact size of n pages there are n; one byte less gives n - 1."""
    need = octavo.plan(SPEC, 10_000, page_size=4).arena_bytes
    pages = octavo.plan(SPEC, need, page_size=4).num_pages

    assert need == octavo.plan(SPEC, need, page_size=4).arena_bytes
    assert pages - 1 == octavo.plan(SPEC, need - 1, page_size=4).num_pages


def test_max_length_is_the_models_or_what_fits():
    """Without an argument it is the model's own, or all tokens where they are fewer."""
    unbounded = ModelSpec("free", SPEC.layers)

    assert 64 == octavo.plan(SPEC, 100_000, page_size=4).max_length
    assert 12 == octavo.plan(SPEC, 4 * 4 * TOKEN, page_size=4).max_length
    assert 129 * 4 == octavo.plan(unbounded, 100_000, page_size=4).max_length
    assert 100 == octavo.plan(SPEC, 100_000, page_size=4, max_length=100).max_length


@pytest.mark.parametrize(
    ("arguments", "field", "message"),
    [
        ({"page_size": 0}, "page_size", "is 0; it must be an int of at least 1 and at most 64"),
        ({"page_size": -4}, "page_size", "is -4; it must be an int of at least 1"),
        ({"page_size": 65}, "page_size", "is 65; it must be an int of at least 1 and at most 64"),
        ({"page_size": 8.0}, "page_size", "is 8.0; it must be an int"),
        ({"page_size": True}, "page_size", "is True; it must be an int"),
        ({"page_size": "16"}, "page_size", "is '16'; it must be an int"),
        ({"page_size": 33, "max_length": 32}, "page_size", "and at most 32, the longest sequence"),
        ({"max_length": 0}, "max_length", "is 0; it must be an int of at least 1"),
        ({"max_length": 1.5}, "max_length", "is 1.5; it must be an int of at least 1"),
        ({"dtype": "int3"}, "dtype", "is 'int3'; known types are: fp64, fp32, fp16, bf16"),
        ({"order": "layer"}, "order", "is 'layer'; it must be 'token' or 'head'"),
        ({"memory": "lots"}, "memory", "is 'lots'; give bytes as an int"),
        ({"memory": -1}, "memory", "is -1; give bytes as an int"),
    ],
)
def test_wrong_arguments_are_named(arguments, field, message):
    """Each argument out of range raises PlanError with its name, value and what is right."""
    with pytest.raises(PlanError) as caught:
        octavo.plan(SPEC, **{"memory": 100_000} | arguments)

    assert (field, arguments[field]) == (caught.value.field, caught.value.value)
    assert message in str(caught.value)


@pytest.mark.parametrize(("memory", "length"), [(0, None), (767, None), (1536, 9), (100, 64)])
def test_memory_too_small_says_what_is_needed(memory, length):
    """Too little for the null page and one page, or for one sequence of max_length: by how much."""
    with pytest.raises(BudgetTooSmall) as caught:
        octavo.plan(SPEC, memory, page_size=4, max_length=length)
    least = 1 + (1 if length is None else -(-length // 4))

    assert memory == caught.value.have
    assert octavo.plan(SPEC, caught.value.need, page_size=4).num_pages == least
    assert (
        f"memory is {memory}; at least {caught.value.need} bytes are needed: {least} pages "
        f"(the null page and {least - 1}) of 4 tokens, 768 bytes each, and alignment"
    ) == str(caught.value)


def test_from_pages_has_numbers_and_no_bytes():
    """An engine with its own storage plans page numbers alone."""
    plan = Plan.from_pages(9, 4)

    assert (9, 8, 32, 4) == (plan.num_pages, plan.usable_pages, plan.tokens, plan.page_size)
    assert (0, 0, 0) == (plan.page_bytes, plan.bytes_per_token, plan.arena_bytes)
    assert plan.spec is plan.budget is plan.dtype is plan.max_length is None
    assert 32 == plan.max_length_for(1)
    assert 10 == Plan.from_pages(9, 4, max_length=10).max_length


@pytest.mark.parametrize(
    ("arguments", "name", "low"),
    [
        ((1, 4), "num_pages", 2),
        ((0, 4), "num_pages", 2),
        ((2**31, 4), "num_pages", 2),
        ((2.0, 4), "num_pages", 2),
        ((9, 0), "page_size", 1),
        ((9, "4"), "page_size", 1),
    ],
)
def test_from_pages_refuses_impossible_pools(arguments, name, low):
    """Page 0 is the null page, so there are at least two; ids are int32."""
    with pytest.raises(LengthError) as caught:
        Plan.from_pages(*arguments)

    assert (name, low) == (caught.value.name, caught.value.low)


@pytest.mark.parametrize("length", [0, 33, -1, 2.5])
def test_from_pages_refuses_a_length_that_cannot_be(length):
    """max_length is at least 1 and fits into the usable pages."""
    with pytest.raises(LengthError):
        Plan.from_pages(9, 4, max_length=length)


@pytest.mark.parametrize("verb", ["max_sequences", "max_length_for"])
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_capacity_questions_need_a_number(verb, value):
    """Lengths and sequences are ints of at least 1."""
    with pytest.raises(LengthError):
        getattr(Plan.from_pages(9, 4), verb)(value)


def test_to_dict_is_json():
    """The plan as data survives JSON and repeats the plan's own figures."""
    plan = octavo.plan(SPEC, 100_000, page_size=4)
    data = plan.to_dict()

    assert data == json.loads(json.dumps(data))
    assert ("small", "component", "token", "bf16", 4, 64) == tuple(
        data[key] for key in ("model", "layout", "order", "dtype", "page_size", "max_length")
    )
    assert (768, 192, 16 * 768, 8.06, 516) == tuple(
        data[key]
        for key in ("page_bytes", "bytes_per_token", "sequence_bytes", "max_sequences", "tokens")
    )
    assert {"parents": 130, "parent_bytes": 768, "null_bytes": 768} == data["pool"]
    assert plan.budget._asdict() == data["budget"]
    assert [
        {"name": "full", "layers": [0, 1], "pages": 130, "usable_pages": 129, "page_bytes": 768}
    ] == data["groups"]
    assert json.dumps(Plan.from_pages(9, 4).to_dict())


def test_plans_are_frozen():
    """A plan cannot be changed, and its groups neither."""
    plan = Plan.from_pages(9, 4)

    with pytest.raises(AttributeError):
        plan.num_pages = 10
    with pytest.raises(TypeError):
        plan.groups["other"] = None


@pytest.mark.parametrize(
    ("groups", "options", "pages", "tokens"),
    [
        ({"a": Attention(1, 1, 1), "b": Attention(1, 1, 1)}, {}, 20, 96),
        ({"full": Attention(1, 1, 1), "state": State(1)}, {}, 11, 192),
        ({"window": Attention(1, 1, 1, window=8)}, {}, 3, 2**31 - 1),
        ({"full": Attention(1, 1, 1)}, {"pages_per_parent": {"full": 3}}, 4, 588),
    ],
)
def test_capacity_counts_every_group(groups, options, pages, tokens):
    """What fits follows from what each group keeps, packed or not."""
    plan = Plan.from_pages(50, 4, groups, **options)

    assert (pages, tokens) == (plan.pages(40), plan.tokens)
    if tokens < 2**31 - 1:
        assert plan.pages(tokens) <= plan.usable_pages < plan.pages(tokens + 1)


def test_kinds_of_groups_are_checked():
    """A group is Attention, State or Cross, and only states have parts."""
    with pytest.raises(PlanError, match="must be Attention, State or Cross"):
        Plan.from_pages(9, 4, {"full": 3})
    with pytest.raises(PlanError, match="only states"):
        Plan.from_pages(9, 4, {"full": Attention(1, 1, 1)}, parts={"full": 2})
