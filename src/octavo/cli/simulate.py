"""``octavo simulate TRACE``: replay traffic on the real cache. Needs no PyTorch."""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import octavo
from octavo import interrupts, simulation
from octavo.checks import not_installed
from octavo.cli import arguments, simulate_options, simulate_page
from octavo.cli.machine import machine_memory
from octavo.cli.models import model_files, read_model, read_weights
from octavo.cli.paths import check_outputs, check_trace
from octavo.cli.settings import settings_file
from octavo.cli.terminal import show
from octavo.cli.waiting import ProgressBar
from octavo.errors import OctavoError
from octavo.planner.figures import amount
from octavo.simulation import charts, table
from octavo.simulation.pools import Pool, TooSmall, settings

_PLAN = ("scales", "tp", "utilization", "weights", "activations")
_REQUESTS = 500
_PAGE_BYTES, _TOKEN_BYTES = 80, 24  # of this process, measured: a page in use, a prompt's token


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    simulate_options.add_parser(commands).set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Read the trace, run every setting, show what came out; after Ctrl-C what had run by then."""
    simulate_options.settle(options)
    if options.calibrate is not None:
        found = _calibrated(options)
        if options.trace is None:
            _show_calibrated(options, found)
            return 0
    sweep, values = _sweep(options)
    _require_size(options)
    _require_outputs(options)
    with ProgressBar("simulate", unit="requests") as bar:
        outcome = _outcome(options, sweep, values, bar)
        _draw(options, outcome, bar)
    _show(options, outcome)
    return interrupts.tell() if outcome.missing else 0


def _calibrated(options: argparse.Namespace) -> simulation.Fit:
    """Measure the model, and take what was found for the options of time that follow."""
    from octavo.cli.calibrate import calibrate, lines

    with ProgressBar("calibrate", unit="kinds of steps") as bar:
        found = calibrate(options, _time_model(options), bar)
    simulate_options.take(options, found.model)
    for line in lines(options.calibrate, options.dtype, found) if options.trace else ():
        show(line, sys.stderr)
    return found


def _show_calibrated(options: argparse.Namespace, found: simulation.Fit) -> None:
    from octavo.cli.calibrate import lines

    if options.json:
        print(
            json.dumps(
                {"model": options.calibrate, "dtype": options.dtype, **found.to_dict()}, indent=2
            )
        )
    else:
        show("\n".join(lines(options.calibrate, options.dtype, found)))


def _outcome(
    options: argparse.Namespace, sweep: Any, values: Sequence[str], bar: ProgressBar
) -> simulation.Outcome:
    model = _time_model(options) if options.timing else None
    trace = _trace(options, bar)
    bar("sizing the pool")
    made = list(_settings(options, trace, sweep, values))
    prepared = [each for each in made if isinstance(each, simulation.Setting)]
    skipped = [each for each in made if isinstance(each, TooSmall)]
    for setting in prepared:
        _require_room(trace, setting, serial=model is None)
    try:
        runs = _runs(trace, prepared, model, bar)
    except MemoryError as error:
        if isinstance(error, OctavoError):
            raise
        raise arguments.CommandError("this machine has too little memory to simulate it") from error
    missing = len(prepared) - len(runs)
    return simulation.Outcome(trace, runs, sweep, model, skipped, missing)


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
    outputs = {"--html": options.html, "--png": options.png}
    if not any(outputs.values()):
        return
    read = [] if options.trace in simulation.WORKLOADS else [options.trace]
    read += [] if options.config is None else model_files(options.config)
    check_outputs(outputs, [*read, *settings_file(options)])
    if find_spec("matplotlib") is None:
        raise arguments.CommandError(not_installed("matplotlib", "simulate"))


def _time_model(options: argparse.Namespace) -> simulation.TimeModel:
    if options.max_seqs > options.max_step_tokens:
        raise arguments.UsageError("--max-seqs is above --max-step-tokens; every row takes a token")
    return simulation.TimeModel(
        step_seconds=options.step_ms / 1000,
        prefill_rate=options.prefill_rate,
        decode_rate=options.decode_rate,
        prefill_context_rate=options.prefill_context_rate,
        decode_context_rate=options.decode_context_rate,
        max_step_tokens=options.max_step_tokens,
        max_sequences=options.max_seqs,
        preemption=not options.no_preemption,
        watermark=options.watermark,
        host_memory=options.host_memory,
        copy_rate=options.copy_rate,
    )


def _trace(options: argparse.Namespace, bar: ProgressBar) -> simulation.Trace:
    """The trace: a workload where TRACE is the name of one, else a file."""
    if options.trace in simulation.WORKLOADS:
        bar(f"generating {options.trace}")
        many = options.requests or _REQUESTS
        return simulation.generate(options.trace, many, rate=options.rate, seed=options.seed)
    if options.trace == "-" and sys.stdin.isatty():
        raise arguments.UsageError("TRACE is -, and nothing is piped into stdin")
    check_trace(options.trace)
    bar(f"reading {'stdin' if options.trace == '-' else options.trace}")
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
    spec = None if options.config is None else read_model(options.config)
    plan_options = {name: found for name in _PLAN if (found := getattr(options, name)) is not None}
    if sweep != "memory" or values or options.memory is not None:
        plan_options = _known_weights(options) | plan_options
    pool = Pool(
        spec=spec,
        memory=options.memory,
        pages=options.pages,
        page_size=options.page_size,
        max_length=options.max_len,
        dtype=options.dtype,
        max_step_tokens=options.max_step_tokens,
        options=plan_options,
        model=spec.name if spec else "",
    )
    base = simulation.Setting(
        octavo.Plan.from_pages(2, 1), options.policy, options.replicas, options.router
    )
    return settings(trace, pool, base, sweep, values, serial=not options.timing)


def _known_weights(options: argparse.Namespace) -> dict[str, int]:
    """Bytes of the weights beside the config on each rank, as `octavo plan` takes them off."""
    found = None if options.config is None else read_weights(options.config)
    return {} if found is None else {"weights": -(-found.bytes // (options.tp or 1))}


def _runs(
    trace: simulation.Trace,
    prepared: list[simulation.Setting],
    model: simulation.TimeModel | None,
    bar: ProgressBar,
) -> list[simulation.Run]:
    """A run a setting; after Ctrl-C those that are done, where one is."""
    many, runs = len(trace.requests), list[simulation.Run]()
    try:
        for number, setting in enumerate(prepared):
            progress = _told(bar, setting.label, number * many, len(prepared) * many)
            if model is None:
                done = simulation.replay(trace, setting, progress)
            else:
                done = simulation.serve(trace, setting, model, progress)
            runs.append(done)
            if len(prepared) > 1:
                bar.say(f"simulate: {setting.label}: {table.brief(done)}")
    except KeyboardInterrupt:
        if not runs:
            raise
    return runs


def _told(bar: ProgressBar, label: str, before: int, whole: int) -> Callable[[int, int], None]:
    """What a run tells of its requests, as those of all runs."""
    return lambda done, _: bar(label, before + done, whole)


def _draw(options: argparse.Namespace, outcome: simulation.Outcome, bar: ProgressBar) -> None:
    """Write the pictures that are wanted."""
    if options.html:
        bar(f"drawing {options.html}")
        Path(options.html).write_text(simulate_page.render(outcome), encoding="utf-8")
    if options.png:
        bar(f"drawing {options.png}")
        charts.write_png(options.png, outcome)


def _show(options: argparse.Namespace, outcome: simulation.Outcome) -> None:
    show(table.rate_line(outcome.runs, outcome.trace), sys.stderr)
    if options.json:
        print(json.dumps(outcome.to_dict(), indent=2))
        return
    show("\n".join([*table.head_lines(outcome), "", table.as_text(outcome)]))
