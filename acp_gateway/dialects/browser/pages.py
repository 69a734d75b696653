"""Remembers pages: their connections, the last of them the present one, and the calls that they have made.

A page that doubts its connection opens another one beside it. What it has called on the old one without an answer it
calls again, with the same id; that is carried out once.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, TypeAlias

import trio

from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.protocol.jsonrpc import RawId

if TYPE_CHECKING:
    from acp_gateway.dialects.browser.bridge import BrowserBridge

MAX_PAGES: Final = 256
"""Pages that are remembered, those of present connections included; a person has a handful open."""

MAX_CALLS: Final = 32
"""Finished calls that are remembered of a page; unanswered are those of the last seconds."""

MAX_REPLY: Final = 4096
"""Bytes of a response that is remembered; those to prompts and new sessions are shorter."""

_Key: TypeAlias = tuple[str, ConnectRequest, str]


class Forgotten(Exception):
    """A call was carried out, or begun, and its response is not known."""


@dataclass(slots=True, eq=False)
class _Once:
    """A call that is carried out once."""

    finished: trio.Event = field(default_factory=trio.Event)
    reply: bytes | None = None
    kept: bool = False
    """False if the call was cancelled, or its response is too large."""


class Page:
    """A page that was connected."""

    def __init__(self) -> None:
        self.connections: list[BrowserBridge] = []
        """Those that are served, the present one last."""
        self._calls: dict[RawId, _Once] = {}

    async def once(self, call_id: RawId, carry_out: Callable[[], Awaitable[bytes | None]]) -> bytes | None:
        """Carry out a call unless that was begun on another connection, and return its response.

        Raises what `carry_out` raises, and `Forgotten`. Cancelled, the call is not carried out again.
        """
        known = self._calls.get(call_id)
        if known is not None:
            await known.finished.wait()
            if not known.kept:
                raise Forgotten
            return known.reply
        call = self._calls[call_id] = _Once()
        try:
            call.reply = await carry_out()
            call.kept = call.reply is None or len(call.reply) <= MAX_REPLY
            return call.reply
        finally:
            if not call.kept:
                call.reply = None
            call.finished.set()
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        finished = [call_id for call_id, call in self._calls.items() if call.finished.is_set()]
        for call_id in finished[: max(0, len(self._calls) - MAX_CALLS)]:
            del self._calls[call_id]


class Pages:
    """The pages of one gateway that were connected last."""

    def __init__(self) -> None:
        self._pages: dict[_Key, Page] = {}

    def find(self, access: Access, wanted: ConnectRequest, page_id: str) -> tuple[Page, bool]:
        """Return the page of this id and principal, and whether it was connected before."""
        key = access.credential, wanted, page_id
        page = self._pages.pop(key, None)
        known = page is not None
        self._pages[key] = page = page or Page()
        for old in [key for key, page in self._pages.items() if not page.connections][: len(self._pages) - MAX_PAGES]:
            del self._pages[old]
        return page, known
