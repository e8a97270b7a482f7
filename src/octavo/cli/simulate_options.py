"""What ``octavo simulate`` can be asked: the options of its parser, group by group."""

import argparse
from collections.abc import Callable
from typing import Any

from octavo import simulation
from octavo.cli import arguments
from octavo.policies import POLICIES

_MODEL = simulation.TimeModel()
SWEEPS = ("memory", "page-size", "policy")
_DESCRIPTION = """\
Replay requests on the cache that would be deployed and say what it hits, evicts and refuses; with
--timing also who waits, and how long. By default one request at a time, answers left out."""
_EPILOG = """\
Sizes of a sweep are bytes as 16GiB (with --config), pages as 3000, or 'unbounded'. docs/simulate.md
tells what is simulated and what is not, and names the keys of --json."""


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
        help="Mooncake's JSON lines, Azure's CSV, octavo's log; or a workload to generate: "
        + ", ".join(simulation.WORKLOADS),
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
        metavar=("|".join(SWEEPS), "VALUES"),
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
        type=_number(0, 1e6),
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
            type=_number(1e-3, 1e12),
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
        type=_number(1e-3, 1e12),
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


def _number(low: float, high: float) -> Callable[[str], float]:
    """A converter for a number from ``low`` to ``high``."""

    def convert(text: str) -> float:
        value = arguments.temperature(text)
        if not low <= value <= high:
            raise argparse.ArgumentTypeError(f"{text!r} is not a number of {low:g} to {high:g}")
        return value

    return convert
