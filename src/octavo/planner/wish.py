"""Whether so many sequences of a length fit into a memory, and what else would do.

`plan_wish` asks `octavo.plan` for each answer.
"""

import contextlib
from typing import Any

from octavo.errors import BudgetTooSmall, PlanError
from octavo.model.spec import ModelSpec
from octavo.planner.answer import Wish
from octavo.planner.budget import available_memory, parse_memory
from octavo.planner.plan import Plan
from octavo.planner.pools import PlanRequest, largest, largest_from, max_sequences_in_flight
from octavo.planner.request import plan
from octavo.planner.solve import plan_ranks

__all__ = ["Wish", "plan_wish"]

_MOST_RANKS = 64
_DEVICE = ("utilization", "weights", "activations", "other")


def plan_wish(
    spec: ModelSpec,
    memory: Any = None,
    *,
    sequences: int,
    max_length: int | None = None,
    **options: Any,
) -> tuple[Plan, Wish]:
    """The plan for ``sequences`` of ``max_length`` tokens, and whether they fit.

    Where they do not, the plan is that for as many as do, else for the length at which they do,
    else of the memory alone; where not one token fits, that of the memory that is enough.

    What else would do is looked for among plans made for it, as another number or length of
    sequences may cut the pages of a packed plan otherwise.

    Args:
        spec: what the model's layers keep.
        memory: as of `octavo.plan`; None: what is enough.
        sequences: how many are to fit at once.
        max_length: tokens of each; None: the model's own, or as many as fit where it names none.
        options: others of `octavo.plan`.

    Raises:
        PlanError: an argument out of range.

    Cost: some eighty plans.
    """
    length = spec.max_length if max_length is None else max_length
    if length is None and memory is not None:
        length = _longest(spec, memory, options)
    asked: dict[str, Any] = {"max_length": length, "sequences": sequences}
    enough = plan(spec, None, **options, **asked)
    assert length is not None
    assert enough.memory is not None
    assert enough._request is not None
    need, device = enough.memory.device, enough.memory
    if memory is not None:
        device = available_memory(memory, **{n: options[n] for n in _DEVICE if n in options})
    request = enough._request._replace(memory=device)
    most, longest = _most(request, sequences, length), _longest_of(request, length)
    fits = most >= sequences
    would = None
    if most:
        would = {"sequences": min(most, sequences), "max_length": length}
    elif longest:
        would = {"sequences": sequences, "max_length": longest}
    made = enough if memory is None else _made(spec, memory, options, would or {}) or enough
    ranks = None if fits else _ranks(spec, memory, options, asked)
    return made, Wish(sequences, length, fits, most, longest, need, ranks, device)


def _most(request: PlanRequest, sequences: int, length: int) -> int:
    """How many of a length fit, in a plan made for so many; looked for from those asked for."""
    made = plan_ranks(request)

    def fits(many: int) -> bool:
        return plan_ranks(request._replace(sequences=many)) is not None

    if made is None:
        return largest(fits, sequences - 1)
    return largest_from(fits, max(sequences, max_sequences_in_flight(made, length)))


def _longest_of(request: PlanRequest, length: int) -> int:
    """Tokens, up to ``length``, at which so many fit in a plan made for them; 0: not of a page."""

    def fits(tokens: int) -> bool:
        return plan_ranks(request._replace(wanted=tokens)) is not None

    if fits(length):
        return length
    page = request.page_size
    return largest(fits, length - 1, page) if fits(page) else 0


def _made(
    spec: ModelSpec, memory: Any, options: dict[str, Any], would: dict[str, Any]
) -> Plan | None:
    """The plan in a memory for what would fit; None: not one token does."""
    with contextlib.suppress(BudgetTooSmall):
        return plan(spec, memory, **options, **would)
    return None


def _longest(spec: ModelSpec, memory: Any, options: dict[str, Any]) -> int:
    """Tokens of the longest sequence that runs in a memory; of a page where none does."""
    with contextlib.suppress(BudgetTooSmall):
        if (longest := plan(spec, memory, **options).max_length) is not None:
            return longest
    page: int = options.get("page_size", 16)
    return page


def _ranks(
    spec: ModelSpec, memory: Any, options: dict[str, Any], asked: dict[str, Any]
) -> int | None:
    """Ranks that share the heads on which a wish fits, each with a part of the weights."""
    now: int = options.get("tp", 1)
    weights = options.get("weights")
    whole = None if weights is None else now * parse_memory(weights, "weights")
    more = 2 * now
    while more <= _MOST_RANKS:
        part = None if whole is None else -(-whole // more)
        with contextlib.suppress(PlanError):
            plan(spec, memory, **options | asked | {"tp": more, "weights": part})
            return more
        more *= 2
    return None
