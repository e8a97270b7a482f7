"""What the authorities are timed on: the same seeded prompts and rows for every contender.

Runs in every contender's own interpreter, so it needs NumPy and nothing else.
"""

import gc
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int32]
PAGE_SIZE = 16
VOCABULARY = 32_000
SEQUENCES, CONTEXT, STEPS = 256, 1_152, 64
CHURN_PAGES, CHURN_WARM, CHURN_TIMED = 4_700, 400, 300


class Figure(NamedTuple):
    """One round of one row.

    Attributes:
        microseconds: for one unit of the row.
        hits: per cent of prompt tokens found, where the row has a choice in it.
    """

    microseconds: float
    hits: float | None = None


class Contender(ABC):
    """One page authority behind the few calls the rows need.

    `prepare`, `start` and `choose` are not timed: they bring inputs into the form its engine has
    them in.
    """

    name: str

    @abstractmethod
    def build(self, pages: int) -> object:
        """A new authority over ``pages`` usable pages of PAGE_SIZE tokens."""

    def fresh(self, pages: int) -> None:
        """Work on a new authority from now on."""
        self.manager: Any = None
        self.manager = self.build(pages)

    @abstractmethod
    def prepare(self, tokens: Ints) -> Any:
        """A request for a prompt."""

    @abstractmethod
    def admit(self, request: Any) -> Any:
        """Match the prompt, allocate the rest of it, publish its full pages; returns its handle."""

    @abstractmethod
    def hit(self, handle: Any) -> int:
        """Tokens of the prompt that were found."""

    @abstractmethod
    def finish(self, handle: Any) -> None:
        """The sequence ends; its pages stay for reuse."""

    @abstractmethod
    def start(self, handles: list[Any]) -> None:
        """From now on these sequences decode together."""

    def choose(self, tokens: Ints) -> Any:
        """Sampled ids, in the form the authority takes them in."""
        return tokens.tolist()

    @abstractmethod
    def step(self, tokens: Any) -> None:
        """A slot for one more position of each sequence, and what its kernel reads; then learn."""


# -- rows ------------------------------------------------------------------------------------------


def timed(call: Callable[[], object]) -> float:
    """Microseconds of processor time of one call, without garbage collection.

    Waiting for a core that another process holds does not count.
    """
    gc.collect()
    gc.disable()
    began = time.process_time()
    call()
    taken = time.process_time() - began
    gc.enable()
    return taken * 1e6


def prompt(chance: np.random.Generator, length: int) -> Ints:
    """Random ids that no other prompt has."""
    return chance.integers(1, VOCABULARY, length, dtype=np.int32)


def unique(contender: Contender, chance: np.random.Generator) -> Figure:
    """Admit prompts of 1,024 tokens of which nothing is known."""
    contender.fresh(8_192)
    requests = [contender.prepare(prompt(chance, 1_024)) for _ in range(64)]
    return Figure(timed(lambda: [contender.admit(r) for r in requests]) / len(requests))


def shared(contender: Contender, chance: np.random.Generator) -> Figure:
    """Admit prompts of 1,024 tokens that were published before, and 64 of their own."""
    contender.fresh(8_192)
    known = prompt(chance, 1_024)
    contender.finish(contender.admit(contender.prepare(known)))
    prompts = [np.concatenate([known, prompt(chance, 64)]) for _ in range(64)]
    requests = [contender.prepare(p) for p in prompts]
    handles: list[Any] = []
    taken = timed(lambda: handles.extend(contender.admit(r) for r in requests))
    assert all(contender.hit(handle) == 1_024 for handle in handles)
    return Figure(taken / len(requests))


def finish(contender: Contender, chance: np.random.Generator) -> Figure:
    """End sequences of 1,152 published tokens."""
    contender.fresh(8_192)
    handles = [contender.admit(contender.prepare(prompt(chance, CONTEXT))) for _ in range(64)]
    return Figure(timed(lambda: [contender.finish(h) for h in handles]) / len(handles))


def decode(contender: Contender, chance: np.random.Generator) -> Figure:
    """One token for each of 256 sequences of 1,137 to 1,215 tokens; time is of one sequence."""
    contender.fresh(24_000)
    lengths = (CONTEXT - chance.integers(0, PAGE_SIZE, SEQUENCES)).tolist()
    contender.start([contender.admit(contender.prepare(prompt(chance, n))) for n in lengths])
    sampled = [contender.choose(prompt(chance, SEQUENCES)) for _ in range(STEPS)]
    taken = timed(lambda: [contender.step(tokens) for tokens in sampled])
    return Figure(taken / STEPS / SEQUENCES)


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
    """Admit and finish turns of conversations in a pool smaller than what they reuse."""
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


def pool_100k(contender: Contender, chance: np.random.Generator) -> Figure:
    """Build an authority over 100,000 pages."""
    del chance
    return Figure(timed(lambda: contender.build(100_000)))


def pool_1m(contender: Contender, chance: np.random.Generator) -> Figure:
    """Build an authority over a million pages."""
    del chance
    return Figure(timed(lambda: contender.build(1_000_000)))


ROWS = {row.__name__: row for row in (unique, shared, decode, finish, churn, pool_100k, pool_1m)}


def run_row(contender: Contender, name: str, turn: int) -> Figure:
    """One round of a row; ``turn`` seeds its prompts, so that all contenders get the same ones."""
    seed = [turn, list(ROWS).index(name)]
    return ROWS[name](contender, np.random.default_rng(seed))
