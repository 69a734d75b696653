"""The two forms of the answer to an editor's message: lines while the turn runs, or a completion at its end."""

import math
import secrets
import time
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final, Protocol

import trio

from acp_gateway.dialects.editor.output import KEEP_ALIVE, LINES, Completion, TurnLines, failure
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.transports.http.server import HttpConnection, Response

JSON: Final = {"Content-Type": "application/json", "Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}

HEAD_DELAY: Final = 0.25
"""Seconds without a line after which the head of an answer in lines is sent, so that the editor sees that its message
has arrived. Until then a failure has a status: an agent that refuses a prompt itself does so within some ms."""

KEEP_ALIVE_INTERVAL: Final = 15.0
"""Seconds without a line after which white space keeps the connection alive: proxies give up after 30 to 60."""


class AnswerTooLarge(Exception):
    """The text of a turn is larger than one answer may be."""


class Answer(Protocol):
    """The answer to one message."""

    @property
    def deadline(self) -> float:
        """Time at which `keep_alive` is due, in seconds of Trio's clock."""

    async def updates(self, messages: Iterable[bytes]) -> None:
        """Take updates. Raises `AnswerTooLarge`, and what the connection raises."""

    async def permission(self, key: str, request: Message) -> None:
        """Take a permission that waits. Raises what the connection raises."""

    async def keep_alive(self) -> None:
        """Show that the answer goes on. Raises what the connection raises."""

    async def done(self, stop_reason: str) -> bool:
        """End the answer; return whether another request may follow. Raises what the connection raises."""

    async def failed(self, text: str, status: int = HTTPStatus.INTERNAL_SERVER_ERROR) -> bool:
        """End the answer with an error; return and raise as `done`."""


def refusal(status: int, text: str, headers: dict[str, str] | None = None, *, close: bool = False) -> Response:
    """Return the response with an error."""
    return Response(status, failure(text), JSON | (headers or {}), close=close)


class AnswerInLines:
    """An answer in lines, as the turn goes on.

    Args:
        http: the connection.
        session_id: the session of the turn.
        explains: True to say in text, too, where a permission is answered.
    """

    def __init__(self, http: HttpConnection, session_id: str, *, explains: bool = False) -> None:
        self._http = http
        self._session = session_id
        self._explains = explains
        self._lines = TurnLines(session_id)
        self._has_begun = False
        self.deadline = trio.current_time() + HEAD_DELAY

    async def updates(self, messages: Iterable[bytes]) -> None:
        lines = [line for message in messages if (line := self._lines.update(message)) is not None]
        if lines:
            await self._send(b"".join(lines))

    async def permission(self, key: str, request: Message) -> None:
        line = self._lines.permission(key, request)
        await self._send(line + self._lines.where_to_answer(self._session) if self._explains else line)

    async def keep_alive(self) -> None:
        await self._send(KEEP_ALIVE if self._has_begun else b"")

    async def done(self, stop_reason: str) -> bool:
        await self._send(self._lines.done(stop_reason))
        return await self._http.end()

    async def failed(self, text: str, status: int = HTTPStatus.INTERNAL_SERVER_ERROR) -> bool:
        if not self._has_begun:
            return await self._http.respond(refusal(status, text))
        await self._send(self._lines.error(text))
        return await self._http.end()

    async def _send(self, data: bytes) -> None:
        if not self._has_begun:
            self._has_begun = True
            headers = {"Content-Type": LINES, "X-Content-Type-Options": "nosniff"}
            await self._http.start(HTTPStatus.OK, headers)
        if data:
            await self._http.send(data)
        self.deadline = trio.current_time() + KEEP_ALIVE_INTERVAL


class AnswerInOnePiece:
    """A completion at the end of the turn.

    Args:
        http: the connection.
        session_id: the session of the turn.
        provider: name of the agent.
        most: maximum bytes of its text.
    """

    deadline = math.inf

    def __init__(self, http: HttpConnection, session_id: str, provider: str, most: int) -> None:
        self._http = http
        self._completion = Completion(session_id)
        self._provider = provider
        self._most = most

    async def updates(self, messages: Iterable[bytes]) -> None:
        for message in messages:
            self._completion.update(message)
        if self._completion.size > self._most:
            raise AnswerTooLarge(f"the answer is larger than message_size ({self._most} bytes)")
        await trio.lowlevel.checkpoint()

    async def permission(self, key: str, request: Message) -> None:
        await trio.lowlevel.checkpoint()  # Another client decides.

    async def keep_alive(self) -> None:
        await trio.lowlevel.checkpoint()

    async def done(self, stop_reason: str) -> bool:
        body = self._completion.body(secrets.token_hex(12), int(time.time()), self._provider)
        return await self._http.respond(Response(HTTPStatus.OK, body, JSON))

    async def failed(self, text: str, status: int = HTTPStatus.INTERNAL_SERVER_ERROR) -> bool:
        return await self._http.respond(refusal(status, text))
