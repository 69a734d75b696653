"""Feedback about the connection: outages that are told, and those that are not."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.client.feedback import NO_FEEDBACK, NOTE_DELAY, Feedback
from acp_gateway.client.reconnect_policy import LinkEvent
from acp_gateway.client.status_file import StatusFile
from acp_gateway.errors import Unreachable

CONNECTED = LinkEvent("connected", "wss://box")
LOST = LinkEvent("lost", "wss://box", "reset")
RESUMED = LinkEvent("resumed", "wss://box")


class Editor:
    """An editor with turns in some sessions."""

    def __init__(self) -> None:
        self.turns = ["s1"]
        self.told: list[tuple[str, str]] = []

    def send(self, messages: list[bytes]) -> None:
        for message in messages:
            params = json.loads(message)["params"]
            assert params["update"]["sessionUpdate"] == "agent_message_chunk"
            self.told.append((params["sessionId"], params["update"]["content"]["text"]))


@asynccontextmanager
async def running(feedback: Feedback) -> AsyncIterator[Editor]:
    editor = Editor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(feedback.run, lambda: editor.turns, editor.send)
        feedback.notice(CONNECTED)
        yield editor
        nursery.cancel_scope.cancel()


@pytest.fixture
def feedback() -> Feedback:
    return Feedback(tells_outages=True)


async def test_a_long_outage_is_told_and_its_end(feedback: Feedback, autojump_clock: MockClock) -> None:
    async with running(feedback) as editor:
        feedback.notice(LOST)
        await trio.sleep(NOTE_DELAY - 1)
        assert editor.told == []
        await trio.sleep(2)
        assert editor.told == [("s1", "[acp-gateway: the connection was lost 10 s ago; the agent goes on.]")]
        await trio.sleep(29)
        editor.turns = []
        feedback.notice(RESUMED)
        await trio.sleep(0.01)
        assert editor.told[1:] == [("s1", "[acp-gateway: connected again after 40 s.]")]


async def test_a_short_outage_is_not_told(feedback: Feedback, autojump_clock: MockClock) -> None:
    async with running(feedback) as editor:
        for _ in range(3):
            feedback.notice(LOST)
            await trio.sleep(NOTE_DELAY - 1)
            feedback.notice(RESUMED)
            await trio.sleep(0.5)
        await trio.sleep(100)
        assert editor.told == []


async def test_attempts_that_fail_are_one_outage(feedback: Feedback, autojump_clock: MockClock) -> None:
    async with running(feedback) as editor:
        feedback.notice(LOST)
        await trio.sleep(5)
        feedback.notice(LOST)
        await trio.sleep(6)
        assert len(editor.told) == 1


async def test_a_session_without_a_turn_is_not_told(feedback: Feedback, autojump_clock: MockClock) -> None:
    async with running(feedback) as editor:
        editor.turns = []
        feedback.notice(LOST)
        await trio.sleep(100)
        feedback.notice(RESUMED)
        await trio.sleep(1)
        assert editor.told == []


async def test_a_second_outage_is_told_again(feedback: Feedback, autojump_clock: MockClock) -> None:
    async with running(feedback) as editor:
        for _ in range(2):
            feedback.notice(LOST)
            await trio.sleep(20)
            feedback.notice(CONNECTED)
            await trio.sleep(20)
        assert [text.partition("after")[0] for _, text in editor.told] == 2 * [
            "[acp-gateway: the connection was lost 10 s ago; the agent goes on.]",
            "[acp-gateway: connected again ",
        ]


async def test_without_the_option_nothing_is_told(autojump_clock: MockClock) -> None:
    async with running(Feedback()) as editor:
        NO_FEEDBACK.set_sessions(1)
        NO_FEEDBACK.end(None)
        await trio.sleep(100)
        assert editor.told == []


async def test_the_status_file_follows(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    feedback = Feedback(StatusFile(path, "box"))
    feedback.notice(CONNECTED)
    assert json.loads(path.read_text())["state"] == "connected"
    feedback.notice(LOST)
    assert json.loads(path.read_text())["state"] == "away"
    feedback.end(Unreachable("gone"))
    assert json.loads(path.read_text())["state"] == "ended"
    assert json.loads(path.read_text())["reason"] == "gone"
    feedback.set_sessions(3)
    feedback.end(None)
    assert json.loads(path.read_text())["sessions"] == 3
