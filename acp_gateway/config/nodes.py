"""The options of `[nodes.NAME]`, and the names of agents and sessions that are reached through a node.

A name is that of the node, a slash, and the name that the node itself uses. No agent of the configuration has a slash
in its name, so `gpu2/opencode` can't be an own one.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

from acp_gateway.config.addresses import Address
from acp_gateway.config.reached import ReachedSection, reached_problems, read_node_url
from acp_gateway.config.schema import NAME, Entry, FilePath, Fixed, Seconds, SecondsOrNever
from acp_gateway.errors import ConfigError

Opener: TypeAlias = Callable[[], Awaitable[Any]]
"""Opens a stream of bytes to a node, over which TLS is done with it."""

SEPARATOR: Final = "/"
"""Stands between the name of a node and a name of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSection(ReachedSection):
    """`[nodes.NAME]`: another gateway, whose agents are used here as `NAME/AGENT`."""

    url: Annotated[Address, read_node_url]
    """The address of the other gateway: `wss://host:port`, `host[:port]`, which means `wss` and port 7443, or `ws://`
    on loopback."""

    token_file: FilePath
    """A file with a token of the other gateway, in mode 0600. It is read at each connection. There, everything counts
    as done by its identity, except for identities that the token may speak for."""

    connect_timeout: Fixed[Seconds] = 15.0
    """Seconds for which a node that cannot be reached is tried again before its clients get an error. A server that is
    restarted is back within; editors wait longer for `initialize`."""

    reconnect_timeout: Fixed[SecondsOrNever] = 900.0
    """Seconds for which a lost link to the node is resumed that is held for a client without one. A quarter of an hour:
    longer than the restart of a router or a machine."""

    @property
    def opener(self) -> Opener | None:
        """Opens connections to a node that lends them; None for one that is reached by its address."""
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class LentSection(NodeSection):
    """A node that lends its connections, and that no section of the configuration names."""

    opener: Opener = field(compare=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class DoorSection(ReachedSection):
    """`[doors.NAME]`: another gateway, the door, to which this one lends connections, so that it needs no open port."""

    url: Annotated[Address, read_node_url]
    """The address of the door: `wss://host:port`, `host[:port]`, which means `wss` and port 7443, or `ws://` on
    loopback."""

    token_file: FilePath
    """A file with the token that `acp-gateway nodes add` has made there, in mode 0600. `up --door` writes it."""


def lent_file(state_dir: Path, name: str) -> Path:
    """Return the file with the token that a node which lends its connections has made for its door, and its pin."""
    return state_dir / "lent" / f"{name}.token"


def split_name(name: str, nodes: Mapping[str, object]) -> tuple[str, str] | None:
    """Return the node of a name, and the name there; None if it is not one of a node."""
    node, slash, rest = name.partition(SEPARATOR)
    return (node, rest) if slash and rest and node in nodes else None


def is_name_at_node(name: str) -> bool:
    """Return whether a name has the form `NODE/AGENT`."""
    node, _, agent = name.partition(SEPARATOR)
    return NAME.fullmatch(node) is not None and NAME.fullmatch(agent) is not None


def node_problems(nodes: Mapping[str, NodeSection | DoorSection], entry: Entry) -> list[ConfigError]:
    """Return what does not fit together in `[nodes]`, or in `[doors]`."""
    problems: list[ConfigError] = []
    for name, node in nodes.items():
        problems += reached_problems(node, node.url, entry.table()[name].table())
    return problems
