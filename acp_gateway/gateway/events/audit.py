"""The audit: which client did what and when, never what was said. Entries are only appended to `audit.jsonl`.

An entry is a line of JSON in ASCII, written at once, so that several processes may write: the gateway, and the
commands that make and revoke tokens. A file that has become too large is renamed to `audit.jsonl.1`, that one to
`audit.jsonl.2`, and so on; the oldest is removed. A rename holds the lock
of the file, and every writer checks before each line that the file still has its name.

A failure to write does not stop the gateway. The log reports it once, and the number of missing entries is the first
entry when the audit can be written again.

Audit files keep a bounded number of bytes. To keep a client from pushing out older entries by repeating a harmless
action, `AuditThrottle` writes a limited number of entries per event and identity in each window, and counts the others
in one entry with their `count`.
"""

import fcntl
import json
import logging
import math
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Final

import trio

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.rate_limits import EventAggregator, FailureCounter
from acp_gateway.printable import counted
from acp_gateway.protocol.secret_patterns import redact_text
from acp_gateway.rules.rule import Rule

FILE_NAME: Final = "audit.jsonl"
"""Name of the file in `state_dir`."""


@dataclass(frozen=True)
class EventKind:
    """The declaration of an event: its members, and when it is recorded."""

    members: str
    """Names of the members beside `time` and `event`, separated by spaces."""

    when: str


_BROWSER: Final = "label identity token role session"
"""Members of a code for a browser, and of a browser that it signs in."""

EVENTS: Final = {
    "authenticated": EventKind(
        "connection address listener credential identity role request count",
        "A client has signed in; `request` is the id that another gateway gave.",
    ),
    "refused": EventKind(
        "connection address listener reason credential count identity",
        "A connection was refused; with `identity`, an editor's HTTP request.",
    ),
    "attached": EventKind(
        "connection agent identity credential role request",
        "A client is attached to an agent; `request` is the id that another gateway gave.",
    ),
    "detached": EventKind("connection identity why", "A client is detached."),
    "taken_over": EventKind(
        "connection former identity",
        "A client, or a page, goes on over a second connection beside the one that was not lost; `former` is the name "
        "of its first connection.",
    ),
    "node_link": EventKind(
        "node path identity request",
        "A client's connection is passed on to a path of a node, or the node is asked for a client.",
    ),
    "tunnel_opened": EventKind(
        "connection node identity credential", "A client's tunnel to a node was opened, which is not read here."
    ),
    "port_opened": EventKind(
        "connection port program agent session identity credential count",
        "A client's connection to a port of an agent was opened; `session` if it can be of one alone.",
    ),
    "session_joined": EventKind("connection identity session agent owner", "A client is attached to a session."),
    "session_left": EventKind("connection identity session agent", "A client is detached from a session."),
    "session_shared": EventKind(
        "session agent token role identity connection", "A browser has made a link for a guest."
    ),
    "file_written": EventKind(
        "session path size identity connection", "A client has written a file into the folder of a session."
    ),
    "agent_started": EventKind("agent pid url", "An agent is there: its process has `pid`, one that listens `url`."),
    "agent_not_started": EventKind("agent", "An agent could not be started; the log has the reason."),
    "agent_ended": EventKind(
        "agent pid url exitCode signal how",
        "`how` is `exited`, `stopped`, or `given_up` because it did not answer or read.",
    ),
    "permission_decided": EventKind(
        "session agent toolCallId kind decision optionKind connection identity rule ruleBy",
        "A permission was decided; with `rule`, by that one, which `ruleBy` has written.",
    ),
    "rule_written": EventKind(
        "rule ruleBy credential session says connection identity",
        "A client has had a rule for permissions written from a question; `says` is its text, without what looks like "
        "a secret, `session` the only one that it is for.",
    ),
    "rule_removed": EventKind("rule ruleBy credential session says", "By a command; `ruleBy` had written it."),
    "request_held": EventKind(
        "session agent method identities",
        "An agent's request names a session that may be of several identities, so many: no client is shown it.",
    ),
    "elicitation_decided": EventKind(
        "session agent toolCallId decision connection identity",
        "A form was submitted or declined; its content is not recorded.",
    ),
    "tool_call": EventKind(
        "session agent identity toolCallId kind status count",
        "A tool call was begun, `completed` or `failed`, without title, input and output; `identity` is the owner.",
    ),
    "mode_set": EventKind("session agent mode connection identity", "The agent has accepted a mode."),
    "model_set": EventKind("session agent model connection identity", "The agent has accepted a model."),
    "queue_changed": EventKind(
        "session agent action sender connection identity",
        "`remove`, `edit`, `move` or `send_now` of a prompt that waited; `sender` is the identity that had sent it.",
    ),
    "change_undone": EventKind(
        "session agent path whole connection identity",
        "A client has put a file of the session's working tree back, or with `whole` false some of its lines.",
    ),
    "worktree_made": EventKind(
        "connection identity session agent path branch", "A new session has got a git working tree of its own."
    ),
    "worktree_removed": EventKind(
        "session agent path branch connection identity",
        "A client has removed the working tree of a session; `branch` is the one that stays, if one does.",
    ),
    "file_refused": EventKind(
        "session agent identity method path reason count",
        "With `client_fs`: a file outside of the session's directories.",
    ),
    "cwd_refused": EventKind("connection identity agent path reason", "The directory of a session is not allowed."),
    "mcp_server_dropped": EventKind(
        "connection identity agent name kind count", "A client's MCP server was left out of a request."
    ),
    "mcp_server_refused": EventKind(
        "connection identity agent name kind count", "A request was refused because of a client's MCP server."
    ),
    "token_created": EventKind("id label identity", "By a command."),
    "token_rotated": EventKind("id label identity", "By a command."),
    "token_revoked": EventKind("id label identity", "By a command, or because a guest's link was not used."),
    "browser_code_created": EventKind(
        _BROWSER, "By `open`, `share` or a client; without `token` the gateway's own user's."
    ),
    "browser_signed_in": EventKind(f"id {_BROWSER} connection address listener", "A browser has used its code."),
    "browser_ended": EventKind(
        "id label identity token why connection",
        "`signed out`, `revoked`, `replaced`, `token revoked`, `expired` or `unused`.",
    ),
    "push_subscribed": EventKind(
        "id label identity token service", "A browser wants notifications, by this push service."
    ),
    "push_ended": EventKind("id label identity token why", "It gets no more: `turned off`, or `gone` at its service."),
    "invitation_created": EventKind("id label identity role session", "By `share`, for this token."),
    "invitation_accepted": EventKind("id label identity session connection address listener", "By `join`."),
    "ignored_provider_command": EventKind(
        "identity provider connection",
        "The editor bridge has ignored a command; `provider` is the agent's name.",
    ),
    "reloaded": EventKind("problems changed needs_restart", "Files were read again."),
    "entries_lost": EventKind("count", "Entries before this one could not be written."),
}
"""All events. Later versions may add events and members."""


def entry_of_rule(rule: Rule) -> dict[str, Any]:
    """Return what the audit has of a rule that was written or removed."""
    about = {"rule": rule.id, "ruleBy": rule.author, "credential": rule.credential, "session": rule.session}
    return about | {"says": redact_text(str(rule), MAX_TEXT_LENGTH // 2)}


MAX_TEXT_LENGTH: Final = 1024
"""Characters of one value that are kept. Paths and names are shorter; what is longer was made up to fill the disk."""

_MAX_ELEMENTS: Final = 64
"""Elements of a value that has several, and how many levels they may have."""
_MAX_DEPTH: Final = 3

WINDOW: Final = 60.0
"""Seconds in which `SINGLE` counts."""

SINGLE: Final = 60
"""Entries per event and identity that are written one by one in a window. With the default `audit_size`, a flood of all
events takes most of a day to push out older entries."""

_OTHERS: Final = ("various", "various")

_log = logging.getLogger(__name__)


class Audit:
    """The audit of one gateway. Any number of these, in any number of processes, may share one file.

    Args:
        path: the file; it and its directory are made when there is something to write.
        max_size: bytes after which a new file is begun.
        files: how many are kept, the one that is written included.
        now: says the time, in seconds since 1970.
    """

    def __init__(self, path: Path, *, max_size: int, files: int, now: Callable[[], float] = time.time) -> None:
        self._path = path
        self._max_size = max_size
        self._files = files
        self._now = now
        # The open file; -1 for none.
        self._file = -1
        # How many entries could not be written since one could.
        self._lost = 0
        # True once the log has reported that the file can't be renamed.
        self._stuck = False

    def record(self, event: str, **details: Any) -> None:
        """Add an entry; details that are None are left out. Never raises: what goes wrong is logged."""
        entry = {"time": _iso(self._now()), "event": event}
        entry |= {name: _plain(value, _MAX_DEPTH) for name, value in details.items() if value is not None}
        lines = [entry_line(entry)]
        if self._lost:
            lines.insert(0, entry_line({"time": entry["time"], "event": "entries_lost", "count": self._lost}))
        try:
            self._write("".join(f"{line}\n" for line in lines).encode())
        except OSError as error:
            self.close()
            if not self._lost:
                why = f"{error.strerror}: {self._path}" if error.strerror else str(error)
                _log.error("the audit can't be written, entries are missing in it: %s", why)
            self._lost += 1
            return
        if self._lost:
            _log.warning("the audit can be written again; it lacks %s", counted(self._lost, "entry", "entries"))
            self._lost = 0
        self._rotate_when_due()

    def close(self) -> None:
        """Close the file. A later entry opens it again."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1

    def _write(self, lines: bytes) -> None:
        if self._file >= 0 and not self._has_its_name():
            self.close()
        if self._file < 0:
            self._file = self._open()
        size = os.fstat(self._file).st_size
        if size and os.pread(self._file, 1, size - 1) != b"\n":
            # A full disk or a kill has torn the last line; it must not spoil this one.
            lines = b"\n" + lines
        written = os.write(self._file, lines)
        if written < len(lines):
            raise OSError(f"only the beginning of an entry fitted into {self._path}")

    def _has_its_name(self) -> bool:
        try:
            named = os.stat(self._path, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return os.path.samestat(named, os.fstat(self._file))

    def _open(self) -> int:
        """Open the file, or create it. Raises `OSError` for a file that can't be trusted."""
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        # Without waiting for the reader, in case the path is a FIFO.
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            file = os.open(self._path, flags | os.O_EXCL, 0o600)
        except FileExistsError:
            file = os.open(self._path, flags, 0o600)
        else:
            if os.geteuid() == 0:
                # Only a new file: in a directory of another user, an existing one may be a link to anything.
                owner = self._path.parent.stat()
                os.fchown(file, owner.st_uid, owner.st_gid)
        try:
            self._check(os.fstat(file), file)
        except BaseException:
            os.close(file)
            raise
        return file

    def _check(self, status: os.stat_result, file: int) -> None:
        if not stat.S_ISREG(status.st_mode):
            raise OSError(f"{self._path} is not a file")
        if status.st_uid != self._owner():
            raise OSError(f"{self._path} belongs to another user: move it away")
        mode = stat.S_IMODE(status.st_mode)
        if mode & ~0o600:
            _log.error(
                "other users could change %s (mode %04o): its mode is corrected, its entries may be false",
                self._path,
                mode,
            )
            os.fchmod(file, 0o600)

    def _owner(self) -> int:
        """Return the required owner of the file: the gateway's user, also when root writes for it."""
        return self._path.parent.stat().st_uid if os.geteuid() == 0 else os.geteuid()

    def _rotate_when_due(self) -> None:
        try:
            # What root writes for a gateway that runs as a user of its own, that gateway renames.
            if os.fstat(self._file).st_size >= self._max_size and os.geteuid() == self._owner():
                self._rotate()
                self._stuck = False
        except OSError as error:
            if not self._stuck:
                _log.error("the audit's file can't be renamed and grows: %s: %s", error.strerror, self._path)
            self._stuck = True

    def _rotate(self) -> None:
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return  # Another process is at it.
        if self._has_its_name():
            last = self._files - 1
            for number in sorted(_numbers(self._path), reverse=True):
                if number >= last:
                    _numbered(self._path, number).unlink(missing_ok=True)
                else:
                    _numbered(self._path, number).replace(_numbered(self._path, number + 1))
            if last:
                self._path.replace(_numbered(self._path, 1))
            else:
                self._path.unlink()
        self.close()


class _NoAudit(Audit):
    def __init__(self) -> None:
        super().__init__(Path(os.devnull), max_size=0, files=0)

    def record(self, event: str, **details: Any) -> None:
        """Forget it."""


NO_AUDIT: Final[Audit] = _NoAudit()
"""Writes nothing anywhere."""


class AuditReading:
    """The entries of an audit, the oldest first; to be iterated over once.

    Raises `ConfigError` where a file can't be read.
    """

    def __init__(self, path: Path, since: float | None) -> None:
        self.damaged = 0
        """Lines so far that are not entries: torn, or written by something else."""
        self._path = path
        self._since = -math.inf if since is None else since

    def __iter__(self) -> Iterator[dict[str, Any]]:
        with ExitStack() as opened:
            try:
                # Every file before the first line is read, so that renaming one during the reading hides nothing.
                files = self._open_all(opened)
                for file in reversed(files):
                    for line in file:
                        entry = _read_entry(line)
                        if entry is None:
                            self.damaged += bool(line.strip())
                        elif _seconds(entry["time"]) >= self._since:
                            yield entry
            except OSError as error:
                raise ConfigError(f"cannot be read: {error.strerror}", file=str(self._path)) from None

    def _open_all(self, opened: ExitStack) -> list[IO[bytes]]:
        """Open the files, the newest first."""
        oldest = max(_numbers(self._path), default=0)
        files: list[IO[bytes]] = []
        seen = set()
        number = 0
        while True:
            path = _numbered(self._path, number) if number else self._path
            number += 1
            try:
                # Neither what a link leads to, nor to wait for the writer of a FIFO.
                descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except FileNotFoundError:
                if number > oldest:
                    return files
                continue
            file = opened.enter_context(os.fdopen(descriptor, "rb"))
            # Renamed between two steps, one comes up under two names.
            identity = os.fstat(descriptor).st_ino
            if identity not in seen:
                seen.add(identity)
                files.append(file)


class AuditThrottle:
    """Writes to an audit, and aggregates floods. `run` must be running."""

    def __init__(self, audit: Audit) -> None:
        self._audit = audit
        self._entries = FailureCounter(SINGLE, WINDOW)
        # By event and identity.
        self._aggregated = EventAggregator(_OTHERS)

    def record(self, event: str, *, identity: str | None = None, **details: Any) -> None:
        """Write an entry, or count it; an entry without an identity, of the gateway or an agent, is always written."""
        if identity is not None and self._entries.add(f"{event} {identity}", trio.current_time()):
            self._aggregated.add((event, identity))
        else:
            self._audit.record(event, identity=identity, **details)

    async def run(self) -> None:
        """Write the aggregated entries after each window, until cancelled."""
        try:
            while True:
                await trio.sleep(WINDOW)
                self._report()
        finally:
            self._report()

    def _report(self) -> None:
        for (event, identity), count in self._aggregated.take():
            self._audit.record(event, identity=identity, count=count)


def read_audit(path: Path, since: float | None = None) -> AuditReading:
    """The entries of the audit at `path` and of the files that were renamed, from `since` on, in seconds since 1970."""
    return AuditReading(path, since)


def entry_line(value: Any) -> str:
    """An entry, or a part of one, as it is written: JSON in one line, in which a terminal finds nothing to obey."""
    # JSON itself leaves this one control character as it is.
    return json.dumps(value, separators=(",", ":")).replace("\x7f", "\\u007f")


def _plain(value: Any, depth: int) -> Any:
    """The value as JSON can have it, and not too large."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, bool) or (isinstance(value, int) and value.bit_length() < 64):
        return value
    if isinstance(value, dict | list | tuple) and not depth:
        return "…"
    if isinstance(value, dict):
        return {_text(name): _plain(element, depth - 1) for name, element in [*value.items()][:_MAX_ELEMENTS]}
    if isinstance(value, list | tuple):
        return [_plain(element, depth - 1) for element in [*value][:_MAX_ELEMENTS]]
    if value is None:
        return None
    return "a large number" if isinstance(value, int) else _text(value)


def _text(value: object) -> str:
    text = str(value)
    return text if len(text) <= MAX_TEXT_LENGTH else text[:MAX_TEXT_LENGTH] + "…"


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _read_entry(line: bytes) -> dict[str, Any] | None:
    """Return the entry in a line; None for any other line."""
    try:
        entry = json.loads(line)
        _seconds(entry["time"])
        return entry if isinstance(entry["event"], str) else None
    except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
        return None


def _numbered(path: Path, number: int) -> Path:
    return path.with_name(f"{path.name}.{number}")


def _numbers(path: Path) -> list[int]:
    """The numbers of the renamed files there are, in any order."""
    try:
        names = os.listdir(path.parent)
    except FileNotFoundError:
        return []
    found = (re.fullmatch(rf"{re.escape(path.name)}\.([1-9][0-9]{{0,8}})", name) for name in names)
    return [int(match[1]) for match in found if match]
