"""Generated requests, with the prompts and answers of typical uses; equal seeds, equal requests.

Requests come at random, on average ``rate`` a second. Token ids are drawn at random, so that
prompts are equal exactly where one was made from the other.
"""

from collections.abc import Callable, Iterator
from heapq import heappop, heappush
from itertools import count, islice
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from octavo.checks import check_int
from octavo.errors import PlanError
from octavo.simulation.requests import Ints, Trace, TraceRequest

if TYPE_CHECKING:  # NumPy loads it on use
    from numpy.random import Generator

_VOCABULARY = 32_000


class _Exchange(NamedTuple):
    arrival: float
    prompt: Ints
    output: Ints


def generate(name: str, requests: int = 500, *, rate: float = 4.0, seed: int = 0) -> Trace:
    """The workload called ``name``: one of WORKLOADS.

    Args:
        requests: how many.
        rate: requests per second, on average.
        seed: of all that is random.

    Raises:
        PlanError: no workload has that name, or ``rate`` is not above 0.
        LengthError: ``requests`` is below 1, or ``seed`` negative.

    Cost: O(tokens).
    """
    if name not in WORKLOADS:
        raise PlanError("workload", name, f"known workloads are: {', '.join(WORKLOADS)}")
    if not 0 < rate < float("inf"):
        raise PlanError("rate", rate, "it must be a number above 0")
    rng = np.random.default_rng(check_int("seed", seed, 0))
    drawn = islice(WORKLOADS[name](rng, rate), check_int("requests", requests, 1))
    ordered = sorted(drawn, key=lambda each: each.arrival)
    first = ordered[0].arrival
    made = [_request(n, first, each) for n, each in enumerate(ordered)]
    return Trace(name, "generated", made, rate=rate, seed=seed)


def _request(number: int, first: float, drawn: _Exchange) -> TraceRequest:
    size, answer = drawn.prompt.size, drawn.output.size
    arrival = round(drawn.arrival - first, 6)
    return TraceRequest(number, arrival, size, answer, tokens=drawn.prompt, output=drawn.output)


def chat(rng: "Generator", rate: float) -> Iterator[_Exchange]:
    """Conversations of 1 to 12 turns below one system prompt; a prompt repeats all before it."""
    system = _text(rng, 400)
    return _interleave(rng, rate / 5, lambda start: _conversation(rng, start, system))


def _conversation(rng: "Generator", start: float, system: Ints) -> Iterator[_Exchange]:
    history, at = system, start
    for _ in range(min(12, int(rng.geometric(0.2)))):
        history = np.append(history, _text(rng, rng.integers(20, 300)))
        output = _text(rng, rng.integers(50, 500))
        yield _Exchange(at, history, output)
        history = np.append(history, output)
        at += float(rng.exponential(30)) + output.size / 50


def system_prompt(rng: "Generator", rate: float) -> Iterator[_Exchange]:
    """Single questions, each below one of 16 system prompts of 1,000 to 3,000 tokens."""
    systems = [_text(rng, rng.integers(1000, 3000)) for _ in range(16)]
    shares = _popularity(len(systems))
    for at in _arrivals(rng, rate):
        system = systems[int(rng.choice(len(systems), p=shares))]
        question = _text(rng, rng.integers(50, 500))
        yield _Exchange(at, np.append(system, question), _text(rng, rng.integers(50, 400)))


def agents(rng: "Generator", rate: float) -> Iterator[_Exchange]:
    """Tasks of an agent: a tree of tool calls, where each call repeats the way to it."""
    tools = _text(rng, 1500)
    return _interleave(rng, rate / 10, lambda start: _task(rng, start, tools))


def _task(rng: "Generator", start: float, tools: Ints) -> Iterator[_Exchange]:
    """Calls by time; one in four answers starts two branches, and none is deeper than 8."""
    order, calls = count(), list[tuple[float, int, int, Ints]]()
    heappush(calls, (start, next(order), 0, np.append(tools, _text(rng, rng.integers(100, 800)))))
    while calls:
        at, _, depth, context = heappop(calls)
        output = _text(rng, rng.integers(30, 200))
        yield _Exchange(at, context, output)
        done = at + 1 + output.size / 50
        branches = 0 if depth == 8 else int(rng.choice(3, p=(0.2, 0.55, 0.25)))
        for _ in range(branches):
            result = _text(rng, rng.integers(50, 1500))
            later = done + float(rng.exponential(2))
            heappush(
                calls, (later, next(order), depth + 1, np.concatenate((context, output, result)))
            )


def rag(rng: "Generator", rate: float) -> Iterator[_Exchange]:
    """Questions below 4 of 200 documents, which stand in random order: seldom the same prefix."""
    system = _text(rng, 200)
    documents = [_text(rng, rng.integers(300, 1200)) for _ in range(200)]
    shares = _popularity(len(documents))
    for at in _arrivals(rng, rate):
        found = rng.choice(len(documents), size=4, replace=False, p=shares)
        question = _text(rng, rng.integers(20, 100))
        prompt = np.concatenate((system, *(documents[d] for d in found), question))
        yield _Exchange(at, prompt, _text(rng, rng.integers(50, 300)))


WORKLOADS: dict[str, Callable[["Generator", float], Iterator[_Exchange]]] = {
    "chat": chat,
    "system-prompt": system_prompt,
    "agents": agents,
    "rag": rag,
}


def _text(rng: "Generator", size: int | np.integer) -> Ints:
    return rng.integers(0, _VOCABULARY, int(size), dtype=np.int32)


def _popularity(items: int) -> NDArray[np.float64]:
    """Zipf's law: the n-th comes 1/n as often as the first."""
    weights: NDArray[np.float64] = 1 / np.arange(1, items + 1)
    weights /= weights.sum()
    return weights


def _arrivals(rng: "Generator", rate: float) -> Iterator[float]:
    at = 0.0
    while True:
        at += float(rng.exponential(1 / rate))
        yield at


def _interleave(
    rng: "Generator", rate: float, session: Callable[[float], Iterator[_Exchange]]
) -> Iterator[_Exchange]:
    """Sessions that start at random, their requests merged by arrival."""
    waiting, order = list[tuple[float, int, _Exchange]](), count()
    for start in _arrivals(rng, rate):
        while waiting and waiting[0][0] <= start:
            yield heappop(waiting)[2]
        for drawn in session(start):
            heappush(waiting, (drawn.arrival, next(order), drawn))
