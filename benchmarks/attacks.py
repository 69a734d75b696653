"""What an attack costs those who work: the program itself on loopback, attacked by a process beside it.

`make bench-attacks` prints a table, and fails where a client's requests take more than twice the time in the middle.

A client that is connected over `wss` sends a request every few milliseconds, which the agent answers at once. For each
attack in each round this is measured before it, during it and after it; a ratio is that of the time during it to the
mean of the two others, and the table has the medians of the rounds. The configuration is the default one. The attacker
comes from the same address as the client does, which is the worst it can do to it, and goes on when it is thrown out.

On a machine of two processors the client, the agent, the gateway and the attacker are in each other's way, whatever the
gateway does. So attackers are light, bytes made beforehand on bare sockets, the table says how much of one processor
each took, and its first row is no attack: a loop in a process that keeps one processor busy and touches nothing.
"""

import json
import os
import re
import resource
import selectors
import signal
import socket
import ssl
import statistics
import struct
import subprocess
import sys
import tempfile
import time
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NoReturn, TextIO
from urllib.parse import urlsplit

from acp_gateway.tokens import mint
from benchmarks.resume import PROGRAM, build_agent

ROUNDS: Final = 5
"""The median is none of the one or two that something else disturbed."""

UNDISTURBED, ATTACKED = 0.8, 2.0
"""Seconds for which is measured before and after an attack, and during it."""

PAUSE: Final = 0.004
"""Seconds between two requests of the client."""

LARGEST_RATIO: Final = 2.0
"""How many times as long half of the requests may take during an attack."""

SOCKETS: Final = 1000
AT_ONCE: Final = 50
REOPENED: Final = 1000
"""Sockets a second that are opened again, at most, where those who say nothing were thrown out."""

GIGABYTE: Final = 1 << 30
PIECE: Final = 1 << 16

UPGRADE: Final = (
    "GET /acp HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {token}\r\n{more}\r\n"
)
DEFLATE: Final = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
CONTINUATION, TEXT, CLOSE, PING, PONG = 0x0, 0x1, 0x8, 0x9, 0xA
FINAL, COMPRESSED = 0x80, 0x40


# The gateway


@dataclass(frozen=True)
class Place:
    """A gateway, as the processes of this benchmark tell each other of it."""

    directory: str
    urls: dict[str, str]
    pid: int

    def token(self, name: str) -> str:
        """The token of somebody."""
        return Path(self.directory, name).read_text().strip()

    def connect(self, scheme: str) -> socket.socket:
        """A connection to the listener of a scheme, with TLS where that has it."""
        sock = socket.create_connection(self.address(scheme))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.context().wrap_socket(sock, server_hostname="127.0.0.1") if self.has_tls(scheme) else sock

    def address(self, scheme: str) -> tuple[str, int]:
        """Where it listens."""
        url = urlsplit(self.urls[scheme])
        assert url.hostname is not None
        assert url.port is not None
        return url.hostname, url.port

    def has_tls(self, scheme: str) -> bool:
        """Whether a listener has it."""
        return scheme in ("wss", "tcp+tls")

    def context(self) -> ssl.SSLContext:
        """Trust in the gateway's certificate."""
        return ssl.create_default_context(cafile=f"{self.directory}/cert.pem")

    def upgrade(self, scheme: str, token: str, more: str = "") -> bytes:
        """The request for a WebSocket."""
        return UPGRADE.format(host=urlsplit(self.urls[scheme]).netloc, token=token, more=more).encode()


@contextmanager
def running_gateway(directory: Path) -> Iterator[Place]:
    """Run a gateway with a token for each of two people, `ann` and `eve`."""
    config, log = directory / "config.toml", directory / "log"
    subprocess.run(
        [*PROGRAM, "certs", "create", "--host", "127.0.0.1", "--out", str(directory)],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    tls = f'cert = "{directory}/cert.pem"\nkey = "{directory}/key.pem"\n'
    config.write_text(
        f'[gateway]\nstate_dir = "{directory}/state"\n'
        f'[agents.writer]\ncwd = "{directory}"\ncommand = {json.dumps(build_agent(directory))}\n'
        + "".join(
            f'[[listen]]\nurl = "{scheme}://127.0.0.1:0"\n{tls if scheme in ("wss", "tcp+tls") else ""}'
            for scheme in ("wss", "ws", "tcp", "tcp+tls")
        )
    )
    for name in ("ann", "eve"):
        create = [*PROGRAM, "token", "create", "--config", str(config), "--label", name, "--identity", name]
        made = subprocess.run(create, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        (directory / name).touch(0o600)
        (directory / name).write_bytes(made.stdout)
    with log.open("wb") as stderr:
        process = subprocess.Popen([*PROGRAM, "serve", "--config", str(config)], stderr=stderr)
    try:
        while len(urls := re.findall(r"listening on (\S+)", log.read_text())) < 4:
            if process.poll() is not None:
                sys.exit(log.read_text())
            time.sleep(0.02)
        yield Place(str(directory), {url.split(":")[0]: url for url in urls}, process.pid)
        if process.poll() is not None:
            sys.exit(f"the gateway has ended with exit code {process.returncode}:\n{log.read_text()[-4000:]}")
    finally:
        process.terminate()
        process.wait()


# What WebSockets and lines are made of


def frame(opcode: int, payload: bytes, *, flags: int = FINAL) -> bytes:
    """A frame of a client, whose mask is four zeros: it changes nothing, and has to be applied as any other."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", flags | opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", flags | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", flags | opcode, 0x80 | 127, size)
    return head + bytes(4) + payload


def message(number: int | None, method: str, params: dict[str, Any]) -> bytes:
    """A request, or without a number a notification, as the writer in C can read it."""
    known = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", **known, "method": method, "params": params}, separators=(",", ":")).encode()


def hello(token: str) -> bytes:
    """The first line of a connection that is no WebSocket."""
    return message(0, "_acp-gateway/hello", {"token": token}) + b"\n"


class Closed(ConnectionError):
    """The gateway has closed a WebSocket, with this code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(f"{code} {reason}")
        self.code = code


class WebSocket:
    """As little of a client as can be, over a socket that blocks."""

    def __init__(self, sock: socket.socket, upgrade: bytes) -> None:
        self._sock = sock
        self._buffered = b""
        sock.sendall(upgrade)
        while b"\r\n\r\n" not in self._buffered:
            self._read()
        head, _, self._buffered = self._buffered.partition(b"\r\n\r\n")
        self.head = head.decode()
        if " 101 " not in self.head.splitlines()[0]:
            raise ConnectionError(self.head)

    def send(self, text: bytes) -> None:
        """Send a message."""
        self._sock.sendall(frame(TEXT, text))

    def receive(self) -> bytes:
        """The next message; pings are answered."""
        while True:
            self._need(2)
            opcode, size, start = self._buffered[0] & 0x0F, self._buffered[1], 2
            if size == 126:
                self._need(4)
                size, start = int.from_bytes(self._buffered[2:4], "big"), 4
            self._need(start + size)
            payload, self._buffered = self._buffered[start : start + size], self._buffered[start + size :]
            if opcode == TEXT:
                return payload
            if opcode == PING:
                self._sock.sendall(frame(PONG, payload))
            elif opcode == CLOSE:
                raise Closed(int.from_bytes(payload[:2], "big"), payload[2:].decode())

    def ask(self, number: int, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request."""
        self.send(message(number, method, params))
        mark = b'"id":%d,' % number
        while mark not in (answer := self.receive()):
            pass
        result: dict[str, Any] = json.loads(answer)["result"]
        return result

    def _need(self, size: int) -> None:
        while len(self._buffered) < size:
            self._read()

    def _read(self) -> None:
        data = self._sock.recv(65536)
        if not data:
            raise ConnectionError("the gateway has closed the connection")
        self._buffered += data


# The client


def work(place: Place) -> None:
    """Be the client: for each number of seconds on stdin, print the times of the requests that were answered."""
    socket = WebSocket(place.connect("wss"), place.upgrade("wss", place.token("ann")))
    socket.ask(1, "initialize", {"protocolVersion": 1})
    session = socket.ask(2, "session/new", {"cwd": place.directory, "mcpServers": []})["sessionId"]
    number = 2
    print("ready", flush=True)
    for line in sys.stdin:
        times = []
        end = time.perf_counter() + float(line)
        while (begun := time.perf_counter()) < end:
            number += 1
            socket.ask(number, "_benchmark/echo", {"sessionId": session})
            times.append(time.perf_counter() - begun)
            time.sleep(PAUSE)
        print(json.dumps(times), flush=True)


# Attackers: each goes on until it is told to stop, and counts what it does


class Told(Exception):
    """It is told to stop."""


@dataclass
class Count:
    """What an attacker has done."""

    done: int = 0


Attack = Callable[[Count], NoReturn]


def ready() -> None:
    """Say that the attack is at its height."""
    print("ready", flush=True)


def spin(count: Count) -> NoReturn:
    """Keep a processor busy."""
    ready()
    while True:
        count.done += 1


@dataclass
class Held:
    """Sockets that come and do not go."""

    place: Place
    schemes: tuple[str, ...]
    trickle: bytes = b""
    """What each says, a byte a second."""
    _sockets: dict[socket.socket, int] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __call__(self, count: Count) -> NoReturn:
        addresses = cycle(self.place.address(scheme) for scheme in self.schemes)
        for _number in range(SOCKETS):
            self._open(next(addresses), count)
        ready()
        tick, ticks = 0.01, 0
        due = time.monotonic()
        while True:
            due += tick
            ticks += 1
            for _number in range(min(int(REOPENED * tick), SOCKETS - len(self._sockets))):
                self._open(next(addresses), count)
            if self.trickle:
                self._say_a_byte(ticks, int(1 / tick))
            while (left := due - time.monotonic()) > 0:
                for key, _events in self._selector.select(left):
                    self._read(key.fileobj)  # type: ignore[arg-type] # Only sockets are registered.

    def _open(self, address: tuple[str, int], count: Count) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            sock.connect(address)
        except BlockingIOError:
            pass
        self._sockets[sock] = 0
        self._selector.register(sock, selectors.EVENT_READ)
        count.done += 1

    def _say_a_byte(self, ticks: int, ticks_in_a_second: int) -> None:
        for sock in list(self._sockets)[ticks % ticks_in_a_second :: ticks_in_a_second]:
            said = self._sockets[sock]
            try:
                sock.send(self.trickle[said % len(self.trickle) :][:1])
            except OSError:
                self._close(sock)
            else:
                self._sockets[sock] = said + 1

    def _read(self, sock: socket.socket) -> None:
        try:
            if sock.recv(4096):
                return
        except BlockingIOError:
            return
        except OSError:
            pass
        self._close(sock)

    def _close(self, sock: socket.socket) -> None:
        del self._sockets[sock]
        self._selector.unregister(sock)
        sock.close()


@dataclass
class Guesses:
    """Tokens that are none, so many at once: the next is tried as soon as one was refused."""

    place: Place
    scheme: str
    _said: dict[socket.socket, bool] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __call__(self, count: Count) -> NoReturn:
        tokens = [mint() for _ in range(1000)]
        if self.scheme in ("ws", "wss"):
            words = cycle([self.place.upgrade(self.scheme, token) for token in tokens])
        else:
            words = cycle([hello(token) for token in tokens])
        context = self.place.context() if self.place.has_tls(self.scheme) else None
        for _number in range(AT_ONCE):
            self._open(context)
        ready()
        while True:
            for key, _events in self._selector.select():
                if not self._go_on(key.fileobj, words):  # type: ignore[arg-type] # Only sockets are registered.
                    count.done += 1
                    self._open(context)

    def _open(self, context: ssl.SSLContext | None) -> None:
        sock = socket.socket()
        sock.setblocking(False)
        try:
            sock.connect(self.place.address(self.scheme))
        except BlockingIOError:
            pass
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname="127.0.0.1", do_handshake_on_connect=False)
        self._said[sock] = False
        self._selector.register(sock, selectors.EVENT_WRITE)

    def _go_on(self, sock: socket.socket, words: Iterator[bytes]) -> bool:
        """Whether there is still something to come of it."""
        try:
            if not self._said[sock]:
                if isinstance(sock, ssl.SSLSocket):
                    sock.do_handshake()
                sock.send(next(words))
                self._said[sock] = True
                self._selector.modify(sock, selectors.EVENT_READ)
            elif not sock.recv(65536):
                raise ConnectionError
        except ssl.SSLWantReadError:
            self._selector.modify(sock, selectors.EVENT_READ)
        except ssl.SSLWantWriteError:
            self._selector.modify(sock, selectors.EVENT_WRITE)
        except BlockingIOError:
            pass
        except OSError:
            del self._said[sock]
            self._selector.unregister(sock)
            sock.close()
            return False
        return True


def pour(begin: Callable[[], socket.socket], head: bytes, piece: bytes) -> Attack:
    """Send a gigabyte of pieces behind a head over a connection, and again over the next one."""

    def attack(count: Count) -> NoReturn:
        ready()
        while True:
            with begin() as sock:
                try:
                    sock.sendall(head)
                    for _ in range(GIGABYTE // len(piece)):
                        sock.sendall(piece)
                except OSError:
                    pass
            count.done += 1

    return attack


def say_hello(place: Place, name: str) -> socket.socket:
    """A connection of somebody who has come in, over lines."""
    sock = place.connect("tcp")
    sock.sendall(hello(place.token(name)))
    assert b"connectionId" in sock.recv(4096)
    return sock


def open_websocket(place: Place, name: str, more: str = "") -> socket.socket:
    """The same over a WebSocket."""
    sock = place.connect("ws")
    WebSocket(sock, place.upgrade("ws", place.token(name), more))
    return sock


def bomb(place: Place) -> Attack:
    """Offer compression, which the gateway must not take, and send 1 GB of zeros in compressed frames nevertheless."""
    squeezed = zlib.compressobj(9, zlib.DEFLATED, -15)
    zeros = bytes(1 << 20)
    payload = b"".join(squeezed.compress(zeros) for _ in range(1024)) + squeezed.flush(zlib.Z_SYNC_FLUSH)
    bytes_of_it = frame(TEXT, payload[:-4], flags=FINAL | COMPRESSED)

    def attack(count: Count) -> NoReturn:
        ready()
        while True:
            with open_websocket(place, "eve", DEFLATE) as sock:
                try:
                    sock.sendall(bytes_of_it)
                    while sock.recv(65536):
                        pass
                except OSError:
                    pass
            count.done += 1

    return attack


def flood(place: Place, name: str) -> Attack:
    """Send small messages without a pause."""

    def attack(count: Count) -> NoReturn:
        sock = say_hello(place, name)
        answers = sock.makefile("rb")
        sock.sendall(message(1, "initialize", {"protocolVersion": 1}) + b"\n")
        answers.readline()
        sock.sendall(message(2, "session/new", {"cwd": place.directory, "mcpServers": []}) + b"\n")
        answer = answers.readline()
        while b'"id":2,' not in answer:
            answer = answers.readline()
        session = json.loads(answer)["result"]["sessionId"]
        lines = (message(None, "_benchmark/noise", {"sessionId": session, "text": "x" * 50}) + b"\n") * 100
        ready()
        while True:
            sock.sendall(lines)
            count.done += 100

    return attack


def attacks(place: Place) -> dict[str, Attack]:
    """All of them, by what the table calls them."""
    many, guesses = f"{SOCKETS:,}", f"wrong tokens, {AT_ONCE} at a time"
    fragment = frame(CONTINUATION, b"x" * PIECE, flags=0)
    return {
        CONTROL: spin,
        f"{many} sockets that say nothing, tcp and wss": Held(place, ("tcp", "wss")),
        f"{many} sockets, a byte of a head each second, ws": Held(place, ("ws",), place.upgrade("ws", mint())),
        f"{guesses}, ws": Guesses(place, "ws"),
        f"{guesses}, wss": Guesses(place, "wss"),
        f"{guesses}, lines": Guesses(place, "tcp"),
        f"{guesses}, lines over TLS": Guesses(place, "tcp+tls"),
        "a line of 1 GB before the token": pour(lambda: place.connect("tcp"), b"", b"x" * PIECE),
        "a line of 1 GB behind it": pour(lambda: say_hello(place, "eve"), b"", b"x" * PIECE),
        "a WebSocket message of 1 GB": pour(lambda: open_websocket(place, "eve"), frame(TEXT, b"x", flags=0), fragment),
        "compressed frames, 1 GB of zeros": bomb(place),
        "a flood of messages of somebody else": flood(place, "eve"),
        "a flood of messages of the same person": flood(place, "ann"),
    }


CONTROL: Final = "(a busy processor, no attack)"


def attack(place: Place, name: str) -> None:
    """Be the attacker until SIGTERM."""

    def stop(*_: object) -> None:
        raise Told

    count = Count()
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    signal.signal(signal.SIGTERM, stop)
    try:
        attacks(place)[name](count)
    except Told:
        print(count.done, flush=True)
        # What is open may wait for the gateway; this must not.
        os._exit(0)


# What is measured


@dataclass(frozen=True)
class Times:
    """Of the requests in one stretch of time, in seconds."""

    p50: float
    p99: float


@dataclass(frozen=True)
class Observed:
    """One attack in one round."""

    before: Times
    during: Times
    after: Times
    rate: float
    """What the attacker did in a second."""
    gateway: float
    attacker: float
    """Of one processor."""

    def ratio(self, which: Callable[[Times], float]) -> float:
        """How many times as long it took."""
        return which(self.during) / ((which(self.before) + which(self.after)) / 2)


def p50(times: Times) -> float:
    """Half of the requests took no longer."""
    return times.p50


def p99(times: Times) -> float:
    """One of a hundred took longer."""
    return times.p99


@contextmanager
def process(place: Place, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Another process of this benchmark, once it is ready."""
    told = json.dumps([place.directory, place.urls, place.pid])
    with subprocess.Popen(
        [sys.executable, "-m", "benchmarks.attacks", told, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        try:
            if answer(started) != "ready":
                sys.exit(f"{arguments}: it has ended")
            yield started
        finally:
            started.kill()


def answer(started: subprocess.Popen[str]) -> str:
    """The next line of a process."""
    assert started.stdout is not None
    return started.stdout.readline().strip()


def processor_time(pid: int) -> float:
    """Seconds that a process has had."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def forget_peak(pid: int) -> None:
    """Begin anew with the most memory that a process has had, where the system lets this user do so; else it is that
    since the gateway's start."""
    try:
        Path(f"/proc/{pid}/clear_refs").write_text("5")
    except PermissionError:
        pass


def memory(pid: int, kind: str) -> int:
    """The memory that a process has, `VmRSS`, or has had at most, `VmHWM`, in MB."""
    (kilobytes,) = re.findall(rf"{kind}:\s*(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    return int(kilobytes) // 1024


def times_of(client: subprocess.Popen[str], seconds: float) -> Times:
    """Let the client work."""
    assert client.stdin is not None
    client.stdin.write(f"{seconds}\n")
    client.stdin.flush()
    times = sorted(json.loads(answer(client) or sys.exit("the client was thrown out")))
    return Times(statistics.median(times), times[len(times) * 99 // 100])


def observe(place: Place, client: subprocess.Popen[str], name: str) -> Observed:
    """One attack, and what was before and after it."""
    before = times_of(client, UNDISTURBED)
    with process(place, name) as attacker:
        pids = place.pid, attacker.pid
        begun, had = time.perf_counter(), [processor_time(pid) for pid in pids]
        during = times_of(client, ATTACKED)
        took = time.perf_counter() - begun
        gateway, attacking = ((processor_time(pid) - start) / took for pid, start in zip(pids, had, strict=True))
        attacker.terminate()
        count = int(answer(attacker))
    # What the gateway has to do about its end is part of the attack no more.
    time.sleep(0.3)
    return Observed(before, during, times_of(client, UNDISTURBED), count / took, gateway, attacking)


def measure(only: str, out: TextIO) -> bool:
    """Print the table; whether all was well."""
    with tempfile.TemporaryDirectory() as directory, running_gateway(Path(directory)) as place:
        seen: dict[str, list[Observed]] = {name: [] for name in attacks(place) if only in name}
        grown = dict.fromkeys(seen, 0)
        with process(place, "work") as client:
            times_of(client, UNDISTURBED)
            at_first = memory(place.pid, "VmRSS")
            for _ in range(ROUNDS):
                for name, observed in seen.items():
                    forget_peak(place.pid)
                    had = memory(place.pid, "VmRSS")
                    observed.append(observe(place, client, name))
                    grown[name] = max(grown[name], memory(place.pid, "VmHWM") - had)
            at_last = memory(place.pid, "VmRSS")
        heads = ("attack", "p50 else", "p50", "ratio", "p99 ratio", "each second", "gateway", "attacker", "memory")
        print("| " + " | ".join(heads) + " |\n" + "|---" * len(heads) + "|", file=out)
        fine = True
        for name, observed in seen.items():

            def median(value: Callable[[Observed], float], among: list[Observed] = observed) -> float:
                return statistics.median(map(value, among))

            ratio = median(lambda each: each.ratio(p50))
            fine = fine and (name == CONTROL or ratio <= LARGEST_RATIO)
            cells = (
                name,
                f"{1000 * median(lambda each: (each.before.p50 + each.after.p50) / 2):.2f} ms",
                f"{1000 * median(lambda each: each.during.p50):.2f} ms",
                f"{ratio:.2f}",
                f"{median(lambda each: each.ratio(p99)):.2f}",
                "" if name == CONTROL else f"{median(lambda each: each.rate):,.0f}",
                f"{100 * median(lambda each: each.gateway):.0f} %",
                f"{100 * median(lambda each: each.attacker):.0f} %",
                f"+{grown[name]} MB",
            )
            print("| " + " | ".join(cells) + " |", file=out, flush=True)
        print(
            f"\nThe gateway's memory: {at_first} MB at first, {at_last} MB at last. Processors: {os.cpu_count()}",
            file=out,
        )
    return fine


if __name__ == "__main__":
    match sys.argv[1:]:
        case [told, "work"]:
            work(Place(*json.loads(told)))
        case [told, name]:
            attack(Place(*json.loads(told)), name)
        case [*only]:
            sys.exit(0 if measure(" ".join(only), sys.stdout) else 1)
