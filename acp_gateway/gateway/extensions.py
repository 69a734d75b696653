"""Parts of the program that begin after the gateway, because they need it, and that the gateway calls."""

from collections.abc import Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # A gateway without nodes does not import their modules.
    from acp_gateway.core.sessions.session import SessionReach
    from acp_gateway.gateway.access import Access, ConnectRequest, LinkRequest
    from acp_gateway.gateway.node_directory import NodeDirectory
    from acp_gateway.gateway.node_places import Place
    from acp_gateway.gateway.search.elsewhere import FoundAtNodes
    from acp_gateway.gateway.sessions.elsewhere import ListedAtNodes, SpentAtNodes
    from acp_gateway.protocol.jsonrpc import RawId
    from acp_gateway.transports.http.server import HttpConnection, Request
    from acp_gateway.transports.maintained import MaintainedStream

    Serve = Callable[[HttpConnection], Awaitable[bool]]

    class NodeDoor(Protocol):
        """Lets clients in that want nodes; see `acp_gateway.nodes.door`."""

        def place(self, access: Access, wanted: ConnectRequest, node: str | None = None) -> Place | None: ...

        def node_of_link(self, link_id: str) -> tuple[str, str] | None: ...

        def admit(
            self,
            access: Access,
            node: str,
            path: str,
            request: Request,
            *,
            websocket: bool,
            link_id: str | None = None,
            names_links: bool = False,
        ) -> Serve: ...

        def hold(
            self, access: Access, place: Place, request: Request, name: str, connection_id: str, *, binary: bool = False
        ) -> Serve: ...

        def serve_lines(
            self,
            access: Access,
            place: Place,
            name: str,
            connection_id: str,
            raw_id: RawId,
            resume: LinkRequest | None,
        ) -> Callable[[MaintainedStream], Awaitable[None]]: ...

    class Looks(Protocol):
        """Finds out the state of nodes; see `acp_gateway.nodes.looks`."""

        def look_at(self, name: str) -> None: ...

        def look_soon(self) -> None: ...

        async def refresh(self) -> None: ...

        async def answers(self, name: str) -> bool: ...

    class Questions(Protocol):
        """Asks nodes for a client; see `acp_gateway.nodes.asking`."""

        async def sessions(
            self, access: Access, reach: SessionReach, agents: Container[str], *, with_ports: bool
        ) -> ListedAtNodes: ...

        async def search(
            self, access: Access, reach: SessionReach, agents: Container[str], words: str
        ) -> FoundAtNodes: ...

        async def export(self, access: Access, name: str, form: str, *, redacted: bool) -> bytes | None: ...

        async def usage(self, access: Access, reach: SessionReach, wanted: Mapping[str, Any]) -> SpentAtNodes: ...

    class Lend(Protocol):
        """Lets a node lend a connection; see `acp_gateway.nodes.lent`."""

        def __call__(self, access: Access, request: Request, name: str) -> Serve: ...


@dataclass(frozen=True, slots=True)
class Operations:
    """Requests of the gateway's own user that the program around the gateway carries out."""

    status: Callable[..., Awaitable[dict[str, Any]]]
    """Returns the state of the gateway, as members of the response; `with_nodes`, that of the nodes is a present one.
    """
    reload: Callable[[], dict[str, Any]]
    """Reads the configuration again, and returns what has changed, as members of the response."""
    stop_agent: Callable[[str], Awaitable[dict[str, Any]]]
    """Ends the processes of an agent, and returns how many there were, as members of the response. Raises
    `UsageError`."""


@dataclass(frozen=True, slots=True)
class TokenExchange:
    """Requests about the tokens that count on all nodes of a cluster."""

    tell: Callable[[object], Awaitable[object]]
    """Takes over what another node tells, the params of the request, and returns the same of this gateway. Raises
    `UsageError`."""
    confirm: Callable[[str], Awaitable[dict[str, Any]]]
    """Tells the other nodes of a change of a token; returns which of them have confirmed it."""


def _no_problem() -> str | None:
    return None


@dataclass(slots=True)
class Extensions:
    """The later parts, each of them absent until it begins."""

    operations: Operations | None = None
    """Requests of the gateway's own user, which `serve` carries out."""

    directory: "NodeDirectory | None" = None
    """The state of the nodes."""
    looks: "Looks | None" = None
    """Finds out the state of nodes."""
    lend: "Lend | None" = None
    """Lets nodes lend connections."""
    node_connections: Callable[[], Mapping[str, int]] = dict
    """Returns how many connections each node has parked here."""
    door_connections: Callable[[], Mapping[str, int]] = dict
    """Returns how many connections of this gateway are parked at each door."""
    questions: "Questions | None" = None
    """Asks nodes for a client."""
    door: "NodeDoor | None" = None
    """Lets clients in that want nodes."""
    led_to: "Callable[[Access], list[dict[str, Any]]] | None" = None
    """Describes the nodes that a credential may use, see `gateway/info` in `docs/web-protocol.md`; None without nodes.
    """

    own_node: str = ""
    """Name of this gateway in its cluster."""
    token_exchange: TokenExchange | None = None
    """The tokens of the cluster."""
    tokens_problem: Callable[[], str | None] = _no_problem
    """Returns why this gateway can't know whether tokens of its cluster were revoked."""
    cluster_problem: Callable[[], str | None] = _no_problem
    """Returns why the nodes of the cluster can't find this one."""
    lists_problem: Callable[[], str | None] = _no_problem
    """Returns why nodes may be missing in lists of sessions."""
    cluster_up: Callable[[], bool] = lambda: False
    """Returns whether the directory of the cluster can be reached."""

    @property
    def absent_nodes(self) -> list[str]:
        """A line for each node that is away, since when."""
        return [] if self.directory is None else self.directory.absences
