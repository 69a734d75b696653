"""Decides what a fenced agent may use: from its command, its workspaces and the places of the machine.

A fence names what is allowed; all else is refused. `Wanted` is what the configuration and the session's scope ask for;
`plan` turns it into a `Fence`, which names paths that exist, without symbolic links. It reads the disk, so it is called
in a thread.
"""

import glob
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from acp_gateway.errors import AgentError
from acp_gateway.fence.places import ACCELERATORS, DEVICES, RUNNERS, SECRETS, SYSTEM, TOOLS

Mechanism = Literal["bubblewrap", "landlock"]

Network = Literal["on", "off"] | tuple[int, ...]
"""The network of an agent; a tuple holds the TCP ports that it may connect to."""

MAX_ENTRIES: Final = 10_000
"""Most names of a directory that is allowed but for some of them: more than `/etc` has anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """The wishes that a fence is made from. All paths are absolute; those of tables may begin with `~`."""

    agent: str
    program: str
    """The absolute path of the command's program."""
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str
    workspaces: Sequence[tuple[str, bool]]
    """Folders of the workspaces that its clients may use, and whether the agent may write there."""
    own: Sequence[str] = ()
    """Files and folders of the agent's own, which it may write. A folder that ends with a slash is made if missing."""
    writable: Sequence[str] = ()
    readable: Sequence[str] = ()
    private: Sequence[str] = ()
    """Places of the gateway and of other people that the agent must not read."""
    user_home: str = ""
    """The home of the gateway's user, which holds most secrets."""
    home: str | None = None
    """A home for the agent instead of its user's, which it may write; None without one."""
    temporary: str = ""
    """An existing folder for its temporary files."""
    network: Network = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fence:
    """The places that a fenced agent may use. Nothing in it is a symbolic link; no two lists have a path in common."""

    by: Mechanism
    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    hidden: tuple[str, ...]
    """Places below those of `read` that must not be read."""
    cwd: str
    temporary: str
    network: Network

    def allows(self, path: str, *, writing: bool = False) -> bool:
        """Return whether the agent may read a path, or write there."""
        real = os.path.realpath(path)
        if _within_any(real, self.hidden):
            return False
        places = (*self.write, *self.devices) if writing else (*self.read, *self.write, *self.devices, "/proc")
        return _within_any(real, (*places, self.temporary))


def choose(value: str, *, bubblewrap: bool, landlock: bool) -> Mechanism | None:
    """Return the mechanism for a value of `fence`, `"on"`, `"bubblewrap"` or `"landlock"`; None without it here."""
    if value in ("on", "bubblewrap") and bubblewrap:
        return "bubblewrap"
    return "landlock" if value in ("on", "landlock") and landlock else None


def remedy(value: str) -> str:
    """Return what is missing on this machine for a value of `fence`, and what to do."""
    missing = {
        "bubblewrap": "bubblewrap does not work here: install it (in Debian: apt-get install bubblewrap)",
        "landlock": "this kernel has no Landlock (Linux 5.13 or newer, and not left out by its parameter lsm=)",
        "on": "this machine has no means for a fence: install bubblewrap (in Debian: apt-get install bubblewrap)",
    }[value]
    if sys.platform != "linux":
        missing = "fences need Linux, with Landlock or bubblewrap"
    return f'{missing}, or set fence = "off", with which the agent may read all that its user may'


def may_open(folder: str, user_home: str, private: Iterable[str] = ()) -> bool:
    """Return whether a fenced agent may write a folder: no secret of a user with this home is in it, nor around it."""
    real = os.path.realpath(folder)
    hidden = [*_existing(_expanded(SECRETS, user_home)), *_existing(private), os.path.realpath(user_home)]
    return not any(_within(secret, real) for secret in hidden) and not any(_within(real, each) for each in hidden[:-1])


def plan(by: Mechanism, wanted: Wanted) -> Fence:
    """Make the fence of an agent, and the folders of its own that are missing.

    Raises `AgentError` for a place that no fenced agent may use, and for one to write that contains such a place.
    """
    home = wanted.home or wanted.environment.get("HOME", wanted.user_home)
    hidden = [*_existing(_expanded(SECRETS, wanted.user_home)), *_existing(wanted.private)]
    own = [
        _made(path) for path in _expanded([*wanted.own, *RUNNERS.get(os.path.basename(wanted.command[0]), ())], home)
    ]
    trusted = [*_existing([] if wanted.home is None else [wanted.home]), os.path.realpath(wanted.temporary)]
    write = _existing(
        [
            *(path for path, writing in wanted.workspaces if writing),
            *own,
            *_expanded(wanted.writable, home),
        ]
    )
    named = _existing(
        [*(path for path, writing in wanted.workspaces if not writing), *_expanded(wanted.readable, home), wanted.cwd]
    )
    for path in (*write, *named):
        if not _within_any(path, trusted):
            _check(wanted.agent, path, hidden, writing=path in write)
    programs = [
        path
        for path in _existing([*_expanded(TOOLS, home), *_programs(wanted, home)])
        if not any(_within(secret, path) or _within(path, secret) for secret in hidden)
    ]
    read = list(_outermost([*_existing(SYSTEM), *named, *programs]))
    devices = [path for pattern in (*DEVICES, *ACCELERATORS) for path in sorted(glob.glob(pattern))]
    return Fence(
        by=by,
        read=tuple(read),
        write=tuple(_outermost([*write, *trusted])),
        devices=tuple(devices),
        hidden=tuple(sorted(secret for secret in hidden if _within_any(secret, read))),
        cwd=os.path.realpath(wanted.cwd),
        temporary=os.path.realpath(wanted.temporary),
        network=wanted.network,
    )


def _check(agent: str, path: str, hidden: Iterable[str], *, writing: bool) -> None:
    for secret in hidden:
        if _within(path, secret):
            raise AgentError(
                f"the agent {agent} cannot be started: its fence is to open {path}, which no fenced agent may use "
                f"(it is in {secret}): take it out of [agents.{agent}], or move the workspace"
            )
        if _within(secret, path):
            verb = "write" if writing else "read"
            raise AgentError(
                f"the agent {agent} cannot be started: its fence is to let it {verb} {path}, which contains {secret}: "
                f'name a folder below it as workspace, such as {os.path.join(path, "code")}, or set fence = "off" in '
                f"[agents.{agent}]"
            )


def _programs(wanted: Wanted, home: str) -> Iterator[str]:
    """Yield the folders of the program, of its interpreters, of the files in its arguments, and those on its PATH."""
    program = wanted.program
    for _ in range(4):  # A script, `env`, an interpreter that is a link, and no more.
        yield from _installation(program, home)
        interpreter = _interpreter(program, wanted.environment.get("PATH", os.defpath))
        if interpreter is None:
            break
        program = interpreter
    for word in wanted.command[1:]:
        if word.startswith("/") and os.path.exists(word):
            yield from _installation(word, home)
    for folder in wanted.environment.get("PATH", "").split(os.pathsep):
        if folder.startswith("/"):
            yield folder


def _installation(program: str, home: str) -> Iterator[str]:
    """Yield where a program is, where its link leads, and the folders around that it is installed in."""
    for path in {program, os.path.realpath(program)}:
        yield path
        folder = os.path.dirname(path)
        if folder != home:
            yield folder
        parent = os.path.dirname(folder)
        if os.path.basename(folder) in ("bin", ".bin", "libexec") and parent not in (home, "/", f"{home}/.local"):
            yield parent
        if (at := path.rfind("/node_modules/")) > 0:
            yield path[: at + len("/node_modules")]
    base = os.path.join(os.path.dirname(os.path.dirname(program)), "pyvenv.cfg")
    if os.path.isfile(base):
        with open(base, encoding="utf-8", errors="replace") as file:
            found = re.search(r"^home\s*=\s*(/.*)/bin\s*$", file.read(), re.MULTILINE)
        if found:
            yield found[1]


def _interpreter(program: str, path: str) -> str | None:
    """Return the program that runs a script, or None for another file."""
    try:
        with open(program, "rb") as file:
            first = file.readline(512)
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if not words:
        return None
    if os.path.basename(words[0]) == "env":
        words = [word for word in words[1:] if not word.startswith("-")]
    return shutil.which(words[0], path=path) if words else None


def landlock_rules(fence: Fence) -> dict[str, Any]:
    """Return the arguments of `landlock.restrict` for a fence. Landlock cannot take a place out of a tree, so the names
    around a hidden one are allowed one by one."""
    read: list[str] = []
    look: list[str] = []
    for tree in fence.read:
        for path, whole in _without(tree, fence.hidden):
            (read if whole else look).append(path)
    return {
        "files": True,
        "read": [*read, "/proc"],
        "write": [*fence.write, *fence.devices],
        "look": look,
        "ports": _ports(fence.network),
        "scoped": True,
    }


def _ports(network: Network) -> list[int] | None:
    return None if network == "on" else [] if network == "off" else list(network)


def _without(path: str, hidden: Sequence[str]) -> Iterator[tuple[str, bool]]:
    """Yield what of a tree may be read: paths, and whether that is with all that is below."""
    if any(_within(path, secret) for secret in hidden):
        return
    if not any(_within(secret, path) for secret in hidden):
        yield path, True
        return
    yield path, False
    with os.scandir(path) as entries:
        for count, entry in enumerate(entries):
            if count >= MAX_ENTRIES:
                raise AgentError(
                    f"{path} has more than {MAX_ENTRIES} entries, and no fenced agent may read some of them"
                )
            # What a link leads to has its own rule, or none.
            if not entry.is_symlink():
                yield from _without(entry.path, hidden)


def _expanded(paths: Iterable[str], home: str) -> list[str]:
    return [home + path[1:] if path.startswith("~/") else path for path in paths if home or not path.startswith("~")]


def _made(path: str) -> str:
    """Make a folder of an agent, whose path ends with a slash, or its file with JSON: in a fence it cannot."""
    if path.endswith("/"):
        os.makedirs(path, mode=0o700, exist_ok=True)
    elif path.endswith(".json") and not os.path.lexists(path):
        with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "w", encoding="utf-8") as file:
            file.write("{}\n")
    return path


def _existing(paths: Iterable[str]) -> list[str]:
    """Return the paths that exist, without links, each once, in their order."""
    return list(dict.fromkeys(os.path.realpath(path) for path in paths if os.path.lexists(path)))


def _outermost(paths: Iterable[str]) -> Iterator[str]:
    """Yield the paths that are not below another one of them."""
    last = None
    for path in sorted(set(paths), key=lambda path: path.rstrip("/") + "/"):
        if last is None or not _within(path, last):
            yield path
            last = path


def _within(path: str, place: str) -> bool:
    return path == place or path.startswith(place.rstrip("/") + "/")


def _within_any(path: str, places: Iterable[str]) -> bool:
    return any(_within(path, place) for place in places)


_REFUSED: Final = re.compile(
    r"(?:EACCES|EPERM|EROFS|ENOENT|ermission denied|ead-only file system|o such file)[^'\"/]*['\"]?(/[^'\":,)]+)"
    r"|(/[^'\":,() ]+)['\"]?: (?:[Cc]annot \w+: )?(?:Permission denied|Read-only file system|Operation not permitted)"
)
_WRITING: Final = re.compile(r"EROFS|Read-only|mkdir|write|creat|unlink|rename", re.IGNORECASE)

MAX_REMARKS: Final = 5
"""Refused paths that an error names: a program that fails once often fails again for the same reason."""


def refusals(fence: Fence, lines: Iterable[str]) -> list[tuple[str, str]]:
    """Return the paths that an agent's stderr says were refused and that its fence does not allow.

    Returns pairs of a path and the option that would allow it, `readable` or `writable`, each path once.
    """
    found: dict[str, str] = {}
    for line in lines:
        for match in _REFUSED.finditer(line):
            path = os.path.normpath(match[1] or match[2])
            if not os.path.lexists(path) and not os.path.isdir(os.path.dirname(path)):
                continue
            writing = fence.allows(path) or _WRITING.search(line) is not None
            if not fence.allows(path, writing=writing) and len(found) < MAX_REMARKS:
                found.setdefault(path, "writable" if writing else "readable")
    return list(found.items())
