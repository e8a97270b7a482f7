"""Results as text: one block for a single run, one line a run for a sweep."""

from collections.abc import Sequence
from typing import Any

from octavo.explain import amount
from octavo.simulation.report import Run
from octavo.simulation.requests import Trace

Rows = list[tuple[str, str]]


def trace_line(trace: Trace) -> str:
    """What was replayed, in one line."""
    facts = trace.to_dict()
    text = (
        f"{trace.name}: {facts['requests']:,} requests ({trace.form}), "
        f"{facts['input_tokens']:,} prompt and {facts['output_tokens']:,} answer tokens "
        f"in {facts['seconds']:,.0f} s"
    )
    text += f"; {trace.bad_lines:,} bad lines skipped" if trace.bad_lines else ""
    return text + (f"; {trace.out_of_order:,} out of order, sorted" if trace.out_of_order else "")


def rate_line(runs: Sequence[Run], trace: Trace) -> str:
    """How fast the simulation went, in one line."""
    seconds = sum(run.seconds for run in runs) or 1e-9
    tokens = sum(run.whole.prompt_tokens + run.whole.output_tokens for run in runs)
    requests = len(trace.requests) * len(runs)
    return (
        f"simulated in {seconds:,.1f} s on one core: {tokens / seconds:,.0f} tokens/s, "
        f"{requests / seconds:,.0f} requests/s"
    )


def run_rows(run: Run) -> Rows:
    """Names and values of one run."""
    found = run.to_dict()
    evicted = found["evictions"]
    hits = f"{_percent(found['hit_rate_tokens'])} of prompt tokens"
    held = f"{found['peak_pages']:,} held at peak"
    rows = [
        ("pool", f"{_pool(run)}, {run.setting.policy}"),
        ("hit rate", f"{hits}, {_percent(found['hit_rate_pages'])} of their full pages"),
        ("requests", f"{found['requests']:,} served, {found['refused']:,} refused: never fit"),
        ("pages", held),
        ("evicted", f"{evicted['prefill']:,} for prompts, {evicted['decode']:,} for answers"),
    ]
    return rows + (_timed_rows(found) if run.jobs else []) + _replica_rows(run, found)


def _pool(run: Run) -> str:
    plan = run.setting.plan
    size = f" ({amount(plan.usable_pages * plan.page_bytes)})" if plan.page_bytes else ""
    many = f"{len(run.tallies)} replicas with " if len(run.tallies) > 1 else ""
    return f"{many}{plan.usable_pages:,} pages of {plan.page_size} tokens{size}"


def _timed_rows(found: dict[str, Any]) -> Rows:
    again = f"{found['recomputed_tokens']:,} tokens computed again"
    rate = f"{found['output_tokens_per_second']:,.0f} answer tokens/s"
    rows = [
        ("waited", f"{found['admission_waits']:,} requests, for pages"),
        ("preempted", f"{found['preemptions']:,} times, {again}"),
        (
            "throughput",
            f"{rate} in {found['seconds']:,.0f} s, {_percent(found['busy_share'])} busy",
        ),
    ]
    return rows + [(name, _spread(found["latency"][key])) for key, name in _LATENCIES.items()]


_LATENCIES = {
    "queueing": "queueing",
    "time_to_first_token": "first token",
    "time_per_output_token": "each token",
    "total": "in all",
}


def _spread(spread: dict[str, float]) -> str:
    cuts = ", ".join(f"{cut} {_seconds(spread[cut])}" for cut in ("p50", "p90", "p99"))
    return f"{cuts}, mean {_seconds(spread['mean'])}"


def _replica_rows(run: Run, found: dict[str, Any]) -> Rows:
    if len(run.tallies) == 1:
        return []
    each = [(_percent(one["hit_rate_tokens"]), one["requests"]) for one in found["per_replica"]]
    shares = ", ".join(f"{rate} of {requests:,}" for rate, requests in each)
    busiest = f"busiest replica {found['balance']:.2f} times the average"
    return [("balance", f"{busiest} ({run.setting.router})"), ("hits of requests", shares)]


def sweep_table(runs: Sequence[Run], name: str) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a sweep's table."""
    timed = any(run.jobs for run in runs)
    head = [name, "pages", "hit tokens", "hit pages", "evicted", "refused"]
    head += ["preempted", "first token p50", "p99"] if timed else []
    return head, [_sweep_row(run, timed=timed) for run in runs]


def _sweep_row(run: Run, *, timed: bool) -> list[str]:
    found = run.to_dict()
    row = [
        run.setting.label,
        f"{found['pages']:,}",
        _percent(found["hit_rate_tokens"]),
        _percent(found["hit_rate_pages"]),
        f"{sum(found['evictions'].values()):,}",
        f"{found['refused']:,}",
    ]
    if not timed:
        return row
    first = found["latency"].get("time_to_first_token", {"p50": 0.0, "p99": 0.0})
    return [*row, f"{found['preemptions']:,}", _seconds(first["p50"]), _seconds(first["p99"])]


def as_text(runs: Sequence[Run], sweep: str | None) -> str:
    """The whole result for a terminal."""
    if sweep is None:
        rows = run_rows(runs[0])
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
    head, lines = sweep_table(runs, sweep)
    widths = [max(map(len, column)) for column in zip(head, *lines, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:>{width}}" for cell, width in zip(line, widths, strict=True))
        for line in [head, *lines]
    )


def _percent(value: float) -> str:
    return f"{100 * value:.2f} %"


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"
