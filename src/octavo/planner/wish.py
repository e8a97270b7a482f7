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
from octavo.planner.pools import max_length_for, max_sequences_in_flight
from octavo.planner.request import plan

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

    Where they do not, the plan is that of the memory without them; where not one token fits, that
    of the memory that is enough.

    Args:
        spec: what the model's layers keep.
        memory: as of `octavo.plan`; None: what is enough.
        sequences: how many are to fit at once.
        max_length: tokens of each; None: the model's own, or as many as fit where it names none.
        options: others of `octavo.plan`.

    Raises:
        PlanError: an argument out of range.

    Cost: some forty plans.
    """
    length = spec.max_length if max_length is None else max_length
    if length is None and memory is not None:
        length = _longest(spec, memory, options)
    asked: dict[str, Any] = {"max_length": length, "sequences": sequences}
    enough = plan(spec, None, **options, **asked)
    assert length is not None
    assert enough.memory is not None
    need, device, made = enough.memory.device, enough.memory, enough
    if memory is not None:
        device = available_memory(memory, **{n: options[n] for n in _DEVICE if n in options})
        wanted = asked if device.device >= need else {"max_length": length}
        made = _largest(spec, memory, options, wanted) or enough
    inside, fits = made.memory == device, device.device >= need
    return made, Wish(
        sequences,
        length,
        fits,
        max_sequences_in_flight(made, length) if inside else 0,
        max_length_for(made, sequences, in_flight=True) if inside else 0,
        need,
        None if fits else _ranks(spec, memory, options, asked),
        device,
    )


def _largest(
    spec: ModelSpec, memory: Any, options: dict[str, Any], wanted: dict[str, Any]
) -> Plan | None:
    """The plan in a memory with what is wanted, else without; None: not one token fits."""
    for more in (wanted, {}):
        with contextlib.suppress(BudgetTooSmall):
            return plan(spec, memory, **options, **more)
    return None


def _longest(spec: ModelSpec, memory: Any, options: dict[str, Any]) -> int:
    """Tokens of the longest sequence that a memory holds; of a page where it holds none."""
    try:
        return plan(spec, memory, **options).tokens
    except BudgetTooSmall:
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
