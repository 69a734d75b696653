"""How each relay is run: this project's gateway, and what people would pick instead.

Each is run as its own documentation says, on loopback, with nothing switched off that somebody would leave on, and
without what it prints of every message where it can be told so. It is ready when it can be connected to, and when it is
left, it is gone with its agents: by itself, or else with the group of processes that it leads. Should the benchmark be
killed, the kernel tells the relays to stop.
"""

import json
import re
import shlex
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cache, partial
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.installing import PEERS, TLS, Programs
from benchmarks.load import Where
from benchmarks.processes import (
    RelayFailed,
    children,
    free_port,
    output_of,
    processor_seconds,
    program,
    resident_kb,
    server,
)

TOKENS: Final = "tokens.json"
"""Where our gateway keeps what it knows of tokens, in its state_dir."""

ATTEMPTS: Final = 3
"""For a program that can't be told to take any free port."""

PROGRAM: Final = (sys.executable, "-m", "acp_gateway")
PLAIN: Final = re.compile(r"[A-Za-z0-9_@%+=./-]+")
"""An argument that needs no quotes for anybody."""

Agent = tuple[str, ...]
Scheme = Literal["ws", "wss", "tcp", "tcp+tls"]


@dataclass(frozen=True)
class Running:
    """A relay that can be connected to."""

    where: Where
    pid: int
    """0 where there is no process between the load and the agent."""
    directory: Path
    """Its own, for as long as it runs: what it prints is in `log`; of ours, `config.toml`, `token` and `state` too."""
    seconds: float = 0.0
    """From starting it to where it could be connected to."""
    copies_itself: bool = False
    """Whether it is a process of its own for each connection."""

    def resident(self) -> int:
        """Bytes of memory that it has now, agents not counted."""
        return 1024 * sum(resident_kb(pid) for pid in self._pids())

    def processor(self) -> float:
        """Seconds of a processor that it has used so far, agents not counted.

        Where it copies itself, what the copies used that have ended is not counted either.
        """
        return sum(processor_seconds(pid) for pid in self._pids())

    def _pids(self) -> list[int]:
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
    """Why it can't be run here, in words."""

    def running(self, agent: Agent) -> AbstractContextManager[Running]:
        """Run it for so long with this agent. Raises RelayFailed."""
        return self.run(agent)


def relays(programs: Programs) -> Mapping[str, Relay]:
    """All of them by name, those that can't be run here as well."""
    peers = [
        Relay("direct", "the agent itself, by pipes", partial(run_direct, programs)),
        Relay("c-relay", "C, TCP", partial(run_c_relay, programs, websocket=False)),
        Relay("c-relay-ws", "C, WebSocket", partial(run_c_relay, programs, websocket=True)),
        Relay("socat", "socat, TCP", partial(run_socat, programs)),
        Relay("websocketd", "websocketd", partial(run_websocketd, programs)),
        Relay("node-ws", "node, `ws` and readline", partial(run_node, programs, "ws_relay.mjs")),
        Relay("sdk", "the TypeScript SDK's server", partial(run_node, programs, "sdk_server.mjs")),
        Relay("stdio-to-ws", "stdio-to-ws", partial(run_stdio_to_ws, programs)),
        Relay("naive", "naive, Trio", partial(run_naive, programs)),
    ]
    ours = [our_gateway(programs, listen=scheme) for scheme in ("ws", "wss", "tcp", "tcp+tls")]
    every = [*ours, *(Relay(each.name, each.title, each.run, programs.skipped.get(each.name)) for each in peers)]
    return {each.name: each for each in every}


# Ours


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
) -> Relay:
    """This project's gateway with its default configuration, but for what is given here."""
    sections: dict[str, dict[str, Any]] = {
        "gateway": dict(gateway_options or {}),
        "limits": dict(limits or {}),
        "agents.benchmark": {**({} if scope is None else {"scope": scope}), **(agent_options or {})},
    }
    run = partial(run_ours, programs, listen, sections)
    name, title = OURS[listen]
    return Relay(name, title, run, programs.skipped.get(TLS) if has_tls(listen) else None)


@contextmanager
def run_ours(
    programs: Programs, listen: Scheme, sections: Mapping[str, Mapping[str, Any]], agent: Agent
) -> Iterator[Running]:
    """With histories on the disk that the benchmark's folder is on."""
    with folder(programs) as directory:
        config, token_file = directory / "config.toml", directory / "token"
        listener = {"url": f"{listen}://127.0.0.1:0"}
        if has_tls(listen):
            listener |= {"cert": str(directory / "cert.pem"), "key": str(directory / "key.pem")}
        # The sessions of the load are in the root folder.
        own: dict[str, dict[str, Any]] = {
            "gateway": {"state_dir": str(directory / "state")},
            "agents.benchmark": {"command": list(agent), "cwd": "/"},
        }
        tables = {f"[{name}]": {**own.get(name, {}), **options} for name, options in sections.items()}
        config.write_text(toml({**tables, "[[listen]]": listener}))
        state = Path(tables["[gateway]"]["state_dir"])
        state.mkdir(mode=0o700, exist_ok=True)
        for name, contents in credentials(programs.directory).items():
            file = (state if name == TOKENS else directory) / name
            file.touch(0o600)
            file.write_bytes(contents)
        token = token_file.read_text().strip()
        with server([*PROGRAM, "serve", "--config", str(config)], directory) as started:
            if listen in ("ws", "wss"):
                where = Where("ws", f"127.0.0.1:{started.port}/acp", tls=has_tls(listen), token=token)
            else:
                where = Where("lines", f"127.0.0.1:{started.port}", tls=has_tls(listen), token=token)
            yield Running(where, started.pid, directory, started.seconds)


@cache
def credentials(directory: Path) -> Mapping[str, bytes]:
    """A certificate and a token for all of ours, by file: to make them takes longer than the gateway to start."""
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
    """Whether a listener has it."""
    return listen in ("wss", "tcp+tls")


def toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """A configuration: what its options are made of is written in TOML as in JSON."""
    return "".join(
        f"{head}\n" + "".join(f"{name} = {json.dumps(value)}\n" for name, value in options.items())
        for head, options in tables.items()
    )


def our_shim(running: Running) -> Where:
    """`acp-gateway connect` to our gateway at a WebSocket without TLS, to be run by the load as an editor would."""
    url = f"ws://{running.where.address.split('/')[0]}"
    return Where("exec", command=(*PROGRAM, "connect", url, "--token-file", str(running.directory / "token")))


def node_shim(programs: Programs, running: Running) -> Where:
    """What people write instead of it. Not where `programs.skipped` has "node-shim"."""
    shim = str(programs.peers / "shim.mjs")
    return Where("exec", command=("node", shim, f"ws://{running.where.address}"), token=running.where.token)


# The others


@contextmanager
def run_direct(programs: Programs, agent: Agent) -> Iterator[Running]:
    """Nothing between them."""
    with folder(programs) as directory:
        yield Running(Where("exec", command=agent), 0, directory)


@contextmanager
def run_c_relay(programs: Programs, agent: Agent, *, websocket: bool) -> Iterator[Running]:
    """What the machine can do."""
    command = [str(programs.relay), *(["--ws"] if websocket else []), "0", *agent]
    with folder(programs) as directory, server(command, directory) as started:
        address = f"127.0.0.1:{started.port}"
        where = Where("ws", f"{address}/") if websocket else Where("lines", address)
        yield Running(where, started.pid, directory, started.seconds)


@contextmanager
def run_socat(programs: Programs, agent: Agent) -> Iterator[Running]:
    """It says where it listens only with two `-d`. With pipes, as the others have them, it is faster than without."""
    with folder(programs) as directory:
        listen = "TCP-LISTEN:0,bind=127.0.0.1,fork,backlog=128"
        command = ["socat", "-d", "-d", listen, f"EXEC:{one_line(agent, directory)},pipes"]
        with server(command, directory) as started:
            where = Where("lines", f"127.0.0.1:{started.port}")
            yield Running(where, started.pid, directory, started.seconds, copies_itself=True)


@contextmanager
def run_websocketd(programs: Programs, agent: Agent) -> Iterator[Running]:
    """It has to be told a port, and somebody else may take that before it does."""
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
        yield Running(Where("ws", f"127.0.0.1:{port}/"), started.pid, directory, started.seconds)


@contextmanager
def run_node(programs: Programs, script: str, agent: Agent) -> Iterator[Running]:
    """A program of ours that is a server of theirs."""
    command = ["node", str(programs.peers / script), *agent]
    with folder(programs) as directory, server(command, directory) as started:
        yield Running(Where("ws", f"127.0.0.1:{started.port}/"), started.pid, directory, started.seconds)


@contextmanager
def run_stdio_to_ws(programs: Programs, agent: Agent) -> Iterator[Running]:
    """It prints every message in colours, whatever it is told: that costs the least where nobody takes it."""
    package = programs.peers / "node_modules" / "stdio-to-ws" / "dist" / "main.js"
    loopback = (programs.peers / "loopback.mjs").as_uri()
    with folder(programs) as directory:
        command = ["node", "--import", loopback, str(package), "--quiet", one_line(agent, directory)]
        with server(command, directory, prints=False) as started:
            yield Running(Where("ws", f"127.0.0.1:{started.port}/"), started.pid, directory, started.seconds)


@contextmanager
def run_naive(programs: Programs, agent: Agent) -> Iterator[Running]:
    """One agent for everybody who is connected, who all get all that it says."""
    command = [sys.executable, str(PEERS / "naive_relay.py"), *agent]
    with folder(programs) as directory, server(command, directory) as started:
        yield Running(Where("ws", f"127.0.0.1:{started.port}/"), started.pid, directory, started.seconds)


def one_line(command: Sequence[str], directory: Path) -> str:
    """A command for those who take it in one piece, each with rules of its own for quotes: here none are needed."""
    if all(PLAIN.fullmatch(each) for each in command):
        return " ".join(command)
    script = directory / "agent"
    script.write_text(f"#!/bin/sh\nexec {shlex.join(command)}\n")
    script.chmod(0o700)
    # The relay is started in this folder.
    return "./agent"


@contextmanager
def folder(programs: Programs) -> Iterator[Path]:
    """A folder for a while, on the disk where the programs are: others may be in memory."""
    with tempfile.TemporaryDirectory(dir=programs.directory, prefix="running-") as directory:
        yield Path(directory)
