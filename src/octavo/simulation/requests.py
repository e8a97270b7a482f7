"""Requests of a trace, and the token ids that stand for their prompts and answers.

A cache matches token ids, and traces have lengths and hash ids alone: here each prompt gets ids
that are equal exactly where the trace says that prompts are equal.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.sequence import Sequence

Ints = NDArray[np.int32]
BLOCK = 512
"""Tokens a hash id stands for."""
LONGEST = 2**31 - 1
_OFFSETS = np.arange(BLOCK, dtype=np.int32) << 22
_MASK = np.int32(LONGEST)


@dataclass(frozen=True, slots=True, eq=False)
class TraceRequest:
    """One request: when it comes, its prompt, how long its answer is.

    Attributes:
        number: place in the trace, from 0.
        arrival: seconds after the first request.
        input_length: tokens of the prompt.
        output_length: tokens of the answer.
        blocks: a number for each 512 tokens of the prompt, odd; None: the trace has no hash ids.
        tokens: the prompt's ids, or None.
        output: the answer's ids, or None.
    """

    number: int
    arrival: float
    input_length: int
    output_length: int
    blocks: Ints | None = None
    tokens: Ints | None = None
    output: Ints | None = None

    @property
    def length(self) -> int:
        """Tokens of prompt and answer."""
        return self.input_length + self.output_length

    @property
    def own(self) -> int:
        """A token id of this request alone: even, where blocks are odd."""
        return 2 * self.number

    def prompt(self) -> Ints:
        """Ids of the prompt as it stands. O(input_length)."""
        if self.tokens is not None:
            return self.tokens
        if self.blocks is not None:
            return block_tokens(self.blocks)[: self.input_length]
        return np.full(self.input_length, self.own, np.int32)

    def serial_prompt(self) -> Ints:
        """Ids for the replay one by one: of hash ids 512 each and a token of its own behind."""
        if self.blocks is None:
            return self.prompt()
        tokens = np.empty(self.serial_length, np.int32)
        block_tokens(self.blocks, tokens[:-1])
        tokens[-1] = self.own
        return tokens

    @property
    def serial_length(self) -> int:
        """Tokens of `serial_prompt`. O(1)."""
        return self.input_length if self.blocks is None else self.blocks.size * BLOCK + 1

    def answer(self) -> Ints:
        """Ids of the answer; a single one where all are the same id of its own."""
        return np.full(1, self.own, np.int32) if self.output is None else self.output


def block_tokens(blocks: Ints, out: Ints | None = None) -> Ints:
    """512 ids a block: two different blocks differ in each of them, equal blocks in none.

    Up to 2**22 requests and blocks no id stands at two offsets either. Written into ``out`` where
    it is given. O(tokens).
    """
    tokens = np.empty(blocks.size * BLOCK, np.int32) if out is None else out
    rows = tokens.reshape(-1, BLOCK)
    np.add(blocks[:, None], _OFFSETS, out=rows)
    np.bitwise_and(rows, _MASK, out=rows)
    return tokens


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival, and what was wrong with the file.

    Attributes:
        name: of the file or the workload.
        form: ``mooncake``, ``azure``, ``log`` or ``generated``.
        requests: at least one.
        bad_lines: lines that were skipped.
        out_of_order: requests that came earlier than one above them, and were sorted.
        rate, seed: what a workload was generated with.
    """

    name: str
    form: str
    requests: Items[TraceRequest] = field(repr=False)
    bad_lines: int = 0
    out_of_order: int = 0
    rate: float | None = None
    seed: int | None = None

    def first(self, requests: int) -> "Trace":
        """The same with no more than its first ``requests`` requests."""
        return replace(self, requests=self.requests[:requests])

    @cached_property
    def hash_ids(self) -> bool:
        """Whether prompts are given by hash ids."""
        return any(request.blocks is not None for request in self.requests)

    def most_pages(self, page_size: int, *, serial: bool) -> int:
        """Pages for all that is ever computed, so that nothing is evicted. O(requests)."""
        lengths = [r.serial_length if serial else r.input_length for r in self.requests]
        outputs = [0 if serial else r.output_length for r in self.requests]
        return sum(-(-(n + m) // page_size) for n, m in zip(lengths, outputs, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The facts of the trace, as docs/simulate.md names them."""
        return {
            "name": self.name,
            "form": self.form,
            "requests": len(self.requests),
            "input_tokens": sum(r.input_length for r in self.requests),
            "output_tokens": sum(r.output_length for r in self.requests),
            "seconds": round(self.requests[-1].arrival, 6),
            "bad_lines": self.bad_lines,
            "out_of_order": self.out_of_order,
            "rate": self.rate,
            "seed": self.seed,
            "replayed_tokens": sum(r.serial_length for r in self.requests),
        }


class AnswerTokens:
    """The answers of all requests in one array, so that a step's tokens are one gather.

    Attributes:
        inputs: int64 by request number, tokens of the prompt.
        limits: int64 by request number, tokens of prompt and answer.
    """

    def __init__(self, requests: Iterable[TraceRequest]) -> None:
        listed = list(requests)
        answers = [request.answer() for request in listed]
        sizes = np.array([answer.size for answer in answers])
        self._ids = np.concatenate([*answers, np.zeros(1, np.int32)])
        self._start = np.cumsum(sizes) - sizes
        self._stride = sizes > 1  # an answer may repeat one id
        self.inputs = np.array([request.input_length for request in listed])
        self.limits = np.array([request.length for request in listed])

    def following(self, numbers: NDArray[np.int64], context: Ints) -> Ints:
        """What follows the first ``context`` tokens of each of these requests. O(rows).

        Anything where that is a token of the prompt, or the answer is at its end.
        """
        said = (context - self.inputs[numbers]) * self._stride[numbers]
        found: Ints = self._ids.take(self._start[numbers] + said, mode="clip")
        return found


class Job:
    """A request on its way through a server, and when what happened to it.

    Attributes:
        request: of the trace.
        sequence: the cache's handle, or None.
        admitted, first, finished: seconds; None: not yet, or refused.
        waited: whether there was no room when it was its turn.
    """

    __slots__ = ("_prompt", "admitted", "finished", "first", "request", "sequence", "waited")

    def __init__(self, request: TraceRequest) -> None:
        self.request = request
        self.sequence: Sequence | None = None
        self.admitted: float | None = None
        self.first: float | None = None
        self.finished: float | None = None
        self.waited = False
        self._prompt: Ints | None = None

    @property
    def limit(self) -> int:
        """Tokens of prompt and answer."""
        return self.request.length

    @property
    def prompt(self) -> Ints:
        """The prompt's ids, kept until the request is admitted."""
        if self._prompt is None:
            self._prompt = self.request.prompt()
        return self._prompt

    def admit(self, now: float) -> None:
        """Its sequence knows the ids from now on."""
        self.admitted, self._prompt = now, None
