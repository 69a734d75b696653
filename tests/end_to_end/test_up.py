"""`acp-gateway up` as a process: one command makes a gateway that a client reaches, and does so again."""

import re
import signal
import stat
import subprocess
import sys
from pathlib import Path

from tests.end_to_end.traces import TRACES
from tests.kit.free_ports import free_port
from tests.kit.running import DIRECTED, ENVIRONMENT, PROGRAM, RunningGateway


def start(home: Path, project: Path, *arguments: str) -> RunningGateway:
    """Run `up` in a project's folder, and wait until it listens."""
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "acp_gateway", "up", *arguments],
        cwd=project,
        env=ENVIRONMENT | {"HOME": str(home)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    gateway = RunningGateway(home, process, "")
    gateway.read_log_until("listening on wss://")
    return gateway


def stop(gateway: RunningGateway) -> str:
    """Stop it, and return what it has printed on stdout."""
    gateway.process.send_signal(signal.SIGINT)
    with gateway._bounded():
        said, log = gateway.process.communicate()
    assert gateway.process.returncode == 0, log
    TRACES.note_tokens_in(said)
    TRACES.note("the log of up", log)
    return said


def run(home: Path, *arguments: str, said: str = "") -> str:
    """Run a command as this user, and return what it has printed."""
    done = subprocess.run(
        [*PROGRAM, *arguments],
        input=said,
        env=ENVIRONMENT | {"HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def initialize(home: Path, port: str) -> str:
    """Connect as an editor does, with a new token, and return the response to `initialize`."""
    token = home / "token"
    token.touch(0o600)
    token.write_text(TRACES.note_tokens_in(run(home, "token", "create", "--label", "laptop")))
    (pin,) = re.findall("sha256:[0-9a-f]{64}", run(home, "certs", "show"))
    request = '{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}\n'
    return run(home, "connect", f"127.0.0.1:{port}", "--pin", pin, "--token-file", str(token), said=request)


def test_up_twice_in_an_empty_home_serves_a_client(tmp_path: Path) -> None:
    home, project = tmp_path, tmp_path / "proj"
    project.mkdir()
    state = home / ".local/state/acp-gateway"
    options = ("--port", str(free_port()), "--address", "127.0.0.1")
    gateway = start(home, project, *options, "--", *DIRECTED)
    assert '"protocolVersion":1' in initialize(home, options[1])
    said = stop(gateway)
    assert "acp-gateway pair " in said
    assert f"https://127.0.0.1:{options[1]}/#acpgwp_" in said
    assert stat.S_IMODE(state.stat().st_mode) == 0o700
    before = (home / ".config/acp-gateway/config.toml").read_bytes()
    again = start(home, project)
    assert '"protocolVersion":1' in initialize(home, options[1])
    stop(again)
    assert (home / ".config/acp-gateway/config.toml").read_bytes() == before
