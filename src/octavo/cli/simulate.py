"""``octavo simulate TRACE``: replay traffic on the real cache. Needs no PyTorch."""

import argparse
import json
import sys
import time
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import octavo
from octavo import simulation
from octavo.checkpoints import hub
from octavo.cli import arguments, simulate_options
from octavo.cli.machine import machine_memory
from octavo.cli.terminal import ProgressBar
from octavo.errors import OctavoError
from octavo.planner.explain import amount
from octavo.simulation import charts, table
from octavo.simulation.pools import Pool, TooSmall, settings

_PLAN = ("scales", "tp", "utilization", "weights", "activations")
_REQUESTS = 500
_PAUSE = 3.0  # seconds between lines of progress
_LONG = 10.0  # seconds: what takes longer is announced
_TOKENS_A_SECOND = {False: 30e6, True: 6e6}  # prompt tokens replayed, of a serial replay and timed
_ANSWERED_A_SECOND = 100e3
_PAGE_BYTES, _TOKEN_BYTES = 80, 24  # of this process, measured: a page in use, a prompt's token


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    simulate_options.add_parser(commands).set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Read the trace, run every setting, show what came out."""
    simulate_options.settle(options)
    sweep, values = _sweep(options)
    _require_size(options)
    _require_outputs(options)
    model = _time_model(options)
    trace = _trace(options)
    made = list(_settings(options, trace, sweep, values))
    prepared = [each for each in made if isinstance(each, simulation.Setting)]
    skipped = [each for each in made if isinstance(each, TooSmall)]
    for setting in prepared:
        _require_room(trace, setting, serial=model is None)
    try:
        runs = list(_runs(trace, prepared, model))
    except MemoryError as error:
        if isinstance(error, OctavoError):
            raise
        raise arguments.CommandError("this machine has too little memory to simulate it") from error
    _show(options, simulation.Outcome(trace, runs, sweep, model, skipped))


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


def _require_size(options: argparse.Namespace) -> None:
    """Refuse a size in bytes without a model. Without a size all that is ever computed fits."""
    if options.memory is not None and options.config is None:
        raise arguments.UsageError("--memory needs --config; without a model give --pages")


def _require_outputs(options: argparse.Namespace) -> None:
    """Refuse at once what cannot be written at the end."""
    for name in filter(None, (options.html, options.png)):
        if find_spec("matplotlib") is None:
            raise arguments.CommandError(arguments.not_installed("matplotlib", "simulate"))
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
        preemption=not options.no_preemption,
    )


def _trace(options: argparse.Namespace) -> simulation.Trace:
    """The trace: a workload where TRACE is the name of one, else a file."""
    if options.trace in simulation.WORKLOADS:
        many = options.requests or _REQUESTS
        return simulation.generate(options.trace, many, rate=options.rate, seed=options.seed)
    if options.trace == "-" and sys.stdin.isatty():
        raise arguments.UsageError("TRACE is -, and nothing is piped into stdin")
    return simulation.read_trace(
        options.trace,
        skip_bad=options.skip_bad,
        requests=options.requests,
        block_size=options.block_size,
        time_unit=options.time_unit,
    )


def _settings(
    options: argparse.Namespace, trace: simulation.Trace, sweep: Any, values: Sequence[str]
) -> Iterator[simulation.Setting | TooSmall]:
    pool = Pool(
        spec=_spec(options.config),
        memory=options.memory,
        pages=options.pages,
        page_size=options.page_size,
        max_length=options.max_len,
        dtype=options.dtype,
        max_step_tokens=options.max_step_tokens,
        options={name: value for name in _PLAN if (value := getattr(options, name)) is not None},
        model="" if options.config is None else _name(options.config),
    )
    base = simulation.Setting(
        octavo.Plan.from_pages(2, 1), options.policy, options.replicas, options.router
    )
    return settings(trace, pool, base, sweep, values, serial=not options.timing)


def _name(config: str) -> str:
    """A model by the name of its file, or of its folder where that is called config.json."""
    path = Path(config)
    return path.resolve().parent.name if path.name == "config.json" else path.name


def _spec(config: str | None) -> octavo.ModelSpec | None:
    if config is None:
        return None
    return octavo.ModelSpec.from_config(hub.find(config) if config in hub.MODELS else config)


def _runs(
    trace: simulation.Trace,
    prepared: list[simulation.Setting],
    model: simulation.TimeModel | None,
) -> Iterator[simulation.Run]:
    bar = _Bar(trace, len(prepared), timed=model is not None)
    try:
        for setting in prepared:
            bar.begin(setting.label)
            if model is None:
                done = simulation.replay(trace, setting, bar)
            else:
                done = simulation.serve(trace, setting, model, bar)
            if len(prepared) > 1:
                bar.close()
                print(f"simulate: {setting.label}: {table.brief(done)}", file=sys.stderr)
            yield done
    finally:
        bar.close()


class _Bar:
    """Progress over all runs: a bar on a terminal, elsewhere a line every few seconds.

    How long it will take follows from the share done, once there is something to go by.
    """

    def __init__(self, trace: simulation.Trace, runs: int, *, timed: bool) -> None:
        self._total, self._done, self._label = len(trace.requests) * runs, 0, ""
        self._every = max(1, self._total // 200)
        self._began = self._told = time.monotonic()
        self._bar = ProgressBar("simulate", unit="requests") if sys.stderr.isatty() else None
        self._guess(trace, runs, timed=timed)

    def _guess(self, trace: simulation.Trace, runs: int, *, timed: bool) -> None:
        """Say at the start what will take long, roughly."""
        facts = trace.to_dict()
        tokens = facts["input_tokens"] / _TOKENS_A_SECOND[timed]
        seconds = runs * (tokens + timed * facts["output_tokens"] / _ANSWERED_A_SECOND)
        if seconds > _LONG:
            print(f"simulate: this takes roughly {_duration(seconds)}", file=sys.stderr, flush=True)

    def begin(self, label: str) -> None:
        self._label = label

    def __call__(self, done: int, total: int) -> None:
        self._done += 1
        if self._bar is not None:
            if self._done % self._every == 0 or done == total:
                self._bar(f"{self._label}{self._left()}", self._done, self._total)
            return
        now = time.monotonic()
        if now - self._told >= _PAUSE:
            self._told = now
            part = f"{self._done:,} of {self._total:,} requests"
            print(f"simulate: {self._label}: {part}{self._left()}", file=sys.stderr, flush=True)

    def _left(self) -> str:
        spent = time.monotonic() - self._began
        if spent < _PAUSE:
            return ""
        return f", about {_duration(spent * (self._total / self._done - 1))} to go"

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 2 * 60 else f"{seconds / 60:.0f} min"


def _show(options: argparse.Namespace, outcome: simulation.Outcome) -> None:
    if options.html:
        charts.write_html(options.html, outcome)
    if options.png:
        charts.write_png(options.png, outcome)
    print(table.rate_line(outcome.runs, outcome.trace), file=sys.stderr)
    if options.json:
        print(json.dumps(outcome.to_dict(), indent=2))
        return
    print("\n".join(table.head_lines(outcome)), table.as_text(outcome), sep="\n\n")
