"""Renders the metrics of a gateway for Prometheus, with `prometheus_client`, which is an optional dependency.

Counts come from `gateway.metrics`; states, such as the number of connections, are read here. No label holds the name
of an identity, a session or a peer, so the number of series is bounded by the configuration.
"""

import platform
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Final

import trio

from acp_gateway import __version__
from acp_gateway.gateway.costs.spending import MILLION
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.made.machine_looks import Reader
from acp_gateway.gateway.metrics import Histogram
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.transports.http.server import Response

if TYPE_CHECKING:
    from prometheus_client.core import Metric

PREFIX: Final = "acp_gateway_"

TRANSPORTS: Final = ("websocket", "http", "lines", "memory")


@dataclass(frozen=True)
class Family:
    """The declaration of a metric: Prometheus shows its meaning, and so does the reference."""

    kind: str
    """`gauge`, `counter` or `histogram`."""

    labels: tuple[str, ...]
    meaning: str


FAMILIES: Final = {
    "build_info": Family("gauge", ("version", "python"), "1, with the versions"),
    "connections": Family(
        "gauge",
        ("state", "transport"),
        "Clients, connected or away, and control connections; of browsers the transport is memory",
    ),
    "links_away": Family("gauge", (), "Links that are kept for their clients to return"),
    "sessions": Family("gauge", ("agent", "state"), "Live sessions"),
    "waiting_decisions": Family("gauge", ("agent",), "Permissions and questions that no user has answered"),
    "outbox_bytes": Family("gauge", (), "Bytes that clients have not received or confirmed"),
    "journal_bytes": Family("gauge", (), "Bytes of the histories of live sessions in memory"),
    "node_up": Family("gauge", ("node",), "1 while a node answers that is watched"),
    "node_seen_timestamp_seconds": Family(
        "gauge", ("node",), "Time of the last answer of a node, since 1970; absent before the first"
    ),
    "node_parked_connections": Family("gauge", ("node",), "Connections that a node lends and that wait for a client"),
    "door_parked_connections": Family("gauge", ("door",), "Connections that this gateway lends to a door, likewise"),
    "cluster_up": Family("gauge", (), "1 while the directory of the cluster can be reached"),
    "machine_processors": Family("gauge", (), "Processors of this machine"),
    "machine_load": Family("gauge", (), "Processes that run or wait for a processor, as the average of a minute"),
    "machine_memory_bytes": Family("gauge", (), "Memory of this machine"),
    "machine_memory_free_bytes": Family("gauge", (), "Memory that programs can get"),
    "machine_disk_bytes": Family("gauge", ("path",), "Size of the disk of a workspace"),
    "machine_disk_free_bytes": Family("gauge", ("path",), "Free bytes of that disk"),
    "gpu_use_ratio": Family("gauge", ("gpu", "name"), "Part of the time in which a GPU computes, from 0 to 1"),
    "gpu_memory_bytes": Family("gauge", ("gpu", "name"), "Memory of a GPU"),
    "gpu_memory_used_bytes": Family("gauge", ("gpu", "name"), "Memory of a GPU that is in use"),
    "gpu_temperature_celsius": Family("gauge", ("gpu", "name"), "Temperature of a GPU"),
    "storage_problem": Family("gauge", (), "1 while sessions can't be stored"),
    "turns": Family("counter", ("agent", "stop_reason"), "Ended turns; none stands for an error"),
    "turn_seconds": Family("histogram", ("agent",), "Duration of turns"),
    "decision_wait_seconds": Family("histogram", ("agent",), "Time until a decision"),
    "messages": Family(
        "counter",
        ("direction", "method"),
        "Received messages, from_client or from_agent; as method also response, other, and invalid for other texts",
    ),
    "bytes": Family("counter", ("direction",), "Bytes of messages, also to_client and to_agent, for each client"),
    "detached": Family(
        "counter", ("reason",), "Ended clients: left, gateway_stopping, agent_gone, or the reason that the client got"
    ),
    "refusals": Family("counter", ("reason",), "Refused connections"),
    "resumes": Family("counter", ("result",), "Attempts to resume a link: resumed, or why not"),
    "pushes": Family("counter", ("outcome",), "Notifications: sent, failed, or ended with their subscription"),
    "rule_decisions": Family("counter", ("agent", "decision"), "Permission requests that rules have decided"),
    "tokens": Family(
        "counter", ("agent", "kind"), "Tokens, as agents tell: total, input, output, cached_read, cached_write"
    ),
    "cost": Family("counter", ("agent", "currency"), "Money, as agents tell, of the first eight currencies of each"),
    "agent_starts": Family("counter", ("agent",), "Started agent processes"),
    "agent_exits": Family(
        "counter",
        ("agent", "how"),
        "Ended agent processes: exited by themselves, stopped as not needed, given_up as they did not answer or read, "
        "not_started",
    ),
    "event_loop_lag_seconds": Family("histogram", (), "Lateness of the event loop"),
}
"""All metrics, in the order of the reference. A counter is exported with `_total` behind its name."""

CACHE_TIME: Final = 1.0
"""Seconds for which a text is used again: further requests within it cost no more."""


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
        yield _family("build_info", [(build, 1)])
        yield from self._states()
        yield from self._machine()
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
        for stream in self._gateway.connections.served:
            connections["connected", stream.transport] += 1
        away = sum(count for (state, _), count in connections.items() if state == "away")
        problem = self._gateway.storage.problem is not None
        yield _family("connections", connections.items())
        yield _family("links_away", [((), away)])
        yield _family("sessions", sessions.items())
        yield _family("waiting_decisions", decisions.items())
        yield _family("outbox_bytes", [((), outboxes)])
        yield _family("journal_bytes", [((), journals)])
        directory, looks = self._gateway.extensions.directory, self._gateway.extensions.looks
        if looks is not None:
            # The next scrape has the result.
            looks.look_soon()
        if directory is not None:
            nodes = [((name,), int(node.up)) for name, node in directory.nodes.items() if node.asked]
            yield _family("node_up", nodes)
            seen = [((name,), node.seen) for name, node in directory.nodes.items() if node.seen is not None]
            yield _family("node_seen_timestamp_seconds", seen)
        extensions = self._gateway.extensions
        if parked := extensions.node_connections():
            yield _family("node_parked_connections", [((name,), count) for name, count in parked.items()])
        if parked := extensions.door_connections():
            yield _family("door_parked_connections", [((name,), count) for name, count in parked.items()])
        if self._gateway.config.cluster is not None:
            up = self._gateway.extensions.cluster_up()
            yield _family("cluster_up", [((), int(up))])
        yield _family("storage_problem", [((), int(problem))])

    def _machine(self) -> "Iterator[Metric]":
        self._gateway.look_at_machine()  # The next scrape has the result.
        if self._gateway.machine.last is None:
            return
        machine = self._gateway.machine.last.told(Reader())
        yield _family("machine_processors", [((), machine.cpus)])
        yield _family("machine_load", [((), machine.busy)])
        if machine.memory is not None:
            yield _family("machine_memory_bytes", [((), machine.memory.total)])
            yield _family("machine_memory_free_bytes", _told({(): machine.memory.free}))
        yield _family("machine_disk_bytes", [((disk.path,), disk.total) for disk in machine.disks])
        yield _family("machine_disk_free_bytes", [((disk.path,), disk.free) for disk in machine.disks])
        gpus = {(str(index), gpu.name): gpu for index, gpu in enumerate(machine.gpus)}
        yield _family("gpu_use_ratio", _told({key: gpu.use for key, gpu in gpus.items()}))
        yield _family("gpu_memory_bytes", _told({key: gpu.total for key, gpu in gpus.items()}))
        yield _family("gpu_memory_used_bytes", _told({key: gpu.used for key, gpu in gpus.items()}))
        yield _family("gpu_temperature_celsius", _told({key: gpu.temperature for key, gpu in gpus.items()}))

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
        yield _family("turns", metrics.turns.items())
        yield _histogram("turn_seconds", metrics.turn_seconds)
        yield _histogram("decision_wait_seconds", metrics.decision_wait)
        yield _family("messages", messages.items())
        yield _family("bytes", sizes.items())
        yield _family("detached", _keyed(metrics.detached))
        yield _family("refusals", _keyed(self._limiter.refusals.counts))
        yield _family("resumes", _keyed(metrics.resumes))
        yield _family("pushes", _keyed(metrics.pushes))
        yield _family("rule_decisions", metrics.rule_decisions.items())
        yield _family("tokens", metrics.tokens.items())
        costs = {(agent, unit): cost for agent, its in metrics.costs.items() for unit, cost in its.items()}
        yield _family("cost", [(key, cost / MILLION) for key, cost in costs.items()])
        yield _family("agent_starts", _keyed(metrics.agent_starts))
        yield _family("agent_exits", metrics.agent_exits.items())
        yield _histogram("event_loop_lag_seconds", {"": metrics.event_loop_lag})


def _told(values: Mapping[tuple[str, ...], float | None]) -> list[tuple[tuple[str, ...], float]]:
    return [(key, value) for key, value in values.items() if value is not None]


def _keyed(counts: Mapping[str, int]) -> list[tuple[tuple[str, ...], float]]:
    return [((key,), count) for key, count in counts.items()]


def _family(name: str, values: Iterable[tuple[tuple[str, ...], float]]) -> "Metric":
    """Return a gauge or a counter, with a value for each tuple of labels."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    declared = FAMILIES[name]
    kind = CounterMetricFamily if declared.kind == "counter" else GaugeMetricFamily
    family = kind(PREFIX + name, declared.meaning, labels=declared.labels)
    for key, value in values:
        family.add_metric(key, value)
    return family


def _histogram(name: str, histograms: Mapping[str, Histogram]) -> "Metric":
    """Return a histogram for each agent, or the one under the empty name if it has no labels."""
    from prometheus_client.core import HistogramMetricFamily

    declared = FAMILIES[name]
    family = HistogramMetricFamily(PREFIX + name, declared.meaning, labels=declared.labels)
    for agent, histogram in histograms.items():
        counts = accumulate(histogram.counts)
        bounds = [*map(str, histogram.bounds), "+Inf"]
        labels = (agent,) if declared.labels else ()
        family.add_metric(labels, list(zip(bounds, counts, strict=True)), histogram.total)
    return family
