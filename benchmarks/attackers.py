"""Attackers of a gateway, and a client that works beside them: each a separate process, as light as possible.

`python -m benchmarks.attackers GATEWAY work` and `python -m benchmarks.attackers GATEWAY ATTACK` are started by
`benchmarks.attacks`. Attackers say bytes that were made beforehand on bare sockets, and go on when they are thrown out.
"""

import json
import os
import resource
import select
import selectors
import signal
import socket
import ssl
import sys
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import cycle
from pathlib import Path
from typing import Any, Final, NoReturn
from urllib.parse import urlsplit

from acp_gateway.security.token_format import mint
from benchmarks import http2_attackers, http_attackers
from benchmarks.bare import BINARY, CLOSE, COMPRESSED, CONTINUATION, FINAL, PING, PONG, TEXT, frame, message

PAUSE: Final = 0.004
"""Seconds between two requests of the client."""

NEWCOMER_PAUSE: Final = 0.1
"""Seconds between two connections of the newcomer."""

ELSEWHERE: Final = "127.0.0.66"
"""The address of an attacker that does not share the client's."""

SOCKETS: Final = 1000
AT_ONCE: Final = 50
REOPENED: Final = 1000
"""Sockets a second that are opened again, at most, where those who say nothing were thrown out."""

MEGABYTE: Final = 1 << 20
GIGABYTE: Final = 1 << 30
PIECE: Final = 1 << 16

UPGRADE: Final = (
    "GET /acp HTTP/1.1\r\nHost: {host}\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nAuthorization: Bearer {token}\r\n{more}\r\n"
)
RECORDED: Final = ", while recording is on"
"""End of the names of attacks on a gateway with a `record_dir`."""
STORED: Final = ", with a history_limit"
"""End of the names of attacks on a gateway with a `history_limit` of `HISTORY_LIMIT` bytes."""
HISTORY_LIMIT: Final = 64 << 20
UPDATE: Final = 60_000
"""Bytes of an update; `WebSocket` reads no larger frames than 64 KiB."""
UNFINISHED: Final = 15 << 20
PARKED: Final = 100
"""More than `memory_limit`, together."""

LISTED: Final = 500

NO_MESSAGES: Final = {
    "pings": (b"", frame(PING, b"")),
    "binary frames": (b"", frame(BINARY, b"x")),
    "fragments of a byte": (frame(TEXT, b"x", flags=0), frame(CONTINUATION, b"x", flags=0)),
    "empty fragments": (frame(TEXT, b"x", flags=0), frame(CONTINUATION, b"", flags=0)),
    "empty messages": (b"", frame(TEXT, b"")),
}
"""The first bytes of an attack, and the bytes that are then repeated."""

CONFIRMATION: Final = message(None, "_acp-gateway/ack", {"received": 0}) + b"\n"


SLOW = b'{"method":"_x/y", "params":{"x":["\\ud83d",%b[]]}}\n' % (b"[]," * (MEGABYTE // 3))
"""A message that used to send its reader through all of its brackets, nine times."""


def many_of(unit: bytes) -> bytes:
    """As often as it fits into a piece."""
    return unit * (PIECE // len(unit))


CONTROL: Final = "(a busy processor, no attack)"
DEFLATE: Final = "Sec-WebSocket-Extensions: permessage-deflate\r\n"


@dataclass(frozen=True)
class Place:
    """A gateway, as the processes of this benchmark tell each other of it."""

    directory: str
    urls: dict[str, str]
    pid: int

    def token(self, name: str) -> str:
        """Return the token in the file of this name."""
        return Path(self.directory, name).read_text().strip()

    def connect(self, scheme: str) -> socket.socket:
        """A connection to the listener of a scheme, with TLS where that has it."""
        sock = socket.create_connection(self.address(scheme))
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return self.context().wrap_socket(sock, server_hostname="127.0.0.1") if self.has_tls(scheme) else sock

    def address(self, scheme: str) -> tuple[str, int]:
        """Return the address at which the gateway listens."""
        url = urlsplit(self.urls[scheme])
        assert url.hostname is not None
        assert url.port is not None
        return url.hostname, url.port

    def has_tls(self, scheme: str) -> bool:
        """Return True if this scheme uses TLS."""
        return scheme in ("wss", "tcp+tls")

    def context(self) -> ssl.SSLContext:
        """Trust in the gateway's certificate."""
        return ssl.create_default_context(cafile=f"{self.directory}/cert.pem")

    def upgrade(self, scheme: str, token: str, more: str = "") -> bytes:
        """The request for a WebSocket."""
        return UPGRADE.format(host=urlsplit(self.urls[scheme]).netloc, token=token, more=more).encode()


def hello(token: str) -> bytes:
    """The first line of a connection that is not a WebSocket."""
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
        said: dict[str, Any] = json.loads(answer)
        if "result" not in said:
            raise RuntimeError(f"{method} was refused: {answer.decode(errors='replace')}")
        result: dict[str, Any] = said["result"]
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


def come(place: Place) -> None:
    """Be the newcomer: for each number of seconds on stdin, print how long it took each time to be let in."""
    line, address = hello(place.token("ann")), place.address("tcp")

    def enter() -> socket.socket:
        while True:
            sock = socket.create_connection(address)
            try:
                sock.sendall(line)
                if b"connectionId" in sock.recv(4096):
                    return sock
            except ConnectionError:
                pass
            # Others needed the room.
            sock.close()

    inside: list[socket.socket] = []
    print("ready", flush=True)
    for stretch in sys.stdin:
        times = []
        # Those who leave at once come for nothing, so they leave a stretch later.
        before, inside = inside, []
        end = time.perf_counter() + float(stretch)
        while (begun := time.perf_counter()) < end:
            inside.append(enter())
            times.append(time.perf_counter() - begun)
            time.sleep(NEWCOMER_PAUSE)
        for sock in before:
            sock.close()
        print(json.dumps(times), flush=True)


# Attackers: each goes on until it is told to stop, and counts what it does


class Told(Exception):
    """It is told to stop."""


@dataclass
class Count:
    """Count of what an attacker has done."""

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
    """Bytes that each connection sends, one a second."""
    heads: Callable[[], Sequence[bytes]] = tuple
    """Returns what connections say at once, before the first of these bytes."""
    _heads: Iterator[bytes] = field(default_factory=lambda: iter(()))
    _sockets: dict[socket.socket, int] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __call__(self, count: Count) -> NoReturn:
        addresses = cycle(self.place.address(scheme) for scheme in self.schemes)
        self._heads = cycle(self.heads() or [b""])
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
                sock.send((b"" if said else next(self._heads)) + self.trickle[said % len(self.trickle) :][:1])
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
    """Invalid tokens, so many at once: the next is tried as soon as one was refused."""

    place: Place
    scheme: str
    lines: tuple[bytes, ...] = ()
    """Said instead of hellos with tokens, where there are any."""
    source: str = ""
    """The address that it comes from; the client's where it is empty."""
    _said: dict[socket.socket, bool] = field(default_factory=dict)
    _selector: selectors.BaseSelector = field(default_factory=selectors.DefaultSelector)

    def __call__(self, count: Count) -> NoReturn:
        tokens = [mint() for _ in range(1000)]
        if self.lines:
            words = cycle(self.lines)
        elif self.scheme in ("ws", "wss"):
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
        if self.source:
            sock.bind((self.source, 0))
        try:
            sock.connect(self.place.address(self.scheme))
        except BlockingIOError:
            pass
        if context is not None:
            sock = context.wrap_socket(sock, server_hostname="127.0.0.1", do_handshake_on_connect=False)
        self._said[sock] = False
        self._selector.register(sock, selectors.EVENT_WRITE)

    def _go_on(self, sock: socket.socket, words: Iterator[bytes]) -> bool:
        """Return True while the connection has more to send."""
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
    """Open an authenticated connection over lines."""
    sock = place.connect("tcp")
    sock.sendall(hello(place.token(name)))
    assert b"connectionId" in sock.recv(4096)
    return sock


def open_websocket(place: Place, name: str, more: str = "") -> socket.socket:
    """The same over a WebSocket."""
    sock = place.connect("ws")
    WebSocket(sock, place.upgrade("ws", place.token(name), more))
    return sock


def open_observer(place: Place, name: str) -> socket.socket:
    """Open the WebSocket of an observer."""
    sock = place.connect("ws")
    WebSocket(sock, place.upgrade("ws", place.token(name)).replace(b"GET /acp ", b"GET /acp?observe=1 "))
    return sock


def open_page(place: Place, name: str) -> socket.socket:
    """Open the WebSocket of a page."""
    sock = place.connect("ws")
    WebSocket(sock, place.upgrade("ws", place.token(name)).replace(b"GET /acp ", b"GET /ws "))
    return sock


def open_link(place: Place, name: str) -> socket.socket:
    """A connection over lines whose link can be resumed."""
    sock = place.connect("tcp")
    sock.sendall(message(0, "_acp-gateway/hello", {"token": place.token(name), "resume": {}}) + b"\n")
    assert b"connectionId" in sock.recv(4096)
    return sock


def call(place: Place, name: str, calls: bytes) -> Attack:
    """Send calls of a page without a pause, and read the answers."""

    def attack(count: Count) -> NoReturn:
        sock = open_page(place, name)
        sock.setblocking(False)
        ready()
        rest = calls
        while True:
            select.select([sock], [sock], [])
            try:
                http_attackers.discard(sock)
                rest = rest[sock.send(rest) :] or calls
                count.done += rest is calls
            except BlockingIOError:
                pass
            except OSError:
                sock.close()
                sock = open_page(place, name)
                sock.setblocking(False)
                rest = calls

    return attack


def tear(place: Place, name: str, line: bytes) -> Attack:
    """Send the beginning of a line and leave, again and again."""

    def attack(count: Count) -> NoReturn:
        ready()
        while True:
            with say_hello(place, name) as sock:
                try:
                    sock.sendall(line)
                except OSError:
                    pass
            count.done += 1

    return attack


def park(place: Place, name: str) -> Attack:
    """Have unfinished messages on many connections, and replace those that were thrown out."""
    beginning = frame(TEXT, b"x" * (UNFINISHED + 1))[:-1]

    def attack(count: Count) -> NoReturn:
        socks: list[socket.socket] = []
        ready()
        while True:
            while len(socks) < PARKED:
                socks.append(open_websocket(place, name))
                try:
                    socks[-1].sendall(beginning)
                except OSError:
                    pass
                count.done += 1
            time.sleep(0.05)
            readable, _, _ = select.select(socks, [], [], 0)
            for sock in readable:
                try:
                    alive = bool(sock.recv(65536))
                except OSError:
                    alive = False
                if not alive:
                    socks.remove(sock)
                    sock.close()

    return attack


def ask_for_lists(place: Place, name: str) -> Attack:
    """Open many sessions, and ask for the list of them without a pause."""

    def attack(count: Count) -> NoReturn:
        client = WebSocket(place.connect("ws"), place.upgrade("ws", place.token(name)))
        client.ask(1, "initialize", {"protocolVersion": 1})
        # Those of earlier rounds are still there, and an identity may have a limited number.
        there = len(client.ask(2, "session/list", {})["sessions"])
        for number in range(there, LISTED):
            client.ask(number + 3, "session/new", {"cwd": place.directory, "mcpServers": []})
        ready()
        number = LISTED + 3
        while True:
            client.ask(number, "session/list", {})
            number += 1
            count.done += 1

    return attack


def fill_disk(place: Place, name: str) -> Attack:
    """Open sessions, and have the agent write 16 MiB of history in each."""

    def attack(count: Count) -> NoReturn:
        client = WebSocket(place.connect("ws"), place.upgrade("ws", place.token(name)))
        client.ask(1, "initialize", {"protocolVersion": 1})
        prompt = [{"type": "text", "text": f"{16 * MEGABYTE // UPDATE} 16 {UPDATE}"}]
        ready()
        number = 2
        while True:
            session = client.ask(number, "session/new", {"cwd": place.directory, "mcpServers": []})["sessionId"]
            client.ask(number + 1, "session/prompt", {"sessionId": session, "prompt": prompt})
            number += 2
            count.done += 1

    return attack


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


def costly_answers(place: Place, name: str, size: int) -> Attack:
    """Send answers to no request, in the most parts that JSON can have, without a pause."""

    def attack(count: Count) -> NoReturn:
        parts = b"[]," * (size // 3)
        line = b'{"jsonrpc":"2.0","id":4711,"result":{"token":"x","a":[%b0]}}\n' % parts
        while True:
            with say_hello(place, name) as sock:
                sock.sendall(message(1, "initialize", {"protocolVersion": 1}) + b"\n")
                if not count.done:
                    ready()
                try:
                    while True:
                        sock.sendall(line)
                        count.done += 1
                except OSError:
                    count.done += 1

    return attack


def first_lines(size: int) -> tuple[bytes, ...]:
    """First lines of about so many bytes that have taken longest to refuse, each for another way to read them."""
    start = b'{"id":1,"method":"_acp-gateway/hello","params":{'
    brackets, repeats = size // len(b"[],") - 30, size // len(b'"observe":true,') - 10
    return (
        b'%b"token":[%b"\\ud800"]}}\n' % (start, b"[]," * brackets),
        b'%b "token":[%b1]}}\n' % (start, b"[]," * brackets),
        b'%b%b"token":"x"}}\n' % (start, b'"observe":true,' * repeats),
    )


def attacks(place: Place) -> dict[str, Attack]:
    """All of them, by what the table calls them."""
    many, guesses = f"{SOCKETS:,}", f"wrong tokens, {AT_ONCE} at a time"
    fragment = frame(CONTINUATION, b"x" * PIECE, flags=0)
    return {
        CONTROL: spin,
        f"{many} sockets that say nothing, tcp and wss": Held(place, ("tcp", "wss")),
        f"{many} sockets, a byte of a head each second, ws": Held(place, ("ws",), place.upgrade("ws", mint())),
        f"{many} HTTP bodies, a byte each second": Held(
            place, ("ws",), b"x", partial(http_attackers.begun_posts, place, SOCKETS)
        ),
        f"{many} HTTP bodies, a byte each second, without a token": Held(
            place, ("ws",), b"x", lambda: [http_attackers.begun_sign_in(place)]
        ),
        f"{guesses}, ws": Guesses(place, "ws"),
        f"{guesses}, wss": Guesses(place, "wss"),
        f"{guesses}, lines": Guesses(place, "tcp"),
        f"{guesses}, lines over TLS": Guesses(place, "tcp+tls"),
        f"first lines of 64 KiB, {AT_ONCE} at a time, from another address": Guesses(
            place, "tcp", first_lines(65536), ELSEWHERE
        ),
        f"first lines of 4 KiB, {AT_ONCE} at a time, from another address": Guesses(
            place, "tcp", first_lines(4096), ELSEWHERE
        ),
        f"first lines of 4 KiB, {AT_ONCE} at a time, from the same address": Guesses(place, "tcp", first_lines(4096)),
        "a line of 1 GB before the token": pour(lambda: place.connect("tcp"), b"", b"x" * PIECE),
        "a line of 1 GB behind it": pour(lambda: say_hello(place, "eve"), b"", b"x" * PIECE),
        "a WebSocket message of 1 GB": pour(lambda: open_websocket(place, "eve"), frame(TEXT, b"x", flags=0), fragment),
        "compressed frames, 1 GB of zeros": bomb(place),
        **{
            f"a flood of {kind}, of an observer": pour(lambda: open_observer(place, "eve"), head, many_of(unit))
            for kind, (head, unit) in NO_MESSAGES.items()
        },
        "a flood of calls of a page": call(place, "eve", many_of(frame(TEXT, message(1, "session/list", {})))),
        "a flood of blank lines": pour(lambda: say_hello(place, "eve"), b"", many_of(b"\n")),
        "a flood of confirmations": pour(lambda: open_link(place, "eve"), b"", many_of(CONFIRMATION)),
        f"{PARKED} unfinished messages of {UNFINISHED >> 20} MiB": park(place, "eve"),
        f"{PARKED} unfinished HTTP bodies of {UNFINISHED >> 20} MiB": http_attackers.park(
            place, PARKED, UNFINISHED, ready
        ),
        f"torn lines of {UNFINISHED >> 20} MiB, each of a client that leaves": tear(place, "eve", b"[" * UNFINISHED),
        f"session/list with {LISTED} sessions": ask_for_lists(place, "eve"),
        "a flood of messages of another identity": flood(place, "eve"),
        "a flood of messages of the same identity": flood(place, "ann"),
        "messages of 1 MiB with many brackets and a surrogate": pour(lambda: say_hello(place, "eve"), b"", SLOW),
        "answers of 1 MiB in very many parts": costly_answers(place, "eve", MEGABYTE),
        "answers of 250 KiB in very many parts": costly_answers(place, "eve", MEGABYTE * 250 // 1024),
        "answers of 1 MiB in very many parts" + RECORDED: costly_answers(place, "eve", MEGABYTE),
        "answers of 250 KiB in very many parts" + RECORDED: costly_answers(place, "eve", MEGABYTE * 250 // 1024),
        "a flood of messages of another identity" + RECORDED: flood(place, "eve"),
        "16 MiB of history in each of many sessions" + STORED: fill_disk(place, "eve"),
        **http_attackers.attacks(place, ready),
        **http2_attackers.attacks(place, ready),
    }


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


if __name__ == "__main__":
    match sys.argv[1:]:
        case [told, "work"]:
            work(Place(*json.loads(told)))
        case [told, "come"]:
            come(Place(*json.loads(told)))
        case [told, name]:
            attack(Place(*json.loads(told)), name)
