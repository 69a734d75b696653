"""A gateway in memory that resumes links: what a shim is given to dial."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume
from acp_gateway.client.uplink import ReconnectSettings
from acp_gateway.config.addresses import Address
from acp_gateway.errors import GatewayError, LinkGone, Unreachable
from acp_gateway.transports.link import WINDOW, Link
from acp_gateway.transports.streams import MessageStream, memory_message_stream_pair
from acp_gateway.transports.websocket import Timing
from tests.doubles import FAIL, FragileStream

DESTINATION = Destination(Address("tcp", "box.example", 7443, ""), None, None, None, None, 4096)


class WallClock:
    """A clock on the wall that goes with Trio's, until the machine sleeps."""

    def __init__(self) -> None:
        self._slept = 0.0

    def __call__(self) -> float:
        return trio.current_time() + self._slept

    def sleep(self, seconds: float) -> None:
        """The machine sleeps, in no time."""
        self._slept += seconds


@dataclass
class Connection:
    """One connection, with both of its ends."""

    near: FragileStream
    far: MessageStream
    link: Link
    scope: trio.CancelScope

    def cut(self, error: Exception | None = None) -> None:
        """Both ends lose it, and what is on its way."""
        self.near.receive_error = error or trio.BrokenResourceError("cut")
        self.far.send_nowait([FAIL])
        self.link.disconnect()
        self.scope.cancel()


class FakeGateway:
    """What the other side of `dial` is. `run` serves the links."""

    def __init__(self) -> None:
        self.attempts: list[tuple[float, Resume]] = []
        """Each attempt to connect, with its time."""
        self.refusals: list[GatewayError] = []
        """What the next attempts get, in order."""
        self.down = False
        """Whether every attempt fails."""
        self.hangs = False
        """Whether attempts get no answer."""
        self.resumes = True
        """Whether it knows of resuming."""
        self.deaf = False
        """Whether it reads nothing."""
        self.heard: list[Any] = []
        """What it was told, in order, over all links."""
        self.answers: dict[str, Callable[[dict[str, Any]], dict[str, Any] | None]] = {
            "initialize": lambda _: {"result": {"agentCapabilities": {"loadSession": True}}},
            "session/new": lambda _: {"result": {"sessionId": "s"}},
            "session/load": lambda _: {"result": {}},
        }
        """What it answers to which method, id apart; None for later."""
        self.links: dict[str, Link] = {}
        """The links that there are, by their connections' ids."""
        self.connections: list[Connection] = []
        self.wall_clock = WallClock()
        self._changed = trio.lowlevel.ParkingLot()
        self._nursery: trio.Nursery | None = None

    @property
    def last(self) -> Connection:
        """The newest connection."""
        return self.connections[-1]

    @property
    def link(self) -> Link:
        """The newest connection's link."""
        return self.last.link

    def persistence(self, **changes: Any) -> ReconnectSettings:
        """What a shim needs to come here: without chance, pauses are as long as they may be."""
        settings = ReconnectSettings(
            connect_timeout=15.0, dial=self.dial, chance=lambda: 1.0, wall_clock=self.wall_clock
        )
        return settings._replace(**changes)

    async def run(self, *, task_status: trio.TaskStatus[None]) -> None:
        """Serve until cancelled."""
        async with trio.open_nursery() as self._nursery:
            task_status.started()
            await trio.sleep_forever()

    async def dial(self, _: Destination, __: Timing, resume: Resume) -> Dialed:
        """As `dialing.dial_link`."""
        self.attempts.append((trio.current_time(), resume))
        self._changed.unpark_all()
        await trio.lowlevel.checkpoint()
        if self.hangs:
            await trio.sleep_forever()
        if self.refusals:
            raise self.refusals.pop(0)
        if self.down:
            raise Unreachable("nobody answers")
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
            link.connect(far, resume.received)
        connection = Connection(FragileStream(near), far, link, trio.CancelScope())
        self.connections.append(connection)
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, connection)
        return Dialed(connection.near, name, received)

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
                        for message in await connection.link.receive_batch():
                            self._hear(json.loads(message), connection.link)
                        connection.link.settle()
                except (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError):
                    connection.link.disconnect()
                    self._changed.unpark_all()
                nursery.cancel_scope.cancel()

    def _hear(self, message: Any, link: Link) -> None:
        self.heard.append(message)
        self._changed.unpark_all()
        if "id" in message and "method" in message:
            answer = self.answers[message["method"]](message) if message["method"] in self.answers else None
            if answer is not None:
                link.send([json.dumps({"jsonrpc": "2.0", "id": message["id"]} | answer).encode()])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait until something is so, that changes with what comes from the client."""
        while not condition():
            await self._changed.park()

    async def hear(self, method: str, count: int = 1) -> Any:
        """Wait for so many messages of a method since the beginning, and return the last."""

        def found() -> list[Any]:
            return [message for message in self.heard if message.get("method") == method]

        await self.until(lambda: len(found()) >= count)
        return found()[count - 1]

    async def attempted(self, count: int) -> None:
        """Wait for so many attempts since the beginning."""
        await self.until(lambda: len(self.attempts) >= count)

    def forget(self) -> None:
        """It is restarted: the connections are lost, and it knows no link any more."""
        self.links.clear()
        self.last.cut()

    def say(self, **message: Any) -> None:
        """Send a message over the newest link."""
        self.link.send([json.dumps({"jsonrpc": "2.0"} | message).encode()])
