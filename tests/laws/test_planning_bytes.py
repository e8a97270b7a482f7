"""Planned bytes are allocated bytes, parts sum to the budget, and no two pages share a byte."""

from dataclasses import replace
from fractions import Fraction
from itertools import pairwise
from math import prod

import pytest
import torch
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

import octavo
from octavo import Attention, BudgetTooSmall, ModelSpec, PlanError
from octavo.model.dtypes import DTYPES
from octavo.model.lifetimes import group_name
from octavo.model.spec import Cross, Latent, Shared, State
from octavo.planner import pools, sizes
from octavo.planner.packing import GRAIN
from octavo.storage import Storage

DIMS = st.sampled_from([2, 8, 16, 34, 64])
ATTENTION = st.builds(
    Attention,
    st.sampled_from([1, 2, 4, 8]),
    DIMS,
    DIMS,
    window=st.sampled_from([None, None, 5, 16]),
    sink_logits=st.booleans(),
) | st.builds(Attention, st.just(2), DIMS, DIMS, chunk=st.just(8))
SINKS = st.builds(Attention, st.just(2), DIMS, DIMS, window=st.just(9), sink_tokens=st.just(3))
LATENT = st.builds(
    Latent, st.sampled_from([16, 130]), st.sampled_from([0, 8]), st.sampled_from([0, 128])
)
STATE = st.builds(
    State, st.sampled_from([(4, 8, 8), (8, 20), (4,)]), st.sampled_from([(), (8, 3), (20, 3)])
)
CROSS = st.builds(Cross, st.sampled_from([2, 4]), DIMS, DIMS, st.sampled_from([None, 7]))
PAIR = st.tuples(ATTENTION, STATE) | st.tuples(ATTENTION, CROSS)
BLOCK = st.lists(ATTENTION | SINKS | STATE | CROSS | PAIR | st.just(()), min_size=1, max_size=4)


@st.composite
def specs(draw, *, latent=True):
    """Models of a few repeated blocks, with a layer that shares an earlier one's cache."""
    block = draw(BLOCK | (st.lists(LATENT | STATE, min_size=1, max_size=3) if latent else BLOCK))
    layers = list(block * draw(st.sampled_from([1, 2, 3, 6])))
    layers += draw(st.lists(ATTENTION, max_size=1))
    owners = [n for n, kind in enumerate(layers) if isinstance(kind, Attention | Latent)]
    if owners and draw(st.booleans()):
        layers.append(Shared(draw(st.sampled_from(owners))))
    assume(any(kind != () and not isinstance(kind, Cross) for kind in layers))
    return ModelSpec("any", tuple(layers), draw(st.sampled_from([None, 4096])))


OPTIONS = st.fixed_dictionaries(
    {
        "page_size": st.sampled_from([1, 2, 3, 4, 16]),
        "dtype": st.sampled_from(["fp32", "bf16", "fp8", "int8", "int4"]),
        "state_dtype": st.sampled_from(["fp32", "bf16"]),
        "order": st.sampled_from(["token", "head"]),
        "layout": st.sampled_from([None, "packed", "slab", "component"]),
        "tp": st.sampled_from([1, 1, 2, 4]),
        "max_step_tokens": st.sampled_from([8, 2048]),
    },
    optional={
        "draft": specs(latent=False),
        "max_length": st.sampled_from([16, 100]),
    },
)
SCALES = st.sampled_from([None, "none", "tensor", "token", "head"])
MEMORY = st.integers(0, 1_000_000) | st.integers(1_000_000, 100_000_000)


def planned(spec, memory, options, scales):
    """The plan of such a mix, where it is one that can be asked for."""
    dtype = options["dtype"]
    if not (scales == "none" and dtype.startswith("int")) and DTYPES[dtype].bits <= 8:
        options = options | {"scales": scales}
    try:
        return octavo.plan(spec, memory, **options)
    except BudgetTooSmall as error:
        return octavo.plan(spec, error.need, **options)
    except PlanError as error:
        assume("fp8 or wider" not in str(error))
        raise


def spans(plan, group, pages):
    """First bytes and bytes beyond of every component of these pages.

    A page of a state that is cut holds one of its parts, here each in turn.
    """
    parts = plan.groups[group].parts
    return [
        (first := tensor.offset + page * tensor.page_stride, first + tensor.page_bytes)
        for page in pages
        for tensor in plan.tensors
        if tensor.group == group and tensor.part == page % parts
    ]


def assert_apart(found):
    """No two of these spans share a byte."""
    found = sorted(found)
    assert all(before[1] <= after[0] for before, after in pairwise(found))


@given(specs(), MEMORY, OPTIONS, SCALES)
def test_every_byte_is_accounted_for(spec, memory, options, scales):
    """The parts sum to the budget, none is negative, and the arena is what is not left over."""
    plan = planned(spec, memory, options, scales)
    total, *parts = plan.budget

    assert total == sum(parts) == plan.memory.available
    assert all(part >= 0 for part in parts)
    assert sizes.arena_bytes(plan) == total - plan.budget.remainder
    assert pools.parents(plan, 1, plan.max_length or 1) <= plan.usable_pages
    if plan.packed:
        pool = plan.budget.null_page + plan.usable_pages * plan.page_bytes
        assert sizes.arena_bytes(plan) == pool
        for group in plan.groups.values():
            assert plan.page_bytes == group.pages_per_parent * group.page_bytes


@given(specs(), MEMORY, OPTIONS, SCALES)
def test_live_pages_never_overlap(spec, memory, options, scales):
    """Whichever group each parent is bound to, its pages lie in the arena and apart."""
    plan = planned(spec, memory, options, scales)
    names, last = list(plan.groups), plan.usable_pages
    for turn in range(len(names)):
        found = []
        for parent in sorted({*range(min(last, max(2, len(names)))), last - 1}):
            name = names[(parent + turn) % len(names)]
            each = plan.groups[name].pages_per_parent if plan.packed else 1
            first = 1 + parent * each
            found += spans(plan, name, range(first, first + each))
        for name in names:
            assert_apart(found + spans(plan, name, [0]))
        found += spans(plan, names[turn], [0])
        assert all(0 <= start and end <= sizes.arena_bytes(plan) for start, end in found)


@given(specs(), MEMORY, OPTIONS, SCALES)
def test_ideal_figures_are_brute_sums(spec, memory, options, scales):
    """Bytes a token, beyond windows, fixed, and of a sequence, layer by layer and key by key."""
    plan = planned(spec, memory, options | {"tp": 1}, scales)
    kinds = [kind for model in (spec, options.get("draft")) if model for _, kind in model.kinds()]
    owned = [kind for kind in kinds if not isinstance(kind, Shared)]
    token = {True: 0, False: 0}
    fixed = sum(bytes_of(kind, plan) for kind in owned if isinstance(kind, State))
    longest = max([k.length or 0 for _, k in spec.kinds() if isinstance(k, Cross)], default=0)
    fixed += longest * sum(bytes_of(kind, plan) for kind in owned if isinstance(kind, Cross))
    tokens = [kind for kind in owned if isinstance(kind, Attention | Latent)]
    for kind in tokens:
        token[group_name(kind) != "full"] += bytes_of(kind, plan)

    assert sum(token.values()) == plan.bytes_per_token
    assert token[False] == sizes.bytes_per_token_beyond_windows(plan)
    assert fixed == sizes.fixed_bytes_per_sequence(plan)
    for length in (1, 2, 7, 8, 9, 12, 17, 40):
        kept = sum(bytes_of(kind, plan) * most_kept(kind, length) for kind in tokens)
        assert kept + fixed == sizes.kept_bytes(plan, length) <= sizes.sequence_bytes(plan, length)


def bytes_of(kind, plan):
    """Bytes of a token, or of a state, by the definition of its kind."""
    kv, scales = plan.elements.kv.bits, plan.elements.scales
    if isinstance(kind, State):
        conv = prod(kind.conv) if kind.conv else 0
        return (
            prod(kind.recurrent) * plan.elements.recurrent.bytes + conv * plan.elements.conv.bytes
        )
    if isinstance(kind, Latent):
        index = kind.indexer + 4 * -(-kind.indexer // 128)
        if kv > 8:
            return (kind.rank + kind.rope) * kv // 8 + index
        return kind.rank + 4 * -(-kind.rank // 128) + 2 * kind.rope + index
    each = {"token": 1, "head": kind.kv_heads}.get(scales, 0)
    return kind.kv_heads * (kind.k_dim + kind.v_dim) * kv // 8 + 2 * 4 * each


def most_kept(kind, length):
    """Most keys of any moment that a query of a sequence so long, or a later one, still sees."""

    def seen(query, key):
        window, chunk = getattr(kind, "window", None), getattr(kind, "chunk", None)
        if window is not None:
            return key > query - window or key < kind.sink_tokens
        return chunk is None or key // chunk == query // chunk

    return max(sum(seen(query, key) for key in range(query + 1)) for query in range(length))


@settings(max_examples=50)
@given(specs(), MEMORY, OPTIONS, SCALES)
def test_allocated_bytes_are_the_planned_ones(spec, memory, options, scales):
    """Torch takes exactly the arena, and every view of it is legal, of the planned shape."""
    plan = planned(spec, memory, options, scales)
    store = Storage(plan, "meta")

    assert sizes.arena_bytes(plan) == store.nbytes == store.arena.untyped_storage().nbytes()
    for tensor in plan.tensors:
        layers = store.draft if tensor.draft else store
        view = layers.tensor(tensor.layer, tensor.component, tensor.group)
        packed = 8 * view.element_size() // tensor.dtype.bits
        assert (*tensor.shape[:-1], tensor.shape[-1] // packed) == tuple(view.shape)
        assert tensor.page_stride == view.stride(0) * view.element_size()
        assert tensor.offset == view.storage_offset() * view.element_size()
        assert view.is_meta
        assert view[0].is_contiguous()
        assert 0 == tensor.offset % 16 or not plan.packed


@given(specs(), MEMORY, OPTIONS, SCALES)
def test_nothing_more_would_fit(spec, memory, options, scales):
    """One page or parent more is beyond the budget, or beyond what an int32 can number."""
    plan = planned(spec, memory, options, scales)
    full = any(plan.ids(n) * plan.page_size + plan.page_size > 2**31 for n in plan.groups)
    if plan.packed:
        assert plan.budget.remainder < plan.page_bytes or full
        for name, group in plan.groups.items():
            strides = {t.page_stride for t in plan.tensors if t.group == name}
            assert 1 == len(strides)
            assert 0 == strides.pop() % GRAIN
            assert (
                group.steady_pages(1, plan.page_size) in (0, 1, group.parts) or group.input_tokens
            )
    else:
        block = sum({(t.offset, t.page_stride): t.page_stride for t in plan.tensors}.values())
        assert plan.budget.remainder < max(block, plan.page_bytes) + 64 * len(plan.tensors) or full
    assert all(plan.ids(name) * plan.page_size <= 2**31 for name in plan.groups)


@given(specs(), OPTIONS, st.integers(2, 3), MEMORY)
def test_stages_number_pages_alike(spec, options, stages, memory):
    """Pipeline ranks have the same pages, K and parts; each sums to its own budget."""
    options = options | {"dtype": "bf16", "pp": stages}
    options.pop("draft", None)
    try:
        plan = octavo.plan(spec, memory, **options)
    except BudgetTooSmall as error:
        plan = octavo.plan(spec, error.need, **options)
    except PlanError as error:
        assume(error.field != "pp" and "cross inputs alone" not in str(error))
        raise

    assert stages == len(plan.stages)
    for one in plan.stages:
        assert one.budget.total == sum(one.budget[1:])
        assert min(one.budget) >= 0
        assert (plan.page_size, plan.num_pages) == (one.page_size, one.num_pages)
        assert [plan.ids(name) for name in plan.groups] == [one.ids(n) for n in plan.groups]
        assert sizes.arena_bytes(one) == Storage(one, "meta").nbytes
    layers = [layer for one in plan.stages for g in one.groups.values() for layer in g.layers]
    kinds = [n for n, kind in spec.kinds() if not isinstance(kind, Shared)]
    assert sorted(kinds) == sorted(layers)


@given(specs(), MEMORY, OPTIONS, SCALES, st.sampled_from([1, 16, 33, 500]))
def test_whole_sequences_fit_by_their_pages(spec, memory, options, scales, length):
    """As many sequences as promised can be held, each group in parents of its own, and no more."""
    plan = planned(spec, memory, options, scales)
    most = plan.max_sequences(length)

    assert pools.parents(plan, int(most), length) <= plan.usable_pages
    assert pools.parents(plan, int(most) + 1, length) > plan.usable_pages
    assert most <= Fraction(plan.usable_pages) / sum(
        Fraction(g.steady_pages(length, plan.page_size), g.pages_per_parent)
        for g in plan.groups.values()
    )


@settings(max_examples=30)
@given(specs(), OPTIONS, st.integers(1, 9))
@example(ModelSpec("one", (Attention(1, 2, 2),)), {"page_size": 1, "dtype": "bf16"}, 1)
def test_what_is_needed_is_exactly_enough(spec, options, sequences):
    """The memory an error asks for suffices, and one byte less does not."""
    options = options | {"dtype": "bf16", "sequences": sequences, "max_length": 40}
    with pytest.raises(BudgetTooSmall) as caught:
        octavo.plan(spec, 0, **options)
    need = caught.value.need

    assert octavo.plan(spec, need, **options).max_sequences(40) >= sequences
    with pytest.raises(BudgetTooSmall) as caught:
        octavo.plan(spec, need - 1, **options)
    assert need == caught.value.need


@pytest.mark.parametrize("layout", ["packed", "slab", "component"])
@pytest.mark.parametrize("page_size", [1, 16, 256])
def test_large_plans_are_allocated_as_planned(layout, page_size):
    """Hundreds of GiB of a hybrid on the meta device; numbers of slots stay int32."""
    layers = ((Attention(8, 128, 128), State((32, 128, 128), (8192, 3))), State((32, 128, 128)))
    plan = octavo.plan(ModelSpec("big", layers * 8), "2TiB", page_size=page_size, layout=layout)

    assert sizes.arena_bytes(plan) == Storage(plan, "meta").nbytes > 2**38
    assert torch.device("meta") == Storage(plan, "meta").tensor(0, "recurrent").device
    assert max(plan.ids(name) for name in plan.groups) * plan.page_size <= 2**31


def test_a_model_in_order_head_takes_the_same():
    """The order of a page's axes changes no byte count."""
    spec = ModelSpec("m", (Attention(2, 8, 16), Attention(4, 8, 8, window=9)))
    token, head = (octavo.plan(spec, 10**6, order=order) for order in ("token", "head"))

    assert (token.budget, token.groups) == (head.budget, head.groups)
    assert [replace_shape(t) for t in token.tensors] == [replace_shape(t) for t in head.tensors]
    assert replace(token, order="head").bytes_per_token == head.bytes_per_token


def replace_shape(tensor):
    """A tensor's plan without the order of its axes."""
    return tensor._replace(shape=tuple(sorted(tensor.shape)))
