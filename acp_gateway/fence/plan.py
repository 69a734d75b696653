"""Decides what a fenced agent may use: from its command, its workspaces and the places of the machine.

A fence names what is allowed; all else is refused. `FenceOptions` are what the configuration and the session's scope
ask for; `plan` turns them into a `Fence`, which names paths that exist, without symbolic links. It reads the disk, so
it is called in a thread.
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
from acp_gateway.fence.places import ACCELERATORS, DEVICES, RESOLVERS, RUNNERS, SECRETS, SYSTEM, TOOLS

Mechanism = Literal["bubblewrap", "landlock"]

Network = Literal["on", "off"] | tuple[int, ...]
"""The network of an agent; a tuple holds the TCP ports that it may connect to."""

MAX_ENTRIES: Final = 10_000
"""Most names of a directory that is allowed but for some of them: more than `/etc` has anywhere."""

MAX_STEPS: Final = 1000
"""Most steps on the way to a path, those of its links included; the kernel follows 40 links."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceOptions:
    """The wishes of the configuration and of an agent's clients for its fence. Paths are absolute; those of tables may
    begin with `~`."""

    value: str
    """`"on"`, `"bubblewrap"` or `"landlock"`."""
    workspaces: Sequence[tuple[str, bool]]
    """Folders of the workspaces that its clients may use, and whether the agent may write there."""
    own: Sequence[str] = ()
    """Files and folders of the agent's own, which it may write. A folder that ends with a slash is made if missing."""
    writable: Sequence[str] = ()
    readable: Sequence[str] = ()
    private: Sequence[str] = ()
    """Places of the gateway that the agent must not read."""
    others: Sequence[str] = ()
    """Folders of workspaces that its clients may not use: they are hidden where they lie in what is opened."""
    user_home: str = ""
    """The home of the gateway's user, which holds most secrets."""
    home: str | None = None
    """A home for the agent instead of its user's, which it may write; it is made if it is missing."""
    scratch: str
    """Folder in which the folder for the agent's temporary files is made."""
    network: Network = "on"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A program that a fence is made for. All paths are absolute."""

    agent: str
    program: str
    """The path of the command's program."""
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str
    temporary: str
    """An existing folder for its temporary files."""
    options: FenceOptions


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
    return f'{missing}, or set fence = "off"'


def may_open(folder: str, user_home: str, private: Iterable[str] = ()) -> bool:
    """Return whether a fenced agent may write a folder: no secret of a user with this home is in it, nor around it."""
    real = os.path.realpath(folder)
    hidden = [*_existing(_expanded(SECRETS, user_home)), *_existing(private), os.path.realpath(user_home)]
    return not any(_within(secret, real) for secret in hidden) and not any(_within(real, each) for each in hidden[:-1])


def plan(by: Mechanism, wanted: Wanted) -> Fence:
    """Make the fence of an agent, and the folders of its own that are missing.

    Raises `AgentError` for a place that no fenced agent may use, and for one to write that contains such a place.
    """
    options = wanted.options
    home = options.home or wanted.environment.get("HOME", options.user_home)
    hidden = [*_existing(_expanded(SECRETS, options.user_home)), *_existing(options.private)]
    trusted = [*_existing([] if options.home is None else [options.home]), os.path.realpath(wanted.temporary)]
    own = _expanded([*options.own, *RUNNERS.get(os.path.basename(wanted.command[0]), ())], home)
    changed = [path for path, writing in options.workspaces if writing] + _expanded(options.writable, home)
    kept = [path for path, writing in options.workspaces if not writing]
    read_only = [*kept, *_expanded(options.readable, home), wanted.cwd]
    # Where the agent may put links, what they lead to is not opened: at its next start it would have what it likes.
    its = [*_existing([*changed, *own]), *trusted]
    own = [_made(path) for path in own if not leads_through(path, its)]

    def settled(paths: Iterable[str]) -> list[str]:
        """Return the paths without links, but not those by links that the agent, or another one, may just change."""
        found = [follow(path, its) for path in paths if os.path.lexists(path)]
        return list(dict.fromkeys(real for real, link in found if link is None))

    write, named = settled([*changed, *own]), settled(read_only)
    opened = _existing(path for path, _ in options.workspaces)
    apart = [other for other in _existing(options.others) if not any(_within(path, other) for path in opened)]
    hidden += [other for other in apart if _within_any(other, [*opened, *_existing(SYSTEM)])]
    for path in (*changed, *read_only):
        if not _within_any(os.path.realpath(path), write):
            _check_links(wanted.agent, path, its)
    # Also those that do not exist yet: a person may log in somewhere later.
    never = [os.path.realpath(path) for path in _expanded(SECRETS, options.user_home)] + hidden
    for path in (*write, *named):
        if not _within_any(path, trusted):
            _check(wanted.agent, path, never, writing=path in write)
    programs = [
        path
        for path in (*settled(_expanded(TOOLS, home)), *_existing(_programs(wanted, home, its)))
        if not any(_within(secret, path) or _within(path, secret) for secret in hidden)
    ]
    write = list(_outermost([*write, *trusted]))
    for path in settled(kept):
        if by == "landlock" and _within_any(path, write):
            raise AgentError(
                f"the agent {wanted.agent} cannot be started: {path} is to be read only and is in a folder that the "
                "agent may write, which Landlock cannot do: install bubblewrap, or move one of them"
            )
    # What is in a place to write is written as well, but for workspaces that are only to be read.
    system = _existing([*SYSTEM, *(() if options.network == "off" else RESOLVERS)])
    read = [path for path in (*system, *named, *programs) if not _within_any(path, write)]
    read = list(_outermost([*read, *settled(kept)]))
    devices = [path for pattern in (*DEVICES, *ACCELERATORS) for path in sorted(glob.glob(pattern))]
    return Fence(
        by=by,
        read=tuple(read),
        write=tuple(write),
        devices=tuple(devices),
        hidden=tuple(sorted(secret for secret in hidden if _within_any(secret, read))),
        cwd=os.path.realpath(wanted.cwd),
        temporary=os.path.realpath(wanted.temporary),
        network=options.network,
    )


def leads_through(path: str, places: Sequence[str]) -> str | None:
    """Return the first symbolic link on the way to a path that is in one of the places; None if there is none."""
    return follow(path, places)[1]


def follow(path: str, places: Sequence[str]) -> tuple[str, str | None]:
    """Return a path without symbolic links, and the first link on the way that is in one of the places, or None.

    That link is not followed. Without one, the path is right even if links in these places change later.
    """
    at, rest = "/", path.split("/")
    for _ in range(MAX_STEPS):
        if not rest:
            return at, None
        name, *rest = rest
        if name == "..":
            at = os.path.dirname(at)
            continue
        step = os.path.join(at, name) if name not in ("", ".") else at
        if not os.path.islink(step):
            at = step
            continue
        if any(_within(step, place) and step != place for place in places):
            return at, step
        target = os.readlink(step)
        at, rest = "/" if target.startswith("/") else at, [*target.split("/"), *rest]
    return at, path


def _check_links(agent: str, path: str, places: Sequence[str]) -> None:
    link = leads_through(path, places)
    if link is not None:
        raise AgentError(
            f"the agent {agent} cannot be started: its fence is to open {path} by the link {link}, which the agent may "
            f"change: name {os.path.realpath(path)} in the configuration instead"
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


def _programs(wanted: Wanted, home: str, its: Sequence[str]) -> Iterator[str]:
    """Yield the folders of the program, of its interpreters, of the files in its arguments, and those on its PATH.

    What the agent may have written, in the places `its`, tells nothing.
    """

    def is_changeable(path: str) -> bool:
        real, link = follow(path, its)
        return link is not None or _within_any(real, its)

    program = wanted.program
    for _ in range(4):  # A script, `env`, an interpreter that is a link, and no more.
        if is_changeable(program):
            break
        yield from _installation(program, home)
        interpreter = _interpreter(program, wanted.environment.get("PATH", os.defpath))
        if interpreter is None:
            break
        program = interpreter
    named = [] if is_changeable(wanted.program) else _named_in(wanted.program)
    for word in (*wanted.command[1:], *named):
        if word.startswith("/") and os.path.exists(word) and not is_changeable(word):
            yield from _installation(word, home)
    for folder in wanted.environment.get("PATH", "").split(os.pathsep):
        if folder.startswith("/") and not is_changeable(folder):
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


def _named_in(script: str) -> list[str]:
    """Return the absolute paths that a script names: one that only starts the real program names that."""
    try:
        with open(script, "rb") as file:
            text = file.read(SCRIPT_SIZE)
    except OSError:
        return []
    if not text.startswith(b"#!"):
        return []
    return re.findall(r"(?<![\w.$}~/])/[\w.@+/-]+", text.partition(b"\n")[2].decode(errors="replace"))


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
        "write": [*fence.write, *map(os.path.realpath, fence.devices)],
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


SCRIPT_SIZE: Final = 4096
"""Bytes of a script in which paths are looked for: one that starts another program has a few lines."""

_REFUSED: Final = re.compile(
    r"(?:EACCES|EPERM|EROFS|ENOENT|ermission denied|ead-only file system|o such file)[^'\"/]*['\"]?(/[^'\":,)]+)"
    r"|(/[^'\":,() ]+)['\"]?: (?:[Cc]annot \w+: )?"
    r"(?:Permission denied|Read-only file system|Operation not permitted|not found)"
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
                folder, name = os.path.split(os.path.dirname(path))
                # A program is of no use without what it was installed with.
                found.setdefault(folder if name == "bin" else path, "writable" if writing else "readable")
    return list(found.items())
