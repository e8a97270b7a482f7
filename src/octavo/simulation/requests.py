"""Requests of a trace, and the token ids that stand for their prompts and answers.

A cache matches token ids, and traces have lengths and hash ids alone: here each prompt gets ids
that are equal exactly where the trace says that prompts are equal.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.sequence import Sequence

Ints = NDArray[np.int32]
BLOCK = 512
"""Tokens a hash id of Mooncake's traces stands for."""
LONGEST = 2**31 - 1
_MASK = np.int32(LONGEST)


@dataclass(frozen=True, slots=True, eq=False)
class TraceRequest:
    """One request: when it comes, its prompt, how long its answer is.

    Attributes:
        number: place in the trace, from 0.
        arrival: seconds after the first request.
        input_length: tokens of the prompt, all that went before in its session included.
        output_length: tokens of the answer.
        blocks: a number for each block of its own tokens, odd; None: the trace has no hash ids.
        tokens: ids of its own tokens, or None.
        output: the answer's ids, or None.
        block: tokens per block.
        before: the request before it in its session, whose prompt and answer its own tokens
            follow; or None: all tokens of the prompt are its own.
    """

    number: int
    arrival: float
    input_length: int
    output_length: int
    blocks: Ints | None = None
    tokens: Ints | None = None
    output: Ints | None = None
    block: int = BLOCK
    before: "TraceRequest | None" = field(default=None, repr=False)

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
        if self.before is None:
            return self._own_tokens(self.input_length)
        parts, turn = list[Ints](), self
        while turn.before is not None:
            earlier = turn.before
            parts.append(turn._own_tokens(turn.input_length - earlier.length))
            parts.append(np.resize(earlier.answer(), earlier.output_length))
            turn = earlier
        parts.append(turn._own_tokens(turn.input_length))
        return np.concatenate(parts[::-1])

    def _own_tokens(self, count: int) -> Ints:
        if self.tokens is not None:
            return self.tokens
        if self.blocks is not None:
            return block_tokens(self.blocks, self.block)[:count]
        return np.full(count, self.own, np.int32)

    @property
    def padded(self) -> bool:
        """Whether the replay one by one counts hash ids whole, as Mooncake's rates do. O(1)."""
        return self.blocks is not None and self.block == BLOCK and self.before is None

    def serial_prompt(self) -> Ints:
        """Ids for the replay one by one: of padded ones whole blocks and a token of its own."""
        if self.blocks is None or not self.padded:
            return self.prompt()
        tokens = np.empty(self.serial_length, np.int32)
        block_tokens(self.blocks, BLOCK, tokens[:-1])
        tokens[-1] = self.own
        return tokens

    @property
    def serial_length(self) -> int:
        """Tokens of `serial_prompt`. O(1)."""
        if self.blocks is None or not self.padded:
            return self.input_length
        return self.blocks.size * BLOCK + 1

    def answer(self) -> Ints:
        """Ids of the answer; a single one where all are the same id of its own."""
        return np.full(1, self.own, np.int32) if self.output is None else self.output


def block_tokens(blocks: Ints, block: int = BLOCK, out: Ints | None = None) -> Ints:
    """The ids of blocks: two different blocks differ in each of them, equal blocks in none.

    Up to 2**22 requests and blocks no id stands at two of the first 512 offsets either. Written
    into ``out`` where it is given. O(tokens).
    """
    tokens = np.empty(blocks.size * block, np.int32) if out is None else out
    rows = tokens.reshape(-1, block)
    np.add(blocks[:, None], (np.arange(block, dtype=np.int32) % BLOCK) << 22, out=rows)
    np.bitwise_and(rows, _MASK, out=rows)
    return tokens


@dataclass(frozen=True)
class Trace:
    """Requests in the order of their arrival, and what was wrong with the file.

    Attributes:
        name: of the file or the workload.
        form: ``mooncake``, ``bailian``, ``log``, ``sessions``, ``conversations``, ``prompts``,
            ``lengths``, ``azure``, ``burstgpt``, or ``generated``.
        requests: at least one.
        bad_lines: lines that were skipped.
        out_of_order: requests that came earlier than any one above them, and were sorted.
        rate, seed: what a workload was generated with.
        notes: what was taken for granted while it was read, a sentence each.
    """

    name: str
    form: str
    requests: Items[TraceRequest] = field(repr=False)
    bad_lines: int = 0
    out_of_order: int = 0
    rate: float | None = None
    seed: int | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def block(self) -> int | None:
        """Tokens a hash id stands for; None: there are none. O(requests)."""
        return next((r.block for r in self.requests if r.blocks is not None), None)

    @cached_property
    def padded(self) -> bool:
        """Whether a serial replay counts hash ids whole, and a token of their own. O(requests)."""
        return any(request.padded for request in self.requests)

    @cached_property
    def tells_contents(self) -> bool:
        """Whether anything says that two prompts begin alike; else no hit can be seen."""
        return any(
            r.tokens is not None or r.blocks is not None or r.before is not None
            for r in self.requests
        )

    @property
    def converses(self) -> bool:
        """Whether it is of conversations, whose prompts repeat answers. O(requests)."""
        if self.form == "generated":
            return self.name in ("chat", "agents")
        return self.form in ("sessions", "conversations")

    def most_pages(self, page_size: int, *, serial: bool) -> int:
        """Pages for all that is ever computed, so that nothing is evicted. O(requests)."""
        lengths = [r.serial_length if serial else r.input_length for r in self.requests]
        outputs = [0 if serial else r.output_length for r in self.requests]
        return sum(-(-(n + m) // page_size) for n, m in zip(lengths, outputs, strict=True))

    def to_dict(self) -> dict[str, Any]:
        """The facts of the trace, as docs/simulate.md names them."""
        seconds = self.requests[-1].arrival
        lengths = [r.input_length for r in self.requests]
        return {
            "name": self.name,
            "form": self.form,
            "requests": len(self.requests),
            "input_tokens": sum(r.input_length for r in self.requests),
            "input_length_p50": int(np.percentile(lengths, 50, method="lower")),
            "input_length_max": max(lengths),
            "output_tokens": sum(r.output_length for r in self.requests),
            "seconds": round(seconds, 6),
            "requests_per_second": round(len(lengths) / seconds, 6) if seconds else None,
            "bad_lines": self.bad_lines,
            "out_of_order": self.out_of_order,
            "rate": self.rate,
            "seed": self.seed,
            "replayed_tokens": sum(r.serial_length for r in self.requests),
            "block_size": self.block,
            "tells_contents": self.tells_contents,
            "notes": list(self.notes),
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
