"""``octavo plan CONFIG``: what fits into a memory, and where each byte goes. Needs no PyTorch."""

import argparse
import json
from pathlib import Path
from typing import Any

import octavo
from octavo.cli import arguments
from octavo.engine import hub


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "plan",
        help="say what fits into a memory, and why",
        description="Read a model's config.json and say how many tokens and sequences of its KV "
        "cache fit into a memory, with the arithmetic. Loads no weights.",
    )
    parser.add_argument(
        "config",
        metavar="CONFIG",
        help="a config.json, the folder it lies in, or the name of a pulled model",
    )
    parser.add_argument(
        "--memory",
        required=True,
        type=arguments.memory,
        metavar="SIZE",
        help="memory for the cache, such as 16GiB (1024s) or 16GB (1000s)",
    )
    parser.add_argument(
        "--max-len",
        type=arguments.whole_number(1),
        metavar="N",
        help="longest sequence in tokens (default: the model's own)",
    )
    arguments.add_page_size(parser)
    arguments.add_dtype(parser, "element type of keys and values")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the plan."""
    spec = octavo.ModelSpec.from_config(_config(options.config))
    plan = octavo.plan(
        spec,
        options.memory,
        page_size=options.page_size,
        dtype=options.dtype,
        max_length=options.max_len,
    )
    print(json.dumps(plan.to_dict(), indent=2) if options.json else plan.explain())


def _config(name: str) -> str | Path:
    """The path meant by ``name``."""
    return hub.find(name) if name in hub.MODELS else name
