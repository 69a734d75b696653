"""Carries out what the clients of other dialects ask of sessions: open, prompt, cancel, answer."""

from collections.abc import Callable
from typing import Final

import trio

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.local_client import LocalClient
from acp_gateway.dialects.members import AcpRequest
from acp_gateway.dialects.open_sessions import (
    ANSWER_TIMEOUT,
    CallRefused,
    OpenSessions,
    too_slow,
)
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.admission import unknown_session
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message

HANDLING_TIMEOUT: Final = 5.0
"""Seconds to wait for the gateway to take a prompt, which an agent that is busy reading delays."""

_STEPS: Final = 3
"""Rounds of the scheduler after which the refusal of a prompt that was taken has arrived."""


class SessionCalls:
    """The calls of one connection in sessions.

    Args:
        gateway: the gateway.
        access: the principal of the connection.
        sessions: the sessions that the connection uses.
        bound: the only session that exists for it.

    Its coroutines raise `CallRefused`, `AccessError` and `ClientEnded`.
    """

    def __init__(self, gateway: Gateway, access: Access, sessions: OpenSessions, bound: str | None) -> None:
        self._gateway = gateway
        self._access = access
        self._sessions = sessions
        self._bound = bound

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
        for used in reversed(list(self._sessions)):
            if used.session.name == name and viewer.sees(used.session):
                return used.session
        return self._gateway.views.find(viewer, name)

    @property
    def default_agent(self) -> str:
        """The agent of a session that names none."""
        agents = self._access.agents
        return agents[0] if agents is not None and len(agents) == 1 else self._gateway.config.default_agent

    async def create(self, method: str, agent: str | None, cwd: str | None) -> Session:
        """Create a session, and return it. `method` is what the dialect calls this.

        Cancelled, the session may be created all the same.
        """
        if self._bound is not None:
            raise CallRefused(jsonrpc.INVALID_REQUEST, f"this connection is for one session only: no {method}")
        return await self._sessions.create(agent or self.default_agent, cwd)

    async def prompt(self, session: Session, request: AcpRequest, failed: Callable[[Message], None]) -> None:
        """Send a prompt, and return once it runs or waits in the queue.

        `failed` is called if it is refused later without a turn; the end of a turn is told by the session's feed.
        """
        client = await self._sessions.join(session)
        refused: list[Message | None] = []
        told, turn = False, session.last_turn

        def answered(response: Message | None) -> None:
            refused.append(response)
            # The feed tells the end of a turn.
            if told and response is not None and response.error and session.last_turn is turn:
                failed(response)

        client.start_request(*request, answered)
        with trio.move_on_after(HANDLING_TIMEOUT):
            await client.drain()
        for _ in range(_STEPS):
            await trio.lowlevel.checkpoint()
        if refused and (refused[0] is None or refused[0].error):
            response = refused[0]
            raise (
                CallRefused(jsonrpc.INTERNAL_ERROR, "the agent has ended")
                if response is None
                else CallRefused.by(response)
            )
        told = True

    async def cancel(self, session: Session, request: AcpRequest) -> None:
        """Cancel the turn of a session and its queue, if there are any."""
        if session.live and (session.turns or session.queue):
            client = await self._sessions.join(session)
            client.notify(*request)
            with trio.move_on_after(HANDLING_TIMEOUT):
                await client.drain()

    async def answer(
        self, session: Session, agent_request: AgentRequest, result: bytes | None, error: bytes | None = None
    ) -> None:
        """Answer a request of the agent with this result or error, which are JSON texts."""
        client = await self._sessions.join(session)
        if client.has(agent_request):
            reply = agent_request.reply(result, error)
            if reply is None:
                raise CallRefused(jsonrpc.INVALID_PARAMS, "the response is not one that the agent has offered")
            if await client.answer(agent_request, reply):
                return
        raise not_open("this request is not open any more")

    async def pass_on(self, session: Session, request: AcpRequest) -> Message:
        """Pass a request on to the agent of a session, and return its response."""
        return await bounded(await self._sessions.join(session), request, session.agent)


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


def not_open(text: str = "there is no open request of this id") -> CallRefused:
    """Return the refusal of an answer that comes too late, or to nothing."""
    return CallRefused(jsonrpc.INVALID_PARAMS, text, {"reason": "not_open"})
