"""Serves `/ws`: the connection of one browser that speaks JSON-RPC."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import trio

from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.dialects.browser import output as browser_output
from acp_gateway.dialects.browser import requests as browser
from acp_gateway.dialects.browser.calls import BrowserCalls
from acp_gateway.dialects.browser.description import Describer
from acp_gateway.dialects.browser.disk_sessions import ToldOnDisk
from acp_gateway.dialects.browser.pages import Forgotten, Page
from acp_gateway.dialects.browser.requests import Answer, Call, Refused
from acp_gateway.dialects.local_client import AwayClients, ClientEnded
from acp_gateway.dialects.members import Sizes
from acp_gateway.dialects.open_sessions import ANSWER_TIMEOUT, HANDLING_TIMEOUT, CallRefused
from acp_gateway.dialects.session_connection import SessionConnection
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.sessions.session_changes import Changed
from acp_gateway.protocol import jsonrpc
from acp_gateway.transports.streams import CloseReason

VIA: Final = "browser"
"""Kind of client, as others are shown it."""

WEIGHTS: Final = {
    browser.LIST: 100,
    browser.AGENTS: 5,
    browser.DISK: 500,
    browser.NEW: 20,
    browser.GET: 20,
    browser.FORK: 20,
    browser.LAST: 100,
    browser.DELETE: 20,
    browser.ARCHIVE: 10,
    browser.SET_TITLE: 10,
    # An edit reads a prompt of megabytes, and each change is audited.
    browser.QUEUE: 200,
    browser.FILES: 500,
    browser.SHARE: 2000,
    browser.EXPORT: 2000,
    browser.SEARCH: 500,
    browser.PUSH_GET: 20,
    browser.PUSH_SUBSCRIBE: 2000,
    browser.PUSH_UNSUBSCRIBE: 2000,
    browser.PUSH_TEST: 2000,
}
"""Messages that a call counts as in rate limits, by what it takes: a search, a write to the disk. Others are one."""


class BrowserBridge(SessionConnection[Call | Answer]):
    """Serves one browser.

    Args:
        gateway: the gateway, which must be running.
        away: its clients that were kept.
        access: the browser's principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        name: its name in the log and the audit.
        page: URL of the gateway's page, as the browser knows it.
        shown: the page that it shows, and whether that was connected before; None if it names none.
        replaces: as in `SessionConnection`.

    Raises what `Gateway.admit` raises.
    """

    shows_doubt = True

    def __init__(
        self,
        gateway: Gateway,
        away: AwayClients,
        access: Access,
        wanted: ConnectRequest,
        name: str,
        page: str,
        shown: tuple[Page, bool] | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        self._shown_page: Page | None = None if shown is None else shown[0]
        self.known = shown is not None and shown[1]
        """True if the page was connected before."""
        # The connection that this one takes over from counts for both.
        replaces = replaces or (self._shown_page is not None and len(self._shown_page.connections) == 1)
        super().__init__(gateway, away, access, wanted, name, VIA, replaces=replaces)
        self.on_disk = ToldOnDisk() if self._shown_page is None else self._shown_page.on_disk
        """The sessions of agents' disks that the browser was told last, also over earlier connections."""
        self.page = page
        self.watches = False
        """True once the browser wants to know of all sessions in reach."""
        limits = gateway.config.limits
        self._sizes = Sizes(limits.session_request_size, limits.decision_size)
        # Sessions whose change, or end, the browser is to be told.
        self._changed: dict[Session, bool] = {}
        # Notifications of open sessions whose id stands for another one now.
        self._moved: list[bytes] = []
        self._holding = 0
        # The nodes that the browser was told; None before it was.
        self._told_machines: list[dict[str, Any]] | None = None
        self._may_have_other_machines = False

    @property
    def machines(self) -> list[dict[str, Any]]:
        """The nodes that the browser may use."""
        led_to, access = self.gateway.extensions.led_to, self.admitted.access
        # Of a connection that is bound to a session here by its address, that is all.
        is_bound = self.admitted.bound is not None and (access.session or access.only) is None
        return [] if led_to is None or is_bound or access.spoken_for else led_to(access)

    def tell_machines(self) -> list[dict[str, Any]]:
        """Return the nodes that the browser may use, as it is told them now; their state is found out."""
        if self.gateway.extensions.looks is not None:
            self.gateway.extensions.looks.look_soon()
        self._told_machines = self.machines
        return self._told_machines

    @property
    def input_bytes(self) -> int:
        """As of every connection; of one without a page, also the size of the sessions that it was told."""
        return super().input_bytes + (self.on_disk.size if self._shown_page is None else 0)

    def close(self, disconnect: Disconnect) -> None:
        """End the connection."""
        super().close(disconnect)
        if self._shown_page is None:
            self.on_disk.clear()

    @property
    def describer(self) -> Describer:
        """Describes sessions for the browser."""
        return Describer(self.gateway.views, self.admitted.viewer, self.sessions.names)

    def _begin(self) -> None:
        self.calls = BrowserCalls(self)
        if self._shown_page is not None:
            self._shown_page.connections.append(self)
        if self.gateway.extensions.directory is not None:
            self.start(self._listen_to_nodes)

    def _ended(self) -> None:
        if self._shown_page is not None and self in self._shown_page.connections:
            self._shown_page.connections.remove(self)

    # Several connections of one page

    def _carry_on(self, page: Page) -> None:
        """Take over from older connections of the page: it has chosen this one."""
        if self not in page.connections:
            return  # A later connection has taken over from this one.
        older = page.connections[: page.connections.index(self)]
        for former in older:
            page.connections.remove(former)
            self.gateway.note_takeover(self.name, former.name, self.admitted.access)
            self.sessions.take_over(former.sessions.hand_over())
            former.start(former._retire)  # noqa: SLF001 - of this class.

    async def _retire(self) -> None:
        """End the connection once its calls have."""
        await self._finish()
        self.close(Disconnect(CloseReason.NORMAL, "another connection of this page carries on"))

    async def _finish(self) -> None:
        """Wait for calls that act: the page calls them again on another connection, where they are not repeated."""
        with trio.move_on_after(ANSWER_TIMEOUT + HANDLING_TIMEOUT):
            while self._shown_page is not None and any(map(_is_once, self.lanes)):
                await self._progress.wait()

    async def _listen_to_nodes(self) -> None:
        directory = self.gateway.extensions.directory
        assert directory is not None, "there are nodes"
        with directory.listening(self._note_machines):
            await trio.sleep_forever()

    def _note_machines(self) -> None:
        self._may_have_other_machines = True
        self._news.notify()

    # From the browser

    def _receive(self, text: bytes) -> int:
        """Begin to serve a message of the browser; return what it counts as."""
        try:
            message = browser.read(text, self._sizes)
        except Refused as refused:
            if refused.reply is not None:
                self.reply(refused.reply)
            return 1
        call = message.call if isinstance(message, Answer) else message
        if self.admitted.role is Role.OBSERVER and call is not None and call.acts:
            refusal = call.error(jsonrpc.METHOD_NOT_FOUND, f"observers may only look: no {call.method}")
            if refusal is not None:
                self.reply(refusal)
            return 1
        if self._shown_page is not None and (call is None or call.method != browser.GATEWAY_INFO):
            self._carry_on(self._shown_page)
        # A page may repeat a call on another connection, so its outcome is kept.
        kept = self._shown_page is not None and call is not None and call.id is not None
        if kept or not (isinstance(message, Answer) and self._answer(message)):
            self.lanes.add(message, self._lane(message), len(text))
        return 1 if call is None else WEIGHTS.get(call.method, 1)

    def _failure(self, why: str) -> bytes:
        return jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, why)

    def _lane(self, message: Call | Answer) -> Hashable:
        """Return the session whose calls a message waits for; itself if it waits for none.

        Answers to the agent wait for none, and neither do cancellations without a prompt before them: the call before
        may wait for an agent that waits for the user.
        """
        if isinstance(message, Answer) or message.session is None:
            return message
        waiting = self.lanes.of(message.session)
        prompts = any(isinstance(it, Call) and it.method in (browser.PROMPT, browser.STEER) for it in waiting)
        return message if message.method == browser.CANCEL and not prompts else message.session

    def _answer(self, answer: Answer) -> bool:
        """Pass an answer on, and send the response; return False if its session has to be joined first."""
        try:
            if not self.calls.answer_at_once(answer):
                return False
            reply = None if answer.call is None else answer.call.result()
        except _FAILURES as error:
            reply = _failure_of(answer.call, error)
        if reply is not None:
            self.reply(reply)
        return True

    async def _serve_call(self, call: Call | Answer | None) -> None:
        """Serve a call, or the answer to a request of the agent, and send the response."""
        answer, call = (call, call.call) if isinstance(call, Answer) else (None, call)
        if self._shown_page is None or call is None or call.id is None or not call.is_once:
            reply = await self._carry_out(answer, call)
        else:
            try:
                reply = await self._shown_page.once(call.id, partial(self._carry_out, answer, call))
            except Forgotten:
                why = "the connection was lost before the answer came"
                reply = call.error(jsonrpc.INTERNAL_ERROR, why, {"reason": "lost"})
        if reply is not None:
            self.reply(reply)

    async def _carry_out(self, answer: Answer | None, call: Call | None) -> bytes | None:
        """Serve a call, or the answer to a request of the agent; return the response, None if there is none."""
        try:
            result: bytes | None = browser.SUCCESS
            if answer is not None:
                await self.calls.answer(answer)
            elif call is not None:
                result = await self.calls.serve(call)
        except _FAILURES as error:
            return _failure_of(call, error)
        return None if call is None or result is None else call.result(result)

    # To the browser

    def reply_to(self, call: Call, result: bytes) -> None:
        """Send the result of a call, which is JSON text. Who waits until a large one is read keeps no copy of it."""
        reply = call.result(result)
        if reply is not None:
            self.reply(reply)

    def _note(self, changed: Changed) -> None:
        # Told before the sessions that exist: a new one may have the id of one that was removed.
        for session in changed.removed:
            if self.watches or self.sessions.get(session) is not None:
                self._changed[session] = False
        for session in changed.sessions:
            used = self.sessions.get(session)
            if used is not None and used.name != session.name:
                # What its agent has given its id to would be prompted in its place.
                self._moved.append(browser_output.moved(used.name, session.name))
                used.name, used.feed = session.name, None
        if self.watches:
            self._changed |= dict.fromkeys(changed.sessions, True)

    @contextmanager
    def holding_changes(self) -> Iterator[None]:
        """Tell no changes of sessions in reach in this block; they follow what is sent right after it."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            self._news.notify()

    def _next_news(self) -> list[bytes]:
        if self._moved:
            moved, self._moved = self._moved, []
            return moved
        while self._changed and not self._holding:
            session, exists = next(iter(self._changed.items()))
            del self._changed[session]
            describer = self.describer
            standing = self.calls.standing_for(session.name)
            if exists and describer.viewer.sees(session):
                # Of several with one name, only that is told which the name stands for.
                if standing is session:
                    return [browser_output.changed(describer.describe(session))]
                continue
            if standing is not None and standing is not session:
                if standing.agent != session.agent and self.sessions.get(standing) is not None:
                    continue
                self._changed[standing] = True
            # Another owner's session may have the id of a guest's.
            if describer.viewer.covers(session):
                return [browser_output.removed(session.name)]
        if self.watches and self._told_machines is not None and self._may_have_other_machines:
            self._may_have_other_machines = False
            told, now = self._told_machines, self.tell_machines()
            return [browser_output.machines_changed(now)] if told != now else []
        return []


def _is_once(call: Call | Answer) -> bool:
    return isinstance(call, Answer) or call.is_once


_NOT_FOUND: Final = 404

_FAILURES: Final = (CallRefused, AccessError, ClientEnded)


def _failure_of(call: Call | None, error: CallRefused | AccessError | ClientEnded) -> bytes | None:
    """Return the response to a call that has failed; None if it gets none."""
    if call is None:
        return None
    if isinstance(error, CallRefused):
        passed_on = error.response
        return call.error(error.code, str(error), error.data) if passed_on is None else call.failure(passed_on)
    code = jsonrpc.INTERNAL_ERROR
    if isinstance(error, AccessError):
        code = jsonrpc.INVALID_PARAMS if error.http_status == _NOT_FOUND else error.http_status
    return call.error(code, str(error), {"reason": error.reason})
