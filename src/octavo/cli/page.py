"""A plan as one self-contained HTML page: the memory as a picture, the arithmetic beneath.

No script and nothing from a network; for paper, phones and desktops, light and dark.
"""

from collections.abc import Iterable, Sequence
from html import escape
from typing import NamedTuple

from octavo.planner import explain, sizes
from octavo.planner.plan import GroupPlan, Plan

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5a6472; --back: #fbfaf7; --line: #d9d6cd;
  --on: #10141b; --c0: #6fa8d6; --c1: #86c29a; --c2: #e0b060; --c3: #d392b2; --c4: #85b5c4;
  --taken: #8d939c; --taken2: #b3b8bf; --taken3: #d6d9dd; --scales: #b6d2ea;
  --draft: #d8c48a; --padding: #e6dcc4; --null: #4a515b; --rest: #efeeea; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e4de; --soft: #a2a8b0; --back: #16191e;
  --line: #343a43; --c0: #5b9fd0; --c1: #76b98b; --c2: #dca551; --c3: #c9789d; --c4: #74a3b3;
  --taken: #a9b0ba; --taken2: #7f8691; --taken3: #5f6671; --scales: #8fb4d1;
  --draft: #b59a55; --padding: #a89a7a; --null: #f0f2f4; --rest: #3a404a; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; } .soft { color: var(--soft); } .big + p { margin-top: 1rem; }
.big { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem;
  margin: 1.2rem 0 0; }
.big div { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.big b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
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
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left;
  white-space: nowrap; } th { color: var(--soft); font-weight: 500; } .n { text-align: right; }
dl { margin: 0; } dt { color: var(--soft); margin-top: .6rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
@media (min-width: 44rem) { dl { display: grid; grid-template-columns: 8rem 1fr; gap: .35rem 1rem; }
  dt { margin: 0; } .bar { height: 5.5rem; } }
@media (max-width: 44rem) { th { display: none; } tr { display: block; padding: .5rem 0;
  border-bottom: 1px solid var(--line); } td, td.n { display: flex; justify-content: space-between;
  gap: 1rem; padding: .1rem 0; border: 0; text-align: right; white-space: normal; }
  td::before { content: attr(data-of); color: var(--soft); text-align: left; }
  td:first-child { font-weight: 600; } table { min-width: 0; width: 100%; } }
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
        Piece("not to be used", memory.device - memory.available - taken, "taken3"),
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
        f"<span>{explain.amount(piece.bytes)}</span>"
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


def _table(rows: Sequence[Sequence[str]]) -> str:
    numbers = [any(cell[:1].isdigit() for cell in column) for column in zip(*rows, strict=True)]

    def cells(row: Sequence[str], tag: str) -> str:
        return "".join(
            f'<{tag}{" class=n" if number else ""} data-of="{escape(head)}">{escape(cell)}</{tag}>'
            for head, cell, number in zip(rows[0], row, numbers, strict=True)
        )

    body = "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows[1:])
    return f'<div class="scroll"><table><tr>{cells(rows[0], "th")}</tr>{body}</table></div>'


def _facts(plan: Plan) -> Iterable[tuple[str, str]]:
    longest = plan.max_length or plan.tokens
    yield f"sequences of {longest:,} tokens", explain.hundredths(plan, longest)
    late = sizes.bytes_per_token_beyond_windows(plan)
    if late:
        yield "tokens of one sequence", f"{plan.tokens:,}"
    yield "bytes a token", f"{plan.bytes_per_token:,}"
    if late != plan.bytes_per_token:
        yield "bytes a token beyond windows", f"{late:,}"
    if sizes.fixed_bytes_per_sequence(plan):
        yield (
            "whatever the length, a sequence",
            explain.amount(sizes.fixed_bytes_per_sequence(plan)),
        )


def render(
    plan: Plan, remarks: Sequence[str], compared: Sequence[Sequence[str]], title: str = ""
) -> str:
    """The page as text.

    Args:
        plan: with bytes.
        remarks: sentences shown below the figures.
        compared: cells of a table of further plans with its header; empty: none.
        title: what to call the model beside its type.

    Cost: O(layers).
    """
    name = plan.spec.name if plan.spec else "pages"
    name = f"{title} ({name})" if title and title != name else name
    device = explain.amount(plan.memory.device) if plan.memory else ""
    facts = "".join(f"<div><b>{escape(b)}</b>{escape(a)}</div>" for a, b in _facts(plan))
    said = "".join(f"<p>{escape(text)}</p>" for text in remarks)
    terms = "".join(
        f"<dt>{escape(term)}</dt><dd>{escape(text)}</dd>" for term, text in explain.terms(plan)
    )
    longest = plan.max_length or plan.tokens
    shared = f", as sequences of {longest:,} tokens share it" if len(plan.groups) > 1 else ""
    sections = [
        f"<h2>Where {device} go{shared}</h2>{_bar(memory_pieces(plan))}",
        f"<h2>One sequence of {longest:,} tokens</h2>{_bar(sequence_pieces(plan), thin=True)}"
        if len(plan.groups) > 1
        else "",
        f"<h2>Groups of layers</h2>{_table(explain.group_rows(plan))}",
        f'<p class="soft">{escape(explain.note(plan))}</p>',
        f"<h2>Compared</h2>{_table(compared)}" if compared else "",
        f"<h2>The arithmetic</h2><dl>{terms}</dl>",
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(name)} in {device}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>The KV cache of {escape(name)} in {device}</h1>"
        f'<p class="soft">Pages of {escape(explain.choices(plan))}</p>'
        f'<div class="big">{facts}</div>{said}{"".join(sections)}'
        '<p class="soft" style="margin-top:2rem">Made by octavo plan; every byte is accounted for.'
        "</p></main></body></html>\n"
    )
