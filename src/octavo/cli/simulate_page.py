"""What a simulation found as one self-contained HTML page: its figures, and curves."""

import re
from html import escape

from octavo.cli import html
from octavo.simulation import charts, table
from octavo.simulation.charts import Picture
from octavo.simulation.report import Outcome

_STYLE = """
.big { grid-template-columns: repeat(auto-fit, minmax(min(13rem, 45%), 1fr)); }
svg { width: 100%; height: auto; display: block; }
svg text { font-family: system-ui, -apple-system, "Segoe UI", sans-serif; }
figure { margin: 0; }
.small { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
  gap: 0 1.5rem; align-items: end; }
.small figure { max-width: 36rem; }
.phone { display: none; }
@media (max-width: 44rem) { .desk { display: none; } .phone { display: block; } }
"""
_COLOURS = {
    charts.INK: "ink",
    charts.SOFT: "soft",
    charts.HELD: "c0",
    charts.KEPT: "scales",
    charts.FREE: "taken3",
    charts.P50: "curve0",
    charts.P99: "curve1",
}
"""Colours of the pictures by the names that `octavo.cli.html.STYLE` gives them, light and dark."""


def render(outcome: Outcome) -> str:
    """The page as text.

    Raises:
        ModuleNotFoundError: no matplotlib.

    Cost: O(runs), some tenths of a second a picture.
    """
    pictures = charts.panels_as_svg(outcome)
    small = "\n".join(_figure(each) for each in pictures if not each.wide)
    sections = [
        html.paragraphs(table.head_lines(outcome), "soft"),
        _figures(outcome),
        *(_figure(each) for each in pictures if each.wide),
        f'<div class="small">\n{small}\n</div>' if small else "",
        ""
        if outcome.sweep
        else f"<h2>All figures</h2>{html.terms(table.run_rows(outcome.runs[0]))}",
    ]
    title = f"octavo simulate: {outcome.trace.name}"
    return html.page(
        title, title, "\n".join(sections), _STYLE, "Made by octavo simulate, on octavo's own cache."
    )


def _figures(outcome: Outcome) -> str:
    """Of one run the chief ones as cards, of a sweep a table."""
    if outcome.sweep is None:
        return html.cards(table.chief_rows(outcome.runs[0]))
    head, lines = table.sweep_table(outcome.runs, outcome.sweep, outcome.skipped)
    note = html.paragraphs([table.sweep_note(outcome.runs)], "soft")
    return f"<h2>By {outcome.sweep}</h2>{html.table([head, *lines])}{note}"


def _figure(picture: Picture) -> str:
    """A picture with its title; a wide one in two sizes, of which the page shows one."""
    title, narrow = f"<h2>{escape(picture.title)}</h2>", _own_colours(picture.narrow)
    if not picture.wide:
        return f"<figure>{title}\n{narrow}</figure>"
    wide = f'<div class="desk">{_own_colours(picture.wide)}</div>'
    return f'<figure>{title}\n{wide}<div class="phone">{narrow}</div></figure>'


def _own_colours(svg: str) -> str:
    """The picture in the colours of the page, which differ in the dark."""
    return re.sub("|".join(_COLOURS), lambda found: f"var(--{_COLOURS[found.group()]})", svg)
