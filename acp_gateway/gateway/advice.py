"""How an agent is logged in on the gateway's machine, in words for the person in front of the editor."""

import shlex
import socket
from typing import Any

from acp_gateway.config.load import AgentSection


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
