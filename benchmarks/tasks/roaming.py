"""Pause of a message after its path has died silently, and what faults that pass cost.

A proxy stands between `connect` and the gateway. It lets connections die without a sign, or delays and slows them.
Each prompt has a number, which the agent says once: every number must come back once, and in order.
"""

import json
import random
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.measuring import Bench, Section, Target
from benchmarks.relays import PROGRAM, Running

TASK: Final = "roaming"

AGENT: Final = Path(__file__).parent.parent / "peers" / "roaming_agent.py"

STEPS: Final = (0.1, 0.5, 1.0, 1.25, 1.5, 2.0, 3.0, 5.0, 60.0)
"""Upper ends of the histogram's bars, in seconds."""

READ: Final = 65536


@dataclass(eq=False)
class Way:
    """One connection through the proxy."""

    dead_up: bool = False
    """True once nothing reaches the gateway."""
    dead_down: bool = False
    """True once nothing reaches the client."""


@dataclass
class Proxy:
    """A TCP proxy with faults."""

    target: tuple[str, int]
    delay: float = 0.0
    """Seconds that each piece is late."""
    rate: float = 0.0
    """Bytes per second to the gateway; 0 for no limit."""
    paths: list[Way] = field(default_factory=list)

    def serve(self, listener: socket.socket) -> None:
        """Accept connections until the listener is closed."""
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            gateway = socket.create_connection(self.target)
            path = Way()
            self.paths.append(path)
            for source, sink, up in ((client, gateway, True), (gateway, client, False)):
                threading.Thread(target=self._pass_on, args=(path, source, sink, up), daemon=True).start()

    def _pass_on(self, path: Way, source: socket.socket, sink: socket.socket, up: bool) -> None:  # noqa: FBT001
        try:
            while data := source.recv(4096 if self.rate else READ):
                if self.delay:
                    time.sleep(self.delay)
                if up and self.rate:
                    time.sleep(len(data) / self.rate)
                if not (path.dead_up if up else path.dead_down):
                    sink.sendall(data)
            if not (path.dead_up or path.dead_down):
                sink.shutdown(socket.SHUT_WR)
        except OSError:
            for end in (source, sink):
                end.close()

    def kill(self, *, up: bool = True, down: bool = True) -> None:
        """Let the present connections die."""
        for path in self.paths:
            path.dead_up |= up
            path.dead_down |= down


class Editor:
    """An editor with one session."""

    def __init__(self, process: "subprocess.Popen[bytes]") -> None:
        self._process = process
        self._id = 0
        self.texts: list[str] = []
        """Texts of the agent."""

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a request and return the result."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._id += 1
        message = {"jsonrpc": "2.0", "id": self._id, "method": method, "params": params}
        self._process.stdin.write(json.dumps(message).encode() + b"\n")
        self._process.stdin.flush()
        while True:
            answer = json.loads(self._process.stdout.readline())
            if answer.get("method") == "session/update":
                self.texts.append(answer["params"]["update"]["content"]["text"])
            elif answer.get("id") == self._id:
                result: dict[str, Any] = answer["result"]
                return result

    def prompt(self, session: str, text: str, padding: int = 0) -> float:
        """Send a prompt and return the seconds until its turn is over."""
        content = [{"type": "text", "text": text + " " * padding}]
        began = time.perf_counter()
        self.ask("session/prompt", sessionId=session, prompt=content)
        return time.perf_counter() - began


@contextmanager
def roaming(running: Running) -> Iterator[tuple[Proxy, Editor, str]]:
    """Run `connect` through a proxy; return the proxy, the editor and its session."""
    host, _, port = running.endpoint.address.partition("/")[0].rpartition(":")
    proxy = Proxy((host, int(port)))
    with ExitStack() as stack:
        listener = stack.enter_context(closing(socket.create_server(("127.0.0.1", 0))))
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, READ)
        threading.Thread(target=proxy.serve, args=(listener,), daemon=True).start()
        url = f"ws://127.0.0.1:{listener.getsockname()[1]}"
        command = [*PROGRAM, "connect", url, "--token-file", str(running.directory / "token")]
        process = stack.enter_context(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE))
        stack.callback(process.terminate)
        editor = Editor(process)
        editor.ask("initialize", protocolVersion=1, clientCapabilities={})
        session = editor.ask("session/new", cwd="/", mcpServers=[])["sessionId"]
        yield proxy, editor, session


def check(editor: Editor, count: int) -> int:
    """Return how many of the numbers were lost, came twice or in another order."""
    expected = [str(number) for number in range(count)]
    return 0 if editor.texts == expected else max(1, len(set(expected) ^ set(editor.texts)))


def deaths(running: Running, count: int, *, up: bool, down: bool, delay: float = 0.0) -> tuple[list[float], int, int]:
    """Let the path die before each prompt; return the pauses, the wrong messages and the connections."""
    chance = random.Random(1)  # noqa: S311 (the same each time is what is wanted)
    with roaming(running) as (proxy, editor, session):
        proxy.delay = delay
        pauses = []
        for number in range(count):
            proxy.kill(up=up, down=down)
            pauses.append(editor.prompt(session, str(number)))
            time.sleep(chance.random() / 5)
        return pauses, check(editor, count), len(proxy.paths)


def slow(running: Running, *, rate: float, padding: int) -> tuple[list[float], int, int]:
    """Send one large prompt over a slow line; return its time, the wrong messages and the connections."""
    with roaming(running) as (proxy, editor, session):
        proxy.rate = rate
        pauses = [editor.prompt(session, "0", padding)]
        return pauses, check(editor, 1), len(proxy.paths)


def run(bench: Bench) -> list[Section]:
    """Measure the pauses, and count connections that were made in vain."""
    count = bench.pick(120, 5)
    agent = (sys.executable, "-I", "-S", str(AGENT))
    cases = {}
    with bench.relays["ours"].running(agent) as running:
        cases["the path dies, a prompt is sent"] = deaths(running, count, up=True, down=True)
        cases["only the way to the gateway dies"] = deaths(running, count // 5, up=True, down=False)
        cases["only the way back dies"] = deaths(running, count // 5, up=False, down=True)
        cases["the path dies, each piece is 0.1 s late"] = deaths(running, count // 5, up=True, down=True, delay=0.1)
        cases["nothing dies, each piece is 0.5 s late"] = deaths(running, 5, up=False, down=False, delay=0.5)
        cases["nothing dies, 20 KB/s, a prompt of 400 KB"] = slow(running, rate=20_000, padding=400_000)
    rows, targets = [], []
    for title, (pauses, wrong, connections) in cases.items():
        ordered = sorted(pauses)
        p95 = ordered[int(0.95 * (len(ordered) - 1))]
        figures = (ordered[len(ordered) // 2], p95, ordered[-1])
        rows.append((title, str(len(pauses)), *(f"{each:.2f} s" for each in figures), str(connections), str(wrong)))
        targets.append(Target(f"messages lost or twice: {title}", 0, "≤", float(wrong)))
    pauses = cases["the path dies, a prompt is sent"][0]
    targets.append(
        Target("95 % of the pauses after a death, s", 1.25, "≤", sorted(pauses)[int(0.95 * (len(pauses) - 1))])
    )
    head = ("case", "prompts", "median", "95 %", "longest", "connections", "wrong")
    return [Section("Paths that die silently", head, rows, [histogram(pauses)], targets)]


def histogram(pauses: list[float]) -> str:
    """Return the numbers of pauses between the steps as one line."""
    parts, below = [], 0.0
    for step in STEPS:
        found = sum(below < pause <= step for pause in pauses)
        if found:
            parts.append(f"{found} of up to {step:g} s")
        below = step
    return f"Pauses after a death: {', '.join(parts)}."
