"""Options of the command line that come from variables and a file as well.

An option is what its flag says, else what the variable ``OCTAVO_<COMMAND>_<OPTION>`` says, else
what the table of its command says in a TOML file, else its default. Of options that exclude each
other the one from the nearer place counts. All of it is read off the argparse tree, so that
whatever option a command gains can be set at once; this module knows none by name.
"""

import argparse
import difflib
import functools
import json
import shlex
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple

from octavo.cli.arguments import CommandError, UsageError
from octavo.folders import config_file

_OWN = ("help", "version", "config-file", "show-config")
_LONGEST = 2**20  # bytes of a file that is read; devices never end
_SWITCH = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


class Setting(NamedTuple):
    """One option as it is in force.

    Attributes:
        key: its flag without the dashes.
        given: what it was given as: a text, a number, a list of them, a bool; None: it is not set.
        source: where: its flag, a variable, a file and a key of it, or ``default``.
        value: what the command gets.
    """

    key: str
    given: Any
    source: str
    value: Any = None


class _Option(NamedTuple):
    """An option of a command as its parser was made."""

    command: argparse.ArgumentParser
    action: argparse.Action
    default: Any


class _Default(NamedTuple):
    """What an option is where no flag was given; reads in help texts as what it stands for."""

    value: Any

    def __str__(self) -> str:
        return str(self.value)


class _Typed(NamedTuple):
    """A word as it was given, and what it was converted to."""

    word: Any
    value: Any


def add_to(command: argparse.ArgumentParser) -> None:
    """Add ``--config-file`` and ``--show-config`` to a command's parser."""
    group = command.add_argument_group("settings")
    group.add_argument(
        "--config-file",
        metavar="FILE",
        help="TOML file with settings (default: $OCTAVO_CONFIG_FILE, else octavo/config.toml in "
        "$XDG_CONFIG_HOME or ~/.config)",
    )
    group.add_argument(
        "--show-config",
        action="store_true",
        help="print every option with its value and where that comes from, and do nothing else",
    )


def settings_file(options: argparse.Namespace) -> list[Path]:
    """The file with settings that was read, if one was. O(1)."""
    return [] if options.config_file is None else [options.config_file]


def parsers(whole: argparse.ArgumentParser) -> Mapping[str, argparse.ArgumentParser]:
    """The parser of each command, by its name. O(commands)."""
    return next(a.choices for a in whole._actions if isinstance(a, argparse._SubParsersAction))


def parse(
    whole: argparse.ArgumentParser, words: Sequence[str], environment: Mapping[str, str]
) -> tuple[argparse.Namespace, list[Setting]]:
    """Parse the words, and take what they do not say from variables and the file.

    Args:
        whole: the parser of the whole command line; it is good for this one call.

    Returns:
        The options with their values, and each option of the command as it is in force.

    Raises:
        UsageError: a setting that is none, or that cannot be what it is given as; it names the
            place, the key and the value. CommandError: a file that cannot be read.
        SystemExit: argparse has shown the help, or a mistake in the words.
    """
    commands = parsers(whole)
    known = {name: _prepared(each) for name, each in commands.items()}
    if "--show-config" in words:  # arguments that are no options need not be there
        for action in (each for command in commands.values() for each in command._actions):
            action.required = False
    options = whole.parse_args(words)
    name = options.command
    if name is None:
        return options, []
    levels = [list(_flags(known[name], options))]
    levels += [list(_variables(name, known[name], environment))]
    options.config_file = _path(options, environment)
    levels += [list(_file(name, known, options.config_file))]
    found = _nearest(levels, known[name])
    return options, _settle(options, known[name], found)


def show(command: str, settings: Iterable[Setting]) -> str:
    """The settings of a command as its table of a TOML file, each with where it comes from."""
    lines = [
        f"# {each.key} is not set"
        if each.given is None
        else f"{each.key} = {_toml(each.given)}  # {each.source}"
        for each in settings
    ]
    return "\n".join([f"[{command}]", *lines])


def places(settings: Iterable[Setting]) -> str:
    """Where settings come from that are neither flags nor defaults, with commas; or nothing."""
    sources = (each.source for each in settings if not each.source.startswith("--"))
    return ", ".join(source for source in sources if source != "default")


def _toml(given: Any) -> str:
    if isinstance(given, list):
        return f"[{', '.join(map(_toml, given))}]"
    if isinstance(given, str) and given.isdecimal() and given == str(int(given)):
        return given
    return json.dumps(given, ensure_ascii=False)


# -- the tree --------------------------------------------------------------------------------------


def _prepared(command: argparse.ArgumentParser) -> dict[str, _Option]:
    """What can be set of a command; its parser will tell what was given, and as what."""
    options = {}
    for action in command._actions:
        key = action.option_strings[-1].removeprefix("--") if action.option_strings else "help"
        if key in _OWN:
            continue
        options[key] = _Option(command, action, action.default)
        action.default = _Default(action.default)
        if action.type is not None and action.choices is None:
            action.type = _keeping_word(action.type)
    return options


def _keeping_word(convert: Any) -> Any:
    @functools.wraps(convert)
    def converted(word: str) -> Any:
        return _Typed(word, convert(word))

    return converted


def _part(parsed: Any, name: str) -> Any:
    """The ``word`` or the ``value`` of what argparse has made of words."""
    if isinstance(parsed, list):
        return [_part(each, name) for each in parsed]
    return getattr(parsed, name) if isinstance(parsed, _Typed) else parsed


def _exclude(one: _Option, other: _Option) -> bool:
    """Whether two options may not both be given."""
    groups = one.command._mutually_exclusive_groups
    both = {one.action, other.action}
    return one.action.dest == other.action.dest or any(
        both <= set(group._group_actions) for group in groups
    )


def _nearest(
    levels: Iterable[Sequence[Setting]], known: Mapping[str, _Option]
) -> dict[str, Setting]:
    """Of each option the setting of the nearest level, but where a nearer one excludes it.

    Raises:
        UsageError: two of one level exclude each other.
    """
    found: dict[str, Setting] = {}
    for level in levels:
        nearer = list(found)
        free = [s for s in level if not any(_exclude(known[s.key], known[k]) for k in nearer)]
        for one, other in combinations([each for each in free if each.given is not False], 2):
            if _exclude(known[one.key], known[other.key]):
                raise UsageError(
                    f"{other.source} is {other.given!r}: not allowed with {one.source}"
                )
        found |= {each.key: each for each in free}
    return found


def _settle(
    options: argparse.Namespace, known: Mapping[str, _Option], found: Mapping[str, Setting]
) -> list[Setting]:
    """Give the options their values; returns all settings, defaults among them."""
    settings, values = [], dict[str, Any]()
    for key, option in known.items():
        default = option.default
        value = _converted(option, default) if isinstance(default, str) else default
        values.setdefault(option.action.dest, value)  # of several of one name the first's counts
        given = default == option.action.const if option.action.nargs == 0 else default
        settings.append(found.get(key) or Setting(key, given, "default", value))
    for key, setting in found.items():
        if setting.given is not False:
            values[known[key].action.dest] = setting.value
    vars(options).update(values)
    return settings


def _converted(option: _Option, given: Any) -> Any:
    """What the command gets for something given as text, number, bool or list.

    Raises:
        ValueError: it is not of the option's kind. argparse.ArgumentError: its parser refuses it.
    """
    action = option.action
    if action.nargs == 0:
        if not isinstance(given, bool):
            raise ValueError("give true or false")
        return action.const if given else option.default
    many = action.nargs not in (None, "?")
    words = given if isinstance(given, list) else [given]
    if not words or (len(words) > 1 and not many):
        raise ValueError("give one value" if words else "give a value")
    if any(isinstance(word, bool) or not isinstance(word, str | int | float) for word in words):
        raise ValueError("give a text or a number")
    return _part(option.command._get_values(action, list(map(str, words))), "value")


# -- the places ------------------------------------------------------------------------------------


def _flags(known: Mapping[str, _Option], options: argparse.Namespace) -> Iterator[Setting]:
    """What argparse has found among the words."""
    for key, option in known.items():
        action, parsed = option.action, getattr(options, option.action.dest)
        if not isinstance(parsed, _Default) and (action.nargs != 0 or parsed == action.const):
            given = True if action.nargs == 0 else _part(parsed, "word")
            yield Setting(key, given, f"--{key}", _part(parsed, "value"))


def _variables(
    command: str, known: Mapping[str, _Option], environment: Mapping[str, str]
) -> Iterator[Setting]:
    """What variables say; empty ones say nothing."""
    prefix = f"OCTAVO_{command.upper()}_"
    keys = {prefix + key.upper().replace("-", "_"): key for key in known}
    for name, text in environment.items():
        if not name.startswith(prefix) or not text:
            continue
        key = _known(name, keys, name, f"octavo {command}")
        given: Any = text
        if known[keys[key]].action.nargs == 0:
            given = _SWITCH.get(text.lower(), text)
        elif known[keys[key]].action.nargs is not None:
            given = shlex.split(text)
        yield _checked(keys[key], given, name, known)


def _file(
    command: str, known: Mapping[str, Mapping[str, _Option]], path: Path | None
) -> Iterator[Setting]:
    """What the command's table of the file says."""
    if path is None:
        return
    tables = _read(path)
    for name, table in tables.items():
        _known(name, known, f"{path}: {name}", "a table for each command of octavo")
        if not isinstance(table, dict):
            raise UsageError(f"{path}: {name} is {table!r}; it must be a table, [{name}]")
    for key, given in tables.get(command, {}).items():
        source = f"{path}: {command}.{key}"
        yield _checked(
            _known(key, known[command], source, f"octavo {command}"), given, source, known[command]
        )


def _known(name: str, names: Collection[str], where: str, what: str) -> str:
    """``name``, which must be one of ``names``."""
    if name in names:
        return name
    close = difflib.get_close_matches(name, names, 1)
    right = f"did you mean {close[0]}?" if close else f"known are: {', '.join(names) or 'none'}"
    raise UsageError(f"{where} is no setting of {what}; {right}")


def _checked(key: str, given: Any, source: str, known: Mapping[str, _Option]) -> Setting:
    try:
        return Setting(key, given, source, _converted(known[key], given))
    except argparse.ArgumentError as error:
        why = error.message
    except ValueError as error:
        why = str(error)
    raise UsageError(f"{source} is {given!r}: {why}")


def _path(options: argparse.Namespace, environment: Mapping[str, str]) -> Path | None:
    """The file that is named, else the user's own if there is one."""
    named = options.config_file or environment.get("OCTAVO_CONFIG_FILE")
    if named:
        return Path(named)
    own = config_file()
    return own if own is not None and own.is_file() else None


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = file.read(_LONGEST + 1)
        if len(content) > _LONGEST:
            raise UsageError(f"{path}: it has more than {_LONGEST:,} bytes; settings have fewer")
        return tomllib.loads(content.decode("utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path}: it is no TOML file: {error}") from None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: it is no text in UTF-8 (byte {error.start})") from None
    except OSError as error:
        raise CommandError(f"{path}: {error.strerror or error}") from None
