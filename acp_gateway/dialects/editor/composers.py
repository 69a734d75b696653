"""Remembers which session each composer of an editor has, in `state_dir/composers.json`.

A composer is a conversation in an editor's window, by an id that the editor makes up. One identity's composer has one
session with each agent. The file is private and replaced atomically, as those of tokens and browsers are; it names no
message. Only the gateway reads it: a file that can't be read or trusted is left as it is, and composers are remembered
in memory until it can.
"""

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
import trio

from acp_gateway.errors import ConfigError
from acp_gateway.security.private_file import PrivateFile

log = logging.getLogger(__name__)

FILE_NAME: Final = "composers.json"

SPARE: Final = ""
"""Composer of a session that was opened before any composer had one. No composer has this id."""

USE_INTERVAL: Final = 3600.0
"""Minimum seconds between two writes of a composer's last use."""

LOCK_ATTEMPTS: Final = 50
"""Attempts to take the lock of the file."""

_VERSION: Final = 1


class Key(NamedTuple):
    """A composer of one identity with one agent."""

    identity: str
    agent: str
    composer: str


class _Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    identity: str
    agent: str
    composer: str
    session: str
    used: float
    """Seconds since 1970."""


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int = _VERSION
    composers: tuple[_Entry, ...] = ()


class ComposerStore:
    """The composers of one gateway.

    Args:
        state_dir: the folder of the file.
        most: maximum composers of one identity.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, state_dir: Path, most: int, now: Callable[[], float] = time.time) -> None:
        self._most = most
        self._now = now
        what = "list of composers", "let composers begin new sessions"
        decode = msgspec.json.Decoder(_Content).decode
        self._file = PrivateFile[_Content](state_dir / FILE_NAME, _VERSION, decode, _Content(), what)
        self._sessions: dict[Key, str] = {}
        # Time of each one's last use, and the same as last written; the latest use is the last in the first.
        self._used: dict[Key, float] = {}
        self._written: dict[Key, float] = {}
        # False while the file has not been read, so that what others have written is not replaced.
        self._is_read = False
        # The reason why nothing is written, as last logged.
        self._problem: str | None = None
        self._writing = trio.Lock()
        self._read()

    def find(self, key: Key) -> str | None:
        """Return the id of the session of a composer, and note the use; None if none is known."""
        session = self._sessions.get(key)
        if session is not None:
            self._use(key)
        return session

    async def remember(self, key: Key, session: str) -> None:
        """Remember the session of a composer, and write that to the disk. Cancelling does not undo it."""
        self._sessions[key] = session
        self._use(key)
        own = [known for known in self._used if known.identity == key.identity]
        for known in own[: max(0, len(own) - self._most)]:
            self._remove(known)
        await self._write()

    async def forget(self, key: Key) -> None:
        """Forget the session of a composer, and write that to the disk."""
        if key in self._sessions:
            self._remove(key)
            await self._write()

    async def note_uses(self) -> None:
        """Write the last uses, if any was longer than `USE_INTERVAL` after the one that was written."""
        if any(used - self._written.get(key, 0.0) >= USE_INTERVAL for key, used in self._used.items()):
            await self._write()

    def _use(self, key: Key) -> None:
        self._used.pop(key, None)
        self._used[key] = self._now()

    def _remove(self, key: Key) -> None:
        for known in (self._sessions, self._used, self._written):
            known.pop(key, None)

    def _read(self) -> None:
        """Read what an earlier gateway has written."""
        try:
            content = self._file.content()
        except ConfigError as error:
            self._note_problem(str(error))
            return
        self._is_read = True
        for entry in sorted(content.composers, key=lambda entry: entry.used):
            key = Key(entry.identity, entry.agent, entry.composer)
            if key not in self._sessions:
                self._sessions[key] = entry.session
                self._used[key] = self._written[key] = entry.used
        # Those of this process are the latest.
        for key in [key for key in self._used if key not in self._written]:
            self._used[key] = self._used.pop(key)

    async def _write(self) -> None:
        async with self._writing:
            if not self._is_read:
                self._read()
            if not self._is_read:
                return
            uses = dict(self._used)
            entries = tuple(
                _Entry(*key, self._sessions[key], used) for key, used in uses.items() if _is_text(self._sessions[key])
            )
            # Shielded by the thread: a file is written as a whole or not at all.
            problem = await trio.to_thread.run_sync(self._replace, _Content(composers=entries))
            if problem is None:
                self._written = uses
            self._note_problem(problem)

    def _replace(self, content: _Content) -> str | None:
        """Write the file; return the reason why that is not possible."""
        try:
            with self._file.writing(LOCK_ATTEMPTS):
                self._file.write(content)
        except ConfigError as error:
            return str(error)
        return None

    def _note_problem(self, problem: str | None) -> None:
        """Log a problem once, until it is another one or is over."""
        if problem is not None and problem != self._problem:
            log.error("composers are not remembered across a restart: %s", problem)
        self._problem = problem


def _is_text(session: str) -> bool:
    """Return False for an id with half of a character, which an agent can make up and no file can hold."""
    return session.isascii() or not any("\ud800" <= character <= "\udfff" for character in session)
