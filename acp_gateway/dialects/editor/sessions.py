"""Finds, opens and continues the sessions of an editor's composers."""

from collections import Counter
from typing import Final

import trio

from acp_gateway.acp.reading import ABSENT
from acp_gateway.acp.updates import Modes
from acp_gateway.core.sessions.session import EDITOR, Session, SessionReach
from acp_gateway.dialects.editor import output as editor_output
from acp_gateway.dialects.editor import requests as editor
from acp_gateway.dialects.editor.composers import SPARE, ComposerStore, Key
from acp_gateway.dialects.editor.service import EditorSection
from acp_gateway.dialects.editor.turns import Lanes
from acp_gateway.gateway.access import Access, ConnectRequest, unknown_session
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.gateway.viewing.local_client import LocalClient
from acp_gateway.gateway.viewing.open_sessions import CallRefused, CannotContinue, OpenSessions
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.pairs import texts_of

COMMANDS_TIMEOUT: Final = 1.0
"""Seconds to wait for the commands of a new session, which agents tell right behind the response."""


class Composers:
    """The composers of one gateway, and the messages that are being answered."""

    def __init__(self, gateway: Gateway) -> None:
        options = gateway.config.of_service(EditorSection)
        self.store = ComposerStore(gateway.config.gateway.state_dir, options.composers_per_identity)
        self.lanes = Lanes()
        self.receiving: Counter[str] = Counter()
        """Bodies that are being received, by identity."""
        self.waiting: Counter[str] = Counter()
        """Characters of messages whose turns have not begun, by identity."""
        # Of an identity and an agent, held while a composer gets its session.
        self._locks: dict[tuple[str, str], trio.StrictFIFOLock] = {}

    def opening(self, key: Key) -> trio.StrictFIFOLock:
        """Return the lock under which a composer gets its session. There are as many as identities and agents."""
        return self._locks.setdefault((key.identity, key.agent), trio.StrictFIFOLock())


class EditorSessions:
    """The sessions of one request.

    Args:
        gateway: the gateway.
        composers: its composers.
        access: the editor's principal.
        name: name of its connection in the log.
        nursery: lives as long as the request.
    """

    def __init__(
        self,
        gateway: Gateway,
        composers: Composers,
        access: Access,
        name: str,
        nursery: trio.Nursery,
    ) -> None:
        self._gateway = gateway
        self._access = access
        self._composers = composers
        self._timeout = gateway.config.of_service(EditorSection).open_timeout
        self._sessions = OpenSessions(
            gateway,
            access,
            name,
            observe=False,
            start=nursery.start_soon,
            via=EDITOR,
            timeout=self._timeout,
            # An elicitation that no other client answers would make the turn wait for ever.
            shown=(methods.REQUEST_PERMISSION,),
        )

    @property
    def viewer(self) -> Viewer:
        """The editor, as sessions are shown to it."""
        return viewer_of(self._gateway, self._access)

    async def close(self) -> None:
        """Leave all sessions."""
        await self._sessions.close()

    async def of_composer(self, agent: str, composer: str, cwd: str | None) -> Session:
        """Return the session of a composer, a new one if it has none.

        Raises as `OpenSessions.create`, and `UnknownSession`.
        """
        key = Key(self._access.identity, agent, composer)
        async with self._composers.opening(key):
            session = self._known(key)
            if session is None:
                session = await self._take_spare(key, cwd) or await self._sessions.create(agent, cwd)
                await self._composers.store.remember(key, session.id)
        await self._composers.store.note_uses()
        return session

    async def spare(self, agent: str, cwd: str | None) -> Session:
        """Return a session that no composer has, which the next new one gets. Raises as `of_composer`."""
        key = Key(self._access.identity, agent, SPARE)
        async with self._composers.opening(key):
            session = self._unused(key, cwd)
            if session is None:
                session = await self._sessions.create(agent, cwd)
                await self._composers.store.remember(key, session.id)
        return session

    async def replace(self, agent: str, composer: str, cwd: str | None) -> Session:
        """Return a new session of a composer, whose former one can't be continued. Raises as `of_composer`."""
        key = Key(self._access.identity, agent, composer)
        async with self._composers.opening(key):
            session = await self._sessions.create(agent, cwd)
            await self._composers.store.remember(key, session.id)
        return session

    def _find(self, key: Key) -> Session | None:
        """Return the session of a composer, if it still exists."""
        session_id = self._composers.store.find(key)
        if session_id is None:
            return None
        return self._gateway.registry.find(SessionReach(key.identity), key.agent, session_id)

    def _known(self, key: Key) -> Session | None:
        """Return the session of a composer, if it still exists. Raises `UnknownSession` if it is out of reach."""
        session = self._find(key)
        if session is not None and not self.viewer.sees(session):
            # Another token of the identity has opened it, in a workspace that this one may not use.
            raise unknown_session(session.id)
        return session

    def _unused(self, key: Key, cwd: str | None) -> Session | None:
        """Return the spare session if it has had no prompt, and is where a new one would be."""
        session = self._find(key)
        if session is None or not self.viewer.sees(session) or not self._sessions.is_open(session):
            return None
        is_used = session.title is not None or session.turns
        return None if is_used or session.cwd != (cwd or self._sessions.default_directory(key.agent)) else session

    async def _take_spare(self, key: Key, cwd: str | None) -> Session | None:
        spare = key._replace(composer=SPARE)
        session = self._unused(spare, cwd)
        if session is not None:
            await self._composers.store.forget(spare)
        return session

    # At the agent

    async def ready(self, session: Session, mode: str | None) -> LocalClient:
        """Return a client in a session; set the mode of the session if one is asked for.

        Raises `CallRefused`, `CannotContinue`, `AccessError` and `ClientEnded`.
        """
        try:
            client = await self._sessions.join(session)
        except CallRefused as refused:
            if is_lost(refused) and not session.live:
                # Another one takes its place within `subscribed_sessions`.
                await self._sessions.leave(session)
                raise CannotContinue(refused.code, f"the agent {session.agent} can't continue the session") from None
            raise
        if mode and mode != Modes.read(session.result.get("modes", ABSENT)).current_mode_id:
            response = await client.request(methods.SET_MODE, editor.set_mode(session.id, mode))
            if response.error:
                raise CallRefused.by(response)
        return client

    async def commands(self, session: Session) -> bytes:
        """Return the commands of a session, as a JSON array; waits for those of a new one a moment."""
        with (
            trio.move_on_after(COMMANDS_TIMEOUT),
            self._gateway.changes.subscribe(lambda changed: changed is session) as changes,
        ):
            changes.follow(session)
            while commands_of(session) is None:
                await changes.wait()
        return commands_of(session) or b"[]"


def is_lost(refused: CallRefused) -> bool:
    """Return True if a session can't be continued because its agent does not have it any more."""
    if isinstance(refused, CannotContinue):
        return True
    if refused.response is None:
        return False
    return lookup.error_code(refused.response) == jsonrpc.SESSION_NOT_FOUND


def commands_of(session: Session) -> bytes | None:
    """Return the last commands of a live session, as a JSON array; None if none are known."""
    return editor_output.commands_in(texts_of(session.journal.states())) if session.journal.epoch else None


def viewer_of(gateway: Gateway, access: Access) -> Viewer:
    """Return a principal as sessions are shown to it. Raises `AccessError`."""
    grant = gateway.admissions.authorize(access, ConnectRequest(control=True))
    return gateway.views.viewer(grant.reach, grant.role, access.agents)


async def last_commands(gateway: Gateway, viewer: Viewer, agent: str) -> bytes | None:
    """Return the commands that an agent has told last, as a JSON array; None if none are known.

    Where no session is live they are those of the latest one, from its stored history. Raises `Busy`.
    """
    sessions = [session for session in gateway.views.sessions(viewer) if session.agent == agent]
    sessions.sort(key=lambda session: session.active_at or session.created_at or 0, reverse=True)
    for session in sessions:
        found = commands_of(session)
        if found is not None:
            return found
    if not sessions:
        return None
    stored = await gateway.history.read(sessions[0], limit=1)
    return editor_output.commands_in([*stored.states, *stored.messages])
