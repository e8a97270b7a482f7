"""Whatever happens to a batch, an emitter gives what the function gives."""

from functools import wraps

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from octavo import Attention, Cache, Plan, index
from octavo.errors import CapacityError, LengthError, OctavoError

GROUPS = {
    "full": Attention(1, 1, 1),
    "window": Attention(1, 1, 1, window=9),
    "sinks": Attention(1, 1, 1, window=9, sink_tokens=3),
    "chunked": Attention(1, 1, 1, chunk=12),
}
FORMATS = [index.vllm, index.flash, index.flashinfer, index.onnxruntime, index.tensorrt]
PAGE = 16


def assert_equal(found, wanted):
    """Every field, in type, shape and value."""
    assert type(found) is type(wanted)
    for name, got, want in zip(wanted._fields, found, wanted, strict=True):
        assert np.array_equal(got, want), name
        assert np.asarray(got).dtype == np.asarray(want).dtype, name


class World:
    """A cache with a batch, and verbs that a random number chooses rows for."""

    def __init__(self, page_size=PAGE):
        self.plan = Plan.from_pages(400, page_size, GROUPS)
        self.cache = Cache(self.plan, rollback=4, depth=3)
        self.batch = self.cache.batch([])
        self.open = []

    def pick(self, number):
        """One of the rows."""
        return list(self.batch)[number % len(self.batch)]

    def admit(self, number):
        """A prompt of few tokens, so that rows share prefixes; computed but for its last token."""
        row = self.cache.admit([number % 2] * (1 + number % 37), limit=200)
        if row.length - row.computed > 1:
            self.cache.commit(self.cache.extend(row, row.length - row.computed - 1))
        self.batch.add(row)

    def remove(self, number):
        """Take a row out and let it go."""
        row = self.pick(number)
        self.batch.remove(row)
        self.cache.release(row)

    def fork(self, number):
        """A copy of a row beside it."""
        for row in self.cache.fork(self.pick(number)):
            self.batch.add(row)

    def truncate(self, number):
        """A row goes back a few tokens and learns others."""
        row = self.pick(number)
        if row.length > 2:
            self.cache.truncate(row, max(1, row.length - 1 - number % 3))

    def preempt(self, number):
        """A row gives its pages back and goes on from what is still published."""
        row = self.pick(number)
        self.cache.preempt(row)
        self.cache.resume(row)

    def extend(self, number):
        """Mostly a token a row; else drafts, or rows that sit out."""
        if number % 4:
            return self.cache.extend(self.batch, ahead=1)
        counts = [1 + (number >> at) % 3 for at in range(len(self.batch))]
        return self.cache.extend(self.batch, counts, ahead=3)

    def commit(self, step, number):
        """With sampled ids; or with some positions rejected."""
        if number % 5 and not self.open[1:]:
            self.cache.commit(step, np.full(len(step.sequences), number % 2, np.int32))
        else:
            self.cache.commit(step, None, kept=np.minimum(step.counts, 1 + number % 2))


CHANGES = ["admit", "remove", "fork", "truncate", "preempt"]
VERBS = ["step"] * 12 + [*CHANGES, "abort", "late", "skip"]
OPTIONS = [{}, {"page_fill": -1}, {"form": "compact"}, {"max_seq_len": 200}]


@pytest.mark.parametrize("group", GROUPS)
@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.tuples(st.sampled_from(VERBS), st.integers(0, 10**6)), max_size=30),
    st.lists(st.integers(0, 10**6), min_size=1, max_size=4),
    st.sampled_from(OPTIONS),
)
def test_emitters_give_what_functions_give(group, verbs, first, options):
    """Also of steps that are emitted late or never, and into buffers as well as without."""
    world = World()
    made = {"plan": world.plan, "group": group, **options}
    plain = [index.Emitter(emit, **made) for emit in FORMATS]
    roomy = [index.Emitter(emit, **made, out=buffers(emit), rows=9) for emit in FORMATS]
    for number in first:
        world.admit(number)
    for verb, number in verbs:
        try:
            run(world, verb, number, made, plain, roomy)
        except OctavoError:
            continue


def run(world, verb, number, made, plain, roomy):
    """One verb; steps are emitted by all and compared."""
    if verb in CHANGES:
        if verb == "admit" or len(world.batch) > 1:
            getattr(world, verb)(number)
        return
    step = world.extend(number)
    if verb == "late":
        later = world.cache.extend(world.batch, ahead=2)
    if verb != "skip":
        compare(step, made, plain, roomy)
    if verb == "abort":
        world.cache.abort(step)
        return
    world.commit(step, number)
    if verb == "late":
        compare(later, made, plain, roomy)
        world.cache.commit(later)


def compare(step, made, plain, roomy):
    """Emitters without and with buffers against the functions."""
    for emit, one, other in zip(FORMATS, plain, roomy, strict=True):
        assert_equal(one(step), emit(step, **made))
        if len(step.sequences) <= 9:
            wanted = emit(step, **made, out=buffers(emit), rows=9)
            assert_equal(other(step), wanted)


def buffers(emit, rows=9):
    """Arrays of one's own that are large enough, with rubbish in them."""
    plan = Plan.from_pages(40, PAGE)
    cache = Cache(plan)
    made = emit(cache.extend(cache.admit([1]), 1), plan=plan)
    shapes = {"block_table": (rows, 20), "block_offsets": (rows, 2, 20), "kv_indices": (rows * 20,)}
    long = {"attention_metadata": 3}
    return made._replace(
        **{
            name: np.full(shapes.get(name, (long.get(name, 80),)), 77, np.int32)
            for name, array in made._asdict().items()
            if isinstance(array, np.ndarray)
        }
    )


@pytest.mark.parametrize("emit", FORMATS, ids=lambda emit: emit.__name__)
@pytest.mark.parametrize("group", GROUPS)
def test_decoding_on_is_not_emitted_whole(emit, group):
    """The function runs for the first step and when the table grows wider; all steps are equal."""
    world, calls = World(), []
    for number in range(7):
        world.admit(5 + number)

    @wraps(emit)
    def counted(*args, **options):
        calls.append(1)
        return emit(*args, **options)

    emitter = index.Emitter(counted, world.plan, group, out=buffers(emit))
    for _ in range(50):
        step = world.cache.extend(world.batch)
        assert_equal(emitter(step), emit(step, group, plan=world.plan, out=buffers(emit)))
        world.cache.commit(step, np.arange(7, dtype=np.int32))

    assert len(calls) <= 2


@pytest.mark.parametrize("emit", FORMATS, ids=lambda emit: emit.__name__)
@pytest.mark.parametrize("group", GROUPS)
@pytest.mark.parametrize("late", [False, True])
def test_two_steps_open(emit, group, late):
    """Steps that are made before the last one ends, emitted before or after it does."""
    world = World()
    for number in range(7):
        world.admit(5 + number)
    emitter = index.Emitter(emit, world.plan, group)
    step = world.cache.extend(world.batch)
    for _ in range(50):
        later = world.cache.extend(world.batch, ahead=1)
        if not late:
            assert_equal(emitter(later), emit(later, group, plan=world.plan))
        world.cache.commit(step, np.arange(7, dtype=np.int32))
        if late:
            assert_equal(emitter(later), emit(later, group, plan=world.plan))
        step = later


@pytest.mark.parametrize("emit", FORMATS, ids=lambda emit: emit.__name__)
@pytest.mark.parametrize("group", GROUPS)
def test_steps_emitted_when_the_next_is_there(emit, group):
    """What a commit between them changed is in the log of the next, and seen in this one."""
    world = World()
    for number in range(7):
        world.admit(5 + number)
    emitter = index.Emitter(emit, world.plan, group)
    step, later = (world.cache.extend(world.batch, ahead=ahead) for ahead in (0, 1))
    for _ in range(50):
        world.cache.commit(step, np.arange(7, dtype=np.int32))
        newest = world.cache.extend(world.batch, ahead=1)
        assert_equal(emitter(later), emit(later, group, plan=world.plan))
        step, later = later, newest


@pytest.mark.parametrize("emit", FORMATS, ids=lambda emit: emit.__name__)
def test_what_a_caller_changes_is_seen(emit):
    """Steps whose numbers or table were changed: refused as by the function, or emitted whole."""
    world = World()
    for number in range(7):
        world.admit(5 + number)
    emitter = index.Emitter(emit, world.plan)
    for name in ("past", "context", "query_start", "counts"):
        world.cache.commit(prepared(world, emitter), np.arange(7, dtype=np.int32))
        step = world.cache.extend(world.batch)
        wrong = getattr(step, name).copy()
        wrong[2] += 40
        with pytest.raises(LengthError):
            emitter(step.replace(**{name: wrong}))
        view = step.groups["full"]
        table = view.table.copy()
        table[3, 0] = 399
        other = step.replace(groups=step.groups | {"full": view._replace(table=table)})
        assert_equal(emitter(other), emit(other, plan=world.plan))
        assert_equal(emitter(step), emit(step, plan=world.plan))
        world.cache.commit(step, np.arange(7, dtype=np.int32))


@pytest.mark.parametrize("emit", FORMATS, ids=lambda emit: emit.__name__)
def test_bounds_hold_from_step_to_step(emit):
    """Numbers for a graph stay what the caller named, up to the step that is beyond them."""
    world = World()
    world.admit(5)
    bounds = {"max_query_len": 4, "max_seq_len": 30}
    emitter = index.Emitter(emit, world.plan, **bounds)
    for _ in range(6, 31):
        step = world.cache.extend(world.batch)
        assert_equal(emitter(step), emit(step, plan=world.plan, **bounds))
        world.cache.commit(step, [1])
    with pytest.raises(CapacityError, match="max_seq_len"):
        emitter(world.cache.extend(world.batch))


def prepared(world, emitter):
    """A step that was emitted."""
    step = world.cache.extend(world.batch)
    emitter(step)
    return step


def test_arrays_of_its_own_cannot_be_written():
    """They are read-only; those of the caller are handed back, and `forget` makes them whole."""
    world = World()
    world.admit(5)
    step = world.cache.extend(world.batch)
    found = index.Emitter(index.vllm, world.plan)(step)
    with pytest.raises(ValueError, match="read-only"):
        found.block_table[0, 0] = 1

    mine = buffers(index.vllm)
    emitter = index.Emitter(index.vllm, world.plan, out=mine)
    assert emitter(step).block_table is mine.block_table
    world.cache.commit(step, [1])
    mine.block_table[:] = 5
    emitter.forget()
    step = world.cache.extend(world.batch)
    wanted = index.vllm(step, plan=world.plan, out=buffers(index.vllm))
    assert_equal(emitter(step), wanted)
