"""A plan told in words: what one token costs, what the memory holds, where the rest went."""

from octavo.planning import Budget, Plan
from octavo.spec import ModelSpec


def explain_plan(plan: Plan) -> str:
    """Several lines of text, each with the arithmetic behind its figure. O(layers)."""
    if plan.spec is None or plan.budget is None or plan.dtype is None:
        return (
            f"{plan.usable_pages} pages of {plan.page_size} tokens and the null page: "
            f"{plan.tokens} tokens; bytes are the engine's own matter"
        )
    lines = [
        f"model      {plan.spec.name}, {len(plan.spec.layers)} layers",
        f"one token  {_token_arithmetic(plan.spec, plan)} = {plan.bytes_per_token:,} bytes",
        f"one page   {plan.page_size} tokens = {plan.page_bytes:,} bytes",
        f"memory     {amount(plan.budget.total)} = {_parts(plan.budget, plan.usable_pages)} bytes",
        f"capacity   {plan.tokens:,} tokens: {_capacity(plan, plan.spec)}",
    ]
    windows = sum(layer.window is not None for layer in plan.spec.layers)
    if windows:
        lines.append(f"windows    {windows} layers slide, but all their tokens are kept")
    return "\n".join(lines)


def amount(size: int) -> str:
    """``size`` bytes in the largest binary unit of which there is at least one.

    In integers, so that no size is too large; to the nearest hundredth. O(1).
    """
    for unit, name in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if size >= unit:
            whole, part = divmod((200 * size + unit) // (2 * unit), 100)
            return f"{whole}.{part:02}".rstrip("0").rstrip(".") + f" {name}"
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


def _capacity(plan: Plan, spec: ModelSpec) -> str:
    """Sequences of the longest length that fit, two decimals, rounded down."""
    longest = plan.max_length or plan.tokens
    if spec.max_length is not None and longest == plan.tokens < spec.max_length:
        return f"less than one sequence of the model's {spec.max_length:,}"
    hundredths = int(plan.max_sequences(longest) * 100)
    return f"{hundredths // 100}.{hundredths % 100:02} sequences of {longest:,}"


def _parts(budget: Budget, pages: int) -> str:
    """The parts that are not zero, in bytes, so that a reader can add them up."""
    parts = {
        f"{pages:,} pages": budget.payload,
        "null page": budget.null_page,
        "padding": budget.padding,
        "remainder": budget.remainder,
    }
    return " + ".join(f"{name} {size:,}" for name, size in parts.items() if size)
