"""Openings of sessions at the agent, from the first request until they are open or gone: which history counts.

Other requests for the session wait for that. Many agents store nothing of a session before its first prompt: it ends
with their process, while an editor has it open. Such a session is made again: its clients keep the id, and the agent
has another one (`core/sessions/agent_ids.py`).
"""

from abc import ABC, abstractmethod
from functools import partial

from acp_gateway.acp.worktrees import WORKTREE
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import DropWorktree
from acp_gateway.core.requests import OwnRequest, Worktree
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions.joining import Joining
from acp_gateway.core.sessions.known_history import end_former_epoch, is_held, recover_end, take_replay, write_change
from acp_gateway.core.sessions.own_meta import CHOSEN, with_result_meta, without_own_meta
from acp_gateway.core.sessions.rejoining import refuse_returning
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Request, Session, Transit
from acp_gateway.core.sessions.stored import with_status
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns import updates
from acp_gateway.core.turns.cut_turns import record_cut_turn
from acp_gateway.core.turns.journal import Journal
from acp_gateway.core.turns.replays import Replay
from acp_gateway.core.turns.retelling import Retelling, prompts
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import MAY_BE_MISSING, gap
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup, spans


class Opening(ABC, Transit):
    """The opening of a session, until the agent's response or the end of its process.

    Args:
        known: the history that the agent's replay is compared with; None if that may replace it.
        to: a client that gets the replay as it comes.
        may_renew: True if the session may be made again, should it have had no prompt yet.
    """

    def __init__(
        self,
        agent: AgentState,
        routing: Routing,
        session: Session,
        known: Retelling | None,
        to: Client | None = None,
        *,
        may_renew: bool,
    ) -> None:
        self._agent = agent
        self._routing = routing
        self._session = session
        self._replay = Replay(agent.new_journal(), known)
        self._to = to
        self._may_renew = may_renew
        # The agent's refusal, while it is asked to make the session again instead.
        self._refusal: Message | None = None

    @property
    def recorded(self) -> Journal:
        return self._replay.recorded

    def takes(self, update: Message, state: str | None) -> bool:
        self._replay.take(update, state)
        if self._to is not None:
            entry = self._agent.terminals.translations(update.text, [self._to]).get(self._to, update.entry)
            self._agent.out.replay(self._to, [entry], self.recorded.position - 1)
        return True

    @abstractmethod
    def _opened(self, response: Message) -> None:
        """Handle the agent's result."""

    @abstractmethod
    def _refused(self, response: Message) -> None:
        """Handle the agent's error."""

    def _answered(self, _request: Request | OwnRequest, response: Message) -> None:
        """Handle the agent's response to opening the session."""
        if response.error and self._may_renew and self._session.is_unprompted:
            self._refusal = response
            own = OwnRequest(self._session.opening_request(methods.NEW))
            self._agent.open_requests.forward(own, self._renewed, names_for=self._session.account)
        else:
            self._end(response)

    def _renewed(self, _own: OwnRequest, response: Message) -> None:
        """Handle the agent's response to making the session again."""
        session, refusal = self._session, self._refusal
        assert refusal is not None
        agent_id = lookup.text_at(response.text, "result", "sessionId")
        if response.error or agent_id is None or len(agent_id) > SESSION_ID_SIZE or self._is_taken(agent_id):
            self._end(refusal)
        else:
            self._agent.out.log(f"session {session.id:.80} had no prompt yet, and was made again")
            session.archive.meter(session, "made")
            self._agent.registry.set_agent_id(session, agent_id)
            self._agent.out.ids.set(session.id, session.agent_id)
            result = lookup.members_at(response.text, "result")
            result.pop("sessionId", None)
            self._end(jsonrpc.parse(b'{"jsonrpc":"2.0","id":0,"result":%b}' % jsonrpc.compose(result)))
            for update in self._routing.take_early(agent_id):
                self._routing.update(self._agent.out.ids.from_agent(update))
        self._routing.sort_early()

    def _is_taken(self, agent_id: str) -> bool:
        """Return True if another session has the id at the agent."""
        here = self._agent.out.ids.here(agent_id)
        other = self._agent.live.get(here or "")
        return other is not None and other is not self._session

    def _end(self, response: Message) -> None:
        """End the opening with the agent's response."""
        if response.error:
            self._agent.unopened.remember_reason(self._session, response)
            self._refused(response)
            return
        self._opened(response)
        session = self._session
        session.move_to(SessionState.OPEN)
        session.expect_retelling()
        self._agent.histories.keep_title(session)
        self._routing.route_again()
        self._agent.waiting.resume(Until.SESSION_OPEN, session)
        self._agent.waiting.resume(Until.SESSION_REOPENED, session.id)


class ClientOpening(Opening):
    """The opening of a session that was not live, for a client.

    Args:
        asker: the request of the client.
        own: the gateway's request to the agent, for which that of the client waits; None if that is forwarded itself.
    """

    def __init__(
        self,
        agent: AgentState,
        routing: Routing,
        session: Session,
        asker: Request,
        own: OwnRequest | None,
        known: Retelling | None,
    ) -> None:
        self._asker = asker
        self._own = own
        # Nothing is known of the session, here or by the client: that gets what the agent says as it is.
        self._is_all_new = own is None and asker.findings.rejoin is None and not session.journal.position
        loads = self._is_all_new and asker.message.method == methods.LOAD
        to = asker.client if loads else None
        super().__init__(agent, routing, session, known, to, may_renew=session.journal_loaded)
        # A failed request for an unknown id does not make its client the owner.
        self._is_first = not agent.registry.known(session.agent, session.id)

    def start(self) -> None:
        """Add the session to the process, and ask the agent for it."""
        session, request = self._session, self._own or self._asker
        message = request.message
        text = message.text
        if message.method == methods.RESUME and self._agent.process.abilities.load:
            text = _resume_as_load(message)
        elif message.method == methods.RESUME and (not is_held(session) or session.journal.truncated):
            self.recorded.begin_truncated()
        self._agent.add_session(session, SessionState.OPENING, self)
        self._routing.session_added(session)
        self._agent.open_requests.forward(request, self._answered, without_own_meta(text))

    def _opened(self, response: Message) -> None:
        session = self._session
        if is_held(session):
            if session.may_lack_end and self._is_all_new:
                self._replace_end()
            elif session.may_lack_end:
                recover_end(self._agent.histories, session, self._replay)
            end_former_epoch(session, self._agent.clock.wall_time)
        record_cut_turn(session)
        take_replay(self._agent.histories, session, self._replay)
        session.keep_result(response)
        if self._is_all_new:
            self._answer(response)
        elif self._own is None and not self._asker.client.gone:
            rejoin = self._asker.findings.rejoin
            Joining(self._agent, self._routing, session, self._asker.client, rejoin).load(self._asker)
            self._agent.give_notice(self._asker, session)

    def _replace_end(self) -> None:
        """Let the replay be the history that is not known here; without a prompt in it, messages may be missing."""
        self._session.may_lack_end = False
        if not any(prompts(self._session.id, self.recorded)):
            self.takes(jsonrpc.parse(gap(self._session.id, MAY_BE_MISSING)), None)

    def _answer(self, response: Message) -> None:
        """Answer the client with the agent's own response, behind the replay, and attach it."""
        request, client, session = self._asker, self._asker.client, self._session
        client.joined = True
        is_load = request.message.method == methods.LOAD
        more = {"replayed": "all"} if is_load else {}
        self._agent.respond(request, with_status(client, session, response, **more))
        if client.gone:
            return
        if request.message.method == methods.RESUME:
            Joining(self._agent, self._routing, session, client).send_states()
        self._agent.attach(session, client, hosts=True)
        self._agent.give_notice(request, session)
        self._routing.joined(session, client)

    def _refused(self, response: Message) -> None:
        held = self._agent.waiting.release(Until.SESSION_OPEN, self._session)
        self._routing.remove_session(self._session, forgotten=self._is_first)
        if self._own is None or self._asker in held:
            self._agent.respond(self._asker, response)
        for waiting in held:
            if waiting is not self._asker:
                self._agent.waiting.handle(waiting)
        refuse_returning(self._agent, self._session)


class Reopening(Opening):
    """The opening of a session in a new process: its clients, which are attached still, have its history already."""

    def __init__(self, agent: AgentState, routing: Routing, session: Session) -> None:
        super().__init__(agent, routing, session, Retelling(session.id, session.journal), may_renew=True)

    def start(self) -> None:
        """Ask the agent for the session."""
        self._session.move_to(SessionState.OPENING, self)
        method = methods.RESUME if self._agent.process.abilities.resume else methods.LOAD
        self._agent.open_requests.forward(OwnRequest(self._session.opening_request(method)), self._answered)

    def _opened(self, response: Message) -> None:
        # What has changed may be new to the clients.
        for text in updates.changes(self._session, response):
            write_change(self._agent.histories, self._session, text)
        take_replay(self._agent.histories, self._session, self._replay)
        self._session.merge_result(response)

    def _refused(self, response: Message) -> None:
        agent, session = self._agent, self._session
        agent.out.log(f"the agent cannot re-open session {session.id:.80}")
        held = agent.waiting.release(Until.SESSION_OPEN, session)
        self._routing.remove_session(session, forgotten=False)
        for waiting in held:
            why = f"the agent has ended, and it cannot re-open session {session.id:.80}"
            reason = agent.unopened.reason(waiting.client, session.id)
            why += "" if reason is None else f": {reason}"
            agent.refuse(waiting, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session.id})


class NewSession:
    """A session that the agent is asked to make and to name: by `session/new`, or `session/fork` of the `parent`."""

    def __init__(self, agent: AgentState, routing: Routing, request: Request, parent: Session | None = None) -> None:
        self._agent = agent
        self._routing = routing
        self._request = request
        self._parent = parent

    def start(self) -> None:
        """Ask the agent."""
        self._request.session = self._parent
        account = self._request.client.reach.account
        self._agent.open_requests.forward(self._request, self._answered, names_for=account)

    def _answered(self, request: Request, response: Message) -> None:
        """Handle the agent's response, after which updates that came before it have their session."""
        session_id = lookup.text_at(response.text, "result", "sessionId")
        flaw = None if response.error or session_id is None else self._flaw_of(session_id)
        if response.error or session_id is None or flaw is not None:
            if self._made is not None:
                self._agent.out.effect(DropWorktree(request.client, self._made))
            if flaw is None:
                self._agent.respond(request, response)
            else:
                self._agent.refuse(request, jsonrpc.INTERNAL_ERROR, flaw)
        else:
            session = self._agent.live.get(session_id) or self._agent.new_session(session_id, request.client.reach)
            self._open(session, response)
            self._answer(session, response)
        self._routing.sort_early()

    @property
    def _made(self) -> Worktree | None:
        return self._request.findings.worktree

    def _flaw_of(self, session_id: str) -> str | None:
        """Return why the agent may not give its new session this id; None if it may."""
        if len(session_id) > SESSION_ID_SIZE:
            return f"the agent gave a session an id of more than {SESSION_ID_SIZE} characters"
        session = self._agent.live.get(session_id)
        is_other = session is not None and (
            session.agent_id is not None
            or session.transit is not None
            or not self._request.client.reach.sees(session)
            # Its own history would be lost.
            or (self._request.message.method == methods.FORK and session is not self._parent)
        )
        if is_other or self._agent.out.ids.here(session_id) != session_id:
            return f"the agent gave the id {session_id:.80} to a second session"
        return None

    def _open(self, session: Session, response: Message) -> None:
        """Add the session to the process, unless it is there, with the history of its parent."""
        request, parent = self._request, self._parent
        session.keep_setup(request.message)
        session.workspace = request.findings.workspace or (None if parent is None else parent.workspace)
        if not session.live:
            self._agent.add_session(session, SessionState.OPEN)
            session.archive.meter(session, "made", parent)
            self._routing.session_added(session)
        session.keep_result(response)
        if self._made is not None:
            session.made = self._made
            about = {"session": session.id, "path": self._made.directory, "branch": self._made.branch}
            self._agent.out.audit("worktree_made", request.client, agent=self._agent.name, **about)
        if parent is not None and parent.journal.epoch:
            rewrite = partial(updates.entry_under_session, old=parent.id, new=session.id)
            session.take_journal(parent.journal.copy(rewrite, self._agent.registry.new_epoch()))
            self._agent.out.send_position(session, session.attached)
            session.expect_retelling()
        elif request.message.method == methods.FORK:
            # The journal of an ended session is cleared, so the beginning of the fork is unknown.
            session.journal.begin_truncated()
            session.archive.replace(session)

    def _answer(self, session: Session, response: Message) -> None:
        """Answer the client, attach it, and send what came before."""
        agent, request, client = self._agent, self._request, self._request.client
        if not client.gone:
            agent.attach(session, client, hosts=True)
        check = request.findings.directory_check
        if check is not None and check.chosen is not None:
            told = {CHOSEN: check.chosen} | ({} if self._made is None else {WORKTREE: self._made.branch})
            response = with_result_meta(response, jsonrpc.encode(told))
        agent.respond(request, with_status(client, session, response))
        # Editors drop updates of a session that no response has named.
        for update in self._routing.take_early(session.id):
            self._routing.update(update)
        agent.give_notice(request, session)
        if not client.gone:
            self._routing.joined(session, client)
        agent.waiting.resume(Until.SESSION_REOPENED, session.id)


def _resume_as_load(message: Message) -> bytes:
    """Rewrite a `session/resume` as the `session/load` that replays the history."""
    method = spans.find(message.text, "method")
    params = spans.find(message.text, "params")
    assert method is not None
    assert params is not None
    edits = [(*method, jsonrpc.encode(methods.LOAD))]
    if spans.find(message.text, "params", "mcpServers") is None:
        edits.append((params[0] + 1, params[0] + 1, b'"mcpServers":[],'))
    return spans.splice(message.text, edits)
