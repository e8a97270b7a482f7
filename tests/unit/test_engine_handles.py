"""Asking an engine: handles, threads, event loops, samples that fork, and what misuse gets."""

import asyncio
import ctypes
import os
import subprocess
import sys
import textwrap
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers
from test_engine import PROMPTS, SHAPE, Letters, conserved, plan_for

import octavo
from octavo.engine import Engine, SamplingParams
from octavo.engine.sampling import Sampler

GREEDY = SamplingParams(max_tokens=8)
LONG = SamplingParams(max_tokens=40)


@pytest.fixture(scope="module")
def model():
    """A tiny random Llama in float64."""
    torch.manual_seed(0)
    return transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).double()


@pytest.fixture(scope="module")
def alone(model):
    """The tokens of each prompt by itself."""
    with Engine(model, plan_for(model)) as engine:
        return [engine.generate([prompt], GREEDY)[0].token_ids for prompt in PROMPTS]


@pytest.fixture
def engine(model):
    """An engine that its caller steps; no thread is left behind."""
    with Engine(model, plan_for(model)) as found:
        yield found
    assert not [t for t in threading.enumerate() if t.name == "octavo-engine"]


@pytest.fixture
def served(engine):
    """An engine that a thread of its own runs."""
    return engine.start()


@pytest.mark.parametrize("started", [False, True])
def test_tokens_of_a_handle(engine, alone, started):
    """Iterating yields each token, with a thread and without; to two readers, and once more."""
    if started:
        engine.start()
    request = engine.submit(PROMPTS[1], GREEDY)
    first, second = iter(request), iter(request)

    assert alone[1][:3] == [next(first) for _ in range(3)]
    assert alone[1] == list(second)
    assert alone[1] == list(request)
    assert alone[1][3:] == list(first)
    assert (alone[1], "length", 29, 0) == request.result()[:4]


def test_a_handle_steps_for_others_too(engine, alone):
    """Waiting for one request moves all that run."""
    first, second = (engine.submit(prompt, GREEDY) for prompt in PROMPTS[:2])

    assert alone[1] == second.result().token_ids
    assert alone[0] == first.output


def test_threads_submit_at_once(served, alone):
    """Each of many threads gets what its prompt gets alone."""

    def ask(at):
        request = served.submit(PROMPTS[at % 3], GREEDY)
        return list(request) if at % 2 else request.result(60).token_ids

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(ask, range(24)))
    served.stop()

    assert [alone[at % 3] for at in range(24)] == found
    assert conserved(served)
    assert 24 == served.stats.finished


def test_generate_beside_the_loop(served, alone):
    """Threads may call generate() at once while a thread runs the engine."""
    with ThreadPoolExecutor(3) as pool:
        found = list(pool.map(lambda _: served.generate(PROMPTS, GREEDY), range(3)))

    assert [alone] * 3 == [[each.token_ids for each in answers] for answers in found]


def test_event_loops(served, alone):
    """Tasks of an event loop stream, wait and cancel, and are not blocked by each other."""

    async def stream(prompt):
        return [token async for token in served.submit(prompt, GREEDY)]

    async def ask():
        request = served.submit(PROMPTS[2], LONG)
        answers = await asyncio.gather(*map(stream, PROMPTS))
        request.cancel()
        return answers, await served.submit(PROMPTS[0], GREEDY), await request

    answers, last, cancelled = asyncio.run(ask())

    assert alone == answers
    assert alone[0] == last.token_ids
    assert cancelled.finish_reason in ("cancelled", "length")


def test_an_event_loop_that_is_gone(served):
    """Who waited in an event loop that was closed does not disturb the engine."""
    request = served.submit(PROMPTS[0], LONG)

    async def give_up():
        async for _ in request:
            break
        task = asyncio.ensure_future(request.__aiter__().__anext__())
        other = asyncio.ensure_future(_wait(request))
        await task
        other.cancel()

    asyncio.run(give_up())

    assert 40 == len(request.result(60).token_ids)


async def _wait(request):
    return await request


def test_event_loops_need_a_thread(engine):
    """Without a thread an event loop is refused: a step would block it."""

    async def ask(request):
        return await request

    request = engine.submit(PROMPTS[0], GREEDY)
    with pytest.raises(octavo.StepError, match=r"start\(\)"):
        asyncio.run(ask(request))
    assert 8 == len(request.result().token_ids)


@pytest.mark.parametrize("started", [False, True])
def test_cancel_while_streaming(engine, alone, started):
    """The reader gets the tokens so far and no error; others go on."""
    if started:
        engine.start()
    request, other = engine.submit(PROMPTS[0], LONG), engine.submit(PROMPTS[1], GREEDY)
    found = []
    for token in request:
        found.append(token)
        if len(found) == 3:
            request.cancel()

    assert "cancelled" == request.finish_reason
    assert request.output == found
    assert found[:3] == alone[0][:3]
    assert alone[1] == other.result().token_ids
    engine.stop()
    assert conserved(engine)


def test_cancel_from_a_listener(engine, alone):
    """A listener may cancel and submit; both come to pass in the same step."""
    more = []

    def listen(request, token):
        if len(request.output) == 2:
            request.cancel()
            more.append(engine.submit(PROMPTS[1], GREEDY))

    request = engine.submit(PROMPTS[0], LONG, on_token=listen)
    engine.run()

    assert (alone[0][:2], "cancelled") == (request.output, request.finish_reason)
    assert alone[1] == more[0].output


@pytest.mark.parametrize("started", [False, True])
def test_timeouts(engine, started):
    """result() gives up in time; the request goes on."""
    request = engine.submit(PROMPTS[0], LONG)
    with pytest.raises(TimeoutError, match="not done in time"):
        request.result(0)
    if started:
        engine.start()
    assert 40 == len(request.result(timeout=60.0).token_ids)
    with pytest.raises(octavo.PlanError, match="timeout"):
        engine.submit(PROMPTS[0], GREEDY).result("soon")


def test_a_timeout_beyond_what_threads_can_wait(served):
    """It is longer than any wait, and no error."""
    request = served.submit(PROMPTS[0], GREEDY)

    assert 8 == len(request.result(timeout=1e10).token_ids)


@pytest.mark.parametrize("at", range(3))
def test_an_interrupt_in_a_listener_ends_nobody(engine, alone, at):
    """Ctrl-C there is raised to the caller; each token is told once, the others' a step later."""
    heard = [[], [], []]

    def listener(of):
        def listen(request, token):
            heard[of].append(token)
            if of == at and len(heard[of]) in (1, 3, 8):
                raise KeyboardInterrupt

        return listen

    requests = [
        engine.submit(prompt, GREEDY, on_token=listener(of)) for of, prompt in enumerate(PROMPTS)
    ]
    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            engine.run()
        assert all(each.error is None for each in requests)
    engine.run()

    assert alone == heard
    assert alone == [each.result().token_ids for each in requests]
    stats = engine.stats
    assert 43 + 3 * 7 == stats.computed_tokens + stats.cached_tokens  # no page was given up
    assert conserved(engine)


@pytest.mark.parametrize("started", [False, True])
def test_an_error_is_raised_by_its_handle_alone(engine, alone, started):
    """Who waits for a request with a failing listener gets the error after the tokens."""

    def fail(request, token):
        raise ValueError("no more")

    failing = engine.submit(PROMPTS[0], GREEDY, on_token=fail)
    other = engine.submit(PROMPTS[1], GREEDY)
    if started:
        engine.start()
    tokens = iter(failing)

    assert alone[0][0] == next(tokens)
    with pytest.raises(ValueError, match="no more"):
        next(tokens)
    assert alone[1] == other.result().token_ids
    with pytest.raises(ValueError, match="no more"):
        failing.result()


def test_a_model_that_raises_in_the_loop_ends_its_step(served, model, alone, monkeypatch):
    """The requests of that step raise it; later ones run."""
    layer = model.model.layers[1]
    with monkeypatch.context() as patch:
        patch.setattr(layer.mlp, "forward", lambda *_: 1 / 0)
        request = served.submit(PROMPTS[0], GREEDY)
        with pytest.raises(ZeroDivisionError):
            request.result(60)

    assert served.serving
    assert alone[0] == served.submit(PROMPTS[0], GREEDY).result(60).token_ids
    served.stop()
    assert conserved(served)


@pytest.mark.parametrize("bad", [[0], [2], [0, 3], [1, 2, 3, 4], [0, 1, 2, 3, 4]])
def test_a_model_that_raises_for_some_ends_those_alone(engine, model, monkeypatch, bad):
    """Each for whom it raises ends with the error; the others get the tokens they get alone."""
    run = model.forward

    def choke(*args, input_ids, **options):
        if (input_ids == 60).any():
            raise ValueError("what a token")
        return run(*args, input_ids=input_ids, **options)

    prompts = [[7 + at, 9, 60 if at in bad else 8] for at in range(5)]
    params = SamplingParams(max_tokens=4, logit_bias={60: -100.0})
    expected = [engine.generate([prompt], params)[0].token_ids for prompt in prompts]
    monkeypatch.setattr(model, "forward", choke)
    requests = [engine.submit(prompt, params) for prompt in prompts]
    engine.start()
    for at, request in enumerate(requests):
        if at in bad:
            with pytest.raises(ValueError, match="what a token"):
                request.result(60)
        else:
            assert expected[at] == request.result(60).token_ids
    engine.stop()
    assert conserved(engine)


def test_deadlines(engine, alone):
    """What is late ends with the tokens so far, all its samples too; others go on."""
    late = engine.submit(PROMPTS[0], LONG, deadline=1e-9)
    samples = engine.submit(PROMPTS[1], SAMPLED, deadline=0).samples
    other = engine.submit(PROMPTS[1], GREEDY, deadline=1e6)

    assert alone[1] == other.result().token_ids
    assert ["deadline"] * 4 == [each.result().finish_reason for each in (late, *samples)]
    assert conserved(engine)


def test_priorities(model, alone):
    """A request of higher priority runs before those that came earlier."""
    with Engine(model, plan_for(model), max_sequences=1) as engine:
        first, second = engine.submit(PROMPTS[0], GREEDY), engine.submit(PROMPTS[1], GREEDY)
        urgent = engine.submit(PROMPTS[2], GREEDY, priority=1)
        urgent.result()

        assert not first.done
        assert not second.done
        engine.run()
        assert alone == [first.output, second.output, urgent.output]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"priority": 2**31}, octavo.LengthError),
        ({"priority": "high"}, octavo.LengthError),
        ({"deadline": "soon"}, octavo.PlanError),
        ({"deadline": float("nan")}, octavo.PlanError),
    ],
)
def test_refuses_priorities_and_deadlines(engine, options, error):
    """Each by its name, when it is submitted."""
    with pytest.raises(error, match=next(iter(options))):
        engine.submit(PROMPTS[0], GREEDY, **options)
    assert not engine.step()


def failing(request):
    """A sampler that raises ZeroDivisionError."""
    return Sampler(replace(request.params, logits_processors=[lambda *_: 1 / 0]))


def test_a_first_sample_that_fails(engine):
    """Where the first one's sampler raises, the others compute the prompt for themselves."""
    expected = [each.token_ids for each in alone_each(engine, SAMPLED, PROMPTS[1])]
    request = engine.submit(PROMPTS[1], SAMPLED)
    request.sampler = failing(request)
    with pytest.raises(ZeroDivisionError):
        engine.run()
    engine.run()

    assert [[], *expected[1:]] == [each.output for each in request.samples]
    assert conserved(engine)


def test_a_dead_loop_raises_in_every_handle(served, alone, monkeypatch):
    """What kills the thread ends all requests, is told to later callers, and can be overcome."""
    asked = threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr("octavo.engine.core.Scheduler.schedule", lambda *_: asked.wait(60) / 0)
        requests = [served.submit(prompt, GREEDY) for prompt in PROMPTS]
        asked.set()
        for request in requests:
            with pytest.raises(octavo.LoopDied, match="ZeroDivisionError") as caught:
                request.result(60)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
        for call in (served.step, lambda: served.submit([1]), lambda: served.generate([[1]])):
            with pytest.raises(octavo.LoopDied):
                call()
    assert not served.serving
    served.start()

    assert alone[0] == served.submit(PROMPTS[0], GREEDY).result(60).token_ids
    served.stop()
    assert conserved(served)


def test_a_loop_that_dies_while_it_takes_in_a_request(served, alone, monkeypatch):
    """Who had just been submitted, and who waits behind it, are told too."""
    dies, go = threading.Event(), threading.Event()

    def prepare(_condition):
        dies.set()
        go.wait(60)
        raise SystemExit

    with monkeypatch.context() as patch:
        patch.setattr(served._core.conditions, "prepare", prepare)
        requests = [served.submit(PROMPTS[0], GREEDY)]
        dies.wait(60)
        requests.append(served.submit(PROMPTS[1], GREEDY))
        go.set()
        for request in requests:
            with pytest.raises(octavo.LoopDied, match="SystemExit"):
                request.result(60)
    served.stop()
    served.start()
    assert alone[0] == served.submit(PROMPTS[0], GREEDY).result(60).token_ids


def test_a_loop_that_dies_while_it_waits(served):
    """A call that it has taken and not made is not forgotten."""
    thread = next(each for each in threading.enumerate() if each.name == "octavo-engine")
    ctypes.pythonapi.PyThreadState_SetAsyncExc(
        ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit)
    )
    request = served.submit(PROMPTS[0], GREEDY)
    with pytest.raises(octavo.LoopDied, match="SystemExit"):
        request.result(60)
    thread.join()


def test_stop_and_go_on(served, alone):
    """Stopping leaves requests where they are, for the caller's steps or the next thread."""
    request = served.submit(PROMPTS[1], GREEDY)
    next(iter(request))
    served.stop()
    served.stop()
    assert not served.serving
    if not request.done:
        served.step()
    served.start()

    assert alone[1] == request.result(60).token_ids


def test_whoever_waits_when_the_loop_stops_is_told(served):
    """A reader in another thread gets an error, in an event loop too; the request goes on later."""
    there, begun = threading.Condition(), threading.Event()

    class Noted(deque):
        def append(self, waiter):
            with there:
                super().append(waiter)
                there.notify()

    def stop(*_):  # told behind the first request, of which no news comes in this step
        with there:
            assert there.wait_for(lambda: 2 == len(request._waiters), 60)
        served.stop()

    request = served.submit(
        PROMPTS[0], SamplingParams(max_tokens=55), on_token=lambda *_: begun.wait(60)
    )
    request._waiters = Noted()

    async def wait():
        return await request

    with ThreadPoolExecutor(2) as pool:
        waits = [pool.submit(request.result), pool.submit(asyncio.run, wait())]
        other = served.submit(PROMPTS[1], GREEDY, on_token=stop)
        begun.set()
        errors = [each.exception(60) for each in waits]
    assert all(isinstance(each, octavo.StepError) for each in errors)
    assert all("start() it" in str(each) for each in errors)
    assert other.error is None
    other.cancel()
    assert 55 == len(request.result().token_ids)


def test_close_ends_those_who_wait(served):
    """Closing cancels what runs; who waits gets the tokens so far."""
    request = served.submit(PROMPTS[0], LONG)
    with ThreadPoolExecutor(1) as pool:
        waits = pool.submit(request.result)
        served.close()
        assert waits.result(60).finish_reason in ("cancelled", "length")


def test_a_running_engine_is_not_stepped(served):
    """Stepping, starting twice and resetting are refused while a thread runs the engine."""
    for call in (served.step, served.run, served.start, served.reset):
        with pytest.raises(octavo.StepError, match=r"a thread of its own runs .* stop\(\)"):
            call()
    assert 8 == len(served.generate(PROMPTS[:1], GREEDY)[0].token_ids)


def test_calls_from_inside_a_step(engine):
    """A listener that steps, resets or closes is refused, and costs its request alone."""
    refused = []

    def listen(request, token):
        for call in (engine.step, engine.reset, engine.close, engine.start):
            with pytest.raises(octavo.StepError, match="under way") as caught:
                call()
            refused.append(caught.value)

    request = engine.submit(PROMPTS[0], SamplingParams(max_tokens=1), on_token=listen)
    assert 1 == len(request.result().token_ids)
    assert 4 == len(refused)


def test_a_listener_that_closes_in_the_loop(served):
    """It is refused as in a step of the caller's, and the thread goes on."""

    def close(request, token):
        with pytest.raises(octavo.StepError, match="under way"):
            served.close()

    request = served.submit(PROMPTS[0], GREEDY, on_token=close)
    assert 8 == len(request.result(60).token_ids)
    assert 8 == len(served.submit(PROMPTS[0], GREEDY).result(60).token_ids)
    assert served.serving


def test_a_listener_that_waits_in_the_loop(served):
    """It would wait for itself: it is refused, and costs its request alone."""
    request = served.submit(PROMPTS[0], GREEDY, on_token=lambda request, _: request.result())

    with pytest.raises(octavo.StepError, match="cannot wait"):
        request.result(60)
    assert 8 == len(served.submit(PROMPTS[0], GREEDY).result(60).token_ids)


def test_stats_can_be_asked_at_any_time(served, alone):
    """A thread that looks at the totals does not disturb the one that runs the engine."""
    with ThreadPoolExecutor(1) as pool:
        answers = pool.submit(served.generate, PROMPTS * 4, GREEDY)
        while not answers.done():
            assert served.stats.generated_tokens <= 96
        assert alone * 4 == [each.token_ids for each in answers.result()]
    stats = served.stats
    assert (96, 12, 4 * 43) == (stats.generated_tokens, stats.finished, stats.prompt_tokens)
    assert sum(each.cached_tokens for each in answers.result()) == stats.cached_tokens


def test_a_second_thread_that_steps_is_refused(engine):
    """Two threads that both step are told to start() the engine."""
    inside, refused = threading.Event(), threading.Event()

    def listen(request, token):
        inside.set()
        refused.wait(60)

    request = engine.submit(PROMPTS[0], SamplingParams(max_tokens=1), on_token=listen)
    with ThreadPoolExecutor(1) as pool:
        steps = pool.submit(engine.step)
        inside.wait(60)
        try:
            with pytest.raises(octavo.StepError, match="another thread steps this engine"):
                engine.step()
            more = engine.submit(PROMPTS[1], GREEDY)
            more.cancel()
        finally:
            refused.set()
        steps.result()
    engine.run()
    assert ("length", "cancelled") == (request.finish_reason, more.finish_reason)


def test_an_engine_beside_one_that_runs_the_model(served, model, alone):
    """While a thread runs the model for one engine, another one is refused, and can be closed."""
    with Engine(model, plan_for(model)) as other:
        request = other.submit(PROMPTS[0], GREEDY)
        for call in (other.step, other.start, request.result):
            with pytest.raises(octavo.StepError, match="another engine runs this model"):
                call()
    assert "cancelled" == request.finish_reason
    assert alone[0] == served.generate(PROMPTS[:1], GREEDY)[0].token_ids
    served.stop()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_is_refused(served, tmp_path):
    """A child of the process has no thread that runs the engine: no call waits for it."""
    request, said = served.submit(PROMPTS[0], LONG), tmp_path / "said"
    child = os.fork()
    if not child:
        try:
            lines = []
            for call in (request.result, lambda: served.submit([1]), served.step, served.start):
                try:
                    call()
                except octavo.StepError as error:
                    lines.append(str(error))
            served.close()
            said.write_text("\n".join(lines))
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    lines = said.read_text().splitlines()
    assert 4 == len(lines)
    assert all("belongs to process" in line for line in lines)
    assert 40 == len(request.result(60).token_ids)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_forked_process_makes_an_engine_of_its_own(served, model, tmp_path):
    """Who runs the model in the parent does not run it in the child."""
    request, said = served.submit(PROMPTS[0], LONG), tmp_path / "said"
    child = os.fork()
    if not child:
        try:
            with Engine(model, plan_for(model)) as own:
                asked = own.submit(PROMPTS[0], SamplingParams(max_tokens=0))
                said.write_text(f"{own.stats.finished} {asked.finish_reason} {own.step()}")
        finally:
            os._exit(0)
    os.waitpid(child, 0)

    assert "1 length False" == said.read_text()
    assert 40 == len(request.result(60).token_ids)


def test_the_interpreter_ends_with_a_running_loop():
    """Nothing hangs and nothing is printed, whatever is still running."""
    code = f"""
    import sys
    sys.path.insert(0, {str(Path(__file__).parent)!r})
    import torch, transformers
    from test_engine import SHAPE, plan_for
    from octavo.engine import Engine, SamplingParams

    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SHAPE)).double()
    engine = Engine(model, plan_for(model)).start()
    request = engine.submit([1, 2], SamplingParams(max_tokens=60))
    next(iter(request))
    raise SystemExit(3)
    """
    command = [sys.executable, "-c", textwrap.dedent(code)]
    done = subprocess.run(command, check=False, capture_output=True, timeout=300, text=True)

    assert (3, "") == (done.returncode, done.stderr)


SAMPLED = SamplingParams(max_tokens=6, temperature=1.5, seed=7, n=3)


def alone_each(engine, params, prompt):
    """The tokens of each sample, asked for one by one."""
    return [
        engine.generate([prompt], SamplingParams(max_tokens=6, temperature=1.5, seed=7 + at))[0]
        for at in range(params.n)
    ]


@pytest.mark.parametrize("options", [{}, {"prefix": False}, {"max_step_tokens": 5}])
def test_samples_fork_off_one_prompt(model, options):
    """n answers are those of n requests with seeds one after another; the prompt is run once."""
    with Engine(model, plan_for(model), **options) as engine:
        expected = [each.token_ids for each in alone_each(engine, SAMPLED, PROMPTS[1])]
    with Engine(model, plan_for(model), **options) as engine:
        request = engine.submit(PROMPTS[1], SAMPLED)
        other = engine.submit(PROMPTS[0], GREEDY)
        engine.run()

        assert expected == [each.output for each in request.samples]
        assert 3 == len({tuple(tokens) for tokens in expected})
        assert 29 + 3 * 5 + 3 + 7 == engine.stats.computed_tokens
        assert 8 == len(other.output)
        assert conserved(engine)
        assert expected == [each.token_ids for each in engine.generate([PROMPTS[1]], SAMPLED)]


@pytest.mark.parametrize(
    "options",
    [
        {"max_sequences": 2},
        {"pages": 10},
        {"pages": 18, "preemption": False},
        {"pages": 10, "max_step_tokens": 2},
    ],
)
def test_samples_that_have_no_room(model, options):
    """Where not all fit at once the rest follow, with the tokens they get alone."""
    options = dict(options)
    with Engine(model, plan_for(model)) as engine:
        expected = [each.token_ids for each in alone_each(engine, SAMPLED, PROMPTS[1])]
    with Engine(model, plan_for(model, pages=options.pop("pages", 40)), **options) as engine:
        assert expected == [each.token_ids for each in engine.generate([PROMPTS[1]], SAMPLED)]
        assert conserved(engine)


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("whom", [0, 1])
def test_cancel_samples(model, steps, whom):
    """The first cancels all, another itself alone; before they fork and after."""
    with Engine(model, plan_for(model), max_step_tokens=16) as engine:
        request = engine.submit(PROMPTS[1], SAMPLED)
        for _ in range(steps):
            engine.step()
        request.samples[whom].cancel()
        engine.run()

        ended = [each.finish_reason for each in request.samples]
        assert (["cancelled"] * 3 if whom == 0 else ["length", "cancelled", "length"]) == ended
        assert conserved(engine)
        assert 3 == engine.stats.finished


def test_samples_that_end_with_their_first_token(engine):
    """max_tokens 1 and 0 need no fork that lasts."""
    for count in (0, 1):
        params = SamplingParams(max_tokens=count, temperature=1.0, n=3)
        assert [count] * 3 == [len(c.token_ids) for c in engine.generate([PROMPTS[0]], params)]
    assert 6 == engine.stats.finished
    assert conserved(engine)


def test_a_sample_that_fails_costs_itself_alone(engine):
    """One sample's sampler raises at the fork; the others get their tokens."""
    request = engine.submit(PROMPTS[1], SAMPLED)
    request.samples[1].sampler = failing(request)
    engine.start()

    assert [6, 6] == [len(request.samples[at].result(60).token_ids) for at in (0, 2)]
    with pytest.raises(ZeroDivisionError):
        request.samples[1].result(60)
    engine.stop()
    assert conserved(engine)


def test_greedy_samples_are_refused():
    """They would all be the same."""
    with pytest.raises(octavo.SamplingError, match="temperature"):
        SamplingParams(n=2)
    with pytest.raises(octavo.LengthError, match="n is 0"):
        SamplingParams(n=0, temperature=1)


def test_progress(engine, alone, capsys):
    """A bar on stderr says how many are done; without it nothing is printed."""
    assert alone == [each.token_ids for each in engine.generate(PROMPTS, GREEDY, progress=True)]
    assert "3/3" in capsys.readouterr().err
    engine.generate(PROMPTS, GREEDY)
    assert "" == capsys.readouterr().err
    with pytest.raises(octavo.PlanError, match="progress"):
        engine.generate(PROMPTS, GREEDY, progress="yes")


def test_progress_counts_answers(engine, capsys):
    """Those that are there at once, and those of the step in which another fails; not that one."""

    def breaks(ids, scores):
        raise ZeroDivisionError

    engine.generate(PROMPTS, SamplingParams(max_tokens=0), progress=True)
    assert "3/3" in capsys.readouterr().err
    wanted = [SamplingParams(max_tokens=1, logits_processors=own) for own in ((), [breaks], ())]
    with pytest.raises(ZeroDivisionError):
        engine.generate(PROMPTS, wanted, progress=True)
    assert "2/3" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.parametrize(
    ("verb", "stride"),
    [("schedule", 997), ("_compute", 7993), ("_book", 487), ("_fork", 661), ("_recover", 787)],
)
def test_after_any_interrupt_all_requests_go_on(model, alone, verb, stride):
    """Ctrl-C at many lines of a step loses no request and no token, without a reset."""
    source = str(Path(octavo.__file__).parent)
    count, more = 3, True
    seeded = SamplingParams(max_tokens=6, temperature=1.0, seed=3, n=2)
    text = Letters().decode(alone[1][3:5])
    stops = SamplingParams(max_tokens=8, stop=text)
    while more:
        with Engine(model, plan_for(model, pages=14), tokenizer=Letters()) as engine:
            requests = [engine.submit(prompt, GREEDY) for prompt in PROMPTS]
            stopped = engine.submit(PROMPTS[1], stops)
            sampled = engine.submit(PROMPTS[1], seeded)
            if verb == "_recover":  # as if one interrupt had come before
                for _ in range(3):
                    engine.step()
                engine._core.torn = True
            left = [count]

            def line(frame, event, _arg, left=left):
                left[0] -= event == "line"
                if left[0] == 0:
                    sys.settrace(None)
                    raise KeyboardInterrupt
                return line

            def call(frame, _event, _arg, line=line, left=left):
                code, back = frame.f_code, frame
                while back is not None and back.f_code.co_name != verb:
                    back = back.f_back
                mine = code.co_filename.startswith(source) and code.co_name != "__del__"
                return line if mine and back is not None and left[0] > 0 else None

            before = sys.gettrace()
            try:
                sys.settrace(call)
                engine.run()
            except KeyboardInterrupt:
                pass
            finally:
                sys.settrace(before)
            more = left[0] <= 0
            count += stride
            engine.run()

            assert alone == [request.output for request in requests]
            assert [6, 6] == [len(each.output) for each in sampled.samples]
            assert (text, Letters().decode(alone[1]).partition(text)[0]) == (
                stopped.stop_reason,
                stopped.text,
            )
            assert conserved(engine)
    assert count > 3 + stride  # else nothing was interrupted


def test_who_gives_up_waiting_leaves_nothing_behind(served):
    """Each wait that ends without news takes its waiter along, in a thread and an event loop."""
    go_on = threading.Event()
    request = served.submit(PROMPTS[0], GREEDY, on_token=lambda *_: go_on.wait(60))

    async def give_up():
        async def wait():
            return await request

        for _ in range(3):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(wait(), 0.01)

    asyncio.run(give_up())
    with pytest.raises(TimeoutError):
        request.result(0.01)
    assert not request._waiters
    go_on.set()
    assert 8 == len(request.result(60).token_ids)


def test_a_listener_that_raises_on_the_last_token(engine):
    """The request has failed, and says so, though all its tokens were there."""

    def fail(request, token):
        if len(request.output) == 8:
            raise ValueError("too late")

    request = engine.submit(PROMPTS[0], GREEDY, on_token=fail)
    with pytest.raises(ValueError, match="too late"):
        engine.run()

    assert (8, "cancelled") == (len(request.output), request.finish_reason)
    assert 1 == engine.stats.finished
    with pytest.raises(ValueError, match="too late"):
        request.result()


def test_all_listeners_hear_of_a_step_in_which_one_was_interrupted(engine, alone):
    """Ctrl-C in a listener is raised when all others have heard of that step."""
    heard = [[], []]

    def interrupted(request, token):
        heard[0].append(token)
        if len(heard[0]) == 8:
            raise KeyboardInterrupt

    first = engine.submit(PROMPTS[0], GREEDY, on_token=interrupted)
    second = engine.submit(PROMPTS[1], GREEDY, on_token=lambda _, token: heard[1].append(token))
    with pytest.raises(KeyboardInterrupt):
        engine.run()

    assert alone[:2] == heard
    assert alone[:2] == [first.result().token_ids, second.result().token_ids]


def test_what_never_fits_says_what_is_short(model):
    """The error that submit raises has the pages that are missing, by group."""
    with Engine(model, plan_for(model, 5)) as small, pytest.raises(octavo.NeverFits) as caught:
        small.submit(list(range(1, 40)), GREEDY)

    assert caught.value.need - caught.value.total == sum(caught.value.short.values()) > 0


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"stop_token_ids": [3, 61]}, "stop_token_ids is .*token ids are 0..60"),
        ({"logit_bias": dict.fromkeys(range(61), -float("inf"))}, "logit_bias is .*bans every"),
        ({"bad_words_ids": [[at] for at in range(61)]}, "bad_words_ids is .*bans every"),
    ],
)
def test_submit_refuses_what_the_vocabulary_cannot_meet(engine, params, message):
    """Stop tokens that the model has not, and bans that leave none of its tokens."""
    with pytest.raises(octavo.SamplingError, match=message):
        engine.submit(PROMPTS[0], SamplingParams(**params))
    assert not engine.step()


def test_a_stop_token_may_be_banned_by_a_bias(engine):
    """Then the request ends elsewhere."""
    params = SamplingParams(max_tokens=3, stop_token_ids=[5], logit_bias={5: -float("inf")})

    assert "length" == engine.generate([PROMPTS[0]], params)[0].finish_reason
