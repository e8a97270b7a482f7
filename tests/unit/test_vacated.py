"""Pages that nobody needs any more are named once, and an engine that erases leaves no byte."""

import numpy as np
import pytest
import torch
import transformers

import octavo
from octavo import Attention, Cache, Plan, State
from octavo.engine import Engine, SamplingParams
from octavo.errors import PlanError, StepError

GROUPS = {
    "full": Attention(1, 1, 1),
    "window": Attention(1, 1, 1, window=5),
    "state": State(1),
}
PACKED = {"full": 1, "window": 3, "state": 2}


def named(cache):
    """The pages to erase, as lists."""
    return {name: pages.tolist() for name, pages in cache.vacated().items()}


def computed(cache, prompt, **options):
    """A sequence whose prompt has run."""
    row = cache.admit(prompt, **options)
    cache.commit(cache.extend(row, row.length - row.scheduled), [1])
    return row


def test_pages_of_a_sequence_that_ends():
    """All where no prefixes are kept, each once; none of those that somebody holds."""
    cache = Cache(Plan.from_pages(20, 4), prefix=False, erase=True)
    row = computed(cache, [1] * 10)
    pages = row_pages(cache, row)
    twin = cache.fork(row)[0]
    assert {} == named(cache)
    cache.release(row)
    assert {} == named(cache)
    cache.release(twin)

    assert {"full": pages} == named(cache)
    assert {} == named(cache)


def row_pages(cache, row):
    """Its pages in the first group."""
    step = cache.extend(row)
    pages = step.group().table[0].tolist()
    cache.abort(step)
    return pages


def test_pages_that_prefixes_keep_are_not_named():
    """They are when they are forgotten; the open page is at once."""
    cache = Cache(Plan.from_pages(20, 4), erase=True)
    row = computed(cache, [1] * 10)
    first, second, third = row_pages(cache, row)
    cache.release(row)
    assert {"full": [third]} == named(cache)
    cache.reset()

    assert {"full": [first, second]} == named(cache)


@pytest.mark.parametrize(
    "let_go",
    [
        lambda cache, row: cache.truncate(row, 1),
        lambda cache, row: cache.preempt(row),
        lambda cache, row: cache.release(row),
        lambda cache, row: cache.abort(cache.extend(row, 20, ahead=20)),
        lambda cache, row: cache.commit(cache.extend(row, 20, ahead=20), [[1]], kept=[1]),
    ],
    ids=["truncate", "preempt", "release", "abort", "commit"],
)
def test_every_way_to_let_go(let_go):
    """Whatever verb gave pages back."""
    cache = Cache(Plan.from_pages(40, 4), prefix=False, erase=True)
    row = computed(cache, [1] * 10, limit=60)
    let_go(cache, row)
    pages = cache.vacated()["full"]

    assert np.int32 == pages.dtype
    assert pages.size == len(set(pages.tolist())) > 0


def test_what_was_taken_again_waits():
    """It is named when it is let go of for good."""
    cache = Cache(Plan.from_pages(4, 4), prefix=False, erase=True)
    cache.release(computed(cache, [1] * 9))
    row = computed(cache, [2] * 9)
    assert {} == named(cache)
    cache.release(row)

    assert {"full": [1, 2, 3]} == named(cache)


@pytest.mark.parametrize("per_parent", [None, PACKED], ids=["flat", "packed"])
@pytest.mark.parametrize("prefix", [False, True])
def test_named_pages_are_nobodys(per_parent, prefix):
    """In any order of verbs: no page of a live sequence or of a kept prefix, and in the end all."""
    plan = Plan.from_pages(60, 4, GROUPS, pages_per_parent=per_parent)
    cache, random = Cache(plan, prefix=prefix, erase=True), np.random.default_rng(3)
    rows, noted = [], {name: set() for name in GROUPS}
    for _ in range(300):
        if len(rows) > 4 or (rows and random.random() < 0.4):
            row = rows.pop(int(random.integers(len(rows))))
            [cache.release, cache.preempt][int(random.random() < 0.1)](row)
            if not row.released:
                cache.release(row)
        else:
            rows.append(
                computed(cache, [int(n) for n in random.integers(0, 2, 1 + random.integers(20))])
            )
        step = cache.extend(rows) if rows else None
        for name, pages in cache.vacated().items():
            space = cache._core.pool.spaces[list(GROUPS).index(name)]
            assert not any(space.holders[page] or space.node[page] for page in pages)
            noted[name] |= set(pages.tolist())
        if step is not None:
            cache.commit(step, [1] * len(rows))
    for row in rows:
        cache.release(row)
    cache.reset()
    cache.vacated()
    assert {} == named(cache)
    assert all(noted.values())
    cache.check()


def test_a_cache_that_notes_nothing():
    """It says so; and what is no flag is refused."""
    with pytest.raises(StepError, match="erase=True"):
        Cache(Plan.from_pages(20, 4)).vacated()
    with pytest.raises(PlanError, match="erase"):
        Cache(Plan.from_pages(20, 4), erase=1)


# -- bytes -----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    """A tiny random Llama."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 61, "hidden_size": 32, "intermediate_size": 48}
    more = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
    config = transformers.LlamaConfig(**sizes, **more, eos_token_id=None)
    return transformers.LlamaForCausalLM(config)


def engine(model, pages=12, **options):
    """An engine over few pages."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    token = sum(layer.elements_per_token for layer in spec.layers) * 4
    memory = (pages + 1) * 4 * token
    plan = octavo.plan(spec, memory, page_size=4, dtype="fp32", order="head", max_length=40)
    return Engine(model, plan, **options)


@pytest.mark.parametrize("prefix", [False, True])
def test_an_engine_that_erases_leaves_no_byte(model, prefix):
    """Prefixes stay until they are forgotten; nothing else does."""
    prompts = [[1, 2, 3, 4, 5, 6], [7] * 9, [1, 2, 3, 4, 9]]
    params = SamplingParams(max_tokens=12)
    with engine(model, prefix=prefix) as other:
        wanted = [each.token_ids for each in other.generate(prompts, params)]
        assert other.storage.arena.any()
    with engine(model, prefix=prefix, erase=True) as found:
        assert wanted == [each.token_ids for each in found.generate(prompts, params)]
        cancelled = found.submit([3] * 5, params)
        found.step()
        found.cancel(cancelled)
        kept = found.cache.stats().evictable
        full = sum(
            bool(found.storage.read_pages("full", np.array([page])).any())
            for page in range(1, found.cache.plan.num_pages)
        )
        assert kept == full
        assert prefix == bool(kept)
        found.cache.reset()
        found.storage.zero(found.cache.vacated())
        assert not found.storage.arena.any()
