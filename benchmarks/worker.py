"""A contender in an interpreter of its own: `Worker` starts it and asks for single rounds.

Run as a script it loads the class that is named (``module:Class``) and answers lines of
``figure turn`` with a JSON line each; its first line says who it is, or why it cannot.
"""

import importlib
import json
import os
import subprocess
import sys
from typing import Any

from workloads import Contender, Figure, run_figure


class Absent(Exception):
    """The contender cannot run here; says why."""


class Worker:
    """A contender behind a pipe.

    Args:
        where: ``module:Class``.
        python: its interpreter.
        environment: variables it gets beside those of this process.

    Raises:
        Absent: it cannot be loaded.
    """

    def __init__(self, where: str, python: str = sys.executable, **environment: str) -> None:
        known = dict(os.environ, OMP_NUM_THREADS="1", **environment)
        if python != sys.executable:
            known.pop("PYTHONPATH", None)
        self.process = subprocess.Popen(
            [python, __file__, where],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=known,
        )
        hello = self._answer()
        if "error" in hello:
            raise Absent(hello["error"])
        self.name, self.version = hello["name"], hello["version"]

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        return json.loads(line) if line else {"error": "its interpreter ended"}

    def run(self, figure: str, turn: int) -> Figure | None:
        """One round; None: the contender has no such thing.

        Raises:
            RuntimeError: it failed.
        """
        assert self.process.stdin is not None
        self.process.stdin.write(f"{figure} {turn}\n")
        self.process.stdin.flush()
        reply = self._answer()
        if "error" in reply:
            raise RuntimeError(f"{self.name}, {figure}: {reply['error']}")
        return Figure(**reply) if reply else None


def load(where: str) -> Contender:
    """The contender of ``module:Class``."""
    module, _, name = where.partition(":")
    made: Contender = getattr(importlib.import_module(module), name)()
    return made


def answer(contender: Contender, figure: str, turn: int) -> dict[str, Any]:
    """A round as it goes over the pipe."""
    try:
        return run_figure(contender, figure, turn)._asdict()
    except NotImplementedError:
        return {}
    except Exception as error:  # noqa: BLE001, whoever reads the pipe raises it
        return {"error": repr(error)}


def main() -> None:
    """Answer until the input ends."""
    sys.stdout, answers = sys.stderr, sys.stdout  # what a contender prints is not an answer

    def say(reply: dict[str, Any]) -> None:
        print(json.dumps(reply), file=answers, flush=True)

    try:
        contender = load(sys.argv[1])
    except Exception as error:  # noqa: BLE001, as in `answer`
        say({"error": f"{type(error).__name__}: {error}"})
        return
    say({"name": contender.name, "version": contender.version})
    for line in sys.stdin:
        figure, turn = line.split()
        say(answer(contender, figure, int(turn)))


if __name__ == "__main__":
    main()
