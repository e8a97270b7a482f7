"""Under the model of time: what waits for what, to the step, on a cache whose laws hold."""

from dataclasses import replace

import pytest

from octavo import Attention, Cache, Plan, PlanError, State
from octavo.simulation import (
    MeasuredStep,
    Setting,
    StepWork,
    TimeModel,
    Trace,
    TraceRequest,
    fit,
    generate,
    replay,
    serve,
)
from octavo.simulation.requests import AnswerTokens, Job
from octavo.simulation.server import Server
from octavo.simulation.times import FASTEST

MODEL = TimeModel(step_seconds=0.01, prefill_rate=10_000, decode_rate=1_000)
ROUTERS = ["round-robin", "least-loaded", "prefix"]


def _trace(*requests):
    return Trace("few", "azure", [TraceRequest(n, *each) for n, each in enumerate(requests)])


def _setting(pages, **options):
    return Setting(Plan.from_pages(pages + 1, 16), **options)


def test_one_request_to_the_step():
    """A prompt of 100 in one step, whose end gives the first of three tokens."""
    [job] = serve(_trace((0.0, 100, 3)), _setting(20), MODEL).jobs

    assert (0.0, 0.02) == pytest.approx((job.admitted, job.first))
    assert 0.02 + 2 * 0.011 == pytest.approx(job.finished)


def test_long_prompts_come_in_chunks():
    """5,000 tokens at 2,048 a step are three steps."""
    [job] = serve(_trace((0.0, 5000, 1)), _setting(400), MODEL).jobs

    assert 3 * 0.01 + 0.5 == pytest.approx(job.first)
    assert job.first == job.finished


def test_an_answer_of_nothing():
    """A request without an answer ends with its prompt."""
    run = serve(_trace((0.0, 100, 0), (0.0, 100, 2)), _setting(20), MODEL)

    assert 2 == run.whole.output_tokens
    assert 0.03 == pytest.approx(run.jobs[0].finished)


def test_prompts_fill_up_steps_of_decoding():
    """The second request arrives in the first one's first step and joins in the next."""
    first, second = serve(_trace((0.0, 100, 3), (0.005, 100, 1)), _setting(20), MODEL).jobs

    assert 0.02 == pytest.approx(second.admitted)
    assert 0.02 + 0.01 + 0.01 + 0.001 == pytest.approx(second.first)
    assert second.first + 0.011 == pytest.approx(first.finished)


def test_idle_time_passes():
    """Nothing happens between the first request's end and the second's arrival."""
    run = serve(_trace((0.0, 100, 1), (7.0, 100, 1)), _setting(20), MODEL)

    assert 7.02 == pytest.approx(run.jobs[1].finished)
    assert 0.04 == pytest.approx(run.whole.busy)


def test_waiting_for_pages():
    """Two prompts of 10 pages do not fit into 15: the second waits until the first ends."""
    first, second = serve(_trace((0.0, 150, 3), (0.0, 151, 3)), _setting(15), MODEL).jobs

    assert (False, True) == (first.waited, second.waited)
    assert first.finished == second.admitted


def test_waiting_for_a_row():
    """At most as many run as the model says."""
    model = TimeModel(max_sequences=1)
    first, second = serve(_trace((0.0, 50, 3), (0.0, 50, 3)), _setting(50), model).jobs

    assert first.finished == second.admitted
    assert not second.waited


def test_never_fits():
    """Prompt and answer together are more than the pool: refused, and nobody waits for it."""
    run = serve(_trace((0.0, 60, 5), (0.0, 60, 2), (0.0, 2**31 - 1, 2**31 - 1)), _setting(4), MODEL)

    assert (2, 1) == (run.whole.refused, run.whole.served)


@pytest.mark.parametrize("pages", [40, 64, 200])
@pytest.mark.parametrize("slots", [4, 64])
def test_every_request_is_answered_under_pressure(pages, slots):
    """With preemptions: each finishes, tokens add up, nothing is left, every law holds."""
    trace = _trace(*((0.02 * n, 40 + 37 * n % 300, 1 + 53 * n % 150) for n in range(60)))
    answers = AnswerTokens(trace.requests)
    model = replace(MODEL, max_sequences=slots)
    server = Server(Cache(_setting(pages).plan, max_sequences=slots), model, answers, lambda: None)
    jobs = [Job(request) for request in trace.requests]
    for job in jobs:
        server.run_until(job.request.arrival)
        server.cache.check()
        server.add(job)
    server.run_until(float("inf"))
    server.close()
    tally = server.tally

    server.cache.check()
    assert 0 == server.cache.stats().live == server.load
    assert all(job.admitted < job.first <= job.finished for job in jobs)
    assert sum(request.output_length for request in trace.requests) == tally.output_tokens
    assert sum(tally.evicted.values()) == server.cache.stats().evicted
    owed = tally.prompt_tokens - tally.cached_tokens + tally.output_tokens - len(jobs)
    assert owed + tally.recomputed_tokens == tally.computed_tokens
    assert tally.preemptions > 0 or slots == 4


def test_answers_are_found_by_the_next_turn():
    """With known answers a later turn hits them; serial replay, without answers, does not."""
    trace = generate("chat", 100)
    setting = _setting(trace.most_pages(16, serial=False))

    assert (
        serve(trace, setting, MODEL).whole.cached_tokens
        > replay(trace, setting).whole.cached_tokens
    )


@pytest.mark.parametrize("router", ROUTERS)
def test_one_replica_is_no_replica(router):
    """Whatever the router."""
    trace = generate("agents", 40)
    plain = serve(trace, _setting(800), MODEL).to_dict()

    assert plain | {"router": router} == serve(trace, _setting(800, router=router), MODEL).to_dict()


@pytest.mark.parametrize("router", ROUTERS)
def test_replicas(router):
    """Each request is served once, and the same again in a second run."""
    trace, setting = generate("system-prompt", 80), _setting(400, replicas=3, router=router)
    found = serve(trace, setting, MODEL).to_dict()

    assert [80, 80] == [found["requests"], sum(one["requests"] for one in found["per_replica"])]
    assert all(one["requests"] > 10 for one in found["per_replica"])
    assert found == serve(trace, setting, MODEL).to_dict()


def test_prefix_router_hits_more():
    """Shared system prompts stay where they are asked for."""
    trace = generate("system-prompt", 150)
    hits = {
        router: serve(trace, _setting(900, replicas=3, router=router), MODEL).whole.cached_tokens
        for router in ROUTERS
    }

    assert hits["prefix"] > 1.2 * hits["round-robin"]


def test_occupancy_sums():
    """Over every span, idle ones too, held, kept and free pages are all there are."""
    trace = _trace((0.0, 100, 30), (50.0, 200, 10), (50.0, 300, 10))
    [one] = serve(trace, _setting(40), MODEL).to_dict()["per_replica"]
    sums = [row["live"] + row["evictable"] + row["free"] for row in one["occupancy"]]

    assert [40] * len(sums) == pytest.approx(sums, abs=0.01)
    assert one["occupancy"][len(sums) // 2]["live"] == 0
    assert max(row["running"] for row in one["occupancy"]) > 1


def test_percentiles():
    """Named spreads of seconds over all requests."""
    found = serve(_trace(*((9.0 * n, 100, 2) for n in range(10))), _setting(20), MODEL).to_dict()

    assert {"queueing", "time_to_first_token", "time_per_output_token", "total"} == set(
        found["latency"]
    )
    assert {"mean": 0.02, "p50": 0.02, "p90": 0.02, "p95": 0.02, "p99": 0.02, "max": 0.02} == (
        pytest.approx(found["latency"]["time_to_first_token"])
    )


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"step_seconds": -1}, "step_seconds is -1"),
        ({"prefill_rate": 0}, "prefill_rate is 0"),
        ({"decode_rate": float("inf")}, "decode_rate is inf"),
    ],
)
def test_impossible_models(options, why):
    """A time or rate out of range is named."""
    with pytest.raises(PlanError, match=why):
        TimeModel(**options)


GROUPS = {"full": Attention(1, 8, 8), "near": Attention(1, 8, 8, window=64), "state": State(8)}


@pytest.mark.parametrize("pages", [200, 2000])
def test_windows_and_states(pages):
    """Chunks end where states are kept; with few pages requests are preempted and come back."""
    trace = generate("chat", 40)
    run = serve(trace, Setting(Plan.from_pages(pages, 16, GROUPS)), MODEL)

    assert 40 == run.whole.served + run.whole.refused
    assert sum(job.finished is not None for job in run.jobs) == run.whole.served
    assert run.whole.cached_tokens > 0 or pages == 200


def test_without_overlap_it_hits_what_serial_replay_hits():
    """Requests far apart, and answers that no prompt repeats: time changes nothing."""
    trace = generate("system-prompt", 60, rate=0.01)
    setting = _setting(trace.most_pages(16, serial=False))

    assert (
        replay(trace, setting).whole.cached_tokens
        == serve(trace, setting, MODEL).whole.cached_tokens
    )


def test_progress_is_told_by_what_has_ended():
    """Once a request, those refused too, also where most of the work comes after the arrivals."""
    told = []
    trace = _trace(*[(0.0, 60, 5), (0.0, 60, 2)] * 5, (0.0, 2**31 - 1, 1))
    serve(trace, _setting(4), MODEL, lambda done, total: told.append((done, total)))

    assert [(done, 11) for done in range(1, 12)] == told


def test_the_work_of_a_step():
    """Tokens, and the positions they attend to, of prompts and of rows that decode."""
    cache = Cache(Plan.from_pages(40, 4))
    rows = [cache.admit(range(10)), cache.admit(range(20, 27))]
    cache.commit(cache.extend(rows, [4, 6]))
    step = cache.extend(rows, [6, 1])

    assert StepWork(6, 1, 5 + 6 + 7 + 8 + 9 + 10, 7) == StepWork.of(step)


RIGHT = replace(
    MODEL, prefill_rate=500.0, decode_rate=200.0, prefill_context_rate=1e6, decode_context_rate=1e5
)
WORK = [StepWork(n, 0, n * n, 0) for n in (8, 64, 500)]
WORK += [StepWork(0, n, 0, 100 * n * n) for n in (1, 2, 9)] + [StepWork(0, 9, 0, 9)]


def test_a_model_of_time_is_found_again():
    """From steps that take exactly so long; limits stay."""
    limits = TimeModel(max_sequences=3, max_step_tokens=5, preemption=False)
    found = fit([MeasuredStep(work, RIGHT.seconds(work)) for work in WORK], limits)

    rates = ("prefill_rate", "decode_rate", "prefill_context_rate", "decode_context_rate")
    for name in ("step_seconds", *rates):
        assert getattr(RIGHT, name) == pytest.approx(getattr(found.model, name), rel=1e-6)
    assert (3, 5, False) == (
        found.model.max_sequences,
        found.model.max_step_tokens,
        found.model.preemption,
    )
    assert found.worst_error < 1e-9
    assert len(WORK) == found.steps == found.to_dict()["steps"]


def test_nothing_takes_less_than_no_time():
    """What would cost less than nothing costs nothing, and the rest is fitted without it."""
    steps = [
        MeasuredStep(StepWork(n, 0, n * n, 0), 1 + n / 100 - n * n / 1e5) for n in range(1, 90)
    ]
    found = fit(steps, TimeModel())

    assert FASTEST == found.model.prefill_context_rate == found.model.decode_rate
    assert found.worst_error < 0.1
    for wrong in ([], [MeasuredStep(WORK[0], 0.0)]):
        with pytest.raises(PlanError, match="steps"):
            fit(wrong, TimeModel())
