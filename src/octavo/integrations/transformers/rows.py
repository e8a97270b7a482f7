"""The rows of a batch as sequences of octavo: who is in which row, and which columns are padding.

transformers has a rectangle: as many columns for every row, padding among them. octavo has
sequences: real tokens only, however long. Padding is in no page. Rows that are equal share one
sequence until they differ; then they are forked. Knows ids and masks; no tensors and no models.
"""

from threading import get_ident
from typing import Any

import numpy as np

from octavo.cache.cache import Cache
from octavo.cache.sequence import Sequence
from octavo.checks import check_int
from octavo.errors import (
    CapacityError,
    LengthError,
    OutOfPages,
    RollbackUnsupported,
    StepError,
    uncopied,
)
from octavo.integrations.transformers.passes import Bools, Index, ModelPass

NAMELESS = 2**30
"""First of as many ids that stand for tokens nobody may find: beyond every vocabulary."""
RUN_WHOLE = "run the whole model that the cache was made for, not a part or a copy of it"
"""Why no pass is open where nothing has ended one."""
OTHER_IDS = "these are not the ids that prompt() was given; call it again with them"


class BatchRows:
    """Sequences of a batch, from a prompt to the next one.

    Args:
        cache: where they are admitted.
        shares: whether pages may be found again by their tokens.
        resumes: whether a pass may begin behind pages that were found.
        goes_on: whether a prompt may go on where the rows stand.

    Attributes:
        cache: as given.
        batch: the sequences, each once.
        sequences: of each row, None while it is padding alone; equal rows have the same one.
        real: bool[B, length], columns that are tokens.
        now: the pass that is open.
        known: whether the rows are found again by their ids.
        lost: whether a pass that failed took the rows along, and none were begun since.
        idle: why no pass is open, where none is.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(self, cache: Cache, *, shares: bool, resumes: bool, goes_on: bool) -> None:
        self.cache, self.shares, self.resumes, self.goes_on = cache, shares, resumes, goes_on
        self.batch = cache.batch()
        self.sequences: list[Sequence | None] = []
        self.real: Bools = np.ones((0, 0), np.bool_)
        self.now: ModelPass | None = None
        self.lost, self.idle = False, RUN_WHOLE
        self.known, self._nameless = shares, 0
        self._stateful = any(g.lifetime.form == "state" for g in cache.plan.groups.values())

    @property
    def length(self) -> int:
        """Columns computed so far, padding included."""
        return int(self.real.shape[1])

    @property
    def max_length(self) -> int:
        """Longest sequence."""
        return self.cache.max_length

    def begin_anew(self) -> None:
        """Have no rows, on a cache that was reset by force: what was before is lost. O(1)."""
        self.batch = self.cache.batch()
        self.sequences, self.now, self.lost = [], None, True
        self.real = np.ones((0, 0), np.bool_)

    # -- prompts -------------------------------------------------------------------------------

    def prompt(self, ids: Index | None, real: Bools) -> None:
        """Let the rows stand where ``ids`` can go on from: what they hold, or what is published.

        Args:
            ids: int64[B, T], whole prompts; None: unknown, nothing is shared.
            real: bool[B, T], which of the columns are tokens.

        Raises:
            CapacityError: more rows than ``max_sequences``, or longer than ``max_length``.
            NeverFits: a prompt needs more pages than there are. The rows are empty then.

        What to give `for_model` instead is noted on errors about memory.

        Cost: O(B T).
        """
        self.settle()
        self.lost = False
        if ids is not None and self.length < ids.shape[1] and self.begins(ids, real):
            self._forget_unused()
            return
        self.release()
        self.known = self.shares and ids is not None
        try:
            self._admit(ids, real)
        except Exception as error:
            self._advise(error)
            self.release()
            raise

    def begins(self, ids: Index, real: Bools) -> bool:
        """Whether ``ids`` begin with what the rows hold, column by column. O(B length)."""
        length = self.length
        if not length or not self.goes_on or len(self.sequences) != len(ids) or not self.known:
            return False
        if not np.array_equal(self.real, real[:, :length]):
            return False
        return all(
            seq is None or np.array_equal(seq.tokens()[: had.sum()], row[:length][had])
            for seq, row, had in zip(self.sequences, ids, self.real, strict=True)
        )

    def _forget_unused(self) -> None:
        """Ids that were given and not computed are not known any more."""
        for sequence in self.batch:
            if sequence.length > sequence.computed:
                self.cache.truncate(sequence, sequence.computed)

    def _admit(self, ids: Index | None, real: Bools) -> None:
        self._check_room(len(real))
        prompts = [self._ids(ids, row, mask) for row, mask in enumerate(real)]
        self._enter_all(prompts, reuse=self.resumes)
        starts = list(map(self._start, self.sequences, real))
        if self._stateful and len(set(starts)) > 1:  # states are of one column for all rows
            self.release()
            self._enter_all(prompts, reuse=False)
            starts = [0]
        self.real = real[:, : min(starts)].copy()

    def _enter_all(self, prompts: list[Index], *, reuse: bool) -> None:
        """A sequence for each prompt, the same for equal ones; none for padding alone."""
        different = {ids.tobytes(): ids for ids in prompts if ids.size}
        made = {key: self._enter(ids, reuse=reuse) for key, ids in different.items()}
        self.sequences = [made.get(ids.tobytes()) for ids in prompts]

    def _enter(self, ids: Index, *, reuse: bool) -> Sequence:
        try:
            sequence = self.cache.admit(ids, reuse=reuse and self.known)
        except CapacityError:
            self._check_length(len(ids))
            raise
        self.batch.add(sequence)
        return sequence

    def _fork(self, sequence: Sequence) -> Sequence:
        (child,) = self.cache.fork(sequence)
        self.batch.add(child)
        return child

    def _ids(self, ids: Index | None, row: int, mask: Bools) -> Index:
        """A row's new ids; where they say nothing, ids that nobody else has."""
        if ids is not None and self.known:
            own: Index = ids[row][mask]
            return own
        count = int(np.count_nonzero(mask))
        first, self._nameless = self._nameless, self._nameless + count
        return NAMELESS + np.arange(first, first + count, dtype=np.int64) % NAMELESS

    @staticmethod
    def _start(sequence: Sequence | None, real: Bools) -> int:
        """First column a row has to compute: that of its first token that is not there."""
        if sequence is None or not sequence.computed:
            return 0
        return int(np.flatnonzero(real)[sequence.computed])

    def _check_room(self, rows: int) -> None:
        if rows > self.cache.max_sequences:
            why = "rows of the batch, beams included; see max_sequences of for_model"
            raise CapacityError("batch size", rows, self.cache.max_sequences, why)

    def _check_length(self, tokens: int) -> None:
        limit, spec = self.cache.max_length, self.cache.plan.spec
        if tokens <= limit:
            return
        if spec is not None and limit == spec.max_length:
            why = "the model is made for no more"
        elif limit < self.cache.plan.tokens:
            why = "max_length of for_model, which is for the prompt and new tokens"
        else:
            why = "there is room for no more; give for_model more memory, or tokens="
        raise CapacityError("length", tokens, limit, f"tokens of one row: {why}") from None

    def _advise(self, error: Exception) -> None:
        """Note on an error about pages what they are to who calls generate()."""
        if isinstance(error, OutOfPages):
            size, length = self.cache.plan.page_size, self.cache.plan.tokens
            error.add_note(
                f"A page has room for {size} tokens; one row alone could have {length:,}. "
                "Give OctavoCache.for_model more memory, or tokens= of all rows together."
            )

    # -- passes --------------------------------------------------------------------------------

    def seat(self, count: int, *, spread: bool) -> None:
        """Have rows for a batch of ``count``: those there are, or rows of nothing.

        Args:
            spread: whether each row there is may go on as several.

        Raises:
            LengthError: another batch size than the rows have. CapacityError: too many rows.
            StepError: the rows went with a pass that failed.

        Cost: O(count).
        """
        if self.lost:
            raise StepError("the last pass failed and its rows are lost; reset() begins new ones")
        if not self.length and all(sequence is None for sequence in self.sequences):
            self._check_room(count)
            self.known, self.sequences = self.shares, [None] * count
            self.real = np.ones((count, 0), np.bool_)
        had = len(self.sequences)
        if spread and count > had and count % had == 0:
            self.select(np.arange(had).repeat(count // had))
        elif count != had:
            why = "as many rows as the batch began with; reset() begins a new one"
            raise LengthError("batch size", count, had, had, why)

    def begin(self, ids: Index | None, real: Bools) -> ModelPass:
        """Open the pass that computes new columns of the rows that are seated.

        Args:
            ids: int64[B, q]; None: they do not say what is computed, so that from here on nothing
                of these rows is found again.
            real: bool[B, q], which of them are tokens.

        Raises:
            OutOfPages: too few pages; nothing was written, and the rows are empty.
            StepError: ids other than those the prompt was said to have.

        Cost: O(B (length + q)).
        """
        try:
            if ids is None and self.known:
                self._forget_unused()
                self.known = False
            self.now, self.idle = self._open(ids, real), RUN_WHOLE
        except Exception as error:
            self._advise(error)
            self._lose()
            raise
        return self.now

    def _open(self, ids: Index | None, real: Bools) -> ModelPass:
        before = self.real.sum(axis=1).tolist()
        news = [self._ids(ids, row, mask) for row, mask in enumerate(real)]
        self._part(news)
        owners = [-1 if s is None else self.batch.row(s) for s in self.sequences]
        first = {row: at for at, row in reversed(list(enumerate(owners)))}
        leaders = [first[row] for row in range(len(self.batch))]
        pairs = list(zip(self.batch, leaders, strict=True))
        counts = [self._learn(sequence, before[row], news[row]) for sequence, row in pairs]
        parts = [self._places(real, row, n) for (_, row), n in zip(pairs, counts, strict=True)]
        places = np.concatenate([np.zeros(0, np.int64), *parts])
        return ModelPass(
            self.cache.extend(self.batch, counts) if any(counts) else None,
            np.array(owners, np.int64),
            np.array(leaders, np.int64),
            np.concatenate([self.real, real], axis=1),
            self.length,
            None if np.array_equal(places, np.arange(real.size)) else places,
        )

    def _part(self, news: list[Index]) -> None:
        """Give rows that were equal and go different ways sequences of their own."""
        seen: dict[Any, Sequence] = {}
        taken: set[Sequence] = set()
        for row, (sequence, new) in enumerate(zip(self.sequences, news, strict=True)):
            if not new.size and sequence is None:
                continue
            key = (sequence, new.tobytes())
            if key not in seen:
                if sequence is None:
                    seen[key] = self._enter(new, reuse=False)
                else:
                    seen[key] = self._fork(sequence) if sequence in taken else sequence
                    taken.add(sequence)
            self.sequences[row] = seen[key]

    def _learn(self, sequence: Sequence, start: int, new: Index) -> int:
        """Let ``sequence`` know its new ids from position ``start`` on; how many it computes."""
        known = sequence.length - start
        given = sequence.tokens()[start:][: new.size] if known > 0 and self.known else new[:0]
        if not np.array_equal(given, new[: given.size]):
            raise StepError(OTHER_IDS)
        self._check_length(start + new.size)
        if known < new.size:
            self.cache.learn(sequence, new[known:])
        end = start + new.size
        count = max(0, end - sequence.computed)
        if self._stateful and self.resumes and count > 1 and end % self.cache.plan.page_size == 0:
            self.cache.keep(sequence, end)
        return count

    @staticmethod
    def _places(real: Bools, row: int, count: int) -> Index:
        """The last ``count`` tokens among the new columns of ``row``, counted over the batch."""
        places: Index = np.flatnonzero(real[row]) + row * real.shape[1]
        return places[places.size - count :]

    def end(self, cut: int = 0) -> None:
        """Close the pass: what it computed counts, but for its last ``cut`` columns. O(rows)."""
        now = self.now
        assert now is not None
        length = now.real.shape[1] - cut
        if now.step is not None:
            kept = None
            if cut:
                gone = now.real[now.leader, length:].sum(axis=1)
                kept = np.maximum(now.step.counts - gone, 0)
            self.cache.commit(now.step, kept=kept)
        self.now, self.real = None, now.real[:, :length]
        if cut:
            self._forget_unused()

    def settle(self) -> None:
        """Close a pass that still waits for `crop`; one whose model failed takes the rows along.

        Raises:
            StepError: another thread runs it.
        """
        if self.now is not None and self.now.done:
            self.end()
        elif self.now is not None:
            if self.now.thread != get_ident():
                raise StepError(
                    "another thread runs a pass on this cache, which serves one at a time"
                )
            self._lose()

    def open_pass(self) -> ModelPass:
        """The pass this thread runs.

        Raises:
            StepError: there is none.
        """
        if self.now is None or self.now.done or self.now.thread != get_ident():
            raise StepError(f"no pass is open: {self.idle}")
        return self.now

    def _lose(self) -> None:
        self.release()
        self.lost = True

    # -- what generate() does to rows ----------------------------------------------------------

    def crop(self, count: int) -> None:
        """Take the last ``count`` columns back.

        Raises:
            LengthError: more than there are.
            RollbackUnsupported: a window or a state does not reach so far back.

        Cost: O(rows + pages given back).
        """
        if count > self.length + (self.now.new if self.now else 0):
            raise LengthError("columns to remove", count, 0, self.length)
        if self.now is not None:
            cut = min(count, self.now.new)
            self.end(cut)
            count -= cut
        if count and self._stateful:
            raise RollbackUnsupported("state", self.length)
        length = self.length - count
        for sequence, gone in zip(self.sequences, self.real[:, length:].sum(axis=1), strict=True):
            if gone and sequence is not None and sequence.length > sequence.computed - gone:
                self.cache.truncate(sequence, sequence.computed - int(gone))
        self.real = self.real[:, :length]

    def select(self, index: Index) -> None:
        """Let row i be what row ``index[i]`` was: beams, copies, or fewer rows. O(rows).

        Raises:
            CapacityError: more rows than ``max_sequences``. LengthError: none, or one not there.
        """
        self.settle()
        self._check_room(index.size)
        check_int("rows to go on with", index.size, 1)
        for at in index.tolist():
            check_int("row", at, 0, len(self.sequences) - 1)
        chosen = [self.sequences[at] for at in index.tolist()]
        for sequence in set(self.batch) - set(chosen):
            self._leave(sequence)
        self.sequences, self.real = chosen, self.real[index]

    def release(self) -> None:
        """Let all rows go; pages that are published stay to be found again. O(pages)."""
        abort_open_steps(self.cache)
        for sequence in self.batch:
            self._leave(sequence)
        self.sequences, self.now = [], None
        self.real = np.ones((0, 0), np.bool_)

    def _leave(self, sequence: Sequence) -> None:
        self.batch.remove(sequence)
        self.cache.release(sequence)


def abort_open_steps(cache: Cache) -> None:
    """Undo every open step: the pass's own, and one that an interrupt left behind. O(rows)."""
    for step in reversed(cache.open_steps):
        cache.abort(step)
