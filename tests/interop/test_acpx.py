"""The checks of clients, on acpx: directly, and with a gateway between it and its agent."""

import json
import os
import shlex
import shutil
from pathlib import Path

import pytest

from acp_conformance.client_checks import CHECKS
from acp_conformance.client_runner import run_client_scenarios
from acp_conformance.client_script import CLIENT_SCENARIOS
from acp_conformance.dialogue import Verdict
from acp_conformance.report import judge
from acp_conformance.runner import RunLimits
from tests.interop.sdk_clients import PROGRAMS
from tests.kit.running import prepare, start_gateway

pytestmark = pytest.mark.interop

LIMITS = RunLimits(timeout=60.0, exit_timeout=30.0, reaction=1.0)
"""It starts in half a second on an idle machine."""


def acpx(home: Path, agent: str, *options: str) -> list[str]:
    """Return the command of acpx with a home of its own; skip the test if it is not there."""
    program, node = PROGRAMS / "node_modules" / "acpx" / "dist" / "cli.js", shutil.which("node")
    if node is None or not program.is_file():
        pytest.skip("acpx: not installed")
    home.mkdir(exist_ok=True)
    variables = [f"HOME={home}", f"PATH={os.environ['PATH']}"]
    return ["env", "-i", *variables, node, str(program), *options, "--agent", agent, "exec", "{prompt}"]


async def verdicts(
    command: list[str], cwd: Path, names: tuple[str, ...] | None = None, agent: Path | None = None
) -> dict[str, Verdict]:
    chosen = [each for each in CLIENT_SCENARIOS if names is None or each.name in names]
    dialogues = await run_client_scenarios(command, chosen, cwd=str(cwd), limits=LIMITS, agent=agent)
    return {check.name: verdict for check, verdict in judge(CHECKS, dialogues)}


def failed(found: dict[str, Verdict]) -> dict[str, str]:
    return {name: verdict.reason for name, verdict in found.items() if verdict.outcome == "failed"}


async def test_acpx_has_the_documented_faults(tmp_path: Path) -> None:
    found = await verdicts(acpx(tmp_path / "home", "{agent}", "--approve-all"), tmp_path)
    assert failed(found).keys() == {"ids-unusual", "version-unsupported"}, failed(found)
    for name in ("permission-allow", "cancel", "fs", "terminal"):
        assert found[name].outcome == "passed"


async def test_acpx_rejects_what_it_is_told_to_reject(tmp_path: Path) -> None:
    command = acpx(tmp_path / "home", "{agent}", "--deny-all")
    found = await verdicts(command, tmp_path, ("permission", "permission-reject"))
    assert failed(found) == {}
    assert found["permission-reject"].outcome == "passed"


async def test_acpx_with_a_gateway_between_it_and_its_agent_does_no_worse(tmp_path: Path) -> None:
    agent = tmp_path / "agent"
    pin = prepare(tmp_path, f'[agents.check]\ncommand = {json.dumps([str(agent)])}\nscope = "connection"\n')
    gateway = start_gateway(tmp_path, pin)
    try:
        connect = shlex.join(gateway.connect_command("wss"))
        found = await verdicts(acpx(tmp_path / "home", connect, "--approve-all"), tmp_path, agent=agent)
        assert failed(found).keys() == {"version-unsupported"}, failed(found)
        assert found["permission-allow"].outcome == found["fs-refused"].outcome == "passed"
    finally:
        gateway.stop()
