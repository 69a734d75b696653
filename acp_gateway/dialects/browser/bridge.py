"""Serves `/ws`: the connection of one browser that speaks JSON-RPC."""

from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import trio

from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.dialects.browser import output as browser_output
from acp_gateway.dialects.browser import requests as browser
from acp_gateway.dialects.browser.calls import BrowserCalls
from acp_gateway.dialects.browser.description import Describer
from acp_gateway.dialects.browser.requests import Answer, Call, Refused
from acp_gateway.dialects.local_client import AwayClients, ClientEnded
from acp_gateway.dialects.members import Sizes
from acp_gateway.dialects.open_sessions import CallRefused
from acp_gateway.dialects.session_connection import SessionConnection
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.sessions.session_changes import Changed
from acp_gateway.protocol import jsonrpc

if TYPE_CHECKING:
    from acp_gateway.dialects.browser.nodes import BrowserNodes

VIA: Final = "browser"
"""Kind of client, as others are shown it."""

WEIGHTS: Final = {
    browser.LIST: 100,
    browser.AGENTS: 5,
    browser.NEW: 20,
    browser.GET: 20,
    browser.DELETE: 20,
    browser.ARCHIVE: 10,
    browser.FILES: 500,
    browser.SHARE: 2000,
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

    Raises what `Gateway.admit` raises.
    """

    def __init__(
        self, gateway: Gateway, away: AwayClients, access: Access, wanted: ConnectRequest, name: str, page: str
    ) -> None:
        super().__init__(gateway, away, access, wanted, name, VIA)
        self.page = page
        self.watches = False
        """True once the browser wants to know of all sessions in scope."""
        limits = gateway.config.limits
        self.nodes: BrowserNodes | None = None
        """The sessions of nodes; None without any."""
        if gateway.extensions.node_sessions is not None:
            from acp_gateway.dialects.browser import nodes as browser_nodes

            self.nodes = browser_nodes.BrowserNodes(
                gateway, gateway.extensions.node_sessions, access, lambda: self.viewer
            )
        self._sizes = Sizes(limits.session_request_size, limits.decision_size)
        # Sessions whose change, or end, the browser is to be told.
        self._changed: dict[Session, bool] = {}
        self._holding = 0

    @property
    def describer(self) -> Describer:
        """Describes sessions for the browser."""
        return Describer(self.views, self.viewer, self.sessions.names, self.nodes)

    def _begin(self) -> None:
        self.calls = BrowserCalls(self)
        if self.nodes is not None:
            self.start(self._listen_to_nodes)

    async def _listen_to_nodes(self) -> None:
        node_sessions = self.gateway.extensions.node_sessions
        assert node_sessions is not None, "there are nodes"
        with node_sessions.listening(self._news.notify):
            await trio.sleep_forever()

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
        if call is not None and call.acts and self.role is Role.OBSERVER:
            refusal = call.error(jsonrpc.METHOD_NOT_FOUND, f"observers may only look: no {call.method}")
            if refusal is not None:
                self.reply(refusal)
            return 1
        if not (isinstance(message, Answer) and self._answer(message)):
            self._start_call(message, self._lane(message), len(text))
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
        waiting = self._waiting(message.session)
        prompts = any(isinstance(it, Call) and it.method == browser.PROMPT for it in waiting)
        return message if message.method == browser.CANCEL and not prompts else message.session

    def _answer(self, answer: Answer) -> bool:
        """Pass an answer on, and send the response; return False if its session has to be joined first."""
        try:
            answered = self.calls.answer_at_once(answer)
        except _FAILURES as error:
            self._respond(answer.call, error=error)
            return True
        if answered:
            self._respond(answer.call, browser.SUCCESS)
        return answered

    async def _serve_call(self, call: Call | Answer) -> None:
        """Serve a call, or the answer to a request of the agent, and send the response."""
        answer, called = (call, call.call) if isinstance(call, Answer) else (None, call)
        try:
            result: bytes | None = browser.SUCCESS
            if answer is not None:
                await self.calls.answer(answer)
            elif called is not None:
                result = await self.calls.serve(called)
        except _FAILURES as error:
            self._respond(called, error=error)
        else:
            self._respond(called, result)

    def _respond(self, call: Call | None, result: bytes | None = None, error: Exception | None = None) -> None:
        """Send the response to a call, unless there was none, or its result was sent already."""
        reply = None
        if call is None:
            return
        if isinstance(error, CallRefused):
            passed_on = error.response
            reply = call.error(error.code, str(error), error.data) if passed_on is None else call.failure(passed_on)
        elif isinstance(error, AccessError):
            code = jsonrpc.INVALID_PARAMS if error.http_status == _NOT_FOUND else error.http_status
            reply = call.error(code, str(error), {"reason": error.reason})
        elif isinstance(error, ClientEnded):
            reply = call.error(jsonrpc.INTERNAL_ERROR, str(error), {"reason": error.reason})
        elif result is not None:
            reply = call.result(result)
        if reply is not None:
            self.reply(reply)

    # To the browser

    def _note(self, changed: Changed) -> None:
        # Told before the sessions that exist: a new one may have the id of one that was removed.
        for session in changed.removed:
            if self.watches or self.sessions.get(session) is not None:
                self._changed[session] = False
        if self.watches:
            self._changed |= dict.fromkeys(changed.sessions, True)

    @contextmanager
    def holding_changes(self) -> Iterator[None]:
        """Tell no changes of sessions in scope in this block; they follow what is sent right after it."""
        self._holding += 1
        try:
            yield
        finally:
            self._holding -= 1
            self._news.notify()

    def _next_news(self) -> list[bytes]:
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
        return self._next_of_nodes() if self.watches and not self._holding and self.nodes is not None else []

    def _next_of_nodes(self) -> list[bytes]:
        """Return the next change that a node has told; none if there is none."""
        assert self.nodes is not None, "there are nodes"
        name = self.nodes.next_changed()
        if name is None:
            return []
        session, row = self.calls.standing_for(name), self.nodes.further(name)
        if session is not None:
            return [browser_output.changed(self.describer.describe(session))]
        return [browser_output.removed(name) if row is None else browser_output.changed(self.nodes.describe(row))]


_NOT_FOUND: Final = 404

_FAILURES: Final = (CallRefused, AccessError, ClientEnded)
