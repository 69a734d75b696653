"""The limits of a hub."""

from acp_gateway.config.load import GatewaySection
from acp_gateway.gateway.hub.hub import link_timeout
from acp_gateway.transports.link import HEARTBEAT


def test_a_link_counts_as_lost_after_ping_interval_and_ping_timeout_but_not_within_two_heartbeats() -> None:
    assert link_timeout(GatewaySection(ping_interval=100.0, ping_timeout=50.0)) == 150.0
    assert link_timeout(GatewaySection(ping_interval=0.1, ping_timeout=0.1)) == 2 * HEARTBEAT
