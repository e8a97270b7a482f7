"""In any step every format has the same slot for each position of each sequence, the table's."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import Attention, Cache, Plan, index
from octavo.testing import freeze

GROUPS = {
    "full": Attention(1, 1, 1),
    "window": Attention(1, 1, 1, window=19),
    "sinks": Attention(1, 1, 1, window=19, sink_tokens=3),
    "chunked": Attention(1, 1, 1, chunk=24),
}


ARRAYS = ("counts", "past", "context", "last", "query_start", "positions", "groups")


def shut(thing):
    """Arrays of a step made read-only, in copies."""
    if isinstance(thing, np.ndarray):
        thing = thing.copy()
        thing.flags.writeable = False
    elif isinstance(thing, dict):
        thing = {name: shut(each) for name, each in thing.items()}
    elif hasattr(thing, "_fields"):
        thing = type(thing)(*map(shut, thing))
    return thing


@st.composite
def steps(draw):
    """Plan and step of rows with shared prompts, forks, pages used again, any counts; or a copy."""
    plan = Plan.from_pages(2_000, draw(st.sampled_from([16, 32])), GROUPS)
    cache = Cache(plan)
    chance = st.integers(0, 90)
    if gone := draw(chance):
        row = cache.admit([5] * gone)
        cache.commit(cache.extend(row, row.length - row.computed))
        cache.release(row)
    rows = [cache.admit([draw(st.integers(5, 6))] * (1 + draw(chance))) for _ in range(3)]
    counts = []
    for row in rows:
        left = row.length - row.computed
        counts.append(draw(st.integers(1, left)))
        if before := left - counts[-1]:
            cache.commit(cache.extend(row, before))
    if draw(st.booleans()):
        rows += cache.fork(rows[0])
        counts.append(draw(st.integers(0, counts[0])))
    step = cache.extend(cache.batch(rows), counts)
    if draw(st.booleans()):
        step = step.replace(**{name: shut(getattr(step, name)) for name in ARRAYS})
    return plan, step


def rectangle(table, keys, page):
    """Slots of each row's keys from a rectangular table."""
    at = [np.arange(int(count)) for count in keys]
    return [row[k // page] * page + k % page for row, k in zip(table, at, strict=True)]


def slots_by_format(step, page, **options):
    """Slots of each row's keys, in the order of its columns, from each format alone."""
    vllm, flash = index.vllm(step, **options), index.flash(step, **options)
    onnx, trt = index.onnxruntime(step, **options), index.tensorrt(step, **options)
    dense, csr = index.dense(step, **options), index.flashinfer(step, **options)
    yield vllm, rectangle(vllm.block_table, vllm.seq_lens, page)
    yield flash, rectangle(flash.block_table, np.diff(flash.cu_seqlens_k), page)
    keys = onnx.past_seqlens + np.diff(onnx.cumulative_sequence_length)
    yield onnx, rectangle(onnx.block_table, keys, page)
    yield trt, rectangle(trt.block_offsets[:, 0] // 2, trt.sequence_length, page)
    yield dense, rectangle(np.maximum(dense.block_table, 0), dense.seq_lens, page)
    rows = np.split(csr.kv_indices, csr.kv_indptr[1:-1])
    lengths = np.diff(csr.kv_indptr) * page - page + csr.kv_last_page_len
    yield csr, rectangle(rows, lengths, page)


@pytest.mark.parametrize("form", ["absolute", "compact"])
@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=40, deadline=None)
@given(steps(), st.booleans())
def test_formats_agree(group, form, made, halved):
    """Each converts back to the step's own table, and the step is what it was."""
    plan, step = made
    size = plan.page_size
    page = 16 if halved else size
    before, table = freeze(step), step.groups[group].table
    lead = -(-plan.groups[group].lifetime.sinks // size) * size
    options = {"group": group, "plan": plan, "form": form, "kernel_page": page}
    for found, slots in slots_by_format(step, page, **options):
        for row, got in enumerate(slots):
            key = np.arange(step.context[row] - found.base[row])
            at = np.where(key < lead, key, key + found.base[row])
            pages = table[row, at // size]
            assert np.array_equal(np.where(pages, pages * size + at % size, got), got)
            assert np.array_equal(pages > 0, got >= page)
        assert np.array_equal(step.groups[group].slots, found.slot_mapping)

    assert before == freeze(step)


@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("emit", [index.cascade, index.dense], ids=lambda emit: emit.__name__)
@settings(max_examples=20, deadline=None)
@given(steps(), st.integers(1, 3))
def test_padded_rows_have_no_keys(emit, group, made, more):
    """They change nothing of the real rows, whose entries stand in front, and see no key."""
    plan, step = made
    rows = len(step.sequences)
    plain = emit(step, group, plan=plan)._asdict()
    padded = emit(step, group, plan=plan, rows=rows + more)._asdict()
    for name, wanted in plain.items():
        if not isinstance(wanted, np.ndarray):
            assert padded[name] == wanted
            continue
        assert np.array_equal(padded[name][tuple(map(slice, wanted.shape))], wanted)
        rest = padded[name][len(wanted) :]
        fills = {"slot_mapping": -1, "logit_rows": -1, "block_table": -1, "kv_last_page_len": 1}
        sums = name.endswith(("indptr", "start_loc"))
        assert np.all(rest == (wanted[-1] if sums else fills.get(name, 0)))
        shared = name.startswith("shared") or name == "kv_indices"
        assert rest.shape[0] == (0 if shared else more)
