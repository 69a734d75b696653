"""When a connection is suspected, when it is probed, and when a second one is dialed."""

import itertools

import pytest

from acp_gateway.client.reconnecting.suspicion import (
    DEAF,
    DIAL_INTERVAL,
    MAX_ROUND_TRIP,
    PROBE_INTERVAL,
    REDIAL_INTERVAL,
    ROUND_TRIPS,
    SILENCE,
    SILENCE_TIMEOUT,
    STUCK,
    TIMEOUT,
    Sample,
    Suspicion,
)
from acp_gateway.transports.path_state import PathState

IN_FLIGHT = PathState(100, in_flight=True, queued=True)


def watching(round_trip: float = 0.0, *, answers_probes: bool = True) -> Suspicion:
    """Watch a connection that was made at 0."""
    suspicion = Suspicion()
    suspicion.connected(0.0, round_trip, answers_probes=answers_probes)
    return suspicion


def dials(suspicion: Suspicion, until: float, begin: float = 0.0, **sample: object) -> list[float]:
    """Look each `PROBE_INTERVAL`, and return the times at which a second connection is dialed."""
    found, now = [], begin
    while now <= until:
        if suspicion.look(Sample(now, **sample)).dial:  # type: ignore[arg-type]
            found.append(now)
        now += PROBE_INTERVAL
    return found


def test_an_idle_connection_is_never_looked_at_again() -> None:
    assert watching().look(Sample(1.0)) == (0, "", float("inf"))


def test_a_message_is_probed_at_once_and_suspected_without_an_answer() -> None:
    suspicion = watching()
    suspicion.sent(5.0)
    assert suspicion.look(Sample(5.0)) == (1, "", 5.0 + PROBE_INTERVAL)
    assert dials(suspicion, 5.0 + TIMEOUT - 0.01, 5.25) == []
    assert suspicion.look(Sample(5.0 + TIMEOUT)).dial == "no answer for 1.0 s"
    assert suspicion.suspect is not None
    assert (suspicion.suspect.at, suspicion.suspect.silent_since) == (6.0, 5.0)


def test_a_message_needs_no_look_of_its_own_before_the_next_probe() -> None:
    suspicion = watching()
    assert suspicion.sent(5.0)
    due = suspicion.look(Sample(5.0)).due
    assert not suspicion.sent(5.1)
    assert suspicion.look(Sample(due)).probe == 2
    suspicion.answered(due, 2)
    assert suspicion.look(Sample(due + PROBE_INTERVAL)).due == float("inf")
    assert suspicion.sent(9.0)


def test_the_look_at_which_a_connection_is_suspected_is_not_late() -> None:
    suspicion = watching(0.85)
    suspicion.sent(5.0)
    now = 5.0
    while not suspicion.look(Sample(now)).dial:
        now = suspicion.look(Sample(now)).due
    assert now == pytest.approx(5.0 + ROUND_TRIPS * 0.85)


def test_the_answer_to_a_probe_ends_a_suspicion_and_measures_the_round_trip() -> None:
    suspicion = watching()
    suspicion.sent(5.0)
    assert dials(suspicion, 6.5, 5.0) == [6.0]
    suspicion.answered(6.6, 1)
    assert suspicion.suspect is None
    assert suspicion.probes.round_trip == pytest.approx(1.6)
    assert suspicion.look(Sample(7.0)).due == float("inf")


def test_the_answer_to_a_later_probe_counts_for_an_earlier_one() -> None:
    suspicion = watching()
    for now in (5.0, 5.5):
        suspicion.sent(now)
        assert suspicion.look(Sample(now)).probe
    suspicion.answered(5.6, 2)
    assert suspicion.look(Sample(20.0)).dial == ""


def test_messages_in_a_row_are_probed_no_more_often_than_so_and_no_more_than_twice_without_an_answer() -> None:
    suspicion, probed = watching(), []
    for step in range(100):
        now = 1.0 + step / 100
        suspicion.sent(now)
        if suspicion.look(Sample(now)).probe:
            probed.append(now)
    assert probed == pytest.approx([1.0, 1.0 + PROBE_INTERVAL], abs=0.011)


def test_a_slow_network_has_longer_timeouts() -> None:
    suspicion = watching(2.0)
    suspicion.sent(0.0)
    assert dials(suspicion, 13.0) == [ROUND_TRIPS * 2.0, ROUND_TRIPS * 2.0 + DIAL_INTERVAL]
    assert watching(60.0).timeout == ROUND_TRIPS * MAX_ROUND_TRIP


def test_the_silence_of_a_turn_is_probed_and_then_suspected() -> None:
    suspicion = watching()
    assert suspicion.look(Sample(SILENCE - 0.01, 0.0, expects=True)).probe == 0
    assert suspicion.look(Sample(SILENCE, 0.0, expects=True)).probe == 1
    assert dials(suspicion, 5.0, SILENCE, heard_at=0.0, expects=True) == [SILENCE + TIMEOUT + SILENCE_TIMEOUT]


def test_the_silence_of_a_turn_is_probed_no_later_than_after_so_long() -> None:
    suspicion, now = watching(), 5.1
    while not (step := suspicion.look(Sample(now, heard_at=5.0, expects=True))).probe:
        now = step.due
    assert now == 5.0 + SILENCE


def test_an_agent_that_speaks_is_not_probed() -> None:
    suspicion = watching()
    for second in range(100):
        assert suspicion.look(Sample(second, second - 0.9, expects=True)).probe == 0


def test_what_is_heard_puts_off_a_suspicion_and_ends_it() -> None:
    suspicion = watching()
    suspicion.sent(1.0)
    suspicion.look(Sample(1.0))
    assert suspicion.look(Sample(2.5, heard_at=2.0)).dial == ""
    assert suspicion.look(Sample(3.0, heard_at=2.0)).dial
    suspicion.look(Sample(3.5, heard_at=3.4))
    assert suspicion.suspect is None


def test_bytes_that_the_peers_system_does_not_confirm_are_a_reason_whatever_is_heard() -> None:
    suspicion = watching(answers_probes=False)
    for step in range(5):
        now = 1.0 + step * PROBE_INTERVAL
        assert bool(suspicion.look(Sample(now, heard_at=now, path=IN_FLIGHT)).dial) == (now == 1.0 + TIMEOUT)
    suspicion.look(Sample(2.5, heard_at=2.5, path=IN_FLIGHT))
    assert suspicion.suspect is not None
    suspicion.look(Sample(2.6, path=PathState(200, in_flight=True, queued=True)))
    assert suspicion.suspect is None


def test_a_probe_without_an_answer_is_a_reason_in_the_end_although_messages_come() -> None:
    suspicion, found = watching(), []
    suspicion.sent(0.0)
    for step in range(100):
        now = step * PROBE_INTERVAL
        # A proxy confirms bytes that it cannot pass on.
        path = PathState(step, in_flight=False, queued=False)
        if suspicion.look(Sample(now, heard_at=now, received=step, path=path)).dial:
            found.append(now)
    assert found == [DEAF, DEAF + DIAL_INTERVAL]
    assert suspicion.describe(24.75) == "messages come, but no answer for 10.0 s"
    # It is not silent before no message comes either.
    assert suspicion.suspect is not None
    assert suspicion.suspect.silent_since == 24.75
    assert dials(suspicion, 36.0, 25.0) == [30.0, 34.75, 35.75]
    suspicion.answered(37.0, 1)
    assert suspicion.suspect is None


def test_an_answer_may_wait_behind_a_large_message_over_a_slow_line() -> None:
    suspicion = watching()
    suspicion.sent(0.0)
    for step in range(1000):
        now = step * PROBE_INTERVAL
        assert suspicion.look(Sample(now, heard_at=now)).dial == ""


def test_a_large_message_over_a_slow_line_causes_nothing_while_bytes_are_confirmed() -> None:
    suspicion = watching()
    suspicion.sent(0.0)
    for step in range(400):
        path = PathState(step * 5000, in_flight=True, queued=True)
        assert suspicion.look(Sample(step * PROBE_INTERVAL, pending=1000, path=path)).dial == ""


def test_what_a_slow_line_has_taken_may_wait_as_long_again_in_a_proxy() -> None:
    suspicion = watching()
    suspicion.sent(0.0)
    for step in range(40):
        suspicion.look(Sample(step * PROBE_INTERVAL, path=PathState(step, in_flight=False, queued=True)))
    found = dials(suspicion, 30.0, 10.0, path=PathState(10, in_flight=False, queued=False))
    assert found[0] == pytest.approx(20.0, abs=PROBE_INTERVAL)


@pytest.mark.parametrize("queued", [False, True])
def test_the_time_in_which_the_program_was_stopped_does_not_count_as_a_wait_of_bytes(queued: bool) -> None:
    suspicion = watching()
    suspicion.look(Sample(1.0, path=IN_FLIGHT))
    # It goes on a minute later: those bytes have left, perhaps others wait for a moment, and the path dies.
    suspicion.sent(61.0)
    assert suspicion.look(Sample(61.0, path=PathState(200, in_flight=queued, queued=queued))).probe
    assert dials(suspicion, 63.0, 61.25, path=PathState(300))[0] == 61.0 + TIMEOUT


def test_the_answer_to_a_probe_may_have_come_while_the_program_was_stopped() -> None:
    suspicion = watching()
    suspicion.sent(5.0)
    assert suspicion.look(Sample(5.0)).probe == 1
    assert suspicion.look(Sample(8.0)) == (0, "", 8.0 + PROBE_INTERVAL)
    suspicion.answered(8.0, 1)
    # No attempt in vain delays the one for the next message.
    suspicion.sent(8.0)
    assert dials(suspicion, 10.0, 8.25) == [9.0]


def test_the_round_trip_is_not_measured_over_a_stop_of_the_program() -> None:
    suspicion = watching(0.1)
    suspicion.sent(5.0)
    suspicion.look(Sample(5.0))
    # The answer is read first, or the look comes first.
    suspicion.answered(8.0, 1)
    suspicion.sent(8.0)
    suspicion.look(Sample(8.0))
    suspicion.look(Sample(8.25))
    suspicion.sent(8.25)
    suspicion.look(Sample(8.25))
    suspicion.look(Sample(11.0))
    suspicion.answered(11.0, 2)
    assert suspicion.probes.round_trip == 0.1


def test_the_round_trip_is_not_measured_over_a_time_without_a_way() -> None:
    suspicion = watching(0.1)
    suspicion.look(Sample(4.0, source="10.0.0.1"))
    suspicion.sent(5.0)
    assert suspicion.look(Sample(5.0, source=None)).probe == 1
    suspicion.look(Sample(5.25, source="10.0.0.1"))
    suspicion.answered(5.25, 1)
    assert suspicion.probes.round_trip == 0.1
    suspicion.sent(5.5)
    assert suspicion.look(Sample(5.5, source="10.0.0.1")).probe == 2
    suspicion.answered(5.7, 2)
    assert suspicion.probes.round_trip == pytest.approx(0.1125)


def test_a_program_that_was_stopped_suspects_a_connection_without_an_answer_a_moment_later() -> None:
    suspicion = watching()
    suspicion.sent(5.0)
    suspicion.look(Sample(5.0))
    assert dials(suspicion, 10.0, 8.0) == [8.0 + PROBE_INTERVAL]


def test_a_program_that_is_always_late_suspects_a_dead_connection_all_the_same() -> None:
    suspicion = watching()
    suspicion.sent(5.0)
    suspicion.look(Sample(5.0))
    assert [bool(suspicion.look(Sample(now)).dial) for now in (7.0, 9.0)] == [False, True]


def test_a_message_that_was_sent_before_the_program_was_stopped_is_as_old_as_its_probe() -> None:
    suspicion = watching()
    suspicion.sent(5.0)
    assert suspicion.look(Sample(8.0)).probe == 1
    assert dials(suspicion, 9.5, 8.25) == [8.0 + TIMEOUT]


def test_no_other_connection_is_dialed_before_what_came_in_a_stop_of_the_program_was_read() -> None:
    suspicion = watching()
    suspicion.sent(5.0)
    assert dials(suspicion, 6.0, 5.0) == [6.0]
    assert suspicion.look(Sample(20.0)).dial == ""
    assert suspicion.look(Sample(20.25)).dial


def test_bytes_that_wait_for_a_peer_that_takes_none_are_a_reason_in_the_end() -> None:
    suspicion = watching()
    suspicion.sent(0.0)
    (first, *_) = dials(suspicion, 60.0, path=PathState(100, in_flight=False, queued=True))
    assert first == pytest.approx(STUCK, abs=PROBE_INTERVAL)


def test_another_source_address_is_a_reason_at_once() -> None:
    suspicion = watching()
    for source in ("10.0.0.1", None, "10.0.0.1"):
        assert suspicion.look(Sample(1.0, source=source)).dial == ""
    step = suspicion.look(Sample(2.0, source="10.0.0.2"))
    assert "from 10.0.0.2 instead of 10.0.0.1" in step.dial
    assert step.probe == 1
    assert suspicion.look(Sample(2.1, source="10.0.0.2")).dial == ""


def test_bytes_that_wait_without_a_way_to_the_gateway_are_a_reason_and_its_return_is_one_at_once() -> None:
    # The system sends nothing then, so that nothing is in flight.
    kept = PathState(100, in_flight=False, queued=True)
    suspicion = watching()
    suspicion.look(Sample(1.0, path=PathState(100), source="10.0.0.1"))
    assert dials(suspicion, 9.0, 2.0, path=kept)[:1] == [2.0 + TIMEOUT]
    assert suspicion.describe(9.0) == "no answer for 7.0 s"
    assert suspicion.look(Sample(9.25, path=kept, source="10.0.0.1")).dial == "the way to the gateway is back"
    assert suspicion.look(Sample(9.5, path=kept, source="10.0.0.1")).dial == ""


def test_the_return_of_the_way_is_a_reason_at_once_also_soon_after_an_attempt_in_vain() -> None:
    kept, gone = PathState(100, in_flight=False, queued=True), PathState(200)
    suspicion = watching()
    suspicion.look(Sample(1.0, path=PathState(100), source="10.0.0.1"))
    assert dials(suspicion, 4.0, 2.0, path=kept) == [3.0]
    suspicion.look(Sample(4.25, path=gone, source=None))
    assert suspicion.suspect is None
    kept = PathState(200, in_flight=False, queued=True)
    assert dials(suspicion, 8.0, 6.0, path=kept) == []
    assert suspicion.look(Sample(8.25, path=kept, source="10.0.0.1")).dial == "the way to the gateway is back"
    assert suspicion.look(Sample(8.5, path=kept, source="10.0.0.1")).dial == ""


def test_what_is_heard_when_the_way_is_back_says_nothing_of_the_bytes_that_wait() -> None:
    # The gateway sends again at once what was on its way, the system of the client seconds later.
    kept = PathState(100, in_flight=False, queued=True)
    suspicion = watching()
    suspicion.look(Sample(1.0, path=PathState(100), source="10.0.0.1"))
    assert dials(suspicion, 9.0, 2.0, path=kept)[:1] == [3.0]
    step = suspicion.look(Sample(9.25, heard_at=9.2, path=kept, source="10.0.0.1"))
    assert step.dial == "the way to the gateway is back"
    suspicion.look(Sample(9.5, heard_at=9.2, path=PathState(200), source="10.0.0.1"))
    assert suspicion.suspect is None


def test_what_is_heard_when_the_way_is_back_counts_where_nothing_confirms_bytes() -> None:
    suspicion = watching(answers_probes=False)
    suspicion.look(Sample(0.0, source="10.0.0.1"))
    assert dials(suspicion, TIMEOUT + 1.0, 1.0, pending=100) == [TIMEOUT + 1.0]
    suspicion.look(Sample(3.0, source="10.0.0.1"))
    suspicion.look(Sample(3.5, source="10.0.0.1", heard_at=3.4))
    assert suspicion.suspect is None


def test_bytes_that_wait_where_the_way_was_never_known_are_a_reason_in_the_end_only() -> None:
    assert dials(watching(), STUCK - 1.0, path=PathState(100, in_flight=False, queued=True)) == []


def test_seconds_that_the_machine_has_slept_count_towards_the_pause_after_an_attempt_in_vain() -> None:
    suspicion = watching()
    suspicion.sent(0.0)
    assert dials(suspicion, 1.0) == [1.0]
    suspicion.answered(1.1, 1)
    suspicion.slept(DIAL_INTERVAL - 0.3)
    step = suspicion.look(Sample(1.2))
    assert (step.dial, step.probe) == ("", 2)
    assert suspicion.look(Sample(1.35)).dial
    suspicion.answered(1.4, 2)
    suspicion.slept(DIAL_INTERVAL)
    assert suspicion.look(Sample(1.5)).dial == "the machine slept"


def test_after_a_sleep_only_an_answer_shows_that_the_connection_is_alive() -> None:
    suspicion = watching()
    suspicion.slept(3600)
    assert suspicion.look(Sample(1.0)).dial
    # A proxy on this machine confirms the probe, and a message from before the sleep is read.
    suspicion.look(Sample(1.1, heard_at=1.1, path=PathState(50, in_flight=False, queued=False)))
    assert suspicion.suspect is not None
    suspicion.answered(1.2, 1)
    assert suspicion.suspect is None


def test_a_source_address_that_changes_on_and_on_causes_few_attempts_in_vain() -> None:
    suspicion, found = watching(), []
    for second in range(100):
        step = suspicion.look(Sample(second, source=f"10.0.0.{second % 2}"))
        if step.dial:
            found.append(second)
        suspicion.answered(second + 0.1, step.probe)
    assert found == list(range(1, 100, int(DIAL_INTERVAL)))


def test_another_source_address_is_a_reason_at_once_while_the_connection_has_not_answered() -> None:
    suspicion = watching()
    suspicion.look(Sample(0.0, source="10.0.0.1"))
    suspicion.slept(3600)
    assert suspicion.look(Sample(0.5, source="10.0.0.1")).dial
    assert "10.0.0.2" in suspicion.look(Sample(2.0, source="10.0.0.2")).dial


def test_attempts_in_vain_are_rare() -> None:
    suspicion, found = watching(), []
    for begin in range(0, 200, 4):
        suspicion.sent(begin)
        found += dials(suspicion, begin + 1.5, begin)
        # So late that it does not measure the round trip.
        suspicion.answered(begin + 3.0, 200)
    assert suspicion.probes.round_trip == 0.0
    assert len(found) > 5
    assert all(later - earlier >= DIAL_INTERVAL for earlier, later in itertools.pairwise(found))


def test_a_connection_that_stays_silent_is_replaced_as_soon_as_the_network_is_back() -> None:
    suspicion = watching()
    suspicion.sent(0.0)
    found = dials(suspicion, 15.0)
    assert found == [TIMEOUT, *(TIMEOUT + DIAL_INTERVAL + each * REDIAL_INTERVAL for each in range(5))]


def test_a_second_connection_that_has_asked_for_the_link_keeps_its_time_unless_the_way_changes() -> None:
    suspicion = watching()
    suspicion.sent(0.0)
    dials(suspicion, TIMEOUT + DIAL_INTERVAL)
    assert dials(suspicion, 16.0, 11.25, answer_due=15.0, source="10.0.0.1") == [15.0, 16.0]
    assert "10.0.0.2" in suspicion.look(Sample(16.1, answer_due=20.0, source="10.0.0.2")).dial


def test_the_timeout_doubles_with_each_connection_over_which_nothing_came() -> None:
    suspicion = watching()
    timeouts = []
    for moved in (True, False, False, True):
        suspicion.connected(10.0, 0.0, answers_probes=True, moved=moved)
        timeouts.append(suspicion.timeout)
    assert timeouts == [1.0, 2.0, 4.0, 1.0]


def test_a_gateway_of_an_earlier_version_is_not_probed() -> None:
    suspicion = watching(answers_probes=False)
    suspicion.sent(1.0)
    assert suspicion.look(Sample(1.0, expects=True)).probe == 0
    assert suspicion.look(Sample(100.0, expects=True)) == (0, "", 100.0 + PROBE_INTERVAL)
