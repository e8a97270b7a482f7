"""Serial replay: one request at a time, answers left out, everything released before the next.

It needs no model of time, and answers one question: how much of the prompts a cache of this size
and policy would have found.
"""

import time

from octavo.cache.cache import Cache
from octavo.cache.results import Stats
from octavo.cache.sequence import Sequence
from octavo.errors import OutOfPages, uncopied
from octavo.model.lifetimes import FULL
from octavo.simulation.report import Run
from octavo.simulation.requests import LONGEST, Ints, Trace
from octavo.simulation.routers import find_router
from octavo.simulation.settings import Progress, Setting
from octavo.simulation.tally import Tally


class SerialReplica:
    """A cache that computes one prompt after the other.

    Attributes:
        cache: the real one.
        load: tokens of all prompts so far.
        tally: what was found.
    """

    __reduce__ = uncopied("it belongs to one cache")

    def __init__(self, cache: Cache) -> None:
        self.cache, plan = cache, cache.plan
        self.load, self.tally = 0, Tally()
        plain = all(group.lifetime == FULL for group in plan.groups.values())
        self._chunk = LONGEST if plain else plan.max_step_tokens

    def serve(self, prompt: Ints, at: int) -> None:
        """Compute a prompt and release it, or refuse it where it can never fit. O(tokens)."""
        self.load += prompt.size
        sequence: Sequence | None = None
        try:
            sequence = self.cache.admit(prompt, limit=prompt.size)
            self._compute(sequence)
        except OutOfPages:
            self.tally.refuse(prompt.size, self.cache.plan.page_size)
        else:
            self.tally.admitted(prompt.size, sequence.cached, self.cache.plan.page_size)
            self.tally.computed_tokens += prompt.size - sequence.cached
            self.tally.timeline.add(at, self.cache.stats(), 1, 0)
        finally:
            if sequence is not None:
                self.cache.release(sequence)
                self._note(self.cache.stats())

    def _compute(self, sequence: Sequence) -> None:
        most = self._chunk
        while sequence.computed < sequence.length:
            stop = min(sequence.next_stop or sequence.length, sequence.length)
            new = min(stop - sequence.computed, most)
            try:
                self.cache.commit(self.cache.extend(sequence, new))
            except OutOfPages:
                if new == 1:
                    raise
                most = new // 2  # windows hold more in a step than they keep

    def _note(self, stats: Stats) -> None:
        self.tally.note(stats)
        self.tally.evicted["prefill"] = stats.evicted


def replay(trace: Trace, setting: Setting, progress: Progress | None = None) -> Run:
    """Run a trace serially.

    Args:
        trace: of its hash ids of 512 tokens each is counted whole, a token of its own follows.
        setting: what to run it on.
        progress: called after every request.

    Raises:
        PlanError: the plan cannot make a cache.

    Cost: O(tokens), about 30 million a second of a page size of 16.
    """
    began = time.perf_counter()
    lengths = [request.serial_length for request in trace.requests]
    replicas = [SerialReplica(setting.cache(lengths, 1)) for _ in range(setting.replicas)]
    router = find_router(setting.router)
    away, page_size = Tally(), setting.plan.page_size
    for done, request in enumerate(trace.requests, start=1):
        length = request.serial_length
        if length > setting.longest:  # before its ids are made: there may be very many
            away.refuse(length, page_size, too_long=setting.too_long(length))
        else:
            at = router.choose(replicas, length, request.serial_prompt)
            replicas[at].serve(request.serial_prompt(), done)
        if progress is not None:
            progress(done, len(trace.requests))
    spent = time.perf_counter() - began
    tallies = [replica.tally for replica in replicas]
    return Run(setting, tallies, away, tells_contents=trace.tells_contents, seconds=spent)
