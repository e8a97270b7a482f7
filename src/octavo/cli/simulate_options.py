"""The options of ``octavo simulate``, group by group."""

import argparse
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from octavo import simulation
from octavo.cache.policies import POLICIES
from octavo.cli import arguments
from octavo.planner.gpus import find_gpu

_MODEL = simulation.TimeModel()
DTYPES = ("bf16", "fp16", "fp32", "fp8", "int8", "int4")
SWEEPS = ("memory", "page-size", "policy")
_WEIGHTS = """\
on ONE GPU or rank: in all / tp (default: the size of the weights beside the config, if there are \
any)"""
_DESCRIPTION = """\
Replay requests on the very cache you would deploy and say what it hits, evicts and refuses; with
--timing also which requests wait, and how long. Without it requests run one at a time and without
answers, so no prompt finds an answer given before: of conversations quote what --timing says."""
_EPILOG = """\
Sizes of a sweep are bytes such as 16GiB (with --config), pages such as 3000, or 'unbounded'.
docs/simulate.md says what is simulated and what is not, and names the keys of --json."""


def add_parser(commands: Any) -> argparse.ArgumentParser:
    """The command's parser, added to ``commands``."""
    parser: argparse.ArgumentParser = commands.add_parser(
        "simulate",
        help="replay traffic on the cache",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument(
        "trace",
        metavar="TRACE",
        nargs="?",
        help="a file of requests: a trace of Mooncake, Bailian, Azure, BurstGPT or aiperf, "
        "conversations, a benchmark's results, or octavo's log (.gz too, - for stdin); or a "
        "workload to generate: "
        + ", ".join(simulation.WORKLOADS)
        + " (chat: prompts of about 400 to 6,500 tokens; for longer contexts write a trace)",
    )
    _add_pool(parser.add_argument_group("pool of a replica"))
    _add_cluster(parser.add_argument_group("cluster"))
    _add_time(parser.add_argument_group("time"))
    _add_requests(parser.add_argument_group("requests"))
    _add_output(parser.add_argument_group("output"))
    return parser


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
        help="memory of one device, or of the cache alone if no option below takes part of it, "
        "such as 16GiB (1024s) or 16GB (1000s); needs --config",
    )
    arguments.add_gpu(size)
    size.add_argument(
        "--pages",
        type=arguments.whole_number(1, 2**31 - 3),
        metavar="N",
        help="pages instead of memory; without either, as many as all requests take (one at a time "
        "with hash ids of 512 tokens, one page is added for a prompt's own token)",
    )
    group.add_argument(
        "--page-size",
        type=arguments.whole_number(1),
        metavar="N",
        help="tokens per page (default: 16; without --config those of a hash id)",
    )
    group.add_argument(
        "--max-len",
        type=arguments.length,
        metavar="N",
        help="longest sequence in tokens, such as 32768 or 32k (1024s), longer ones are refused "
        "(default: the model's own)",
    )
    _add_plan(group)
    group.add_argument(
        "--policy",
        choices=[*POLICIES],
        default="lru",
        help="which page is evicted first (default: %(default)s)",
    )


def _add_plan(group: Any) -> None:
    """Options of `octavo plan` that say what a page takes and what memory is left for pages."""
    group.add_argument("--dtype", choices=DTYPES, help="element type of keys and values (bf16)")
    group.add_argument(
        "--scales",
        choices=("none", "tensor", "token", "head"),
        help="what a scale of quantised keys and values is for (default: as octavo plan)",
    )
    group.add_argument(
        "--tp",
        type=arguments.whole_number(1),
        metavar="N",
        help="ranks that share each layer's heads; memory is of one rank (default: 1, or all "
        "GPUs of --gpu)",
    )
    group.add_argument(
        "--utilization", metavar="SHARE", help="share of the memory that may be used (default: 1)"
    )
    taken = (
        ("weights", f"the model's weights, {_WEIGHTS}"),
        ("activations", "a forward pass"),
    )
    for name, what in taken:
        group.add_argument(
            f"--{name}",
            type=arguments.memory,
            metavar="SIZE",
            help=f"bytes of it for {what}",
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
        help="which of several replicas gets a request (default: round-robin)",
    )
    group.add_argument(
        "--sweep",
        nargs="+",
        metavar=("|".join(SWEEPS), "VALUES"),
        help="run once for each of the VALUES, such as 1000,3000,16GiB; without VALUES over a "
        "usual range, where memory is doubled until everything fits, at most ten times",
    )


def _add_time(group: Any) -> None:
    group.add_argument(
        "--timing",
        action="store_true",
        help="simulate arrivals, batching, answers and preemption with the model of time below",
    )
    group.add_argument(
        "--calibrate",
        metavar="MODEL",
        help="run this model (a name to pull, a Hugging Face folder or a GGUF file) in octavo's "
        "engine for a minute and take the times below from that, printing them; implies --timing, "
        "and without TRACE prints them alone",
    )
    group.add_argument(
        "--step-ms",
        type=_number(0, 1e6),
        metavar="MS",
        help=f"milliseconds of every step (default: {1000 * _MODEL.step_seconds:g})",
    )
    for name, help_text in (
        ("prefill", "prompt tokens per second beyond that"),
        ("decode", "decoded tokens per second beyond that"),
    ):
        group.add_argument(
            f"--{name}-rate",
            type=_number(1e-3, 1e300),
            metavar="N",
            help=f"{help_text} (default: {getattr(_MODEL, f'{name}_rate'):g})",
        )
    for name, tokens in (("prefill", "prompt tokens"), ("decode", "decoded tokens")):
        group.add_argument(
            f"--{name}-context-rate",
            type=_number(1e-3, 1e300),
            metavar="N",
            help=f"positions that {tokens} attend to per second beyond that (default: attending "
            "takes no time)",
        )
    group.add_argument(
        "--max-step-tokens",
        type=arguments.whole_number(1, 2**31 - 1),
        metavar="N",
        help=f"most tokens of a step (default: {_MODEL.max_step_tokens})",
    )
    group.add_argument(
        "--max-seqs",
        type=arguments.whole_number(1, 65536),
        metavar="N",
        help=f"most requests that run at once (default: {_MODEL.max_sequences})",
    )
    group.add_argument(
        "--watermark",
        type=_number(0, 0.999),
        metavar="SHARE",
        help="share of the pool that must be left when a request is admitted beside others "
        f"(default: {_MODEL.watermark:g})",
    )
    group.add_argument(
        "--no-preemption",
        action="store_true",
        default=None,
        help="admit a request only when it and all that run can reach their end, not as soon as "
        "there is room for its prompt",
    )
    group.add_argument(
        "--host-memory",
        type=arguments.memory,
        metavar="SIZE",
        help="host memory for pages that preempted requests lose, to be copied back where that "
        "takes less time than computing them (default: all are computed again); needs --config",
    )
    group.add_argument(
        "--copy-rate",
        type=_number(1e-3, 1e300),
        metavar="N",
        help=f"bytes copied to host memory or back per second (default: {_MODEL.copy_rate:g})",
    )


def _add_requests(group: Any) -> None:
    group.add_argument(
        "--skip-bad", action="store_true", help="count malformed lines instead of refusing the file"
    )
    group.add_argument(
        "--block-size",
        type=arguments.whole_number(1, 2**31 - 1),
        metavar="N",
        help="tokens that one hash id of a file stands for (default: 512, 16 in Bailian's, or the "
        "size that fits all lines)",
    )
    group.add_argument(
        "--time-unit",
        choices=("s", "ms"),
        help="what a file's timestamps count (default: ms where they are whole numbers, else s)",
    )
    group.add_argument(
        "--requests",
        type=arguments.whole_number(1, 10**7),
        metavar="N",
        help="how many to generate (default: 500), or how many to read from a file (default: all)",
    )
    group.add_argument(
        "--rate",
        type=_number(1e-3, 1e12),
        metavar="R",
        help="requests per second of a workload, in the long run about so many: of chat R/5 "
        "conversations start, of agents R/10 tasks (default: 4)",
    )
    group.add_argument(
        "--seed",
        type=arguments.whole_number(0, 2**63 - 1),
        metavar="S",
        help="seed of a generated workload (default: 0)",
    )


def _add_output(group: Any) -> None:
    group.add_argument("--json", action="store_true", help="print one JSON object instead")
    group.add_argument(
        "--html", type=arguments.output, metavar="FILE", help="write a page with curves"
    )
    group.add_argument(
        "--png", type=arguments.output, metavar="FILE", help="write the curves as a picture"
    )


_DEFAULTS = {
    "dtype": "bf16",
    "router": "round-robin",
    "step_ms": 1000 * _MODEL.step_seconds,
    "prefill_rate": _MODEL.prefill_rate,
    "decode_rate": _MODEL.decode_rate,
    "prefill_context_rate": _MODEL.prefill_context_rate,
    "decode_context_rate": _MODEL.decode_context_rate,
    "max_step_tokens": _MODEL.max_step_tokens,
    "max_seqs": _MODEL.max_sequences,
    "watermark": _MODEL.watermark,
    "no_preemption": not _MODEL.preemption,
    "host_memory": _MODEL.host_memory,
    "copy_rate": _MODEL.copy_rate,
    "rate": 4.0,
    "seed": 0,
}
_OF_A_MODEL = ("gpu", "dtype", "scales", "tp", "utilization", "weights", "activations")
_OF_MEMORY = ("utilization", "weights", "activations")
_OF_A_TRACE = (
    *("config", "memory", "gpu", "pages", "max_len", "sweep", "router", "requests", "rate", "seed"),
    *("block_size", "time_unit", "html", "png", "watermark", "no_preemption"),
    *("host_memory", "copy_rate"),
)
_MEASURED = (
    "step_ms",
    "prefill_rate",
    "decode_rate",
    "prefill_context_rate",
    "decode_context_rate",
)
_OF_TIME = (*_MEASURED, "max_seqs", "watermark", "no_preemption", "host_memory", "copy_rate")


def settle(options: argparse.Namespace) -> None:
    """Find TRACE, refuse options that would have no effect, and fill in the defaults of others.

    Raises:
        UsageError: there is no TRACE, or an option has no effect, and why.
    """
    if options.trace is None and options.sweep and _is_trace(options.sweep[-1]):
        options.trace = options.sweep.pop()  # it stood behind the values
    if options.calibrate is not None:
        _settle_calibration(options)
    if options.sweep == [] or (options.trace is None and options.calibrate is None):
        workloads = ", ".join(simulation.WORKLOADS)
        raise arguments.UsageError(f"TRACE is missing: a file of requests, or one of {workloads}")
    generated = options.trace in simulation.WORKLOADS
    if not generated and options.trace is not None:
        _refuse(options, ("rate", "seed"), "it is for generated workloads, and TRACE is a file")
    if generated:
        names = ("block_size", "time_unit")
        _refuse(options, names, "it is for files, and TRACE is a workload")
    if generated and options.skip_bad:
        raise arguments.UsageError(
            "--skip-bad has no effect: it is for files, and TRACE is a workload"
        )
    _refuse_idle(options)
    if options.gpu is not None:
        count, name = options.gpu
        options.memory, options.tp = find_gpu(name).memory, arguments.ranks(count, options.tp)
    for name, value in _DEFAULTS.items():
        if getattr(options, name) is None and not (name == "dtype" and options.calibrate):
            setattr(options, name, value)


def _settle_calibration(options: argparse.Namespace) -> None:
    """The model that is measured is the one whose pool is simulated, if no other is named."""
    _refuse(options, _MEASURED, "--calibrate measures it")
    if options.trace is None:
        _refuse(options, _OF_A_TRACE, "there is no TRACE")
    elif options.config is None and not options.calibrate.endswith(".gguf"):
        options.config = options.calibrate
    options.timing = True


def _refuse_idle(options: argparse.Namespace) -> None:
    """Refuse what has no effect without another option."""
    if options.replicas == 1:
        _refuse(options, ("router",), "there is one replica; give --replicas")
    if not options.timing:
        _refuse(options, _OF_TIME, "it needs --timing")
        if options.config is None:
            _refuse(options, ("max_step_tokens",), "it needs --timing or --config")
    if options.no_preemption:
        needless = ("watermark", "host_memory", "copy_rate")
        _refuse(options, needless, "with --no-preemption there is room for all")
    if options.host_memory is None:
        _refuse(options, ("copy_rate",), "it needs --host-memory")
    if options.config is None:
        names = _OF_A_MODEL if options.calibrate is None else set(_OF_A_MODEL) - {"dtype"}
        _refuse(options, (*names, "host_memory"), "it needs --config")
    if options.pages is not None and options.sweep is None:
        _refuse(options, _OF_MEMORY, "the pool is given in --pages")


def take(options: argparse.Namespace, model: simulation.TimeModel) -> None:
    """Let the times of a model be those that were given."""
    options.step_ms = 1000 * model.step_seconds
    for name in _MEASURED[1:]:
        setattr(options, name, getattr(model, name))


def _refuse(options: argparse.Namespace, names: Iterable[str], why: str) -> None:
    for name in names:
        if getattr(options, name) is not None:
            option = name.replace("_", "-")
            raise arguments.UsageError(f"--{option} has no effect: {why}")


def _is_trace(word: str) -> bool:
    """Whether a word behind ``--sweep`` is a trace and no value."""
    return word in simulation.WORKLOADS or word == "-" or Path(word).is_file()


def _number(low: float, high: float) -> Callable[[str], float]:
    """A converter for a number from ``low`` to ``high``."""

    def convert(text: str) -> float:
        value = arguments.temperature(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {low:g} to {high:g}")
        return value

    return convert
