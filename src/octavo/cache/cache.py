"""The cache: the one authority over pages, composed of the pool, the prefix index and the tables.

An engine holds one Cache and nothing else allocates or frees. Every verb succeeds whole or raises
with nothing changed. The cache knows token ids and page numbers; no tensors, devices or models, and
no clock: the same verbs give the same pages in every process.
"""

from collections.abc import Callable, Collection, Iterable
from typing import Literal

from octavo.cache.admission import Admission, Explanation, Match
from octavo.cache.batch import Batch, Counts, Steppable, as_array, check_counts
from octavo.cache.capacity import Asked, Capacity, most_snapshots
from octavo.cache.committing import Committed, Committer, Row
from octavo.cache.events import Event, EventLog
from octavo.cache.guards import Guards
from octavo.cache.halting import Halter, moving
from octavo.cache.home import Home
from octavo.cache.identity import CrossInput, Extra, read_extras
from octavo.cache.integrity import check_cache
from octavo.cache.learning import Learned, one_id, read_kept, read_learned
from octavo.cache.ledger import Ledger
from octavo.cache.marching import Marcher
from octavo.cache.opening import OpenSteps
from octavo.cache.placing import Placer
from octavo.cache.policies import Policy
from octavo.cache.promises import Promises
from octavo.cache.publishing import Publisher
from octavo.cache.reports import Fit, Pin, Stats
from octavo.cache.retreating import Retreat
from octavo.cache.rows import Constants
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.cache.stepping import Stepper
from octavo.cache.striding import Strider
from octavo.checks import Ints, Tokens, check_int, check_tokens
from octavo.errors import (
    CapacityError,
    DuplicateSequence,
    IdentityError,
    LengthError,
    PlanError,
    StaleSequence,
    StepError,
    UnknownSequence,
)
from octavo.planner.request import Plan

Request = tuple[Sequence | Tokens, int] | tuple[Tokens, int, Iterable[Extra]]
"""What `Cache.fits` is asked about: a sequence or prompt, its limit, a prompt's extras."""


_MOST_SEQUENCES, _FAR = 2**20, 2**31  # rows, positions


class Cache:
    """Pages, prefixes and sequences of one pool; for one thread at a time.

    A verb that raises one of octavo's errors has changed nothing. That cannot be said of Python's
    own MemoryError or KeyboardInterrupt in the middle of a verb; `check` tells.

    Admitting: `admit`, `peek`, `explain_match`, `fits`, `pin`. Stepping: `batch`, `extend`,
    `commit`, `abort`, `learn`, `keep`. Going back: `truncate`, `drop`. Sharing: `fork`. Making
    room: `preempt`, `resume`. Ending: `release`, `reset`. Looking: `need`, `available`, `stats`,
    `check`.

    Args:
        plan: from `octavo.plan` or `Plan.from_pages`.
        max_sequences: sequences admitted at once.
        max_length: longest sequence in tokens; None: the plan's.
        policy: which published page nobody holds is given up first: ``lru``, ``slru`` or an object.
        prefix: whether computed pages are kept for later prompts that begin alike.
        snapshots: where states are kept: ``branch`` (a prompt's end and where one left a known
            chain) or ``grid`` (also on a geometric grid).
        snapshot_bytes: most bytes of kept states; None: as many as fit.
        rollback: positions that may be taken back, of windows and states.
        depth: steps that may be open at once.
        on_event: told of pages stored, removed and cleared, when the verb that did it is done. What
            it raises becomes a RuntimeWarning.

    Raises:
        LengthError, PlanError: an argument is out of range.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        max_sequences: int = 256,
        max_length: int | None = None,
        policy: str | Policy = "lru",
        prefix: bool = True,
        snapshots: Literal["branch", "grid"] = "branch",
        snapshot_bytes: int | None = None,
        rollback: int = 0,
        depth: int = 1,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise PlanError("plan", plan, "it must come from octavo.plan or Plan.from_pages")
        self.plan, self.prefix = plan, prefix
        why = "each has a row from the start"
        self.max_sequences = check_int("max_sequences", max_sequences, 1, _MOST_SEQUENCES, why)
        if on_event is not None and not callable(on_event):
            raise PlanError("on_event", on_event, "it must be callable, or None")
        self.depth = check_int("depth", depth, 1)
        if not isinstance(snapshots, str) or snapshots not in ("branch", "grid"):
            raise PlanError("snapshots", snapshots, "it must be 'branch' or 'grid'")
        log = EventLog(on_event) if on_event is not None else None
        removal = log.removed if log is not None else None
        self._ledger = Ledger(plan, policy, check_int("rollback", rollback, 0), removal)
        self._log = log
        if log is not None:
            log.ledger = self._ledger
        longest = plan.tokens if plan.max_length is None else plan.max_length
        if max_length is not None:
            longest = check_int("max_length", max_length, 1, plan.max_length)
        self.max_length = longest
        most = most_snapshots(self._ledger, snapshot_bytes)
        self._promises = Promises(self._ledger)
        self._admission = Admission(
            self._ledger, self._promises, enabled=prefix, grid=snapshots == "grid"
        )
        self._capacity = Capacity(self._ledger, self._promises, self._admission)
        self._placer = Placer(self._ledger, self._promises, most)
        self._stepper = Stepper(self._ledger, self._promises, self._placer)
        same = Constants(max_sequences, plan.page_size)
        strider = Strider(self._ledger, self._promises, same)
        self._marcher = Marcher(
            self._ledger, self._promises, self._placer, self._stepper, strider, same
        )
        stored = log.stored if log is not None else None
        self._retreat = Retreat(self._ledger, self._promises, publishes=prefix)
        publisher = Publisher(self._ledger, self._promises, self._retreat, stored, publishes=prefix)
        self._committer = Committer(self._ledger, self._retreat, publisher, most)
        self._halter = Halter(self._ledger, self._committer, same)
        self._guards = Guards(self._ledger, self._promises, self._admission, self.max_length)
        self._home = Home(self._ledger, self._promises, self._placer, self.max_sequences)
        self._orphans = self._home.orphans
        self._pins: set[Pin] = set()
        self._open = OpenSteps(self.depth)
        self._clock = 0
        self._prompt_tokens = self._cached_tokens = self._preemptions = 0

    def __repr__(self) -> str:
        pool, name = self._ledger.pool, "parents" if self.plan.packed else "pages"
        return f"<Cache of {pool.usable} {name}, {pool.live} live, {len(self._home)} sequences>"

    # -- looking -------------------------------------------------------------------------------

    def peek(self, tokens: Tokens, extra: Iterable[Extra] = ()) -> Match:
        """What `admit` would find of ``tokens``; changes nothing, not even recency.

        Raises:
            TokenError, LengthError, IdentityError: as `admit`.

        Cost: O(len(tokens)), and as much for each sequence still computing its prompt.
        """
        ids, identity = self._guards.prompt(tokens), read_extras(extra)
        hit = self._admission.find(ids, identity)
        pending = self._admission.pending(ids, identity, hit.boundary, self._home)
        return self._admission.match(hit, pending)

    def explain_match(self, tokens: Tokens, extra: Iterable[Extra] = ()) -> Explanation:
        """Why `admit` would find as much of ``tokens`` as it does, and which group set it.

        Raises and costs as `peek`.
        """
        ids, identity = self._guards.prompt(tokens), read_extras(extra)
        return self._admission.explain(self._admission.find(ids, identity), ids, identity)

    def fits(self, requests: Iterable[Request]) -> Fit:
        """Whether these sequences and prompts can all run to their limits at once.

        In a packed plan pages that are published meanwhile may keep a parent from the group that
        needs it, so that a yes can come to nothing there; what must not fail is admitted with a
        guarantee.

        Args:
            requests: (sequence or prompt, limit in tokens), of a prompt also its extras as third; a
                sequence goes no further than its own limit.
                Sequences not named keep what they hold, and what was guaranteed to them. Windows
                count as they are when a sequence runs token by token.

        Raises:
            UnknownSequence, StaleSequence, DuplicateSequence, TokenError, LengthError,
                IdentityError: an entry cannot be asked for.

        Cost: O(requests + prompt tokens).
        """
        self._home.reap()
        if not isinstance(requests, Iterable):
            raise LengthError("requests", requests, None, None, "a list of (what, limit)")
        listed = list(requests)
        asked = [self._asked(request) for request in listed]
        self._check_distinct([item for item, *_ in listed if isinstance(item, Sequence)])
        return Fit(self._capacity.shortage(asked))

    def _asked(self, request: Request) -> Asked:
        if not isinstance(request, tuple) or len(request) not in (2, 3):
            right = "each request is (sequence or prompt, limit) or (prompt, limit, extras)"
            raise LengthError("request", request, None, None, right)
        item, limit, extra = (*request, ())[:3]
        if isinstance(item, Sequence):
            sequence = self._check(item)
            limit = check_int("limit", limit, 1)
            return self._capacity.asked_by(sequence, min(limit, sequence.limit))
        ids = self._guards.prompt(item)
        limit = check_int("limit", limit, ids.size)
        return self._capacity.asked_for(ids, limit, read_extras(extra))

    def need(self, rows: Steppable, counts: Counts = 1, *, ahead: int = 0) -> dict[str, int]:
        """Pages by group that `extend` with the same arguments would take. O(rows).

        Raises:
            As `extend`, but for OutOfPages and too many open steps.
        """
        self._home.reap()
        sequences = self._steppable(rows)
        news = check_counts(counts, len(sequences))
        ahead = check_int("ahead", ahead, 0)
        waiting = self._open.waiting()
        ends = [
            (s, self._stepper.end(s, s.scheduled, n, ahead, waiting.get(s, 0)))
            for s, n in zip(sequences, news, strict=True)
        ]
        return self._capacity.need([(s, end) for s, end in ends if end > s.scheduled])

    def available(self) -> dict[str, int]:
        """Pages by group that one `extend` could take if it took of no other group.

        Free and evictable pages, less those promised. O(groups log pages).
        """
        self._home.reap()
        return self._capacity.available()

    def stats(self) -> Stats:
        """Counts now and totals so far. O(1)."""
        self._home.reap()
        pool = self._ledger.pool
        return Stats(
            pages=pool.usable,
            live=pool.live,
            evictable=pool.evictable,
            free=pool.free,
            peak_live=max(self._ledger.peak, pool.live),
            sequences=len(self._home),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            evicted=self._ledger.evicted,
            preemptions=self._preemptions,
            snapshots=sum(map(len, self._ledger.snapshots)),
        )

    def check(self) -> None:
        """Verify every law of the pool, the index and the tables. O(pages + sequences).

        Raises:
            IntegrityError: the equation that does not hold, with both sides.
        """
        self._home.reap()
        check_cache(
            self._ledger,
            self._promises,
            list(self._home),
            self._pins,
            list(self._open),
            self._placer.pending,
        )

    # -- admitting and ending ------------------------------------------------------------------

    def admit(
        self,
        tokens: Tokens,
        *,
        limit: int | None = None,
        extra: Iterable[Extra] = (),
        id: object = None,
        reuse: bool = True,
        guarantee: bool = False,
        cross: CrossInput | tuple[str | bytes, int] | None = None,
    ) -> Sequence:
        """Take in a prompt and pin the longest prefix of it that is published.

        At least one token is always left to compute. No other page is taken before `extend`.

        Args:
            tokens: the prompt's ids, a list or an int32 array.
            limit: most tokens the sequence may come to know; None: ``max_length``.
            extra: Salt, Adapter, Media and CrossInput its pages depend on beside the tokens.
            id: any hashable name; None: a number not in use.
            reuse: whether to look for the prefix at all.
            guarantee: reserve all pages up to the limit, so that no later `extend` can fail. In
                a plan with states such a sequence neither reuses nor publishes pages. Windows count
                as long as the limit, as one step may run that far.
            cross: (digest, length) of the input that cross attention reads; the same as a
                CrossInput among the extras.

        Raises:
            LengthError: an empty prompt. TokenError: an entry is no token id.
            IdentityError: extras or cross are malformed.
            DuplicateSequence: the id is in use.
            CapacityError: ``max_sequences``, ``max_length`` or the limit exceeded.
            NeverFits: the prompt, or the limit given, needs more pages than the pool has.
            OutOfPages: guarantee, and what is left is too little.

        Cost: O(len(tokens)).
        """
        if self._orphans:
            self._home.reap()
        ids, identity = self._guards.prompt(tokens), read_extras(extra, cross)
        bound = self._guards.limit(ids.size, limit, identity, guarantee=guarantee)
        if id is not None:
            self._check_name(id)
        self._check_room(1)
        private = guarantee and bool(self._ledger.state_groups)
        pinned = self._admission.afford(ids, identity, reuse=reuse and not private)
        if guarantee:
            self._guards.promise(bound, identity, pinned)
        sequence = self._home.make(self, ids, bound, id, identity)
        sequence._epoch = self._clock
        sequence._promised, sequence._private = guarantee, private
        if private:
            sequence._rows.apart[sequence._row] = True
        self._admission.pin(sequence, pinned)
        sequence.cached = pinned.hit.boundary * self._ledger.page_size
        if guarantee:
            self._promises.sequences[sequence.id] = sequence
        self._prompt_tokens += ids.size
        self._cached_tokens += sequence.cached
        return sequence

    def release(self, sequence: Sequence) -> None:
        """End a sequence: its pages go back, published ones stay for reuse, last page coldest.

        Allowed with a step open; the step's other rows are not touched. In a batch it keeps its
        row until it is removed there.

        Raises:
            UnknownSequence, StaleSequence: not of this cache, or released before.

        Cost: O(pages).
        """
        self._check(sequence)._sync()
        self._home.leave(sequence)

    def reset(self) -> None:
        """Forget every published page.

        Raises:
            StepError: sequences are admitted, or prefixes pinned.

        Cost: O(pages).
        """
        self._home.reap()
        if len(self._home) or self._pins:
            count = len(self._home) + len(self._pins)
            raise StepError(f"{count} sequences or pins hold pages; release them first")
        self._ledger.evict_all()
        if self._log is not None:
            self._log.cleared()
            self._log.deliver()

    def pin(self, tokens: Tokens, extra: Iterable[Extra] = ()) -> Pin:
        """Hold the published prefix of ``tokens``, so that it is not evicted until released.

        Raises:
            TokenError, LengthError, IdentityError: as `admit`.
            OutOfPages: holding it would break what is guaranteed.

        Cost: O(len(tokens)).
        """
        ids, identity = self._guards.prompt(tokens), read_extras(extra)
        hit = self._admission.find(ids, identity)
        pages = self._admission.pages(hit, identity)
        self._ledger.require([0] * len(pages), self._promises.owed(), pages)
        for group, held in enumerate(pages):
            self._ledger.pool.retain(held, group)
        self._ledger.peak = max(self._ledger.peak, self._ledger.pool.live)
        pin = Pin(hit.boundary * self._ledger.page_size, pages, self._unpin)
        self._pins.add(pin)
        return pin

    def _unpin(self, pin: Pin) -> None:
        self._pins.remove(pin)
        for group, held in enumerate(pin.pages):
            self._ledger.pool.release(held[::-1], group, distinct=True)

    # -- stepping ------------------------------------------------------------------------------

    def batch(self, sequences: Iterable[Sequence] = ()) -> Batch:
        """A handle for rows that step together, to `add` to and `remove` from. O(rows).

        Raises:
            UnknownSequence, StaleSequence, DuplicateSequence: a sequence cannot be a row.
        """
        if not isinstance(sequences, Iterable):
            raise UnknownSequence(sequences, "is no list of sequences")
        listed = list(sequences)
        for sequence in listed:
            if self._check(sequence)._batch is not None:
                raise DuplicateSequence(sequence.id, "is in a batch already; remove it there first")
        self._check_distinct(listed)
        names = self._ledger.names
        home = self._home
        batch = Batch(home.new_rows(), names, self._check, home.receive, home.send)
        for sequence in listed:
            batch.add(sequence)
        return batch

    def extend(self, rows: Steppable, counts: Counts = 1, *, ahead: int = 0) -> Step:
        """Reserve slots for the next ``counts`` positions of each row: for all of them or for none.

        Args:
            rows: a batch, sequences, or one sequence.
            counts: new positions, one number for all rows or one a row; 0 sits out.
            ahead: positions allowed beyond the known tokens (drafts, or steps still open); clipped
                at each limit.

        Raises:
            StepError: ``depth`` steps are open, a row is preempted, or its state went with an
                aborted step and earlier ones are still open. LengthError: counts out of range or
                beyond what is known. CapacityError: a row would pass its limit.
            RollbackUnsupported: more drafts than states can be taken back.
            OutOfPages: too few pages; nothing is changed, nothing evicted.
            UnknownSequence, StaleSequence, DuplicateSequence: a row cannot take part.

        Cost: a batch: some array operations, O(1) a row that needs more than new pages and O(new
            tokens); sequences: O(rows + new tokens + columns).
        """
        if self._orphans:
            self._home.reap()
        self._open.check_room()
        step = self._extend(rows, counts, min(check_int("ahead", ahead, 0), _FAR))
        self._clock += 1
        step._clock = self._clock
        self._open.add(step)
        self._tell()
        return step

    def _extend(self, rows: Steppable, counts: Counts, ahead: int) -> Step:
        if isinstance(rows, Batch):
            return self._extend_batch(rows, counts, ahead)
        if type(counts) is int and counts > 0 and isinstance(rows, Sequence):
            self._check_running(rows)
            return self._stepper.extend_one(rows, counts, ahead, self._open.waiting)
        sequences = self._steppable(rows)
        wanted = check_counts(counts, len(sequences))
        return self._stepper.extend(sequences, wanted, ahead, self._open.waiting)

    def _extend_batch(self, batch: Batch, counts: Counts, ahead: int) -> Step:
        if batch._idle or not len(batch):
            self._steppable(batch)
        sequences = batch._snapshot()
        self._check(sequences[0])
        asked = as_array(counts, len(sequences))
        if asked is None:
            wanted = check_counts(counts, len(sequences))
            asked = as_array(wanted, len(sequences))
        if asked is None:  # a count beyond int64, which the other way refuses by name
            return self._stepper.extend(sequences, wanted, ahead, self._open.waiting, batch)
        return self._marcher.extend(batch, asked, ahead, self._open.waiting)

    def commit(
        self, step: Step, tokens: Learned = None, *, kept: Counts | None = None
    ) -> Committed:
        """The oldest open step's KV is written: learn new ids, keep what is valid, publish pages.

        Args:
            step: the oldest open step.
            tokens: ids newly known. A list or array of one id a row, ignored where
                ``step.wants_token`` is False. Or a list of arrays, one a row, each learned whole:
                give an empty one to a row that is not at the end of its prompt. Or the tuple
                (flat ids, how many of them each row learns), which is what a tuple of two sequences
                always means. None: nothing.
            kept: positions of the step whose KV is valid, a row each; default all. Rejected drafts
                are cut here.

        Raises:
            StepError: not the oldest open step, or a row of a later step would be cut.
            TokenError, LengthError: tokens or kept malformed, or more positions kept than ids
                known. CapacityError: a row would pass its limit.

        Cost: a batch: some array operations, O(new ids and pages), O(1) a row that fills pages of a
            prompt, several pages at once or loses a state; else O(rows + new tokens).
        """
        self._open.check_oldest(step)
        if step._batch is not None:
            told, valid = read_learned(tokens, step), read_kept(kept, step)
            done = self._halter.commit(step, told, valid, self._open.later)
            self._open.end_oldest()
            self._tell()
            return done
        rows = self._rows(step, tokens, kept)
        later = moving(self._open.later)
        for row in rows:
            self._committer.check(row, later=row.sequence in later)
        self._open.end_oldest()
        done = self._committer.commit(step, rows, later)
        self._tell()
        return done

    def _rows(self, step: Step, tokens: Learned, kept: Counts | None) -> list[Row]:
        """The rows of ``step`` that it still means anything to, and what they are told."""
        if kept is None and len(step.sequences) == 1:
            ids = one_id(tokens, step)
            if ids is not None:
                return self._one_row(step, ids)
        told, valid = read_learned(tokens, step), read_kept(kept, step)
        numbers = zip(
            step.past.tolist(),
            (step.counts if valid is None else valid).tolist(),
            step.context.tolist(),
            told.each_row(),
            strict=True,
        )
        return [
            Row(at, sequence, ids, past, past + count, context)
            for at, (past, count, context, ids) in enumerate(numbers)
            if (sequence := step.sequences[at])._takes_part(step._clock)
        ]

    @staticmethod
    def _one_row(step: Step, ids: Ints) -> list[Row]:
        sequence = step.sequences[0]
        if not sequence._takes_part(step._clock):
            return []
        end = int(step.context[0])
        return [Row(0, sequence, ids, int(step.past[0]), end, end)]

    def abort(self, step: Step) -> None:
        """Undo the newest open step: its slots are given back and nothing is learned.

        Its copies must have been run. States it may have overwritten are fetched again from the
        last boundary they were kept at, and the positions since are computed again.

        Raises:
            StepError: not the newest open step.

        Cost: O(rows).
        """
        self._open.check_newest(step)
        self._open.end_newest()
        self._retreat.abort(step, {s for s in step.sequences if s._takes_part(step._clock)})

    def learn(self, sequence: Sequence, tokens: Tokens) -> None:
        """Tell a sequence ids that follow what it knows, without a step: a next turn, or a fork's.

        Raises:
            TokenError: an entry is no token id. CapacityError: it would pass its limit.
            StepError: a step of it is open, or it is preempted. UnknownSequence, StaleSequence.

        Cost: O(len(tokens)).
        """
        self._check_running(sequence)
        self._open.check_closed(sequence)
        ids = check_tokens(tokens)
        length = sequence.length + ids.size
        if length > sequence.limit:
            raise CapacityError("length", length, sequence.limit, "the limit of the sequence")
        sequence._sync()
        sequence._store(ids)
        sequence._rows.known[sequence._row] = length
        sequence._turn()

    def keep(self, sequence: Sequence, position: int) -> None:
        """Ask for a sequence's states after ``position`` tokens: kept if a step ends there.

        For an engine that cuts prompts into chunks by a rule of its own and not at ``next_stop``.
        Nothing happens where the plan has no states, prefixes are off or the pages run out.

        Raises:
            LengthError: no multiple of the page size, or not beyond what is scheduled.
            UnknownSequence, StaleSequence.

        Cost: O(stops).
        """
        size, start = self._ledger.page_size, self._check(sequence).scheduled
        check_int("position", position, start + 1)
        if position % size:
            raise LengthError(
                "position", position, None, None, f"a multiple of the page size {size}"
            )
        if self._ledger.state_groups and self.prefix and not sequence._private:
            sequence._stops.add(position)
            sequence._aim()

    # -- going back, sharing, making room ------------------------------------------------------

    def truncate(self, sequence: Sequence, length: int, *, exclusive: bool = False) -> int:
        """Forget the tokens from ``length`` on, and their KV.

        A published or shared page is never written again: where the cut falls inside one, it is
        copied before the next write. States go back to where one was kept; a sequence that then
        knows no token to compute goes on with `extend` ``ahead`` where ``rollback`` allows it, else
        it is released and admitted again with the tokens that follow.

        Args:
            length: tokens that stay known.
            exclusive: refuse instead of cutting or leaving open any published or shared page.

        Returns:
            Positions that are still computed.

        Raises:
            LengthError: below 0 or above the known length, or exclusive and not possible.
            RollbackUnsupported: a window has given back what would be seen again.
            OutOfPages: what was guaranteed to it could not be kept.
            StepError: a step of it is open. UnknownSequence, StaleSequence.

        Cost: O(pages cut).
        """
        self._open.check_closed(self._check(sequence))
        length = check_int("length", length, 0, sequence.length)
        if exclusive:
            self._guards.exclusive(sequence, length)
        computed = self._retreat.reachable(sequence, min(sequence.computed, length))
        self._guards.cut(sequence, computed)
        sequence._sync()
        sequence._rows.known[sequence._row] = sequence._stored = length
        reached = self._retreat.settle(sequence, computed)
        sequence._turn()
        return reached

    def drop(self, sequence: Sequence, count: int) -> int:
        """`truncate` by ``count`` tokens, or to nothing where there are fewer; returns the same.

        Raises:
            LengthError: ``count`` is negative. Others as `truncate`.
        """
        length = self._check(sequence).length
        return self.truncate(sequence, max(0, length - check_int("count", count, 0)))

    def fork(self, sequence: Sequence, n: int = 1) -> list[Sequence]:
        """``n`` further sequences that know and share what ``sequence`` does.

        Only the open page is ever copied, before its first write by any but its last holder.
        States are copied at once: the copies run with the next step.

        Raises:
            StepError: a step of it is open, or it is preempted. LengthError: ``n`` below 1.
            CapacityError: more than ``max_sequences``.
            OutOfPages: no room for its states, or for what is guaranteed.

        Cost: O(n x columns).
        """
        self._home.reap()
        self._open.check_closed(self._check(sequence))
        n = check_int("n", n, 1)
        if sequence.preempted:
            raise StepError(f"sequence {sequence.id!r} is preempted; resume it first")
        self._check_room(n)
        self._guards.fork(sequence, n)
        sequence._sync()
        sequence._leave_stride()
        children = [self._home.fork(self, sequence) for _ in range(n)]
        for child in children:
            child._epoch = self._clock
        self._tell()
        return children

    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's pages away; it keeps its ids and waits for `resume`.

        Allowed with a step open: the step's results for it are ignored.

        Raises:
            StepError: it is preempted already. UnknownSequence, StaleSequence.

        Cost: O(pages).
        """
        if self._check(sequence).preempted:
            raise StepError(f"sequence {sequence.id!r} is preempted already")
        sequence._sync()
        rows, row = sequence._rows, sequence._row
        known, limit, apart = sequence.length, sequence.limit, rows.apart[row]
        self._home.empty(sequence)
        rows.known[row], rows.limit[row], rows.apart[row] = known, limit, apart
        sequence.preempted = True
        self._clock += 1
        sequence._epoch = self._clock
        self._preemptions += 1

    def resume(self, sequence: Sequence) -> int:
        """Let a preempted sequence go on: pins what is still published of its tokens.

        Returns:
            Positions that need not be computed again.

        Raises:
            StepError: it is not preempted. OutOfPages: its guarantee cannot be given again.
            UnknownSequence, StaleSequence.

        Cost: O(tokens).
        """
        self._home.reap()
        if not self._check(sequence).preempted:
            raise StepError(f"sequence {sequence.id!r} is not preempted")
        ids = sequence.tokens()
        reuse = bool(ids.size) and not sequence._private
        pinned = self._admission.afford(ids, sequence._identity, reuse=reuse)
        if sequence._promised:
            self._guards.promise(sequence.limit, sequence._identity, pinned)
        sequence.preempted = False
        self._admission.pin(sequence, pinned)
        sequence._turn()
        sequence._aim()
        if sequence._batch is not None:
            sequence._batch._idle.discard(sequence)
            sequence._batch._changed(sequence._row)
        return sequence.computed

    def _check(self, sequence: object) -> Sequence:
        if not isinstance(sequence, Sequence) or sequence._cache is not self:
            raise UnknownSequence(getattr(sequence, "id", sequence))
        if sequence.released:
            raise StaleSequence(sequence.id)
        return sequence

    def _check_running(self, sequence: Sequence) -> None:
        if self._check(sequence).preempted:
            raise StepError(f"sequence {sequence.id!r} is preempted; resume it first")

    def _steppable(self, rows: Steppable) -> tuple[Sequence, ...]:
        if not isinstance(rows, Iterable | Sequence):
            raise UnknownSequence(rows, "is no sequence, batch or list of sequences")
        found = (rows,) if isinstance(rows, Sequence) else tuple(rows)
        if not found:
            raise LengthError("len(rows)", 0, 1, None, "a step has at least one row")
        for sequence in found:
            self._check_running(sequence)
        self._check_distinct(found)
        return found

    @staticmethod
    def _check_distinct(sequences: Collection[Sequence]) -> None:
        seen = set[Sequence]()
        for sequence in sequences if len(set(sequences)) < len(sequences) else ():
            if sequence in seen:
                raise DuplicateSequence(sequence.id, "stands in two rows")
            seen.add(sequence)

    def _check_name(self, id: object) -> None:
        try:
            hash(id)
        except TypeError:
            raise IdentityError("id", id, "it must be hashable") from None
        if id in self._home:
            raise DuplicateSequence(id)

    def _check_room(self, count: int) -> None:
        if self._orphans:  # a handle may have been collected since the verb began
            self._home.reap()
        total = len(self._home) + count
        if total > self.max_sequences:
            raise CapacityError("sequences", total, self.max_sequences, "max_sequences")

    # -- moves ---------------------------------------------------------------------------------

    def _tell(self) -> None:
        if self._log is not None:
            self._log.deliver()
