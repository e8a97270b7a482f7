"""Everything that can be observed of a cache, as one comparable value.

Used to prove that a verb that raised changed nothing. What can be read is read; what can only be
seen by acting (page tables, the order of eviction, the pages handed out next) is seen by acting on
a deep copy, which is used up. Nothing here looks inside a cache.
"""

import copy
from collections.abc import Iterable
from typing import Any, NamedTuple

from octavo.cache import Cache
from octavo.errors import OctavoError
from octavo.sequences import Ints, Sequence, Tokens, check_tokens
from octavo.table import Step

UNSEEN = 2**31 - 1
"""A token id that no prompt of a test should contain: it matches no published page."""


class Snapshot(NamedTuple):
    """A cache at one moment; two of them are equal when nothing tells them apart.

    Attributes:
        reads: stats, available pages, each sequence's numbers and tokens, what each prompt matches.
        steps: the arrays of the open steps.
        tables: each sequence's page table, or the error that hides it.
        supply: the pages handed out next, one at a time, and what the prompts still match then:
            the order of the free pages and of eviction.
    """

    reads: tuple[Any, ...]
    steps: tuple[Any, ...]
    tables: tuple[Any, ...]
    supply: tuple[Any, ...]


def snapshot(
    cache: Cache,
    sequences: Iterable[Sequence] = (),
    *,
    steps: Iterable[Step] = (),
    prompts: Iterable[Tokens] = (),
    deep: bool = True,
) -> Snapshot:
    """What can be observed of ``cache`` now; the cache itself is not touched.

    Args:
        sequences: every sequence admitted at present.
        steps: every open step, oldest first.
        prompts: token ids to look up; the more of them, the finer the view of the prefix index.
        deep: False leaves ``tables`` and ``supply`` empty, which costs no copy.

    Cost: O(pages x prompts), and one deep copy.
    """
    looked_up = [check_tokens(tokens) for tokens in prompts]
    live, opened = list(sequences), list(steps)
    reads = _reads(cache, live, looked_up)
    arrays = tuple(_arrays(step) for step in opened)
    if not deep:
        return Snapshot(reads, arrays, (), ())
    memo = {id(cache.plan): cache.plan}  # frozen, so both may have it
    twin, live, opened = copy.deepcopy((cache, live, opened), memo)
    for step in reversed(opened):
        twin.abort(step)
    tables = tuple(_table(twin, sequence) for sequence in live)
    for sequence in live:
        twin.release(sequence)
    return Snapshot(reads, arrays, tables, tuple(_supply(twin, looked_up)))


def _reads(cache: Cache, sequences: list[Sequence], prompts: list[Ints]) -> tuple[Any, ...]:
    numbers = tuple(
        (s.id, s.length, s.scheduled, s.computed, s.cached, s.limit, s.tokens().tobytes())
        for s in sequences
    )
    return cache.stats(), tuple(cache.available().items()), numbers, _matches(cache, prompts)


def _matches(cache: Cache, prompts: list[Ints]) -> tuple[tuple[int, int], ...]:
    found = [cache.peek(tokens) for tokens in prompts]
    return tuple((match.tokens, match.pending) for match in found)


def _arrays(step: Step) -> tuple[bytes, ...]:
    plain = (step.counts, step.input_ids, step.positions, step.past, step.last, step.wants_token)
    views = [array for name in step.groups for array in step.group(name)]
    return tuple(array.tobytes() for array in (*plain, *views))


def _table(cache: Cache, sequence: Sequence) -> object:
    """The page table a step of one more position has; at the limit one position is given up."""
    if sequence.scheduled == sequence.limit:
        cache.drop(sequence, 1)
    try:
        step = cache.extend(sequence, 1, ahead=1)
    except OctavoError as error:
        return type(error), error.args
    rows = tuple((name, step.group(name).table.tobytes()) for name in step.groups)
    cache.abort(step)
    return rows


def _supply(cache: Cache, prompts: list[Ints]) -> Iterable[object]:
    """Take every page, one a step, by sequences that match nothing and each other neither."""
    for token in range(UNSEEN, UNSEEN - cache.max_sequences, -1):
        if not any(cache.available().values()):
            return
        sequence = cache.admit([token], reuse=False)
        yield sequence.id
        while sequence.scheduled < sequence.limit and any(cache.available().values()):
            count = min(cache.plan.page_size, sequence.limit - sequence.scheduled)
            step = cache.extend(sequence, count, ahead=count)
            yield tuple(step.group(name).slots.tobytes() for name in step.groups)
            found = _matches(cache, prompts)
            yield found
            prompts = [p for p, match in zip(prompts, found, strict=True) if any(match)]
            cache.commit(step, [[token] * (sequence.scheduled - sequence.length)])
