"""Pages of preempted requests go to host memory and come back where that pays by the estimate."""

import gc
import weakref

import numpy as np
import pytest
import torch
import transformers

import octavo
from octavo.cache.results import Held
from octavo.engine import Engine, HostMemory, SamplingParams
from octavo.engine.host import HostCopier
from octavo.errors import PlanError
from octavo.scheduling import HostPages, Scheduler
from octavo.simulation import Setting, TimeModel, generate, serve
from octavo.storage import HostMirror

PAGE_BYTES = 64  # of 4 tokens: 16 a token
ALWAYS = HostMemory("64MiB", copy_rate=1e15, prefill_rate=1e-3)
PROMPTS = [[*range(3, 20)], [*range(5, 17)], [*range(9, 29)]]
GREEDY = SamplingParams(max_tokens=8)


class Request:
    """What a scheduler needs of one."""

    def __init__(self, prompt, limit):
        self.prompt, self.limit, self.sequence = prompt, limit, None


class Counter:
    """A copier that notes how many pages it is to copy, and may fail."""

    def __init__(self):
        self.calls, self.error = [], None

    def save(self, pages):
        """The pages, for `fill`."""
        if self.error:
            raise self.error
        self.calls.append(("out", sum(each.size for each in pages.values())))
        return pages

    def fill(self, content, step, pages):  # noqa: ARG002, as of a copier
        """Each of them was copied out."""
        if self.error:
            raise self.error
        self.calls.append(("back", sum(each.pages.size for each in pages.values())))
        assert all(each.places.max() < content[name].size for name, each in pages.items())


def scheduled(memory=10**6, copy_rate=1e9, prefix=False, size=10):
    """A scheduler of two requests of ``size`` tokens that have computed them, and its parts.

    A token takes a second to compute.
    """
    page_bytes = {"full": PAGE_BYTES}
    plan = octavo.Plan.from_pages(40, 4, page_bytes=page_bytes)
    cache, copier = octavo.Cache(plan, prefix=prefix), Counter()
    model = TimeModel(prefill_rate=1.0, copy_rate=copy_rate, host_memory=memory)
    host = HostPages(cache, model, copier)
    scheduler = Scheduler(cache, 64, host=host)
    for start in (0, 100):
        scheduler.add(Request([*range(start, start + size)], 30))
    cache.commit(scheduler.schedule().step, [1, 1])
    return scheduler, host, copier


def preempt_and_resume(scheduler):
    """The last loses its pages and comes back in the next turn; tokens it computes there."""
    scheduler._preempt_last()
    scheduler._denied = None
    turn = scheduler.schedule()
    counts = dict(zip(turn.requests, turn.step.counts.tolist(), strict=True))
    scheduler.cache.commit(turn.step, [1, 1])
    return counts[[*scheduler.running][-1]]


def test_a_preempted_request_goes_on_where_it_was():
    """Its three pages go out and come back, and it computes the one token it had not computed."""
    scheduler, host, copier = scheduled()

    assert preempt_and_resume(scheduler) == 1
    assert [("out", 3), ("back", 3)] == copier.calls
    assert (10, 6 * PAGE_BYTES, 0) == (host.restored_tokens, host.copied_bytes, host.used_bytes)
    assert scheduler.recomputed_tokens == 0
    scheduler.cache.check()


@pytest.mark.parametrize(
    ("copy_rate", "calls"),
    [
        (2 * 3 * PAGE_BYTES / 10, []),  # two copies take as long as computing
        (2 * 3 * PAGE_BYTES / 10 + 0.1, [("out", 3), ("back", 3)]),
    ],
)
def test_pages_go_out_where_two_copies_take_less_than_computing(copy_rate, calls):
    """The estimate: bytes, out and back, over their rate against tokens over theirs."""
    scheduler, _, copier = scheduled(copy_rate=copy_rate)

    assert preempt_and_resume(scheduler) == (1 if calls else 11)
    assert calls == copier.calls


@pytest.mark.parametrize(("copy_rate", "computed"), [(PAGE_BYTES + 0.1, 1), (PAGE_BYTES, 2)])
def test_what_is_found_again_is_not_copied_back(copy_rate, computed):
    """Two pages are found; of the third, with one token, a copy takes as long as computing it."""
    scheduler, host, copier = scheduled(copy_rate=copy_rate, prefix=True, size=9)

    assert preempt_and_resume(scheduler) == computed
    assert [("out", 3), ("back", 1)][: 3 - computed] == copier.calls
    assert host.used_bytes == 0
    scheduler.cache.check()


@pytest.mark.parametrize(("memory", "saved"), [(3 * PAGE_BYTES, True), (3 * PAGE_BYTES - 1, False)])
def test_no_more_than_there_is_room_for(memory, saved):
    """A request whose pages have no room is computed again."""
    scheduler, host, _ = scheduled(memory=memory)
    scheduler._preempt_last()

    assert saved == bool(host.used_bytes)


def test_what_cannot_be_copied_is_computed():
    """Out or back: a warning tells it, and nothing is lost."""
    scheduler, host, copier = scheduled()
    copier.error = MemoryError("none is left")
    with pytest.warns(RuntimeWarning, match="could not be copied out and are computed again"):
        assert preempt_and_resume(scheduler) == 11
    copier.error = None
    scheduler._preempt_last()
    copier.error, scheduler._denied = RuntimeError("no device"), None
    with pytest.warns(RuntimeWarning, match="could not be copied back and are computed again"):
        turn = scheduler.schedule()

    assert [1, 12] == turn.step.counts.tolist()
    assert (0, 0) == (host.used_bytes, host.restored_tokens)
    scheduler.cache.check()


def test_a_request_that_ends_leaves_nothing():
    """Cancelled while it waits for its pages."""
    scheduler, host, _ = scheduled()
    request = [*scheduler.running][-1]
    scheduler._preempt_last()
    assert host.used_bytes == 3 * PAGE_BYTES
    scheduler.remove(request)

    assert (0, {}) == (host.used_bytes, host.saved)


def test_a_plan_without_bytes_has_no_host_memory():
    """The estimate needs bytes, and the simulator says so too."""
    plan = octavo.Plan.from_pages(40, 4)
    model = TimeModel(host_memory=1000)
    for call in (
        lambda: HostPages(octavo.Cache(plan), model),
        lambda: serve(generate("chat", 2), Setting(plan), model),
    ):
        with pytest.raises(PlanError, match="knows no bytes"):
            call()


def test_host_pages_are_of_one_cache():
    """A scheduler of another cache refuses them."""
    plan = octavo.Plan.from_pages(40, 4, page_bytes={"full": 1})
    host = HostPages(octavo.Cache(plan), TimeModel(host_memory=1))
    with pytest.raises(PlanError, match="host"):
        Scheduler(octavo.Cache(plan), 8, host=host)


def test_copies_take_time_in_the_simulator():
    """Bytes over their rate, beside the steps."""
    plan = octavo.Plan.from_pages(301, 16, page_bytes={"full": 1000})
    trace = generate("system-prompt", 30, rate=50, seed=1)
    slow = {"prefill_rate": 1e3, "decode_rate": 1e3}
    fast = TimeModel(host_memory=10**9, copy_rate=1e300, **slow)
    without, free = (serve(trace, Setting(plan), each) for each in (TimeModel(**slow), fast))
    taken = serve(trace, Setting(plan), TimeModel(host_memory=10**9, copy_rate=1e6, **slow))

    assert without.whole.restored_tokens == 0 < free.whole.restored_tokens
    assert free.whole.busy < without.whole.busy
    assert free.whole.busy < taken.whole.busy


# -- what a sequence holds, and early slides -----------------------------------------------------


def columns(held):
    """By group."""
    return {name: each.columns.tolist() for name, each in held.items()}


def test_held_pages():
    """Columns and pages of each group, as a step's table has them; none of a preempted one."""
    groups = {"full": octavo.Attention(1, 1, 1), "w": octavo.Attention(1, 1, 1, window=4)}
    cache = octavo.Cache(octavo.Plan.from_pages(40, 4, groups))
    row = cache.admit([*range(14)])
    step = cache.extend(row, 14)
    table = step.group("full").table[0]
    cache.commit(step)

    held = cache.held(row)
    assert {"full": [0, 1, 2, 3], "w": [2, 3]} == columns(held)
    assert isinstance(held["full"], Held)
    assert np.array_equal(table, held["full"].pages)
    cache.preempt(row)
    assert {} == cache.held(row)


def test_nothing_is_held_before_a_state_is_there():
    """A sequence that found a state has it once its next step has copied it."""
    groups = {"full": octavo.Attention(1, 1, 1), "state": octavo.State(1)}
    cache = octavo.Cache(octavo.Plan.from_pages(40, 4, groups))
    first = cache.admit([*range(9)])
    cache.commit(cache.extend(first, first.next_stop))
    second = cache.admit([*range(9)])

    assert second.computed == 8
    assert {} == cache.held(second)
    cache.commit(cache.extend(second, 1), [1])
    assert {"full": [0, 1, 2], "state": [0]} == columns(cache.held(second))


def test_a_window_slides_before_its_step_is_committed():
    """What no later query sees is given back and not published; the rest is."""
    groups = {"full": octavo.Attention(1, 1, 1), "w": octavo.Attention(1, 1, 1, window=4)}
    cache = octavo.Cache(octavo.Plan.from_pages(40, 4, groups))
    row = cache.admit([*range(16)])
    step = cache.extend(row, 12)
    cache.slide(row, 12)

    assert {"full": [0, 1, 2], "w": [2]} == columns(cache.held(row))
    assert cache.commit(step).published == 4
    cache.check()
    with pytest.raises(octavo.LengthError):
        cache.slide(row, 11)


# -- the engine ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def model():
    """A tiny random one."""
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "eos_token_id": None}
    config = transformers.LlamaConfig(**shape, **heads, max_position_embeddings=96)
    return transformers.LlamaForCausalLM(config).double().eval()


def engine_of(model, host=ALWAYS, **options):
    """An engine on pages of 4 tokens."""
    spec = octavo.ModelSpec.from_config(model.config.to_dict())
    plan = octavo.plan(spec, "256KiB", page_size=4, dtype="fp64", order="head")
    return Engine(model, plan, host=host, **options)


@pytest.fixture(scope="module")
def alone(model):
    """The tokens of each prompt without host memory."""
    with engine_of(model, None) as engine:
        return [each.token_ids for each in engine.generate(PROMPTS, GREEDY)]


def run(engine, requests):
    """Step to the end; after each step the last that runs is preempted."""
    while not all(each.done for each in requests):
        engine.step()
        if len(engine._core.scheduler.running) > 1:
            engine._core.scheduler._preempt_last()
        engine.cache.check()


def test_the_engine_counts_what_it_copied_back(model, alone):
    """Tokens are the same, and fewer positions are computed."""
    with engine_of(model) as engine:
        requests = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        run(engine, requests)

        assert alone == [each.output for each in requests]
        assert engine.stats.restored_tokens > 0
        whole = sum(map(len, PROMPTS)) + len(PROMPTS) * (GREEDY.max_tokens - 1)
        assert whole == engine.stats.computed_tokens + engine.stats.cached_tokens


@pytest.mark.parametrize("broken", [("offload", 1), ("restore", 2), ("restore", 1)])
def test_the_engine_computes_what_cannot_be_copied(model, alone, monkeypatch, broken):
    """Whichever copy raises, every request gets its tokens."""
    name, every = broken
    right, calls = getattr(HostMirror, name), []

    def fail(self, *args):
        calls.append(name)
        if len(calls) % every == 0:
            raise RuntimeError("no device")
        right(self, *args)

    monkeypatch.setattr(HostMirror, name, fail)
    with engine_of(model) as engine:
        requests = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        with pytest.warns(RuntimeWarning, match="computed again"):
            run(engine, requests)
    assert alone == [each.output for each in requests]


@pytest.mark.parametrize("way", ["cancel", "close", "reset"])
def test_host_memory_is_given_back(model, monkeypatch, way):
    """When a preempted request is cancelled, and by close and reset; then the engine goes on."""
    mirrors, save = [], HostCopier.save

    def noted(self, pages):
        mirror = save(self, pages)
        mirrors.append(weakref.ref(mirror))
        return mirror

    monkeypatch.setattr(HostCopier, "save", noted)
    with engine_of(model) as engine:
        requests = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
        engine.step()
        engine._core.scheduler._preempt_last()
        assert mirrors[0]() is not None
        if way == "cancel":
            requests[-1].cancel()
        else:
            getattr(engine, way)()
        gc.collect()

        assert mirrors[0]() is None
        if way != "close":
            assert engine.generate(PROMPTS[:1], GREEDY)
        assert engine.cache.stats().live == 0 or way == "cancel"


def test_rates_are_measured_where_none_are_given(model):
    """Copying when the engine is made, computing by its steps."""
    with engine_of(model, HostMemory("1MiB")) as engine:
        assert engine.rates.host_memory == 2**20
        assert engine.rates.copy_rate > 0
        before = engine.rates.prefill_rate
        engine.generate(PROMPTS, GREEDY)
        assert engine.rates.prefill_rate > before
    with engine_of(model, HostMemory(1, 2.0, 3.0)) as engine:
        engine.generate(PROMPTS, GREEDY)
        assert (2.0, 3.0) == (engine.rates.copy_rate, engine.rates.prefill_rate)


def test_what_is_no_host_memory(model):
    """Sizes and rates are refused by name, and copies beside a pool that is erased."""
    for given in ({"size": -1}, {"size": "much"}, {"size": 1, "copy_rate": 0}):
        with pytest.raises(PlanError):
            HostMemory(**given)
    with pytest.raises(PlanError, match="host"):
        engine_of(model, "1GiB")
    with pytest.raises(PlanError, match="erase"):
        engine_of(model, erase=True)
