"""Merges the sessions of nodes into a gateway's own list, as `NODE/ID`.

A session that was opened through this gateway is in both lists; it comes once. Where this gateway may speak for an
identity, that is told all sessions which the identity has at the node. Elsewhere only the gateway's own user is told
more than what was opened here: at the node it belongs to the identity of this gateway's token, and here that is the
user's.
"""

from collections.abc import Awaitable, Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from acp_gateway.config.nodes import SEPARATOR, split_name
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.gateway.node_directory import Node, NodeDirectory
from acp_gateway.gateway.sessions.spoken_sessions import within_size

TEXT: Final = 4096
"""Maximum characters of a text in the list of a node, as in the gateway's own."""

MAX_SIZE: Final = 32 * 1024 * 1024
"""Maximum bytes of such a list: half of what `acp-gateway sessions` and `chat` take, and ten nodes' lists."""

WAITING: Final = 100
"""Maximum number of open requests of one session of a node."""

_TEXTS: Final = ("title", "cwd", "updatedAt", "history", "fence")

_COUNTS: Final = ("connected", "away")

Further = Callable[[Node, str, Mapping[str, Any]], bool]
"""Returns whether a session of a node is told: by the node, the agent as it is named here, and the session."""


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
        self.refresh = refresh
        """Waits for the present lists of the nodes, for a bounded time."""
        self.need: Callable[[], None] = lambda: None
        """Called when a client uses nodes, so that these are watched."""
        self.version = 0
        """Grows with each report of a node."""
        self._listeners: dict[Callable[[], None], None] = {}

    def note_report(self) -> None:
        """Tell the listeners that a node has reported, or that there are other nodes."""
        self.version += 1
        for listener in list(self._listeners):
            listener()

    @property
    def is_listened_to(self) -> bool:
        """True while there are listeners."""
        return bool(self._listeners)

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call a function after each report of a node in this block. It must be fast, and not raise."""
        self._listeners[listener] = None
        self.need()
        try:
            yield
        finally:
            del self._listeners[listener]

    async def merge(self, reach: SessionReach, agents: Container[str], answer: dict[str, Any]) -> dict[str, Any]:
        """Return a list of sessions with those that the nodes have now; see `merged`."""
        await self.refresh()
        return self.merged(reach, agents, answer)

    def merged(self, reach: SessionReach, agents: Container[str], answer: dict[str, Any]) -> dict[str, Any]:
        """Return a list of sessions with those that the nodes have told last, as members of a response.

        Args:
            reach: the sessions that exist for the connection.
            agents: the agents whose sessions it is told.
            answer: the gateway's own list.
        """
        nodes = self._directory.nodes
        wide = reach.identity == self._registry.own_identity and reach.sees_all
        further = self._further(reach, agents)
        merged = {**answer, "sessions": merge_sessions(answer["sessions"], nodes, further)}
        usable = [node for node in nodes.values() if _is_usable(node, agents)]
        problems = [node.away if wide else node.away_since for node in usable if not node.up]
        if problems:
            merged["problems"] = [*answer.get("problems", ()), *problems]
        told = within_size(merged["sessions"], MAX_SIZE)
        more = answer.get("more", 0) + len(merged["sessions"]) - len(told)
        more += sum(self._untold(node, reach) for node in usable)
        merged["sessions"] = told
        if more:
            merged["more"] = more
        return merged

    def listed_at(
        self, reach: SessionReach, agents: Container[str]
    ) -> dict[str, dict[tuple[str, str], Mapping[str, Any]]]:
        """Return what is listed beside the gateway's own sessions, by agent and id there, for each node that may have
        something: one that was not reached yet as well, for those who are told all of it."""
        further = self._further(reach, agents)
        listed = {}
        for node in self._directory.nodes.values():
            if not _is_usable(node, agents) or not self._may_see(node, reach):
                continue
            sessions = {
                (session["agent"], session["sessionId"]): session
                for session in node.sessions
                if further(node, f"{node.name}{SEPARATOR}{session['agent']}", session)
            }
            if sessions or node.agents is None:
                listed[node.name] = sessions
        return listed

    def _may_see(self, node: Node, reach: SessionReach) -> bool:
        """Return whether a reach may have sessions at a node that were not opened through this gateway."""
        is_own = reach.identity == self._registry.own_identity
        return reach.sees_all and (is_own or node.speaks_for(reach.identity))

    def _untold(self, node: Node, reach: SessionReach) -> int:
        """Return the number of sessions in a reach that a node has and that are not known here."""
        return node.more_of(reach.identity) if self._may_see(node, reach) else 0

    def _further(self, reach: SessionReach, agents: Container[str]) -> Further:
        """Return whether a session of a node is told that is not in the gateway's own list.

        Where this gateway does not speak for the identity, what was opened through it may be another identity's here.
        """
        identity, registry = reach.identity, self._registry
        is_own = identity == registry.own_identity

        def further(node: Node, agent: str, session: Mapping[str, Any]) -> bool:
            if not reach.sees_all or agent not in agents or not node.has(session, identity):
                return False
            return node.speaks_for(identity) or (is_own and not registry.known(agent, session["sessionId"]))

        return further


def merge_sessions(
    own: Iterable[Mapping[str, Any]], nodes: Mapping[str, Node], further: Further
) -> list[dict[str, Any]]:
    """Return the sessions of a gateway with those of its nodes, those that are not live first.

    A session of a node that is in `own` is described as it is here while it is live here, else as the node knows it.
    Others of the nodes are added if `further` returns True for the node, the agent as it is named here, and the
    session.
    """
    # Agents that count their sessions have the same ids for several owners.
    listed = {
        (f"{node.name}{SEPARATOR}{session['agent']}", session["sessionId"], session["owner"]): (node, session)
        for node in nodes.values()
        for session in node.sessions
    }
    keys: dict[tuple[str, str], list[tuple[str, str, str]]] = {}
    for key in listed:
        keys.setdefault(key[:2], []).append(key)
    merged = []
    for session in own:
        described = dict(session)
        parts = split_name(session["agent"], nodes)
        if parts is not None:
            node = nodes[parts[0]]
            for key in keys.get((session["agent"], session["sessionId"]), ()):
                if key in listed and node.has(listed[key][1], session["owner"]):
                    theirs = _describe(*listed.pop(key))
                    if not session["live"]:
                        described |= {name: value for name, value in theirs.items() if name != "owner"}
                    elif "fence" in theirs:
                        # It runs there.
                        described["fence"] = theirs["fence"]
            described["sessionId"] = f"{parts[0]}{SEPARATOR}{session['sessionId']}"
            described |= _absence(node)
        merged.append(described)
    merged += [_describe(node, session) for key, (node, session) in listed.items() if further(node, key[0], session)]
    return sorted(merged, key=lambda session: bool(session["live"]))


def _describe(node: Node, session: Mapping[str, Any]) -> dict[str, Any]:
    return describe(node.name, session) | _absence(node)


def describe(node: str, session: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a session of a node by its checked members alone: another machine has written it."""
    described: dict[str, Any] = {
        "sessionId": f"{node}{SEPARATOR}{session['sessionId']}",
        "agent": f"{node}{SEPARATOR}{session['agent']}"[:TEXT],
        "owner": session["owner"][:TEXT],
        "live": session.get("live") is not False,
        "turn": session["turn"],
        "waiting": [_waiting(request) for request in session["waiting"][:WAITING]],
    }
    described |= {name: session[name] for name in _COUNTS}
    return described | {name: text[:TEXT] for name in _TEXTS if (text := session.get(name)) is not None}


def _waiting(request: Mapping[str, Any]) -> dict[str, Any]:
    texts = ((name, request.get(name)) for name in ("method", "since", "title"))
    return {name: text[:TEXT] for name, text in texts if text is not None}


def _absence(node: Node) -> dict[str, str]:
    return {} if node.up else {"unreachableSince": node.since_text}


def _is_usable(node: Node, agents: Container[str]) -> bool:
    """Return whether a connection may use an agent of a node, as far as is known."""
    return node.agents is None or any(f"{node.name}{SEPARATOR}{agent}" in agents for agent in node.agents)
