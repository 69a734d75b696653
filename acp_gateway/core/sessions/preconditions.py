"""Preconditions of opening a session: each returns the refusal of a request, or None if it may pass."""

from typing import Final

from acp_gateway.core import access_rules
from acp_gateway.core.agent_state import AgentState
from acp_gateway.core.mcp_servers import NotUnderstood, screen
from acp_gateway.core.requests import DirectoryCheckResult, ErrorObject, Location
from acp_gateway.core.sessions.session import Client, Request, Session
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.reasons import in_one_line

AUDITED_SERVERS: Final = 10
"""Maximum number of MCP servers of one request in the audit, and of characters of each name; editors have a handful."""
NAME_LENGTH: Final = 64
PATH_LENGTH: Final = 256
"""Maximum length of a refused directory in the log and the audit, in characters; paths are shorter."""


def named_session(agent: AgentState, client: Client, request: Request) -> ErrorObject | None:
    """Refuse a request without a session that names another owner's: agents may look at the id all the same."""
    named, registry, reach = request.message.session, agent.registry, client.reach
    known = None if named is None else registry.find(reach, agent.name, named)
    if named is None or (known is not None and not known.aside):
        return None
    if registry.may_exist(reach, agent.name, named):
        return None
    return agent.unknown_session(request, named)


def room(agent: AgentState, request: Request) -> ErrorObject | None:
    """Refuse a request for a session beyond the limits of live sessions."""
    policy, registry = agent.policy, agent.registry
    # Pending openings count as well: a client need not wait for one before it requests the next.
    coming, account = agent.openings, request.client.reach.account
    if registry.count_live(account) + coming[account] >= policy.sessions_per_identity:
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
    session.cwd = session.cwd or place.directory
    return None


def mcp_servers(agent: AgentState, client: Client, request: Request) -> ErrorObject | None:
    """Remove the MCP servers that the policy does not pass on, or refuse the request; audit either."""
    policy = agent.policy
    # Sessions of other identities could use them, with the secrets in their environment and headers.
    shared = policy.common and policy.mcp_servers != "share"
    flaw = access_rules.flaw_of_opening(request.message, policy.max_additional_directories)
    screened = None
    try:
        screened = screen(request.message.text, policy.mcp_servers, policy.max_mcp_servers, every=shared)
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
        request.replace(screened.text)
        if shared:
            request.notice = (
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
