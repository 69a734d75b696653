"""A client over a bare socket that blocks, and what WebSockets and lines are made of."""

import base64
import json
import os
import re
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, Self

from benchmarks.load import SIZE, Where

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
"""Opcodes of WebSockets."""
FINAL, COMPRESSED = 0x80, 0x40
"""Bits beside them."""

OWED: Final = 0.3
"""Seconds after which a gateway owes nothing more for connections that came and went at once: the next ones are
accepted without a pause."""

PATIENCE: Final = 30.0
"""Seconds for which a client waits for the next bytes."""

TOLD_EVERY: Final = 1 << 20
"""Bytes after which a client confirms what it has."""

_numbers = count(1)

_UPDATE: Final = b'"session/update"'
_EDGE: Final = len(_UPDATE) - 1
_RESULT: Final = re.compile(rb'"result"\s*:')
_SESSION: Final = re.compile(rb'"result"\s*:\s*\{[^{]*"sessionId"\s*:\s*"([^"]+)"')
_EPOCH: Final = re.compile(rb'"epoch"\s*:\s*"([^"]+)"')
_WHOLE: Final = re.compile(rb"\}\s*$")
_CONNECTION: Final = re.compile(rb'(?i)(?:acp-)?connection-?id"?:\s*"?([\w-]+)')


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
    """A request, or without a number a notification, as short as can be."""
    known = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", **known, "method": method, "params": params}, separators=(",", ":")).encode()


class Failed(Exception):
    """A client was not answered as it should have been."""


@dataclass(frozen=True)
class Place:
    """Where a client is in a link that resumes."""

    connection: str = ""
    """Its id; the empty one asks for a new link."""
    received: int = 0
    """Messages that are known to have come; one more may have."""


class Bare:
    """A client over a socket that blocks. It takes what comes apart only as far as it has to: it searches the bytes for
    the names of messages, and costs next to nothing of what is measured, as the load generator does.

    Args:
        where: a listener of the gateway's, without TLS.
        place: where to go on, or to begin, on a link that resumes; None is a link that does not.
        control: to ask the gateway itself, and no agent.

    Raises `Failed` and `OSError`, and so do the methods.
    """

    def __init__(self, where: Where, place: Place | None = None, *, control: bool = False) -> None:
        self._websocket = where.kind == "ws"
        self._place = place
        address, _, path = where.address.partition("/")
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=PATIENCE)
        self.connected_at = time.perf_counter()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = 0
        self.updates = 0
        """How many have come over this connection; the last may be there in part only."""
        self.epoch = ""
        """The word that positions in the first session's history go with, on a link that resumes."""
        self._tail = b""
        self._not_told = 0
        opening = (
            self._upgrade(address, path, where, control=control) if self._websocket else self._hello(where, control)
        )
        self._socket.sendall(opening)
        end = b"\r\n\r\n" if self._websocket else b"\n"
        while end not in self._tail:
            self._tail += self._read()
        head, _, self._tail = self._tail.partition(end)
        found = _CONNECTION.search(head)
        if found is None or (self._websocket and b" 101 " not in head.partition(b"\r\n")[0]):
            self._socket.close()
            raise Failed(f"not let in: {head[:200]!r}")
        self._connection = found[1].decode()
        rest, self._tail = self._tail, b""
        self._take(rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def place(self) -> Place:
        """Where to go on when this connection is lost."""
        before = self._place.received if self._place else 0
        # The last one may be there in part only, and then comes again.
        return Place(self._connection, before + max(self.updates + self._answers - 1, 0))

    def ask(self, method: str, params: Mapping[str, Any], answered: re.Pattern[bytes] = _RESULT) -> re.Match[bytes]:
        """Make a request and wait for the answer: for that pattern behind its id."""
        return self.wait(self.send(method, params), answered)

    def send(self, method: str, params: Mapping[str, Any]) -> bytes:
        """Make a request; the result is what `wait` knows it by."""
        # No update has these words, and no other request of any client here.
        name = f"bare-{next(_numbers)}"
        line = message(None, method, dict(params))
        self._write(b'{"id":"%s",' % name.encode() + line[1:])
        return b'"%s"' % name.encode()

    def wait(self, name: bytes, answered: re.Pattern[bytes] = _RESULT) -> re.Match[bytes]:
        """Receive until a request is answered, perhaps one of an earlier connection of the link."""
        while (start := self._tail.find(name)) < 0:
            self.receive()
        while (found := answered.search(self._tail, start)) is None:
            if b'"error"' in self._tail[start : start + 64]:
                raise Failed(f"refused: {self._tail[start : start + 300]!r}")
            self._take(self._read(), keep=len(self._tail) - start + 64)
            start = self._tail.find(name)
        self._answers += 1
        return found

    def receive(self) -> None:
        """Receive what comes next."""
        self._take(self._read())

    def initialize(self) -> None:
        """Make the first request."""
        self.ask("initialize", {"protocolVersion": 1})

    def open_session(self) -> str:
        """The id of a new session."""
        return self.ask("session/new", {"cwd": "/", "mcpServers": []}, _SESSION)[1].decode()

    def load_session(self, session: str) -> None:
        """Join a session, or open one from before again."""
        self.ask("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})

    def recover_session(self, session: str, epoch: str) -> None:
        """Open a session of before a restart again, as somebody who has seen nothing of its history in that epoch."""
        seen = {"acp-gateway": {"epoch": epoch, "position": 0}}
        self.ask("session/resume", {"sessionId": session, "cwd": "/", "mcpServers": [], "_meta": seen})

    def prompt(self, session: str, updates: int, batch: int) -> bytes:
        """Have the agent send so many updates, so many in each write; the result is for `wait`."""
        text = f"{updates} {batch} {SIZE}"
        return self.send("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def turn(self, session: str, updates: int, batch: int) -> None:
        """The same, until they are all there. Raises `Failed` where there are more or fewer."""
        before = self.updates
        self.wait(self.prompt(session, updates, batch))
        self.expect(before + updates)

    def expect(self, updates: int) -> None:
        """Raises `Failed` where not exactly so many have come over this connection."""
        if self.updates != updates:
            raise Failed(f"{self.updates:,} updates instead of {updates:,}")

    def is_any_turn_open(self) -> bool:
        """Whether the agent is at work, as the gateway says on a control connection."""
        self._tail = b""
        found = self.ask("_acp-gateway/sessions", {}, _WHOLE)
        return re.search(rb'"turn"\s*:\s*true', found.string[: found.end()]) is not None

    def leave(self) -> None:
        """Leave for good, also where the link resumes."""
        if self._place is not None:
            self._write(message(None, "_acp-gateway/goodbye", {}))
        self.close()

    def close(self) -> None:
        """Close the socket, as a network does: without a word."""
        self._socket.close()

    def _upgrade(self, host: str, path: str, where: Where, *, control: bool) -> bytes:
        lines = [
            f"GET /{path}{'?control=1' if control else ''} HTTP/1.1",
            f"Host: {host}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        ]
        if where.token is not None:
            lines.append(f"Authorization: Bearer {where.token}")
        if self._place is not None:
            lines.append(f"Acp-Gateway-Resume: {self._place.received}")
            if self._place.connection:
                lines.append(f"Acp-Connection-Id: {self._place.connection}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _hello(self, where: Where, control: bool) -> bytes:  # noqa: FBT001 # As its twin above has it.
        params: dict[str, Any] = {"token": where.token}
        if control:
            params["control"] = True
        if self._place is not None:
            known = {"connectionId": self._place.connection, "received": self._place.received}
            params["resume"] = known if self._place.connection else {}
        return message(0, "_acp-gateway/hello", params) + b"\n"

    def _write(self, text: bytes) -> None:
        self._socket.sendall(frame(TEXT, text) if self._websocket else text + b"\n")

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise Failed(f"the connection was closed: {self._tail[-200:]!r}")
        return data

    def _take(self, data: bytes, keep: int = 0) -> None:
        self.updates += (self._tail[-_EDGE:] + data).count(_UPDATE)
        self._tail = self._tail[-max(keep, _EDGE, 64) :] + data
        if self._place is not None and not self.epoch and (found := _EPOCH.search(self._tail)):
            self.epoch = found[1].decode()
        self._not_told += len(data)
        if self._place is not None and self._not_told >= TOLD_EVERY:
            self._not_told = 0
            self._write(message(None, "_acp-gateway/ack", {"received": self.place.received}))
