"""Forwards the ports that agents offer to the user of an editor, where the host's entry says `forward`.

A port that an agent's text offers as `localhost:6006` is looked up at the gateway. If a program of that session listens
there, the same port of this machine leads to it, or a free one, until the end of the connection. With "ask", the editor
asks its user first, as for permission to call a tool; so that is done while a turn runs.

What is told to the editor is composed here. The gateway has sent none of it, so it counts nowhere.
"""

import json
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import trio

from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports import forwarding
from acp_gateway.client.ports.session_ports import LOOK_INTERVAL
from acp_gateway.errors import CannotListen, GatewayError
from acp_gateway.protocol.methods import (
    CANCEL_REQUEST,
    REQUEST_PERMISSION,
    SESSION_UPDATE,
    TOOL_CALL,
    TOOL_CALL_UPDATE,
)
from acp_gateway.protocol.text.json_text import read_envelope, text_at
from acp_gateway.terminal.content import members_of, text_of
from acp_gateway.terminal.port_lines import Offers, Port, way_to
from acp_gateway.transports.streams import is_utf8

log = logging.getLogger(__name__)

MOST: Final = 16
"""Maximum ports that are forwarded or asked for over one connection: an agent may offer thousands."""

MOST_OFFERED: Final = 64
"""Maximum ports of a session, and maximum sessions, that are remembered until it is known what listens."""

LARGE: Final = 1024 * 1024
"""Bytes of an update beyond which it is not read: it would hold up the others for milliseconds."""

PRIVILEGED: Final = 1024
"""The first port that is not for services of the system, which none may pass for."""

_ID: Final = "acp-gateway-forward-"
_ID_BYTES: Final = f'"{_ID}'.encode()
_UPDATE: Final = SESSION_UPDATE.rpartition("/")[2].encode()

_FORWARD: Final = "forward"
_OPTIONS: Final = (
    {"optionId": _FORWARD, "name": "Forward", "kind": "allow_once"},
    {"optionId": "not", "name": "Not this time", "kind": "reject_once"},
)


class Ways(NamedTuple):
    """The gateway, as far as ports are concerned."""

    target: str
    """Its name for commands."""
    node: str
    """The node whose ports they are; empty for its own."""
    look: Callable[[str], Awaitable[list[Port]]]
    """Returns the ports of a session by its id. Raises `GatewayError`."""
    destination: Callable[[], Destination]
    """Returns the gateway whose tunnels lead there. Raises `GatewayError`."""


@dataclass
class _Session:
    """The offers of a session's agent."""

    offers: Offers = field(default_factory=Offers)
    ports: dict[int, None] = field(default_factory=dict)
    """Ports whose programs are not known yet, in the order in which they were offered."""


@dataclass(frozen=True)
class _Question:
    session: str
    port: Port
    id: str
    """Of the request and of the tool call that it is about."""


class EditorForwards:
    """The forwarded ports of one editor.

    Args:
        ways: leads to the ports.
        asks: True to ask the user before each.
    """

    def __init__(self, ways: Ways, *, asks: bool) -> None:
        self._ways = ways
        self._asks = asks
        self._sessions: dict[str, _Session] = {}
        # Sessions with a turn of the editor.
        self._turns: frozenset[str] = frozenset()
        self._wanted = trio.Event()
        # Numbers of ports that were forwarded, or asked for.
        self._settled: set[int] = set()
        self._is_full = False
        self._questions: dict[str, _Question] = {}

    def receive(self, messages: Sequence[bytes], turns: Collection[str]) -> None:
        """Take note of messages to the editor, and of the sessions in which it has a turn after them."""
        for message in messages:
            if _UPDATE in message and len(message) <= LARGE:
                self._read(message)
        before, self._turns = self._turns, frozenset(turns)
        for name in before - self._turns:
            if name in self._sessions:
                self._offer(self._sessions[name], self._sessions[name].offers.end())
            for question in [each for each in self._questions.values() if each.session == name]:
                self._withdraw(question)
        if self._turns != before and any(session.ports for session in self._sessions.values()):
            self._wanted.set()

    def _read(self, message: bytes) -> None:
        try:
            params = members_of(members_of(json.loads(message)).get("params"))
        except (ValueError, RecursionError):
            return
        name, update = text_of(params.get("sessionId")), members_of(params.get("update"))
        session = self._sessions.get(name)
        if session is None:
            session = self._sessions[name] = _Session()
            if len(self._sessions) > MOST_OFFERED:
                del self._sessions[next(iter(self._sessions))]
        self._offer(session, session.offers.receive(update))

    def _offer(self, session: _Session, ports: Sequence[int]) -> None:
        for port in ports:
            if port not in self._settled:
                session.ports[port] = None
                self._wanted.set()
        while len(session.ports) > MOST_OFFERED:
            del session.ports[next(iter(session.ports))]

    def take_response(self, message: bytes) -> bool:
        """Take a response of the editor to a question from here; return False for any other message."""
        if _ID_BYTES not in message or not is_utf8(message):
            return False
        envelope = read_envelope(message)
        if envelope is None or envelope.method is not None or not (envelope.raw_id or b"").startswith(_ID_BYTES):
            return False
        question = self._questions.pop(json.loads(envelope.raw_id or b""), None)
        if question is None:
            return True  # Withdrawn before.
        if text_at(message, "result", "outcome", "optionId") == _FORWARD:
            self._nursery.start_soon(self._forward, question.session, question.port, question.id)
        else:
            self._end_call(question, "Not forwarded.")
        return True

    async def run(
        self, send: Callable[[list[bytes]], None], note: Callable[[str, str], bytes], can_ask: Callable[[], bool]
    ) -> None:
        """Look up what is offered, and forward it, until cancelled, which closes all connections.

        Args:
            send: sends messages to the editor.
            note: composes the update for a session from a text.
            can_ask: returns whether the editor understands questions of version 1.
        """
        self._send, self._note, self._can_ask = send, note, can_ask
        async with trio.open_nursery() as self._nursery:
            while True:
                await self._wanted.wait()
                self._wanted = trio.Event()
                for name, session in list(self._sessions.items()):
                    if session.ports:
                        await self._look(name, session)
                await trio.sleep(LOOK_INTERVAL)

    async def _look(self, name: str, session: _Session) -> None:
        """Settle the ports of a session on which its programs listen. After a turn, the others are forgotten."""
        is_over = name not in self._turns
        offered = dict(session.ports)
        try:
            found = await self._ways.look(name)
        except GatewayError as error:
            log.info("the ports of a session are not known: %s", error)
            found = []
        for port in found:
            if port.number not in offered or port.number in self._settled:
                continue
            if self._asks and self._can_ask() and name not in self._turns:
                del offered[port.number]  # It is asked for in the next turn.
            elif len(self._settled) < MOST:
                self._settle(name, port)
            elif not self._is_full:
                self._is_full = True
                self._tell(name, f"port {port} and later ones are left out, as {MOST} are the most: {self._way(port)}")
        for number in offered:
            if is_over or number in self._settled:
                session.ports.pop(number, None)

    def _settle(self, name: str, port: Port) -> None:
        self._settled.add(port.number)
        if not self._asks:
            self._nursery.start_soon(self._forward, name, port)
        elif self._can_ask():
            self._ask(name, port)
        else:
            self._tell(name, f"a program listens on port {port}: {self._way(port)}")

    def _ask(self, name: str, port: Port) -> None:
        question = _Question(name, port, f"{_ID}{port.number}")
        self._questions[question.id] = question
        title = f"Forward port {port} of {self._ways.target} to this machine"
        call = {"toolCallId": question.id, "title": title, "kind": "other", "status": "pending"}
        params = {"sessionId": name, "toolCall": call, "options": _OPTIONS}
        # Some editors know only tool calls that an update has told.
        self._send(
            [_update(name, {"sessionUpdate": TOOL_CALL, **call}), _message(REQUEST_PERMISSION, params, question.id)]
        )

    def _withdraw(self, question: _Question) -> None:
        del self._questions[question.id]
        self._send([_message(CANCEL_REQUEST, {"requestId": question.id})])
        self._end_call(question, f"Not forwarded, as the turn has ended: {self._way(question.port)}")

    def _end_call(self, question: _Question, text: str, status: str = "failed") -> None:
        content = [{"type": "content", "content": {"type": "text", "text": text}}]
        call = {"sessionUpdate": TOOL_CALL_UPDATE, "toolCallId": question.id, "status": status, "content": content}
        self._send([_update(question.session, call)])

    async def _forward(self, name: str, port: Port, call: str = "") -> None:
        """Forward a port until cancelled; `call` is the id of the tool call by which it was asked for."""
        question = _Question(name, port, call)
        try:
            listener = await _listen_near(port.number, self._ways.target)
        except CannotListen as error:
            if call:
                self._end_call(question, str(error))
            self._tell(name, f"port {port} is not forwarded: {error}")
            return
        where = f"http://{forwarding.LOCALHOST}:{forwarding.port_of(listener)}"
        if call:
            self._end_call(question, where, "completed")
        self._tell(name, f"port {port} of {self._ways.target} is {where} on this machine.")
        async with listener:
            await forwarding.forward(listener, self._ways.destination, port.number, _log_failure)

    def _tell(self, name: str, words: str) -> None:
        self._send([self._note(name, f"\n\n[acp-gateway: {words}]\n\n")])

    def _way(self, port: Port) -> str:
        return way_to(self._ways.target, port.number, self._ways.node)


async def _listen_near(port: int, target: str) -> trio.SocketListener:
    """Listen on the port of this number, or on a free one. Raises `CannotListen`."""
    try:
        return await forwarding.listen(port if port >= PRIVILEGED else 0, port, target)
    except CannotListen:
        return await forwarding.listen(0, port, target)


def _log_failure(why: str) -> None:
    log.info("a connection to a forwarded port: %s", why)


def _message(method: str, params: Mapping[str, Any], request_id: str | None = None) -> bytes:
    members = {} if request_id is None else {"id": request_id}
    return json.dumps({"jsonrpc": "2.0", **members, "method": method, "params": params}).encode()


def _update(session: str, update: Mapping[str, Any]) -> bytes:
    return _message(SESSION_UPDATE, {"sessionId": session, "update": update})
