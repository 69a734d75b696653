"""The lines of `doctor` about the nodes of a gateway: for each cause, the remedy and the exit code."""

from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.client.local import LocalGateway
from acp_gateway.diagnosis.checks import Line
from acp_gateway.diagnosis.gateway_checks import LAG_WARNING, check_nodes, judge_door, judge_node
from acp_gateway.errors import Forbidden
from acp_gateway.gateway.admission import check_path
from acp_gateway.nodes import looks
from tests.kit.machines import front_config, node_config, node_section, until_agents
from tests.kit.serving import serving

UP: dict[str, Any] = {"name": "gpu", "up": True, "since": "2026-11-22T09:00:00Z", "why": None, "reason": None}
UP |= {"agents": ["a", "b"], "load": {"sessions": 1, "turns": 0, "lag": 0.001}}
AWAY = UP | {"up": False, "why": "because", "reason": "unreachable", "load": None}


def judged(node: dict[str, Any]) -> list[Line]:
    return list(judge_node(node))


def leads_back() -> str:
    """The refusal of a gateway that is its own node."""
    with pytest.raises(Forbidden) as refused:
        check_path(["0"], "0")
    return str(refused.value)


def test_a_node_that_answers_is_told_with_its_agents() -> None:
    (line,) = judged(UP)
    assert (line.status, line.text) == ("ok", "gpu is there, with a, b")


@pytest.mark.parametrize("reason", ["unreachable", "busy", None])
def test_a_node_that_may_come_back_by_itself_is_a_warning(reason: str | None) -> None:
    (line,) = judged(AWAY | {"reason": reason})
    assert (line.status, line.text) == ("warning", "gpu is away since 2026-11-22T09:00:00Z: because")
    assert "on its machine: acp-gateway doctor" in line.remedy


@pytest.mark.parametrize(
    ("reason", "why", "code", "remedy"),
    [
        ("configuration", "others may use it (mode 0644): chmod 600 gpu.token", 3, "correct that file"),
        (
            "unauthorized",
            "401",
            4,
            "acp-gateway token create --label door; save the token in token_file of [nodes.gpu]",
        ),
        ("forbidden", "not so", 4, "acp-gateway token list"),
        ("forbidden", leads_back(), 4, "remove [nodes.gpu] or correct its url: it is this gateway itself"),
        ("tls", "another pin", 5, "write its pin to [nodes.gpu]; then, on this machine: acp-gateway reload"),
        ("protocol", "resumes no links", 7, "correct url of [nodes.gpu]"),
    ],
)
def test_what_does_not_pass_by_itself_is_a_fault_with_its_remedy(reason: str, why: str, code: int, remedy: str) -> None:
    (line,) = judged(AWAY | {"reason": reason, "why": why})
    assert (line.status, line.exit_code) == ("fault", code)
    assert line.text.endswith(why)
    assert remedy in line.remedy


def test_a_node_that_is_too_old_is_a_fault_with_its_remedy() -> None:
    (line,) = judged(AWAY | {"reason": "too_old"})
    assert (line.status, line.exit_code, line.text) == ("fault", 7, "gpu is too old for this gateway")
    assert line.remedy == "on its machine: upgrade acp-gateway, and restart it"


def test_a_node_without_agents_and_a_slow_one_are_warnings() -> None:
    (line,) = judged(UP | {"agents": []})
    assert (line.status, line.text) == ("warning", "gpu is there, and has no agent for this gateway")
    _, slow = judged(UP | {"load": UP["load"] | {"lag": LAG_WARNING}})
    assert (slow.status, slow.text) == ("warning", "gpu is slow: its event loop was late by 1.0 s")


async def test_a_gateway_that_does_not_answer_is_a_warning(tmp_path: Path) -> None:
    (line,) = await check_nodes(LocalGateway(tmp_path))
    assert (line.name, line.status) == ("gateway", "warning")


async def test_a_gateway_is_asked_for_its_nodes_and_one_with_a_wrong_token_file_is_a_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(looks, "FRESH", 0.0)
    async with serving(node_config(tmp_path / "gpu1")) as (url,):
        node_config(tmp_path / "gpu2")
        (tmp_path / "gpu2" / "node.token").chmod(0o644)
        nodes = {name: node_section(tmp_path / name, url) for name in ("gpu1", "gpu2")}
        async with serving(front_config(tmp_path / "front", nodes)) as (front, _):
            await until_agents(front, "gpu1/memory")
            while (lines := await check_nodes(LocalGateway(tmp_path / "front")))[1].status != "fault":
                await trio.lowlevel.checkpoint()
    assert [(line.status, line.exit_code) for line in lines] == [("ok", 0), ("fault", 3)]
    assert "chmod 600" in lines[1].text


def test_a_door_without_a_connection_is_a_fault_with_its_cause() -> None:
    line = judge_door({"name": "home", "parked": 4, "why": None})
    assert (line.status, line.text) == ("ok", "home has 4 connections of this gateway for its clients")
    line = judge_door({"name": "home", "parked": 0, "why": "no answer"})
    assert (line.status, line.exit_code) == ("fault", 6)
    assert "no answer" in line.text
    assert "[doors.home]" in line.remedy
