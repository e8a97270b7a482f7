"""Failures of other engines, by id, in the arrays handed to kernels."""

import numpy as np
import pytest

from octavo import Cache, CapacityError, LengthError, Plan
from octavo.index import (
    check_offsets,
    dense,
    flash,
    flashinfer,
    max_addressable_pages,
    onnxruntime,
    tensorrt,
    vllm,
)
from octavo.slots import slot_mapping


def stepped(page_size, *lengths, usable=40, counts=None):
    """Plan and step in which rows compute all of ``lengths``, or the last ``counts`` of it."""
    plan = Plan.from_pages(usable + 1, page_size)
    cache = Cache(plan)
    rows = [cache.admit([number + 1] * length) for number, length in enumerate(lengths)]
    for row, count in zip(rows, counts or lengths, strict=True):
        if row.length > count:
            cache.commit(cache.extend(row, row.length - count))
    return plan, cache.extend(rows, counts or list(lengths))


def test_d01_element_offsets_beyond_int32():
    """65,536 pages of [32, 16, 16, 8] are 4,294,967,296 elements: refused; slots fit."""
    with pytest.raises(CapacityError) as caught:
        check_offsets(65536, 32 * 16 * 16 * 8)

    assert (4294967296, 2147483647) == (caught.value.value, caught.value.limit)
    check_offsets(65536, 32 * 16 * 16 * 8, "int64")


@pytest.mark.parametrize(
    ("stride", "dtype", "first_bad"),
    [
        (480 * 576, "int32", 7768),
        (32 * 512, "uint32", 262144),
        (1039680, "int32", 2066),
        (2 * 16 * 8 * 128, "int32", 65536),
    ],
)
def test_d02_page_times_stride(stride, dtype, first_bad):
    """The first page whose product with the stride is beyond the type."""
    assert first_bad == max_addressable_pages(stride, dtype)


def test_d03_padding_is_filtered():
    """A slot of -1 is written nowhere: naive indexing would hit slot 39 of ten pages of 4."""
    plan, step = stepped(4, 3, usable=9)
    slots = vllm(step, plan=plan, rows=2).slot_mapping
    cache = np.zeros(40)
    cache[slots[slots >= 0]] = 1

    assert -1 == slots[-1]
    assert 3 == cache.sum()
    assert 0 == cache[39]


def test_d05_a_position_outside_the_row():
    """A row of one page with 17 tokens is refused; the neighbour's page is never read."""
    plan, step = stepped(16, 16, 16)
    numbers = {"past": [1, 0], "context": [17, 16]}
    wrong = step.replace(**{name: np.array(each, np.int32) for name, each in numbers.items()})
    with pytest.raises(LengthError, match="pages of sequence"):
        vllm(wrong, plan=plan)


@pytest.mark.parametrize(
    ("page_size", "row", "outside", "slots"),
    [(16, [5], 16, {0: 80}), (4, [7] + [0] * 31, 130, {0: 28, 3: 31})],
)
def test_d05_slots_inside_a_row_and_outside(page_size, row, outside, slots):
    """Rows [5] and [9]: 80 and never 144; page 7 of 4: 28 and 31. What is padded is -1."""
    with pytest.raises(LengthError) as caught:
        slot_mapping(row, page_size, outside, outside + 1)
    plan, step = stepped(page_size, max(slots) + 1)
    slots_of_row = slot_mapping(row, page_size, 0, step.context[0])
    view = step.group()._replace(table=np.full((1, 1), row[0], np.int32), slots=slots_of_row)
    found = vllm(step.replace(groups={"full": view}), plan=plan, rows=2).slot_mapping

    assert (outside + 1, len(row) * page_size) == (caught.value.value, caught.value.high)
    assert [*slots.values(), -1] == found[[*slots, max(slots) + 1]].tolist()


def test_d06_stale_rows():
    """Three rows, then one into the same buffers: page 0, length 0, slots -1 behind it."""
    plan, large = stepped(4, 9, 10, 11)
    out = vllm(large, plan=plan)
    found = vllm(stepped(4, 5)[1], plan=plan, out=out)

    assert not found.block_table[1:].any()
    assert [5, 0, 0] == found.seq_lens.tolist()
    assert np.all(found.slot_mapping[5:] == -1)
    assert [0, 5, 5, 5] == found.query_start_loc.tolist()


def test_d09_decode_positions():
    """A prompt of 9, then three steps: past 0, 9, 10, 11 and positions 9, 10, 11."""
    plan = Plan.from_pages(9, 16)
    cache = Cache(plan)
    row, seen = cache.admit([1] * 9), []
    for _ in range(4):
        step = cache.extend(row, row.length - row.computed)
        found = onnxruntime(step, plan=plan)
        seen.append((int(found.past_seqlens[0]), int(found.positions[-1])))
        cache.commit(step, [2])

    assert [(0, 8), (9, 9), (10, 10), (11, 11)] == seen


def test_d11_last_page_length_of_a_full_page():
    """Lengths 1, 15, 16, 17, 32, 33 end with 1, 15, 16, 1, 16, 1 tokens in a page of 16."""
    plan, step = stepped(16, 1, 15, 16, 17, 32, 33)

    assert [1, 15, 16, 1, 16, 1] == flashinfer(step, plan=plan).kv_last_page_len.tolist()


@pytest.mark.parametrize("name", ["kv_indptr", "kv_indices", "kv_last_page_len", "qo_indptr"])
def test_d12_int32_where_int32_is_expected(name):
    """FlashInfer's arrays are int32, and buffers of int64 are refused."""
    plan, step = stepped(16, 20, 5)
    found = flashinfer(step, plan=plan)
    wide = getattr(found, name).astype(np.int64)

    assert np.int32 == getattr(found, name).dtype
    with pytest.raises(LengthError, match=name):
        flashinfer(step, plan=plan, out=found._replace(**{name: wide}))


def test_d13_padded_rows_in_ragged_arrays():
    """Lengths (5, 3) in pages of 4, padded to 4 rows."""
    plan, step = stepped(4, 5, 3, counts=[1, 1])
    found = flashinfer(step, plan=plan, rows=4)

    assert [0, 2, 3, 3, 3] == found.kv_indptr.tolist()
    assert [1, 3, 1, 1] == found.kv_last_page_len.tolist()
    assert [-1, -1] == found.slot_mapping[2:].tolist()
    assert [5, 3, 0, 0] == vllm(step, plan=plan, rows=4).seq_lens.tolist()


def test_d17_rows_are_wide_enough_for_drafts():
    """Eight pages of content and two of drafts make a row of ten."""
    plan = Plan.from_pages(13, 4)
    cache = Cache(plan)
    step = cache.extend(cache.admit([1] * 32), 40, ahead=8)

    assert (1, 10) == vllm(step, plan=plan).block_table.shape


@pytest.mark.parametrize("emit", [vllm, flash, flashinfer, onnxruntime, tensorrt, dense])
def test_d19_a_buffer_is_reused_only_where_it_is_given(emit):
    """Without ``out`` every call returns arrays of its own."""
    plan, step = stepped(16, 20, 5)
    first, second = emit(step, plan=plan), emit(step, plan=plan)
    for one, other in zip(first, second, strict=True):
        assert not isinstance(one, np.ndarray) or not np.shares_memory(one, other)


@pytest.mark.parametrize("page_size", [1, 4, 16, 32, 64, 128])
def test_d20_every_page_size_gives_the_same_keys(page_size):
    """The content gathered through the table is the same, at lengths around multiples."""
    lengths = [127, 128, 129, 63, 64, 65, 1, 16, 17]
    plan, step = stepped(page_size, *lengths, usable=700)
    found = vllm(step, plan=plan)
    store = np.full(701 * page_size, -1)
    store[found.slot_mapping] = found.positions
    at = found.block_table[:, :, None] * page_size + np.arange(page_size)
    for row, length in enumerate(lengths):
        assert list(range(length)) == store[at[row].ravel()[:length]].tolist()


def test_d22_a_mapping_is_never_shorter_than_the_tokens():
    """33 tokens on two pages of 16 are refused; nothing is cut."""
    plan, step = stepped(16, 32)
    numbers = {"counts": [33], "context": [33], "query_start": [0, 33], "positions": range(33)}
    numbers["input_ids"] = [7] * 33
    arrays = {name: np.array(each, np.int32) for name, each in numbers.items()}
    view = step.group()._replace(slots=np.arange(16, 49, dtype=np.int32))
    with pytest.raises(LengthError) as caught:
        vllm(step.replace(**arrays, groups={"full": view}), plan=plan)

    assert (2, 3) == (caught.value.value, caught.value.low)
