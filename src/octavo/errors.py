"""Every error octavo raises, as one tree.

Each class is also the builtin a caller would already catch, carries its facts as attributes, and
says in its message which field is wrong, what it held and what would be right. Errors can be
copied and pickled, so that a worker's reaches the process that waits for it.

::

    OctavoError
    ├── OutOfPages (MemoryError)            need, free, evictable, short
    │   └── NeverFits                       total, why
    ├── CapacityError (ValueError)          name, value, limit
    ├── UnknownSequence (KeyError)          id
    │   └── StaleSequence
    ├── UnknownGroup (KeyError)             name, known
    ├── DuplicateSequence (ValueError)      id
    ├── LengthError (ValueError)            name, value, low, high
    ├── TokenError (ValueError)             index, value
    ├── StepError (RuntimeError)
    ├── CacheInUse (RuntimeError)           verb
    ├── LoopDied (RuntimeError)
    ├── CopyError (TypeError)               kind, why
    ├── RollbackUnsupported (ValueError)    group, kept_from
    ├── IntegrityError (AssertionError)     equation, left, right
    ├── KernelMismatch (AssertionError)     case, what, fault, row, token, head
    ├── IdentityError (ValueError)          name, value
    ├── ConfigError (ValueError)            field, value
    │   └── UnknownArchitecture             architecture, known
    ├── PlanError (ValueError)              field, value
    │   └── BudgetTooSmall (MemoryError)    need, have
    ├── SamplingError (ValueError)          field, value
    ├── TraceError (ValueError)             path, line
    ├── UnsupportedModel (ValueError)       what, why
    │   └── UnsupportedField                field, value; a ConfigError too
    ├── PageFileError (ValueError)          path
    │   └── PageFileMismatch                field, saved, here
    └── ModelError (OSError)                path
        └── PullError
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn, Self, TypeVar

__all__ = [
    "BudgetTooSmall",
    "CacheInUse",
    "CapacityError",
    "ConfigError",
    "CopyError",
    "DuplicateSequence",
    "IdentityError",
    "IntegrityError",
    "KernelMismatch",
    "LengthError",
    "LoopDied",
    "ModelError",
    "NeverFits",
    "OctavoError",
    "OutOfPages",
    "PageFileError",
    "PageFileMismatch",
    "PlanError",
    "PullError",
    "RollbackUnsupported",
    "SamplingError",
    "StaleSequence",
    "StepError",
    "TokenError",
    "TraceError",
    "UnknownArchitecture",
    "UnknownGroup",
    "UnknownSequence",
    "UnsupportedField",
    "UnsupportedModel",
    "quote",
    "uncopied",
]

_LONGEST = 120  # characters of a value that a message quotes
_PRINTED_BITS = 10_000  # of an int; Python prints no longer one than 4,300 digits


def quote(value: object) -> str:
    """``value`` as a message quotes it: on one line, and not all of it where it is long."""
    try:
        if isinstance(value, int) and value.bit_length() > _PRINTED_BITS:
            return f"an int of {value.bit_length():,} bits"
        text = repr(value)
    except Exception:  # noqa: BLE001, whatever a stranger's object raises
        return f"an object of type {type(value).__name__}"
    if "\n" in text:  # an array's rows
        text = " ".join(text.split())
    if len(text) <= _LONGEST:
        return text
    return f"{text[: _LONGEST // 2]} ... ({len(text):,} characters)"


def _number(count: int) -> str:
    """``1,250``, as everything octavo prints is counted; of what is too long, how long it is."""
    return quote(count) if count.bit_length() > _PRINTED_BITS else f"{count:,}"


_E = TypeVar("_E", bound="OctavoError")


class OctavoError(Exception):
    """Base of every error octavo raises on purpose.

    A copy, or what arrives where it was pickled to, has the same type, text and attributes. An
    attribute that cannot be pickled, as a wrong argument may be, arrives as the text that quotes
    it.
    """

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
        facts = {name: _portable(value) for name, value in vars(self).items()}
        return _remake, (type(self), self.args), facts

    def __copy__(self) -> Self:
        copied = _remake(type(self), self.args)
        vars(copied).update(vars(self))
        return copied

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self.__copy__()  # facts are read, never changed


def _remake(kind: type[_E], args: tuple[Any, ...]) -> _E:
    """An error that has its message already: its ``__init__`` would write another."""
    base = OSError if issubclass(kind, OSError) else Exception  # MemoryError's makes no other
    error = base.__new__(kind)
    error.args = args
    return error


def _portable(value: object) -> object:
    """``value``, or how a message quotes it where it cannot go to another process."""
    import pickle  # here: few errors travel

    try:
        pickle.loads(pickle.dumps(value))  # noqa: S301, what was dumped here
    except Exception:  # noqa: BLE001, whatever a stranger's object raises
        return quote(value)
    return value


class OutOfPages(OctavoError, MemoryError):
    """Not enough free or evictable pages for a request; nothing was changed.

    Attributes:
        need: pages the call needed.
        free: pages free at the time.
        evictable: published pages nobody holds, which could have been evicted.
        short: pages missing by group name.
    """

    def __init__(self, need: int, free: int, evictable: int, short: Mapping[str, int]) -> None:
        self.need, self.free, self.evictable, self.short = need, free, evictable, dict(short)
        super().__init__(self._message())

    def _message(self) -> str:
        missing = ", ".join(f"{_number(n)} in {g}" for g, n in self.short.items() if n)
        have = f"{_number(self.free)} are free and {_number(self.evictable)} evictable"
        kept = ", the rest is promised" if self.need <= self.free + self.evictable else ""
        return f"need {_number(self.need)} pages but {have} (short {missing}{kept})"


class NeverFits(OutOfPages):
    """A request needs more pages than the whole pool has: waiting cannot help.

    Attributes:
        total: usable pages of the pool.
        why: what took so many, and what would fit, where that is known.
    """

    def __init__(self, need: int, total: int, short: Mapping[str, int], why: str = "") -> None:
        self.total, self.why = total, why
        super().__init__(need, total, 0, short)

    def _message(self) -> str:
        need, total = _number(self.need), _number(self.total)
        tail = f" ({self.why})" if self.why else ""
        return f"need {need} pages but the whole pool has {total}: this can never fit{tail}"


class CapacityError(OctavoError, ValueError):
    """A limit fixed beforehand is exceeded: a sequence's, ``max_length`` or ``max_sequences``."""

    def __init__(self, name: str, value: int, limit: int, why: str = "") -> None:
        self.name, self.value, self.limit = name, value, limit
        tail = f": {why}" if why else ""
        super().__init__(f"{name} is {quote(value)}, at most {limit} is possible{tail}")


class UnknownSequence(OctavoError, KeyError):
    """The sequence was never admitted here or has been released, or is none at all.

    Attributes:
        id: of the sequence; of what is none, the thing itself.
    """

    def __init__(
        self, id: object, why: str = "is not known to this cache", name: str | None = None
    ) -> None:
        self.id = id
        known = f"sequence {quote(id)} {why}"
        super().__init__(known if name is None else f"{name} is {quote(id)}; {why}")

    def __str__(self) -> str:
        return str(self.args[0])


class StaleSequence(UnknownSequence):
    """The handle belongs to a sequence that has been released."""

    def __init__(self, id: object) -> None:
        super().__init__(id, "has been released; its handle is stale")


class UnknownGroup(OctavoError, KeyError):
    """The plan has no group of that name."""

    def __init__(self, name: object, known: Sequence[str]) -> None:
        self.name, self.known = name, tuple(known)
        what = f"no group {quote(name)}" if name is not None else "no group that keeps tokens"
        super().__init__(f"{what}; the plan's groups are {', '.join(self.known)}")

    def __str__(self) -> str:
        return str(self.args[0])


class DuplicateSequence(OctavoError, ValueError):
    """The id is in use, or the same sequence stands twice in one batch."""

    def __init__(self, id: object, why: str = "is already admitted; release it first") -> None:
        self.id = id
        super().__init__(f"sequence {quote(id)} {why}")


class LengthError(OctavoError, ValueError):
    """A count or length lies outside its range ``low..high`` (``high`` None: no upper bound).

    Of what has no range, both are None, and ``why`` says what it must be.
    """

    def __init__(
        self, name: str, value: object, low: int | None, high: int | None, why: str = ""
    ) -> None:
        self.name, self.value, self.low, self.high = name, value, low, high
        tail = f" ({why})" if why else ""
        right = why if low is None else _range(low, high) + tail
        super().__init__(f"{name} is {quote(value)}; {right}")


def _range(low: int, high: int | None) -> str:
    if low == high:
        return f"it must be {low}"
    return f"it must be an int of at least {low}" + ("" if high is None else f" and at most {high}")


class TokenError(OctavoError, ValueError):
    """A token id is no int32 of at least 0, or none of the model's vocabulary."""

    def __init__(
        self,
        index: int,
        value: object,
        high: int = 2**31 - 1,
        *,
        name: str | None = None,
        where: str = "",
        right: str = "",
    ) -> None:
        self.index, self.value = index, value
        ids = f"ints in 0..{high}"
        if name is not None:  # all of an argument, which is no list
            right = right or f"it must be a list or array of token ids, {ids}"
            said = f"{name} is {quote(value)}; {right}"
        else:
            said = f"token {index} is {quote(value)}; {right or f'token ids are {ids}'}"
        super().__init__(f"{said} ({where})" if where else said)


class StepError(OctavoError, RuntimeError):
    """A verb does not fit the state of a step: out of order, closed, or one is still open."""


class CacheInUse(OctavoError, RuntimeError):
    """A verb was called while another one is inside the cache; nothing was changed by it.

    Attributes:
        verb: which was refused.
    """

    def __init__(self, verb: str) -> None:
        self.verb = verb
        why = "a cache is for one thread at a time, and nothing a verb calls may call it back"
        super().__init__(f"{verb} was called while another verb is inside this cache: {why}")


class LoopDied(OctavoError, RuntimeError):
    """The thread that ran an engine died of an error, its ``__cause__``, and with it all requests.

    `octavo.engine.Engine.start` begins anew.
    """

    def __init__(self, cause: BaseException) -> None:
        what = f"{type(cause).__name__}: {cause}"
        super().__init__(f"the thread that ran the engine died of {what}; start() it anew")


class CopyError(OctavoError, TypeError):
    """An object that belongs to one cache, device or process cannot be copied or pickled.

    Attributes:
        kind: its class.
        why: the reason, and what to do instead.
    """

    def __init__(self, kind: str, why: str) -> None:
        self.kind, self.why = kind, why
        article = "an" if kind[:1] in "AEIOU" else "a"
        super().__init__(f"{article} {kind} cannot be copied or pickled: {why}")


def uncopied(why: str) -> Callable[[Any], NoReturn]:
    """A ``__reduce__`` for classes whose objects are one of a kind: it raises CopyError."""

    def __reduce__(self: object) -> NoReturn:  # noqa: N807, what it stands for
        raise CopyError(type(self).__name__, why)

    return __reduce__


class RollbackUnsupported(OctavoError, ValueError):
    """Positions to go back to were dropped by a window or overwritten by a state.

    Attributes:
        group: the group that cannot go back.
        kept_from: shortest length it can go back to.
    """

    def __init__(self, group: str, kept_from: int) -> None:
        self.group, self.kept_from = group, kept_from
        why = "a cache made with a larger rollback keeps more"
        super().__init__(f"group {group} can go back no further than to {kept_from} tokens; {why}")


class IntegrityError(OctavoError, AssertionError):
    """A law of the page pool is broken: ``left`` and ``right`` of ``equation`` differ."""

    def __init__(self, equation: str, left: Any, right: Any) -> None:
        self.equation, self.left, self.right = equation, left, right
        super().__init__(f"{equation}: {left} != {right}")


class KernelMismatch(OctavoError, AssertionError):
    """A kernel's answer is not the oracle's; the message says where and how.

    Attributes:
        case: the `octavo.testing.conformance.Case`; ``str(case)`` describes it.
        what: what differs: ``out``, ``lse``, or another sentence, where the fields below are None.
        fault: what the kernel seems to do, or None.
        row, token, head: where the first difference is, ``token`` in 0..T-1.
        position: the query's, in its sequence.
        page: the physical page that position is on; 0, the null page, before position 0.
        expected, actual: both numbers, the farthest apart of that head.
    """

    def __init__(
        self, case: object, what: str, message: str, fault: str | None = None, **place: Any
    ) -> None:
        self.case, self.what, self.fault = case, what, fault
        self.row = place.get("row")
        self.token, self.head = place.get("token"), place.get("head")
        self.position, self.page = place.get("position"), place.get("page")
        self.expected, self.actual = place.get("expected"), place.get("actual")
        super().__init__(f"{message}\ncase: {case}")


class IdentityError(OctavoError, ValueError):
    """A salt, adapter or media digest is malformed or contradicts another."""

    def __init__(self, name: str, value: object, right: str) -> None:
        self.name, self.value = name, value
        super().__init__(f"{name} is {quote(value)}; {right}")


class ConfigError(OctavoError, ValueError):
    """A model's config.json lacks a field or holds a wrong value."""

    def __init__(self, field: str, value: object, right: str) -> None:
        self.field, self.value = field, value
        what = "config path" if field == "path" else f"config field {field}"
        super().__init__(f"{what} is {quote(value)}; {right}")


class UnknownArchitecture(ConfigError):
    """The config names an architecture octavo has no reader for; it is never guessed.

    Attributes:
        architecture: what it names.
        known: the names that can be read, those most like it first.
    """

    _SHOWN = 8

    def __init__(
        self, architecture: object, known: Sequence[str], looked_for: str, advice: str = ""
    ) -> None:
        self.architecture, self.known = architecture, tuple(known)
        more = len(self.known) - self._SHOWN
        others = f" and {more} more (docs/models.md)" if more > 0 else ""
        names = f"known architectures are: {', '.join(self.known[: self._SHOWN])}{others}"
        names = f"it is missing; {names}" if architecture is None else names
        super().__init__(looked_for, architecture, f"{names}; {advice}" if advice else names)


class PlanError(OctavoError, ValueError):
    """An argument of ``octavo.plan`` is out of range or does not fit the model."""

    def __init__(self, field: str, value: object, right: str) -> None:
        self.field, self.value = field, value
        super().__init__(f"{field} is {quote(value)}; {right}")


class BudgetTooSmall(PlanError, MemoryError):
    """The memory does not hold the null page and the sequences wanted, by default one.

    Attributes:
        need: bytes that would be enough.
        have: bytes given.
    """

    def __init__(self, need: int, have: int, terms: str) -> None:
        self.need, self.have = need, have
        super().__init__("memory", have, f"at least {need:,} bytes are needed: {terms}")


class SamplingError(OctavoError, ValueError):
    """A sampling parameter is out of range."""

    def __init__(self, field: str, value: object, right: str) -> None:
        self.field, self.value = field, value
        super().__init__(f"{field} is {quote(value)}; {right}")


class TraceError(OctavoError, ValueError):
    """A file of requests cannot be read as one.

    Attributes:
        path: the file.
        line: number of the line that is malformed; None: the file as a whole.
    """

    def __init__(self, path: object, line: int | None, why: str) -> None:
        self.path, self.line = path, line
        where = "" if line is None else f"line {line}: "
        super().__init__(f"{path}: {where}{why}")


class UnsupportedModel(OctavoError, ValueError):
    """The model is understood but this part of octavo cannot serve it."""

    def __init__(self, what: str, why: str) -> None:
        self.what, self.why = what, why
        super().__init__(f"{what}: {why}")


class UnsupportedField(ConfigError, UnsupportedModel):
    """A config field says what this part of octavo does not compute; it is never passed over.

    Attributes:
        what: as ``field``.
        why: what is wrong with it.
    """

    def __init__(self, field: str, value: object, why: str) -> None:
        self.field, self.value, self.what, self.why = field, value, field, why
        Exception.__init__(self, f"config field {field} is {quote(value)}; {why}")


class PageFileError(OctavoError, ValueError):
    """A file of pages cannot be read, or is damaged."""

    def __init__(self, path: object, why: str) -> None:
        self.path = path
        super().__init__(f"{path}: {why}")


class PageFileMismatch(PageFileError):
    """A file holds pages of another model, element type or geometry.

    Attributes:
        field: what differs.
        saved: what the file says.
        here: what the storage says.
    """

    def __init__(self, path: object, field: str, saved: str, here: str) -> None:
        self.field, self.saved, self.here = field, saved, here
        super().__init__(path, f"{field} is {quote(saved)} in the file and {quote(here)} here")


class ModelError(OctavoError, OSError):
    """A model cannot be found or its files are damaged."""

    def __init__(self, path: object, why: str) -> None:
        self.path = path
        super().__init__(f"{path}: {why}")


class PullError(ModelError):
    """A named model could not be fetched; nothing half-done is left behind."""
