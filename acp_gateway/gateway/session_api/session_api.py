"""Serves the session API, JSON-RPC, over one connection: that of a browser at `/ws`, or a control connection."""

from collections.abc import Hashable
from typing import Final

import trio

from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.gateway.session_api import requests as api
from acp_gateway.gateway.session_api.calls import SessionCalls
from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.disk_sessions import ToldOnDisk
from acp_gateway.gateway.session_api.requests import Answer, Call, Refused
from acp_gateway.gateway.sessions.session_changes import Changed
from acp_gateway.gateway.viewing.local_client import ClientEnded
from acp_gateway.gateway.viewing.open_sessions import CallRefused
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text.members import Sizes

VIA: Final = "browser"
"""Kind of client, as others are shown it."""

WEIGHTS: Final = {
    api.LIST: 100,
    api.AGENTS: 5,
    api.DISK: 500,
    api.NEW: 20,
    api.GET: 20,
    api.FORK: 20,
    api.LAST: 100,
    api.DELETE: 20,
    api.ARCHIVE: 10,
    api.SET_TITLE: 10,
    # An edit reads a prompt of megabytes, and each change is audited.
    api.QUEUE: 200,
    api.FILES: 500,
    api.CHANGES: 500,
    api.UNDO: 500,
    api.REMOVE_WORKTREE: 500,
    api.MACHINE: 20,
    api.FOLDER: 50,
    api.STAT: 5,
    api.READ: 5,
    api.CREATE: 50,
    api.FINISH: 20,
    api.PORTS: 200,
    api.PREVIEW: 200,
    api.SHARE: 2000,
    api.EXPORT: 2000,
    api.SEARCH: 500,
    api.PUSH_GET: 20,
    api.PUSH_SUBSCRIBE: 2000,
    api.PUSH_UNSUBSCRIBE: 2000,
    api.PUSH_TEST: 2000,
}
"""Messages that a call counts as in rate limits, by what it takes: a search, a write to the disk. Others are one."""


class SessionApi(ApiConnection):
    """Serves one connection.

    Args:
        gateway: the gateway, which must be running.
        access: the client's principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        name: its name in the log and the audit.
        page: URL of the gateway's page, as the client knows it.
        told: the sessions of agents' disks that it was told over earlier connections; they are its own without.
        replaces: as in `SessionConnection`.

    Raises what `Gateway.admit` raises.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        wanted: ConnectRequest,
        name: str,
        page: str,
        told: ToldOnDisk | None = None,
        *,
        replaces: bool = False,
    ) -> None:
        # Another gateway may serve several identities under one here.
        super().__init__(gateway, access, wanted, name, VIA, sees_doubt=not wanted.passed, replaces=replaces)
        self.page = page
        self._told = told
        self._on_disk = ToldOnDisk() if told is None else told
        limits = gateway.config.limits
        self._sizes = Sizes(limits.session_request_size, limits.decision_size)
        # Sessions whose change, or end, the client is to be told.
        self._changed: dict[Session, bool] = {}
        # Notifications of open sessions whose id stands for another one now.
        self._moved: list[bytes] = []
        self._may_have_other_machines = False

    @property
    def input_bytes(self) -> int:
        """As of every connection; also the size of its own sessions of agents' disks."""
        return super().input_bytes + (self._on_disk.size if self._told is None else 0)

    def close(self, disconnect: Disconnect) -> None:
        """End the connection."""
        super().close(disconnect)
        if self._told is None:
            self._on_disk.clear()

    def _begin(self) -> None:
        self.calls = SessionCalls(self, self._on_disk)
        if self.gateway.extensions.directory is not None:
            self.start(self._listen_to_nodes)

    # What the connections of a page add

    def _note_call(self, call: Call | None) -> None:
        """Take note of a call, or an answer without one, before it is served."""

    def _is_kept(self, call: Call | None) -> bool:
        """Return True if the response to a call is kept, as it may be called again over another connection."""
        return False

    async def _listen_to_nodes(self) -> None:
        directory = self.gateway.extensions.directory
        assert directory is not None, "there are nodes"
        with directory.listening(self._note_machines):
            await trio.sleep_forever()

    def _note_machines(self) -> None:
        self._may_have_other_machines = True
        self._news.notify()

    # From the client

    def _receive(self, text: bytes) -> int:
        """Begin to serve a message of the client; return what it counts as."""
        try:
            message = api.read(text, self._sizes)
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
        self._note_call(call)
        if self._is_kept(call) or not (isinstance(message, Answer) and self._answer(message)):
            self.lanes.add(message, self._lane(message), len(text))
        return 1 if call is None else WEIGHTS.get(call.method, 1)

    def _failure(self, why: str) -> bytes:
        return jsonrpc.error(jsonrpc.NO_ID, jsonrpc.INVALID_REQUEST, why)

    def _lane(self, message: Call | Answer) -> Hashable:
        """Return the session whose calls a message waits for; itself if it waits for none.

        Searches at nodes wait for each other, and so do lists. Answers to the agent wait for none, and neither do
        cancellations without a prompt before them: the call before may wait for an agent that waits for the user. Looks
        at changes wait for none, and none for them.
        """
        if isinstance(message, Answer):
            return message
        if message.method == api.CHANGES:
            return message  # git may take half a minute.
        if message.session is None:
            # Each opens a connection to every node.
            return (message.method,) if message.members.get("nodes") or message.members.get("all") else message
        waiting = self.lanes.of(message.session)
        prompts = any(isinstance(it, Call) and it.method in (api.PROMPT, api.STEER) for it in waiting)
        return message if message.method == api.CANCEL and not prompts else message.session

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
        reply = await self._outcome(answer, call)
        if reply is not None:
            self.reply(reply)

    async def _outcome(self, answer: Answer | None, call: Call | None) -> bytes | None:
        """Return the response to a call, or to the answer to a request of the agent; None if there is none."""
        return await self._carry_out(answer, call)

    async def _carry_out(self, answer: Answer | None, call: Call | None) -> bytes | None:
        """Serve a call, or the answer to a request of the agent; return the response, None if there is none."""
        try:
            result: bytes | None = api.SUCCESS
            if answer is not None:
                await self.calls.answer(answer)
            elif call is not None:
                result = await self.calls.serve(call)
        except _FAILURES as error:
            return _failure_of(call, error)
        return None if call is None or result is None else call.result(result)

    # To the client

    def _note(self, changed: Changed) -> None:
        # Told before the sessions that exist: a new one may have the id of one that was removed.
        for session in changed.removed:
            if self.watches or self.sessions.get(session) is not None:
                self._changed[session] = False
        for session in changed.sessions:
            used = self.sessions.get(session)
            if used is not None and used.name != session.name:
                # What its agent has given its id to would be prompted in its place.
                self._moved.append(api_output.moved(used.name, session.name))
                used.name, used.feed = session.name, None
        if self.watches:
            self._changed |= dict.fromkeys(changed.sessions, True)

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
                    return [api_output.changed(describer.describe(session))]
                continue
            if standing is not None and standing is not session:
                if standing.agent != session.agent and self.sessions.get(standing) is not None:
                    continue
                self._changed[standing] = True
            # Another owner's session may have the id of a guest's.
            if describer.viewer.covers(session):
                return [api_output.removed(session.name)]
        if self.watches and self._told_machines is not None and self._may_have_other_machines:
            self._may_have_other_machines = False
            told, now = self._told_machines, self.tell_machines()
            return [api_output.machines_changed(now)] if told != now else []
        return []


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
