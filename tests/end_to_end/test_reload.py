"""The gateway as a process: what hangups mean to it, what it tells who has started it, and what its children get."""

import json
import os
import re
import resource
import select
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tests.kit.running import (
    DIRECTED,
    ENVIRONMENT,
    PROGRAM,
    WORK,
    RunningGateway,
    prepare,
    run_program,
    sees_processes,
    start_gateway,
)

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="about terminals and limits as Linux has them")

# Tells in its answer to `initialize` what it is and what it can see of the gateway, its parent.
SPY = """
import json, os, resource, sys
request = json.loads(sys.stdin.readline())
gateway = os.getppid()
seen = []
for name in ("mem", "environ", "maps"):
    try:
        open(f"/proc/{gateway}/{name}", "rb").close()
        seen.append(name)
    except OSError:
        pass
limits = [resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)]
result = {"protocolVersion": 1, "environment": dict(os.environ), "limits": limits, "seen": seen, "gateway": gateway}
print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
sys.stdin.read()
"""


class Client:
    """An editor over the unix socket."""

    def __init__(self, directory: Path, agent: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.settimeout(60)
        self.socket.connect(str(directory / "socket"))
        self._lines = self.socket.makefile("rb")
        self._last_id = 0
        hello = {"jsonrpc": "2.0", "id": 0, "method": "_acp-gateway/hello", "params": {"agent": agent}}
        self.socket.sendall(json.dumps(hello).encode() + b"\n")
        assert "result" in json.loads(next(self._lines))

    def request(self, method: str, params: Any) -> Any:
        """Send a request, and return the result that comes back, whatever else comes before."""
        self._last_id += 1
        message = {"jsonrpc": "2.0", "id": self._last_id, "method": method, "params": params}
        self.socket.sendall(json.dumps(message).encode() + b"\n")
        for line in self._lines:
            answer = json.loads(line)
            if answer.get("id") == self._last_id and "method" not in answer:
                return answer["result"]
        raise AssertionError("the gateway has closed the connection")

    def initialize(self) -> Any:
        return self.request("initialize", {"protocolVersion": 1})

    def close(self) -> None:
        self._lines.close()
        self.socket.close()


@contextmanager
def client_of(directory: Path, agent: str = "a") -> Iterator[Client]:
    client = Client(directory, agent)
    try:
        yield client
    finally:
        client.close()


def accepts_connections(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0


def shown_certificate(gateway: RunningGateway) -> str:
    place = urlsplit(gateway.urls["wss"])
    assert place.hostname is not None
    assert place.port is not None
    return ssl.get_server_certificate((place.hostname, place.port), timeout=60)


def test_a_hangup_brings_the_new_certificate_in_and_the_link_goes_on(tmp_path: Path) -> None:
    gateway = start_gateway(tmp_path, prepare(tmp_path, f"[agents.a]\ncommand = {json.dumps(DIRECTED)}\n"))
    try:
        with client_of(tmp_path) as client:
            client.initialize()
            pid = gateway.read_agent_pid("a")
            before = shown_certificate(gateway)
            run_program("certs", "create", "--host", "127.0.0.1", "--out", tmp_path / "new")
            for name in ("cert.pem", "key.pem"):
                (tmp_path / "new" / name).replace(tmp_path / name)
            gateway.process.send_signal(signal.SIGHUP)
            gateway.read_log_until("INFO    reloaded")
            assert shown_certificate(gateway) == (tmp_path / "cert.pem").read_text() != before
            session = client.request("session/new", {"cwd": str(WORK), "mcpServers": []})["sessionId"]
            prompt = [{"type": "text", "text": "echo"}, {"type": "text", "text": "still here"}]
            turn = client.request("session/prompt", {"sessionId": session, "prompt": prompt})
            assert turn["stopReason"] == "end_turn"
            os.kill(pid, 0)
        assert "reloaded" in (tmp_path / "state" / "audit.jsonl").read_text()
    finally:
        assert gateway.stop() == 0


# Terminals

# Makes the terminal at stdin its own, and becomes the program.
IN_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execvp(sys.argv[1], sys.argv[1:])"
)


class Terminal:
    """A window in which a person has started a gateway."""

    def __init__(self, directory: Path, *prefix: str) -> None:
        self._window, inside = os.openpty()
        command = [*prefix, *PROGRAM, "serve", "--config", str(directory / "config.toml")]
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", IN_TERMINAL, *command],
            stdin=inside,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
            env=ENVIRONMENT,
        )
        os.close(inside)
        self.gateway = RunningGateway(directory, process, "")
        for _ in range(5):
            self.gateway.read_log_until("listening on ")

    def close(self) -> None:
        """The person closes the window."""
        if self._window >= 0:
            os.close(self._window)
            self._window = -1


@contextmanager
def terminal(directory: Path, *prefix: str) -> Iterator[Terminal]:
    prepare(directory, '[agents.a]\ncommand = ["cat"]\n')
    window = Terminal(directory, *prefix)
    try:
        yield window
    finally:
        window.close()
        window.gateway.stop()


def test_a_gateway_whose_terminal_is_closed_stops_politely(tmp_path: Path) -> None:
    with terminal(tmp_path) as window:
        window.close()
        window.gateway.read_log_until("received SIGHUP\n")
        window.gateway.read_log_until("INFO    stopped")
        assert window.gateway.process.wait(60) == 0
    assert not (tmp_path / "socket").exists()


def test_so_does_one_that_a_shell_has_started_there(tmp_path: Path) -> None:
    # The shell leads the session, and stays until the gateway has ended.
    with terminal(tmp_path, "sh", "-c", '"$@"; :', "sh") as window:
        window.close()
        window.gateway.read_log_until("received SIGHUP\n")
        window.gateway.read_log_until("INFO    stopped")
    assert not (tmp_path / "socket").exists()


def test_a_hangup_that_a_person_sends_to_a_gateway_in_a_terminal_is_not_taken_for_the_terminals(tmp_path: Path) -> None:
    with terminal(tmp_path) as window:
        for _ in range(2):
            window.gateway.process.send_signal(signal.SIGHUP)
            window.gateway.read_log_until("INFO    reloaded")
        window.gateway.process.send_signal(signal.SIGINT)
        assert window.gateway.process.wait(60) == 0


def test_a_gateway_under_nohup_outlives_its_terminal(tmp_path: Path) -> None:
    with terminal(tmp_path, "nohup") as window:
        window.close()
        # An ignored signal can't be seen; the gateway is alive when it has served a client since.
        with client_of(tmp_path):
            pass
        window.gateway.process.send_signal(signal.SIGTERM)
        assert window.gateway.process.wait(60) == 0
    assert not any("SIGHUP" in line for line in window.gateway.log)


# What the process is, and what its children get


def soft_limit(pid: int, name: str) -> str:
    (found,) = re.findall(rf"^{name} +(\S+)", Path(f"/proc/{pid}/limits").read_text(), re.MULTILINE)
    return str(found)


@contextmanager
def spied_on(tmp_path: Path, agents: str = "") -> Iterator[tuple[RunningGateway, Any]]:
    """A gateway, and what an agent has seen of it. It was started with `ACP_GATEWAY_TOKEN` in its environment."""
    if os.geteuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("there is no setpriv here, and root may look at everything")
    # Root could look at everything: without its capabilities it is a user like others.
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    command = [*plain, sys.executable, "-I", "-S", "-c", SPY]
    agent = f"[agents.a]\ncommand = {json.dumps(command)}\n"
    gateway = start_gateway(tmp_path, prepare(tmp_path, agent + agents, more='default_agent = "a"'))
    try:
        with client_of(tmp_path) as client:
            yield gateway, client.initialize()
    finally:
        assert gateway.stop() == 0


@sees_processes
def test_an_agent_can_neither_read_the_memory_of_the_gateway_nor_its_environment(tmp_path: Path) -> None:
    with spied_on(tmp_path) as (gateway, seen):
        assert (seen["gateway"], seen["seen"]) == (gateway.process.pid, [])
        assert soft_limit(gateway.process.pid, "Max core file size") == "0"


def test_what_the_spy_of_this_test_looks_at_can_be_read_where_it_was_not_closed(tmp_path: Path) -> None:
    parent = "import subprocess, sys; sys.exit(subprocess.run(sys.argv[1:]).returncode)"
    spy = [sys.executable, "-I", "-S", "-c", SPY]
    plain = ["setpriv", "--bounding-set=-all", "--inh-caps=-all"] if os.geteuid() == 0 else []
    found = subprocess.run(
        [*plain, sys.executable, "-c", parent, *spy], input=b'{"id":1}\n', capture_output=True, check=True, timeout=60
    )
    assert json.loads(found.stdout)["result"]["seen"] == ["mem", "environ", "maps"]


def test_a_gateway_has_room_for_many_connections_and_its_agent_the_limits_that_it_would_have_without(
    tmp_path: Path,
) -> None:
    nofile, core = resource.getrlimit(resource.RLIMIT_NOFILE), resource.getrlimit(resource.RLIMIT_CORE)
    with spied_on(tmp_path) as (gateway, seen):
        most = 1 << 20 if nofile[1] == resource.RLIM_INFINITY else min(nofile[1], 1 << 20)
        assert soft_limit(gateway.process.pid, "Max open files") == str(most)
        assert seen["limits"] == [list(nofile), list(core)]


def test_a_token_in_the_environment_of_the_gateway_reaches_neither_agents_nor_hooks(tmp_path: Path) -> None:
    told = tmp_path / "told"
    os.mkfifo(told)
    descriptor = os.open(told, os.O_RDWR)
    hook = ["sh", "-c", f"{{ env; echo the-end; }} > '{told}'"]
    code = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    result = {"protocolVersion": 1, "sessionId": "s", "stopReason": "end_turn"}
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": result}), flush=True)
"""
    turning = f"[agents.b]\ncommand = {json.dumps([sys.executable, '-I', '-S', '-c', code])}\n"
    more = f"{turning}[hooks]\non_turn_end = {json.dumps(hook)}\n"
    with os.fdopen(descriptor, "rb", buffering=0) as pipe, spied_on(tmp_path, more) as (_, seen):
        own = [name for name in seen["environment"] if name.startswith("ACP_GATEWAY_") or "SECRET" in name]
        assert own == ["ACP_GATEWAY_STARTED_BY"]
        with client_of(tmp_path, agent="b") as client:
            client.initialize()
            client.request("session/new", {"cwd": str(WORK), "mcpServers": []})
            client.request("session/prompt", {"sessionId": "s", "prompt": []})
        heard = b""
        while b"the-end\n" not in heard:
            assert select.select([pipe], [], [], 60)[0]
            heard += pipe.read(4096)
    assert b"PATH=" in heard
    assert b"ACP_GATEWAY" not in heard
    assert b"SECRET" not in heard


# Under systemd


def test_a_gateway_that_was_activated_by_its_sockets_serves_who_has_waited(tmp_path: Path) -> None:
    activate = shutil.which("systemd-socket-activate")
    if activate is None:
        pytest.skip("there is no systemd-socket-activate here")
    path = tmp_path / "socket"
    (tmp_path / "config.toml").write_text(
        f'[gateway]\nstate_dir = "{tmp_path}/state"\n[[listen]]\nurl = "unix://{path}"\n[agents.a]\ncommand = ["cat"]\n'
    )
    notified = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    notified.bind(str(tmp_path / "notify"))
    notified.settimeout(60)
    serve = [*PROGRAM, "serve", "--config", str(tmp_path / "config.toml")]
    variables = ["-E", f"NOTIFY_SOCKET={tmp_path}/notify", "-E", "WATCHDOG_USEC=600000000", "-E", "PATH", "-E", "HOME"]
    with notified, subprocess.Popen([activate, "-l", str(path), *variables, *serve], env=ENVIRONMENT) as process:
        try:
            # Its file is there before connections are accepted.
            deadline = time.monotonic() + 60
            while not accepts_connections(path):
                assert time.monotonic() < deadline
                os.sched_yield()
            with client_of(tmp_path):
                assert notified.recv(4096) == b"READY=1"
            told: set[bytes] = set()
            while told != {b"WATCHDOG", b"STATUS"}:
                told.add(notified.recv(4096).partition(b"=")[0])
            process.send_signal(signal.SIGHUP)
            while not (line := notified.recv(4096)).startswith(b"RELOADING=1\nMONOTONIC_USEC="):
                assert line.startswith(b"STATUS=")
            while (line := notified.recv(4096)) != b"READY=1":
                assert line.startswith(b"STATUS=")
        finally:
            process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    # The process that made it may want to listen at it again.
    assert path.exists()
