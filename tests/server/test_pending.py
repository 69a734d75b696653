"""The order in which pending connections are evicted, and the link of an accepted one."""

from typing import Any, cast

from acp_gateway.server.pending import (
    ANSWER_TIMEOUT,
    ARRIVAL_COST,
    FREE_STEPS,
    WAITING_TIME,
    Accepted,
    PendingConnection,
)

NOW = 100.0


def pending(number: int, steps: int = 0, last_received_at: float = NOW, name: str = "") -> PendingConnection:
    return PendingConnection(
        name=name or str(number),
        peer="192.0.2.1",
        listener="tcp://gpu:1",
        network="192.0.2.1",
        limited=True,
        number=number,
        steps=steps,
        last_received_at=last_received_at,
    )


def evicted(*connections: PendingConnection) -> list[str]:
    """Return the names in the order of eviction."""
    return [connection.name for connection in sorted(connections, key=lambda each: each.eviction_key(NOW))]


def test_eviction_begins_with_the_oldest_idle_connection_and_ends_with_the_oldest_active_one() -> None:
    slow = pending(2, steps=1, last_received_at=NOW - 2 * ANSWER_TIMEOUT)
    trickling = pending(4, steps=FREE_STEPS + 1)
    assert evicted(pending(1, steps=1), slow, pending(3), trickling, pending(5, steps=1)) == ["2", "3", "4", "5", "1"]


def test_a_connection_that_was_waited_for_too_long_in_all_is_idle_and_the_wait_for_its_turn_does_not_count() -> None:
    trickling, queued = pending(1), pending(2)
    for second in range(int(WAITING_TIME) + 2):
        trickling.begin_step(NOW + second)
        trickling.last_received_at = NOW + second
    queued.begin_step(NOW)
    later = NOW + WAITING_TIME + 1
    quick = pending(3, steps=1, last_received_at=later)
    order = sorted([queued, quick, trickling], key=lambda each: each.eviction_key(later))
    assert order == [trickling, quick, queued]


def test_repr_of_a_pending_connection_hides_its_token() -> None:
    connection = pending(1)
    connection.token = "acpgw_secret"  # It stands for one.
    assert "acpgw_secret" not in repr(connection)


def test_a_request_of_a_trusted_proxy_has_the_address_it_forwards_and_nothing_of_the_request_before() -> None:
    connection = pending(1, name="x7Kd01ab (192.0.2.1:50312)")
    connection.begin_request("203.0.113.5")
    assert (connection.address, connection.name) == (
        "203.0.113.5",
        "x7Kd01ab (203.0.113.5 by way of 192.0.2.1:50312)",
    )
    connection.token, connection.access = "acpgw_secret", cast("Any", object())
    connection.begin_request("192.0.2.1")
    assert (connection.address, connection.name) == ("192.0.2.1", "x7Kd01ab (192.0.2.1:50312)")
    assert connection.token is None
    assert connection.access is None
    assert connection.network == "192.0.2.1"


def test_link_id_is_set_for_resumable_connections_only() -> None:
    purpose = cast("Any", None)
    assert Accepted("id", 0, purpose).link_id == "id"
    assert Accepted("id", None, purpose).link_id is None


def test_the_next_request_of_a_connection_has_an_id_of_its_own_and_no_steps_yet() -> None:
    connection = pending(1, steps=FREE_STEPS + 1, name="x7Kd01ab (192.0.2.1:50312)")
    connection.connection_id = "x7Kd01abxxxxxxxxxxxxxx"
    connection.begin_request("203.0.113.5")
    connection.waited, connection.cost, connection.authenticated, connection.fetched = 5.0, 1.0, True, True
    connection.renew()
    connection.begin_request("192.0.2.1")
    assert len(connection.connection_id) == 22
    assert connection.connection_id != "x7Kd01abxxxxxxxxxxxxxx"
    assert connection.name == f"{connection.connection_id[:8]} (192.0.2.1:50312)"
    assert (connection.steps, connection.waited, connection.cost) == (0, 0.0, ARRIVAL_COST)
    assert (connection.answered, connection.authenticated, connection.fetched) == (True, False, False)
