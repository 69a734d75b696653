"""Serves the HTTP requests of an editor's extension, patched for it, below `/acp/`.

The original of this protocol trusts whatever page calls it: it takes any origin and no token, runs the command in the
body, and approves every permission. Here a request needs what every other one needs, `provider.id` names an agent of
the configuration, and permissions are decided by users.
"""

import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from http import HTTPStatus
from typing import Final, Protocol, TypeVar
from urllib.parse import parse_qs

import trio

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.editor import output as editor_output
from acp_gateway.dialects.editor import requests as editor
from acp_gateway.dialects.editor.answers import JSON, AnswerInLines, AnswerInOnePiece, refusal
from acp_gateway.dialects.editor.requests import BadBody, Provider
from acp_gateway.dialects.editor.service import EditorSection
from acp_gateway.dialects.editor.sessions import Composers, EditorSessions, last_commands, viewer_of
from acp_gateway.dialects.editor.turns import EditorTurn, WaitingMessage
from acp_gateway.errors import AccessError, Forbidden
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.large_messages import check_message
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.gateway.viewing.local_client import ClientEnded
from acp_gateway.gateway.viewing.open_sessions import CallRefused, CannotContinue
from acp_gateway.printable import printable
from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.secret_patterns import redact_text
from acp_gateway.transports.http.head import media_types
from acp_gateway.transports.http.server import RETRY, HttpConnection, Request, Response
from acp_gateway.transports.websocket.stream import REFUSAL_HEADER

log = logging.getLogger(__name__)

WEIGHTS: Final = dict.fromkeys(editor.METHODS, 20) | {editor.LOG: 1, editor.DEBUG: 1}
"""Messages that a request counts as in rate limits: a client joins the session, or all sessions are looked at."""

_NO_CACHE: Final = {"Content-Type": "text/plain; charset=utf-8", "Cache-Control": "no-store"}
_NOSNIFF: Final = {"X-Content-Type-Options": "nosniff"}

NOT_FOUND: Final = Response(HTTPStatus.NOT_FOUND, b"Not Found", _NO_CACHE | _NOSNIFF)
"""Response for a path below `/acp/` that the dialect does not have."""

_OK: Final = Response(HTTPStatus.OK, b"ok", _NO_CACHE | _NOSNIFF)

_LOGGED: Final = 300
"""Characters of an editor's text that are logged."""

_QUERY_FIELDS: Final = 20

_Body = TypeVar("_Body")

NOT_OPEN: Final = "no open permission has this requestId"


class Caller(Protocol):
    """The connection of a request."""

    @property
    def name(self) -> str:
        """Its name in logs."""

    @property
    def address(self) -> str:
        """Address of the client."""

    @property
    def listener(self) -> str:
        """URL of the listener."""


class EditorBridge:
    """The requests of editors at one listener.

    Args:
        gateway: the gateway.
        composers: its composers.
    """

    def __init__(self, gateway: Gateway, composers: Composers) -> None:
        self._gateway = gateway
        self._composers = composers
        self._options = gateway.config.of_service(EditorSection)

    def answer(
        self, caller: Caller, request: Request, access: Access
    ) -> Response | Callable[[HttpConnection], Awaitable[bool]]:
        """Decide a request whose token is right; return its answer, or what writes it.

        That returns whether another request may follow on the connection. Raises `AccessError`.
        """
        restricted = access.role != "controller" or access.session is not None or access.only is not None
        if restricted and request.path in editor.ACTS:
            raise Forbidden("only a controller that is not a guest, and not bound to one session, may do this")
        if request.method == "POST":
            if media_types(request.headers, "Content-Type") != ["application/json"]:
                text = f"{request.path} takes application/json only"
                return refusal(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, text)
            most = self._options.bodies_per_identity
            if self._composers.receiving[access.identity] >= most:
                text = f"bodies_per_identity ({most}) are being received already"
                return refusal(HTTPStatus.TOO_MANY_REQUESTS, text, RETRY)
        self._gateway.admit(access, ConnectRequest(control=True))
        return _EditorRequest(self._gateway, self._composers, access, request, caller).run


class _EditorRequest:
    """One request that is being answered."""

    def __init__(
        self,
        gateway: Gateway,
        composers: Composers,
        access: Access,
        request: Request,
        caller: Caller,
    ) -> None:
        self._gateway = gateway
        self._composers = composers
        self._access = access
        self._request = request
        self._name = caller.name
        self._from = {"address": caller.address, "listener": caller.listener}
        # Only until it is read: an answer may take hours.
        self._body = b""
        self._options = gateway.config.of_service(EditorSection)
        self._charge = gateway.connections.limiter_of(access).charge

    async def run(self, http: HttpConnection) -> bool:
        """Answer the request; return whether another one may follow."""
        connection = ControlConnection(self._access)
        with connection.scope, self._gateway.connections.watched(connection):
            self._body = await self._receive(http, connection) if self._request.method == "POST" else b""
            await trio.sleep(self._charge(WEIGHTS[self._request.path]))
            async with http.while_there() as nursery:
                return await self._answer(http, nursery)
        return False

    async def _receive(self, http: HttpConnection, connection: ControlConnection) -> bytes:
        services = self._gateway.services

        async def received(size: int, pieces: int) -> None:
            connection.input_bytes += size
            services.memory_grew(size)
            await trio.sleep(self._charge(0, size, 0.0, pieces))

        receiving, identity = self._composers.receiving, self._access.identity
        receiving[identity] += 1
        services.inputs.add(connection)
        try:
            timeout = self._gateway.config.limits.message_timeout
            return await http.receive_body(self._options.message_size, received, timeout)
        finally:
            services.inputs.discard(connection)
            receiving -= Counter([identity])

    async def _answer(self, http: HttpConnection, nursery: trio.Nursery) -> bool:
        try:
            self._body = await self._checked()
            match self._request.path:
                case editor.SEND_MESSAGE:
                    return await self._send(http, nursery, await self._read(editor.SendMessage))
                case editor.INIT_SESSION:
                    response = await self._init(nursery, await self._read(editor.InitSession))
                case editor.GET_SESSION:
                    response = await self._get(nursery, await self._read(editor.GetSession))
                case editor.RESPOND:
                    response = await self._respond(nursery, editor.read_respond(self._body))
                case editor.GET_COMMANDS:
                    response = await self._commands()
                case editor.LOG:
                    response = self._log(await self._read(editor.LogEntry))
                case _:
                    response = self._log(editor.LogEntry("debug", self._parameter("msg")))
        except BadBody as error:
            response = refusal(HTTPStatus.BAD_REQUEST, str(error))
        except AccessError as error:
            self._audit("refused", reason=error.reason, **self._from)
            response = refusal(error.http_status, str(error), {REFUSAL_HEADER: error.reason})
        except CallRefused as refused:
            text = str(refused) if refused.response is None else editor_output.failure_of(refused.response)
            response = refusal(HTTPStatus.INTERNAL_SERVER_ERROR, text)
        except ClientEnded as error:
            response = refusal(HTTPStatus.INTERNAL_SERVER_ERROR, str(error))
        return await http.respond(response)

    async def _checked(self) -> bytes:
        """Return the body as it may be read at once, and charge the editor for that. Raises `BadBody`."""
        spent: list[float] = []
        try:
            return await check_message(self._body, spent.append)
        except InvalidMessage as error:
            raise BadBody(str(error)) from None
        finally:
            if spent:
                await trio.sleep(self._charge(0, 0, sum(spent)))

    async def _read(self, kind: type[_Body]) -> _Body:
        """Read the body, and charge the editor for the time that it takes. Raises `BadBody`."""
        began = time.perf_counter()
        body, self._body = self._body, b""
        try:
            return editor.read(body, kind)
        finally:
            await trio.sleep(self._charge(0, 0, time.perf_counter() - began))

    def _agent(self, provider: Provider) -> str:
        """Return the agent that a body names. Raises `AccessError`."""
        if provider.brings_command:
            self._audit("ignored_provider_command", provider=redact_text(provider.id, editor.NAME_SIZE))
        return self._may_use(provider.id)

    def _audit(self, event: str, **details: str) -> None:
        self._gateway.audit_throttle.record(event, connection=self._name, identity=self._access.identity, **details)

    def _may_use(self, agent: str) -> str:
        self._gateway.admit(self._access, ConnectRequest(agent=agent, control=True))
        self._gateway.admissions.check_here(agent)
        return agent

    @asynccontextmanager
    async def _sessions(self, nursery: trio.Nursery) -> AsyncIterator[EditorSessions]:
        sessions = EditorSessions(self._gateway, self._composers, self._access, self._name, nursery)
        try:
            yield sessions
        finally:
            with trio.CancelScope(shield=True):
                await sessions.close()

    # The requests

    async def _send(self, http: HttpConnection, nursery: trio.Nursery, message: editor.SendMessage) -> bool:
        agent = self._agent(message.provider)
        waiting, options = self._composers.waiting, self._options
        if waiting[self._access.identity] + len(message.message) > options.bodies_per_identity * options.message_size:
            text = "messages of this identity wait already that are as large as bodies_per_identity allows"
            return await http.respond(refusal(HTTPStatus.TOO_MANY_REQUESTS, text, RETRY))
        prompt = WaitingMessage(message.message, waiting, self._access.identity)
        message.message = ""
        try:
            return await self._send_prompt(http, nursery, agent, message, prompt)
        finally:
            prompt.take()

    async def _send_prompt(
        self,
        http: HttpConnection,
        nursery: trio.Nursery,
        agent: str,
        message: editor.SendMessage,
        prompt: WaitingMessage,
    ) -> bool:
        async with self._sessions(nursery) as sessions:
            session = await sessions.of_composer(agent, message.composer_id, message.cwd)
            try:
                return await self._run_turn(http, sessions, session, message, prompt)
            except CannotContinue as refused:
                log.info("%s: a composer begins a new session: %s", self._name, refused)
                session = await sessions.replace(agent, message.composer_id, message.cwd)
            return await self._run_turn(http, sessions, session, message, prompt)

    async def _run_turn(
        self,
        http: HttpConnection,
        sessions: EditorSessions,
        session: Session,
        message: editor.SendMessage,
        prompt: WaitingMessage,
    ) -> bool:
        answer: AnswerInLines | AnswerInOnePiece
        if message.stream:
            # A program without a token was not written for this gateway, and may know no permissions.
            answer = AnswerInLines(http, session.id, explains=self._access.by_port)
        else:
            answer = AnswerInOnePiece(http, session.id, session.agent, self._options.message_size)
        turn = EditorTurn(self._gateway, session, sessions.viewer, answer)
        outcome = await turn.run(self._composers.lanes, lambda: sessions.ready(session, message.mode_id), prompt)
        if outcome.stop_reason is None:
            return await answer.failed(outcome.error)
        return await answer.done(outcome.stop_reason)

    async def _init(self, nursery: trio.Nursery, body: editor.InitSession) -> Response:
        agent = self._agent(body.provider)
        async with self._sessions(nursery) as sessions:
            session = await sessions.spare(agent, body.cwd)
            commands = await sessions.commands(session)
        return Response(HTTPStatus.OK, editor_output.session(session.id, commands=commands), JSON)

    async def _get(self, nursery: trio.Nursery, body: editor.GetSession) -> Response:
        agent = self._agent(body.provider)
        async with self._sessions(nursery) as sessions:
            session = await sessions.of_composer(agent, body.composer_id, body.cwd)
        return Response(HTTPStatus.OK, editor_output.session(session.id), JSON)

    async def _respond(self, nursery: trio.Nursery, decision: editor.Respond) -> Response:
        views, viewer = self._gateway.views, viewer_of(self._gateway, self._access)
        for session in list(views.sessions(viewer)):
            asked = views.request(session, viewer, decision.key)
            if asked is not None and asked.method == methods.REQUEST_PERMISSION:
                return await self._decide(nursery, session, asked, decision)
        return refusal(HTTPStatus.NOT_FOUND, NOT_OPEN)

    async def _decide(
        self, nursery: trio.Nursery, session: Session, asked: AgentRequest, decision: editor.Respond
    ) -> Response:
        async with self._sessions(nursery) as sessions:
            client = await sessions.ready(session, None)
            if not client.has(asked):
                return refusal(HTTPStatus.NOT_FOUND, NOT_OPEN)
            reply = asked.reply(decision.result)
            if reply is None:
                raise BadBody("the outcome is not one that the agent has offered")
            if not client.answer(asked, reply):
                return refusal(HTTPStatus.NOT_FOUND, NOT_OPEN)
        return Response(HTTPStatus.OK, editor_output.SUCCESS, JSON)

    async def _commands(self) -> Response:
        agent = self._may_use(self._parameter("providerId"))
        viewer = viewer_of(self._gateway, self._access)
        commands = await last_commands(self._gateway, viewer, agent)
        return Response(HTTPStatus.OK, commands or b"[]", JSON)

    def _log(self, entry: editor.LogEntry) -> Response:
        """Log what the editor says, for those who look for a mistake in it: with `--verbose` alone."""
        text = printable(redact_text(entry.message, _LOGGED), 2 * _LOGGED)
        log.debug("%s: the editor logs (%s): %s", self._name, printable(entry.level, 16), text)
        return _OK

    def _parameter(self, name: str) -> str:
        """Return a parameter of the query. Raises `BadBody` if it is not there once."""
        try:
            values = parse_qs(self._request.query, keep_blank_values=True, max_num_fields=_QUERY_FIELDS).get(name, [])
        except ValueError:
            raise BadBody(f"the query has more than {_QUERY_FIELDS} parameters") from None
        if len(values) != 1:
            raise BadBody(f"the query needs {name}, once")
        return values[0]
