"""Decides what a fenced agent may use: from its command, its workspaces and the places of the machine.

A fence names what is allowed; all else is refused. `FenceOptions` are what the configuration and an agent's clients
ask for; `plan` turns them into a `Fence`, which names paths that exist, without symbolic links. It reads the disk, so
it is called in a thread.
"""

import glob
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from acp_gateway.errors import AgentError
from acp_gateway.fence.paths import depth_in, existing, follow, outermost, trail, within, within_any
from acp_gateway.fence.places import ACCELERATORS, DEVICES, RESOLVERS, RUNNERS, SECRETS, STARTED, SYSTEM, TOOLS
from acp_gateway.fence.programs import MAX_INTERPRETERS, installation, interpreter, named_in

Mechanism = Literal["bubblewrap", "landlock"]

Network = Literal["on", "off"] | tuple[int, ...]
"""The network of an agent; a tuple holds the TCP ports that it may connect to."""

MAX_ENTRIES: Final = 10_000
"""Most names of a directory that is allowed but for some of them: more than `/etc` has anywhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceOptions:
    """The asked of the configuration and of an agent's clients for its fence. Paths are absolute; those of tables may
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
    installed: str | None = None
    """A folder among the private places that the agent is installed in, to read."""
    protected: Mapping[str, str] = field(default_factory=dict)
    """Paths that decide what the gateway runs or trusts, each with what it is: the agent writes nothing there."""
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
    """The places that a fenced agent may use. Of those around a path the innermost counts.

    Nothing in it is a symbolic link; no two lists have a path in common.
    """

    by: Mechanism
    read: tuple[str, ...]
    write: tuple[str, ...]
    devices: tuple[str, ...]
    hidden: tuple[str, ...]
    """Places below those of `read` that must not be read."""
    links: tuple[str, ...]
    """Symbolic links outside of all these, on the way to places as they are spelled."""
    cwd: str
    temporary: str
    network: Network
    workspaces: tuple[str, ...]
    """The folders of the workspaces that it was made for, as they are spelled."""

    def allows(self, path: str, *, writing: bool = False) -> bool:
        """Return whether the agent may read a path, or write there."""
        real = os.path.realpath(path)
        hidden = depth_in(real, self.hidden)
        reads = depth_in(real, (*self.read, "/proc"))
        writes = depth_in(real, (*self.write, *self.devices, self.temporary))
        return writes > max(reads, hidden) if writing else max(reads, writes) > hidden


def choose(value: str, *, bubblewrap: bool, landlock: bool) -> Mechanism | None:
    """Return the mechanism for a value of `fence`, `"on"`, `"bubblewrap"` or `"landlock"`; None without it here."""
    if value in ("on", "bubblewrap") and bubblewrap:
        return "bubblewrap"
    return "landlock" if value in ("on", "landlock") and landlock else None


def remedy(value: str) -> str:
    """Return what is missing on this machine for a value of `fence`, and what to do."""
    if sys.platform != "linux":
        return (
            'fences need Linux, with Landlock or bubblewrap, or set fence = "off", with which an agent may read all '
            "that its user may"
        )
    install = "install it (in Debian: apt-get install bubblewrap), and let users make namespaces"
    return {
        "bubblewrap": f"bubblewrap does not work here: {install}",
        "landlock": "this kernel has no Landlock (Linux 5.13 or newer, and not left out by its parameter lsm=): set "
        'fence = "on", which takes bubblewrap too',
        "on": f"this machine has no means for a fence, and bubblewrap is one: {install}",
    }[value]


def may_open(folder: str, user_home: str, private: Iterable[str] = ()) -> bool:
    """Return whether a fenced agent may write a folder: no secret of a user with this home is in it, nor around it."""
    real = os.path.realpath(folder)
    hidden = [*existing(_expanded(SECRETS, user_home)), *existing(private), os.path.realpath(user_home)]
    return not any(within(secret, real) for secret in hidden) and not any(within(real, each) for each in hidden[:-1])


_Guards = Sequence[tuple[Sequence[str], str]]
"""Paths that decide what the gateway runs: the links on the way to each and its end, and what it is."""


def _guards(protected: Mapping[str, str], user_home: str) -> _Guards:
    found = ((trail(path), path, what) for path, what in protected.items())
    guards = [((*links, path if end is None else end), what) for (links, end), path, what in found]
    # Where a link there leads to, such as a project of such files, may be worked on.
    started = [
        os.path.join(os.path.realpath(os.path.dirname(path)), os.path.basename(path))
        for path in _expanded(STARTED, user_home)
    ]
    return [*guards, *(((path,), "what logins and services start") for path in started)]


def _guarded(path: str, guards: _Guards) -> str | None:
    for steps, what in guards:
        at = next((step for step in steps if within(step, path)), None)
        if at is not None or within(path, steps[-1]):
            return f"{at or steps[-1]} ({what})"
    return None


def guarded(folder: str, protected: Mapping[str, str], user_home: str) -> str | None:
    """Return what decides what the gateway runs and is in a folder, or around it; None for nothing."""
    return _guarded(os.path.realpath(folder), _guards(protected, user_home))


class _Asked:
    """The places that options name, and those that they must not open."""

    def __init__(self, agent: str, options: FenceOptions, home: str, own: Sequence[str] = ()) -> None:
        self._agent = agent
        roots = [root for root, _ in options.workspaces]
        self.own = _expanded([*options.own, *own], home)
        self.changed = [root for root, writing in options.workspaces if writing] + _expanded(options.writable, home)
        self.kept = [root for root, writing in options.workspaces if not writing]
        self.read = [*self.kept, *_expanded(options.readable, home)]
        self.homes = existing([] if options.home is None else [options.home])
        # Where the agent may put links, what they lead to is not opened: at its next start it would have what it likes.
        self.changeable = [*existing([*self.changed, *self.own]), *self.homes, *existing([options.scratch])]
        """Places that the agent may change."""
        self.installed = existing([] if options.installed is None else [options.installed])
        self.visible = [*existing(roots), *self.homes, *self.installed]
        """Places that are open although they lie in a hidden one."""
        self.others = existing(options.others)
        self.hidden = [*existing(_expanded(SECRETS, options.user_home)), *existing(options.private), *self.others]
        # Also those that do not exist yet: a person may log in somewhere later.
        self.secrets = [os.path.realpath(path) for path in _expanded(SECRETS, options.user_home)]
        self._guards = _guards(options.protected, options.user_home)

    def settled(self, paths: Iterable[str]) -> list[str]:
        """Return the paths without links, but not those by links that the agent, or another one, may just change."""
        found = [follow(path, self.changeable) for path in paths if os.path.lexists(path)]
        return list(dict.fromkeys(real for real, link in found if link is None))

    def hides(self, path: str) -> bool:
        """Return whether a path without links must not be opened."""
        return depth_in(path, self.hidden) > depth_in(path, self.visible)

    def guarded(self, path: str) -> str | None:
        """Return what decides what the gateway runs and is in a place to write, or around it; None for nothing."""
        return _guarded(path, self._guards)

    def check(self) -> None:
        """Raise `AgentError` for a place that no fenced agent may use, and for one to write that contains such a place.

        It makes nothing on the disk.
        """
        cannot = f"the agent {self._agent} cannot be started: its fence is to"
        changed, write = self.settled(self.changed), self.settled([*self.changed, *self.own])
        for path in (*self.changed, *self.read):
            if not within_any(real := os.path.realpath(path), write):
                _, link = follow(path, self.changeable)
                if link is not None:
                    raise AgentError(
                        f"{cannot} open {path} by the link {link}, which the agent may change: name {real} in the "
                        "configuration instead"
                    )
        opened = [path for path in (*write, *self.settled(self.read)) if not within_any(path, self.homes)]
        for path in opened:
            lets = f"{cannot} let it {'write' if path in write else 'read'} {path}"
            self._check_secrets(path, lets)
            if path in write:
                self._check_others(path, lets)
            if path in changed and (found := self.guarded(path)) is not None:
                raise AgentError(
                    f"{lets}, and {found} is run or trusted outside of every fence: keep that elsewhere, or name "
                    "another folder"
                )

    def _check_secrets(self, path: str, lets: str) -> None:
        for secret in (*self.secrets, *(place for place in self.hidden if place not in self.others)):
            if within(path, secret):
                raise AgentError(
                    f"{lets}, which no fenced agent may use (it is in {secret}): take it out of "
                    f"[agents.{self._agent}], or move the workspace"
                )
            if within(secret, path):
                raise AgentError(
                    f"{lets}, which contains {secret}: name a folder below it, such as {os.path.join(path, 'code')}"
                )

    def _check_others(self, path: str, lets: str) -> None:
        for other in self.others:
            if self.hides(path) and within(path, other):
                raise AgentError(
                    f"{lets}, which is in the workspace {other}, and its clients may not use that: take it out of "
                    f"[agents.{self._agent}], or let them use the workspace"
                )
            if within(other, path) and self.hides(other):
                raise AgentError(
                    f"{lets}, which contains the workspace {other}, and its clients may not use that: let them use it, "
                    "or move one of the two"
                )


def check(agent: str, options: FenceOptions, home: str) -> None:
    """Raise `AgentError` for places in the options that keep an agent from being started. It reads the disk only."""
    _Asked(agent, options, options.home or home).check()


def plan(by: Mechanism, wanted: Wanted) -> Fence:
    """Make the fence of an agent, and the folders of its own that are missing.

    Raises `AgentError` for a place that no fenced agent may use, and for one to write that contains such a place.
    """
    options = wanted.options
    home = options.home or wanted.environment.get("HOME", options.user_home)
    runner = RUNNERS.get(os.path.basename(wanted.command[0]), ())
    asked = _Asked(wanted.agent, options, home, runner)
    own = [_made(path) for path in asked.own if follow(path, asked.changeable)[1] is None]
    asked.check()
    temporary = os.path.realpath(wanted.temporary)
    # What the gateway runs in the agent's own folders, such as a Python that `uvx` has installed, it only reads.
    apart = [path for path in asked.settled(own) if asked.guarded(path)]
    write = [path for path in asked.settled([*asked.changed, *own]) if path not in apart]
    write = list(outermost([*write, *asked.homes, temporary]))
    kept = asked.settled(asked.kept)
    for path in kept:
        if by == "landlock" and within_any(path, write):
            raise AgentError(
                f"the agent {wanted.agent} cannot be started: {path} is to be read only and is in a folder that the "
                "agent may write, which Landlock cannot do: install bubblewrap, or move one of them"
            )
    # What is in a place to write is written as well, but for workspaces that are only to be read.
    system = existing([*SYSTEM, *(() if options.network == "off" else RESOLVERS)])
    programs = _programs(wanted, home, asked)
    named = [*system, *asked.settled(asked.read), *apart, *asked.installed, *existing(programs)]
    inner = [path for path in named if not within_any(path, write) and not asked.hides(path)] + kept
    # A place in a hidden one in a place to read is opened by itself.
    read = list(outermost(inner))
    read += [path for path in inner if path not in read and _is_apart(path, inner, asked.hidden)]
    devices = [path for pattern in (*DEVICES, *ACCELERATORS) for path in sorted(glob.glob(pattern))]
    spelled = (*asked.changed, *asked.read, *own, *programs, home, wanted.cwd)
    links = {link for path in spelled for link in trail(path)[0] if os.path.dirname(link) != "/dev"}
    elsewhere = [*read, *write, *asked.hidden, "/proc"]
    fence = Fence(
        by=by,
        read=tuple(dict.fromkeys(read)),
        write=tuple(write),
        devices=tuple(devices),
        hidden=tuple(sorted({place for place in asked.hidden if within_any(place, read) and asked.hides(place)})),
        links=tuple(sorted(link for link in links if not within_any(link, elsewhere))),
        cwd=os.path.realpath(wanted.cwd),
        temporary=temporary,
        network=options.network,
        workspaces=tuple(root for root, _ in options.workspaces),
    )
    if not fence.allows(fence.cwd):
        raise AgentError(
            f"the agent {wanted.agent} cannot be started: its clients may not use the folder {wanted.cwd}, in which it "
            f"is to start: take cwd out of [agents.{wanted.agent}], and it starts in its first workspace"
        )
    return fence


def _is_apart(path: str, places: Sequence[str], hidden: Sequence[str]) -> bool:
    """Return whether a hidden place is between a path and the innermost other place around it."""
    around = depth_in(path, [place for place in places if place != path])
    return depth_in(path, hidden) > around


def _programs(wanted: Wanted, home: str, asked: _Asked) -> list[str]:
    """Return the places of the program, of its interpreters, of the files in its arguments, and those on its PATH, with
    their links.

    What the agent may have written tells nothing. No place is around the user's home or its secrets. Raises
    `AgentError` for a program in a workspace that its clients may not use, where others may change it.
    """
    options = wanted.options

    def is_changeable(path: str) -> bool:
        real, link = follow(path, asked.changeable)
        return link is not None or within_any(real, asked.changeable)

    found: list[str] = []
    files: list[str] = []
    program = wanted.program
    search_path = wanted.environment.get("PATH", os.defpath)
    for _ in range(MAX_INTERPRETERS):
        if is_changeable(program):
            break
        files.append(program)
        runs = interpreter(program, search_path)
        if runs is None:
            break
        program = runs
    files += [word for word in wanted.command[1:] if word.startswith("/") and not is_changeable(word)]
    for path in files:
        if within_any(real := os.path.realpath(path), asked.others) and asked.hides(real):
            raise AgentError(
                f"the agent {wanted.agent} cannot be started: its command names {path}, which is in a workspace of "
                "others, who may change it: keep it elsewhere, or let its clients use that workspace"
            )
    for path in [*files, *([] if is_changeable(wanted.program) else named_in(wanted.program))]:
        # Devices are not for a command to name.
        if not is_changeable(path) and (os.path.isfile(path) or (path in files and os.path.isdir(path))):
            found += [path, *installation(path)]
    found += [
        folder for folder in search_path.split(os.pathsep) if folder.startswith("/") and not is_changeable(folder)
    ]
    around = [*asked.secrets, os.path.realpath(options.user_home or home)]
    tools = asked.settled(_expanded(TOOLS, home))

    def is_wide(path: str) -> bool:
        real = os.path.realpath(path)
        return any(within(secret, real) for secret in around)

    return [*tools, *(path for path in found if not is_wide(path))]


def landlock_rules(fence: Fence) -> dict[str, Any]:
    """Return the arguments of `landlock.restrict` for a fence. Landlock cannot take a place out of a tree, so the names
    around a hidden one are allowed one by one."""
    read: list[str] = []
    look: list[str] = []
    for tree in fence.read:
        for path, whole in _without(tree, [place for place in fence.hidden if within(place, tree)]):
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
    if any(within(path, secret) for secret in hidden):
        return
    if not any(within(secret, path) for secret in hidden):
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
