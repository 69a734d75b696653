"""Opens connections to nodes, over which HTTP is spoken with their gateways.

Nothing else in this gateway knows how a node is reached.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NamedTuple, TypeVar

import trio

from acp_gateway.client.dialing import Destination, demand_proof, explain_silence, open_connection
from acp_gateway.client.uplink import BACKOFF_MAX_AT_START, backoff
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import Busy, UnknownAgent, Unreachable
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.printable import printable
from acp_gateway.protocol.on_behalf import FOR, REQUEST
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import read_token_file
from acp_gateway.transports.streams import ByteStream, closed_on_error
from acp_gateway.transports.websocket.stream import PASSED

ATTEMPT_TIMEOUT: Final = 5.0
"""Seconds for one attempt: clients try again by themselves, and the shutdown of the gateway waits for an attempt."""

ENDPOINT: Final = "/acp"
"""Path of the endpoint of ACP at a gateway, unless a proxy in front has another one."""

_HEAD_SIZE: Final = 65536
"""Maximum bytes of the answer with a proof."""


_Result = TypeVar("_Result")


class Reached(NamedTuple):
    """A connection to the gateway of a node, over which nothing was asked yet but for a proof."""

    stream: ByteStream
    host: str
    """The value of the `Host` header."""
    endpoint: str
    """Path of its endpoint of ACP; those of its other services are beside it."""
    token: str | None
    """This gateway's token there; None where the connection itself says who comes."""

    def __repr__(self) -> str:
        return f"Reached({self.host})"

    def path(self, path: str) -> str:
        """Return the path there for a path of a gateway without a proxy in front."""
        return self.endpoint if path == ENDPOINT else f"{self.endpoint.removesuffix(ENDPOINT)}{path}"


def said_to_node(own_id: str, request_id: str, claim: str) -> dict[str, str]:
    """Return the headers by which this gateway says that a request comes through it, and for whom."""
    return {PASSED: own_id, REQUEST: request_id, FOR: claim}


def node_away(gateway: Gateway, access: Access, node: str, why: str) -> Busy:
    """Return the refusal for a node that does not answer, and have its state found out.

    Only the own user is told why, which names addresses.
    """
    if gateway.extensions.looks is not None:
        gateway.extensions.looks.look_at(node)
    is_own = access.identity == gateway.registry.own_identity and access.session is None
    directory = gateway.extensions.directory
    known = None if directory is None else directory.nodes.get(node)
    since = "" if known is None or known.up else f" since {known.since_text}"
    return Busy(f"the node {node} is away{since}{f': {printable(why)}' if is_own else ''}")


async def until_there(
    gateway: Gateway, node: str, attempt: Callable[[], Awaitable[_Result]], *, patiently: bool
) -> _Result:
    """Return what an attempt does; patiently, it is repeated for `connect_timeout` while it raises `Unreachable`."""
    section = gateway.config.nodes.get(node)
    until = trio.current_time() + (section.connect_timeout if patiently and section is not None else 0.0)
    failures = 0
    while True:
        try:
            return await attempt()
        except Unreachable:
            pause = backoff(failures, BACKOFF_MAX_AT_START, random.random())  # noqa: S311
            if trio.current_time() + pause >= until:
                raise
        failures += 1
        await trio.sleep(pause)


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
        if node.opener is not None and not node.token_file.exists():
            raise Unreachable(f"the node {name} has not connected yet: run there what `nodes add` has printed")
        token = read_token_file(node.token_file)
        pin = None if node.pin is None else parse_pin(node.pin)
        destination = Destination(
            node.url, None, token, pin, node.ca, _HEAD_SIZE, server="the node's gateway", opener=node.opener
        )
        with trio.move_on_after(ATTEMPT_TIMEOUT):
            stream = await open_connection(destination)
            async with closed_on_error(stream):
                if destination.demands_proof:
                    try:
                        await demand_proof(stream, destination)
                    except trio.BrokenResourceError as error:
                        raise Unreachable(f"{node.url}: {error}") from error
            host = f"[{node.url.host}]" if ":" in node.url.host else node.url.host
            return Reached(stream, f"{host}:{node.url.port}", node.url.path, token)
        raise Unreachable(explain_silence(str(node.url)))
