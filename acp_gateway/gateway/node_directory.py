"""The known nodes, and their state: reached or away, since when, their agents and sessions.

A pure state: attempts to reach nodes are reported, with their times; nothing here waits or does I/O. Nothing is
decided from absence: a node that is away keeps its agents, and stays a node until it is removed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import islice
from typing import Any, Final

from acp_gateway.config.editing.toml_file import suggestion
from acp_gateway.config.nodes import SEPARATOR, NodeSection, split_name
from acp_gateway.config.schema import NAME
from acp_gateway.errors import Busy, TooOld, UnknownAgent, UnknownSession
from acp_gateway.printable import printable
from acp_gateway.security.token_store import EVERYONE, IDENTITY_SIZE

MAX_AGENTS: Final = 200
"""Maximum number of agents of one node that are known here, more than a configuration has."""

MAX_MORE: Final = 10**9
"""Maximum number of further sessions that a node is believed to have: sums of it stay numbers that can be written."""

MAX_FOLDERS: Final = 200
"""Maximum number of directories of one node that are known here, more than a configuration has."""

MAX_SPOKEN_FOR: Final = 10_000
"""Maximum number of identities that this gateway may act for at a node by their names, as many as a large team has."""

PATH_SIZE: Final = 4096
"""Maximum characters of such a directory, as on Linux."""

ID_SIZE: Final = 1024 - 65
"""Maximum characters of the id of a session: with the name of its node, a connection may still ask for it."""

MAX_SESSIONS: Final = 5000
"""Default of `max_node_sessions`."""

_AGENTS_TOLD: Final = 20
"""Maximum number of agents that an error names."""

_NOT_REACHED: Final = "not reached yet"


@dataclass(slots=True)
class Node:
    """The state of one node."""

    name: str
    up: bool
    """True if the last attempt to reach the node has succeeded."""
    since: float
    """Time since which `up` is as it is, in seconds since 1970."""
    silent: bool = False
    """True while it is up and has not answered the last request for its sessions in time."""
    why: str = _NOT_REACHED
    """The cause of its absence; empty while it is up."""
    reason: str = ""
    """The same as a word for programs, that of the error; empty before the first attempt."""
    version: str = ""
    identity: str = ""
    """The identity that this gateway has there; empty if the node has not told it."""
    may_speak_for: frozenset[str] = frozenset()
    """The identities that this gateway may act for there; `EVERYONE` for all."""
    agents: tuple[str, ...] | None = None
    """Names of its agents, as the node itself uses them; None before it was reached for the first time."""
    folders: tuple[str, ...] = ()
    """Directories of its machine below which sessions may work."""
    sessions: Sequence[Mapping[str, Any]] = ()
    """Its sessions, as it has described them last; see `docs/wire.md`."""
    more: Mapping[str, int] = field(default_factory=dict)
    """Number of its sessions that are not among these, by the identity there that has them."""
    load: Mapping[str, float] | None = None
    """Its live `sessions` and open `turns`, of all identities, and the `lag` of its event loop in seconds; None
    while it is away, and if it does not tell."""
    seen: float | None = None
    """Time of its last answer, in seconds since 1970."""

    @property
    def asked(self) -> bool:
        """True once an attempt to reach it has succeeded or failed."""
        return self.up or self.why != _NOT_REACHED

    def speaks_for(self, identity: str) -> bool:
        """Return whether this gateway may act for an identity there."""
        if len(identity) > IDENTITY_SIZE:
            return False
        return EVERYONE in self.may_speak_for or identity in self.may_speak_for

    def has(self, session: Mapping[str, Any], owner: str) -> bool:
        """Return whether a session there is that of an identity here.

        Where this gateway may not act for it, all is done by its own identity there.
        """
        there = owner if self.speaks_for(owner) else self.identity
        # An older gateway does not tell the identity, and lists the sessions of that alone.
        return there == session["owner"] or not there

    def more_of(self, owner: str) -> int:
        """Return the number of sessions of an identity here that the node has and that are not known here."""
        return self.more.get(owner if self.speaks_for(owner) else self.identity, 0)

    @property
    def is_too_old(self) -> bool:
        """True if it answers, but can't be used before it is upgraded."""
        return self.reason == TooOld.reason

    @property
    def away(self) -> str:
        """Say since when the node is away and why, in one line."""
        return self.away_since if self.is_too_old else f"{self.away_since}: {self.why}"

    @property
    def away_since(self) -> str:
        """The same without the cause, which may name addresses."""
        if self.is_too_old:
            return f"the node {self.name} is too old for this gateway: upgrade acp-gateway there"
        return f"the node {self.name} is away since {self.since_text}"

    @property
    def since_text(self) -> str:
        """Return `since` in ISO 8601."""
        return datetime.fromtimestamp(self.since, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class NodeDirectory:
    """All nodes of one gateway: those of its configuration, and those that it is told of while it runs.

    Args:
        nodes: sections of the configuration, by name.
        now: time of the start, in seconds since 1970.
        max_sessions: maximum sessions of one node that are known here.
    """

    def __init__(self, nodes: Mapping[str, NodeSection], now: float, max_sessions: int = MAX_SESSIONS) -> None:
        self.max_sessions = max_sessions
        """Maximum sessions of one node that are known here, from its next list on."""
        self._configured: dict[str, NodeSection] = {}
        self._discovered: dict[str, NodeSection] = {}
        self.sections: dict[str, NodeSection] = {}
        """The section in force of each node. It is the `nodes` of the gateway's `Config`, and changes with the nodes.
        """
        self.nodes: dict[str, Node] = {}
        self.is_unread: Callable[[], bool] = lambda: False
        """Returns True as long as further nodes may exist that were not named since the start."""
        self._listeners: dict[Callable[[], None], None] = {}
        self.configure(nodes, now)

    @contextmanager
    def listening(self, listener: Callable[[], None]) -> Iterator[None]:
        """Call a function in this block when there are other nodes, or one is reached or away. It must be fast, and not
        raise."""
        self._listeners[listener] = None
        try:
            yield
        finally:
            del self._listeners[listener]

    def _tell(self) -> None:
        for listener in list(self._listeners):
            listener()

    @property
    def configured(self) -> Mapping[str, NodeSection]:
        """The sections of the configuration."""
        return self._configured

    def configure(self, sections: Mapping[str, NodeSection], now: float) -> None:
        """Use these sections of the configuration. A node that was discovered as well stays one if its section goes."""
        names = [*sections, *(name for name in self._configured if name not in sections)]
        self._configured = dict(sections)
        for name in names:
            self._settle(name, now)

    def add(self, name: str, section: NodeSection, now: float) -> None:
        """Note a node that was discovered, or another section of it. One of the configuration wins over it."""
        self._discovered[name] = section
        self._settle(name, now)

    def remove(self, name: str) -> None:
        """Forget a node that was discovered, if there is such; one of the configuration stays.

        This is for a node that was removed, not for one that is away.
        """
        self._discovered.pop(name, None)
        self._settle(name, 0.0)

    def _settle(self, name: str, now: float) -> None:
        """Put the section in force, and the state of the node in accordance with it.

        What is known of a node is kept if its section changes, until it has answered there.
        """
        section = self._configured.get(name) or self._discovered.get(name)
        before, node = self.sections.get(name), self.nodes.get(name)
        if section is None:
            self.sections.pop(name, None)
            self.nodes.pop(name, None)
        elif node is None or before is None:
            self.sections[name], self.nodes[name] = section, Node(name, up=False, since=now)
        elif section != before:
            self.sections[name] = section
            if node.up and section.url != before.url:
                node.up, node.since, node.load = False, now, None
            # The result of the first attempt is news.
            node.why, node.reason = "" if node.up else _NOT_REACHED, ""
        self._tell()

    def set_up(self, name: str, agents: Iterable[str], version: str, now: float, folders: Sequence[str] = ()) -> bool:
        """Note that a node has answered; return True if it was away, or has other agents than before."""
        node = self.nodes[name]
        was_up, before = node.up, node.agents
        if not node.up:
            node.since = now
        node.up, node.silent, node.why, node.reason, node.seen = True, False, "", "", now
        self._describe(node, agents, version, folders)
        if not was_up:
            self._tell()
        return not was_up or node.agents != before

    def set_rights(self, name: str, identity: str, may_speak_for: Iterable[str]) -> None:
        """Note which identity this gateway has at a node, and which it may act for there."""
        node = self.nodes[name]
        node.identity = identity
        node.may_speak_for = frozenset(islice(may_speak_for, MAX_SPOKEN_FOR))

    def speaks_for(self, agent: str, identity: str) -> bool:
        """Return whether this gateway may act for an identity at the node of an agent, which keeps it apart then."""
        parts = split_name(agent, self.sections)
        return parts is not None and self.nodes[parts[0]].speaks_for(identity)

    def set_away(self, name: str, why: str, now: float, reason: str = "") -> bool:
        """Note that a node does not answer; return True if this is news: it did before, or it is the first attempt."""
        node = self.nodes[name]
        news = node.up or node.why == _NOT_REACHED
        if node.up:
            node.since = now
        node.up, node.why, node.reason, node.load = False, printable(why), reason, None
        if news:
            self._tell()
        return news

    def set_load(self, name: str, load: Mapping[str, float] | None) -> None:
        """Note the load of a node, as it has told it with its sessions."""
        self.nodes[name].load = load

    def set_sessions(
        self, name: str, sessions: Sequence[Mapping[str, Any]], more: int, more_of: Mapping[str, int] | None = None
    ) -> None:
        """Note which sessions a node has. Its live ones and the latest others are kept, `max_sessions` at most.

        Those without an id or agent that can be one are left out. `more` counts those that the node has not listed,
        and `more_of` the same by their owners; without it, they are those of this gateway's identity there.
        """
        node = self.nodes[name]
        self._keep_sessions(node, sessions, {node.identity: more} if more_of is None else more_of)

    def assume(
        self,
        name: str,
        agents: Iterable[str],
        *,
        version: str = "",
        folders: Sequence[str] = (),
        may_speak_for: Iterable[str] = (),
    ) -> None:
        """Note what another source than the node itself has about it. Once it has answered, its own word counts."""
        node = self.nodes[name]
        if node.seen is None:
            self._describe(node, agents, version, folders)
            node.may_speak_for = frozenset(may_speak_for)

    def _describe(self, node: Node, agents: Iterable[str], version: str, folders: Sequence[str]) -> None:
        node.agents = tuple(agent for agent in agents if NAME.fullmatch(agent))[:MAX_AGENTS]
        node.version = printable(version, size=64)
        node.folders = tuple(folder for folder in folders if len(folder) <= PATH_SIZE)[:MAX_FOLDERS]

    def _keep_sessions(self, node: Node, sessions: Sequence[Mapping[str, Any]], more: Mapping[str, int]) -> None:
        valid = [it for it in sessions if len(it["sessionId"]) <= ID_SIZE and NAME.fullmatch(it["agent"])]
        node.sessions = valid[max(len(valid) - self.max_sessions, 0) :]
        left = Counter(
            {owner: min(count, MAX_MORE) for owner, count in islice(more.items(), MAX_SPOKEN_FOR) if count > 0}
        )
        left.update(it["owner"] for it in sessions)
        left.subtract(it["owner"] for it in node.sessions)
        node.more = dict(+left)

    @property
    def agents(self) -> list[str]:
        """The agents of all nodes, as they are named here."""
        return [f"{node.name}{SEPARATOR}{agent}" for node in self.nodes.values() for agent in node.agents or ()]

    @property
    def absences(self) -> list[str]:
        """Say of each node that is away since when, in one line; of those that were asked."""
        return [node.away_since for node in self.nodes.values() if node.asked and not node.up]

    def describe(self) -> list[dict[str, Any]]:
        """Return the state of all nodes for the gateway's own user; see `docs/wire.md`."""
        return [
            {
                "name": node.name,
                "url": str(self.sections[node.name].url),
                "configured": node.name in self._configured,
                "lends": self.sections[node.name].opener is not None,
                "watched": node.asked,
                "up": node.up,
                "since": node.since_text,
                "why": "it does not answer now" if node.up and node.silent else node.why or None,
                "reason": node.reason or None,
                "version": node.version or None,
                "agents": None if node.agents is None else list(node.agents),
                "sessions": sum(it.get("live") is not False for it in node.sessions),
                "turns": sum(bool(it["turn"]) for it in node.sessions),
                "waiting": sum(bool(it["waiting"]) for it in node.sessions),
                "load": None if node.load is None else dict(node.load),
            }
            for node in self.nodes.values()
        ]

    def folders_of(self, agent: str) -> tuple[str, ...]:
        """Return the directories in which an agent of a node may work; none for another agent."""
        parts = split_name(agent, self.sections)
        return () if parts is None else self.nodes[parts[0]].folders

    def agent_of(self, node: str, session_id: str, owner: str) -> str | None:
        """Return the agent of a session of a node, as it is named here; None if the node has not listed just one.

        Where the node has more sessions than it has listed, its only agent may have it; raises `UnknownSession` if
        there are several. `owner` is the identity here whose session it must be.
        """
        there = self.nodes[node]
        found = {str(it["agent"]) for it in there.sessions if it["sessionId"] == session_id and there.has(it, owner)}
        if not found and there.more_of(owner) and there.agents:
            if len(there.agents) > 1:
                raise UnknownSession(
                    f"the node {node} lists only some of its sessions (max_node_sessions), and this one is not among "
                    f"them: name its agent too, one of {', '.join(there.agents[:_AGENTS_TOLD])}, as {node}/AGENT"
                )
            found = {*there.agents}
        return f"{node}{SEPARATOR}{found.pop()}" if len(found) == 1 else None

    def check_read(self, name: str) -> None:
        """Raise `Busy` if a name that is unknown here may be one of a node that was not told of yet."""
        if SEPARATOR in name and self.is_unread():
            raise Busy("this gateway has just started, and the directory of its cluster has not told the nodes yet")

    def check_node(self, name: str) -> None:
        """Check that there is a node of this name. Raises `UnknownAgent`, and `Busy` if there may be one."""
        if name not in self.nodes:
            self.check_read(f"{name}{SEPARATOR}")
            hint = suggestion(name[:64], [*self.nodes]) or ""
            raise UnknownAgent(f"this gateway has no node {name!r:.80}{hint}")

    def check_agent(self, name: str) -> None:
        """Raise `UnknownAgent` if its node has no such agent, and `Busy` if its agents are unknown so far."""
        parts = split_name(name, self.sections)
        assert parts is not None, "the configuration has found the node"
        node = self.nodes[parts[0]]
        if node.agents is None:
            raise Busy(node.away)
        if parts[1] not in node.agents:
            known = [f"{node.name}{SEPARATOR}{agent}" for agent in node.agents[:_AGENTS_TOLD]]
            hint = suggestion(name, known) or (f"; there are: {', '.join(known)}" if known else "")
            raise UnknownAgent(f"the node {node.name} has no agent {parts[1]} for this gateway{hint}")
