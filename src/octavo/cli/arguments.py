"""What the commands' arguments may be: each is refused with what would be right.

Nothing here looks at files or models.
"""

import argparse
import math
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

from octavo.errors import PlanError
from octavo.planner.budget import parse_memory
from octavo.planner.figures import counted
from octavo.planner.gpus import GPUS, find_gpu

DTYPES = ("auto", "bf16", "fp32", "fp16")


class CommandError(Exception):
    """A command cannot do what it was asked; the message is shown to the user as it is."""

    code = 1


class UsageError(CommandError):
    """The command was given something it cannot take."""

    code = 2


def whole_number(low: int, high: int | None = None) -> Callable[[str], int]:
    """A converter for an integer of at least ``low`` and at most ``high``."""
    right = f"a whole number of at least {low}" + ("" if high is None else f", at most {high}")

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not {right}") from None
        if value < low or (high is not None and value > high):
            raise argparse.ArgumentTypeError(f"{text} is not {right}")
        return value

    return convert


def length(text: str) -> int:
    """Tokens of at least 1: ``32768``, ``32k`` in 1024s, or ``1M`` in 1024s of them."""
    found = re.fullmatch(r"0*([1-9][0-9]{0,17})([kKmM]?)", text)
    if found is None:
        right = "give tokens as a whole number of at least 1, such as 32768, or 32k (1024s)"
        raise argparse.ArgumentTypeError(f"{text!r} is no length; {right}")
    return int(found[1]) * {"": 1, "k": 2**10, "m": 2**20}[found[2].lower()]


def temperature(text: str) -> float:
    """A finite number of at least 0."""
    value = _number(text)
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 0")
    return value


def probability(text: str) -> float:
    """A number above 0 and at most 1."""
    value = _number(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0 and at most 1")
    return value


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan  # which no range contains


def gpus(text: str) -> tuple[int | None, str]:
    """How many GPUs, if it says so, and the name of one: ``H100-80GB`` or ``2xH100-80GB``."""
    found = re.fullmatch(r"(?:0*([1-9][0-9]{0,3})\s*[xX*]\s*)?(.*)", text)
    assert found is not None
    if text[:1].isdigit() and found[1] is None:
        right = "--memory takes a size; --gpu a GPU's name, such as H100-80GB or 2xH100-80GB"
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a GPU; {right}")
    behind = re.fullmatch(r"(.+?[bB0-9])\s*[xX*]\s*0*([1-9][0-9]{0,3})", text)
    if behind is not None:
        right = f"the number stands first: {behind[2]}x{behind[1]}"
        raise argparse.ArgumentTypeError(f"{text!r} is no name of a GPU; {right}")
    try:
        return (None if found[1] is None else int(found[1])), find_gpu(found[2]).name
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def add_gpu(group: Any) -> None:
    """Add ``--gpu``."""
    group.add_argument(
        "--gpu",
        type=gpus,
        metavar="[Nx]NAME",
        help="memory of a GPU by name, as its driver reports it, and how many share the model, "
        f"such as 2xH100-80GB: {', '.join(gpu.name for gpu in GPUS)}",
    )


def ranks(count: int | None, tp: int | None, pp: int = 1) -> int:
    """The ``tp`` of as many GPUs as ``--gpu`` names, None: as many as ranks.

    Raises:
        UsageError: ``tp`` is given, and not as many ranks as GPUs come of it.
    """
    if tp is None:
        tp = max(1, (count or 1) // pp)
    if count is not None and count != tp * pp:
        shares = f"--tp {tp} and --pp {pp} take" if pp > 1 else f"--tp {tp} takes"
        raise UsageError(f"--gpu names {counted(count, 'GPU')}, {shares} {tp * pp}")
    return tp


def is_unit(word: str) -> bool:
    """Whether a word is the unit of a size that a space parted from its number."""
    return re.fullmatch(r"[kmgt]i?b", word.lower()) is not None


def memory(text: str) -> int:
    """Bytes: ``512MiB``, ``1.5GiB``, ``80GB`` or a plain number."""
    try:
        return parse_memory(text)
    except PlanError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def read_prompts(words: Sequence[str]) -> list[str]:
    """The prompts meant by the words of the command line; ``-`` is what stands on stdin.

    Raises:
        UsageError: an empty prompt, text that is no UTF-8, or stdin asked for twice.
    """
    if words.count("-") > 1:
        raise UsageError("only one prompt can be '-': stdin can be read once")
    prompts = [_from_stdin() if word == "-" else word for word in words]
    for number, prompt in enumerate(prompts, start=1):
        if not prompt.strip():
            raise UsageError(f"prompt {number} is empty; give it some text")
        if any("\ud800" <= character <= "\udfff" for character in prompt):
            raise UsageError(f"prompt {number} is not valid UTF-8")
    return prompts


def _from_stdin() -> str:
    """All of stdin without the newline that ends its last line."""
    try:
        return sys.stdin.buffer.read().decode("utf-8").removesuffix("\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"stdin is not valid UTF-8 (byte {error.start})") from None


def output(name: str) -> str:
    """The name of a file to write; ``-`` is none, as nothing is written to stdout."""
    if name.strip() in ("", "-"):
        right = "give the name of a file to write, such as plan.html"
        raise argparse.ArgumentTypeError(f"{name!r} is no file; {right}")
    return name


def add_page_size(parser: argparse.ArgumentParser) -> None:
    """Add ``--page-size``."""
    parser.add_argument(
        "--page-size",
        type=whole_number(1),
        default=16,
        metavar="N",
        help="tokens per page of the cache (default: 16)",
    )


def add_dtype(parser: argparse.ArgumentParser, what: str) -> None:
    """Add ``--dtype``."""
    parser.add_argument(
        "--dtype",
        choices=DTYPES,
        default="auto",
        help=f"{what}; auto: bf16 where the processor has instructions for it, else fp32 "
        "(default: %(default)s)",
    )
