"""``octavo simulate TRACE``: replay traffic on the real cache. Needs no PyTorch."""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import octavo
from octavo import simulation
from octavo.cli import arguments, simulate_options
from octavo.cli.machine import machine_memory
from octavo.cli.terminal import ProgressBar
from octavo.engine import hub
from octavo.errors import OctavoError
from octavo.explain import amount
from octavo.simulation import charts, table
from octavo.simulation.pools import Pool, settings

_PAGE_BYTES, _TOKEN_BYTES = 80, 24  # of this process, measured: a page in use, a prompt's token


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    simulate_options.add_parser(commands).set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Read the trace, run every setting, show what came out."""
    sweep, values = _sweep(options)
    _require_size(options, sweep, values)
    _require_outputs(options)
    model = _time_model(options)
    trace = _trace(options)
    prepared = list(_settings(options, trace, sweep, values))
    for setting in prepared:
        _require_room(trace, setting, serial=model is None)
    try:
        runs = list(_runs(trace, prepared, model))
    except MemoryError as error:
        if isinstance(error, OctavoError):
            raise
        raise arguments.CommandError("this machine has too little memory to simulate it") from error
    _show(options, trace, runs, sweep, model)


def _require_room(trace: simulation.Trace, setting: simulation.Setting, *, serial: bool) -> None:
    """Refuse what this machine cannot count: the system would end the process without a word."""
    there = machine_memory()
    lengths = (each.serial_length if serial else each.length for each in trace.requests)
    longest = max((length for length in lengths if length <= setting.longest), default=0)
    pages = setting.replicas * setting.plan.usable_pages
    need = _PAGE_BYTES * pages + _TOKEN_BYTES * longest
    if there is not None and need > there:
        raise arguments.CommandError(
            f"{setting.label}: to simulate {pages:,} pages and the longest request takes about "
            f"{amount(need)} of memory, this machine has {amount(there)}"
        )


def _sweep(options: argparse.Namespace) -> tuple[Any, list[str]]:
    """(what is swept or None, its values)."""
    if options.sweep is None:
        return None, []
    name, *rest = options.sweep
    if name not in simulate_options.SWEEPS:
        right = ", ".join(simulate_options.SWEEPS)
        raise arguments.UsageError(f"--sweep is {name!r}; it must be one of {right}, then values")
    values = [value.strip() for value in ",".join(rest).split(",")] if rest else []
    if "" in values:
        raise arguments.UsageError("--sweep has an empty value; write values as 1000,3000")
    return name, values


def _require_size(options: argparse.Namespace, sweep: str | None, values: list[str]) -> None:
    """Refuse what has no size, or a size in bytes without a model."""
    if options.memory is not None and options.config is None:
        raise arguments.UsageError("--memory needs --config; without a model give --pages")
    if options.memory is None and options.pages is None and not (sweep == "memory" and values):
        raise arguments.UsageError("how large is the pool? Give --config and --memory, or --pages")


def _require_outputs(options: argparse.Namespace) -> None:
    """Refuse at once what cannot be written at the end."""
    for name in filter(None, (options.html, options.png)):
        if find_spec("matplotlib") is None:
            why = "matplotlib is not installed; run pip install 'octavo[simulate]'"
            raise arguments.CommandError(why)
        path = Path(name)
        if path.is_dir():
            raise arguments.CommandError(f"{name}: is a directory")
        if not path.parent.is_dir():
            raise arguments.CommandError(f"{path.parent}: no such directory")


def _time_model(options: argparse.Namespace) -> simulation.TimeModel | None:
    if not options.timing:
        return None
    if options.max_seqs > options.max_step_tokens:
        raise arguments.UsageError("--max-seqs is above --max-step-tokens; every row takes a token")
    return simulation.TimeModel(
        step_seconds=options.step_ms / 1000,
        prefill_rate=options.prefill_rate,
        decode_rate=options.decode_rate,
        max_step_tokens=options.max_step_tokens,
        max_sequences=options.max_seqs,
    )


def _trace(options: argparse.Namespace) -> simulation.Trace:
    """The trace: a workload where TRACE is the name of one, else a file."""
    if options.trace in simulation.WORKLOADS:
        return simulation.generate(
            options.trace, options.requests, rate=options.rate, seed=options.seed
        )
    return simulation.read_trace(options.trace, skip_bad=options.skip_bad)


def _settings(
    options: argparse.Namespace, trace: simulation.Trace, sweep: Any, values: Sequence[str]
) -> Iterator[simulation.Setting]:
    pool = Pool(
        spec=_spec(options.config),
        memory=options.memory,
        pages=options.pages,
        page_size=options.page_size,
        max_length=options.max_len,
        dtype=options.dtype,
        max_step_tokens=options.max_step_tokens,
    )
    base = simulation.Setting(
        octavo.Plan.from_pages(2, 1), options.policy, options.replicas, options.router
    )
    return settings(trace, pool, base, sweep, values, serial=not options.timing)


def _spec(config: str | None) -> octavo.ModelSpec | None:
    if config is None:
        return None
    return octavo.ModelSpec.from_config(hub.find(config) if config in hub.MODELS else config)


def _runs(
    trace: simulation.Trace,
    prepared: list[simulation.Setting],
    model: simulation.TimeModel | None,
) -> Iterator[simulation.Run]:
    bar = _Bar(len(trace.requests), len(prepared))
    try:
        for setting in prepared:
            bar.begin(setting.label)
            if model is None:
                yield simulation.replay(trace, setting, bar)
            else:
                yield simulation.serve(trace, setting, model, bar)
    finally:
        bar.close()


class _Bar:
    """A progress bar over all runs, on a terminal alone; drawn where a two-hundredth is done."""

    def __init__(self, requests: int, runs: int) -> None:
        self._total, self._done, self._label = requests * runs, 0, ""
        self._every = max(1, self._total // 200)
        self._bar = ProgressBar("simulate", unit="requests") if sys.stderr.isatty() else None

    def begin(self, label: str) -> None:
        self._label = label

    def __call__(self, done: int, total: int) -> None:
        self._done += 1
        if self._bar is not None and (self._done % self._every == 0 or done == total):
            self._bar(self._label, self._done, self._total)

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _show(
    options: argparse.Namespace,
    trace: simulation.Trace,
    runs: list[simulation.Run],
    sweep: str | None,
    model: simulation.TimeModel | None,
) -> None:
    if options.html:
        charts.write_html(options.html, trace, runs, sweep, model)
    if options.png:
        charts.write_png(options.png, runs, sweep)
    print(table.rate_line(runs, trace), file=sys.stderr)
    if options.json:
        print(json.dumps(simulation.as_dict(trace, runs, sweep, model), indent=2))
        return
    print(f"{table.trace_line(trace)}\n{charts.about(model)}\n\n{table.as_text(runs, sweep)}")
