"""Renders the metrics of a gateway for Prometheus, with `prometheus_client`, which is an optional dependency.

Counts come from `gateway.metrics`; states, such as the number of connections, are read here. No label holds the name
of an identity, a session or a peer, so the number of series is bounded by the configuration.
"""

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from importlib.util import find_spec
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import trio

from acp_gateway import INSTALL_ALL, __version__
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.metrics import Histogram
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.transports.http.server import Response

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "acp_gateway_"

TRANSPORTS: Final = ("websocket", "http", "lines", "memory")

CACHE_TIME: Final = 1.0
"""Seconds for which a text is used again: further requests within it cost no more."""


def check_library() -> None:
    """Raise `ConfigError` if `prometheus_client` is not installed."""
    if find_spec("prometheus_client") is None:
        how = f"`{INSTALL_ALL}` in a checkout"
        raise ConfigError(f'serves "metrics", which needs the package prometheus_client: {how}', key="listen")


class MetricsExporter:
    """The metrics of one gateway as text. Made only where `prometheus_client` is installed."""

    def __init__(self, gateway: Gateway, limiter: HandshakeLimiter) -> None:
        from prometheus_client import CollectorRegistry, ProcessCollector

        self._registry = CollectorRegistry()
        self._registry.register(_GatewayCollector(gateway, limiter))
        ProcessCollector(registry=self._registry)
        self._response: Response | None = None
        self._rendered_at = 0.0

    def response(self) -> Response:
        """Return the response to a scrape."""
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        now = trio.current_time()
        if self._response is None or now - self._rendered_at >= CACHE_TIME:
            headers = {"Content-Type": CONTENT_TYPE_LATEST, "Cache-Control": "no-store"}
            self._response = Response(200, generate_latest(self._registry), headers)
            self._rendered_at = now
        return self._response


class _GatewayCollector:
    """Reads a gateway at each scrape."""

    def __init__(self, gateway: Gateway, limiter: HandshakeLimiter) -> None:
        self._gateway = gateway
        self._limiter = limiter

    def describe(self) -> "Iterable[Metric]":
        """Return nothing: else the registry would read the gateway to learn the names."""
        return ()

    def collect(self) -> "Iterator[Metric]":
        """Yield all metrics."""
        build = __version__, platform.python_version()
        yield _gauge("build_info", "1, with the versions", ("version", "python"), [(build, 1)])
        yield from self._states()
        yield from self._counts()

    def _states(self) -> "Iterator[Metric]":
        hubs = self._gateway.hubs
        connections = Counter({(state, transport): 0 for state in ("connected", "away") for transport in TRANSPORTS})
        sessions: Counter[tuple[str, ...]] = Counter()
        decisions: Counter[tuple[str, ...]] = Counter({(name,): 0 for name in self._gateway.config.agents})
        outboxes = journals = 0
        for hub in hubs:
            for attachment in hub.attachments.values():
                state = "connected" if attachment.away_since is None else "away"
                if attachment.connection is not None:
                    connections[state, attachment.connection.stream.transport] += 1
                outboxes += attachment.outbox.unconfirmed_bytes
            for session in hub.multiplexer.sessions:
                sessions[hub.name, session.state.name.lower()] += 1
                journals += session.journal.size
            decisions[hub.name,] += hub.multiplexer.waiting_decisions
        for stream in self._gateway.control_streams:
            connections["connected", stream.transport] += 1
        away = sum(count for (state, _), count in connections.items() if state == "away")
        problem = self._gateway.storage.problem is not None
        yield _gauge("connections", "Clients and control connections", ("state", "transport"), connections.items())
        yield _gauge("links_away", "Links that are kept for their clients to return", (), [((), away)])
        yield _gauge("sessions", "Live sessions", ("agent", "state"), sessions.items())
        yield _gauge("waiting_decisions", "Requests that a user has to decide", ("agent",), decisions.items())
        yield _gauge("outbox_bytes", "Bytes that clients have not received", (), [((), outboxes)])
        yield _gauge("journal_bytes", "Bytes of the histories of live sessions in memory", (), [((), journals)])
        directory = self._gateway.extensions.directory
        if directory is not None:
            nodes = [((name,), int(node.up)) for name, node in directory.nodes.items() if node.watched]
            yield _gauge("node_up", "1 while a node answers that is watched", ("node",), nodes)
            seen = [((name,), node.seen) for name, node in directory.nodes.items() if node.seen is not None]
            yield _gauge("node_seen_timestamp_seconds", "Time of the last answer of a node", ("node",), seen)
        if self._gateway.config.cluster is not None:
            up = self._gateway.extensions.cluster_up()
            yield _gauge("cluster_up", "1 while the directory of the cluster can be reached", (), [((), int(up))])
        yield _gauge("storage_problem", "1 while the storage fails", (), [((), int(problem))])

    def _counts(self) -> "Iterator[Metric]":
        metrics = self._gateway.metrics
        traffic = metrics.traffic
        messages = {(direction, method): count for direction, method, count in traffic.messages()}
        attachments = [attachment for hub in self._gateway.hubs for attachment in hub.attachments.values()]
        sent = traffic.bytes_to_clients + sum(attachment.outbox.put_bytes for attachment in attachments)
        sizes = {
            ("from_client",): traffic.bytes_from_clients,
            ("from_agent",): traffic.bytes_from_agents,
            ("to_client",): sent,
            ("to_agent",): traffic.bytes_to_agents,
        }
        yield _counter("turns", "Ended turns", ("agent", "stop_reason"), metrics.turns.items())
        yield _histogram("turn_seconds", "Duration of turns", metrics.turn_seconds)
        yield _histogram("decision_wait_seconds", "Time until a decision", metrics.decision_wait)
        yield _counter("messages", "Received messages", ("direction", "method"), messages.items())
        yield _counter("bytes", "Bytes of messages", ("direction",), sizes.items())
        yield _counter("detached", "Ended clients", ("reason",), _keyed(metrics.detached))
        yield _counter("refusals", "Refused connections", ("reason",), _keyed(self._limiter.refusals.counts))
        yield _counter("resumes", "Attempts to resume a link", ("result",), _keyed(metrics.resumes))
        yield _counter("agent_starts", "Started agent processes", ("agent",), _keyed(metrics.agent_starts))
        yield _counter("agent_exits", "Ended agent processes", ("agent", "how"), metrics.agent_exits.items())
        yield _histogram("event_loop_lag_seconds", "Lateness of the event loop", {"": metrics.event_loop_lag})


def _keyed(counts: Mapping[str, int]) -> list[tuple[tuple[str, ...], float]]:
    return [((key,), count) for key, count in counts.items()]


def _gauge(name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]) -> "Metric":
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _counter(
    name: str, text: str, labels: tuple[str, ...], values: Iterable[tuple[tuple[str, ...], float]]
) -> "Metric":
    from prometheus_client.core import CounterMetricFamily

    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _histogram(name: str, text: str, histograms: Mapping[str, Histogram]) -> "Metric":
    """Return a histogram for each agent, or without a label if the only name is empty."""
    from prometheus_client.core import HistogramMetricFamily

    labelled = "" not in histograms
    family = HistogramMetricFamily(PREFIX + name, text, labels=("agent",) if labelled else ())
    for agent, histogram in histograms.items():
        counts = accumulate(histogram.counts)
        bounds = [*map(str, histogram.bounds), "+Inf"]
        family.add_metric((agent,) if labelled else (), list(zip(bounds, counts, strict=True)), histogram.total)
    return family
