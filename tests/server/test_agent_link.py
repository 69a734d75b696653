"""The link to an agent behind another gateway: over a gateway in memory, and over two real ones in a row."""

import json
import logging
import os
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio
import trio.testing

from acp_gateway.client import uplink
from acp_gateway.client.dialing import Destination, Resume
from acp_gateway.client.reconnecting import held_link
from acp_gateway.client.reconnecting.held_link import PER_MESSAGE, HeldLink
from acp_gateway.config.load import AgentSection, Config
from acp_gateway.errors import LinkGone, TooFarBehind, TrustError, Unauthorized
from acp_gateway.gateway.events.audit import read_audit
from acp_gateway.gateway.hub import agent_supervisor
from acp_gateway.protocol.link_messages import Mark
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.serve import serve
from acp_gateway.transports.link import HEARTBEAT, WINDOW
from acp_gateway.transports.parts import EMPTY
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import Editor, make_config
from tests.kit.fake_gateway import DESTINATION, FakeGateway
from tests.kit.faulty_proxy import QUICK, FaultyProxy
from tests.kit.free_ports import free_port
from tests.kit.running import AGENTS
from tests.kit.serving import serving
from tests.server.test_serve import connect_lines

WS = "ws://127.0.0.1:0"
PING = b'{"jsonrpc":"2.0","method":"ping"}'


@pytest.fixture
def far() -> FakeGateway:
    """The other gateway."""
    return FakeGateway()


def destination() -> Destination:
    return DESTINATION


@asynccontextmanager
async def linked(far: FakeGateway, reconnect_timeout: float = 60.0) -> AsyncIterator[tuple[HeldLink, trio.Nursery]]:
    """A link that is run, and a nursery."""
    with trio.fail_after(3600):
        async with trio.open_nursery() as nursery:
            await nursery.start(far.run)
            dialed = await far.dial(DESTINATION, Timing(), Resume())
            link = HeldLink(
                "agent far", dialed, destination, Timing(), reconnect_timeout=reconnect_timeout, dial=far.dial
            )
            nursery.start_soon(link.run)
            yield link, nursery
            nursery.cancel_scope.cancel()


async def test_messages_pass_in_both_directions_without_marks(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far) as (link, _):
        await link.send(PING)
        await far.receive("ping")
        far.link.send(
            [Mark(b'{"jsonrpc":"2.0","method":"_acp-gateway/ack","params":{"received":1,"positions":{}}}'), PING]
        )
        assert await link.receive_batch() == [PING]
        await trio.testing.wait_all_tasks_blocked()  # A probe may follow the ping.
        assert (link.pending_bytes, link.unfinished_bytes) == (0, 0)
        link._uplink.link._part = EMPTY.followed_by(PING)
        assert link.unfinished_bytes == len(PING) - 1


async def test_a_message_above_the_limit_of_the_other_gateway_is_answered_here(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    far.limit = SizeLimit(100, "max_message_size")
    large = b'"params":{"sessionId":"s","text":"%b"}}' % (b"x" * 100)
    async with linked(far) as (link, _):
        await link.send(PING)
        await far.receive("ping")
        link.send_nowait(
            [b'{"id":1,"method":"a",' + large, PING, b'{"id":2,"result":' + large.removeprefix(b'"params":')]
        )
        link.send_nowait([b'{"method":"b",' + large, PING])
        await far.receive("ping", 3)
        (answer,) = map(json.loads, link.take_answers())
        assert (answer["id"], answer["error"]["code"]) == (1, -32600)
        assert "max_message_size (100 bytes)" in answer["error"]["message"]
        assert [message.get("id") for message in far.received] == [None, None, 2, None]
        assert far.received[2]["error"]["data"]["reason"] == "message_too_large"
        assert link.take_answers() == []
    assert len(far.connections) == 1


async def test_batches_are_offered_at_once_unless_earlier_ones_wait(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far) as (link, _):
        taken: list[bytes] = []
        accepts = True

        def take(batch: list[bytes]) -> bool:
            if accepts:
                taken.extend(batch)
            return accepts

        link.offer_to(take)
        await link.send(PING)
        await far.receive("ping")
        far.link.send([b'{"id":1}', b'{"id":2}'])
        await trio.testing.wait_all_tasks_blocked()
        assert (taken, link.unfinished_bytes) == ([b'{"id":1}', b'{"id":2}'], 0)
        accepts = False
        far.link.send([b'{"id":3}'])
        await trio.testing.wait_all_tasks_blocked()
        accepts = True
        far.link.send([b'{"id":4}'])
        await trio.testing.wait_all_tasks_blocked()
        # What was taken is confirmed, what waits is not.
        await trio.sleep(2 * HEARTBEAT)
        assert list(far.link.outbox.unconfirmed_messages()) == [b'{"id":3}', b'{"id":4}']
        assert await link.receive_batch() == [b'{"id":3}', b'{"id":4}']
        assert taken == [b'{"id":1}', b'{"id":2}']


class Wakeups(trio.abc.Instrument):
    """Counts how often each task goes on."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.counts[task.name.rpartition(".")[2]] += 1


async def test_a_batch_wakes_up_the_task_that_takes_it_once_and_none_that_watches_the_connection(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far) as (link, nursery):

        async def take() -> None:
            while True:
                assert await link.receive_batch() == [PING]

        await link.send(PING)
        await far.receive("ping")
        nursery.start_soon(take)
        await trio.testing.wait_all_tasks_blocked()
        wakeups = Wakeups()
        trio.lowlevel.add_instrument(wakeups)
        for _ in range(10):
            far.link.send([PING])
            await trio.testing.wait_all_tasks_blocked()
        trio.lowlevel.remove_instrument(wakeups)
        assert (wakeups.counts["take"], wakeups.counts["_bound_outage"]) == (10, 0)
        far.last.cut()
        await link.send(PING)
        await far.receive("ping", 2)


async def test_a_lost_connection_is_replaced_and_each_message_arrives_once(
    far: FakeGateway, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with linked(far) as (link, _):
        await link.send(PING)
        await far.receive("ping")
        for number in range(3):
            far.last.cut()
            link.send_nowait([b'{"method":"up","params":%d}' % number])
            far.link.send([b'{"method":"down","params":%d}' % number])
            await far.receive("up", number + 1)
            assert json.loads(await link.receive())["params"] == number
        assert [message["params"] for message in far.received if message["method"] == "up"] == [0, 1, 2]
        assert {resume.connection_id for _, resume in far.attempts} == {None, "c1"}
    assert "agent far: lost the connection: cut" in caplog.messages
    assert any(message.startswith("agent far: resumed after") for message in caplog.messages)


@pytest.mark.parametrize("error", [LinkGone("restarted"), TooFarBehind("too much"), Unauthorized("revoked")])
async def test_a_link_that_cannot_be_resumed_ends(
    error: Any, far: FakeGateway, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with linked(far) as (link, _):
        await link.send(PING)
        far.refusals.append(error)
        far.last.cut()
        with pytest.raises(trio.BrokenResourceError, match=str(error)):
            await link.receive_batch()
        with pytest.raises(trio.BrokenResourceError, match=str(error)):
            link.send_nowait([PING])
        await link.run()
    assert len(far.attempts) == 2
    assert any(message.startswith("agent far: its link has ended: ") for message in caplog.messages)


async def test_a_message_has_another_attempt_begin_at_once(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far, reconnect_timeout=3600.0) as (link, _):
        await link.send(PING)
        await far.receive("ping")
        far.down = True
        far.last.cut()
        await trio.sleep(600)
        far.down = False
        asked_at = trio.current_time()
        link.send_nowait([PING])
        await far.receive("ping", 2)
        assert trio.current_time() - asked_at <= uplink.BACKOFF_MIN


async def test_errors_that_may_pass_do_not_end_it(far: FakeGateway, autojump_clock: trio.testing.MockClock) -> None:
    async with linked(far) as (link, _):
        await link.send(PING)
        far.refusals += [TrustError("a portal's certificate"), TrustError("again")]
        far.last.cut()
        await link.send(PING)
        await far.receive("ping", 2)
    assert len(far.attempts) == 4


async def test_it_ends_after_reconnect_timeout_without_a_connection(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far, reconnect_timeout=60.0) as (link, _):
        await link.send(PING)
        far.down = True
        far.last.cut()
        await trio.sleep(40)
        assert link.away
        far.down = False
        await link.send(PING)
        await far.receive("ping", 2)
        far.down = True
        far.last.cut()
        lost_at = trio.current_time()
        with pytest.raises(trio.BrokenResourceError, match="no connection for 60 s"):
            await link.receive_batch()
        assert trio.current_time() - lost_at == pytest.approx(60)


async def test_what_arrived_before_the_end_is_received(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far) as (link, _):
        await link.send(PING)
        far.link.send([PING])
        await trio.testing.wait_all_tasks_blocked()
        far.forget()
        await trio.sleep(10)
        assert link.unfinished_bytes == len(PING)
        assert await link.receive_batch() == [PING]
        with pytest.raises(trio.BrokenResourceError):
            await link.receive_batch()


async def test_messages_that_are_not_taken_are_not_confirmed_so_that_they_are_bounded(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far) as (link, _):
        await link.send(PING)
        far.link.send([b'"%b"' % (b"x" * (WINDOW // 8 - 2))] * 30)
        await trio.sleep(5)
        assert WINDOW // 2 < link.unfinished_bytes <= WINDOW
        taken = 0
        while taken < 30:
            taken += len(await link.receive_batch())


async def test_a_gateway_that_sends_on_without_confirmations_ends_the_link(
    far: FakeGateway, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_link, "INBOX_LIMIT", 200)
    size = len(PING) + PER_MESSAGE
    async with linked(far) as (link, _):
        await link.send(PING)
        for _number in range(5):
            far.link.send([PING])
            await trio.sleep(1)
        assert len(await link.receive_batch()) * size < 200 + 2 * size
        with pytest.raises(trio.BrokenResourceError, match="more than 200 bytes wait"):
            await link.receive_batch()


async def test_empty_messages_count_for_what_they_take_in_memory(
    far: FakeGateway, autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(held_link, "INBOX_LIMIT", 100 * PER_MESSAGE)
    async with linked(far) as (link, _):
        await link.send(PING)
        for _number in range(3):
            far.link.send([b""] * 51)
            await trio.sleep(1)
        await link.receive_batch()
        with pytest.raises(trio.BrokenResourceError, match="bytes wait"):
            await link.receive_batch()


async def test_drain_waits_over_the_loss_of_a_connection(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far) as (link, nursery):
        await link.send(PING)
        far.deaf = True
        far.last.cut()
        link.send_nowait([PING])
        await trio.sleep(10)
        assert link.pending_bytes
        assert not link.away
        far.deaf = False
        nursery.start_soon(far.last.near.aclose)
        await link.drain()
        await far.receive("ping", 2)


async def test_a_closed_link_says_goodbye(far: FakeGateway, autojump_clock: trio.testing.MockClock) -> None:
    async with linked(far) as (link, _):
        await link.send(PING)
        await far.receive("ping")
        link.send_nowait([PING])
        await link.aclose()
        await far.receive("ping", 2)
        assert far.link.left
        for call in (link.receive_batch, link.drain):
            link._uplink.link.outbox.append(PING)
            with pytest.raises(trio.ClosedResourceError):
                await call()
        await link.aclose()
    assert len(far.attempts) == 1


async def test_a_link_that_never_ran_closes_its_connection(far: FakeGateway) -> None:
    async with trio.open_nursery() as nursery:
        await nursery.start(far.run)
        dialed = await far.dial(DESTINATION, Timing(), Resume())
        link = HeldLink("agent far", dialed, destination, Timing(), reconnect_timeout=1.0)
        await link.aclose(CloseReason.GOING_AWAY)
        await link.run()
        with pytest.raises(trio.ClosedResourceError):
            dialed.stream.send_nowait([PING])
        nursery.cancel_scope.cancel()


# Two gateways in a row


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Attempts follow one another at once, and agents start again at once."""
    monkeypatch.setattr(uplink, "BACKOFF_MIN", 0.001)
    monkeypatch.setattr(agent_supervisor.RestartBackoff, "next_start", lambda _, now: now)


def near_config(folder: Path, url: str, **options: Any) -> Config:
    """The configuration of the gateway that editors use, with an agent behind the other one."""
    near, token_file = folder / "near", folder / "token"
    near.mkdir(parents=True)
    token_file.touch(0o600)
    token_file.write_text(TokenStore(folder / "far").create("near", "ann", None)[1])
    section = AgentSection(url=url, token_file=token_file, **options)
    return make_config(near, f"unix://{near}/socket", agents={"far": section})


def far_config(folder: Path, url: str, *command: str, **more: AgentSection) -> Config:
    """The configuration of the other gateway, with an agent of the tests."""
    section = AgentSection(command=(sys.executable, "-I", "-S", str(AGENTS / command[0]), *command[1:]))
    return make_config(folder / "far", url, agents={"real": section, **more})


def port_of(url: str) -> int:
    port = urlsplit(url).port
    assert port is not None
    return port


@asynccontextmanager
async def in_a_row(folder: Path, cuts: int) -> AsyncIterator[tuple[Editor, FaultyProxy]]:
    """An editor, a gateway, a bad network, another gateway, and an agent that counts."""
    config = far_config(folder, WS, "counting_agent.py", str(folder / "heard"))
    async with serving(config) as (url,), trio.open_nursery() as nursery:
        proxy = FaultyProxy(port_of(url), seed=1, cuts=cuts, size=(2_000, 9_000), faults=QUICK)
        await nursery.start(proxy.run)
        async with serving(near_config(folder, f"ws://127.0.0.1:{proxy.port}/acp")) as (at,):
            editor = await connect_lines(at)
            yield editor, proxy
            await editor.stream.aclose()
        nursery.cancel_scope.cancel()


async def conversation(editor: Editor) -> list[Any]:
    """Two turns with a permission each; all that the editor gets."""
    told: list[Any] = [await editor.initialize()]
    session = (await editor.request("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"]
    for turn in range(2):
        prompt = {"sessionId": session, "prompt": [{"type": "text", "text": "150"}]}
        await editor.send(id=f"turn {turn}", method="session/prompt", params=prompt)
        while True:
            message = await editor.receive()
            told.append({name: value for name, value in message.items() if name != "id"})
            if message.get("method") == "session/request_permission":
                decision = {"outcome": {"outcome": "selected", "optionId": "yes"}}
                await editor.send(id=message["id"], result=decision)
            if message.get("id") == f"turn {turn}":
                break
    return told


async def until_answered(editor: Editor, method: str, **params: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The response to a request, and the messages before it."""
    await editor.send(id=method, method=method, params=params)
    before: list[dict[str, Any]] = []
    while (message := await editor.receive()).get("id") != method:
        before.append(message)
    return message, before


async def test_cuts_between_two_gateways_change_no_transcript_and_start_no_agent(
    tmp_path: Path, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    transcripts, heard = [], []
    for cuts in (0, 8):
        folder = tmp_path / str(cuts)
        folder.mkdir()
        async with in_a_row(folder, cuts) as (editor, proxy):
            transcripts.append(await conversation(editor))
            assert len(proxy.happened) == cuts
        heard.append([json.loads(line).get("method") for line in (folder / "heard").read_text().splitlines()])
        assert [entry["event"] for entry in read_audit(folder / "far" / "audit.jsonl")].count("agent_started") == 1
    assert transcripts[0] == transcripts[1]
    assert len(transcripts[0]) > 600
    assert heard[0] == heard[1] == ["initialize", "session/new", "session/prompt", None, "session/prompt", None]
    assert sum("agent far: resumed after" in message for message in caplog.messages) >= 8


async def test_after_a_restart_of_the_other_gateway_the_session_is_opened_again(
    tmp_path: Path, hurried: None, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sessions").mkdir()
    fixed = f"ws://127.0.0.1:{free_port()}"
    prompt = [{"type": "text", "text": "hello"}]
    async with trio.open_nursery() as nursery:
        async with serving(far_config(tmp_path, fixed, "remembering_agent.py", str(tmp_path / "sessions"))) as (url,):
            (at,) = await nursery.start(partial(serve, near_config(tmp_path, url), dict(os.environ)))
            editor = await connect_lines(at)
            await editor.initialize()
            session = (await editor.request("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"]
            first = await until_answered(editor, "session/prompt", sessionId=session, prompt=prompt)
            assert first[0]["result"]["stopReason"] == "end_turn"
        while not any("agent far: lost the connection" in message for message in caplog.messages):
            await trio.lowlevel.checkpoint()
        # It waits for the gateway, whether the link is known to be lost by then or not.
        async with serving(far_config(tmp_path, url, "remembering_agent.py", str(tmp_path / "sessions"))):
            second = await until_answered(editor, "session/prompt", sessionId=session, prompt=prompt)
            if "error" in second[0]:
                # It was faster than the news of the end.
                second = await until_answered(editor, "session/prompt", sessionId=session, prompt=prompt)
            assert second[0]["result"]["stopReason"] == "end_turn"
            # The history that the agent has replayed is not told again.
            assert len(second[1]) == len(first[1])
            await editor.stream.aclose()
            nursery.cancel_scope.cancel()
    assert any("agent far: its link has ended: " in message for message in caplog.messages)


async def test_far_agent_chooses_among_the_agents_of_the_other_gateway(tmp_path: Path) -> None:
    missing = AgentSection(command=("no-such-program",))
    config = far_config(tmp_path, WS, "counting_agent.py", str(tmp_path / "heard"), other=missing)
    config = replace(config, gateway=replace(config.gateway, default_agent="other"))
    async with serving(config) as (url,):
        async with serving(near_config(tmp_path, url, far_agent="real")) as (at,):
            editor = await connect_lines(at)
            assert (await editor.initialize())["protocolVersion"] == 1
            await editor.stream.aclose()
        folder = tmp_path / "again"
        folder.mkdir()
        (folder / "far").symlink_to(tmp_path / "far")
        async with serving(near_config(folder, url, far_agent="unknown")) as (at,):
            editor = await connect_lines(at)
            assert "unknown" in (await editor.request("initialize", {"protocolVersion": 1}))["error"]["message"]
            await editor.stream.aclose()


async def test_a_dead_node_is_noticed_within_three_seconds_while_something_is_open(
    far: FakeGateway, autojump_clock: trio.testing.MockClock
) -> None:
    async with linked(far) as (link, _):
        opened = False
        link.watch_while(lambda: opened)
        await link.send(PING)
        await far.receive("ping")
        await trio.sleep(60)
        far.last.near.die()
        await trio.sleep(5)
        # Nothing is open: it is noticed by the next message.
        assert len(far.attempts) == 1
        far.last.near.revive()
        await trio.sleep(5)
        opened = True
        await trio.sleep(2)
        far.last.near.die()
        died_at = trio.current_time()
        far.link.send([PING])
        assert await link.receive_batch() == [PING]
        assert trio.current_time() - died_at <= 3
        assert len(far.attempts) == 2
