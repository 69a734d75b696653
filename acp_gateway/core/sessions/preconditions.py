"""Preconditions of opening a session: each returns the refusal of a request, or None if it may pass."""

from collections import Counter
from typing import Final

from acp_gateway.core import access_rules
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.mcp_servers import NotUnderstood, screen
from acp_gateway.core.requests import DirectoryCheckResult, ErrorObject, Location
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.reasons import in_one_line
from acp_gateway.protocol.text import lookup

AUDITED_SERVERS: Final = 10
"""Maximum number of MCP servers of one request in the audit, and of characters of each name; editors have a handful."""
NAME_LENGTH: Final = 64
PATH_LENGTH: Final = 256
"""Maximum length of a refused directory in the log and the audit, in characters; paths are shorter."""


def named_session(agent: AgentState, client: Client, request: Request) -> ErrorObject | None:
    """Refuse a request without a session that names another owner's: agents may look at the id all the same."""
    named, registry, scope = request.message.session, agent.registry, client.scope
    if named is None or registry.find(scope, agent.name, named) is not None:
        return None
    if registry.may_exist(scope, agent.name, named):
        return None
    return agent.unknown_session(request, named)


def room(agent: AgentState, request: Request) -> ErrorObject | None:
    """Refuse a request for a session beyond the limits of live sessions."""
    policy, registry = agent.policy, agent.registry
    # Pending openings count as well: a client need not wait for one before it requests the next.
    coming = Counter(
        asked.client.scope.identity
        for asked in agent.open_requests.values()
        if isinstance(asked, Request) and asked.message.method in (methods.NEW, methods.FORK)
    )
    identity = request.client.scope.identity
    if registry.count_live(identity) + coming[identity] >= policy.sessions_per_identity:
        why = f"sessions_per_identity ({policy.sessions_per_identity}) are open already; close some"
    elif registry.count_live() + coming.total() >= policy.max_sessions:
        why = f"max_sessions ({policy.max_sessions}) are open already"
    else:
        return None
    return ErrorObject(jsonrpc.INVALID_REQUEST, why, {"reason": "too_many_sessions"})


def directories(agent: AgentState, client: Client, result: DirectoryCheckResult) -> ErrorObject | None:
    """Refuse and audit a request whose directory check has found a problem."""
    problem = result.problem
    if problem is None:
        return None
    reason, path = problem.data.get("reason"), problem.data.get("cwd")
    shown = None if path is None else in_one_line(path, PATH_LENGTH)
    agent.out.audit("cwd_refused", client, agent=agent.name, path=shown, reason=reason)
    agent.out.log(f"{client.name}: refused a session in {shown}: {reason}")
    return ErrorObject(jsonrpc.INVALID_PARAMS, problem.message, problem.data)


def joined_directory(
    agent: AgentState, session: Session, request: Request, result: DirectoryCheckResult
) -> ErrorObject | None:
    """Refuse to join a session without a permitted directory; set the directory of one never opened here."""
    if session.setup:
        return directories(agent, request.client, result)
    place = _place(request, result)
    if place is None:
        why = "there is no workspace that this connection may use"
        return ErrorObject(jsonrpc.INVALID_PARAMS, why, {"reason": "outside_workspaces"})
    session.setup, session.workspace = {"cwd": jsonrpc.encode(place.directory)}, place.workspace
    if agent.link is None:
        # Another gateway knows the session's directory better than this client.
        session.cwd = session.cwd or place.directory
    return None


def mcp_servers(agent: AgentState, client: Client, request: Request) -> ErrorObject | None:
    """Remove the MCP servers that the policy does not pass on, or refuse the request; audit either."""
    policy = agent.policy
    flaw = access_rules.flaw_of_opening(request.message, policy.max_additional_directories)
    screened = None
    try:
        screened = screen(request.message.text, policy.mcp_servers, policy.max_mcp_servers)
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
        why = f"MCP servers that would run on the gateway's machine are not allowed here: {names:.200}"
        return ErrorObject(jsonrpc.INVALID_PARAMS, why, {"reason": "mcp_servers"})
    if screened.dropped:
        agent.out.log(f"{client.name}: left out MCP servers that would run here: {names:.200}")
        request.replace(screened.text)
    return None


def _place(request: Request, result: DirectoryCheckResult) -> Location | None:
    """Return the location of a session never opened here: as requested, if permitted."""
    cwd = lookup.text_param(request.message, "cwd")
    return result.fallback if cwd is None or result.problem is not None else Location(cwd, result.workspace)


def _shown(name: str) -> str:
    """Escape and cut a client's word for logs, audit and errors; the rest is not searched for secrets."""
    return in_one_line(name[: 16 * NAME_LENGTH], NAME_LENGTH)
