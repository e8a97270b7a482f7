"""The cache: the one authority over pages, composed of the pool, the prefix index and the tables.

An engine holds one Cache and nothing else allocates or frees. Every verb succeeds whole or raises
with nothing changed. The cache knows token ids and page numbers; no tensors, devices or models, and
no clock: the same verbs give the same pages in every process.
"""

from collections.abc import Iterable
from collections.abc import Sequence as Items
from itertools import count as counter

import numpy as np

from octavo.batch import Batch, Counts, Rows, check_counts
from octavo.errors import (
    CapacityError,
    DuplicateSequence,
    LengthError,
    NeverFits,
    OutOfPages,
    StaleSequence,
    StepError,
    UnknownSequence,
)
from octavo.integrity import check_cache
from octavo.learning import Learned, read_kept, read_learned
from octavo.pages import PagePool
from octavo.planning import Plan
from octavo.prefix import Node, PrefixIndex
from octavo.sequences import (
    Committed,
    Fit,
    Ints,
    Match,
    Repointed,
    Sequence,
    Stats,
    Tokens,
    check_tokens,
)
from octavo.spec import check_int
from octavo.stepping import build_step
from octavo.table import PageTables, Step

GROUP = "full"


class Cache:
    """Pages, prefixes and sequences of one pool.

    Admitting: `admit`, `peek`, `fits`. Stepping: `batch`, `extend`, `commit`, `abort`. Going back:
    `truncate`, `drop`. Ending: `release`, `reset`. Looking: `need`, `available`, `stats`, `check`.

    Args:
        plan: from `octavo.plan` or `Plan.from_pages`.
        max_sequences: sequences admitted at once.
        max_length: longest sequence in tokens; None: the plan's.
        prefix: whether computed pages are kept for later prompts that begin alike.

    Raises:
        LengthError: ``max_sequences`` or ``max_length`` is out of range.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        max_sequences: int = 256,
        max_length: int | None = None,
        prefix: bool = True,
    ) -> None:
        self.plan = plan
        self.prefix = prefix
        self.max_sequences = check_int("max_sequences", max_sequences, 1)
        longest = plan.tokens if plan.max_length is None else plan.max_length
        self.max_length = (
            longest if max_length is None else check_int("max_length", max_length, 1, longest)
        )
        self._pool = PagePool(plan.num_pages)
        self._index = PrefixIndex(plan.page_size)
        self._tables = PageTables(max_sequences)
        self._sequences: dict[object, Sequence] = {}
        self._guaranteed: set[Sequence] = set()
        self._free_rows = list(range(max_sequences))[::-1]
        self._ids = counter()
        self._open: list[Step] = []
        self._peak = self._prompt_tokens = self._cached_tokens = self._evicted = 0

    # -- looking -------------------------------------------------------------------------------

    def peek(self, tokens: Tokens) -> Match:
        """What `admit` would find of ``tokens``; changes nothing, not even recency.

        Raises:
            TokenError, LengthError: as `admit`.

        Cost: O(len(tokens)), and as much for each sequence still computing its prompt.
        """
        ids = self._check_prompt(tokens)
        found = len(self._match(ids))
        size = self.plan.page_size
        computing = self._computing() if self.prefix else []
        pending = max((self._shared(s, ids) for s in computing), default=0)
        reused = found * size
        return Match(reused, {GROUP: reused}, max(0, pending - found))

    def fits(self, requests: Iterable[tuple[Sequence | Tokens, int]]) -> Fit:
        """Whether these sequences and prompts can all run to their limits at once.

        Args:
            requests: (sequence or prompt, limit in tokens); sequences not named keep what they
                hold, and what was guaranteed to them.

        Raises:
            UnknownSequence, StaleSequence, TokenError, LengthError: an entry cannot be asked for.

        Cost: O(requests + prompt tokens).
        """
        need, pinned = 0, set[int]()
        promised = self._outstanding()
        for item, limit in requests:
            if isinstance(item, Sequence):
                held = int(self._tables.held[self._check(item)._row])
                promised -= self._owed(item)
            else:
                ids = self._check_prompt(item)
                pages = [node.page for node in self._match(ids)]
                pinned.update(page for page in pages if not self._pool.refs[page])
                held = len(pages)
            need += max(0, self.plan.pages(check_int("limit", limit, 1)) - held)
        there = self._pool.free + self._pool.evictable - len(pinned) - promised
        return Fit({GROUP: max(0, need - there)})

    def need(self, rows: Rows, counts: Counts = 1) -> dict[str, int]:
        """Pages by group that `extend` with the same arguments would take. O(rows).

        Raises:
            As `extend`, for the arguments.
        """
        sequences = self._rows(rows)
        return {GROUP: sum(self._needs(sequences, check_counts(counts, len(sequences))))}

    def available(self) -> dict[str, int]:
        """Pages by group an `extend` could take: free and evictable, less those promised. O(1)."""
        return {GROUP: self._pool.free + self._pool.evictable - self._outstanding()}

    def stats(self) -> Stats:
        """Counts now and totals so far. O(1)."""
        pool = self._pool
        return Stats(
            pages=pool.usable,
            live=pool.live,
            evictable=pool.evictable,
            free=pool.free,
            peak_live=self._peak,
            sequences=len(self._sequences),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            evicted=self._evicted,
        )

    def check(self) -> None:
        """Verify every law of the pool, the index and the tables. O(pages + sequences).

        Raises:
            IntegrityError: the equation that does not hold, with both sides.
        """
        check_cache(self._pool, self._index, self._tables, self._sequences.values(), self.plan)

    # -- admitting and ending ------------------------------------------------------------------

    def admit(
        self,
        tokens: Tokens,
        *,
        limit: int | None = None,
        id: object = None,
        reuse: bool = True,
        guarantee: bool = False,
    ) -> Sequence:
        """Take in a prompt and pin the longest prefix of it that is published.

        At least one token is always left to compute. No other page is taken before `extend`.

        Args:
            tokens: the prompt's ids, a list or an int32 array.
            limit: most tokens the sequence may come to know; None: ``max_length``.
            id: any hashable name; None: a number not in use.
            reuse: whether to look for the prefix at all.
            guarantee: reserve all pages up to the limit, so that no later `extend` can fail.

        Raises:
            LengthError: an empty prompt. TokenError: an entry is no token id.
            DuplicateSequence: the id is in use.
            CapacityError: ``max_sequences``, ``max_length`` or the limit exceeded.
            NeverFits: the prompt, or the limit given, needs more pages than the pool has.
            OutOfPages: guarantee, and what is left is too little.

        Cost: O(len(tokens)).
        """
        ids = self._check_prompt(tokens)
        bound = self._check_limit(ids.size, limit)
        if id is not None and id in self._sequences:
            raise DuplicateSequence(id)
        if not self._free_rows:
            raise CapacityError("max_sequences", self.max_sequences + 1, self.max_sequences)
        nodes = self._pinnable(self._match(ids)) if reuse else []
        promise = self.plan.pages(bound) if guarantee else 0
        if guarantee:
            self._check_promise(promise, nodes)
        return self._enter(ids, bound, self._new_id() if id is None else id, nodes, promise)

    def release(self, sequence: Sequence) -> None:
        """End a sequence: its pages go back, published ones stay for reuse, last page coldest.

        Allowed with a step open; the step's other rows are not touched.

        Raises:
            UnknownSequence, StaleSequence: not of this cache, or released before.

        Cost: O(pages).
        """
        self._pool.release(self._tables.cut(self._check(sequence)._row, 0))
        self._free_rows.append(sequence._row)
        self._guaranteed.discard(sequence)
        del self._sequences[sequence.id]
        sequence._row = -1

    def reset(self) -> None:
        """Forget every published page.

        Raises:
            StepError: sequences are still admitted.

        Cost: O(pages).
        """
        if self._sequences:
            raise StepError(f"{len(self._sequences)} sequences are admitted; release them first")
        self._index.forget(self._pool.evict(self._pool.evictable))

    # -- stepping ------------------------------------------------------------------------------

    def batch(self, sequences: Iterable[Sequence] = ()) -> Batch:
        """A handle for rows that step together, to `add` to and `remove` from. O(rows).

        Raises:
            UnknownSequence, StaleSequence, DuplicateSequence: a sequence cannot be a row.
        """
        batch = Batch()
        for sequence in sequences:
            batch.add(self._check(sequence))
        return batch

    def extend(self, rows: Rows, counts: Counts = 1, *, ahead: int = 0) -> Step:
        """Reserve slots for the next ``counts`` positions of each row: for all of them or for none.

        Args:
            rows: a batch, sequences, or one sequence.
            counts: new positions, one number for all rows or one a row; 0 sits out.
            ahead: positions allowed beyond the known tokens (drafts); clipped at each limit.

        Raises:
            StepError: a step is open. LengthError: counts out of range or beyond what is known.
            CapacityError: a row would pass its limit.
            OutOfPages: too few pages; nothing is changed, nothing evicted.
            UnknownSequence, StaleSequence, DuplicateSequence: a row cannot take part.

        Cost: O(rows + new tokens + table entries of the rows).
        """
        if self._open:
            raise StepError("a step is open; commit or abort it first")
        sequences = self._rows(rows)
        wanted = check_counts(counts, len(sequences))
        check_int("ahead", ahead, 0)
        news = [self._clip(s, n, ahead) for s, n in zip(sequences, wanted, strict=True)]
        if not any(news):
            first = sequences[0]
            raise CapacityError("length", first.scheduled + wanted[0], first.limit, "its limit")
        needs = self._needs(sequences, news)
        self._check_supply(sequences, needs)
        self._take(sequences, needs)
        step = build_step(GROUP, sequences, news, self._tables, self.plan.page_size)
        for sequence, new in zip(sequences, news, strict=True):
            sequence.scheduled += new
        self._open.append(step)
        return step

    def commit(
        self, step: Step, tokens: Learned = None, *, kept: Counts | None = None
    ) -> Committed:
        """The step's KV is written: learn new ids, keep what is valid, publish full pages.

        Args:
            step: the open step.
            tokens: ids newly known: one a row (ignored where ``step.wants_token`` is False), or an
                array a row, or (flat, counts); None: none.
            kept: positions of the step whose KV is valid, a row each; default all. Rejected drafts
                are cut here.

        Raises:
            StepError: not the open step. TokenError, LengthError: tokens or kept malformed, or
                more positions kept than ids known. CapacityError: a row would pass its limit.

        Cost: O(rows + new tokens).
        """
        self._check_turn(step)
        learned, valid = read_learned(tokens, step), read_kept(kept, step)
        rows = [
            (sequence, new, int(past) + keep)
            for sequence, new, past, keep in zip(
                step.sequences, learned, step.past, valid, strict=True
            )
            if not sequence.released
        ]
        for sequence, new, computed in rows:
            self._check_learning(sequence, new, computed)
        self._open.remove(step)
        for sequence, new, computed in rows:
            sequence._learn(new)
            self._settle(sequence, computed)
        published, repointed = 0, list[Repointed]()
        for sequence, _, _ in rows:
            published += self._publish(sequence, repointed)
        return Committed(published, tuple(repointed), 0)

    def abort(self, step: Step) -> None:
        """Undo an open step: its slots are given back and nothing is learned.

        Raises:
            StepError: not the open step.

        Cost: O(rows).
        """
        self._check_turn(step)
        self._open.remove(step)
        for sequence in step.sequences:
            if not sequence.released:
                self._settle(sequence, sequence.computed)

    def truncate(self, sequence: Sequence, length: int, *, exclusive: bool = False) -> int:
        """Forget the tokens from ``length`` on, and their KV.

        A cut inside a published or shared page falls back to that page's start, since others may
        read it; the tokens between are computed again.

        Args:
            length: tokens that stay known.
            exclusive: refuse instead of cutting or leaving any published or shared page.

        Returns:
            Positions that are still computed.

        Raises:
            LengthError: below 0 or above the known length, or exclusive and not possible.
            StepError: a step of it is open. UnknownSequence, StaleSequence.
            OutOfPages: the sequence is guaranteed, others keep the pages cut, and too few are left
                to guarantee it others.

        Cost: O(pages cut).
        """
        self._check(sequence)
        self._check_closed(sequence)
        check_int("length", length, 0, sequence.length)
        size, pages = self.plan.page_size, self._tables.row(sequence._row)
        shared = self._pool.published[pages] | (self._pool.refs[pages] > 1)
        if exclusive and shared[length // size :].any():
            low = (int(np.flatnonzero(shared)[-1]) + 1) * size
            why = "pages before are published or shared"
            raise LengthError("length", length, low, sequence.length, why)
        computed = min(sequence.computed, length)
        if computed % size and shared[computed // size]:
            computed -= computed % size
        self._check_kept_promise(sequence, computed)
        sequence.length = length
        self._settle(sequence, computed)
        return computed

    def drop(self, sequence: Sequence, count: int) -> int:
        """`truncate` by ``count`` tokens, or to nothing where there are fewer; returns the same.

        Raises:
            LengthError: ``count`` is negative. Others as `truncate`.
        """
        length = self._check(sequence).length
        return self.truncate(sequence, max(0, length - check_int("count", count, 0)))

    # -- checks before anything changes --------------------------------------------------------

    def _check(self, sequence: object) -> Sequence:
        if not isinstance(sequence, Sequence) or sequence._cache is not self:
            raise UnknownSequence(getattr(sequence, "id", sequence))
        if sequence.released:
            raise StaleSequence(sequence.id)
        return sequence

    def _rows(self, rows: Rows) -> tuple[Sequence, ...]:
        found = (rows,) if isinstance(rows, Sequence) else tuple(rows)
        if not found:
            raise LengthError("len(rows)", 0, 1, None, "a step has at least one row")
        for sequence in found:
            self._check(sequence)
        if len(set(found)) != len(found):
            twice = next(s for i, s in enumerate(found) if s in found[:i])
            raise DuplicateSequence(twice.id, "stands in two rows")
        return found

    def _check_prompt(self, tokens: Tokens) -> Ints:
        ids = check_tokens(tokens)
        if not ids.size:
            raise LengthError("len(tokens)", 0, 1, None, "a prompt has at least one token")
        return ids

    def _check_limit(self, length: int, limit: int | None) -> int:
        bound = self.max_length if limit is None else check_int("limit", limit, 1)
        total, need = self._pool.usable, self.plan.pages(length if limit is None else bound)
        if need > total:
            raise NeverFits(need, total, {GROUP: need - total})
        if bound > self.max_length:
            raise CapacityError("limit", bound, self.max_length, "max_length of the cache")
        if length > bound:
            raise CapacityError("len(tokens)", length, bound, "the limit of the sequence")
        return bound

    def _check_promise(self, promise: int, nodes: list[Node]) -> None:
        idle = sum(not self._pool.refs[node.page] for node in nodes)
        need = promise - len(nodes)
        there = self._pool.free + self._pool.evictable - idle - self._outstanding()
        if need > there:
            short = {GROUP: need - there}
            raise OutOfPages(need, self._pool.free, self._pool.evictable, short)

    def _check_kept_promise(self, sequence: Sequence, computed: int) -> None:
        """A guaranteed sequence may give up pages others keep only if as many are there for it."""
        cut = self._tables.row(sequence._row)[self.plan.pages(computed) :]
        kept = self._tables.row(sequence._row).size - cut.size
        need = max(0, sequence._promised - kept) - self._owed(sequence)
        there = self.available()[GROUP] + int(np.count_nonzero(self._pool.refs[cut] == 1))
        if need > there:
            short = {GROUP: need - there}
            raise OutOfPages(need, self._pool.free, self._pool.evictable, short)

    def _clip(self, sequence: Sequence, count: int, ahead: int) -> int:
        """``count`` as far as the limit allows; refused beyond it unless it runs ahead."""
        end = sequence.scheduled + count
        if end > sequence.limit and count:
            if not ahead:
                raise CapacityError("length", end, sequence.limit, f"limit of {sequence.id!r}")
            end = sequence.limit
        high = sequence.length + ahead - sequence.scheduled
        if end - sequence.scheduled > high:
            why = f"sequence {sequence.id!r} knows {sequence.length} tokens"
            raise LengthError("count", count, 0, high, why)
        return end - sequence.scheduled

    def _check_supply(self, sequences: tuple[Sequence, ...], needs: list[int]) -> None:
        """Enough pages for ``needs`` without touching what is guaranteed to others."""
        own = sum(min(n, self._owed(s)) for s, n in zip(sequences, needs, strict=True))
        need, there = sum(needs), self.available()[GROUP] + own
        if need > there:
            short = {GROUP: need - there}
            raise OutOfPages(need, self._pool.free, self._pool.evictable, short)

    def _check_turn(self, step: Step) -> None:
        if not any(step is other for other in self._open):
            raise StepError("this step is not open: it was committed or aborted, or is not of here")

    def _check_closed(self, sequence: Sequence) -> None:
        if any(sequence in step.sequences for step in self._open):
            raise StepError(f"a step of sequence {sequence.id!r} is open; commit or abort it first")

    def _check_learning(self, sequence: Sequence, new: Ints, computed: int) -> None:
        known = sequence.length + new.size
        if known > sequence.limit:
            raise CapacityError("length", known, sequence.limit, f"limit of {sequence.id!r}")
        if computed > known:
            why = f"sequence {sequence.id!r} would have KV for tokens it does not know"
            raise LengthError("computed", computed, 0, known, why)

    # -- pages ---------------------------------------------------------------------------------

    def _match(self, ids: Ints) -> list[Node]:
        if not self.prefix:
            return []
        return self._index.match(ids.tobytes(), (ids.size - 1) // self.plan.page_size)

    def _pinnable(self, nodes: list[Node]) -> list[Node]:
        """The chain as far as pinning it leaves enough for what is guaranteed."""
        room = self.available()[GROUP]
        for at, node in enumerate(nodes):
            room -= not self._pool.refs[node.page]
            if room < 0:
                return nodes[:at]
        return nodes

    def _enter(
        self, ids: Ints, limit: int, id: object, nodes: list[Node], promise: int
    ) -> Sequence:
        sequence = Sequence(self, id, self._free_rows.pop(), ids, limit)
        if nodes:
            pages = np.array([node.page for node in nodes], np.int32)
            self._pool.retain(pages)
            self._tables.append(sequence._row, pages)
            sequence._published, sequence._node = len(nodes), nodes[-1].node
            tokens = len(nodes) * self.plan.page_size
            sequence.cached = sequence.computed = sequence.scheduled = tokens
        if promise:
            sequence._promised = promise
            self._guaranteed.add(sequence)
        self._sequences[id] = sequence
        self._peak = max(self._peak, self._pool.live)
        self._prompt_tokens += ids.size
        self._cached_tokens += sequence.cached
        return sequence

    def _new_id(self) -> int:
        return next(number for number in self._ids if number not in self._sequences)

    def _computing(self) -> list[Sequence]:
        return [s for s in self._sequences.values() if s.computed < s.length]

    def _shared(self, sequence: Sequence, ids: Ints) -> int:
        """Full pages of ``ids`` that ``sequence`` begins with and has or will have computed."""
        size = min(ids.size - 1, sequence.length)
        differ = np.flatnonzero(ids[:size] != sequence._buffer[:size])
        return (int(differ[0]) if differ.size else size) // self.plan.page_size

    def _owed(self, sequence: Sequence) -> int:
        return max(0, sequence._promised - int(self._tables.held[sequence._row]))

    def _outstanding(self) -> int:
        """Pages guaranteed and not yet taken."""
        return sum(map(self._owed, self._guaranteed))

    def _needs(self, sequences: Items[Sequence], news: list[int]) -> list[int]:
        held, pages = self._tables.held, self.plan.pages
        return [
            max(0, pages(s.scheduled + n) - int(held[s._row]))
            for s, n in zip(sequences, news, strict=True)
        ]

    def _take(self, sequences: tuple[Sequence, ...], needs: list[int]) -> None:
        total = sum(needs)
        if total > self._pool.free:
            evicted = self._pool.evict(total - self._pool.free)
            self._index.forget(evicted)
            self._evicted += evicted.size
        pages = self._pool.take(total)
        for sequence, need in zip(sequences, needs, strict=True):
            if need:
                self._tables.append(sequence._row, pages[:need])
                pages = pages[need:]
        self._peak = max(self._peak, self._pool.live)

    def _settle(self, sequence: Sequence, computed: int) -> None:
        """Let exactly ``computed`` positions be computed and scheduled; give back pages beyond."""
        size = self.plan.page_size
        back = sequence._published - computed // size
        if back > 0:
            sequence._node = self._index.ancestor(sequence._node, back)
            sequence._published -= back
        sequence.computed = sequence.scheduled = computed
        sequence.cached = min(sequence.cached, computed)
        excess = self._tables.cut(sequence._row, self.plan.pages(computed))
        if excess.size:
            self._pool.release(excess)

    def _publish(self, sequence: Sequence, repointed: list[Repointed]) -> int:
        """Publish the full computed pages; equal ones published before take their place."""
        full = sequence.computed // self.plan.page_size
        if not self.prefix or full == sequence._published:
            return 0
        size, first, new = self.plan.page_size, sequence._published, 0
        for column, page in enumerate(self._tables.row(sequence._row)[first:full].tolist(), first):
            tokens = sequence._buffer[column * size : (column + 1) * size].tobytes()
            node = self._index.publish(sequence._node, tokens, page)
            if node.page == page:
                self._pool.publish([page])
                new += 1
            else:
                self._repoint(sequence, column, page, node.page)
                repointed.append(Repointed(sequence, column, page, node.page))
            sequence._node = node.node
        sequence._published = full
        return new

    def _repoint(self, sequence: Sequence, column: int, old: int, new: int) -> None:
        self._pool.retain([new])
        self._tables.replace(sequence._row, column, new)
        self._pool.release([old])
