"""The Python SDK's own tests of its HTTP server, against the gateway."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.interop.sdk_clients import INSTALLED
from tests.kit.running import ENVIRONMENT, prepare, start_gateway

pytestmark = pytest.mark.interop

HERE = Path(__file__).parent

OPTIONS = [
    *("-p", "no:cacheprovider", "-p", "no:trio", "-c", os.devnull, "--rootdir", "."),
    *("-o", "asyncio_mode=auto", "-o", "asyncio_default_fixture_loop_scope=function"),
]


def test_the_python_sdks_own_tests_of_its_server_pass_against_the_gateway(tmp_path: Path) -> None:
    (sources,) = INSTALLED.glob("agent_client_protocol-*/tests")
    suite = tmp_path / "suite"
    shutil.copytree(sources, suite / "tests")
    for path in (suite / "tests" / "http").glob("*.py"):
        # The gateway insists on the absolute path that the protocol asks for.
        path.write_text(path.read_text().replace('cwd="."', 'cwd="/"').replace('"cwd": "."', '"cwd": "/"'))
    shutil.copy(HERE / "python_sdk_conftest.py", suite / "tests" / "http" / "conftest.py")
    socket = tmp_path / "agent"
    command = [sys.executable, str(HERE / "relaying_agent.py"), str(socket)]
    pin = prepare(tmp_path, f'[agents.relay]\ncommand = {json.dumps(command)}\nscope = "connection"\n')
    gateway = start_gateway(tmp_path, pin)
    try:
        variables = {
            "PYTHONPATH": str(INSTALLED / "python"),
            "GATEWAY_URL": f"http://127.0.0.1:{urlsplit(gateway.urls['ws']).port}/acp",
            "GATEWAY_TOKEN": gateway.token,
            "AGENT_SOCKET": str(socket),
        }
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-q", "-ra", *OPTIONS, "tests/http"],
            cwd=suite,
            env=ENVIRONMENT | variables,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        assert "14 passed" in done.stdout
    finally:
        gateway.stop()
