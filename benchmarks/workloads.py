"""What page managers are timed on: the same seeded prompts and rows for every contender.

Runs in every contender's own interpreter, so it needs NumPy and nothing else.
"""

import gc
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
PAGE_SIZE = 16
VOCABULARY = 32_000
ROWS, PROMPT, CONTEXT, DRAFTS, KEPT = 256, 1_024, 1_152, 4, 2
STEPS = {1: 256, 8: 256, ROWS: 64}  # decode steps of a round, by rows
SERVE_PAGES, SERVE_WARM, SERVE_TIMED = 11_000, 32, 64
CHURN_PAGES, CHURN_WARM, CHURN_TIMED = 4_700, 400, 200


class Figure(NamedTuple):
    """One round of one figure.

    Attributes:
        microseconds: of one unit.
        hits: per cent of prompt tokens found, where a contender has a choice in it.
    """

    microseconds: float
    hits: float | None = None


class Contender(ABC):
    """One page manager behind the few calls that the figures need.

    `prepare`, `start` and `choose` are not timed: they bring inputs into the form its engine has
    them in. What raises NotImplementedError is left out of the table.
    """

    name: str
    version = ""
    takes_arrays = False  # of token ids; to those that do not a list is nothing special
    figures: ClassVar[dict[str, Callable[[np.random.Generator], float]]] = {}
    """Microseconds of what it alone can do."""
    manager: Any
    rows: list[Any]  # handles of the sequences that decode together

    @abstractmethod
    def build(self, pages: int) -> object:
        """A new manager of ``pages`` usable pages of PAGE_SIZE tokens."""

    def fresh(self, pages: int) -> None:
        """Work on a new manager from now on."""
        self.manager = None
        self.manager = self.build(pages)

    @abstractmethod
    def prepare(self, tokens: Any) -> Any:
        """A request for a prompt, which is an array or a list."""

    @abstractmethod
    def admit(self, request: Any) -> Any:
        """Match, allocate, prefill, publish, learn the first token; returns the handle."""

    @abstractmethod
    def hit(self, handle: Any) -> int:
        """Tokens of the prompt that were found."""

    @abstractmethod
    def finish(self, handle: Any) -> None:
        """The sequence ends; its pages stay for reuse."""

    def start(self, handles: list[Any]) -> None:
        """From now on these sequences decode together."""
        self.rows = list(handles)

    def choose(self, tokens: Ints) -> Any:
        """Sampled ids, in the form the manager takes them in."""
        return tokens.tolist()

    @abstractmethod
    def step(self, tokens: Any) -> None:
        """One more position of each row, and what a kernel reads; then the row learns its token."""

    def turn(self, ended: list[int], requests: list[Any], tokens: Any) -> None:
        """Rows end, the last row moving into each one's place, and new ones join with a token."""
        for row in ended:
            self.finish(self.rows[row])
            self.rows[row] = self.rows[-1]
            self.rows.pop()
        self.step(tokens)
        self.rows.extend(map(self.admit, requests))

    def draft(self, flat: Any) -> None:
        """DRAFTS beside the known token; KEPT are right, and KEPT + 1 tokens are learned."""
        raise NotImplementedError

    def slots(self, pages: Any, page_size: int, start: int, stop: int) -> Any:
        """Slots of an interval of positions, of a list of pages."""
        raise NotImplementedError


def timed(call: Callable[[], object]) -> float:
    """Microseconds of this thread's processor time of one call, without garbage collection.

    Waiting for a core that another process holds does not count.
    """
    gc.collect()
    gc.disable()
    began = time.thread_time()
    call()
    taken = time.thread_time() - began
    gc.enable()
    return taken * 1e6


def as_list(tokens: Any) -> list[int]:
    """Ids as those take them that take no arrays."""
    return tokens.tolist() if isinstance(tokens, np.ndarray) else tokens


def prompt(chance: np.random.Generator, length: int) -> Ints:
    """Random ids that no other prompt has."""
    return chance.integers(1, VOCABULARY, length, dtype=np.int32)


# -- figures ---------------------------------------------------------------------------------------


def admit_new(contender: Contender, chance: np.random.Generator, *, lists: bool = False) -> Figure:
    """Admit and prefill prompts of which nothing is known."""
    if lists and not contender.takes_arrays:
        raise NotImplementedError
    contender.fresh(8_192)
    prompts = [prompt(chance, PROMPT) for _ in range(64)]
    requests = [contender.prepare(p.tolist() if lists else p) for p in prompts]
    return Figure(timed(lambda: [contender.admit(r) for r in requests]) / len(requests))


def admit_shared(contender: Contender, chance: np.random.Generator) -> Figure:
    """Admit and prefill PROMPT tokens that were published before, and 64 new ones."""
    contender.fresh(8_192)
    known = prompt(chance, PROMPT)
    contender.finish(contender.admit(contender.prepare(known)))
    prompts = [np.concatenate([known, prompt(chance, 64)]) for _ in range(64)]
    requests = [contender.prepare(p) for p in prompts]
    handles: list[Any] = []
    taken = timed(lambda: handles.extend(contender.admit(r) for r in requests))
    assert all(contender.hit(handle) == PROMPT for handle in handles)
    return Figure(taken / len(requests))


def running(contender: Contender, chance: np.random.Generator, rows: int) -> None:
    """``rows`` sequences at different places of a page, about to decode."""
    contender.fresh(rows * (CONTEXT + 512) // PAGE_SIZE)
    lengths = (CONTEXT - chance.integers(0, PAGE_SIZE, rows)).tolist()
    contender.start([contender.admit(contender.prepare(prompt(chance, n))) for n in lengths])


def finish(contender: Contender, chance: np.random.Generator) -> Figure:
    """End sequences of a prompt of PROMPT tokens and 128 that they decoded."""
    contender.fresh(8_192)
    prompts = [contender.prepare(prompt(chance, PROMPT)) for _ in range(64)]
    contender.start([contender.admit(request) for request in prompts])
    for _ in range(CONTEXT - PROMPT):
        contender.step(contender.choose(prompt(chance, 64)))
    handles = contender.rows
    return Figure(timed(lambda: [contender.finish(h) for h in handles]) / len(handles))


def decode(contender: Contender, chance: np.random.Generator, rows: int) -> Figure:
    """A step of ``rows`` sequences of 1,137 tokens and more."""
    running(contender, chance, rows)
    sampled = [contender.choose(prompt(chance, rows)) for _ in range(STEPS[rows])]
    return Figure(timed(lambda: [contender.step(tokens) for tokens in sampled]) / len(sampled))


def drafts(contender: Contender, chance: np.random.Generator) -> Figure:
    """A step of ROWS sequences that check DRAFTS, of which KEPT are right."""
    running(contender, chance, ROWS)
    sampled = [contender.choose(prompt(chance, ROWS * (KEPT + 1))) for _ in range(STEPS[ROWS])]
    return Figure(timed(lambda: [contender.draft(flat) for flat in sampled]) / len(sampled))


def arrivals(chance: np.random.Generator) -> Iterator[tuple[Ints, int]]:
    """Prompts of 512 to 1,024 tokens, 256 of them one of 4 beginnings, and tokens to generate."""
    systems = [prompt(chance, 256) for _ in range(4)]
    while True:
        own = prompt(chance, int(chance.integers(256, 769)))
        yield np.concatenate([systems[int(chance.integers(4))], own]), int(chance.integers(64, 193))


def serve(contender: Contender, chance: np.random.Generator, *, lists: bool = False) -> Figure:
    """ROWS rows that decode; who has its tokens ends, and the next request starts in its place.

    The time of a token, of a pool that is full: each admission takes pages from who ended.
    """
    stream = arrivals(chance)

    def arrive() -> tuple[Any, int]:
        tokens, count = next(stream)
        return contender.prepare(tokens.tolist() if lists else tokens), count

    contender.fresh(SERVE_PAGES)
    first = [arrive() for _ in range(ROWS)]
    contender.start([contender.admit(request) for request, _ in first])
    left = [int(chance.integers(1, count)) for _, count in first]
    turns = []
    for _ in range(SERVE_WARM + SERVE_TIMED):
        left = [count - 1 for count in left]
        ended = [row for row, count in enumerate(left) if not count][::-1]
        for row in ended:  # as rows move in `Contender.turn`
            left[row] = left[-1]
            left.pop()
        sampled = contender.choose(prompt(chance, len(left)))
        came = [arrive() for _ in ended]
        left += [count for _, count in came]
        turns.append((ended, [request for request, _ in came], sampled))
    for turn in turns[:SERVE_WARM]:
        contender.turn(*turn)
    taken = timed(lambda: [contender.turn(*turn) for turn in turns[SERVE_WARM:]])
    return Figure(taken / SERVE_TIMED / ROWS)


def conversations(chance: np.random.Generator, count: int) -> list[Ints]:
    """Prompts of 100 conversations in random order, of up to 8 turns after 4 system prompts."""
    systems = [prompt(chance, 256) for _ in range(4)]
    talks: list[tuple[int, Ints]] = [(8, systems[0])] * 100
    prompts = []
    for _ in range(count):
        which = int(chance.integers(len(talks)))
        turns, said = talks[which]
        if turns == 8:
            turns, said = 0, systems[int(chance.integers(4))]
        said = np.concatenate([said, prompt(chance, int(chance.integers(64, 385)))])
        talks[which] = (turns + 1, said)
        prompts.append(said)
    return prompts


def churn(contender: Contender, chance: np.random.Generator) -> Figure:
    """Admit and finish turns of conversations in a full pool smaller than what they reuse."""
    contender.fresh(CHURN_PAGES)
    prompts = conversations(chance, CHURN_WARM + CHURN_TIMED)
    requests = [contender.prepare(p) for p in prompts]
    for request in requests[:CHURN_WARM]:
        contender.finish(contender.admit(request))
    found = []

    def run() -> None:
        for request in requests[CHURN_WARM:]:
            handle = contender.admit(request)
            found.append(contender.hit(handle))
            contender.finish(handle)

    taken = timed(run)
    tokens = sum(p.size for p in prompts[CHURN_WARM:])
    return Figure(taken / CHURN_TIMED, 100 * sum(found) / tokens)


def slots(contender: Contender, chance: np.random.Generator, tokens: int, page_size: int) -> Figure:
    """Slots of ``tokens`` positions from 7 on, in reversed pages."""
    del chance
    stop = 7 + tokens
    listed = list(range(-(-stop // page_size), 0, -1))
    pages = contender.choose(np.array(listed, np.int32))
    expected = [listed[i // page_size] * page_size + i % page_size for i in range(7, stop)]
    assert all(list(contender.slots(pages, page_size, 7, stop)) == expected for _ in range(5))
    calls = range(max(10, 100_000 // tokens))
    taken = timed(lambda: [contender.slots(pages, page_size, 7, stop) for _ in calls])
    return Figure(taken / len(calls))


def build(contender: Contender, chance: np.random.Generator, pages: int) -> Figure:
    """Build a manager of ``pages`` pages."""
    del chance
    return Figure(timed(lambda: contender.build(pages)))


FIGURES: dict[str, Callable[[Contender, np.random.Generator], Figure]] = {
    "serve": serve,
    "serve_lists": partial(serve, lists=True),
    "admit_new": admit_new,
    "admit_new_lists": partial(admit_new, lists=True),
    "admit_shared": admit_shared,
    "churn": churn,
    "finish": finish,
    **{f"decode_{rows}": partial(decode, rows=rows) for rows in STEPS},
    "drafts": drafts,
    **{
        f"slots_{tokens}_{size}": partial(slots, tokens=tokens, page_size=size)
        for tokens, size in ((1, 256), (4_096, 16), (32_768, 16), (4_096, 256), (32_768, 256))
    },
    "build_100k": partial(build, pages=100_000),
    "build_1m": partial(build, pages=1_000_000),
}


def run_figure(contender: Contender, name: str, turn: int) -> Figure:
    """One round; ``turn`` seeds its prompts, so that all contenders get the same ones.

    Raises:
        NotImplementedError: the contender has no such thing.
    """
    chance = np.random.default_rng([turn, zlib.crc32(name.encode())])
    if name in FIGURES:
        return FIGURES[name](contender, chance)
    if name in contender.figures:
        return Figure(contender.figures[name](chance))
    raise NotImplementedError(name)
