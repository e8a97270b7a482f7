"""A plan in words: what one token costs, what the memory holds, where the rest went.

Computes nothing a plan does not know.
"""

from math import prod

from octavo.model.layers import (
    Attention,
    Compressed,
    Cross,
    Latent,
    LayerKind,
    Shape,
    Shared,
    State,
)
from octavo.planner import figures, sizes
from octavo.planner.answer import Wish, answer, each_of
from octavo.planner.budget import Budget
from octavo.planner.components import LATENT_TILE
from octavo.planner.figures import counted, exact, table, term
from octavo.planner.notes import notes_of
from octavo.planner.pools import GroupPlan, PoolPlan, max_sequences, max_sequences_in_flight
from octavo.planner.solve import longest_alone, scored_length

Line = tuple[str, str]


def explain_plan(plan: PoolPlan, wish: Wish | None = None) -> str:
    """Three sentences that answer, then the arithmetic, a line a figure. O(layers).

    Args:
        plan: to be told; with a wish, the one that `octavo.planner.wish.plan_wish` made of it.
        wish: what was asked for, or None.
    """
    if plan.spec is None or plan.budget is None or plan.elements is None:
        return (
            f"{plan.usable_pages} pages of {plan.page_size} tokens and the null page: "
            f"{longest_alone(plan)} tokens; bytes are the engine's own matter"
        )
    lines = terms(plan)
    width = max(len(name) for name, _ in lines)
    text = [f"{name:<{width}}  {words}" for name, words in lines]
    at = 1 + next(number for number, (name, _) in enumerate(lines) if name == "pages")
    groups = ["", *table(group_rows(plan)), note(plan), ""] if len(plan.groups) > 1 else []
    head = [*answer(plan, wish), ""]
    if wish is not None and wish.device != plan.memory:
        head += [f"Of the {exact(plan.budget.total)} for the cache that would be enough:", ""]
    return "\n".join([*head, *text[:at], *groups, *text[at:]])


def terms(plan: PoolPlan) -> list[Line]:
    """The lines of `explain_plan` but for the table of groups, each as its name and text."""
    assert plan.budget is not None
    needed = plan.memory is not None and not plan.memory.given
    total = exact(plan.budget.total, up=needed) + _each(plan)
    return [
        ("model", _model(plan)),
        *_device(plan),
        ("pages", f"of {choices(plan)}"),
        ("one token", _token(plan)),
        *_fixed(plan),
        *_page(plan),
        ("sequence", _sequence(plan)),
        ("memory", f"{total} = {_parts(plan.budget, plan)}"),
        *_filled(plan.budget, plan),
        ("capacity", capacity(plan)),
        ("reuse", reuse(plan)),
        *_in_flight(plan),
        *_depth(plan),
        *_left_out(plan),
        *(("note", sentence) for sentence in notes_of(plan)),
    ]


def hundredths(plan: PoolPlan, length: int) -> str:
    """Sequences of ``length`` tokens that fit, two decimals, rounded down. O(groups)."""
    return figures.hundredths(max_sequences(plan, length))


def _model(plan: PoolPlan) -> str:
    assert plan.spec is not None
    shares = [f"tp {plan.tp}"] if plan.tp > 1 else []
    shares += [f"pp {len(plan.stages)}"] if plan.stages else []
    ranks = ""
    if shares:
        ranks = (
            f"; bytes are{_each(plan)} ({', '.join(shares)}), sequences and tokens of all together"
        )
    if plan.stages:
        ranks += f": rank {plan._rank + 1}, which has room for the fewest pages"
        if plan.packed:
            leader = (
                "its own" if plan._leader == plan._rank else f"those of rank {plan._leader + 1}"
            )
            ranks += f"; pages per parent are {leader}, in which the most sequences fit"
    return f"{plan.spec.name}, {counted(len(plan.spec.layers), 'layer')}{ranks}"


def _device(plan: PoolPlan) -> list[Line]:
    """What is taken off a device, where anything is."""
    memory = plan.memory
    if memory is None or memory.available == memory.device:
        return []
    return [("device", memory.formula + _each(plan))]


def _each(plan: PoolPlan, word: str = "per") -> str:
    return each_of(plan, plan.memory, word)


def choices(plan: PoolPlan) -> str:
    """What was chosen: page size, element types and layout. O(groups)."""
    elements = plan.elements
    assert elements is not None
    types = [elements.kv.name]
    if elements.scales != "none":
        types.append(f"a scale per {elements.scales}" if elements.scales != "tensor" else "scaled")
    if sizes.state_bytes(plan):
        types += [f"states {elements.recurrent.name}", f"convolutions {elements.conv.name}"]
    pages = counted(plan.page_size, "token")
    if plan._request is not None and plan.page_size > plan._request.page_size:
        pages += f" (grown from {plan._request.page_size:,} so that a page covers a state)"
    return f"{pages}; {', '.join(types)}; {plan.layout} layout"


def note(plan: PoolPlan) -> str:
    """What a column of `group_rows` means. O(1)."""
    what = "parents were bound to" if plan.packed else "pages were of"
    text = f"pages if all: as many as there would be if all {what} that group"
    parent = "parent: memory bound to one group at a time and cut into its pages; "
    return f"({parent if plan.packed else ''}{text})"


def group_rows(plan: PoolPlan) -> list[list[str]]:
    """Cells of a table: a row a group under a header. O(groups)."""
    head = ["group", "layers", "keeps", "bytes per token", "page bytes", "padding", "pages if all"]
    rows = [[*head, "pages per parent"] if plan.packed else head]
    for group in plan.groups.values():
        usable = plan.usable_pages * group.pages_per_parent
        size = group.unit_bytes(plan.page_size)
        token = "-" if group.lifetime.form == "state" else _share(size, group.every)
        row = [group.name, f"{len(group.layers)}", keeps(group), token, f"{group.page_bytes:,}"]
        row += [f"{group.page_bytes - group.kept_bytes // group.parts:,}", f"{usable:,}"]
        rows.append([*row, f"{group.pages_per_parent:,}"] if plan.packed else row)
    return rows


def _share(size: int, every: int) -> str:
    """Bytes per token of a row of so many that stands for several."""
    return f"{size / every:,.2f}".removesuffix(".00") if every > 1 else f"{size:,}"


def keeps(group: GroupPlan) -> str:
    """What a group keeps of a sequence, in a few words. O(1)."""
    life = group.lifetime
    window, chunk = getattr(life, "window", None), getattr(life, "chunk", None)
    if window is not None:
        sinks = f" and the first {life.sinks}" if life.sinks else ""
        return f"the last {window:,} tokens{sinks}"
    if chunk is not None:
        return f"its chunk of {chunk:,} tokens"
    if life.form == "state":
        return "one state" + (f" in {group.parts} pages" if group.parts > 1 else "")
    if life.form == "rows":
        return f"a row for every {group.every:,} tokens"
    return "every token" if life.form == "tokens" else "another input"


def _token(plan: PoolPlan) -> str:
    text = f"{_arithmetic(plan)} = {sizes.bytes_per_token(plan):,} bytes{_each(plan)}"
    if sizes.bytes_per_token_beyond_windows(plan) != sizes.bytes_per_token(plan):
        text += f"; {sizes.bytes_per_token_beyond_windows(plan):,} once every window is full"
    return text


def _arithmetic(plan: PoolPlan) -> str:
    """Layers of one shape as one product, the shapes joined by plus signs."""
    assert plan.spec is not None
    counts: dict[LayerKind, int] = {}
    for _, kind in plan.spec.kinds():
        if not isinstance(kind, Shared | State | Cross):
            plain = _shape(kind)
            counts[plain] = counts.get(plain, 0) + 1
    terms = [_term(kind, count, plan) for kind, count in counts.items()]
    draft = sum(tensor.page_bytes for tensor in plan.tensors if tensor.draft) // plan.page_size
    return " + ".join([*terms, f"{draft:,} of the draft"] if draft else terms) or "nothing"


def _shape(kind: LayerKind) -> LayerKind:
    """The kind without what does not change its bytes."""
    if isinstance(kind, Attention):
        return Attention(kind.kv_heads, kind.k_dim, kind.v_dim, indexer=kind.indexer)
    if isinstance(kind, Latent):
        return Latent(kind.rank, kind.rope, kind.indexer)
    return kind


def _term(kind: LayerKind, count: int, plan: PoolPlan) -> str:
    assert plan.elements is not None
    kv, layers = plan.elements.kv, counted(count, "layer")
    size = counted(kv.bits // 8, "byte") if kv.bits >= 8 else f"{kv.bits}/8 bytes"
    if isinstance(kind, Attention):
        heads = counted(kind.kv_heads, "head")
        text = f"{layers} x {heads} x ({kind.k_dim} + {kind.v_dim}) x {size}"
        scales = {"head": 2 * kind.kv_heads, "token": 2}.get(plan.elements.scales, 0)
        text += f" + {layers} x {scales} scales x 4 bytes" if scales else ""
        return text + (f" + {layers} x {_indexer(kind.indexer, plan)}" if kind.indexer else "")
    assert isinstance(kind, Latent | Compressed)
    if not kind.rank:
        row = ""
    elif kv.bits > 8:
        row = f"({kind.rank} + {kind.rope}) x {size}"
    else:
        row = f"({kind.rank} + {-(-kind.rank // 128)} scales x 4 + {kind.rope} x 2) bytes"
    if kind.indexer:
        row = f"({row} + {_indexer(kind.indexer, plan)})" if row else _indexer(kind.indexer, plan)
    return f"{layers} x {row}" + (f" / {kind.every}" if isinstance(kind, Compressed) else "")


def _indexer(elements: int, plan: PoolPlan) -> str:
    """The key of an indexer, in bytes."""
    assert plan.elements is not None
    if plan.elements.indexer.bits > 8:
        return f"indexer {elements} x {plan.elements.indexer.bytes} bytes"
    return f"indexer {elements} + {-(-elements // LATENT_TILE)} x 4 bytes"


def _fixed(plan: PoolPlan) -> list[Line]:
    size = sizes.fixed_bytes_per_sequence(plan)
    lines = []
    if size:
        whole = f"{exact(size)} per sequence{_each(plan, 'and')}, whatever its length"
        lines.append(("fixed", f"{_states(plan)} = {whole}"))
    if buffers := sizes.buffer_bytes(plan):
        whole = f"{exact(buffers)} per sequence{_each(plan, 'and')}"
        text = f"{whole} of what rows are computed from, beside these"
        lines.append(("buffers", text))
    return lines


def _states(plan: PoolPlan) -> str:
    """Layers of one state as one product, and what inputs and drafts add."""
    assert plan.spec is not None
    assert plan.elements is not None
    counts: dict[tuple[Shape | int, Shape, Shape], int] = {}
    for _, kind in plan.spec.kinds():
        if isinstance(kind, State):
            fixed = (kind.recurrent, kind.conv, kind.rows)
            counts[fixed] = counts.get(fixed, 0) + 1
    listed, known = [], 0
    types = (plan.elements.recurrent, plan.elements.conv, plan.elements.rows)
    for fixed, count in counts.items():
        parts = zip(fixed, types, strict=True)
        shapes = [
            (shape if isinstance(shape, tuple) else (shape,), dtype)
            for shape, dtype in parts
            if shape
        ]
        if not shapes:
            continue
        known += count * sum(dtype.size(prod(shape)) for shape, dtype in shapes)
        products = [
            " x ".join([*map(str, shape), f"{dtype.bits // 8} bytes"]) for shape, dtype in shapes
        ]
        listed.append(f"{counted(count, 'layer')} x ({' + '.join(products)})")
    rest = sizes.fixed_bytes_per_sequence(plan) - known
    others = "other inputs and drafts"
    if rest:
        listed.append(f"{rest:,} of {others}" if listed else others)
    return " + ".join(listed)


def _sequence(plan: PoolPlan) -> str:
    """Pages and bytes of one longest sequence by group."""
    longest = plan.max_length or longest_alone(plan)
    each = [
        f"{group.name} {counted(pages, 'page')} x {sizes.cost(plan, group):,}"
        for group in plan.groups.values()
        if (pages := group.steady_pages(longest, plan.page_size))
    ]
    text = (
        f"of {longest:,} tokens: {' + '.join(each)} = {exact(sizes.sequence_bytes(plan, longest))}"
        f"{_each(plan)}"
    )
    if sizes.bytes_per_token_beyond_windows(plan) == sizes.bytes_per_token(plan):
        return text
    whole = sizes.bytes_per_token(plan) * longest + sizes.fixed_bytes_per_sequence(plan)
    return f"{text}; an engine that keeps every token in every layer takes {term(whole)}"


def _page(plan: PoolPlan) -> list[Line]:
    if not plan.packed:
        shared = ", with room for any group" if len(plan.groups) > 1 else ""
        size = f"{counted(plan.page_size, 'token')} = {exact(plan.page_bytes)}{_each(plan)}"
        return [("one page", size + shared)]
    choices = ", or ".join(
        f"{counted(group.pages_per_parent, 'page')} of {group.name}"
        for group in plan.groups.values()
    )
    size = f"{exact(plan.page_bytes)}{_each(plan)}"
    return [("one parent", f"{size}, bound to one group at a time: {choices}")]


def capacity(plan: PoolPlan) -> str:
    """Tokens, and sequences of the longest length that fit. O(groups)."""
    longest, own = (
        plan.max_length or longest_alone(plan),
        plan.spec.max_length if plan.spec else None,
    )
    sequences = f"{hundredths(plan, longest)} sequences of {longest:,}"
    if own is not None and longest == longest_alone(plan, in_flight=True) < own:
        sequences += f", less than the model's {own:,}"
    elif own is not None and longest > own and plan.max_length is not None:
        sequences += f" (beyond the model's own {own:,})"
    if sizes.bytes_per_token_beyond_windows(plan):
        return f"{longest_alone(plan):,} tokens: {sequences}"
    return sequences


def reuse(plan: PoolPlan) -> str:
    """At which boundaries prefixes are shared. O(groups)."""
    text = f"prefixes in steps of {counted(plan.page_size, 'token')}"
    if not sizes.state_bytes(plan):
        return text
    worth = sizes.state_tokens(plan)
    tokens = f", as many as {counted(worth, 'token')}" if worth else ""
    return f"{text}, at saved states only ({exact(sizes.state_bytes(plan))} each{tokens})"


def _in_flight(plan: PoolPlan) -> list[Line]:
    size = sizes.in_flight_bytes(plan)
    if not size:
        return []
    text = f"{exact(size)}{_each(plan)} that windows hold while a step of "
    text += f"{plan.max_step_tokens:,} tokens runs"
    longest = plan.max_length or longest_alone(plan)
    whole = max_sequences_in_flight(plan, longest)
    if whole < int(max_sequences(plan, longest)):
        room = f"{counted(whole, 'sequence')} of {longest:,} with it"
        return [("in flight", f"{text}, once for all sequences: {room}")]
    return [("in flight", f"{text}, once for all sequences")]


def _depth(plan: PoolPlan) -> list[Line]:
    """The second decoder of a speech model keeps its own few positions while a sequence runs."""
    if plan.spec is None or plan.spec.depth is None:
        return []
    positions = counted(plan.spec.depth.max_length or 1, "position")
    text = (
        f"{exact(sizes.depth_bytes(plan))} per running sequence beside this cache, for {positions}"
    )
    return [("depth", text)]


def _left_out(plan: PoolPlan) -> list[Line]:
    """Prediction layers that a config has and the plan does not count."""
    many = 0 if plan.spec is None else len(plan.spec.mtp)
    if not many:
        return []
    layers = counted(many, "prediction layer")
    return [("left out", f"{layers} of the config: --mtp {many} (with_mtp({many})) counts them")]


def _parts(budget: Budget, plan: PoolPlan) -> str:
    """The parts that are not zero, so that a reader can multiply and add them up."""
    size = plan.page_bytes if plan.packed else budget.null_page
    pages = counted(plan.usable_pages, "parent" if plan.packed else "page")
    pool = plan.usable_pages * size
    parts = {
        "null page (page 0, never handed out)": budget.null_page,
        "alignment": budget.total - pool - budget.null_page - budget.remainder,
        "remainder": budget.remainder,
    }
    first = f"{pages} x {size:,} = {term(pool)}"
    return " + ".join([first, *(f"{name} {term(part)}" for name, part in parts.items() if part)])


def _filled(budget: Budget, plan: PoolPlan) -> list[Line]:
    """What the pages hold, where it is more than keys, values and states."""
    size = plan.page_bytes if plan.packed else budget.null_page
    pool = plan.usable_pages * size
    parts = {
        "kept": budget.payload,
        "scales": budget.scales,
        "draft": budget.reserved,
        "padding": pool - budget.payload - budget.scales - budget.reserved,
    }
    if budget.payload == pool:
        return []
    held = " + ".join(f"{name} {term(part)}" for name, part in parts.items() if part)
    text = f"{exact(pool)} = {held}"
    if not plan.packed or plan._request is None or plan.spec is None:
        return [("filled", text)]
    length = scored_length(plan.spec, plan._request)
    return [("filled", f"{text}, as sequences of {length:,} tokens fill parents")]
