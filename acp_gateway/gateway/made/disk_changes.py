"""Marks the working tree of a session when a turn begins, tells what has changed there since, and puts it back.

No message waits for a mark: it is made beside the first seconds of a turn, at a low priority. Marks are in a folder of
`state_dir` for each session, with the store of `made/git_worker.py`; the oldest folders go.
"""

import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import msgspec
import trio

from acp_gateway.config.load import AgentSection, Config
from acp_gateway.core.sessions.session import Session, SessionReach
from acp_gateway.errors import UsageError
from acp_gateway.gateway.made.git_jobs import GitJobs
from acp_gateway.gateway.made.places import Places
from acp_gateway.gateway.sessions.session_changes import SessionChanges
from acp_gateway.made.changes import Comparison, Done, Marked, Marks, described, without_text
from acp_gateway.made.files_rules import FileRefused, Reason, Territory, check_path

log = logging.getLogger(__name__)

FOLDER: Final = "changes"
"""Folder in `state_dir`."""

MAX_SESSIONS: Final = 100
"""Sessions whose marks are kept, the latest ones: 64 MiB each at the most, and mostly a few KiB."""

WORKERS: Final = 2
"""Marks of an owner at a time, and as many looks: each takes a processor, at a low priority.

One that takes its half minute, as a pipe can make it, does not hold up those of others.
"""

MOST_WORKERS: Final = 16
"""Marks of all owners at a time, and as many looks: a team's worth, some 30 MB each."""

NOT_MARKED: Final = "No turn of this session was marked yet: changes on the disk are told from the next prompt on."

OUTSIDE: Final = "The session's folder is in no git working tree."

LISTENS: Final = "The agent of this session is a program elsewhere: changes on its disk are not seen here."

NO_FOLDER: Final = "This session has no folder."

READ_ONLY: Final = "The workspace is only to be read."


@dataclass(frozen=True, slots=True)
class _Place:
    """The directory of a session, and the folder with its marks."""

    agent: str
    section: AgentSection
    cwd: str
    folder: Path


class DiskChanges:
    """The marks of all sessions of one gateway.

    Args:
        config: returns the configuration in force.
        jobs: runs git.
        changes: tells of sessions that change.
    """

    def __init__(self, config: Callable[[], Config], jobs: GitJobs, changes: SessionChanges) -> None:
        self._config = config
        self._jobs = jobs
        self._changes = changes
        self._marking = Places(WORKERS, MOST_WORKERS)
        self._looking = Places(WORKERS, MOST_WORKERS)
        # The first prompt of the running turn, as last seen.
        self._turns: WeakKeyDictionary[Session, object] = WeakKeyDictionary()
        # The sessions that are being marked, with the beginning of the latest turn that waits for its mark.
        self._next: dict[Session, int | None] = {}
        self._places: WeakKeyDictionary[Session, trio.CapacityLimiter] = WeakKeyDictionary()
        # True since marks can't be written, which is told once.
        self._unwritten = False

    async def run(self) -> None:
        """Mark the working tree of each session whose turn begins, until cancelled."""
        async with trio.open_nursery() as nursery:
            with self._changes.subscribe() as subscription:
                while True:
                    changed = await subscription.wait()
                    for session in changed.sessions:
                        turn = next(iter(session.turns), None)
                        before = self._turns.get(session)
                        self._turns[session] = turn
                        if turn is None or turn is before:
                            continue
                        begun = int(time.time() * 1000)
                        if session in self._next:
                            self._next[session] = begun
                        else:
                            self._next[session] = None
                            nursery.start_soon(self._mark_turns, session, begun)
                    for session in changed.removed:
                        nursery.start_soon(self._contain, self._forget, session)

    async def _mark_turns(self, session: Session, begun: int | None) -> None:
        """Mark a turn, and then the latest of those that have begun since: to mark all would take ever longer."""
        while begun is not None:
            await self._contain(self.mark, session, begun)
            begun, self._next[session] = self._next[session], None
        del self._next[session]

    async def _contain(self, work: Callable[..., Any], session: Session, *args: Any) -> None:
        try:
            await work(session, *args)
        except Exception:
            # No message of an agent depends on a mark, so that a bug in here must not end the gateway.
            log.exception("session %r has no marks: a bug of the gateway", session.name)

    async def mark(self, session: Session, at: int) -> None:
        """Mark the working tree of a session at a time, in milliseconds since 1970, if it has one."""
        place = self._place(session)
        if not isinstance(place, _Place):
            return
        why = await self._in_thread(session, partial(self._make_mark, place, session.owner, at), self._marking)
        if why is not None and not self._unwritten:
            log.warning("changes on the disk are not marked until %s can be written: %s", place.folder.parent, why)
        self._unwritten = why is not None

    async def tell(self, session: Session, number: int | None, territory: Territory) -> dict[str, Any]:
        """Return what has changed on the disk, as members of a JSON object; see `docs/web-protocol.md`.

        Args:
            session: the session.
            number: of the mark of a turn; None for all turns.
            territory: the folders whose files the client may use.

        Raises `UsageError` for a number without a mark. When cancelled, a thread may still end its work.
        """
        place = self._place(session)
        if isinstance(place, str):
            return {"git": False, "why": place}
        work = partial(self._compare, place, session.owner, number, territory)
        told: dict[str, Any] = await self._in_thread(session, work)
        return told

    async def put_back(
        self, session: Session, number: int | None, change: Mapping[str, Any], territory: Territory
    ) -> None:
        """Put a file, or some of its lines, back to the mark of a turn, or to the first one.

        `change` has `path`, `old`, `new` and `lines`, as `git_worker` takes them; `territory` has the folders
        whose files the client may use. Raises `UsageError` or `FileRefused` with the reason why it is not put back.
        When cancelled, a thread may still end its work.
        """
        place = self._place(session)
        if isinstance(place, str):
            raise UsageError(place)
        await self._in_thread(session, partial(self._undo, place, session.owner, number, change, territory))

    async def _forget(self, session: Session) -> None:
        folder = self._folder(session)
        await self._in_thread(session, partial(shutil.rmtree, folder, ignore_errors=True))

    async def _in_thread(self, session: Session, work: Callable[[], Any], places: Places | None = None) -> Any:
        """Run a job of a session in a thread, after the one before has ended, though its task has been cancelled.

        `places` are by default those of looks.
        """
        own = self._places.setdefault(session, trio.CapacityLimiter(1))
        limiter = (places or self._looking).limiter(session.owner, own)
        return await trio.to_thread.run_sync(work, abandon_on_cancel=True, limiter=limiter)

    def _folder(self, session: Session) -> Path:
        # An agent may give an id again, also to another owner's session; the name of the first one changes then.
        named = f"{session.agent}\0{session.id}\0{session.owner}\0{session.created_at}"
        key = hashlib.sha256(named.encode(errors="surrogatepass")).hexdigest()[:32]
        return self._config().gateway.state_dir / FOLDER / key

    def _place(self, session: Session) -> _Place | str:
        """Return where a session works, or why that is not known."""
        section = self._config().agents.get(session.agent)
        if section is None or section.command is None:
            return LISTENS
        if session.cwd is None:
            return NO_FOLDER
        return _Place(session.agent, section, session.cwd, self._folder(session))

    # In threads

    def _run(self, place: _Place, owner: str, kind: type[Any], **job: Any) -> Any:
        """Run a job in the workspace of a session. Raises `UsageError` with the reason why it has no result."""
        jobs, reach = self._jobs, SessionReach(owner)
        return jobs.run(place.agent, place.section, reach, place.folder / "git", place.cwd, job, kind)

    def _make_mark(self, place: _Place, owner: str, at: int) -> str | None:
        """Make a mark; return why it can't be written, if it can't."""
        if not _may_be_in_git(place.cwd):
            return None
        marks, late = _read(place.folder), int(time.time() - at / 1000)
        try:
            marked = self._run(place, owner, Marked, do="mark", keep=[mark.state.tree for mark in marks.marks])
        except UsageError as error:
            marks = marks.without(str(error))
        else:
            marks = marks.with_mark(marked.state, at, marked.kept, late)
        try:
            if not place.folder.exists():
                _make_room(place.folder.parent)
            _write(place.folder, marks)
        except OSError as error:
            return str(error.strerror)
        return None

    def _compare(self, place: _Place, owner: str, number: int | None, territory: Territory) -> dict[str, Any]:
        marks = _read(place.folder)
        span = marks.span(number)
        if span is None:
            if number is not None:
                raise UsageError("this turn has no mark")
            return {"git": False, "why": marks.why or (NOT_MARKED if _may_be_in_git(place.cwd) else OUTSIDE)}
        begin, end = span
        state, to = begin.state, None if end is None else end.state.tree
        job = {"root": state.root, "from": state.tree, "to": to, "head": state.head}
        try:
            found = self._run(place, owner, Comparison, do="changes", **job)
        except UsageError as error:
            return {"git": False, "why": str(error)}
        return described(marks, number, _seen(found, territory))

    def _undo(
        self, place: _Place, owner: str, number: int | None, change: Mapping[str, Any], territory: Territory
    ) -> None:
        span = _read(place.folder).span(number)
        if span is None or span[1] is not None:
            raise UsageError("Only what is on the disk now can be put back: show the last turn, or the whole session.")
        state, path = span[0].state, change["path"]
        check_path(path)
        if os.path.normpath(path) != path:
            raise UsageError("This path can't be put back.")
        # No link is followed in the root that was marked, and none below it.
        if not territory.may_write(territory.judge(os.path.join(state.root, path), path)):
            raise UsageError(READ_ONLY)
        self._run(place, owner, Done, do="undo", **change, **{"root": state.root, "from": state.tree})


def _seen(found: Comparison, territory: Territory) -> Comparison:
    """Return what of a comparison is in a territory. Of a tree that begins above it, neither commits nor worktrees."""
    judged = [(file, _refusal(territory, os.path.join(found.root, file.path))) for file in found.files]
    files = [without_text(file) if why == "secret" else file for file, why in judged if why != "outside"]
    if _refusal(territory, found.root) == "outside":
        return msgspec.structs.replace(found, files=files, more=0, commits=[], worktrees={})
    return msgspec.structs.replace(found, files=files)


def _refusal(territory: Territory, path: str) -> Reason | None:
    try:
        territory.judge(path, path)
    except FileRefused as refused:
        return refused.why
    return None


def _may_be_in_git(directory: str) -> bool:
    """Return whether a directory may be in a git working tree: a process looks closer."""
    path = Path(os.path.realpath(directory))
    return any(os.path.lexists(each / ".git") for each in (path, *path.parents))


def _read(folder: Path) -> Marks:
    try:
        return msgspec.json.decode((folder / "marks.json").read_bytes(), type=Marks)
    except (OSError, msgspec.MsgspecError):
        return Marks()


def _write(folder: Path, marks: Marks) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    beside = folder / "marks.new"
    beside.write_bytes(msgspec.json.encode(marks))
    beside.replace(folder / "marks.json")


def _make_room(folder: Path) -> None:
    """Remove the folders of the sessions that were marked least recently, and keep one place free."""
    try:
        found = sorted(folder.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    except OSError:
        return
    for path in found[MAX_SESSIONS - 1 :]:
        shutil.rmtree(path, ignore_errors=True)
