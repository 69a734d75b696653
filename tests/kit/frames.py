"""A WebSocket peer by hand: HTTP requests and frames as bytes, written apart from the code that is tested."""

import itertools
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import trio
from websockets.utils import accept_key

from acp_gateway.transports.websocket.client import connect_websocket
from acp_gateway.transports.websocket.stream import Timing, WebSocketStream
from tests.kit.accepting import accept_websocket
from tests.kit.wires import MIB, NEVER, URI, MemoryBytes, accept_all, memory_wire

CONT, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10

KEY = "dGhlIHNhbXBsZSBub25jZQ=="

UPGRADE = {
    "Host": "localhost",
    "Connection": "Upgrade",
    "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Key": KEY,
}

MASK = b"\x01\x82\x33\xf4"


@dataclass(frozen=True)
class Seen:
    """A frame that arrived."""

    opcode: int
    payload: bytes
    fin: bool = True


def frame(opcode: int, payload: bytes = b"", *, fin: bool = True, masked: bool, first: int = 0) -> bytes:
    """A frame; `first` are more bits of its first byte."""
    size = len(payload)
    mask_bit = 0x80 if masked else 0
    head = bytes([opcode | (0x80 if fin else 0) | first])
    if size < 126:
        head += bytes([mask_bit | size])
    elif size < 65536:
        head += struct.pack("!BH", mask_bit | 126, size)
    else:
        head += struct.pack("!BQ", mask_bit | 127, size)
    if not masked:
        return head + payload
    return head + MASK + bytes(byte ^ mask for byte, mask in zip(payload, itertools.cycle(MASK), strict=False))


def close_payload(code: int, text: str = "") -> bytes:
    """Return the payload of a close frame."""
    return struct.pack("!H", code) + text.encode()


def take_frames(data: bytearray, *, masked: bool) -> list[Seen]:
    """Take the whole frames off the bytes of a peer that masks or doesn't, and hold them against RFC 6455, 5.2."""
    frames = []
    at = 0
    while len(data) - at >= 2:
        head, size = data[at], data[at + 1] & 0x7F
        assert bool(data[at + 1] & 0x80) is masked
        assert head & 0x70 == 0
        start = at + 2
        if size == 126:
            (size,) = struct.unpack_from("!H", data, start)
            assert size >= 126
            start += 2
        elif size == 127:
            (size,) = struct.unpack_from("!Q", data, start)
            assert size >= 65536
            start += 8
        mask = bytes(data[start : start + 4]) if masked else b""
        start += len(mask)
        if len(data) < start + size:
            break
        payload = bytes(data[start : start + size])
        if masked:
            # The long way round for each byte would take seconds for large messages.
            long_mask = (mask * (size // 4 + 1))[:size]
            payload = (int.from_bytes(payload) ^ int.from_bytes(long_mask)).to_bytes(size)
        frames.append(Seen(head & 0x0F, payload, bool(head & 0x80)))
        at = start + size
    del data[:at]
    return frames


def request(method: str = "GET", path: str = "/acp", version: str = "HTTP/1.1", **changes: str | None) -> bytes:
    """An upgrade; a header is changed by its name with _ for -, and left out with None."""
    headers: dict[str, str | None] = {**UPGRADE}
    headers.update({name.replace("_", "-"): value for name, value in changes.items()})
    lines = [f"{method} {path} {version}"]
    lines += [f"{name}: {value}" for name, value in headers.items() if value is not None]
    return "\r\n".join([*lines, "", ""]).encode()


class Peer:
    """The far end of `stream`, by hand."""

    def __init__(self, stream: WebSocketStream, wire: MemoryBytes, *, is_client: bool) -> None:
        self.stream = stream
        self.wire = wire
        self.is_client = is_client

    def frame(self, opcode: int, payload: bytes = b"", *, fin: bool = True, first: int = 0) -> bytes:
        """A frame as this end has to send it."""
        return frame(opcode, payload, fin=fin, masked=self.is_client, first=first)

    def send(self, *frames: bytes) -> None:
        """Put these into what the stream will read."""
        data = b"".join(frames)
        assert self.wire.send_nowait(memoryview(data)) == len(data)

    def frames(self) -> list[Seen]:
        """The frames that have arrived since the last call."""
        self.wire.peer.wake()
        frames = take_frames(self.wire.inbox, masked=not self.is_client)
        self.wire.peer.wake()
        return frames


async def accept_by_hand(
    *, timing: Timing = NEVER, max_message_size: int = 64 * MIB, room: int = MIB, behind: bytes = b"", **headers: str
) -> Peer:
    """Our server, and a client by hand with these headers; `behind` comes along with its request."""
    client, server = memory_wire(room)
    client.send_nowait(memoryview(request(**headers) + behind))
    stream = await accept_websocket(server, accept_all, max_message_size=max_message_size, timing=timing)
    assert stream is not None
    end = client.inbox.index(b"\r\n\r\n") + 4
    assert client.inbox.startswith(b"HTTP/1.1 101 ")
    del client.inbox[:end]
    return Peer(stream, client, is_client=True)


def response_101(sent: bytes, *more: str) -> bytes:
    """The right answer to an upgrade."""
    (key,) = (line[19:] for line in sent.decode().split("\r\n") if line.startswith("Sec-WebSocket-Key: "))
    lines = [
        "HTTP/1.1 101 Switching Protocols",
        "Connection: Upgrade",
        "Upgrade: websocket",
        f"Sec-WebSocket-Accept: {accept_key(key)}",
        *more,
    ]
    return "\r\n".join([*lines, "", ""]).encode()


async def connect_by_hand(
    *,
    timing: Timing = NEVER,
    max_message_size: int = 64 * MIB,
    room: int = MIB,
    behind: bytes = b"",
    size_setting: str = "max_message_size",
    headers: Mapping[str, str] = MappingProxyType({}),
    answer: Sequence[str] = (),
) -> Peer:
    """Our client, which asks with these headers, and a server by hand; `behind` comes along with its `answer`."""
    client, server = memory_wire(room)
    streams: list[WebSocketStream] = []

    async def connect() -> None:
        streams.append(
            await connect_websocket(
                client, URI, headers, max_message_size=max_message_size, timing=timing, size_setting=size_setting
            )
        )

    async with trio.open_nursery() as nursery:
        nursery.start_soon(connect)
        sent = await server.receive_some()
        server.send_nowait(memoryview(response_101(sent, "Acp-Connection-Id: c1", *answer) + behind))
    return Peer(streams[0], server, is_client=False)
