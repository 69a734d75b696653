"""The limits of a hub, which are options of the gateway and of the agent."""

from dataclasses import dataclass

from acp_gateway.config.load import AgentSection, GatewaySection
from acp_gateway.transports.link import HEARTBEAT, WINDOW


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a hub, from the configuration."""

    write_high_water: int
    """Pending bytes above which a client's stream gets no more, and above which clients are not read for the agent."""
    outbox_limit: int
    """Maximum bytes that wait for one connected client."""
    stall_timeout: float
    """Seconds without a read of the agent, while clients are not read for it, after which it is stopped."""
    idle_timeout: float
    """Seconds without messages or open requests after which the agent is stopped."""
    max_restarts: int
    """See `RestartBackoff`."""
    initialize_timeout: float
    """See `Startup`."""
    permission_timeout: float
    """Seconds before an unanswered decision counts as cancelled; the time between two checks is at most as long."""
    window: int
    """Maximum bytes on a resumable link that are sent and not acknowledged."""
    link_timeout: float
    """Seconds of silence after which the connection of a resumable link counts as lost."""
    away_limit: int
    """Maximum bytes that wait for one client that is away."""
    away_grace: float
    """Seconds that the link of a disconnected client is kept."""
    away_grace_idle: float
    """The same for the client of an agent of its own that is idle."""
    receive_window: int = WINDOW
    """Maximum bytes received over a resumable link and not passed on: the window that clients assume."""


def limits_of(settings: GatewaySection, agent: AgentSection) -> Limits:
    """Return the limits of a hub of this agent."""
    return Limits(
        write_high_water=settings.write_high_water,
        outbox_limit=settings.outbox_limit,
        stall_timeout=settings.stall_timeout,
        idle_timeout=agent.idle_timeout,
        max_restarts=agent.max_restarts,
        initialize_timeout=agent.initialize_timeout,
        permission_timeout=agent.permission_timeout,
        window=settings.resume_window,
        # An idle client sends only heartbeats.
        link_timeout=max(settings.ping_interval + settings.ping_timeout, 2 * HEARTBEAT),
        away_limit=settings.away_limit,
        away_grace=settings.away_grace,
        away_grace_idle=settings.away_grace_idle,
    )
