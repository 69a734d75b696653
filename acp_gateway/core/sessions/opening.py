"""Session methods that open: new, load, resume, fork, and joining an open session.

A live session is never requested from the agent again. A client that loads it gets the history from the journal and is
attached from the next message on, in one step: nothing is missing and nothing comes twice. A session that is not live
is loaded once; other requests for it wait for that.
"""

from collections import Counter
from functools import partial

from acp_gateway.core import access_rules
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.output import CheckDirectories
from acp_gateway.core.requests import DirectoryCheckResult, ErrorObject, OwnRequest
from acp_gateway.core.routing import Routing
from acp_gateway.core.sessions import preconditions
from acp_gateway.core.sessions.agent_opening import ClientOpening
from acp_gateway.core.sessions.joining import join, join_bound
from acp_gateway.core.sessions.known_history import continued, waits_for_journal
from acp_gateway.core.sessions.own_meta import CHOSEN, with_cwd, with_result_meta, without_own_meta
from acp_gateway.core.sessions.rejoining import waits_for_owner
from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, DirectoryCheck, Request, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns import updates
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup


class SessionOpening:
    """Opens the sessions of one agent process."""

    def __init__(self, agent: AgentState, routing: Routing) -> None:
        self._agent = agent
        self._routing = routing

    def new(self, client: Client, request: Request) -> None:
        if client.reach.only is not None:
            if client.joined:
                why = f"this connection is for session {client.reach.only:.80} only: no further session/new"
                self._agent.refuse(request, jsonrpc.INVALID_REQUEST, why)
            else:
                self._join(client, client.reach.only, request)
        elif not client.controls:
            self._agent.refuse(request, jsonrpc.METHOD_NOT_FOUND, "observers may only look: no session/new")
        elif (
            self._passes(request, preconditions.named_session(self._agent, client, request))
            and self._passes(request, preconditions.room(self._agent, request))
            and self._may_open(client, request)
        ):
            self._ask_for_new(client, request)

    def load(self, client: Client, request: Request) -> None:
        """Handle `session/load` or `session/resume`."""
        message = request.message
        if message.session is None:
            self._agent.refuse(request, jsonrpc.INVALID_PARAMS, "sessionId must be a string")
            return
        session = self._agent.session_in_reach(client, message.session)
        rejoin = request.rejoin
        if session is not None:
            join(self._agent, self._routing, session, request)
            return
        if rejoin is not None and waits_for_owner(self._agent, message.session, request):
            return
        session = self.session_to_open(client, message.session, request)
        if (
            session is None
            or not self._passes(request, preconditions.room(self._agent, request))
            or not self._may_open(client, request, session)
        ):
            return
        if waits_for_journal(self._agent, session, request):
            return
        message = request.message
        session.keep_setup(jsonrpc.parse(without_own_meta(message.text)))
        session.workspace = request.workspace or session.workspace
        request.session = session
        known = continued(self._agent, session, rejoin)
        ClientOpening(self._agent, self._routing, session, request, None, known).start()

    def fork(self, client: Client, request: Request) -> None:
        session_id = request.message.session
        if session_id is None:
            self._agent.refuse(request, jsonrpc.INVALID_PARAMS, "sessionId must be a string")
            return
        session = self._agent.session_in_reach(client, session_id)
        past = None if session is not None else self.session_to_open(client, session_id, request)
        if session is None and past is None:
            return
        if not self._passes(request, preconditions.room(self._agent, request)):
            return
        if self._may_open(client, request, session or past):
            request.session = session
            self._ask_for_new(client, request)

    def _ask_for_new(self, client: Client, request: Request) -> None:
        """Ask the agent for a new session."""
        self._agent.openings[client.reach.account] += 1
        self._agent.forward(request, self._opened)

    def _opened(self, request: Request, response: Message) -> None:
        """Handle the response to `session/new` or `session/fork`."""
        client = request.client
        self._agent.openings -= Counter((client.reach.account,))
        session_id = lookup.text_at(response.text, "result", "sessionId")
        if not response.error and session_id is not None:
            if len(session_id) > SESSION_ID_SIZE:
                why = f"the agent gave a session an id of more than {SESSION_ID_SIZE} characters"
                self._agent.refuse(request, jsonrpc.INTERNAL_ERROR, why)
                self._routing.sort_early()
                return
            session = self._agent.live.get(session_id)
            is_other = session is not None and (
                session.agent_id is not None
                or not client.reach.sees(session)
                # Its own history would be lost.
                or (request.message.method == methods.FORK and session is not request.session)
            )
            is_renamed = self._agent.out.ids.here(session_id) != session_id
            if is_other or is_renamed or (session is not None and session.in_transition):
                why = f"the agent gave the id {session_id:.80} to a second session"
                self._agent.refuse(request, jsonrpc.INTERNAL_ERROR, why)
                self._routing.sort_early()
                return
            known = session is not None
            session = session or self._agent.new_session(session_id, client.reach)
            session.keep_setup(request.message)
            session.workspace = request.workspace
            if session.workspace is None and request.session is not None:
                session.workspace = request.session.workspace
            if not known:
                self._agent.add_session(session, SessionState.OPEN)
                self._routing.session_added(session)
            session.keep_result(response)
            if request.session is not None and request.session.journal.epoch:
                rewrite = partial(updates.under_session, old=request.session.id, new=session_id)
                session.take_journal(request.session.journal.copy(rewrite, self._agent.registry.new_epoch()))
                self._agent.send_position(session, session.attached)
                session.expect_retelling()
            elif request.message.method == methods.FORK:
                # The journal of an ended session is cleared, so the beginning of the fork is unknown.
                session.journal.begin_truncated()
                session.archive.replace(session)
            if not client.gone:
                self._agent.attach(session, client, hosts=True)
            chosen = None if request.directory_check is None else request.directory_check.chosen
            if chosen is not None:
                response = with_result_meta(response, jsonrpc.encode({CHOSEN: chosen}))
            self._agent.respond(request, response)
            # Editors drop updates of a session that no response has named.
            for update in self._routing.take_early(session_id):
                self._routing.update(update)
            self._agent.give_notice(request, session)
            if not client.gone:
                self._routing.joined(session, client)
            self._agent.waiting.resume(Until.SESSION_REOPENED, session_id)
        else:
            self._agent.respond(request, response)
        self._routing.sort_early()

    def _join(self, client: Client, session_id: str, request: Request) -> None:
        """Answer the first `session/new` of a connection that is bound to a session."""
        session = self._agent.session_in_reach(client, session_id)
        if session is not None and session.in_transition:
            self._agent.waiting.add(request, Until.SESSION_OPEN, session)
        elif session is not None:
            join_bound(self._agent, self._routing, session, request)
        else:
            session = self.session_to_open(client, session_id, request)
            if session is None or not self._passes(request, preconditions.room(self._agent, request)):
                return
            if request.directory_check is None:
                # The directory of a session opened before is known; no other directory of the request is used.
                cwd = session.cwd if session.setup else access_rules.named_cwd(request.message)
                request.directory_check = DirectoryCheck(request, () if cwd is None else (cwd,))
            result = self._check(request)
            if result is not None and self._passes(
                request, preconditions.joined_directory(self._agent, session, request, result)
            ):
                if waits_for_journal(self._agent, session, request):
                    return
                self._agent.waiting.add(request, Until.SESSION_OPEN, session)
                method = methods.LOAD if self._agent.abilities.load else methods.RESUME
                own = OwnRequest(session.opening_request(method))
                known = continued(self._agent, session, None)
                ClientOpening(self._agent, self._routing, session, request, own, known).start()

    def _may_open(self, client: Client, request: Request, known: Session | None = None) -> bool:
        """Return True if a session may be opened as requested; else it was refused, or waits for the directory check.

        `known` is a session that is re-opened or forked.
        """
        if request.directory_check is None and not self._passes(
            request, preconditions.mcp_servers(self._agent, client, request)
        ):
            return False
        if not self._is_permitted(client, request, known):
            return False
        check = request.directory_check
        directory = None if check is None else check.directory
        if check is not None and directory is not None and access_rules.named_cwd(request.message) is None:
            check.chosen = directory
            request.replace(with_cwd(request.message.text, directory))
        return True

    def may_delete(self, client: Client, request: Request, past: Session) -> bool:
        """Return True if a session that is not live may be deleted; else the request was refused, or waits.

        It is in the process until the response, as one that is re-opened.
        """
        fits = self._passes(request, preconditions.room(self._agent, request))
        return fits and (client.reach.workspaces is None or self._is_permitted(client, request, past))

    def _is_permitted(self, client: Client, request: Request, known: Session | None) -> bool:
        """Return True if the directories of a request are permitted, and that of the `known` session, if any."""
        if request.directory_check is None:
            request.directory_check = self._directories(client, request, known)
        result = self._check(request)
        return result is not None and self._passes(request, preconditions.directories(self._agent, client, result))

    def _directories(self, client: Client, request: Request, known: Session | None) -> DirectoryCheck:
        """Return the directories to check for a request, with that of the `known` session."""
        named = access_rules.directories_of(request.message)
        opens = request.message.method != methods.DELETE
        own = None if known is None else known.cwd
        if opens and access_rules.named_cwd(request.message) is None:
            return DirectoryCheck(request, named if own is None else (own, *named), chooses=own is None)
        if own is None or client.reach.workspaces is None:
            return DirectoryCheck(request, named)
        # Of an earlier gateway process only the path is known, and symbolic links may have changed since.
        return DirectoryCheck(request, (*named, own))

    def _passes(self, request: Request, refusal: ErrorObject | None) -> bool:
        """Refuse a request whose precondition fails; return True if it holds."""
        if refusal is not None:
            self._agent.refuse(request, *refusal)
        return refusal is None

    def _check(self, request: Request) -> DirectoryCheckResult | None:
        """Return the result of checking the directories of a request; None if the request waits for it."""
        assert request.directory_check is not None
        if request.directory_check.result is None:
            self._agent.waiting.add(request, Until.DIRECTORIES_CHECKED, request.directory_check)
            self._agent.out.effect(CheckDirectories(request.directory_check))
        return request.directory_check.result

    def session_to_open(self, client: Client, session_id: str, request: Request) -> Session | None:
        """Return the session that a client may open here; None if the request was refused or waits."""
        session = self._agent.registry.find(client.reach, self._agent.name, session_id)
        if session is not None and session.agent_handle is not None:
            if session.agent_handle.abandoned and client.controls and not client.reach.guest:
                self._agent.out.stop_unused(session.agent_handle)
                self._agent.waiting.add(request, Until.SESSIONS_FREED)
            else:
                why = (
                    f"session {session_id:.80} is open in another connection, which has an agent of its own: join it "
                    f"with `acp-gateway connect TARGET --attach {session_id:.80}`"
                )
                self._agent.refuse(request, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})
            return None
        if session is not None and session.aside:
            why = f"the agent has given the id of session {session_id:.80} to another one: it can only be read"
            self._agent.refuse(request, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})
            return None
        exists = session is not None or self._agent.registry.may_exist(client.reach, self._agent.name, session_id)
        # The agent would take the id for the session that is live, even if another owner had one of that id before.
        sub_agents = self._agent.sub_agents
        agent_id = session_id if session is None else session.agent_id or session_id
        names = {session_id, agent_id, self._agent.out.ids.here(agent_id)}
        taken = not names.isdisjoint(self._agent.live) or sub_agents.is_of_another(client.reach.identity, session_id)
        if taken or not exists or not client.controls or client.reach.guest:
            self._agent.refuse_unknown(request, session_id)
            return None
        if session is None:
            session = self._agent.new_session(session_id, client.reach)
            # It may have been open in another process that was killed before it was stored.
            session.restored = True
        session.account = client.reach.account
        return session
