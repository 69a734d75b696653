"""Serves `/chat`: the connection of one chat widget, which sends and gets events instead of JSON-RPC.

A widget uses the sessions that it has created or loaded on this connection; no other one exists for it.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Hashable, Sequence
from typing import Final

from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.dialects.chat import requests as chat
from acp_gateway.dialects.chat.output import ChatOutput
from acp_gateway.dialects.chat.requests import ChatCall, Invalid
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.sessions.history import HistorySlice
from acp_gateway.gateway.sessions.session_changes import Changed
from acp_gateway.gateway.viewing.local_client import ClientEnded
from acp_gateway.gateway.viewing.open_sessions import CallRefused, Used, not_open
from acp_gateway.gateway.viewing.session_connection import SessionConnection
from acp_gateway.gateway.viewing.session_feed import SessionFeed
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.members import Sizes
from acp_gateway.protocol.text.pairs import texts_of

log = logging.getLogger(__name__)

VIA: Final = "chat"
"""Kind of client, as others are shown it."""

WEIGHTS: Final = {chat.NEW: 20, chat.LOAD: 20}
"""Messages that an event counts as in rate limits, by what it takes. Others are one."""

_NOT_FOUND: Final = 404

_OPENED: Final = ("modes", "models", "configOptions")
"""Members of the result of opening a session that a widget is told."""


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


class ChatBridge(SessionConnection[ChatCall]):
    """Serves one widget.

    Args:
        gateway: the gateway, which must be running.
        access: the widget's principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        name: its name in the log and the audit.
        now: returns the time in milliseconds since 1970.

    Raises what `Gateway.admit` raises.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        wanted: ConnectRequest,
        name: str,
        now: Callable[[], int] = _wall_clock,
    ) -> None:
        super().__init__(gateway, access, wanted, name, VIA, frozenset({methods.REQUEST_PERMISSION}))
        limits = gateway.config.limits
        self._sizes = Sizes(limits.session_request_size, limits.decision_size)
        self._output = ChatOutput(now)
        # The sessions that exist for the widget, by id; and what it was told of their modes and options.
        self._known: dict[str, Session] = {}
        self._told: dict[Session, dict[str, bytes]] = {}
        self._handlers: dict[str, Callable[[ChatCall], Awaitable[None]]] = {
            chat.SEND: self._send_message,
            chat.CANCEL: self._cancel_turn,
            chat.RESPOND: self._respond,
            chat.SET_MODE: self._change_mode,
            chat.LOAD: self._load_session,
            chat.NEW: self._new_session,
        }

    # From the widget

    def _receive(self, text: bytes) -> int:
        try:
            call = chat.read(text, self._sizes)
        except Invalid as error:
            self.reply(self._output.failure(error.session, error.code, str(error), error.request_type))
            return 1
        if call.acts and self.admitted.role is Role.OBSERVER:
            self._fail(call, jsonrpc.METHOD_NOT_FOUND, f"observers may only look: no {call.type}")
            return 1
        self.lanes.add(call, self._lane(call), len(text))
        return WEIGHTS.get(call.type, 1)

    def _failure(self, why: str) -> bytes:
        return self._output.failure(None, jsonrpc.INVALID_REQUEST, why)

    def _lane(self, call: ChatCall) -> Hashable:
        """Return the session whose calls a call waits for; itself if it waits for none, as those of browsers."""
        if call.session is None:
            return call
        waits = any(it.type == chat.SEND for it in self.lanes.of(call.session))
        return call if call.type == chat.CANCEL and not waits else call.session

    async def _serve_call(self, call: ChatCall) -> None:
        try:
            await self._handlers[call.type](call)
        except CallRefused as refused:
            if refused.response is not None:
                self._fail_by(call, refused.response)
            else:
                self._fail(call, refused.code, str(refused), refused.data)
        except AccessError as error:
            if error.http_status == _NOT_FOUND and call.session is not None:
                self._fail_unknown(call)
            else:
                code = jsonrpc.INVALID_PARAMS if error.http_status == _NOT_FOUND else error.http_status
                self._fail(call, code, str(error), {"reason": error.reason})
        except ClientEnded as error:
            self._fail(call, jsonrpc.INTERNAL_ERROR, str(error), {"reason": error.reason})

    def _fail(self, call: ChatCall, code: int, text: str, data: object = None) -> None:
        self.reply(self._output.failure(call.session, code, text, call.type, data))

    def _fail_unknown(self, call: ChatCall) -> None:
        self._fail(call, chat.SESSION_NOT_FOUND, "Session not found", {"sessionId": call.session})

    def _fail_by(self, call: ChatCall, response: Message) -> None:
        """Tell the error of an ACP response."""
        code, data = lookup.error_code(response), None
        if code is None:
            code = jsonrpc.INTERNAL_ERROR
        elif code == jsonrpc.SESSION_NOT_FOUND:
            # One code for a session that does not exist, here or at the agent.
            code, data = chat.SESSION_NOT_FOUND, {"sessionId": call.session}
        self._fail(call, code, lookup.text_at(response.text, "error", "message") or "internal error", data)

    def _session(self, call: ChatCall) -> Session:
        """Return a session that was created or loaded here. Raises `CallRefused`."""
        session = self._known.get(call.session or "")
        if session is None or not self.admitted.viewer.sees(session):
            data = {"sessionId": call.session}
            raise CallRefused(chat.SESSION_NOT_FOUND, "Session not found", data)
        return session

    async def _send_message(self, call: ChatCall) -> None:
        session = self._session(call)
        await self.sessions.prompt(
            session, chat.acp_request(call, session.id), lambda response: self._fail_by(call, response)
        )
        self._tell_options(session)

    async def _cancel_turn(self, call: ChatCall) -> None:
        session = self._session(call)
        await self.sessions.cancel(session)

    async def _change_mode(self, call: ChatCall) -> None:
        session = self._session(call)
        await self.sessions.pass_on(session, chat.acp_request(call, session.id))
        self._tell_options(session)

    async def _respond(self, call: ChatCall) -> None:
        viewer = self.admitted.viewer
        for session in filter(viewer.sees, list(self._known.values())):
            agent_request = self.gateway.views.request(session, viewer, call.members["requestId"])
            if agent_request is not None and agent_request.method == methods.REQUEST_PERMISSION:
                await self.sessions.answer(session, agent_request, call.result)
                return
        raise not_open()

    async def _new_session(self, call: ChatCall) -> None:
        members = call.members
        agent = members.get("agent") or self.admitted.grant.connect_request.agent
        session = await self.sessions.new(call.type, agent, members.get("cwd"))
        self._begin_feed(session, "session_created")

    async def _load_session(self, call: ChatCall) -> None:
        session = self.sessions.find(call.session or "", self.admitted.viewer)
        self.sessions.use(session)
        if self.sessions.is_open(session):
            await self.sessions.try_join(session)
        await self._tell_history(session)

    # To the widget

    async def _tell_history(self, session: Session) -> None:
        """Tell a session from its beginning. Raises `Busy` if the disk is too slow."""
        if session.journal.epoch:
            self._begin_feed(session, "session_loaded")
            return
        # One history of the connection, and a few of its identity, are read and wait to be told.
        async with self.composing:
            await self.wait_quiet()
            async with self.large_responses:
                found = await self.gateway.history.read(session)
                feed = self._begin_feed(session, "session_loaded", found)
                del found
                await self.wait_told(feed)

    def _begin_feed(self, session: Session, kind: str, found: HistorySlice | None = None) -> SessionFeed:
        """Tell that a session was opened, and begin to tell its history; `found` was read from the disk."""
        used, journal = self.sessions.use(session), session.journal
        self.changes.follow(session)
        views, viewer = self.gateway.views, self.admitted.viewer
        view = views.view(session, viewer)
        if found is None:
            epoch, position, truncated = journal.epoch, journal.start, journal.truncated
            states: Sequence[bytes] = texts_of(journal.states(position))
        else:
            epoch, position, states, truncated = found.epoch, found.first - 1, found.states, found.truncated
        self._known[session.name] = session
        told = self._told[session] = {name: session.result.get(name, b"null") for name in _OPENED}
        about = {"agent": session.agent, "cwd": session.cwd, "title": session.title, "status": view.status}
        members = {name: jsonrpc.encode(value) for name, value in about.items()} | told
        if kind == "session_loaded":
            members["truncated"] = jsonrpc.encode(truncated)
        self.reply(self._output.opened(kind, session.name, members))
        for text in self._output.updates(session.id, states, 0, [None] * len(states), session.name):
            self.reply(text)
        feed = SessionFeed(view, viewer, views, epoch, (position, 0), self._output, found, knows_requests=False)
        used.feed = feed
        self.feeds.add(feed)
        return feed

    def _feed_stopped(self, used: Used) -> None:
        used.feed = None
        self.start(self._tell_again, used.session)

    async def _tell_again(self, session: Session) -> None:
        """Tell a session whose history was replaced, or cut behind what was told, from its beginning."""
        if self._known.get(session.name) is not session or not self.admitted.viewer.sees(session):
            return
        try:
            await self._tell_history(session)
        except AccessError as error:
            self.reply(
                self._output.failure(session.name, error.http_status, str(error), None, {"reason": error.reason})
            )

    def _tell_options(self, session: Session) -> None:
        """Tell modes and options that are known only since the session was opened again."""
        told = self._told.get(session)
        if told is None:
            return
        new = {name: session.result.get(name, b"null") for name, value in told.items() if value == b"null"}
        new = {name: value for name, value in new.items() if value != b"null"}
        if new:
            told |= new
            self.reply(self._output.opened("config", session.name, new))

    def _note(self, changed: Changed) -> None:
        for session in changed.removed:
            self._told.pop(session, None)
            if self._known.get(session.name) is session:
                del self._known[session.name]
                data = {"sessionId": session.name}
                text = "Session not found: it does not exist any more"
                self.reply(self._output.failure(session.name, chat.SESSION_NOT_FOUND, text, None, data))
