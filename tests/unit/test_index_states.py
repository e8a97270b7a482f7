"""octavo.index.state and octavo.index.cross: groups that keep no tokens."""

import numpy as np
import pytest

from octavo import (
    Attention,
    Cache,
    CapacityError,
    Cross,
    LengthError,
    Plan,
    PlanError,
    State,
    index,
)
from octavo.index.rows import running_sums

GROUPS = {"full": Attention(1, 1, 1), "state": State(1), "cross": Cross(1, 1, 1)}


def mixed():
    """Plan, and a step of a row that begins and one that goes on."""
    plan = Plan.from_pages(60, 4, GROUPS)
    cache = Cache(plan, rollback=2)
    old = cache.admit([1] * 9, cross=("one", 6))
    cache.commit(cache.extend(old, 9), [3])
    new = cache.admit([2] * 5, cross=("two", 9))
    return plan, cache.extend([new, old], [5, 1])


def test_states_of_a_step():
    """A row that begins has no source; as many targets as it has new tokens, newest first."""
    plan, step = mixed()
    found, view = index.state(step, "state", plan=plan), step.group("state")

    assert [False, True] == found.has_state.tolist()
    assert [[-1], view.source[1].tolist()] == found.source.tolist()
    assert view.table[0].tolist() == found.targets[0].tolist()
    assert [view.table[1, 0].tolist(), [-1], [-1]] == found.targets[1].tolist()
    assert [0, 5, 6] == found.query_start_loc.tolist()
    assert np.bool_ == found.has_state.dtype
    assert {np.dtype(np.int32)} == {found[at].dtype for at in (0, 2, 3)}


def test_cross_inputs_of_a_step():
    """Pages and tokens of each row's input, and whether it has to be written."""
    plan, step = mixed()
    found, view = index.cross(step, "cross", plan=plan), step.group("cross")

    assert [9, 6] == found.seq_lens.tolist()
    assert [0, 9, 15] == found.cu_seqlens_k.tolist()
    assert view.table[0, :3].tolist() == found.block_table[0].tolist()
    assert [*view.table[1, :2], 0] == found.block_table[1].tolist()
    assert [True, False] == found.fresh.tolist()
    assert (5, 9) == found[-2:]


def test_rows_that_sit_out_before_their_first_step():
    """Their input has no pages yet: they have no keys, and the step is emitted for the others."""
    plan = Plan.from_pages(60, 4, GROUPS)
    cache = Cache(plan)
    rows = [cache.admit([at] * 3, cross=(f"clip {at}", 6)) for at in range(2)]
    step = cache.extend(rows, [0, 3])
    found = index.cross(step, "cross", plan=plan)

    assert [0, 6] == found.seq_lens.tolist()
    assert [0, 0, 6] == found.cu_seqlens_k.tolist()
    assert [[0, 0], step.group("cross").table[1].tolist()] == found.block_table.tolist()
    assert [False, True] == found.fresh.tolist()
    assert [[-1]] * 2 == index.state(step, "state", plan=plan).source.tolist()


@pytest.mark.parametrize("name", ["state", "cross"])
def test_padding_is_harmless(name):
    """Padded rows read and write nothing, in buffers that held something else."""
    plan, step = mixed()
    emit = getattr(index, name)
    out = emit(step, name, plan=plan, rows=4)
    for array in out:
        if isinstance(array, np.ndarray):
            array[...] = 1
    found = emit(step, name, plan=plan, rows=3, out=out)

    assert found.query_start_loc is out.query_start_loc
    assert [0, 5, 6, 6, 6] == found.query_start_loc.tolist()
    if name == "state":
        assert np.all(found.source[2:] == -1)
        assert np.all(found.targets[2:] == -1)
        assert not found.has_state[2:].any()
    else:
        assert not found.block_table[2:].any()
        assert not found.seq_lens[2:].any()
        assert not found.fresh[2:].any()
        assert [0, 9, 15, 15, 15] == found.cu_seqlens_k.tolist()


@pytest.mark.parametrize("name", ["state", "cross"])
def test_pages_are_checked(name):
    """The null page, negative ones and those the plan has not are refused."""
    plan, step = mixed()
    emit, view = getattr(index, name), step.group(name)
    for page, error in ((0, LengthError), (-1, LengthError), (60, CapacityError)):
        table = view.table.copy()
        table[0, 0] = page
        wrong = step.replace(groups=step.groups | {name: view._replace(table=table)})
        with pytest.raises(error, match="page of a"):
            emit(wrong, name, plan=plan)


def test_cross_lengths_are_checked():
    """An input longer than its pages is refused."""
    plan, step = mixed()
    view = step.group("cross")
    lengths = np.full(len(view.lengths), 2**30, np.int32)
    long = step.replace(groups={"cross": view._replace(lengths=lengths)})
    with pytest.raises(LengthError, match="columns of a cross input"):
        index.cross(long, "cross", plan=plan)


def test_sums_beyond_int32():
    """Refused where they are added up."""
    with pytest.raises(CapacityError, match="keys of all rows is 2147483648"):
        running_sums(np.full(2, 2**30, np.int32))


def test_groups_of_another_kind_name_the_right_function():
    """Each function refuses the others' groups."""
    plan, step = mixed()
    with pytest.raises(PlanError, match="octavo.index.state emits"):
        index.vllm(step, "state", plan=plan)
    with pytest.raises(PlanError, match="octavo.index.cross emits"):
        index.vllm(step, "cross", plan=plan)
    for emit, group in ((index.state, "full"), (index.state, "cross"), (index.cross, "state")):
        with pytest.raises(PlanError, match="group is"):
            emit(step, group, plan=plan)
