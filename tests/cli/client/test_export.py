"""The command `export`."""

import stat
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client import control
from acp_gateway.client.dialing import Destination
from acp_gateway.errors import ProtocolError
from tests.kit.doubles import run_command as run

SECRET = "ghp_" + "a1B2" * 9


TEXT = f"it is {SECRET} \ud800"


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Answer with one file; return the addresses, methods and params of requests."""
    told: list[str] = []

    async def request(destination: Destination, method: str, params: Any, **_: float) -> Any:
        told.append(f"{destination.address} {method} {' '.join(map(str, params.values()))}")
        return {} if params["sessionId"] == "odd" else {"name": "s.md", "mimeType": "text/markdown", "text": TEXT}

    monkeypatch.setattr(control, "request", request)
    return told


def test_export_writes_what_the_gateway_has_written_to_stdout(asked: list[str]) -> None:
    done = run("export", "unix:///run/x", "s1")
    assert (done.exit_code, done.stdout) == (0, f"it is {SECRET} \\ud800")
    assert asked == ["unix:///run/x session/export s1 markdown False"]


def test_export_asks_for_a_format_and_without_secrets(asked: list[str], tmp_path: Path) -> None:
    target = tmp_path / "out.html"
    done = run("export", "unix:///run/x", "s1", "--format", "html", "--redact", "-o", str(target))
    assert (done.exit_code, done.stdout) == (0, "")
    assert target.read_text() == f"it is {SECRET} \\ud800"
    assert asked == ["unix:///run/x session/export s1 html True"]


def test_export_tells_that_a_response_is_not_understood(asked: list[str]) -> None:
    done = run("export", "unix:///run/x", "odd")
    assert (done.exit_code, done.stdout) == (ProtocolError.exit_code, "")
    assert "the gateway's response is not understood" in done.stderr


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
