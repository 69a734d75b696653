"""Declares the metrics for Prometheus."""

from typing import Final

from acp_gateway.config.services import Service

SERVICE: Final = Service(
    word="metrics",
    about=(
        '`"metrics"` is `/metrics`, which needs the extra `metrics`, and a token of the role `metrics` except on '
        'loopback or a unix socket where nothing else is served: for `ws` and `wss`, and `["metrics"]` for `unix` too.'
    ),
    folder=__package__,
    paths=frozenset({"metrics"}),
    at_unix=True,
    path="/metrics",
    is_fetched=True,
    package="prometheus_client",
)
