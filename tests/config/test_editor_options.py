"""The options of the editor bridge."""

from acp_gateway.config.options import EditorSection, GatewaySection


def test_the_bodies_that_are_received_at_a_time_fit_what_one_client_may_make_the_gateway_hold() -> None:
    section = EditorSection()
    assert section.message_size * section.bodies_per_identity <= GatewaySection().outbox_limit
