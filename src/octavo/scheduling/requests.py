"""What a scheduler is given, and what it hands out: requests, and turns of them."""

from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from octavo.cache.prompt import Prompt
from octavo.cache.sequence import Sequence
from octavo.cache.step import Step
from octavo.checks import Tokens, check_int, check_number, has_entries
from octavo.errors import IdentityError, LengthError, PlanError


class Schedulable(Protocol):
    """What the scheduler sees of a request; it must be hashable, and equal to no other.

    Attributes:
        prompt: token ids, a list or an int32 array, or a Prompt, which may have extras; read when
            it is the next to run.
        limit: most tokens, prompt and answer together; an empty pool must hold as many.
        sequence: set by the scheduler: its handle in the cache; None before and after.
    """

    sequence: Sequence | None

    @property
    def prompt(self) -> Tokens | Prompt:
        """Token ids, at least one."""
        ...

    @property
    def limit(self) -> int:
        """Tokens, at least the prompt's."""
        ...


R = TypeVar("R", bound=Schedulable)
WATERMARK = 0.01
"""Share of the pool that is left when a request is admitted beside others, if none is named."""


def check_watermark(value: object) -> float:
    """A share of the pool, checked.

    Raises:
        PlanError: it is not in [0, 1).
    """
    share = check_number("watermark", value)
    if not 0 <= share < 1:
        raise PlanError("watermark", value, "it must be at least 0 and below 1")
    return share


def check_request(request: Schedulable) -> tuple[int, int]:
    """Tokens of a request's prompt, and its limit, checked. O(1).

    Raises:
        IdentityError: it cannot be hashed, or lacks a prompt or a limit.
        LengthError: its prompt is empty or no list, or its limit is below the prompt.
    """
    try:
        hash(request)
    except Exception as error:
        right = "it must be hashable, as a dataclass with eq=False is"
        raise IdentityError("request", request, right) from error
    for name in ("prompt", "limit"):
        if not hasattr(request, name):
            raise IdentityError("request", request, "it must have a prompt and a limit")
    prompt: Any = request.prompt
    try:
        listed = isinstance(prompt, Prompt) or has_entries(prompt)
        length = len(request.prompt) if listed else None
    except Exception:  # noqa: BLE001, whatever a stranger's object raises
        length = None
    if length is None:
        right = "it must be a list or array of token ids"
        raise LengthError("request.prompt", prompt, None, None, right)
    check_int("len(request.prompt)", length, 1)
    return length, check_int("request.limit", request.limit, length)


class Turn(NamedTuple, Generic[R]):
    """One forward pass to run, and to commit or abort before the next.

    Attributes:
        step: open.
        requests: by row of the step.
        admitted: those that were admitted since the turn before.
    """

    step: Step
    requests: list[R]
    admitted: list[R]
