"""The service managers: for each, the files of the gateway's service and the commands that act on it. Pure.

Nothing here has been run on macOS: the launchd side follows launchd.plist(5) and launchctl(1).
"""

import hashlib
import os
import plistlib
import re
from abc import ABC, abstractmethod
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


Command = tuple[str, ...]

SHOWN: Final = {
    "LoadState": "loaded",
    "UnitFileState": "enabled",
    "ActiveState": "state",
    "SubState": "substate",
    "ActiveEnterTimestamp": "since",
    "MainPID": "pid",
    "NRestarts": "restarts",
    "ExecMainStatus": "exit_code",
    "StatusText": "text",
}
"""Properties of a unit that are shown, and their names in the output."""


@dataclass(frozen=True, slots=True)
class State:
    """State of the service, as its manager tells it."""

    installed: bool
    running: bool
    details: Mapping[str, str]
    """By name; only those that are known."""


class Manager(ABC):
    """Files and commands of the gateway's service under one service manager.

    Attributes:
        name: name of the service, as its manager's commands take it.
        own: the files that belong to this service alone.
        shared: the files that services of other users use too.
    """

    name: str
    own: tuple[Path, ...]
    shared: tuple[Path, ...] = ()

    @abstractmethod
    def texts(self, template: bytes, settings: Settings) -> dict[Path, str]:
        """Return the files to write, from the packaged unit or property list."""

    @property
    @abstractmethod
    def template(self) -> str:
        """Name of the packaged file."""

    @property
    @abstractmethod
    def probe(self) -> Command:
        """Command that fails if the service manager can't be reached."""

    @property
    @abstractmethod
    def start(self) -> tuple[Command, ...]:
        """Commands that start the service now and with the machine."""

    @property
    @abstractmethod
    def stop(self) -> Command:
        """Command that stops the service for good. It may fail if the service is not there."""

    @property
    @abstractmethod
    def forget(self) -> tuple[Command, ...]:
        """Commands to run after the files were removed."""

    @property
    @abstractmethod
    def restart(self) -> tuple[Command, ...]:
        """Commands that restart the service, with new settings."""

    @property
    @abstractmethod
    def show(self) -> Command:
        """Command whose output `read_state` reads."""

    @abstractmethod
    def read_state(self, output: str, *, found: bool) -> State:
        """Read the output of `show`. `found` is False if the command has failed."""

    @abstractmethod
    def logs(self, lines: int, since: str | None, *, follow: bool, as_json: bool) -> Command | None:
        """Return the command that prints the log, or None if the manager can't select lines like that."""


class Systemd(Manager):
    """systemd: of the user's own account, or of the system for the user `user`."""

    def __init__(self, folder: Path, user: str | None = None) -> None:
        self._user = user
        unit = "acp-gateway.service" if user is None else "acp-gateway@.service"
        self.name = "acp-gateway.service" if user is None else f"acp-gateway@{user}.service"
        self._scope: Command = ("--user",) if user is None else ()
        self.unit = folder / unit
        self.drop_in = folder / f"{self.name}.d" / DROP_IN
        self.own = (self.unit, self.drop_in) if user is None else (self.drop_in,)
        self.shared = () if user is None else (self.unit,)

    @property
    def template(self) -> str:
        return f"systemd/{self.unit.name}"

    def texts(self, template: bytes, settings: Settings) -> dict[Path, str]:
        return {self.unit: sign(template.decode()), self.drop_in: sign(drop_in(settings))}

    def _systemctl(self, *words: str) -> Command:
        return ("systemctl", *self._scope, *words)

    @property
    def probe(self) -> Command:
        return self._systemctl("show-environment")

    @property
    def start(self) -> tuple[Command, ...]:
        return (self._systemctl("daemon-reload"), self._systemctl("enable", "--now", self.name))

    @property
    def stop(self) -> Command:
        return self._systemctl("disable", "--now", self.name)

    @property
    def forget(self) -> tuple[Command, ...]:
        return (self._systemctl("daemon-reload"),)

    @property
    def restart(self) -> tuple[Command, ...]:
        return (self._systemctl("restart", self.name),)

    @property
    def show(self) -> Command:
        return self._systemctl("show", self.name, f"--property={','.join(SHOWN)}")

    def read_state(self, output: str, *, found: bool) -> State:
        properties = dict(line.split("=", 1) for line in output.splitlines() if "=" in line)
        details = {name: properties[key] for key, name in SHOWN.items() if properties.get(key)}
        running = details.get("state") == "active"
        if details.get("pid") == "0":
            del details["pid"]
        if running:
            details.pop("exit_code", None)
        return State(found and details.get("loaded") == "loaded", running, details)

    def logs(self, lines: int, since: str | None, *, follow: bool, as_json: bool) -> Command:
        words = [*self._scope, f"--unit={self.name}", f"--lines={lines}"]
        words += [*([f"--since={since}"] if since else []), *(["--follow"] if follow else [])]
        return ("journalctl", "--no-pager", *words, *(["--output=json"] if as_json else []))


class Launchd(Manager):
    """launchd: an agent of the user's account, or a daemon of the system for the user `user`."""

    def __init__(self, home: Path, uid: int, user: str | None = None) -> None:
        self._user = user
        self.name = "acp-gateway" if user is None else f"acp-gateway.{user}"
        folder = home / "Library/LaunchAgents" if user is None else Path("/Library/LaunchDaemons")
        self._domain = f"gui/{uid}" if user is None else "system"
        self.log = home / "Library/Logs" / f"{self.name}.log"
        self.plist = folder / f"{self.name}.plist"
        self.own = (self.plist,)

    @property
    def template(self) -> str:
        return "launchd/acp-gateway.plist"

    def texts(self, template: bytes, settings: Settings) -> dict[Path, str]:
        return {self.plist: sign(plist(template, settings, self.name, self.log, self._user), xml=True)}

    @property
    def probe(self) -> Command:
        return ("launchctl", "print", self._domain)

    @property
    def start(self) -> tuple[Command, ...]:
        return (("launchctl", "bootstrap", self._domain, str(self.plist)),)

    @property
    def stop(self) -> Command:
        return ("launchctl", "bootout", f"{self._domain}/{self.name}")

    @property
    def forget(self) -> tuple[Command, ...]:
        return ()

    @property
    def restart(self) -> tuple[Command, ...]:
        # The file is only read when the service is loaded.
        return (self.stop, *self.start)

    @property
    def show(self) -> Command:
        return ("launchctl", "print", f"{self._domain}/{self.name}")

    def read_state(self, output: str, *, found: bool) -> State:
        details = {}
        for key, name in (("state", "state"), ("pid", "pid"), ("runs", "starts"), ("last exit code", "exit_code")):
            # Its own values are indented by one tab; those of parts of it by more.
            if line := re.search(rf"^\t{key} = (.+)$", output, re.MULTILINE):
                details[name] = line[1]
        return State(found, found and details.get("state") == "running", details)

    def logs(self, lines: int, since: str | None, *, follow: bool, as_json: bool) -> Command | None:
        if since or as_json:
            return None
        return ("tail", "-n", str(lines), *(["-F"] if follow else []), str(self.log))
