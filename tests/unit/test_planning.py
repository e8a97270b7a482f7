"""The planner: pages, tensors and capacity, exact to the byte."""

import json
from fractions import Fraction

import pytest

import octavo
from octavo import Attention, BudgetTooSmall, LengthError, ModelSpec, Plan, PlanError
from octavo.model.spec import Cross, Latent, Shared, State
from octavo.planner import pools, sizes
from octavo.planner.budget import parse_memory
from octavo.planner.figures import amount
from octavo.planner.kernels import KERNELS
from octavo.planner.layouts import ALIGNMENT
from octavo.planner.request import memory_for

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


@pytest.mark.parametrize("spec", [None, "llama", {"model_type": "llama"}])
@pytest.mark.parametrize("name", ["spec", "draft"])
def test_refuses_what_is_no_spec(spec, name):
    """A plan with bytes needs a ModelSpec, and a draft is another."""
    with pytest.raises(PlanError, match=f"{name} is|^spec is"):
        octavo.plan(**{"spec": SPEC, "memory": "1MiB"} | {name: spec or 3})


def test_the_largest_memory_is_planned_and_explained():
    """The most memory that can be asked for gives a plan and its text."""
    plan = octavo.plan(SPEC, 2**63 - 1)

    assert (2**31 - 1) // 16 == plan.num_pages
    assert "8,388,608 TiB" in plan.explain()
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
    assert 16 == pools.pages(plan, 64)
    assert (0, 1, 1, 2) == tuple(pools.pages(plan, n) for n in (0, 1, 4, 5))
    assert Fraction(129, 16) == plan.max_sequences(64)
    assert Fraction(129, 16) == plan.max_sequences(61)
    assert 64 == pools.max_length_for(plan, 8)
    assert 12 == pools.max_length_for(plan, 40)
    assert 0 == pools.max_length_for(plan, 130)
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
        assert end == tensor.offset
        end = -(-(tensor.offset + tensor.bytes) // ALIGNMENT) * ALIGNMENT
    assert end == sizes.arena_bytes(plan)


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

    assert TOKEN // 2 * plan.elements.kv.bits // 8 == plan.bytes_per_token


def test_one_more_byte_makes_one_more_page():
    """At the exact size of n pages there are n; one byte less gives n - 1."""
    need = sizes.arena_bytes(octavo.plan(SPEC, 10_000, page_size=4))
    pages = octavo.plan(SPEC, need, page_size=4).num_pages

    assert need == sizes.arena_bytes(octavo.plan(SPEC, need, page_size=4))
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
    need, tokens = caught.value.need, "1 token" if length is None else f"{length} tokens"
    assert (
        f"memory is {memory}; at least {need:,} bytes are needed: {amount(need, up=True)}; {least} "
        f"pages (the null page and {least - 1}) of 4 tokens, 768 bytes each, and alignment, for 1 "
        f"sequence of {tokens}"
    ) == str(caught.value)


def test_from_pages_has_numbers_and_no_bytes():
    """An engine with its own storage plans page numbers alone."""
    plan = Plan.from_pages(9, 4)

    assert (9, 8, 32, 4) == (plan.num_pages, plan.usable_pages, plan.tokens, plan.page_size)
    assert (0, 0, 0) == (plan.page_bytes, plan.bytes_per_token, sizes.arena_bytes(plan))
    assert plan.spec is plan.budget is plan.elements is plan.max_length is None
    assert 32 == pools.max_length_for(plan, 1)
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


@pytest.mark.parametrize("ask", [pools.max_sequences, pools.max_length_for, Plan.max_sequences])
@pytest.mark.parametrize("value", [0, -1, 1.5])
def test_capacity_questions_need_a_number(ask, value):
    """Lengths and sequences are ints of at least 1."""
    with pytest.raises(LengthError):
        ask(Plan.from_pages(9, 4), value)


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
    assert {"parents": 129, "parent_bytes": 768, "null_bytes": 768} == data["pool"]
    assert plan.budget._asdict() == data["budget"]
    assert plan.memory._asdict() == data["memory"]
    assert [("full", "tokens", [0, 1], 130, 129, 768, 1, 768)] == [
        (*tuple(group.values())[:7], group["kept_bytes"]) for group in data["groups"]
    ]
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

    assert (pages, tokens) == (pools.pages(plan, 40), plan.tokens)
    if tokens < 2**31 - 1:
        assert pools.pages(plan, tokens) <= plan.usable_pages < pools.pages(plan, tokens + 1)


def test_kinds_of_groups_are_checked():
    """A group is Attention, State or Cross, and only states have parts."""
    with pytest.raises(PlanError, match="must be Attention, State or Cross"):
        Plan.from_pages(9, 4, {"full": 3})
    with pytest.raises(PlanError, match="only states"):
        Plan.from_pages(9, 4, {"full": Attention(1, 1, 1)}, parts={"full": 2})


# -- what plans refuse, and by which name ----------------------------------------------------------


WINDOWED = ModelSpec(
    "windowed", (Attention(2, 16, 16), Attention(2, 16, 16, window=8)) * 2, max_length=128
)


@pytest.mark.parametrize(
    ("spec", "arguments", "message"),
    [
        (SPEC, {"layout": "tiled"}, "layout is 'tiled'; it must be one of component, slab, packed"),
        (SPEC, {"scales": "row", "dtype": "int8"}, "scales is 'row'; it must be one of none,"),
        (SPEC, {"scales": "head"}, "scales is 'head'; bf16 is not quantised and has no scales"),
        (SPEC, {"scales": "none", "dtype": "int8"}, "int8 needs scales: tensor, token or head"),
        (
            SPEC,
            {"state_dtype": "int8"},
            "state_dtype is 'int8'; states are kept in 16 bits",
        ),
        (SPEC, {"conv_dtype": "fp8"}, "conv_dtype is 'fp8'; states are kept in 16 bits"),
        (SPEC, {"tp": 0}, "tp is 0; it must be an int of at least 1"),
        (WINDOWED, {"tp": 4, "pp": 5}, "pp is 5; it must be an int of at least 1 and at most 4"),
        (ModelSpec("odd", (Attention(6, 8, 8),)), {"tp": 4}, "tp is 4; it must divide the 6 key/"),
        (ModelSpec("s", (State((6, 8)),)), {"tp": 4}, "it must divide the first axis of a state"),
        (WINDOWED, {"pp": 4}, "pp is 4; each rank must have layers of every group"),
        (SPEC, {"utilization": 0}, "utilization is 0; it must be above 0 and at most 1"),
        (SPEC, {"utilization": 1.1}, "utilization is 1.1; it must be above 0 and at most 1"),
        (SPEC, {"utilization": "1e-999999999"}, "utilization is '1e-999999999'; it must be above"),
        (SPEC, {"utilization": "nan"}, "utilization is 'nan'; it must be above 0 and at most 1"),
        (SPEC, {"weights": -1}, "weights is -1; give bytes as an int"),
        (SPEC, {"activations": "lots"}, "activations is 'lots'; give bytes as an int"),
        (SPEC, {"max_step_tokens": 0}, "max_step_tokens is 0; it must be an int of at least 1"),
        (SPEC, {"sequences": 0}, "sequences is 0; it must be an int of at least 1"),
        (SPEC, {"max_length": 2**31}, "max_length is 2147483648; it must be an int of at least 1"),
        (
            ModelSpec("l", (Latent(8),)),
            {"dtype": "int8"},
            "latents are kept in fp8 or wider",
        ),
        (
            ModelSpec("i", (Attention(1, 3, 3),)),
            {"dtype": "int4"},
            "dtype is 'int4'; 3 elements do not fill whole bytes",
        ),
        (
            ModelSpec("t", ((Attention(1, 4, 4), Attention(2, 4, 4)),)),
            {},
            "spec is 't'; a layer has at most one kind of each lifetime",
        ),
    ],
)
def test_what_does_not_fit_the_model_is_named(spec, arguments, message):
    """Field, value, and what would be right."""
    with pytest.raises(PlanError) as caught:
        octavo.plan(spec, "1MiB", page_size=4, **arguments)

    assert message in str(caught.value)


def test_shared_layers_stay_with_their_owner():
    """A pipeline stage cannot read another one's cache."""
    spec = ModelSpec("shared", (Attention(1, 8, 8), Attention(1, 8, 8), Shared(0), Shared(1)))
    beside = ModelSpec("beside", (Attention(1, 8, 8), State(8), (Shared(0), State(8))))

    with pytest.raises(PlanError, match="shares the cache of layer 0, another stage"):
        octavo.plan(spec, "1MiB", pp=2)
    with pytest.raises(PlanError, match="shares the cache of layer 0, another stage"):
        octavo.plan(beside, "1MiB", pp=3)


@pytest.mark.parametrize(
    ("kernel", "options", "message"),
    [
        ("flash_attn", {"page_size": 16}, "page_size is 16; flash_attn takes multiples of 256"),
        ("onnxruntime", {"page_size": 8}, "page_size is 8; onnxruntime takes multiples of 16"),
        ("onnxruntime", {"page_size": 48}, "page_size is 48; onnxruntime takes powers of two"),
        ("tensorrt", {"page_size": 24, "order": "head"}, "tensorrt takes powers of two"),
        ("tensorrt", {"page_size": 32}, "order is 'token'; tensorrt reads pages in order 'head'"),
        ("vllm", {"page_size": 24}, "page_size is 24; vllm takes multiples of 16"),
        ("flashinfer", {"page_size": 7}, "head size is (12, 8); flashinfer takes multiples of 8"),
        ("vllm_cpu", {"page_size": 16}, "page_size is 16; vllm_cpu takes multiples of 32"),
        (
            "cudnn",
            {},
            "kernel is 'cudnn'; known kernels are: flash_attn, flash_attn_3, flashinfer, int32",
        ),
    ],
)
def test_demands_of_kernels(kernel, options, message):
    """A page or a head that a kernel cannot read is refused by the kernel's name."""
    spec = ModelSpec("odd", (Attention(2, 12, 8),)) if "head size" in message else SPEC
    with pytest.raises(PlanError) as caught:
        octavo.plan(spec, "1MiB", max_length=256, kernel=kernel, **options)

    assert message in str(caught.value)


def test_offsets_of_32_bits_end():
    """A pool whose last pages such a kernel could not reach is refused, a smaller one is not."""
    spec = ModelSpec("llama", (Attention(8, 128, 128),) * 32)
    with pytest.raises(PlanError, match="int32 reaches 131072 pages of key of layer 0"):
        octavo.plan(spec, "400GiB", kernel="int32")
    assert octavo.plan(spec, "200GiB", kernel="int32")


@pytest.mark.parametrize(
    "kind", [Cross(2, 60, 60, 10), Latent(510, 63), Attention(2, 60, 64)], ids=repr
)
def test_sizes_that_kernels_cannot_read(kind):
    """Heads of any sort, and latents."""
    with pytest.raises(PlanError, match="vllm takes multiples of 8"):
        octavo.plan(ModelSpec("odd", (kind, Attention(2, 64, 64))), "1GiB", kernel="vllm")


@pytest.mark.parametrize("kernel", KERNELS)
def test_kernels_that_are_served(kernel):
    """Pages of 256 tokens in the kernel's order suit each of them."""
    order = KERNELS[kernel].order or "token"

    assert octavo.plan(SPEC, "1MiB", page_size=256, max_length=256, order=order, kernel=kernel)


def test_pages_within_reach_of_32_bit_offsets():
    """The last element of the last addressable page has an offset below 2**31, the next one not."""
    plan = octavo.plan(WINDOWED, "1MiB", page_size=4, layout="packed", dtype="fp32")
    for tensor in plan.tensors:
        pages = tensor.max_addressable_pages
        elements = tensor.page_bytes * 8 // tensor.dtype.bits
        last = (pages - 1) * (tensor.page_stride * 8 // tensor.dtype.bits) + elements - 1

        assert last < 2**31 <= last + tensor.page_stride * 8 // tensor.dtype.bits


# -- memories --------------------------------------------------------------------------------------


def test_what_a_device_leaves():
    """memory x utilisation - weights - activations - other, in exact integers, and all echoed."""
    plan = octavo.plan(
        SPEC, "1MB", utilization=0.9, weights="100kB", activations=2000, other="1KiB"
    )

    assert (10**6, "0.9", 10**5, 2000, 1024, 900_000 - 103_024, None, True) == plan.memory
    assert plan.memory.available == plan.budget.total


def test_negative_memory_shows_every_term():
    """Where nothing is left the error has each term, and what would be enough is."""
    taken = {"utilization": "0.5", "weights": 5000, "activations": 300, "other": 20}
    with pytest.raises(BudgetTooSmall) as caught:
        octavo.plan(SPEC, 10_000, page_size=4, **taken)

    text = "10,000 x 0.5 - 5,000 weights - 300 activations - 20 other = -320 bytes for the cache"
    assert text in str(caught.value)
    assert octavo.plan(SPEC, caught.value.need, page_size=4, **taken).usable_pages == 1
    with pytest.raises(BudgetTooSmall):
        octavo.plan(SPEC, caught.value.need - 1, page_size=4, **taken)


def test_the_rank_with_the_least_memory_counts():
    """Memories of several ranks: page ids are valid on all of them."""
    assert octavo.plan(SPEC, ["1MiB", 50_000]) == octavo.plan(SPEC, 50_000)


@pytest.mark.parametrize("layout", ["component", "slab", "packed"])
@pytest.mark.parametrize(("sequences", "length"), [(1, 4), (1, 128), (20, 100), (333, 9)])
def test_memory_for_a_wish(layout, sequences, length):
    """Exactly enough: one byte less and the sequences do not fit."""
    wish = {"sequences": sequences, "length": length}
    need = memory_for(WINDOWED, **wish, page_size=4, layout=layout)
    options = {"page_size": 4, "layout": layout, "max_length": length}

    assert octavo.plan(WINDOWED, need, **options).max_sequences(length) >= sequences
    with pytest.raises(BudgetTooSmall) as caught:
        octavo.plan(WINDOWED, need - 1, sequences=sequences, **options)
    assert need == caught.value.need


def test_a_wish_beyond_int32():
    """Pages that no int32 can number are refused, whatever the memory."""
    with pytest.raises(PlanError, match="token slots"):
        memory_for(SPEC, sequences=2**31, length=64)


def test_capacity_in_whole_sequences_is_exact():
    """The whole part of max_sequences can be held with each group in parents of its own."""
    plan = octavo.plan(WINDOWED, 300_000, page_size=4)
    for length in range(1, 129):
        whole = int(plan.max_sequences(length))

        assert pools.parents(plan, whole, length) <= plan.usable_pages
        assert pools.parents(plan, whole + 1, length) > plan.usable_pages


# -- further groups --------------------------------------------------------------------------------


def test_a_cross_input_of_fixed_length_is_counted():
    """Positions of another input cost a sequence the same whatever its own length."""
    layers = ((Attention(2, 8, 8), Cross(2, 8, 8, length=10)),) * 2
    plan = octavo.plan(ModelSpec("speech", layers, 64), 10**5, page_size=4)

    assert (128, 1280) == (plan.bytes_per_token, sizes.fixed_bytes_per_sequence(plan))
    assert 128 * 5 + 1280 == sizes.kept_bytes(plan, 5)
    assert 3 == plan.groups["cross"].steady_pages(1, 4)


def test_inputs_alone_need_a_length():
    """Where nothing but another input is kept, its length says what fits."""
    with pytest.raises(PlanError, match="cross inputs alone are planned by their length"):
        octavo.plan(ModelSpec("c", (Cross(1, 8, 8),)), 10**5)
    with pytest.raises(PlanError, match="an input's length must be known"):
        Plan.from_pages(9, 4, {"cross": Cross(1, 8, 8)}).max_sequences(1)
    assert (
        32
        == sizes.fixed_bytes_per_sequence(octavo.plan(ModelSpec("c", (Cross(1, 8, 8, 64),)), 65536))
        // 64
    )


def test_layers_of_two_kinds():
    """Attention beside a state in one layer: a page table each."""
    spec = ModelSpec("beside", ((Attention(1, 8, 8), State((2, 8), (3, 2))),) * 3, 64)
    plan = octavo.plan(spec, 10**5, page_size=4)

    assert [("full", (0, 1, 2)), ("state", (0, 1, 2))] == [
        (group.name, group.layers) for group in plan.groups.values()
    ]
    assert 3 * (16 * 4 + 6 * 2) == sizes.fixed_bytes_per_sequence(plan)


def test_a_state_alone():
    """A model without tokens to keep is bounded by its states."""
    plan = octavo.plan(ModelSpec("mamba", (State((4, 16), (8, 3)),) * 4), 10**5)

    assert (0, 4 * (256 + 48)) == (plan.bytes_per_token, sizes.fixed_bytes_per_sequence(plan))
    assert plan.usable_pages == plan.max_sequences(10**6)
    assert "sequences of 2,147,483,647" in plan.explain()


@pytest.mark.parametrize("layout", ["component", "slab"])
def test_flat_pages_cover_a_state(layout):
    """Where one id counts in every group, pages grow until they are as large as a state."""
    spec = ModelSpec("hybrid", (Attention(1, 8, 8), State((64, 64))), 4096)
    plan = octavo.plan(spec, 10**6, page_size=16, layout=layout)

    assert 512 == plan.page_size  # of 32 bytes each: 16,384 bytes
    assert octavo.plan(spec, 10**6, page_size=16).page_size == 16


def test_ranks_of_stages_number_pages_alike():
    """Page size, K, parts and the count of pages are one for all ranks."""
    spec = ModelSpec("deep", (*WINDOWED.layers, *WINDOWED.layers, Attention(2, 16, 16)), 128)
    for layout in ("packed", "slab", "component"):
        plan = octavo.plan(spec, 300_000, page_size=4, pp=2, layout=layout)

        assert {plan.num_pages} == {one.num_pages for one in plan.stages}
        assert {plan.max_length} == {one.max_length for one in plan.stages}
        for name in plan.groups:
            assert 1 == len({one.ids(name) for one in plan.stages})
            assert 1 == len({one.groups[name].parts for one in plan.stages})


def test_stages_with_unlike_states_cut_them_alike():
    """Parts of a state divide the layers that keep states on every rank."""
    layers = (Attention(2, 16, 16), *[State((8, 64, 64))] * 9, Attention(2, 16, 16))
    spec = ModelSpec("uneven", (*layers, *[State((8, 64, 64))] * 6, Attention(2, 16, 16)), 4096)
    plan = octavo.plan(spec, "64MiB", pp=2)
    counts = [len(stage.groups["state"].layers) for stage in plan.stages]

    assert [8, 7] == counts
    assert {1} == {stage.groups["state"].parts for stage in plan.stages}
    assert octavo.plan(spec, "64MiB").groups["state"].parts in (1, 3, 5, 15)


def test_figures_of_an_earlier_release_warn():
    """What Plan answered before is answered, with the name of the function that does now."""
    plan = octavo.plan(SPEC, 10_000, page_size=4)

    with pytest.warns(DeprecationWarning, match=r"octavo\.planner\.sizes\.kept_bytes\(plan"):
        assert sizes.kept_bytes(plan, 5) == plan.kept_bytes(5)
    with pytest.warns(DeprecationWarning, match=r"octavo\.planner\.sizes\.state_bytes\(plan"):
        assert sizes.state_bytes(plan) == plan.state_bytes
    for name in ("arena_bytes", "fixed_bytes_per_sequence", "dtype"):
        with pytest.warns(DeprecationWarning, match=rf"octavo\.planner\.\w+\.{name}\(plan"):
            assert getattr(plan, name) == getattr(pools if name == "dtype" else sizes, name)(plan)
    with pytest.warns(DeprecationWarning, match=r"octavo\.planner\.pools\.max_length_for\(plan"):
        assert pools.max_length_for(plan, 2, in_flight=True) == plan.max_length_for(
            2, in_flight=True
        )
    with pytest.warns(DeprecationWarning, match=r"octavo\.planner\.pools\.pages\(plan"):
        assert pools.pages(plan, 5) == plan.pages(5)
    with pytest.raises(AttributeError, match="no attribute 'bytes_per_page'"):
        plan.bytes_per_page  # noqa: B018
