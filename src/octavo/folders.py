"""Where octavo keeps what it fetched or built, and where a user keeps settings of its command."""

import os
from pathlib import Path

from octavo.errors import ModelError


def cache_home() -> Path:
    """``$OCTAVO_HOME``, else ``$XDG_CACHE_HOME/octavo``, else ``~/.cache/octavo``.

    Raises:
        ModelError: it begins with the home of a user this machine does not have.
    """
    home, base = os.environ.get("OCTAVO_HOME"), os.environ.get("XDG_CACHE_HOME")
    try:
        if home:
            return Path(home).expanduser()
        return (Path(base) if base else Path.home() / ".cache") / "octavo"
    except RuntimeError:  # how pathlib says that there is no such user
        why = "this user has no home folder; set OCTAVO_HOME to a folder that can be written to"
        raise ModelError(home or "~", why) from None


def config_file() -> Path | None:
    """``octavo/config.toml`` in ``$XDG_CONFIG_HOME``, else in ``~/.config``; None: no home."""
    base = os.environ.get("XDG_CONFIG_HOME")
    try:
        return (Path(base) if base else Path.home() / ".config") / "octavo" / "config.toml"
    except RuntimeError:  # how pathlib says that this user has no home
        return None
