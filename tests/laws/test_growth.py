"""Cost follows what is there: what stands around a verb, or came before it, costs it nothing.

Costs are counted, not timed: lines of Python that run. That is the whole of a verb where the core
runs as Python source, and the part in front of it where the core is compiled.
"""

import random
import sys

import pytest

from octavo import Cache, Plan

CASES = {}


def case(small, large):
    """Register a builder: of a size, it gives a verb whose cost must not follow that size."""

    def register(build):
        CASES[build.__name__] = small, large, build
        return build

    return register


def lines(verb):
    """Lines of Python that run in one call."""
    count, before = 0, sys.gettrace()

    def trace(frame, event, argument):
        nonlocal count
        del frame, argument
        count += event == "line"
        return trace

    sys.settrace(trace)
    try:
        verb()
    finally:
        sys.settrace(before)
    return count


def ids(seed, count):
    """Random token ids."""
    return random.Random(seed).choices(range(30_000), k=count)


def pool(pages=2_000, page_size=4, groups=None, *, per_parent=None, **options):
    """A cache without bytes."""
    plan = Plan.from_pages(pages, page_size, groups, pages_per_parent=per_parent)
    return Cache(plan, **options)


def computed(cache, tokens, **options):
    """A sequence that has computed its prompt, and knows one token more."""
    sequence = cache.admit(tokens, **options)
    cache.commit(cache.extend(sequence, sequence.length - sequence.computed), [7])
    return sequence


@case(2, 60)
def peek_beside_rows_that_decode(rows):
    """Rows that begin as the prompt does, and each compute one token more."""
    cache, prompt = pool(), ids(0, 40)
    kept = [computed(cache, [*prompt, *ids(row + 1, 6)]) for row in range(rows)]
    return lambda: cache.peek([*prompt, *ids(-1, 8)]), kept


@case(2, 60)
def peek_beside_prompts_that_wait(rows):
    """Prompts admitted and not computed, which begin as the prompt does."""
    cache, prompt = pool(), ids(0, 40)
    kept = [cache.admit([*prompt, *ids(row + 1, 6)]) for row in range(rows)]
    return lambda: cache.peek([*prompt, *ids(-1, 8)]), kept


@pytest.mark.parametrize("name", CASES)
def test_cost_does_not_follow(name):
    """As many lines run where there is much of what does not matter as where there is little."""
    small, large, build = CASES[name]
    counts = []
    for size in (small, large):
        verb, *kept = build(size)
        verb()  # what is found once a change is found
        counts.append(lines(verb))
        del kept
    little, much = counts

    assert much <= 1.1 * little


def test_every_change_of_the_tables_costs_the_same():
    """Whatever number of them no step has read."""
    cache = pool(max_sequences=1_101)
    rows, batch = [cache.admit([1]) for _ in range(1_101)], cache.batch()
    counts = [lines(lambda row=row: batch.add(row)) for row in rows]

    assert max(counts) <= 2 * min(counts)  # where the arrays grow


def test_changes_that_no_step_reads_take_no_more_than_their_rows():
    """Where so much changed in a row, all of it is read, and it is what the table has."""
    cache = pool()
    row = cache.admit(ids(1, 80))
    other = computed(cache, ids(2, 10))
    batch = cache.batch([other, row])
    cache.abort(cache.extend(batch, [1, 0]))
    for _ in range(100):
        cache.abort(cache.extend([row], 80))  # 20 columns come and go
    cache.commit(cache.extend([row], 40))

    assert batch._rows.logged <= 2 * 20 + 20
    step = cache.extend(batch, 1)
    changes = step.delta["full"]
    found = {}
    for place, column, page in zip(changes.rows, changes.columns, changes.pages, strict=True):
        found[int(place), int(column)] = int(page)
    table = step.group().table
    assert {
        (1, column): page for column, page in enumerate(table[1].tolist())
    }.items() <= found.items()
    assert not any(page for (place, column), page in found.items() if place and column >= 11)
