"""The demo gives each of its steps time of its own."""

import asyncio

import pytest

from examples import demo


async def two_steps_and_no_end(screen: demo.Screen, *_: object) -> None:
    for number in range(2):
        screen.step("The box", f"step {number}")
    await asyncio.Event().wait()


def test_each_step_of_the_demo_has_a_deadline_of_its_own() -> None:
    async def two_steps() -> None:
        # It has passed already, and would end the block at the first wait.
        async with asyncio.timeout(0) as deadline:
            screen = demo.Screen(deadline)
            for number in range(2):
                screen.step("The box", f"step {number}")
            left = deadline.when()
            await asyncio.sleep(0)
        assert left is not None
        assert left > demo.STEP_TIMEOUT

    asyncio.run(two_steps())


def test_a_step_of_the_demo_that_does_not_end_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "STEP_TIMEOUT", 0.0)
    monkeypatch.setattr(demo, "demo", two_steps_and_no_end)
    assert asyncio.run(demo.main()) == 1
    assert "The demo failed: step 2 took more than 0 seconds" in capsys.readouterr().err
