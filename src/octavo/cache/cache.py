"""The cache: the one authority over pages, with the verbs an engine calls.

An engine holds one Cache and nothing else allocates or frees. Every verb succeeds whole or raises
with nothing changed. The cache knows token ids and page numbers; no tensors, devices or models, and
no clock: the same verbs give the same pages in every process. This module is long because it is the
one face: two thirds are what its verbs promise.
"""

from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import count
from typing import Any, Literal
from weakref import ReferenceType, ref

import numpy as np

from octavo import core as core_build
from octavo.arrays import NDArray
from octavo.cache.arguments import (
    MOST,
    Counts,
    Given,
    Learned,
    numbers,
    read_counts,
    read_kept,
    read_learned,
    read_prompt,
)
from octavo.cache.assembly import assemble
from octavo.cache.batch import Batch, Steppable
from octavo.cache.capacity import Capacity, Wish, limit_snapshots
from octavo.cache.events import Event, EventLog
from octavo.cache.identity import CrossInput, Extra, Identity, read_extras
from octavo.cache.integrity import check_core
from octavo.cache.match import Hit, Prefixes
from octavo.cache.policies import Policy, find_policy
from octavo.cache.prompt import Prompt
from octavo.cache.refusals import commit_error, extend_error, out_of_pages, rollback_error
from octavo.cache.results import Committed, Explanation, Fit, Held, Match, Pin, Repointed, Stats
from octavo.cache.sequence import NO_HANDLE, Sequence
from octavo.cache.step import Step
from octavo.cache.verbs import verb
from octavo.checks import Tokens, check_flag, check_int, check_tokens, entries_of
from octavo.core.build import warn_once
from octavo.core.rows import Refused, Rows
from octavo.errors import (
    CacheInUse,
    CapacityError,
    DuplicateSequence,
    IdentityError,
    LengthError,
    PlanError,
    StaleSequence,
    StepError,
    UnknownSequence,
    quote,
    uncopied,
)
from octavo.planner.plan import Plan

Request = tuple[Sequence | Prompt | Tokens, int] | tuple[Tokens, int, Iterable[Extra]]
"""One request of `Cache.fits`: a sequence or prompt, its limit, and the extras of plain ids."""

_MOST_SEQUENCES = 2**20
Pages = list[list[int]]


class Cache:
    """Pages, prefixes and sequences of one pool; for one thread at a time.

    Every verb raises CacheInUse, and changes nothing, where another is inside the cache: a second
    thread's, or one that calls back from a policy or an argument. Listeners may call verbs.

    A verb that raises one of octavo's errors has changed nothing. A KeyboardInterrupt or a
    MemoryError in its middle may lose pages, and its step; none is lent twice, and a forced `reset`
    begins anew.

    Admitting: `admit`, `peek`, `explain_match`, `fits`, `pin`. Stepping: `batch`, `extend`,
    `commit`, `abort`, `learn`, `keep`, `slide`. Going back: `truncate`, `drop`. Sharing: `fork`.
    Making room: `preempt`, `resume`. Ending: `release`, `reset`. Looking: `need`, `available`,
    `held`, `stats`, `check`, `vacated`.

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
        erase: whether pages that hold nothing any more are noted, for `vacated` to name them.
        on_event: called with each page stored or removed, and when all are forgotten, once the
            verb that did it is done. What it raises becomes a RuntimeWarning; a KeyboardInterrupt
            goes on to the caller, who finds a step in `open_steps`.

    Raises:
        LengthError, PlanError: an argument is out of range.
    """

    __reduce__ = uncopied("it alone gives its pages out; make another from its plan")

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
        erase: bool = False,
        on_event: Callable[[Event], None] | None = None,
    ) -> None:
        if not isinstance(plan, Plan):
            raise PlanError("plan", plan, "it must come from octavo.plan or Plan.from_pages")
        why = "each has a row from the start"
        self.max_sequences = check_int("max_sequences", max_sequences, 1, _MOST_SEQUENCES, why)
        if on_event is not None and not callable(on_event):
            raise PlanError("on_event", on_event, "it must be callable, or None")
        self.depth = check_int("depth", depth, 1)
        if not isinstance(snapshots, str) or snapshots not in ("branch", "grid"):
            raise PlanError("snapshots", snapshots, "it must be 'branch' or 'grid'")
        self.plan, self.prefix = plan, check_flag("prefix", prefix)
        rollback = min(check_int("rollback", rollback, 0), MOST // 2)  # units are int32
        self.max_length = self._longest(plan, max_length)
        self._policy, self._rollback = find_policy(policy), rollback
        self._snapshot_bytes, self._grid = snapshot_bytes, snapshots == "grid"
        self._erase, self._listener = check_flag("erase", erase), on_event
        self._numbers = count()
        self._prompt_tokens = self._cached_tokens = self._preemptions = 0
        self._begin()
        warn_once(core_build.why_not)

    def _begin(self) -> None:
        """Nothing is admitted, published, pinned or open. O(1)."""
        core = assemble(
            self.plan, self._policy, self.max_sequences, self._rollback, publishes=self.prefix
        )
        core.pool.vacated = set() if self._erase else None
        limit_snapshots(core, self.plan, self._snapshot_bytes)
        prefixes = Prefixes(core, grid=self._grid)
        capacity = Capacity(core, self.plan, prefixes, self.max_length)
        log = EventLog(core, self._listener) if self._listener is not None else None
        self._named: dict[object, ReferenceType[Sequence]] = {}
        self._orphans: list[tuple[object, int]] = []
        self._disbanded: list[Rows] = []
        self._pins: set[Pin] = set()
        self._core, self._prefixes, self._capacity, self._log = core, prefixes, capacity, log
        self._inside = False  # whether a verb runs

    @staticmethod
    def _longest(plan: Plan, max_length: int | None) -> int:
        longest = plan.tokens if plan.max_length is None else plan.max_length
        if max_length is not None:
            longest = check_int("max_length", max_length, 1, plan.max_length)
        return min(longest, MOST - 2 * plan.page_size)  # positions and slots are int32

    def __repr__(self) -> str:
        pool, name = self._core.pool, "parents" if self.plan.packed else "pages"
        live = f"{pool.busy()} live, {len(self._named) - len(self._orphans)} sequences"
        return f"<Cache of {pool.parents} {name}, {live}>"

    # -- looking -------------------------------------------------------------------------------

    @verb
    def peek(self, tokens: Tokens | Prompt, extra: Iterable[Extra] = ()) -> Match:
        """What `admit` would find of ``tokens``; changes nothing, not even recency.

        Raises:
            TokenError, LengthError, IdentityError: as `admit`.

        Cost: O(len(tokens)).
        """
        return self._prefixes.match(self._prefixes.look(read_prompt(self._core, tokens, extra)))

    @verb
    def explain_match(self, tokens: Tokens | Prompt, extra: Iterable[Extra] = ()) -> Explanation:
        """Why `admit` would find as much of ``tokens`` as it does, and which group set it.

        Raises and costs as `peek`.
        """
        given = read_prompt(self._core, tokens, extra)
        return self._prefixes.explain(self._prefixes.look(given), given.length)

    @verb
    def check_limit(self, length: int, limit: int, extra: Iterable[Extra] = ()) -> None:
        """Refuse what `admit` refuses however much is free: a prompt and its limit. O(groups).

        Args:
            length: tokens of the prompt.
            limit: most tokens the sequence may come to know.
            extra: as of `admit`; a CrossInput takes pages.

        Raises:
            NeverFits: the limit needs more pages than the pool has.
            CapacityError: the limit is below the prompt, or beyond ``max_length``.
            LengthError, IdentityError: an argument is malformed.
        """
        length, identity = check_int("length", length, 1), read_extras(extra, None)
        self._capacity.limit(length, check_int("limit", limit, 1), identity, guarantee=False)

    @verb
    def fits(self, requests: Iterable[Request], *, reuse: bool = True, spare: int = 0) -> Fit:
        """Whether these sequences and prompts can all run to their limits at once.

        In a packed plan pages that are published meanwhile may keep a parent from the group that
        needs it, so that a yes can come to nothing there; what must not fail is admitted with a
        guarantee.

        Args:
            requests: (sequence or prompt, limit in tokens), of a prompt also its extras as third; a
                sequence goes no further than its own limit.
                Sequences not named keep what they hold, and what was guaranteed to them. Windows
                count as they are when a sequence runs token by token.
            reuse: whether prompts, and preempted sequences, begin with what is published of them,
                as in `admit` and `resume`. It may take room that a pool little larger than one
                request does not have.
            spare: pages (packed: parents) that must be left when all have run so far.

        Raises:
            UnknownSequence, StaleSequence, DuplicateSequence: an entry's sequence is not this
                cache's, was released, or stands there twice.
            TokenError, LengthError, IdentityError: an entry is no such request, or ``spare`` no
                count.

        Cost: O(requests + prompt tokens).
        """
        self._reap()
        right = "it must be a list of (sequence or prompt, limit)"
        listed = entries_of(requests, lambda: LengthError("requests", requests, None, None, right))
        reuse, spare = check_flag("reuse", reuse), check_int("spare", spare, 0)
        wishes = [self._wish(request, reuse=reuse) for request in listed]
        self._check_distinct([item for item, *_ in listed if isinstance(item, Sequence)])
        return Fit(self._capacity.shortage(wishes, spare))

    def _wish(self, request: Request, *, reuse: bool) -> Wish:
        if not isinstance(request, tuple) or len(request) not in (2, 3):
            right = "it must be (sequence or prompt, limit) or (prompt, limit, extras)"
            raise LengthError("request", request, None, None, right)
        item, limit, extra = (*request, ())[:3]
        if isinstance(item, Sequence):
            sequence = self._check(item)
            limit = check_int("limit", limit, 1)
            limit = min(limit, sequence.limit)
            return self._capacity.wish_of(sequence, limit, reuse=reuse)
        given = read_prompt(self._core, item, extra)
        limit = min(check_int("limit", limit, given.length), MOST)
        return self._capacity.wish_for(given, limit, reuse=reuse)

    @verb
    def need(self, rows: Steppable, counts: Counts = 1, *, ahead: int = 0) -> dict[str, int]:
        """Pages by group that `extend` with the same arguments would take. O(rows).

        Raises:
            OctavoError: what `extend` raises, but for OutOfPages and too many open steps.
        """
        self._reap()
        sequences, chosen = self._choose(rows)
        spread, ahead = read_counts(counts, len(sequences)), check_int("ahead", ahead, 0)
        try:
            return self._capacity.need(chosen, spread, ahead)
        except Refused as refused:
            raise extend_error(self._core, refused, sequences, spread) from None

    @verb
    def available(self) -> dict[str, int]:
        """Pages by group that one `extend` could take if it took of no other group.

        Free and evictable pages, less those promised. O(groups log pages).
        """
        self._reap()
        return self._capacity.available()

    @verb
    def held(self, sequence: Sequence) -> dict[str, Held]:
        """Pages by group that a sequence holds: with copies of them it can go on elsewhere.

        Returns:
            Nothing where they are not all it needs: it is preempted, or its next step is still to
            give it a state or the pages of its cross input.

        Raises:
            UnknownSequence, StaleSequence: it is not this cache's, or was released.

        Cost: O(columns).
        """
        core, row, found = self._core, self._check(sequence).row, {}
        if core.preempted[row]:
            return {}
        for group in core.groups:
            count = core.columns(group, row)
            entries = [group.entry(row, column) for column in range(count)]
            if group.keeps_state and (core.fetches[row] or self._awaits(group.number, entries)):
                return {}
            if group.keeps_cross and 0 in entries:
                return {}
            columns = [column for column in range(count) if entries[column]]
            pages = np.array([entries[column] for column in columns], np.int32)
            found[core.names[group.number]] = Held(np.array(columns, np.int32), pages)
        return found

    def _awaits(self, number: int, entries: list[int]) -> bool:
        """Whether a state is not in these pages yet: the next step takes them, or copies it."""
        return 0 in entries or any((number, page) in self._core.pending for page in entries)

    @verb
    def vacated(self) -> dict[str, NDArray[np.int32]]:
        """Pages by group that hold nothing any more, for a storage to erase; each is named once.

        Nobody holds them, no prefix stands for them, and none was taken again. Steps that are open
        may still write to them, and to what their rows held: erase when those have run. A page
        that was evicted to be used at once is not among them but in the step's ``fresh``; of a
        packed plan the others of its parent are once the parent is free.

        Raises:
            StepError: the cache was not made with ``erase``.

        Cost: O(pages let go of since the last call, and of those before that were in use then).
        """
        if self._core.pool.vacated is None:
            raise StepError("this cache notes no pages to erase: make it with erase=True")
        self._reap()
        found: dict[str, list[int]] = {}
        for group, page in self._core.pool.take_vacated():
            found.setdefault(self._core.names[group], []).append(page)
        return {name: np.array(pages, np.int32) for name, pages in found.items()}

    @verb
    def stats(self) -> Stats:
        """Counts now and totals so far. O(1)."""
        self._reap()
        core, pool = self._core, self._core.pool
        kept = [core.index.bundles[g.number] for g in core.groups if g.keeps_state]
        return Stats(
            pages=pool.parents,
            live=pool.busy(),
            evictable=pool.quiet.count,
            free=pool.free(),
            peak_live=pool.peak,
            sequences=len(self._named),
            prompt_tokens=self._prompt_tokens,
            cached_tokens=self._cached_tokens,
            evicted=pool.evicted,
            preemptions=self._preemptions,
            snapshots=sum(map(len, kept)),
        )

    @verb
    def check(self) -> None:
        """Verify every law of the pool, the index and the tables. O(pages + sequences).

        Raises:
            IntegrityError: the equation that does not hold, with both sides.
        """
        self._reap()
        check_core(self._core, [s.row for s in self._sequences()], self._pins)

    # -- admitting and ending ------------------------------------------------------------------

    @verb
    def admit(
        self,
        tokens: Tokens | Prompt,
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
            tokens: the prompt's ids, a list or an int32 array; or a `Prompt`, which has its extras
                and its cross input.
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
            self._reap()
        reuse, guarantee = check_flag("reuse", reuse), check_flag("guarantee", guarantee)
        core, given = self._core, read_prompt(self._core, tokens, extra, cross)
        identity = given.identity
        bound = self._capacity.limit(given.length, limit, identity, guarantee=guarantee)
        if id is not None:
            self._check_name(id)
        self._check_room(1)
        private = guarantee and core.states
        hit = self._find(given, reuse=reuse and not private)
        if guarantee:
            self._promise(bound, identity, hit)
        sequence = Sequence(self, self._new_name() if id is None else id, identity)
        row = core.begin(given.place(core), given.length, bound)
        if private:
            core.private[row] = 1
        if identity.cross is not None:
            core.cross[row] = identity.cross.length
        if identity.media:
            self._prefixes.hold_tags(row, identity)
        self._hold(row, identity, hit)
        if guarantee:
            core.promised[row] = 1
            core.guaranteed.append(row)
        core.bind(sequence, row)  # not before: what it names is whole
        self._named[sequence.id] = ref(sequence)
        sequence.prompt = given.length
        sequence.cached = hit.boundary * core.size if hit is not None else 0
        self._prompt_tokens += given.length
        self._cached_tokens += sequence.cached
        return sequence

    def _find(self, given: Given, *, reuse: bool) -> Hit | None:
        """What a prompt should hold: its hit, or as much of it as leaves what is promised.

        None: not even the pages of its cross input.
        """
        if not reuse:
            given = Given(0, given.identity, 0)
        hit = self._prefixes.look(given)
        if not self._core.guaranteed:
            return hit
        needs = [0] * len(self._core.groups)

        def is_short(pages: Pages) -> bool:
            return self._capacity.is_short(needs, pages)

        return self._prefixes.afford(given, hit, is_short)

    def _promise(self, bound: int, identity: Identity, hit: Hit | None) -> None:
        """Raise OutOfPages unless all up to ``bound`` can be promised beside what is."""
        pages: Pages = [[] for _ in self._core.groups]
        if hit is not None:
            pages = self._prefixes.pages(hit, identity)
        self._capacity.check_promise(bound, identity, 0 if hit is None else hit.boundary, pages)

    def _hold(self, row: int, identity: Identity, hit: Hit | None) -> None:
        """A row that holds nothing stands at a hit's boundary. O(columns)."""
        core, key = self._core, identity.root
        boundary = 0 if hit is None else hit.boundary
        core.hold(row, boundary, core.index.enter_root(key) if key else 0, hit is not None)
        if core.states:
            self._prefixes.set_stops(row, boundary)

    @verb
    def release(self, sequence: Sequence) -> None:
        """End a sequence: its pages go back, published ones stay for reuse, last page coldest.

        Allowed with a step open; the step's other rows are not touched. In a batch it keeps its
        row until it is removed there.

        Raises:
            UnknownSequence, StaleSequence: not of this cache, or released before.

        Cost: O(pages).
        """
        self._core.release(self._check(sequence))
        self._named.pop(sequence.id, None)

    def reset(self, *, force: bool = False) -> None:
        """Forget every published page.

        Args:
            force: end open steps, sequences, batches and pins first. Each handle of before is then
                stale, and says so. This works whatever an interrupt has left half done, and asks
                nobody whether another verb is inside.

        Raises:
            StepError: without force, sequences hold pages (preempted ones do not), prefixes are
                pinned, or a step was interrupted.

        Cost: O(pages); by force O(tokens known).
        """
        if check_flag("force", force):
            self._end_all()
        elif self._inside:
            raise CacheInUse("reset")
        else:
            self._forget_all()
        if self._log is not None:
            self._log.cleared()
            self._log.deliver()

    def _end_all(self) -> None:
        old = self._core
        old.retire([handle for each in list(self._named.values()) if (handle := each())])
        used = old.pool.used_pages() if self._erase else []
        self._begin()
        pool = self._core.pool
        pool.evicted, pool.peak = old.pool.evicted, old.pool.peak
        if pool.vacated is not None:
            pool.vacated.update(used)

    def _forget_all(self) -> None:
        try:
            self._inside = True
            self._reap()
            self._refuse_torn()
            held = sum(not each.preempted for each in self._sequences()) + len(self._pins)
            if held:
                raise StepError(f"{held} sequences or pins hold pages; release them first")
            pool = self._core.pool
            evicted = pool.evicted
            pool.give_up_all()
            pool.evicted = evicted
        finally:
            self._inside = False

    @verb
    def pin(self, tokens: Tokens | Prompt, extra: Iterable[Extra] = ()) -> Pin:
        """Hold the published prefix of ``tokens``, so that it is not evicted until released.

        Raises:
            TokenError, LengthError, IdentityError: as `admit`.
            OutOfPages: holding it would break what is guaranteed.

        Cost: O(len(tokens)).
        """
        self._reap()
        core, given = self._core, read_prompt(self._core, tokens, extra)
        hit = self._prefixes.look(given)
        pages = self._prefixes.pages(hit, given.identity)
        if self._capacity.is_short([0] * len(pages), pages):
            raise out_of_pages(core, 0)
        node = int(core.path[hit.boundary - 1]) if hit.boundary else 0
        core.index.users[node] += 1
        for number, held in enumerate(pages):
            for page in held:
                core.pool.retain(number, page)
        arrays = [np.array(held, np.int32) for held in pages]
        pin = Pin(self, hit.boundary * core.size, arrays, node)
        self._pins.add(pin)
        return pin

    def _unpin(self, pin: Pin) -> None:
        if pin not in self._pins:
            raise StepError("this pin was released before, or its cache was reset")
        self._pins.remove(pin)
        self._core.index.leave(pin.node)
        for number, held in enumerate(pin.pages):
            for page in held[::-1].tolist():
                self._core.pool.release(number, page, False)

    # -- stepping ------------------------------------------------------------------------------

    @verb
    def batch(self, sequences: Iterable[Sequence] = ()) -> Batch:
        """A handle for rows that step together, to `add` to and `remove` from. O(rows).

        Raises:
            UnknownSequence, StaleSequence, DuplicateSequence: a sequence cannot be a row.
        """
        listed = self._listed("sequences", sequences, "it must be a list of sequences")
        self._reap()
        for sequence in listed:
            self._check_unbatched(self._check(sequence))
        self._check_distinct(listed)
        batch = Batch(self)
        for sequence in listed:
            batch._add(sequence)
        return batch

    def extend(self, rows: Steppable, counts: Counts = 1, *, ahead: int = 0) -> Step:
        """Reserve slots for the next ``counts`` positions of each row: for all of them or for none.

        Args:
            rows: a batch, sequences, or one sequence.
            counts: new positions, one number for all rows or one per row; 0 sits out.
            ahead: positions allowed beyond the known tokens (drafts, or steps still open); clipped
                at each limit.

        Raises:
            StepError: ``depth`` steps are open, a row is preempted, or its state went with an
                aborted step and earlier ones are still open. LengthError: counts out of range or
                beyond what is known. CapacityError: a row would pass its limit.
            RollbackUnsupported: more drafts than states can be taken back.
            OutOfPages: too few pages; nothing is changed, nothing evicted.
            UnknownSequence, StaleSequence, DuplicateSequence: a row cannot take part.

        Cost: O(rows x groups + new tokens).
        """
        if self._inside:  # as `octavo.cache.verbs.verb`, which would cost more
            raise CacheInUse("extend")
        try:
            self._inside = True
            if self._orphans:
                self._reap()
            if len(self._core.open) >= self.depth:
                self._refuse_more_steps()
            if type(ahead) is not int or ahead:
                ahead = min(check_int("ahead", ahead, 0), MOST)
            sequences, chosen = self._choose(rows)
            spread, step = read_counts(counts, len(sequences)), Step(sequences)
            if ahead:
                step._earlier = self.open_steps
            try:
                self._core.extend(step, chosen, *spread, ahead)
            except Refused as refused:
                raise extend_error(self._core, refused, sequences, spread) from None
        finally:
            self._inside = False
        if self._log is not None:
            self._log.deliver()
        return step

    @property
    def open_steps(self) -> tuple[Step, ...]:
        """The steps to be committed or aborted, oldest first. O(depth)."""
        return tuple(step for step in self._core.open if step.open)

    def _choose(self, rows: Steppable) -> tuple[tuple[Sequence, ...], Rows]:
        """The sequences of a step, and their rows. O(rows)."""
        if isinstance(rows, Batch):
            rows.check_whole(self)
            sequences, chosen = rows._snapshot(), rows._rows
        else:
            right = "it must be a batch, a sequence or a list of sequences"
            sequences = (
                (rows,) if isinstance(rows, Sequence) else tuple(self._listed("rows", rows, right))
            )
            chosen = self._select(sequences)
        if not sequences:
            raise LengthError("len(rows)", 0, 1, None, "a step has at least one row")
        return sequences, chosen

    @staticmethod
    def _listed(name: str, given: Any, right: str) -> list[Any]:
        """The entries of a list of sequences."""
        return entries_of(given, lambda: UnknownSequence(given, right, name))

    def _select(self, sequences: tuple[Sequence, ...]) -> Rows:
        try:
            return self._core.select(sequences)
        except Refused:
            for sequence in sequences:
                self._check(sequence)
            raise

    def commit(
        self, step: Step, tokens: Learned = None, *, kept: Counts | None = None
    ) -> Committed:
        """The oldest open step's KV is written: learn new ids, keep what is valid, publish pages.

        Args:
            step: the oldest open step.
            tokens: ids newly known. A list or array of one id per row, ignored where
                ``step.wants_token`` is False. Or a list of arrays, one per row, each learned whole:
                give an empty one to a row that is not at the end of its prompt. Or the tuple
                (flat ids, how many of them each row learns), which is what a tuple of two sequences
                always means. Each may be for the rows of ``step.sample`` alone, told by how many
                entries there are. None: nothing.
            kept: positions of the step whose KV is valid, a row each; default all. Rejected drafts
                are cut here.

        Raises:
            StepError: not the oldest open step, or a row of a later step would be cut.
            TokenError, LengthError: tokens or kept malformed, or more positions kept than ids
                known, or one that was computed with another id than it learns: ``step.input_ids``
                where it is not 0. CapacityError: a row would pass its limit.

        Cost: O(rows x groups + new ids and pages).
        """
        if self._inside:
            raise CacheInUse("commit")
        try:
            self._inside = True
            core = self._core
            if not (core.open and core.open[0] is step and step.is_open):
                self._check_open(step)
                raise StepError("this is not the oldest open step: steps commit oldest first")
            ids, counts = read_learned(core, tokens, step)
            valid = read_kept(kept, step)
            try:
                core.commit(step, ids, counts, valid)
            except Refused as refused:
                raise commit_error(core, self.plan, refused, step, ids) from None
            for open_step in core.open:
                open_step._part_from_earlier()
            step._earlier = ()
            repointed = [
                Repointed(step.sequences[place], core.names[number], column, old, new)
                for place, number, column, old, new in core.repointed
            ]
            done = Committed(core.published, tuple(repointed), core.dropped)
        finally:
            self._inside = False
        if self._log is not None:  # last: a listener may commit the next step
            self._log.deliver()
        return done

    @verb
    def abort(self, step: Step) -> None:
        """Undo the newest open step: its slots are given back and nothing is learned.

        Its copies must have been run. States it may have overwritten are fetched again from the
        last boundary they were kept at, and the positions since are computed again.

        Raises:
            StepError: not the newest open step.

        Cost: O(rows).
        """
        core = self._core
        if not (core.open and core.open[-1] is step and step.is_open):
            self._check_open(step)
            raise StepError("this is not the newest open step: steps abort newest first")
        core.abort(step)
        step._earlier = ()

    @verb
    def learn(self, sequence: Sequence, tokens: Tokens) -> None:
        """Tell a sequence ids that follow what it knows, without a step: a next turn, or a fork's.

        Raises:
            TokenError: an entry is no token id. CapacityError: it would pass its limit.
            StepError: a step of it is open, or it is preempted.
            UnknownSequence, StaleSequence: it is not this cache's, or was released.

        Cost: O(len(tokens)).
        """
        self._check_running(sequence)
        self._check_closed(sequence)
        ids = check_tokens(tokens)
        length = sequence.length + ids.size
        if length > sequence.limit:
            who = f"the limit of sequence {quote(sequence.id)}"
            raise CapacityError("length", length, sequence.limit, who)
        self._core.learn(sequence.row, numbers(ids), ids.size)

    @verb
    def keep(self, sequence: Sequence, position: int) -> None:
        """Ask for a sequence's states after ``position`` tokens: kept if a step ends there.

        For an engine that cuts prompts into chunks by a rule of its own and not at ``next_stop``.
        Nothing happens where the plan has no states, prefixes are off or the pages run out.

        Raises:
            LengthError: no multiple of the page size, or not beyond what is scheduled.
            UnknownSequence, StaleSequence: it is not this cache's, or was released.

        Cost: O(log stops).
        """
        core, start = self._core, self._check(sequence).scheduled
        position = check_int("position", position, start + 1)
        if position % core.size:
            right = f"it must be a multiple of the page size, {core.size}"
            raise LengthError("position", position, None, None, right)
        if core.states and self.prefix and not core.private[sequence.row] and position <= MOST:
            core.stop_at(sequence.row, {position})

    # -- going back, sharing, making room ------------------------------------------------------

    @verb
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
            StepError: a step of it is open.
            UnknownSequence, StaleSequence: it is not this cache's, or was released.

        Cost: O(pages cut).
        """
        self._check_closed(self._check(sequence))
        length = check_int("length", length, 0, sequence.length)
        return self._cut(sequence, length, exclusive=check_flag("exclusive", exclusive))

    def _cut(self, sequence: Sequence, length: int, *, exclusive: bool) -> int:
        """`truncate` to a length that was checked."""
        self._reap()
        core, row = self._core, sequence.row
        if exclusive:
            self._capacity.refuse_shared(sequence, length)
        try:
            reached = core.reach(row, min(sequence.computed, length))
        except Refused as refused:
            raise rollback_error(core, self.plan, refused) from None
        self._capacity.check_cut(sequence, reached)
        core.truncate(row, length, reached)
        return reached

    @verb
    def slide(self, sequence: Sequence, position: int) -> None:
        """Let windows give back what no query at ``position`` or later sees, before it is there.

        For a sequence whose pages are copied back from elsewhere and not computed: of a step that
        is filled so, what was not copied must not be published. It cannot go back behind
        ``position`` from then on, nor can its step be aborted. Nothing happens without windows.

        Args:
            sequence: which may be in an open step.
            position: at least what is computed.

        Raises:
            LengthError: it is below that, or beyond the limit.
            UnknownSequence, StaleSequence: it is not this cache's, or was released.

        Cost: O(pages given back).
        """
        row = self._check(sequence).row
        low, high = sequence.computed, sequence.limit
        self._core.slide(row, check_int("position", position, low, high))

    @verb
    def drop(self, sequence: Sequence, count: int) -> int:
        """`truncate` by ``count`` tokens, or to nothing where there are fewer; returns the same.

        Raises:
            LengthError: ``count`` is negative. Others as `truncate`.
        """
        left = max(0, self._check(sequence).length - check_int("count", count, 0))
        self._check_closed(sequence)
        return self._cut(sequence, left, exclusive=False)

    @verb
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
        self._reap()
        self._check_closed(self._check(sequence))
        n = check_int("n", n, 1)
        self._check_running(sequence)
        self._check_room(n)
        self._capacity.check_fork(sequence, n)
        return [self._fork(sequence, left) for left in range(n, 0, -1)]

    def _fork(self, parent: Sequence, left: int) -> Sequence:
        child = Sequence(self, self._new_name(), parent._identity)
        child.prompt, child.cached = parent.prompt, parent.cached
        self._core.bind(child, self._core.fork(parent.row, left))
        self._named[child.id] = ref(child)
        return child

    @verb
    def preempt(self, sequence: Sequence) -> None:
        """Take a sequence's pages away; it keeps its ids and waits for `resume`.

        Allowed with a step open: the step's results for it are ignored.

        Raises:
            StepError: it is preempted already.
            UnknownSequence, StaleSequence: it is not this cache's, or was released.

        Cost: O(pages).
        """
        if self._check(sequence).preempted:
            raise StepError(f"sequence {quote(sequence.id)} is preempted already")
        self._core.preempt(sequence.row)
        self._preemptions += 1

    @verb
    def resume(self, sequence: Sequence, *, reuse: bool = True, publish: bool = True) -> int:
        """Let a preempted sequence go on: pins what is still published of its tokens.

        Args:
            sequence: preempted.
            reuse: whether to look for what is published at all.
            publish: whether what it computes from now on is kept for later prompts. Without, pages
                that slid out of a window are free at once: token by token it needs no more parents
                of a packed plan than its pages fill.

        Returns:
            Positions that need not be computed again.

        Raises:
            StepError: it is not preempted. OutOfPages: its guarantee cannot be given again.
            UnknownSequence, StaleSequence: it is not this cache's, or was released.

        Cost: O(tokens).
        """
        self._reap()
        reuse, publish = check_flag("reuse", reuse), check_flag("publish", publish)
        if not self._check(sequence).preempted:
            raise StepError(f"sequence {quote(sequence.id)} is not preempted")
        core, row, identity = self._core, sequence.row, sequence._identity
        if not publish:
            core.private[row] = 1
        known = Given(sequence.length, identity, int(core.ids.begin[row]))
        hit = self._find(known, reuse=reuse and not core.private[row])
        if core.promised[row]:
            self._promise(sequence.limit, identity, hit)
        self._hold(row, identity, hit)
        core.preempted[row] = 0
        return sequence.computed

    # -- checks --------------------------------------------------------------------------------

    def _check(self, sequence: object) -> Sequence:
        if not isinstance(sequence, Sequence):
            raise UnknownSequence(sequence, NO_HANDLE)
        if sequence._cache is not self:
            raise UnknownSequence(sequence.id, "belongs to another cache")
        if sequence.row < 0:
            raise StaleSequence(sequence.id)
        return sequence

    def _check_running(self, sequence: Sequence) -> None:
        if self._check(sequence).preempted:
            raise StepError(f"sequence {quote(sequence.id)} is preempted; resume it first")

    def _check_closed(self, sequence: Sequence) -> None:
        if self._core.opened[sequence.row]:
            who = quote(sequence.id)
            raise StepError(f"a step of sequence {who} is open: commit or abort it first")

    def _check_unbatched(self, sequence: Sequence) -> None:
        if self._core.places.place[sequence.row] >= 0:
            raise DuplicateSequence(sequence.id, "is in a batch already; remove it there first")

    def _refuse_more_steps(self) -> None:
        """Raise StepError: no step may be opened now."""
        self._refuse_torn()
        if self.depth == 1:
            raise StepError("1 step is open: commit or abort it first")
        held = f"{self.depth} steps are open, as many as depth allows"
        raise StepError(f"{held}: commit the oldest first")

    def _refuse_torn(self) -> None:
        """Raise StepError where a step was interrupted: what its rows hold nobody can say."""
        if len(self._core.open) > len(self.open_steps):
            raise StepError("a step was interrupted half way; reset(force=True) begins anew")

    def _check_open(self, step: object) -> None:
        if not isinstance(step, Step):
            raise StepError(f"step is {quote(step)}; it must be a step that extend returned")
        if step.core is None:
            raise StepError("this step was put together by hand, which no cache commits or aborts")
        if step.core is not self._core:
            raise StepError("this step belongs to another cache, or was made before this was reset")
        self._refuse_torn()
        if not step.is_open:
            raise StepError("this step is not open: it was committed or aborted before")

    @staticmethod
    def _check_distinct(sequences: Collection[Sequence]) -> None:
        seen = set[Sequence]()
        for sequence in sequences if len(set(sequences)) < len(sequences) else ():
            if sequence in seen:
                raise DuplicateSequence(sequence.id, "stands in two rows")
            seen.add(sequence)

    def _check_name(self, id: object) -> None:
        try:
            known = id in self._named and self._is_live(id)
        except Exception as error:
            raise IdentityError("id", id, "it must be hashable and comparable") from error
        if known:
            raise DuplicateSequence(id)

    def _is_live(self, id: object) -> bool:
        """Whether a name is a live handle's; one that an interrupt left behind is given up."""
        handle = self._named[id]()
        if handle is None or handle.row < 0:
            del self._named[id]
            return False
        return True

    def _check_room(self, more: int) -> None:
        if self._orphans:  # a handle may have been collected since the verb began
            self._reap()
        total = self._core.touched - self._core.spares + more  # rows, named or not
        if total > self.max_sequences:
            raise CapacityError("sequences", total, self.max_sequences, "max_sequences")

    # -- names ---------------------------------------------------------------------------------

    def _new_name(self) -> int:
        name = next(self._numbers)
        while name in self._named:
            name = next(self._numbers)
        return name

    def _sequences(self) -> Iterator[Sequence]:
        """The sequences admitted, oldest first."""
        for handle in list(self._named.values()):
            sequence = handle()
            if sequence is not None and sequence.row >= 0:
                yield sequence

    def _reap(self) -> None:
        """Take back what handles and batches held that were collected."""
        while self._disbanded:
            self._core.disband(self._disbanded.pop())
        while self._orphans:
            name, row = self._orphans.pop()
            handle = self._named.get(name)
            if handle is not None and handle() is None:
                del self._named[name]
            self._core.leave(row)
