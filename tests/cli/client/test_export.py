"""The command `export`."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client import control
from acp_gateway.client.control import ReadHistory
from acp_gateway.client.dialing import Destination
from tests.doubles import run_command as run

SECRET = "ghp_" + "a1B2" * 9


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer with one history; return the addresses and sessions that were asked for."""
    told: list[str] = []

    async def read_history(destination: Destination, session: str, *, time_limit: float) -> ReadHistory:
        told.append(f"{destination.address} {session}")
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": f"it is {SECRET} \ud800"}}
        about: dict[str, Any] = {"sessionId": session, "agent": "demo", "title": None, "cwd": "/srv"}
        return ReadHistory(
            about,
            "s1",
            truncated=False,
            first=1,
            updates=[(None, {"params": {"sessionId": "s1", "update": update}})],
            ends=[{"seq": 1, "nth": 1, "time": None, "error": {"code": 429, "message": "try again in 32 s"}}],
        )

    monkeypatch.setattr(control, "read_history", read_history)
    return told


def test_export_writes_markdown_to_stdout(asked: list[str]) -> None:
    done = run("export", "unix:///run/x", "s1")
    assert done.exit_code == 0
    assert done.stdout.startswith("# A session\n\n- Session: `s1`\n- Agent: `demo`\n- Folder: `/srv`\n")
    assert SECRET in done.stdout
    assert done.stdout.endswith("*the turn has failed: try again in 32 s*\n")
    assert asked == ["unix:///run/x s1"]


def test_export_writes_a_file_without_secrets(asked: list[str], tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    done = run("export", "unix:///run/x", "s1", "--format", "html", "--redact", "-o", str(target))
    assert (done.exit_code, done.stdout) == (0, "")
    written = target.read_text()
    assert written.startswith("<!doctype html>")
    assert SECRET not in written
    assert "it is …" in written


def test_export_writes_json(asked: list[str]) -> None:
    written = json.loads(run("export", "unix:///run/x", "s1", "--format", "json").stdout)
    assert written["session"]["title"] == ""
    assert written["updates"][0]["update"]["content"]["text"] == f"it is {SECRET} \ud800"


@pytest.mark.parametrize("places", [[], ["a", "b", "c"]])
def test_export_needs_a_session(asked: list[str], places: list[str]) -> None:
    done = run("export", *places)
    assert done.exit_code == 2
    assert "give the id of a session" in done.stderr
    assert asked == []


def test_export_takes_no_configuration_with_a_target(asked: list[str]) -> None:
    done = run("export", "box", "s1", "--config", "x.toml")
    assert done.exit_code == 2
    assert "--config is for the gateway on this machine" in done.stderr


def test_export_writes_a_new_file_for_its_user_alone(asked: list[str], tmp_path: Path) -> None:
    target = tmp_path / "out.md"
    assert run("export", "unix:///run/x", "s1", "-o", str(target)).exit_code == 0
    assert stat.S_IMODE(target.stat().st_mode) == 0o600
    written = target.read_text()
    done = run("export", "unix:///run/x", "s1", "--format", "json", "-o", str(target))
    assert done.exit_code == 3
    assert "this file exists already" in done.stderr
    assert target.read_text() == written


def test_export_tells_that_a_file_cannot_be_written(asked: list[str], tmp_path: Path) -> None:
    done = run("export", "unix:///run/x", "s1", "-o", str(tmp_path / "none" / "out.md"))
    assert done.exit_code == 3
    assert "cannot be written: No such file or directory" in done.stderr
