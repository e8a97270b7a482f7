"""``octavo plan CONFIG``: what fits into a memory, and where each byte goes. Needs no PyTorch."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from octavo.cli import arguments, comparing
from octavo.cli.models import model_files, read_model, read_weights
from octavo.cli.paths import check_outputs
from octavo.cli.settings import settings_file
from octavo.cli.terminal import show
from octavo.model.spec import ModelSpec, State
from octavo.planner.answer import answer
from octavo.planner.explain import explain_plan
from octavo.planner.figures import counted, exact, term

_UNFIT = 3
_SIZES = {
    "weights": "bytes of it that the model's weights take, on ONE GPU or rank: in all / tp / pp "
    "(default: the size of the weights beside the config, if there are any)",
    "activations": "bytes of it that the largest forward pass takes",
    "other": "bytes of it that anything else takes",
}

_OPTIONS = (
    *("utilization", "activations", "other", "dtype", "scales", "page_size", "layout"),
    *("input_tokens", "tp", "pp"),
)
"""Arguments of `octavo.plan` that are options of the same name."""
_ELEMENTS = {"state_dtype": "recurrent states", "indexer_dtype": "keys of an indexer"}
"""The same, where the model must keep these."""


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "plan",
        help="say what fits into a memory, and why",
        description="Read a model's config.json and say how many tokens and sequences of its KV "
        "cache fit into a memory or a GPU, or, if you name neither, how much memory they need. "
        "Shows the arithmetic and loads no weights.",
        epilog="Exit codes: 0 done, 1 failed, 2 misused, 3 the sequences you asked for do not fit; "
        "the answer then says what would be enough.",
    )
    parser.add_argument(
        "configs",
        metavar="CONFIG|MODEL",
        nargs="+",
        help="a config.json, the folder it lies in, or the name of a pulled model; several are "
        "compared",
    )
    _add_memory(parser)
    _add_model(parser)
    _add_sequences(parser)
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object instead")
    shown.add_argument(
        "--html",
        type=arguments.output,
        metavar="FILE",
        help="write a page with the memory as a picture",
    )
    parser.add_argument(
        "--compare",
        choices=comparing.CHOICES,
        help="show plans side by side: of several models (CONFIG CONFIG), or of one with other "
        "ranks, page sizes, element types, layouts or memories",
    )
    parser.set_defaults(run=run)


def _add_memory(parser: argparse.ArgumentParser) -> None:
    size = parser.add_mutually_exclusive_group()
    size.add_argument(
        "--memory",
        type=arguments.memory,
        metavar="SIZE",
        help="memory of one device, or of the cache alone if no option below takes part of it, "
        "such as 16GiB (1024s) or 16GB (1000s); without it, the answer is what the sequences need",
    )
    arguments.add_gpu(size)
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
        help="element type of recurrent states (default: fp32)",
    )
    parser.add_argument(
        "--indexer-dtype",
        choices=("fp8", "bf16", "fp16", "fp32"),
        help="element type of an indexer's keys (default: fp8, with its scales)",
    )
    arguments.add_page_size(parser)
    parser.add_argument(
        "--layout",
        choices=("packed", "slab", "component"),
        help="how groups of layers share the memory (default: packed where there are several)",
    )
    parser.add_argument(
        "--tp",
        type=arguments.whole_number(1),
        metavar="N",
        help="ranks that share each layer's heads; bytes are of one rank (default: 1, or all GPUs "
        "of --gpu)",
    )
    parser.add_argument(
        "--pp",
        type=arguments.whole_number(1),
        default=1,
        metavar="N",
        help="ranks that take some of the layers each; bytes are of one rank (default: 1)",
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
        "the config says; if it does not, cross attention is left out)",
    )
    parser.add_argument(
        "--max-seqs",
        type=arguments.whole_number(1),
        metavar="N",
        help="ask whether N sequences of the longest length fit at once, and if not, what would be "
        "enough (default without a memory: 1)",
    )


def run(options: argparse.Namespace) -> int:
    """Print the plan, or several beside each other; 3 where what was asked for does not fit."""
    _check(options)
    if options.html:
        read = [file for config in options.configs for file in model_files(config)]
        check_outputs({"--html": options.html}, [*read, *settings_file(options)])
    questions = [_question(config, options) for config in options.configs]
    _check_elements(options, [each.spec for each in questions])
    first, choice = questions[0], options.compare or ("model" if questions[1:] else None)
    if choice == "model":
        rows = comparing.models(questions)
        if options.json:
            print(json.dumps({"comparison": rows}, indent=2))
        else:
            show("\n".join(comparing.lines(rows, choice)))
        return 0 if all(row.get("fits", "refused" not in row) for row in rows) else _UNFIT
    plan, wish = first.answer()
    rows = comparing.rows(first, plan, choice)
    if options.json:
        data = plan.to_dict() | {"answer": answer(plan, wish)}
        data |= {} if wish is None else {"wish": comparing.wish_as_dict(wish)}
        data |= {"comparison": rows} if choice else {}
        print(json.dumps(data, indent=2))
    elif options.html:
        from octavo.cli.plan_page import render

        compared = comparing.table(rows, choice) if choice else []
        page = render(plan, wish, compared, comparing.notes(rows, choice) if choice else [])
        Path(options.html).write_text(page, encoding="utf-8")
        print(f"wrote {options.html}")
    else:
        beside = ["", *comparing.lines(rows, choice)] if choice else []
        show("\n".join([explain_plan(plan, wish), *beside]))
    return 0 if wish is None or wish.fits else _UNFIT


def _check(options: argparse.Namespace) -> None:
    """Refuse what cannot go together, and settle the ranks of the GPUs named."""
    for config in options.configs:
        if arguments.is_unit(config):
            raise arguments.UsageError(f"{config!r} is no model; a size is one word, such as 80GiB")
    several = len(options.configs) > 1
    if several and options.compare not in (None, "model"):
        raise arguments.UsageError(f"--compare {options.compare} takes one CONFIG, not several")
    if several and options.html:
        raise arguments.UsageError("--html shows one CONFIG, not several")
    if options.compare == "model" and not several:
        raise arguments.UsageError("--compare model takes several CONFIGs, one behind the other")
    if options.compare == "memory" and options.memory is None and options.gpu is None:
        raise arguments.UsageError("--compare memory starts from --memory or --gpu")
    if options.gpu is None:
        options.tp = options.tp or 1
        return
    count, options.memory = options.gpu
    options.tp = arguments.ranks(count, options.tp, options.pp)


def _question(config: str, options: argparse.Namespace) -> comparing.Question:
    """What is asked of one model."""
    spec = read_model(config)
    if options.mtp > len(spec.mtp):
        there = f"has {counted(len(spec.mtp), 'prediction layer')}"
        raise arguments.UsageError(f"--mtp is {options.mtp}; the config {there}")
    spec, weights = spec.with_mtp(options.mtp), options.weights
    found = read_weights(config) if weights is None else None
    if found is not None:
        ranks = options.tp * options.pp
        weights = -(-found.bytes // ranks)
        told = f"weights: {exact(found.bytes)}, from {found.file}"
        told += f", {term(weights)} on each of {ranks} ranks" if ranks > 1 else ""
        spec = replace(spec, notes=(*spec.notes, told))
    given = {name: getattr(options, name) for name in _OPTIONS} | {"weights": weights}
    given |= {name: found for name in _ELEMENTS if (found := getattr(options, name)) is not None}
    return comparing.Question(spec, options.memory, options.max_seqs, options.max_len, given)


def _check_elements(options: argparse.Namespace, specs: Sequence[ModelSpec]) -> None:
    """Refuse an element type of what none of the models keeps."""
    kinds = [kind for spec in specs for _, kind in spec.kinds()]
    kept = {
        "state_dtype": any(isinstance(kind, State) for kind in kinds),
        "indexer_dtype": any(getattr(kind, "indexer", 0) for kind in kinds),
    }
    for name, what in _ELEMENTS.items():
        found = getattr(options, name)
        if found is not None and not kept[name]:
            option, names = f"--{name.replace('_', '-')}", " and ".join(s.name for s in specs)
            keep = "keeps" if len(specs) == 1 else "keep"
            raise arguments.UsageError(f"{option} is {found!r}; {names} {keep} no {what}")
