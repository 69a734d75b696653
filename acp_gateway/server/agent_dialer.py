"""Connects, again after an outage, to agents that listen: bare ACP over TCP and unix sockets, WebSocket or HTTP.

They are reached as gateways are, so with the code of `client/`: this package is a layer above it.

An agent behind another gateway has a link that outlives its connections, see `client/reconnecting/held_link.py`. To the
hub the end of the link is the end of the agent.
"""

from typing import Final

import trio

from acp_gateway.client.dialing import Destination, Dialed, Resume, dial_link, open_connection
from acp_gateway.client.reconnecting.held_link import HeldLink
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.load import AgentSection, GatewaySection
from acp_gateway.errors import Unreachable
from acp_gateway.gateway.agent.startup import FindAgent
from acp_gateway.security.tls import parse_pin
from acp_gateway.security.token_format import read_token_file
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.websocket.stream import Timing

ATTEMPT_TIMEOUT: Final = 5.0
"""Seconds for one attempt: an agent is on this machine or near it. The shutdown of the gateway waits for an attempt."""

_SIZE_SETTING: Final = "max_message_size"


async def connect_to_agent(
    name: str, section: AgentSection, settings: GatewaySection, find: FindAgent = lambda _: None
) -> MaintainedStream:
    """Connect to the agent at `section.url`, and return a stream that is ready for `initialize`.

    The stream of an agent behind another gateway outlives its connections. `find` returns the section of an agent when
    a connection was lost: the address or the token may be another one by then. Without one, the agent goes on with the
    section that it had.

    Raises:
        Unreachable: there is no answer within `ATTEMPT_TIMEOUT`, or a temporary refusal.
        GatewayError: the certificate, the token or the protocol is wrong, or a file cannot be used.

    Cancelling closes the connection.
    """
    destination = _destination(section, settings)
    with trio.move_on_after(ATTEMPT_TIMEOUT):
        if not destination.address.websocket:
            connection = await open_connection(destination)
            return LineStream(
                connection, max_message_size=settings.max_message_size, size_setting=_SIZE_SETTING, skips=True
            )
        timing = Timing(settings.ping_interval, settings.ping_timeout, settings.stall_timeout)
        dialed = await _dial(destination, timing, Resume())
        if dialed.received is None:
            return dialed.stream

        def again() -> Destination:
            present = find(name)
            used = present if present is not None and present.url else section
            return _destination(used, settings)

        return HeldLink(f"agent {name}", dialed, again, timing, reconnect_timeout=section.reconnect_timeout, dial=_dial)
    raise Unreachable(f"{destination.address}: no answer within {ATTEMPT_TIMEOUT:g} s")


def _destination(section: AgentSection, settings: GatewaySection) -> Destination:
    """Return where an agent listens, with the token of this moment. Raises `ConfigError`."""
    assert section.url is not None
    return Destination(
        address=parse_target(section.url),
        agent=section.far_agent,
        token=None if section.token_file is None else read_token_file(section.token_file, any_form=True),
        pin=None if section.pin is None else parse_pin(section.pin),
        ca=section.ca,
        max_message_size=settings.max_message_size,
        server="the agent",
    )


async def _dial(destination: Destination, timing: Timing, resume: Resume) -> Dialed:
    dialed = await dial_link(destination, timing, resume)
    dialed.stream.limit(destination.max_message_size, _SIZE_SETTING)
    return dialed
