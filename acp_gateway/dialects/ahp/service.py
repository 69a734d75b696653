"""Declares the Agent Host Protocol, for windows of VS Code."""

from typing import Final

from acp_gateway.config.services import Service

SERVICE: Final = Service(
    word="ahp",
    about=(
        '`"ahp"` is the Agent Host Protocol of VS Code, for `ws` and `wss`: beside `"acp"` at `/ahp`, with a token in '
        'the header; `["ahp"]` alone is for its windows, which show their token in the query, on loopback or with TLS.'
    ),
    folder=__package__,
    paths=frozenset({"ahp"}),
    by_default=True,
    needs_endpoint="else it is alone, for windows of VS Code, which show their token in the query",
    path="/",
    query_parameter="tkn",
)
