"""The order of tasks."""

import trio

from tests.kit.schedule import order_tasks


def order(seed: str) -> list[int]:
    """Return the order in which ten tasks run."""
    began: list[int] = []

    async def note(number: int) -> None:
        began.append(number)

    async def run() -> None:
        async with trio.open_nursery() as nursery:
            for number in range(10):
                nursery.start_soon(note, number)

    order_tasks(seed)
    trio.run(run)
    return began


def test_a_schedule_repeats_an_order_of_tasks_and_another_has_another_one() -> None:
    assert order("0") == order("0") != order("1")
