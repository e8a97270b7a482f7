"""What both pages are made of: one style, cards of figures, tables that fold on a phone.

No script and nothing from a network; for paper, phones and desktops, light and dark.
"""

from collections.abc import Iterable, Sequence
from html import escape

STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #5a6472; --back: #fbfaf7; --line: #d9d6cd;
  --on: #10141b; --c0: #6fa8d6; --c1: #86c29a; --c2: #e0b060; --c3: #d392b2; --c4: #85b5c4;
  --taken: #8d939c; --taken2: #b3b8bf; --taken3: #d6d9dd; --scales: #b6d2ea;
  --draft: #d8c48a; --padding: #e6dcc4; --null: #4a515b; --rest: #efeeea;
  --curve0: #1f5f8b; --curve1: #b5462f; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e4de; --soft: #a2a8b0; --back: #16191e;
  --line: #343a43; --c0: #5b9fd0; --c1: #76b98b; --c2: #dca551; --c3: #c9789d; --c4: #74a3b3;
  --taken: #a9b0ba; --taken2: #7f8691; --taken3: #5f6671; --scales: #8fb4d1;
  --draft: #b59a55; --padding: #a89a7a; --null: #f0f2f4; --rest: #3a404a;
  --curve0: #6db3e6; --curve1: #f0937c; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--back); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1.5rem 1rem 3rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 0 0 .3rem; overflow-wrap: anywhere; }
h2 { font-size: 1.05rem; margin: 2.2rem 0 .6rem; }
p { margin: .3rem 0; overflow-wrap: anywhere; } .soft { color: var(--soft); }
.big { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .6rem;
  margin: 1.2rem 0 1rem; }
.big div { border: 1px solid var(--line); border-radius: .5rem; padding: .6rem .8rem; }
.big b { display: block; font-size: 1.35rem; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left;
  vertical-align: bottom; } td { white-space: nowrap; }
th { color: var(--soft); font-weight: 500; } .n { text-align: right; }
th:last-child, td:last-child { padding-right: 0; }
dl { margin: 0; } dt { color: var(--soft); margin-top: .6rem; }
dd { margin: 0; overflow-wrap: anywhere; font-variant-numeric: tabular-nums; }
@media (min-width: 44rem) { dl { display: grid; grid-template-columns: 8rem 1fr; gap: .35rem 1rem; }
  dt { margin: 0; } }
@media (max-width: 44rem) { thead { display: none; } tr { display: block; padding: .5rem 0;
  border-bottom: 1px solid var(--line); } td, td.n { display: flex; justify-content: space-between;
  gap: 1rem; padding: .1rem 0; border: 0; text-align: right; white-space: normal; }
  td::before { content: attr(data-of); color: var(--soft); text-align: left; }
  td:first-child { font-weight: 600; } table { min-width: 0; width: 100%; } }
"""
"""Colours and type; what only one page has it adds."""


def cards(facts: Iterable[tuple[str, str]]) -> str:
    """Each figure large, with what it is below it. O(facts)."""
    each = "".join(f"<div><b>{escape(what)}</b>{escape(name)}</div>" for name, what in facts)
    return f'<div class="big">{each}</div>'


def table(rows: Sequence[Sequence[str]]) -> str:
    """Rows under a header; the last cell of a short one reaches to the end. O(cells).

    On a phone every row is a block, with the column's name before each cell.
    """
    head, *lines = rows
    whole = [line for line in lines if len(line) == len(head)]
    numbers = [any(line[at][:1].isdigit() for line in whole) for at in range(len(head))]

    def cell(tag: str, at: int, text: str, missing: int = 0) -> str:
        kind = " class=n" if numbers[at] and not missing else ""
        wide = f' colspan="{missing + 1}"' if missing else f' data-of="{escape(head[at])}"'
        return f"<{tag}{kind}{wide}>{escape(text)}</{tag}>"

    def row(tag: str, cells: Sequence[str]) -> str:
        missing, last = len(head) - len(cells), len(cells) - 1
        text = (cell(tag, at, each, missing * (at == last)) for at, each in enumerate(cells))
        return f"<tr>{''.join(text)}</tr>"

    body = "".join(row("td", line) for line in lines)
    top = f"<thead>{row('th', head)}</thead>"
    return f'<div class="scroll"><table>{top}<tbody>{body}</tbody></table></div>'


def terms(lines: Iterable[tuple[str, str]]) -> str:
    """Names and what is said of each. O(lines)."""
    each = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in lines)
    return f"<dl>{each}</dl>"


def paragraphs(texts: Iterable[str], kind: str = "") -> str:
    """Each text as a paragraph. O(letters)."""
    named = f' class="{kind}"' if kind else ""
    return "".join(f"<p{named}>{escape(text)}</p>" for text in texts)


def page(title: str, heading: str, body: str, style: str = "", made: str = "") -> str:
    """The whole page as text.

    Args:
        title: of the window. heading: above all.
        body: HTML. style: rules beside `STYLE`.
        made: the sentence at the end.
    """
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}{style}</style></head><body><main>\n"
        f"<h1>{escape(heading)}</h1>\n{body}\n"
        f'<p class="soft" style="margin-top:2rem">{escape(made)}</p></main></body></html>\n'
    )
