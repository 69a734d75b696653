"""Counts of events: what each is counted as."""

from typing import Any

import pytest

from acp_gateway.core.output import AuditEvent, HookEvent
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.hub.attachment import BUG, Disconnect
from acp_gateway.gateway.metrics import LATEST_LAGS, MOST_CURRENCIES, Histogram, Metrics
from acp_gateway.transports.streams import CloseReason


@pytest.fixture
def metrics() -> Metrics:
    return Metrics(["demo", "other"])


def test_a_histogram_counts_a_bound_with_the_values_below_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 2.5, 100.0):
        histogram.observe(value)
    assert (histogram.counts, histogram.total) == ([2, 2, 2], 107.5)


@pytest.mark.parametrize(
    ("stop_reason", "label"),
    [("end_turn", "end_turn"), ("cancelled", "cancelled"), (None, "none"), ("made_up", "other")],
)
def test_a_turn_is_counted_by_the_stop_reasons_of_the_protocol_and_no_others(
    stop_reason: str | None, label: str, metrics: Metrics
) -> None:
    session = Session("demo", "s", "ann", Journal(1000, "e"))
    metrics.count_hook_event(HookEvent("turn_end", session, {"stopReason": stop_reason, "seconds": 12.5}))
    metrics.count_hook_event(HookEvent("permission_waiting", session, {}))
    assert +metrics.turns == {("demo", label): 1}
    assert (metrics.turn_seconds["demo"].total, metrics.turn_seconds["other"].total) == (12.5, 0.0)


def test_an_agent_that_is_added_is_counted_from_zero_and_the_others_go_on(metrics: Metrics) -> None:
    metrics.count_audit_event(AuditEvent("agent_started", None, {"agent": "demo"}))
    metrics.count_audit_event(AuditEvent("permission_decided", None, {"agent": "demo"}, 3.5))
    metrics.add_agents(["demo", "new"])
    assert metrics.agent_starts == {"demo": 1, "other": 0, "new": 0}
    assert {name: histogram.total for name, histogram in metrics.decision_wait.items()} == {
        "demo": 3.5,
        "other": 0.0,
        "new": 0.0,
    }


def test_costs_are_counted_by_agent_kind_and_currency_in_few_series(metrics: Metrics) -> None:
    for number in range(MOST_CURRENCIES + 2):
        amounts = {f"US{number}": 5, "turns": 1, "tokens": 9, "input": 3, "cachedWrite": 2}
        metrics.count_spent("demo", amounts)
    metrics.count_spent("other", {"EUR": 7})
    counted = {"total": 9, "input": 3, "cached_write": 2}
    assert +metrics.tokens == {("demo", kind): count * (MOST_CURRENCIES + 2) for kind, count in counted.items()}
    assert metrics.costs == {"demo": {f"US{number}": 5 for number in range(MOST_CURRENCIES)}, "other": {"EUR": 7}}


@pytest.mark.parametrize("name", ["permission_decided", "elicitation_decided"])
def test_a_decision_is_counted_by_the_time_that_it_took(name: str, metrics: Metrics) -> None:
    metrics.count_audit_event(AuditEvent(name, None, {"agent": "demo"}, 3.5))
    assert metrics.decision_wait["demo"].total == 3.5
    assert sum(metrics.decision_wait["demo"].counts) == 1


def test_starts_and_ends_of_agents_are_counted_and_other_events_are_not(metrics: Metrics) -> None:
    about: dict[str, Any] = {"agent": "demo", "pid": 1}
    for event in (
        AuditEvent("agent_started", None, about),
        AuditEvent("agent_ended", None, about | {"how": "exited"}),
        AuditEvent("agent_not_started", None, {"agent": "other"}),
        AuditEvent("session_joined", None, about),
    ):
        metrics.count_audit_event(event)
    assert metrics.agent_starts == {"demo": 1, "other": 0}
    assert +metrics.agent_exits == {("demo", "exited"): 1, ("other", "not_started"): 1}


@pytest.mark.parametrize(
    ("disconnect", "reason"),
    [
        (None, "gateway_stopping"),
        (BUG, "internal"),
        (Disconnect(CloseReason.NORMAL, ""), "left"),
        (Disconnect(CloseReason.AGENT_GONE, "the agent demo ended with exit code 1"), "agent_gone"),
    ],
)
def test_the_end_of_a_client_is_counted_by_a_word(disconnect: Disconnect | None, reason: str, metrics: Metrics) -> None:
    metrics.count_detached(disconnect)
    assert +metrics.detached == {reason: 1}


def test_the_recent_lag_is_the_largest_of_the_latest_values(metrics: Metrics) -> None:
    assert metrics.recent_lag == 0.0
    for seconds in (0.5, 0.001, *(0.002,) * (LATEST_LAGS - 2)):
        metrics.observe_lag(seconds)
    assert metrics.recent_lag == 0.5
    metrics.observe_lag(0.001)
    assert metrics.recent_lag == 0.002
    assert sum(metrics.event_loop_lag.counts) == LATEST_LAGS + 1
