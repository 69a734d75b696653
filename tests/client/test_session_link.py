"""A session over a link to a gateway in memory; pauses pass in no time."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.client.session_link import SessionLink
from acp_gateway.client.shim import LinkState, Settings
from acp_gateway.client.uplink import LinkLoss
from acp_gateway.errors import AgentError, Forbidden, GatewayError, UnknownSession
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.terminal.dialogue import Dialogue, Event, Opened, Updated
from acp_gateway.transports.link import WINDOW
from acp_gateway.transports.streams import CloseReason
from tests.kit.fake_gateway import DESTINATION, FakeGateway

OPENED = Opened("s", (), "")


def listing_gateway() -> FakeGateway:
    """A gateway that answers `session/list`."""
    gateway = FakeGateway()
    gateway.answers["session/list"] = lambda _: {"result": {"sessions": []}}
    return gateway


class Client:
    """A session link at work, and what has come of it."""

    def __init__(self, gateway: FakeGateway) -> None:
        self.events: list[Event] = []
        self.states: list[LinkState] = []
        self.end: GatewayError | None = None
        self._changed = trio.lowlevel.ParkingLot()
        self._gateway = gateway
        settings = Settings(PathMaps([]), 4096, gateway.reconnect_settings(), link_changed=self._link_changed)
        self.link = SessionLink(Dialogue(("test", "1"), session="s"), lambda: DESTINATION, settings)

    async def run(self) -> None:
        try:
            await self.link.run(self._receive)
        except GatewayError as error:
            self.end = error
        self._changed.unpark_all()

    async def until_events(self, count: int) -> list[Event]:
        while len(self.events) < count:
            await self._changed.park()
        return self.events

    async def until_end(self) -> GatewayError:
        while self.end is None:
            await self._changed.park()
        return self.end

    async def until_state(self, state: LinkState) -> None:
        while state not in self.states:
            await self._changed.park()

    async def _receive(self, events: list[Event]) -> None:
        self.events += events
        self._changed.unpark_all()

    def _link_changed(self, state: LinkState) -> None:
        self.states.append(state)
        self._changed.unpark_all()


@asynccontextmanager
async def client_of(gateway: FakeGateway) -> AsyncIterator[Client]:
    client = Client(gateway)
    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)
            async with trio.open_nursery() as work:
                work.start_soon(client.run)
                yield client
                work.cancel_scope.cancel()
            nursery.cancel_scope.cancel()


def update(number: int) -> dict[str, Any]:
    return {"method": "session/update", "params": {"sessionId": "s", "update": {"number": number}}}


async def test_the_session_is_opened_and_events_and_actions_pass(autojump_clock: MockClock) -> None:
    gateway = listing_gateway()
    async with client_of(gateway) as client:
        assert await client.until_events(1) == [OPENED]
        gateway.send(**update(1))
        assert (await client.until_events(2))[1] == Updated({"number": 1}, "")
        client.link.dialogue.prompt("go")
        client.link.flush()
        assert (await gateway.receive("session/prompt"))["params"]["sessionId"] == "s"
    # For good: a connection that is only lost is closed otherwise.
    assert gateway.last.near.closed_with == (CloseReason.NORMAL, "")


async def test_a_lost_connection_is_told_and_nothing_is_lost_with_it(autojump_clock: MockClock) -> None:
    gateway = listing_gateway()
    async with client_of(gateway) as client:
        await client.until_events(1)
        gateway.last.cut()
        gateway.send(**update(1))
        client.link.dialogue.prompt("later")
        client.link.flush()
        await client.until_events(2)
        await gateway.receive("session/prompt")
        assert client.events == [OPENED, Updated({"number": 1}, "")]
        assert client.states == [LinkState.CONNECTED, LinkState.LOST, LinkState.CONNECTED]


@pytest.mark.parametrize(("event", "seconds"), [("turn_started", 3.0), ("turn_ended", 30.0)])
async def test_a_path_that_dies_in_the_turn_of_another_client_is_replaced_soon(
    autojump_clock: MockClock, event: str, seconds: float
) -> None:
    gateway = listing_gateway()
    gateway.wall_clock.is_told = True
    async with client_of(gateway) as client:
        await client.until_events(1)
        for each in ("turn_started", event):
            gateway.send(method="_acp-gateway/news", params={"sessionId": "s", "event": each})
        await client.until_events(3)
        await trio.sleep(1.5)
        died = trio.current_time()
        gateway.last.near.die()
        gateway.send(**update(1))
        await client.until_events(4)
        assert seconds / 2 < trio.current_time() - died <= seconds


async def test_a_refusal_by_the_gateway_ends_it(autojump_clock: MockClock) -> None:
    gateway = listing_gateway()
    refusal = Forbidden("no")
    gateway.refusals.append(refusal)
    async with client_of(gateway) as client:
        assert await client.until_end() is refusal
        client.link.dialogue.prompt("too late")
        client.link.flush()
    assert gateway.received == []


async def test_after_the_end_of_the_link_an_action_is_dropped(autojump_clock: MockClock) -> None:
    gateway = listing_gateway()
    async with client_of(gateway) as client:
        await client.until_events(1)
    client.link.dialogue.cancel()
    client.link.flush()
    assert [message["method"] for message in gateway.received] == ["initialize", "session/new", "session/list"]


async def test_a_session_that_can_not_be_opened_ends_it_with_the_reason(autojump_clock: MockClock) -> None:
    gateway = listing_gateway()
    gateway.answers["session/new"] = lambda _: {"error": {"code": -32603, "message": "no such\x1b session"}}
    async with client_of(gateway) as client:
        end = await client.until_end()
        assert isinstance(end, AgentError)
        assert str(end) == "the session can't be opened: no such\\x1b session"


async def test_a_session_that_does_not_exist_is_unknown(autojump_clock: MockClock) -> None:
    gateway = FakeGateway()
    gateway.answers["session/new"] = lambda _: {"error": {"code": -32002, "message": "no session 's'"}}
    async with client_of(gateway) as client:
        assert isinstance(await client.until_end(), UnknownSession)


async def test_a_session_that_neither_gateway_nor_agent_has_is_unknown(autojump_clock: MockClock) -> None:
    gateway = FakeGateway()
    refusal = {"error": {"code": -32601, "message": "Method not found: session/resume"}}
    gateway.answers["session/new"] = lambda _: refusal
    async with client_of(gateway) as client:
        end = await client.until_end()
        assert isinstance(end, UnknownSession)
        assert str(end) == "there is no session s; `acp-gateway sessions` lists those that can be joined"


async def test_an_agent_that_has_ended_leaves_the_link_resting(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = LinkLoss("the agent has ended", 1011, closed=True)
    monkeypatch.setattr("acp_gateway.client.uplink.loss_by_close", lambda _: ended)
    gateway = listing_gateway()
    async with client_of(gateway) as client:
        await client.until_events(1)
        gateway.last.cut(trio.EndOfChannel())
        await client.until_state(LinkState.RESTING)
        assert client.states == [LinkState.CONNECTED, LinkState.LOST, LinkState.RESTING]


async def test_while_events_are_handled_the_gateway_is_held_back(autojump_clock: MockClock) -> None:
    gateway = listing_gateway()
    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)
            settings = Settings(PathMaps([]), 4096, gateway.reconnect_settings())
            link = SessionLink(Dialogue(("test", "1"), session="s"), lambda: DESTINATION, settings)

            async def never(events: list[Event]) -> None:
                await trio.sleep_forever()

            nursery.start_soon(link.run, never)
            await gateway.receive("session/new")
            text = "x" * (WINDOW // 8)
            for _ in range(32):
                gateway.send(method="session/update", params={"sessionId": "s", "update": {"text": text}})
            await wait_all_tasks_blocked()
            await trio.sleep(60)
            assert gateway.link.outbox.unwritten_messages()
            nursery.cancel_scope.cancel()
