"""The checks of agents, on the example agents of the Python SDK, and on the demo agent behind a gateway."""

import json
import os
import sys
from pathlib import Path

import pytest

from acp_conformance.agent_checks import CHECKS
from acp_conformance.client_script import SCENARIOS
from acp_conformance.report import judge
from acp_conformance.runner import RunLimits, run_scenarios
from tests.interop.sdk_clients import INSTALLED, ROOT
from tests.kit.running import prepare, start_gateway

pytestmark = pytest.mark.interop


@pytest.mark.parametrize(
    ("example", "faults"),
    [("agent", {("SHOULD", "session-lasting")}), ("echo_agent", {("MUST", "version-unsupported")})],
)
async def test_the_examples_of_the_python_sdk_have_the_documented_faults(
    example: str, faults: set[tuple[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (examples,) = INSTALLED.glob("agent_client_protocol-*/examples")
    monkeypatch.setenv("PYTHONPATH", str(INSTALLED / "python") + os.pathsep + os.environ.get("PYTHONPATH", ""))
    command = [sys.executable, str(examples / f"{example}.py")]
    found = judge(
        CHECKS, await run_scenarios(command, SCENARIOS, str(tmp_path), limits=RunLimits(20.0, exit_timeout=20.0))
    )
    failed = {(check.level, check.name) for check, verdict in found if verdict.outcome == "failed"}
    assert failed == faults | {("SHOULD", "session-unknown")}


async def test_the_demo_agent_behind_a_gateway_has_the_documented_fault(tmp_path: Path) -> None:
    command = [sys.executable, str(ROOT / "examples" / "demo_agent.py"), "--delay", "0"]
    pin = prepare(tmp_path, f"[agents.demo]\ncommand = {json.dumps(command)}\n")
    gateway = start_gateway(tmp_path, pin)
    try:
        limits = RunLimits(20.0, exit_timeout=20.0)
        connect = gateway.connect_command("wss")
        found = judge(CHECKS, await run_scenarios(connect, SCENARIOS, str(tmp_path), limits=limits))
        assert {check.name for check, verdict in found if verdict.outcome == "failed"} == {"version-lower"}
    finally:
        gateway.stop()
