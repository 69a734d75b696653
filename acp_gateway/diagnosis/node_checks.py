"""Judges the nodes of the gateway that runs on this machine, for `acp-gateway doctor`: each line has the remedy."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from acp_gateway.client.local import LocalGateway
from acp_gateway.diagnosis.checks import Line, fault, ok, warning
from acp_gateway.errors import (
    AccessError,
    ConfigError,
    GatewayError,
    ProtocolError,
    TrustError,
    Unauthorized,
)
from acp_gateway.gateway.admission import LEADS_BACK

TIME_LIMIT: Final = 5.0
"""Seconds to wait for the gateway, which is on this machine."""

LAG_WARNING: Final = 1.0
"""Seconds by which the event loop of a node is late when it is reported: users notice each message."""

_RELOAD: Final = "then, on this machine: acp-gateway reload"


async def check_nodes(gateway: LocalGateway) -> list[Line]:
    """Return a line for each node of a gateway that runs; none if it has none. Raises nothing."""
    try:
        gateway.check_running()
        nodes = (await gateway.status(time_limit=TIME_LIMIT, nodes=True))["nodes"]
        return [line for node in nodes for line in judge_node(node)]
    except GatewayError as error:
        return [warning("gateway", f"it does not tell its state: {error}", "its log may say why")]
    except (KeyError, TypeError, ValueError):
        return [warning("gateway", "its state is not understood: it is of another version", "restart it")]


def judge_node(node: Mapping[str, Any]) -> Iterator[Line]:
    """Yield the lines about a node, as the gateway describes it."""
    name, reason = str(node["name"]), node.get("reason")
    if not node["up"]:
        text = f"{name} is away since {node['since']}: {node['why']}"
        if reason in _MENDED:
            remedy, code = _MENDED[reason]
            if LEADS_BACK in text:
                remedy = f"remove [nodes.NAME] or correct its url: it is this gateway itself; {_RELOAD}"
            yield fault("node", text, remedy.replace("NAME", name), code)
        else:
            remedy = "on its machine: acp-gateway doctor. The gateway tries again by itself, and its others go on"
            yield warning("node", text, remedy)
        return
    agents = node["agents"]
    if agents:
        yield ok("node", f"{name} is there, with {', '.join(agents)}")
    else:
        remedy = "on its machine: acp-gateway token list; make a token for agents there, or start some"
        yield warning("node", f"{name} is there, and has no agent for this gateway", remedy)
    lag = (node.get("load") or {}).get("lag", 0)
    if lag >= LAG_WARNING:
        yield warning(
            "node", f"{name} is slow: its event loop was late by {lag:.1f} s", "look at the load of its machine"
        )


_MENDED: Final = {
    ConfigError.reason: ("correct that file: it is read again at the next attempt", ConfigError.exit_code),
    Unauthorized.reason: (
        "on its machine: acp-gateway token create --label door; save the token in token_file of [nodes.NAME]",
        AccessError.exit_code,
    ),
    AccessError.reason: ("on its machine: acp-gateway doctor, and acp-gateway token list", AccessError.exit_code),
    TrustError.reason: (
        f"on its machine: acp-gateway certs show CERT; if that is right, write its pin to [nodes.NAME]; {_RELOAD}",
        TrustError.exit_code,
    ),
    ProtocolError.reason: (
        f"correct url of [nodes.NAME]: no acp-gateway answers there; {_RELOAD}",
        ProtocolError.exit_code,
    ),
}
"""Remedies and exit codes for what does not pass by itself, by the reason."""
