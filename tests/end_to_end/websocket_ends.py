"""A client's end of a WebSocket with JSON objects, which keeps what it was told."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, TypeVar

from websockets.asyncio.client import ClientConnection
from websockets.exceptions import ConnectionClosed

T = TypeVar("T")


class WebSocketEnd:
    """The end of a connection. `read` runs in a task of the test."""

    def __init__(self, websocket: ClientConnection) -> None:
        self.websocket = websocket
        self.told: list[dict[str, Any]] = []
        """All messages so far."""
        self.closed: tuple[int, str] | None = None
        """Code and reason of the end."""
        self._news = asyncio.Event()

    async def read(self) -> None:
        """Take what comes, until the end."""
        try:
            async for text in self.websocket:
                self._take(json.loads(text))
                self._news.set()
        except ConnectionClosed:
            pass
        self.closed = self.websocket.close_code or 0, self.websocket.close_reason or ""
        self._news.set()

    def _take(self, message: dict[str, Any]) -> None:
        self.told.append(message)

    async def until(self, look: Callable[[], T | None]) -> T:
        """Wait until something is found in what has come."""
        while not (found := look()):
            self._news.clear()
            await self._news.wait()
        return found
