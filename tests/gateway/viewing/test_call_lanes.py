"""The calls of one connection: in order within a lane, and beside those of others."""

import trio

from acp_gateway.gateway.viewing.call_lanes import CallLanes


async def test_calls_count_until_they_are_finished_and_the_next_of_their_lane_follows() -> None:
    gates = {call: trio.Event() for call in ("a1", "a2", "b1")}
    served: list[str] = []
    left: list[tuple[int, int]] = []

    async def serve(call: str) -> None:
        served.append(call)
        await gates[call].wait()

    async with trio.open_nursery() as nursery:
        lanes = CallLanes[str](serve, nursery.start_soon, lambda: left.append((len(lanes), lanes.size)))
        for call, size in (("a1", 3), ("a2", 4), ("b1", 5)):
            lanes.add(call, call[0], size)
        await trio.testing.wait_all_tasks_blocked()
        assert sorted(served) == ["a1", "b1"]
        assert (len(lanes), lanes.size, sorted(lanes), lanes.of("a")) == (3, 12, ["a1", "a2", "b1"], ["a1", "a2"])
        gates["a1"].set()
        await trio.testing.wait_all_tasks_blocked()
        assert served[-1] == "a2"
        assert left == [(2, 9)]
        for gate in gates.values():
            gate.set()
    assert left[-1] == (0, 0)
    assert list(lanes) == []
