"""The limits of a hub: each is the option of its name."""

import dataclasses

from acp_gateway.config.load import AgentSection, GatewaySection
from acp_gateway.gateway.hub.hub import limits_of
from acp_gateway.transports.link import HEARTBEAT

AGENT = AgentSection(
    command=("agent",), idle_timeout=1.5, max_restarts=2, initialize_timeout=3.5, permission_timeout=4.5
)
GATEWAY = GatewaySection(
    write_high_water=11,
    outbox_limit=12,
    stall_timeout=13.0,
    away_limit=14,
    away_grace=15.0,
    away_grace_idle=16.0,
    resume_window=17,
)


def test_each_limit_of_a_hub_is_the_option_of_its_name() -> None:
    limits = limits_of(GATEWAY, AGENT)
    found = dataclasses.asdict(limits)
    options = dataclasses.asdict(GATEWAY) | dataclasses.asdict(AGENT)
    named = {name for name in found if name in options}
    assert found.keys() - named == {"window", "link_timeout", "receive_window"}
    assert {name: found[name] for name in named} == {name: options[name] for name in named}
    assert limits.window == GATEWAY.resume_window


def test_a_link_counts_as_lost_after_ping_interval_and_ping_timeout_but_not_within_two_heartbeats() -> None:
    assert limits_of(GatewaySection(ping_interval=100.0, ping_timeout=50.0), AGENT).link_timeout == 150.0
    assert limits_of(GatewaySection(ping_interval=0.1, ping_timeout=0.1), AGENT).link_timeout == 2 * HEARTBEAT
