"""The connection of a browser, whatever its dialect: order of calls, what waits, the end."""

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.agent_supervisor import RestartBackoff
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.viewing.session_connection import MAX_CALLS, MAX_REPLIES, SessionConnection
from acp_gateway.protocol.text.large_messages import LARGE
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason, Stalled
from tests.kit.bridging import Bench, FarEnd, prompted, running, says
from tests.kit.doubles import ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")


class Echoing(SessionConnection[str]):
    """A dialect whose calls are `LANE NUMBER`, and are answered by themselves, once they may go on."""

    def __init__(self, bench: Bench, access: Access) -> None:
        super().__init__(bench.gateway, access, ConnectRequest(), "echo", "echo")
        self.may_go_on = trio.Event()
        self.served: list[str] = []

    def _receive(self, text: bytes) -> int:
        call = text.decode()
        self.lanes.add(call, call.split()[0], len(text))
        return 1

    async def _serve_call(self, call: str) -> None:
        if not call.startswith("free"):
            await self.may_go_on.wait()
        self.served.append(call)
        self.reply(call.encode())

    def _failure(self, why: str) -> bytes:
        return why.encode()


def connect(bench: Bench) -> tuple[Echoing, MaintainedStream]:
    theirs, ours = memory_message_stream_pair()
    echoing = Echoing(bench, bench.access())
    bench.nursery.start_soon(echoing.serve, ours)
    return echoing, theirs


async def send(stream: MaintainedStream, calls: list[bytes]) -> None:
    for call in calls:
        await stream.send(call)


async def test_calls_of_a_session_are_served_in_order_and_delay_no_other_session(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        echoing, stream = connect(bench)
        for call in (b"one 1", b"one 2", b"free 1", b"one 3"):
            await stream.send(call)
        assert await stream.receive_batch() == [b"free 1"]
        echoing.may_go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert echoing.served == ["free 1", "one 1", "one 2", "one 3"]


async def test_beyond_max_calls_the_next_one_is_not_read_yet(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        echoing, stream = connect(bench)
        bench.nursery.start_soon(send, stream, [*(b"one %d" % number for number in range(MAX_CALLS)), b"free 1"])
        await trio.testing.wait_all_tasks_blocked()
        assert echoing.served == []
        echoing.may_go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(echoing.served) == MAX_CALLS + 1


async def test_beyond_outbox_limit_bytes_of_calls_the_next_one_is_not_read_yet(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        config = bench.gateway.config
        bench.gateway.config = replace(config, gateway=replace(config.gateway, outbox_limit=1000))
        echoing, stream = connect(bench)
        large = [b"one %0500d" % number for number in range(10)]
        bench.nursery.start_soon(send, stream, [*large, b"free 1"])
        await trio.testing.wait_all_tasks_blocked()
        assert len(echoing.lanes.of("one")) == 2
        echoing.may_go_on.set()
        await trio.testing.wait_all_tasks_blocked()
        # The call of the other lane is served beside the last ones of these, and is read behind them.
        assert [call for call in echoing.served if call != "free 1"] == [call.decode() for call in large]
        assert echoing.served.index("free 1") >= len(large) - 1


async def test_a_client_that_reads_no_responses_is_not_read_beyond_max_replies(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, spawner) as bench:
        echoing, stream = connect(bench)
        monkeypatch.setattr(echoing, "_write", trio.sleep_forever)
        bench.nursery.start_soon(send, stream, [b"free %d" % number for number in range(2 * MAX_REPLIES)])
        await trio.testing.wait_all_tasks_blocked()
        assert MAX_REPLIES <= len(echoing.served) <= MAX_REPLIES + MAX_CALLS < 2 * MAX_REPLIES


async def test_a_client_that_has_closed_leaves_nothing_behind(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        _, stream = connect(bench)
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.gateway.connections) == 1
        await stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.gateway.connections) == 0
        assert not bench.gateway.connections.served


class Resting:
    """A feed that has read updates from the disk, and stops at the next look if it `stops`."""

    wants_disk = False

    def __init__(self, session: Session, *, stops: bool) -> None:
        self.session = session
        self.stopped = False
        self.holds_rest = self.has_more = True
        self._stops = stops

    async def read_rest(self, _: object) -> None:
        """Take for ever."""
        await trio.sleep_forever()

    def next(self) -> list[bytes]:
        self.stopped, self.holds_rest = self._stops, not self._stops
        return []


@pytest.mark.parametrize("end", ["stopped", "removed", "told"])
async def test_the_wait_for_updates_from_the_disk_ends_with_their_feed(
    end: str, tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.session_id = "only"
    monkeypatch.setattr(RestartBackoff, "next_start", lambda _, now: now)
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        session_id = await page.new_session()
        agents[0].end(0)
        await agents[0].close()
        await page.until_status(session_id, "exited")
        echoing, stream = connect(bench)
        await trio.testing.wait_all_tasks_blocked()
        session = bench.gateway.views.find(echoing.admitted.viewer, session_id)
        assert session is not None
        feed: Any = Resting(session, stops=end == "stopped")
        echoing.sessions.use(session).feed = feed
        over = trio.Event()

        async def wait() -> None:
            await echoing.wait_told(feed)
            over.set()

        bench.nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        assert not over.is_set()
        match end:
            case "stopped":
                echoing.feeds.add(feed)
            case "removed":
                bench.gateway.registry.remove(session)
            case "told":
                feed.holds_rest = False
                await stream.send(b"free 1")
        await over.wait()


async def test_responses_are_written_together_and_wait_for_no_disk(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        session_id = await (await bench.page(bench.access())).new_session()
        echoing, _ = connect(bench)
        await trio.testing.wait_all_tasks_blocked()
        session = bench.gateway.views.find(echoing.admitted.viewer, session_id)
        assert session is not None
        writes: list[list[bytes]] = []
        echoing._stream.send_nowait = lambda texts: writes.append([*texts])  # type: ignore[method-assign,assignment]
        feed: Any = Resting(session, stops=False)
        feed.wants_disk = True
        echoing.sessions.use(session).feed = feed
        echoing.feeds.add(feed)
        echoing.reply(b"1")
        echoing.reply(b"2")
        await trio.testing.wait_all_tasks_blocked()
        assert writes == [[b"1", b"2"]]


@pytest.fixture(params=["page", "widget"])
def connect_by(request: pytest.FixtureRequest) -> Callable[..., Awaitable[FarEnd]]:
    """Connects a client of each dialect; called with the bench, its principal, and its name."""

    async def connected(bench: Bench, access: Access, name: str, **options: Any) -> FarEnd:
        far_end: FarEnd = await getattr(bench, request.param)(access, name, **options)
        return far_end

    return connected


async def test_a_revoked_token_ends_the_connection_and_no_turn(
    connect_by: Callable[..., Awaitable[FarEnd]],
    tmp_path: Path,
    spawner: Spawner,
    loading_agents: ServingAgents,
    autojump_clock: object,
) -> None:
    async with running(tmp_path, spawner) as bench:
        access = bench.access()
        client, page = await connect_by(bench, access, "client"), await bench.page(access)
        session = await client.new_session()
        await page.result("session/get", sessionId=session)
        await prompted(page, loading_agents[0], session)
        assert access.token is not None
        bench.gateway.tokens.revoke(access.token.id)
        await trio.sleep(3)
        assert client.ended
        assert page.ended
        assert len(bench.gateway.connections) == 0
        assert not loading_agents[0].cancelled
        assert len(loading_agents[0]._prompts) == 1


async def test_a_client_that_takes_nothing_for_too_long_is_disconnected_and_no_other(
    connect_by: Callable[..., Awaitable[FarEnd]], tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        slow = await connect_by(bench, bench.access(), "slow", reads=False)
        slow.stall(Stalled("the peer took no byte within stall_timeout (60 s)"))
        await slow.begin_to_load(session)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(30):
            await says(loading_agents[0], session, f"{number:020000}")
        await page.until_updates(session, 30)
        bench.nursery.start_soon(slow.read)
        with pytest.raises(AssertionError):
            await slow.until(lambda: None)
        assert slow.ended
        assert len(bench.gateway.connections) == 2
        assert (await page.result("session/get", sessionId=session))["session"]["live"]


async def test_what_a_browser_has_sent_counts_in_memory_limit(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        echoing, stream = connect(bench)
        await stream.send(b"one " + b"x" * 1000)
        await trio.testing.wait_all_tasks_blocked()
        assert bench.gateway.services.inputs == {echoing}
        assert echoing.input_bytes == 1004
        echoing.close(Disconnect(CloseReason.POLICY, "memory_limit"))
        assert echoing.input_bytes == 0
        await trio.testing.wait_all_tasks_blocked()
        assert bench.gateway.services.inputs == set()


async def test_a_connection_that_is_closed_when_bytes_have_just_come_ends_as_it_was_closed(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, spawner) as bench:
        _, ours = memory_message_stream_pair()
        echoing = Echoing(bench, bench.access())
        closed_as: list[object] = []

        async def receive_late() -> list[bytes]:
            echoing.close(Disconnect(CloseReason.POLICY, "memory_limit"))
            # The task was about to run: it is not cancelled before its next checkpoint.
            raise trio.ClosedResourceError

        async def close(*how: object) -> None:
            closed_as.append(how)

        monkeypatch.setattr(ours, "receive_batch", receive_late)
        monkeypatch.setattr(ours, "aclose", close)
        await echoing.serve(ours)
    assert closed_as == [(CloseReason.POLICY, "memory_limit")]


async def test_a_connection_that_has_ended_starts_no_task(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        echoing, stream = connect(bench)
        await trio.testing.wait_all_tasks_blocked()
        await stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        echoing.start(trio.sleep_forever)


async def test_a_large_call_that_is_not_json_has_an_answer_and_the_next_one_is_served(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        _, stream = connect(bench)
        await stream.send(b'{"a":"' + b"x" * LARGE)
        await stream.send(b"free 1")
        assert [await stream.receive() for _ in range(2)] == [b"not JSON: a string has no end", b"free 1"]
