"""`octavo demo`: right answers, what reuse saved, and what to run next."""

import io
import re
import shlex
import sys
from contextlib import redirect_stdout

import pytest

from octavo.cli import demo, main, parser


@pytest.fixture(scope="module")
def shown():
    """What one run printed."""
    with redirect_stdout(io.StringIO()) as out:
        assert 0 == main(["demo"])
    return out.getvalue()


@pytest.mark.model
def test_answers_are_those_of_the_page(shown):
    """Each is given twice, with the cache and without, and what it says stands in the page."""
    with_cache, without = re.split("The same without", shown)

    for fact in ("42", "199", "Blue Heron"):
        assert fact in demo.PAGE
        assert all(fact in part.rpartition("museum next to")[2] for part in (with_cache, without))
    assert "Both runs gave the same answers." in shown


@pytest.mark.model
def test_later_turns_are_found_in_the_cache(shown):
    """Of the chat without the cache nothing is, and the chart has a bar for each turn."""
    facts = re.findall(r"prompt of (\d+) tokens, (?:(\d+) of them|none) cached", shown)
    cached = [int(found or 0) for _, found in facts]

    assert [True, False, False, True, True, True] == [found == 0 for found in cached]
    assert all(int(n) - found < 64 for (n, _), found in zip(facts[1:3], cached[1:3], strict=True))
    assert 6 == len(re.findall(r"cache +\d+\.\d\d  #+$", shown, re.MULTILINE))


def test_next_commands_are_commands():
    """What it suggests is understood."""
    for words, _ in demo.NEXT:
        assert callable(parser().parse_args(shlex.split(words)).run)


@pytest.mark.model
def test_the_next_plan_and_simulation_have_room(capsys):
    """Their memory holds the demo's model and pages beside it."""
    for words, _ in demo.NEXT[1:]:
        more = ["--requests", "5"] if words.startswith("simulate") else []
        assert 0 == main([*shlex.split(words), *more])
        assert "weights" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("called", "found", "said"),
    [
        ("/env/bin/octavo", "/env/bin/octavo", "octavo"),
        (".venv/bin/octavo", None, ".venv/bin/octavo"),
        (".venv/bin/octavo", "/usr/bin/octavo", ".venv/bin/octavo"),
        ("/src/octavo/__main__.py", None, "python -m octavo"),
    ],
)
def test_next_commands_are_called_like_this_one(called, found, said, monkeypatch):
    """A program that is not on the path is named as it was."""
    monkeypatch.setattr(sys, "argv", [called])
    monkeypatch.setattr(demo, "which", lambda _: found)

    assert said == demo.program()


def test_times_that_say_nothing_are_not_called_a_saving():
    """Where other programs kept the cores busy, no seconds are claimed."""
    slow, fast = (demo.Turn("a", 10, 0, seconds) for seconds in (2.0, 1.0))

    assert "1.0 s less to wait" == demo.saved([slow, fast], [fast, slow])
    assert demo.saved([fast, slow], [fast, fast]).startswith("no time saved")
