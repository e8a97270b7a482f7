"""Results as pictures: a PNG, or a page of HTML with SVG inside. Needs matplotlib."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from octavo.simulation.report import Outcome, Run
from octavo.simulation.table import head_lines, run_rows, sweep_note, sweep_table
from octavo.simulation.tally import Tally

_COLOURS = ("#1f5f8b", "#9cc5e0", "#e9eef2")  # held, kept, free
_LINE, _OTHER = "#1f5f8b", "#c8553d"
_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "octavo",
    "font.size": 11,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
}
_MOST_REPLICAS = 8
_NARROW, _WIDE = (4.9, 3.2), (11.5, 4.2)  # inches: legible on a phone, and on a desk
_MOST_VALUES = 12  # written beside points of a narrow chart
_LETTERS = 95  # of a line above a PNG
_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 75rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.4rem; margin: 0.5rem 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 0.5rem; }}
p {{ margin: 0.5rem 0; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.2rem 0.9rem 0.2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }}
.sweep {{ width: 100%; }}
.sweep th, .sweep td {{ text-align: right; white-space: nowrap; }}
.facts th {{ text-align: left; font-weight: 600; white-space: nowrap; }}
svg {{ width: 100%; height: auto; display: block; }}
svg text {{ font-family: system-ui, sans-serif; }}
.small {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 21rem), 1fr));
  gap: 0 1.5rem; align-items: end; }}
.small figure {{ max-width: 36rem; }}
figure {{ margin: 0; }}
figure h2 {{ margin-top: 1.5rem; }}
.phone {{ display: none; }}
@media (max-width: 45rem) {{
  .desk {{ display: none; }}
  .phone {{ display: block; }}
  .sweep thead {{ display: none; }}
  .sweep, .sweep tbody {{ display: block; }}
  .sweep tr {{ padding: 0.5rem 0; border-bottom: 1px solid #999; }}
  .sweep tr {{ display: grid; grid-template-columns: 1fr 1fr; column-gap: 1.5rem; }}
  .sweep td:first-child, .sweep td[colspan] {{ grid-column: 1 / -1; }}
  .sweep td {{ display: flex; justify-content: space-between; border: 0; padding: 0.1rem 0;
    white-space: normal; }}
  .sweep td::before {{ content: attr(data-name); color: #666; }}
  .sweep td:first-child {{ font-weight: 600; }}
  .facts tr, .facts th, .facts td {{ display: block; border: 0; padding: 0; }}
  .facts td {{ padding-bottom: 0.5rem; border-bottom: 1px solid #ddd; }}
}}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


class Panel(NamedTuple):
    """One picture: its title, what draws it into axes, and whether it takes the whole width."""

    title: str
    draw: Callable[[Any], None]
    wide: bool = False


def write_png(path: str | Path, outcome: Outcome) -> None:
    """What was set, then all panels, one below the other.

    Raises:
        ModuleNotFoundError: no matplotlib. OSError: the file cannot be written.
    """
    matplotlib = _matplotlib()
    panels = _panels(outcome)
    text = "\n".join(line for long in head_lines(outcome) for line in wrap(long, _LETTERS))
    lines = text.count("\n") + 2
    with matplotlib.rc_context(_STYLE):
        high = 0.16 * lines
        figure = matplotlib.figure.Figure(
            figsize=(7.0, high + 3.2 * len(panels)), layout="constrained"
        )
        figure.suptitle(text, x=0.01, ha="left", fontsize=8)
        for panel, axes in zip(panels, figure.subplots(len(panels), squeeze=False), strict=True):
            axes[0].set_title(panel.title, loc="left", fontsize=10)
            panel.draw(axes[0])
        figure.savefig(path, format="png", dpi=200)


def write_html(path: str | Path, outcome: Outcome) -> None:
    """A page that needs no other file: what was set, figures, pictures.

    Raises:
        ModuleNotFoundError: no matplotlib. OSError: the file cannot be written.
    """
    parts = [f"<p>{escape(line)}</p>" for line in head_lines(outcome)]
    parts.append(_sweep_html(outcome) if outcome.sweep else _facts_html(outcome.runs[0]))
    panels = _panels(outcome)
    parts += [_figure(panel) for panel in panels if panel.wide]
    small = "\n".join(_figure(panel) for panel in panels if not panel.wide)
    parts += [f'<div class="small">\n{small}\n</div>'] if small else []
    title = escape(f"octavo simulate: {outcome.trace.name}")
    page = _PAGE.format(title=title, body="\n".join(parts))
    Path(path).write_text(page, encoding="utf-8")


def _matplotlib() -> Any:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl
    import matplotlib.figure

    return mpl


def _figure(panel: Panel) -> str:
    """A panel with its title; a wide one in two sizes, of which the page shows one."""
    title = f"<h2>{escape(panel.title)}</h2>"
    if not panel.wide:
        return f"<figure>{title}\n{_svg(panel, _NARROW)}</figure>"
    desk, phone = _svg(panel, _WIDE), _svg(panel, _NARROW)
    return (
        f'<figure>{title}\n<div class="desk">{desk}</div><div class="phone">{phone}</div></figure>'
    )


def _svg(panel: Panel, size: tuple[float, float]) -> str:
    matplotlib, out = _matplotlib(), StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        panel.draw(figure.subplots())
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _facts_html(run: Run) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>\n" for name, text in run_rows(run)
    )
    return f'<div class="wide"><table class="facts">\n{rows}</table></div>'


def _sweep_html(outcome: Outcome) -> str:
    assert outcome.sweep is not None
    head, lines = sweep_table(outcome.runs, outcome.sweep, outcome.skipped)
    heads = "".join(f"<th>{escape(name)}</th>" for name in head)
    rows = "".join(_row(head, line) for line in lines)
    table = (
        f'<table class="sweep">\n<thead><tr>{heads}</tr></thead>\n<tbody>\n{rows}</tbody></table>'
    )
    return f'<div class="wide">{table}</div>\n<p>{escape(sweep_note(outcome.runs))}</p>'


def _row(head: Sequence[str], cells: Sequence[str]) -> str:
    """A row of a sweep; the last cell of a short one reaches to the end."""
    missing = len(head) - len(cells)
    wide = f' colspan="{missing + 1}"' if missing else ""
    text = ""
    for at, (name, cell) in enumerate(zip(head, cells, strict=False)):
        last = missing and at == len(cells) - 1
        named = "" if last else f' data-name="{escape(name)}"'
        text += f"<td{named}{wide if last else ''}>{escape(cell)}</td>"
    return f"<tr>{text}</tr>\n"


# -- panels ------------------------------------------------------------------------------------


def _panels(outcome: Outcome) -> list[Panel]:
    _, runs, sweep, _, _ = outcome
    if sweep is None:
        return _run_panels(runs[0])
    panels = [Panel("Hit rate by " + sweep, lambda axes: _hits(axes, runs, sweep), wide=True)]
    if any(run.jobs for run in runs):
        title = "Seconds to the first token: median and 99th percentile"
        panels.append(Panel(title, lambda axes: _first_tokens(axes, runs, sweep), wide=True))
    return panels


def _run_panels(run: Run) -> list[Panel]:
    shown = run.tallies[:_MOST_REPLICAS]
    many = len(run.tallies) > 1
    samples = [tally.timeline.samples() for tally in shown]
    until = max((each[-1].at for each in samples if each), default=0.0)
    what = "Parents" if run.setting.plan.packed else "Pages"
    panels = [
        Panel(
            f"{what}{f' of replica {number}' if many else ''}",
            partial(_occupancy, run=run, tally=tally, until=until),
            wide=not many,
        )
        for number, tally in enumerate(shown, start=1)
    ]
    if run.jobs:
        title = "Seconds to the first token, by arrival"
        panels.append(Panel(title, lambda axes: _arrivals(axes, run), wide=not many))
    if many:
        panels.append(Panel("Tokens computed by replica", lambda axes: _balance(axes, run)))
    return panels


def _hits(axes: Any, runs: Sequence[Run], sweep: str) -> None:
    rates = [100 * run.to_dict()["hit_rate_all_tokens"] for run in runs]
    _curve(axes, runs, sweep, {"": rates})
    axes.set_ylabel("hit rate, % of prompt tokens")


def _first_tokens(axes: Any, runs: Sequence[Run], sweep: str) -> None:
    spreads = [run.latency()["time_to_first_token"] if run.jobs else {} for run in runs]
    lines = {cut: [spread.get(cut, 0.0) for spread in spreads] for cut in ("p99", "p50")}
    _curve(axes, runs, sweep, lines)
    if sweep != "policy" and min(map(min, lines.values())) > 0:  # from milliseconds to minutes
        axes.set_yscale("log")
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.set_ylim(min(map(min, lines.values())) / 3, 3 * max(map(max, lines.values())))
    axes.set_ylabel("seconds")
    axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)


def _curve(axes: Any, runs: Sequence[Run], sweep: str, lines: dict[str, list[float]]) -> None:
    """Values by size, on an axis where equal distances are equal factors; names as bars."""
    labels = [run.setting.label for run in runs]
    if sweep == "policy":
        _bars(axes, labels, lines)
    else:
        at = [_size(run, sweep) for run in runs]
        order = sorted(range(len(runs)), key=at.__getitem__)
        _joined(
            axes,
            [at[n] for n in order],
            [labels[n] for n in order],
            {name: [values[n] for n in order] for name, values in lines.items()},
        )
        axes.set_xlabel({"memory": "pool", "page-size": "tokens a page"}[sweep])
    axes.set_ylim(bottom=0, top=1.2 * max(0.01, *map(max, lines.values())))


def _size(run: Run, sweep: str) -> int:
    plan = run.setting.plan
    return plan.page_size if sweep == "page-size" else plan.usable_pages * (plan.page_bytes or 1)


def _bars(axes: Any, labels: Sequence[str], lines: dict[str, list[float]]) -> None:
    width = 0.5 / len(lines)
    for number, (name, values) in enumerate(lines.items()):
        at = [place + (number - (len(lines) - 1) / 2) * width for place in range(len(labels))]
        bars = axes.bar(at, values, width, color=(_LINE, _OTHER)[number], label=name)
        axes.bar_label(bars, [f"{value:.3g}" for value in values], fontsize=9, padding=2)
    axes.set_xticks(range(len(labels)), labels)
    axes.margins(x=0.3)


def _joined(
    axes: Any, at: Sequence[int], labels: Sequence[str], lines: dict[str, list[float]]
) -> None:
    axes.set_xscale("log", base=2)
    narrow = axes.figure.get_figwidth() < _WIDE[0]
    crowded = narrow and len(at) * len(lines) > _MOST_VALUES  # the table has them
    for number, (name, values) in enumerate(lines.items()):
        colour, below = (_LINE, _OTHER)[number], number > 0
        axes.plot(at, values, "o-", color=colour, label=name, clip_on=False)
        for place, value in enumerate(() if crowded else values):
            rises = values[min(place + 1, len(values) - 1)] - values[max(place - 1, 0)]
            left = (rises > 0) != below
            axes.annotate(
                f"{value:.3g}",
                (at[place], value),
                (-4 if left else 4, -6 if below else 6),
                textcoords="offset points",
                ha="right" if left else "left",
                va="top" if below else "bottom",
                fontsize=9,
                color=colour,
            )
    axes.set_xticks(at, labels, fontsize=9, rotation=35, ha="right", rotation_mode="anchor")
    axes.minorticks_off()
    axes.margins(x=0.13 if narrow else 0.08)


def _occupancy(axes: Any, run: Run, tally: Tally, until: float) -> None:
    samples = tally.timeline.samples()
    at = [sample.at for sample in samples]
    layers = [[getattr(sample, name) for sample in samples] for name in _KINDS]
    axes.stackplot(at, *layers, labels=list(_KINDS.values()), colors=_COLOURS, step="post")
    pool = run.setting.plan.usable_pages
    axes.axhline(pool, color="#555", linewidth=1, linestyle="--")
    axes.annotate(
        f"pool: {pool:,}", (0, pool), (2, 3), textcoords="offset points", fontsize=9, color="#555"
    )
    axes.set_xlabel("seconds" if run.jobs else "requests")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlim(0, until or 1)
    axes.set_ylim(0, 1.12 * pool)
    axes.legend(frameon=False, ncols=3, loc="lower right", bbox_to_anchor=(1, 1), fontsize=10)


_KINDS = {"live": "held", "evictable": "kept for reuse", "free": "free"}


def _arrivals(axes: Any, run: Run) -> None:
    done = [job for job in run.jobs if job.first is not None]
    arrivals = [job.request.arrival for job in done]
    waits = [(job.first or 0.0) - job.request.arrival for job in done]
    axes.plot(
        arrivals, waits, ".", color=_LINE, markersize=3, alpha=0.5, rasterized=len(done) > 2000
    )
    axes.set_xlabel("arrival in seconds")
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)


def _balance(axes: Any, run: Run) -> None:
    computed = [tally.computed_tokens for tally in run.tallies]
    axes.bar([str(number) for number in range(1, len(computed) + 1)], computed, color=_LINE)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("replica")
    axes.set_ylabel("tokens")
