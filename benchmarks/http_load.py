"""The load generator for Streamable HTTP, with the modes, options and results of `native/load.c`.

`python -m benchmarks.http_load MODE [options] --http HOST:PORT/PATH`, with the token in LOAD_TOKEN, is started by
`benchmarks.load`. One thread, blocking sockets and no HTTP library: it searches the bytes for marks, so that it is not
the bottleneck. A client has a connection for its requests, and one for each event stream.
"""

import argparse
import json
import os
import re
import resource
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, Final, NoReturn

from benchmarks.bare import Failed, message
from benchmarks.measuring import percentile

READ_SIZE: Final = 1 << 18

UPDATE: Final = b'"agent_message_chunk"'
TURN_END: Final = b'"stopReason"'
"""Marks of an update, and of the answer to a prompt. A chunk of a body holds whole events, so no mark is cut."""

_CONNECTION: Final = re.compile(rb"(?i)\r\nacp-connection-id: *([^\r]+)")
_SIZE: Final = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_SESSION: Final = re.compile(rb'"sessionId" *: *"([^"]+)"')


class Timeout(Exception):
    """The run takes longer than it may."""


def connect(address: str) -> socket.socket:
    """Open a connection to HOST:PORT."""
    host, _, port = address.rpartition(":")
    sock = socket.create_connection((host, int(port)))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


class EventReader:
    """The body of an event stream.

    Args:
        sock: the connection, from which the head of the response was read.
        rest: what was read behind it.
    """

    def __init__(self, sock: socket.socket, rest: bytes) -> None:
        self._sock = sock
        self._rest = rest
        self._buffer = bytearray(READ_SIZE)
        self.received = len(rest)
        """Bytes so far."""

    def find(self, mark: bytes) -> bytes:
        """Wait for a mark, and return the bytes up to the end of what was read with it. Raises `Failed`."""
        while mark not in self._rest:
            self._rest += self._read()
        found, self._rest = self._rest, b""
        return found

    def count_until(self, mark: bytes, counted: bytes) -> int:
        """Count the occurrences of `counted` until `mark` comes. Raises `Failed`."""
        overlap = max(len(mark), len(counted)) - 1
        data, self._rest = self._rest, b""
        number = data.count(counted)
        while mark not in data:
            tail = data[-overlap:]
            data = tail + self._read()
            number += data.count(counted) - tail.count(counted)
        return number

    def _read(self) -> bytes:
        size = self._sock.recv_into(self._buffer)
        if not size:
            raise Failed("an event stream has ended")
        self.received += size
        return bytes(memoryview(self._buffer)[:size])

    def close(self) -> None:
        """Close the connection."""
        self._sock.close()


class HttpClient:
    """A client of Streamable HTTP.

    Args:
        address: HOST:PORT/PATH of the endpoint.
        token: shown with each request, if any.
        posts: a connection for its requests that it shares with others; by default it opens one.
    """

    def __init__(self, address: str, token: str | None, posts: socket.socket | None = None) -> None:
        self._authority, _, path = address.partition("/")
        self._path = f"/{path}"
        self._fields = f"Host: {self._authority}\r\n"
        if token is not None:
            self._fields += f"Authorization: Bearer {token}\r\n"
        self._posts = posts or connect(self._authority)
        self._numbers = count(1)
        self._heads: dict[str, str] = {}

    def initialize(self) -> None:
        """Begin the connection. Raises `Failed`."""
        params = {"protocolVersion": 1, "clientCapabilities": {}}
        head, _ = self._exchange(self._post("", message(0, "initialize", params)), 200)
        found = _CONNECTION.search(head)
        if found is None:
            raise Failed("the answer to initialize names no connection")
        self._fields += f"Acp-Connection-Id: {found[1].decode()}\r\n"

    def open_stream(self, session: str = "") -> EventReader:
        """Open the event stream of the connection, or of a session. Raises `Failed`."""
        named = f"Acp-Session-Id: {session}\r\n" if session else ""
        sock = connect(self._authority)
        sock.sendall(f"GET {self._path} HTTP/1.1\r\n{self._fields}{named}Accept: text/event-stream\r\n\r\n".encode())
        data = b""
        while b"\r\n\r\n" not in data:
            data += _received(sock)
        head, _, rest = data.partition(b"\r\n\r\n")
        _check(head, 200)
        return EventReader(sock, rest)

    def open_session(self, stream: EventReader) -> str:
        """Open a session, whose id is told in the connection's stream. Raises `Failed`."""
        self.send("session/new", {"cwd": os.environ.get("HOME", "/"), "mcpServers": []})
        found = _SESSION.search(stream.find(b'"sessionId"'))
        assert found is not None
        return found[1].decode()

    def send(self, method: str, params: dict[str, Any], session: str = "") -> None:
        """Send a request, and wait for the 202. Raises `Failed`."""
        self.accept(self.begin(method, params, session))

    def begin(self, method: str, params: dict[str, Any], session: str = "") -> int:
        """Send a request, and return its id. Its 202 is read by `accept`."""
        number = next(self._numbers)
        self._posts.sendall(self._post(session, message(number, method, params)))
        return number

    def accept(self, number: int) -> None:
        """Wait for the 202 of a request. Raises `Failed`."""
        self._answer(202, f"request {number}")

    def end(self) -> None:
        """End the connection with `DELETE`. Raises `Failed`."""
        self._exchange(f"DELETE {self._path} HTTP/1.1\r\n{self._fields}\r\n".encode(), 202)

    def _post(self, session: str, body: bytes) -> bytes:
        head = self._heads.get(session)
        if head is None:
            named = f"Acp-Session-Id: {session}\r\n" if session else ""
            head = f"POST {self._path} HTTP/1.1\r\n{self._fields}{named}Content-Type: application/json\r\n"
            if "Acp-Connection-Id" in self._fields:
                self._heads[session] = head
        return b"%bContent-Length: %d\r\n\r\n%b" % (head.encode(), len(body), body)

    def _exchange(self, request: bytes, status: int) -> tuple[bytes, bytes]:
        self._posts.sendall(request)
        return self._answer(status, request.partition(b" ")[0].decode())

    def _answer(self, status: int, what: str) -> tuple[bytes, bytes]:
        data = _received(self._posts)
        while b"\r\n\r\n" not in data:
            data += _received(self._posts)
        head, _, body = data.partition(b"\r\n\r\n")
        if (announced := _SIZE.search(head)) is not None:
            while len(body) < int(announced[1]):
                body += _received(self._posts)
        elif b"chunked" in head.lower():
            while not body.endswith(b"0\r\n\r\n"):
                body += _received(self._posts)
        _check(head, status, what)
        return head, body


def _received(sock: socket.socket) -> bytes:
    data = sock.recv(65536)
    if not data:
        raise Failed("the server has closed the connection")
    return data


def _check(head: bytes, status: int, what: str = "the event stream") -> None:
    if not head.startswith(b"HTTP/1.1 %d" % status):
        raise Failed(f"{what}: {head.splitlines()[0].decode(errors='replace')}")


# Modes


Result = dict[str, Any]


def stream(client: HttpClient, asked: argparse.Namespace) -> Result:
    """Have a turn stream updates to one client."""
    client.initialize()
    connection = client.open_stream()
    session = client.open_session(connection)
    events = client.open_stream(session)
    begun, own, before = time.perf_counter(), time.process_time(), events.received
    text = f"{asked.count} {asked.batch} {asked.size} 0"
    client.send("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]}, session)
    updates = events.count_until(TURN_END, UPDATE)
    took, own = time.perf_counter() - begun, time.process_time() - own
    if updates != asked.count:
        raise Failed(f"{updates} of {asked.count} updates have come")
    leave(client, session)
    return {"seconds": took, "own_processor": own, "messages": updates, "bytes": events.received - before}


def echo(client: HttpClient, asked: argparse.Namespace) -> Result:
    """Measure round trips: from the `POST` to the event with its response."""
    client.initialize()
    connection = client.open_stream()
    session = client.open_session(connection)
    events = client.open_stream(session)
    times = []
    began, own = time.perf_counter(), time.process_time()
    for _ in range(asked.count):
        begun = time.perf_counter()
        number = client.begin("_bench/echo", {"sessionId": session}, session)
        events.find(b'"id":%d,' % number)
        times.append(1e6 * (time.perf_counter() - begun))
        client.accept(number)
    took, own = time.perf_counter() - began, time.process_time() - own
    leave(client, session)
    percents = {f"p{percent}_us": percentile(times, percent) for percent in (50, 90, 99)}
    return {"seconds": took, "own_processor": own, "count": len(times), **percents}


def leave(client: HttpClient, session: str) -> None:
    """Close the session, and end the connection."""
    client.send("session/close", {"sessionId": session}, session)
    client.end()


def idle(address: str, token: str | None, connections: int, held: Callable[[Result], None]) -> None:
    """Hold the event streams of so many connections, each of an initialized client, while `held` runs."""
    begun = time.perf_counter()
    clients = []
    # They share a connection for their requests, as behind a proxy: only that of the stream is held for each.
    posts = connect(address.partition("/")[0])
    for _ in range(connections):
        client = HttpClient(address, token, posts)
        client.initialize()
        clients.append((client, client.open_stream()))
    held({"seconds": time.perf_counter() - begun, "connections": connections})
    for client, events in clients:
        events.close()
        client.end()


MODES: Final[Mapping[str, Callable[[HttpClient, argparse.Namespace], Result]]] = {"stream": stream, "echo": echo}


def parse(arguments: list[str]) -> argparse.Namespace:
    """Parse the command line. Exits with 2 if it is invalid."""
    parser = argparse.ArgumentParser("python -m benchmarks.http_load", description="Load a server of Streamable HTTP.")
    parser.add_argument("mode", choices=[*MODES, "idle"])
    parser.add_argument("--http", required=True, metavar="HOST:PORT/PATH")
    parser.add_argument("--timeout", type=float, default=60.0, metavar="SECONDS")
    for name, default in (("count", 1000), ("batch", 1), ("size", 200), ("connections", 1)):
        parser.add_argument(f"--{name}", type=int, default=default)
    return parser.parse_args(arguments)


def say(result: Result) -> None:
    """Print a result."""
    print(json.dumps(result), flush=True)


def hold(result: Result) -> None:
    """Print a result, and wait for the end of stdin."""
    signal.setitimer(signal.ITIMER_REAL, 0)
    say(result)
    sys.stdin.read()


def _time_out(*_: object) -> NoReturn:
    raise Timeout("timeout")


def main(arguments: list[str]) -> int:
    """Run a mode, print its result, and return the exit status."""
    asked = parse(arguments)
    token = os.environ.pop("LOAD_TOKEN", None)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGALRM, _time_out)
    signal.setitimer(signal.ITIMER_REAL, asked.timeout)
    try:
        if asked.mode == "idle":
            idle(asked.http, token, asked.connections, hold)
        else:
            say({"mode": asked.mode, **MODES[asked.mode](HttpClient(asked.http, token), asked)})
    except (Failed, Timeout, OSError) as error:
        print(f"load: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
