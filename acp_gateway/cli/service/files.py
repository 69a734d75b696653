"""The files of the gateway's service: what `service install` writes for systemd or launchd. Pure.

The hardened units and the plist come with the program and are written as they are. What differs between machines, the
program's path and the environment, is in a drop-in beside the unit, or in the values of the plist.
"""

import hashlib
import os
import plistlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from acp_gateway.errors import ConfigError, UsageError

LAST_LINE: Final = "written by `acp-gateway service install`, not to be changed; SHA-256 of the above: "
"""Begin of the last line of a written file, by which `service` recognizes its own unchanged files."""

FOLDER_VARIABLES: Final = ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CACHE_HOME")
"""Variables that the service gets as the shell has them, so that both find the same files."""

DROP_IN: Final = "10-install.conf"
"""Name of the drop-in. Those that `systemctl edit` writes are read after it."""

_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
"""Names of users that are safe in names of units and files."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Values that differ between machines and users."""

    program: tuple[str, ...]
    """The words that start this program."""

    config: Path | None
    """The configuration, if it is not where the service looks for it anyway. Absolute."""

    variables: Mapping[str, str]
    """Environment of the service, `PATH` among it."""

    @property
    def command(self) -> list[str]:
        """The words that start the gateway."""
        return [*self.program, "serve", *(["--config", str(self.config)] if self.config else [])]


def service_variables(environment: Mapping[str, str], path: str | None = None) -> dict[str, str]:
    """Return the variables of a shell that the service gets, so that it finds the same agents and files.

    `path` replaces the shell's `PATH`. Relative folders in it are left out: they would be those of another folder.
    Raises `UsageError` if none is left.
    """
    given = environment.get("PATH", os.defpath) if path is None else path
    folders = list(dict.fromkeys(folder for folder in given.split(os.pathsep) if os.path.isabs(folder)))
    if not folders:
        raise UsageError("PATH has no absolute folder: set it, or use --path")
    variables = {"PATH": os.pathsep.join(folders)}
    for name in FOLDER_VARIABLES:
        if os.path.isabs(environment.get(name, "")):
            variables[name] = environment[name]
    return variables


def check_user(name: str) -> str:
    """Return the name of a user. Raises `UsageError` for one that can't be part of a unit's name."""
    if not _NAME.fullmatch(name):
        raise UsageError(f"{name!r} can't be the name of a service's user")
    return name


def drop_in(settings: Settings) -> str:
    """Return the systemd drop-in with the program and the environment."""
    program, *words = settings.command
    # The path of the program is taken literally, but for `%`.
    command = [_quote(program), *(_quote(word, variables=True) for word in words)]
    lines = [
        "# What differs between machines. Your own settings belong into `systemctl edit`; they count more than these.",
        "[Service]",
        # An empty value removes the unit's own command.
        "ExecStart=",
        f"ExecStart={' '.join(command)}",
        *(f"Environment={_quote(f'{name}={value}')}" for name, value in settings.variables.items()),
    ]
    return "\n".join(lines) + "\n"


def _quote(text: str, *, variables: bool = False) -> str:
    """Quote a word for a unit, as systemd.syntax(7) has it; with `variables` where systemd replaces `$NAME`."""
    if any(not character.isprintable() for character in text):
        raise ConfigError(f"{text!r} has a character that a unit can't hold")
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%")
    if variables:
        text = text.replace("$", "$$")
    return text if re.fullmatch(r"[\w/.,:=@%$+-]+", text) else f'"{text}"'


def plist(template: bytes, settings: Settings, label: str, log: Path, user: str | None) -> str:
    """Return the launchd property list: the packaged one, with its values for this machine.

    Args:
        template: the packaged property list.
        settings: program and environment.
        label: the name of the service.
        log: the file that stdout and stderr are appended to.
        user: the user of a daemon of the system; None for an agent of one's own account.
    """
    values: dict[str, Any] = plistlib.loads(template)
    values |= {
        "Label": label,
        "ProgramArguments": settings.command,
        "EnvironmentVariables": dict(settings.variables),
        "StandardOutPath": str(log),
        "StandardErrorPath": str(log),
    }
    if user is not None:
        values["UserName"] = user
    try:
        return plistlib.dumps(values, sort_keys=False).decode()
    except ValueError as error:  # Control characters, which XML lacks.
        raise ConfigError(f"the property list can't hold this: {error}") from None


def sign(text: str, *, xml: bool = False) -> str:
    """Add a last line to a text, a comment with its hash."""
    line = LAST_LINE + hashlib.sha256(text.encode()).hexdigest()
    return f"{text}<!-- {line} -->\n" if xml else f"{text}# {line}\n"


def is_unchanged(text: str) -> bool:
    """Return True for a text that `sign` has returned, of any version of the program."""
    above, found, digest = text.rpartition(LAST_LINE)
    if not found:
        return False
    above = above.removesuffix("<!-- ").removesuffix("# ")
    return digest.removesuffix("\n").removesuffix(" -->") == hashlib.sha256(above.encode()).hexdigest()
