"""What stands beside the figures of a plan: what was left out, not given or kept more than once.

Sentences for people; computes nothing a plan does not know.
"""

from octavo.model.layers import Attention, Compressed, Cross, Latent, State
from octavo.planner.figures import counted
from octavo.planner.pools import PoolPlan


def notes_of(plan: PoolPlan) -> list[str]:
    """A sentence each. O(layers)."""
    if plan.spec is None:
        return []
    return [*plan.spec.notes, *copies(plan), *_inputs(plan), *_weights(plan), *_activations(plan)]


def copies(plan: PoolPlan) -> list[str]:
    """What ranks that share layers keep each for itself."""
    if plan.tp == 1 or plan._request is None:
        return []
    kinds = [kind for _, kind in plan._request.spec.kinds()]
    heads = {kind.kv_heads for kind in kinds if isinstance(kind, Attention | Cross)}
    found = _shared(plan.tp, heads, "key/value head")
    if any(isinstance(kind, Latent | Compressed) for kind in kinds):
        found.append(f"latent rows are kept whole on each of the {plan.tp} ranks")
    if any(isinstance(kind, Attention) and kind.indexer for kind in kinds):
        found.append(f"an indexer's keys are kept whole on each of the {plan.tp} ranks")
    groups = {kind.groups for kind in kinds if isinstance(kind, State) and kind.group_channels}
    return found + _shared(plan.tp, groups, "group")


def _shared(tp: int, counts: set[int], what: str) -> list[str]:
    """What there is less of than ranks."""
    of = " of a state" if what == "group" else ""
    return [
        f"tp {tp} is more than the {counted(few, what)}{of}: each is kept by {tp // few} ranks"
        for few in sorted(counts)
        if few < tp
    ]


def _inputs(plan: PoolPlan) -> list[str]:
    """Cross attention to an input of unknown length."""
    assert plan.spec is not None
    unknown = [k for _, k in plan.spec.kinds() if isinstance(k, Cross) and k.length is None]
    if not unknown:
        return []
    size = sum(g.unit_bytes(plan.page_size) for g in plan.groups.values() if g.name == "cross")
    text = f"cross attention of {len(unknown)} layers is left out, as the length of its input is"
    text += f" not known: {size:,} bytes per position of it; --input-tokens N (input_tokens=N)"
    return [f"{text} counts it"]


def _weights(plan: PoolPlan) -> list[str]:
    if plan.memory is None or plan.memory.weights is not None:
        return []
    return ["weights: not given; the memory is the cache's alone"]


def _activations(plan: PoolPlan) -> list[str]:
    """Nothing is set aside for a forward pass of a device that is divided."""
    memory = plan.memory
    if memory is None or memory.activations or memory.available == memory.device:
        return []
    rest = "nothing" if memory.utilization == "1" else "what the utilization leaves"
    return [f"activations: not given; {rest} is set aside for the forward pass"]
