"""The rows of a batch as sequences of octavo: who is in which row, and which columns are padding.

transformers has a rectangle: as many columns for every row, padding among them. octavo has
sequences: real tokens only, however long. Padding is in no page. Rows that are equal share one
sequence until they differ; then they are forked. Knows ids and masks; no tensors and no models.
"""

from dataclasses import dataclass, field
from threading import get_ident
from typing import Any

import numpy as np
from numpy.typing import NDArray

from octavo.cache.cache import Cache
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.checks import check_int
from octavo.errors import CapacityError, LengthError, RollbackUnsupported, StepError

Bools = NDArray[np.bool_]
Index = NDArray[np.int64]

NAMELESS = 2**30
"""First of as many ids that stand for tokens nobody may find: beyond every vocabulary."""
OTHER_IDS = "these are not the ids that prompt() was told; call it again with them"


@dataclass(eq=False)
class Pass:
    """One forward pass of the model, as a step of octavo.

    Attributes:
        step: of the sequences that have new tokens; None: none has.
        sequences: its sequences, each once.
        owner: int64[B], which of them each row reads; -1: a row of padding so far.
        leader: int64[sequences], the first row that reads each.
        real: bool[B, L], columns that are tokens, those of this pass included.
        past: columns before this pass.
        taken: int64[T], which of the B * (L - past) new columns each token of the step is.
        page_size: tokens a page holds.
        work: what others compute of it once for all layers.
        done: whether the model has run.
        thread: that runs it.
    """

    step: Step | None
    sequences: list[Sequence]
    owner: Index
    leader: Index
    real: Bools
    past: int
    taken: Index
    page_size: int
    work: dict[Any, Any] = field(default_factory=dict)
    done: bool = False
    thread: int = field(default_factory=get_ident)

    @property
    def new(self) -> int:
        """Columns of this pass."""
        return int(self.real.shape[1]) - self.past

    @property
    def positions(self) -> Index:
        """int64[B, L], which token of its row each column is; meaningless at padding. O(B L)."""
        return self.real.cumsum(axis=1, dtype=np.int64) - 1


class Rows:
    """Sequences of a batch, from a prompt to the next one.

    Args:
        cache: where they are admitted.
        shares: whether pages may be found again by their tokens.
        resumes: whether a pass may begin behind pages that were found.

    Attributes:
        cache: as given.
        sequences: of each row, None while it is padding alone; equal rows have the same one.
        real: bool[B, length], columns that are tokens.
        now: the pass that is open.
        waits: whether a pass stays open behind the model, for `crop` to take drafts back.
        known: whether the rows are found again by their ids.
        lost: whether a pass that failed took the rows along, and none were begun since.
    """

    def __init__(self, cache: Cache, *, shares: bool, resumes: bool) -> None:
        self.cache, self.shares, self.resumes = cache, shares, resumes
        self.sequences: list[Sequence | None] = []
        self.real: Bools = np.ones((0, 0), np.bool_)
        self.now: Pass | None = None
        self.waits = self.lost = False
        self.known, self._nameless = shares, 0
        self._stateful = any(g.lifetime.form == "state" for g in cache.plan.groups.values())

    @property
    def length(self) -> int:
        """Columns computed so far, padding included."""
        return int(self.real.shape[1])

    # -- prompts -------------------------------------------------------------------------------

    def prompt(self, ids: Index | None, real: Bools) -> None:
        """Let the rows stand where ``ids`` can go on from: what they hold, or what is published.

        Args:
            ids: int64[B, T], whole prompts; None: unknown, nothing is shared.
            real: bool[B, T], which of the columns are tokens.

        Raises:
            CapacityError: more rows than ``max_sequences``, or longer than ``max_length``.
            NeverFits: a prompt needs more pages than there are. The rows are empty then.

        Cost: O(B T).
        """
        self.settle()
        self.lost = False
        if ids is not None and self.length < ids.shape[1] and self.begins(ids, real):
            self._forget_told()
            return
        self.release()
        self.known = self.shares and ids is not None
        try:
            self._admit(ids, real)
        except BaseException:
            self.release()
            raise

    def begins(self, ids: Index, real: Bools) -> bool:
        """Whether ``ids`` begin with what the rows hold, column by column. O(B length)."""
        length = self.length
        if not length or len(self.sequences) != len(ids) or not self.known:
            return False
        if not np.array_equal(self.real, real[:, :length]):
            return False
        return all(
            seq is None or np.array_equal(seq.tokens()[: had.sum()], row[:length][had])
            for seq, row, had in zip(self.sequences, ids, self.real, strict=True)
        )

    def _forget_told(self) -> None:
        """Ids that were told and not computed are not known any more."""
        for sequence in {s for s in self.sequences if s is not None}:
            if sequence.length > sequence.computed:
                self.cache.truncate(sequence, sequence.computed)

    def _admit(self, ids: Index | None, real: Bools) -> None:
        self._check_room(len(real))
        prompts = [self._ids(ids, row, mask) for row, mask in enumerate(real)]
        self.sequences = self._sequences(prompts, reuse=self.resumes)
        starts = [self._start(*pair) for pair in zip(self.sequences, real, strict=True)]
        start = min(starts)
        if self._stateful and len(set(starts)) > 1:
            self.release()
            self.sequences, start = self._sequences(prompts, reuse=False), 0
        self.real = real[:, :start].copy()

    def _sequences(self, prompts: list[Index], *, reuse: bool) -> list[Sequence | None]:
        """A sequence for each prompt, the same for equal ones; none for padding alone."""
        made: dict[bytes, Sequence] = {}
        for ids in prompts:
            if ids.size and ids.tobytes() not in made:
                self.sequences.append(self._enter(ids, reuse=reuse))
                made[ids.tobytes()] = self.sequences[-1]  # type: ignore[assignment]
        return [made.get(ids.tobytes()) for ids in prompts]

    def _enter(self, ids: Index, *, reuse: bool) -> Sequence:
        return self.cache.admit(ids, reuse=reuse and self.known)

    def _ids(self, ids: Index | None, row: int, mask: Bools) -> Index:
        """A row's new ids; where they tell nothing, ids that nobody else has."""
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
            raise StepError("the last pass failed and took the rows along; reset() begins others")
        if not self.length and all(sequence is None for sequence in self.sequences):
            self._check_room(count)
            self.known, self.sequences = self.shares, [None] * count
            self.real = np.ones((count, 0), np.bool_)
        had = len(self.sequences)
        if spread and count > had and count % had == 0:
            self.select(np.arange(had).repeat(count // had))
        elif count != had:
            why = "as many rows as the batch began with; reset() begins another"
            raise LengthError("batch size", count, had, had, why)

    def begin(self, ids: Index | None, real: Bools) -> Pass:
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
                self._forget_told()
                self.known = False
            self.now = self._open(ids, real)
        except BaseException:
            self._lose()
            raise
        return self.now

    def _open(self, ids: Index | None, real: Bools) -> Pass:
        before, past = self.real.sum(axis=1), self.length
        news = [self._ids(ids, row, mask) for row, mask in enumerate(real)]
        self._part(news)
        counts: dict[Sequence, int] = {}
        leader: dict[Sequence, int] = {}
        for row, (sequence, start, new) in enumerate(
            zip(self.sequences, before.tolist(), news, strict=True)
        ):
            if sequence is not None and sequence not in counts:
                counts[sequence] = self._tell(sequence, start, new)
                leader[sequence] = row
        order = {sequence: number for number, sequence in enumerate(counts)}
        owner = np.array([-1 if s is None else order[s] for s in self.sequences], np.int64)
        taken = [self._columns(real, leader[s], count) for s, count in counts.items()]
        step = self._extend(counts)
        return Pass(
            step,
            list(counts),
            owner,
            np.array([*leader.values()], np.int64),
            np.concatenate([self.real, real], axis=1),
            past,
            np.concatenate(taken) if taken else np.zeros(0, np.int64),
            self.cache.plan.page_size,
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
                    seen[key] = self.cache.fork(sequence)[0] if sequence in taken else sequence
                    taken.add(sequence)
            self.sequences[row] = seen[key]

    def _tell(self, sequence: Sequence, start: int, new: Index) -> int:
        """Let ``sequence`` know its new ids from position ``start`` on; how many it computes."""
        known = sequence.length - start
        told = sequence.tokens()[start:][: new.size] if known > 0 and self.known else new[:0]
        if not np.array_equal(told, new[: told.size]):
            raise StepError(OTHER_IDS)
        if known < new.size:
            self.cache.learn(sequence, new[known:])
        end = start + new.size
        count = max(0, end - sequence.computed)
        if self._stateful and self.resumes and count > 1 and end % self.cache.plan.page_size == 0:
            self.cache.keep(sequence, end)
        return count

    @staticmethod
    def _columns(real: Bools, row: int, count: int) -> Index:
        """The last ``count`` tokens among the new columns of ``row``, counted over the batch."""
        columns: Index = np.flatnonzero(real[row]) + row * real.shape[1]
        return columns[columns.size - count :]

    def _extend(self, counts: dict[Sequence, int]) -> Step | None:
        if not any(counts.values()):
            return None
        return self.cache.extend(list(counts), list(counts.values()))

    def end(self, cut: int = 0) -> None:
        """Close the pass: what it computed counts, but for its last ``cut`` columns. O(rows)."""
        now = self.now
        assert now is not None
        length = now.real.shape[1] - cut
        if now.step is not None:
            gone = now.real[now.leader, length:].sum(axis=1)
            kept = np.maximum(now.step.counts - gone, 0)
            self.cache.commit(now.step, kept=kept.tolist() if cut else None)
        self.now, self.real = None, now.real[:, :length]
        for sequence in now.sequences if cut else ():
            self.cache.truncate(sequence, sequence.computed)

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

    def open_pass(self) -> Pass:
        """The pass this thread runs.

        Raises:
            StepError: there is none.
        """
        if self.now is None or self.now.done or self.now.thread != get_ident():
            raise StepError(
                "no pass is open: run the whole model that the cache was made for; a closed cache "
                "serves none, and reset() within a pass ends it"
            )
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
        for sequence in {s for s in self.sequences if s is not None} - set(chosen):
            self.cache.release(sequence)
        self.sequences, self.real = chosen, self.real[index]

    def release(self) -> None:
        """Let all rows go; pages that are published stay to be found again. O(pages)."""
        for step in reversed(list(self.cache._open)):  # none but this pass's, unless it was cut off
            self.cache.abort(step)
        for sequence in {s for s in self.sequences if s is not None}:
            self.cache.release(sequence)
        self.sequences, self.now = [], None
        self.real = np.ones((0, 0), np.bool_)
