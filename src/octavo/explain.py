"""A plan told in words, and as data: what one token costs, what the memory holds, where the rest
went. Computes nothing a plan does not know.
"""

from typing import Any

from octavo.budget import Budget
from octavo.planning import GroupPlan, Plan
from octavo.spec import Attention, Cross, Latent, LayerKind, ModelSpec, Shared, State


def explain_plan(plan: Plan) -> str:
    """Several lines of text, each with the arithmetic behind its figure. O(layers)."""
    if plan.spec is None or plan.budget is None or plan.elements is None:
        return (
            f"{plan.usable_pages} pages of {plan.page_size} tokens and the null page: "
            f"{plan.tokens} tokens; bytes are the engine's own matter"
        )
    lines = [
        ("model", f"{plan.spec.name}, {len(plan.spec.layers)} layers{_ranks(plan)}"),
        *_memory(plan),
        *((group.name, line) for group in plan.groups.values() for line in _group(group, plan)),
        ("one token", _token(plan)),
        *_state(plan),
        ("one page", f"{_page(plan)} = {plan.page_bytes:,} bytes"),
        ("memory", f"{amount(plan.budget.total)} = {_parts(plan.budget, plan)} bytes"),
        ("capacity", _capacity(plan, plan.spec)),
        *_in_flight(plan),
        *_depth(plan.spec, plan),
    ]
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {text}" for name, text in lines)


def amount(size: int) -> str:
    """``size`` bytes in the largest binary unit of which there is at least one.

    In integers, so that no size is too large; to the nearest hundredth. O(1).
    """
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            whole, part = divmod((200 * size + unit) // (2 * unit), 100)
            return f"{whole}.{part:02}".rstrip("0").rstrip(".") + f" {name}"
    return f"{size} bytes"


def _ranks(plan: Plan) -> str:
    shares = [f"tp {plan.tp}"] if plan.tp > 1 else []
    shares += [f"pp {len(plan.stages)}"] if plan.stages else []
    return f"; figures are of one rank ({', '.join(shares)})" if shares else ""


def _memory(plan: Plan) -> list[tuple[str, str]]:
    """What is taken off a device, where anything is."""
    memory = plan.memory
    if memory is None or memory.available == memory.device:
        return []
    terms = {"weights": memory.weights, "activations": memory.activations, "other": memory.other}
    taken = "".join(f" - {size:,} {name}" for name, size in terms.items() if size)
    share = f" x {memory.utilization}" if memory.utilization != "1" else ""
    return [("device", f"{memory.device:,}{share}{taken} = {memory.available:,} bytes")]


def _group(group: GroupPlan, plan: Plan) -> list[str]:
    """A group's layers, and how its pages lie in a parent; nothing for the only group there is."""
    if len(plan.groups) == 1:
        return []
    what = {"tokens": "every token", "state": "one state a sequence", "cross": "another input"}
    kept = _keeps(group) or what[group.lifetime.form]
    lines = [f"{len(group.layers)} layers keep {kept}"]
    if plan.packed:
        waste = group.page_bytes - group.kept_bytes // group.parts
        lines[0] += (
            f": {group.pages_per_parent} pages of {group.page_bytes:,} bytes a parent"
            f", {waste:,} of them padding"
        )
        if group.parts > 1:
            lines.append(
                f"a state takes {group.parts} pages of {len(group.layers) // group.parts}"
                " layers each"
            )
    return lines


def _keeps(group: GroupPlan) -> str:
    life = group.lifetime
    window, chunk = getattr(life, "window", None), getattr(life, "chunk", None)
    if window is not None:
        sinks = f" and the first {life.sinks}" if life.sinks else ""
        return f"the last {window:,} tokens{sinks}"
    return f"the tokens of a chunk of {chunk:,}" if chunk is not None else ""


def _token(plan: Plan) -> str:
    assert plan.spec is not None
    text = f"{_arithmetic(plan)} = {plan.bytes_per_token:,} bytes"
    if plan.bytes_per_token_beyond_windows != plan.bytes_per_token:
        text += f"; {plan.bytes_per_token_beyond_windows:,} once every window is full"
    return text


def _arithmetic(plan: Plan) -> str:
    """Layers of one shape as one product, the shapes joined by plus signs."""
    assert plan.spec is not None
    assert plan.elements is not None
    counts: dict[LayerKind, int] = {}
    for _, kind in plan.spec.kinds():
        if not isinstance(kind, Shared | State | Cross):
            plain = _shape(kind)
            counts[plain] = counts.get(plain, 0) + 1
    terms = [_term(kind, count, plan) for kind, count in counts.items()]
    return " + ".join(terms) or "nothing"


def _shape(kind: LayerKind) -> LayerKind:
    """The kind without what does not change its bytes."""
    return Attention(kind.kv_heads, kind.k_dim, kind.v_dim) if isinstance(kind, Attention) else kind


def _term(kind: LayerKind, count: int, plan: Plan) -> str:
    assert plan.elements is not None
    kv = plan.elements.kv
    size = f"{kv.bits // 8} bytes" if kv.bits >= 8 else f"{kv.bits}/8 bytes"
    if isinstance(kind, Attention):
        text = f"{count} layers x {kind.kv_heads} heads x ({kind.k_dim} + {kind.v_dim}) x {size}"
        scales = {"head": 2 * kind.kv_heads, "token": 2}.get(plan.elements.scales, 0)
        return text + (f" + {count} layers x {scales} scales x 4 bytes" if scales else "")
    assert isinstance(kind, Latent)
    if kv.bits > 8:
        row = f"({kind.rank} + {kind.rope}) x {size}"
    else:
        row = f"({kind.rank} x 1 + {-(-kind.rank // 128)} scales x 4 + {kind.rope} x 2 bytes)"
    indexer = f" + {kind.indexer} x 1 + {-(-kind.indexer // 128)} x 4" if kind.indexer else ""
    return f"{count} layers x ({row}{indexer})" if indexer else f"{count} layers x {row}"


def _state(plan: Plan) -> list[tuple[str, str]]:
    size = plan.fixed_bytes_per_sequence
    if not size or plan.elements is None:
        return []
    types = f"recurrent tensors in {plan.elements.recurrent}, convolutions in {plan.elements.conv}"
    return [("one state", f"{size:,} bytes a sequence whatever its length; {types}")]


def _page(plan: Plan) -> str:
    return "a parent" if plan.packed else f"{plan.page_size} tokens"


def _capacity(plan: Plan, spec: ModelSpec) -> str:
    """Tokens, and sequences of the longest length that fit, two decimals, rounded down."""
    longest = plan.max_length or plan.tokens
    if spec.max_length is not None and longest == plan.tokens < spec.max_length:
        sequences = f"less than one sequence of the model's {spec.max_length:,}"
    else:
        hundredths = int(plan.max_sequences(longest) * 100)
        sequences = f"{hundredths // 100}.{hundredths % 100:02} sequences of {longest:,}"
    if plan.bytes_per_token_beyond_windows:
        return f"{plan.tokens:,} tokens: {sequences}"
    return sequences


def _in_flight(plan: Plan) -> list[tuple[str, str]]:
    if not plan.in_flight_bytes:
        return []
    text = f"{plan.in_flight_bytes:,} bytes while a step of {plan.max_step_tokens:,} tokens runs"
    return [("in flight", f"{text}, for all sequences together")]


def _depth(spec: ModelSpec, plan: Plan) -> list[tuple[str, str]]:
    """The second decoder of a speech model keeps its own few positions while a sequence runs."""
    if spec.depth is None or plan.elements is None:
        return []
    size = depth_bytes(spec, plan)
    positions = spec.depth.max_length
    return [
        ("depth", f"{size:,} bytes a running sequence beside this cache: {positions} positions")
    ]


def depth_bytes(spec: ModelSpec, plan: Plan) -> int:
    """Bytes of one sequence in the cache of a model's depth decoder. O(layers)."""
    from octavo.components import components_of

    if spec.depth is None or plan.elements is None:
        return 0
    found = components_of(spec.depth, plan.elements, spec.depth.max_length or 1, "token")
    return sum(component.bytes for component in found)


def _parts(budget: Budget, plan: Plan) -> str:
    """The parts that are not zero, in bytes, so that a reader can add them up."""
    parts = {
        f"{plan.usable_pages:,} {'parents' if plan.packed else 'pages'}": budget.payload,
        "scales": budget.scales,
        "draft": budget.reserved,
        "null page": budget.null_page,
        "padding": budget.padding,
        "remainder": budget.remainder,
    }
    return " + ".join(f"{name} {size:,}" for name, size in parts.items() if size)


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as JSON-ready data; names are stable. O(groups)."""
    longest = plan.max_length or plan.tokens
    elements = plan.elements
    return {
        "model": plan.spec.name if plan.spec else None,
        "layout": plan.layout,
        "order": plan.order,
        "dtype": elements.kv.name if elements else None,
        "scales": elements.scales if elements else None,
        "state_dtype": elements.recurrent.name if elements else None,
        "conv_dtype": elements.conv.name if elements else None,
        "page_size": plan.page_size,
        "max_length": longest,
        "tp": plan.tp,
        "pp": max(1, len(plan.stages)),
        "pool": {
            "parents": plan.usable_pages if plan.packed else plan.num_pages,
            "parent_bytes": plan.page_bytes,
            "null_bytes": plan.budget.null_page if plan.budget else 0,
        },
        "page_bytes": plan.page_bytes,
        "bytes_per_token": plan.bytes_per_token,
        "bytes_per_token_beyond_windows": plan.bytes_per_token_beyond_windows,
        "fixed_bytes_per_sequence": plan.fixed_bytes_per_sequence,
        "sequence_bytes": plan.sequence_bytes(longest),
        "max_sequences": int(plan.max_sequences(longest) * 100) / 100,
        "tokens": plan.tokens,
        "in_flight_bytes": plan.in_flight_bytes,
        "max_step_tokens": plan.max_step_tokens,
        "depth_bytes_per_sequence": depth_bytes(plan.spec, plan) if plan.spec else 0,
        "groups": [_group_as_dict(group, plan) for group in plan.groups.values()],
        "memory": plan.memory._asdict() if plan.memory else None,
        "budget": plan.budget._asdict() if plan.budget else None,
    }


def _group_as_dict(group: GroupPlan, plan: Plan) -> dict[str, Any]:
    usable = plan.usable_pages * group.pages_per_parent
    return {
        "name": group.name,
        "layers": list(group.layers),
        "pages": usable + 1,
        "usable_pages": usable,
        "page_bytes": group.page_bytes,
        "pages_per_parent": group.pages_per_parent,
        "parts": group.parts,
        "kept_bytes": group.kept_bytes,
        "window": getattr(group.lifetime, "window", None),
        "sink_tokens": group.lifetime.sinks,
        "chunk": getattr(group.lifetime, "chunk", None),
    }
