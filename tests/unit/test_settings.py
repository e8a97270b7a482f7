"""Options from flags, variables and a file: the nearest place counts, and mistakes are named."""

import json
import os
import re
import tomllib
from argparse import ArgumentTypeError
from pathlib import Path

import pytest

from octavo import folders
from octavo.cli import main, parser, settings

CONFIG = Path(__file__).parents[1] / "data/configs/AFM-4.5B-params.json"
COMMANDS = sorted(settings.parsers(parser()))
SAMPLES = ("3", "0.5", "5MiB", "2xH100-80GB", "s", "x")


def options(command):
    """Key and action of every option of a command that can be set."""
    for action in settings.parsers(parser())[command]._actions:
        for flag in action.option_strings[-1:]:
            if flag.removeprefix("--") not in {"help", "config-file", "show-config"}:
                yield flag.removeprefix("--"), action


def samples(action):
    """Two things an option may be given as, where there are two, that are not its default."""
    if action.nargs == 0:
        return [True]
    convert = action.type or str
    texts = [text for text in action.choices or SAMPLES if _converts(convert, text)]
    return [text for text in texts if convert(text) not in (action.default, 0)][:2]


def _converts(convert, text):
    try:
        convert(text)
    except (ArgumentTypeError, ValueError):
        return False
    return True


EVERY = [
    pytest.param(command, key, action, id=f"{command} {key}")
    for command in COMMANDS
    for key, action in options(command)
]


def variable(command, key):
    """The name of an option's variable."""
    return f"OCTAVO_{command}_{key}".upper().replace("-", "_")


@pytest.fixture
def parse(tmp_path):
    """Settles a command's options, the words of its arguments left out."""

    def run(command, *words, file="", **environment):
        path = tmp_path / "config.toml"
        path.write_text(file, encoding="utf-8")
        words = [command, *words, "--config-file", str(path), "--show-config"]
        return settings.parse(parser(), words, environment)

    return run


@pytest.fixture
def octavo_run(capsys):
    """``octavo`` with some words; the exit code, stdout and stderr."""

    def run(*words):
        code = main([str(word) for word in words])
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


@pytest.mark.parametrize(("command", "key", "action"), EVERY)
def test_nearest_place_counts(parse, command, key, action):
    """Of every option of every command: flag before variable before file before default."""
    near, far = samples(action)[0], samples(action)[-1]
    flag = [f"--{key}"] if near is True else [f"--{key}", near]
    name, table = variable(command, key), f"[{command}]\n{key} = {json.dumps(far)}\n"
    by_flag, shown = parse(command, *flag)
    chosen, _ = parse(command, *flag, file=table, **{name: str(far)})
    by_variable, told = parse(command, file=table, **{name: str(near)})
    by_file, by_key = parse(command, file=table)
    alone, defaults = parse(command)

    def value(options):
        return getattr(options, action.dest)

    assert not action.required, "argparse would miss it where a variable or the file has it"
    assert value(by_flag) == value(chosen) == value(by_variable) != value(alone)
    assert by_flag == parse(command, *flag, **{name: ""})[0]
    if near != far:
        assert value(by_file) not in (value(by_variable), value(alone))
    sources = [
        next(each.source for each in found if each.key == key)
        for found in (shown, told, by_key, defaults)
    ]
    assert [f"--{key}", name, "default"] == [*sources[:2], sources[3]]
    assert sources[2].endswith(f"config.toml: {command}.{key}")


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_shown_is_a_file_of_the_same_settings(parse, command):
    """Settings given back as a file, whatever they are, are the same settings."""
    exclusive = settings.parsers(parser())[command]._mutually_exclusive_groups
    rivals = {a.option_strings[-1] for group in exclusive for a in group._group_actions[1:]}
    words = {
        key: samples(action)[-1] for key, action in options(command) if f"--{key}" not in rivals
    }
    table = "".join(f"{key} = {json.dumps(word)}\n" for key, word in words.items())
    first, found = parse(command, file=f"[{command}]\n{table}")
    text = settings.show(command, found)
    again, _ = parse(command, file=text)

    assert words.keys() <= tomllib.loads(text)[command].keys()
    assert vars(first) == vars(again)


@pytest.mark.parametrize("command", COMMANDS)
def test_defaults_are_those_of_the_parser(parse, command):
    """Without settings every option is what argparse alone would make it."""
    plain = parser()
    for action in settings.parsers(plain)[command]._actions:
        action.required = False

    assert vars(parse(command)[0]) | {"config_file": None, "show_config": False} == vars(
        plain.parse_args([command])
    )


@pytest.mark.parametrize(
    ("table", "value", "said"),
    [
        ("plan", {"page-size": 0}, "plan.page-size is 0: 0 is not a whole number of at least 1"),
        ("plan", {"memory": "lots"}, "plan.memory is 'lots': memory is 'lots'"),
        ("plan", {"dtype": "int7"}, "plan.dtype is 'int7': invalid choice: 'int7'"),
        ("plan", {"page_size": 16}, "plan.page_size is no setting of octavo plan; did you mean pa"),
        ("plan", {"wings": 2}, "plan.wings is no setting of octavo plan; did you mean weights?"),
        ("plan", {"json": "yes"}, "plan.json is 'yes': give true or false"),
        ("plan", {"tp": True}, "plan.tp is True: give a text or a number"),
        ("plan", {"tp": [1, 2]}, "plan.tp is [1, 2]: give one value"),
        ("plan", {"tp": []}, "plan.tp is []: give a value"),
        ("plan", {"help": True}, "plan.help is no setting of octavo plan; "),
        ("paln", {"tp": 2}, "paln is no setting of a table for each command of octavo; did you me"),
        ("plan", {"json": True, "html": "x"}, "plan.html is 'x': not allowed with "),
    ],
)
def test_mistakes_in_a_file_are_named(octavo_run, tmp_path, table, value, said):
    """The file, the key, the value and what would be right stand in one line; the code is 2."""
    path = tmp_path / "mine.toml"
    rows = "".join(f"{key} = {json.dumps(each)}\n" for key, each in value.items())
    path.write_text(f"[{table}]\n{rows}", encoding="utf-8")
    code, out, err = octavo_run("plan", CONFIG, "--config-file", path)

    assert (2, "", 1) == (code, out, err.count("\n"))
    assert err.startswith(f"octavo: {path}: {said}")


@pytest.mark.parametrize(
    ("content", "code", "said"),
    [
        (b"[plan\n", 2, "it is no TOML file: "),
        (b"plan = 3\n", 2, "plan is 3; it must be a table, [plan]"),
        (b"#" * 2**21, 2, "it has more than 1,048,576 bytes; settings have fewer"),
        (b"\xff\n", 2, "it is no text in UTF-8 (byte 0)"),
        (None, 1, "No such file or directory"),
    ],
)
def test_files_that_are_none_are_named(octavo_run, monkeypatch, tmp_path, content, code, said):
    """So is a file that cannot be read; one that a variable names must be there as well."""
    path = tmp_path / "mine.toml"
    if content is not None:
        path.write_bytes(content)
    monkeypatch.setenv("OCTAVO_CONFIG_FILE", str(path))
    ended, _, err = octavo_run("plan", CONFIG, "--memory", "8GiB")

    assert code == ended
    assert err.startswith(f"octavo: {path}: {said}")


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("OCTAVO_PLAN_MEMROY", "8GiB", "is no setting of octavo plan; did you mean OCTAVO_PLAN_ME"),
        ("OCTAVO_PLAN_TP", "two", "is 'two': 'two' is not a whole number of at least 1"),
        ("OCTAVO_PLAN_JSON", "maybe", "is 'maybe': give true or false"),
    ],
)
def test_mistakes_in_a_variable_are_named(octavo_run, monkeypatch, name, text, said):
    """A variable of the command that means nothing is not passed over."""
    monkeypatch.setenv(name, text)
    code, out, err = octavo_run("plan", CONFIG, "--memory", "8GiB")

    assert (2, "") == (code, out)
    assert err.startswith(f"octavo: {name} {said}")
    assert 0 == octavo_run("doctor", "--quick", "--json")[0], "it is of another command"


def test_settings_do_what_flags_do(octavo_run, monkeypatch, tmp_path):
    """A command that gets its options from the user's own file answers as if they were flags."""
    words = ("--memory", "8GiB", "--page-size", "32", "--json")
    expected = octavo_run("plan", CONFIG, *words)
    home = tmp_path / "octavo"
    home.mkdir()
    (home / "config.toml").write_text('[plan]\nmemory = "8GiB"\npage-size = 32\n')
    monkeypatch.delenv("OCTAVO_CONFIG_FILE")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("OCTAVO_PLAN_JSON", "1")

    assert 0 == expected[0]
    assert expected == octavo_run("plan", CONFIG)
    monkeypatch.setenv("OCTAVO_PLAN_JSON", "0")
    assert octavo_run("plan", CONFIG)[1].startswith("AFM-4.5B-params, bf16 cache, 8 GiB")


def test_nearer_place_rules_out_what_excludes_it(parse):
    """A pool in pages from a flag is not refused because the file has one in bytes."""
    file = '[simulate]\nmemory = "1GiB"\n'
    options, found = parse("simulate", "--pages", "7", file=file)

    assert (7, None) == (options.pages, options.memory)
    assert "memory" not in {each.key for each in found if each.given is not None}
    options, _ = parse("generate", "--chat", file="[generate]\nraw = true\n")
    assert options.chat is True
    options, _ = parse("generate", file="[generate]\nraw = true\n")
    assert options.chat is False


def test_several_values_of_a_variable_stand_apart(parse):
    """An option of several values takes a list in a file, and words in a variable."""
    by_file, _ = parse("simulate", file='[simulate]\nsweep = ["memory", "1GiB,2GiB"]\n')
    by_variable, _ = parse("simulate", OCTAVO_SIMULATE_SWEEP="memory '1GiB,2GiB'")

    assert ["memory", "1GiB,2GiB"] == by_file.sweep == by_variable.sweep


def test_misuse_says_which_settings_count(octavo_run, monkeypatch):
    """Where settings that nobody typed do not go together the line says where they come from."""
    monkeypatch.setenv("OCTAVO_SIMULATE_ROUTER", "prefix")
    code, _, err = octavo_run("simulate", "chat")

    assert 2 == code
    assert "--router has no effect" in err
    assert "(beside the flags count: OCTAVO_SIMULATE_ROUTER)" in err


def test_settings_are_shown_and_nothing_is_done(octavo_run):
    """--show-config needs no arguments and ends with 0."""
    code, out, err = octavo_run("generate", "--max-tokens", "7", "--show-config")

    assert (0, "") == (code, err)
    assert re.search(r"^max-tokens = 7  # --max-tokens$", out, re.MULTILINE)
    assert re.search(r"^# top-k is not set$", out, re.MULTILINE)


def test_abbreviated_options_are_refused(octavo_run):
    """An option is called by its whole name, so that later ones cannot change what a word means."""
    code, _, err = octavo_run("plan", CONFIG, "--mem", "8GiB")

    assert 2 == code
    assert "--mem" in err


def test_user_without_a_home_has_no_file(monkeypatch):
    """Nobody's file is no file."""
    for name in ("XDG_CONFIG_HOME", "HOME"):
        monkeypatch.delenv(name, raising=False)

    def homeless():
        raise RuntimeError

    monkeypatch.setattr(Path, "home", homeless)
    assert folders.config_file() is None
    monkeypatch.setenv("XDG_CONFIG_HOME", os.sep)
    assert Path("/octavo/config.toml") == folders.config_file()
