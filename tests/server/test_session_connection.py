"""The connection of a browser, whatever its dialect: order of calls, what waits, the end."""

from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.core.sessions import Session
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.agent_supervisor import RestartBackoff
from acp_gateway.server.session_connection import MAX_CALLS, MAX_REPLIES, SessionConnection
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import MessageTooLarge
from tests.doubles import ServingAgents
from tests.server.bridging import Bench, running

pytestmark = pytest.mark.usefixtures("no_bug_showed")


class Echoing(SessionConnection[str]):
    """A dialect whose calls are `LANE NUMBER`, and are answered by themselves, once they may go on."""

    def __init__(self, bench: Bench, access: Access) -> None:
        super().__init__(bench.gateway, access, ConnectRequest(), "echo", "echo")
        self.may_go_on = trio.Event()
        self.served: list[str] = []

    def _receive(self, text: bytes) -> int:
        call = text.decode()
        self._start_call(call, call.split()[0])
        return 1

    async def _serve_call(self, call: str) -> None:
        if not call.startswith("free"):
            await self.may_go_on.wait()
        self.served.append(call)
        self.reply(call.encode())

    def _too_large(self, error: MessageTooLarge) -> bytes:
        return str(error).encode()


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


async def test_a_client_that_reads_no_responses_is_not_read_beyond_max_replies(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, spawner) as bench:
        echoing, stream = connect(bench)
        monkeypatch.setattr(echoing, "_next_replies", list)
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
        assert not bench.gateway.control_streams


class Resting:
    """A feed that has read updates from the disk, and stops at the next look if it `stops`."""

    wants_disk = False

    def __init__(self, session: Session, *, stops: bool) -> None:
        self.session = session
        self.stopped = False
        self.holds_rest = True
        self._stops = stops

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
        session = bench.gateway.views.find(echoing.viewer, session_id)
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
                echoing.feed(feed)
            case "removed":
                await page.result("session/new")
            case "told":
                feed.holds_rest = False
                await stream.send(b"free 1")
        await over.wait()
