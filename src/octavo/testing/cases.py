"""Cases as plain data, such as YAML holds: what is done with a cache, and what must come out.

A case has an ``id``, a ``title``, a ``plan``, ``options`` of the cache, and ``steps``. A step names
a verb, what the verb is done to, and its further words; docs/testing.md lists them. `run_case` does
the steps with any cache that has the verbs of `octavo.Cache`, and tells the first that fails.
"""

from collections.abc import Callable, Mapping
from inspect import signature
from typing import Any

from octavo.cache.cache import Cache
from octavo.testing.casedata import (
    CaseFailed,
    fact,
    listed,
    read_extra,
    read_plan,
    read_tokens,
    step_fact,
)

_CASE = ("id", "title", "refs", "plan", "options", "steps")
_OUTCOME = ("gives", "refused", "facts")


def run_case(case: Mapping[str, Any], make_cache: Callable[..., Any] = Cache) -> None:
    """Do the steps of ``case``, then release all; after each step the cache's ``check`` must pass.

    Args:
        case: as the module says.
        make_cache: called with a `Plan` and the case's options.

    Raises:
        CaseFailed: the first step that does not hold, or that cannot be read.
    """
    runner = _Runner(case, make_cache)
    for number, step in enumerate([*case.get("steps", ()), {"end": None}], 1):
        runner.do(number, step)


class _Runner:
    """One case on one cache: its sequences by name, its open steps, and where it stands."""

    def __init__(self, case: Mapping[str, Any], make_cache: Callable[..., Any]) -> None:
        self.case, self.number, self.where = case.get("id"), 0, "making the cache"
        self.sequences: dict[Any, Any] = {}
        self.open: list[Any] = []
        if unknown := ", ".join(word for word in case if word not in _CASE):
            raise self.failed(f"a case of {', '.join(_CASE)}", unknown)
        try:
            self.cache = make_cache(read_plan(case["plan"]), **case.get("options", {}))
        except Exception as error:
            raise self.failed("a cache", repr(error)) from error

    def do(self, number: int, step: Mapping[str, Any]) -> None:
        self.number, self.where = number, " ".join(map(str, step))
        verb, call = self.read(step)
        before, refused = self.cache.stats(), step.get("refused")
        try:
            gave = call()
        except CaseFailed:
            raise
        except Exception as error:  # noqa: BLE001 - a cache of one's own raises what it likes
            self.judge(error, refused, step.get("facts", {}))
            if verb != "run":  # which may have come some way
                self.same("stats after the refusal", before, self.cache.stats())
        else:
            if refused:
                raise self.failed(refused, "no error")
            if "gives" in step:
                self.same("what it gives", step["gives"], gave)
        self.check()

    def read(self, step: Mapping[str, Any]) -> tuple[str, Callable[[], Any]]:
        """The verb of a step, and the call that does it."""
        words = {word: given for word, given in step.items() if word not in _OUTCOME}
        verb = next(iter(words), "no verb")
        if verb not in _VERBS:
            raise self.failed(f"a verb of {', '.join(_VERBS)}", verb)
        target, do = words.pop(verb), _VERBS[verb]
        self.where = verb if target is None or isinstance(target, Mapping) else f"{verb} {target}"
        try:
            signature(do).bind(self, target, **words)
        except TypeError as error:
            raise self.failed(f"words that {verb} takes", error) from None
        return verb, lambda: do(self, target, **words)

    def judge(self, error: Exception, refused: str | None, facts: Mapping[str, Any]) -> None:
        """The error must be of the expected class, or one below it, and carry ``facts``."""
        if refused not in [kind.__name__ for kind in type(error).__mro__]:
            raise self.failed(refused or "no error", repr(error)) from error
        for name, expected in facts.items():
            self.same(f"{refused}.{name}", expected, fact(error, name))

    def check(self) -> None:
        try:
            self.cache.check()
        except Exception as error:
            raise self.failed("check() to pass", repr(error)) from error

    def same(self, what: str, expected: Any, actual: Any) -> None:
        if expected != actual:
            raise self.failed(expected, actual, f", {what}")

    def failed(self, expected: Any, actual: Any, what: str = "") -> CaseFailed:
        return CaseFailed(self.case, self.number, self.where + what, expected, actual)

    def row(self, name: Any) -> Any:
        if name not in self.sequences:
            raise self.failed(f"a sequence of {list(self.sequences)}", name)
        return self.sequences[name]

    def rows(self, names: Any) -> list[Any]:
        return [self.row(name) for name in listed(names)]

    def keep(self, name: Any, sequence: Any) -> None:
        known = self.sequences.get(name)
        if name in ("stats", "step") or (known is not None and not known.released):
            raise self.failed("a name not in use", name)
        self.sequences[name] = sequence

    def admit(self, name: Any, *, tokens: Any, extra: Any = (), **options: Any) -> int:
        options |= {"id": name, "extra": list(map(read_extra, extra))}
        sequence = self.cache.admit(read_tokens(tokens), **options)
        self.keep(name, sequence)
        return int(sequence.cached)

    def peek(self, tokens: Any, *, extra: Any = ()) -> int:
        found = self.cache.peek(read_tokens(tokens), extra=list(map(read_extra, extra)))
        return int(found.tokens)

    def run(self, names: Any, *, sample: int = 0) -> None:
        goals = [(row, row.length) for row in self.rows(names)]
        while rows := [row for row, end in goals if row.computed < end]:
            before = [row.computed for row in rows]
            ends = [min(row.next_stop or row.length, row.length) for row in rows]
            counts = [end - done for end, done in zip(ends, before, strict=True)]
            step = self.cache.extend(rows, counts)
            wants = zip(rows, step.wants_token.tolist(), strict=True)
            learn = [wanted and row.length < row.limit for row, wanted in wants]
            self.cache.commit(step, [[sample] if may else [] for may in learn])
            self.check()
            self.same("whether any row came on", True, before != [row.computed for row in rows])

    def extend(self, names: Any, *, counts: Any = 1, ahead: int = 0) -> None:
        self.open.append(self.cache.extend(self.rows(names), counts, ahead=ahead))

    def commit(self, tokens: Any, *, kept: Any = None) -> int:
        done = self.cache.commit(self.step(0), tokens, kept=kept)
        del self.open[0]
        return int(done.published)

    def abort(self, _: None) -> None:
        self.cache.abort(self.step(-1))
        self.open.pop()

    def step(self, at: int) -> Any:
        if not self.open:
            raise self.failed("an open step", "none")
        return self.open[at]

    def fork(self, name: Any, *, into: Any) -> None:
        children = self.cache.fork(self.row(name), len(listed(into)))
        for child, called in zip(children, listed(into), strict=True):
            self.keep(called, child)

    def end(self, _: None) -> None:
        for sequence in self.sequences.values():
            if not sequence.released:
                self.cache.release(sequence)
        while self.open:
            self.commit(None)
        self.same("stats.live", 0, self.cache.stats().live)

    def expect(self, given: Mapping[Any, Mapping[str, Any]]) -> None:
        for subject, facts in given.items():
            for name, expected in facts.items():
                right = read_tokens(expected) if name == "tokens" else expected
                self.same(f"{subject}.{name}", right, self.look(subject, name))

    def look(self, subject: Any, name: str) -> Any:
        if subject == "stats":
            return fact(self.cache.stats(), name)
        if subject == "step":
            return step_fact(self.step(-1), name)
        row = self.row(subject)
        return step_fact(self.step(-1), name, row) if name == "pages" else fact(row, name)


def _plain(verb: str) -> Callable[..., Any]:
    """A verb of the cache that takes one sequence, with its own words."""
    return lambda self, name, **words: getattr(self.cache, verb)(self.row(name), **words)


_OWN = ("admit", "peek", "run", "extend", "commit", "abort", "fork", "expect", "end")
_VERBS: dict[str, Callable[..., Any]] = {verb: getattr(_Runner, verb) for verb in _OWN} | {
    verb: _plain(verb) for verb in ("truncate", "drop", "preempt", "resume", "release")
}
