"""Declares the ports of agents."""

from typing import Final

from acp_gateway.config.services import Service

SERVICE: Final = Service(
    word="ports",
    about='`"ports"` is `/ports/PORT` for `acp-gateway forward`, for `ws` and `wss`, and needs `"acp"` beside it.',
    folder=__package__,
    paths=frozenset({"ports"}),
    by_default=True,
    needs_endpoint="the ports of agents are listed over the endpoint",
)
