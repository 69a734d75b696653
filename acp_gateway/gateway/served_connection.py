"""The frame of a connection that the gateway serves itself: counted, charged, read, and closed with a reason."""

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext
from typing import NamedTuple

import trio

from acp_gateway.core.sessions.session import Role
from acp_gateway.gateway.access import Access, Grant
from acp_gateway.gateway.connections import Connections
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import BUG, STOPPING, TOO_SLOW, Disconnect
from acp_gateway.transports.carrying import carry, finish
from acp_gateway.transports.maintained import Charge, MaintainedStream
from acp_gateway.transports.streams import ByteStream, CloseReason, Flooded, MessageTooLarge, Unfinished
from acp_gateway.transports.websocket.tunnel import Tunnel

log = logging.getLogger(__name__)


class ControlConnection:
    """A connection that is of no hub, and ends with its credential.

    Args:
        access: its principal.
    """

    def __init__(self, access: Access) -> None:
        self.access = access
        self.away_since: float | None = None
        self.disconnect = STOPPING
        """The way to close it."""
        self.scope = trio.CancelScope()
        """Scope of the task that serves it."""
        self.input_bytes = 0
        """Bytes that were received over it and are kept."""

    @property
    def account(self) -> str:
        """The identity for whose limits it counts."""
        return self.access.account

    def close(self, disconnect: Disconnect) -> None:
        """End it."""
        self.disconnect = disconnect
        self.input_bytes = 0
        self.scope.cancel()

    def close_unread(self, error: Exception) -> None:
        """End it because its peer reads nothing, or has gone, as this error of its stream tells."""
        self.close(Disconnect(CloseReason.POLICY, str(error), TOO_SLOW))

    def drop(self) -> bool:
        """Return False: it can't be resumed."""
        return False


@contextmanager
def counted(gateway: Gateway, access: Access) -> Iterator[ControlConnection]:
    """Count a connection in this block, which ends early when its credential is not valid any more."""
    if access.token is not None:
        gateway.storage.token_used(access.token.id)
    connection = ControlConnection(access)
    with connection.scope, gateway.connections.watched(connection):
        yield connection


@asynccontextmanager
async def serving(
    connection: ControlConnection,
    stream: MaintainedStream,
    grant: Grant,
    connections: Connections,
    memory_grew: Callable[[int], None] = lambda _: None,
) -> AsyncIterator[Charge]:
    """Count a connection among those of the gateway in this block, and return what charges its peer.

    At the end its stream is closed as `disconnect` says. The block ends early after `close`, and at once if others have
    taken the room since it was admitted; an exception that leaves it is a bug. `memory_grew` is called with the size of
    what comes.
    """
    is_observer = grant.role is Role.OBSERVER
    limiter = connections.rate_limiter(connection.account, guest=grant.reach.guest, observer=is_observer)

    def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        memory_grew(size)
        return limiter.charge(messages, size, seconds, frames)

    stream.meter.charge = charge
    connections.served.add(stream)
    refused = connections.refuse_late(grant)
    if refused is not None:
        connection.close(refused)
    try:
        with connection.scope, nullcontext() if refused is not None else connections.watched(connection):
            yield charge
    except Exception:
        connection.disconnect = BUG
        raise
    finally:
        connections.served.discard(stream)
        with trio.CancelScope(shield=True):
            await stream.aclose(connection.disconnect.code, connection.disconnect.text)


async def read_messages(
    stream: MaintainedStream,
    receive: Callable[[bytes], Awaitable[tuple[int, float]]],
    charge: Charge,
    ready: Callable[[], Awaitable[None]] | None = None,
    failure: Callable[[str], bytes] | None = None,
) -> Disconnect | None:
    """Read until the connection ends; return how to close it, None if that was decided elsewhere.

    Args:
        stream: its stream.
        receive: handles a message; returns what it counts as in rate limits, and seconds of the event loop.
        charge: charges the peer.
        ready: waits until another message may be read.
        failure: returns the message for a peer that has sent one that is too large.
    """
    try:
        while True:
            batch = await stream.receive_batch()
            for number, text in enumerate(batch, 1):
                weight, seconds = await receive(text)
                size, frames = stream.meter.take()
                pause = charge(weight, size, seconds, frames)
                # One read may bring a thousand: others get their turn after each. Between reads the stream sees to it.
                if pause or number < len(batch):
                    await trio.sleep(pause)
                if ready is not None:
                    await ready()
    except MessageTooLarge as error:
        try:
            stream.send_nowait([] if failure is None else [failure(str(error))])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # A WebSocket says it in its own way.
        return Disconnect(CloseReason.TOO_LARGE, str(error))
    except (Flooded, Unfinished) as error:
        return Disconnect(CloseReason.POLICY, str(error))
    except trio.ClosedResourceError:
        return None
    except (trio.BrokenResourceError, trio.EndOfChannel) as error:
        log.debug("the connection has ended: %r", error)
    return Disconnect(CloseReason.NORMAL, "")


class TunnelEnd(NamedTuple):
    """The other place of a tunnel."""

    name: str
    """Its name in the log."""
    lost: str
    """The reason of the end if the connection to it was lost."""
    stall_timeout: float
    """Seconds after which a side that takes nothing is given up."""


async def serve_tunnel(
    gateway: Gateway, connection: ControlConnection, tunnel: Tunnel, way: ByteStream, to: TunnelEnd, name: str
) -> None:
    """Carry bytes until the tunnel has ended; both ends are closed then.

    The caller has the connection watched, and its scope entered, since before it opened the other end. `name` is that
    of the client in the log. Cancelling closes both.
    """
    settings, access = gateway.config.gateway, connection.access
    tunnel.meter.charge = gateway.connections.limiter_of(access).charge
    log.info("%s: tunnel to %s opened for %s", name, to.name, access.credential)
    why: str | None = None
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(tunnel.keep_alive, settings.ping_interval, settings.ping_timeout)
            why = await carry(tunnel, way, to.stall_timeout, to.lost)
            nursery.cancel_scope.cancel()
    finally:
        if why is None:
            why = connection.disconnect.text
        log.info("%s: tunnel to %s closed%s", name, to.name, why and f": {why}")
        with trio.CancelScope(shield=True):
            await finish(tunnel, way, why)
