"""Makes working trees of git for new sessions, and removes them: by `made/git_worker.py`, in the agent's fence."""

import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import trio

from acp_gateway.acp.worktrees import FOLDER, tree_of
from acp_gateway.config.load import AgentSection, Config
from acp_gateway.core.requests import Worktree
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import UsageError
from acp_gateway.gateway.made.git_jobs import GitJobs
from acp_gateway.gateway.made.places import Places
from acp_gateway.gateway.workspaces import Workspace, innermost, workspaces_of
from acp_gateway.made.changes import NewTree, RemovedTree

STORES: Final = "worktrees"
"""Folder in `state_dir` for git's own files while a working tree is made or removed."""

WORKERS: Final = 2
"""Working trees of an identity that are made or removed at a time: each takes a processor and the disk, at a low
priority. The slow repository of one holds up no other."""

MOST_WORKERS: Final = 8
"""Those of all identities: of four with slow repositories."""

TIME_LIMIT: Final = 60.0
"""Seconds to make a working tree, or to remove one: the files of a large repository take some twenty."""

GIVEN_UP: Final = 50
"""Seconds after which one that is being made is removed again, which takes time as well."""


class Worktrees:
    """The working trees of the sessions of one gateway.

    Args:
        config: returns the configuration in force.
        jobs: runs git.
    """

    def __init__(self, config: Callable[[], Config], jobs: GitJobs) -> None:
        self._config = config
        self._jobs = jobs
        self._places = Places(WORKERS, MOST_WORKERS)

    def wanted(self, agent: str, cwd: str, asked: str | Literal[False] | None) -> str | None:
        """Return the name of the working tree for a new session, as `make` takes it; None for a session without one.

        Args:
            agent: the agent.
            cwd: the directory that the client names; one in such a working tree is meant itself.
            asked: what the client asks for: a name, empty for any; False for none; None if it says nothing.
        """
        if asked is not None:
            return None if asked is False else asked
        workspace = self._workspace(self._config().agents.get(agent), cwd)
        section = None if workspace is None else self._config().workspaces.get(workspace.name or "")
        return "" if section is not None and section.new_sessions == "worktree" and tree_of(cwd) is None else None

    async def make(self, agent: str, reach: SessionReach, cwd: str, name: str) -> Worktree:
        """Make a working tree of the repository that contains a directory, with a branch of its own.

        Args:
            agent: the agent, in whose fence git runs.
            reach: that of the client.
            cwd: a directory that the client may use.
            name: of the branch; empty for a new one, with `*` at the end the beginning of one.

        Raises `UsageError` with the reason why there is none. When cancelled, it may be made all the same.
        """
        section = self._section(agent, cwd)
        job = {"do": "worktree", "name": name or f"session-{secrets.token_hex(3)}", "seconds": GIVEN_UP}
        made: NewTree = await self._run(agent, section, reach, cwd, job, NewTree)
        return Worktree(made.cwd, made.branch)

    async def remove(self, agent: str, reach: SessionReach, cwd: str, *, looks: bool = False) -> RemovedTree:
        """Remove the working tree of a session's directory, or only look whether that may be.

        Raises `UsageError` with the reason why it is not removed. When cancelled, it may be removed all the same.
        """
        tree = tree_of(cwd)
        if tree is None:
            raise UsageError("This session has no working tree of its own.")
        section = self._section(agent, cwd)
        if not await self._in_place(reach, partial(os.path.lexists, tree)):
            return RemovedTree(None, 0)
        repository = tree.rpartition(f"/{FOLDER}/")[0]
        job = {"do": "remove", "tree": tree, "looks": looks}
        removed: RemovedTree = await self._run(agent, section, reach, repository, job, RemovedTree)
        return removed

    def _section(self, agent: str, cwd: str) -> AgentSection:
        """Return the options of an agent in a directory. Raises `UsageError` if nothing may be changed there."""
        section = self._config().agents.get(agent)
        if section is None or section.command is None:
            raise UsageError(f"The agent {agent} is a program elsewhere: no working tree is made on its disk.")
        workspace = self._workspace(section, cwd)
        named = None if workspace is None else self._config().workspaces.get(workspace.name or "")
        if named is not None and named.access == "read":
            raise UsageError(
                f"The workspace {named.root} is only to be read: no working tree is made or removed there."
            )
        return section

    def _workspace(self, section: AgentSection | None, cwd: str) -> Workspace | None:
        return innermost(cwd, workspaces_of(self._config().workspaces, None if section is None else section.cwd))

    async def _run(
        self, agent: str, section: AgentSection, reach: SessionReach, cwd: str, job: dict[str, Any], kind: type[Any]
    ) -> Any:
        return await self._in_place(reach, partial(self._in_thread, agent, section, reach, cwd, job, kind))

    async def _in_place(self, reach: SessionReach, work: Callable[[], Any]) -> Any:
        limiter = self._places.limiter(reach.account)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

    def _in_thread(
        self,
        agent: str,
        section: AgentSection,
        reach: SessionReach,
        cwd: str,
        job: dict[str, Any],
        kind: type[msgspec.Struct],
    ) -> msgspec.Struct:
        try:
            store = _new_store(self._config().gateway.state_dir / STORES)
        except OSError as error:
            raise UsageError(f"The gateway has no room for git's own files: {error.strerror}.") from None
        try:
            return self._jobs.run(agent, section, reach, store, cwd, job, kind, time_limit=TIME_LIMIT)
        finally:
            shutil.rmtree(store, ignore_errors=True)


def _new_store(stores: Path) -> Path:
    """Return a new folder for git's own files, and remove those that a killed gateway has left."""
    stores.mkdir(mode=0o700, parents=True, exist_ok=True)
    for left in stores.iterdir():
        with suppress(FileNotFoundError):  # Another one has been removed since.
            if time.time() - left.stat().st_mtime > 10 * TIME_LIMIT:
                shutil.rmtree(left, ignore_errors=True)
    return Path(tempfile.mkdtemp(dir=stores))


def kept_branch(removed: RemovedTree) -> str | None:
    """Return a sentence on the branch that stays; None if none does."""
    if removed.branch is None:
        return None
    if not removed.commits:
        return f"Its branch {removed.branch} stays."
    commits = "a commit" if removed.commits == 1 else f"{removed.commits} commits"
    return f"Its branch {removed.branch} stays: it has {commits} that no other branch has."
