"""``octavo plan CONFIG``: what fits into a memory, and where each byte goes. Needs no PyTorch."""

import argparse
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import octavo
from octavo.checkpoints import hub
from octavo.cli import arguments, comparing
from octavo.errors import BudgetTooSmall
from octavo.model.configs.weights import weights_beside
from octavo.model.spec import ModelSpec
from octavo.planner import pools
from octavo.planner.explain import counted, enough
from octavo.planner.plan import Plan
from octavo.planner.pools import parents
from octavo.planner.request import memory_for

_SIZES = {
    "weights": "bytes of it that the model's weights take (default: those beside the config, "
    "where they are there)",
    "activations": "bytes of it that the largest forward pass takes",
    "other": "bytes of it that anything else takes",
}


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
        metavar="CONFIG|MODEL",
        help="a config.json, the folder it lies in, or the name of a pulled model",
    )
    _add_memory(parser)
    _add_model(parser)
    _add_sequences(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object instead")
    shown.add_argument("--html", metavar="FILE", help="write a page with the memory as a picture")
    parser.add_argument(
        "--compare",
        choices=comparing.CHOICES,
        help="plans side by side: of other page sizes, element types or memories",
    )
    parser.set_defaults(run=run)


def _add_memory(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--memory",
        required=True,
        type=arguments.memory,
        metavar="SIZE",
        help="memory of one device, or for the cache where nothing below is given, such as 16GiB "
        "(1024s) or 16GB (1000s)",
    )
    parser.add_argument(
        "--utilization",
        default="1",
        metavar="SHARE",
        help="share of the memory that may be used, such as 0.9 (default: 1)",
    )
    for name, what in _SIZES.items():
        parser.add_argument(
            f"--{name}",
            type=arguments.memory,
            default=None if name == "weights" else 0,
            metavar="SIZE",
            help=what,
        )


def _add_model(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--dtype",
        choices=("bf16", "fp16", "fp32", "fp8", "int8", "int4"),
        default="bf16",
        help="element type of keys and values (default: %(default)s)",
    )
    parser.add_argument(
        "--scales",
        choices=("none", "tensor", "token", "head"),
        help="what a scale of quantised keys and values is for (default: head for int8 and int4, "
        "else none)",
    )
    parser.add_argument(
        "--state-dtype",
        choices=("fp32", "bf16", "fp16"),
        default="fp32",
        help="element type of recurrent states (default: %(default)s)",
    )
    parser.add_argument(
        "--indexer-dtype",
        choices=("fp8", "bf16", "fp16", "fp32"),
        default="fp8",
        help="element type of an indexer's keys (default: %(default)s, with its scales)",
    )
    arguments.add_page_size(parser)
    parser.add_argument(
        "--layout",
        choices=("packed", "slab", "component"),
        help="how groups of layers share the memory (default: packed where there are several)",
    )
    for name, what in (("tp", "share each layer's heads"), ("pp", "take some of the layers each")):
        parser.add_argument(
            f"--{name}",
            type=arguments.whole_number(1),
            default=1,
            metavar="N",
            help=f"ranks that {what}; bytes are of one rank (default: 1)",
        )
    parser.add_argument(
        "--mtp",
        type=arguments.whole_number(0),
        default=0,
        metavar="N",
        help="further layers that predict tokens and keep pages too (default: 0)",
    )


def _add_sequences(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--max-len",
        type=arguments.length,
        metavar="N",
        help="longest sequence in tokens, such as 32768 or 32k (1024s) (default: the model's own)",
    )
    parser.add_argument(
        "--input-tokens",
        type=arguments.length,
        metavar="N",
        help="positions of the image or recording that cross attention sees (default: as many as "
        "the model says; where it does not say, they are left out)",
    )
    parser.add_argument(
        "--max-seqs",
        type=arguments.whole_number(1),
        metavar="N",
        help="ask whether so many longest sequences fit at once, and if not what would do",
    )


def run(options: argparse.Namespace) -> None:
    """Print the plan."""
    spec = octavo.ModelSpec.from_config(_config(options.config))
    if options.mtp > len(spec.mtp):
        there = f"has {counted(len(spec.mtp), 'prediction layer')}"
        raise arguments.UsageError(f"--mtp is {options.mtp}; the config {there}")
    spec = spec.with_mtp(options.mtp)
    spec = _with_weights(spec, options)
    wanted = _wanted(options)
    plan = _planned(spec, options.memory, wanted, options.max_seqs)
    wish = None if options.max_seqs is None else _wish(spec, plan, options.max_seqs, wanted)
    rows = comparing.rows(spec, options.memory, wanted, plan, options.compare)
    if options.json:
        data = plan.to_dict()
        data |= {} if wish is None else {"wish": wish}
        data |= {"comparison": rows} if options.compare else {}
        print(json.dumps(data, indent=2))
    elif options.html:
        from octavo.cli.plan_page import render

        tables = [_told(wish)] if wish else []
        compared = comparing.table(rows, options.compare) if options.compare else []
        Path(options.html).write_text(
            render(plan, tables, compared, _title(options.config)), encoding="utf-8"
        )
        print(f"wrote {options.html}")
    else:
        print(plan.explain())
        if wish:
            print(f"\n{_told(wish)}")
        if options.compare:
            print("", *comparing.lines(rows, options.compare), sep="\n")


def _with_weights(spec: ModelSpec, options: argparse.Namespace) -> ModelSpec:
    """Sets ``options.weights``, where it is not given, to those beside the config, with a note."""
    found = weights_beside(_config(options.config)) if options.weights is None else None
    if found is None:
        return spec
    ranks = options.tp * options.pp
    options.weights = -(-found.bytes // ranks)
    told = f"weights: {found.bytes:,} bytes, from {found.file}"
    told += f", {options.weights:,} on each of {ranks} ranks" if ranks > 1 else ""
    return replace(spec, notes=(*spec.notes, told))


def _planned(spec: ModelSpec, memory: int, wanted: dict[str, Any], sequences: int | None) -> Plan:
    """The plan; where so many sequences do not fit one without them, and without the length."""
    if sequences is None:
        return octavo.plan(spec, memory, **wanted)
    length = wanted["max_length"] or spec.max_length
    for changed in ({"max_length": length, "sequences": sequences}, {}):
        with contextlib.suppress(BudgetTooSmall):
            return octavo.plan(spec, memory, **wanted | changed)
    return octavo.plan(spec, memory, **wanted | {"max_length": None})


def _wanted(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `octavo.plan` but for spec and memory."""
    names = ("utilization", *_SIZES, "dtype", "scales", "state_dtype", "page_size", "layout")
    more = ("indexer_dtype", "input_tokens", "tp", "pp")
    given = {name: getattr(options, name) for name in (*names, *more)}
    return given | {"max_length": options.max_len}


def _wish(spec: ModelSpec, plan: Plan, sequences: int, wanted: dict[str, Any]) -> dict[str, Any]:
    """Whether so many of the longest sequences fit; the length and the memory that would do."""
    length = wanted["max_length"] or spec.max_length or plan.max_length or plan.tokens
    options = {name: value for name, value in wanted.items() if name != "max_length"}
    return {
        "sequences": sequences,
        "length": length,
        "fits": parents(plan, sequences, length, in_flight=True) <= plan.usable_pages,
        "max_length": pools.max_length_for(plan, sequences, in_flight=True),
        "memory": memory_for(spec, sequences=sequences, length=length, **options),
    }


def _told(wish: dict[str, Any]) -> str:
    many = f"{wish['sequences']:,} sequences of {wish['length']:,} tokens"
    memory = f"{enough(wish['memory'])} ({wish['memory']:,} bytes)"
    if wish["fits"]:
        return f"{many} fit; {memory} would be enough"
    longest = wish["max_length"]
    shorter = f"of {longest:,} tokens they do" if longest else "nor do so many of one token"
    return f"{many} do not fit; {shorter}, and {memory} would be enough"


def _title(name: str) -> str:
    """What people call the model: its name, or that of the file or the folder of config.json."""
    path = Path(name)
    return (
        path.stem
        if path.suffix == ".json" and path.stem != "config"
        else (path.resolve().parent.name if path.suffix == ".json" else path.name)
    )


def _config(name: str) -> str | Path:
    """The path meant by ``name``."""
    return hub.find(name) if name in hub.MODELS else name
