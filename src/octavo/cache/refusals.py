"""What the core refuses, as octavo's errors: the same facts in words."""

from collections.abc import Callable
from collections.abc import Sequence as Items
from typing import Any

from octavo.cache.arguments import Spread, name_row
from octavo.cache.sequence import Sequence
from octavo.core import rows as why
from octavo.core.commits import Core
from octavo.errors import (
    CapacityError,
    DuplicateSequence,
    LengthError,
    OctavoError,
    OutOfPages,
    RollbackUnsupported,
    StaleSequence,
    StepError,
    TokenError,
    quote,
)
from octavo.planner.plan import Plan


def out_of_pages(core: Core, need: int) -> OutOfPages:
    """OutOfPages with what the last `is_short` found missing. O(groups)."""
    pool = core.pool
    short = dict(zip(core.names, map(int, pool.lack), strict=True))
    return OutOfPages(need, pool.free(), pool.quiet.count, short)


def extend_error(
    core: Core, refused: why.Refused, sequences: Items[Sequence], spread: Spread
) -> OctavoError:
    """Why no step could be made of ``sequences`` with so many positions."""
    if refused.why == why.PAGES:
        return out_of_pages(core, refused.value)
    sequence = sequences[refused.place]
    if refused.why in _REFUSED_ROWS:
        return _REFUSED_ROWS[refused.why](sequence.id)
    who = f"sequence {quote(sequence.id)}"
    if refused.why == why.LIMIT:
        limit = f"the limit of {who}, row {refused.place}"
        return CapacityError("length", refused.value, sequence.limit, limit)
    if refused.why == why.AHEAD:
        words = f"{who} knows {sequence.length} tokens"
        if sequence.scheduled:
            words += f", and {sequence.scheduled} of them are scheduled already"
        words += f"; row {refused.place}"
        return LengthError("count", refused.value, 0, refused.bound, words)
    if refused.why == why.DRAFTS:
        name = core.names[[group.keeps_state for group in core.groups].index(True)]
        return RollbackUnsupported(name, refused.value - core.rollback)
    if refused.why != why.NOTHING:  # arguments are checked before the core sees them
        raise AssertionError(refused)
    each, counts = spread
    length = sequence.scheduled + (each if counts is None else max(counts))
    return CapacityError("length", length, sequence.limit, f"the limit of {who}")


_REFUSED_ROWS: dict[int, Callable[[object], OctavoError]] = {
    why.GONE: StaleSequence,
    why.PREEMPTED: lambda name: StepError(f"sequence {quote(name)} is preempted; resume it first"),
    why.TWICE: lambda name: DuplicateSequence(name, "stands in two rows"),
    why.STATE_LOST: lambda name: StepError(
        f"the state of sequence {quote(name)} went with an aborted step: commit the steps that are "
        "open first"
    ),
}


def commit_error(core: Core, plan: Plan, refused: why.Refused, step: Any, ids: Any) -> OctavoError:
    """Why a step could not be committed with ``ids``."""
    if refused.why == why.TOKEN:
        return TokenError(refused.place, ids[refused.place], where=name_row(step, refused.place))
    if refused.why == why.WINDOW:
        return rollback_error(core, plan, refused)
    if refused.why in (why.TOKENS, why.KEPT):  # checked before the core sees them
        raise AssertionError(refused)
    sequence, who = step.sequences[refused.place], name_row(step, refused.place)
    if refused.why == why.LEARNS:
        return CapacityError("length", refused.value, sequence.limit, f"the limit of {who}")
    if refused.why == why.LATER:
        return StepError(f"a later step of {who}, is open: keep all positions of this one")
    past = int(step.past[refused.place])
    kept, known = refused.value - past, refused.bound - past
    words = f"{who}, knows the tokens of no more positions; pass kept= to cut rejected drafts"
    if refused.why == why.DIFFERS:
        read = int(step.ids[step.query_start[refused.place] + known])
        words = (
            f"{who}, learns another token at position {refused.bound} than {read}, with which it "
            "was computed; pass kept= to cut rejected drafts"
        )
    return LengthError("kept", kept, 0, known, words)


def rollback_error(core: Core, plan: Plan, refused: why.Refused) -> RollbackUnsupported:
    """A window gave back what a query would see again; says how far all groups can go back."""
    kept_from: dict[str, int] = {}
    for group in core.groups:
        first = int(group.first[refused.value]) if group.slides() else 0
        if first > group.sinks:
            name = core.names[group.number]
            kept_from[name] = plan.groups[name].lifetime.first_after(first * core.size)
    name = max(kept_from, key=kept_from.__getitem__)
    return RollbackUnsupported(name, kept_from[name])
