"""A plan in three sentences that stand by themselves: what fits, what it takes, what is left.

Computes nothing a plan does not know.
"""

from typing import NamedTuple

from octavo.planner import sizes
from octavo.planner.budget import Memory
from octavo.planner.figures import amount, counted, enough, hundredths
from octavo.planner.notes import copies
from octavo.planner.pools import PoolPlan, max_sequences, max_sequences_in_flight, parents
from octavo.planner.solve import longest_alone


class Wish(NamedTuple):
    """What was asked for, and what would do.

    All is counted beside what a step of ``max_step_tokens`` holds in flight.

    Attributes:
        sequences: how many are to fit at once.
        length: tokens of each.
        fits: whether they do.
        max_sequences: how many of that length do, in a plan made for so many.
        max_length: tokens, up to ``length``, at which so many do; 0: not even of one page.
        memory: bytes of a rank's memory that are exactly enough.
        tp: the fewest ranks of the same memory, doubled from those asked for, on which they fit;
            None: not known to. Weights are divided among the ranks.
        device: the memory that was asked about.
    """

    sequences: int
    length: int
    fits: bool
    max_sequences: int
    max_length: int
    memory: int
    tp: int | None
    device: Memory


def answer(plan: PoolPlan, wish: Wish | None = None) -> list[str]:
    """The sentences, for a plan with bytes.

    Args:
        plan: what fits; with a wish what `octavo.planner.wish.plan_wish` made of it.
        wish: what was asked for; None: the sequences of the plan, or as many as fit.

    Cost: O(groups).
    """
    assert plan.memory is not None
    memory = wish.device if wish else plan.memory
    length = wish.length if wish else plan.max_length or longest_alone(plan)
    each = f"Each sequence of {_tokens(plan, length)}{_beyond(plan, length)}"
    return [
        f"{_what(plan, memory)}: {_fits(plan, wish, memory, length)}{_uncounted(memory)}.",
        f"{each} takes {_sequence(plan, memory, length)}.",
        f"Left for the cache: {_left(plan, memory)}{_used(plan, wish, length)}.",
    ]


def _what(plan: PoolPlan, memory: Memory) -> str:
    """Model, element type, ranks and the memory of each."""
    assert plan.spec is not None
    assert plan.elements is not None
    where = machine(plan, memory)
    return f"{plan.spec.name}, {plan.elements.kv.name} cache" + (f", {where}" if where else "")


def machine(plan: PoolPlan, memory: Memory) -> str:
    """``8 x H200-141GB (tp 8)``, ``one L4-24GB``, ``2 ranks of 80 GiB (tp 2)``, ``16 GiB``."""
    ranks, size = _ranks(plan), memory.gpu or amount(memory.device)
    if ranks == 1:
        return (f"one {size}" if memory.gpu else size) if memory.given else ""
    shares = [f"tp {plan.tp}"] if plan.tp > 1 else []
    shares += [f"pp {len(plan.stages)}"] if plan.stages else []
    each = f"{ranks} x {size}" if memory.gpu else f"{ranks} ranks"
    each += "" if memory.gpu or not memory.given else f" of {size}"
    return f"{each} ({', '.join(shares)})"


def _ranks(plan: PoolPlan) -> int:
    return plan.tp * max(1, len(plan.stages))


def each_of(plan: PoolPlan, memory: Memory | None, word: str = "per") -> str:
    """What stands behind an amount that is of one of several ranks, such as `` per GPU``. O(1)."""
    if _ranks(plan) == 1:
        return ""
    return f" {word} {'GPU' if memory is not None and memory.gpu else 'rank'}"


def _fits(plan: PoolPlan, wish: Wish | None, memory: Memory, length: int) -> str:
    """How many, or whether those asked for do, and what else would."""
    if wish is not None and not wish.fits:
        return _misfit(plan, wish)
    asked = _asked(plan)
    if asked is None:
        return _capacity(plan, length)
    many = f"{counted(asked, 'sequence')} of {_tokens(plan, length)}"
    if not memory.given:
        ranks, need = _ranks(plan), amount(memory.device, up=True)
        whole = f", {amount(ranks * memory.device, up=True)} in all" if ranks > 1 else ""
        return f"{many} need{'s' if asked == 1 else ''} {need}{each_of(plan, memory)}{whole}"
    most = wish.max_sequences if wish else max_sequences_in_flight(plan, length)
    text = f"{many} fit{'s' if asked == 1 else ''}"
    return f"{text}, {most:,} at most" if most > asked else text


def _uncounted(memory: Memory) -> str:
    return ", weights not counted" if memory.weights is None else ""


def _asked(plan: PoolPlan) -> int | None:
    """Sequences the plan was made for; of one without memory at least one."""
    if plan._request is None or plan.memory is None or plan.memory.given:
        return None if plan._request is None else plan._request.sequences
    return plan._request.sequences or 1


def _misfit(plan: PoolPlan, wish: Wish) -> str:
    each, would = each_of(plan, wish.device), []
    all_of_them = "one" if wish.sequences == 1 else f"{wish.sequences:,}"
    if wish.max_sequences:
        would.append(f"{wish.max_sequences:,} fit{'s' if wish.max_sequences == 1 else ''}")
    if wish.max_length:
        would.append(f"{all_of_them} of {wish.max_length:,} tokens")
    if wish.tp and wish.device.gpu and not plan.stages:
        would.append(f"{all_of_them} on {wish.tp} x {wish.device.gpu} (tp {wish.tp})")
    elif wish.tp:
        would.append(f"{all_of_them} with tp {wish.tp}")
    shorter = "do as many shorter ones" if wish.sequences > 1 else "does a shorter one"
    others = "" if wish.max_length or not sizes.bytes_per_token(plan) else f", nor {shorter}"
    others += f": {', or '.join(would)}" if would else ""
    many = f"{counted(wish.sequences, 'sequence')} of {_tokens(plan, wish.length)}"
    enough = f"{amount(wish.memory, up=True)}{each} would be enough"
    return f"{many} do{'es' if wish.sequences == 1 else ''} not fit{others}; {enough}"


def _beyond(plan: PoolPlan, length: int) -> str:
    own = plan.spec.max_length if plan.spec else None
    return f" (beyond the model's own {own:,})" if own is not None and length > own else ""


def _tokens(plan: PoolPlan, length: int) -> str:
    """The length, where anything that is kept depends on it."""
    return f"{length:,} tokens" if sizes.bytes_per_token(plan) else "any length"


def _capacity(plan: PoolPlan, length: int) -> str:
    """As many as fit, fewer where a step takes room, and whether the longest is the model's."""
    steady, running = max_sequences(plan, length), max_sequences_in_flight(plan, length)
    many = counted(int(steady), "sequence")
    text = f"{many} of {_tokens(plan, length)} fit{'s' if int(steady) == 1 else ''}"
    text += "" if steady == int(steady) else f" ({hundredths(steady)})"
    if running < int(steady):
        text += f", {running:,} while a prompt is computed"
    own = plan.spec.max_length if plan.spec else None
    if own is not None and longest_alone(plan, in_flight=True) < own:
        text += f"; not one of the model's own {own:,}"
    return text


def _sequence(plan: PoolPlan, memory: Memory, length: int) -> str:
    """Bytes of a sequence, of its tokens, and whatever its length."""
    where = amount(sizes.sequence_bytes(plan, length))
    if _ranks(plan) > 1:
        where += " on the rank with the least room" if plan.stages else each_of(plan, memory)
        copied = ", copies on several ranks counted" if copies(plan) else ""
        where += f" ({amount(_in_all(plan, length))} in all{copied})"
    first, late = sizes.bytes_per_token(plan), sizes.bytes_per_token_beyond_windows(plan)
    token = f"{first:,} bytes per token{each_of(plan, memory, 'and')}"
    parts = [token] if first else []
    if first != late:
        parts = [f"{token} until its windows are full and {late:,} from then on"]
    fixed = sizes.fixed_bytes_per_sequence(plan) + sizes.buffer_bytes(plan)
    if fixed and first:
        parts.append(f"{amount(fixed)}{each_of(plan, memory)} whatever its length")
    return ": ".join([where, ", and ".join(parts)] if parts else [where])


def _in_all(plan: PoolPlan, length: int) -> int:
    """Bytes a sequence takes on all ranks together."""
    return plan.tp * sum(sizes.sequence_bytes(one, length) for one in plan.stages or (plan,))


def _left(plan: PoolPlan, memory: Memory) -> str:
    """What the cache gets of the memory, and why it is no more."""
    each, ranks = each_of(plan, memory), _ranks(plan)
    terms = {"weights": memory.weights, "activations": memory.activations}
    terms |= {"anything else": memory.other}
    taken = " and ".join(
        f"{amount(size)} of {name}{each if name == 'weights' else ''}"
        for name, size in terms.items()
        if size
    )
    share = f" x {memory.utilization}" if memory.utilization != "1" else ""
    device = amount(memory.device, up=not memory.given) + share
    if taken and memory.available <= 0:
        text = f"nothing{each}, as {taken} are no less than {device}"
        part = enough(-(-(memory.weights or 0) // ranks))
        return f"{text}; if the weights are of all {ranks}, give {part}" if ranks > 1 else text
    left = f"{amount(memory.available, up=not memory.given)}{each}"
    less = f" less {taken}" if taken else ""
    text = f"{left}, which is {device}{less}" if share or less else f"all {left}"
    return text if memory.weights is not None else f"{text}, weights not given"


def _used(plan: PoolPlan, wish: Wish | None, length: int) -> str:
    """What sequences take of that, and what stays free."""
    most = wish.max_sequences if wish else max_sequences_in_flight(plan, length)
    if not most:
        device = wish.device if wish else plan.memory
        step = wish is None and max_sequences(plan, length) >= 1
        text = ", too little for one sequence" + (" while a prompt is computed" if step else "")
        return text if device and device.available > 0 else ""
    assert plan.memory is not None
    assert plan.budget is not None
    many = min(_asked(plan) or most, most)
    taken = parents(plan, many, length, in_flight=True) * plan.page_bytes
    free = plan.memory.available - plan.budget.null_page - taken
    windows = f" and what a step of {plan.max_step_tokens:,} tokens adds to windows"
    held = counted(many, "sequence") + (windows if sizes.in_flight_bytes(plan) else "")
    if not free:
        return f"; {held} and the null page (never handed out) take all of it"
    verb = "takes" if held == "1 sequence" else "take"
    used = f"; {held} {verb} {amount(taken)} of it"
    null = plan.budget.null_page
    used += f", the null page (never handed out) {amount(null)}" if 50 * null > taken else ""
    more = f"room for {most - many:,} more" if most > many else "too little for one more"
    where = " on each" if _ranks(plan) > 1 and not plan.stages else ""
    return f"{used}, and {amount(free)} is free{where}, {more}"
