"""The command `nodes`: what it prints of a gateway's answer, and exit codes."""

import json
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client.local import LocalGateway
from tests.doubles import run_command as run

UP = {"name": "gpu1", "url": "wss://gpu1:7443/acp", "up": True, "since": "2026-11-22T09:00:00Z", "why": None}
AWAY = {"name": "gpu2", "configured": False, "url": "wss://gpu2:7443/acp", "up": False, "since": "2026-11-22T10:00:00Z"}
NODES: list[dict[str, Any]] = [
    UP
    | {"version": "1.2.3", "agents": ["opencode", "claude"], "sessions": 3, "turns": 2, "waiting": 1}
    | {"load": {"sessions": 7, "turns": 5, "lag": 0.0123}},
    AWAY | {"why": "no\x1b answer", "version": None, "agents": None, "sessions": 0, "turns": 0, "waiting": 0},
]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answer of a running gateway; to be changed by tests."""
    answer: dict[str, Any] = {"nodes": NODES}

    async def status(self: LocalGateway, *, time_limit: float, nodes: bool) -> Any:
        assert nodes
        return answer

    monkeypatch.setattr(LocalGateway, "status", status)
    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    return answer


def test_nodes_are_rows_with_state_and_cause(config: Path, answer: dict[str, Any]) -> None:
    shown = run("nodes", "--config", config)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("NODE ")
    assert [" ".join(line.split()) for line in shown.stdout.splitlines()[1:]] == [
        "gpu1 config up 2026-11-22 09:00:00 UTC 1.2.3 opencode, claude 7 5 1 12 ms -",
        r"gpu2 cluster away 2026-11-22 10:00:00 UTC - - 0 0 0 - no\x1b answer",
    ]


def test_a_node_that_tells_no_load_has_the_sessions_of_this_gateway(config: Path, answer: dict[str, Any]) -> None:
    answer["nodes"] = [NODES[0] | {"load": None}]
    row = run("nodes", "--config", config).stdout.splitlines()[1]
    assert " ".join(row.split()).endswith("opencode, claude 3 2 1 - -")


def test_nodes_as_json_are_the_answer(config: Path, answer: dict[str, Any]) -> None:
    assert json.loads(run("nodes", "--config", config, "--json").stdout) == NODES


def test_without_nodes_nothing_but_a_hint_is_printed(config: Path, answer: dict[str, Any]) -> None:
    answer["nodes"] = []
    shown = run("nodes", "--config", config)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "[nodes.NAME]" in shown.stderr


@pytest.mark.parametrize("nodes", [None, [{}], [NODES[0] | {"since": "x"}]])
def test_an_answer_of_another_version_is_an_error(config: Path, answer: dict[str, Any], nodes: Any) -> None:
    answer["nodes"] = nodes
    assert run("nodes", "--config", config).exit_code == 7


def test_where_no_gateway_runs_the_exit_code_is_6(config: Path) -> None:
    assert run("nodes", "--config", config).exit_code == 6
