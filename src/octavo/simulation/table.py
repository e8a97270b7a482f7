"""Results as text: one block for a single run, one line per run for a sweep."""

from collections.abc import Sequence
from typing import Any

from octavo.planner.figures import amount, counted
from octavo.simulation.pools import UNBOUNDED, TooSmall
from octavo.simulation.report import Outcome, Run
from octavo.simulation.requests import BLOCK, Trace
from octavo.simulation.settings import Setting
from octavo.simulation.times import FASTEST, TimeModel

Facts = list[tuple[str, str]]


def trace_line(trace: Trace) -> str:
    """What was replayed, in one line."""
    facts = trace.to_dict()
    text = (
        f"{trace.name}: {counted(facts['requests'], 'request')} ({trace.form}), "
        f"{facts['input_tokens']:,} prompt and {facts['output_tokens']:,} answer tokens "
        f"in {facts['seconds']:,.0f} s"
    )
    text += f"; {counted(trace.bad_lines, 'bad line')} skipped" if trace.bad_lines else ""
    return text + (f"; {trace.out_of_order:,} out of order, sorted" if trace.out_of_order else "")


def prompts_line(trace: Trace) -> str:
    """How long prompts are, and how fast they come, in one sentence."""
    facts = trace.to_dict()
    text = (
        f"Prompts: p50 {facts['input_length_p50']:,} tokens, longest {facts['input_length_max']:,}"
    )
    if facts["requests_per_second"] is None:
        return f"{text}."
    return f"{text}; {facts['requests_per_second']:,.2f} per second until the last one comes."


def about(model: TimeModel | None) -> str:
    """The way it was replayed, in one sentence."""
    if model is None:
        return "Serial replay: one request at a time, answers left out, no time."
    contexts = (
        ("prompts", model.prefill_context_rate),
        ("decoding rows", model.decode_context_rate),
    )
    tokens, requests = counted(model.max_step_tokens, "token"), model.max_sequences
    host = f" + copied bytes / {model.copy_rate:,.6g}" if model.host_memory else ""
    return (
        f"A step takes {1000 * model.step_seconds:.6g} ms + prompt tokens / "
        f"{model.prefill_rate:,.6g} + decoding rows / {model.decode_rate:,.6g}"
        + "".join(f" + context of {n} / {rate:,.6g}" for n, rate in contexts if rate < FASTEST)
        + host
        + f" seconds, with at most {tokens} and {counted(requests, 'request')}"
        + ("." if model.preemption else ", none of which is preempted.")
    )


def head_lines(outcome: Outcome) -> list[str]:
    """What was replayed, how, and on what setting."""
    trace, runs, sweep, model, _, missing = outcome
    lines = [trace_line(trace), prompts_line(trace), *trace.notes, about(model)]
    if missing:
        whole = counted(len(runs) + missing, "setting")
        lines.insert(0, f"Partial: interrupted when {len(runs)} of {whole} had run.")
    if model is None and trace.converses:
        lines.append(
            "No prompt finds an answer given before, so what hits of conversations is too low: "
            "quote what --timing says."
        )
    lines.append(setting_line(trace, runs, sweep))
    if not trace.tells_contents:
        lines.append(
            "The trace has only lengths and does not say which prompts begin alike, so hits cannot "
            "be measured with it."
        )
    why = padding(trace, serial=model is None)
    return lines if why is None else [*lines, why]


def padding(trace: Trace, *, serial: bool) -> str | None:
    """Why a serial replay counts more prompt tokens than the trace has, or None."""
    if not (serial and trace.padded):
        return None
    replayed = trace.to_dict()["replayed_tokens"]
    return (
        f"Each hash id counts as {BLOCK} tokens, and a token of the request's own follows: "
        f"{replayed:,} prompt tokens are replayed."
    )


def setting_line(trace: Trace, runs: Sequence[Run], sweep: str | None) -> str:
    """Everything that was set, but for the model of time, and what the sweep varies."""
    setting, plan = runs[0].setting, runs[0].setting.plan
    limit = setting.limit
    words = [
        f"model {setting.model}" if setting.model else "no model",
        f"tp {plan.tp}" if plan.tp > 1 else "",
        "" if plan.elements is None else str(plan.elements.kv),
        _swept(runs[0], sweep) + _weights(runs, sweep),
        "" if sweep == "page-size" else f"{counted(plan.page_size, 'token')} per page",
        "" if sweep == "policy" else setting.policy,
        f"{setting.replicas} replica{'s' if setting.replicas > 1 else ''}",
        f"router {setting.router}" if setting.replicas > 1 else "",
        "sequences of any length" if limit is None else f"sequences of at most {limit:,} tokens",
        "" if trace.seed is None else f"--rate {trace.rate:g}, seed {trace.seed}",
    ]
    return f"Setting: {', '.join(filter(None, words))}."


def _swept(run: Run, sweep: str | None) -> str:
    """The pool, or what is swept with whatever of the pool stays the same."""
    plan = run.setting.plan
    if sweep is None:
        return _size(run.setting)
    if plan.page_bytes and sweep == "policy":
        return f"sweep of policy, pool {amount(plan.usable_pages * plan.page_bytes)}"
    pages = f"{plan.usable_pages:,} {'parents' if plan.packed else 'pages'}"
    return f"sweep of {sweep}" + (f", pool {pages}" if sweep == "policy" else "")


def _weights(runs: Sequence[Run], sweep: str | None) -> str:
    """What the weights take of a memory in bytes, or that nothing is taken off for them."""
    memories = [run.setting.plan.memory for run in runs if _in_bytes(run.setting, sweep)]
    if not memories or memories[0] is None:
        return ""
    weights = memories[0].weights
    return ", weights not counted" if weights is None else f" less {amount(weights)} of weights"


def _in_bytes(setting: Setting, sweep: str | None) -> bool:
    """Whether the pool is sized by a memory, where the label tells."""
    if sweep == "memory":
        return bool(setting.model) and not (setting.label.isdecimal() or setting.label == UNBOUNDED)
    memory = setting.plan.memory
    return memory is not None and setting.label == amount(memory.device)


def _size(setting: Setting) -> str:
    """What the pool is sized by: the memory of each rank, or pages."""
    if not _in_bytes(setting, None):
        return f"pool {setting.label}"
    return f"memory {setting.label}" + (" per rank" if setting.plan.tp > 1 else "")


def rate_line(runs: Sequence[Run], trace: Trace) -> str:
    """How fast the simulation went, in one line."""
    seconds = sum(run.seconds for run in runs) or 1e-9
    tokens = sum(run.whole.prompt_tokens + run.whole.output_tokens for run in runs)
    requests = len(trace.requests) * len(runs)
    return (
        f"replayed in {seconds:,.1f} s (this program's speed, not the model's): "
        f"{tokens / seconds:,.0f} tokens/s, {requests / seconds:,.0f} requests/s"
    )


def brief(run: Run) -> str:
    """A run in a few words, for when it is done."""
    found = run.to_dict()
    return (
        f"{_percent(found['hit_rate_all_tokens'])} hit, {found['refused']:,} refused, "
        f"in {run.seconds:,.1f} s"
    )


def run_rows(run: Run) -> Facts:
    """Names and values of one run."""
    found = run.to_dict()
    evicted = found["evictions"]
    unit = "parents" if run.setting.plan.packed else "pages"
    kept = f"{found['kept_pages_peak']:,} at peak, {found['kept_pages_end']:,} at the end"
    rows = [
        ("pool", _pool(run)),
        ("hit rate", f"{_hit(found, 'all_', 'tokens')} of all prompts, refused ones too"),
        ("of served", f"{_hit(found, '', 'tokens')}, {_hit(found, '', 'full pages')}"),
        ("requests", _requests(run, found)),
        ("held", f"{found['peak_pages']:,} {unit} at peak, by requests that ran"),
        ("kept", f"{kept}: for reuse, not counted as held"),
        (
            "evicted",
            f"{counted(evicted['prefill'], 'page')} for prompts, {evicted['decode']:,} for answers",
        ),
    ]
    return rows + (_timed_rows(found) if run.jobs else []) + _replica_rows(run, found)


def chief_rows(run: Run) -> Facts:
    """The figures to look at first: what each is, and its value."""
    found = run.to_dict()
    rows = [
        ("hit rate, of all prompt tokens", _percent(found["hit_rate_all_tokens"])),
        ("requests served", f"{found['requests']:,}"),
        ("requests refused", f"{found['refused']:,}"),
        ("pages evicted", f"{sum(found['evictions'].values()):,}"),
    ]
    if not run.jobs:
        return rows
    first = found["latency"]["time_to_first_token"]
    return [
        *rows,
        *((f"time to the first token, {cut}", _seconds(first[cut])) for cut in ("p50", "p99")),
        ("answer tokens per second", f"{found['output_tokens_per_second']:,.0f}"),
        ("preemptions", f"{found['preemptions']:,}"),
    ]


def _hit(found: dict[str, Any], which: str, unit: str) -> str:
    """``5.3 % (1 of 20 tokens)``."""
    key = unit.rsplit(maxsplit=1)[-1]
    rate = found[f"hit_rate_{which}{key}"]
    if rate is None:
        return f"not known, of {found[f'{which}prompt_{key}']:,} {unit}"
    part, whole = found[f"cached_{key}"], found[f"{which}prompt_{key}"]
    return f"{_percent(rate)} ({part:,} of {whole:,} {unit})"


def _requests(run: Run, found: dict[str, Any]) -> str:
    text = f"{found['requests']:,} served, {found['refused']:,} refused"
    if not found["refused"]:
        return text
    why = []
    if found["refused_too_long"]:
        limit = f"the longest sequence allowed, {run.setting.limit:,} tokens (see --max-len)"
        why.append(f"{found['refused_too_long']:,} longer than {limit}")
    if found["refused_never_fit"]:
        why.append(f"{found['refused_never_fit']:,} need more than the whole pool")
    return f"{text}: {', '.join(why)}"


def _pool(run: Run) -> str:
    plan, own = run.setting.plan, run.setting.own_page
    many = f"{len(run.tallies)} replicas with " if len(run.tallies) > 1 else ""
    count = counted(plan.usable_pages - own, "parent" if plan.packed else "page")
    more = f" + {own} for a prompt's own token" if own else ""
    each = " per rank" if plan.tp > 1 else ""
    size = f" ({amount(plan.usable_pages * plan.page_bytes)}{each})" if plan.page_bytes else ""
    if not plan.packed:
        return f"{many}{count} of {counted(plan.page_size, 'token')}{more}{size}"
    cut = ", or ".join(
        f"{counted(group.pages_per_parent, 'page')} of {name}"
        for name, group in plan.groups.items()
    )
    bytes_each = f" of {plan.page_bytes:,} bytes" if plan.page_bytes else ""
    tokens = f"{counted(plan.page_size, 'token')} per page"
    return f"{many}{count}{bytes_each}{size}, each {cut}; {tokens}"


def _timed_rows(found: dict[str, Any]) -> Facts:
    again = f"{found['recomputed_tokens']:,} tokens computed again"
    if found["restored_tokens"]:
        again += f", {found['restored_tokens']:,} copied back"
    rate = f"{found['output_tokens_per_second']:,.0f} answer tokens/s"
    waits = (
        f"{found['admission_waits']:,} requests had to wait for free pages when it was their turn"
    )
    rows = [
        ("waited", waits),
        ("preempted", f"{found['preemptions']:,} times, {again}"),
        (
            "throughput",
            f"{rate} in {found['seconds']:,.0f} simulated s, {_percent(found['busy_share'])} busy",
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


def _replica_rows(run: Run, found: dict[str, Any]) -> Facts:
    if len(run.tallies) == 1:
        return []
    each = [(_percent(one["hit_rate_all_tokens"]), one["requests"]) for one in found["per_replica"]]
    shares = ", ".join(f"{rate} of {requests:,}" for rate, requests in each)
    busiest = f"busiest replica {found['balance']:.2f} times the average"
    return [("balance", f"{busiest} ({run.setting.router})"), ("hits of requests", shares)]


def sweep_table(
    runs: Sequence[Run], name: str, skipped: Sequence[TooSmall] = ()
) -> tuple[list[str], list[list[str]]]:
    """Head and lines of a sweep's table; a value too small has its label and why."""
    timed = any(run.jobs for run in runs)
    refused = any(run.whole.refused for run in runs)
    unit = "parents" if any(run.setting.plan.packed for run in runs) else "pages"
    head = [name, unit, "hit rate", "tokens hit"]
    head += ["hit of served", "too long", "never fit"] if refused else []
    head += ["evicted"]
    head += ["preempted", "TTFT p50", "TTFT p99"] if timed else []
    lines = [_sweep_row(run, timed=timed, refused=refused) for run in runs]
    for each in skipped:
        lines.insert(each.at, [each.label, f"too small: {each.why}"])
    return head, lines


def sweep_note(runs: Sequence[Run]) -> str:
    """What the columns of a sweep's table mean."""
    found = runs[0].to_dict()
    text = f"Hit rate: of all {found['all_prompt_tokens']:,} prompt tokens"
    if any(run.whole.refused for run in runs):
        text += (
            ", refused requests' too; hit of served: of those of requests served. Refused are "
            "requests too long (--max-len) and those that never fit into the pool"
        )
    if any(run.jobs for run in runs):
        text += ". TTFT: time to the first token"
    if any(run.setting.plan.packed for run in runs):
        text += ". Parents: memory bound to one group of layers at a time and cut into its pages"
    return f"{text}."


def _sweep_row(run: Run, *, timed: bool, refused: bool) -> list[str]:
    found, own = run.to_dict(), run.setting.own_page
    row = [
        run.setting.label,
        f"{found['pages'] - own:,}" + (f" + {own}" if own else ""),
        _percent(found["hit_rate_all_tokens"]),
        "not known" if found["cached_tokens"] is None else f"{found['cached_tokens']:,}",
    ]
    if refused:
        row += [
            _percent(found["hit_rate_tokens"]),
            f"{found['refused_too_long']:,}",
            f"{found['refused_never_fit']:,}",
        ]
    row.append(f"{sum(found['evictions'].values()):,}")
    if not timed:
        return row
    first = found["latency"].get("time_to_first_token", {"p50": 0.0, "p99": 0.0})
    return [*row, f"{found['preemptions']:,}", _seconds(first["p50"]), _seconds(first["p99"])]


def as_text(outcome: Outcome) -> str:
    """The whole result for a terminal."""
    runs, sweep, skipped = outcome.runs, outcome.sweep, outcome.skipped
    if sweep is None:
        rows = run_rows(runs[0])
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)
    head, lines = sweep_table(runs, sweep, skipped)
    full = [line for line in [head, *lines] if len(line) == len(head)]
    widths = [max(map(len, column)) for column in zip(*full, strict=True)]
    widths[0] = max(widths[0], *(len(line[0]) for line in lines))
    text = []
    for line in [head, *lines]:
        cells = [f"{cell:>{width}}" for cell, width in zip(line, widths, strict=False)]
        text.append("  ".join(cells))
    return "\n".join([*text, "", sweep_note(runs)])


def _percent(value: float | None) -> str:
    """A share of 1 in per cent; of None that it is not known."""
    if value is None:
        return "not known"
    return f"{100 * value:.2f} %"


def _seconds(value: float) -> str:
    return f"{value:,.2f} s" if value >= 1 else f"{1000 * value:.1f} ms"
