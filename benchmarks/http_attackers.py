"""Attacks over HTTP: floods of requests with and without a token, bodies in tiny chunks, large bodies and bodies that
take long to read, streams opened and closed; and the beginnings of bodies that come slowly."""

import re
import socket
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import Final, NoReturn, Protocol

from acp_gateway.security.token_format import mint

PIECE = 1 << 16
MEGABYTE = 1 << 20

POSTS = 16
"""POST requests that a connection may have at once."""

INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'


class Place(Protocol):
    """The gateway, as `benchmarks.attackers` knows it."""

    def token(self, name: str) -> str:
        """Return the token of a person."""

    def connect(self, scheme: str) -> socket.socket:
        """Connect to the listener of a scheme."""

    def address(self, scheme: str) -> tuple[str, int]:
        """Return the address of the listener of a scheme."""


class Count(Protocol):
    """Count of what an attacker has done."""

    done: int


Attack = Callable[[Count], NoReturn]


def request(place: Place, method: str, link: str = "", *fields: str) -> bytes:
    """Return the head of a request with a token."""
    known = [f"{method} /acp HTTP/1.1", "Host: 127.0.0.1", f"Authorization: Bearer {place.token('eve')}"]
    if link:
        known.append(f"Acp-Connection-Id: {link}")
    return "\r\n".join([*known, *fields, "", ""]).encode()


def begin(place: Place) -> str:
    """Begin a connection of Streamable HTTP, and return its id."""
    fields = "Content-Type: application/json", f"Content-Length: {len(INITIALIZE)}"
    with place.connect("ws") as sock:
        sock.sendall(request(place, "POST", "", *fields) + INITIALIZE)
        found = re.search(rb"(?i)\r\nacp-connection-id: *(\S+)", sock.recv(65536))
    assert found is not None
    return found[1].decode()


def discard(sock: socket.socket) -> None:
    """Read what is there, and forget it."""
    try:
        while sock.recv(1 << 20, socket.MSG_DONTWAIT):
            pass
    except BlockingIOError:
        pass


def flood(place: Place, head: Callable[[], bytes], unit: Callable[[], bytes], ready: Callable[[], None]) -> Attack:
    """Send a unit again and again behind a head, and go on over another connection when this one is closed."""

    def attack(count: Count) -> NoReturn:
        first, piece = head(), unit() * (PIECE // len(unit()))
        ready()
        while True:
            with place.connect("ws") as sock:
                try:
                    sock.sendall(first)
                    while True:
                        sock.sendall(piece)
                        discard(sock)
                        count.done += 1
                except OSError:
                    pass

    return attack


def open_streams(place: Place, ready: Callable[[], None]) -> Attack:
    """Open event streams of ever other names, and close them."""

    def attack(count: Count) -> NoReturn:
        link = begin(place)
        ready()
        while True:
            with place.connect("ws") as sock:
                name = f"Acp-Session-Id: random-{count.done}"
                sock.sendall(request(place, "GET", link, "Accept: text/event-stream", name))
                sock.recv(65536)
            count.done += 1

    return attack


def repeat(place: Place, body: bytes, ready: Callable[[], None]) -> Attack:
    """Post a body again and again, each time after the response to the one before."""

    def attack(count: Count) -> NoReturn:
        fields = "Content-Type: application/json", f"Content-Length: {len(body)}"
        head = request(place, "POST", begin(place), *fields)
        ready()
        while True:
            with place.connect("ws") as sock:
                try:
                    while True:
                        sock.sendall(head)
                        sock.sendall(body)
                        if not sock.recv(65536):
                            break
                        count.done += 1
                except OSError:
                    pass

    return attack


def park(place: Place, number: int, size: int, ready: Callable[[], None]) -> Attack:
    """Have so many requests whose bodies lack their last byte, and begin those again that were refused."""

    def attack(count: Count) -> NoReturn:
        body = b"x" * size
        ready()
        while True:
            with ExitStack() as stack:
                for head in begun_posts(place, number, size + 1):
                    sock = stack.enter_context(place.connect("ws"))
                    try:
                        sock.sendall(head)
                        sock.sendall(body)
                    except OSError:
                        pass
                    count.done += 1

    return attack


def begun_posts(place: Place, number: int, size: int = 60000) -> list[bytes]:
    """Return the heads of so many requests with a token, of as many connections of Streamable HTTP as they need.

    Their bodies have `size` bytes.
    """
    fields = "Content-Type: application/json", f"Content-Length: {size}"
    links = [begin(place) for _ in range(-(-number // POSTS))]
    return [request(place, "POST", links[index // POSTS], *fields) for index in range(number)]


def begun_sign_in(place: Place) -> bytes:
    """Return the head of a request that signs a browser in, whose body is read without a token."""
    host, port = place.address("ws")
    fields = f"Host: {host}:{port}", f"Origin: http://{host}:{port}", "Content-Type: application/json"
    return "\r\n".join(["POST /login HTTP/1.1", *fields, "Content-Length: 1000", "", ""]).encode()


def guess(place: Place, path: str, code: str, ready: Callable[[], None], *fields: str) -> Attack:
    """Post a wrong one-use code again and again, each time over a connection of its own."""
    body = b'{"code":"%b"}' % code.encode()
    host, port = place.address("ws")
    known = f"POST {path} HTTP/1.1", f"Host: {host}:{port}", "Content-Type: application/json", *fields
    whole = "\r\n".join([*known, f"Content-Length: {len(body)}", "", ""]).encode() + body

    def attack(count: Count) -> NoReturn:
        ready()
        while True:
            try:
                with place.connect("ws") as sock:
                    sock.sendall(whole)
                    sock.recv(65536)
            except OSError:
                pass
            count.done += 1

    return attack


def attacks(place: Place, ready: Callable[[], None]) -> dict[str, Attack]:
    """Return all of them, by what the table calls them."""
    host, port = place.address("ws")
    origin = f"Origin: http://{host}:{port}"
    health = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    chunked = "Content-Type: application/json", "Transfer-Encoding: chunked"
    small = "Content-Type: application/json", "Content-Length: 2"
    known: list[str] = []

    def link() -> str:
        known[:] = known or [begin(place)]
        return known[0]

    sent = partial(flood, place, ready=ready)
    return {
        "a flood of HTTP requests without a token": sent(lambda: b"", lambda: health),
        "a flood of HTTP requests that are not messages": sent(
            lambda: b"", lambda: request(place, "POST", link(), *small) + b"{}"
        ),
        "HTTP bodies in chunks of a byte": sent(
            lambda: request(place, "POST", link(), *chunked), lambda: b"1\r\n \r\n"
        ),
        "HTTP bodies in chunks with long extensions": sent(
            lambda: request(place, "POST", link(), *chunked), lambda: b"1;%b\r\n \r\n" % (b"x" * 4000)
        ),
        **{
            f"HTTP bodies of 15 MiB, {what}": repeat(place, _filled(b"_x/y", unit, 15 * MEGABYTE), ready)
            for what, unit in LARGE_PARTS.items()
        },
        "HTTP bodies of 1 MiB in very many parts, refused": repeat(
            place, _filled(b"_acp-gateway/x", b"[],", MEGABYTE), ready
        ),
        "event streams that are opened and closed": open_streams(place, ready),
        "wrong codes of invitations": guess(place, "/join", mint("invitation"), ready),
        "wrong codes of browsers that sign in": guess(place, "/login", mint("code"), ready, origin),
    }


LARGE_PARTS: Final = {
    "long strings": b'"%b",' % (b"x" * PIECE),
    "very many parts": b"[],",
    "many members": b'{"a":1},',
    "escapes": b'"%b",' % (rb"\u0041\"" * (PIECE // 8)),
    "rare characters": b'"%b",' % ("\u20ac".encode() * (PIECE // 3)),
    "deep nesting": b"[" * 90 + b"]" * 90 + b",",
}
"""Parts of large bodies, by what the table calls them."""


def _filled(method: bytes, unit: bytes, size: int) -> bytes:
    """Return a notification of at most so many bytes, filled with a unit beside half an emoji."""
    head = b'{"jsonrpc":"2.0","method":"%b","params":{"x":["\\ud83d",' % method
    tail = b"[]]}}"
    return head + unit * ((size - len(head) - len(tail)) // len(unit)) + tail
