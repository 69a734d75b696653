"""Remembers what clients call sessions, and what agents have offered last, in `state_dir/ahp.json`.

A client chooses the URI of a session that it creates, and the agent the id, once the session has begun. The file is
private and replaced atomically; it has no message of a user. Read marks and drafts are in memory alone.
"""

import logging
from collections.abc import Hashable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.ahp.options import MEMBERS, OFFER_SIZE, Options, read_options
from acp_gateway.dialects.ahp.wire import provider_names
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.security.private_file import PrivateFile

log = logging.getLogger(__name__)

FILE_NAME: Final = "ahp.json"

MOST_SESSIONS: Final = 500
"""Sessions of one identity whose URIs are remembered, some 200 bytes each: VS Code creates two for each that is used,
and disposes of one. A session whose URI is forgotten has the one that its id makes."""

TURNS: Final = 16
"""Turns of a session whose ids are remembered: what a client may send again after a restart of the gateway."""

MOST_TURNS: Final = 1000
"""Sessions of all identities whose turns are remembered, the latest; some 700 bytes each."""

MARKS: Final = 2000
DRAFTS: Final = 100
"""Read marks and drafts that are kept, of all identities: the latest."""

_LOCK_ATTEMPTS: Final = 50

_VERSION: Final = 1


class Named(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A session under the URI that a client has chosen."""

    identity: str
    uri: str
    agent: str
    session: str = ""
    """Its name at the gateway; empty while it has not begun."""
    cwd: str | None = None
    config: dict[str, str] = {}
    """The choices that were made for it before it has begun."""


class _Content(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    version: int = _VERSION
    sessions: tuple[Named, ...] = ()
    providers: dict[str, str] = {}
    offers: dict[str, dict[str, str]] = {}
    turns: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Agent, name and ids of turns of sessions."""


class AhpStore:
    """The names and offers of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        what = "list of VS Code's sessions", "let VS Code find them under other names"
        path: Path = gateway.config.gateway.state_dir / FILE_NAME
        decode = msgspec.json.Decoder(_Content).decode
        self._file = PrivateFile[_Content](path, _VERSION, decode, _Content(), what)
        # By identity and URI, the latest last.
        self._named: dict[tuple[str, str], Named] = {}
        self._uris: dict[tuple[str, str, str], str] = {}
        self._providers: dict[str, str] = {}
        self._offers: dict[str, dict[str, str]] = {}
        # By agent and name of the session, the latest last.
        self._turns: dict[tuple[str, str], tuple[str, ...]] = {}
        # The end of the last turn when a session was marked as read, by identity and session; and the drafts.
        self._read: dict[tuple[str, Session], object] = {}
        self._drafts: dict[tuple[str, str], dict[str, Any]] = {}
        self._writing = trio.Lock()
        self._is_read = False
        self._load()

    # Sessions

    def find(self, identity: str, uri: str) -> Named | None:
        """Return the session that a client of an identity has created under a URI."""
        return self._named.get((identity, uri))

    def uri_of(self, identity: str, agent: str, session: str) -> str | None:
        """Return the URI under which a session was created; None for one that was created otherwise."""
        return self._uris.get((identity, agent, session))

    def put(self, named: Named) -> None:
        """Remember a session, or that it has begun."""
        key = named.identity, named.uri
        self.drop(*key)
        self._named[key] = named
        if named.session:
            self._uris[named.identity, named.agent, named.session] = named.uri
        own = [each for each in self._named if each[0] == named.identity]
        for each in own[: max(0, len(own) - MOST_SESSIONS)]:
            self.drop(*each)

    def drop(self, identity: str, uri: str) -> None:
        """Forget a session."""
        named = self._named.pop((identity, uri), None)
        if named is not None:
            self._uris.pop((identity, named.agent, named.session), None)

    def forget(self, session: Session) -> bool:
        """Forget a session that does not exist any more; return False if nothing was known of it."""
        uri = self.uri_of(session.owner, session.agent, session.name)
        if uri is not None:
            self.drop(session.owner, uri)
        return self._turns.pop((session.agent, session.name), None) is not None or uri is not None

    # Agents

    def providers(self, agents: tuple[str, ...]) -> Mapping[str, str]:
        """Return the providers of agents, by their names."""
        self._providers = provider_names(agents, self._providers)
        return self._providers

    def note_offer(self, session: Session) -> bool:
        """Remember what is offered in a session; return True if its agent has offered something else before."""
        offer = {
            name: session.result[name].decode() for name in MEMBERS if session.result.get(name, b"null") != b"null"
        }
        same = self._offers.get(session.agent, {}) == offer
        if not session.result or same or sum(map(len, offer.values())) > OFFER_SIZE:
            return False
        self._offers[session.agent] = offer
        return True

    def options(self, agent: str) -> Options:
        """Return what an agent has offered in its last session."""
        return read_options({name: value.encode() for name, value in self._offers.get(agent, {}).items()})

    # Turns

    def note_turn(self, session: Session, turn: str) -> None:
        """Remember that a prompt is about to be sent: an agent of version 2 gives it another id in the history."""
        turns = (*self.turns(session), turn)[-TURNS:]
        _keep(self._turns, (session.agent, session.name), turns, MOST_TURNS)

    def turns(self, session: Session) -> tuple[str, ...]:
        """Return the ids of the latest turns of a session that clients have begun."""
        return self._turns.get((session.agent, session.name), ())

    # In memory

    def mark(self, reader: str, session: Session, *, is_read: bool) -> None:
        """Mark a session as read until its next turn ends, or as not read."""
        if is_read:
            _keep(self._read, (reader, session), session.last_turn, MARKS)
        else:
            self._read.pop((reader, session), None)

    def is_read(self, reader: str, session: Session) -> bool:
        """Return True for a session that a reader, an identity or a guest, has read."""
        key = reader, session
        return key in self._read and self._read[key] is session.last_turn

    def set_draft(self, reader: str, uri: str, draft: dict[str, Any] | None) -> None:
        """Keep the draft of a reader in a session; None removes it."""
        if draft is not None and draft.get("text"):
            _keep(self._drafts, (reader, uri), draft, DRAFTS)
        else:
            self._drafts.pop((reader, uri), None)

    def draft(self, reader: str, uri: str) -> dict[str, Any] | None:
        """Return the draft of a reader in a session."""
        return self._drafts.get((reader, uri))

    # On the disk

    async def save(self) -> None:
        """Write names and offers to the disk. Cancelling does not undo it."""
        async with self._writing:
            turns = tuple((*key, ids) for key, ids in self._turns.items())
            content = _Content(_VERSION, tuple(self._named.values()), self._providers, self._offers, turns)
            # Shielded by the thread: a file is written as a whole or not at all.
            problem = await trio.to_thread.run_sync(self._replace, content) if self._is_read else None
        if problem is not None:
            log.error("names of VS Code's sessions are not remembered across a restart: %s", problem)

    def _load(self) -> None:
        try:
            content = self._file.content()
        except ConfigError as error:
            # What can't be read is not replaced.
            log.error("names of VS Code's sessions are not known: %s", error)
            return
        self._is_read = True
        self._providers, self._offers = dict(content.providers), dict(content.offers)
        self._turns = {(agent, session): ids for agent, session, ids in content.turns}
        for named in content.sessions:
            self.put(named)

    def _replace(self, content: _Content) -> str | None:
        try:
            with self._file.writing(_LOCK_ATTEMPTS):
                self._file.write(content)
        except (ConfigError, UnicodeEncodeError) as error:
            return str(error)
        return None


def _keep(kept: dict[Any, Any], key: Hashable, value: object, most: int) -> None:
    """Set a member as the latest one, and drop the oldest beyond so many."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]
