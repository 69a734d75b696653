"""Declares the page for browsers, with its sign-in and its messages at `/ws`."""

from typing import Final

from acp_gateway.config.services import Service

SERVICE: Final = Service(
    word="page",
    about=('`"page"` is `/ws`, sign-in, and the page for browsers, for `ws` and `wss`, and needs `"acp"` beside it.'),
    folder=__package__,
    paths=frozenset({"assets", "favicon.ico", "login", "logout", "manifest.webmanifest", "worker.js", "ws"}),
    by_default=True,
    needs_endpoint="the page connects to the endpoint at its own address",
    signs_in=True,
)
