"""Runs the compared relays: this project's gateway and its alternatives.

Each relay runs on loopback as its documentation says, with its default features, and without logging of messages if an
option turns that off. It is ready when it accepts connections. At the end of the block the relay and its agents are
stopped: by SIGTERM, then by SIGKILL to its process group. If the benchmark is killed, the kernel sends SIGTERM.
"""

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.installing import PEERS, TLS, Programs
from benchmarks.load import Endpoint
from benchmarks.processes import (
    RelayFailed,
    children,
    descriptors,
    free_port,
    output_of,
    processor_seconds,
    program,
    resident_kb,
    server,
    wait_for_line,
)

TOKENS: Final = "tokens.json"
"""Our gateway's file of token digests, in its state_dir."""

ATTEMPTS: Final = 3
"""Attempts to start a program that has no option for any free port."""

PROGRAM: Final = (sys.executable, "-m", "acp_gateway")
SERVE: Final = (sys.executable, str(Path(__file__).parents[1] / "tests/end_to_end/unfixed.py"), "serve")
"""The program that serves, with other limits than the constants where a task has any."""


def serve_of(checkout: Path) -> tuple[str, ...]:
    """Return the same program of another checkout, with the libraries of this environment."""
    return ("env", f"PYTHONPATH={checkout}", *SERVE)


PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=./-]+")
"""An argument that needs no quotes, whatever splits the command line."""

Agent = tuple[str, ...]
Scheme = Literal["ws", "wss", "tcp", "tcp+tls"]


@dataclass(frozen=True)
class Running:
    """A relay that accepts connections."""

    endpoint: Endpoint
    pid: int
    """0 if there is no process between the load and the agent."""
    directory: Path
    """Temporary directory with its output in `log`; of ours, also with `config.toml`, `token` and `state`."""
    seconds: float = 0.0
    """Seconds from its start until it listened."""
    copies_itself: bool = False
    """True if it forks for each connection."""
    behind: "Running | None" = None
    """The gateway that it leads to, if any; it counts for memory, CPU time and descriptors."""

    def resident(self) -> int:
        """Return its resident memory in bytes, without agents."""
        return 1024 * sum(resident_kb(pid) for pid in self._pids())

    def processor(self) -> float:
        """Return its CPU time so far in seconds, without agents and without forks that have ended."""
        return sum(processor_seconds(pid) for pid in self._pids())

    def descriptors(self) -> int:
        """Return the number of its open file descriptors."""
        return sum(len(descriptors(pid)) for pid in self._pids())

    def _pids(self) -> list[int]:
        if self.behind is not None:
            return [self.pid, self.behind.pid]
        if not self.pid or not self.copies_itself:
            return [self.pid] if self.pid else []
        return [self.pid, *(pid for pid in children(self.pid) if program(pid) == program(self.pid))]


@dataclass(frozen=True)
class Relay:
    """Something between a client and an agent."""

    name: str
    title: str
    run: Callable[[Agent], AbstractContextManager[Running]] = field(repr=False)
    skip: str | None = None
    """Reason why it can't run on this machine."""

    def running(self, agent: Agent) -> AbstractContextManager[Running]:
        """Run it with an agent until the end of the block. Raises RelayFailed."""
        return self.run(agent)


def relays(programs: Programs) -> Mapping[str, Relay]:
    """Return all relays by name, including those that can't run on this machine."""
    sdk, python_sdk = partial(run_node, programs, "sdk_server.mjs"), partial(run_python_sdk, programs)
    peers = [
        Relay("direct", "the agent itself, by pipes", partial(run_direct, programs)),
        Relay("c-relay", "C, TCP", partial(run_c_relay, programs, websocket=False)),
        Relay("c-relay-ws", "C, WebSocket", partial(run_c_relay, programs, websocket=True)),
        Relay("socat", "socat, TCP", partial(run_socat, programs)),
        Relay("websocketd", "websocketd", partial(run_websocketd, programs)),
        Relay("node-ws", "node, `ws` and readline", partial(run_node, programs, "ws_relay.mjs")),
        Relay("sdk", "the TypeScript SDK's server", sdk),
        Relay("sdk-http", "the TypeScript SDK's server, HTTP", partial(run_over_http, sdk)),
        Relay("python-sdk-http", "the Python SDK's server, HTTP", partial(run_over_http, python_sdk)),
        Relay("stdio-to-ws", "stdio-to-ws", partial(run_stdio_to_ws, programs)),
        Relay("naive", "naive, Trio", partial(run_naive, programs)),
    ]
    ours = [our_gateway(programs, listen=scheme) for scheme in ("ws", "wss", "tcp", "tcp+tls")]
    ours.append(Relay("ours-http", "acp-gateway, HTTP", partial(run_over_http, ours[0].run)))
    every = [*ours, *(Relay(each.name, each.title, each.run, programs.skipped.get(each.name)) for each in peers)]
    return {each.name: each for each in every}


# Ours


UNTHROTTLED: Final[Mapping[str, float]] = {
    "messages_per_second": 1_000_000,
    "message_burst": 4_000_000,
    "bytes_per_second": 4 * 1024 * 1024 * 1024,
    "loop_share": 1.0,
}
"""Rate limits beyond the capacity of any machine, so that the path of a message is measured and not the limiter."""


OURS: Final[Mapping[Scheme, tuple[str, str]]] = {
    "ws": ("ours", "acp-gateway, WebSocket"),
    "wss": ("ours-tls", "acp-gateway, WebSocket with TLS"),
    "tcp": ("ours-tcp", "acp-gateway, TCP"),
    "tcp+tls": ("ours-tcp-tls", "acp-gateway, TCP with TLS"),
}


def our_gateway(
    programs: Programs,
    *,
    listen: Scheme,
    scope: str | None = None,
    gateway_options: Mapping[str, Any] | None = None,
    agent_options: Mapping[str, Any] | None = None,
    limits: Mapping[str, Any] | None = None,
    serve: Sequence[str] = SERVE,
) -> Relay:
    """Return this project's gateway with its default configuration, without rate limits, and the given changes."""
    sections: dict[str, dict[str, Any]] = {
        "gateway": dict(gateway_options or {}),
        "limits": {**UNTHROTTLED, **(limits or {})},
        "agents.benchmark": {**({} if scope is None else {"scope": scope}), **(agent_options or {})},
    }
    run = partial(run_ours, programs, listen, sections, serve=serve)
    name, title = OURS[listen]
    return Relay(name, title, run, programs.skipped.get(TLS) if has_tls(listen) else None)


@contextmanager
def run_ours(
    programs: Programs,
    listen: Scheme,
    sections: Mapping[str, Mapping[str, Any]],
    agent: Agent,
    *,
    serve: Sequence[str] = SERVE,
) -> Iterator[Running]:
    """Run our gateway, without an agent of its own if there is none. Its state is on the disk of the programs."""
    with folder(programs) as directory:
        config, token_file = directory / "config.toml", directory / "token"
        listener = {"url": f"{listen}://127.0.0.1:0"}
        if has_tls(listen):
            listener |= {"cert": str(directory / "cert.pem"), "key": str(directory / "key.pem")}
        own: dict[str, dict[str, Any]] = {"gateway": {"state_dir": str(directory / "state")}}
        if agent:
            # The load generator opens its sessions in the root directory.
            own["agents.benchmark"] = {"command": list(agent), "cwd": "/"}
        tables = {f"[{name}]": {**own.get(name, {}), **options} for name, options in sections.items()}
        config.write_text(toml({**tables, "[[listen]]": listener}))
        state = Path(tables["[gateway]"]["state_dir"])
        state.mkdir(mode=0o700, exist_ok=True)
        for name, contents in credentials(programs.directory).items():
            file = (state if name == TOKENS else directory) / name
            file.touch(0o600)
            file.write_bytes(contents)
        token = token_file.read_text().strip()
        with server([*serve, "--config", str(config)], directory) as started:
            if listen in ("ws", "wss"):
                endpoint = Endpoint("ws", f"127.0.0.1:{started.port}/acp", tls=has_tls(listen), token=token)
            else:
                endpoint = Endpoint("lines", f"127.0.0.1:{started.port}", tls=has_tls(listen), token=token)
            yield Running(endpoint, started.pid, directory, started.seconds)


def front_gateway(programs: Programs, nodes: Sequence[str], serve: Sequence[str] = SERVE) -> Relay:
    """Return our gateway in front of another one, which has the agent and is known to it under each of these names."""
    return Relay("front", "acp-gateway behind acp-gateway", partial(run_front, programs, nodes, serve))


@contextmanager
def run_front(programs: Programs, nodes: Sequence[str], serve: Sequence[str], agent: Agent) -> Iterator[Running]:
    """Run both gateways over WebSockets without TLS, until the one in front has reached its nodes."""
    limits = {"sessions_per_identity": 4096}
    scope = {"scope": "identity"}
    behind = our_gateway(programs, listen="ws", agent_options=scope, limits=limits, serve=serve)
    with behind.running(agent) as node:
        section = {
            "url": f"ws://{node.endpoint.address.partition('/')[0]}",
            "token_file": str(node.directory / "token"),
        }
        sections: dict[str, Mapping[str, Any]] = {
            "gateway": {"default_agent": f"{nodes[0]}/benchmark"},
            "limits": UNTHROTTLED,
            **{f"nodes.{name}": section for name in nodes},
        }
        with run_ours(programs, "ws", sections, (), serve=serve) as front:
            for name in nodes:
                wait_for_line(front.directory / "log", f"node {name} is there")
            yield replace(front, behind=node)


@cache
def credentials(directory: Path) -> Mapping[str, bytes]:
    """Create a certificate and a token and return the contents of their files by name.

    All our gateways share them, since creating them takes longer than starting a gateway.
    """
    with tempfile.TemporaryDirectory(dir=directory, prefix="credentials-") as made:
        config = Path(made, "config.toml")
        tables: dict[str, dict[str, Any]] = {
            "[gateway]": {"state_dir": made},
            "[agents.benchmark]": {"command": ["true"]},
            "[[listen]]": {"url": "ws://127.0.0.1:0"},
        }
        config.write_text(toml(tables))
        output_of(*PROGRAM, "certs", "create", "--host", "127.0.0.1", "--out", made)
        token = output_of(*PROGRAM, "token", "create", "--config", str(config), "--label", "benchmark")
        return {"token": token, **{name: Path(made, name).read_bytes() for name in (TOKENS, "cert.pem", "key.pem")}}


def has_tls(listen: Scheme) -> bool:
    """Check for TLS in a listener's scheme."""
    return listen in ("wss", "tcp+tls")


def toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Format a configuration. JSON is valid TOML for the types of values that options have here."""
    return "".join(
        f"{head}\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        for head, options in tables.items()
    )


def our_shim(running: Running) -> Endpoint:
    """Return `acp-gateway connect` to our gateway, over a WebSocket without TLS; the load starts it like an editor."""
    url = f"ws://{running.endpoint.address.split('/')[0]}"
    return Endpoint("exec", command=(*PROGRAM, "connect", url, "--token-file", str(running.directory / "token")))


def node_shim(programs: Programs, running: Running) -> Endpoint:
    """Return the hand-written JavaScript alternative to `connect`. Requires that "node-shim" was not skipped."""
    shim = str(programs.peers / "shim.mjs")
    return Endpoint("exec", command=("node", shim, f"ws://{running.endpoint.address}"), token=running.endpoint.token)


# The others


@contextmanager
def run_direct(programs: Programs, agent: Agent) -> Iterator[Running]:
    """Run no relay: the load starts the agent itself."""
    with folder(programs) as directory:
        yield Running(Endpoint("exec", command=agent), 0, directory)


@contextmanager
def run_c_relay(programs: Programs, agent: Agent, *, websocket: bool) -> Iterator[Running]:
    """Run the relay in C, as an upper bound of the machine."""
    command = [str(programs.relay), *(["--ws"] if websocket else []), "0", *agent]
    with folder(programs) as directory, server(command, directory) as started:
        address = f"127.0.0.1:{started.port}"
        endpoint = Endpoint("ws", f"{address}/") if websocket else Endpoint("lines", address)
        yield Running(endpoint, started.pid, directory, started.seconds)


@contextmanager
def run_socat(programs: Programs, agent: Agent) -> Iterator[Running]:
    """Run socat. It logs its port only with two `-d`. Pipes, which the others use too, make it faster."""
    with folder(programs) as directory:
        listen = "TCP-LISTEN:0,bind=127.0.0.1,fork,backlog=128"
        command = ["socat", "-d", "-d", listen, f"EXEC:{unquoted(agent, directory)},pipes"]
        with server(command, directory) as started:
            endpoint = Endpoint("lines", f"127.0.0.1:{started.port}")
            yield Running(endpoint, started.pid, directory, started.seconds, copies_itself=True)


@contextmanager
def run_websocketd(programs: Programs, agent: Agent) -> Iterator[Running]:
    """Run websocketd. It needs a fixed port, which another process may take first, so the start is tried again."""
    with folder(programs) as directory, ExitStack() as stack:
        attempt = 1
        while True:
            port = free_port()
            command = ["websocketd", "--address=127.0.0.1", f"--port={port}", "--loglevel=error", *agent]
            try:
                started = stack.enter_context(server(command, directory, port=port))
                break
            except RelayFailed:
                if attempt == ATTEMPTS:
                    raise
                attempt += 1
        yield Running(Endpoint("ws", f"127.0.0.1:{port}/"), started.pid, directory, started.seconds)


@contextmanager
def run_node(programs: Programs, script: str, agent: Agent) -> Iterator[Running]:
    """Run one of the scripts in `peers` that start a server of an npm package."""
    command = ["node", str(programs.peers / script), *agent]
    with folder(programs) as directory, server(command, directory) as started:
        yield Running(Endpoint("ws", f"127.0.0.1:{started.port}/"), started.pid, directory, started.seconds)


@contextmanager
def run_stdio_to_ws(programs: Programs, agent: Agent) -> Iterator[Running]:
    """Run stdio-to-ws. It always prints each message in colours, so stdout is discarded, which costs least."""
    package = programs.peers / "node_modules" / "stdio-to-ws" / "dist" / "main.js"
    loopback = (programs.peers / "loopback.mjs").as_uri()
    with folder(programs) as directory:
        command = ["node", "--import", loopback, str(package), "--quiet", unquoted(agent, directory)]
        with server(command, directory, prints=False) as started:
            yield Running(Endpoint("ws", f"127.0.0.1:{started.port}/"), started.pid, directory, started.seconds)


@contextmanager
def run_naive(programs: Programs, agent: Agent) -> Iterator[Running]:
    """Run the naive relay: all clients share one agent, and all receive each of its messages."""
    command = [sys.executable, str(PEERS / "naive_relay.py"), *agent]
    with folder(programs) as directory, server(command, directory) as started:
        yield Running(Endpoint("ws", f"127.0.0.1:{started.port}/"), started.pid, directory, started.seconds)


@contextmanager
def run_python_sdk(programs: Programs, agent: Agent) -> Iterator[Running]:
    """Run the Python SDK's server. It is used over HTTP only."""
    # Python looks for packages beside the script.
    command = [sys.executable, str(programs.python_peers / "python_sdk_server.py"), *agent]
    with folder(programs) as directory, server(command, directory) as started:
        yield Running(Endpoint("http", f"127.0.0.1:{started.port}/"), started.pid, directory, started.seconds)


@contextmanager
def run_over_http(run: Callable[[Agent], AbstractContextManager[Running]], agent: Agent) -> Iterator[Running]:
    """Run a relay of WebSockets that speaks Streamable HTTP at the same address."""
    with run(agent) as running:
        yield replace(running, endpoint=replace(running.endpoint, kind="http"))


def unquoted(command: Sequence[str], directory: Path) -> str:
    """Return a command as one string without quotes, since programs that split it differ in their quoting rules."""
    if all(PLAIN.fullmatch(each) for each in command):
        return " ".join(command)
    script = directory / "agent"
    script.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    script.chmod(0o700)
    # The relay's working directory is this one.
    return "./agent"


@contextmanager
def folder(programs: Programs) -> Iterator[Path]:
    """Create a temporary directory on the disk of the programs: the system's own may be in memory."""
    with tempfile.TemporaryDirectory(dir=programs.directory, prefix="running-") as directory:
        yield Path(directory)
