"""The known nodes, and their state: reached or away, since when, and their agents.

A pure state: attempts to reach nodes are reported, with their times; nothing here waits or does I/O. Nothing is
decided from absence: a node that is away keeps its agents, and stays a node until it is removed.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

import msgspec

from acp_gateway.config.editing.toml_file import suggestion
from acp_gateway.config.nodes import SEPARATOR, NodeSection, split_name
from acp_gateway.config.schema import NAME
from acp_gateway.errors import Busy, TooOld, UnknownAgent
from acp_gateway.made.machine import Machine
from acp_gateway.printable import printable
from acp_gateway.protocol.on_behalf import CLAIMS

MAX_AGENTS: Final = 200
"""Maximum number of agents of one node that are known here, more than a configuration has."""

ID_SIZE: Final = 1024 - 65
"""Maximum characters of the id of a session: with the name of its node, a connection may still ask for it."""

_AGENTS_TOLD: Final = 20
"""Maximum number of agents that an error names."""

_NOT_REACHED: Final = "not reached yet"


class Counts(NamedTuple):
    """Numbers of a node's sessions that are this gateway's identity's there, as it has described them last."""

    sessions: int = 0
    """Live ones."""
    turns: int = 0
    """Those whose agent works on a prompt."""
    waiting: int = 0
    """Those whose agent waits for a person."""


NO_SESSIONS: Final = Counts()


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
    claims: int = 0
    """The form of claims that it understands; 0 before it was reached for the first time."""
    agents: tuple[str, ...] | None = None
    """Names of its agents, as the node itself uses them; None before it was reached for the first time."""
    counts: Counts = NO_SESSIONS
    load: Mapping[str, float] | None = None
    """Its live `sessions` and open `turns`, of all identities, and the `lag` of its event loop in seconds; None
    while it is away, and if it does not tell."""
    machine: Machine | None = None
    """The load of its machine; None if `load` is, and if it does not tell that."""
    seen: float | None = None
    """Time of its last answer, in seconds since 1970."""

    @property
    def asked(self) -> bool:
        """True once an attempt to reach it has succeeded or failed."""
        return self.up or self.why != _NOT_REACHED

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


def _load(load: Mapping[str, float], machine: Machine | None) -> dict[str, Any]:
    return {**load} if machine is None else {**load, "machine": msgspec.to_builtins(machine)}


class NodeDirectory:
    """All nodes of one gateway: those of its configuration, and those that it is told of while it runs.

    Args:
        nodes: sections of the configuration, by name.
        now: time of the start, in seconds since 1970.
    """

    def __init__(self, nodes: Mapping[str, NodeSection], now: float) -> None:
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
                node.up, node.since, node.load, node.machine = False, now, None, None
            # The result of the first attempt is news.
            node.why, node.reason = "" if node.up else _NOT_REACHED, ""
        self._tell()

    def set_up(self, name: str, agents: Iterable[str], version: str, now: float, claims: int = CLAIMS) -> bool:
        """Note that a node has answered; return True if it was away, or has other agents than before."""
        node = self.nodes[name]
        node.claims = claims
        was_up, before = node.up, node.agents
        if not node.up:
            node.since = now
        node.up, node.silent, node.why, node.reason, node.seen = True, False, "", "", now
        self._describe(node, agents, version)
        if not was_up:
            self._tell()
        return not was_up or node.agents != before

    def set_away(self, name: str, why: str, now: float, reason: str = "") -> bool:
        """Note that a node does not answer; return True if this is news: it did before, or it is the first attempt."""
        node = self.nodes[name]
        news = node.up or node.why == _NOT_REACHED
        if node.up:
            node.since = now
        node.up, node.why, node.reason, node.load, node.machine = False, printable(why), reason, None, None
        if news:
            self._tell()
        return news

    def set_load(
        self, name: str, load: Mapping[str, float] | None, counts: Counts, machine: Machine | None = None
    ) -> None:
        """Note the load of a node, as it has told it with its sessions, how many these are, and that of its machine."""
        node = self.nodes[name]
        node.load, node.counts, node.machine = load, counts, None if load is None else machine

    def assume(self, name: str, agents: Iterable[str], version: str = "") -> None:
        """Note what another source than the node itself has about it. Once it has answered, its own word counts."""
        if self.nodes[name].seen is None:
            self._describe(self.nodes[name], agents, version)

    def _describe(self, node: Node, agents: Iterable[str], version: str) -> None:
        node.agents = tuple(agent for agent in agents if NAME.fullmatch(agent))[:MAX_AGENTS]
        node.version = printable(version, size=64)

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
                **node.counts._asdict(),
                "load": None if node.load is None else _load(node.load, node.machine),
            }
            for node in self.nodes.values()
        ]

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
