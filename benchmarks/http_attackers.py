"""Attacks over HTTP: floods of requests with and without a token, bodies in tiny chunks, streams opened and closed."""

import re
import socket
from collections.abc import Callable
from functools import partial
from typing import NoReturn, Protocol

PIECE = 1 << 16

INITIALIZE = b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{"protocolVersion":1}}'


class Place(Protocol):
    """The gateway, as `benchmarks.attackers` knows it."""

    def token(self, name: str) -> str:
        """Return the token of a person."""

    def connect(self, scheme: str) -> socket.socket:
        """Connect to the listener of a scheme."""


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


def attacks(place: Place, ready: Callable[[], None]) -> dict[str, Attack]:
    """Return all of them, by what the table calls them."""
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
        "a flood of HTTP requests that are no message": sent(
            lambda: b"", lambda: request(place, "POST", link(), *small) + b"{}"
        ),
        "HTTP bodies in chunks of a byte": sent(
            lambda: request(place, "POST", link(), *chunked), lambda: b"1\r\n \r\n"
        ),
        "event streams that are opened and closed": open_streams(place, ready),
    }
