"""Results as pictures: a PNG, or a page of HTML with SVG inside. Needs matplotlib."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from html import escape
from io import StringIO
from pathlib import Path
from typing import Any, NamedTuple

from octavo.simulation.clock import TimeModel
from octavo.simulation.report import Run
from octavo.simulation.requests import Trace
from octavo.simulation.table import run_rows, sweep_table, trace_line
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
_SIZE = (6.0, 2.9)  # inches; text stays legible from a phone's width on
_ROOM = 50  # letters below a chart
_PAGE = """\
<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 60rem; margin: 0 auto; padding: 1rem; }}
h1 {{ font-size: 1.4rem; margin: 0.5rem 0; overflow-wrap: anywhere; }}
h2 {{ font-size: 1.1rem; margin: 2rem 0 0.5rem; }}
p {{ margin: 0.5rem 0; overflow-wrap: anywhere; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-variant-numeric: tabular-nums; }}
th, td {{ padding: 0.2rem 0.9rem 0.2rem 0; border-bottom: 1px solid #ddd; vertical-align: top; }}
.sweep th, .sweep td {{ text-align: right; white-space: nowrap; }}
.facts th {{ text-align: left; font-weight: 600; white-space: nowrap; }}
svg {{ width: 100%; max-width: 42rem; height: auto; display: block; }}
svg text {{ font-family: system-ui, sans-serif; }}
</style></head><body>
<h1>{title}</h1>
{body}
</body></html>
"""


class Panel(NamedTuple):
    """One picture: its title, and what draws it into axes."""

    title: str
    draw: Callable[[Any], None]


def write_png(path: str | Path, runs: Sequence[Run], sweep: str | None) -> None:
    """All panels, one below the other.

    Raises:
        ModuleNotFoundError: no matplotlib. OSError: the file cannot be written.
    """
    matplotlib = _matplotlib()
    panels = _panels(runs, sweep)
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(
            figsize=(_SIZE[0], _SIZE[1] * len(panels)), layout="constrained"
        )
        for panel, axes in zip(panels, figure.subplots(len(panels), squeeze=False), strict=True):
            axes[0].set_title(panel.title, loc="left", fontsize=10)
            panel.draw(axes[0])
        figure.savefig(path, format="png", dpi=200)


def write_html(
    path: str | Path,
    trace: Trace,
    runs: Sequence[Run],
    sweep: str | None,
    model: TimeModel | None,
) -> None:
    """A page that needs no other file: figures, pictures, and the model of time if there is one.

    Raises:
        ModuleNotFoundError: no matplotlib. OSError: the file cannot be written.
    """
    parts = [f"<p>{escape(trace_line(trace))}</p>", f"<p>{escape(about(model))}</p>"]
    parts.append(_sweep_html(runs, sweep) if sweep else _facts_html(runs[0]))
    parts += [f"<h2>{escape(p.title)}</h2>\n{_svg(p)}" for p in _panels(runs, sweep)]
    page = _PAGE.format(title=escape(f"octavo simulate: {trace.name}"), body="\n".join(parts))
    Path(path).write_text(page, encoding="utf-8")


def about(model: TimeModel | None) -> str:
    """The way it was replayed, in one sentence."""
    if model is None:
        return "Serial replay: one request at a time, answers left out, no time."
    return (
        f"A step takes {1000 * model.step_seconds:g} ms + prompt tokens / {model.prefill_rate:,g} "
        f"+ decoding rows / {model.decode_rate:,g} seconds, with at most "
        f"{model.max_step_tokens:,} tokens and {model.max_sequences:,} requests."
    )


def _matplotlib() -> Any:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl
    import matplotlib.figure

    return mpl


def _svg(panel: Panel) -> str:
    matplotlib, out = _matplotlib(), StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=_SIZE, layout="constrained")
        panel.draw(figure.subplots())
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


def _facts_html(run: Run) -> str:
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(text)}</td></tr>\n" for name, text in run_rows(run)
    )
    return f'<div class="wide"><table class="facts">\n{rows}</table></div>'


def _sweep_html(runs: Sequence[Run], sweep: str) -> str:
    head, lines = sweep_table(runs, sweep)
    rows = [_row(head, "th"), *(_row(line, "td") for line in lines)]
    return f'<div class="wide"><table class="sweep">\n{"".join(rows)}</table></div>'


def _row(cells: Sequence[str], tag: str) -> str:
    return "<tr>" + "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells) + "</tr>\n"


# -- panels ------------------------------------------------------------------------------------


def _panels(runs: Sequence[Run], sweep: str | None) -> list[Panel]:
    if sweep is None:
        return _run_panels(runs[0])
    panels = [Panel("Hit rate, in % of prompt tokens", lambda axes: _hits(axes, runs, sweep))]
    if any(run.jobs for run in runs):
        title = "Seconds to the first token: median and 99th percentile"
        panels.append(Panel(title, lambda axes: _first_tokens(axes, runs, sweep)))
    return panels


def _run_panels(run: Run) -> list[Panel]:
    shown = run.tallies[:_MOST_REPLICAS]
    many = len(run.tallies) > 1
    panels = [
        Panel(
            f"Pages{f' of replica {number}' if many else ''}",
            partial(_occupancy, tally=tally, timed=bool(run.jobs)),
        )
        for number, tally in enumerate(shown, start=1)
    ]
    if run.jobs:
        panels.append(Panel("Seconds to the first token, by arrival", lambda a: _arrivals(a, run)))
    if many:
        panels.append(Panel("Tokens computed by replica", lambda axes: _balance(axes, run)))
    return panels


def _hits(axes: Any, runs: Sequence[Run], sweep: str) -> None:
    rates = [100 * run.to_dict()["hit_rate_tokens"] for run in runs]
    _curve(axes, runs, sweep, {"": rates})
    axes.set_ylabel("%")


def _first_tokens(axes: Any, runs: Sequence[Run], sweep: str) -> None:
    spreads = [run.latency()["time_to_first_token"] if run.jobs else {} for run in runs]
    lines = {cut: [spread.get(cut, 0.0) for spread in spreads] for cut in ("p50", "p99")}
    _curve(axes, runs, sweep, lines)
    axes.set_ylabel("s")
    axes.legend(frameon=False)


def _curve(axes: Any, runs: Sequence[Run], sweep: str, lines: dict[str, list[float]]) -> None:
    """Values by label: a line where labels are sizes, points where they are names."""
    at, labels = range(len(runs)), [run.setting.label for run in runs]
    style = "o" if sweep == "policy" else "o-"
    for (name, values), colour in zip(lines.items(), (_LINE, _OTHER), strict=False):
        axes.plot(at, values, style, color=colour, label=name, clip_on=False)
        for x, value in zip(at, values, strict=True):
            axes.annotate(
                f"{value:.3g}",
                (x, value),
                (0, 6),
                textcoords="offset points",
                ha="center",
                fontsize=9,
                color=colour,
            )
    axes.set_xticks(at, labels, fontsize=9 if sum(map(len, labels)) < _ROOM else 7)
    axes.margins(x=0.06)
    axes.set_ylim(bottom=0, top=1.18 * max(0.01, *map(max, lines.values())))
    axes.set_xlabel(sweep)


def _occupancy(axes: Any, tally: Tally, *, timed: bool) -> None:
    samples = tally.timeline.samples()
    at = [sample.at for sample in samples]
    layers = [[getattr(sample, name) for sample in samples] for name in _KINDS]
    axes.stackplot(at, *layers, labels=list(_KINDS.values()), colors=_COLOURS, step="post")
    axes.set_xlabel("seconds" if timed else "requests")
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.margins(0)
    axes.legend(
        frameon=False,
        ncols=3,
        loc="lower right",
        bbox_to_anchor=(1, 1),
        borderaxespad=0.2,
        fontsize=9,
    )


_KINDS = {"live": "held", "evictable": "kept for reuse", "free": "free"}


def _arrivals(axes: Any, run: Run) -> None:
    done = [job for job in run.jobs if job.first is not None]
    arrivals = [job.request.arrival for job in done]
    waits = [(job.first or 0.0) - job.request.arrival for job in done]
    axes.plot(
        arrivals, waits, ".", color=_LINE, markersize=3, alpha=0.5, rasterized=len(done) > 2000
    )
    axes.set_xlabel("arrival in seconds")
    axes.set_ylabel("s")
    axes.set_ylim(bottom=0)


def _balance(axes: Any, run: Run) -> None:
    computed = [tally.computed_tokens for tally in run.tallies]
    axes.bar([str(number) for number in range(1, len(computed) + 1)], computed, color=_LINE)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("replica")
    axes.set_ylabel("tokens")
