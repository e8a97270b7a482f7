"""A bug report to paste where everyone reads it: what the doctor found, nothing of the reporter.

Names of the user and of the machine, folders, and values of environment variables are taken out of
every line, also out of what a broken package says in its errors.
"""

import contextlib
import getpass
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

_FORM = """\
### What happened

<!-- What you ran, what you expected, and what came instead, with the whole message. -->

### What `octavo doctor` says

```text
{lines}
```"""
_START = r"(?<![\w.~/\\])(?:[A-Za-z]:|~|\$\w+)?[/\\]"
_PATH = re.compile(rf"(?<=')(?:{_START}[^']*)(?=')|{_START}[^\s'\",;:()<>]+")
_SEPARATOR = re.compile(r"[/\\]")
_PLAIN = re.compile(r"\d{,7}|\d+(\.\d+)+")  # a count, a version
_LONG = 6  # letters: a shorter value is no secret, and stands in too many words


def render(lines: Sequence[str]) -> str:
    """The report in Markdown. O(letters * environment variables)."""
    return _FORM.format(lines=scrub("\n".join(lines)))


def scrub(text: str, environment: Mapping[str, str] = os.environ) -> str:
    """The text without what names its user, their machine, its folders and its secrets.

    A path becomes ``.../`` and its last part, a variable's value the variable's name.
    """
    for secret, instead in _secrets(environment):
        text = text.replace(secret, instead)
    text = _PATH.sub(_without_folders, text)
    for name, instead in _names(environment):
        text = re.sub(
            rf"(?<![^\W_]){re.escape(name)}(?![^\W_])", instead, text, flags=re.IGNORECASE
        )
    return text


def _secrets(environment: Mapping[str, str]) -> list[tuple[str, str]]:
    """(value, what stands instead) of variables that may be private, the longest first."""
    values = {
        value: f"${name}"
        for name, value in environment.items()
        if len(value) >= _LONG and not _PLAIN.fullmatch(value)
    }
    return sorted(values.items(), key=lambda pair: -len(pair[0]))


def _without_folders(found: re.Match[str]) -> str:
    return ".../" + _SEPARATOR.split(found.group())[-1]


def _names(environment: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """(name, what stands instead) of the user and of the machine, as far as they are known."""
    users = {environment.get(name, "") for name in ("USER", "LOGNAME", "USERNAME", "SUDO_USER")}
    with contextlib.suppress(KeyError, OSError, RuntimeError):  # a user without entry or home
        users |= {getpass.getuser(), Path.home().name}
    node = platform.node()
    hosts = {node, node.partition(".")[0], environment.get("HOSTNAME", "")}
    yield from ((name, "<user>") for name in sorted(users, key=len, reverse=True) if name)
    yield from ((name, "<host>") for name in sorted(hosts, key=len, reverse=True) if name)
