"""The reconnect policy: backoff, and losses that are final."""

import pytest

from acp_gateway.client.reconnect_policy import BACKOFF_MAX, LinkLoss, backoff, final_error
from acp_gateway.errors import AgentError, Forbidden, ForeignRefusal, GatewayError, ProtocolError, Unreachable


def test_backoff_doubles_up_to_the_longest() -> None:
    assert [backoff(failures, 15.0, 1.0) for failures in range(9)] == [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 15, 15]
    assert backoff(10**9, 15.0, 1.0) == 15


def test_jitter_decides_half_of_the_backoff() -> None:
    assert backoff(20, BACKOFF_MAX, 0.0) == 7.5
    assert backoff(20, BACKOFF_MAX, 0.5) == 11.25


@pytest.mark.parametrize(
    ("loss", "resumable", "waiting", "kind"),
    [
        (LinkLoss("cut"), True, True, None),
        (LinkLoss("cut"), True, False, None),
        (LinkLoss("closed", closed=True), True, True, None),
        (LinkLoss("closed", 1001, closed=True), True, True, None),
        (LinkLoss("closed", closed=True), True, False, Unreachable),
        (LinkLoss("closed", 1001, closed=True), True, False, Unreachable),
        (LinkLoss("closed", 1008, closed=True), True, True, Forbidden),
        (LinkLoss("closed", 1009, closed=True), True, True, ProtocolError),
        (LinkLoss("closed", 1011, closed=True), True, True, AgentError),
        (LinkLoss("cut"), False, True, Unreachable),
        (LinkLoss("closed", 1011, closed=True), False, True, AgentError),
        (LinkLoss("refused", cause=ForeignRefusal("refused")), False, True, ForeignRefusal),
        (LinkLoss("cut", cause=ProtocolError("no HTTP")), True, True, None),
    ],
)
def test_final_error_of_a_loss_before_the_first_success(
    loss: LinkLoss, *, resumable: bool, waiting: bool, kind: type[GatewayError] | None
) -> None:
    error = final_error(loss, resumable=resumable, waiting=waiting)
    assert (None if error is None else type(error)) is kind
