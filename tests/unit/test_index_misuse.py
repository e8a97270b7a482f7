"""octavo.index used wrongly: told by name, before anything is written."""

import numpy as np
import pytest
import torch

import octavo
from octavo import (
    Attention,
    Cache,
    CapacityError,
    Cross,
    LengthError,
    ModelSpec,
    Plan,
    PlanError,
    State,
    index,
)
from octavo.errors import StepError
from octavo.testing import freeze

FORMATS = [
    index.vllm,
    index.flash,
    index.flashinfer,
    index.cascade,
    index.onnxruntime,
    index.tensorrt,
    index.dense,
]
GROUPS = {"full": Attention(1, 1, 1), "state": State(1), "cross": Cross(1, 1, 1)}
by_format = pytest.mark.parametrize("emit", FORMATS, ids=lambda emit: emit.__name__)


def stepped(lengths=(20, 5), page_size=16, groups=None):
    """Plan, cache and an open step of prompts computed whole."""
    plan = Plan.from_pages(60, page_size, groups)
    cache = Cache(plan, depth=2)
    cross = ("a clip", 6) if groups else None
    rows = [cache.admit([n] * length, cross=cross) for n, length in enumerate(lengths)]
    return plan, cache, cache.extend(rows, list(lengths))


def every(step, plan):
    """A call for each function, by name."""
    calls = {emit.__name__: lambda emit=emit: emit(step, plan=plan) for emit in FORMATS}
    calls["flex"] = lambda: index.flex(step, plan=plan)
    calls["state"] = lambda: index.state(step, "state", plan=plan)
    calls["cross"] = lambda: index.cross(step, "cross", plan=plan)
    return calls


# -- steps and plans -------------------------------------------------------------------------------


def test_a_plan_of_another_page_size():
    """Its slots are not those of the step."""
    _, _, step = stepped(page_size=4, groups=GROUPS)
    for emit in every(step, Plan.from_pages(60, 16, GROUPS)).values():
        with pytest.raises(LengthError, match="page_size of the plan is 16; it must be 4"):
            emit()


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_steps_that_ended(verb):
    """Their pages may be another's; copies end with them."""
    plan, cache, step = stepped(groups=GROUPS)
    copy = step.replace()
    for each in (step, copy):
        for emit in every(each, plan).values():
            emit()
    getattr(cache, verb)(step)
    for each in (step, copy):
        for emit in every(each, plan).values():
            with pytest.raises(StepError, match="not open"):
                emit()


@pytest.mark.parametrize("verb", ["release", "preempt"])
@pytest.mark.parametrize("batch", [False, True])
def test_rows_that_left(verb, batch):
    """Rows released or preempted since are named; the others' next step is emitted."""
    plan, cache, step = stepped()
    cache.commit(step, [7, 7])
    rows = step.sequences
    emitter = index.Emitter(index.vllm, plan)
    for last in (False, True):
        step = cache.extend(cache.batch(rows) if batch and not last else rows)
        if not last:
            emitter(step)
            cache.commit(step, [7, 7])
    getattr(cache, verb)(rows[0])
    for emit in (emitter, lambda step: index.vllm(step, plan=plan)):
        with pytest.raises(StepError, match=f"rows \\[{rows[0].id!r}\\] of this step"):
            emit(step)
    cache.abort(step)
    assert 1 == len(emitter(cache.extend(rows[1])).block_table)


def test_rows_that_left_a_batch_that_decodes():
    """The step an emitter would go on with is checked as well, and so is one that ended."""
    plan, cache, step = stepped()
    cache.commit(step, [7, 7])
    batch, emitter = cache.batch(step.sequences), index.Emitter(index.vllm, plan)
    for _ in range(3):
        step = cache.extend(batch)
        emitter(step)
        cache.commit(step, [7, 7])
        with pytest.raises(StepError, match="not open"):
            emitter(step)
    step = cache.extend(batch)
    cache.release(step.sequences[1])
    with pytest.raises(StepError, match="released"):
        emitter(step)


def test_rows_that_sat_out_may_leave():
    """They have no token in the step."""
    plan, cache, step = stepped()
    cache.commit(step, [7, 7])
    step = cache.extend(step.sequences, [1, 0])
    cache.release(step.sequences[1])

    assert [21, 5] == index.vllm(step, plan=plan).seq_lens.tolist()


@pytest.mark.parametrize("name", [emit.__name__ for emit in FORMATS] + ["flex", "state", "cross"])
def test_what_is_no_step_or_plan(name):
    """Named, whatever it is."""
    plan, _, step = stepped(groups=GROUPS)
    for plan_, step_, error in (
        (None, step, PlanError),
        ("plan", step, PlanError),
        (plan, None, LengthError),
        (plan, plan, LengthError),
        (plan, step.replace(sequences=()), LengthError),
    ):
        with pytest.raises(error, match="plan" if error is PlanError else "step"):
            every(step_, plan_)[name]()
    emit = getattr(index, name)
    for group in ([], {}, 1):
        with pytest.raises(PlanError, match="group"):
            emit(step, group, plan=plan)
    other = Plan.from_pages(60, 16, {"other": Attention(1, 1, 1)})
    swapped = {"full": State(1), "state": Cross(1, 1, 1), "cross": Attention(1, 1, 1)}
    for wrong in (other, Plan.from_pages(60, 16, swapped)):
        with pytest.raises(PlanError, match="plan is"):
            every(step, wrong)[name]()


# -- options ---------------------------------------------------------------------------------------


@by_format
@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"kernle": "vllm"}, PlanError, "option is 'kernle'; known options are: rows, columns"),
        ({"kernel": "nonsense"}, PlanError, "known kernels are: flash_attn"),
        ({"kernel": ["vllm"]}, PlanError, "kernel is"),
        ({"kernel": "flash_attn"}, PlanError, "multiples of 256"),
        ({"form": []}, PlanError, "form is"),
        ({"rows": 2**70}, LengthError, "rows is"),
        ({"rows": 10**12}, LengthError, "rows is"),
        ({"slot_fill": []}, PlanError, "must be -1"),
    ],
)
def test_options_are_refused_by_name(emit, options, error, words):
    """In functions and in emitters."""
    plan, _, step = stepped()
    with pytest.raises(error, match=words):
        emit(step, plan=plan, **options)
    with pytest.raises(error, match=words):
        index.Emitter(emit, plan, **options)(step)


@pytest.mark.parametrize("emit", [index.vllm, index.flash, index.onnxruntime, index.dense])
def test_rows_whose_table_would_be_too_large(emit):
    """As many as a table of int32 entries has room for; the bound is named."""
    plan, _, step = stepped()
    with pytest.raises(LengthError, match="rows is 2147483646") as caught:
        emit(step, plan=plan, rows=2**31 - 2)
    assert caught.value.high < 2**30


@pytest.mark.parametrize(
    ("emit", "options", "error", "words"),
    [
        (
            "vllm",
            {},
            PlanError,
            "emit is 'vllm'; it must be a function of octavo.index: vllm, flash",
        ),
        (len, {}, PlanError, "emit is"),
        (index.flex, {}, PlanError, "emit is"),
        (index.state, {}, PlanError, "emit is"),
        (index.vllm, {"layers": 2}, PlanError, "option is 'layers'; tensorrt alone"),
        (index.tensorrt, {"layers": {}}, LengthError, "layers is"),
        (index.tensorrt, {"kv_factor": "x"}, LengthError, "kv_factor is"),
        (index.tensorrt, {"kv_factor": 3}, LengthError, "kv_factor is"),
        (index.vllm, {"plan": None}, PlanError, "plan is"),
        (index.vllm, {"group": []}, PlanError, "group is"),
    ],
)
def test_emitters_are_refused_when_they_are_made(emit, options, error, words):
    """By the argument that is wrong."""
    with pytest.raises(error, match=words):
        index.Emitter(emit, **{"plan": Plan.from_pages(9, 16)} | options)


@pytest.mark.parametrize("dtype", [[], None, "int16"])
def test_reach_of_other_types(dtype):
    """Known ones are named."""
    with pytest.raises(PlanError, match="one of int32"):
        index.max_addressable_pages(1, dtype)


@by_format
def test_kernels_that_count_elements_in_int32(emit):
    """The last page they reach is emitted, the next is refused, plans without tensors too."""
    spec = ModelSpec("wide", (Attention(64, 256, 256),) * 2, 4096)
    plan = octavo.plan(spec, "40GiB", page_size=16)
    cache = Cache(plan)
    step = cache.extend(cache.admit([1] * 5), 5)
    reach = min(tensor.max_addressable_pages for tensor in plan.tensors)
    view = step.group()
    assert reach < plan.ids("full")
    for page, fits in ((reach - 1, True), (reach, False)):
        table = np.full_like(view.table, page)
        moved = step.replace(groups={"full": view._replace(table=table)})
        assert emit(moved, plan=plan)
        if fits:
            assert emit(moved, plan=plan, kernel="int32")
            continue
        name = step.sequences[0].id
        with pytest.raises(CapacityError, match=f"page of sequence {name!r} is {reach}, at most"):
            emit(moved, plan=plan, kernel="int32")
    plain, _, other = stepped()
    with pytest.raises(PlanError, match="no tensors"):
        emit(other, plan=plain, kernel="int32")


# -- buffers ---------------------------------------------------------------------------------------


@by_format
def test_buffers_that_overlap(emit):
    """One array twice, slices of a buffer, arrays of the step: both are named, none is written."""
    plan, _, step = stepped(lengths=(20, 5, 3))
    out = emit(step, plan=plan)
    buffer = np.full(64, 7, np.int32)
    ours = {"logit_rows": buffer[:8], "base": buffer[7:15]}
    lent = {"logit_rows": np.asarray(memoryview(buffer))[:8], "base": buffer[7:15]}
    wrong = [
        ({"positions": out.slot_mapping}, "slot_mapping"),
        (ours, "base"),
        (lent, "base"),
        ({"base": step.past}, "past"),
        ({"base": step.group().base}, "base"),
        ({"base": np.asarray(memoryview(step.context))}, "context"),
    ]
    for arrays, named in wrong:
        given = out._replace(**arrays)
        before = freeze(given), freeze(step)
        with pytest.raises(LengthError, match=f"in the memory of .*{named}"):
            emit(step, plan=plan, out=given)
        with pytest.raises(LengthError, match="in the memory of"):
            index.Emitter(emit, plan, out=given)(step)
        assert before == (freeze(given), freeze(step))


def test_slices_of_one_buffer_that_lie_apart():
    """They are as good as arrays of their own."""
    plan, _, step = stepped()
    plain = index.vllm(step, plan=plan)
    buffer, at, cut = np.full(200, 7, np.int32), 0, {}
    for name, array in plain._asdict().items():
        if isinstance(array, np.ndarray):
            cut[name] = buffer[at : at + array.size].reshape(array.shape)
            at += array.size
    found = index.vllm(step, plan=plan, out=plain._replace(**cut))
    for name, array in cut.items():
        assert np.array_equal(getattr(plain, name), getattr(found, name))
        assert getattr(found, name) is array


@by_format
def test_arrays_of_other_classes(emit):
    """A subclass is filled as the array it is: a matrix too, whose every view has two axes."""
    plan, _, step = stepped()
    wanted = emit(step, plan=plan)
    with pytest.warns(PendingDeprecationWarning):
        matrix = np.matrix([[1]])
    for other, axes in ((type(matrix), 2), (np.ma.MaskedArray, 1)):
        made = {
            name: np.full_like(array, 5).view(other)
            for name, array in wanted._asdict().items()
            if isinstance(array, np.ndarray) and array.ndim == axes
        }
        out = emit(step, plan=plan)._replace(**made)
        for each in (emit(step, plan=plan, out=out), index.Emitter(emit, plan, out=out)(step)):
            for name, array in made.items():
                assert getattr(each, name) is array
                assert np.array_equal(np.asarray(array), getattr(wanted, name)), name


def test_offsets_with_more_than_keys_and_values():
    """The axis of both is as long as the kernel reads it, and never padded."""
    plan, _, step = stepped()
    out = index.tensorrt(step, plan=plan)
    for size in (1, 3):
        wide = out._replace(block_offsets=np.full((2, size, 9), 77, np.int32))
        with pytest.raises(LengthError, match=rf"block_offsets.shape\[1\] is {size}; it must be 2"):
            index.tensorrt(step, plan=plan, out=wide)
        assert (wide.block_offsets == 77).all()


def test_empty_tensors():
    """Rows that share no page have none to list, in torch's tensors too."""
    plan, _, step = stepped()
    made = index.cascade(step, plan=plan)
    out = made._make(x if isinstance(x, int) else torch.from_numpy(x.copy()) for x in made)

    assert 0 == out.shared_kv_indices.numel()
    found = index.cascade(step, plan=plan, out=out)
    assert found.shared_kv_indices is out.shared_kv_indices
    assert found.kv_indices.tolist() == made.kv_indices.tolist()


@pytest.mark.parametrize("emit", [index.vllm, index.tensorrt, index.dense, index.cross])
def test_tables_that_are_too_narrow_name_the_longest_row(emit):
    """And the columns it needs."""
    plan, _, step = stepped(lengths=(5, 20), page_size=4, groups=GROUPS)
    if emit is index.cross:
        plan, cache, _ = stepped(groups=GROUPS, page_size=4)
        rows = [cache.admit([1], cross=("one", 2)), cache.admit([2], cross=("two", 18))]
        step = cache.extend(rows)
    group = "cross" if emit is index.cross else "full"
    out = emit(step, group, plan=plan)
    name = "block_offsets" if emit is index.tensorrt else "block_table"
    narrow = out._replace(**{name: getattr(out, name)[..., :2].copy()})
    with pytest.raises(CapacityError, match=f"sequence {step.sequences[1].id!r} needs 5 columns"):
        emit(step, group, plan=plan, out=narrow)


def test_cascade_rows_of_shared_pages_alone():
    """A row without pages of its own has a last page of one token, as the format says."""
    plan = Plan.from_pages(60, 16)
    cache = Cache(plan)
    first = cache.admit([1] * 40)
    cache.commit(cache.extend(first, 40), [2])
    rows = [cache.admit([1] * 33), cache.admit([1] * 32 + [3] * 7)]
    found = index.cascade(cache.extend(rows, [0, 7]), plan=plan)

    assert [0, 2] == found.shared_kv_indptr.tolist()
    assert [0, 0, 1] == found.kv_indptr.tolist()
    assert [1, 7] == found.kv_last_page_len.tolist()
