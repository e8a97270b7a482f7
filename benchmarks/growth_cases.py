"""Verbs beside what must not matter to them: how much of it there is, or ever was.

Each function makes a cache with so much of something and returns a verb to be timed. Its first line
names the verb, the second what is varied.
"""

from collections.abc import Callable, Iterator

import numpy as np
from workloads import Ints, prompt

from octavo import Attention, Cache, Media, ModelSpec, Plan, Prompt, Salt, Sequence, State, plan

Verb = Callable[[], object]
FULL, WINDOW = Attention(1, 1, 1), Attention(1, 1, 1, window=128)
WINDOWED, HYBRID = {"full": FULL, "window": WINDOW}, {"full": FULL, "state": State(1)}
PAGE, SHARED = 16, 1_024
CASES: dict[str, tuple[int, int, Callable[[int], Verb]]] = {}


def _case(small: int, large: int) -> Callable[[Callable[[int], Verb]], Callable[[int], Verb]]:
    """Register a case, to be measured at two sizes."""

    def register(make: Callable[[int], Verb]) -> Callable[[int], Verb]:
        CASES[" ".join(str(make.__doc__).split())] = small, large, make
        return make

    return register


def _chance() -> np.random.Generator:
    return np.random.default_rng(7)


def _compute(cache: Cache, tokens: Ints | Prompt, **options: object) -> Sequence:
    """A sequence that has computed its prompt, up to each stop, and knows a token more."""
    sequence: Sequence = cache.admit(tokens, **options)  # type: ignore[arg-type]
    while (start := sequence.computed) < len(tokens):
        end = min(sequence.next_stop or len(tokens), len(tokens), start + 2**15)
        cache.commit(cache.extend(sequence, end - start), [1])
    return sequence


def _publish(cache: Cache, tokens: Ints | Prompt, **options: object) -> None:
    cache.release(_compute(cache, tokens, **options))


def _pool(pages: int, groups: dict[str, Attention | State] | None = None, **options: int) -> Cache:
    return Cache(Plan.from_pages(pages + 1, PAGE, groups), **options)  # type: ignore[arg-type]


def _decoding(cache: Cache, rows: int, chance: np.random.Generator) -> tuple[Ints, list[Sequence]]:
    """Rows that share 1,024 tokens with each other and decode."""
    shared = prompt(chance, SHARED)
    tails = [np.concatenate([shared, prompt(chance, 40)]) for _ in range(rows)]
    return shared, [_compute(cache, tail) for tail in tails]


@_case(1, 256)
def _peek(rows: int) -> Verb:
    """peek; rows that decode and begin alike"""
    chance, cache = _chance(), _pool(4_000)
    shared, kept = _decoding(cache, rows, chance)
    wanted = np.concatenate([shared, prompt(chance, 40)])
    return lambda: (cache.peek(wanted), kept)


@_case(1, 256)
def _ask(rows: int) -> Verb:
    """peek, fits, admit, release of a Prompt; rows that decode and begin alike"""
    chance, cache = _chance(), _pool(4_000, max_sequences=300)
    shared, kept = _decoding(cache, rows, chance)
    wanted = np.concatenate([shared, prompt(chance, 40)])

    def verb() -> object:
        whole = Prompt(wanted)
        cache.peek(whole)
        cache.fits([(whole, len(whole) + 1)])
        cache.release(cache.admit(whole))
        return kept

    return verb


@_case(400, 1_200)
def _change(changes: int) -> Verb:
    """a row added and removed; rows added since the batch's last step"""
    cache = _pool(4_000, max_sequences=1_300)
    one, *rows = (cache.admit([1, 2]) for _ in range(changes + 1))
    batch = cache.batch(rows)

    def verb() -> None:
        batch.add(one)
        batch.remove(one)

    return verb


@_case(64, 1_024)
def _changes(changes: int) -> Verb:
    """a row added, each; rows added to a new batch"""
    cache = _pool(4_000, max_sequences=1_300)
    rows = [cache.admit([1, 2]) for _ in range(1_024)]

    def verb() -> None:
        for start in range(0, 1_024, changes):
            batch = cache.batch()
            for row in rows[start : start + changes]:
                batch.add(row)
            cache.stats()  # takes the rows of the batch before

    return verb


@_case(1_000, 100_000)
def _short_hit(pages: int) -> Verb:
    """admit, extend, commit, release of a hit of 4 pages; pages of the chain it begins"""
    chance, cache = _chance(), _pool(pages + 200)
    chain = prompt(chance, PAGE * pages)
    _publish(cache, chain)
    wanted = np.concatenate([chain[: 4 * PAGE], prompt(chance, 40)])
    return lambda: _publish(cache, wanted)


@_case(1_000, 100_000)
def _evict(pages: int) -> Verb:
    """64 pages evicted and taken one by one; pages of the chain they are of"""
    chance, cache = _chance(), _pool(pages)
    _publish(cache, prompt(chance, PAGE * pages - 1))

    def verb() -> None:
        sequence = cache.admit(prompt(chance, PAGE * 64), limit=PAGE * 64)
        for _ in range(64):
            cache.commit(cache.extend(sequence, PAGE))
        cache.release(sequence)

    return verb


@_case(10, 10_000)
def _evicted(prompts: int) -> Verb:
    """admit, extend, commit, release; prompts with salts and media that came and were evicted"""
    chance, cache = _chance(), _pool(40)
    for number in range(prompts):
        extra = [Salt(f"tenant {number}"), Media(f"image {number}", 1, 9)]
        _publish(cache, prompt(chance, 40), extra=extra)
    wanted = Prompt(prompt(chance, 40), [Salt("tenant"), Media("image", 1, 9)])
    return lambda: _publish(cache, wanted)


@_case(10, 10_000)
def _children(prompts: int) -> Verb:
    """admit, extend, commit, release; published prompts that leave it after one page"""
    chance, cache = _chance(), _pool(2 * prompts + 200)
    first = prompt(chance, PAGE)
    for _ in range(prompts):
        _publish(cache, np.concatenate([first, prompt(chance, PAGE + 1)]))
    wanted = np.concatenate([first, prompt(chance, 40)])
    return lambda: _publish(cache, wanted)


@_case(1, 240)
def _forks(forks: int) -> Verb:
    """fork, release; forks whose states wait to be copied"""
    cache = _pool(2_000, HYBRID)
    row = _compute(cache, prompt(_chance(), 40))
    kept = cache.fork(row, forks)
    return lambda: (cache.release(cache.fork(row)[0]), kept)


@_case(1, 1_000)
def _stops(stops: int) -> Verb:
    """extend, abort; states asked for ahead of the row"""
    cache = _pool(2_000, HYBRID)
    row = _compute(cache, prompt(_chance(), 40))
    for stop in range(stops):
        cache.keep(row, PAGE * (stop + 100))
    return lambda: cache.abort(cache.extend(row))


@_case(10, 5_000)
def _states(pins: int) -> Verb:
    """admit, extend, commit, release, a state given up for the new one; states that are pinned"""
    spec = ModelSpec("hybrid", (Attention(1, 16, 16), State(256)))
    made, chance = plan(spec, "64MiB", page_size=PAGE), _chance()
    state = made.groups["state"]
    most = (pins + 1) * state.page_bytes * state.parts
    cache = Cache(made, snapshot_bytes=most)
    prompts = [prompt(chance, 40) for _ in range(pins)]
    kept = []
    for each in prompts:
        _publish(cache, each)
        kept.append(cache.pin(each))
    return lambda: (_publish(cache, prompt(chance, 40)), kept)


@_case(100, 10_000)
def _guaranteed(pages: int) -> Verb:
    """extend, abort; pages of another row that is guaranteed and keeps a state"""
    chance, cache = _chance(), _pool(2 * pages + 200, HYBRID)
    kept = _compute(cache, prompt(chance, PAGE * pages), limit=PAGE * pages + 64, guarantee=True)
    row = _compute(cache, prompt(chance, 40))
    return lambda: (cache.abort(cache.extend(row)), kept)


@_case(100, 10_000)
def _window(pages: int) -> Verb:
    """fits for one token more; pages of the row, whose window dropped most"""
    cache = _pool(2 * pages + 200, WINDOWED)
    row = _compute(cache, prompt(_chance(), PAGE * pages))
    return lambda: cache.fits([(row, row.length + 1)])


@_case(10, 1_000)
def _media(media: int) -> Verb:
    """peek, for each of 1,000 media; media in one prompt"""
    chance, cache = _chance(), _pool(4_000)
    items = [Media(f"{at}", 2 * PAGE * at + 1, 2 * PAGE * at + 9) for at in range(media)]
    wanted = prompt(chance, 2 * PAGE * media)

    def verb() -> None:
        for _ in range(1_000 // media):
            cache.peek(wanted, items)

    return verb


@_case(64, 1 << 20)
def _positions(positions: int) -> Verb:
    """admit, release; positions that an image claims beyond the sequence's limit"""
    cache, wanted = _pool(200), prompt(_chance(), 40)
    extra = [Media("image", 1, positions)]
    return lambda: cache.release(cache.admit(wanted, extra=extra, limit=64))


@_case(1, 64)
def _open(steps: int) -> Verb:
    """extend, abort; steps of other rows that are open"""
    chance, cache = _chance(), _pool(2_000, depth=65)
    rows = [_compute(cache, prompt(chance, 40)) for _ in range(steps + 1)]
    kept = [cache.extend(row) for row in rows[1:]]
    return lambda: (cache.abort(cache.extend(rows[0])), kept)


@_case(1, 500)
def _pins(pins: int) -> Verb:
    """admit, release; prefixes pinned"""
    chance, cache = _chance(), _pool(4_000)
    prompts = [prompt(chance, 40) for _ in range(pins)]
    for each in prompts:
        _publish(cache, each)
    kept = [cache.pin(each) for each in prompts]
    wanted = prompt(chance, 40)
    return lambda: (cache.release(cache.admit(wanted)), kept)


def cases() -> Iterator[tuple[str, int, int, Callable[[int], Verb]]]:
    """Every case: what it is, its two sizes, and what makes it of one."""
    for title, (small, large, make) in CASES.items():
        yield title, small, large, make
