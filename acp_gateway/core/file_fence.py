"""The fence around the files of a client that an agent may use: the directories of its session.

The files are on the client's machine, so nothing is looked up: paths are compared as text, by whole components. The
client may map a path to another one, and may run Windows, where a backslash separates components, a path that begins
with two separators names another machine, and dots and spaces at the end of a name do not count. A path that may leave
the directory on any such machine is refused. Links on the client's machine are the client's.
"""

from collections.abc import Iterable
from typing import Final

from acp_gateway.core import access_rules
from acp_gateway.core.sessions.session import Session
from acp_gateway.protocol import jsonrpc, lookup, strict_parsing
from acp_gateway.protocol.jsonrpc import InvalidMessage, Message
from acp_gateway.protocol.methods import current_name

FENCED: Final = frozenset({"fs/read_text_file", "fs/write_text_file"})
"""Methods whose only path is `params.path`."""

PATH_SIZE: Final = 4096
"""Maximum characters of a path, as on Linux."""

_DOTS: Final = frozenset(". ")


def flaw_of_file_request(message: Message, session: Session | None) -> str | None:
    """Return why an agent's `fs/` request may not be forwarded; None if its path is within the session."""
    if current_name(message.method) not in FENCED:
        return "is not known here, so its paths cannot be checked"
    try:
        _, repeated = strict_parsing.parse_strictly(message.text)
    except InvalidMessage as error:
        return f"can't be checked: {error}"
    path = lookup.text_param(message, "path")
    if repeated is not None or path is None:
        return "needs one path, a string"
    return flaw_of_path(path, () if session is None else _directories(session))


def flaw_of_path(path: str, directories: Iterable[str]) -> str | None:
    """Return why a path is not within any of the directories; None if it is. Directories are absolute POSIX paths."""
    if not path.startswith("/"):
        return "needs an absolute path"
    if len(path) > PATH_SIZE or "\0" in path:
        return f"needs a path of at most {PATH_SIZE} characters without a NUL"
    names = path.replace("\\", "/").split("/")
    if any(len(name) > 1 and _DOTS.issuperset(name) for name in names):
        return "needs a path without .."
    # A network path.
    if names[1] == "" and len(names) > 2:
        return "needs a path on the client's machine"
    for directory in directories:
        root = _normalized(directory)
        # As text, from the first character on: a client's map compares it in the same way.
        if root is not None and (path == root or path.startswith("/" if root == "/" else f"{root}/")):
            return None
    return "needs a path in the session's directories"


def _directories(session: Session) -> tuple[str, ...]:
    """Return the directories of a session, `cwd` first."""
    if not session.setup:
        return () if session.cwd is None else (session.cwd,)
    setup = b'{"id":0,"method":"session/new","params":%b}' % jsonrpc.compose(session.setup)
    return access_rules.directories_of(jsonrpc.parse(setup))


def _normalized(directory: str) -> str | None:
    """Return an absolute directory without empty components, `.` and `..`; None if it is not absolute."""
    if not directory.startswith("/"):
        return None
    names: list[str] = []
    for name in directory.split("/"):
        if name == "..":
            del names[-1:]
        elif name not in ("", "."):
            names.append(name)
    return "/" + "/".join(names)
