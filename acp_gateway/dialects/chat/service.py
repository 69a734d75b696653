"""Declares the chat bridge, for widgets."""

from typing import Final

from acp_gateway.config.services import Service

SERVICE: Final = Service(
    word="chat",
    about='`"chat"` is the chat bridge `/chat`, for `ws` and `wss`.',
    folder=__package__,
    paths=frozenset({"chat"}),
    path="/chat",
)
