"""Changes of the clock that the system tells of; a pipe stands for its timer."""

import os
import sys

import pytest
import trio

from acp_gateway.client.reconnecting.clock_changes import open_timer, watch_clock


async def test_each_change_is_told_until_cancelled(nursery: trio.Nursery) -> None:
    reading, writing = os.pipe()
    changes: list[int] = []
    try:
        assert await nursery.start(watch_clock, lambda: changes.append(1), lambda: reading) is True
        for count in range(3):
            await trio.testing.wait_all_tasks_blocked()
            assert len(changes) == count
            os.write(writing, bytes(8))
            while len(changes) == count:
                await trio.lowlevel.checkpoint()
        nursery.cancel_scope.cancel()
        await trio.testing.wait_all_tasks_blocked()
    finally:
        os.close(writing)
    with pytest.raises(OSError, match="descriptor"):
        os.fstat(reading)


async def test_where_the_system_does_not_tell_it_returns(nursery: trio.Nursery) -> None:
    assert await nursery.start(watch_clock, pytest.fail, lambda: None) is False


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has such timers")
def test_linux_has_a_timer_that_cannot_be_read_while_the_clock_is_not_set() -> None:
    descriptor = open_timer()
    assert descriptor is not None
    with pytest.raises(BlockingIOError):
        os.read(descriptor, 8)
    assert not os.get_inheritable(descriptor)
    os.close(descriptor)


def test_other_systems_have_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert open_timer() is None
