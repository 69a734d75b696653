"""The checks of agents, on OpenCode with a model of its own making: directly, and behind a gateway."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from acp_conformance.agent_checks import CHECKS
from acp_conformance.client_script import SCENARIOS
from acp_conformance.dialogue import Verdict
from acp_conformance.report import judge
from acp_conformance.runner import RunLimits, run_scenarios
from tests.interop.model_server import model_server
from tests.interop.sdk_clients import INSTALLED
from tests.kit.running import prepare, start_gateway

pytestmark = pytest.mark.interop

LIMITS = RunLimits(timeout=60.0, exit_timeout=30.0)
"""It starts in two seconds on an idle machine, and with a fresh directory it writes a database first."""

BEHIND = ("session-new", "prompt-updates", "permission", "permission-reject", "permission-cancelled", "extensions")
"""Scenarios that are repeated behind a gateway: each takes OpenCode several seconds."""


def binary() -> str:
    """Return OpenCode's program; skip the test if npm has installed none on this platform."""
    program = INSTALLED / "node_modules" / "opencode-linux-x64-baseline" / "bin" / "opencode"
    if not program.is_file():
        pytest.skip("OpenCode: not installed on this platform")
    return str(program)


def settings(url: str, permission: str) -> str:
    """Return OpenCode's settings for the model at a URL, with `ask` or `allow` for its tools."""
    model = {"name": "Check", "tool_call": True, "limit": {"context": 100_000, "output": 1000}}
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "Check",
        "options": {"baseURL": url, "apiKey": "none"},
        "models": {"check": model},
    }
    options = {
        "autoupdate": False,
        "share": "disabled",
        "model": "check/check",
        "small_model": "check/check",
        "permission": {"bash": permission, "edit": permission},
        "provider": {"check": provider},
    }
    return json.dumps(options)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[list[str]]:
    """The command of OpenCode with a home of its own and the model of the tests."""
    program = binary()
    home = tmp_path / "home"
    file = home / ".config" / "opencode" / "opencode.json"
    file.parent.mkdir(parents=True)
    with model_server() as url:
        file.write_text(settings(url, "ask"))
        variables = {
            "HOME": str(home),
            "PATH": os.environ["PATH"],
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
        }
        yield ["env", "-i", *(f"{name}={value}" for name, value in variables.items()), program, "acp"]


async def verdicts(command: list[str], cwd: Path, names: tuple[str, ...] | None = None) -> dict[str, Verdict]:
    chosen = [each for each in SCENARIOS if names is None or each.name in names]
    dialogues = await run_scenarios(command, chosen, str(cwd), limits=LIMITS)
    return {check.name: verdict for check, verdict in judge(CHECKS, dialogues)}


def failed(found: dict[str, Verdict]) -> dict[str, str]:
    return {name: verdict.reason for name, verdict in found.items() if verdict.outcome == "failed"}


async def test_opencode_has_the_documented_faults(command: list[str], tmp_path: Path) -> None:
    found = await verdicts(command, tmp_path)
    # A cancel that comes before its model has been asked is answered with an error, too.
    assert failed(found).keys() - {"cancel"} == {"ids-unusual", "blocks-resource"}, failed(found)
    assert found["permission-obeyed"].outcome == found["cancel-permission"].outcome == "passed"


async def test_opencode_behind_a_gateway_passes(command: list[str], tmp_path: Path) -> None:
    pin = prepare(tmp_path, f'[agents.opencode]\ncommand = {json.dumps(command)}\nscope = "connection"\n')
    gateway = start_gateway(tmp_path, pin)
    try:
        found = await verdicts(gateway.connect_command("wss"), tmp_path, BEHIND)
        assert failed(found) == {}
        assert found["permission-obeyed"].outcome == found["cancel-permission"].outcome == "passed"
    finally:
        gateway.stop()
