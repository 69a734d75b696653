"""Finds the editors of this machine and their settings files, and prints or writes an agent's block for them.

A file is changed only if every other byte can stay as it is; its former content is kept beside it.
"""

import difflib
import json
import os
import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click

from acp_gateway.config.editing.section_writer import replace_file
from acp_gateway.errors import ConfigError, UsageError
from acp_gateway.printable import printable


def print_config(editor: str, *, name: str, arguments: Sequence[str], command: str) -> str:
    """Return the settings block, ready to paste, without a final newline.

    Args:
        editor: one of `EDITORS`.
        name: the agent's name in the editor.
        arguments: the arguments of the command.
        command: the program, best as an absolute path: JetBrains requires one, and editors started from a desktop
            have a short PATH.

    Raises `UsageError` for another editor.
    """
    try:
        block = _BLOCKS[editor]
    except KeyError:
        raise UsageError(f"no settings known for the editor {editor!r}: use one of {', '.join(EDITORS)}") from None
    return block(name, command, list(arguments))


MEMBERS: Final = {"zed": "agent_servers", "jetbrains": "agent_servers", "vscode": "acp.agents"}
"""Member of the settings that holds the agents, for each editor whose settings are JSON."""


def agent_entry(editor: str, command: str, arguments: Sequence[str]) -> dict[str, Any]:
    """Return an agent's entry in the settings of an editor of `MEMBERS`."""
    entry: dict[str, Any] = {"command": command, "args": list(arguments), "env": {}}
    return {"type": "custom"} | entry if editor == "zed" else entry


def _zed(name: str, command: str, arguments: list[str]) -> str:
    return "// Zed: merge into settings.json\n" + _settings("zed", name, command, arguments)


def _jetbrains(name: str, command: str, arguments: list[str]) -> str:
    # acp.json is plain JSON, so there is no room for a comment.
    return _settings("jetbrains", name, command, arguments)


def _settings(editor: str, name: str, command: str, arguments: list[str]) -> str:
    return _json({MEMBERS[editor]: {name: agent_entry(editor, command, arguments)}})


def _codecompanion(name: str, command: str, arguments: list[str]) -> str:
    # `extend` keeps the block valid when CodeCompanion renames its handlers. OpenCode's adapter is the base because it
    # sets no environment and leaves the login to the agent, as a remote agent needs.
    return f"""\
-- CodeCompanion: merge into the setup() call of your Neovim configuration
require("codecompanion").setup({{
  adapters = {{
    acp = {{
      [{_lua(name)}] = function()
        return require("codecompanion.adapters").extend("opencode", {{
          name = {_lua(name)},
          formatted_name = {_lua(name)},
          commands = {{
            default = {{ {", ".join(map(_lua, [command, *arguments]))} }},
          }},
          defaults = {{
            timeout = 60000, -- milliseconds for a request; the default of 20 s is short for an agent that must start
          }},
        }})
      end,
    }},
  }},
  interactions = {{ chat = {{ adapter = {_lua(name)} }} }},
}})"""


def _avante(name: str, command: str, arguments: list[str]) -> str:
    return f"""\
-- Avante: merge into the setup() call of your Neovim configuration
require("avante").setup({{
  provider = {_lua(name)},
  acp_providers = {{
    [{_lua(name)}] = {{
      command = {_lua(command)},
      args = {{ {", ".join(map(_lua, arguments))} }},
      -- Avante passes on nothing but PATH and these.
      env = {{ HOME = os.getenv("HOME"), XDG_CONFIG_HOME = os.getenv("XDG_CONFIG_HOME") }},
    }},
  }},
}})"""


def _emacs(name: str, command: str, arguments: list[str]) -> str:
    symbol = f"remote-agent-{_slug(name)}"
    return f"""\
;; Emacs with agent-shell: put into your init file, then M-x {symbol}
(defun {symbol} ()
  "Start an agent on another machine through acp-gateway."
  (interactive)
  (require 'agent-shell)
  (agent-shell-start
   :config (agent-shell-make-agent-config
            :identifier '{symbol}
            :mode-line-name {_elisp(name)}
            :buffer-name {_elisp(name)}
            :shell-prompt {_elisp(name + "> ")}
            :shell-prompt-regexp (regexp-quote {_elisp(name + "> ")})
            :client-maker (lambda (buffer)
                            (acp-make-client
                             :command {_elisp(command)}
                             :command-params '({" ".join(map(_elisp, arguments))})
                             :context-buffer buffer)))))"""


def _vscode(name: str, command: str, arguments: list[str]) -> str:
    block = _settings("vscode", name, command, arguments)
    return "// VS Code with the extension ACP Client: merge into settings.json\n" + block


def _toad(name: str, command: str, arguments: list[str]) -> str:
    # Toad passes its argument to a shell, so it is quoted twice.
    line = shlex.join(["toad", "acp", shlex.join([command, *arguments]), ".", "--title", name])
    return f"# Toad: run this in the project's directory\n{line}"


_BLOCKS: Final[dict[str, Callable[[str, str, list[str]], str]]] = {
    "zed": _zed,
    "jetbrains": _jetbrains,
    "codecompanion": _codecompanion,
    "avante": _avante,
    "emacs": _emacs,
    "vscode": _vscode,
    "toad": _toad,
}

EDITORS: Final[tuple[str, ...]] = tuple(_BLOCKS)
"""Editors with a known settings format."""


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _lua(text: str) -> str:
    """Return a Lua string literal. `\\ddd` is decimal with up to three digits, so it is always written with three."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + re.sub(r"[\x00-\x1f\x7f]", lambda match: f"\\{ord(match[0]):03}", escaped) + '"'


def _elisp(text: str) -> str:
    """Return an Emacs Lisp string literal, in which only backslash and double quote are escaped."""
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _slug(name: str) -> str:
    """Return a name reduced to the characters of a Lisp symbol."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "gateway"


TITLES: Final = {
    "zed": "Zed",
    "jetbrains": "the JetBrains IDEs",
    "codecompanion": "CodeCompanion",
    "avante": "Avante",
    "emacs": "Emacs",
    "vscode": "VS Code",
    "toad": "Toad",
}
"""Names of editors for users."""

MAX_SIZE: Final = 4 * 1024 * 1024
"""Maximum bytes of a settings file that is changed; they have some kilobytes."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The place of editors and their settings on a machine."""

    home: Path
    environment: Mapping[str, str] = field(repr=False)
    platform: str = sys.platform

    @property
    def config(self) -> Path:
        """Folder of settings, by the XDG standard."""
        given = self.environment.get("XDG_CONFIG_HOME", "")
        return Path(given) if os.path.isabs(given) else self.home / ".config"

    @property
    def applications(self) -> Path:
        """Folder of settings of programs that do not follow the XDG standard on other systems."""
        if self.platform == "darwin":
            return self.home / "Library/Application Support"
        if self.platform == "win32":
            return Path(self.environment.get("APPDATA") or self.home / "AppData/Roaming")
        return self.config


def settings_file(editor: str, machine: Machine) -> Path | None:
    """Return the settings file of an editor, which need not exist; None if its settings are a program."""
    if editor == "zed":
        # Zed follows the XDG standard on macOS too.
        folder = machine.applications / "Zed" if machine.platform == "win32" else machine.config / "zed"
        return folder / "settings.json"
    if editor == "jetbrains":
        return machine.home / ".jetbrains/acp.json"
    if editor == "vscode":
        return machine.applications / "Code/User/settings.json"
    return None


def installed_editors(machine: Machine, which: Callable[[str], str | None] = shutil.which) -> list[str]:
    """Return the editors that are on this machine, as far as their programs and folders tell."""
    programs = {"zed": ("zed", "zeditor"), "vscode": ("code",), "emacs": ("emacs",), "toad": ("toad",)}
    folders = {
        "zed": machine.config / "zed",
        "vscode": machine.applications / "Code/User",
        "jetbrains": machine.applications / "JetBrains",
    }
    # Where the most common manager of Neovim's plugins puts them.
    plugins = machine.home / ".local/share/nvim/lazy"
    folders |= {"codecompanion": plugins / "codecompanion.nvim", "avante": plugins / "avante.nvim"}
    return [
        editor
        for editor in TITLES
        if any(map(which, programs.get(editor, ()))) or (editor in folders and folders[editor].is_dir())
    ]


@dataclass(frozen=True, slots=True)
class Change:
    """A change of a settings file that has not been made yet."""

    path: Path
    """The file, links followed."""
    before: bytes | None
    """None if there is no such file."""
    after: bytes

    @property
    def difference(self) -> str:
        """The change as a unified difference, empty if there is none."""
        old, new = ((text or b"").decode(errors="replace").splitlines() for text in (self.before, self.after))
        return "\n".join(difflib.unified_diff(old, new, str(self.path), str(self.path), lineterm=""))

    def write(self) -> Path | None:
        """Make the change, at once or not at all; return the copy of the former content, None if there was none.

        Raises `ConfigError` if the file has been changed since, or can't be written.
        """
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            if _read(self.path) != self.before:
                raise ConfigError("another program has just changed it: repeat this", file=str(self.path))
            copy = None
            if self.before is not None:
                copy = _unused(self.path)
                shutil.copy2(self.path, copy)
            replace_file(self.path, self.after.decode(), None if copy is None else copy.stat())
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(self.path)) from None
        return copy


def plan_change(editor: str, path: Path, name: str, entry: Mapping[str, Any]) -> Change:
    """Return the change that sets an agent's entry in the settings of an editor. Raises `ConfigError`."""
    return plan_member(path, (MEMBERS[editor], name), entry)


def plan_member(path: Path, members: Sequence[str], value: Mapping[str, Any] | Sequence[Any]) -> Change:
    """Return the change that sets a member of a settings file. Raises `ConfigError`."""
    from acp_gateway.config.editing.jsonc import set_member

    try:
        real = path.resolve()
        before = _read(real)
        text = "" if before is None else before.decode()
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8", file=str(path)) from None
    except RuntimeError:  # Python before 3.13.
        raise ConfigError("is a link that leads to itself", file=str(path)) from None
    try:
        changed = set_member(text, members, value)
    except ConfigError as error:
        raise ConfigError(error.message, file=str(path)) from None
    change = Change(real, before, changed.encode())
    if change.before != change.after:
        _require_access(real)
    return change


def _require_access(path: Path) -> None:
    """Raise `ConfigError` if a file, or its folder, is read-only: it is so on purpose, or another program makes it."""
    folder = next(parent for parent in path.parents if parent.exists())
    for each in (folder, *([path] if path.exists() else [])):
        if not os.access(each, os.W_OK):
            raise ConfigError("is read-only", file=str(each))


def _read(path: Path) -> bytes | None:
    """Return the content of a file, None if there is none. Raises `OSError`, and `ConfigError` for a huge one."""
    try:
        with path.open("rb") as file:
            content = file.read(MAX_SIZE + 1)
    except FileNotFoundError:
        return None
    if len(content) > MAX_SIZE:
        raise ConfigError(f"is larger than {MAX_SIZE} bytes", file=str(path))
    return content


def _unused(path: Path) -> Path:
    """Return a name for a copy that no file has."""
    number = 0
    while os.path.lexists(copy := path.with_name(f"{path.name}.bak{number or ''}")):
        number += 1
    return copy


@dataclass(frozen=True, slots=True)
class AgentCommand:
    """An agent of an editor, which is `acp-gateway connect`."""

    name: str
    """The agent's name in the editor."""
    program: str
    """An absolute path."""
    arguments: tuple[str, ...]

    @classmethod
    def to(
        cls, target: str, options: Sequence[str] = (), *, name: str | None = None, agent: str | None = None
    ) -> "AgentCommand":
        """Return the command that connects to TARGET with these options, by the program that runs now.

        Without a `name` the editor's has the agent in it, so that each agent of a gateway has an entry of its own.
        """
        arguments = ("connect", target, *options)
        place = target.rpartition("://")[2].partition("/")[0].rpartition("@")[2] or "acp-gateway"
        name = name or (place if agent is None else f"{place} {agent}")
        program = os.path.abspath(shutil.which(sys.argv[0]) or sys.argv[0])
        if program.endswith("__main__.py"):
            return cls(name, sys.executable, ("-P", "-m", "acp_gateway", *arguments))
        return cls(name, program, arguments)

    def block(self, editor: str) -> str:
        """Return the settings block of an editor, without a final newline. Raises `UsageError` for an unknown one."""
        return print_config(editor, name=self.name, arguments=self.arguments, command=self.program)


def own_machine() -> Machine:
    """Return this machine, for the user that runs this. Raises `ConfigError` without a home folder."""
    from acp_gateway.config.directories import expand_user

    return Machine(expand_user("~"), os.environ)


def install_agent(editor: str, agent: AgentCommand, machine: Machine, *, yes: bool) -> None:
    """Write an agent into the settings of an editor, after the difference was shown and confirmed.

    `yes` confirms. Where the file can't be changed safely, the block is printed, to be pasted. Raises `ConfigError`
    then, and `UsageError` where the user would have to be asked and there is no terminal.
    """
    path = settings_file(editor, machine)
    try:
        if path is None:
            raise ConfigError(f"the settings of {TITLES[editor]} are a program")
        change = plan_change(editor, path, agent.name, agent_entry(editor, agent.program, agent.arguments))
    except ConfigError as error:
        click.echo(agent.block(editor))
        place = f" into {path}" if path is not None and editor in MEMBERS else ""
        raise ConfigError(
            f"{error.message}; nothing was changed: paste the block above{place}", file=error.file
        ) from None
    if apply_change(change, yes=yes):
        click.echo(f"The agent {agent.name} is in {TITLES[editor]} now; {_next_step(editor)}.", err=True)


def apply_change(change: Change, shown: Callable[[str], str] = str, *, yes: bool) -> bool:
    """Make a change of a settings file, after the difference was shown and confirmed; return False if there is none.

    `shown` returns a line as it may be shown, `yes` confirms. Raises as `install_agent`.
    """
    if not change.difference:
        click.echo(f"{change.path} has this already.", err=True)
        return False
    for line in map(shown, change.difference.splitlines()):
        indent = line[: len(line) - len(line.lstrip(" "))]
        click.echo(indent + printable(line, len(line)), err=True)
    if not yes:
        if not (sys.stdin.isatty() and sys.stderr.isatty()):
            raise UsageError("this can't ask without a terminal: --yes writes it")
        click.confirm(f"Write this into {change.path}?", abort=True, err=True)
    copy = change.write()
    kept = "" if copy is None else f" What was there before is in {copy.name}, beside it."
    click.echo(f"Wrote {change.path}.{kept}", err=True)
    return True


HOSTS: Final = "chat.remoteAgentHosts"
"""Member of VS Code's settings that lists hosts of agents, each with `address`, `name` and `connectionToken`."""

_OWN_ADDRESS: Final = re.compile(r"127\.0\.0\.1:([0-9]{1,5})")
_OWN_TOKEN: Final = re.compile(r"[A-Za-z0-9_-]{43}")


def find_host(machine: Machine, name: str) -> tuple[int, str] | None:
    """Return the port and the token that a host of agents on this machine has in VS Code's settings; None without one.

    A token that is too short to keep other users of the machine out does not count. Raises `ConfigError`.
    """
    for entry in _hosts(machine)[1]:
        if _is_host(entry, name) and _OWN_TOKEN.fullmatch(str(entry.get("connectionToken"))):
            return int(entry["address"].rpartition(":")[2]), entry["connectionToken"]
    return None


def install_host(machine: Machine, name: str, port: int, token: str, *, yes: bool) -> None:
    """Write a host of agents on this machine into VS Code's settings, in the place of the former one of its name.

    As `install_agent`, but nothing is printed to be pasted.
    """
    path, hosts = _hosts(machine)
    entry = {"address": f"127.0.0.1:{port}", "name": name, "connectionToken": token}
    change = plan_member(path, (HOSTS,), [*(each for each in hosts if not _is_host(each, name)), entry])
    apply_change(change, lambda line: re.sub(r'("connectionToken": ")[^"]*', r"\1…", line), yes=yes)


def _hosts(machine: Machine) -> tuple[Path, list[Any]]:
    """Return VS Code's settings file, and the hosts of agents in it. Raises `ConfigError`."""
    from acp_gateway.config.editing.jsonc import read_jsonc

    # The first version that knows the setting is one of Insiders.
    insiders = machine.applications / "Code - Insiders/User"
    path = insiders / "settings.json" if insiders.is_dir() else settings_file("vscode", machine)
    assert path is not None, "its settings are JSON"
    try:
        settings = read_jsonc((_read(path) or b"").decode())
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", file=str(path)) from None
    except ConfigError as error:
        raise ConfigError(error.message, file=str(path)) from None
    hosts = settings.get(HOSTS, []) if isinstance(settings, dict) else None
    if not isinstance(hosts, list):
        raise ConfigError(f"{HOSTS} is not a list there", file=str(path))
    return path, hosts


def _is_host(entry: Any, name: str) -> bool:
    """Return whether an entry is a host of agents on this machine, with this name."""
    is_named = isinstance(entry, dict) and entry.get("name") == name
    return is_named and _OWN_ADDRESS.fullmatch(str(entry.get("address"))) is not None


def _next_step(editor: str) -> str:
    if editor == "zed":
        return "in its agent panel, choose it for a new thread"
    if editor == "jetbrains":
        return "choose it in a new chat"
    return "refresh the ACP Client's view, which does not follow the settings, and start it there"
