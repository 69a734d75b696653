"""Connections to Redis or Valkey: one command at a time, in RESP2.

There is no library behind it: the client for Trio, coredis, loses a place of its pool with each connection that is cut
at the wrong moment.

A connection is used again only after a whole answer other than an error. After anything else (an error of the network
or of Redis, a timeout, a cancelled call) it is closed, and the next command makes another one. So a command begins with
a connection that owes no answer, or with none: there is no third state that it could be stuck in.
"""

import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

MAX_ANSWER: Final = 64 * 1024 * 1024
"""Maximum bytes of one answer: other programs may write to Redis."""

_MAX_DEPTH: Final = 8
_READ: Final = 64 * 1024
_TURN: Final = 256
"""Elements of an answer that are read before other tasks get their turn."""


class RedisRefused(Exception):
    """Redis has answered with an error, or with what is not RESP2."""


_BROKEN: Final = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisOptions:
    """The options of the connection to Redis."""

    host: str = "localhost"
    port: int = 6379
    unix_path: str | None = None
    """A unix socket, instead of `host` and `port`."""
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None
    timeout: float = 3.0
    """Seconds for each operation, the connection included."""


class RedisConnection:
    """One connection, of one user at a time.

    Args:
        stream: the connected one.
    """

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._stream = stream
        self._buffer = bytearray()
        # Bytes that the answer may still have.
        self._room = 0

    async def ask(self, *words: str | bytes | int) -> Any:
        """Return the answer to a command: bytes, a number, None, or a list of these.

        Raises `RedisRefused`, `OSError` or an error of the stream. After an error or a cancellation, the connection is
        of no use: the answer may be on its way.
        """
        await self.send(*words)
        return await self.read()

    async def send(self, *words: str | bytes | int) -> None:
        """Send a command, without its answer."""
        parts = [b"*%d\r\n" % len(words)]
        for word in words:
            text = word if isinstance(word, bytes) else str(word).encode()
            parts.append(b"$%d\r\n%s\r\n" % (len(text), text))
        await self._stream.send_all(b"".join(parts))

    async def read(self) -> Any:
        """Return the next answer, or the next message of a subscription."""
        self._room = MAX_ANSWER
        try:
            return await self._answer(_MAX_DEPTH)
        except ValueError:
            raise RedisRefused("the answer is not RESP2: no Redis is there") from None

    async def aclose(self) -> None:
        """Close it at once, also where the task is cancelled."""
        with trio.CancelScope(shield=True):
            await trio.aclose_forcefully(self._stream)

    async def _answer(self, depth: int) -> Any:
        line = await self._take_line()
        kind, rest = line[:1], line[1:]
        if kind == b"+":
            return rest
        if kind == b"-":
            raise RedisRefused(rest.decode(errors="replace"))
        if kind not in (b":", b"$", b"*"):
            raise ValueError
        number = int(rest)
        if kind == b":":
            return number
        if number < 0:
            return None
        if kind == b"$":
            return (await self._take(number + 2))[:-2]
        if not depth:
            raise ValueError
        found = []
        for position in range(number):
            if not position % _TURN:
                await trio.lowlevel.checkpoint()
            found.append(await self._answer(depth - 1))
        return found

    async def _take_line(self) -> bytes:
        start = 0
        while (end := self._buffer.find(b"\r\n", start)) < 0:
            start = max(len(self._buffer) - 1, 0)
            if start > _READ:
                raise ValueError
            await self._fill()
        return (await self._take(end + 2))[:-2]

    async def _take(self, size: int) -> bytes:
        self._room -= size
        if self._room < 0:
            raise RedisRefused(f"the answer has more than {MAX_ANSWER >> 20} MiB")
        while len(self._buffer) < size:
            await self._fill()
        taken = bytes(self._buffer[:size])
        del self._buffer[:size]
        return taken

    async def _fill(self) -> None:
        data = await self._stream.receive_some(_READ)
        if not data:
            raise trio.BrokenResourceError("the connection was closed")
        self._buffer += data


async def open_stream(options: RedisOptions) -> trio.abc.Stream:
    """Connect to Redis. Raises `OSError` or `trio.BrokenResourceError`. Cancelling it closes the connection."""
    if options.unix_path is not None:
        return await trio.open_unix_socket(options.unix_path)
    stream: trio.abc.Stream = await trio.open_tcp_stream(options.host, options.port)
    if options.tls is None:
        return stream
    encrypted = trio.SSLStream(stream, options.tls, server_hostname=options.host, https_compatible=True)
    try:
        await encrypted.do_handshake()
    except BaseException:
        await trio.aclose_forcefully(stream)
        raise
    return encrypted


_SIGN_IN_ERRORS: Final = frozenset({"ERR", "NOAUTH", "NOPERM", "WRONGPASS"})


async def _sign_in(connection: RedisConnection, *words: str) -> None:
    try:
        await connection.ask("AUTH", *words)
    except RedisRefused as error:
        # Its text may have the password, also as the first word.
        code = str(error).partition(" ")[0]
        why = code if code in _SIGN_IN_ERRORS else "another error"
        raise RedisRefused(f"Redis refuses the user or the password of cluster.password_file ({why})") from None


class RedisClient:
    """Commands to one Redis, by one connection.

    Args:
        options: how to reach it.
        connect: returns a connected stream.
    """

    def __init__(
        self,
        options: RedisOptions,
        connect: Callable[[RedisOptions], Awaitable[trio.abc.Stream]] = open_stream,
    ) -> None:
        self._options = options
        self._connect = connect
        self._lock = trio.Lock()
        self._kept: RedisConnection | None = None

    async def ask(self, *words: str | bytes | int) -> Any:
        """Return the answer to a command, after those that were asked before.

        A command may be carried out twice: where Redis or a proxy has closed the connection since the last one, it is
        sent again over another.

        Raises `RedisRefused`, `OSError` or an error of a stream. It has no time limit. Cancelling it leaves the command
        done or undone.
        """
        async with self._lock:
            if self._kept is not None:
                try:
                    return await self._ask(self._kept, words)
                except _BROKEN:
                    pass
            return await self._ask(await self.open(), words)

    async def _ask(self, connection: RedisConnection, words: tuple[str | bytes | int, ...]) -> Any:
        self._kept = None
        try:
            answer = await connection.ask(*words)
        except BaseException:
            await connection.aclose()
            raise
        self._kept = connection
        return answer

    async def open(self) -> RedisConnection:
        """Return a connection that is signed in, which the caller closes. Raises as `ask`."""
        options = self._options
        connection = RedisConnection(await self._connect(options))
        try:
            if options.password is not None:
                user = () if options.username is None else (options.username,)
                await _sign_in(connection, *user, options.password)
            if options.db:
                await connection.ask("SELECT", options.db)
        except BaseException:
            await connection.aclose()
            raise
        return connection

    @asynccontextmanager
    async def subscription(self, channel: str) -> AsyncIterator[RedisConnection]:
        """Open a connection that gets the messages of a channel. Raises as `ask`; the block's own errors pass."""
        connection = await self.open()
        try:
            await connection.ask("SUBSCRIBE", channel)
            yield connection
        finally:
            await connection.aclose()

    async def aclose(self) -> None:
        """Close the connection; a command under way has ended before."""
        kept, self._kept = self._kept, None
        if kept is not None:
            await kept.aclose()
