"""PagedSession: what it refuses before anything is written, and that it writes in place."""

from dataclasses import replace

import numpy as np
import onnx
import pytest

import octavo
from octavo.errors import (
    CapacityError,
    LengthError,
    PlanError,
    StepError,
    TokenError,
    UnsupportedModel,
)
from octavo.integrations.onnx import Decoder, PagedSession, export_decoder
from octavo.model.spec import Attention, Latent, State
from octavo.testing import freeze

SIZES = {"vocab": 50, "hidden": 16, "layers": 2, "heads": 2, "mlp": 16, "max_length": 64}
DECODER = Decoder(**SIZES, kind=Attention(1, 16, 16))
LATENT = Decoder(**SIZES, kind=Latent(24, 16), nope_dim=8, v_dim=8)


def planned(spec=DECODER.spec, **options):
    """A small plan in fp32."""
    return octavo.plan(spec, "64KiB", **({"dtype": "fp32"} | options))


def exported(decoder=DECODER, **options):
    """A decoder of standard operators in fp32."""
    chosen = {"dtype": "fp32", "operators": "standard"} | options
    return export_decoder(decoder, decoder.random_weights(), **chosen)


@pytest.fixture(scope="module")
def model():
    """The decoder's graph."""
    return exported()


def spec_of(*layers):
    """A model of these layers."""
    return octavo.ModelSpec("mixed", layers, 64)


@pytest.mark.parametrize(
    ("plan", "message"),
    [
        (planned(layout="slab"), "layout is 'slab'; .*layout='component'"),
        (planned(spec_of(DECODER.kind, State(4))), "layout is 'packed'; .*layout='component'"),
        (planned(order="head"), "order is 'head'; .* order 'token'"),
        (planned(page_size=8), "page_size is 8; onnxruntime takes multiples of 16"),
        (planned(page_size=48), "page_size is 48; onnxruntime takes powers of two"),
        (planned(dtype="int8"), "dtype is 'int8'; exported graphs keep one of fp32, fp16, bf16"),
        (octavo.Plan.from_pages(9, 16), "plan is .*; it must come from octavo.plan"),
        (
            planned(spec_of(DECODER.kind, State(4)), layout="component"),
            r"groups is \['full', 'state'\]; one table addresses all layers",
        ),
        (
            planned(spec_of(DECODER.kind, replace(DECODER.kind, window=8)), layout="component"),
            r"groups is \['full', 'window_8'\]",
        ),
        (planned(spec_of(Attention(2, 16, 16)), tp=2), r"tp and pp is \(2, 0\)"),
        (planned(spec_of(Latent(24, 16, 8))), "component is 'indexer'"),
    ],
)
def test_plans_it_cannot_drive(model, plan, message):
    """Another layout, order, page size or element type is refused by its name."""
    with pytest.raises(PlanError, match=message):
        PagedSession(model, plan)


def test_graph_of_another_plan(model):
    """Caches of other layers, heads, channels or element types are refused by input."""
    wide = Decoder(**SIZES, kind=Attention(1, 32, 32))
    deep = Decoder(**(SIZES | {"layers": 3}), kind=DECODER.kind)

    with pytest.raises(PlanError, match=r"shape of key_cache.0 is .*32.*the plan's is \(.*, 16\)"):
        PagedSession(exported(wide), planned())
    with pytest.raises(PlanError, match="input of the graph is 'key_cache.2'; the plan has key_c"):
        PagedSession(exported(deep), planned())
    with pytest.raises(PlanError, match="the plan's key_cache.2 is missing"):
        PagedSession(model, planned(deep.spec))
    with pytest.raises(PlanError, match="input of the graph is 'key_cache.0'"):
        PagedSession(model, planned(LATENT.spec))
    with pytest.raises(PlanError, match="dtype of key_cache.0 is 'fp32'; the plan's is bf16"):
        PagedSession(model, planned(dtype="bf16"))


def windowed(window):
    """The decoder with a window."""
    return Decoder(**SIZES, kind=replace(DECODER.kind, window=window))


def plan_of(**options):
    """A plan of layers with these options."""
    return planned(spec_of(*[replace(DECODER.kind, **options)] * 2))


@pytest.mark.parametrize("operators", ["standard", "paged"])
def test_graph_that_sees_what_the_plan_drops(operators):
    """A graph's window must not be wider than the plan's, whoever of node or metadata says it."""
    full, same, narrow = (
        exported(each, operators=operators) for each in (DECODER, windowed(32), windowed(31))
    )
    plan, options = plan_of(window=32), {"runtime": "reference"}

    with pytest.raises(PlanError, match="window of the graph is None; .*window_32 keeps 32"):
        PagedSession(full, plan, **options)
    with pytest.raises(PlanError, match="window of the graph is 32; .*window_31 keeps 31"):
        PagedSession(same, plan_of(window=31), **options)
    for graph in (same, narrow):
        assert PagedSession(graph, plan, **options)
    assert PagedSession(same, planned(), **options)  # all is there
    assert PagedSession(same, plan_of(window=32, sink_tokens=4), **options)


def mixed(*windows, **options):
    """The decoder with a window a layer, and a plan of as many layers."""
    kinds = tuple(replace(DECODER.kind, window=window) for window in windows)
    decoder = Decoder(**(SIZES | {"layers": len(kinds)}), kind=kinds)
    return decoder, planned(decoder.spec, layout="component", **options)


def test_inputs_of_several_groups():
    """Each group has a block table, slots and lengths of its own, under its name."""
    decoder, _ = mixed(20, None, 20)
    graph = exported(decoder).graph
    indices = [value.name for value in graph.input if "cache" not in value.name]

    assert {"window_20": (0, 2), "full": (1,)} == decoder.groups
    assert indices == ["input_ids"] + [
        f"{name}.{group}"
        for group in ("window_20", "full")
        for name in (
            "block_table",
            "slot_mapping",
            "cumulative_sequence_length",
            "past_seqlens",
            "attention_metadata",
        )
    ]


@pytest.mark.parametrize("operators", ["standard", "paged"])
def test_groups_of_graph_and_plan(operators):
    """A graph reads the tables of the plan's groups, each with a window at most as wide."""
    options, (decoder, plan) = {"runtime": "reference"}, mixed(20, None)
    graph = exported(decoder, operators=operators)
    assert PagedSession(graph, plan, **options)
    message = r"groups is \['window_20', 'full'\]; the graph reads block_table$"
    with pytest.raises(PlanError, match=message):
        PagedSession(exported(operators=operators), plan, **options)
    with pytest.raises(PlanError, match=r"groups is \['full'\]; .* block_table.window_20, .*full"):
        PagedSession(graph, planned(), **options)
    with pytest.raises(PlanError, match=r"groups is \['window_19', 'full'\]"):
        PagedSession(graph, mixed(19, None)[1], **options)
    for each in graph.metadata_props:
        assert ("octavo.window.window_20", "20") == (each.key, each.value)
        each.value = "21"
    for node in graph.graph.node:
        for each in node.attribute:
            each.i += each.name == "local_window_size"
    message = "window of the graph is 21; group window_20 keeps 20"
    with pytest.raises(PlanError, match=message):
        PagedSession(graph, plan, **options)


def test_copies_are_those_of_a_group():
    """A page that one group copies is another's in no layer of it."""
    decoder, plan = mixed(20, None)
    session, cache = PagedSession(exported(decoder), plan), octavo.Cache(plan)
    row = cache.admit(range(24))
    step = cache.extend(row, 24)
    session.run(step)
    cache.commit(step, [1])
    (twin,) = cache.fork(row)
    step = cache.extend(row, 1)
    assert twin.computed == 24
    source, target = (int(pages[0]) for pages in step.copies["full"])
    assert [source] != [int(page) for page in step.copies["window_20"].source]
    before = {name: pages.copy() for name, pages in session.caches.items()}
    session.run(step)
    for name in ("key_cache", "value_cache"):
        kept = before[f"{name}.1"][source][:8]
        assert np.array_equal(kept, session.caches[f"{name}.1"][target][:8])
        assert np.array_equal(before[f"{name}.0"][target], session.caches[f"{name}.0"][target])


def test_nodes_of_which_one_sees_all():
    """A graph of several windows sees as far as its widest layer; chunks are refused."""
    graph, plan = exported(windowed(32), operators="paged"), plan_of(window=32)
    node = next(each for each in graph.graph.node if each.op_type == "PagedAttention")
    window = next(each for each in node.attribute if each.name == "local_window_size")
    window.i = 40
    with pytest.raises(PlanError, match="window of the graph is 40"):
        PagedSession(graph, plan, runtime="reference")
    node.attribute.remove(window)
    with pytest.raises(PlanError, match="window of the graph is None"):
        PagedSession(graph, plan, runtime="reference")
    with pytest.raises(PlanError, match="group of the plan is 'chunked_32'"):
        PagedSession(graph, plan_of(chunk=32), runtime="reference")


@pytest.mark.parametrize("noted", ["0", "-3", "wide", ""])
def test_metadata_that_is_no_window(noted):
    """What a graph notes must be a number of keys."""
    graph, plan = exported(windowed(32)), plan_of(window=32)
    graph.metadata_props[0].value = noted
    with pytest.raises(PlanError, match=r"metadata_props\['octavo.window'\] is"):
        PagedSession(graph, plan)


def test_graph_without_an_output(model):
    """A graph that does not put out what it wrote is refused."""
    spoiled = onnx.ModelProto()
    spoiled.CopyFrom(model)
    del spoiled.graph.output[-1]

    with pytest.raises(PlanError, match="outputs of the graph is .*; value_cache_out.1 is missing"):
        PagedSession(spoiled, planned())


def test_what_is_no_model_or_runtime(model):
    """A path, or a runtime that is not there, is refused by name."""
    with pytest.raises(PlanError, match="model is 'str'; it must be an onnx.ModelProto"):
        PagedSession("decoder.onnx", planned())
    with pytest.raises(PlanError, match="runtime is 'cuda'; it must be 'onnxruntime' or 'refer"):
        PagedSession(model, planned(), runtime="cuda")


def test_missing_kernel_is_named():
    """PagedAttention on the CPU: the node that has no kernel, as octavo's own error."""
    with pytest.raises(UnsupportedModel, match=r"implementation for PagedAttention\(1\)"):
        PagedSession(exported(operators="paged", dtype="fp16"), planned(dtype="fp16"))


def opened(model, tokens=range(20), count=20):
    """A session, and the first step of a sequence."""
    plan = planned()
    cache = octavo.Cache(plan)
    return PagedSession(model, plan), cache, cache.extend(cache.admit(tokens), count)


def unchanged(session, step, error, message):
    """Whether ``step`` is refused with no page and no array of it changed."""
    before = {name: pages.tobytes() for name, pages in session.caches.items()}
    arrays = freeze(step)
    with pytest.raises(error, match=message):
        session.run(step)
    assert before == {name: pages.tobytes() for name, pages in session.caches.items()}
    assert arrays == freeze(step)


def test_token_outside_the_vocabulary(model):
    """Refused by index and value, before anything is written."""
    session, _, step = opened(model)
    step.input_ids[3] = 50

    unchanged(session, step, TokenError, r"token 3 is 50; token ids are ints in 0..49")


@pytest.mark.parametrize("ids", [np.zeros(20, np.int64), np.zeros(19, np.int32)])
def test_ids_of_another_shape(model, ids):
    """Ids an engine put in the step's place are int32, one per token."""
    session, _, step = opened(model)
    step = step.replace(input_ids=ids)

    unchanged(session, step, LengthError, r"input_ids is .*; .*the step's are int32\[20\]")


def test_what_is_no_step(model):
    """What is no step is refused."""
    with pytest.raises(LengthError, match="step is None; .*what Cache.extend returned"):
        opened(model)[0].run(None)


def test_step_that_is_no_longer_open(model):
    """Committed or aborted, a copy of it too: its slots may be another's."""
    session, cache, step = opened(model)
    copy = step.replace()
    assert step.open
    assert copy.open
    session.run(step)
    cache.commit(step, [1])
    assert not copy.open
    for over in (step, copy):
        unchanged(session, over, StepError, "was committed or aborted")
    later = cache.extend(step.sequences[0], 1)
    cache.abort(later)
    unchanged(session, later, StepError, "was committed or aborted")


@pytest.mark.parametrize("end", ["release", "preempt"])
def test_step_whose_row_has_gone(model, end):
    """A row that went meanwhile is named; one that sits out does not matter."""
    session, cache, step = opened(model)
    cache.commit(step, [1])
    (idle,), row = step.sequences, cache.admit([3] * 5)
    step = cache.extend([idle, row], [0, 5])
    getattr(cache, end)(idle)
    assert step.gone == ()
    assert session.run(step).shape == (5, 50)
    getattr(cache, end)(row)
    assert step.gone == (row,)
    unchanged(session, step, StepError, rf"\[{row.id!r}\], were released or preempted")


def test_position_beyond_the_tables(model):
    """A context longer than the rotary tables is refused."""
    plan = planned(replace(DECODER.spec, max_length=200))
    cache = octavo.Cache(plan)
    step = cache.extend(cache.admit([1] * 65), 65)

    unchanged(PagedSession(model, plan), step, LengthError, "context is 65; .* at most 64")


def test_more_tokens_than_positions(model):
    """A step may have more tokens than a sequence has positions: rows share it."""
    plan, prompts = planned(), [[1] * 40, [2] * 40]
    cache, session = octavo.Cache(plan), PagedSession(model, plan)
    found = session.run(cache.extend([cache.admit(prompt) for prompt in prompts], 40))
    alone = []
    for prompt in prompts:
        cache = octavo.Cache(plan)
        alone.append(session.run(cache.extend(cache.admit(prompt), 40)))

    assert (80, 50) == found.shape
    assert np.abs(np.concatenate(alone) - found).max() < 1e-5


def test_step_of_another_cache(model):
    """Pages the plan has not are refused: those of a cache with more of them."""
    plan = planned()
    larger = octavo.Cache(octavo.Plan.from_pages(2 * plan.num_pages, 16))
    row = larger.admit([1] * 16 * plan.num_pages)
    larger.commit(larger.extend(row, row.length))
    step = larger.extend(larger.admit([1, 2, 3], reuse=False), 3)

    message = rf"page of sequence 1 is \d+, at most {plan.num_pages - 1} is possible"
    unchanged(PagedSession(model, plan), step, CapacityError, message)


def test_step_of_a_plan_that_drops_pages(model):
    """A page a query sees and the step's window has dropped: refused by the group that drops it."""
    cache = octavo.Cache(plan_of(window=16))
    row = cache.admit(range(40))
    cache.commit(cache.extend(row, 34))
    step = cache.extend(row, 6)

    assert step.group().table[0, 0] == 0
    unchanged(PagedSession(model, planned()), step, PlanError, "'window_16', which keeps tokens")


def test_pages_are_written_in_place(model):
    """The step's 20 tokens change in two pages, and nothing else; the arrays stay in place."""
    session, cache, step = opened(model)
    places = {name: pages.ctypes.data for name, pages in session.caches.items()}
    for pages in session.caches.values():
        pages[:] = 7
    cache_before = freeze(cache)
    session.run(step)
    page, offset = np.divmod(step.group().slots, 16)
    for name, pages in session.caches.items():
        assert places[name] == pages.ctypes.data
        assert (pages[page, offset] != 7).any(axis=(1, 2)).all()
        pages[page, offset] = 7
        assert (pages == 7).all()
    assert cache_before == freeze(cache)


def test_running_a_step_again_changes_nothing(model):
    """A step that failed on the way can be run once more: the same logits, the same pages."""
    session, _, step = opened(model)
    first = session.run(step)
    pages = {name: array.copy() for name, array in session.caches.items()}

    assert np.array_equal(first, session.run(step))
    assert all(np.array_equal(pages[name], array) for name, array in session.caches.items())


def test_caches_are_those_of_the_plan(model):
    """Arrays of the plan's own shapes and bytes; a latent row is that of one head."""
    for decoder, graph in ((DECODER, model), (LATENT, exported(LATENT))):
        plan = planned(decoder.spec)
        caches = PagedSession(graph, plan).caches.values()
        wanted = [(t.shape[:2], t.bytes) for t in plan.tensors]
        assert wanted == [(array.shape[:2], array.nbytes) for array in caches]
    assert all(array.shape[2:] == (1, 40) for array in caches)


def test_rows_of_a_batch(model):
    """A batch's steps give what those of single sequences give."""
    plan, found = planned(), []
    for grouped in (False, True):
        cache, session = octavo.Cache(plan), PagedSession(model, plan)
        rows = [cache.admit([number] * 20) for number in (1, 2)]
        steppable = cache.batch(rows) if grouped else rows
        for counts in ([20, 13], [1, 7], [1, 1]):
            step = cache.extend(steppable, counts)
            logits = session.run(step)
            found.append(logits)
            cache.commit(step, logits[step.last].argmax(axis=-1))

    assert all(np.array_equal(a, b) for a, b in zip(found[:3], found[3:], strict=True))


def answers(model, prompts, count):
    """Greedy answers in one cache, two rows at a time; each a token longer than the last."""
    plan = planned()
    cache, session = octavo.Cache(plan, max_sequences=2), PagedSession(model, plan)
    waiting, running, done = list(enumerate(prompts)), [], {}
    while waiting or running:
        while waiting and len(running) < 2:
            number, prompt = waiting.pop(0)
            running.append((number, cache.admit(prompt)))
        rows = [row for _, row in running]
        step = cache.extend(rows, [min(9, row.length - row.computed) for row in rows])
        logits = session.run(step)
        cache.commit(step, logits[step.last].argmax(axis=-1))
        for number, row in [*running]:
            if row.length == len(prompts[number]) + count + number:
                done[number] = row.tokens()[-count - number :].tolist()
                cache.release(row)
                running.remove((number, row))
    return [done[number] for number in range(len(prompts))]


def test_continuous_batching(model):
    """Rows that come and go, in chunks and with prefix hits, answer as each does alone."""
    base = list(range(20))
    prompts = [base, [5, 4, 3], [*base, 9], [*base[:17], 30, 31], [8] * 18]
    alone = [answers(model, [prompt], 4 + number)[0] for number, prompt in enumerate(prompts)]

    assert alone == answers(model, prompts, 4)
