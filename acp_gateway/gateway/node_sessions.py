"""Merges the sessions of nodes into a gateway's own list, as `NODE/ID`.

A session that was opened through this gateway is in both lists; it comes once. Only the gateway's own user is told the
others: at a node they belong to the identity of this gateway's token, and here that is the user's.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Mapping
from typing import Any, Final

from acp_gateway.config.nodes import SEPARATOR, split_name
from acp_gateway.core.registry import Registry
from acp_gateway.core.sessions import SessionScope
from acp_gateway.gateway.node_directory import Node, NodeDirectory

TEXT: Final = 4096
"""Maximum characters of a text in the list of a node, as in the gateway's own."""

WAITING: Final = 100
"""Maximum number of open requests of one session of a node."""

_TEXTS: Final = ("title", "cwd", "updatedAt", "history")

_COUNTS: Final = ("connected", "away")


class NodeSessions:
    """The sessions of all nodes of one gateway.

    Args:
        directory: the nodes.
        registry: the sessions that were opened through the gateway.
        refresh: waits for the present lists of the nodes, for a bounded time.
    """

    def __init__(self, directory: NodeDirectory, registry: Registry, refresh: Callable[[], Awaitable[None]]) -> None:
        self._directory = directory
        self._registry = registry
        self._refresh = refresh

    async def merge(self, scope: SessionScope, agents: Container[str], answer: dict[str, Any]) -> dict[str, Any]:
        """Return a list of sessions with those of the nodes, as members of a response.

        Args:
            scope: the sessions that exist for the connection.
            agents: the agents whose sessions it is told.
            answer: the gateway's own list.
        """
        await self._refresh()
        nodes = self._directory.nodes
        wide = scope.identity == self._registry.own_identity and scope.sees_all
        merged = {**answer, "sessions": merge_sessions(answer["sessions"], nodes, self._further(agents, wide=wide))}
        usable = [node for node in nodes.values() if _is_usable(node, agents)]
        problems = [node.away if wide else node.away_since for node in usable if not node.up]
        if problems:
            merged["problems"] = [*answer.get("problems", ()), *problems]
        if wide and (more := sum(node.more for node in usable)):
            merged["more"] = answer.get("more", 0) + more
        return merged

    def _further(self, agents: Container[str], *, wide: bool) -> Callable[[str, str], bool]:
        """Return whether a session of a node is told that is not in the gateway's own list: by its agent and id.

        One that was opened through the gateway belongs to an identity here, which may be another one.
        """
        return lambda agent, session_id: wide and agent in agents and not self._registry.known(agent, session_id)


def merge_sessions(
    own: Iterable[Mapping[str, Any]], nodes: Mapping[str, Node], further: Callable[[str, str], bool]
) -> list[dict[str, Any]]:
    """Return the sessions of a gateway with those of its nodes, those that are not live first.

    A session of a node that is in `own` is described as it is here while it is live here, else as the node knows it.
    Others of the nodes are added if `further` returns True for their agent and id.
    """
    listed = {key: session for node in nodes.values() for key, session in _sessions_of(node)}
    merged = []
    for session in own:
        described = dict(session)
        parts = split_name(session["agent"], nodes)
        if parts is not None:
            theirs = listed.pop((session["agent"], session["sessionId"]), None)
            if theirs is not None and not session["live"]:
                described |= {name: value for name, value in theirs.items() if name != "owner"}
            described["sessionId"] = f"{parts[0]}{SEPARATOR}{session['sessionId']}"
            described |= _absence(nodes[parts[0]])
        merged.append(described)
    merged += [session for key, session in listed.items() if further(*key)]
    return sorted(merged, key=lambda session: bool(session["live"]))


def _sessions_of(node: Node) -> Iterable[tuple[tuple[str, str], dict[str, Any]]]:
    """Yield the sessions of a node by agent and id, described anew: another machine has written them."""
    for session in node.sessions:
        agent = f"{node.name}{SEPARATOR}{session['agent']}"
        described: dict[str, Any] = {
            "sessionId": f"{node.name}{SEPARATOR}{session['sessionId']}",
            "agent": agent[:TEXT],
            "owner": session["owner"][:TEXT],
            "live": session.get("live") is not False,
            "turn": session["turn"],
            "waiting": [_waiting(request) for request in session["waiting"][:WAITING]],
        }
        described |= {name: session[name] for name in _COUNTS}
        described |= {name: text[:TEXT] for name in _TEXTS if (text := session.get(name)) is not None}
        yield (agent, session["sessionId"]), described | _absence(node)


def _waiting(request: Mapping[str, Any]) -> dict[str, Any]:
    texts = ((name, request.get(name)) for name in ("method", "since", "title"))
    return {name: text[:TEXT] for name, text in texts if text is not None}


def _absence(node: Node) -> dict[str, str]:
    return {} if node.up else {"unreachableSince": node.since_text}


def _is_usable(node: Node, agents: Container[str]) -> bool:
    """Return whether a connection may use an agent of a node, as far as is known."""
    return node.agents is None or any(f"{node.name}{SEPARATOR}{agent}" in agents for agent in node.agents)
