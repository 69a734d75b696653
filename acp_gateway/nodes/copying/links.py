"""Links to nodes for clients whose messages can't be copied as bytes.

A client over lines that resumes by itself has a link of the node: messages are passed on as they are, those of the link
included. For a client that resumes nothing, this gateway holds the link, as `acp-gateway connect` does for an editor.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, Literal

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume, upgrade
from acp_gateway.client.reconnecting.held_link import HeldLink
from acp_gateway.config.addresses import Address, parse_address
from acp_gateway.core.sessions.session import Role
from acp_gateway.errors import AccessError, GatewayError, ProtocolError, Unauthorized, Unreachable
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.node_places import Place
from acp_gateway.gateway.served_connection import ControlConnection
from acp_gateway.nodes.copying.messages import copy_messages
from acp_gateway.nodes.reaching import ATTEMPT_TIMEOUT, ENDPOINT, Reach, Reached, node_away, said_to_node, until_there
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.transports.http.server import HttpConnection, Request, Response
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import closed_on_error
from acp_gateway.transports.websocket.server import upgrade as open_websocket
from acp_gateway.transports.websocket.stream import CONNECTION_ID, REFUSAL_HEADER, Timing

_LOST: Final = (trio.BrokenResourceError, trio.ClosedResourceError)

_SIZE_SETTING: Final = "max_message_size"


@dataclass(frozen=True, slots=True)
class Wanted:
    """A link to a node that a client was granted."""

    place: Place
    access: Access
    claim: str
    """The claim for the client, as the header's value."""
    name: str
    """Name of the client's connection, for the log."""
    connection_id: str
    """Id of the client's connection."""


class NodeLink:
    """Serves one client that has been granted a link to a node.

    Args:
        gateway: this gateway, in which the connection counts.
        reach: opens connections to nodes.
        wanted: the link.
    """

    def __init__(self, gateway: Gateway, reach: Reach, wanted: Wanted) -> None:
        self._gateway = gateway
        self._reach = reach
        self._wanted = wanted
        self._request_id = secrets.token_hex(8)
        settings = gateway.config.gateway
        self._timing = Timing(settings.ping_interval, settings.ping_timeout, settings.stall_timeout)
        self._max_size = settings.max_message_size

    # The client

    async def serve_websocket(self, request: Request, http: HttpConnection, *, binary: bool = False) -> bool:
        """Open the WebSocket of a client that resumes nothing, and serve it to its end; return False."""
        with self._counted() as connection:
            stream: MaintainedStream | None = None
            node = None
            try:
                node = await self._hold()
                answer = await open_websocket(
                    http,
                    request,
                    {CONNECTION_ID: self._wanted.connection_id},
                    max_message_size=self._max_size,
                    timing=self._timing,
                    binary=binary,
                )
                if isinstance(answer, Response):
                    return await http.respond(answer)
                stream = answer
                connection.disconnect = await self._copy(stream, node)
            except AccessError as error:
                return await http.respond(_refusal(error))
            finally:
                await _close(stream, node, connection)
        return False

    async def serve_lines(self, lines: MaintainedStream, raw_id: RawId, resume: Resume | None) -> None:
        """Answer the hello of a client, and serve it to its end; with `resume`, it has a link of its own."""
        with self._counted() as connection:
            node: MaintainedStream | None = None
            try:
                if resume is None:
                    node = await self._hold()
                    result: dict[str, Any] = {"connectionId": self._wanted.connection_id}
                else:
                    dialed = await self._dial_first(resume)
                    node, result = dialed.stream, _described(dialed)
                lines.send_nowait([jsonrpc.result(raw_id, result)])
                connection.disconnect = await self._copy(lines, node)
            except AccessError as error:
                text = jsonrpc.error(raw_id, error.http_status, str(error), {"reason": error.reason})
                lines.send_nowait([text])
            finally:
                await _close(lines, node, connection)

    @contextmanager
    def _counted(self) -> Iterator[ControlConnection]:
        """Count the connection in this block, and end that when the credential is not valid any more."""
        connection = ControlConnection(self._wanted.access)
        with connection.scope, self._gateway.connections.watched(connection):
            yield connection

    async def _copy(self, client: MaintainedStream, node: MaintainedStream) -> Disconnect:
        access = self._wanted.access
        is_guest, is_observer = access.session is not None, access.role == "observer"
        observes = is_observer or self._wanted.place.observe
        kinds: tuple[Literal["guest"], ...] = ("guest",) if is_guest else ()
        self._gateway.bound(client, Role.OBSERVER if observes else Role.CONTROLLER, *kinds)
        return await copy_messages(client, node, self._gateway.connections.limiter_of(access).charge)

    # The node

    async def _hold(self) -> HeldLink:
        """Return a link that is held here, once the node has granted it. Raises `AccessError`."""
        dialed = await self._dial_first(Resume())
        section = self._gateway.config.nodes.get(self._wanted.place.node)
        timeout = 0.0 if section is None else section.reconnect_timeout
        name = f"{self._wanted.name}, at the node {self._wanted.place.node}"
        address = Address("wss", self._wanted.place.node, 443, ENDPOINT)
        # Only its address is used, which the log has.
        destination = Destination(address, None, None, None, None, self._max_size)
        return HeldLink(name, dialed, lambda: destination, self._timing, reconnect_timeout=timeout, dial=self._dial)

    async def _dial_first(self, resume: Resume) -> Dialed:
        """Dial until the node answers, for its `connect_timeout` at most. Raises `AccessError`."""
        wanted = self._wanted
        node = wanted.place.node
        self._gateway.audit_throttle.record(
            "node_link", node=node, path=ENDPOINT, identity=wanted.access.identity, request=self._request_id
        )
        attempt = partial(self._dial, None, self._timing, resume)
        try:
            # A client that resumes tries again by itself.
            return await until_there(self._gateway, node, attempt, patiently=not resume.connection_id)
        except Unauthorized:
            raise node_away(self._gateway, wanted.access, node, "it does not accept this gateway's token") from None
        except AccessError:
            raise
        except GatewayError as error:
            raise node_away(self._gateway, wanted.access, node, str(error)) from None

    async def _dial(self, _: Destination | None, timing: Timing, resume: Resume) -> Dialed:
        """Dial once. Raises what `dial_link` raises."""
        with trio.move_on_after(ATTEMPT_TIMEOUT):
            reached = await self._reach(self._wanted.place.node)
            destination = self._destination(reached)
            try:
                async with closed_on_error(reached.stream):
                    reached.stream.reset_when_closed(resume.connection_id is not None)
                    dialed = await upgrade(reached.stream, destination, timing, resume)
                    reached.stream.reset_when_closed(False)
            except _LOST as error:
                raise Unreachable(f"{destination.address}: {error}") from None
            except AccessError as error:
                raise type(error)(str(error).removeprefix(f"{destination.address}: ")) from None
            if dialed.received is None:
                await dialed.aclose()
                raise ProtocolError(f"{destination.address} resumes no links, so it is not an acp-gateway")
            dialed.stream.limit(self._max_size, _SIZE_SETTING)
            return dialed
        raise Unreachable(f"the node {self._wanted.place.node} does not answer")

    def _destination(self, reached: Reached) -> Destination:
        place = self._wanted.place
        own_id = self._gateway.admissions.own_id
        return Destination(
            address=parse_address(f"ws://{reached.host}{reached.endpoint}"),
            agent=place.agent,
            token=reached.token,
            pin=None,
            ca=None,
            max_message_size=self._max_size,
            session=place.session,
            observe=place.observe,
            origin=tuple(said_to_node(own_id, self._request_id, self._wanted.claim).items()),
            server="the node's gateway",
        )


async def _close(client: MaintainedStream | None, node: MaintainedStream | None, connection: ControlConnection) -> None:
    """Close both sides. A link that is held here ends; a client's own is cut, to be resumed."""
    with trio.CancelScope(shield=True):
        if isinstance(node, HeldLink):
            await node.aclose()
        elif node is not None:
            await node.abort()
        if client is not None:
            await client.aclose(connection.disconnect.code, connection.disconnect.text)


def _refusal(error: AccessError) -> Response:
    headers = {REFUSAL_HEADER: error.reason}
    return Response.of_text(error.http_status, str(error), headers, close=True)


def _described(dialed: Dialed) -> dict[str, Any]:
    """Return the result of a hello for a link."""
    result = {"connectionId": dialed.connection_id, "received": dialed.received, "probe": dialed.probes}
    told = {"part": dialed.part, "limit": dialed.limit}
    return result | {name: str(value) for name, value in told.items() if value is not None}
