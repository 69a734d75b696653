"""A real gateway for tests: the program itself as a subprocess, on every transport there is."""

import atexit
import json
import os
import re
import select
import shutil
import signal
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import pytest
from click.testing import CliRunner

from acp_gateway.cli.main import main
from acp_gateway.config.load import load_config
from acp_gateway.fence import bubblewrap
from acp_gateway.security.token_format import mint
from tests.end_to_end.traces import TRACES
from tests.kit.free_ports import free_port

PROGRAM = [sys.executable, "-m", "acp_gateway"]
AGENTS = Path(__file__).parents[1] / "end_to_end"

DIRECTED: Final = [sys.executable, "-I", "-S", str(AGENTS / "directed_agent.py")]
"""Command of an agent that does what its prompt says."""

WORK: Final = Path(tempfile.mkdtemp(prefix="acp-gateway-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")))
"""Folder of the sessions of tests, which their agents may use in fences."""
atexit.register(shutil.rmtree, WORK, ignore_errors=True)

FENCE: Final = os.environ.get("TEST_FENCE")
"""Value of `fence` for all agents in the configurations of tests that do not have it; None without it."""

sees_processes = pytest.mark.skipif(
    FENCE in ("on", "bubblewrap") and bubblewrap.find() is not None,
    reason="an agent in bubblewrap has another process id, and sees no process and no socket of the gateway",
)
"""A test of an agent that looks at other processes, or tells the id of its own."""

# What an editor's environment has in it at the least, with a home that root can't make either.
ENVIRONMENT = {"PATH": os.environ["PATH"], "HOME": "/proc/nonexistent"}

TOKENS = (("token", "create"), ("token", "rotate"), ("share",), ("open",))
"""The commands that print tokens, or a code."""


@dataclass
class RunningGateway:
    """A gateway process: where it listens, how to get in, and what it has logged so far."""

    directory: Path
    process: subprocess.Popen[str]
    pin: str
    urls: dict[str, str] = field(default_factory=dict)
    log: list[str] = field(default_factory=list)
    tokens: int = 0

    @property
    def token_file(self) -> Path:
        return self.directory / "token"

    @property
    def token(self) -> str:
        return self.token_file.read_text().strip()

    @property
    def config(self) -> Path:
        return self.directory / "config.toml"

    def connect_command(self, transport: str, *options: str) -> list[str]:
        """The command that an editor would start. With a client certificate in the options it shows no token.

        That of the transport `http` is not `connect`, which uses Streamable HTTP with other servers alone.
        """
        if transport == "http":
            bridge = [sys.executable, str(AGENTS / "http_bridge.py"), self.urls["ws"]]
            return [*bridge, "--token-file", str(self.token_file), *options]
        trust = ["--pin", self.pin] if transport in ("wss", "tcp+tls") else []
        token = [] if "--cert" in options else ["--token-file", str(self.token_file)]
        return [*PROGRAM, "connect", self.urls[transport], *token, *trust, *options]

    def save_token(self, *command: str) -> Path:
        """Make another token by a command of the program; the file where it is kept."""
        secret = run_program(*command, "--config", self.config)
        self.tokens += 1
        path = self.directory / f"token-{self.tokens}"
        path.touch(0o600)
        path.write_text(secret)
        return path

    def until_stored(self, text: str, count: int) -> None:
        """Wait until the gateway has written down so many updates with a text: what it has not is lost by a kill."""
        deadline = time.monotonic() + 60
        with closing(sqlite3.connect(f"file:{self.directory}/state/sessions.db?mode=ro", uri=True)) as database:
            while (
                b"".join(row for (row,) in database.execute("SELECT messages FROM piece")).count(text.encode()) < count
            ):
                assert time.monotonic() < deadline
                os.sched_yield()

    def sessions(self, token_file: Path | None = None) -> list[dict[str, Any]]:
        """Return the output of `acp-gateway sessions`, as the gateway's own user unless another token is given."""
        said = run_program("sessions", self.urls["tcp"], "--json", "--token-file", token_file or self.token_file)
        found: list[dict[str, Any]] = json.loads(said)["sessions"]
        return found

    @property
    def largest_memory(self) -> int:
        """Bytes of memory that the process has had at most."""
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        (kilobytes,) = re.findall(r"^VmHWM:\s*(\d+) kB$", status, re.MULTILINE)
        return int(kilobytes) * 1024

    def read_log_until(self, words: str) -> str:
        """Read on in the log to a line with these words, and return it. A gateway that doesn't say them is killed."""
        assert self.process.stderr is not None
        with self._bounded():
            for line in self.process.stderr:
                self.log.append(line)
                if words in line:
                    return line
        raise AssertionError(f"no {words!r} in the log:\n" + "".join(self.log))

    def read_agent_pid(self, agent: str) -> int:
        """Read on in the log to the start of an agent, and return the id of its process, which may be bubblewrap."""
        words = f"agent {agent} started with pid "
        return int(self.read_log_until(words).partition(words)[2].split()[0].rstrip(","))

    def stop(self) -> int:
        """Stop it as a service manager does, and return its exit code."""
        TRACES.look_at_processes()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        assert self.process.stderr is not None
        with self._bounded(), self.process.stderr:
            self.log += self.process.stderr.readlines()
        TRACES.note(f"the log of the gateway in {self.directory}", "".join(self.log))
        return self.process.wait(60)

    @contextmanager
    def _bounded(self) -> Iterator[None]:
        """Reading ends within a minute, if need be because the process does."""
        watchdog = threading.Timer(60, self.process.kill)
        watchdog.start()
        try:
            yield
        finally:
            watchdog.cancel()


def run_program(*arguments: str | Path) -> str:
    """Run a command to its end, in this process and with the environment of another, and return what it printed.

    A process of its own would cost more than all that most commands do. Tests of processes start `PROGRAM`.
    """
    return run_and_warn(*arguments)[0]


def run_and_warn(*arguments: str | Path) -> tuple[str, str]:
    """Do the same, and return what it printed on stdout and on stderr."""
    environment = {**dict.fromkeys(os.environ), **ENVIRONMENT}
    # In a thread, because a command may run Trio, and so may the test.
    with ThreadPoolExecutor(1) as thread:
        done = thread.submit(
            CliRunner().invoke, main, list(map(str, arguments)), env=environment, catch_exceptions=False
        ).result()
    assert done.exit_code == 0, done.output
    if arguments[:2] in TOKENS or arguments[:1] in TOKENS:
        TRACES.note_tokens_in(done.stdout)
    else:
        TRACES.note(f"what {arguments[0]} printed", done.stdout)
    TRACES.note(f"the errors of {arguments[0]}", done.stderr)
    return done.stdout, done.stderr


def write_config(
    directory: Path, agents: str, *, more: str = "", tls: str = "", ports: Mapping[str, int] = MappingProxyType({})
) -> None:
    """A configuration with a listener for every transport, on ports that are free when the gateway is started again.

    `more` is for `[gateway]` and what may follow it, `tls` for the listeners with TLS, `ports` has some of the ports.
    """
    tls = f'cert = "{directory}/cert.pem"\nkey = "{directory}/key.pem"\n{tls}'
    listeners = "".join(
        f'[[listen]]\nurl = "{url}"\n{tls if url.startswith(("wss:", "tcp+tls:")) else ""}'
        for url in (
            *(f"{name}://127.0.0.1:{ports.get(name) or free_port()}" for name in ("wss", "ws", "tcp", "tcp+tls")),
            f"unix://{directory}/socket",
        )
    )
    # What the gateway's user has for a home says nothing of where the tests' directories are.
    root = WORK if FENCE else "/"
    everything = "" if "[workspaces." in agents else f'[workspaces.everything]\nroot = "{root}"\n'
    text = f'[gateway]\nstate_dir = "{directory}/state"\n{more}\n{listeners}\n{everything}\n{fenced(agents, directory)}'
    (directory / "config.toml").write_text(text)


def fenced(sections: str, directory: Path | None = None) -> str:
    """Return sections of a configuration with the fence that the environment asks for around each agent without one.

    An agent writes the files below `directory` that are among its arguments; they are made if they are missing.
    """
    if not FENCE:
        return sections
    fence = f'fence = "{FENCE}"\nreadable = ["{AGENTS.parent.parent}"]\n'

    def add(found: re.Match[str]) -> str:
        own = [word for word in json.loads(found[1]) if directory and word.startswith(f"{directory}/")]
        for path in map(Path, own):
            if not path.exists():
                path.touch()
        return f"{found[0]}{fence}writable = {json.dumps(own)}\n"

    return re.sub(r"^command = (\[.*\])\n(?!fence)", add, sections, flags=re.MULTILINE)


def start_gateway(directory: Path, pin: str, *options: str) -> RunningGateway:
    """Start the gateway of a directory, with options of `serve`, and wait until it listens everywhere."""
    # A gateway needs no token of its own, and yet it may have been started where there is one.
    own = TRACES.note_tokens_in(mint())
    config = directory / "config.toml"
    program = PROGRAM
    if program[-1] == "acp_gateway" and load_config(config).removed:
        # The test has other constants.
        program = [*program[:-2], str(AGENTS / "unfixed.py")]
    process = subprocess.Popen(
        [*program, "serve", "--config", str(config), *options],
        env=ENVIRONMENT | {"ACP_GATEWAY_TOKEN": own, "SECRET_OF_GATEWAY": "x"},
        stderr=subprocess.PIPE,
        text=True,
    )
    gateway = RunningGateway(directory, process, pin)
    for _ in range(5):
        found = re.search(r"listening on (\S+?)(://.+)", gateway.read_log_until(" INFO    listening on "))
        assert found is not None
        gateway.urls[found[1]] = found[1] + found[2]
    return gateway


def prepare(
    directory: Path, agents: str, *, more: str = "", tls: str = "", ports: Mapping[str, int] = MappingProxyType({})
) -> str:
    """Certificate, configuration and token of a gateway; returns the pin."""
    pin = run_program("certs", "create", "--host", "127.0.0.1", "--out", directory).strip()
    write_config(directory, agents, more=more, tls=tls, ports=ports)
    token = run_program("token", "create", "--config", directory / "config.toml", "--label", "tests")
    (directory / "token").touch(0o600)
    (directory / "token").write_text(token)
    return pin


def until(condition: Callable[[], object]) -> None:
    """Ask again until it is true; each question is work of another process."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        os.sched_yield()


def nodes_in(gateway: RunningGateway) -> dict[str, Any]:
    """By name: the nodes as the command `nodes` prints them, which looks at them."""
    return {node["name"]: node for node in json.loads(run_program("nodes", "--config", gateway.config, "--json"))}


def until_there(gateway: RunningGateway, *names: str) -> None:
    """Wait until a gateway has found nodes: a slow one is away at first, and is looked at again when one asks."""
    until(lambda: all(nodes_in(gateway).get(name, {}).get("up") for name in names))


def read_fifo(path: Path) -> str:
    """Read what a process writes to a FIFO until it closes it, each piece within a bounded time."""
    # Opening it otherwise would wait for the writer.
    with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb", buffering=0) as fifo:
        written = b""
        while True:
            ready, _, _ = select.select([fifo], [], [], 60)
            assert ready, f"nothing was written to {path} for a minute"
            piece = fifo.read(65536)
            if not piece:
                return written.decode()
            written += piece


def lines_of(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """The lines that a shim prints, each within a bounded time."""
    assert process.stdout is not None
    buffered = b""
    while True:
        line, end, rest = buffered.partition(b"\n")
        if end:
            buffered = rest
            yield line
            continue
        # Not the file's own readline: what it has read ahead, select can't see.
        ready, _, _ = select.select([process.stdout], [], [], 60)
        assert ready, "nothing came for a minute"
        data = os.read(process.stdout.fileno(), 65536)
        if not data:
            return
        buffered += data
