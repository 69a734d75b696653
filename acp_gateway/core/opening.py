"""How sessions come to a process and go: new, load, resume, fork, list, close, delete, and joining one that is open.

A session that is live here is never asked of the agent again. Who loads it gets its history from the journal and takes
part from the next message on, in one step: nothing is missing and nothing comes twice. One that is not live is loaded
once; what others ask of it meanwhile waits.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from acp_gateway.core import access_rules, session_list, updates
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.cut_turns import note_cut, told_cut
from acp_gateway.core.mcp_servers import NotUnderstood, screen
from acp_gateway.core.rejoining import Rejoin, adopt, missed, with_own_meta, without_own_meta
from acp_gateway.core.routing import Routing
from acp_gateway.core.session_list import Query
from acp_gateway.core.sessions import Client, DirectoryCheck, Request, Session, State
from acp_gateway.core.turns import Turns
from acp_gateway.protocol import jsonrpc, methods, spans
from acp_gateway.protocol.gaps import MAY_BE_MISSING, gap
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.reasons import in_one_line
from acp_gateway.protocol.spans import TooMany

SERVERS_TOLD: Final = 10
"""Tool servers of one request that are named in the audit, and the characters of each name: editors have a handful."""
NAME_TOLD: Final = 64
PATH_TOLD: Final = 256
"""Characters of a refused directory in the log and the audit: longer than paths are."""


@dataclass(frozen=True, slots=True)
class _GoingOn:
    """The history of a session that is opened again is the one that it had."""

    told: Sequence[bytes]
    """What its client gets of it before the answer."""
    proven: bool
    """Whether that is all that the client has not seen."""


class Openings:
    """The way in and out for the sessions of one agent process."""

    def __init__(
        self, process: AgentState, routing: Routing, turns: Turns, dispatch: Callable[[Request], None]
    ) -> None:
        self._process = process
        self._routing = routing
        self._turns = turns
        # Sees to a request that has waited.
        self._dispatch = dispatch

    def new(self, client: Client, request: Request) -> None:
        if client.viewer.only is not None:
            if client.joined:
                why = f"this connection is for session {client.viewer.only:.80} only: no further session/new"
                self._process.refuse(request, jsonrpc.INVALID_REQUEST, why)
            else:
                self._join(client, client.viewer.only, request)
        elif not client.controls:
            self._process.refuse(request, jsonrpc.METHOD_NOT_FOUND, "observers may only look: no session/new")
        elif (
            self._names_none_of_others(client, request) and self._has_room(request) and self._may_open(client, request)
        ):
            self._routing.openings += 1
            self._process.forward(request, self._opened)

    def load(self, client: Client, request: Request) -> None:
        """A session/load or session/resume."""
        message = request.message
        if message.session is None:
            self._process.refuse(request, jsonrpc.INVALID_PARAMS, "sessionId must be a string")
            return
        session = self._process.seen(client, message.session)
        if session is not None:
            self._take_up(session, client, request)
            return
        returning = Rejoin.read(message)
        if returning is not None and self._waits_for_owner(client, message.session, request):
            return
        session = self._to_open(client, message.session, request)
        if session is None or not self._has_room(request) or not self._may_open(client, request, session):
            return
        if returning is not None and not session.journal_loaded and session.archive.holds(session):
            if session not in self._process.loading_journals:
                self._process.out.load_journal(session)
            self._process.loading_journals.setdefault(session, []).append(request)
            return
        message = request.message
        session.keep_setup(jsonrpc.parse(without_own_meta(message.text)))
        session.workspace = _workspace(request) or session.workspace
        request.session = session
        resumes = message.method == methods.RESUME
        withheld = resumes and self._process.abilities.load
        going_on = None
        if returning is not None and client.counts and session.journal_loaded and session.journal.epoch:
            # The history goes on for all who have seen a part of it, whether this client can say which or not. What
            # it is called has to be new before anything is added: others may have seen more than reached the disk.
            session.journal.rename(self._process.registry.new_epoch())
            tail = missed(session, client, returning)
            history = () if resumes else self._translated(client, updates.history(session))
            going_on = _GoingOn(history if tail is None else tail, proven=tail is not None)
        replay_to = None if resumes or going_on is not None else client
        self._open(session, request, replay_to=replay_to, as_load=withheld, returning=returning, going_on=going_on)

    def _take_up(self, session: Session, client: Client, request: Request) -> None:
        """A client loads or resumes a session that is live here."""
        client.joined = True
        resumes = request.message.method == methods.RESUME
        result = updates.opening_result(session, with_id=False)
        returning = Rejoin.read(request.message)
        tail = missed(session, client, returning)
        if returning is not None:
            result = with_own_meta(result, adopt(self._process, session, client, returning))
            result = with_own_meta(result, told_cut(session, returning))
        if tail is not None:
            self._replay(session, client, tail)
        elif not resumes:
            self._replay(session, client, updates.history(session))
        self._process.answer(request, result)
        if resumes and tail is None:
            self._tell_how_it_is(session, client, returning)
        # To resume is to come back to what one has: somebody else may be the host by now.
        hosts = not resumes or session.host is None
        self._process.take_part(session, client, hosts=hosts, returning=returning)
        self._process.questions.offer(session, client)

    def fork(self, client: Client, request: Request) -> None:
        session_id = request.message.session
        if session_id is None:
            self._process.refuse(request, jsonrpc.INVALID_PARAMS, "sessionId must be a string")
            return
        session = self._process.seen(client, session_id)
        past = None if session is not None else self._to_open(client, session_id, request)
        if session is None and past is None:
            return
        if self._has_room(request) and self._may_open(client, request, past):
            request.session = session
            self._routing.openings += 1
            self._process.forward(request, self._opened)

    def list(self, client: Client, request: Request) -> None:
        query = Query.of(client, self._process.agent, request.message)
        if self._process.abilities.list and client.controls and client.viewer.only is None:
            if not self._names_none_of_others(client, request):
                return
            self._process.forward(request, partial(self._listed, query=query, pages=1))
        else:
            reopens = self._process.abilities.reopens and client.controls and client.viewer.only is None
            self._process.answer(request, session_list.known(query, self._process.registry, reopens=reopens))

    def close(self, client: Client, request: Request) -> None:
        session = self._process.of_request(client, request)
        if session is None:
            return
        controllers = (other for other in session.controllers() if other is not client and not other.viewer.guest)
        others = any(other.connected for other in controllers)
        may_end = client.controls and not client.viewer.guest and self._process.abilities.close
        if others or not may_end:
            self._process.detach(session, client)
            self._process.answer(request, b"{}")
            self._process.announce_waiting()
        else:
            self._end(session, request)

    def delete(self, client: Client, request: Request) -> None:
        session_id = request.message.session
        if session_id is None:
            self._process.refuse(request, jsonrpc.INVALID_PARAMS, "sessionId must be a string")
            return
        session = self._process.seen(client, session_id) or self._to_open(client, session_id, request)
        if session is not None:
            self._end(session, request)

    def reopen(self, session: Session) -> None:
        """Open a session in a new process; its clients have its history already."""
        session.state = State.OPENING
        session.recorded, session.replay_to = self._process.new_journal(), None
        method = methods.RESUME if self._process.abilities.resume else methods.LOAD
        self._process.forward(Request(None, _opening(method, session), session), self._reopened)

    def _opened(self, request: Request, response: Message) -> None:
        """A session/new or session/fork was answered."""
        client = request.client
        assert client is not None
        self._routing.openings -= 1
        session_id = jsonrpc.text_at(response.text, "result", "sessionId")
        if not response.error and session_id is not None:
            session = self._process.live.get(session_id)
            if session is not None and (session.owner != client.viewer.identity or session.in_transit):
                why = f"the agent gave the id {session_id:.80} to a second session"
                self._process.refuse(request, jsonrpc.INTERNAL_ERROR, why)
                self._routing.sort_early()
                return
            known = session is not None
            session = session or self._process.new_session(session_id, client.viewer.identity)
            session.keep_setup(request.message)
            session.workspace = _workspace(request)
            if session.workspace is None and request.session is not None:
                session.workspace = request.session.workspace
            if not known:
                self._process.enter(session)
                self._routing.entered(session)
            session.keep_result(response)
            session.state = State.OPEN
            if request.session is not None and request.session.journal.epoch:
                rewrite = partial(updates.under_session, old=request.session.id, new=session_id)
                session.take_journal(request.session.journal.copy(rewrite, self._process.registry.new_epoch()))
                self._process.mark(session, session.attached)
            elif request.message.method == methods.FORK:
                # The journal of a session that has ended meanwhile is cleared: nobody here knows how the fork begins.
                session.journal.begin_truncated()
                session.archive.replace(session)
            if not client.gone:
                self._process.take_part(session, client, hosts=True)
            for update in self._routing.take_early(session_id):
                self._routing.update(update)
            self._process.respond(request, response)
            if not client.gone:
                self._process.questions.offer(session, client)
            for waiting in self._process.returned.pop(session_id, ()):
                self._dispatch(waiting)
        else:
            self._process.respond(request, response)
        self._routing.sort_early()

    def _join(self, client: Client, session_id: str, request: Request) -> None:
        """The first session/new of a client that came for a session that there is."""
        session = self._process.seen(client, session_id)
        if session is not None and session.in_transit:
            session.held.append(request)
        elif session is not None:
            client.joined = True
            self._process.answer(request, updates.opening_result(session, with_id=True))
            self._replay(session, client, updates.history(session))
            self._process.take_part(session, client, hosts=session.host is None)
            self._process.questions.offer(session, client)
        else:
            session = self._to_open(client, session_id, request)
            if session is None or not self._has_room(request):
                return
            if request.directory_check is None:
                # Of a session that was opened before it is known where, and nothing else is asked of the client.
                cwd = session.cwd if session.setup else jsonrpc.text_param(request.message, access_rules.CWD)
                request.directory_check = DirectoryCheck(request, () if cwd is None else (cwd,))
            if self._is_surveyed(request) and self._has_place(session, client, request):
                session.held.append(request)
                method = methods.LOAD if self._process.abilities.load else methods.RESUME
                self._open(session, Request(None, _opening(method, session), session), replay_to=None)

    def _has_place(self, session: Session, client: Client, request: Request) -> bool:
        """Whether a session that somebody came for can be opened somewhere; where not, the request is refused."""
        if session.setup:
            return not self._is_out_of_place(client, request)
        place = _place(request)
        if place is None:
            why = "there is no workspace that this connection may use"
            self._process.refuse(request, jsonrpc.INVALID_PARAMS, why, {"reason": "outside_workspaces"})
            return False
        session.setup, session.workspace = {"cwd": jsonrpc.encode(place[0])}, place[1]
        return True

    def _names_none_of_others(self, client: Client, request: Request) -> bool:
        """Whether a request that is about no session names none that is not the client's; where it does, it is refused.

        Agents may look at the id all the same.
        """
        named, registry, viewer = request.message.session, self._process.registry, client.viewer
        if named is None or registry.find(viewer, self._process.agent, named) is not None:
            return True
        if registry.may_exist(viewer, self._process.agent, named):
            return True
        self._process.refuse_unknown(request, named)
        return False

    def _has_room(self, request: Request) -> bool:
        """Whether a further session may be live; where not, the request is refused."""
        policy, registry = self._process.policy, self._process.registry
        assert request.client is not None
        # Those that the agent is about to open count as well: a client need not wait for one before it asks for more.
        coming = Counter(
            asked.client.viewer.identity
            for asked in self._process.asked.values()
            if asked.client is not None and asked.message.method in (methods.NEW, methods.FORK)
        )
        identity = request.client.viewer.identity
        if registry.count_live(identity) + coming[identity] >= policy.sessions_per_identity:
            why = f"sessions_per_identity ({policy.sessions_per_identity}) are open already; close some"
        elif registry.count_live() + coming.total() >= policy.max_sessions:
            why = f"max_sessions ({policy.max_sessions}) are open already"
        else:
            return True
        self._process.refuse(request, jsonrpc.INVALID_REQUEST, why, {"reason": "too_many_sessions"})
        return False

    def _may_open(self, client: Client, request: Request, past: Session | None = None) -> bool:
        """Whether a session may be opened as a request asks; where not, it was refused, or waits for a survey.

        `past` is one that is not live, and is opened again.
        """
        if request.directory_check is None and not self._screen(client, request):
            return False
        if (
            request.directory_check is None
            and client.viewer.workspaces is not None
            and past is not None
            and past.cwd is not None
        ):
            # Of an earlier process of the gateway only the text of where it was is known, and links lead elsewhere.
            request.directory_check = DirectoryCheck(request, (*access_rules.directories_of(request.message), past.cwd))
        return self._is_surveyed(request) and not self._is_out_of_place(client, request)

    def _is_out_of_place(self, client: Client, request: Request) -> bool:
        """Whether the survey of a request has found something; then it is refused."""
        assert request.directory_check is not None
        assert request.directory_check.findings is not None
        problem = request.directory_check.findings.problem
        if problem is not None:
            self._process.refuse(request, jsonrpc.INVALID_PARAMS, problem.message, problem.data)
            reason, path = problem.data.get("reason"), problem.data.get("cwd")
            told = None if path is None else in_one_line(path, PATH_TOLD)
            self._process.out.audit_event("cwd_refused", client, agent=self._process.agent, path=told, reason=reason)
            self._process.out.note(f"{client.name}: refused a session in {told}: {reason}")
        return problem is not None

    def _screen(self, client: Client, request: Request) -> bool:
        """Take out of a request the tool servers that the policy does not pass on; False where it was refused."""
        flaw = access_rules.flaw_of_opening(request.message)
        screened = None
        try:
            screened = screen(request.message.text, self._process.policy.mcp_servers)
        except NotUnderstood as error:
            flaw = flaw or str(error)
        if flaw is not None or screened is None:
            self._process.refuse(request, jsonrpc.INVALID_PARAMS, flaw or "")
            return False
        found = (*screened.dropped, *screened.refused)
        names = ", ".join(repr(_told(server.name)) for server in found[:SERVERS_TOLD])
        name = "mcp_server_refused" if screened.refused else "mcp_server_dropped"
        for server in found[:SERVERS_TOLD]:
            told = {"name": _told(server.name), "kind": _told(server.kind)}
            self._process.out.audit_event(name, client, agent=self._process.agent, **told)
        if len(found) > SERVERS_TOLD:
            self._process.out.audit_event(name, client, agent=self._process.agent, count=len(found) - SERVERS_TOLD)
        if screened.refused:
            why = f"tool servers that would run on the gateway's machine are not allowed here: {names:.200}"
            self._process.refuse(request, jsonrpc.INVALID_PARAMS, why, {"reason": "mcp_servers"})
            return False
        if screened.dropped:
            self._process.out.note(f"{client.name}: left out tool servers that would run here: {names:.200}")
            request.replace(screened.text)
        return True

    def _is_surveyed(self, request: Request) -> bool:
        """Whether somebody has looked at the directories that a request names; if not, it waits for that."""
        if request.directory_check is None:
            request.directory_check = DirectoryCheck(request, access_rules.directories_of(request.message))
        if request.directory_check.findings is None:
            self._process.checking_directories[request] = request.directory_check
            self._process.out.directory_check(request.directory_check)
        return request.directory_check.findings is not None

    def _replay(self, session: Session, client: Client, history: Sequence[bytes]) -> None:
        """Give a client a session's history up to now, as it would have seen it."""
        its = self._translated(client, history)
        if session in client.replays:
            # Asked for again before it was taken: that counts like anything else that waits for a client.
            for update in its:
                self._process.out.client(client, update)
        else:
            client.replays[session] = None
            self._process.out.replay(client, its)

    def _translated(self, client: Client, history: Sequence[bytes]) -> Sequence[bytes]:
        """A session's history with the names that terminals have at a client."""
        translations = self._process.terminals.translations
        return [translations(update).get(client, update) for update in history]

    def _tell_how_it_is(self, session: Session, client: Client, returning: Rejoin | None) -> None:
        """Tell a client that has resumed a session how it is now, and one that was here before what it may have missed.

        It comes behind the answer, where nobody takes it for history.
        """
        missing = [] if returning is None else [gap(session.id, MAY_BE_MISSING)]
        self._process.out.replay(client, [*missing, *session.journal.states()])

    def _waits_for_owner(self, client: Client, session_id: str, request: Request) -> bool:
        """Whether a client that has come back before somebody who may open its session again; it waits for that then.

        To be refused would be the end of what it sees, and whether it comes first after a restart is chance.
        """
        if client.controls and not client.viewer.guest:
            return False
        session = self._process.registry.find(client.viewer, self._process.agent, session_id)
        waits = session is not None and not session.live and session_id not in self._process.live
        if waits:
            self._process.returned.setdefault(session_id, []).append(request)
        return waits

    def _to_open(self, client: Client, session_id: str, request: Request) -> Session | None:
        """The session that is not live and that a client may have opened here; None where it was refused, or waits."""
        session = self._process.registry.find(client.viewer, self._process.agent, session_id)
        if session is not None and session.home is not None:
            if session.home.abandoned and client.controls and not client.viewer.guest:
                self._process.out.stop(session.home)
                self._process.held.append(request)
            else:
                why = (
                    f"session {session_id:.80} is open in another connection, which has an agent of its own: join it "
                    f"with `acp-gateway connect TARGET --attach {session_id:.80}`"
                )
                self._process.refuse(request, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})
            return None
        # Of what is live here an agent would take the id for that session, whoever else once had one of that name.
        if not client.controls or client.viewer.guest or session_id in self._process.live:
            self._process.refuse_unknown(request, session_id)
            return None
        if session is None:
            if not self._process.registry.may_exist(client.viewer, self._process.agent, session_id):
                self._process.refuse_unknown(request, session_id)
                return None
            session = self._process.new_session(session_id, client.viewer.identity)
            # Whoever had it open had that at another process, which may have been killed before it was written down.
            session.restored = True
        return session

    def _open(
        self,
        session: Session,
        request: Request,
        *,
        replay_to: Client | None,
        as_load: bool = False,
        returning: Rejoin | None = None,
        going_on: _GoingOn | None = None,
    ) -> None:
        """Have the agent open a session, and record what it tells of it."""
        first = self._is_first(session)
        self._process.enter(session)
        self._routing.entered(session)
        session.state = State.OPENING
        session.replay_to = replay_to
        session.recorded = self._process.new_journal()
        if request.message.method == methods.RESUME and not as_load:
            session.recorded.begin_truncated()
        text = _as_load(request.message) if as_load else request.message.text
        then = partial(self._loaded, first=first, returning=returning, going_on=going_on)
        self._process.forward(request, then, without_own_meta(text))

    def _is_first(self, session: Session) -> bool:
        """Whether nobody has ever had a session of that id: nobody becomes an owner by asking for one."""
        return not self._process.registry.known(session.agent, session.id)

    def _loaded(
        self,
        request: Request,
        response: Message,
        *,
        first: bool,
        returning: Rejoin | None,
        going_on: _GoingOn | None,
    ) -> None:
        """A session that was not live was opened, or could not be."""
        session, client = request.session, request.client
        assert session is not None
        recorded, session.recorded, session.replay_to = session.recorded, None, None
        if response.error:
            self._process.unopened.refused(session, response)
            held, session.held = session.held, []
            self._leave(session, forgotten=first)
            if client is None and held:
                # It was the gateway that asked, because of the first of them.
                self._process.respond(held.pop(0), response)
            self._process.respond(request, response)
            for waiting in held:
                self._dispatch(waiting)
            return
        assert recorded is not None
        note_cut(session)
        proven = going_on is not None and going_on.proven
        if going_on is None:
            recorded.turn_ended()
            session.take_journal(recorded)
        else:
            # What clients have seen is known better here: of the agent's history only the states are news.
            for state in recorded.states():
                session.write(state, jsonrpc.parse(state).update)
            session.end_turn()
        for state in recorded.states():
            updates.read_state(session, jsonrpc.parse(state))
        session.keep_result(response)
        if client is not None:
            client.joined = True
            if going_on is not None:
                states = recorded.states() if proven or request.message.method == methods.LOAD else []
                self._process.out.replay(client, [*going_on.told, *states])
            if returning is None:
                self._process.respond(request, response)
            else:
                result = jsonrpc.raw_at(response.text, "result") or b"{}"
                result = with_own_meta(result, adopt(self._process, session, client, returning))
                self._process.answer(request, with_own_meta(result, told_cut(session, returning)))
            if not client.gone:
                if request.message.method == methods.RESUME and not proven:
                    self._tell_how_it_is(session, client, returning)
                self._process.take_part(session, client, hosts=True, returning=returning)
                self._process.questions.offer(session, client)
        self._set_open(session)

    def _leave(self, session: Session, *, forgotten: bool) -> None:
        """A session does not live here any more; whose it is stays known, unless that is to be forgotten as well."""
        self._process.questions.session_ended(session)
        self._process.drop(session)
        self._routing.ended(session)
        if forgotten:
            self._process.registry.remove(session)

    def _set_open(self, session: Session) -> None:
        session.state = State.OPEN
        self._routing.route_again()
        held, session.held = [*session.held, *self._process.returned.pop(session.id, ())], []
        for request in held:
            self._dispatch(request)

    def _listed(self, request: Request, response: Message, *, query: Query, pages: int) -> None:
        if response.error:
            self._process.respond(request, response)
            return
        try:
            text, cursor = session_list.filtered(query, self._process.registry, response.text)
        except TooMany as error:
            self._process.refuse(request, jsonrpc.INTERNAL_ERROR, f"the agent's list of sessions: {error}")
            return
        if cursor is not None and pages < session_list.PAGES and not query.client.gone:
            then = partial(self._listed, query=query, pages=pages + 1)
            self._process.forward(request, then, session_list.next_page(request.message, cursor))
        else:
            self._process.respond(request, jsonrpc.parse(text))

    def _end(self, session: Session, request: Request) -> None:
        """Have the agent close or delete a session; one that was not live is here for as long as that takes."""
        request.session = session
        then = partial(self._closed, first=self._is_first(session))
        session.state = State.CLOSING if session.live else State.DELETING
        if not session.live:
            self._process.enter(session)
        self._process.forward(request, then)

    def _closed(self, request: Request, response: Message, *, first: bool) -> None:
        """A session was closed or deleted, or could not be."""
        session = request.session
        assert session is not None
        held, session.held = session.held, []
        if not response.error:
            deleted = request.message.method == methods.DELETE
            self._process.tell(session, "deleted" if deleted else "closed")
            self._turns.cancel_waiting(session)
            self._leave(session, forgotten=deleted)
        elif session.state is State.DELETING:
            self._leave(session, forgotten=first)
        else:
            session.state = State.OPEN
        self._process.respond(request, response)
        for waiting in held:
            self._dispatch(waiting)

    def _reopened(self, request: Request, response: Message) -> None:
        session = request.session
        assert session is not None
        recorded, session.recorded = session.recorded, None
        assert recorded is not None
        if response.error:
            self._process.unopened.refused(session, response)
            self._process.out.note(f"the agent cannot re-open session {session.id:.80}")
            held, session.held = session.held, []
            self._leave(session, forgotten=False)
            for waiting in held:
                why = f"the agent has ended, and it cannot re-open session {session.id:.80}"
                reason = self._process.unopened.reason(waiting.client, session.id)
                why += "" if reason is None else f": {reason}"
                self._process.refuse(waiting, jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session.id})
        else:
            # What was said is known to everybody; how things are now may be new to all.
            for text in [*updates.changes(session, response), *recorded.states()]:
                state = jsonrpc.parse(text)
                session.write(text, state.update)
                updates.read_state(session, state)
                self._process.out.clients(session.attached, text)
            session.merge_result(response)
            self._set_open(session)


def _workspace(request: Request) -> str | None:
    """The workspace that a survey has found a request's directory in."""
    findings = None if request.directory_check is None else request.directory_check.findings
    return None if findings is None else findings.workspace


def _place(request: Request) -> tuple[str, str | None] | None:
    """The directory and workspace for a session that nobody here has opened before: as asked, if that may be."""
    cwd = jsonrpc.text_param(request.message, "cwd")
    assert request.directory_check is not None
    findings = request.directory_check.findings
    assert findings is not None
    return findings.instead if cwd is None or findings.problem is not None else (cwd, findings.workspace)


def _opening(method: str, session: Session) -> Message:
    """The gateway's own request to open a session, as it was opened before."""
    params = jsonrpc.compose({"mcpServers": b"[]", **session.setup, "sessionId": jsonrpc.encode(session.id)})
    return jsonrpc.parse(b'{"jsonrpc":"2.0","id":0,"method":%b,"params":%b}' % (jsonrpc.encode(method), params))


def _as_load(message: Message) -> bytes:
    """A session/resume as the session/load that brings the history along."""
    method = spans.find(message.text, "method")
    params = spans.find(message.text, "params")
    assert method is not None
    assert params is not None
    edits = [(*method, jsonrpc.encode(methods.LOAD))]
    if spans.find(message.text, "params", "mcpServers") is None:
        edits.append((params[0] + 1, params[0] + 1, b'"mcpServers":[],'))
    return spans.splice(message.text, edits)


def _told(name: str) -> str:
    """A word of a client's for the log, the audit and errors. More of it is not looked through for secrets."""
    return in_one_line(name[: 16 * NAME_TOLD], NAME_TOLD)
