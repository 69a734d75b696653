"""Finds the home directory and the XDG base directories.

Editors start the client with almost no environment, so nothing here requires `HOME`: the user database is asked too.
"""

import os
from pathlib import Path

from acp_gateway.errors import ConfigError


def expand_user(text: str) -> Path:
    """Return `text` as a path, with a leading `~` or `~name` replaced. Raises `ConfigError` if that home is unknown."""
    expanded = os.path.expanduser(text)
    if text.startswith("~") and expanded == text:
        raise ConfigError(f'no home directory is known for "{text}": set HOME, or write an absolute path')
    return Path(expanded)


def config_home() -> Path:
    """Return the program's folder for configuration files. Raises `ConfigError` without any home directory."""
    return _xdg("XDG_CONFIG_HOME", "~/.config") / "acp-gateway"


def state_home() -> Path:
    """Return the program's folder for state. Raises `ConfigError` without any home directory."""
    return _xdg("XDG_STATE_HOME", "~/.local/state") / "acp-gateway"


def _xdg(variable: str, default: str) -> Path:
    # The XDG standard: a relative path in these variables is invalid and to be ignored.
    given = os.environ.get(variable, "")
    return Path(given) if os.path.isabs(given) else expand_user(default)
