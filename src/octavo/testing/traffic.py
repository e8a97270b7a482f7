"""Requests at random for a scheduler and a mock model, until every one of them has ended.

The mock model keeps in pages what a real one would (`ModelStore`), and its next token follows from
what stands there: a wrong page gives a wrong token. A request's answer is what it gets alone.
Requests come, fork, are cancelled and grow late, tokens are guessed, pools are tiny, and some steps
fail; after every step all laws of the cache are checked, and at each end the promises of the
scheduler.
"""

import warnings
from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from octavo.cache.cache import Cache
from octavo.cache.identity import CrossInput
from octavo.cache.inspection import is_own
from octavo.cache.prompt import Prompt
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.errors import CapacityError, LengthError, NeverFits, uncopied
from octavo.scheduling import HostPages, Scheduler, Turn
from octavo.testing.drawing import Chance, any_shape, pick
from octavo.testing.hosting import MockCopier, MockHost
from octavo.testing.store import ModelStore, Text

TOKENS = 3
"""Token ids: few, so that prompts agree by chance."""
GUESSES = 3
"""Most drafts of a row that has no states."""
GUESSED = 2
"""Last tokens that stood there before, where a guess is looked up."""
PER_WORLD = 40
"""Requests of a world; then all in it end and another one is made."""


@dataclass(eq=False)
class MockRequest:
    """A request of the mock model.

    Attributes:
        prompt, limit, sequence: as the scheduler wants them.
        asked: the prompt, and what the model keeps of it. text: the same with its answer.
        stop: tokens at which it ends; at most the limit.
        cross: its other input.
        number: of all that were added; of a fork its parent's.
        priority, deadline: as it was added.
        fork: which of all forks it is, or 0.
        shift: what its first token is off by: forks begin differently.
        children: how many are to fork off it.
        ahead: those that went before it, at some time.
        begun: step before which it was added.
        preemptions: how often it lost its pages.
        end: how it ended; None: it has not.
    """

    __reduce__ = uncopied("it holds a sequence of one cache")

    prompt: Prompt
    asked: Text
    limit: int
    stop: int
    cross: CrossInput | None
    number: int
    priority: int
    deadline: int | None
    fork: int = 0
    shift: int = 0
    children: int = 0
    begun: int = 0
    preemptions: int = 0
    end: str | None = None
    sequence: Sequence | None = None

    def __post_init__(self) -> None:
        self.text, self.ahead = self.asked.copy(), set[MockRequest]()

    def following(self, read: int) -> int:
        """The token that follows, of what the model has read at the last position. O(1)."""
        first = len(self.text) == len(self.asked)
        return (read + self.shift * first) % TOKENS

    def right(self) -> list[int]:
        """What it must know now, computed without any page. O(tokens)."""
        alone = self.asked.copy()
        while len(alone) < len(self.text):
            shift = self.shift * (len(alone) == len(self.asked))
            alone.add([(alone.contents[-1] + shift) % TOKENS])
        return alone.tokens


class Traffic:
    """One cache, its scheduler, the mock model, and the requests that come.

    Attributes:
        counts: what happened.
        scheduler: under test.
    """

    __reduce__ = uncopied("it has a cache; make another from its seed")

    def __init__(self, chance: Chance, counts: Counter[str]) -> None:
        self._chance, self.counts = chance, counts
        shape = any_shape(chance)
        pages = max(4, shape.num_pages * chance.integer(1, 4) // 4)
        longest = max(1, min(60, (pages - 1) * shape.page_size))
        options = {"max_sequences": chance.integer(1, 12), "max_length": longest}
        self.shape = replace(shape, num_pages=pages, options={**shape.options, **options})
        self.cache = Cache(self.shape.plan(), **self.shape.options)
        self._store = ModelStore(self.shape, lambda *page: is_own(self.cache, *page))
        self._patience = pick(chance, (1, 3, 50))
        self._guesses = pick(chance, ("none", "draft", "lookup"))
        self._preempts, self._fails = chance.integer(0, 4) > 0, chance.integer(0, 3) == 0
        self._room = pick(chance, (0, chance.integer(1, pages), 10**6))
        host = MockHost(self._room, pick(chance, (1e9, 2.0, 0.5)), 1.0)
        copier = MockCopier(self._store, chance if chance.integer(0, 3) == 0 else None)
        self._host = HostPages[MockRequest](self.cache, host, copier)
        self.scheduler = Scheduler[MockRequest](
            self.cache,
            pick(chance, (1, 2, 5, 16, 64)),
            preemption=self._preempts,
            watermark=pick(chance, (0.0, 0.01, 0.1)),
            patience=self._patience,
            host=self._host,
        )
        self.alive = list[MockRequest]()
        self._steps = self._added = self._forked = self._longest = 0
        self._common = [chance.integer(0, TOKENS - 1) for _ in range(self.cache.max_length)]
        forms = {life.form for life in self.shape.lifetimes.values()}
        slides = any(life.slides for life in self.shape.lifetimes.values() if life.form == "tokens")
        kinds = {
            "states": "state" in forms,
            "states and tokens": {"state", "tokens"} <= forms,
            "cross inputs": "cross" in forms,
            "windows": slides,
            "packed pages": self.cache.plan.packed,
        }
        self._kinds = [f"with {name}" for name, has in kinds.items() if has]

    def run(self, requests: int) -> None:
        """Let so many requests come, and all of them end.

        Raises:
            AssertionError: a law or promise does not hold.
        """
        while requests or self.scheduler:
            while requests and (not self.scheduler or not self._chance.integer(0, 3)):
                self._submit()
                requests -= 1
            self._cancel_one(20)
            for late in self.scheduler.expire(self._steps):
                assert late.deadline is not None
                assert late.deadline <= self._steps, "early"
                self._ended(late, "deadline")
            assert all(
                each.deadline is None or each.deadline > self._steps for each in self.alive
            ), "late"
            self._step()
            self.cache.check()
            assert self._host.used_bytes <= self._room, "more in host memory than there is"
            assert {*self._host.saved} <= {*self.scheduler.waiting}, "saved of one that runs"
        stats = self.cache.stats()
        assert (stats.live, stats.sequences, len(self.alive)) == (0, 0, 0), "left behind"
        assert not self._host.used_bytes, "left in host memory"
        self.counts.update(preemptions=stats.preemptions, evicted=stats.evicted)
        self.counts.update(restored=self._host.restored_tokens)
        self.counts.update(steps=self._steps, cached=stats.cached_tokens)
        self.counts.update(dict.fromkeys(self._kinds, self._added))

    # -- requests ------------------------------------------------------------------------------

    def _submit(self) -> None:
        chance, most = self._chance, self.cache.max_length
        limit = chance.integer(1, most + 1)
        size = chance.integer(1, pick(chance, (limit, -(-limit // 4))))
        common = chance.integer(0, size)
        tokens = self._common[:common] + [
            chance.integer(0, TOKENS - 1) for _ in range(common, size)
        ]
        cross = None
        if self.shape.of_form("cross") and chance.integer(0, 2):
            length = chance.integer(1, 6)
            cross = CrossInput(bytes([length]), length)
        request = MockRequest(
            prompt=Prompt(tokens, (cross,) if cross else ()),
            asked=Text(tokens, (cross.length,) if cross else ()),
            limit=limit,
            stop=chance.integer(min(size + 1, limit), limit),
            cross=cross,
            number=self._added,
            priority=pick(chance, (0, 0, 0, 1, 1, 2, -1)),
            deadline=None if chance.integer(0, 4) else self._steps + chance.integer(0, 60),
            children=chance.integer(1, 3) if limit > size and not chance.integer(0, 5) else 0,
        )
        try:
            self.scheduler.add(request, priority=request.priority, deadline=request.deadline)
        except (NeverFits, CapacityError):
            self.counts["refused"] += 1
        else:
            self._added += 1
            self._enter(request)

    def _enter(self, request: MockRequest) -> None:
        """Note who goes before whom. O(alive)."""
        self._longest = max(self._longest, request.limit)
        request.begun = self._steps
        for other in self.alive:
            one, two = (request, other) if self._before(request, other) else (other, request)
            two.ahead.add(one)
        self.alive.append(request)

    def _before(self, one: MockRequest, other: MockRequest) -> bool:
        """The stated order: a priority is worth `patience` arrivals; a fork follows its parent."""
        lead = self._patience * (one.priority - other.priority) - (one.number - other.number)
        if lead or one.priority != other.priority:
            return lead > 0 or (lead == 0 and one.priority > other.priority)
        return one.fork < other.fork

    def _cancel_one(self, rarely: int) -> None:
        if self.alive and not self._chance.integer(0, rarely):
            request = pick(self._chance, self.alive)
            self.scheduler.remove(request)
            self._ended(request, "cancelled")

    def _ended(self, request: MockRequest, how: str) -> None:
        """A request has ended: with the right tokens, and within what was promised."""
        request.end = how
        self.alive.remove(request)
        self.counts[how] += 1
        assert request not in self.scheduler
        assert request.sequence is None
        assert request.text.tokens == request.right(), "wrong tokens"
        ahead = request.ahead
        assert request.preemptions <= len(ahead), f"{request.preemptions} for {len(ahead)} ahead"
        later = sum(each.number > request.number for each in ahead if not each.fork)
        highest = max((each.priority for each in ahead), default=request.priority)
        assert later <= self._patience * max(0, highest - request.priority), f"{later} overtook"
        if not self._fails:
            bound = sum(each.limit + self._longest for each in (request, *ahead))
            bound *= 1 + self.cache.plan.packed  # alone there, each may begin anew, once
            assert self._steps - request.begun <= bound, f"more than {bound} steps"

    # -- steps ---------------------------------------------------------------------------------

    def _step(self) -> None:
        first = min(self.alive, key=lambda each: len(each.ahead & {*self.alive}), default=None)
        ran = [*self.scheduler.running]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", RuntimeWarning)  # of copies that fail
            turn = self.scheduler.schedule(self._drafts())
        if turn is None:
            assert not self.alive
            return
        lost = [request for request in ran if request not in self.scheduler.running]
        for request in lost:
            request.preemptions += 1
        assert first not in lost, "the first was preempted"
        assert self._preempts or self.cache.plan.packed or not lost, "one was preempted"
        running, waiting = [*self.scheduler.running], self.scheduler.waiting
        for items in (running, waiting):
            assert all(map(self._before, items, items[1:])), "not in order"
        if self._fails and not self._chance.integer(0, 9):
            self._fail(turn)
        else:
            self._finish(turn)
        self._steps += 1

    def _fail(self, turn: Turn[MockRequest]) -> None:
        """The model raises for one of the requests: halves of halves find it, the others go on."""
        self._run(turn.step, turn.requests)
        self.cache.abort(turn.step)
        culprit = pick(self._chance, turn.requests)
        parts = [turn.requests]
        while parts:
            part = parts.pop()
            if culprit.end or culprit not in part:
                again = self.scheduler.part(turn, part)
                if again is not None:
                    self._finish(again)
            elif len(part) > 1:
                parts += [part[: len(part) // 2], part[len(part) // 2 :]]
            else:
                self.scheduler.remove(culprit)
                self._ended(culprit, "failed")

    def _drafts(self) -> dict[MockRequest, int]:
        """How many tokens are guessed for whom; states must be able to take them back."""
        rollback = self.shape.options["rollback"] if self.shape.of_form("state") else GUESSES
        if self._guesses == "none" or not rollback:
            return {}
        ran = [each for each in self.scheduler.running if len(each.text) > len(each.asked)]
        return {
            each: self._chance.integer(1, rollback)
            for each in ran
            if self._chance.integer(0, 2) and self._guess(each.text) is not None
        }

    def _guess(self, text: Text) -> int | None:
        """What may follow: what did before, or three times of four what will. O(len(text))."""
        if self._guesses == "draft":
            return (text.contents[-1] + (not self._chance.integer(0, 3))) % TOKENS
        known, last = text.tokens, text.tokens[-GUESSED:]
        for end in range(len(known) - 1, GUESSED - 1, -1):
            if known[end - GUESSED : end] == last:
                return known[end]
        return None

    def _run(self, step: Step, requests: Items[MockRequest]) -> list[list[int]]:
        """Every read is compared with what the row's own tokens would have written.

        Returns:
            The drafts of each row, some of them right.
        """
        contents, drafts = [], []
        for request, context in zip(requests, step.context.tolist(), strict=True):
            text = request.text.copy()
            while len(text) < context:
                text.add([self._guess(text) or 0])
            contents.append(text.contents)
            drafts.append(text.tokens[len(request.text) :])
        step.input_ids[step.unknown.at] = [token for each in drafts for token in each]
        self._store.run(step, contents, [request.cross for request in requests])
        if any(drafts):
            self.counts[f"{self._guesses}s guessed"] += sum(map(len, drafts))
        return drafts

    def _finish(self, turn: Turn[MockRequest]) -> None:
        """Run a step, learn its tokens, end and fork what is to."""
        step, requests = turn.step, turn.requests
        assert min(step.counts.tolist()) > 0
        drafts, wanted = self._run(step, requests), step.wants_token.tolist()
        found = [
            self._verified(step, row, request, drafts[row]) if wanted[row] else []
            for row, request in enumerate(requests)
        ]
        self._cancel_one(60)  # while the step is open
        learned = [len(tokens) for tokens in found]
        rejected = [len(each) - max(n - 1, 0) for each, n in zip(drafts, learned, strict=True)]
        flat = np.array([token for tokens in found for token in tokens], np.int32)
        self.cache.commit(step, (flat, np.array(learned)), kept=step.counts - np.array(rejected))
        for request, tokens, context in zip(requests, found, step.context.tolist(), strict=True):
            if request.end:
                continue
            if len(tokens) > 1:
                self.counts[f"{self._guesses}s accepted"] += len(tokens) - 1
            if tokens:
                request.text.add(tokens)
                self._let_fork(request)
            if len(request.text) == request.stop and (tokens or context == request.stop):
                self.scheduler.remove(request)
                self._ended(request, "finished")

    def _verified(self, step: Step, row: int, request: MockRequest, drafts: list[int]) -> list[int]:
        """The tokens that follow, up to the first that was guessed wrong, or where it ends."""
        tokens = list[int]()
        for back in range(len(drafts), -1, -1):
            tokens.append(request.following(self._read(step, row, back)))
            if tokens != drafts[: len(tokens)] or len(request.text) + len(tokens) == request.stop:
                break
        return tokens

    def _read(self, step: Step, row: int, back: int) -> Any:
        """What stands in the pages at a row's last position but so many. O(columns)."""
        at = int(step.context[row]) - 1 - back
        for name, life in self.shape.lifetimes.items():
            if life.form == "tokens":
                column, offset = divmod(at, self.shape.page_size)
                page = int(step.group(name).table[row, column])
                return self._store.page(name, page)[offset]
            if life.form == "state":
                return self._store.page(name, int(step.group(name).table[row, back, 0]))[0][2]
        raise AssertionError("a shape has tokens or states")

    def _let_fork(self, parent: MockRequest) -> None:
        """Where a request has its first token, others begin beside it with other ones."""
        count, parent.children = parent.children, 0
        for shift in range(1, count + 1):
            self._forked += 1
            child = replace(
                parent, fork=self._forked, shift=shift, preemptions=0, children=0, sequence=None
            )
            token = child.following(parent.asked.contents[-1])
            runs = self.scheduler.fork(parent, child, token)
            self.counts["forked" if runs else "forked later"] += 1
            self._enter(child)
            if runs:
                child.text.add([token])
            if len(child.text) == child.stop:
                self.scheduler.remove(child)
                self._ended(child, "finished")


def traffic(requests: int, seed: int) -> Counter[str]:
    """Drive so many requests through worlds of all kinds; what happened.

    Raises:
        AssertionError: a law or promise does not hold; the message names the seed and the world.

    Cost: about 1 ms per token.
    """
    counts, world = Counter[str](), 0
    while requests > 0:
        count = min(requests, PER_WORLD)
        requests -= count
        run_traffic(count, seed, world, counts)
        world += 1
    return counts


def run_traffic(requests: int, seed: int, number: int, counts: Counter[str]) -> Traffic | None:
    """One world from beginning to end; None where its pool holds no table of a sequence."""
    chance = Chance(f"traffic {seed}/{number}")
    try:
        world = Traffic(chance, counts)
    except LengthError:
        return None
    try:
        world.run(requests)
    except Exception as error:
        where = f"seed {seed}, world {number} ({world.shape})"
        raise AssertionError(f"{where}: {error!r}") from error
    return world
