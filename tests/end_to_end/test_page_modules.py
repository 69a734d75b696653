"""The modules of the page with a real gateway and no browser, by Node.js."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.running import WORK, RunningGateway, prepare, start_gateway

CLIENTS = Path(__file__).with_name("page_clients.mjs")
DEMO_AGENT = Path(__file__).parents[2] / "examples" / "demo_agent.py"


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with the agent of the demo, in a directory with one file."""
    directory = tmp_path_factory.mktemp("gateway")
    folder = WORK / "project"
    folder.mkdir()
    (folder / "a.py").touch()
    agents = f'[agents.demo]\ncommand = ["{sys.executable}", "{DEMO_AGENT}"]\n'
    running = start_gateway(directory, prepare(directory, agents))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def node_with_websocket() -> list[str]:
    """Return the command of a Node.js that has WebSocket; skip the test without one."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs Node.js 20.10 or newer")
    said = subprocess.run([node, "--version"], capture_output=True, text=True, check=True).stdout
    found = re.match(r"v(\d+)\.(\d+)", said)
    version = (int(found[1]), int(found[2])) if found else (0, 0)
    if version < (20, 10):
        pytest.skip("needs Node.js 20.10 or newer")
    return [node, "--no-warnings", *(["--experimental-websocket"] if version < (22, 0) else [])]


def test_two_pages_show_the_same_session_after_a_lost_connection(gateway: RunningGateway) -> None:
    address = gateway.urls["ws"].removesuffix("/acp") + "/ws"
    command = [*node_with_websocket(), str(CLIENTS), address, str(WORK / "project")]
    done = subprocess.run(command, input=gateway.token, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert (seen["ann"], seen["status"], seen["waiting"]) == (seen["bob"], "waiting", 1)
    assert [line for line in seen["told"] if re.fullmatch(r".+ has decided: Allow\.", line)]
    kinds = [block[0] for block in seen["ann"]["texts"]]
    assert kinds == ["user", "agent", "tool", "agent", "user", "agent", "tool"]
    assert seen["ann"]["texts"][0] == ["user", "first"]
    assert seen["ann"]["texts"][2] == ["tool", "completed", "a.py"]
    assert seen["ann"]["texts"][4] == ["user", "second"]
