"""Planned bytes are allocated bytes, and the parts sum to the budget."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import octavo
from octavo import Attention, ModelSpec
from octavo.geometry import arena_bytes, row_bytes

LAYERS = st.builds(
    Attention, st.integers(1, 5), st.integers(1, 33), st.integers(1, 33), sink_logits=st.booleans()
)
SPECS = st.builds(
    ModelSpec, st.just("any"), st.lists(LAYERS, min_size=1, max_size=5).map(tuple), st.just(4096)
)
SIZES = st.fixed_dictionaries(
    {
        "page_size": st.integers(1, 20),
        "dtype": st.sampled_from(["bf16", "fp16", "fp32", "fp64"]),
        "order": st.sampled_from(["token", "head"]),
    }
)
MEMORY = st.integers(1_000_000, 4_000_000)


@given(SPECS, MEMORY, SIZES)
def test_the_parts_sum_to_the_budget(spec, memory, sizes):
    """Payload, padding, null page, scales, reserved and remainder are the total, to the byte."""
    plan = octavo.plan(spec, memory, **sizes)
    total, *parts = plan.budget

    assert memory == total == sum(parts)
    assert all(part >= 0 for part in parts)
    assert plan.arena_bytes == total - plan.budget.remainder
    assert plan.usable_pages * plan.page_bytes == plan.budget.payload
    assert plan.page_bytes == plan.budget.null_page


@given(SPECS, MEMORY, SIZES)
def test_there_is_no_room_for_another_page(spec, memory, sizes):
    """One page more would not fit."""
    plan = octavo.plan(spec, memory, **sizes)
    rows = row_bytes(spec.layers, plan.dtype, plan.page_size)

    assert arena_bytes(rows, plan.num_pages) <= memory < arena_bytes(rows, plan.num_pages + 1)


@given(SPECS, MEMORY, SIZES)
def test_tensors_are_what_their_shape_says(spec, memory, sizes):
    """Bytes follow from shape and dtype, tensors do not overlap, the last one ends in the arena."""
    plan, end = octavo.plan(spec, memory, **sizes), 0
    for tensor in plan.tensors:
        assert int(np.prod(tensor.shape, dtype=object)) * plan.dtype.bytes == tensor.bytes
        assert tensor.page_stride * plan.num_pages == tensor.bytes
        assert end <= tensor.offset
        end = tensor.offset + tensor.bytes
    assert end <= plan.arena_bytes


@pytest.mark.parametrize("order", ["token", "head"])
def test_allocated_bytes_are_the_planned_ones(order):
    """Views of one arena of arena_bytes: every byte of a tensor is its own."""
    spec = ModelSpec("small", (Attention(2, 5, 3), Attention(1, 7, 7)))
    plan = octavo.plan(spec, 20_000, page_size=3, dtype="fp32", order=order)
    arena = np.zeros(plan.arena_bytes, np.uint8)
    for number, tensor in enumerate(plan.tensors, 1):
        raw = arena[tensor.offset : tensor.offset + tensor.bytes]
        raw.view(np.float32).reshape(tensor.shape)[...] = number
    counts = {
        number: int(np.count_nonzero(arena.view(np.float32) == number))
        for number in range(1, len(plan.tensors) + 1)
    }

    assert {n: t.bytes // 4 for n, t in enumerate(plan.tensors, 1)} == counts
    assert plan.arena_bytes == arena.nbytes <= 20_000
