"""Opens connections to nodes, over which HTTP is spoken with their gateways.

Nothing else in this gateway knows how a node is reached.
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple

import trio

from acp_gateway.client.dialing import Destination, demand_proof, explain_silence, open_connection
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import UnknownAgent, Unreachable
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import read_token_file
from acp_gateway.transports.streams import ByteStream, closed_on_error

ATTEMPT_TIMEOUT: Final = 5.0
"""Seconds for one attempt: clients try again by themselves, and the shutdown of the gateway waits for an attempt."""

ENDPOINT: Final = "/acp"
"""Path of the endpoint of ACP at a gateway, unless a proxy in front has another one."""

_HEAD_SIZE: Final = 65536
"""Maximum bytes of the answer with a proof."""


class Reached(NamedTuple):
    """A connection to the gateway of a node, over which nothing was asked yet but for a proof."""

    stream: ByteStream
    host: str
    """The value of the `Host` header."""
    endpoint: str
    """Path of its endpoint of ACP; those of its other services are beside it."""
    token: str | None
    """This gateway's token there; None where the connection itself says who comes."""

    def path(self, path: str) -> str:
        """Return the path there for a path of a gateway without a proxy in front."""
        return self.endpoint if path == ENDPOINT else f"{self.endpoint.removesuffix(ENDPOINT)}{path}"


Reach = Callable[[str], Awaitable[Reached]]
"""Opens a connection to the node of a name. Raises `GatewayError`; cancelling it closes the connection."""


class NodeReacher:
    """Connects to nodes at the addresses of their sections.

    Args:
        sections: returns the sections in force, by name.
    """

    def __init__(self, sections: Callable[[], Mapping[str, NodeSection]]) -> None:
        self._sections = sections

    async def reach(self, name: str) -> Reached:
        """Open a connection, as `Reach`, within `ATTEMPT_TIMEOUT`."""
        node = self._sections().get(name)
        if node is None:
            raise UnknownAgent(f"this gateway has no node {name!r:.80}")
        token = read_token_file(node.token_file)
        pin = None if node.pin is None else parse_pin(node.pin)
        destination = Destination(
            node.url, None, token, pin, node.ca, _HEAD_SIZE, server="the node's gateway", opener=node.opener
        )
        with trio.move_on_after(ATTEMPT_TIMEOUT):
            stream = await open_connection(destination)
            async with closed_on_error(stream):
                if destination.demands_proof:
                    await demand_proof(stream, destination)
            host = f"[{node.url.host}]" if ":" in node.url.host else node.url.host
            return Reached(stream, f"{host}:{node.url.port}", node.url.path, token)
        raise Unreachable(explain_silence(str(node.url)))
