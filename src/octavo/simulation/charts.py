"""Results as pictures: a PNG, or SVG for a page. Needs matplotlib."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from pathlib import Path
from textwrap import wrap
from typing import Any, NamedTuple

from octavo.simulation.report import Outcome, Run
from octavo.simulation.table import head_lines
from octavo.simulation.tally import Tally

INK, SOFT, HELD, KEPT, FREE = "#1d2430", "#5a6472", "#6fa8d6", "#b6d2ea", "#d6d9dd"
P50, P99 = "#1f5f8b", "#b5462f"
"""Colours, each of one meaning, so that a page can put its own in their place."""

_STYLE = {
    "svg.fonttype": "none",
    "svg.hashsalt": "octavo",
    "font.size": 11,
    "font.family": "sans-serif",
    "axes.spines.top": False,
    "axes.spines.right": False,
    **dict.fromkeys(("text.color", "axes.titlecolor", "axes.labelcolor"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color", "axes.edgecolor"), SOFT),
}
_MOST_REPLICAS = 8
_NARROW, _WIDE = (4.9, 3.2), (11.5, 4.2)  # inches: legible on a phone, and on a desk
_MOST_VALUES = 12  # written beside points of a narrow chart
_LETTERS = 95  # of a line above a PNG


class Panel(NamedTuple):
    """One picture: its title, what draws it into axes, and whether it takes the whole width."""

    title: str
    draw: Callable[[Any], None]
    wide: bool = False


class Picture(NamedTuple):
    """A panel drawn as SVG: its title, for a desk (empty: the other will do), for a phone."""

    title: str
    wide: str
    narrow: str


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


def panels_as_svg(outcome: Outcome) -> list[Picture]:
    """Every panel with its SVG, of a wide one in two sizes: for a desk, and for a phone.

    Raises:
        ModuleNotFoundError: no matplotlib.
    """
    return [
        Picture(
            panel.title,
            _svg(panel, _WIDE) if panel.wide else "",
            _svg(panel, _NARROW),
        )
        for panel in _panels(outcome)
    ]


def _matplotlib() -> Any:
    logging.getLogger("matplotlib").setLevel(logging.ERROR)
    import matplotlib as mpl
    import matplotlib.figure

    return mpl


def _svg(panel: Panel, size: tuple[float, float]) -> str:
    matplotlib, out = _matplotlib(), StringIO()
    with matplotlib.rc_context(_STYLE):
        figure = matplotlib.figure.Figure(figsize=size, layout="constrained")
        panel.draw(figure.subplots())
        figure.savefig(out, format="svg", metadata={"Date": None}, transparent=True)
    text = out.getvalue()
    return text[text.index("<svg") :]


# -- panels ------------------------------------------------------------------------------------


def _panels(outcome: Outcome) -> list[Panel]:
    runs, sweep = outcome.runs, outcome.sweep
    if sweep is None:
        return _run_panels(runs[0])
    panels = [Panel("Hit rate by " + sweep, lambda axes: _hits(axes, runs, sweep), wide=True)]
    if any(run.jobs for run in runs):
        title = "Seconds to the first token: p50 and p99"
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
    lines = {cut: [spread.get(cut, 0.0) for spread in spreads] for cut in ("p50", "p99")}
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
        axes.set_xlabel({"memory": "pool", "page-size": "tokens per page"}[sweep])
    axes.set_ylim(bottom=0, top=1.2 * max(0.01, *map(max, lines.values())))


def _size(run: Run, sweep: str) -> int:
    plan = run.setting.plan
    return plan.page_size if sweep == "page-size" else plan.usable_pages * (plan.page_bytes or 1)


def _bars(axes: Any, labels: Sequence[str], lines: dict[str, list[float]]) -> None:
    width = 0.5 / len(lines)
    for number, (name, values) in enumerate(lines.items()):
        at = [place + (number - (len(lines) - 1) / 2) * width for place in range(len(labels))]
        bars = axes.bar(at, values, width, color=(P50, P99)[number], label=name)
        axes.bar_label(bars, list(map(_short, values)), fontsize=9, padding=2)
    axes.set_xticks(range(len(labels)), labels)
    axes.margins(x=0.3)


def _joined(
    axes: Any, at: Sequence[int], labels: Sequence[str], lines: dict[str, list[float]]
) -> None:
    axes.set_xscale("log", base=2)
    narrow = axes.figure.get_figwidth() < _WIDE[0]
    crowded = narrow and len(at) * len(lines) > _MOST_VALUES  # the table has them
    for number, (name, values) in enumerate(lines.items()):
        colour, below = (P50, P99)[number], number < len(lines) - 1
        axes.plot(at, values, "o-", color=colour, label=name, clip_on=False)
        for place, value in enumerate(() if crowded else values):
            rises = values[min(place + 1, len(values) - 1)] - values[max(place - 1, 0)]
            left = (rises > 0) != below
            axes.annotate(
                _short(value),
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


def _short(value: float) -> str:
    """Three digits that count."""
    return f"{value:#.3g}".rstrip(".")


def _occupancy(axes: Any, run: Run, tally: Tally, until: float) -> None:
    samples = tally.timeline.samples()
    at = [sample.at for sample in samples]
    layers = [[getattr(sample, name) for sample in samples] for name in _KINDS]
    axes.stackplot(
        at, *layers, labels=list(_KINDS.values()), colors=(HELD, KEPT, FREE), step="post"
    )
    pool = run.setting.plan.usable_pages
    axes.axhline(pool, color=SOFT, linewidth=1, linestyle="--")
    axes.annotate(
        f"pool: {pool:,}", (0, pool), (2, 3), textcoords="offset points", fontsize=9, color=SOFT
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
    axes.plot(arrivals, waits, ".", color=P50, markersize=3, alpha=0.5, rasterized=len(done) > 2000)
    axes.set_xlabel("arrival in seconds")
    axes.set_ylabel("seconds")
    axes.set_ylim(bottom=0)


def _balance(axes: Any, run: Run) -> None:
    computed = [tally.computed_tokens for tally in run.tallies]
    axes.bar([str(number) for number in range(1, len(computed) + 1)], computed, color=P50)
    axes.yaxis.set_major_formatter("{x:,.0f}")
    axes.set_xlabel("replica")
    axes.set_ylabel("tokens")
