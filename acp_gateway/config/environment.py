"""Reads a file of environment variables, one `NAME=value` per line, such as an agent's API keys."""

import os
import re
import stat
from pathlib import Path

from acp_gateway.errors import ConfigError

RESERVED_PREFIX = "ACP_GATEWAY_"
"""Prefix of the gateway's own variables, secrets among them; an agent never gets one."""

_LINE = re.compile(r"(?:export\s+)?(?P<name>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?P<value>.*)")
_VALUE = re.compile(r"""(?P<quote>["'])(?P<quoted>(?:(?!(?P=quote)).)*)(?P=quote)|(?P<plain>[^"'].*)?""")


def read_env_file(path: Path) -> dict[str, str]:
    """Read the variables in the file, in its order.

    Blank lines and lines that start with `#` are skipped, a leading `export` too; one pair of quotes around a value
    is removed, and nothing in it is expanded or unescaped. Raises `ConfigError`, with the line and without the value,
    also if others than its owner may open the file.
    """
    try:
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            content = file.read()
        text = content.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
    except UnicodeDecodeError:
        raise ConfigError("is not UTF-8 text", file=str(path)) from None
    if mode & ~_widest_mode(path):
        raise ConfigError(f"its mode {mode:04o} is wider than 0600: chmod 600 {path}", file=str(path))
    variables = {}
    for number, line in enumerate(text.split("\n"), start=1):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        match = _LINE.fullmatch(stripped)
        value = match and _VALUE.fullmatch(match["value"])
        if match is None or value is None or "\0" in stripped:
            raise ConfigError("expected NAME=value, NAME='value' or NAME=\"value\"", file=str(path), line=number)
        if match["name"].startswith(RESERVED_PREFIX):
            message = f"variables that begin with {RESERVED_PREFIX} are the gateway's own"
            raise ConfigError(message, file=str(path), line=number, key=match["name"])
        variables[match["name"]] = value["quoted"] or value["plain"] or ""
    return variables


def _widest_mode(path: Path) -> int:
    # systemd hands a credential to a service of another user by an access control list, which shows as mode 0440;
    # the folder around it keeps all other users out.
    credentials = os.environ.get("CREDENTIALS_DIRECTORY")
    return 0o640 if credentials and path.is_relative_to(credentials) else 0o600
