"""What only the gateway's machine can tell: whether a directory is there, and how an agent is logged in."""

import os
import shlex
import socket
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any

from acp_gateway.config import AgentSection
from acp_gateway.protocol.paths import suggest_map
from acp_gateway.protocol.process import Problem

PATH_SIZE = 4096
"""Characters of a path at most, as on Linux; a longer one only fills the error that would quote it."""


def check_directory(cwd: str, agent_cwd: str | None) -> Problem | None:
    """Whether a session can be opened in `cwd`; where not, the path map that would probably make it work."""
    if len(cwd) > PATH_SIZE:
        return Problem(f"cwd is longer than a path can be ({PATH_SIZE} characters)", {"reason": "no_such_directory"})
    if os.path.isabs(cwd) and os.path.isdir(cwd):
        return None
    if os.path.isabs(cwd) and os.path.exists(cwd):
        return Problem(f"{cwd} is not a directory", {"reason": "no_such_directory", "cwd": cwd})
    if not _is_absolute_somewhere(cwd):
        return Problem(f"cwd must be an absolute path, not {cwd!r}", {"reason": "no_such_directory", "cwd": cwd})
    suggested = suggest_map(cwd, home=_home(), agent_cwd=agent_cwd, is_directory=os.path.isdir)
    return Problem(
        f"there is no directory {cwd} on {socket.gethostname()}; start the client with the path it has there: "
        f"acp-gateway connect … --map {_quoted(suggested)} (or maps in hosts.toml)",
        {"reason": "no_such_directory", "cwd": cwd, "map": suggested},
    )


def _quoted(text: str) -> str:
    """For the shell of the editor's machine; Windows knows double quotes only."""
    return shlex.quote(text) if text.startswith("/") else f'"{text}"' if " " in text else text


def _home() -> str:
    try:
        return str(Path.home())
    except RuntimeError:
        return "/"  # A service's user may have none.


def _is_absolute_somewhere(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()


def login_hint(section: AgentSection, auth_methods: list[dict[str, Any]]) -> str:
    """Where and how to log the agent in: as configured, else as the agent itself says."""
    command = section.login or _login_command(section, auth_methods)
    if command is not None:
        how = f"run `{command}`"
    else:
        words = [words for method in auth_methods if isinstance(words := method.get("description"), str) and words]
        how = " or ".join(words) if words else f"start `{shlex.join(section.command)}` and log in"
    return f"On the gateway's machine ({socket.gethostname()}): {how}, then try again."


def _login_command(section: AgentSection, auth_methods: list[dict[str, Any]]) -> str | None:
    """The command of a terminal login that the agent offered: its own with other arguments, or one in `_meta`."""
    for method in auth_methods:
        meta = method.get("_meta")
        spec = meta.get("terminal-auth") if isinstance(meta, dict) else None
        if isinstance(spec, dict) and isinstance(spec.get("command"), str):
            return shlex.join([spec["command"], *_words(spec.get("args"))])
        if method.get("type") == "terminal":
            return shlex.join([*section.command, *_words(method.get("args"))])
    return None


def _words(value: object) -> list[str]:
    return [str(word) for word in value] if isinstance(value, list) else []
