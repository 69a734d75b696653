"""Pings a gateway: each step of a connection by itself, from the name to a session in this folder.

A step that fails ends the ping, because the next ones would fail with it. `ping_checks` judges the outcomes.
"""

import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final, Literal, Protocol, TypeVar

import trio

from acp_gateway import __version__
from acp_gateway.acp.worktrees import WORKTREE
from acp_gateway.client import control
from acp_gateway.client.dialing import Destination, dial, open_connection, settle
from acp_gateway.config.addresses import Address
from acp_gateway.diagnosis.checks import Line
from acp_gateway.diagnosis.ping_checks import (
    Refused,
    Silent,
    TlsFacts,
    judge_address,
    judge_agent,
    judge_name,
    judge_port,
    judge_session,
    judge_ssh,
    judge_tls,
    judge_token,
    skip_session,
)
from acp_gateway.errors import GatewayError, TooOld, Unreachable
from acp_gateway.protocol.methods import ACCESS, CLOSE, DELETE, INITIALIZE, META, NEW
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.security.tls import certificate_end
from acp_gateway.transports.layers import TlsBytes
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.sockets import SocketBytes
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream

T = TypeVar("T")

NETWORK_TIMEOUT: Final = 5.0
"""Seconds for each step before the token: more than a bad mobile network takes for one."""

TOKEN_TIMEOUT: Final = 10.0
"""Seconds for a connection and a response of the gateway itself."""

SSH_TIMEOUT: Final = 20.0
"""Seconds for a login over ssh, jump hosts included."""

AGENT_TIMEOUT: Final = 60.0
"""Default seconds for `initialize`, and for a session: agents that are fetched by npx take this long at first."""

CLOSE_TIMEOUT: Final = 10.0
"""Seconds for closing the session of a ping."""

_PROBES: Final = (OSError, trio.BrokenResourceError, trio.EndOfChannel, UnicodeError, GatewayError, Silent)
"""Errors of a step that are judged; all others are bugs."""


class Conversation(Protocol):
    """A connection to an agent."""

    async def ask(self, method: str, params: Mapping[str, Any], time_limit: float) -> Mapping[str, Any]:
        """Return the result of a request. Raises `RefusedError`, `Silent`, and `Unreachable`."""


class RefusedError(Exception):
    """An error response; the argument is its `Refused`."""


class Probes(Protocol):
    """The I/O of each step, replaced in tests. Each raises `OSError`, `GatewayError` or `Silent`."""

    async def settle(self, destination: Destination) -> Destination:
        """Return the destination with the one of its addresses that a connection uses."""

    async def resolve(self, host: str) -> list[str]:
        """Return the addresses of a name."""

    async def reach(self, destination: Destination) -> str:
        """Connect to the port or the unix socket, and return the peer's address."""

    async def shake_hands(self, destination: Destination) -> TlsFacts | None:
        """Connect with TLS, or over ssh, and verify the server; return the facts of TLS."""

    async def read_access(self, destination: Destination) -> Mapping[str, Any]:
        """Return what the credential allows. Raises `RefusedError` if the gateway does not know the request."""

    def converse(self, destination: Destination) -> AbstractAsyncContextManager[Conversation]:
        """Connect to the agent."""


@dataclass(frozen=True, slots=True)
class PingSettings:
    """Settings of one ping."""

    folder: str
    """The folder of the session, absolute, on this machine."""
    maps: PathMaps
    agent_timeout: float = AGENT_TIMEOUT
    until: Literal["token", "agent", "session"] = "session"
    """The last step."""


class Ping:
    """One ping of one gateway.

    Args:
        destination: the gateway, and the agent.
        settings: what to try.
        report: is told each line as soon as it is known.
        waiting: returns the context in which the agent is waited for; its argument says what for.
        probes: the I/O.
        clock: returns seconds, for durations.
        now: returns the present time, for expiries.
    """

    def __init__(
        self,
        destination: Destination,
        settings: PingSettings,
        report: Callable[[Line], None],
        probes: Probes,
        waiting: Callable[[str], AbstractContextManager[object]] = nullcontext,
        clock: Callable[[], float] = time.perf_counter,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._destination = destination
        self._settings = settings
        self._report = report
        self._probes = probes
        self._waiting = waiting
        self._clock = clock
        self._now = now
        self._failed = False
        self._access: Mapping[str, Any] = {}

    async def run(self) -> None:
        """Try the steps in order, up to the first fault. Cancelling closes the connection and the session.

        Of several addresses, the steps are for the one that a connection uses, or for the best if none works. The
        others are only asked what the credential allows.
        """
        if self._destination.others:
            await self._choose_address()
        for step in (self._try_network, self._try_token, self._try_agent):
            await step()
            if self._failed:
                return

    def _tell(self, *lines: Line) -> None:
        for line in lines:
            self._report(line)
            self._failed |= line.status == "fault"

    async def _choose_address(self) -> None:
        asked, addresses = self._asked, self._destination.addresses
        settled, took = await self._time(self._probes.settle(asked))
        used = settled.address if isinstance(settled, Destination) else None
        lines: dict[Address, Line] = {}

        async def try_other(address: Address) -> None:
            limit = SSH_TIMEOUT if address.scheme == "ssh" else TOKEN_TIMEOUT
            access, took = await self._time(self._probes.read_access(asked.at(address)), limit)
            lines[address] = judge_address(address, _unwrapped(access), took)

        async with trio.open_nursery() as nursery:
            for address in addresses:
                if address == used:
                    lines[address] = judge_address(address, None, took, of=len(addresses))
                elif used is not None or address != addresses[0]:
                    nursery.start_soon(try_other, address)
        self._tell(*(lines[address] for address in addresses if address in lines))
        self._destination = self._destination.at(used or addresses[0])

    @property
    def _asked(self) -> Destination:
        """The destination of questions to the gateway itself."""
        return replace(self._destination, control=True, session=None, observe=False)

    async def _try_network(self) -> None:
        destination = self._destination
        address = destination.address
        if destination.via is not None:
            # The steps before TLS are those of the door.
            destination = destination.via.door
            address = destination.address
        if address.scheme == "ssh":
            outcome, took = await self._time(self._probes.shake_hands(destination), SSH_TIMEOUT)
            if isinstance(outcome, Silent):
                outcome = Unreachable(f"no answer over ssh within {SSH_TIMEOUT:g} s")
            self._tell(judge_ssh(address, outcome if isinstance(outcome, GatewayError) else None, took))
            return
        if address.scheme != "unix":
            names, took = await self._time(self._probes.resolve(address.host), NETWORK_TIMEOUT)
            self._tell(judge_name(address.host, names, took))
        if not self._failed:
            peer, took = await self._time(self._probes.reach(destination), NETWORK_TIMEOUT)
            self._tell(judge_port(address, peer, took))
        if not self._failed and self._destination.address.tls:
            facts, took = await self._time(self._probes.shake_hands(self._destination), NETWORK_TIMEOUT)
            assert facts is not None
            self._tell(judge_tls(self._destination.address, facts, took, self._now()))

    async def _try_token(self) -> None:
        if self._destination.address.may_lack_websocket:
            # Another server may be there, which has no control connections.
            return
        access, took = await self._time(self._probes.read_access(self._asked), TOKEN_TIMEOUT)
        self._tell(*judge_token(_unwrapped(access), took, self._now()))
        self._access = access if isinstance(access, Mapping) else {}

    async def _try_agent(self) -> None:
        if self._settings.until == "token":
            return
        name = self._destination.agent or self._access.get("defaultAgent")
        began = self._clock()
        limit = self._settings.agent_timeout
        try:
            async with self._probes.converse(self._destination) as conversation:
                params = {
                    "protocolVersion": 1,
                    "clientCapabilities": {},
                    "clientInfo": {"name": "acp-gateway ping", "version": __version__},
                }
                with self._waiting(f"{name or 'the agent'} to start"):
                    initialized, took = await self._time(conversation.ask(INITIALIZE, params, limit))
                self._tell(judge_agent(name, _unwrapped(initialized), took))
                if isinstance(initialized, Mapping) and self._settings.until == "session":
                    await self._try_session(conversation, initialized)
        except _PROBES as error:
            self._tell(judge_agent(name, error, self._clock() - began))

    async def _try_session(self, conversation: Conversation, initialized: Mapping[str, Any]) -> None:
        skipped = skip_session(self._access)
        if skipped is not None:
            self._tell(skipped)
            return
        folder = self._settings.folder
        # A working tree of its own would be left behind.
        meta = {"_meta": {META: {WORKTREE: False}}}
        request = {"jsonrpc": "2.0", "method": NEW, "params": {**meta, "cwd": folder, "mcpServers": []}}
        params = json.loads(self._settings.maps.to_remote(json.dumps(request).encode()))["params"]
        with self._waiting("a session"):
            opened, took = await self._time(conversation.ask(NEW, params, self._settings.agent_timeout))
        if isinstance(opened, Mapping):
            end = await self._close(conversation, str(opened.get("sessionId")), initialized)
            self._tell(judge_session(folder, params["cwd"], end, took))
        else:
            address = self._destination.address
            here = address.scheme == "unix" or (address.loopback and address.scheme != "ssh")
            self._tell(judge_session(folder, params["cwd"], _unwrapped(opened), took, here=here))

    async def _close(self, conversation: Conversation, session_id: str, initialized: Mapping[str, Any]) -> str:
        """Close the session, and have it forgotten; return what has become of it."""
        capabilities = initialized.get("agentCapabilities")
        of_sessions = capabilities.get("sessionCapabilities") if isinstance(capabilities, dict) else None
        deletes = isinstance(of_sessions, dict) and of_sessions.get("delete") is not None
        with trio.CancelScope(shield=True):
            try:
                if deletes:
                    await conversation.ask(DELETE, {"sessionId": session_id}, CLOSE_TIMEOUT)
                else:
                    params = {"sessionId": session_id, "_meta": {META: {"forget": True}}}
                    await conversation.ask(CLOSE, params, CLOSE_TIMEOUT)
            except (RefusedError, *_PROBES) as error:
                shown = error.args[0].message if isinstance(error, RefusedError) else error
                return f"it could not be closed again: {shown}"
        return "deleted again" if deletes else "closed again"

    async def _time(self, work: Awaitable[T], limit: float | None = None) -> tuple[T | Exception, float]:
        """Return the result or the error of a step, and the seconds that it has taken."""
        began = self._clock()
        outcome: T | Exception
        try:
            if limit is None:
                outcome = await work
            else:
                outcome = await within(limit, work)
        except (RefusedError, *_PROBES) as error:
            outcome = error
        return outcome, self._clock() - began


def _unwrapped(outcome: T | Exception) -> Any:
    return outcome.args[0] if isinstance(outcome, RefusedError) else outcome


async def within(limit: float, work: Awaitable[T]) -> T:
    """Return the result of `work`. Raises `Silent` after `limit` seconds, and what `work` raises."""
    with trio.move_on_after(limit):
        return await work
    raise Silent(limit)


_METHOD_NOT_FOUND: Final = -32601


class NetworkProbes:
    """The I/O of a ping on the network."""

    async def settle(self, destination: Destination) -> Destination:
        return await settle(destination)

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
            if not isinstance(stream, SocketBytes | TlsBytes):
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
        except TooOld as error:
            raise RefusedError(Refused(_METHOD_NOT_FOUND, str(error), {})) from error
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
