"""The command `sessions adopt`."""

import json
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client.local import LocalGateway
from tests.doubles import run_command as run

ANSWER = {"sessionId": "gpu1/s", "node": "gpu2", "agent": "opencode", "before": "gpu1"}


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The arguments of each request to the running gateway."""
    asked: list[Any] = []

    async def adopt(self: LocalGateway, *args: Any, force: bool, time_limit: float) -> Any:
        asked.append((*args, force, time_limit))
        return ANSWER

    monkeypatch.setattr(LocalGateway, "adopt", adopt)
    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    return asked


def test_sessions_adopt_says_where_the_session_lives(config: Path, asked: list[Any]) -> None:
    shown = run("sessions", "adopt", "gpu1/s", "--on", "gpu2", "--config", config)
    assert shown.stdout == "The session lives on gpu2: acp-gateway connect HOST --attach gpu1/s\n"
    assert asked == [("gpu1/s", "gpu2", None, False, 90.0)]


def test_sessions_adopt_passes_agent_and_force_on_and_prints_json(config: Path, asked: list[Any]) -> None:
    shown = run("sessions", "adopt", "gpu1/s", "--agent", "other", "--force", "--config", config, "--json")
    assert json.loads(shown.stdout) == ANSWER
    assert asked == [("gpu1/s", None, "other", True, 90.0)]


def test_sessions_adopt_needs_a_session(config: Path) -> None:
    assert run("sessions", "adopt", "--config", config).exit_code == 2


def test_help_of_sessions_adopt_has_examples() -> None:
    shown = run("sessions", "adopt", "--help")
    assert "sessions adopt gpu1/7f3a9c --on gpu2" in shown.stdout
    assert "sessions adopt [OPTIONS] SESSION" in shown.stdout
