"""A minimal client over a blocking socket, with just enough of WebSocket framing and of newline-delimited JSON."""

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

from benchmarks.load import SIZE, Endpoint

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
"""WebSocket opcodes."""
FINAL, COMPRESSED = 0x80, 0x40
"""Flag bits of a frame's first byte: FIN, and RSV1 of permessage-deflate."""

ACCEPT_COOLDOWN: Final = 0.3
"""Seconds after which the gateway accepts without a pause again, following connections that closed right away."""

RECEIVE_TIMEOUT: Final = 30.0
"""Seconds that a client waits for the next bytes."""

ACK_EVERY: Final = 1 << 20
"""Bytes after which a client acknowledges the messages it received."""

_numbers = count(1)

_UPDATE: Final = b'"session/update"'
_EDGE: Final = len(_UPDATE) - 1
TURN_ENDED: Final = re.compile(rb'"stopReason"\s*:')
"""The end of a turn in either version: in the response to the prompt, or in an update."""

_RESULT: Final = re.compile(rb'"result"\s*:')
_SESSION: Final = re.compile(rb'"result"\s*:\s*\{[^{]*"sessionId"\s*:\s*"([^"]+)"')
_EPOCH: Final = re.compile(rb'"epoch"\s*:\s*"([^"]+)"')
_WHOLE: Final = re.compile(rb"\}\}\s*$")
"""End of a list: a session in it ends with one brace, and what was read may end there."""
_CONNECTION: Final = re.compile(rb'(?i)(?:acp-)?connection-?id"?:\s*"?([\w-]+)')


def frame(opcode: int, payload: bytes, *, flags: int = FINAL) -> bytes:
    """Encode a client's frame. The mask is four zeros: the payload stays as it is, and the server unmasks it anyway."""
    size = len(payload)
    if size < 126:
        head = struct.pack("!BB", flags | opcode, 0x80 | size)
    elif size < 1 << 16:
        head = struct.pack("!BBH", flags | opcode, 0x80 | 126, size)
    else:
        head = struct.pack("!BBQ", flags | opcode, 0x80 | 127, size)
    return head + bytes(4) + payload


def message(number: int | None, method: str, params: dict[str, Any]) -> bytes:
    """Encode a request, or without `number` a notification, as compact JSON."""
    known = {} if number is None else {"id": number}
    return json.dumps({"jsonrpc": "2.0", **known, "method": method, "params": params}, separators=(",", ":")).encode()


class Failed(Exception):
    """A client got an unexpected answer, or none."""


@dataclass(frozen=True)
class ResumePoint:
    """Position of a client in a resumable link."""

    connection: str = ""
    """Connection id; empty to request a new link."""
    received: int = 0
    """Messages known to be received; one more may have been."""


class BareClient:
    """Client over a blocking socket. Like the load generator, it doesn't parse messages but searches the bytes for
    method names and ids, so that it adds next to nothing to what is measured.

    Args:
        endpoint: a listener of the gateway, without TLS.
        resume_point: the position to resume from; an empty one starts a resumable link, None a link without resumption.
        control: open a control connection to the gateway instead of one to an agent.

    The constructor and all methods raise `Failed` and `OSError`.
    """

    def __init__(self, endpoint: Endpoint, resume_point: ResumePoint | None = None, *, control: bool = False) -> None:
        self._websocket = endpoint.kind == "ws"
        self._resume_point = resume_point
        address, _, path = endpoint.address.partition("/")
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host.strip("[]"), int(port)), timeout=RECEIVE_TIMEOUT)
        self.connected_at = time.perf_counter()
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._answers = 0
        self.updates = 0
        """Updates received over this connection; the last may be incomplete."""
        self.epoch = ""
        """Epoch of positions in the first session's history, on a resumable link."""
        self._tail = b""
        self._unacknowledged = 0
        opening = (
            self._upgrade(address, path, endpoint, control=control)
            if self._websocket
            else self._hello(endpoint, control)
        )
        self._socket.sendall(opening)
        end = b"\r\n\r\n" if self._websocket else b"\n"
        while end not in self._tail:
            self._tail += self._read()
        head, _, self._tail = self._tail.partition(end)
        found = _CONNECTION.search(head)
        if found is None or (self._websocket and b" 101 " not in head.partition(b"\r\n")[0]):
            self._socket.close()
            raise Failed(f"connection refused: {head[:200]!r}")
        self._connection = found[1].decode()
        rest, self._tail = self._tail, b""
        self._take(rest)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def resume_point(self) -> ResumePoint:
        """Position from which to resume when this connection is lost."""
        before = self._resume_point.received if self._resume_point else 0
        # The last message may be incomplete; it is then sent again.
        return ResumePoint(self._connection, before + max(self.updates + self._answers - 1, 0))

    def ask(self, method: str, params: Mapping[str, Any], answered: re.Pattern[bytes] = _RESULT) -> re.Match[bytes]:
        """Send a request and wait until `answered` matches behind its id."""
        return self.wait(self.send(method, params), answered)

    def send(self, method: str, params: Mapping[str, Any]) -> bytes:
        """Send a request and return its id for `wait`."""
        # No update contains this id, and no other request of any client here uses it.
        name = f"bare-{next(_numbers)}"
        line = message(None, method, dict(params))
        self._write(b'{"id":"%s",' % name.encode() + line[1:])
        return b'"%s"' % name.encode()

    def wait(self, name: bytes, answered: re.Pattern[bytes] = _RESULT) -> re.Match[bytes]:
        """Receive until a request is answered. It may have been sent over an earlier connection of the link."""
        while (start := self._tail.find(name)) < 0:
            self.receive()
        while (found := answered.search(self._tail, start)) is None:
            if b'"error"' in self._tail[start : start + 64]:
                raise Failed(f"refused: {self._tail[start : start + 300]!r}")
            self._take(self._read(), keep=len(self._tail) - start + 64)
            start = self._tail.find(name)
        self._answers += 1
        return found

    def wait_for(self, mark: re.Pattern[bytes]) -> None:
        """Receive until a short mark comes."""
        while mark.search(self._tail) is None:
            self._take(self._read(), keep=64)

    def receive(self) -> None:
        """Receive the next bytes."""
        self._take(self._read())

    def initialize(self, version: int = 1) -> None:
        """Send `initialize` and wait for the answer."""
        about = {"info": {"name": "bench", "version": "1"}, "capabilities": {}} if version > 1 else {}
        self.ask("initialize", {"protocolVersion": version, **about})

    def open_session(self) -> str:
        """Create a session and return its id."""
        return self.ask("session/new", {"cwd": "/", "mcpServers": []}, _SESSION)[1].decode()

    def load_session(self, session: str) -> None:
        """Join an open session, or reopen an earlier one."""
        self.ask("session/load", {"sessionId": session, "cwd": "/", "mcpServers": []})

    def recover_session(self, session: str, epoch: str) -> None:
        """Reopen a session from before a restart, as a client that has received nothing of its history in `epoch`."""
        seen = {"acp-gateway": {"epoch": epoch, "position": 0}}
        self.ask("session/resume", {"sessionId": session, "cwd": "/", "mcpServers": [], "_meta": seen})

    def prompt(self, session: str, updates: int, batch: int) -> bytes:
        """Have the agent send `updates` updates, `batch` per write; return the request's id for `wait`."""
        text = f"{updates} {batch} {SIZE}"
        return self.send("session/prompt", {"sessionId": session, "prompt": [{"type": "text", "text": text}]})

    def turn(self, session: str, updates: int, batch: int) -> None:
        """Prompt and wait for the end of the turn. Raises `Failed` unless exactly `updates` updates arrived."""
        before = self.updates
        self.wait(self.prompt(session, updates, batch))
        self.expect(before + updates)

    def expect(self, updates: int) -> None:
        """Raise `Failed` unless exactly `updates` updates arrived over this connection."""
        if self.updates != updates:
            raise Failed(f"{self.updates:,} updates instead of {updates:,}")

    def is_any_turn_open(self) -> bool:
        """Ask the gateway, over a control connection, if any session has an open turn."""
        self._tail = b""
        found = self.ask("session/list", {"all": True}, _WHOLE)
        return re.search(rb'"turn"\s*:\s*true', found.string[: found.end()]) is not None

    def list_sessions(self) -> int:
        """Ask the gateway, over a control connection, for the sessions, and return their number."""
        self._tail = b""
        found = self.ask("session/list", {"all": True}, _WHOLE)
        return found.string[: found.end()].count(b'"agentType"')

    def leave(self) -> None:
        """Close the connection for good; a resumable link is ended as well."""
        if self._resume_point is not None:
            self._write(message(None, "_acp-gateway/goodbye", {}))
        self.close()

    def close(self) -> None:
        """Close the socket without a closing handshake, like a lost connection."""
        self._socket.close()

    def _upgrade(self, host: str, path: str, endpoint: Endpoint, *, control: bool) -> bytes:
        lines = [
            f"GET /{path}{'?control=1' if control else ''} HTTP/1.1",
            f"Host: {host}",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            f"Sec-WebSocket-Key: {base64.b64encode(os.urandom(16)).decode()}",
        ]
        if endpoint.token is not None:
            lines.append(f"Authorization: Bearer {endpoint.token}")
        if self._resume_point is not None:
            lines.append(f"Acp-Gateway-Resume: {self._resume_point.received}")
            if self._resume_point.connection:
                lines.append(f"Acp-Connection-Id: {self._resume_point.connection}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode()

    def _hello(self, endpoint: Endpoint, control: bool) -> bytes:  # noqa: FBT001 # Named as in `_upgrade`.
        params: dict[str, Any] = {"token": endpoint.token}
        if control:
            params["control"] = True
        if self._resume_point is not None:
            known = {"connectionId": self._resume_point.connection, "received": self._resume_point.received}
            params["resume"] = known if self._resume_point.connection else {}
        return message(0, "_acp-gateway/hello", params) + b"\n"

    def _write(self, text: bytes) -> None:
        self._socket.sendall(frame(TEXT, text) if self._websocket else text + b"\n")

    def _read(self) -> bytes:
        data = self._socket.recv(1 << 18)
        if not data:
            raise Failed(f"connection closed after {self._tail[-200:]!r}")
        return data

    def _take(self, data: bytes, keep: int = 0) -> None:
        self.updates += (self._tail[-_EDGE:] + data).count(_UPDATE)
        self._tail = self._tail[-max(keep, _EDGE, 64) :] + data
        if self._resume_point is not None and not self.epoch and (found := _EPOCH.search(self._tail)):
            self.epoch = found[1].decode()
        self._unacknowledged += len(data)
        if self._resume_point is not None and self._unacknowledged >= ACK_EVERY:
            self._unacknowledged = 0
            self._write(message(None, "_acp-gateway/ack", {"received": self.resume_point.received}))
