"""Backoff between restarts of an agent, and messages that were not sent; `test_hub` has its life."""

from collections.abc import Sequence

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.gateway.hub.agent_supervisor import AT_ONCE, MAX_BACKOFF, TURN, WINDOW, RestartBackoff, TooManyRestarts
from acp_gateway.protocol.text.large_messages import LARGE
from tests.kit.doubles import encode
from tests.kit.hub_scene import HOUR, numbers_of, sharing, update


def test_restart_backoff_is_zero_before_the_first_end() -> None:
    assert RestartBackoff(5).next_start(100.0) == 100.0


def test_each_end_doubles_the_pause_up_to_a_bound() -> None:
    restarts = RestartBackoff(100)
    pauses = []
    for _ in range(8):
        restarts.ended(10.0, "it ended")
        pauses.append(restarts.next_start(10.0) - 10.0)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, MAX_BACKOFF, MAX_BACKOFF, MAX_BACKOFF]


def test_a_pause_counts_from_the_end_and_not_from_the_next_request() -> None:
    restarts = RestartBackoff(5)
    restarts.ended(10.0, "it ended")
    assert restarts.next_start(500.0) == 11.0


def test_one_end_too_many_is_refused_with_the_reason_the_setting_and_when_to_try_again() -> None:
    restarts = RestartBackoff(2)
    for moment in (10.0, 20.0, 30.5):
        restarts.ended(moment, f"it ended at {moment}")
    with pytest.raises(
        TooManyRestarts, match=r"it ended at 30\.5; .* 3 times within 10 min \(max_restarts is 2\)"
    ) as caught:
        restarts.next_start(31.5)
    assert caught.value.retry_after == 579


def test_restart_backoff_allows_a_start_after_retry_after() -> None:
    restarts = RestartBackoff(1)
    restarts.ended(10.0, "it ended")
    restarts.ended(20.0, "it ended")
    assert restarts.next_start(10.0 + WINDOW) == 21.0


def test_restart_backoff_forgets_ends_older_than_the_window() -> None:
    restarts = RestartBackoff(1)
    restarts.ended(10.0, "it ended")
    restarts.ended(20.0, "it ended")
    assert restarts.next_start(1000.0) == 1000.0


async def test_the_lines_that_are_handled_at_once_take_a_turn_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing() as (scene, _):
        sizes: list[int] = []
        receive = scene.hub.receive_from_agent
        each = TURN / 100

        def costly(lines: Sequence[bytes]) -> None:
            sizes.append(len(lines))
            scene.time += each * len(lines)
            receive(lines)

        monkeypatch.setattr(scene.hub, "receive_from_agent", costly)
        scene.agent.stream.send_nowait([b"junk"] * 4 * AT_ONCE)
        await wait_all_tasks_blocked()
        assert sum(sizes) == 4 * AT_ONCE
        assert max(sizes) <= 100
        each = 0.0
        sizes.clear()
        scene.agent.stream.send_nowait([b"junk"] * 4 * AT_ONCE)
        await wait_all_tasks_blocked()
        assert max(sizes) == AT_ONCE


TITLE = encode(
    {
        "method": "session/update",
        "params": {"n": 0, "sessionId": "s", "update": {"sessionUpdate": "session_info_update", "title": "a"}},
    }
)


@pytest.mark.parametrize("line", [update(), update(size=LARGE), b"junk", TITLE])
async def test_an_agent_is_read_as_slowly_as_its_charge_demands_and_nothing_is_lost(
    line: bytes, autojump_clock: MockClock
) -> None:
    async with sharing(timeout=HOUR) as (scene, ann):
        scene.services.agent_pause, scene.tick = 1.0, 2 * TURN
        began = trio.current_time()
        scene.agent.stream.send_nowait([line])
        await wait_all_tasks_blocked()
        scene.agent.stream.send_nowait([update(99)])
        while numbers_of([await ann.receive()]) != [99]:
            assert trio.current_time() == began
        assert trio.current_time() == began + 1.0
        assert min(scene.services.agent_seconds) >= TURN
