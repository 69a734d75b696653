"""The files of a session over a control connection: read by range, and written, several pieces at a time."""

import json
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from itertools import count
from typing import IO, Any, Final, NamedTuple, Self

import trio

from acp_gateway.client.dialing import Destination, dial, explain_silence, refusal_by_error
from acp_gateway.errors import ProtocolError, Unreachable
from acp_gateway.gateway.session_api.requests import APPEND, CREATE, FINISH, READ, STAT
from acp_gateway.made.files import PIECE
from acp_gateway.made.files_rules import STATUSES, FileRefused
from acp_gateway.printable import printable
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import MessageStream
from acp_gateway.transports.websocket.stream import Timing

WINDOW: Final = 8
"""Pieces on their way at a time: two megabytes fill a fast line to another continent."""

SENT_PIECE: Final = 40 * 1024
"""Bytes of a piece of an upload: with its form, less than the 64 KiB of a request over a control connection."""

SENT_WINDOW: Final = 48
"""Such pieces on their way at a time."""

ATTEMPTS: Final = 6
"""Attempts to go on after a connection was lost, since the last piece that came."""

PAUSE: Final = 1.0
"""Seconds before the first of them; each further pause is twice as long."""

ANSWER_TIMEOUT: Final = 60.0
"""Seconds for a piece: a line that carries less than 5 KB/s counts as lost."""

Progress = Callable[[int, int], None]
"""Takes the bytes so far, and all of them."""


class Copied(NamedTuple):
    """A file that was copied."""

    size: int
    changed: bool = False
    """True if it was written to while it was copied, so that its parts may not fit."""


class GatewayFiles:
    """The files of one session.

    Args:
        destination: the gateway, with `control` set.
        session: the id of the session.
        time_limit: seconds to connect.
        dial_gateway: connects.
    """

    def __init__(
        self,
        destination: Destination,
        session: str,
        time_limit: float,
        dial_gateway: Callable[[Destination, Timing], Awaitable[MaintainedStream]] = dial,
    ) -> None:
        self._destination = destination
        self._session = session
        self._time_limit = time_limit
        self._dial = dial_gateway
        self._stream: MessageStream | None = None
        self._ids = count(1)

    async def __aenter__(self) -> Self:
        await self._connect()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._disconnect()

    async def _connect(self) -> None:
        with trio.move_on_after(self._time_limit):
            self._stream = await self._dial(self._destination, Timing())
            return
        address = str(self._destination.address)
        raise Unreachable(f"{explain_silence(address)} (tried for {self._time_limit:g} s)")

    async def _disconnect(self) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            with trio.CancelScope(shield=True):
                await stream.aclose()

    async def _send(self, method: str, **params: Any) -> int:
        assert self._stream is not None, "it is connected"
        request_id = next(self._ids)
        params = {"sessionId": self._session, **params}
        await self._stream.send(
            json.dumps({"jsonrpc": "2.0", "id": request_id, "method": method, "params": params}).encode()
        )
        return request_id

    async def _receive(self, request_id: int) -> dict[str, Any]:
        """Return the result of a request; others before it have been received. Raises `FileRefused` for an error."""
        assert self._stream is not None, "it is connected"
        with trio.fail_after(ANSWER_TIMEOUT):
            while True:
                text = await self._stream.receive()
                try:
                    reply = json.loads(text)
                except (ValueError, RecursionError):
                    reply = None
                if not isinstance(reply, dict):
                    raise ProtocolError(f"{self._destination.address}: the response is not a JSON-RPC message")
                if reply.get("id") == request_id:
                    break
        if isinstance(reply.get("result"), dict):
            result: dict[str, Any] = reply["result"]
            return result
        error = reply.get("error")
        error = error if isinstance(error, dict) else {}
        data = error.get("data")
        reason = data.get("reason") if isinstance(data, dict) else None
        for known in STATUSES:
            if reason == known:
                raise FileRefused(
                    known, f"{self._destination.address}: {printable(str(error.get('message')), size=1000)}"
                )
        raise refusal_by_error(self._destination, error)

    async def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        async with self._lost_is_unreachable():
            return await self._receive(await self._send(method, **params))

    @asynccontextmanager
    async def _lost_is_unreachable(self) -> AsyncIterator[None]:
        address = self._destination.address
        try:
            yield
        except (trio.BrokenResourceError, trio.ClosedResourceError, trio.EndOfChannel) as error:
            raise Unreachable(f"{address}: the connection was lost: {error or 'closed'}") from None
        except trio.TooSlowError:
            raise Unreachable(f"{address}: no answer within {ANSWER_TIMEOUT:g} s") from None
        except (KeyError, TypeError, ValueError):
            raise ProtocolError(f"{address}: the gateway's response is not understood; is it older?") from None

    async def kind(self, path: str) -> str | None:
        """Return what is at a path: `file`, `folder`, or another word; None for nothing. Raises `GatewayError`."""
        try:
            return str((await self._ask(STAT, path=path)).get("kind"))
        except FileRefused as refused:
            if refused.why == "not_found":
                return None
            raise

    async def download(self, path: str, target: IO[bytes], progress: Progress = lambda *_: None) -> Copied:
        """Write a file of the session into an open one here, from where that stands.

        A lost connection is replaced, and the copy goes on where it was. Raises `GatewayError`, and `OSError` of the
        target. Cancelled, a part is written.
        """
        reading = _Reading()
        failures = 0
        while True:
            before = reading.offset
            try:
                async with self._lost_is_unreachable():
                    if self._stream is None:
                        await self._connect()
                    await self._read_on(path, reading, target, progress)
                assert reading.size is not None, "a piece has come"
                return Copied(reading.size, reading.changed)
            except Unreachable as error:
                failures = 1 if reading.offset > before else failures + 1
                await self._disconnect()
                if failures > ATTEMPTS:
                    of = "" if reading.size is None else f" of {reading.size}"
                    text = f"{error}; {reading.offset}{of} bytes had come: run the command again"
                    raise Unreachable(text) from None
                await trio.sleep(PAUSE * 2 ** (failures - 1))

    async def _read_on(self, path: str, reading: "_Reading", target: IO[bytes], progress: Progress) -> None:
        """Read the rest of a file."""
        pending: deque[int] = deque()
        wanted = reading.offset
        while reading.size is None or reading.offset < reading.size or pending:
            # The first piece tells the size.
            while len(pending) < WINDOW and (wanted == reading.offset or wanted < (reading.size or 0)):
                pending.append(await self._send(READ, path=path, offset=wanted, length=PIECE))
                wanted += PIECE
            data = reading.take(await self._receive(pending.popleft()), path)
            target.write(data)
            reading.offset += len(data)
            progress(reading.offset, reading.size or 0)
            if len(data) < PIECE and reading.offset < (reading.size or 0):
                raise FileRefused("changed", f"{printable(path)} became shorter while it was copied: copy it again")

    async def upload(
        self, source: IO[bytes], size: int, path: str, *, overwrite: bool, progress: Progress = lambda *_: None
    ) -> str:
        """Write so many bytes of an open file into a new file of the session, and return its path there.

        Raises `GatewayError`, and `OSError` of the source. What was begun is removed there if it is not finished.
        """
        async with self._lost_is_unreachable():
            begun = await self._receive(await self._send(CREATE, path=path, size=size, overwrite=overwrite))
            upload, offset = str(begun["upload"]), 0
            pending: deque[tuple[int, int]] = deque()
            while offset < size or pending:
                while offset < size and len(pending) < SENT_WINDOW:
                    data = source.read(min(SENT_PIECE, size - offset))
                    if not data:
                        raise FileRefused("changed", "the file became shorter while it was copied: copy it again")
                    sent = await self._send(APPEND, upload=upload, offset=offset, data=b64encode(data).decode())
                    offset += len(data)
                    pending.append((sent, offset))
                request_id, confirmed = pending.popleft()
                await self._receive(request_id)
                progress(confirmed, size)
            done = await self._receive(await self._send(FINISH, upload=upload))
            return str(done["path"])


class _Reading:
    """The part of a file that was read."""

    def __init__(self) -> None:
        self.offset = 0
        self.size: int | None = None
        """Bytes of the file at the beginning, as many as are copied."""
        self.changed = False
        self._tag = ""

    def take(self, result: dict[str, Any], path: str) -> bytes:
        """Return the data of a piece, which has to be of the same file. Raises `FileRefused`."""
        tag, size, data = str(result["tag"]), int(result["size"]), b64decode(result["data"], validate=True)
        if self.size is None:
            self.size, self._tag = size, tag
        elif tag != self._tag:
            # A log grows. A file that was replaced is another one.
            if size < self.size or tag.partition("-")[0] != self._tag.partition("-")[0]:
                raise FileRefused("changed", f"{printable(path)} was replaced while it was copied: copy it again")
            self.changed = True
        return data[: self.size - self.offset]
