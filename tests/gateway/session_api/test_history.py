"""Histories for browsers: the part that is asked for, and how much of it waits."""

from typing import Any

import pytest
import trio

from acp_gateway.gateway.session_api.history import LARGE
from acp_gateway.gateway.viewing.session_connection import LARGE_RESPONSES
from acp_gateway.gateway.viewing.session_feed import PIECE_COUNT
from tests.kit.bridging import Bench, MakeBench, says, texts
from tests.kit.doubles import encode

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def test_session_get_returns_a_part_of_a_history(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    await says(bench.agents[0], session, *"abcdef")
    await page.until_updates(session, 6)

    async def got(**params: Any) -> tuple[str, bool, bool]:
        found = await page.result("session/get", sessionId=session, **params)
        return "".join(texts(found["updates"])), found["more"], found["reset"]

    whole = await page.result("session/sync", sessionId=session)
    epoch = whole["epoch"]
    assert [update["seq"] for update in whole["updates"]] == [1, 2, 3, 4, 5, 6]
    assert await got(since=4) == ("ef", False, False)
    assert await got(since=4, epoch=epoch) == ("ef", False, False)
    assert await got(since=4, epoch="other") == ("abcdef", False, True)
    assert await got(since=9, epoch=epoch) == ("abcdef", False, True)
    assert await got(limit=2) == ("ef", True, False)
    assert await got(before=5, limit=2) == ("cd", True, False)
    assert await got(before=2) == ("a", False, False)
    assert await got(limit=0) == ("", True, False)


async def test_session_get_has_modes_options_and_what_prompts_may_contain(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = (await page.result("session/new"))["sessionId"]
    mode = {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
    await bench.agents[0].send(method="session/update", params={"sessionId": session, "update": mode})
    await says(bench.agents[0], session, "a")
    await trio.testing.wait_all_tasks_blocked()
    got = await page.result("session/get", sessionId=session, limit=1)
    assert got["promptCapabilities"] == {"image": True}
    assert (got["modes"], got["models"], got["configOptions"], got["pendingRequests"]) == (None, None, None, [])
    assert got["states"] == [{"updateType": "current_mode_update", "payload": mode}]
    assert got["session"]["mayControl"]


async def test_large_histories_of_one_identity_wait_until_others_are_read(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session, short = await page.new_session(), await page.new_session()
    await says(bench.agents[0], session, "x" * LARGE)
    await page.until_updates(session, 1)
    ben = await bench.page(bench.access("ben"), "ben")
    other = await ben.new_session()
    await says(bench.agents[1], other, "x" * LARGE)
    lazy = [await bench.page(bench.access(), f"lazy{number}", reads=False) for number in range(LARGE_RESPONSES + 2)]
    for there in lazy:
        await there.send(id="get", method="session/get", params={"sessionId": session})
    await trio.testing.wait_all_tasks_blocked()
    assert [there.pending_bytes > LARGE for there in lazy].count(True) == LARGE_RESPONSES
    assert (await ben.result("session/get", sessionId=other))["updates"]
    assert (await page.result("session/get", sessionId=short))["updates"] == []
    for there in lazy:
        bench.nursery.start_soon(there.read)
    for there in lazy:
        assert (await there.response("get"))["result"]["updates"]


async def test_a_long_history_is_composed_in_steps(make_bench: MakeBench) -> None:
    async with make_bench(journal_limit=64_000_000) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        (found,) = bench.gateway.hubs[0].multiplexer.sessions
        content = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": "x" * 50}}
        message = encode({"method": "session/update", "params": {"sessionId": session, "update": content}})
        found.extend([message] * 100_000, 1_700_000_000_000)
        steps = 0

        async def count_steps(scope: trio.CancelScope) -> None:
            nonlocal steps
            with scope:
                while True:
                    await trio.lowlevel.checkpoint()
                    steps += 1

        counting = trio.CancelScope()
        bench.nursery.start_soon(count_steps, counting)
        got = await page.result("session/get", sessionId=session)
        counting.cancel()
        assert (len(got["updates"]), got["updates"][-1]["seq"]) == (100_000, 100_000)
        assert steps > 100_000 / PIECE_COUNT


async def test_histories_that_are_asked_for_while_updates_come_leave_no_gap_and_repeat_nothing(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    total = 400

    async def speak() -> None:
        for number in range(total):
            await says(bench.agents[0], session, f"{number}")

    bench.nursery.start_soon(speak)
    last = 0
    while last < total:
        response = await page.ask("session/get", sessionId=session, since=last)
        last = max([last, *(update["seq"] for update in response["result"]["updates"])])
    await page.until(lambda: page.updates(session))
    position = responses = 0
    for message in page.arrived:
        if "method" not in message and "updates" in message["result"]:
            responses += 1
            numbers = [update["seq"] for update in message["result"]["updates"]]
            assert not numbers or numbers[0] <= position + 1
            position = max([position, *numbers])
        elif message.get("method") == "session/updated":
            numbers = [update["seq"] for update in message["params"]["updates"]]
            assert numbers[0] == position + 1
            position = numbers[-1]
    assert (position, responses > 2) == (total, True)
