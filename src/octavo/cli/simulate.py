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
from octavo.cli import arguments
from octavo.cli.terminal import ProgressBar
from octavo.engine import hub
from octavo.errors import OctavoError
from octavo.policies import POLICIES
from octavo.simulation import charts, table
from octavo.simulation.pools import Pool, settings

_MODEL = simulation.TimeModel()
_SWEEPS = ("memory", "page-size", "policy")
_DESCRIPTION = """\
Replay requests on the cache that would be deployed and say what it hits, evicts and refuses; with
--timing also who waits, and how long. By default one request at a time, answers left out."""
_EPILOG = """\
Sizes of a sweep are bytes as 16GiB (with --config), pages as 3000, or 'unbounded'. docs/simulate.md
tells what is simulated and what is not, and names the keys of --json."""


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "simulate",
        help="replay traffic on the cache",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "trace",
        metavar="TRACE",
        help="Mooncake's JSON lines, Azure's CSV, octavo's log; or a workload to generate: "
        + ", ".join(simulation.WORKLOADS),
    )
    _add_pool(parser.add_argument_group("pool of a replica"))
    _add_cluster(parser.add_argument_group("cluster"))
    _add_time(parser.add_argument_group("time"))
    _add_requests(parser.add_argument_group("requests"))
    _add_output(parser.add_argument_group("output"))
    parser.set_defaults(run=run)


def _add_pool(group: Any) -> None:
    group.add_argument(
        "--config",
        metavar="CONFIG",
        help="a config.json, the folder it lies in, or the name of a pulled model",
    )
    size = group.add_mutually_exclusive_group()
    size.add_argument(
        "--memory",
        type=arguments.memory,
        metavar="SIZE",
        help="memory for the cache, such as 16GiB; needs --config",
    )
    size.add_argument(
        "--pages",
        type=arguments.whole_number(1, 2**31 - 3),
        metavar="N",
        help="pages instead of memory (for hash ids in turn: and one for a prompt's own token)",
    )
    group.add_argument(
        "--page-size",
        type=arguments.whole_number(1),
        metavar="N",
        help="tokens a page holds (default: 16; 512 for hash ids without --config)",
    )
    group.add_argument(
        "--max-len",
        type=arguments.whole_number(1),
        metavar="N",
        help="longest sequence in tokens (default: the model's own)",
    )
    arguments.add_dtype(group, "element type of keys and values")
    group.add_argument(
        "--policy",
        choices=[*POLICIES],
        default="lru",
        help="which page is evicted first (default: %(default)s)",
    )


def _add_cluster(group: Any) -> None:
    group.add_argument(
        "--replicas",
        type=arguments.whole_number(1, 1024),
        default=1,
        metavar="N",
        help="caches that share the requests, each with that pool (default: %(default)s)",
    )
    group.add_argument(
        "--router",
        choices=[*simulation.ROUTERS],
        default="round-robin",
        help="who gets a request (default: %(default)s)",
    )
    group.add_argument(
        "--sweep",
        nargs="+",
        metavar=("memory|page-size|policy", "VALUES"),
        help="a run for each of the VALUES, as 1000,3000,16GiB; without VALUES a usual range",
    )


def _add_time(group: Any) -> None:
    group.add_argument(
        "--timing",
        action="store_true",
        help="simulate arrivals, batching, answers and preemption with the model of time below",
    )
    group.add_argument(
        "--step-ms",
        type=arguments.temperature,
        default=1000 * _MODEL.step_seconds,
        metavar="MS",
        help="milliseconds of every step (default: %(default)g)",
    )
    for name, help_text in (
        ("prefill", "prompt tokens a second beyond that"),
        ("decode", "decoded tokens a second beyond that"),
    ):
        group.add_argument(
            f"--{name}-rate",
            type=_rate,
            default=getattr(_MODEL, f"{name}_rate"),
            metavar="N",
            help=f"{help_text} (default: %(default)g)",
        )
    group.add_argument(
        "--max-step-tokens",
        type=arguments.whole_number(1, 2**31 - 1),
        default=_MODEL.max_step_tokens,
        metavar="N",
        help="most tokens of a step (default: %(default)s)",
    )
    group.add_argument(
        "--max-seqs",
        type=arguments.whole_number(1, 65536),
        default=_MODEL.max_sequences,
        metavar="N",
        help="most requests that run at once (default: %(default)s)",
    )


def _add_requests(group: Any) -> None:
    group.add_argument(
        "--skip-bad", action="store_true", help="count malformed lines instead of refusing the file"
    )
    group.add_argument(
        "--requests",
        type=arguments.whole_number(1, 10**7),
        default=500,
        metavar="N",
        help="how many to generate (default: %(default)s)",
    )
    group.add_argument(
        "--rate",
        type=_rate,
        default=4.0,
        metavar="R",
        help="generated requests a second (default: %(default)g)",
    )
    group.add_argument(
        "--seed",
        type=arguments.whole_number(0, 2**63 - 1),
        default=0,
        metavar="S",
        help="of a generated workload (default: %(default)s)",
    )


def _add_output(group: Any) -> None:
    group.add_argument("--json", action="store_true", help="print one JSON object instead")
    group.add_argument("--html", metavar="FILE", help="write a page with curves")
    group.add_argument("--png", metavar="FILE", help="write the curves as a picture")


def _rate(text: str) -> float:
    value = arguments.temperature(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value


def run(options: argparse.Namespace) -> None:
    """Read the trace, run every setting, show what came out."""
    sweep, values = _sweep(options)
    _require_size(options, sweep, values)
    _require_outputs(options)
    model = _time_model(options)
    trace = _trace(options)
    prepared = list(_settings(options, trace, sweep, values))
    try:
        runs = list(_runs(trace, prepared, model))
    except MemoryError as error:
        if isinstance(error, OctavoError):
            raise
        raise arguments.CommandError("this machine has too little memory to simulate it") from error
    _show(options, trace, runs, sweep, model)


def _sweep(options: argparse.Namespace) -> tuple[Any, list[str]]:
    """(what is swept or None, its values)."""
    if options.sweep is None:
        return None, []
    name, *rest = options.sweep
    if name not in _SWEEPS:
        right = ", ".join(_SWEEPS)
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
