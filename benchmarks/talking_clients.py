"""Clients of one gateway over each transport and at each door, for `benchmarks.compare_bytes`."""

import http.client
import json
import queue
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

from benchmarks.processes import free_port, output_of, server

AGENT: Final = Path(__file__).with_name("talking_agent.py")
PATIENCE: Final = 30.0
"""Seconds to wait for a message before the comparison fails."""

LISTENERS: Final = {"ws": ["acp", "page", "chat", "editor"], "tcp": [], "tap": ["tap"]}
"""Services of each listener, by name."""

NO_HEADERS: Final[Mapping[str, str]] = {}


class Failed(Exception):
    """The conversation did not come to its end."""


React = Callable[[Any], None]
"""Called with the value of a message that has come."""


@dataclass
class Gateway:
    """A running gateway: its ports by listener, its checkout, and its files."""

    checkout: Path
    directory: Path
    ports: Mapping[str, int]

    @property
    def token(self) -> str:
        """A token for everything."""
        return (self.directory / "token").read_text().strip()


@contextmanager
def running(checkout: Path) -> Iterator[Gateway]:
    """Run the gateway of a checkout."""
    with tempfile.TemporaryDirectory(prefix="acp-bytes-") as made:
        directory = Path(made)
        ports = {name: free_port() for name in LISTENERS}
        command = json.dumps([sys.executable, str(AGENT), str(directory / "agent")])
        text = f'[gateway]\nstate_dir = "{directory}/state"\n[workspaces.all]\nroot = "/"\n'
        text += f"[agents.talking]\ncommand = {command}\nclient_fs = true\nclient_terminal = true\n"
        for name, serves in LISTENERS.items():
            url = f"{'ws' if name == 'ws' else 'tcp'}://127.0.0.1:{ports[name]}"
            text += f'[[listen]]\nurl = "{url}"\n' + (f"serves = {json.dumps(serves)}\n" if serves else "")
        config = directory / "config.toml"
        config.write_text(text)
        program = ["env", "-C", str(checkout), sys.executable, "-m", "acp_gateway"]
        token = output_of(*program, "token", "create", "--config", str(config), "--label", "bytes")
        (directory / "token").touch(0o600)
        (directory / "token").write_bytes(token)
        with server([*program, "serve", "--config", str(config)], directory, port=ports["tap"]):
            yield Gateway(checkout, directory, ports)


class Peer:
    """One end of a connection to the gateway, and all that it has received."""

    def __init__(self, send: Callable[[bytes], None]) -> None:
        self.send = send
        self._heard: list[tuple[str, bytes]] = []
        self._come: queue.Queue[tuple[str, bytes]] = queue.Queue()

    @property
    def heard(self) -> list[bytes]:
        """All messages, in order within each stream."""
        return [line for _, line in sorted(self._heard, key=lambda each: each[0])]

    def note(self, line: bytes) -> None:
        """Note something that is not a message."""
        self._heard.append(("", line))

    def feed(self, lines: Iterable[bytes | str], stream: str = "") -> None:
        """Take lines from a thread of their own, until the connection ends."""

        def read() -> None:
            try:
                for line in lines:
                    self._come.put((stream, line.encode() if isinstance(line, str) else line.rstrip(b"\n")))
            except (OSError, ValueError, AttributeError, http.client.HTTPException, ConnectionClosed):
                pass  # The connection has ended; a response that another thread has closed has no file any more.

        threading.Thread(target=read, daemon=True).start()

    def until(self, wanted: Callable[[Any], object], react: React = lambda _: None) -> Any:
        """Return the first value to come for which `wanted` is true; `react` is called with each one before."""
        while True:
            try:
                self._heard.append(self._come.get(timeout=PATIENCE))
            except queue.Empty:
                raise Failed(f"nothing has come for {PATIENCE:g} s, after {self._heard[-3:]}") from None
            value = json.loads(self._heard[-1][1])
            if wanted(value):
                return value
            react(value)

    def until_heard(self, words: bytes, times: int = 1, react: React = lambda _: None) -> None:
        """Wait until so many messages with these words have come since the beginning."""
        while sum(words in line for _, line in self._heard) < times:
            react(self.until(lambda _: True))

    def call(self, number: object, method: str, params: str = "{}", react: React = lambda _: None) -> None:
        """Send a request, and wait for the response with its id."""
        self.send(f'{{"params":{params}, "method":"{method}","id":{json.dumps(number)},"jsonrpc":"2.0"}}'.encode())
        self.until(lambda value: "method" not in value and value.get("id") == number, react)


@contextmanager
def over_lines(gateway: Gateway, listener: str = "tcp") -> Iterator[Peer]:
    """Connect over TCP, with the hello of a client."""
    with socket.create_connection(("127.0.0.1", gateway.ports[listener])) as opened, opened.makefile("rb") as lines:
        peer = Peer(lambda line: opened.sendall(line + b"\n"))
        peer.feed(lines)
        params = json.dumps({"token": gateway.token})
        peer.send(f'{{"jsonrpc":"2.0","id":0,"method":"_acp-gateway/hello","params":{params}}}'.encode())
        yield peer
        opened.shutdown(socket.SHUT_RDWR)


@contextmanager
def over_websocket(gateway: Gateway, path: str = "/acp") -> Iterator[Peer]:
    """Connect over a WebSocket."""
    headers = {"Authorization": f"Bearer {gateway.token}"}
    url = f"ws://127.0.0.1:{gateway.ports['ws']}{path}"
    with connect(url, additional_headers=headers, proxy=None, open_timeout=PATIENCE, compression=None) as opened:
        peer = Peer(lambda line: opened.send(line.decode()))
        peer.feed(opened)
        yield peer


@contextmanager
def over_shim(gateway: Gateway) -> Iterator[Peer]:
    """Run `acp-gateway connect` of the same commit, as an editor does."""
    url = f"ws://127.0.0.1:{gateway.ports['ws']}"
    command = [sys.executable, "-m", "acp_gateway", "connect", url, "--token-file", str(gateway.directory / "token")]
    with subprocess.Popen(command, cwd=gateway.checkout, stdin=-1, stdout=-1, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin = process.stdin

        def send(line: bytes) -> None:
            stdin.write(line + b"\n")
            stdin.flush()

        peer = Peer(send)
        peer.feed(process.stdout)
        try:
            yield peer
        finally:
            stdin.close()
            process.wait(PATIENCE)


class Http:
    """Requests to the gateway, each over a connection of its own that is closed with `stack`."""

    def __init__(self, gateway: Gateway, stack: ExitStack) -> None:
        self.headers = {"Authorization": f"Bearer {gateway.token}", "Content-Type": "application/json"}
        self._port = gateway.ports["ws"]
        self._stack = stack

    def request(
        self, method: str, path: str, body: bytes | None = None, headers: Mapping[str, str] = NO_HEADERS
    ) -> http.client.HTTPResponse:
        """Send a request and return the response."""
        opened = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        self._stack.callback(opened.close)
        opened.request(method, path, body, self.headers | dict(headers))
        return opened.getresponse()


@contextmanager
def over_http(gateway: Gateway) -> Iterator[Peer]:
    """Connect over Streamable HTTP: a `POST` for each message, and event streams of the connection and the session."""
    with ExitStack() as stack:
        client = Http(gateway, stack)

        def send(line: bytes) -> None:
            response = client.request("POST", "/acp", line)
            body = response.read()
            if response.status == 200:
                client.headers["Acp-Connection-Id"] = response.headers["Acp-Connection-Id"]
                peer.feed([body])
                read_stream()
            elif response.status != 202:
                peer.note(b"%d %b" % (response.status, body))
            if b"session/new" in line or b"session/load" in line:
                read_stream({"Acp-Session-Id": "session-1"})

        def read_stream(session: Mapping[str, str] = NO_HEADERS) -> None:
            response = client.request("GET", "/acp", headers={"Accept": "text/event-stream", **session})
            peer.feed((line[6:] for line in response if line.startswith(b"data: ")), f"stream {len(session)}")

        peer = Peer(send)
        yield peer
        client.request("DELETE", "/acp").read()
