"""The I/O of `acp-gateway ping`: one connection for each step, so that each step fails for one reason."""

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from typing import Any, Final

import trio

from acp_gateway.client import control
from acp_gateway.client.dialing import Destination, dial, open_connection
from acp_gateway.diagnosis.ping import TOKEN_TIMEOUT, RefusedError, within
from acp_gateway.diagnosis.ping_checks import Refused, TlsFacts
from acp_gateway.errors import GatewayError, ProtocolError, Unreachable
from acp_gateway.protocol.methods import ACCESS
from acp_gateway.security.tls import certificate_end
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.sockets import SocketBytes
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream

_METHOD_NOT_FOUND: Final = -32601


class NetworkProbes:
    """The I/O of a ping on the network."""

    async def resolve(self, host: str) -> list[str]:
        found = await trio.socket.getaddrinfo(host, None, type=trio.socket.SOCK_STREAM)
        return list(dict.fromkeys(str(address[4][0]) for address in found))

    async def reach(self, destination: Destination) -> str:
        address = destination.address
        if address.scheme == "unix":
            stream: trio.SocketStream = await trio.open_unix_socket(address.path)
        else:
            stream = await trio.open_tcp_stream(address.host, address.port)
        peer = stream.socket.getpeername()
        await trio.aclose_forcefully(stream)
        return f"{peer[0]} port {peer[1]}" if isinstance(peer, tuple) else address.path

    async def shake_hands(self, destination: Destination) -> TlsFacts | None:
        stream = await open_connection(destination)
        try:
            if not isinstance(stream, SocketBytes):
                return None
            der = stream.peer_certificate
            try:
                end = None if der is None else datetime.fromtimestamp(certificate_end(der), UTC)
            except GatewayError:
                end = None
            return TlsFacts(stream.tls_version or "TLS", destination.pin is not None, end)
        finally:
            await stream.aclose()

    async def read_access(self, destination: Destination) -> Mapping[str, Any]:
        try:
            access = await control.request(destination, ACCESS, {}, time_limit=TOKEN_TIMEOUT)
        except ProtocolError as error:
            if f"refused with {_METHOD_NOT_FOUND}" in str(error):
                raise RefusedError(Refused(_METHOD_NOT_FOUND, str(error), {})) from error
            raise
        return access if isinstance(access, dict) else {}

    @asynccontextmanager
    async def converse(self, destination: Destination) -> AsyncIterator["_Dialog"]:
        with trio.move_on_after(TOKEN_TIMEOUT) as scope:
            stream = await dial(destination, Timing())
        if scope.cancelled_caught:
            raise Unreachable(f"{destination.address}: no connection within {TOKEN_TIMEOUT:g} s")
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(stream.run)
                yield _Dialog(stream)
                nursery.cancel_scope.cancel()
        finally:
            with trio.CancelScope(shield=True):
                await stream.aclose()


class _Dialog:
    """Requests to an agent, one after another."""

    def __init__(self, stream: MaintainedStream) -> None:
        self._stream = stream
        self._last_id = 0

    async def ask(self, method: str, params: Mapping[str, Any], time_limit: float) -> Mapping[str, Any]:
        self._last_id += 1
        request = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        try:
            return await within(time_limit, self._exchange(request))
        except trio.EndOfChannel:
            said = self._stream.close_text if isinstance(self._stream, WebSocketStream) else ""
            raise Unreachable(said or "the connection was closed without an answer") from None

    async def _exchange(self, request: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._stream.send(json.dumps(request).encode())
        while True:
            try:
                reply = json.loads(await self._stream.receive())
            except (ValueError, RecursionError):
                continue
            if not isinstance(reply, dict) or "method" in reply or reply.get("id") != request["id"]:
                continue
            if isinstance(reply.get("error"), dict):
                raise RefusedError(Refused.of(reply["error"]))
            result = reply.get("result")
            return result if isinstance(result, dict) else {}
