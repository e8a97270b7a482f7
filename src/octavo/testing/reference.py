"""The cache as a page of plain Python: slow, obvious, and the judge of the real one.

It has the same verbs, raises the same errors, and knows no physical pages: a page is either *open*
(held by one request, anonymous) or named by its *chain*, the tuple of all tokens up to its end. So
it can predict what is matched, what is evicted and what is refused, but not where anything lies.
Exact for one full-attention group and least-recently-used eviction.
"""

from dataclasses import dataclass, field

from octavo.errors import (
    CapacityError,
    DuplicateSequence,
    LengthError,
    NeverFits,
    OutOfPages,
    StepError,
)

Chain = tuple[int, ...]


@dataclass(eq=False)
class Request:
    """One admitted sequence; ``tokens[:computed]`` have KV, ``held`` pages are its own or shared.

    Attributes:
        chains: its leading pages that are published, by chain.
    """

    id: object
    tokens: list[int]
    limit: int
    promised: int
    chains: list[Chain] = field(default_factory=list)
    cached: int = 0
    computed: int = 0
    scheduled: int = 0
    held: int = 0

    @property
    def owed(self) -> int:
        """Pages guaranteed and not yet taken."""
        return max(0, self.promised - self.held)


@dataclass(frozen=True, eq=False)
class Pass:
    """An open step: each request's new positions, and where it began."""

    requests: tuple[Request, ...]
    counts: tuple[int, ...]
    past: tuple[int, ...]


class Reference:
    """What a Cache with the same arguments must do.

    Attributes:
        published: holders of every published chain.
        idle: the published chains nobody holds, next to be evicted first.
        free: pages that hold nothing.
        requests: admitted and not released, oldest first.
        opened: open steps.
        evicted: chains evicted so far.
        peak: most pages held at once.
    """

    def __init__(
        self, usable: int, page_size: int, max_sequences: int, max_length: int, *, prefix: bool
    ) -> None:
        self.usable, self.page_size, self.prefix = usable, page_size, prefix
        self.max_sequences, self.max_length = max_sequences, max_length
        self.published: dict[Chain, int] = {}
        self.idle: dict[Chain, None] = {}
        self.free = usable
        self.requests: list[Request] = []
        self.opened: list[Pass] = []
        self.evicted = self.peak = 0

    # -- looking -------------------------------------------------------------------------------

    @property
    def live(self) -> int:
        """Pages somebody holds."""
        return self.usable - self.free - len(self.idle)

    @property
    def available(self) -> int:
        """Pages that can be taken without touching what is guaranteed."""
        return self.free + len(self.idle) - sum(request.owed for request in self.requests)

    def pages(self, length: int) -> int:
        """Pages of ``length`` tokens."""
        return -(-length // self.page_size)

    def match(self, tokens: list[int]) -> list[Chain]:
        """The published chains that begin ``tokens``; one token is always left to compute."""
        found: list[Chain] = []
        for end in range(self.page_size, len(tokens), self.page_size):
            chain = tuple(tokens[:end])
            if chain not in self.published:
                break
            found.append(chain)
        return found

    def pending(self, tokens: list[int]) -> int:
        """Pages of ``tokens`` that will be published by what requests are computing now."""
        if not self.prefix:
            return 0
        shared = [
            _common(tokens[:-1], request.tokens) // self.page_size
            for request in self.requests
            if request.computed < len(request.tokens)
        ]
        return max(0, max(shared, default=0) - len(self.match(tokens)))

    def short(self, asked: list[tuple[Request | list[int], int]]) -> int:
        """Pages missing for all of ``asked`` to run to their limits at once."""
        need, there = 0, self.available
        pinned: set[Chain] = set()
        for item, limit in asked:
            if isinstance(item, Request):
                there += item.owed
                need += max(0, self.pages(limit) - item.held)
            else:
                found = self.match(item)
                pinned.update(chain for chain in found if chain in self.idle)
                need += max(0, self.pages(limit) - len(found))
        return max(0, need - there + len(pinned))

    # -- verbs ---------------------------------------------------------------------------------

    def admit(
        self, tokens: list[int], limit: int | None, id: object, *, reuse: bool, guarantee: bool
    ) -> Request:
        """As `Cache.admit`, the limit in full."""
        bound = self.max_length if limit is None else limit
        need = self.pages(len(tokens) if limit is None else bound)
        if need > self.usable:
            raise NeverFits(need, self.usable, {"full": need - self.usable})
        if bound > self.max_length:
            raise CapacityError("limit", bound, self.max_length)
        if len(tokens) > bound:
            raise CapacityError("len(tokens)", len(tokens), bound)
        if id is not None and any(request.id == id for request in self.requests):
            raise DuplicateSequence(id)
        if len(self.requests) == self.max_sequences:
            raise CapacityError("max_sequences", self.max_sequences + 1, self.max_sequences)
        chains = self._pinnable(self.match(tokens)) if reuse else []
        promised = self.pages(bound) if guarantee else 0
        idle = sum(chain in self.idle for chain in chains)
        if guarantee and promised - len(chains) > self.available - idle:
            self._refuse(promised - len(chains), self.available - idle)
        request = Request(id, list(tokens), bound, promised, chains)
        for chain in chains:
            self._hold(chain)
        request.held = len(chains)
        request.cached = request.computed = request.scheduled = len(chains) * self.page_size
        self.requests.append(request)
        self.peak = max(self.peak, self.live)
        return request

    def extend(self, requests: list[Request], counts: list[int], ahead: int) -> Pass:
        """As `Cache.extend`, one count a request."""
        if self.opened:
            raise StepError("open")
        news = [self._clip(*pair, ahead) for pair in zip(requests, counts, strict=True)]
        if not any(news):
            raise CapacityError("length", requests[0].scheduled + counts[0], requests[0].limit)
        ends = [r.scheduled + new for r, new in zip(requests, news, strict=True)]
        needs = [max(0, self.pages(end) - r.held) for r, end in zip(requests, ends, strict=True)]
        own = sum(min(need, r.owed) for r, need in zip(requests, needs, strict=True))
        if sum(needs) > self.available + own:
            self._refuse(sum(needs), self.available + own)
        while self.free < sum(needs):
            self._evict()
        self.free -= sum(needs)
        step = Pass(tuple(requests), tuple(news), tuple(r.scheduled for r in requests))
        for request, end, need in zip(requests, ends, needs, strict=True):
            request.scheduled, request.held = end, request.held + need
        self.opened.append(step)
        self.peak = max(self.peak, self.live)
        return step

    def commit(self, step: Pass, learned: list[list[int]], kept: list[int]) -> None:
        """As `Cache.commit`, in full: the ids each request learns, the positions it keeps."""
        rows = [
            (request, new, past + keep)
            for request, new, past, keep in zip(
                step.requests, learned, step.past, kept, strict=True
            )
            if request in self.requests
        ]
        for request, new, computed in rows:
            known = len(request.tokens) + len(new)
            if known > request.limit:
                raise CapacityError("length", known, request.limit)
            if computed > known:
                raise LengthError("computed", computed, 0, known)
        self.opened.remove(step)
        for request, new, computed in rows:
            request.tokens += new
            self._settle(request, computed)
        for request, _, _ in rows:
            self._publish(request)

    def abort(self, step: Pass) -> None:
        """As `Cache.abort`."""
        self.opened.remove(step)
        for request in step.requests:
            if request in self.requests:
                self._settle(request, request.computed)

    def truncate(self, request: Request, length: int, *, exclusive: bool) -> int:
        """As `Cache.truncate`."""
        if any(request in step.requests for step in self.opened):
            raise StepError("open")
        if not 0 <= length <= len(request.tokens):
            raise LengthError("length", length, 0, len(request.tokens))
        size, known = self.page_size, len(request.tokens)
        if exclusive and length // size < len(request.chains):
            raise LengthError("length", length, len(request.chains) * size, known)
        computed = min(request.computed, length)
        if computed // size < len(request.chains):
            computed -= computed % size
        self._check_promise(request, self.pages(computed))
        del request.tokens[length:]
        self._settle(request, computed)
        return computed

    def release(self, request: Request) -> None:
        """As `Cache.release`."""
        self._settle(request, 0)
        self.requests.remove(request)

    def reset(self) -> None:
        """As `Cache.reset`."""
        if self.requests:
            raise StepError("admitted")
        self.free += len(self.idle)
        self.published.clear()
        self.idle.clear()

    # -- pages ---------------------------------------------------------------------------------

    def _refuse(self, need: int, there: int) -> None:
        raise OutOfPages(need, self.free, len(self.idle), {"full": need - there})

    def _check_promise(self, request: Request, keep: int) -> None:
        """Pages given up that others keep must be there again for a guaranteed request."""
        need = max(0, request.promised - keep) - request.owed
        private = request.held - max(keep, len(request.chains))
        freed = max(0, private) + sum(self.published[c] == 1 for c in request.chains[keep:])
        if need > self.available + freed:
            self._refuse(need, self.available + freed)

    def _clip(self, request: Request, count: int, ahead: int) -> int:
        end = request.scheduled + count
        if count and end > request.limit and not ahead:
            raise CapacityError("length", end, request.limit)
        end = min(end, request.limit)
        high = len(request.tokens) + ahead - request.scheduled
        if end - request.scheduled > high:
            raise LengthError("count", count, 0, high)
        return end - request.scheduled

    def _pinnable(self, chains: list[Chain]) -> list[Chain]:
        room = self.available
        for at, chain in enumerate(chains):
            room -= chain in self.idle
            if room < 0:
                return chains[:at]
        return chains

    def _hold(self, chain: Chain) -> None:
        self.published[chain] += 1
        self.idle.pop(chain, None)

    def _let_go(self, chain: Chain) -> None:
        self.published[chain] -= 1
        if not self.published[chain]:
            self.idle[chain] = None

    def _evict(self) -> None:
        chain = next(iter(self.idle))
        del self.idle[chain], self.published[chain]
        self.free += 1
        self.evicted += 1

    def _settle(self, request: Request, computed: int) -> None:
        keep = self.pages(computed)
        self.free += max(0, request.held - max(keep, len(request.chains)))
        while len(request.chains) > keep:
            self._let_go(request.chains.pop())
        request.held = min(request.held, keep)
        request.computed = request.scheduled = computed
        request.cached = min(request.cached, computed)

    def _publish(self, request: Request) -> None:
        full = request.computed // self.page_size
        for page in range(len(request.chains), full if self.prefix else 0):
            chain = tuple(request.tokens[: (page + 1) * self.page_size])
            if chain in self.published:
                self.free += 1
                self._hold(chain)
            else:
                self.published[chain] = 1
            request.chains.append(chain)


def _common(left: list[int], right: list[int]) -> int:
    """Length of the longest common prefix."""
    pairs = enumerate(zip(left, right, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(left), len(right)))
