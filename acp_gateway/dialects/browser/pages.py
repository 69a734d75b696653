"""Remembers pages: their connections, the last of them the present one, and the calls that they have made.

A page that doubts its connection opens another one beside it. What it has called on the old one without an answer it
calls again, with the same id; that is carried out once.
"""

from collections import Counter
from collections.abc import Awaitable, Callable, Hashable, MutableSet
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import trio

from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.disk_sessions import ToldOnDisk
from acp_gateway.protocol.jsonrpc import RawId

MAX_OWN_PAGES: Final = 32
"""Pages of one principal that are remembered, besides those of present connections; a person has a handful open."""

MAX_PAGES: Final = 1024
"""The same of all together: a page whose connection was lost is back within seconds, or was closed."""

MAX_CALLS: Final = 32
"""Finished calls that are remembered of a page; unanswered are those of the last seconds."""

MAX_REPLY: Final = 4096
"""Bytes of a response that is remembered; those to prompts and new sessions are shorter."""

_Key: TypeAlias = tuple[Hashable, ConnectRequest, str]


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
    """A page that was connected: an `Input` of the memory limit, with the outcomes of its calls.

    Args:
        account: the identity for whose limits it counts.
        grew: called with the number of bytes that are kept in addition.
    """

    def __init__(self, account: str, grew: Callable[[int], None] = lambda _: None) -> None:
        self.account = account
        self.connections: list[ApiConnection] = []
        """Those that are served, the present one last."""
        self.on_disk = ToldOnDisk()
        """The sessions of agents' disks that the page was told last."""
        self._grew = grew
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
            reply = await carry_out()
            if reply is None or len(reply) <= MAX_REPLY:
                call.reply, call.kept = reply, True
                self._grew(len(call_id) + len(reply or b""))
            return reply
        finally:
            call.finished.set()
            self._forget_oldest()

    def _forget_oldest(self) -> None:
        finished = [call_id for call_id, call in self._calls.items() if call.finished.is_set()]
        for call_id in finished[: max(0, len(self._calls) - MAX_CALLS)]:
            del self._calls[call_id]

    @property
    def input_bytes(self) -> int:
        """Bytes of the outcomes that are kept, and the size of the sessions that it was told."""
        outcomes = sum(len(call_id) + len(call.reply or b"") for call_id, call in self._calls.items() if call.kept)
        return outcomes + self.on_disk.size

    def close(self, _: Disconnect) -> None:
        """Forget these outcomes, but not which calls were carried out, and the sessions. Connections stay."""
        self.on_disk.clear()
        for call in self._calls.values():
            call.kept, call.reply = False, None


class Pages:
    """The pages of one gateway that were connected last.

    Args:
        inputs: what counts in the memory limit; each page is in it for as long as it is remembered.
        grew: called with the number of bytes that are kept in addition.
    """

    def __init__(self, inputs: MutableSet[Any], grew: Callable[[int], None]) -> None:
        self._inputs = inputs
        self._grew = grew
        self._pages: dict[_Key, Page] = {}

    def find(self, access: Access, wanted: ConnectRequest, page_id: str) -> tuple[Page, bool]:
        """Return the page of this id and principal, and whether it was connected before."""
        key = access.principal, wanted, page_id
        page = self._pages.pop(key, None)
        known = page is not None
        self._pages[key] = page = page or Page(access.account, self._grew)
        self._inputs.add(page)
        if not known:
            self._forget_one(access.principal)
        return page, known

    def _forget_one(self, principal: Hashable) -> None:
        """Forget the oldest page without a connection of a principal that has many, or of the one that has most."""
        unused = [key for key, page in self._pages.items() if not page.connections]
        counts = Counter(key[0] for key in unused)
        if counts[principal] <= MAX_OWN_PAGES:
            if len(unused) <= MAX_PAGES:
                return
            principal = max(counts, key=lambda each: counts[each])
        oldest = next(key for key in unused if key[0] == principal)
        self._inputs.discard(self._pages.pop(oldest))
