"""``octavo completion``: scripts that know every command and option, tried in a real shell."""

import shutil
import subprocess
import sys

import pytest

from octavo.cli import main, parser, settings

FLAGS = {
    flag
    for command in settings.parsers(parser()).values()
    for action in command._actions
    for flag in action.option_strings[-1:]
}
TRY = """\
{script}
COMP_WORDS=({words}) COMP_CWORD=$(({count} - 1)) COMPREPLY=()
"$(complete -p octavo | sed 's/.*-F \\([^ ]*\\).*/\\1/')" octavo "${{COMP_WORDS[COMP_CWORD]}}" ""
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture
def script(capsys):
    """The script for a shell."""

    def run(shell):
        assert 0 == main(["completion", shell])
        return capsys.readouterr().out

    return run


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_script_has_every_command_and_option(script, shell):
    """What the command line takes, the shell is told."""
    text = script(shell)

    for word in {*settings.parsers(parser()), *FLAGS}:
        assert word.removeprefix("--") in text


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (["octavo", "pl"], {"plan"}),
        (["octavo", "plan", "--page"], {"--page-size"}),
        (["octavo", "plan", "--dtype", "fp"], {"fp16", "fp32", "fp8"}),
        (["octavo", "simulate", "--html", "tests/conf"], {"tests/conftest.py"}),
    ],
)
def test_bash_completes(script, words, offered):
    """Commands, options, their choices and files."""
    text = TRY.format(script=script("bash"), words=" ".join(words), count=len(words))
    bash = shutil.which("bash")
    run = subprocess.run([bash, "-c", text], capture_output=True, text=True, check=True)

    assert offered <= set(run.stdout.split())
    assert all(word.startswith(words[-1]) for word in run.stdout.split())


def test_missing_shtab_is_named(capsys, monkeypatch):
    """Without the package that writes scripts the line says what brings it."""
    monkeypatch.setitem(sys.modules, "shtab", None)

    assert 1 == main(["completion", "bash"])
    assert "octavo: shtab is not installed; it comes with " in capsys.readouterr().err
