"""The status file of a connection."""

import json
import logging
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client.reconnect_policy import LinkEvent
from acp_gateway.client.status_file import StatusFile

ADDRESS = "wss://box:7443/acp"


class Clock:
    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def read(path: Path) -> dict[str, Any]:
    status: dict[str, Any] = json.loads(path.read_text())
    return status


def test_each_change_replaces_the_file(tmp_path: Path) -> None:
    path, clock = tmp_path / "status.json", Clock()
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
        status = StatusFile(tmp_path / "absent/status.json", "box")
        status.end(None)
    (record,) = caplog.records
    assert "the status is not written" in record.getMessage()
