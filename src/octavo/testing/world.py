"""A cache, a model store and plain lists side by side: every verb, and what must hold after it.

Only the public interface of the cache is used, but for `World.writable` and `World.frozen`, which
an engine author may override for a cache of their own together with `World.make_cache`.
"""

import hashlib
from collections import Counter
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np

from octavo.cache.batch import Batch
from octavo.cache.cache import Cache
from octavo.cache.identity import Extra, Identity, read_extras
from octavo.cache.inspection import is_own
from octavo.cache.prompt import Prompt
from octavo.cache.results import Committed, Pin
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.errors import OctavoError, OutOfPages, StepError, uncopied
from octavo.testing.freezing import Frozen, freeze
from octavo.testing.router import Router
from octavo.testing.shapes import Shape
from octavo.testing.store import ModelStore, Text

HISTORY = 6
_T = TypeVar("_T")


@dataclass(eq=False)
class Record:
    """One admitted sequence.

    Attributes:
        text: what it knows.
        drafts: ids beyond, that open steps assume.
    """

    handle: Sequence
    text: Text
    identity: Identity
    guaranteed: bool = False
    drafts: list[int] = field(default_factory=list)


@dataclass(eq=False)
class OpenStep:
    """One open step.

    Attributes:
        ids: of each row's positions 0 .. context - 1, drafts included.
        gone: rows that were preempted or released since.
    """

    step: Step
    rows: tuple[Record, ...]
    ids: list[list[int]]
    gone: set[Record] = field(default_factory=set)


class World:
    """One cache under test.

    Attributes:
        freeze_every: of that many verbs that may raise one is compared by all its state.
        live: rows admitted and not released, oldest first.
        opened: open steps, oldest first.
        batches: handles of rows that step together.
        histories: ids of the latest prompts and sequences, to draw shared prefixes from.
        counts: how often verbs were called, errors were raised and paths taken.
        ran_out: whether the last verb that could raise found too few pages.
    """

    __reduce__ = uncopied("it has a cache; make another of its shape")

    freeze_every = 31

    def __init__(self, shape: Shape) -> None:
        self.shape, self.counts = shape, Counter[str]()
        self.router = Router(shape) if shape.listens else None
        self.cache = self.make_cache(shape)
        self.store = ModelStore(shape, self.writable)
        self.live: list[Record] = []
        self.released: list[Sequence] = []
        self.opened: list[OpenStep] = []
        self.batches: list[Batch] = [self.cache.batch()]
        self.pins: list[Pin] = []
        self.histories: list[list[int]] = []
        self.totals = {"prompt_tokens": 0, "cached_tokens": 0, "preemptions": 0}
        self._mirrors: dict[Batch, dict[str, dict[tuple[int, int], int]]] = {}
        self._digest, self._attempts, self.ran_out = hashlib.sha256(), 0, False

    # -- what an own cache overrides -----------------------------------------------------------

    def make_cache(self, shape: Shape) -> Cache:
        """The cache under test."""
        return Cache(shape.plan(), on_event=self.router, **shape.options)

    def writable(self, group: str, page: int) -> bool:
        """Whether a page may be written: one holder, not published."""
        return is_own(self.cache, group, page)

    def frozen(self) -> Frozen:
        """All state of the cache, to be compared; what lost handles held is taken back first."""
        self.cache.check()
        return freeze(self.cache)

    # -- admitting and ending ------------------------------------------------------------------

    def admit(
        self,
        tokens: list[int],
        *,
        extra: Items[Extra] = (),
        allowed: tuple[type[OctavoError], ...] = (OutOfPages,),
        **options: Any,
    ) -> Record | None:
        """Look first, then admit; None where it is refused."""
        identity, match = read_extras(extra), self.peek(tokens, extra)
        handle = self.attempt(lambda: self._admit(tokens, extra, options), *allowed)
        if handle is None:
            return None
        row = Record(handle, Text(tokens, identity.root, identity.media), identity)
        if not any(other.guaranteed for other in self.live) and not options.get("guarantee"):
            assert handle.cached == (match if options.get("reuse", True) else 0)
        assert handle.cached <= match
        row.guaranteed = bool(options.get("guarantee"))
        self.live.append(row)
        self.remember(tokens)
        self.totals["prompt_tokens"] += len(tokens)
        self.totals["cached_tokens"] += handle.cached
        self._note("admit", handle.cached)
        self.counts["hits"] += handle.cached > 0
        return row

    def _admit(self, tokens: list[int], extra: Items[Extra], options: Any) -> Sequence:
        """Of plain ids and, every other time, of a prompt that was looked up before."""
        if "cross" in options or self.counts["admit"] % 2:
            return self.cache.admit(tokens, extra=extra, **options)
        prompt = Prompt(tokens, extra)
        self.cache.fits([(prompt, len(prompt))])
        return self.cache.admit(prompt, **options)

    def peek(self, tokens: list[int], extra: Items[Extra] = ()) -> int:
        """What is found, compared with what the events say."""
        match, prompt = self.cache.peek(tokens, extra=extra), Prompt(tokens, extra)
        assert match == self.cache.peek(prompt), "ids and the prompt of them differ"
        why = self.cache.explain_match(prompt)
        assert (match.tokens, match.by_group) == (why.tokens, why.by_group)
        assert match.tokens <= min(match.by_group.values())
        if self.router is not None:
            found, alone = self.router.predict(tokens, read_extras(extra))
            assert not alone or found == match.tokens, "events tell of another hit"
            assert alone.items() <= match.by_group.items(), "events tell of other groups' hits"
        return match.tokens

    def release(self, row: Record) -> None:
        """End a row."""
        self.remember(row.text.tokens)
        self.cache.release(row.handle)
        self.live.remove(row)
        self._leave_steps(row)
        self.released = [*self.released, row.handle][-4:]
        self._note("release")

    def forget(self, row: Record) -> None:
        """Drop the handle of a row that is in no step and no batch: its pages must come back."""
        self.live.remove(row)
        for opened in self.opened:
            assert row not in opened.rows
        self._note("forget")

    def pin(self, tokens: list[int]) -> None:
        """Hold a prefix."""
        pin = self.attempt(lambda: self.cache.pin(tokens), OutOfPages)
        if pin is not None:
            self.pins.append(pin)
            self._note("pin", pin.tokens)

    def reset(self) -> None:
        """Forget all prefixes, where nothing is held."""
        self.cache.reset()
        self._note("reset")

    # -- stepping ------------------------------------------------------------------------------

    def extend(
        self,
        rows: list[Record],
        counts: list[int],
        allowed: tuple[type[OctavoError], ...] = (),
        *,
        batch: Batch | None = None,
        ahead: int = 0,
        draft: Callable[[], int] = lambda: 0,
    ) -> OpenStep | None:
        """A step, run on the store; None where it is refused, which a guaranteed row never is.

        Args:
            batch: the batch that has these rows; None: they are given as a list.
            draft: the next id beyond the known ones.
        """
        need = self._need(rows, counts, ahead)
        what = self.as_rows(rows, batch)
        count = counts[0] if len(set(counts)) == 1 else counts
        step = self.attempt(
            lambda: self.cache.extend(what, count, ahead=ahead), OutOfPages, *allowed
        )
        if step is None:
            assert not self.ran_out or not all(row.guaranteed for row in rows), "not as promised"
            return None
        self._check_need(step, need)
        opened = OpenStep(step, tuple(rows), self._ids(step, rows, draft))
        self.store.run(step, self._contents(opened), [row.identity.cross for row in rows])
        self.opened.append(opened)
        if batch is not None and what is batch:
            self._follow(batch, step)
        self.counts["extends of lists" if batch is None else "extends of batches"] += 1
        self._note("extend", *_step_arrays(step))
        return opened

    def as_rows(self, rows: list[Record], batch: Batch | None) -> Batch | list[Sequence]:
        """How rows are given to the cache."""
        return [row.handle for row in rows] if batch is None else batch

    def commit(
        self,
        learned: list[list[int]],
        kept: list[int],
        form: Callable[[list[list[int]]], Any] = lambda learned: learned,
        allowed: tuple[type[OctavoError], ...] = (),
    ) -> Committed | None:
        """Commit the oldest step; None where it is refused."""
        opened = self.opened[0]
        cut = None if kept == opened.step.counts.tolist() else kept
        done = self.attempt(
            lambda: self.cache.commit(opened.step, form(learned), kept=cut), *allowed
        )
        if done is None:
            return None
        self.opened.pop(0)
        later = {row for other in self.opened for row in other.rows}
        for row, new in zip(opened.rows, learned, strict=True):
            if row in opened.gone:
                continue
            row.text.add(new)
            row.drafts = row.drafts[len(new) :] if row in later else []
        self._check_repointed(done)
        self.counts["repointed"] += len(done.repointed)
        self.counts["dropped"] += done.dropped
        moved = [(entry.group, entry.column, entry.old, entry.new) for entry in done.repointed]
        self._note("commit", done.published, done.dropped, moved)
        return done

    def abort(self) -> None:
        """Undo the newest step."""
        opened = self.opened.pop()
        self.cache.abort(opened.step)
        for row in opened.rows:
            if not any(row in other.rows for other in self.opened):
                row.drafts = []
        self._note("abort")

    # -- going back, sharing, making room ------------------------------------------------------

    def truncate(
        self, row: Record, length: int, *allowed: type[OctavoError], exclusive: bool = False
    ) -> None:
        """Forget ids from ``length`` on."""
        computed = row.handle.computed
        reached = self.attempt(
            lambda: self.cache.truncate(row.handle, length, exclusive=exclusive), *allowed
        )
        if reached is None:
            return
        assert reached == row.handle.computed <= min(length, computed)
        if not self.shape.of_form("state"):
            assert reached == min(length, computed)
        row.text.cut(length)
        row.drafts = []
        self._note("truncate", reached)

    def fork(self, row: Record, n: int, *allowed: type[OctavoError]) -> None:
        """Further rows that share what ``row`` has."""
        children = self.attempt(lambda: self.cache.fork(row.handle, n), *allowed)
        for child in children or ():
            assert child.computed == row.handle.computed
            self.live.append(Record(child, row.text.copy(), row.identity))
        self._note("fork", n)

    def preempt(self, row: Record) -> None:
        """Take a row's pages away."""
        self.cache.preempt(row.handle)
        row.drafts = []
        self._leave_steps(row)
        self.totals["preemptions"] += 1
        self._note("preempt")

    def resume(self, row: Record) -> None:
        """Let it go on; what it finds is no hit of a prompt."""
        reached = self.attempt(lambda: self.cache.resume(row.handle), OutOfPages)
        if reached is not None:
            assert reached == row.handle.computed <= max(0, len(row.text) - 1)
            self._note("resume", reached)

    # -- laws ----------------------------------------------------------------------------------

    def check(self) -> None:
        """All that must hold between two verbs. O(pages + tokens)."""
        self.cache.check()
        stats = self.cache.stats()
        assert stats.live + stats.evictable + stats.free == stats.pages
        assert stats.sequences == len(self.live)
        assert stats.live <= stats.peak_live <= stats.pages
        assert self.totals == {name: getattr(stats, name) for name in self.totals}
        if sum(self.counts.values()) % 8 == 0:
            assert all(count >= 0 for count in self.cache.available().values())
        for row in self.live:
            handle = row.handle
            assert handle.length == len(row.text) <= handle.limit
            assert handle.tokens().tolist() == row.text.tokens

    def finish(self) -> None:
        """Release everything: not a page may be missing, and no node of the index left."""
        while self.opened:
            self.abort()
        for row in list(self.live):
            self.release(row)
        for pin in self.pins:
            pin.release()
        self.pins = []
        self.check()
        assert self.cache.stats().live == 0
        self.cache.reset()
        self.check()
        stats = self.cache.stats()
        assert stats.free == stats.pages

    def attempt(self, verb: Callable[[], _T], *allowed: type[OctavoError]) -> _T | None:
        """What ``verb`` returns, or None where it raises one of ``allowed`` and changes nothing."""
        self._attempts += 1
        compared = self._attempts % self.freeze_every == 0
        before = self.frozen() if compared else None
        self.ran_out = False
        try:
            return verb()
        except OctavoError as error:
            kind, said = type(error), repr(error)  # the error itself would keep handles alive
        assert issubclass(kind, allowed), f"unexpected {said}"
        assert not compared or before == self.frozen(), f"{said} left something changed"
        self.ran_out = issubclass(kind, OutOfPages)
        self._note(kind.__name__)
        return None

    def refuse(self, kind: type[OctavoError], verb: Callable[[Cache], object]) -> None:
        """``verb`` must raise exactly ``kind`` and change nothing at all."""
        before = self.frozen()
        try:
            raised, said = None, repr(verb(self.cache))
        except OctavoError as error:
            raised, said = type(error), repr(error)
        assert raised is kind, f"{kind.__name__} was expected, {said} came"
        assert before == self.frozen(), f"{kind.__name__} left something changed"
        self.counts["refused"] += 1

    @property
    def digest(self) -> str:
        """SHA-256 over every result and every array of every step so far."""
        return self._digest.hexdigest()

    def remember(self, tokens: list[int]) -> None:
        """Keep ids to draw prompts from."""
        if tokens and tokens not in self.histories:
            self.histories = [*self.histories, list(tokens)][-HISTORY:]

    def batched(self, batch: Batch) -> list[Record]:
        """The rows of a batch, those released left out."""
        rows = {row.handle: row for row in self.live}
        return [rows[handle] for handle in batch if handle in rows]

    # -- inside --------------------------------------------------------------------------------

    def _leave_steps(self, row: Record) -> None:
        for opened in self.opened:
            if row in opened.rows:
                opened.gone.add(row)

    def _ids(self, step: Step, rows: list[Record], draft: Callable[[], int]) -> list[list[int]]:
        """What each row reads; drafts are written into the step, as an engine does."""
        found = []
        for row, context in zip(rows, step.context.tolist(), strict=True):
            while len(row.text) + len(row.drafts) < context:
                row.drafts.append(draft())
            found.append((row.text.tokens + row.drafts)[:context])
        starts, ids = step.query_start.tolist(), step.input_ids.tolist()
        for at, (row, past) in enumerate(zip(rows, step.past.tolist(), strict=True)):
            known = row.text.tokens[past : past + int(step.counts[at])]
            assert known == ids[starts[at] : starts[at] + len(known)]
            assert not any(ids[starts[at] + len(known) : starts[at + 1]])
            drafts = found[at][past + len(known) :]
            step.input_ids[starts[at + 1] - len(drafts) : starts[at + 1]] = drafts
        return found

    def _contents(self, opened: OpenStep) -> list[list[int]]:
        contents = []
        for row, ids in zip(opened.rows, opened.ids, strict=True):
            known = len(row.text)
            if len(ids) <= known:
                contents.append(row.text.contents)
                continue
            text = row.text.copy()
            text.add(ids[known:])
            contents.append(text.contents)
        return contents

    def _need(self, rows: list[Record], counts: list[int], ahead: int) -> dict[str, int] | None:
        """What `Cache.need` announces; it knows no limits and drafts."""
        within = all(
            r.handle.scheduled + n <= r.handle.limit for r, n in zip(rows, counts, strict=True)
        )
        if ahead or not any(counts) or not within or any(row.handle.preempted for row in rows):
            return None
        try:
            return self.cache.need([row.handle for row in rows], counts)
        except StepError:  # which extend raises too
            return None

    def _check_need(self, step: Step, need: dict[str, int] | None) -> None:
        for name, count in (need or {}).items():
            taken = int(step.array[step.group_number(name)])
            assert taken == count, f"need said {count} pages of {name}, {taken} were taken"

    def _check_repointed(self, done: Committed) -> None:
        for entry in done.repointed:
            old = self.store.page(entry.group, entry.old)
            assert old == self.store.page(entry.group, entry.new), "repointed to another content"

    def _follow(self, batch: Batch, step: Step) -> None:
        """A mirror that applies every delta has the tables the step has."""
        mirror = self._mirrors.setdefault(batch, {})
        for name, (rows, columns, pages) in step.delta.items():
            places = zip(rows.tolist(), columns.tolist(), strict=True)
            mirror.setdefault(name, {}).update(zip(places, pages.tolist(), strict=True))
        for name in self.shape.of_form("tokens"):
            table, entries = step.group(name).table, mirror.get(name, {})
            found = np.zeros_like(table)
            for (row, column), page in entries.items():
                if row < table.shape[0] and column < table.shape[1]:
                    found[row, column] = page
                else:
                    assert page == 0 or row >= table.shape[0], "a delta beyond the table"
            assert (found == table).all(), f"deltas of {name} do not give its table"

    def _note(self, *items: object) -> None:
        self._digest.update(repr(items).encode())
        self.counts[str(items[0])] += 1


def _step_arrays(step: Step) -> list[list[Any]]:
    """What a step says, tables without what pads them."""
    arrays = [step.counts, step.input_ids, step.positions, step.past, step.last, step.wants_token]
    views = [array for name in step.groups for array in step.group(name)]
    lists = [array.tolist() for array in arrays]
    lists += [
        [entry for entry in array.ravel().tolist() if entry] if array.ndim == 2 else array.tolist()
        for array in views
    ]
    moves = [pair for part in (step.copies, step.snapshots) for pair in part.values()]
    return lists + [side.tolist() for pair in moves for side in pair]
