"""A plan as one self-contained HTML page: the memory as a picture, the arithmetic beneath."""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from octavo.cli import html
from octavo.planner import explain, figures, sizes
from octavo.planner.answer import answer, machine
from octavo.planner.plan import GroupPlan, Plan
from octavo.planner.wish import Wish

_STYLE = """
.bar { display: flex; height: 4.5rem; width: 100%; border-radius: .4rem; overflow: hidden;
  border: 1px solid var(--line); }
.bar.thin { height: 2.2rem; }
.bar i { display: block; min-width: 0; overflow: hidden; white-space: nowrap; font-style: normal;
  font-size: .8rem; color: var(--on); padding: .3rem 0 0 .4rem; }
.bar i:empty { padding: 0; }
.bar i + i { border-left: 1px solid var(--back); }
.key { list-style: none; margin: .8rem 0 0; padding: 0; display: grid; gap: .15rem 1.6rem;
  grid-template-columns: repeat(auto-fit, minmax(19rem, 1fr)); }
.key li { display: grid; grid-template-columns: 1rem 1fr auto 4.2rem; gap: .5rem;
  align-items: baseline; font-variant-numeric: tabular-nums; border-bottom: 1px solid var(--line); }
.key s { width: .85rem; height: .85rem; border-radius: .2rem; align-self: center; }
.key li > :nth-child(3), .key li > :nth-child(4) { text-align: right; white-space: nowrap; }
@media (min-width: 44rem) { .bar { height: 5.5rem; } }
@media (max-width: 30rem) { .key { grid-template-columns: 1fr; } }
@media print { .bar, .key s { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""


class Piece(NamedTuple):
    """A part of a bar: its name, bytes and colour."""

    name: str
    bytes: int
    color: str


def memory_pieces(plan: Plan) -> list[Piece]:
    """Parts of the device's memory that are not zero; they sum to it. O(tensors).

    Groups share the pool: it is shown as sequences of the longest length share it.
    """
    budget, memory = plan.budget, plan.memory
    if budget is None or memory is None:
        return []
    taken = (memory.weights or 0) + memory.activations + memory.other
    pieces = [
        Piece("weights", memory.weights or 0, "taken"),
        Piece("activations", memory.activations, "taken2"),
        Piece("other", memory.other, "taken3"),
        Piece("kept free", memory.device - memory.available - taken, "taken3"),
        *_by_group(plan, budget.payload),
        Piece("scales", budget.scales, "scales"),
        Piece("draft", budget.reserved, "draft"),
        Piece("padding", budget.padding, "padding"),
        Piece("null page", budget.null_page, "null"),
        Piece("remainder", budget.remainder, "rest"),
    ]
    return [piece for piece in pieces if piece.bytes]


def _by_group(plan: Plan, payload: int) -> list[Piece]:
    """The payload in the proportions of one longest sequence's pages, to the byte."""
    longest = plan.max_length or plan.tokens
    weights = {}
    for name, group in plan.groups.items():
        page = sum(
            tensor.page_bytes
            for tensor in plan.tensors
            if tensor.group == name and not tensor.draft and not tensor.component.endswith("_scale")
        )
        weights[name] = group.steady_pages(longest, plan.page_size) // group.parts * page
    total = sum(weights.values())
    shares = [weight * payload // total for weight in weights.values()]
    shares[-1] += payload - sum(shares)
    states = {"state": "states"}
    return [
        Piece(
            states.get(plan.groups[name].lifetime.form, f"KV {name}"),
            share,
            _color(plan.groups[name]),
        )
        for name, share in zip(weights, shares, strict=True)
    ]


def _color(group: GroupPlan) -> str:
    """One colour a kind of group, on every page."""
    if not group.grows:
        return {"state": "c3", "cross": "c4"}[group.lifetime.form]
    if not group.slides:
        return "c0"
    return "c1" if hasattr(group.lifetime, "window") else "c2"


def sequence_pieces(plan: Plan) -> list[Piece]:
    """What one sequence of the longest length keeps in each group. O(groups)."""
    longest = plan.max_length or plan.tokens
    return [
        Piece(group.name, sizes.kept_in(plan, group, longest), _color(group))
        for group in plan.groups.values()
    ]


def _bar(pieces: Sequence[Piece], *, thin: bool = False) -> str:
    total = sum(piece.bytes for piece in pieces) or 1
    parts = "".join(
        f'<i style="flex:{piece.bytes} 1 0;background:var(--{piece.color})" '
        f'title="{escape(piece.name)}: {piece.bytes:,} bytes">'
        f"{_label(piece, total)}</i>"
        for piece in pieces
    )
    rows = "".join(
        f'<li><s style="background:var(--{piece.color})"></s><span>{escape(piece.name)}</span>'
        f"<span>{figures.amount(piece.bytes)}</span>"
        f"<span>{_percent(piece.bytes, total)}</span></li>"
        for piece in pieces
    )
    return f'<div class="bar{" thin" if thin else ""}">{parts}</div><ul class="key">{rows}</ul>'


def _label(piece: Piece, total: int) -> str:
    """The name where the piece is wide enough for it on a phone, else nothing."""
    letters = 42 * piece.bytes // total - 2  # 42 small letters fill a bar 360 pixels wide
    return escape(piece.name) if len(piece.name) <= letters else ""


def _percent(size: int, total: int) -> str:
    tenths = (2000 * size + total) // (2 * total)
    return f"{tenths // 10}.{tenths % 10} %" if tenths else "< 0.1 %"


def _facts(plan: Plan, wish: Wish | None) -> Iterable[tuple[str, str]]:
    """What each card tells, and its figure."""
    longest = plan.max_length or plan.tokens
    yield _fitting(plan, wish, longest)
    late = sizes.bytes_per_token_beyond_windows(plan)
    if late and plan.memory is not None and plan.memory.given:
        yield "tokens, as one sequence", f"{plan.tokens:,}"
    yield "bytes per token", f"{plan.bytes_per_token:,}"
    if late != plan.bytes_per_token:
        yield "bytes per token beyond windows", f"{late:,}"
    if fixed := sizes.fixed_bytes_per_sequence(plan):
        yield "per sequence, whatever its length", figures.amount(fixed)
    if plan.tp > 1 or plan.stages:
        shares = [f"tp {plan.tp}"] if plan.tp > 1 else []
        shares += [f"pp {len(plan.stages)}"] if plan.stages else []
        yield "ranks; bytes are of one of them", ", ".join(shares)


def _fitting(plan: Plan, wish: Wish | None, longest: int) -> tuple[str, str]:
    """The first card: how many fit, or what those asked for need."""
    if wish is None:
        return f"sequences of {longest:,} tokens", explain.hundredths(plan, longest)
    asked = f"{figures.counted(wish.sequences, 'sequence')} of {wish.length:,} tokens"
    if not wish.device.given:
        return f"for {asked}", figures.amount(wish.memory, up=True)
    most = wish.max_sequences
    return (f"sequences of {wish.length:,} tokens; {wish.sequences:,} asked for", f"{most:,} fit")


def render(
    plan: Plan,
    wish: Wish | None = None,
    compared: Sequence[Sequence[str]] = (),
    notes: Sequence[str] = (),
) -> str:
    """The page as text.

    Args:
        plan: with bytes; with a wish what `octavo.planner.wish.plan_wish` made of it.
        wish: what was asked for, or None.
        compared: cells of a table of further plans with its header; empty: none.
        notes: sentences below that table.

    Cost: O(layers).
    """
    assert plan.memory is not None
    name = plan.spec.name if plan.spec else "pages"
    asked, longest = wish.device if wish else plan.memory, plan.max_length or plan.tokens
    where = machine(plan, asked)
    heading = f"The KV cache of {name}" + (f" in {where}" if where else "")
    size = figures.amount(plan.memory.device, up=not plan.memory.given)
    if asked.device != plan.memory.device:
        size = f"the {size} that would be enough"
    shared = f", as sequences of {longest:,} tokens share it" if len(plan.groups) > 1 else ""
    sections = [
        html.paragraphs([f"Pages of {explain.choices(plan)}"], "soft"),
        html.cards(_facts(plan, wish)),
        html.paragraphs(answer(plan, wish)),
        f"<h2>Where {size} go{shared}</h2>{_bar(memory_pieces(plan))}",
        f"<h2>One sequence of {longest:,} tokens</h2>{_bar(sequence_pieces(plan), thin=True)}"
        if len(plan.groups) > 1
        else "",
        f"<h2>Groups of layers</h2>{html.table(explain.group_rows(plan))}",
        html.paragraphs([explain.note(plan)], "soft"),
        f"<h2>Compared</h2>{html.table(compared)}" if compared else "",
        html.paragraphs(notes, "soft"),
        f"<h2>The arithmetic</h2>{html.terms(explain.terms(plan))}",
    ]
    made = "Made by octavo plan; every byte is accounted for."
    return html.page(heading, heading, "\n".join(sections), _STYLE, made)
