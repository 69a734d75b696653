"""The checks of clients, on the example client of the Python SDK."""

import os
import sys
from pathlib import Path

import pytest

from acp_conformance.client_checks import CHECKS
from acp_conformance.client_runner import run_client_scenarios
from acp_conformance.client_script import CLIENT_SCENARIOS
from acp_conformance.report import judge
from acp_conformance.runner import RunLimits
from tests.interop.sdk_clients import INSTALLED

pytestmark = pytest.mark.interop


async def test_the_example_client_of_the_python_sdk_has_the_documented_faults(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (example,) = INSTALLED.glob("agent_client_protocol-*/examples/client.py")
    monkeypatch.setenv("PYTHONPATH", str(INSTALLED / "python") + os.pathsep + os.environ.get("PYTHONPATH", ""))
    command = [sys.executable, str(example), "{agent}"]
    limits = RunLimits(30.0, exit_timeout=30.0)
    found = judge(CHECKS, await run_client_scenarios(command, CLIENT_SCENARIOS, cwd=str(tmp_path), limits=limits))
    failed = {(check.level, check.name) for check, verdict in found if verdict.outcome == "failed"}
    assert failed == {("MUST", "permission"), ("SHOULD", "version-unsupported")}
