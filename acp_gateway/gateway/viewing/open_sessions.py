"""The sessions that one viewer has open, and what it does in them: create, open, prompt, cancel, answer.

Of each it has a feed, and in those that are live an ACP client. A viewer is a browser, a widget or the request of an
editor.
"""

import logging
from collections.abc import AsyncIterator, Callable, Container, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

import trio

from acp_gateway.acp.worktrees import WORKTREE
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.places import place_of
from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.queue import NOT_WAITING, QueueChange
from acp_gateway.errors import AccessError
from acp_gateway.gateway.access import Access, ConnectRequest, unknown_session
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.kept.prompts import LOST
from acp_gateway.gateway.made.worktrees import TIME_LIMIT
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.gateway.viewing.local_client import AwayClients, ClientEnded, LocalClient
from acp_gateway.gateway.viewing.session_feed import SessionFeed
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Kind, Message
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.members import AcpRequest

log = logging.getLogger(__name__)

ANSWER_TIMEOUT: Final = 25.0
"""Seconds for the agent to start and to open a session: browsers wait for 30."""

JOIN_WAIT: Final = 2.0
"""Seconds that a history waits for a client to join its session, which takes no agent's answer."""

HANDLING_TIMEOUT: Final = 5.0
"""Seconds to wait for the gateway to take a prompt, which an agent that is busy reading delays."""

_CONTINUE: Final = {"_meta": {methods.META: {"continue": True}}}

SHOWN: Final = frozenset({methods.REQUEST_PERMISSION, methods.CREATE_ELICITATION})
"""The requests of agents that a user answers."""


class CallRefused(Exception):
    """A call that is answered by an error: of the gateway, or that of an ACP response."""

    def __init__(self, code: int, text: str, data: object = None, response: Message | None = None) -> None:
        self.code = code
        self.data = data
        self.response = response
        """The ACP response whose error is passed on."""
        super().__init__(text)

    @classmethod
    def by(cls, response: Message) -> "CallRefused":
        """Make the refusal of a call whose ACP request has failed."""
        return cls(jsonrpc.INTERNAL_ERROR, "", response=response)


class CannotContinue(CallRefused):
    """The session has ended, and its agent can't open it again."""


@dataclass(slots=True, eq=False)
class Used:
    """A session that a viewer has open."""

    session: Session
    feed: SessionFeed | None = None
    """None while the viewer is not subscribed."""
    client: LocalClient | None = None
    joining: trio.Event | None = None
    """Set when the client has joined, or has failed to."""
    failure: Exception | None = None
    name: str = field(init=False)
    """The name that the viewer knows it by."""

    def __post_init__(self) -> None:
        self.name = self.session.name

    @property
    def joined(self) -> LocalClient | None:
        """The client, if it is attached to the session."""
        client = self.client
        return client if client is not None and not client.ended else None


class OpenSessions:
    """The sessions that one viewer has open.

    Args:
        gateway: the gateway.
        access: the viewer's principal.
        name: the viewer's name in the log; its clients are numbered behind it.
        observe: True to join as an observer.
        shown: methods of the agent's requests that the viewer shows to its user; others are refused.
        start: starts a task that lives as long as the viewer's connection.
        via: kind of client, as others are shown it.
        timeout: seconds for the agent to start and to open a session.
        bound: the only session that exists for the viewer.

    Its coroutines raise `CallRefused`, `AccessError` and `ClientEnded`.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        name: str,
        *,
        observe: bool,
        start: Callable[..., object],
        via: str,
        timeout: float = ANSWER_TIMEOUT,
        shown: Container[str] = SHOWN,
        bound: str | None = None,
    ) -> None:
        self.names: set[str] = set()
        """Names of the viewer's clients."""
        self._gateway = gateway
        self._away = gateway.services.one(AwayClients, gateway)
        self._access = access
        self._name = name
        self._shown = shown
        self._observe = observe
        self._role = Role.OBSERVER if observe else Role.CONTROLLER
        self._start = start
        self._via = via
        self._timeout = timeout
        self._bound = bound
        self._most = gateway.config.limits.subscribed_sessions
        self._used: dict[Session, Used] = {}
        self._clients: set[LocalClient] = set()
        self._numbers = 0

    def __iter__(self) -> Iterator[Used]:
        return iter(list(self._used.values()))

    def get(self, session: Session) -> Used | None:
        """Return a session that is used."""
        return self._used.get(session)

    def use(self, session: Session) -> Used:
        """Return a session that is used from now on. Raises `CallRefused` beyond the limit."""
        used = self._used.get(session)
        if used is None:
            self.check_room()
            for other in self:
                # Agents may use an id that another one has used: the name stands for the later session.
                if other.name == session.name:
                    other.feed = None
            used = self._used[session] = Used(session)
        return used

    def check_room(self) -> None:
        """Raise `CallRefused` if no further session may be used."""
        if len(self._used) >= self._most:
            why = f"subscribed_sessions ({self._most}) are in use on this connection: leave some, or use another one"
            raise CallRefused(jsonrpc.INVALID_REQUEST, why, {"reason": "too_many_sessions"})

    async def leave(self, session: Session, *, ends_agent: bool = True) -> None:
        """Use a session no more. Its client stays if its leaving would end the agent, unless `ends_agent`."""
        used = self._used.get(session)
        if used is None:
            return
        used.feed = None
        client = used.joined
        if client is not None and not ends_agent and self._gateway.config.is_private(session.agent):
            return
        del self._used[session]
        if used.client is not None:
            await used.client.leave()

    async def close(self) -> None:
        """Leave all sessions, as the viewer has left; see `AwayClients` for those that it may take up again."""
        for used in self:
            client = used.joined
            if client is not None and self._away.keep(used.session, client):
                self._clients.discard(client)
        for client in list(self._clients):
            await client.leave()

    def hand_over(self) -> list[tuple[Session, LocalClient]]:
        """Give up the sessions whose clients are there, and return them: the viewer goes on on another connection."""
        found = [(used.session, used.joined) for used in self]
        handed = [(session, client) for session, client in found if client is not None]
        for session, client in handed:
            del self._used[session]
            self.names.discard(client.name)
            self._clients.discard(client)
        return handed

    def take_over(self, handed: list[tuple[Session, LocalClient]]) -> None:
        """Take clients that another connection of the viewer has given up, without subscribing to their sessions."""
        for session, client in handed:
            self._add(client)
            used = self._used.setdefault(session, Used(session))
            if used.client is None:
                used.client = client

    def join_again(self, used: Used) -> None:
        """Attach a client to a session that has become live, unless that has failed already."""
        if used.joined is None and used.joining is None and used.failure is None and self.is_open(used.session):
            used.joining = trio.Event()
            self._start(self._join, used)

    # Joining

    def is_open(self, session: Session) -> bool:
        """Return True if a client can join a session without starting anything."""
        if not session.live or session.state is not SessionState.OPEN:
            return False
        handle = session.agent_handle
        return any(hub.multiplexer.agent_handle is handle and not hub.ended for hub in self._gateway.hubs)

    def new_client(self, connect_request: ConnectRequest) -> LocalClient:
        """Return a new client, which is served from now on; `initialize` follows. Raises `AccessError`."""
        self._numbers += 1
        name = f"{self._name} #{self._numbers}"
        # The client is needed in its own callback, which is called later.
        clients: list[LocalClient] = []
        client = LocalClient(
            self._gateway, self._access, connect_request, name, lambda message: self._receive(clients[0], message)
        )
        clients.append(client)
        self._add(client)
        # It may outlive the viewer's connection.
        self._gateway.start_task(self._serve, client)
        return client

    def _receive(self, client: LocalClient, message: Message) -> None:
        """Refuse what clients of this kind can't do for an agent; users' questions are read from the session."""
        if message.kind is Kind.REQUEST and methods.current_name(message.method) not in self._shown:
            try:
                why = f"a client of the kind {self._via} can't do this"
                client.send(jsonrpc.error(message.id, jsonrpc.METHOD_NOT_FOUND, why))
            except ClientEnded:
                pass

    def _add(self, client: LocalClient) -> None:
        self.names.add(client.name)
        self._clients.add(client)

    async def _serve(self, client: LocalClient) -> None:
        try:
            await client.run()
        finally:
            self.names.discard(client.name)
            self._clients.discard(client)

    def request_to_join(self, session: Session) -> ConnectRequest:
        """Return the request to join a session."""
        return ConnectRequest(agent=session.agent, session=session.id, observe=self._observe, via=self._via)

    async def join(self, session: Session) -> LocalClient:
        """Return the client in a session; attaches one, and opens the session again if that is not live.

        Cancelled, it goes on.
        """
        used = self._used.get(session) or self.use(session)
        joined = used.joined
        if joined is not None:
            return joined
        if used.joining is None:
            used.joining = trio.Event()
            self._start(self._join, used)
        await used.joining.wait()
        if used.failure is not None:
            raise used.failure
        assert used.client is not None
        return used.client

    async def _join(self, used: Used) -> None:
        used.failure = None
        superfluous = None
        try:
            client = await self._joined(used.session)
            if used.joined is None:
                used.client = client
            else:
                # `session/new` has been answered, with the client that has created the session.
                superfluous = client
        except (CallRefused, AccessError, ClientEnded) as error:
            used.failure = error
        finally:
            joining, used.joining = used.joining, None
            if joining is not None:
                joining.set()
        if self._used.get(used.session) is not used:
            # The viewer has left the session since.
            superfluous = used.client
        if superfluous is not None:
            await superfluous.leave()

    def _check_agent_has(self, session: Session) -> None:
        """Raise `CannotContinue` for a session whose agent has given its id to another one."""
        if session.aside:
            why = f"the agent {session.agent} has given the id {session.id:.80} to another session; read this one"
            raise CannotContinue(jsonrpc.INTERNAL_ERROR, why)

    async def _joined(self, session: Session) -> LocalClient:
        self._check_agent_has(session)
        # Nothing would leave again a client that is taken over for a viewer that has left.
        await trio.lowlevel.checkpoint_if_cancelled()
        kept = self._away.take(session, self._access, self._role, self._via)
        if kept is not None:
            self._add(kept)
            return kept
        client = self.new_client(self.request_to_join(session))
        async with self._opening(client, session.agent):
            await initialized(client)
            cwd = session.cwd or self.default_directory(session.agent) or "/"
            params: dict[str, Any] = {"cwd": cwd, "mcpServers": []}
            if session.live:
                method, params = methods.RESUME, {"sessionId": session.id, **params}
            else:
                method, params = methods.NEW, {**params, **_CONTINUE}
            response = await client.request(method, jsonrpc.encode(params))
            if response.error:
                if method == methods.NEW and lookup.error_code(response) == jsonrpc.METHOD_NOT_FOUND:
                    why = f"the agent {session.agent} can't continue a session after its process has ended"
                    raise CannotContinue(jsonrpc.INTERNAL_ERROR, why)
                raise CallRefused.by(response)
        return client

    async def try_join(self, session: Session) -> None:
        """Join a session for `JOIN_WAIT` seconds at most: its history can be read all the same."""
        with trio.move_on_after(JOIN_WAIT):
            try:
                await self.join(session)
            except Exception as error:
                # The next call for the session tells why.
                log.debug("%s: can't join session %.80r: %s", self._name, session.id, error)

    @asynccontextmanager
    async def _opening(self, client: LocalClient, agent: str, more: float = 0.0) -> AsyncIterator[None]:
        """Bound the time in which a client opens a session, `more` seconds included; it leaves if that fails."""
        timeout = self._timeout + more
        try:
            with trio.fail_after(timeout):
                yield
        except trio.TooSlowError:
            await client.leave()
            raise too_slow(agent, timeout) from None
        except BaseException:
            with trio.CancelScope(shield=True):
                await client.leave()
            raise

    def default_directory(self, agent: str) -> str | None:
        """Return the directory of a session that names none: the first workspace that the viewer may use."""
        allowed = self._access.workspaces
        usable = (it for it in self._gateway.services.workspaces(agent) if allowed is None or it.name in allowed)
        return next((it.root for it in usable), None)

    async def create(self, agent: str, cwd: str | None, worktree: str | None = None) -> Session:
        """Create a session, and return it; the client that has created it is the one in it.

        `worktree` is the name of the git working tree that it gets, empty for any; None if it need not have one.
        Cancelled, the session may be created all the same.
        """
        self.check_room()
        client = self.new_client(ConnectRequest(agent=agent, via=self._via))
        cwd = cwd or self.default_directory(agent)
        made = cwd and self._gateway.services.worktrees.wanted(agent, cwd, worktree)
        async with self._opening(client, agent, 0.0 if made is None else TIME_LIMIT):
            await initialized(client)
            if cwd is None:
                why = "there is no workspace for a session: configure one, or name a directory as cwd"
                raise CallRefused(jsonrpc.INVALID_PARAMS, why)
            params: dict[str, Any] = {"cwd": cwd, "mcpServers": []}
            if worktree is not None:
                params["_meta"] = {methods.META: {WORKTREE: worktree}}
            return await self._open(client, agent, None, params)

    async def fork(self, session: Session) -> Session:
        """Have the agent make a second session with the history of this one, and return it.

        Raises `CallRefused`, also if the agent can't. Cancelled, the session may be created all the same.
        """
        if self._bound is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, "this connection is for one session only: no session/fork")
        self._check_agent_has(session)
        self.check_room()
        client = self.new_client(ConnectRequest(agent=session.agent, via=self._via))
        async with self._opening(client, session.agent):
            await initialized(client)
            if not can_fork(client):
                raise CallRefused(jsonrpc.INVALID_REQUEST, f"the agent {session.agent} can't fork a session")
            params = {"sessionId": session.id, "cwd": session.cwd or "/", "mcpServers": []}
            return await self._open(client, session.agent, None, params, methods.FORK)

    async def open_there(self, agent: str, session_id: str, cwd: str) -> Session:
        """Open a session that was not opened through this gateway, and return it.

        Cancelled, it may be opened all the same.
        """
        self.check_room()
        client = self.new_client(ConnectRequest(agent=agent, session=session_id, observe=self._observe, via=self._via))
        async with self._opening(client, agent):
            await initialized(client)
            return await self._open(client, agent, session_id, {"cwd": cwd, "mcpServers": [], **_CONTINUE})

    async def list_of(self, agent: str, cursor: str | None) -> Message:
        """Return an agent's response to `session/list`. Cancelled, its process may be started all the same."""
        client = self.new_client(ConnectRequest(agent=agent, via=self._via))
        async with self._opening(client, agent):
            await initialized(client)
            response = await client.request(methods.LIST, jsonrpc.encode({} if cursor is None else {"cursor": cursor}))
            if response.error:
                raise CallRefused.by(response)
        await client.leave()
        return response

    async def _open(
        self, client: LocalClient, agent: str, session_id: str | None, params: dict[str, Any], method: str = methods.NEW
    ) -> Session:
        """Open a session, and return it. Without an id it is the one that the agent names."""
        response = await client.request(method, jsonrpc.encode(params))
        if response.error:
            raise CallRefused.by(response)
        if session_id is None:
            session_id = lookup.text_at(response.text, "result", "sessionId") or ""
        session = self._gateway.registry.find(client.grant.reach, agent, session_id)
        if session is None:
            raise CallRefused(jsonrpc.INTERNAL_ERROR, f"the agent {agent} has opened no session")
        await self._adopt(client, session)
        return session

    async def _adopt(self, client: LocalClient, session: Session) -> None:
        """Take the client that has opened a session as the one in it."""
        used = self.use(session)
        former, used.client = used.client, client
        if former is not None:
            await former.leave()

    # What a viewer does in sessions

    def find(self, session_id: str, viewer: Viewer) -> Session:
        """Return a session. Raises `UnknownSession` if none of that id exists for the viewer."""
        session = self.standing_for(session_id, viewer)
        if session is None:
            raise unknown_session(session_id)
        if self._access.session is not None:
            # A guest's token is for the session that it leads to first.
            self._gateway.admissions.authorize(self._access, ConnectRequest(session=session.id))
        return session

    def standing_for(self, name: str, viewer: Viewer) -> Session | None:
        """Return the session that a name stands for; None if none of that name exists for the viewer.

        Ids are one agent's at the most. A name that the connection uses stands for the same session until it leaves
        that, or opens another one of the name.
        """
        for used in reversed(self._used.values()):
            if used.session.name == name and viewer.sees(used.session):
                return used.session
        return self._gateway.views.find(viewer, name)

    @property
    def default_agent(self) -> str:
        """The agent of a session that names none."""
        agents = self._access.agents
        return agents[0] if agents is not None and len(agents) == 1 else self._gateway.config.default_agent

    async def new(self, method: str, agent: str | None, cwd: str | None, worktree: str | None = None) -> Session:
        """Create a session of this agent, or the default one, and return it. `method` is what the dialect calls this.

        `worktree` is as for `create`. Cancelled, the session may be created all the same.
        """
        if self._bound is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, f"this connection is for one session only: no {method}")
        return await self.create(agent or self.default_agent, cwd, worktree)

    async def prompt(self, session: Session, request: AcpRequest, failed: Callable[[Message], None]) -> None:
        """Send a prompt, and return once it runs or waits in the queue.

        `failed` is called if it is refused later without a turn; the end of a turn is told by the session's feed.
        """
        client = await self.join(session)
        refused: list[Message | None] = []
        told, turn = False, session.last_turn

        def answered(response: Message | None) -> None:
            refused.append(response)
            # The feed tells the end of a turn.
            if told and response is not None and response.error and session.last_turn is turn:
                failed(response)

        client.start_request(*request, answered)
        with trio.move_on_after(HANDLING_TIMEOUT):
            await client.handled()
        if refused and (refused[0] is None or refused[0].error):
            response = refused[0]
            raise (
                CallRefused(jsonrpc.INTERNAL_ERROR, "the agent has ended")
                if response is None
                else CallRefused.by(response)
            )
        told = True

    async def cancel(self, session: Session, epoch: str = "", seen: int | None = None) -> None:
        """Cancel the turn of a session and its queue, if there are any.

        `seen` is the number of the last update, in an epoch, that the viewer was shown; None if it does not tell.
        """
        if session.live and (session.turns or session.queue):
            meant: dict[str, Any] = {}
            if seen is not None:
                place = place_of(session, session.journal.shared_with(epoch, seen) or 0)
                # First in the params, so that the agent gets nothing of it.
                meant = {"_meta": {methods.META: {"epoch": place[0], "position": place[1]}}}
            client = await self.join(session)
            client.notify(methods.SESSION_CANCEL, jsonrpc.encode({**meant, "sessionId": session.id}))
            with trio.move_on_after(HANDLING_TIMEOUT):
                await client.handled()

    async def change_queue(self, session: Session, change: QueueChange) -> None:
        """Change a prompt that waits in a session. A removed one is not on the disk any more when this returns."""
        why: str | None = NOT_WAITING
        if change.key in session.kept:
            why = await self._change_kept(session, change)
        elif session.queue:
            client = await self.join(session)
            why = client.change_queue(session, change)
        if why is not None:
            reason = {"reason": "not_waiting"} if why == NOT_WAITING else None
            raise CallRefused(jsonrpc.INVALID_REQUEST, why, reason)
        if change.action == "remove":
            with trio.move_on_after(HANDLING_TIMEOUT) as writing:
                await self._gateway.storage.prompts_written()
            if writing.cancelled_caught:
                why = "it is removed, but the disk can't be written: after a restart it may be there again"
                raise CallRefused(jsonrpc.INTERNAL_ERROR, why)

    async def _change_kept(self, session: Session, change: QueueChange) -> str | None:
        """Change a prompt that waits without a request; return why that is refused, if it is."""
        grant = self._gateway.admissions.authorize(self._access, self.request_to_join(session))
        if grant.role is Role.OBSERVER or grant.reach.guest:
            return "only controllers of its owner change what waits for a time or a person"
        if change.action == "remove":
            return None if self._gateway.remove_prompt(session, change.key, self._access) else NOT_WAITING
        if change.action != "send_now":
            return "this prompt waits for no turn: remove it or send it"
        if session.kept[change.key].shown.state == "lost":
            return LOST
        await self.prompt(session, release(session, change.key), lambda _: None)
        return None

    async def answer(
        self, session: Session, agent_request: AgentRequest, result: bytes | None, error: bytes | None = None
    ) -> None:
        """Answer a request of the agent with this result or error, which are JSON texts."""
        await self.join(session)
        if not self.answer_at_once(session, agent_request, result, error):
            raise not_open("this request is not open any more")

    def answer_at_once(
        self, session: Session, agent_request: AgentRequest, result: bytes | None, error: bytes | None = None
    ) -> bool:
        """Answer a request of the agent as `answer`; return False if a client has to join the session first."""
        used = self._used.get(session)
        client = None if used is None else used.joined
        if client is None:
            return False
        if client.has(agent_request):
            reply = agent_request.reply(result, error)
            if reply is None:
                raise CallRefused(jsonrpc.INVALID_PARAMS, "the response is not one that the agent has offered")
            if client.answer(agent_request, reply):
                return True
        raise not_open("this request is not open any more")

    async def pass_on(self, session: Session, request: AcpRequest) -> Message:
        """Pass a request on to the agent of a session, and return its response."""
        return await bounded(await self.join(session), request, session.agent)


def release(session: Session, key: str) -> AcpRequest:
    """Return the request that sends a kept prompt."""
    params = {"sessionId": session.id, "prompt": [], "_meta": {methods.META: {"queue": {"release": key}}}}
    return AcpRequest(methods.PROMPT, jsonrpc.encode(params))


async def initialized(client: LocalClient) -> Message:
    """Initialize a client; return the response. Raises `CallRefused` if the agent can't be started."""
    response = await client.initialize()
    if response.error:
        raise CallRefused.by(response)
    return response


def too_slow(agent: str, timeout: float = ANSWER_TIMEOUT) -> CallRefused:
    """Return the refusal of a call that the agent has not answered in so many seconds."""
    why = f"the agent {agent} has not answered within {timeout:g} s; it may still be starting: try again"
    return CallRefused(jsonrpc.INTERNAL_ERROR, why, {"reason": "slow"})


def prompt_capabilities(client: LocalClient | None) -> bytes:
    """Return what prompts may contain, as the agent told this client: JSON text."""
    if client is None or client.initialized is None:
        return b"null"
    return lookup.raw_at(client.initialized.text, "result", "agentCapabilities", "promptCapabilities") or b"null"


def can_fork(client: LocalClient | None) -> bool:
    """Return True if the agent has told this client that it can fork a session."""
    if client is None or client.initialized is None:
        return False
    told = lookup.raw_at(client.initialized.text, "result", "agentCapabilities", "sessionCapabilities", "fork")
    return told is not None and told[:1] == b"{"


async def bounded(client: LocalClient, request: AcpRequest, agent: str) -> Message:
    """Pass a request on, and return the response. Raises `CallRefused` and `ClientEnded`."""
    try:
        with trio.fail_after(ANSWER_TIMEOUT):
            response = await client.request(*request)
    except trio.TooSlowError:
        raise too_slow(agent) from None
    if response.error:
        raise CallRefused.by(response)
    return response


def not_open(text: str = "no open request has this id") -> CallRefused:
    """Return the refusal of an answer that comes too late, or to nothing."""
    return CallRefused(jsonrpc.INVALID_PARAMS, text, {"reason": "not_open"})
