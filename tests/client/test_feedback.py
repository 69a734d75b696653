"""Feedback about the connection: outages that are told, and those that are not."""

import json
import logging
import os
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.client.feedback import NO_FEEDBACK, NOTE_DELAY, Feedback, StatusFile
from acp_gateway.client.uplink import LinkEvent
from acp_gateway.errors import Unreachable
from tests.kit.clocks import Clock

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


# The status file


ADDRESS = "wss://box:7443/acp"


def read(path: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(path.read_text())
    return status


def test_each_change_replaces_the_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "status.json", Clock(1_800_000_000.0)
    status = StatusFile(path, "box", clock)
    beginning = {
        "host": "box",
        "address": None,
        "state": "connecting",
        "since": "2027-01-15T08:00:00Z",
        "resumed": 0,
        "sessions": 0,
        "reason": None,
        "pid": os.getpid(),
    }
    assert read(path) == beginning
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    clock.now += 1
    status.notice(LinkEvent("connected", ADDRESS))
    connected = beginning | {"address": ADDRESS, "state": "connected", "since": "2027-01-15T08:00:01Z"}
    assert read(path) == connected
    clock.now += 1
    status.set_sessions(2)
    assert read(path) == connected | {"sessions": 2}
    status.notice(LinkEvent("lost", ADDRESS, "reset\x1b[2J"))
    away = {"state": "away", "since": "2027-01-15T08:00:02Z", "reason": r"reset\x1b[2J", "sessions": 2}
    assert read(path) == connected | away
    clock.now += 1
    status.notice(LinkEvent("resumed", ADDRESS))
    assert read(path) == connected | {"sessions": 2, "resumed": 1, "since": "2027-01-15T08:00:03Z"}
    status.end("refused")
    assert (read(path)["state"], read(path)["reason"]) == ("ended", "refused")
    status.end(None)
    assert read(path)["reason"] is None
    assert [entry.name for entry in tmp_path.iterdir()] == ["status.json"]


def test_a_link_that_another_user_has_put_there_is_not_followed(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    (tmp_path / f"status.json.{os.getpid()}.new").symlink_to(victim)
    (tmp_path / "status.json").symlink_to(victim)
    StatusFile(tmp_path / "status.json", "box")
    assert victim.read_text() == "mine"
    assert read(tmp_path / "status.json")["host"] == "box"
    assert not (tmp_path / "status.json").is_symlink()


def test_a_count_that_is_the_same_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    status = StatusFile(path, "box")
    path.unlink()
    status.set_sessions(0)
    assert not path.exists()


def test_a_file_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        StatusFile(tmp_path / "absent/status.json", "box").end(None)
    (record,) = caplog.records
    assert "the status is not written" in record.getMessage()
