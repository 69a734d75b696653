"""Graceful shutdown with clients connected, and the demo, which leaves nothing behind."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kit.running import DIRECTED, WORK, prepare, start_gateway

REQUESTS = (
    b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"%s","mcpServers":[]}}\n' % os.fsencode(WORK)
)
PROMPT = (
    b'{"jsonrpc":"2.0","id":3,"method":"session/prompt",'
    b'"params":{"sessionId":"session-1","prompt":[{"type":"text","text":"permission"}]}}\n'
)


HELLO = b'{"jsonrpc":"2.0","id":0,"method":"_acp-gateway/hello","params":{}}\n'


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_an_open_prompt_is_answered_when_the_gateway_stops(tmp_path: Path, number: signal.Signals) -> None:
    gateway = start_gateway(tmp_path, prepare(tmp_path, f"[agents.a]\ncommand = {json.dumps(DIRECTED)}\n"))
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(tmp_path / "socket"))
            lines = client.makefile("rb")
            client.sendall(HELLO + REQUESTS)
            assert [json.loads(next(lines))["id"] for _ in range(3)] == [0, 1, 2]
            client.sendall(PROMPT)
            assert json.loads(next(lines))["method"] == "session/request_permission"
            gateway.process.send_signal(number)
            told = [json.loads(line) for line in lines]
            lines.close()
        (answer,) = [message for message in told if message.get("id") == 3]
        # The request may be cancelled before: no client waits for it any more.
        assert all(message.get("method") == "$/cancel_request" for message in told if message is not answer)
        assert answer["error"]["data"]["reason"] == "gateway_stopping"
        assert gateway.process.wait(60) == 0
    finally:
        gateway.stop()


SILENT = "printf 'Welcome! Type help.\\n> '; echo 'no terminal' >&2; while read -r line; do :; done"
"""A script that is not an agent. On a busy machine it may need long to say anything."""


def test_an_editor_whose_command_is_not_an_agent_is_told_what_it_is_instead_of_waiting(tmp_path: Path) -> None:
    command = json.dumps(["sh", "-c", SILENT])
    said = {"stdout": ["Welcome! Type help.", ">"], "stderr": ["no terminal"]}
    for seconds in (1, 15, 60):
        folder = tmp_path / f"{seconds}"
        folder.mkdir()
        pin = prepare(folder, f"[agents.silent]\ncommand = {command}\ninitialize_timeout = {seconds}.0\n")
        gateway = start_gateway(folder, pin)
        try:
            done = subprocess.run(
                gateway.connect_command("unix"), input=REQUESTS, capture_output=True, check=False, timeout=120
            )
        finally:
            gateway.stop()
        answer = json.loads(done.stdout.splitlines()[0])
        if said.items() <= answer["error"]["data"].items():
            break
    assert answer["id"] == 1
    assert answer["error"]["data"] == {"reason": "agent_silent", "agent": "silent", **said}
    assert f"has not answered initialize within {seconds} s (initialize_timeout)" in answer["error"]["message"]


def test_the_demo_shows_the_main_job_and_leaves_nothing_behind() -> None:
    demo = Path(__file__).parents[2] / "examples" / "demo.py"
    done = subprocess.run([sys.executable, demo], capture_output=True, text=True, check=False, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    for words in ("stopReason: end_turn", "have ended", '"agent_servers"'):
        assert words in done.stdout
