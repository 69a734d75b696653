"""Declares the Agent Host Protocol, for VS Code."""

from typing import Final

from acp_gateway.config.services import Service

SERVICE: Final = Service(
    word="ahp",
    about='`"ahp"` is the Agent Host Protocol `/ahp`, for VS Code, over `ws` and `wss`.',
    folder=__package__,
    paths=frozenset({"ahp"}),
    path="/ahp",
)
