"""Cost follows what is there: what stands around a verb, or came before it, costs it nothing.

Costs are counted, not timed: lines of Python that run. That is the whole of a verb where the core
runs as Python source, and the part in front of it where the core is compiled.
"""

import gc
import random
import sys
from functools import partial

import pytest

from octavo import Attention, Cache, Media, Plan, Prompt, Salt, State
from octavo.cache.events import page_digests

CASES = {}


def case(small, large):
    """Register a builder: of a size, it gives a verb whose cost must not follow that size."""

    def register(build):
        CASES[build.__name__] = small, large, build
        return build

    return register


def lines(verb):
    """Lines of Python that run in one call; not those of what is collected meanwhile."""
    count, before = 0, sys.gettrace()
    gc.disable()

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
        gc.enable()
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


@case(2, 60)
def admit_through_a_prompt_beside_rows(rows):
    """Looked at, asked for room and admitted, as a scheduler does."""
    cache, prompt = pool(max_sequences=64), ids(0, 40)
    kept = [computed(cache, [*prompt, *ids(row + 1, 6)]) for row in range(rows)]

    def verb():
        whole = Prompt([*prompt, *ids(-1, 8)])
        cache.peek(whole)
        cache.fits([(whole, 60)])
        cache.release(cache.admit(whole))

    return verb, kept


HYBRID = {"full": Attention(1, 1, 1), "state": State(1)}
WINDOWED = {"full": Attention(1, 1, 1), "window": Attention(1, 1, 1, window=8)}


@case(4, 400)
def short_hit_on_a_long_chain(pages):
    """Of a chain that is published, two pages are held."""
    cache, chain = pool(), ids(0, 4 * pages)
    cache.release(computed(cache, chain))
    prompt = [*chain[:8], *ids(-1, 8)]
    return (lambda: cache.release(cache.admit(prompt)),)


@case(4, 400)
def short_hit_on_a_long_row(pages):
    """Of a sequence that still runs, with windows, two pages are held."""
    cache, chain = pool(groups=WINDOWED), ids(0, 4 * pages)
    kept = computed(cache, chain)
    prompt = [*chain[:8], *ids(-1, 8)]
    return lambda: cache.release(cache.admit(prompt)), kept


@case(40, 800)
def a_page_evicted_of_a_long_chain(pages):
    """The pool is full of one chain, and a decoding row takes its pages one by one."""
    cache = pool(pages + 11)
    cache.release(computed(cache, ids(0, 4 * pages)))
    row = computed(cache, ids(1, 39))

    def verb():
        step = cache.extend(row, 4, ahead=4)
        cache.commit(step, [ids(2, 4)])

    return verb, row


@case(4, 400)
def a_change_of_an_evicted_past(chains):
    """Prompts that came, were published and given up again."""
    cache = pool(40, groups=HYBRID)
    for chain in range(chains):
        cache.release(computed(cache, ids(chain, 9)))
    prompt = ids(-1, 9)
    return (lambda: cache.release(computed(cache, prompt)),)


@case(4, 400)
def a_new_child_of_a_node_with_many(children):
    """Prompts that leave one another after their first page."""
    cache, first = pool(4_000), ids(0, 4)
    for child in range(children):
        cache.release(computed(cache, [*first, *ids(child + 1, 5)]))
    prompt = [*first, *ids(-1, 9)]
    return (lambda: cache.release(cache.admit(prompt)),)


@case(1, 60)
def a_fork_beside_forks_that_wait(forks):
    """Their states are copied with the next step."""
    cache = pool(groups=HYBRID)
    row = computed(cache, ids(0, 8))
    kept = [cache.fork(row)[0] for _ in range(forks)]
    return lambda: cache.release(cache.fork(row)[0]), row, kept


@case(1, 60)
def a_state_given_up_beside_pinned_ones(pins):
    """As many as may be kept are, and all but one of them are held."""
    cache, kept = pool(groups=HYBRID), []
    cache._core.groups[1].most = pins + 1
    for pin in range(pins):
        row = cache.admit(prompt := ids(pin, 9))
        cache.commit(cache.extend(row, 8))
        cache.release(row)
        kept.append(cache.pin(prompt))
    seeds = iter(range(1_000, 2_000))

    def verb():
        row = cache.admit(ids(next(seeds), 9))
        cache.commit(cache.extend(row, 8))
        cache.release(row)

    return verb, kept


@case(1, 200)
def a_step_of_a_row_with_many_stops(stops):
    """An engine asked for a state after each of them."""
    cache = pool(groups=HYBRID)
    row = computed(cache, ids(0, 8), limit=2_000)
    for stop in range(stops):
        cache.keep(row, 4 * stop + 400)
    return lambda: cache.abort(cache.extend(row, 1)), row


@case(20, 400)
def a_step_beside_a_long_guaranteed_row(pages):
    """With states, it would compute all again were one lost."""
    cache = pool(groups=HYBRID)
    kept = computed(cache, ids(0, 4 * pages), limit=4 * pages + 8, guarantee=True)
    row = computed(cache, ids(1, 8))
    return lambda: cache.abort(cache.extend(row, 1)), kept, row


@case(20, 400)
def room_for_a_long_row_with_a_window(pages):
    """What its window has dropped is not looked at."""
    cache = pool(groups=WINDOWED)
    row = computed(cache, ids(0, 4 * pages))
    return lambda: cache.fits([(row, row.length + 1)]), row


@case(1, 60)
def a_step_beside_others_in_flight(steps):
    """As many are open."""
    cache = pool(depth=64, max_sequences=64)
    rows = [computed(cache, ids(row, 8)) for row in range(steps + 1)]
    kept = [cache.extend(row) for row in rows[1:]]
    return lambda: cache.abort(cache.extend(rows[0])), rows, kept


@case(1, 60)
def admit_beside_pins(pins):
    """Each of its own prefix."""
    cache, kept = pool(), []
    for pin in range(pins):
        cache.release(computed(cache, ids(pin, 9)))
        kept.append(cache.pin(ids(pin, 9)))
    prompt = ids(-1, 9)
    return lambda: cache.release(cache.admit(prompt)), kept


@case(1, 60)
def admit_after_many_extras(extras):
    """Salts, adapters and media of prompts that were given up."""
    cache = pool(20)
    for extra in range(extras):
        media = Media(f"image {extra}", 1, 3)
        cache.release(computed(cache, ids(0, 9), extra=[Salt(f"{extra}"), media]))
    prompt, extra = ids(0, 9), [Salt("a"), Media("image", 1, 3)]
    return (lambda: cache.release(cache.admit(prompt, extra=extra)),)


@case(20, 2_000)
def admit_with_media_beyond_the_prompt(pages):
    """Placeholders claimed far behind what the sequence may ever know."""
    cache, prompt = pool(), ids(0, 12)
    media = [Media("image", 1, 4 * pages)]
    return (lambda: cache.release(cache.admit(prompt, extra=media, limit=40)),)


def test_media_cost_each_the_same():
    """However many a prompt has."""
    costs = []
    for count in (10, 200):
        cache, media = pool(), [Media(f"{n}", 8 * n + 1, 8 * n + 3) for n in range(count)]
        prompt = Prompt(ids(0, 8 * count), media)
        costs.append(lines(partial(cache.peek, prompt)) / count)
        costs.append(
            lines(lambda prompt=prompt: page_digests(prompt.tokens, 4, prompt.extra)) / count
        )

    assert costs[2] <= costs[0]
    assert costs[3] <= costs[1]


@pytest.mark.parametrize("name", CASES)
def test_cost_does_not_follow(name):
    """As many lines run where there is much of what does not matter as where there is little."""
    small, large, build = CASES[name]
    counts = []
    for size in (small, large):
        verb, *kept = build(size)
        verb()  # what is found once a change is found
        counts.append(min(lines(verb) for _ in range(3)))  # one of them may move arrays
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
