"""The defaults of the limits, held against each other."""

import pytest

from acp_gateway.config.limits import LimitsSection

LIMITS = LimitsSection()


@pytest.mark.parametrize(
    ("part", "whole"),
    [
        ("handshakes_per_address", "max_handshakes"),
        ("connections_per_guest", "connections_per_identity"),
        ("connections_per_identity", "max_connections"),
        ("reserved_connections", "max_connections"),
        ("sessions_per_identity", "max_sessions"),
        ("queued_prompts_per_session", "queued_prompts_per_identity"),
        ("queued_prompts_per_identity", "max_queued_prompts"),
    ],
)
def test_the_default_limit_of_a_part_is_below_that_of_the_whole(part: str, whole: str) -> None:
    assert getattr(LIMITS, part) < getattr(LIMITS, whole)


def test_the_message_burst_is_longer_than_a_second_of_the_rate() -> None:
    assert LIMITS.message_burst > LIMITS.messages_per_second
