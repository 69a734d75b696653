"""Preconditions of requests for sessions: each returns the objection to a request, or None if it may pass.

A request that has waited is judged from the top again.
"""

from typing import Final

from acp_gateway.acp.worktrees import origin_of
from acp_gateway.core import access_rules
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.mcp_servers import NotUnderstood, screen
from acp_gateway.core.output import CheckDirectories
from acp_gateway.core.requests import DirectoryCheckResult, ErrorObject, Location
from acp_gateway.core.sessions import places
from acp_gateway.core.sessions.own_meta import asked_worktree, with_cwd
from acp_gateway.core.sessions.session import Client, DirectoryCheck, Request, Session
from acp_gateway.core.waiting import Event, Objection, Until
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.reasons import in_one_line

AUDITED_SERVERS: Final = 10
"""Maximum number of MCP servers of one request in the audit, and of characters of each name; editors have a handful."""
NAME_LENGTH: Final = 64
PATH_LENGTH: Final = 256
"""Maximum length of a refused directory in the log and the audit, in characters; paths are shorter."""

NO_SESSION: Final = ErrorObject(jsonrpc.INVALID_PARAMS, "sessionId must be a string")


def named_session(agent: AgentState, client: Client, request: Request) -> ErrorObject | None:
    """Refuse a request without a session that names another owner's: agents may look at the id all the same."""
    named, registry, reach = request.message.session, agent.registry, client.reach
    known = None if named is None else registry.find(reach, agent.name, named)
    if named is None or (known is not None and not known.aside):
        return None
    if registry.may_exist(reach, agent.name, named):
        return None
    return agent.unknown_session(client, named)


def room(agent: AgentState, request: Request) -> ErrorObject | None:
    """Refuse a request for a session beyond the limits of live sessions."""
    limits, registry = agent.policy.limits, agent.registry
    # Pending openings count as well: a client need not wait for one before it requests the next.
    coming, account = list(agent.sub_agents.naming.values()), request.client.reach.account
    if registry.count_live(account) + coming.count(account) >= limits.sessions_per_identity:
        why = f"sessions_per_identity ({limits.sessions_per_identity}) are open already; close some"
    elif registry.count_live() + len(coming) >= limits.max_sessions:
        why = f"max_sessions ({limits.max_sessions}) are open already"
    else:
        return None
    return ErrorObject(jsonrpc.INVALID_REQUEST, why, {"reason": "too_many_sessions"})


def named(agent: AgentState, client: Client, request: Request) -> Session | Objection:
    """Return the session that a request names, which is live here or may be opened here, or the objection."""
    session_id = request.message.session
    if session_id is None:
        return NO_SESSION
    return agent.session_in_reach(client, session_id) or past_session(agent, client, session_id)


def past_session(agent: AgentState, client: Client, session_id: str) -> Session | Objection:
    """Return the session that a client may open here, or the objection."""
    registry, reach = agent.registry, client.reach
    session = registry.find(reach, agent.name, session_id)
    if session is not None and session.agent_handle is not None:
        if session.agent_handle.abandoned and client.controls and not reach.guest:
            agent.out.stop_unused(session.agent_handle)
            return Event(Until.SESSIONS_FREED)
        why = (
            f"session {session_id:.80} is open in another connection, which has an agent of its own: join it "
            f"with `acp-gateway connect TARGET --attach {session_id:.80}`"
        )
        return ErrorObject(jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})
    if session is not None and session.aside:
        why = f"the agent has given the id of session {session_id:.80} to another one: it can only be read"
        return ErrorObject(jsonrpc.SESSION_NOT_FOUND, why, {"sessionId": session_id})
    exists = session is not None or registry.may_exist(reach, agent.name, session_id)
    # The agent would take the id for the session that is live, even if another owner had one of that id before.
    agent_id = session_id if session is None else session.agent_id or session_id
    names = {session_id, agent_id, agent.out.ids.here(agent_id)}
    taken = not names.isdisjoint(agent.live) or agent.sub_agents.is_of_another(reach.identity, session_id)
    if taken or not exists or not client.controls or reach.guest:
        return agent.unknown_session(client, session_id)
    if session is None:
        session = agent.new_session(session_id, reach)
        # It may have been open in another process that was killed before it was stored.
        session.restored = True
    session.account = reach.account
    return session


def cursor(session: Session, request: Request) -> ErrorObject | None:
    """Refuse a replay from a cursor that can't begin there: its client would take an update for another one."""
    rejoin = request.findings.rejoin
    if rejoin is None or not rejoin.replays:
        return None
    if request.client.cursors is None:
        why = 'a replay from a cursor is for clients that ask for {"cursors": true} in initialize'
    elif rejoin.cursor is None:
        why = 'replayFrom in _meta is {"type": "cursor", "cursorId": …}, with a cursor as it came in _meta'
    elif places.seen_up_to(session, *rejoin.cursor.place) is None:
        why = f"this is not a cursor of session {session.id:.80} as it is known here: load all of it"
    else:
        return None
    return ErrorObject(jsonrpc.INVALID_PARAMS, why, {"reason": "unknown_cursor"})


def opening(agent: AgentState, client: Client, request: Request, known: Session | None = None) -> Objection | None:
    """Object to opening a further session as requested; put a directory into a request that names none.

    `known` is a session that is re-opened or forked.
    """
    refusal = room(agent, request)
    if refusal is not None:
        return refusal
    findings = request.findings
    check = findings.directory_check
    if check is None:
        refusal = mcp_servers(agent, client, request)
        if refusal is not None:
            return refusal
        check = findings.directory_check = _directories(client, request, known)
    objection, directory = directories(agent, client, check), check.directory
    fills = check.fills or check.made is not None
    if objection is None and fills and check.chosen is None and directory is not None:
        check.chosen = directory
        request.set_text(with_cwd(request.message.text, directory))
    return objection


def deletion(agent: AgentState, client: Client, request: Request, past: Session) -> Objection | None:
    """Object to deleting a session that is not live.

    It is in the process until the response, as one that is re-opened.
    """
    refusal = room(agent, request)
    if refusal is not None or client.reach.workspaces is None:
        return refusal
    findings = request.findings
    findings.directory_check = findings.directory_check or _directories(client, request, past)
    return directories(agent, client, findings.directory_check)


def _directories(client: Client, request: Request, known: Session | None) -> DirectoryCheck:
    """Return the directories to check for a request, with that of the `known` session."""
    opens = request.message.method != methods.DELETE
    own = None if known is None else known.cwd
    origin = origin_of(own)
    if opens and own is not None and origin is not None and access_rules.named_cwd(request.message) == origin:
        # Its editor knows the repository alone.
        request.set_text(with_cwd(request.message.text, own))
    named = access_rules.directories_of(request.message)
    is_new = request.message.method == methods.NEW
    worktree = asked_worktree(request.message) if is_new else False
    if opens and access_rules.named_cwd(request.message) is None:
        directories = named if own is None else (own, *named)
        return DirectoryCheck(request, directories, fills=True, chooses=own is None, worktree=worktree)
    if is_new:
        return DirectoryCheck(request, named, worktree=worktree)
    if own is None or client.reach.workspaces is None:
        return DirectoryCheck(request, named)
    # Of an earlier gateway process only the path is known, and symbolic links may have changed since.
    return DirectoryCheck(request, (*named, own))


def directories(agent: AgentState, client: Client, check: DirectoryCheck) -> Objection | None:
    """Let a request wait for its directory check; refuse and audit it if that has found a problem."""
    if check.result is None:
        agent.out.effect(CheckDirectories(check))
        return Event(Until.DIRECTORIES_CHECKED, check)
    problem = check.result.problem
    if problem is None:
        return None
    reason, path = problem.data.get("reason"), problem.data.get("cwd")
    shown = None if path is None else in_one_line(path, PATH_LENGTH)
    agent.out.audit("cwd_refused", client, agent=agent.name, path=shown, reason=reason)
    agent.out.log(f"{client.name}: refused a session in {shown}: {reason}")
    return ErrorObject(jsonrpc.INVALID_PARAMS, problem.message, problem.data)


def joined_directory(agent: AgentState, session: Session, request: Request) -> Objection | None:
    """Refuse to join a session without a permitted directory; set the directory of one never opened here."""
    findings = request.findings
    if findings.directory_check is None:
        # The directory of a session opened before is known; no other directory of the request is used.
        cwd = session.cwd if session.setup else access_rules.named_cwd(request.message)
        findings.directory_check = DirectoryCheck(request, () if cwd is None else (cwd,))
    result = findings.directory_check.result
    if session.setup or result is None:
        return directories(agent, request.client, findings.directory_check)
    place = _place(request, result)
    if place is None:
        why = "there is no workspace that this connection may use"
        return ErrorObject(jsonrpc.INVALID_PARAMS, why, {"reason": "outside_workspaces"})
    session.setup, session.workspace = {"cwd": jsonrpc.encode(place.directory)}, place.workspace
    session.cwd = session.cwd or place.directory
    return None


def mcp_servers(agent: AgentState, client: Client, request: Request) -> ErrorObject | None:
    """Remove the MCP servers that the policy does not pass on, or refuse the request; audit either."""
    policy = agent.policy
    # Sessions of other identities could use them, with the secrets in their environment and headers.
    shared = policy.common and policy.agent.mcp_servers != "share"
    flaw = access_rules.flaw_of_opening(request.message, policy.limits.max_additional_directories)
    screened = None
    try:
        screened = screen(request.message.text, policy.agent.mcp_servers, policy.limits.max_mcp_servers, every=shared)
    except NotUnderstood as error:
        flaw = flaw or str(error)
    if flaw is not None or screened is None:
        return ErrorObject(jsonrpc.INVALID_PARAMS, flaw or "")
    found = (*screened.dropped, *screened.refused)
    names = ", ".join(repr(_shown(server.name)) for server in found[:AUDITED_SERVERS])
    name = "mcp_server_refused" if screened.refused else "mcp_server_dropped"
    for server in found[:AUDITED_SERVERS]:
        details = {"name": _shown(server.name), "kind": _shown(server.kind)}
        agent.out.audit(name, client, agent=agent.name, **details)
    if len(found) > AUDITED_SERVERS:
        agent.out.audit(name, client, agent=agent.name, count=len(found) - AUDITED_SERVERS)
    if screened.refused:
        where = "in a process that several identities share" if shared else "that would run on the gateway's machine"
        why = f"MCP servers {where} are not allowed here: {names:.200}"
        return ErrorObject(jsonrpc.INVALID_PARAMS, why, {"reason": "mcp_servers"})
    if screened.dropped:
        where = "in a process that several identities share" if shared else "that would run here"
        agent.out.log(f"{client.name}: left out MCP servers {where}: {names:.200}")
        request.set_text(screened.text)
        if shared:
            request.findings.notice = (
                "[acp-gateway: the session has none of your MCP servers: other people's sessions in this agent's "
                'process might use them. Where they may: mcp_servers = "share" at the gateway.]'
            )
    return None


def _place(request: Request, result: DirectoryCheckResult) -> Location | None:
    """Return the location of a session never opened here: as requested, if permitted."""
    cwd = access_rules.named_cwd(request.message)
    return result.fallback if cwd is None or result.problem is not None else Location(cwd, result.workspace)


def _shown(name: str) -> str:
    """Escape and cut a client's word for logs, audit and errors; the rest is not searched for secrets."""
    return in_one_line(name[: 16 * NAME_LENGTH], NAME_LENGTH)
