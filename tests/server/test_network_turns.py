"""Turns of the unauthenticated connections of one network."""

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.server.handshake_limits import NetworkTurns
from acp_gateway.server.pending import ANSWER_TIMEOUT, PendingConnection


def arrival(number: int, steps: int = 0, *, limited: bool = True) -> PendingConnection:
    return PendingConnection(
        name=str(number), peer="a", listener="tcp://gpu:1", network="a", limited=limited, number=number, steps=steps
    )


class Scene:
    """The connections of one network, with turns for two."""

    def __init__(self) -> None:
        self.turns = NetworkTurns()
        self.evicted: list[PendingConnection] = []
        self.took: list[int] = []

    def add(self, number: int, steps: int = 0) -> PendingConnection:
        connection = arrival(number, steps)
        assert self.turns.add(connection, 2) is None
        return connection

    def evict(self, connection: PendingConnection) -> None:
        self.evicted.append(connection)
        self.turns.remove(connection)

    async def take(self, connection: PendingConnection) -> None:
        connection.begin_step(trio.current_time())
        await self.turns.take(connection, lambda: 2, self.evict)
        connection.last_received_at = trio.current_time()
        self.took.append(connection.number)


def test_beyond_as_many_as_there_are_turns_the_oldest_without_a_byte_is_surplus_and_else_the_newest() -> None:
    for steps, surplus in (((0, 0, 0), 1), ((1, 0, 0), 2), ((1, 1, 0), 3), ((1, 1, 1), 3)):
        turns = NetworkTurns()
        first, second, third = (arrival(number, steps[number - 1]) for number in (1, 2, 3))
        assert (turns.add(first, 2), turns.add(second, 2)) == (None, None)
        found = turns.add(third, 2)
        assert found is not None
        assert found.number == surplus


def test_connections_of_a_proxy_are_never_surplus() -> None:
    turns = NetworkTurns()
    assert [turns.add(arrival(number, limited=False), 2) for number in range(9)] == [None] * 9


async def test_turns_are_given_in_the_order_of_asking_when_one_has_ended(autojump_clock: MockClock) -> None:
    scene = Scene()
    first, second = scene.add(1), scene.add(2)
    async with trio.open_nursery() as nursery:
        for connection in (first, second):
            await scene.take(connection)
        third, fourth = scene.add(3), scene.add(4)
        for connection in (third, fourth):
            nursery.start_soon(scene.take, connection)
            await wait_all_tasks_blocked()
        assert scene.took == [1, 2]
        assert scene.turns.remove(second)
        await wait_all_tasks_blocked()
        assert scene.took == [1, 2, 3]
        scene.turns.remove(fourth)
        assert not scene.turns.remove(fourth)
        nursery.cancel_scope.cancel()
    assert list(scene.turns.connections) == [first, third]
    assert scene.evicted == []


async def test_an_idle_one_is_evicted_as_soon_as_another_waits_for_its_turn(autojump_clock: MockClock) -> None:
    scene = Scene()
    first, second = scene.add(1), scene.add(2)
    await scene.take(first)
    await trio.sleep(ANSWER_TIMEOUT / 2)
    await scene.take(second)
    await trio.sleep(ANSWER_TIMEOUT / 4)
    await scene.take(scene.add(3))
    assert scene.evicted == [first]
    assert trio.current_time() == pytest.approx(ANSWER_TIMEOUT)


async def test_one_that_has_its_turn_or_has_gone_need_not_wait(autojump_clock: MockClock) -> None:
    scene = Scene()
    connections = [scene.add(1), scene.add(2)]
    for connection in (*connections, *connections, arrival(3)):
        await scene.take(connection)
    assert (scene.took, trio.current_time()) == ([1, 2, 1, 2, 3], 0)


async def test_a_step_of_one_that_had_to_wait_lets_others_look_when_it_is_idle(autojump_clock: MockClock) -> None:
    scene = Scene()
    first, second = scene.add(1), scene.add(2)
    for connection in (first, second):
        # It has its turn, and waits for another reason than the others of its network.
        connection.begin_step(trio.current_time())
        await scene.turns.take(connection, lambda: 2, scene.evict)
    with trio.fail_after(10 * ANSWER_TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.take, scene.add(3))
            await trio.sleep(1)
            for connection in (first, second):
                connection.last_received_at = trio.current_time()
                scene.turns.note_step()
    assert scene.took == [3]
    assert scene.evicted == [first]
