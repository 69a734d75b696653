"""A Redis in memory for one connection after the other, which fails at any step of a client."""

import re
from collections.abc import Awaitable, Callable
from typing import Any

import trio
from trio.testing import memory_stream_pair

from acp_gateway.nodes.redis_connection import RedisOptions

Answer = Callable[[list[bytes]], bytes]


def echo(words: list[bytes]) -> bytes:
    """The answer to a command: its last word in a list, as scripts answer, or that of SUBSCRIBE."""
    if words[0] in (b"AUTH", b"SELECT"):
        return b"+OK\r\n"
    if words[0] == b"SUBSCRIBE":
        return b"*3\r\n$9\r\nsubscribe\r\n$%d\r\n%s\r\n:1\r\n" % (len(words[1]), words[1])
    if words[0] == b"PING":
        return b"*2\r\n$4\r\npong\r\n$0\r\n\r\n"
    return b"*2\r\n:1\r\n$%d\r\n%s\r\n" % (len(words[-1]), words[-1])


class FakeRedis:
    """Answers commands over memory streams, which are read in small pieces.

    Args:
        nursery: runs it.
        answer: the answer to a command.
        piece: maximum bytes of one read.
    """

    def __init__(self, nursery: trio.Nursery, answer: Answer = echo, piece: int = 1) -> None:
        self.piece = piece
        self._nursery = nursery
        self._answer = answer
        self.step = 0
        """Number of steps of clients so far: two for each time that they connect, send or receive."""
        self.fault_at = 0
        self.fault: Callable[[], Awaitable[None]] = trio.lowlevel.checkpoint
        """The event at the step `fault_at`."""
        self.opened: list[FakeStream] = []
        self.commands: list[list[bytes]] = []

    @property
    def open_streams(self) -> int:
        return sum(not stream.closed for stream in self.opened)

    def fail_at(self, step: int, fault: Callable[[], Awaitable[None]]) -> None:
        """Let the next steps be counted from 1, with a fault at one of them."""
        self.step, self.fault_at, self.fault = 0, step, fault

    async def pass_step(self) -> None:
        self.step += 1
        await trio.lowlevel.checkpoint()
        if self.step == self.fault_at:
            await self.fault()

    async def connect(self, _: RedisOptions) -> trio.abc.Stream:
        await self.pass_step()
        ours, theirs = memory_stream_pair()
        self._nursery.start_soon(self._serve, theirs)
        stream = FakeStream(self, ours)
        try:
            await self.pass_step()
        except BaseException:
            await trio.aclose_forcefully(stream)
            raise
        self.opened.append(stream)
        return stream

    async def _serve(self, stream: trio.abc.Stream) -> None:
        received = b""
        try:
            while data := await stream.receive_some():
                received += data
                while taken := take_command(received):
                    words, received = taken
                    self.commands.append(words)
                    await stream.send_all(self._answer(words))
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


class FakeStream(trio.abc.Stream):
    """The client's end."""

    def __init__(self, server: FakeRedis, stream: trio.abc.Stream) -> None:
        self._server = server
        self.stream = stream
        self.closed = False

    async def send_all(self, data: Any) -> None:
        await self._server.pass_step()
        await self.stream.send_all(data)
        await self._server.pass_step()

    async def wait_send_all_might_not_block(self) -> None:
        await self.stream.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        await self._server.pass_step()
        data = await self.stream.receive_some(self._server.piece)
        await self._server.pass_step()
        return data

    async def aclose(self) -> None:
        self.closed = True
        await self.stream.aclose()


def take_command(received: bytes) -> tuple[list[bytes], bytes] | None:
    """Take the first command; None if it is not complete."""
    if not (head := re.match(rb"\*(\d+)\r\n", received)):
        return None
    words, rest = [], received[head.end() :]
    for _ in range(int(head[1])):
        if not (head := re.match(rb"\$(\d+)\r\n", rest)) or len(rest) < head.end() + int(head[1]) + 2:
            return None
        words.append(rest[head.end() : head.end() + int(head[1])])
        rest = rest[head.end() + int(head[1]) + 2 :]
    return words, rest
