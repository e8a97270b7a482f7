"""A plan told in words: what one token costs, what the memory holds, where the rest went."""

from octavo.planning import Plan
from octavo.spec import ModelSpec


def explain_plan(plan: Plan) -> str:
    """Several lines of text, each with the arithmetic behind its figure. O(layers)."""
    if plan.spec is None or plan.budget is None or plan.dtype is None:
        return (
            f"{plan.usable_pages} pages of {plan.page_size} tokens and the null page: "
            f"{plan.tokens} tokens; bytes are the engine's own matter"
        )
    longest = plan.max_length or plan.tokens
    lines = [
        f"model      {plan.spec.name}, {len(plan.spec.layers)} layers",
        f"one token  {_token_arithmetic(plan.spec, plan)} = {plan.bytes_per_token:,} bytes",
        f"one page   {plan.page_size} tokens = {plan.page_bytes:,} bytes",
        f"memory     {amount(plan.budget.total)} = {_parts(plan)}",
        f"capacity   {plan.tokens:,} tokens: {_times(plan, longest)} sequences of {longest:,}",
    ]
    windows = sum(layer.window is not None for layer in plan.spec.layers)
    if windows:
        lines.append(f"windows    {windows} layers slide, but all their tokens are kept")
    return "\n".join(lines)


def amount(size: int) -> str:
    """``size`` bytes in the largest binary unit of which there is at least one. O(1)."""
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            return f"{size / unit:.2f}".rstrip("0").rstrip(".") + f" {name}"
    return f"{size} bytes"


def _token_arithmetic(spec: ModelSpec, plan: Plan) -> str:
    """Layers of one shape as one product, the shapes joined by plus signs."""
    assert plan.dtype is not None
    shapes: dict[tuple[int, int, int], int] = {}
    for layer in spec.layers:
        shape = (layer.kv_heads, layer.k_dim, layer.v_dim)
        shapes[shape] = shapes.get(shape, 0) + 1
    return " + ".join(
        f"{count} layers x {heads} heads x ({k} + {v}) x {plan.dtype.bytes} bytes"
        for (heads, k, v), count in shapes.items()
    )


def _times(plan: Plan, length: int) -> str:
    """Sequences of ``length`` that fit, two decimals, rounded down."""
    return f"{int(plan.max_sequences(length) * 100) / 100:.2f}"


def _parts(plan: Plan) -> str:
    assert plan.budget is not None
    b = plan.budget
    parts = [
        f"{plan.usable_pages:,} pages {amount(b.payload)}",
        f"null page {amount(b.null_page)}",
        f"padding {amount(b.padding)}",
        f"remainder {amount(b.remainder)}",
    ]
    return " + ".join(parts)
