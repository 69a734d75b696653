"""Session methods that end a session: close, archive and delete."""

from acp_gateway.acp.worktrees import tree_of
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import DropWorktree
from acp_gateway.core.requests import Worktree
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions import preconditions
from acp_gateway.core.sessions.own_meta import asks_to_forget
from acp_gateway.core.sessions.session import Client, Request, Session, Transit
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.turns import Turns
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import Message


class Closing(Transit):
    """The closing, archiving or deletion of a session, until the agent's response.

    Args:
        forgets: True if it removes the session's owner as well.
    """

    def __init__(
        self, agent: AgentState, routing: Routing, turns: Turns, session: Session, request: Request, *, forgets: bool
    ) -> None:
        self._agent = agent
        self._routing = routing
        self._turns = turns
        self._session = session
        self._request = request
        self._forgets = forgets
        self._is_first = not agent.registry.known(session.agent, session.id)

    def start(self) -> None:
        """Forward the request to the agent; a session that was not live is added to this process for it."""
        self._request.session = self._session
        if self._session.live:
            self._session.move_to(SessionState.CLOSING, self)
        else:
            self._agent.add_session(self._session, SessionState.DELETING, self)
        self._agent.open_requests.forward(self._request, self._answered)

    def _answered(self, request: Request, response: Message) -> None:
        held = self._agent.waiting.release(Until.SESSION_OPEN, self._session)
        if not response.error:
            self.end()
        elif self._session.state is SessionState.DELETING:
            self._routing.remove_session(self._session, forgotten=self._is_first)
        else:
            self._session.move_to(SessionState.OPEN)
        self._agent.respond(request, response)
        for waiting in held:
            self._agent.waiting.handle(waiting)

    def end(self) -> None:
        """Remove the session from this process, and a working tree that was made for it in vain."""
        unused = self._unused_tree()
        self._agent.news.notify(self._session, "deleted" if self._forgets else "closed")
        self._turns.cancel_queued(self._session)
        self._routing.remove_session(self._session, forgotten=self._forgets)
        if unused is not None:
            self._agent.out.effect(DropWorktree(self._request.client, unused, self._session))

    def _unused_tree(self) -> Worktree | None:
        """Return the working tree that was made for the session, if nothing was asked in it; None if it stays.

        Who deletes a session says what becomes of its working tree.
        """
        session = self._session
        if session.made is None or self._request.message.method != methods.CLOSE or not session.is_unprompted:
            return None
        tree = tree_of(session.made.directory)
        is_shared = any(other is not session and tree_of(other.cwd) == tree for other in self._agent.registry)
        return None if is_shared else session.made


class SessionClosing:
    """Closes, archives and deletes the sessions of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing, turns: Turns) -> None:
        self._agent = agent
        self._routing = routing
        self._turns = turns

    def close(self, client: Client, request: Request) -> None:
        """Close a session at the agent, or detach the client while other controllers are connected.

        A request to forget it removes its entry as well, also if the agent can't close it: a session that was opened
        as a test is not to be listed.
        """
        session = self._agent.session_of_request(client, request)
        if session is None:
            return
        controllers = (other for other in session.controllers() if other is not client and not other.reach.guest)
        others = any(other.connected for other in controllers)
        may_end = client.controls and not client.reach.guest and not others
        # As for a deletion, which a connection bound to one session may not request.
        forgets = may_end and client.reach.only is None and asks_to_forget(request.message)
        if may_end and self._agent.process.abilities.close:
            self._closing(session, request, forgets=forgets).start()
        elif forgets and not session.turns:
            self._closing(session, request, forgets=True).end()
            self._agent.answer(request, b"{}")
        else:
            self._agent.detach(session, client)
            self._agent.answer(request, b"{}")
            self._agent.unattended.announce()

    def delete(self, client: Client, request: Request) -> None:
        """Delete a session at the agent, live or not."""
        past = self._agent.registry.find(client.reach, self._agent.name, request.message.session or "")
        if past is not None and past.aside and client.controls and client.reach.only is None:
            self._agent.registry.remove(past)
            self._agent.answer(request, b"{}")
            return
        self._end_wherever(client, request, forgets=True)

    def archive(self, client: Client, request: Request) -> None:
        """Archive a session at the agent, live or not, which closes it."""
        self._end_wherever(client, request, forgets=False)

    def _end_wherever(self, client: Client, request: Request, *, forgets: bool) -> None:
        found = preconditions.named(self._agent, client, request)
        if not isinstance(found, Session):
            self._agent.holds(request, found)
        elif found.live or not self._agent.holds(request, preconditions.deletion(self._agent, client, request, found)):
            self._closing(found, request, forgets=forgets).start()

    def _closing(self, session: Session, request: Request, *, forgets: bool) -> Closing:
        return Closing(self._agent, self._routing, self._turns, session, request, forgets=forgets)
