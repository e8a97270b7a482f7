"""``octavo doctor``: what of octavo works here, and why the rest does not."""

import argparse
import json
from collections.abc import Iterator
from typing import Any

from octavo.cli import bug_report, diagnosis
from octavo.cli.arguments import CommandError
from octavo.cli.terminal import show
from octavo.cli.waiting import ProgressBar
from octavo.planner.figures import amount, counted

Test = tuple[str, str, dict[str, Any]]
"""What a test is called, what it found in words, and its figures."""

_DESCRIPTION = """\
Print what is installed, whether octavo's core is compiled, which attention backends work here and
why others do not, the processor and the memory. Then test the cache, the answers of every backend
that works on the CPU, and how fast memory is read: some ten seconds. The first time it compiles
the attention kernel."""
_EPILOG = """\
The exit code is 0 if everything that is installed works, however little that is, and 1 if
something is broken. docs/install.md says what to do about each line."""


def add_to(commands: Any) -> None:
    """Add this command to the parser."""
    parser = commands.add_parser(
        "doctor",
        help="say what works on this machine, and why the rest does not",
        description=_DESCRIPTION,
        epilog=_EPILOG,
    )
    parser.add_argument("--quick", action="store_true", help="leave the tests out")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument("--json", action="store_true", help="print one JSON object instead")
    shown.add_argument(
        "--report",
        action="store_true",
        help="print a bug report in Markdown to fill in, without your names, paths or secrets",
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the report, a line each as it is found out.

    Raises:
        CommandError: something that is installed does not work.
    """
    lines: list[str] = []
    shown = lines.append if options.json or options.report else show
    with ProgressBar("doctor") as bar:
        bar("looking at what is installed")
        found = diagnosis.facts()
    for line in _fact_lines(found):
        shown(line)
    if not options.quick:
        found["tests"] = {}
        shown("tests")
        for name, told, figures in _watched(_tests()):
            shown(_line(f"  {name}", told))
            found["tests"][name] = figures
    found["faults"], found["advice"] = diagnosis.faults(found), diagnosis.advice(found)
    for line in _last_lines(found):
        shown(line)
    if options.json:
        print(json.dumps(found, indent=2))
    elif options.report:
        print(bug_report.render(lines))
    if found["faults"]:
        raise CommandError(f"{counted(len(found['faults']), 'fault')} found on this machine")


def _watched(tests: Iterator[Test]) -> Iterator[Test]:
    """Each test as it is done, with a sign while it runs."""
    while True:
        with ProgressBar("doctor") as bar:
            bar("testing")
            done = next(tests, None)
        if done is None:
            return
        yield done


def _tests() -> Iterator[Test]:
    from octavo.cli import self_test  # octavo.testing takes a while to import

    return self_test.tests()


def _line(name: str, fact: str) -> str:
    return f"{name:14} {fact}".rstrip()


def _fact_lines(found: dict[str, Any]) -> Iterator[str]:
    """What people read of the facts."""
    yield _line("octavo", f"{found['octavo']}, {found['folder']}")
    yield _line("python", f"{found['python']}, {found['system']}")
    yield from (_line(f"  {n}", v or "not installed") for n, v in found["packages"].items())
    core = found["core"]
    yield _line("core", f"compiled, {core['folder']}" if core["compiled"] else _source(core))
    yield "attention backends, the fastest first"
    yield from (_line(f"  {each['name']}", _state(each)) for each in found["backends"])
    kernels = found["kernels"]
    yield _line("kernels", kernels["why_not"] or f"{kernels['folder']}, {kernels['count']} in it")
    yield _line("C compiler", found["compiler"] or "none")
    yield _line("processor", _processor(found["processor"]))
    yield _line("memory", _memory(found["memory"]))
    named = [f"{name}={value}" for name, value in found["environment"].items()]
    yield _line("environment", ", ".join(named) or "nothing that octavo reads is set")


def _source(core: dict[str, Any]) -> str:
    return f"Python source: {core['why_not']}"


def _state(backend: dict[str, Any]) -> str:
    if backend["works"]:
        return "works"
    return f"{'BROKEN' if backend['broken'] else 'no'}: {backend['why_not']}"


def _processor(processor: dict[str, Any]) -> str:
    """Its name, its cores and its instructions."""
    cores = f"{counted(processor['cores'] or 0, 'core')}, this process may use "
    cores += str(processor["usable_cores"])
    flags = processor["flags"]
    if flags is None:
        can = "instructions unknown on this system"
    else:
        can = ", ".join([*flags, *([] if processor["fast_dtype"] == "bf16" else ["none for bf16"])])
    return "; ".join(filter(None, (processor["name"], cores, can)))


def _memory(memory: dict[str, Any]) -> str:
    if memory["bytes"] is None:
        return "unknown on this system"
    free = memory["available_bytes"]
    return amount(memory["bytes"]) + ("" if free is None else f", {amount(free)} available")


def _last_lines(found: dict[str, Any]) -> Iterator[str]:
    """The verdict, and what could be better."""
    yield ""
    yield from (f"FAULT: {each}" for each in found["faults"])
    yield from (f"advice: {each}" for each in found["advice"])
    if not found["faults"]:
        yield "everything that is installed works"
