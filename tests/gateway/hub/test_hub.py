"""The meeting place: clients and an agent in memory, and what becomes of the ones when the other goes."""

import json
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.output import AuditEvent
from acp_gateway.core.requests import DirectoryCheckResult, Problem
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, Role, SessionReach
from acp_gateway.errors import AgentError
from acp_gateway.gateway.agent.descendants import Look
from acp_gateway.gateway.agent.process import LAST_OUTPUT_TIMEOUT, Agent
from acp_gateway.gateway.agent.versions import AgentMessages
from acp_gateway.gateway.hub.agent_supervisor import AT_ONCE, MAX_BACKOFF, WINDOW
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.hub.hub import LOGGED_AS_WARNINGS
from acp_gateway.transports.link import CHUNK
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason, MessageSkipped, MessageTooLarge
from tests.gateway.hub.test_idleness import TRAINING, FakeDescendants
from tests.kit.doubles import FAIL, INITIALIZE, TIMEOUT, FakeAgent, FakeAgents, FragileStream, encode
from tests.kit.hub_scene import (
    HIGH_WATER,
    HOUR,
    LOADS,
    OPEN,
    OUTBOX_LIMIT,
    UPDATE,
    Peer,
    Scene,
    choice,
    fill,
    flood,
    in_conversation,
    methods_of,
    numbers_of,
    peek,
    permission,
    resuming,
    running,
    sharing,
    update,
)
from tests.kit.scene import HINT, Shelf

# Relaying


async def test_no_agent_is_started_before_initialize() -> None:
    async with running(Scene()) as scene:
        assert (await scene.editor.request("session/new", OPEN))["error"]["code"] == -32600
        await scene.editor.stream.send(b"no JSON")
        assert (await scene.editor.receive())["error"]["code"] == -32700
        await scene.editor.stream.aclose()
    assert scene.agents.started == []


async def test_what_comes_with_initialize_in_one_batch_reaches_the_agent_in_order() -> None:
    async with running(Scene()) as scene:
        await scene.editor.stream.send_batch(
            [
                encode({"id": 1, "method": "initialize", "params": INITIALIZE}),
                encode({"id": 2, "method": "session/new", "params": OPEN}),
                encode({"id": 3, "method": "session/list", "params": {}}),
            ]
        )
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["initialize"]
        await scene.agent.answer_initialize(sessionCapabilities={"list": {}})
        assert [(await scene.agent.receive())["method"] for _ in range(2)] == ["session/new", "session/list"]
        await scene.editor.stream.aclose()
    assert scene.agents.started == [scene.agent]


async def test_messages_go_both_ways_as_they_are() -> None:
    message = b'{ "jsonrpc":"2.0","method":"x" , "params":{"n":1.10,"s":"\xe2\x80\xa8"}}'
    async with in_conversation() as scene:
        await scene.editor.stream.send(message)
        assert await scene.agent.stream.receive() == message
        await scene.agent.stream.send(message)
        assert await scene.editor.stream.receive() == message
        await scene.editor.stream.aclose()


async def test_what_cannot_be_said_to_an_agent_of_version_2_is_answered_while_that_is_silent() -> None:
    scene = Scene()
    scene.agent.agent.messages = AgentMessages(scene.output)
    async with running(scene):
        await scene.editor.send_request(0, "initialize", **INITIALIZE)
        about = {"protocolVersion": 2, "info": {"name": "a", "version": "1"}, "capabilities": {"session": {}}}
        await scene.agent.answer("initialize", about)
        assert (await scene.editor.receive())["result"]["protocolVersion"] == 1
        await scene.open_session(scene.editor)
        refused = [await scene.editor.request("session/set_mode", {"sessionId": "s", "modeId": "m"}) for _ in range(2)]
        assert ["offers no modes" in answer["error"]["message"] for answer in refused] == [True, True]
        assert scene.agent.peek() == []
        await scene.editor.stream.aclose()


async def test_a_thousand_updates_arrive_before_the_response_of_their_turn() -> None:
    # All may wait for the editor before it is its turn.
    async with in_conversation(outbox_limit=1_000_000) as scene:
        turn = await scene.open_turn()
        scene.agent.stream.send_nowait([*map(update, range(1000)), encode({"id": turn, "result": {}})])
        received = [await scene.editor.receive() for _ in range(1001)]
        assert numbers_of(received[:-1]) == [*range(1000)]
        assert received[-1]["id"] == "turn"
        await scene.editor.stream.aclose()


async def test_the_gateways_own_notifications_are_dropped_when_an_agent_prints_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with in_conversation() as scene:
        await scene.agent.send(method="_acp-gateway/approve", params={"secret": "x"})
        await scene.agent.send(method="next")
        assert (await scene.editor.receive())["method"] == "next"
        await scene.editor.stream.aclose()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "reserved method" in warning
    assert "secret" not in warning


async def test_banners_of_an_agent_are_dropped_and_warned_of_only_so_often(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with in_conversation() as scene:
        for _ in range(2 * LOGGED_AS_WARNINGS):
            await scene.agent.stream.send(b"Welcome!")
        await scene.agent.send(method="next")
        assert (await scene.editor.receive())["method"] == "next"
        await scene.editor.stream.aclose()
    levels = [record.levelno for record in caplog.records if "dropped a line" in record.getMessage()]
    assert levels == [logging.WARNING] * LOGGED_AS_WARNINGS + [logging.DEBUG] * LOGGED_AS_WARNINGS


async def test_an_error_for_a_missing_login_says_what_to_run() -> None:
    async with in_conversation() as scene:
        await scene.editor.send_request(1, "session/new", **OPEN)
        asked = await scene.agent.receive()
        await scene.agent.send(id=asked["id"], error={"code": -32000, "message": "Authentication required"})
        error = (await scene.editor.receive())["error"]
        assert error == {"code": -32000, "message": f"Authentication required. {HINT}"}
        await scene.editor.stream.aclose()


async def test_the_clients_stream_is_run_for_as_long_as_it_is_open() -> None:
    async with running(Scene()) as scene:
        await wait_all_tasks_blocked()
        assert scene.editor.ours.runs
        await scene.initialize(scene.editor)
        assert scene.editor.ours.runs
        await scene.editor.stream.aclose()
    assert not scene.editor.ours.runs


async def test_a_client_that_says_nothing_has_one_task() -> None:
    # They are most of what an idle connection costs.
    async with sharing() as (scene, _):
        await wait_all_tasks_blocked()
        before = trio.lowlevel.current_statistics().tasks_living
        silent = [scene.join("bob"), scene.travel("eve")]
        for client in silent:
            await client.initialize()
        await wait_all_tasks_blocked()
        assert trio.lowlevel.current_statistics().tasks_living == before + len(silent)


async def test_an_initialize_may_be_larger_than_what_is_held_back() -> None:
    async with running(Scene()) as scene:
        await scene.editor.send_request(0, "initialize", _meta="x" * 10 * HIGH_WATER)
        await scene.agent.answer_initialize()
        assert (await scene.editor.receive())["id"] == 0
        await scene.editor.stream.aclose()


# The agent goes


async def test_every_pending_request_is_answered_when_the_agent_dies_and_then_the_connection_ends() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        await scene.editor.send_request(0, "session/new", **OPEN)
        await scene.agent.receive()
        scene.agent.end(137, "warming up", "out of memory")
        await scene.agent.close()
        answers = await scene.editor.receive_rest()
    assert [answer["id"] for answer in answers] == ["turn", 0]
    for answer in answers:
        assert answer["error"] == {
            "code": -32603,
            "message": "the agent fake ended with exit code 137; the last it wrote to stderr: out of memory",
            "data": {
                "reason": "agent_ended",
                "agent": "fake",
                "exitCode": 137,
                "stderr": ["warming up", "out of memory"],
            },
        }
    assert scene.editor.closed_with == (CloseReason.AGENT_GONE, "the agent fake ended with exit code 137")


async def test_what_the_agent_wrote_last_comes_before_the_news_of_its_death() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.agent.stream.send_nowait([update(), b'{"half":'])
        scene.agent.end(1)
        await scene.agent.close()
        last, answer = await scene.editor.receive_rest()
    assert last["method"] == "session/update"
    assert answer["error"]["data"]["exitCode"] == 1


async def test_an_agent_that_dies_in_initialize_is_an_answer_to_it() -> None:
    async with running(Scene()) as scene:
        await scene.editor.send_request("first", "initialize", **INITIALIZE)
        await scene.agent.receive()
        scene.agent.end(0)
        await scene.agent.close()
        (answer,) = await scene.editor.receive_rest()
    assert answer["id"] == "first"
    assert answer["error"]["message"] == "the agent fake ended with exit code 0"


async def test_an_agent_that_closes_its_stdout_and_stays_is_stopped() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        await scene.agent.close()
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"]["signal"] == "SIGTERM"


async def test_a_process_that_holds_the_agents_pipes_open_does_not_hold_up_the_news_of_its_death(
    autojump_clock: MockClock,
) -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.agent.end(1)
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"]["exitCode"] == 1


async def test_an_agent_may_be_silent_for_a_long_time(autojump_clock: MockClock) -> None:
    async with in_conversation() as scene:
        await trio.sleep(10 * LAST_OUTPUT_TIMEOUT)
        await scene.agent.send(method="news")
        assert (await scene.editor.receive())["method"] == "news"
        await scene.editor.stream.aclose()


async def test_a_client_that_is_slow_gets_all_that_a_dead_agent_wrote(autojump_clock: MockClock) -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.agent.stream.send_nowait([update(0, HIGH_WATER)])
        await wait_all_tasks_blocked()
        scene.agent.stream.send_nowait([update(1, HIGH_WATER)])
        await wait_all_tasks_blocked()
        scene.agent.stream.send_nowait([update(2, HIGH_WATER)])
        scene.agent.end(1)
        await trio.sleep(10 * LAST_OUTPUT_TIMEOUT)
        *received, answer = await scene.editor.receive_rest()
    assert numbers_of(received) == [0, 1, 2]
    assert answer["error"]["data"]["exitCode"] == 1
    assert scene.editor.ours.pending_when_closed == 0


async def test_an_agent_that_cannot_be_started_is_an_answer_to_all_that_came_with_initialize(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        raise AgentError("the agent x cannot be started: the command x is not found")

    async with running(Scene(run_agent=run_agent)) as scene:
        requests = [encode({"id": raw_id, "method": "initialize", "params": INITIALIZE}) for raw_id in (0, 1)]
        await scene.editor.stream.send_batch(requests)
        refused, answer = await scene.editor.receive_rest()
    assert (refused["id"], refused["error"]["code"]) == (1, -32600)
    assert answer["id"] == 0
    assert answer["error"]["message"] == "the agent x cannot be started: the command x is not found"
    assert answer["error"]["data"]["reason"] == "agent_not_started"
    assert scene.editor.closed_with == (CloseReason.AGENT_GONE, "the agent fake cannot be started")
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_line_of_the_agents_above_the_limit_ends_it_and_names_the_setting() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.output.receive_error = MessageTooLarge("a message is larger than max_message_size (9 bytes) allows")
        await scene.agent.stream.send(FAIL)
        (answer,) = await scene.editor.receive_rest()
    why = "the agent fake was stopped: a message is larger than max_message_size (9 bytes) allows"
    data = {"reason": "message_too_large", "agent": "fake"}
    assert answer["id"] == "turn"
    assert (answer["error"]["message"], answer["error"]["data"]) == (why, data)
    assert scene.editor.closed_with == (CloseReason.AGENT_GONE, why)
    assert scene.agent.agent.exit_code == -15


async def test_a_line_of_the_agent_that_was_left_out_ends_nothing() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        begun = b'{"jsonrpc":"2.0","id":"q","method":"_ask","params":{"sessionId":"s","text":"'
        scene.output.receive_error = MessageSkipped("a message of 10 bytes is larger than 9", 10, begun, b'"}}')
        await scene.agent.stream.send(FAIL)
        told = json.loads(await scene.editor.stream.receive())
        assert "10 bytes is larger than 9" in told["params"]["update"]["content"]["text"]
        refused = json.loads(await scene.agent.stream.receive())
        assert (refused["id"], refused["error"]["code"]) == ("q", -32600)
        assert scene.agent.agent.exit_code is None
        await scene.editor.stream.aclose()


@pytest.mark.parametrize("error", [trio.BrokenResourceError("not read"), trio.ClosedResourceError("closed")])
async def test_an_agent_whose_pipes_are_given_up_is_stopped_and_what_waits_for_it_is_answered(error: Exception) -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.output.receive_error = error
        await scene.agent.stream.send(FAIL)
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"]["signal"] == "SIGTERM"


@pytest.mark.parametrize("error", [trio.BrokenResourceError("not read"), trio.ClosedResourceError("closed")])
async def test_what_is_sent_to_an_agent_that_takes_no_more_is_answered_when_it_ends(error: Exception) -> None:
    async with in_conversation() as scene:
        scene.output.send_error = error
        await scene.editor.send_request(1, "session/new", **OPEN)
        await wait_all_tasks_blocked()
        scene.agent.end(1)
        await scene.agent.close()
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"]["exitCode"] == 1


@pytest.mark.parametrize("error", [trio.BrokenResourceError("not read"), trio.ClosedResourceError("closed")])
async def test_a_client_is_not_held_back_for_an_agent_that_takes_no_more(error: Exception) -> None:
    async with in_conversation() as scene:
        scene.output.drain_error = error
        for _ in range(10):
            scene.editor.stream.send_nowait([flood(HIGH_WATER)])
            await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["flood"] * 10
        await scene.editor.stream.aclose()


async def test_agent_and_client_may_go_at_the_same_time() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.agent.end(1)
        await scene.agent.close()
        await scene.editor.stream.aclose()


async def test_a_dead_agent_whose_client_takes_nothing_does_not_keep_the_hub_from_being_cancelled() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.agent.end(1)
        await scene.agent.close()
        await wait_all_tasks_blocked()
        assert scene.editor.closed_with is None
        scene.scope.cancel()
        await scene.ended.wait()
        await scene.editor.gone.wait()
    assert scene.editor.closed_with == (CloseReason.AGENT_GONE, "the agent fake ended with exit code 1")


# The client goes


async def test_a_client_that_goes_in_the_middle_of_a_turn_cancels_it_before_the_agent_is_stopped() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        await scene.agent.send(**permission())
        await scene.editor.receive()
        await scene.editor.stream.aclose()
    assert scene.agent.unread_when_stopped == [
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}},
        {"jsonrpc": "2.0", "id": "may I?", "result": {"outcome": {"outcome": "cancelled"}}},
    ]
    assert scene.editor.closed_with == (CloseReason.NORMAL, "")


async def test_a_hub_that_is_cancelled_cancels_the_turn_before_the_agent_is_stopped() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.scope.cancel()
    assert scene.agent.unread_when_stopped == [
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}
    ]
    assert scene.editor.closed_with == (CloseReason.GOING_AWAY, "the gateway is stopping")


@pytest.mark.parametrize("turns", range(6))
async def test_what_an_agent_has_written_when_its_hub_is_cancelled_is_in_the_history(turns: int) -> None:
    shelf, written = Shelf(), [update(number) for number in range(3 * AT_ONCE)]
    async with in_conversation(registry=Registry("me", shelf)) as scene:
        await scene.open_turn()
        scene.agent.stream.send_nowait(written[:-1])
        for _ in range(turns):
            await trio.lowlevel.checkpoint()
        scene.agent.stream.send_nowait(written[-1:])
        scene.scope.cancel()
    (journal,) = shelf.journals.values()
    assert journal.replay()[-len(written) :] == written
    assert not shelf.open


async def test_where_the_last_messages_of_an_agent_are_lost_with_its_hub_its_sessions_are_stored_as_cut_off(
    caplog: pytest.LogCaptureFixture,
) -> None:
    shelf = Shelf()
    async with in_conversation(registry=Registry("me", shelf)) as scene:
        await scene.open_turn()
        scene.output.receive_error = trio.BrokenResourceError("the pipe is broken")
        scene.scope.cancel()
        scene.agent.stream.send_nowait([update(1), FAIL])
    assert shelf.open
    assert "agent fake: its last messages are lost: the pipe is broken" in caplog.text


async def test_a_hub_can_be_cancelled_at_any_time_before_there_is_an_agent() -> None:
    async with running(Scene()) as scene:
        await wait_all_tasks_blocked()
        scene.scope.cancel()
    assert scene.editor.closed_with == (CloseReason.GOING_AWAY, "the gateway is stopping")


async def test_a_hub_that_is_cancelled_while_the_agent_starts_stops_it() -> None:
    fake = FakeAgent()
    starting, go_on = trio.Event(), trio.Event()

    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        starting.set()
        with trio.CancelScope(shield=True):
            await go_on.wait()
        await fake.run(task_status=task_status)

    async with running(Scene(run_agent=run_agent)) as scene:
        await scene.editor.send_request(0, "initialize", **INITIALIZE)
        await starting.wait()
        scene.scope.cancel()
        await wait_all_tasks_blocked()
        go_on.set()
    assert fake.agent.exit_code == -15


async def test_a_client_that_is_gone_when_the_agent_has_started_stops_it() -> None:
    async with running(Scene()) as scene:
        await scene.editor.send_request(0, "initialize", **INITIALIZE)
        await scene.agent.receive()
        await scene.editor.stream.aclose()
    assert scene.agent.runs == 1
    assert scene.agent.agent.exit_code == -15


async def test_how_a_connection_is_closed_is_for_the_first_who_knows() -> None:
    async with in_conversation() as scene:
        attachment = scene.hub.attachments[scene.editor.client]
        attachment.close(Disconnect(CloseReason.POLICY, "revoked", "unauthorized"))
        attachment.close(Disconnect(CloseReason.NORMAL, ""))
        scene.scope.cancel()
    assert scene.editor.closed_with == (CloseReason.POLICY, "revoked")


async def test_a_client_that_is_lost_while_it_is_read_ends_the_agent_and_is_not_an_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with in_conversation() as scene:
        scene.editor.ours.receive_error = trio.BrokenResourceError("lost")
        await scene.editor.stream.send(FAIL)
    assert scene.agent.agent.exit_code == -15
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_the_loss_of_a_client_that_takes_nothing_is_not_an_error_and_shows_where_it_is_read(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with in_conversation() as scene:
        await scene.flow(2, HIGH_WATER)
        scene.editor.ours.drain_error = scene.editor.ours.receive_error = trio.BrokenResourceError("lost")
        await scene.flow(2, HIGH_WATER)
        await scene.editor.stream.send(FAIL)
    assert scene.agent.agent.exit_code == -15
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_is_lost_while_the_agent_reads_nothing_ends_the_agent_when_that_has_stalled(
    autojump_clock: MockClock,
) -> None:
    async with in_conversation(stall_timeout=5.0) as scene:
        await fill(scene.editor.stream, flood(HIGH_WATER))
        await scene.editor.stream.aclose()
    assert trio.current_time() >= 5.0
    assert scene.agent.agent.exit_code == -15


async def test_a_message_of_the_client_above_the_limit_is_answered_and_ends_the_connection() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.editor.ours.receive_error = MessageTooLarge("a message is larger than max_message_size (9 bytes) allows")
        await scene.editor.stream.send(FAIL)
        answer, turn = await scene.editor.receive_rest()
    assert answer["id"] is None
    assert answer["error"]["message"] == "a message is larger than max_message_size (9 bytes) allows"
    assert (turn["id"], turn["error"]["data"]) == ("turn", {"reason": "message_too_large"})
    assert scene.editor.closed_with == (CloseReason.TOO_LARGE, answer["error"]["message"])


async def test_a_client_that_is_gone_already_is_not_told_that_its_agent_cannot_start() -> None:
    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        await scene.editor.stream.aclose()
        raise AgentError("no")

    scene = Scene(run_agent=run_agent)
    async with running(scene):
        await scene.editor.send_request(0, "initialize", **INITIALIZE)


async def test_a_client_that_is_lost_while_it_is_told_of_the_agents_end_is_not_an_error() -> None:
    async with in_conversation() as scene:
        scene.editor.ours.drain_error = trio.BrokenResourceError("lost")
        scene.agent.end(1)
        await scene.agent.close()
    assert scene.editor.closed_with is not None
    assert scene.editor.closed_with[0] is CloseReason.AGENT_GONE


@pytest.mark.parametrize(
    ("disconnect", "reason"),
    [
        (None, "gateway_stopping"),
        (Disconnect(CloseReason.POLICY, "the token is not valid any more", "unauthorized"), "unauthorized"),
    ],
)
async def test_what_is_open_is_answered_when_the_gateway_ends_the_connection(
    disconnect: Disconnect | None, reason: str
) -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        if disconnect is None:
            scene.scope.cancel()
        else:
            scene.hub.attachments[scene.editor.client].close(disconnect)
        (answer,) = await scene.editor.receive_rest()
    assert answer["id"] == "turn"
    assert answer["error"]["data"] == {"reason": reason}
    assert scene.editor.closed_with is not None
    assert answer["error"]["message"] == scene.editor.closed_with[1]


async def test_a_client_that_is_served_in_a_task_that_is_cancelled_is_told_goodbye() -> None:
    async with in_conversation() as scene:
        await scene.open_turn()
        scene.editor.scope.cancel()
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"] == {"reason": "gateway_stopping"}
    assert scene.editor.closed_with == (CloseReason.GOING_AWAY, "the gateway is stopping")


async def test_the_sessions_of_a_hub_that_has_ended_are_not_live_any_more() -> None:
    async with in_conversation() as scene:
        (session,) = scene.registry
        assert session.live
        scene.scope.cancel()
    assert not session.live
    assert list(scene.registry) == [session]


# The agent does not read


async def test_a_client_that_floods_is_not_read_while_the_agent_does_not_read() -> None:
    async with in_conversation() as scene:
        for _ in range(2):
            count = await fill(scene.editor.stream, flood())
            assert HIGH_WATER < scene.output.pending_bytes < 2 * HIGH_WATER + 4000
            for _ in range(count):
                assert (await scene.agent.receive())["method"] == "flood"
        await scene.editor.stream.aclose()


async def test_how_much_a_client_may_send_ahead_is_counted_from_nothing_each_time() -> None:
    async with in_conversation() as scene:
        scene.editor.stream.send_nowait([flood(100 * HIGH_WATER)])
        await fill(scene.editor.stream, flood())
        while scene.agent.stream.pending_bytes or scene.agent.peek():
            await scene.agent.stream.receive_batch()
            await wait_all_tasks_blocked()
        await fill(scene.editor.stream, flood(2 * HIGH_WATER))
        assert scene.output.pending_bytes < 10 * HIGH_WATER
        scene.agent.end(0)
        await scene.agent.close()
        await scene.editor.receive_rest()


async def test_an_agent_that_does_not_read_a_big_prompt_still_hears_that_it_is_cancelled() -> None:
    async with in_conversation() as scene:
        for turn in range(3):
            params = {"sessionId": "s", "prompt": [], "x": "x" * 10 * HIGH_WATER * (turn + 1)}
            scene.editor.stream.send_nowait([encode({"id": turn, "method": "session/prompt", "params": params})])
            await wait_all_tasks_blocked()
            scene.editor.stream.send_nowait([encode({"method": "news", "params": "x" * (HIGH_WATER // 2)})])
            await wait_all_tasks_blocked()
            scene.editor.stream.send_nowait([encode({"method": "session/cancel", "params": {"sessionId": "s"}})])
            await wait_all_tasks_blocked()
            assert methods_of(scene.agent.peek()) == ["session/prompt", "news", "session/cancel"]
            await scene.agent.stream.receive_batch()
        await scene.editor.stream.aclose()


async def test_a_second_big_prompt_waits_for_the_first_and_can_be_cancelled_as_well() -> None:
    async with in_conversation() as scene:
        for turn in range(2):
            params = {"sessionId": "s", "prompt": [], "x": "x" * 10 * HIGH_WATER}
            scene.editor.stream.send_nowait([encode({"id": turn, "method": "session/prompt", "params": params})])
            await wait_all_tasks_blocked()
        scene.editor.stream.send_nowait([encode({"method": "session/cancel", "params": {"sessionId": "s"}})])
        await wait_all_tasks_blocked()
        assert methods_of(await scene.agent.stream.receive_batch()) == ["session/prompt"]
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["session/prompt", "session/cancel"]
        await scene.editor.stream.aclose()


async def test_the_end_of_a_client_is_noticed_although_the_agent_does_not_read_its_big_prompt() -> None:
    async with in_conversation() as scene:
        await scene.editor.send_request(1, "session/prompt", sessionId="s", prompt=[], x="x" * 10 * HIGH_WATER)
        await wait_all_tasks_blocked()
        await scene.editor.stream.aclose()
        await scene.ended.wait()
    assert scene.agent.unread_when_stopped is not None
    assert [message["method"] for message in scene.agent.unread_when_stopped] == ["session/prompt", "session/cancel"]


async def test_an_agent_that_reads_only_when_its_output_is_taken_and_a_client_that_sends_much_get_along() -> None:
    async with in_conversation() as scene:
        big = [encode({"method": "x", "params": "x" * HIGH_WATER}) for _ in range(20)]

        async def agent() -> None:
            for message in big:
                await scene.agent.stream.send(message)
            for message in big:
                assert await scene.agent.stream.receive() == message

        async with trio.open_nursery() as nursery:
            nursery.start_soon(agent)
            nursery.start_soon(scene.editor.stream.send_batch, big)
            for message in big:
                assert await scene.editor.stream.receive() == message
        await scene.editor.stream.aclose()


async def test_stall_timeout_stops_an_agent_that_reads_nothing_and_answers_open_requests(
    autojump_clock: MockClock,
) -> None:
    async with in_conversation(stall_timeout=5.0) as scene:
        await scene.editor.send_request("turn", "session/prompt", sessionId="s", prompt=[])
        await fill(scene.editor.stream, flood(HIGH_WATER))
        (answer,) = await scene.editor.receive_rest()
    assert answer["id"] == "turn"
    assert answer["error"]["data"] == {"reason": "agent_stalled", "agent": "fake"}
    assert "has read nothing for 5 s" in answer["error"]["message"]
    assert scene.agent.agent.exit_code == -15


async def test_the_time_in_which_an_agent_is_away_does_not_count_as_time_in_which_it_reads_nothing(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    back_at = trio.current_time() + 20
    async with in_conversation(stall_timeout=2.0) as scene:
        away = property(lambda _: trio.current_time() < back_at)
        monkeypatch.setattr(type(scene.agent.agent.messages.stream), "away", away)
        await scene.editor.send_request("turn", "session/prompt", sessionId="s", prompt=[])
        await fill(scene.editor.stream, flood(HIGH_WATER))
        (answer,) = await scene.editor.receive_rest()
        assert 0 <= trio.current_time() - back_at <= 4
    assert answer["error"]["data"] == {"reason": "agent_stalled", "agent": "fake"}


class SlowPipe(FragileStream):
    """The hub's end of a pipe whose reader takes as many bytes as it is told to."""

    def __init__(self, stream: MaintainedStream) -> None:
        super().__init__(stream)
        self._pending = 0
        self._taken = trio.lowlevel.ParkingLot()

    def take(self, size: int) -> None:
        self._pending -= size
        self._taken.unpark_all()

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        super().send_nowait(messages)
        self._pending += sum(map(len, messages))

    @property
    def pending_bytes(self) -> int:
        return self._pending

    async def drain(self, below: int = 0) -> None:
        while self._pending > below:
            await self._taken.park()


async def test_an_agent_that_reads_slowly_has_not_stalled_whatever_others_send_to_it(
    autojump_clock: MockClock,
) -> None:
    agents = FakeAgents()
    pipe = SlowPipe(agents.next.agent.messages.stream)
    agents.next.agent.messages = AgentMessages(pipe)
    async with sharing(stall_timeout=5.0, agents=agents) as (scene, ann):
        bob = await scene.enter("bob")
        await fill(ann.stream, flood(HIGH_WATER))
        for _ in range(4):
            pipe.take(100)
            await bob.stream.send(flood(2 * UPDATE))
            await trio.sleep(4.0)
        assert bob.stream.pending_bytes == 0
        assert not scene.agent.agent.ended.is_set()
        await trio.sleep(6.0)
        assert scene.agent.agent.exit_code == -15


async def test_an_agent_that_stalls_for_several_clients_has_ended_once(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with sharing(stall_timeout=5.0, max_restarts=1) as (scene, ann):
        bob = await scene.enter("bob")
        second = scene.agents.next
        await fill(ann.stream, flood(HIGH_WATER))
        await fill(bob.stream, flood(HIGH_WATER))
        await trio.sleep(8.0)
        assert scene.agent.agent.exit_code == -15
        assert len([record for record in caplog.records if "has read nothing" in record.getMessage()]) == 1
        await ann.send_request(1, "x/y", sessionId="s")
        await second.answer_initialize()


async def test_answers_and_cancels_reach_the_agent_while_another_clients_flood_is_held_back() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        await scene.open_turn(bob)
        await scene.agent.send(**permission())
        assert (await ann.receive())["method"] == "session/request_permission"
        await fill(ann.stream, flood())
        await bob.stream.send(choice((await bob.receive())["id"]))
        await bob.send(method="$/cancel_request", params={"requestId": "turn"})
        await bob.send(method="session/cancel", params={"sessionId": "s"})
        await wait_all_tasks_blocked()
        assert ann.stream.pending_bytes
        *held, answer, cancel_request, cancel = scene.agent.peek()
    assert set(methods_of(held)) == {"flood"}
    assert json.loads(answer)["result"]["outcome"]["optionId"] == "yes"
    assert methods_of([cancel_request, cancel]) == ["$/cancel_request", "session/cancel"]


async def test_an_agent_is_not_started_again_for_who_has_left_while_it_was_waited_for(
    autojump_clock: MockClock,
) -> None:
    async with sharing(timeout=1000) as (scene, ann):
        scene.agent.end(1)
        await scene.agent.close()
        await wait_all_tasks_blocked()
        await ann.send_request(1, "x/y")
        await wait_all_tasks_blocked()
        await ann.stream.aclose()
        await trio.sleep(60)
        assert len(scene.agents.started) == 1
        bob = scene.join("bob")
        await bob.initialize()
        await bob.send_request(1, "x/y")
        await trio.sleep(60)
        assert len(scene.agents.started) == 2


async def test_what_an_agent_says_in_the_very_moment_in_which_it_is_given_up_is_not_heard() -> None:
    async with sharing(LOADS) as (scene, ann):
        scene.agent.stream.send_nowait([encode(permission())])
        # The relay has its batch, and no turn yet.
        scene.hub._stop_idle("idle")
        await wait_all_tasks_blocked()
        assert ann.stream.pending_bytes == 0
        assert not scene.hub.multiplexer.busy


# A client does not read


@pytest.mark.parametrize("shared", [False, True])
async def test_an_agent_is_not_read_while_its_only_client_does_not_read(shared: bool) -> None:
    async with running(Scene(shared=shared)) as scene:
        await scene.initialize(scene.editor)
        await scene.open_session(scene.editor)
        await scene.flow(60)
        assert scene.agent.stream.pending_bytes > 40 * UPDATE
        assert HIGH_WATER <= scene.editor.ours.pending_bytes < 2 * HIGH_WATER
        assert numbers_of([await scene.editor.receive() for _ in range(60)]) == [*range(60)]
        await wait_all_tasks_blocked()
        assert scene.agent.stream.pending_bytes == 0
        assert scene.editor.closed_with is None
        scene.hub.end()


async def test_a_second_client_that_comes_makes_the_agent_go_on_and_slows_it_down_itself_when_it_is_alone() -> None:
    async with sharing(outbox_limit=1_000_000) as (scene, ann):
        await fill(scene.agent.stream, update(0, UPDATE))
        bob = scene.join("bob")
        await wait_all_tasks_blocked()
        assert scene.agent.stream.pending_bytes == 0
        await bob.initialize()
        await bob.load()
        await scene.flow(100)
        assert scene.agent.stream.pending_bytes == 0
        await ann.stream.aclose()
        await ann.gone.wait()
        await fill(scene.agent.stream, update(0, UPDATE))
        while scene.agent.stream.pending_bytes:
            assert await bob.waiting()


@pytest.mark.parametrize("how", [{"role": Role.OBSERVER}, {"identity": "guest-1", "guest": True}])
async def test_a_slow_observer_or_guest_does_not_throttle_the_agent_not_even_alone(how: dict[str, Any]) -> None:
    async with sharing() as (scene, ann):
        viewer = await scene.enter("viewer", **how)
        await ann.stream.aclose()
        await ann.gone.wait()
        await scene.flow(2 * (HIGH_WATER + OUTBOX_LIMIT) // UPDATE)
        assert scene.agent.stream.pending_bytes == 0
        await viewer.gone.wait()
    assert viewer.closed_with is not None
    assert viewer.closed_with[0] is CloseReason.POLICY


async def test_histories_that_are_asked_for_again_and_again_and_not_read_are_too_much() -> None:
    async with sharing() as (scene, ann):
        await scene.flow(OUTBOX_LIMIT // UPDATE // 2)
        viewer = await scene.enter("viewer", role=Role.OBSERVER)
        load = {"method": "session/load", "params": {"sessionId": "s", **OPEN}}
        await viewer.stream.send_batch([encode({"id": number, **load}) for number in range(20)])
        await viewer.gone.wait()
        assert ann.closed_with is None
    assert viewer.closed_with is not None
    assert "outbox_limit" in viewer.closed_with[1]


async def test_an_agent_that_waits_for_its_only_client_goes_on_when_that_is_lost() -> None:
    async with sharing() as (scene, ann):
        await fill(scene.agent.stream, update(0, UPDATE))
        await ann.stream.aclose()
        await ann.gone.wait()
        await scene.flow(100)
        assert scene.agent.stream.pending_bytes == 0


async def test_one_that_reads_slowly_is_detached_while_the_others_get_everything_and_the_agent_is_not_slowed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    count = 2 * (HIGH_WATER + OUTBOX_LIMIT) // UPDATE
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        received = []
        for number in range(count):
            await scene.flow(1, first=number)
            assert scene.agent.stream.pending_bytes == 0
            received += await ann.waiting()
        await bob.gone.wait()
        assert numbers_of(received) == [*range(count)]
        late = numbers_of(await bob.receive_rest())
        assert ann.closed_with is None
    why = f"more than outbox_limit ({OUTBOX_LIMIT} bytes) wait for this client"
    assert bob.closed_with == (CloseReason.POLICY, why)
    assert 0 < len(late) <= 2 * HIGH_WATER // UPDATE
    assert late == [*range(len(late))]
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"bob: detached: {why}"]


async def test_what_a_slow_client_has_asked_is_answered_when_it_is_detached_however_much_that_is(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with sharing(outbox_limit=2 * UPDATE) as (scene, ann):
        bob = await scene.enter("bob")
        for number in range(100):
            await bob.send_request(number, "x/y", sessionId="s")
        for number in range(2 * HIGH_WATER // UPDATE):
            await scene.flow(1, first=number)
            await ann.waiting()
        answers = [message for message in await bob.receive_rest() if "id" in message]
        assert ann.closed_with is None
    assert [answer["id"] for answer in answers] == [*range(100)]
    for answer in answers:
        assert answer["error"]["data"] == {"reason": "too_slow"}
        assert "outbox_limit" in answer["error"]["message"]
    assert len(caplog.messages) == 1


async def test_nothing_comes_behind_the_gap_in_what_a_slow_client_got() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        await bob.send_request("asked", "x/y", sessionId="s")
        await scene.flow(2 * HIGH_WATER // UPDATE)
        seen = numbers_of(list(map(json.loads, peek(bob.stream))))
        scene.hub.detach(scene.hub.attachments[bob.client], "memory_limit is reached")
        # Before any other task gets a turn, that of bob included.
        scene.hub.multiplexer.receive_from_agent([update(99)])
        scene.hub.sessions_freed()
        *got, answer = await bob.receive_rest()
        assert numbers_of(await ann.waiting()) == [*range(2 * HIGH_WATER // UPDATE), 99]
    assert numbers_of(got) == seen == [*range(len(seen))]
    assert answer["error"]["message"] == "memory_limit is reached"
    assert bob.closed_with == (CloseReason.POLICY, "memory_limit is reached")


async def test_other_tasks_get_their_turn_among_very_many_lines_of_an_agent(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing() as (scene, ann):
        turns: list[int | str] = []
        handle = scene.hub.multiplexer.receive_from_agent

        def noted(lines: Sequence[bytes]) -> None:
            turns.append(len(lines))
            handle(lines)

        async def go_on(*, task_status: trio.TaskStatus[None]) -> None:
            task_status.started()
            while True:
                if turns[-1:] != ["other"]:
                    turns.append("other")
                await trio.lowlevel.checkpoint()

        monkeypatch.setattr(scene.hub.multiplexer, "receive_from_agent", noted)
        junk = [b"%d" % number for number in range(2 * AT_ONCE)]
        async with trio.open_nursery() as others:
            await others.start(go_on)
            scene.agent.stream.send_nowait([*junk, update(1)])
            assert numbers_of([await ann.receive()]) == [1]
            others.cancel_scope.cancel()
        # Their number doubles while they are cheap.
        assert [turn for turn in turns if turn != "other"] == [64, 128, 256, 512, AT_ONCE, 65]
        # Trio runs the tasks of a turn in any order.
        assert all("other" in turns[turns.index(size) : turns.index(4 * size)] for size in (64, 128, 256))


async def test_a_slow_client_comes_back_through_the_history() -> None:
    count = 2 * (HIGH_WATER + OUTBOX_LIMIT) // UPDATE
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        for number in range(count):
            await scene.flow(1, first=number)
            await ann.waiting()
        await bob.gone.wait()
        bob = scene.join("bob")
        await bob.initialize()
        assert numbers_of(await bob.load()) == [*range(count)]
        assert bob.closed_with is None


@pytest.mark.parametrize("before", [0, HIGH_WATER // UPDATE, 2 * HIGH_WATER // UPDATE])
async def test_a_single_message_larger_than_the_limit_passes_whatever_waits_around_it(before: int) -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        await scene.flow(before)
        await scene.flow(1, 3 * OUTBOX_LIMIT, first=before)
        await scene.flow(5, first=before + 1)
        assert bob.closed_with is None
        assert numbers_of([await bob.receive() for _ in range(before + 6)]) == [*range(before + 6)]
        assert len(await ann.waiting()) > before


async def test_two_messages_larger_than_the_limit_are_too_much() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        await scene.flow(2 * HIGH_WATER // UPDATE)
        for number in range(2):
            await scene.flow(1, 3 * OUTBOX_LIMIT, first=number)
            await ann.waiting()
        await bob.gone.wait()
    assert bob.closed_with is not None
    assert "outbox_limit" in bob.closed_with[1]


async def test_a_history_that_is_replayed_does_not_count() -> None:
    count = 2 * (CHUNK + OUTBOX_LIMIT) // UPDATE
    async with sharing(registry=Registry("me")) as (scene, ann):
        for number in range(count):
            await scene.flow(1, first=number)
            await ann.waiting()
        bob = scene.join("bob")
        await bob.initialize()
        await bob.send_request(1, "session/load", sessionId="s", **OPEN)
        await scene.flow(OUTBOX_LIMIT // 2 // UPDATE, first=count)
        assert scene.hub.attachments[bob.client].outbox.unconfirmed_bytes > 2 * OUTBOX_LIMIT
        assert bob.closed_with is None
        heard = [await bob.receive() for _ in range(count + 1 + OUTBOX_LIMIT // 2 // UPDATE)]
        assert numbers_of(heard) == [*range(count + OUTBOX_LIMIT // 2 // UPDATE)]
        assert await ann.waiting()


async def test_a_client_that_does_not_read_its_errors_is_detached() -> None:
    async with running(Scene()) as scene:
        while scene.editor.closed_with is None:
            scene.editor.stream.send_nowait([b"no JSON"] * 10)
            await wait_all_tasks_blocked()
    assert scene.editor.closed_with is not None
    assert scene.editor.closed_with[0] is CloseReason.POLICY


async def test_updates_without_clients_count_for_the_memory_limit() -> None:
    async with sharing() as (scene, ann):
        await ann.stream.aclose()
        await ann.gone.wait()
        before = scene.services.grown
        await scene.flow(3)
        assert scene.services.grown - before >= 3 * UPDATE


# The next agent


async def end(agent: FakeAgent, exit_code: int = 1) -> None:
    """Have an agent end, as far as it can."""
    agent.end(exit_code)
    await agent.close()
    await wait_all_tasks_blocked()


async def test_an_agent_that_ends_is_started_again_with_the_next_request_and_its_sessions_are_opened_again(
    autojump_clock: MockClock,
) -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        second = scene.agents.next
        await scene.open_turn()
        await end(scene.agent, 7)
        (answer,) = await ann.waiting()
        assert (answer["id"], answer["error"]["data"]["exitCode"]) == ("turn", 7)
        assert (ann.closed_with, bob.closed_with) == (None, None)
        await trio.sleep(5.0)
        assert scene.agents.started == [scene.agent]
        await bob.send_request("again", "session/prompt", sessionId="s", prompt=[])
        await second.answer_initialize(**LOADS)
        asked = await second.receive()
        assert (asked["method"], asked["params"]["sessionId"], asked["params"]["cwd"]) == ("session/load", "s", "/srv")
        await second.stream.send_batch([update(), encode({"id": asked["id"], "result": {}})])
        prompt = await second.receive()
        assert prompt["method"] == "session/prompt"
        await second.stream.send_batch([update(1), encode({"id": prompt["id"], "result": {"stopReason": "end_turn"}})])
        assert numbers_of([await ann.receive()]) == [1]
        assert numbers_of([await bob.receive()]) == [1]
        assert (await bob.receive())["id"] == "again"


async def test_an_agent_that_ends_takes_sessions_along_that_it_cannot_open_again(autojump_clock: MockClock) -> None:
    async with sharing({}) as (scene, ann):
        second = scene.agents.next
        await end(scene.agent)
        await ann.send_request(1, "session/prompt", sessionId="s", prompt=[])
        await second.answer_initialize()
        assert (await ann.receive())["error"]["code"] == -32002


async def test_an_agent_that_keeps_ending_is_started_again_more_and_more_slowly(autojump_clock: MockClock) -> None:
    pauses = []
    async with sharing(max_restarts=8, timeout=HOUR) as (scene, ann):
        agent = scene.agent
        for number in range(8):
            second = scene.agents.next
            await end(agent)
            ended = trio.current_time()
            await ann.send_request(number, "session/new", **OPEN)
            await second.answer_initialize(**LOADS)
            pauses.append(trio.current_time() - ended)
            agent = second
    assert pauses == pytest.approx([1.0, 2.0, 4.0, 8.0, 16.0, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF])


async def test_an_agent_that_ended_long_ago_is_started_again_at_once(autojump_clock: MockClock) -> None:
    async with sharing() as (scene, ann):
        second = scene.agents.next
        await end(scene.agent)
        await trio.sleep(5.0)
        now = trio.current_time()
        await ann.send_request(1, "session/new", **OPEN)
        await second.answer_initialize()
        assert trio.current_time() == now


async def test_an_agent_that_has_ended_too_often_is_not_started_again_for_a_while(autojump_clock: MockClock) -> None:
    async with sharing(max_restarts=1, timeout=HOUR) as (scene, ann):
        began = trio.current_time()
        second, ended = scene.agents.next, trio.current_time()
        await end(scene.agent, 3)
        await ann.send_request(1, "session/new", **OPEN)
        await second.answer_initialize()
        await end(second, 4)
        assert (await ann.receive())["error"]["data"]["exitCode"] == 4
        third = scene.agents.next
        error = (await ann.request("session/new", OPEN))["error"]
        assert error["data"] == {"reason": "agent_ended", "agent": "fake", "retryAfter": WINDOW - 1}
        assert error["message"] == (
            "the agent fake ended with exit code 4; it has ended 2 times within 10 min (max_restarts is 1) and may be "
            "started again in 599 s"
        )
        assert scene.agents.next is third
        await trio.sleep_until(ended + WINDOW)
        await ann.send_request(2, "session/new", **OPEN)
        await third.answer_initialize()
        assert trio.current_time() - began == pytest.approx(WINDOW)


async def test_an_agent_that_may_not_be_started_again_is_started_when_its_pause_is_over(
    autojump_clock: MockClock,
) -> None:
    async with sharing(max_restarts=0, timeout=HOUR) as (scene, ann):
        second = scene.agents.next
        await trio.sleep(0.25)
        await end(scene.agent)
        await trio.sleep(0.5)
        pause = (await ann.request("session/new", OPEN))["error"]["data"]["retryAfter"]
        await trio.sleep(pause)
        await ann.send_request(2, "session/new", **OPEN)
        await second.answer_initialize()


async def test_an_agent_that_cannot_be_started_is_tried_again_with_the_next_request(autojump_clock: MockClock) -> None:
    tries = 0

    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        nonlocal tries
        tries += 1
        if tries == 2:
            raise AgentError("the agent x cannot be started: no")
        await agents.run(task_status=task_status)

    agents = FakeAgents()
    async with sharing(run_agent=run_agent, agents=agents) as (scene, ann):
        second = agents.next
        await end(scene.agent)
        answer = await ann.request("session/new", OPEN)
        assert answer["error"]["data"] == {"reason": "agent_not_started"}
        assert scene.services.audit_events[-1] == AuditEvent("agent_not_started", None, {"agent": "fake"})
        await ann.send_request("again", "session/new", **OPEN)
        await second.answer_initialize()
        await second.answer("session/load", {})
        await second.answer("session/new", {"sessionId": "s2"})
        assert (await ann.receive())["result"]["sessionId"] == "s2"


async def test_a_client_whose_initialize_fails_with_the_agent_is_not_kept() -> None:
    async with running(Scene(shared=True)) as scene:
        await scene.editor.send_request(0, "initialize", **INITIALIZE)
        await scene.agent.receive()
        await end(scene.agent, 3)
        (answer,) = await scene.editor.receive_rest()
        assert answer["error"]["data"]["exitCode"] == 3
        assert not scene.hub.ended
        scene.scope.cancel()
    assert scene.editor.closed_with == (CloseReason.AGENT_GONE, "the agent fake ended with exit code 3")


async def test_a_hub_that_is_cancelled_while_an_agent_waits_for_its_new_start_answers_what_waits(
    autojump_clock: MockClock,
) -> None:
    async with sharing() as (scene, ann):
        await end(scene.agent)
        await ann.send_request(1, "session/new", **OPEN)
        await wait_all_tasks_blocked()
        scene.scope.cancel()
        (answer,) = await ann.receive_rest()
    assert answer["error"]["data"] == {"reason": "gateway_stopping"}
    assert scene.agents.started == [scene.agent]


# Time


async def test_an_idle_agent_is_stopped_and_started_again_with_the_next_request(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with sharing(idle_timeout=8.0) as (scene, ann):
        await scene.take_turn()
        second = scene.agents.next
        await trio.sleep(7.0)
        assert not scene.agent.agent.ended.is_set()
        await trio.sleep(5.0)
        assert scene.agent.agent.exit_code == -15
        assert "agent fake is stopped: idle for 8 s" in caplog.messages
        assert (ann.closed_with, await ann.waiting()) == (None, [])
        now = trio.current_time()
        await ann.send_request(1, "session/prompt", sessionId="s", prompt=[])
        await second.answer_initialize(**LOADS)
        await second.answer("session/load", {})
        assert (await second.receive())["method"] == "session/prompt"
        assert trio.current_time() == now
        assert not scene.hub.ended


async def test_a_working_agent_is_not_stopped_as_idle(autojump_clock: MockClock) -> None:
    async with sharing(idle_timeout=8.0, timeout=HOUR) as (scene, _):
        await scene.take_turn()
        looks = FakeDescendants()
        looks.now = Look((TRAINING,))
        scene.agent.agent.descendants = looks  # type: ignore[assignment]
        await trio.sleep(100.0)
        assert not scene.agent.agent.ended.is_set()
        looks.now = Look()
        await trio.sleep(8.0)
        assert scene.agent.agent.ended.is_set()


@pytest.mark.parametrize("how", ["pause", "process"])
async def test_the_operator_gives_up_a_start_and_the_next_request_begins_another(
    how: str, autojump_clock: MockClock
) -> None:
    agents, may_start = FakeAgents(), trio.Event()

    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        if how == "process":
            await may_start.wait()
        await agents.run(task_status=task_status)

    async def asks(name: str) -> Peer:
        peer = scene.join(name)
        await peer.send_request(0, "initialize", **INITIALIZE)
        await wait_all_tasks_blocked()
        return peer

    scene = Scene(shared=True, run_agent=run_agent, agents=agents)
    async with running(scene, HOUR):
        if how == "pause":
            first = await asks("first")
            scene.agent.end(1)
            assert "error" in await first.receive()
        ann = await asks("ann")
        over = scene.hub.end_agent()
        assert over is not None
        assert (await ann.receive())["error"]["data"] == {"reason": "agent_stopped", "agent": "fake"}
        bob = await asks("bob")
        may_start.set()
        await over.wait()
        assert all(agent.agent.ended.is_set() for agent in agents.started)
        await trio.sleep(5.0)
        _, second = agents.started
        assert scene.hub.end_agent() is second.agent.ended
        assert (await bob.receive())["error"]["data"]["reason"] == "agent_stopped"
        scene.scope.cancel()


async def test_an_agent_that_the_operator_ends_is_started_again_with_the_next_prompt(autojump_clock: MockClock) -> None:
    async with sharing(timeout=HOUR) as (scene, ann):
        second = scene.agents.next
        assert scene.hub.end_agent() is scene.agent.agent.ended
        assert scene.hub.end_agent() is None
        await scene.agent.agent.ended.wait()
        now = trio.current_time()
        await ann.send_request(1, "session/prompt", sessionId="s", prompt=[])
        await second.answer_initialize(**LOADS)
        await second.answer("session/load", {})
        assert (await second.receive())["method"] == "session/prompt"
        assert trio.current_time() == now
        assert scene.hub.end_agent() is not None
        error = (await ann.receive())["error"]
        assert error["message"] == "the agent fake was stopped by the operator of the gateway"
        assert error["data"] == {"reason": "agent_stopped", "agent": "fake"}
        assert [event.details["how"] for event in scene.services.audit_events if event.name == "agent_ended"] == [
            "stopped"
        ]


async def ask_something(scene: Scene) -> None:
    await scene.editor.send_request(1, "x/y", sessionId="s")


async def ask_permission(scene: Scene) -> None:
    await scene.agent.send(**permission())


async def open_turn(scene: Scene) -> None:
    await scene.open_turn()


@pytest.mark.parametrize("begin", [ask_something, ask_permission, open_turn])
async def test_an_agent_is_not_idle_while_something_is_open(
    begin: Callable[[Scene], Any], autojump_clock: MockClock
) -> None:
    async with sharing(idle_timeout=8.0, timeout=HOUR) as (scene, _):
        await begin(scene)
        await trio.sleep(100.0)
        assert not scene.agent.agent.ended.is_set()


async def test_an_agent_is_not_idle_while_it_or_a_client_says_something(autojump_clock: MockClock) -> None:
    async with sharing(idle_timeout=8.0, timeout=HOUR) as (scene, ann):
        for _ in range(10):
            await trio.sleep(7.0)
            await scene.flow(1)
        for _ in range(10):
            await trio.sleep(7.0)
            await ann.send(method="news")
        assert not scene.agent.agent.ended.is_set()


async def test_idle_timeout_does_not_stop_an_agent_whose_sessions_would_be_lost(autojump_clock: MockClock) -> None:
    async with sharing({}, idle_timeout=8.0, timeout=HOUR) as (scene, ann):
        await trio.sleep(100.0)
        assert not scene.agent.agent.ended.is_set()
        await ann.stream.aclose()
        await trio.sleep(10.0)
        assert scene.agent.agent.exit_code == -15


async def test_idle_timeout_does_not_stop_an_agent_before_the_first_prompt_of_a_session_that_is_open(
    autojump_clock: MockClock,
) -> None:
    async with sharing(idle_timeout=8.0, timeout=HOUR) as (scene, ann):
        await trio.sleep(100.0)
        assert not scene.agent.agent.ended.is_set()
        await scene.take_turn()
        await trio.sleep(12.0)
        assert scene.agent.agent.exit_code == -15
        assert await ann.waiting() == []


async def test_idle_timeout_ends_a_hub_without_clients(autojump_clock: MockClock) -> None:
    async with sharing(idle_timeout=8.0) as (scene, ann):
        await ann.stream.aclose()
        await trio.sleep(5.0)
        assert not scene.ended.is_set()
        await trio.sleep(5.0)
        assert scene.ended.is_set()
        assert scene.hub.ended
        assert scene.agent.agent.exit_code == -15
        assert not any(session.live for session in scene.registry)


async def test_a_hub_whose_agent_is_stopped_ends_when_the_last_client_has_gone(autojump_clock: MockClock) -> None:
    async with sharing(idle_timeout=8.0) as (scene, ann):
        await scene.take_turn()
        await trio.sleep(20.0)
        assert scene.agent.agent.exit_code == -15
        assert not scene.hub.ended
        await ann.stream.aclose()
        await trio.sleep(5.0)
        assert scene.ended.is_set()


# Another configuration


def restarted(scene: Scene) -> bool:
    """Have the hub restart its agent when it is idle; return whether it has stopped it."""
    return scene.hub.reconfigure(scene.hub._policy, restart=True)


async def test_an_agent_is_stopped_at_once_for_another_configuration_if_nothing_is_open(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with sharing(timeout=HOUR) as (scene, ann):
        second = scene.agents.next
        assert restarted(scene)
        assert "agent fake is stopped: its configuration has changed" in caplog.messages
        await ann.send_request(1, "session/prompt", sessionId="s", prompt=[])
        await second.answer_initialize(**LOADS)
        await second.answer("session/load", {})
        await second.answer("session/prompt", {"stopReason": "end_turn"})
        await trio.sleep(100.0)
        # Once is enough.
        assert not second.agent.ended.is_set()


@pytest.mark.parametrize("begin", [ask_something, ask_permission])
async def test_an_agent_with_something_open_is_stopped_for_another_configuration_once_that_is_settled(
    begin: Callable[[Scene], Any], autojump_clock: MockClock
) -> None:
    async with sharing(timeout=HOUR) as (scene, _):
        await begin(scene)
        assert not restarted(scene)
        await trio.sleep(100.0)
        assert not scene.agent.agent.ended.is_set()
        if begin is ask_something:
            await scene.agent.answer("x/y", {})
        else:
            request = await scene.editor.receive()
            await scene.editor.send(id=request["id"], result={"outcome": {"outcome": "cancelled"}})
        await trio.sleep(20.0)
        assert scene.agent.agent.exit_code == -15


async def test_an_agent_whose_sessions_would_be_lost_is_not_stopped_for_another_configuration(
    autojump_clock: MockClock,
) -> None:
    async with sharing({}, timeout=HOUR) as (scene, ann):
        assert not restarted(scene)
        await trio.sleep(100.0)
        assert not scene.agent.agent.ended.is_set()
        await ann.stream.aclose()
        await trio.sleep(20.0)
        assert scene.agent.agent.exit_code == -15


async def test_without_an_agent_there_is_nothing_to_stop_for_another_configuration(
    autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    async with sharing(idle_timeout=8.0) as (scene, _):
        await scene.take_turn()
        await trio.sleep(20.0)
        caplog.clear()
        assert restarted(scene)
        assert caplog.messages == []


async def test_an_agent_that_was_being_started_is_stopped_for_another_configuration(autojump_clock: MockClock) -> None:
    agents, may_start = FakeAgents(), trio.Event()

    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        await may_start.wait()
        await agents.run(task_status=task_status)

    scene = Scene(shared=True, run_agent=run_agent, agents=agents)
    with trio.fail_after(100.0):
        async with running(scene, HOUR):
            ann = scene.join("ann")
            await ann.send_request(0, "initialize", **INITIALIZE)
            await wait_all_tasks_blocked()
            first = scene.agent
            assert not restarted(scene)
            may_start.set()
            await first.answer_initialize(**LOADS)
            await first.agent.ended.wait()
            scene.scope.cancel()


async def test_an_agent_of_one_connections_own_is_not_stopped_for_another_configuration(
    autojump_clock: MockClock,
) -> None:
    async with in_conversation(idle_timeout=HOUR) as scene:
        assert not restarted(scene)
        await trio.sleep(20.0)
        assert not scene.agent.agent.ended.is_set()
        await scene.editor.stream.aclose()


async def test_an_agent_of_one_connections_own_is_never_idle(autojump_clock: MockClock) -> None:
    async with in_conversation(idle_timeout=2.0) as scene:
        await trio.sleep(20.0)
        assert not scene.agent.agent.ended.is_set()
        await scene.editor.stream.aclose()


async def test_a_request_that_comes_while_an_idle_agent_is_being_stopped_waits_for_the_next_one(
    autojump_clock: MockClock,
) -> None:
    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        fake, agents.next = agents.next, FakeAgent()
        task_status.started(fake.agent)
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await may_stop.wait()
            fake.end(-15)

    agents, may_stop = FakeAgents(), trio.Event()
    async with sharing(run_agent=run_agent, agents=agents, idle_timeout=8.0) as (scene, ann):
        await scene.take_turn()
        second = agents.next
        await trio.sleep(12.0)
        scene.agent.stream.send_nowait([encode({"method": "news"})])
        await ann.send_request(1, "session/new", **OPEN)
        assert await ann.waiting() == []
        assert agents.next is second
        may_stop.set()
        await second.answer_initialize(**LOADS)
        await second.answer("session/load", {})
        assert (await second.receive())["method"] == "session/new"


async def test_permission_timeout_cancels_a_request_at_the_agent_and_its_clients(autojump_clock: MockClock) -> None:
    async with sharing(permission_timeout=4.0) as (scene, ann):
        bob = await scene.enter("bob")
        await scene.agent.send(**permission())
        asked = [(await peer.receive())["id"] for peer in (ann, bob)]
        began = trio.current_time()
        assert (await scene.agent.receive())["result"] == {"outcome": {"outcome": "cancelled"}}
        assert 4.0 <= trio.current_time() - began <= 5.0
        for peer, raw_id in zip((ann, bob), asked, strict=True):
            cancel = await peer.receive()
            assert (cancel["method"], cancel["params"]) == ("$/cancel_request", {"requestId": raw_id})


# Several clients


async def test_a_client_that_leaves_a_shared_agent_takes_nothing_along() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        turn = await scene.open_turn(ann)
        await ann.stream.aclose()
        await ann.gone.wait()
        await wait_all_tasks_blocked()
        assert scene.agent.peek() == []
        await scene.agent.stream.send_batch([update(5), encode({"id": turn, "result": {"stopReason": "end_turn"}})])
        assert numbers_of([await bob.receive()]) == [5]
        assert not scene.hub.ended


async def test_an_unshared_agent_with_only_a_guest_is_stopped() -> None:
    async with in_conversation() as scene:
        guest = scene.join("guest", "guest-1", guest=True)
        await guest.initialize()
        await guest.load()
        await scene.editor.stream.aclose()
        await guest.receive_rest()
    assert guest.closed_with == (CloseReason.AGENT_GONE, "the agent fake was stopped")
    assert scene.agent.agent.exit_code == -15


async def test_a_guest_that_leaves_does_not_end_the_agent_of_its_host() -> None:
    async with in_conversation() as scene:
        guest = scene.join("guest", "guest-1", role=Role.OBSERVER, guest=True)
        await guest.initialize()
        await guest.stream.aclose()
        await guest.gone.wait()
        await wait_all_tasks_blocked()
        assert not scene.hub.ended
        await scene.editor.stream.aclose()


async def test_a_hub_that_is_cancelled_says_so_to_all_and_stops_the_agent() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        await scene.open_turn(bob)
        await ann.send_request("asked", "x/y", sessionId="s")
        await wait_all_tasks_blocked()
        scene.scope.cancel()
        answers = [(await peer.receive_rest())[-1] for peer in (ann, bob)]
        await scene.ended.wait()
    assert [answer["id"] for answer in answers] == ["asked", "turn"]
    assert [answer["error"]["data"] for answer in answers] == [{"reason": "gateway_stopping"}] * 2
    disconnect = (CloseReason.GOING_AWAY, "the gateway is stopping")
    assert (ann.closed_with, bob.closed_with) == (disconnect, disconnect)
    assert scene.agent.agent.exit_code == -15
    assert scene.agent.unread_when_stopped is not None
    assert [message["method"] for message in scene.agent.unread_when_stopped] == ["x/y", "session/cancel"]


async def test_a_hub_that_is_ended_closes_the_connections_that_are_left() -> None:
    async with sharing() as (scene, ann):
        await ann.send_request("asked", "x/y", sessionId="s")
        await scene.agent.receive()
        scene.hub.end()
        (answer,) = await ann.receive_rest()
        await scene.ended.wait()
    assert answer["error"]["data"] == {"reason": "agent_stopped"}
    assert ann.closed_with == (CloseReason.AGENT_GONE, "the agent fake was stopped")


async def test_a_session_moves_to_another_hub_once_the_deserted_one_that_has_it_was_stopped() -> None:
    async with sharing() as (scene, ann):
        scene.hub.multiplexer.client_away(ann.client)
        other = Scene(shared=True, registry=scene.registry)
        other.nursery = scene.nursery
        scene.nursery.start_soon(other.run)
        bob = other.join("bob")
        await other.initialize(bob, **LOADS)
        await bob.send_request(1, "session/load", sessionId="s", **OPEN)
        await wait_all_tasks_blocked()
        assert other.services.stopped == [scene.hub.multiplexer.agent_handle]
        scene.hub.end()
        await scene.ended.wait()
        assert other.agent.peek() == []
        other.hub.sessions_freed()
        assert (await other.agent.answer("session/load", {}))["params"]["sessionId"] == "s"
        assert (await bob.receive())["id"] == 1
        other.scope.cancel()


# Speed, turns of clients, and what is cut off


async def test_a_client_that_is_too_fast_is_not_read_for_a_while_and_then_again(autojump_clock: MockClock) -> None:
    async with sharing(timeout=HOUR) as (scene, ann):
        bob = await scene.enter("bob")
        scene.services.paced.clear()
        scene.services.pauses[ann.client] = 30
        await ann.stream.send_batch([encode({"id": number, "method": "x/y"}) for number in range(100)])
        await wait_all_tasks_blocked()
        # What has come is seen to; it is what comes next that waits.
        assert len(scene.agent.peek()) == 100
        began = trio.current_time()
        ann.stream.send_nowait([encode({"id": "later", "method": "x/late"})])
        await bob.send_request(1, "x/y")
        await wait_all_tasks_blocked()
        assert len(scene.agent.peek()) == 101
        assert scene.services.paced == [("ann", 100), ("bob", 1)]
        while (await scene.agent.receive())["method"] != "x/late":
            pass
        assert trio.current_time() - began == pytest.approx(30)


async def test_a_client_that_is_not_read_still_hears_everything(autojump_clock: MockClock) -> None:
    async with sharing() as (scene, ann):
        scene.services.pauses[ann.client] = 1000
        await ann.send_request(1, "x/y")
        await scene.agent.answer("x/y", {})
        assert (await ann.receive())["id"] == 1
        scene.agent.stream.send_nowait([update(7)])
        assert numbers_of([await ann.receive()]) == [7]
        assert trio.current_time() < 1000


async def test_a_client_that_is_not_read_can_be_told_goodbye(autojump_clock: MockClock) -> None:
    async with sharing() as (scene, ann):
        scene.services.pauses[ann.client] = 1000
        await ann.send_request(1, "x/y")
        await wait_all_tasks_blocked()
        scene.hub.attachments[ann.client].close(Disconnect(CloseReason.POLICY, "go", "unauthorized"))
        await ann.gone.wait()
        assert trio.current_time() < 1000


# What is written down


class Roll:
    """A tape in memory."""

    def __init__(self) -> None:
        self.written: list[tuple[str, list[str | int]]] = []

    def close(self) -> None: ...

    def write(self, direction: str, messages: Sequence[bytes]) -> None:
        decoded = [json.loads(message) for message in messages]
        self.written.append((direction, [message.get("method", message.get("id")) for message in decoded]))


async def test_what_a_client_says_and_hears_is_on_its_tape_when_it_is_said() -> None:
    async with sharing() as (scene, _):
        bob = scene.join("bob")
        bob.tape = roll = Roll()
        await bob.initialize()
        await bob.load()
        await bob.stream.send_batch([encode({"id": 1, "method": "x/y"}), encode({"id": 2, "method": "x/z"})])
        await wait_all_tasks_blocked()
        assert roll.written[-1] == ("from_client", ["x/y", "x/z"])
        await scene.agent.answer("x/y", {})
        await wait_all_tasks_blocked()
        assert roll.written[-1] == ("to_client", [1])
        scene.agent.stream.send_nowait([update(), update()])
        await wait_all_tasks_blocked()
        assert roll.written[-1] == ("to_client", ["session/update", "session/update"])


async def test_what_a_client_misses_while_it_is_away_is_on_its_tape_when_it_is_decided() -> None:
    async with resuming() as (scene, ann):
        roll = Roll()
        scene.hub.attachments[ann.client].tape = roll
        await ann.lose()
        scene.agent.stream.send_nowait([update()])
        await wait_all_tasks_blocked()
        assert roll.written == [("to_client", ["session/update"])]
        await ann.resume()
        await ann.waiting()
        # What goes over the link again is what was said before.
        assert roll.written == [("to_client", ["session/update"])]


async def test_each_start_and_end_of_the_agent_is_written_down(autojump_clock: MockClock) -> None:
    async with sharing(timeout=HOUR) as (scene, ann):
        second = scene.agents.next
        await end(scene.agent, 3)
        await ann.send_request(1, "x/y")
        await second.answer_initialize(**LOADS)
        await wait_all_tasks_blocked()
    about = {"agent": "fake", "pid": 4711}
    assert [audit_event for audit_event in scene.services.audit_events if audit_event.name.startswith("agent")] == [
        AuditEvent("agent_started", None, about),
        AuditEvent("agent_ended", None, about | {"exitCode": 3, "signal": None, "how": "exited"}),
        AuditEvent("agent_started", None, about),
        AuditEvent("agent_ended", None, about | {"exitCode": None, "signal": "SIGTERM", "how": "stopped"}),
    ]


async def test_the_end_of_an_agent_that_goes_with_its_client_is_written_down() -> None:
    async with running(Scene()) as scene:
        await scene.initialize(scene.editor)
        await scene.editor.stream.aclose()
    assert [audit_event.name for audit_event in scene.services.audit_events] == ["agent_started", "agent_ended"]


async def test_an_agent_that_cannot_be_started_is_audited_and_has_neither_begun_nor_ended() -> None:
    async def fails(*, task_status: trio.TaskStatus[Agent]) -> None:
        raise AgentError("no such program")

    async with running(Scene(run_agent=fails)) as scene:
        await scene.editor.send_request(0, "initialize", **INITIALIZE)
        await scene.editor.leave()
    assert scene.services.audit_events == [AuditEvent("agent_not_started", None, {"agent": "fake"})]


async def test_audit_events_of_clients_are_recorded_as_they_happen() -> None:
    async with sharing() as (scene, ann):
        await scene.enter("bob")
        assert [
            (audit_event.name, audit_event.client and audit_event.client.name)
            for audit_event in scene.services.audit_events[1:]
        ] == [
            ("session_joined", "ann"),
            ("session_joined", "bob"),
        ]
        await ann.stream.aclose()
        await ann.gone.wait()
        assert (scene.services.audit_events[-1].name, scene.services.audit_events[-1].client) == (
            "session_left",
            ann.client,
        )


# Looking at directories


async def test_session_new_waits_for_the_directory_check_while_clients_are_served() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        wanted = scene.services.checks = []
        await ann.send_request("new", "session/new", cwd="/srv/x", mcpServers=[])
        await bob.send_request(1, "x/y")
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["x/y"]
        ((hub, directory_check),) = wanted
        assert (hub, directory_check.directories) == (scene.hub, ("/srv/x",))
        scene.agent.stream.send_nowait([update(7)])
        assert numbers_of([await ann.receive()]) == [7]
        hub.directories_checked(directory_check, DirectoryCheckResult())
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["x/y", "session/new"]


async def test_idle_timeout_does_not_count_during_a_directory_check(autojump_clock: MockClock) -> None:
    async with sharing(idle_timeout=100.0, timeout=HOUR) as (scene, ann):
        await scene.take_turn()
        wanted = scene.services.checks = []
        await ann.send_request("new", "session/new", cwd="/srv/x", mcpServers=[])
        await trio.sleep(1000)
        assert not scene.agent.agent.ended.is_set()
        scene.hub.directories_checked(wanted[0][1], DirectoryCheckResult(Problem("no", {})))
        assert (await ann.receive())["error"]["message"] == "no"
        await scene.agent.agent.ended.wait()


# Bugs


def fail(*_: object, **__: object) -> None:
    raise ZeroDivisionError


async def relay_until_a_bug(scene: Scene) -> None:
    """One message each way, then the client goes; raises what the hub raises."""
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the error comes at the end of a conversation.
        async with running(scene):
            await scene.editor.send_request(0, "initialize", **INITIALIZE)
            await scene.agent.answer_initialize()
            await wait_all_tasks_blocked()
            await scene.editor.stream.aclose()
    assert raised.group_contains(ZeroDivisionError)


async def test_a_bug_ends_the_agent_and_the_connection_and_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Multiplexer, "receive_from_agent", fail)
    scene = Scene()
    await relay_until_a_bug(scene)
    assert scene.editor.closed_with == (CloseReason.AGENT_GONE, "internal error")
    assert scene.agent.agent.exit_code == -15


@pytest.mark.parametrize("verb", ["client_gone", "end_turns", "shut_down"])
async def test_a_bug_at_the_end_still_ends_the_agent_and_the_connection(
    verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Multiplexer, verb, fail)
    scene = Scene()
    await relay_until_a_bug(scene)
    assert scene.editor.closed_with == (CloseReason.NORMAL, "")
    assert scene.agent.agent.exit_code == -15


@asynccontextmanager
async def trapped(scene: Scene) -> AsyncIterator[list[Peer]]:
    """A shared hub with two clients that ends by a bug within the block; its caller handles the exception."""

    async def run() -> None:
        try:
            await scene.hub.run()
        except* ZeroDivisionError:
            scene.ended.set()

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as scene.nursery:
            scene.nursery.start_soon(run)
            ann = scene.join("ann")
            await scene.initialize(ann, **LOADS)
            await scene.open_session(ann)
            yield [ann, await scene.enter("bob")]
            await scene.ended.wait()


async def assert_closed_by_a_bug(scene: Scene, peers: list[Peer]) -> None:
    answers = [(await peer.receive_rest())[-1] for peer in peers]
    assert [answer["error"]["data"] for answer in answers] == [{"reason": "internal"}] * 2
    await scene.ended.wait()
    assert {peer.closed_with for peer in peers} == {(CloseReason.AGENT_GONE, "internal error")}
    assert scene.agent.agent.ended.is_set()
    assert not any(session.live for session in scene.registry)


async def test_a_bug_in_a_hub_closes_all_its_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    scene = Scene(shared=True)
    async with trapped(scene) as peers:
        for peer in peers:
            await peer.send_request("asked", "x/y", sessionId="s")
        await wait_all_tasks_blocked()
        monkeypatch.setattr(Multiplexer, "receive_from_agent", fail)
        scene.agent.stream.send_nowait([update()])
        await assert_closed_by_a_bug(scene, peers)


async def test_a_bug_where_the_agent_is_run_closes_all_connections_as_well() -> None:
    crash = trio.Event()

    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        task_status.started(scene.agent.agent)
        await crash.wait()
        scene.agent.end(-9)
        raise ZeroDivisionError

    scene = Scene(shared=True, run_agent=run_agent)
    async with trapped(scene) as peers:
        for peer in peers:
            await peer.send_request("asked", "x/y", sessionId="s")
        await wait_all_tasks_blocked()
        crash.set()
        await assert_closed_by_a_bug(scene, peers)


async def test_a_bug_that_shows_with_one_client_closes_only_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing() as (scene, ann):
        await scene.enter("bob")
        carol = Peer(Client("carol", SessionReach("me")))
        caught = trio.Event()

        async def serve() -> None:
            try:
                await scene.hub.serve(carol.ours, carol.client)
            except* ZeroDivisionError:
                caught.set()

        scene.nursery.start_soon(serve)
        await wait_all_tasks_blocked()
        with monkeypatch.context() as patch:
            patch.setattr(Multiplexer, "receive_from_client", fail)
            await carol.send(method="news")
            await caught.wait()
        assert carol.closed_with == (CloseReason.AGENT_GONE, "internal error")
        assert ann.closed_with is None
        await ann.send(method="news")
        assert (await scene.agent.receive())["method"] == "news"


async def test_a_bug_as_one_client_leaves_does_not_harm_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing() as (scene, ann):
        bob = Peer(Client("bob", SessionReach("me")))
        caught = trio.Event()

        async def serve() -> None:
            try:
                await scene.hub.serve(bob.ours, bob.client)
            except ZeroDivisionError:
                caught.set()

        scene.nursery.start_soon(serve)
        await bob.initialize()
        await bob.load()
        with monkeypatch.context() as patch:
            patch.setattr(Multiplexer, "client_gone", fail)
            await bob.stream.aclose()
            await caught.wait()
        assert bob.closed_with == (CloseReason.NORMAL, "")
        await scene.flow(1)
        assert numbers_of([await ann.receive()]) == [0]


# The time of day


async def test_updates_have_the_time_of_day_at_which_their_batch_came() -> None:
    async with in_conversation() as scene:
        (session,) = scene.hub.multiplexer.sessions
        scene.day = 5.25
        await scene.flow(2)
        scene.day = 7.0
        await scene.open_turn()
        await scene.editor.send_request("mode", "session/set_mode", sessionId="s", modeId="plan")
        asked = await scene.agent.receive()
        scene.day = 8.0
        scene.agent.stream.send_nowait([update(3), encode({"id": asked["id"], "result": {}})])
        await wait_all_tasks_blocked()
        assert session.journal.times(0, 9) == [5250, 5250, 8000, 8000]
        scene.scope.cancel()


async def test_a_client_shows_since_when_it_is_there_or_away() -> None:
    async with sharing() as (scene, _):
        scene.day = 5.0
        ben = scene.travel("ben")
        await ben.initialize()
        assert ben.client.presence_time == 5000
        scene.day = 6.0
        await ben.lose()
        assert ben.client.presence_time == 6000
        scene.day = 7.0
        await ben.resume()
        assert ben.client.presence_time == 7000


async def test_a_clock_that_was_never_set_gives_the_earliest_time() -> None:
    async with in_conversation() as scene:
        (session,) = scene.hub.multiplexer.sessions
        scene.day = -5.0
        await scene.flow(1)
        assert session.journal.times(0, 1) == [0]
        scene.scope.cancel()
