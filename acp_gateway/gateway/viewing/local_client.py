"""An ACP client inside the process, for what serves other dialects than ACP.

To the gateway it is a client like any other: admitted by its principal, with a role, a presence, limits and entries in
the audit; and it ends with its credential. It has no link that could be resumed. When it leaves, its turns and its
queued prompts go on, wherever the agent outlives its clients.

An agent with `scope = "connection"` ends with the last connection of its owner. A page is reloaded, and a phone sleeps:
so its client stays in the session for as long as the link of an editor would, counts as away, and the browser takes it
over when it returns.
"""

import logging
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import trio

from acp_gateway import __version__
from acp_gateway.core.agent_requests import AgentRequest, Reply
from acp_gateway.core.sessions.session import Client, Role, Session
from acp_gateway.core.turns.queue import QueueChange
from acp_gateway.errors import AgentError
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import InvalidMessage, Kind, Message
from acp_gateway.transports.memory import DirectStream

log = logging.getLogger(__name__)

PROTOCOL_VERSION: Final = 1

LEAVE_TIMEOUT: Final = 1.0
"""Seconds in which the gateway has to notice that a client has left; it takes a few steps of its tasks."""

CLIENT_LEFT: Final = "the connection to the agent was lost"

Answered: TypeAlias = Callable[[Message | None], None]
"""Takes the response to a request; None if the client has ended before."""


_SESSION_UPDATE: Final = b'"%b"' % methods.SESSION_UPDATE.encode()


class ClientEnded(AgentError):
    """The client has ended before the response to a request has come."""


class LocalClient:
    """An ACP client of one hub.

    Args:
        gateway: the gateway, which must be running.
        access: the principal.
        connect_request: what it comes for.
        name: its name in the log and the audit.
        receive: called with each notification and request for the client, except updates of sessions. It must not do
            more than to note them, and to send.
        capabilities: its `clientCapabilities`.

    Raises what `Gateway.admit` raises.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        connect_request: ConnectRequest,
        name: str,
        receive: Callable[[Message], None],
        capabilities: dict[str, Any] | None = None,
    ) -> None:
        self.name = name
        self.grant: Grant = gateway.admit(access, connect_request)
        """Its permissions."""
        self.initialized: Message | None = None
        """The response to `initialize`; None before."""
        self.ended = False
        """True once nothing is received any more."""
        self._gateway = gateway
        self._receive = receive
        self._capabilities = capabilities or {}
        self._stream = DirectStream(self._take, self._end)
        self._serving = trio.CancelScope()
        self._last_id = 0
        # Known once the gateway has attached it.
        self._hub: Hub | None = None
        self._client: Client | None = None
        # Open requests by id, each with the function that takes its response.
        self._open: dict[int, Answered] = {}

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve the client until it has ended; `initialize` follows. Cancelled, it ends."""
        task_status.started()
        try:
            with self._serving:
                await self._gateway.serve(self._stream, self.grant, self.name, attached=self._attached)
        except Exception:
            # A bug ends this client and no other.
            log.exception("%s: internal error, connection closed", self.name)
        finally:
            with trio.CancelScope(shield=True):
                await self._stream.aclose()

    def _attached(self, hub: Hub, client: Client) -> None:
        self._hub, self._client = hub, client

    def _take(self, text: bytes) -> None:
        try:
            self._handle(text)
        except Exception:
            # A bug ends this client and no other.
            log.exception("%s: internal error, connection closed", self.name)
            self._end()
            self._serving.cancel()

    def _handle(self, text: bytes) -> None:
        if _SESSION_UPDATE in text and b'"id"' not in text:
            return  # The repetition of a large prompt, say.
        try:
            message = jsonrpc.parse(text)
        except InvalidMessage:
            return  # Of a notification of an agent, only the envelope was checked.
        if message.kind is Kind.RESPONSE:
            number = jsonrpc.id_number(message.id)
            answered = None if number is None else self._open.pop(number, None)
            if answered is not None:
                answered(message)
        elif message.method != methods.SESSION_UPDATE:
            self._receive(message)

    def _end(self) -> None:
        self.ended = True
        unanswered, self._open = self._open, {}
        for answered in unanswered.values():
            answered(None)

    # What it sends

    async def initialize(self) -> Message:
        """Send `initialize`, and return the response; an error if the agent can't be started. Raises as `request`."""
        params = {
            "protocolVersion": PROTOCOL_VERSION,
            "clientCapabilities": self._capabilities,
            "clientInfo": {"name": "acp-gateway", "version": __version__},
        }
        self.initialized = await self.request(methods.INITIALIZE, jsonrpc.encode(params))
        return self.initialized

    async def leave(self) -> None:
        """End `run` soon. May be repeated."""
        self._end()
        # The agent may be busy reading.
        self._serving.deadline = min(self._serving.deadline, trio.current_time() + LEAVE_TIMEOUT)
        await self._stream.peer.aclose()

    async def request(self, method: str, params: bytes) -> Message:
        """Send a request, whose params are JSON text, and return the response, an error included.

        Cancelled, the request goes on. Raises `ClientEnded`.
        """
        found: list[Message | None] = []
        event = trio.Event()

        def answered(response: Message | None) -> None:
            found.append(response)
            event.set()

        self.start_request(method, params, answered)
        await event.wait()
        (response,) = found
        if response is None:
            raise ClientEnded(CLIENT_LEFT)
        return response

    def start_request(self, method: str, params: bytes, answered: Answered) -> int:
        """Send a request now, and return its id.

        `answered` is called with the response, or with None if the client ends before. Raises `ClientEnded`.
        """
        number = self._last_id = self._last_id + 1
        self.send(b'{"jsonrpc":"2.0","id":%d,"method":%b,"params":%b}' % (number, jsonrpc.encode(method), params))
        self._open[number] = answered
        return number

    def notify(self, method: str, params: bytes) -> None:
        """Send a notification, whose params are JSON text. Raises `ClientEnded`."""
        self.send(b'{"jsonrpc":"2.0","method":%b,"params":%b}' % (jsonrpc.encode(method), params))

    def has(self, agent_request: AgentRequest) -> bool:
        """Return True if the client may answer a request of the agent that its viewer is shown."""
        return self._client is not None and agent_request.is_for(self._client)

    def answer(self, agent_request: AgentRequest, reply: Reply) -> bool:
        """Answer a request of the agent at once; return False if it is not open any more. Raises `ClientEnded`."""
        if self.ended or self._hub is None or self._client is None:
            raise ClientEnded(CLIENT_LEFT)
        return self._hub.answer(self._client, agent_request, reply)

    def change_queue(self, session: Session, change: QueueChange) -> str | None:
        """Change a prompt that waits; return why that is refused, if it is. Raises `ClientEnded`."""
        if self.ended or self._hub is None or self._client is None:
            raise ClientEnded(CLIENT_LEFT)
        return self._hub.change_queue(self._client, session, change)

    def send(self, text: bytes) -> None:
        """Send a message without waiting, such as the response to a request of the agent. Raises `ClientEnded`."""
        try:
            self._stream.peer.send_nowait([text])
        except (trio.ClosedResourceError, trio.BrokenResourceError):
            raise ClientEnded(CLIENT_LEFT) from None

    async def handled(self) -> None:
        """Wait until the gateway has handled all that was sent, which it does as the agent reads. Never raises.

        A request that is refused at once was answered by then.
        """
        await self._stream.wait_handled()


CHECK_INTERVAL: Final = 10.0
"""Seconds between two looks at whether a client has been away for too long, or a quarter of `away_grace_idle`."""

_Key: TypeAlias = tuple[Session, Hashable, Role, str]
"""A session, the credential with which the client was admitted, its role, and its kind: what one kind shows to its
user, another one refuses."""


@dataclass(slots=True, eq=False)
class _Kept:
    client: LocalClient
    hub: Hub
    as_core: Client
    waiting: trio.CancelScope = field(default_factory=trio.CancelScope)


class AwayClients:
    """The kept clients of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._kept: dict[_Key, _Kept] = {}

    def keep(self, session: Session, client: LocalClient) -> bool:
        """Keep a client in a session; return False if its agent goes on without it, or it may not keep the agent."""
        grant = client.grant
        key = session, grant.access.principal, grant.role, grant.connect_request.via
        hub = next((hub for hub in self._gateway.hubs if hub.multiplexer.agent_handle is session.agent_handle), None)
        if hub is None or hub.ended or key in self._kept or not self._gateway.config.is_private(hub.name):
            return False
        controllers = [it for it in hub.multiplexer.clients if it.controls and not it.reach.guest]
        if [it.name for it in controllers] != [client.name]:
            return False
        kept = self._kept[key] = _Kept(client, hub, controllers[0])
        hub.tell_time(trio.current_time())
        hub.multiplexer.client_away(kept.as_core)
        hub.deliver()
        log.info("%s: the browser has left, keeping its client", client.name)
        self._gateway.start_task(self._expire, key, kept)
        return True

    async def _expire(self, key: _Key, kept: _Kept) -> None:
        settings = self._gateway.config.gateway
        since = quiet_since = trio.current_time()
        with kept.waiting:
            while not kept.client.ended:
                await trio.sleep(min(CHECK_INTERVAL, settings.away_grace_idle / 4))
                now = trio.current_time()
                if kept.hub.multiplexer.busy:
                    quiet_since = now
                if now - since >= settings.away_grace or now - quiet_since >= settings.away_grace_idle:
                    break
        if self._kept.get(key) is kept:
            del self._kept[key]
            await kept.client.leave()

    def take(self, session: Session, access: Access, role: Role, via: str) -> LocalClient | None:
        """Return the client of this kind that was kept for this principal in a session, which is connected again."""
        kept = self._kept.pop((session, access.principal, role, via), None)
        if kept is None:
            return None
        kept.waiting.cancel()
        if kept.client.ended or kept.as_core.gone:
            return None
        kept.hub.tell_time(trio.current_time())
        kept.hub.multiplexer.client_back(kept.as_core)
        kept.hub.deliver()
        return kept.client
