"""Serves `/ws`: the connection of one browser, where a page may have several."""

from functools import partial

import trio

from acp_gateway.dialects.browser.pages import Forgotten, Page
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.gateway.session_api.requests import Answer, Call
from acp_gateway.gateway.session_api.session_api import SessionApi
from acp_gateway.gateway.viewing.open_sessions import ANSWER_TIMEOUT, HANDLING_TIMEOUT
from acp_gateway.protocol import jsonrpc


class BrowserBridge(SessionApi):
    """Serves one browser.

    Args:
        gateway: the gateway, which must be running.
        access: the browser's principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        name: its name in the log and the audit.
        page: URL of the gateway's page, as the browser knows it.
        shown: the page that it shows, and whether that was connected before; None if it names none.

    Raises what `Gateway.admit` raises.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        wanted: ConnectRequest,
        name: str,
        page: str,
        shown: tuple[Page, bool] | None = None,
    ) -> None:
        self._shown_page: Page | None = None
        if shown is not None:
            self._shown_page, self.known = shown
        told = None if self._shown_page is None else self._shown_page.on_disk
        # The connection that this one takes over from counts for both.
        replaces = self._shown_page is not None and len(self._shown_page.connections) == 1
        super().__init__(gateway, access, wanted, name, page, told, replaces=replaces)

    def _begin(self) -> None:
        super()._begin()
        if self._shown_page is not None:
            self._shown_page.connections.append(self)

    def _ended(self) -> None:
        if self._shown_page is not None and self in self._shown_page.connections:
            self._shown_page.connections.remove(self)

    def _note_call(self, call: Call | None) -> None:
        """Take over from older connections of the page if it has chosen this one."""
        page = self._shown_page
        if page is None or self not in page.connections or (call is not None and call.method == api.GATEWAY_INFO):
            return  # It has not, or a later connection has taken over from this one.
        older = page.connections[: page.connections.index(self)]
        for former in older:
            page.connections.remove(former)
            self.gateway.note_takeover(self.name, former.name, self.admitted.access)
            self.sessions.take_over(former.sessions.hand_over())
            former.start(former.retire)

    def _is_kept(self, call: Call | None) -> bool:
        return self._shown_page is not None and call is not None and call.id is not None

    async def _outcome(self, answer: Answer | None, call: Call | None) -> bytes | None:
        if self._shown_page is None or call is None or call.id is None or not call.is_once:
            return await self._carry_out(answer, call)
        try:
            return await self._shown_page.once(call.id, partial(self._carry_out, answer, call))
        except Forgotten:
            why = "the connection was lost before the answer came"
            return call.error(jsonrpc.INTERNAL_ERROR, why, {"reason": "lost"})

    async def _finish(self) -> None:
        """Wait for calls that act: the page calls them again on another connection, where they are not repeated."""
        with trio.move_on_after(ANSWER_TIMEOUT + HANDLING_TIMEOUT):
            while self._shown_page is not None and any(map(_is_once, self.lanes)):
                await self._progress.wait()


def _is_once(call: Call | Answer) -> bool:
    return isinstance(call, Answer) or call.is_once
