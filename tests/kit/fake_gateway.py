"""A fake gateway in memory that resumes links; shims dial it."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume
from acp_gateway.client.uplink import ReconnectSettings
from acp_gateway.config.addresses import Address
from acp_gateway.errors import GatewayError, LinkGone, ProtocolError, Unreachable
from acp_gateway.protocol.link_messages import texts_of
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.transports.link import WINDOW, Link
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.parts import NO_PART, PartSum
from acp_gateway.transports.path_state import PathState, Route
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import FAIL, FragileStream

DESTINATION = Destination(Address("tcp", "box.example", 7443, ""), None, None, None, None, 4096)


class WallClock:
    """A wall clock that advances with Trio's, and jumps when the machine sleeps."""

    def __init__(self) -> None:
        self.is_told = False
        """True where the system tells of jumps."""
        self._slept = 0.0
        self._jumped = trio.lowlevel.ParkingLot()

    def __call__(self) -> float:
        return trio.current_time() + self._slept

    def sleep(self, seconds: float) -> None:
        """Advance this clock, but not Trio's."""
        self._slept += seconds
        self._jumped.unpark_all()

    async def watch(self, changed: Callable[[], None], *, task_status: trio.TaskStatus[bool]) -> None:
        """Tell of jumps, as `watch_clock` does."""
        task_status.started(self.is_told)
        while self.is_told:
            await self._jumped.park()
            changed()


class MortalStream(FragileStream):
    """A client's end of a connection over which, from some time on, nothing comes any more, and no end notices."""

    route = Route("10.0.0.1", ("192.0.2.7", 7443))

    def __init__(self, stream: MaintainedStream) -> None:
        super().__init__(stream)
        self.system: PathState | None = None
        """Returned as `path`."""
        self.writes = 0
        """Calls of `send_nowait`."""
        self._dead = self._deaf = False
        self._revived = trio.lowlevel.ParkingLot()
        self._lost: list[bytes] = []

    @property
    def path(self) -> PathState | None:
        return self.system

    def die(self) -> None:
        """Pass nothing on, in both directions."""
        self._dead = True

    def deafen(self) -> None:
        """Pass nothing on to the gateway."""
        self._deaf = True

    def revive(self) -> None:
        """Pass on what was sent until then, as TCP does."""
        self._dead = False
        self._revived.unpark_all()
        lost, self._lost = self._lost, []
        if lost:
            super().send_nowait(lost)

    async def _receive_batch(self) -> list[bytes]:
        batch = await super()._receive_batch()
        while self._dead:
            await self._revived.park()
        return batch

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        self.writes += 1
        if self._dead or self._deaf:
            self._lost += messages
        else:
            super().send_nowait(messages)


@dataclass
class Connection:
    """Both ends of a connection."""

    near: MortalStream
    far: MaintainedStream
    link: Link
    scope: trio.CancelScope

    def cut(self, error: Exception | None = None) -> None:
        """Break both ends, and lose the data in transit."""
        self.near.receive_error = error or trio.BrokenResourceError("cut")
        self.far.send_nowait([FAIL])
        self.link.disconnect()
        self.scope.cancel()


class FakeGateway:
    """The server side of `dial`. `run` serves the links."""

    def __init__(self) -> None:
        self.attempts: list[tuple[float, Resume]] = []
        """Attempts to connect, with their times."""
        self.refusals: list[GatewayError] = []
        """Errors of the next attempts, in order."""
        self.down = False
        """Makes every attempt fail."""
        self.hangs = False
        """Makes attempts hang."""
        self.handshake = 0.0
        """Seconds from the begin of an attempt until the gateway is asked."""
        self.answers_after = 0.0
        """Seconds until its answer arrives."""
        self.loses_requests = 0
        """Number of the next requests for a link that do not arrive."""
        self.resumes = True
        """False for a gateway that does not resume links."""
        self.probes = True
        """False for a gateway of an earlier version, which answers no probes."""
        self.takes_parts = True
        """False for a gateway of an earlier version, which understands no parts of messages."""
        self.told_parts: list[PartSum] = []
        """Parts of messages that the client has told it, in order."""
        self.limit: SizeLimit | None = None
        """The size limit that it tells; None for a gateway of an earlier version."""
        self.deaf = False
        """Stops reading."""
        self.received: list[Any] = []
        """Messages received over all links, in order."""
        self.answers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "initialize": lambda _: {"result": {"agentCapabilities": {"loadSession": True}}},
            "session/new": lambda _: {"result": {"sessionId": "s"}},
            "session/load": lambda _: {"result": {}},
        }
        """Makes the response to each method, without the id; None for no response yet."""
        self.links: dict[str, Link] = {}
        """Links by connection id."""
        self.connections: list[Connection] = []
        self.wall_clock = WallClock()
        self.source: str | None = None
        """Address from which it would be reached now."""
        self._changed = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None

    @property
    def last(self) -> Connection:
        """The latest connection."""
        return self.connections[-1]

    @property
    def link(self) -> Link:
        """The link of the latest connection."""
        return self.last.link

    def reconnect_settings(self, **changes: Any) -> ReconnectSettings:
        """Return settings that dial this gateway, with the longest backoff that jitter allows."""
        settings = ReconnectSettings(
            connect_timeout=15.0,
            dial=self.dial,
            jitter=lambda: 1.0,
            wall_clock=self.wall_clock,
            watch_clock=self.wall_clock.watch,
            source=lambda _: self.source,
        )
        return settings._replace(**changes)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def dial(self, _: Destination, __: Timing, resume: Resume) -> Dialed:
        """Dial this gateway, like `dialing.dial_link`."""
        self.attempts.append((trio.current_time(), resume))
        self._changed.unpark_all()
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if self.refusals:
            raise self.refusals.pop(0)
        if self.down:
            raise Unreachable("no answer")
        await trio.sleep(self.handshake)
        resume = await resume.asked()
        if self.loses_requests:
            self.loses_requests -= 1
            await trio.sleep_forever()
        near, far = memory_message_stream_pair()
        if not self.resumes:
            name, received, link = None, None, Link()
            link.connect(far)
        elif resume.connection_id is None:
            name, received, link = f"c{len(self.links) + 1}", 0, Link(window=WINDOW)
            self.links[name] = link
            link.connect(far)
        else:
            if resume.connection_id not in self.links:
                raise LinkGone("no such link")
            name, link = resume.connection_id, self.links[resume.connection_id]
            received = link.received
            self.told_parts.append(resume.part)
            if resume.part.size and not self.takes_parts:
                raise ProtocolError("params.resume has a member that is not known here")
            link.connect(far, resume.received, peer_part=resume.part)
        connection = Connection(MortalStream(near), far, link, trio.CancelScope())
        self.connections.append(connection)
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, connection)
        await trio.sleep(self.answers_after)
        part = NO_PART if self.takes_parts and received is not None else None
        return Dialed(connection.near, name, received, self.probes and received is not None, self.limit, part=part)

    async def _serve(self, connection: Connection) -> None:
        with connection.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(connection.far.run)
                nursery.start_soon(connection.link.pump)
                if connection.link.resumable:
                    nursery.start_soon(connection.link.keep_alive, float("inf"))
                if self.deaf:
                    await trio.sleep_forever()
                try:
                    while True:
                        for message in texts_of(await connection.link.receive_batch()):
                            self._receive(json.loads(message), connection.link)
                        connection.link.acknowledge()
                except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                    if connection.link.stream is connection.far:
                        connection.link.disconnect()
                    self._changed.unpark_all()
                nursery.cancel_scope.cancel()

    def _receive(self, message: Any, link: Link) -> None:
        self.received.append(message)
        self._changed.unpark_all()
        if "id" in message and "method" in message:
            answer = self.answers[message["method"]](message) if message["method"] in self.answers else None
            if answer is not None:
                link.send([json.dumps({"jsonrpc": "2.0", "id": message["id"]} | answer).encode()])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until `condition`, which depends on messages of the client."""
        while not condition():
            await self._changed.park()

    async def receive(self, method: str, count: int = 1) -> Any:
        """Wait until `count` messages with a method have been received since the start, and return the last."""

        def found() -> list[Any]:
            return [message for message in self.received if message.get("method") == method]

        await self.until(lambda: len(found()) >= count)
        return found()[count - 1]

    async def attempted(self, count: int) -> None:
        """Wait until there were `count` attempts since the start."""
        await self.until(lambda: len(self.attempts) >= count)

    def forget(self) -> None:
        """Restart: lose the latest connection and all links."""
        self.links.clear()
        self.last.cut()

    def send(self, **message: Any) -> None:
        """Send a message over the latest link."""
        self.link.send([json.dumps({"jsonrpc": "2.0"} | message).encode()])
