"""Workspaces: the directories in which sessions may be opened, and the errors for other directories.

A session's directory must exist and be in a workspace after symbolic links are resolved. Outside of the workspaces the
error is the same for directories that exist and those that do not. These functions read the disk, so they are called in
a thread.

Workspaces limit sessions. What the agent itself may read and write is limited by its fence (`fence/`), if it has one.
"""

import os
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import Any, Final

from acp_gateway.acp.worktrees import tree_of
from acp_gateway.config.load import WorkspaceSection
from acp_gateway.core.requests import DirectoryCheckResult, Location, Problem
from acp_gateway.protocol.path_maps import suggest_map
from acp_gateway.protocol.reasons import in_one_line

PATH_SIZE: Final = 4096
"""Maximum characters of a path, as on Linux."""

QUOTED_SIZE: Final = 300
"""Maximum characters of a path in an error's message; its data has the whole path."""

SHOWN: Final = 10
"""Maximum number of workspaces that an error names."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """A directory in which sessions may be opened."""

    name: str | None
    """None for the default workspace, if the configuration has none."""
    root: str


def workspaces_of(sections: Mapping[str, WorkspaceSection], agent_cwd: Path | None) -> tuple[Workspace, ...]:
    """Return the workspaces of an agent: those of the configuration, else its own directory, else the user's home."""
    if sections:
        return tuple(Workspace(name, str(section.root)) for name, section in sections.items())
    if agent_cwd is not None:
        return (Workspace(None, str(agent_cwd)),)
    try:
        home = str(Path.home())
    except RuntimeError:
        return ()
    # The home of a service's user may be the root directory, which contains everything.
    return () if home == "/" else (Workspace(None, home),)


def directory_check(
    directories: Sequence[str],
    workspaces: Sequence[Workspace],
    allowed: Sequence[str] | None = None,
    *,
    chooses: bool = False,
) -> DirectoryCheckResult:
    """Check the directories of a session.

    Args:
        directories: `cwd` first, as the client spells them; without `cwd` if that is chosen.
        workspaces: all workspaces.
        allowed: the names of those that the client may use; None for all.
        chooses: True if `cwd` is the first workspace that the client may use: the result's `fallback`.
    """
    usable = [workspace for workspace in workspaces if allowed is None or workspace.name in allowed]
    fallback = Location(usable[0].root, usable[0].name) if usable else None
    if chooses and fallback is None:
        return DirectoryCheckResult(_outside("", {}))
    if chooses and fallback is not None:
        directories = (fallback.directory, *directories)
    real = {workspace: os.path.realpath(workspace.root) for workspace in usable}
    found = []
    for directory in directories:
        workspace, problem = _look(directory, real)
        if problem is not None:
            return DirectoryCheckResult(problem, None, fallback)
        found.append(workspace)
    return DirectoryCheckResult(None, found[0].name if found and found[0] is not None else None, fallback)


def containing(path: str, workspaces: Sequence[Workspace]) -> str | None:
    """Return the name of the workspace that contains a path, without reading the disk."""
    holding = innermost(path, workspaces)
    return None if holding is None else holding.name


def innermost(path: str, workspaces: Sequence[Workspace]) -> Workspace | None:
    """Return the innermost workspace that contains a path, without reading the disk."""
    path = os.path.normpath(path)
    holding = [workspace for workspace in workspaces if _is_below(path, os.path.normpath(workspace.root))]
    return max(holding, key=lambda workspace: len(workspace.root), default=None)


def _look(directory: str, real: Mapping[Workspace, str]) -> tuple[Workspace | None, Problem | None]:
    """Return the workspace that contains a directory, or the problem of the directory."""
    if len(directory) > PATH_SIZE:
        return None, _problem(f"a path has at most {PATH_SIZE} characters", ())
    if not _is_absolute_somewhere(directory):
        return None, _problem(
            f"the directory of a session must be an absolute path, not '{_shown(directory)}'", (), directory
        )
    if ".." in directory.split("/"):
        # After a symbolic link, `..` leads elsewhere for agents that normalize the path as text.
        return None, _problem(
            f"the directory of a session must be a path without .., not '{_shown(directory)}'", (), directory
        )
    workspace = _workspace_at(directory, real)
    if workspace is None:
        return None, _outside(directory, real)
    if os.path.isdir(directory):
        return workspace, None
    if os.path.exists(directory):
        return None, _problem(f"{_shown(directory)} is not a directory", (), directory)
    return None, _missing(directory, real)


def _workspace_at(directory: str, real: Mapping[Workspace, str]) -> Workspace | None:
    """Return the innermost workspace that contains a directory, after symbolic links are resolved."""
    if not directory.startswith("/"):
        return None
    try:
        path = os.path.realpath(directory)
    except (OSError, ValueError, RecursionError):
        return None  # Too many links, or not a path.
    holding = [workspace for workspace, root in real.items() if _is_below(path, root)]
    return max(holding, key=lambda workspace: len(real[workspace])) if holding else None


def _is_below(path: str, root: str) -> bool:
    return path == root or path.startswith(root.rstrip("/") + "/")


def _missing(directory: str, real: Mapping[Workspace, str]) -> Problem:
    """Return the problem of an allowed directory that does not exist."""
    if (tree := tree_of(directory)) is not None:
        message = f"the working tree {_shown(tree)} of this session is not there any more: start a new session"
        return _problem(message, (), directory)
    suggested = _suggest(directory, real)
    message = (
        f"there is no directory {_shown(directory)} on {socket.gethostname()}; "
        "start the client with the path it has there: "
        f"acp-gateway connect … --map {_quoted_map(suggested)} (or maps in hosts.toml)"
    )
    return _problem(message, (), directory, suggested)


def _outside(directory: str, real: Mapping[Workspace, str]) -> Problem:
    """Return the problem of a directory that is not allowed, existing or not: often a path of the client's machine."""
    if not real:
        where = f"in {_shown(directory)}" if directory else "without a cwd"
        message = (
            f"no session may be opened {where}: there is no workspace that this token may use; "
            "add a [workspaces.NAME] section to the gateway's configuration, or make another token"
        )
        return _problem(message, (), directory, reason="outside_workspaces")
    suggested = _suggest(directory, real)
    message = (
        f"{_shown(directory)} is in no workspace of {socket.gethostname()} that may be used "
        f"(allowed: {_names(list(real))}); "
        "if it is the path on the client's machine, start the client with the one it has there: "
        f"acp-gateway connect … --map {_quoted_map(suggested)} (or maps in hosts.toml)"
    )
    return _problem(message, list(real), directory, suggested, reason="outside_workspaces")


def _suggest(directory: str, real: Mapping[Workspace, str]) -> str:
    """Return the path map that is likely missing for a client's directory.

    The home of the gateway's user, which may be in a workspace or one itself, is seldom meant as a whole: it is last.
    """
    home = os.path.expanduser("~")
    roots = [workspace.root for workspace in real if workspace.root != home][:SHOWN]
    name = _last_name(directory)
    same = next((root for root in roots if _last_name(root) == name), None)
    return suggest_map(
        directory,
        roots=[*roots, *([home] if _workspace_at(home, real) is not None else [])],
        agent_cwd=same,
        is_directory=lambda path: _workspace_at(path, real) is not None and os.path.isdir(path),
    )


def _last_name(path: str) -> str:
    return PurePosixPath(path).name if path.startswith("/") else PureWindowsPath(path).name


def _names(workspaces: Sequence[Workspace]) -> str:
    shown = [
        workspace.root if workspace.name is None else f"{workspace.root} ({workspace.name})"
        for workspace in workspaces[:SHOWN]
    ]
    return ", ".join(shown) + (", …" if len(workspaces) > SHOWN else "")


def _problem(
    message: str,
    allowed: Sequence[Workspace],
    directory: str | None = None,
    suggested: str | None = None,
    *,
    reason: str = "no_such_directory",
) -> Problem:
    data: dict[str, Any] = {"reason": reason, "cwd": directory, "map": suggested}
    if allowed:
        data["allowed"] = [workspace.root for workspace in allowed[:SHOWN]]
    return Problem(message, {name: value for name, value in data.items() if value is not None})


def _shown(directory: str) -> str:
    """Return a client's path as errors quote it."""
    return in_one_line(directory, QUOTED_SIZE)


def _quoted_map(text: str) -> str:
    """Return a path map for the command line; a placeholder if it has characters that can't be shown."""
    return _quoted(text) if in_one_line(text, 2 * QUOTED_SIZE) == text else "LOCAL=REMOTE"


def _quoted(text: str) -> str:
    """Quote a word for the shell of the editor's machine; Windows has double quotes only."""
    return shlex.quote(text) if text.startswith("/") else f'"{text}"' if " " in text else text


def _is_absolute_somewhere(path: str) -> bool:
    return PurePosixPath(path).is_absolute() or PureWindowsPath(path).is_absolute()
