"""A cache, a reference and a model store driven side by side, compared after every verb.

Every verb here takes plain arguments, asks the reference what must happen, does it to the cache and
compares: results, errors with their fields, statistics, each sequence's numbers, page tables and
the contents read through them. A verb that raises must leave the cache's snapshot as it was.
To test an own cache with the same verbs, subclass and override `make_cache`.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from octavo.cache import Cache
from octavo.errors import OctavoError, OutOfPages
from octavo.planning import Plan
from octavo.sequences import Sequence
from octavo.table import Step, slot_mapping
from octavo.testing.observing import Snapshot, snapshot
from octavo.testing.reference import Pass, Reference, Request
from octavo.testing.store import ModelStore

HISTORY = 8


class Shape(NamedTuple):
    """Sizes of a world.

    Attributes:
        num_pages: physical pages, the null page included.
        page_size: tokens a page holds.
        max_sequences: sequences admitted at once.
        prefix: whether computed pages are kept for reuse.
        max_length: longest sequence in tokens; None: the plan's.
    """

    num_pages: int
    page_size: int
    max_sequences: int
    prefix: bool = True
    max_length: int | None = None


SHAPES = (
    Shape(2, 1, 2),
    Shape(9, 4, 3),
    Shape(13, 2, 4),
    Shape(24, 4, 6),
    Shape(24, 4, 6, prefix=False),
    Shape(33, 1, 5, max_length=20),
    Shape(40, 3, 8),
    Shape(9, 16, 4),
)
"""Small enough that pages run out, are shared and are evicted all the time."""


@dataclass(eq=False)
class Pair:
    """One sequence as both sides know it.

    Attributes:
        handle: the cache's.
        request: the reference's.
        pages: its page table as far as a step has shown it.
    """

    handle: Sequence
    request: Request
    pages: list[int] = field(default_factory=list)


@dataclass(frozen=True, eq=False)
class Opened:
    """One open step as both sides know it.

    Attributes:
        rows: the pairs, in the step's order.
        contexts: token ids of each row's positions 0 .. context - 1, drafts included.
    """

    step: Step
    run: Pass
    rows: tuple[Pair, ...]
    contexts: list[list[int]]

    def drafts(self, row: int) -> list[int]:
        """Token ids of this row's positions beyond what was known when it began."""
        return self.contexts[row][len(self.rows[row].request.tokens) :]


class World:
    """The two sides and their comparison.

    Attributes:
        depth: steps that may be open at once.
        deep_every: of that many snapshots one is deep; the others compare what can be read.
        live: pairs admitted and not released, oldest first.
        released: stale handles.
        opened: open steps, oldest first.
        histories: token ids of the latest prompts and sequences, to draw shared prefixes from.
        refusal: the error both sides raised last.
    """

    depth = 1

    def __init__(self, shape: Shape, *, deep_every: int = 1) -> None:
        self.shape, self.deep_every = shape, deep_every
        self.cache = self.make_cache(shape)
        self.reference = Reference(
            shape.num_pages - 1,
            shape.page_size,
            shape.max_sequences,
            self.cache.max_length,
            prefix=shape.prefix,
        )
        self.store = ModelStore(shape.page_size)
        self.live: list[Pair] = []
        self.released: list[Sequence] = []
        self.opened: list[Opened] = []
        self.histories: list[list[int]] = []
        self.refusal: OctavoError | None = None
        self.prompt_tokens = self.cached_tokens = self._snapshots = 0

    def make_cache(self, shape: Shape) -> Cache:
        """The cache under test."""
        plan = Plan.from_pages(shape.num_pages, shape.page_size)
        return Cache(
            plan,
            max_sequences=shape.max_sequences,
            max_length=shape.max_length,
            prefix=shape.prefix,
        )

    # -- verbs ---------------------------------------------------------------------------------

    def admit(
        self,
        tokens: list[int],
        *,
        limit: int | None = None,
        id: object = None,
        reuse: bool = True,
        guarantee: bool = False,
    ) -> Pair | None:
        """Both sides admit; None where both refuse."""
        self._remember(tokens)
        both = self._both(
            lambda: self.reference.admit(tokens, limit, id, reuse=reuse, guarantee=guarantee),
            lambda: self.cache.admit(tokens, limit=limit, id=id, reuse=reuse, guarantee=guarantee),
        )
        if both is None:
            return None
        request, handle = both
        request.id = handle.id
        self.live.append(Pair(handle, request))
        self.prompt_tokens += len(tokens)
        self.cached_tokens += handle.cached
        return self.live[-1]

    def extend(
        self,
        rows: list[Pair],
        counts: list[int],
        *,
        ahead: int = 0,
        drafts: list[list[int]] | None = None,
    ) -> Opened | None:
        """Both sides extend, then the model runs; None where both refuse.

        Args:
            drafts: ids for positions beyond the known tokens, at least ``ahead`` a row.
        """
        need = self._need(rows, counts, ahead)
        both = self._both(
            lambda: self.reference.extend([pair.request for pair in rows], counts, ahead),
            lambda: self.cache.extend([pair.handle for pair in rows], counts, ahead=ahead),
        )
        if both is None:
            promised = all(pair.request.promised for pair in rows)
            assert not (promised and isinstance(self.refusal, OutOfPages)), "guarantee not kept"
            return None
        run, step = both
        assert need in (None, sum(_pages_taken(step, rows, self.shape.page_size)))
        contexts = [
            (pair.request.tokens + (drafts[row] if drafts else []))[: int(step.context[row])]
            for row, pair in enumerate(rows)
        ]
        opened = Opened(step, run, tuple(rows), contexts)
        self._check_step(opened)
        self.store.run(step, contexts)
        self.opened.append(opened)
        return opened

    def commit(
        self,
        opened: Opened,
        learned: list[list[int]],
        kept: list[int],
        form: Callable[[list[list[int]]], Any] = lambda learned: learned,
    ) -> bool:
        """Both sides commit; False where both refuse.

        Args:
            form: turns ``learned`` into one of the forms `Cache.commit` takes.
        """
        tokens = form(learned)
        cut = None if kept == list(opened.run.counts) else kept
        before = self.cache.stats()
        both = self._both(
            lambda: self.reference.commit(opened.run, learned, kept),
            lambda: self.cache.commit(opened.step, tokens, kept=cut),
        )
        if both is None:
            return False
        self.opened.remove(opened)
        for entry in both[1].repointed:
            pair = next(pair for pair in self.live if pair.handle is entry.sequence)
            assert pair.pages[entry.column] == entry.old
            pair.pages[entry.column] = entry.new
        assert self.cache.stats().evicted == before.evicted
        for pair in opened.rows:
            self._remember(pair.request.tokens)
        return True

    def abort(self, opened: Opened) -> None:
        """Both sides abort."""
        self._both(lambda: self.reference.abort(opened.run), lambda: self.cache.abort(opened.step))
        self.opened.remove(opened)

    def truncate(self, pair: Pair, length: int, *, exclusive: bool = False) -> None:
        """Both sides truncate; the positions still computed are compared."""
        both = self._both(
            lambda: self.reference.truncate(pair.request, length, exclusive=exclusive),
            lambda: self.cache.truncate(pair.handle, length, exclusive=exclusive),
        )
        assert both is None or both[0] == both[1]

    def drop(self, pair: Pair, count: int) -> None:
        """Both sides drop ``count`` tokens; the positions still computed are compared."""
        length = max(0, len(pair.request.tokens) - count)
        both = self._both(
            lambda: self.reference.truncate(pair.request, length, exclusive=False),
            lambda: self.cache.drop(pair.handle, count),
        )
        assert both is None or both[0] == both[1]

    def release(self, pair: Pair) -> None:
        """Both sides release."""
        self._remember(pair.request.tokens)
        self._both(
            lambda: self.reference.release(pair.request),
            lambda: self.cache.release(pair.handle),
        )
        self.live.remove(pair)
        self.released.append(pair.handle)

    def reset(self) -> None:
        """Both sides reset, or refuse to."""
        self._both(self.reference.reset, self.cache.reset)

    def refuse(self, error: type[OctavoError], verb: Callable[[Cache], object]) -> None:
        """``verb`` must raise exactly ``error`` and change nothing."""
        self._must_raise(error, None, lambda: verb(self.cache))

    # -- looking -------------------------------------------------------------------------------

    def peek(self, tokens: list[int]) -> None:
        """What both sides find of ``tokens``."""
        found = self.cache.peek(tokens)
        reused = len(self.reference.match(tokens)) * self.shape.page_size

        assert (reused, self.reference.pending(tokens)) == (found.tokens, found.pending)

    def fits(self, asked: list[tuple[Pair | list[int], int]]) -> bool:
        """Whether all of ``asked`` can run to their limits at once, as both sides see it."""
        fit = self.cache.fits(
            [(item.handle if isinstance(item, Pair) else item, limit) for item, limit in asked]
        )
        short = self.reference.short(
            [(item.request if isinstance(item, Pair) else item, limit) for item, limit in asked]
        )

        assert (short, short == 0) == (sum(fit.short.values()), bool(fit))
        return short == 0

    def snapshot(self, *, deep: bool = True) -> Snapshot:
        """Everything observable of the cache, or with ``deep`` False what can be read of it."""
        return snapshot(
            self.cache,
            [pair.handle for pair in self.live],
            steps=[opened.step for opened in self.opened],
            prompts=self.histories,
            deep=deep,
        )

    def check(self) -> None:
        """All that must hold between two verbs. O(pages + tokens)."""
        self.cache.check()
        self._check_stats()
        for pair in self.live:
            _check_numbers(pair)
            self._check_contents(pair)

    # -- comparison ----------------------------------------------------------------------------

    def _both(
        self, expected: Callable[[], Any], actual: Callable[[], Any]
    ) -> tuple[Any, Any] | None:
        """Results of both sides, or None where both raised alike and nothing changed."""
        try:
            result = expected()
        except OctavoError as error:
            self.refusal = error
            fields = vars(error) if isinstance(error, OutOfPages) else None
            self._must_raise(type(error), fields, actual)
            return None
        return result, actual()

    def _must_raise(
        self, kind: type[OctavoError], fields: dict[str, Any] | None, verb: Callable[[], Any]
    ) -> None:
        self._snapshots += 1
        deep = self._snapshots % self.deep_every == 0
        before = self.snapshot(deep=deep)
        try:
            result = verb()
        except OctavoError as error:
            raised = error
        else:
            raise AssertionError(f"{kind.__name__} was expected, {result!r} came")
        assert kind is type(raised), f"{kind.__name__} was expected, {raised!r} came"
        assert fields in (None, vars(raised))
        assert before == self.snapshot(deep=deep), f"{kind.__name__} left something changed"

    def _need(self, rows: list[Pair], counts: list[int], ahead: int) -> int | None:
        """What `Cache.need` announces; it knows no ``ahead`` and no limits."""
        if ahead or not any(counts):
            return None
        return sum(self.cache.need([pair.handle for pair in rows], counts).values())

    def _check_step(self, opened: Opened) -> None:
        """Shapes, known ids and addresses of a new step; extends the tables seen so far."""
        step, size = opened.step, self.shape.page_size
        view = step.group()
        foreign = {page for pair in self.live if pair not in opened.rows for page in pair.pages}
        for row, pair in enumerate(opened.rows):
            start, past = int(step.query_start[row]), int(step.past[row])
            count, context = int(step.counts[row]), int(step.context[row])
            pages = view.table[row, : -(-context // size)].tolist()
            slots = view.slots[start : start + count].tolist()
            ids = (pair.request.tokens + [0] * count)[past:context]

            assert (pair.request.computed, pair.request.scheduled) == (past, context)
            assert pair.pages == pages[: len(pair.pages)]
            assert slot_mapping(pages, size, past, context).tolist() == slots
            assert [p * size + i for p in pages for i in range(size)][past:context] == slots
            assert list(range(past, context)) == step.positions[start : start + count].tolist()
            assert ids == step.input_ids[start : start + count].tolist()
            assert (count > 0 and context >= len(pair.request.tokens)) == step.wants_token[row]
            assert (start + count - 1 if count else -1) == step.last[row]
            assert foreign.isdisjoint(slot // size for slot in slots)
            pair.pages = pages
        assert np.unique(view.slots).size == view.slots.size == int(step.counts.sum())

    def _check_stats(self) -> None:
        stats, model = self.cache.stats(), self.reference
        expected = (
            model.usable,
            model.live,
            len(model.idle),
            model.free,
            model.peak,
            len(model.requests),
            self.prompt_tokens,
            self.cached_tokens,
            model.evicted,
        )

        assert expected == tuple(stats)
        assert stats.live + stats.evictable + stats.free == stats.pages
        assert {"full": model.available} == self.cache.available()
        assert model.available >= 0, "more is guaranteed than there is"

    def _check_contents(self, pair: Pair) -> None:
        """Every computed position that a step has shown holds what the tokens wrote."""
        size, request = self.shape.page_size, pair.request
        del pair.pages[-(-request.scheduled // size) :]
        known = min(request.computed, len(pair.pages) * size)
        self.store.check("full", pair.pages, request.tokens[:known])

    def _remember(self, tokens: list[int]) -> None:
        if tokens and tokens not in self.histories:
            self.histories = [*self.histories, list(tokens)][-HISTORY:]


def _pages_taken(step: Step, rows: list[Pair], page_size: int) -> list[int]:
    """Pages each row of a fresh step has beyond those of its past."""
    return [
        -(-int(step.context[row]) // page_size) - -(-int(step.past[row]) // page_size)
        for row in range(len(rows))
    ]


def _check_numbers(pair: Pair) -> None:
    handle, request = pair.handle, pair.request
    expected = (len(request.tokens), request.scheduled, request.computed, request.cached)

    assert expected == (handle.length, handle.scheduled, handle.computed, handle.cached)
    assert request.tokens == handle.tokens().tolist()
    assert request.limit == handle.limit
