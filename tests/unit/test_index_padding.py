"""Sizes that hold for every step: rows, columns and tokens of padding, and buffers to fill."""

import numpy as np
import pytest
import torch

from octavo import Attention, Cache, Cross, Plan, State, index
from octavo.errors import CapacityError, LengthError, OctavoError, PlanError

FORMATS = [
    index.vllm,
    index.flash,
    index.flashinfer,
    index.cascade,
    index.onnxruntime,
    index.tensorrt,
    index.dense,
]
GROUPS = {
    "full": Attention(1, 1, 1),
    "window": Attention(1, 1, 1, window=33),
    "state": State(1),
    "cross": Cross(1, 1, 1),
}
SIZES = {"rows": 4, "columns": 7, "tokens": 120}
by_format = pytest.mark.parametrize("emit", FORMATS, ids=lambda emit: emit.__name__)
by_group = pytest.mark.parametrize("group", ["full", "window"])


def stepped(lengths=(80, 20)):
    """Plan and an open step of prompts computed whole."""
    plan = Plan.from_pages(80, 16, GROUPS)
    cache = Cache(plan, depth=2, rollback=1)
    rows = [cache.admit([n + 1] * length, cross=("clip", 6)) for n, length in enumerate(lengths)]
    return plan, cache, cache.extend(rows, list(lengths))


def arrays(emitted):
    """The arrays of a format by name."""
    return {name: v for name, v in emitted._asdict().items() if not isinstance(v, int)}


def as_tensors(emitted):
    """The same buffers as torch's, in memory of their own."""
    return emitted._replace(**{name: torch.tensor(a) for name, a in arrays(emitted).items()})


def assert_equal(found, wanted):
    """Every field, in type, shape and value."""
    for name, got, want in zip(wanted._fields, found, wanted, strict=True):
        assert np.array_equal(got, want), name
        assert np.asarray(got).dtype == np.asarray(want).dtype, name


@by_format
@by_group
@pytest.mark.parametrize("form", ["absolute", "compact"])
def test_padding_stands_behind_what_is_there(emit, group, form):
    """Every array begins with what it has without padding, and is as large as was said."""
    plan, _, step = stepped()
    plain = arrays(emit(step, group, plan=plan, form=form))
    padded = arrays(emit(step, group, plan=plan, form=form, **SIZES))
    fills = {"slot_mapping": -1, "logit_rows": -1, "kv_last_page_len": 1}
    fills |= {"block_table": -1 if emit is index.dense else 0}
    starts = ("query_start_loc", "indptr", "cu_seqlens", "cumulative")

    for name, array in plain.items():
        found = padded[name]
        behind = np.ones(found.shape, bool)
        behind[tuple(slice(size) for size in array.shape)] = False
        assert np.array_equal(array, found[~behind].reshape(array.shape)), name
        if not name.startswith("shared") and any(part in name for part in starts):
            assert (found[behind] == array[-1]).all(), name
        else:
            assert (found[behind] == fills.get(name, 0)).all(), name
    assert (120,) == padded["slot_mapping"].shape == padded["input_ids"].shape
    assert (4,) == padded["logit_rows"].shape
    tables = {"block_table": (4, 7), "block_offsets": (4, 2, 7), "kv_indices": (28,)}
    tables |= {"shared_kv_indices": (7,)}
    for name in tables.keys() & padded.keys():
        assert tables[name] == padded[name].shape


@by_format
def test_ids_are_the_steps(emit):
    """What the cache knows, and what the engine wrote into it."""
    plan, cache, step = stepped((3, 2))
    assert [1, 1, 1, 2, 2] == emit(step, plan=plan).input_ids.tolist()
    cache.commit(step, [7, 8])
    step = cache.extend(step.sequences, 2, ahead=1)
    step.input_ids[1] = 9

    assert [7, 9, 8, 0] == emit(step, plan=plan).input_ids.tolist()
    assert [7, 9, 8, 0] == emit(step.replace(), plan=plan).input_ids.tolist()
    assert [7, 9, 8, 0, 0, 0] == emit(step, plan=plan, tokens=6).input_ids.tolist()


@by_format
@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ({"columns": 4}, "columns is 4; .*sequence 0 needs 5"),
        ({"tokens": 99}, "tokens is 99; .*100 in the step"),
        ({"columns": True}, "columns is True"),
        ({"tokens": 1.0}, "tokens is 1.0"),
        ({"columns": 2**31}, "columns is"),
        ({"tokens": 2**31}, "tokens is"),
        ({"columns": 2**30}, "columns is"),
        ({"columns": 2**28, "rows": 2**10}, "rows is|columns is"),
    ],
)
def test_sizes_that_do_not_hold_the_step(emit, sizes, words):
    """They are refused by name, with what would be right, by functions and emitters."""
    plan, _, step = stepped()
    for call in (
        lambda: emit(step, plan=plan, **sizes),
        lambda: index.Emitter(emit, plan, **sizes)(step),
    ):
        with pytest.raises(LengthError, match=words):
            call()


@by_format
@by_group
def test_sizes_hold_from_step_to_step(emit, group):
    """Shapes stay, whatever comes and goes; an emitter gives what the function does."""
    plan = Plan.from_pages(80, 16, GROUPS)
    cache = Cache(plan)
    batch = cache.batch([cache.admit([n + 1] * (n + 29)) for n in range(3)])
    cache.commit(cache.extend(batch, [29, 30, 31]), [5, 5, 5])
    sizes = {"rows": 4, "columns": 8, "tokens": 5, "max_query_len": 1, "max_seq_len": 128}
    own = index.Emitter(emit, plan, group, **sizes)
    made = index.buffers(emit, plan, group, **sizes)
    given = index.Emitter(emit, plan, group, out=made, **sizes)
    tensors = index.Emitter(emit, plan, group, out=as_tensors(made), **sizes)
    shapes = {name: array.shape for name, array in arrays(made).items()}
    for number in range(24):
        if number == 8:
            leaving = next(iter(batch))
            batch.remove(leaving)
            cache.release(leaving)
        if number == 16:
            batch.add(cache.admit([9]))
        step = cache.extend(batch)
        wanted = emit(step, group, plan=plan, **sizes)
        assert shapes == {name: array.shape for name, array in arrays(wanted).items()}
        for emitter in (own, given, tensors):
            assert_equal(emitter(step), wanted)
        cache.commit(step, [5] * len(batch))


@by_format
def test_buffers_are_what_the_function_returns(emit):
    """In kind, shapes and element types; they hold padding, and are filled in place."""
    plan, _, step = stepped()
    sizes = {**SIZES, "max_query_len": 80, "max_seq_len": 112}
    made = index.buffers(emit, plan, **sizes)
    wanted = emit(step, plan=plan, **sizes)

    assert type(wanted) is type(made)
    for name, array in arrays(wanted).items():
        assert (array.shape, array.dtype) == (getattr(made, name).shape, getattr(made, name).dtype)
    assert {-1} == set(made.slot_mapping.tolist()) == set(made.logit_rows.tolist())
    found = emit(step, plan=plan, out=made, **sizes)
    assert_equal(found, wanted)
    assert all(array is getattr(made, name) for name, array in arrays(found).items())


def test_buffers_by_default_hold_every_decoding_step():
    """A token a row, and the columns of the longest sequence of the plan."""
    plan = Plan.from_pages(80, 4, max_length=70)
    made = index.buffers(index.vllm, plan, rows=3)
    assert ((3, 18), (3,)) == (made.block_table.shape, made.slot_mapping.shape)
    assert (3, 35) == index.buffers(index.vllm, plan, rows=3, kernel_page=2).block_table.shape
    cache = Cache(plan)
    row = cache.admit([1] * 69, limit=70)
    cache.commit(cache.extend(row, 69), [1])

    assert made.block_table is index.vllm(cache.extend(row), plan=plan, out=made).block_table


def test_buffers_of_states_and_cross_inputs():
    """They are filled by their functions too, in tensors as well."""
    plan, _, step = stepped()
    for emit, group, more in (
        (index.state, "state", {"rollback": 1}),
        (index.cross, "cross", {"columns": 3}),
    ):
        made = index.buffers(emit, plan, group, rows=4, **more)
        more.pop("rollback", None)
        wanted = emit(step, group, plan=plan, rows=4, **more)
        for out in (made, as_tensors(made)):
            found = emit(step, group, plan=plan, rows=4, out=out, **more)
            assert_equal(found, wanted)
            assert all(array is getattr(out, name) for name, array in arrays(found).items())
    assert (4, 3) == wanted.block_table.shape
    states = index.buffers(index.state, plan, "state", rows=2, rollback=3)
    assert (2, 4, 1) == states.targets.shape


@pytest.mark.parametrize(
    ("call", "error", "words"),
    [
        (lambda plan: index.buffers(index.vllm, plan), LengthError, "rows is None"),
        (lambda plan: index.buffers(index.flex, plan, rows=1), PlanError, "emit is .*state, cross"),
        (lambda plan: index.buffers(index.vllm, None, rows=1), PlanError, "plan is None"),
        (lambda plan: index.buffers(index.vllm, plan, row=1), PlanError, "option is 'row'"),
        (lambda plan: index.buffers(index.vllm, plan, rows=1, columns=-1), LengthError, "columns"),
        (lambda plan: index.buffers(index.vllm, plan, rows=1, slot_fill=3), PlanError, "slot_fill"),
        (lambda plan: index.buffers(index.state, plan, rows=1), PlanError, "group is None"),
        (lambda plan: index.buffers(index.state, plan, "full", rows=1), PlanError, "group is 'ful"),
        (lambda plan: index.buffers(index.cross, plan, "cross", rows=1), LengthError, "columns is"),
        (
            lambda plan: index.buffers(index.vllm, plan, rows=2**20, columns=2**20),
            LengthError,
            "ent",
        ),
        (lambda plan: index.buffers(index.vllm, plan, "ful", rows=1), PlanError, "group is 'ful'"),
        (lambda plan: index.buffers(index.vllm, plan, "state", rows=1), PlanError, "group is 'sta"),
    ],
)
def test_buffers_that_cannot_be_made(call, error, words):
    """The argument is named."""
    with pytest.raises(error, match=words):
        call(Plan.from_pages(80, 4, GROUPS))


# -- tensors ---------------------------------------------------------------------------------------


@by_format
@by_group
def test_tensors_are_filled_in_place(emit, group):
    """They are returned as they were passed, and hold what NumPy's arrays would."""
    plan, _, step = stepped()
    out = as_tensors(index.buffers(emit, plan, group, **SIZES, max_query_len=80))
    places = {name: tensor.data_ptr() for name, tensor in arrays(out).items()}
    found = emit(step, group, plan=plan, out=out, **SIZES, max_query_len=80)

    assert_equal(found, emit(step, group, plan=plan, **SIZES, max_query_len=80))
    assert all(tensor is getattr(out, name) for name, tensor in arrays(found).items())
    assert places == {name: tensor.data_ptr() for name, tensor in arrays(found).items()}


@pytest.mark.parametrize(
    "tensor",
    [
        torch.zeros(120),
        torch.zeros(120, requires_grad=True),
        torch.zeros(120, dtype=torch.int64),
        torch.zeros(120, dtype=torch.int32, device="meta"),
        torch.zeros(240, dtype=torch.int32)[::2],
        torch.zeros(1, dtype=torch.int32).expand(120),
        torch.zeros(120, dtype=torch.int32).to_sparse(),
        torch._neg_view(torch.zeros(120, dtype=torch.int32)),
        torch.zeros((120, 1), dtype=torch.int32),
        torch.zeros(120, dtype=torch.bool),
        [0] * 120,
        None,
    ],
    ids=str,
)
def test_tensors_that_cannot_be_filled(tensor):
    """Other devices, types, strides and gradients are refused by name; nothing was written."""
    plan, _, step = stepped()
    out = as_tensors(index.buffers(index.vllm, plan, **SIZES))._replace(positions=tensor)
    right = "out.positions is .*contiguous int32 array.* tensor on the CPU.* of 1 axes"
    with pytest.raises(LengthError, match=right):
        index.vllm(step, plan=plan, out=out)
    assert {-1} == set(out.slot_mapping.tolist())


def test_tensors_that_are_too_small_or_lie_in_other_memory():
    """As NumPy's arrays."""
    plan, _, step = stepped()
    out = as_tensors(index.buffers(index.vllm, plan, **SIZES))
    with pytest.raises(CapacityError, match=r"positions.shape\[0\]"):
        index.vllm(step, plan=plan, out=out._replace(positions=out.positions[:10]))
    with pytest.raises(LengthError, match="in the memory of out"):
        index.vllm(step, plan=plan, out=out._replace(positions=out.slot_mapping))
    own = torch.from_numpy(step.input_ids)
    with pytest.raises(LengthError, match="in the memory of step.input_ids"):
        index.vllm(step, plan=plan, out=out._replace(input_ids=own))
    one = torch.zeros(240, dtype=torch.int32)
    halves = out._replace(positions=one[:120], input_ids=one[120:])
    assert halves.positions is index.vllm(step, plan=plan, out=halves).positions


def test_a_refused_step_leaves_buffers_alone():
    """Nothing is written before all is checked."""
    plan, cache, step = stepped()
    out = index.buffers(index.flashinfer, plan, **SIZES)
    before = {name: array.copy() for name, array in arrays(out).items()}
    cache.release(step.sequences[0])
    with pytest.raises(OctavoError):
        index.flashinfer(step, plan=plan, out=out)
    assert all(np.array_equal(before[name], array) for name, array in arrays(out).items())
