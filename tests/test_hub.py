"""The meeting place: an editor and an agent in memory, and what becomes of the one when the other goes."""

import json
import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.agent import LAST_WORDS, Agent
from acp_gateway.errors import AgentError
from acp_gateway.hub import NOTES_AS_WARNINGS, Hub, RunAgent
from acp_gateway.protocol.multiplexer import Multiplexer, Policy
from acp_gateway.transports.base import CloseReason, MessageStream, MessageTooLarge, memory_message_stream_pair
from tests.doubles import INITIALIZE, PATIENCE, Editor, FakeAgent, encode

HIGH_WATER = 10_000

PERMISSION = "session/request_permission"


FAIL = b"the stream raises an error in place of this message"


class FragileStream(MessageStream):
    """A stream that fails when it is told to, and knows how it was closed."""

    def __init__(self, stream: MessageStream) -> None:
        super().__init__()
        self._stream = stream
        self.receive_error: Exception = trio.EndOfChannel()
        """Raised where `FAIL` comes in."""
        self.drain_error: Exception | None = None
        """Raised where somebody drains."""
        self.send_error: Exception | None = None
        """Raised where somebody sends."""
        self.runs = False
        """Whether it is being run at the moment."""
        self.closed_with: tuple[CloseReason, str] | None = None
        self.pending_when_closed = 0

    async def _receive_batch(self) -> list[bytes]:
        batch = await self._stream.receive_batch()
        if FAIL in batch:
            raise self.receive_error
        return batch

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if self.send_error is not None:
            raise self.send_error
        self._stream.send_nowait(messages)

    @property
    def pending_bytes(self) -> int:
        return self._stream.pending_bytes

    async def drain(self, below: int = 0) -> None:
        if self.drain_error is not None:
            raise self.drain_error
        await self._stream.drain(below)

    async def run(self) -> None:
        self.runs = True
        try:
            await self._stream.run()
        finally:
            self.runs = False

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        self.closed_with = reason, text
        self.pending_when_closed = self.pending_bytes
        await self._stream.aclose(reason, text)


@pytest.fixture
def policy() -> Policy:
    return Policy(
        serves=frozenset(),
        check_directory=lambda _: None,
        max_open_requests=1000,
        login_hint=lambda _: "On the gateway's machine: run `login`.",
    )


class Scene:
    """An editor, a hub and an agent."""

    def __init__(self, policy: Policy, run_agent: RunAgent | None = None) -> None:
        theirs, ours = memory_message_stream_pair()
        self.editor = Editor(theirs)
        self.client = FragileStream(ours)
        self.agent = FakeAgent()
        self.output = FragileStream(self.agent.agent.messages)
        self.agent.agent.messages = self.output
        self.hub = Hub(
            self.client,
            name="test",
            run_agent=run_agent or self.agent.run,
            policy=policy,
            write_high_water=HIGH_WATER,
            stall_timeout=60.0,
        )
        self.scope = trio.CancelScope()
        self.ended = trio.Event()

    async def run(self) -> None:
        with self.scope:
            await self.hub.run()
        self.ended.set()

    async def initialize(self) -> None:
        await self.editor.send(id=0, method="initialize", params=INITIALIZE)
        await self.agent.answer_initialize()
        assert (await self.editor.receive())["id"] == 0

    async def open_turn(self) -> None:
        await self.editor.send(id="turn", method="session/prompt", params={"sessionId": "s"})
        assert (await self.agent.receive())["id"] == "turn"


@asynccontextmanager
async def running(scene: Scene) -> AsyncIterator[Scene]:
    """A hub that has to end by itself within the block."""
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.run)
            yield scene
            await scene.ended.wait()


@asynccontextmanager
async def in_conversation(policy: Policy) -> AsyncIterator[Scene]:
    """A hub with an editor that is initialized."""
    async with running(Scene(policy)) as scene:
        await scene.initialize()
        yield scene


# Relaying


async def test_no_agent_is_started_before_initialize(policy: Policy) -> None:
    async with running(Scene(policy)) as scene:
        assert (await scene.editor.request("session/new", {}))["error"]["code"] == -32600
        await scene.editor.stream.send(b"no JSON")
        assert (await scene.editor.receive())["error"]["code"] == -32700
        await scene.editor.stream.aclose()
    assert scene.agent.runs == 0


async def test_what_comes_with_initialize_in_one_batch_reaches_the_agent_in_order(policy: Policy) -> None:
    async with running(Scene(policy)) as scene:
        await scene.editor.stream.send_batch(
            [
                encode({"id": 1, "method": "initialize", "params": INITIALIZE}),
                encode({"id": 2, "method": "session/new", "params": {}}),
                encode({"method": "news"}),
            ]
        )
        assert [(await scene.agent.receive())["method"] for _ in range(3)] == ["initialize", "session/new", "news"]
        await scene.editor.stream.aclose()
    assert scene.agent.runs == 1


async def test_messages_go_both_ways_as_they_are(policy: Policy) -> None:
    message = b'{ "jsonrpc":"2.0","method":"x" , "params":{"n":1.10,"s":"\xe2\x80\xa8"}}'
    async with in_conversation(policy) as scene:
        await scene.editor.stream.send(message)
        assert await scene.agent.stream.receive() == message
        await scene.agent.stream.send(message)
        assert await scene.editor.stream.receive() == message
        await scene.editor.stream.aclose()


async def test_a_thousand_updates_arrive_before_the_response_of_their_turn(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        updates = [encode({"method": "session/update", "params": {"n": n}}) for n in range(1000)]
        scene.agent.stream.send_nowait([*updates, encode({"id": "turn", "result": {}})])
        received = [await scene.editor.receive() for _ in range(1001)]
        assert [message.get("params", {}).get("n") for message in received] == [*range(1000), None]
        await scene.editor.stream.aclose()


async def test_the_gateways_own_notifications_are_dropped_when_an_agent_prints_them(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_conversation(policy) as scene:
        await scene.agent.send(method="_acp-gateway/approve", params={"secret": "x"})
        await scene.agent.send(method="next")
        assert (await scene.editor.receive())["method"] == "next"
        await scene.editor.stream.aclose()
    (warning,) = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert "gateway's own" in warning
    assert "secret" not in warning


async def test_banners_of_an_agent_are_dropped_and_warned_of_only_so_often(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with in_conversation(policy) as scene:
        for _ in range(2 * NOTES_AS_WARNINGS):
            await scene.agent.stream.send(b"Welcome!")
        await scene.agent.send(method="next")
        assert (await scene.editor.receive())["method"] == "next"
        await scene.editor.stream.aclose()
    levels = [record.levelno for record in caplog.records if "dropped a line" in record.getMessage()]
    assert levels == [logging.WARNING] * NOTES_AS_WARNINGS + [logging.DEBUG] * NOTES_AS_WARNINGS


async def test_an_error_for_a_missing_login_says_what_to_run(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.editor.send(id=1, method="session/new", params={})
        await scene.agent.receive()
        await scene.agent.send(id=1, error={"code": -32000, "message": "Authentication required"})
        error = (await scene.editor.receive())["error"]
        assert error == {"code": -32000, "message": "Authentication required. On the gateway's machine: run `login`."}
        await scene.editor.stream.aclose()


async def test_the_clients_stream_is_run_for_as_long_as_it_is_open(policy: Policy) -> None:
    async with running(Scene(policy)) as scene:
        await wait_all_tasks_blocked()
        assert scene.client.runs
        await scene.initialize()
        assert scene.client.runs
        await scene.editor.stream.aclose()
    assert not scene.client.runs


async def test_an_initialize_may_be_larger_than_what_is_held_back(policy: Policy) -> None:
    async with running(Scene(policy)) as scene:
        await scene.editor.send(id=0, method="initialize", params={"_meta": "x" * 10 * HIGH_WATER})
        await scene.agent.answer_initialize()
        assert (await scene.editor.receive())["id"] == 0
        await scene.editor.stream.aclose()


# The agent goes


async def test_every_pending_request_is_answered_when_the_agent_dies_and_then_the_connection_ends(
    policy: Policy,
) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        await scene.editor.send(id=0, method="session/new", params={})
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
    assert scene.client.closed_with == (CloseReason.AGENT_GONE, answers[0]["error"]["message"])


async def test_what_the_agent_wrote_last_comes_before_the_news_of_its_death(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.agent.stream.send_nowait([encode({"method": "session/update"}), b'{"half":'])
        scene.agent.end(1)
        await scene.agent.close()
        update, answer = await scene.editor.receive_rest()
    assert update["method"] == "session/update"
    assert answer["error"]["data"]["exitCode"] == 1


async def test_an_agent_that_dies_in_initialize_is_an_answer_to_it(policy: Policy) -> None:
    async with running(Scene(policy)) as scene:
        await scene.editor.send(id="first", method="initialize", params=INITIALIZE)
        scene.agent.end(0)
        await scene.agent.close()
        (answer,) = await scene.editor.receive_rest()
    assert answer["id"] == "first"
    assert answer["error"]["message"] == "the agent fake ended with exit code 0"


async def test_an_agent_that_closes_its_stdout_and_stays_is_stopped(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        await scene.agent.close()
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"]["signal"] == "SIGTERM"


async def test_a_process_that_holds_the_agents_pipes_open_does_not_hold_up_the_news_of_its_death(
    policy: Policy, autojump_clock: trio.testing.MockClock
) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.agent.end(1)
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"]["exitCode"] == 1


async def test_an_agent_may_be_silent_for_a_long_time(policy: Policy, autojump_clock: trio.testing.MockClock) -> None:
    async with in_conversation(policy) as scene:
        await trio.sleep(10 * LAST_WORDS)
        await scene.agent.send(method="news")
        assert (await scene.editor.receive())["method"] == "news"
        await scene.editor.stream.aclose()


async def test_a_client_that_is_slow_gets_all_that_a_dead_agent_wrote(
    policy: Policy, autojump_clock: trio.testing.MockClock
) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        updates = [encode({"method": "session/update", "params": "x" * HIGH_WATER}) for _ in range(3)]
        scene.agent.stream.send_nowait(updates[:1])
        await wait_all_tasks_blocked()
        scene.agent.stream.send_nowait(updates[1:])
        scene.agent.end(1)
        await trio.sleep(10 * LAST_WORDS)
        *received, answer = await scene.editor.receive_rest()
    assert len(received) == 3
    assert answer["error"]["data"]["exitCode"] == 1
    assert scene.client.pending_when_closed == 0


async def test_an_agent_that_cannot_be_started_is_an_answer_to_all_that_came_with_initialize(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        raise AgentError("the agent x cannot be started: the command x is not found")

    async with running(Scene(policy, run_agent)) as scene:
        await scene.editor.stream.send_batch(
            [
                encode({"id": n, "method": method, "params": {}})
                for n, method in enumerate(["initialize", "session/new"])
            ]
        )
        answers = await scene.editor.receive_rest()
    assert [answer["id"] for answer in answers] == [0, 1]
    assert {answer["error"]["message"] for answer in answers} == {
        "the agent x cannot be started: the command x is not found"
    }
    assert {answer["error"]["data"]["reason"] for answer in answers} == {"agent_not_started"}
    assert scene.client.closed_with == (CloseReason.AGENT_GONE, answers[0]["error"]["message"])
    assert [record.levelno for record in caplog.records] == [logging.ERROR]


async def test_a_line_of_the_agents_above_the_limit_ends_it_and_names_the_setting(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.output.receive_error = MessageTooLarge("a message is larger than max_message_size (9 bytes) allows")
        await scene.agent.stream.send(FAIL)
        (answer,) = await scene.editor.receive_rest()
    why = "the agent fake was stopped: a message is larger than max_message_size (9 bytes) allows"
    assert answer["id"] == "turn"
    assert (answer["error"]["message"], answer["error"]["data"]) == (
        why,
        {"reason": "message_too_large", "agent": "fake"},
    )
    assert scene.client.closed_with == (CloseReason.AGENT_GONE, why)
    assert scene.agent.agent.exit_code == -15


async def test_an_agent_whose_pipes_are_given_up_is_stopped_and_what_waits_for_it_is_answered(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.output.receive_error = trio.BrokenResourceError("nobody reads any more")
        await scene.agent.stream.send(FAIL)
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"]["signal"] == "SIGTERM"


@pytest.mark.parametrize("error", [trio.BrokenResourceError("nobody reads"), trio.ClosedResourceError("closed")])
async def test_what_is_sent_to_an_agent_that_takes_no_more_is_answered_when_it_ends(
    error: Exception, policy: Policy
) -> None:
    async with in_conversation(policy) as scene:
        scene.output.send_error = error
        await scene.editor.send(id=1, method="session/new", params={})
        await wait_all_tasks_blocked()
        scene.agent.end(1)
        await scene.agent.close()
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"]["exitCode"] == 1


@pytest.mark.parametrize("error", [trio.BrokenResourceError("nobody reads"), trio.ClosedResourceError("closed")])
async def test_a_client_is_not_held_back_for_an_agent_that_takes_no_more(error: Exception, policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        scene.output.drain_error = error
        for _ in range(10):
            await scene.editor.send(method="flood", params="x" * HIGH_WATER)
        assert [(await scene.agent.receive())["method"] for _ in range(10)] == ["flood"] * 10
        await scene.editor.stream.aclose()


async def test_agent_and_client_may_go_at_the_same_time(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.agent.end(1)
        await scene.agent.close()
        await scene.editor.stream.aclose()


async def test_an_agent_that_ends_while_the_client_takes_nothing_does_not_keep_the_hub_from_being_cancelled(
    policy: Policy,
) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.agent.end(1)
        await scene.agent.close()
        await wait_all_tasks_blocked()
        scene.scope.cancel()
        await scene.ended.wait()
    assert scene.client.closed_with is not None
    assert scene.client.closed_with[0] is CloseReason.AGENT_GONE


# The client goes


async def test_a_client_that_goes_in_the_middle_of_a_turn_cancels_it_before_the_agent_is_stopped(
    policy: Policy,
) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        await scene.agent.send(id="may I?", method=PERMISSION, params={"sessionId": "s"})
        await scene.editor.receive()
        await scene.editor.stream.aclose()
    assert scene.agent.unread_when_stopped == [
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}},
        {"jsonrpc": "2.0", "id": "may I?", "result": {"outcome": {"outcome": "cancelled"}}},
    ]
    assert scene.client.closed_with == (CloseReason.NORMAL, "")


async def test_a_hub_that_is_cancelled_cancels_the_turn_before_the_agent_is_stopped(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.scope.cancel()
    assert scene.agent.unread_when_stopped == [
        {"jsonrpc": "2.0", "method": "session/cancel", "params": {"sessionId": "s"}}
    ]
    assert scene.client.closed_with == (CloseReason.GOING_AWAY, "the gateway is stopping")


async def test_a_hub_can_be_cancelled_at_any_time_before_there_is_an_agent(policy: Policy) -> None:
    async with running(Scene(policy)) as scene:
        await wait_all_tasks_blocked()
        scene.scope.cancel()
    assert scene.client.closed_with == (CloseReason.GOING_AWAY, "the gateway is stopping")


async def test_a_hub_that_is_cancelled_while_the_agent_starts_stops_it(policy: Policy) -> None:
    fake = FakeAgent()
    starting, go_on = trio.Event(), trio.Event()

    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        starting.set()
        with trio.CancelScope(shield=True):
            await go_on.wait()
        await fake.run(task_status=task_status)

    async with running(Scene(policy, run_agent)) as scene:
        await scene.editor.send(id=0, method="initialize", params=INITIALIZE)
        await starting.wait()
        scene.scope.cancel()
        await wait_all_tasks_blocked()
        go_on.set()
    assert fake.agent.exit_code == -15


async def test_a_client_that_is_gone_when_the_agent_has_started_stops_it(policy: Policy) -> None:
    async with running(Scene(policy)) as scene:
        await scene.editor.send(id=0, method="initialize", params=INITIALIZE)
        await scene.editor.stream.aclose()
    assert scene.agent.runs == 1
    assert scene.agent.agent.exit_code == -15


async def test_how_the_stream_is_closed_is_for_the_first_who_knows(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        scene.hub.close_with(CloseReason.POLICY, "revoked")
        scene.hub.close_with(CloseReason.NORMAL, "")
        scene.scope.cancel()
    assert scene.client.closed_with == (CloseReason.POLICY, "revoked")


async def test_a_client_that_is_lost_while_it_is_read_ends_the_agent_and_is_no_error(
    policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_conversation(policy) as scene:
        scene.client.receive_error = trio.BrokenResourceError("lost")
        await scene.editor.stream.send(FAIL)
    assert scene.agent.agent.exit_code == -15
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("sender", ["editor", "agent"])
async def test_a_client_that_is_lost_while_it_takes_nothing_ends_the_agent_and_is_no_error(
    sender: str, policy: Policy, caplog: pytest.LogCaptureFixture
) -> None:
    async with in_conversation(policy) as scene:
        scene.client.drain_error = trio.BrokenResourceError("lost")
        stream = scene.editor.stream if sender == "editor" else scene.agent.stream
        stream.send_nowait([encode({"method": "news"})])
    assert scene.agent.agent.exit_code == -15
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_a_client_that_is_lost_while_the_agent_reads_nothing_ends_the_agent(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await fill(scene.editor.stream, encode({"method": "flood", "params": "x" * HIGH_WATER}))
        scene.client.drain_error = trio.BrokenResourceError("lost")
        scene.agent.stream.send_nowait([encode({"method": "news"})])
    assert scene.agent.agent.exit_code == -15


async def test_a_message_of_the_client_above_the_limit_is_answered_and_ends_the_connection(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        scene.client.receive_error = MessageTooLarge("a message is larger than max_message_size (9 bytes) allows")
        await scene.editor.stream.send(FAIL)
        (answer,) = await scene.editor.receive_rest()
    assert answer["id"] is None
    assert answer["error"]["message"] == "a message is larger than max_message_size (9 bytes) allows"
    assert scene.client.closed_with == (CloseReason.TOO_LARGE, answer["error"]["message"])


async def test_a_client_that_is_gone_already_is_not_told_that_its_agent_cannot_start(policy: Policy) -> None:
    async def run_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
        await scene.editor.stream.aclose()
        raise AgentError("no")

    scene = Scene(policy, run_agent)
    async with running(scene):
        await scene.editor.send(id=0, method="initialize", params=INITIALIZE)


async def test_a_client_that_is_lost_while_it_is_told_of_the_agents_end_is_no_error(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await wait_all_tasks_blocked()
        scene.client.drain_error = trio.BrokenResourceError("lost")
        scene.agent.end(1)
        await scene.agent.close()
    assert scene.client.closed_with is not None
    assert scene.client.closed_with[0] is CloseReason.AGENT_GONE


async def test_what_is_open_is_answered_when_the_gateway_stops(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.scope.cancel()
        (answer,) = await scene.editor.receive_rest()
    assert answer["id"] == "turn"
    assert answer["error"]["data"] == {"reason": "gateway_stopping"}
    assert scene.client.closed_with == (CloseReason.GOING_AWAY, "the gateway is stopping")


async def test_what_is_open_is_answered_when_the_token_is_revoked(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.open_turn()
        scene.hub.close_with(CloseReason.POLICY, "the token is not valid any more")
        scene.scope.cancel()
        (answer,) = await scene.editor.receive_rest()
    assert answer["error"]["data"] == {"reason": "unauthorized"}


# Backpressure


async def fill(stream: MessageStream, *messages: bytes) -> int:
    """Send these again and again until nobody reads them any more; how often."""
    for count in range(1, 100):
        stream.send_nowait(messages)
        await wait_all_tasks_blocked()
        if stream.pending_bytes:
            return count
    raise AssertionError("all of it is read")


async def test_an_agent_is_not_read_while_the_client_does_not_read(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        count = await fill(scene.agent.stream, encode({"method": "update", "params": "x" * 1000}))
        assert HIGH_WATER <= scene.client.pending_bytes < HIGH_WATER + 2000
        for _ in range(count):
            assert (await scene.editor.receive())["method"] == "update"
        await wait_all_tasks_blocked()
        assert scene.agent.stream.pending_bytes == 0
        await scene.editor.stream.aclose()


async def test_a_client_that_floods_is_not_read_while_the_agent_does_not_read(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        for _ in range(2):
            count = await fill(scene.editor.stream, encode({"method": "flood", "params": "x" * 1000}))
            assert HIGH_WATER < scene.output.pending_bytes < 2 * HIGH_WATER + 4000
            for _ in range(count):
                assert (await scene.agent.receive())["method"] == "flood"
        await scene.editor.stream.aclose()


async def test_how_much_a_client_may_send_ahead_is_counted_anew_each_time(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.editor.send(method="big", params="x" * 100 * HIGH_WATER)
        await fill(scene.editor.stream, encode({"method": "flood", "params": "x" * 1000}))
        while scene.agent.stream.pending_bytes or scene.agent.peek():
            await scene.agent.stream.receive_batch()
            await wait_all_tasks_blocked()
        await fill(scene.editor.stream, encode({"method": "flood", "params": "x" * 2 * HIGH_WATER}))
        assert scene.output.pending_bytes < 10 * HIGH_WATER
        scene.agent.end(0)
        await scene.agent.close()


async def test_a_client_that_does_not_read_its_errors_is_not_read_any_more(policy: Policy) -> None:
    async with running(Scene(policy)) as scene:
        await fill(scene.editor.stream, *[b"no JSON"] * 10)
        assert HIGH_WATER <= scene.client.pending_bytes < HIGH_WATER + 2000
        await scene.editor.stream.aclose()


def methods_of(messages: Sequence[bytes]) -> list[str]:
    return [json.loads(message)["method"] for message in messages]


async def test_an_agent_that_does_not_read_a_big_prompt_still_hears_that_it_is_cancelled(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        for turn in range(3):
            params = {"sessionId": "s", "prompt": "x" * 10 * HIGH_WATER * (turn + 1)}
            scene.editor.stream.send_nowait([encode({"id": turn, "method": "session/prompt", "params": params})])
            await wait_all_tasks_blocked()
            scene.editor.stream.send_nowait([encode({"method": "news", "params": "x" * (HIGH_WATER // 2)})])
            await wait_all_tasks_blocked()
            scene.editor.stream.send_nowait([encode({"method": "session/cancel", "params": {"sessionId": "s"}})])
            await wait_all_tasks_blocked()
            assert methods_of(scene.agent.peek()) == ["session/prompt", "news", "session/cancel"]
            await scene.agent.stream.receive_batch()
        await scene.editor.stream.aclose()


async def test_a_second_big_prompt_waits_for_the_first_and_can_be_cancelled_as_well(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        for turn in range(2):
            params = {"sessionId": "s", "prompt": "x" * 10 * HIGH_WATER}
            scene.editor.stream.send_nowait([encode({"id": turn, "method": "session/prompt", "params": params})])
            await wait_all_tasks_blocked()
        scene.editor.stream.send_nowait([encode({"method": "session/cancel", "params": {"sessionId": "s"}})])
        await wait_all_tasks_blocked()
        assert methods_of(await scene.agent.stream.receive_batch()) == ["session/prompt"]
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["session/prompt", "session/cancel"]
        await scene.editor.stream.aclose()


async def test_the_end_of_a_client_is_noticed_although_the_agent_does_not_read_its_big_prompt(policy: Policy) -> None:
    async with in_conversation(policy) as scene:
        await scene.editor.stream.send(
            encode({"id": 1, "method": "session/prompt", "params": {"sessionId": "s", "x": "x" * 10 * HIGH_WATER}})
        )
        await wait_all_tasks_blocked()
        await scene.editor.stream.aclose()
        await scene.ended.wait()
    assert scene.agent.unread_when_stopped is not None
    assert [message["method"] for message in scene.agent.unread_when_stopped] == ["session/prompt", "session/cancel"]


async def test_an_agent_that_reads_only_when_its_output_is_taken_and_a_client_that_sends_much_get_along(
    policy: Policy,
) -> None:
    async with in_conversation(policy) as scene:
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


# Bugs


def fail(*_: object) -> None:
    raise ZeroDivisionError


async def relay_until_a_bug(scene: Scene) -> None:
    """One message each way, then the client goes; raises what the hub raises."""
    with pytest.raises(ExceptionGroup) as raised:  # noqa: PT012 - the error comes at the end of a conversation.
        async with running(scene):
            await scene.editor.send(id=0, method="initialize", params=INITIALIZE)
            await scene.agent.answer_initialize()
            await wait_all_tasks_blocked()
            await scene.editor.stream.aclose()
    assert raised.group_contains(ZeroDivisionError)


async def test_a_bug_ends_the_agent_and_the_connection_and_is_raised(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Multiplexer, "receive_from_agent", fail)
    scene = Scene(policy)
    await relay_until_a_bug(scene)
    assert scene.client.closed_with == (CloseReason.AGENT_GONE, "an error of the gateway's own")
    assert scene.agent.agent.exit_code == -15


async def test_a_bug_at_the_end_still_ends_the_agent_and_the_connection(
    policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Multiplexer, "client_gone", fail)
    scene = Scene(policy)
    await relay_until_a_bug(scene)
    assert scene.client.closed_with == (CloseReason.NORMAL, "")
    assert scene.agent.agent.exit_code == -15


async def test_an_agent_that_reads_nothing_for_too_long_is_stopped_and_whoever_waits_is_told(
    policy: Policy, autojump_clock: trio.testing.MockClock
) -> None:
    async with in_conversation(policy) as scene:
        scene.hub._stall_timeout = 5.0
        await scene.editor.send(id="turn", method="session/prompt", params={"sessionId": "s"})
        scene.editor.stream.send_nowait([encode({"method": "flood", "params": "x" * HIGH_WATER})] * 2)
        await wait_all_tasks_blocked()
        scene.editor.stream.send_nowait([encode({"method": "flood", "params": "x" * HIGH_WATER})] * 2)
        await wait_all_tasks_blocked()
        scene.editor.stream.send_nowait([encode({"method": "more"})])
        (answer,) = await scene.editor.receive_rest()
    assert answer["id"] == "turn"
    assert answer["error"]["data"]["reason"] == "agent_stalled"
    assert "has read nothing for 5 s" in answer["error"]["message"]
    assert scene.agent.agent.exit_code == -15
