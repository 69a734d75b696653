"""The parts of the heads of requests and responses that pass through a gateway. All else is left out.

Credentials, cookies, origins and addresses are between a client and the first gateway. Each hop has its own framing.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from acp_gateway.errors import ProtocolError
from acp_gateway.transports.http.server import SANDBOX
from acp_gateway.transports.websocket.server import SUBPROTOCOL

_TO_NODE: Final = frozenset(
    {"accept", "acp-connection-id", "acp-gateway-part", "acp-gateway-resume", "acp-session-id"}
    | {"content-type", "if-modified-since", "if-none-match", "if-range", "last-event-id", "range", "user-agent"}
    | {"sec-websocket-key", "sec-websocket-version"}
)
"""Names of headers of a request that a node is told, in lower case."""

_TO_CLIENT: Final = frozenset(
    {"accept-ranges", "acp-connection-id", "acp-gateway", "acp-gateway-limit", "acp-gateway-part"}
    | {"acp-gateway-probe", "acp-gateway-resume", "acp-session-id", "allow", "cache-control", "content-disposition"}
    | {"content-encoding", "content-range", "content-type", "etag", "last-modified", "retry-after"}
    | {"sec-websocket-accept", "sec-websocket-protocol", "sec-websocket-version"}
)
"""Names of headers of a response that a client is told, in lower case."""

HARMLESS: Final = {"X-Content-Type-Options": "nosniff", "Content-Security-Policy": SANDBOX}
"""Headers of a response from another machine: at this origin, it is never a page with the rights of this gateway's."""

_CONTROL: Final = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""A control character, which no value may have (RFC 9110, 5.5): terminals obey some."""

_SUBPROTOCOLS: Final = "sec-websocket-protocol"


def request_fields(fields: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the headers of a client's request that pass, repeated ones too, which the node refuses.

    Of the subprotocols, among which a token may stand, only that of ACP passes.
    """
    passing = []
    for name, value in fields:
        lower = name.lower()
        if lower in _TO_NODE:
            passing.append((name, value))
        elif lower == _SUBPROTOCOLS and SUBPROTOCOL in (word.strip() for word in value.split(",")):
            passing.append((name, SUBPROTOCOL))
    return passing


def response_fields(fields: Mapping[str, str]) -> dict[str, str]:
    """Return the headers of a node's response that pass, by name; `fields` have names in lower case.

    Raises `ProtocolError` for one with a control character.
    """
    passing = {name.title(): value for name, value in fields.items() if name in _TO_CLIENT}
    for name, value in passing.items():
        if _CONTROL.search(value):
            raise ProtocolError(f"the header {name} of its response has a control character")
    return passing
