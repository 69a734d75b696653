"""The news of a session for a browser: the end of turns, updates, resets."""

from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.errors import Busy
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.agent_supervisor import RestartBackoff
from acp_gateway.gateway.sessions.history import HistoryReader, HistorySlice
from acp_gateway.gateway.viewing.session_connection import HIGH_WATER
from acp_gateway.gateway.viewing.session_feed import PIECE_SIZE, SessionFeed
from tests.kit.bridging import TEXT, Bench, MakeBench, editor_in, ends_turn, prompted, running, says, texts
from tests.kit.doubles import ServingAgent, ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")


@pytest.mark.parametrize(
    ("response", "status", "stop_reason", "error"),
    [
        ({"result": {"stopReason": "max_tokens"}}, "completed", "max_tokens", None),
        ({"error": {"code": -32000, "message": "log in"}}, "error", None, (-32000, "log in")),
    ],
)
async def test_the_end_of_a_turn_is_told_with_its_reason(
    response: Any, status: str, stop_reason: Any, error: Any, bench: Bench
) -> None:
    pages = [await bench.page(bench.access(), name) for name in ("first", "second")]
    session = await pages[0].new_session()
    await pages[1].result("session/get", sessionId=session)
    await prompted(pages[0], bench.agents[0], session)
    await ends_turn(bench.agents[0], **response)
    for page in pages:
        await page.until_status(session, "running", status)
        told = page.of("session/status_changed", session)[-1]
        assert told.get("stopReason") == stop_reason
        assert (told["error"]["code"], error[1] in told["error"]["message"]) == (error[0], True) if error else True
        assert len(page.statuses(session)) == 2


async def test_an_agent_that_ends_is_told_as_the_error_of_its_turn(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestartBackoff, "next_start", lambda _, now: now)
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        await prompted(page, bench.agents[0], session)
        bench.agents[0].end(3)
        await bench.agents[0].close()
        await page.until_status(session, "running", "error", "exited")
        ended, exited = page.of("session/status_changed", session)[-2:]
        assert ended["error"]["reason"] == "agent_ended"
        assert exited["exitReason"] == "process_exit"
        await page.result("session/prompt", sessionId=session, prompt=TEXT)
        await page.until_status(session, "running")
        await page.until(lambda: page.updates(session)[-1]["seq"] == 2)


async def test_numbers_survive_a_restart_and_the_session_is_opened_again_by_a_prompt(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session(title="Mend it")
        await says(loading_agents[0], session, "a", "b")
        await page.until_updates(session, 2)
        before = await page.result("session/get", sessionId=session)
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        got = await page.result("session/get", sessionId=session, since=1, epoch=before["epoch"])
        assert (got["session"]["status"], got["session"]["title"], got["session"]["live"]) == (
            "exited",
            "Mend it",
            False,
        )
        assert got["updates"] == before["updates"][1:]
        assert (got["epoch"], got["reset"], got["truncated"], got["promptCapabilities"]) == (
            before["epoch"],
            False,
            False,
            None,
        )
        assert len(loading_agents) == 1
        await prompted(page, loading_agents[0], session)
        assert len(loading_agents) == 2
        await says(loading_agents[1], session, "c")
        found = await page.until_updates(session, 2)
        assert [(it["seq"], it["payload"]["content"]["text"]) for it in found] == [(3, "hello"), (4, "c")]
        assert page.of("session/reset") == []
        again = await page.result("session/get", sessionId=session, since=2, epoch=before["epoch"])
        assert (again["updates"], again["reset"]) == (found, False)
        assert again["promptCapabilities"] == {"image": True}
        await editor_in(bench, session)


async def test_a_history_goes_on_where_an_editor_has_loaded_the_session_again(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    await says(bench.agents[0], session, "a", "b")
    await page.until_updates(session, 2)
    bench.gateway.hubs[0].end()
    await page.until_status(session, "exited")
    await editor_in(bench, session)
    await says(bench.agents[1], session, "c")
    await page.until(lambda: texts(page.updates(session)) == ["a", "b", "c"])
    assert not page.of("session/reset", session)
    assert texts((await page.result("session/get", sessionId=session))["updates"]) == ["a", "b", "c"]


async def test_a_browser_that_reads_nothing_costs_no_memory_delays_no_other_and_gets_everything_later(
    bench: Bench,
) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    slow = await bench.page(bench.access(), "slow", reads=False)
    await slow.send(id="slow", method="session/get", params={"sessionId": session})
    await trio.testing.wait_all_tasks_blocked()
    count, size = 300, 20_000
    for number in range(count):
        await says(bench.agents[0], session, f"{number:0{size}}")
        await page.until_updates(session, number + 1)
    assert slow.pending_bytes < HIGH_WATER + 2 * PIECE_SIZE
    assert count * size > 8 * HIGH_WATER
    bench.nursery.start_soon(slow.read)
    assert await slow.until_updates(session, count) == page.updates(session)


async def test_a_browser_that_lags_behind_what_is_kept_is_told_to_ask_again(make_bench: MakeBench) -> None:
    async with make_bench(journal_limit=2_000_000) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        slow = await bench.page(bench.access(), "slow", reads=False)
        await slow.send(id="slow", method="session/get", params={"sessionId": session})
        await trio.testing.wait_all_tasks_blocked()
        for number in range(400):
            await says(bench.agents[0], session, f"{number:020000}")
            await page.until_updates(session, number + 1)
        bench.nursery.start_soon(slow.read)
        await slow.until(lambda: slow.of("session/reset", session))
        got = await slow.result("session/get", sessionId=session)
        assert (got["truncated"], got["updates"][-1]["seq"]) == (True, 400)
        assert got["updates"][0]["seq"] > 1
        await says(bench.agents[0], session, "more")
        await slow.until(lambda: slow.updates(session)[-1]["seq"] == 401)


async def test_a_browser_that_lags_gets_the_rest_of_a_session_that_has_ended_from_the_disk(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    slow = await bench.page(bench.access(), "slow", reads=False)
    await slow.send(id="slow", method="session/get", params={"sessionId": session})
    await trio.testing.wait_all_tasks_blocked()
    count = 100
    for number in range(count):
        await says(bench.agents[0], session, f"{number:020000}")
        await page.until_updates(session, number + 1)
    bench.gateway.hubs[0].end()
    await page.until_status(session, "exited")
    bench.nursery.start_soon(slow.read)
    assert await slow.until_updates(session, count) == page.updates(session)
    await slow.until_status(session, "exited")
    assert slow.of("session/reset") == []


async def test_a_browser_that_lags_in_several_sessions_that_have_ended_costs_the_rest_of_one(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_rest, held, most = SessionFeed.read_rest, set[SessionFeed](), 0

    async def counted(feed: SessionFeed, reader: HistoryReader) -> None:
        nonlocal most
        await read_rest(feed, reader)
        held.add(feed)
        most = max(most, sum(it.holds_rest for it in held))

    async with make_bench() as bench:
        page = await bench.page(bench.access())
        sessions = [await page.new_session() for _ in range(3)]
        slow = await bench.page(bench.access(), "slow", reads=False)
        for session in sessions:
            await slow.send(id=session, method="session/get", params={"sessionId": session})
        await trio.testing.wait_all_tasks_blocked()
        count = 60
        for number in range(count):
            for session in sessions:
                await says(bench.agents[0], session, f"{number:020000}")
        for session in sessions:
            await page.until_updates(session, count)
        monkeypatch.setattr(SessionFeed, "read_rest", counted)
        bench.gateway.hubs[0].end()
        for session in sessions:
            await page.until_status(session, "exited")
        held.clear()
        bench.nursery.start_soon(slow.read)
        for session in sessions:
            assert await slow.until_updates(session, count) == page.updates(session)
            await slow.until_status(session, "exited")
        assert most == 1


async def test_a_disk_that_is_too_slow_for_a_history_is_told_and_no_history_seems_empty(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_slow(*_: object, **__: object) -> HistorySlice:
        raise Busy("too slow")

    async with make_bench() as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        slow = await bench.page(bench.access(), "slow", reads=False)
        await slow.send(id="slow", method="session/get", params={"sessionId": session})
        await trio.testing.wait_all_tasks_blocked()
        for number in range(60):
            await says(bench.agents[0], session, f"{number:020000}")
        await page.until_updates(session, 60)
        with monkeypatch.context() as patched:
            patched.setattr(HistoryReader, "read", too_slow)
            bench.gateway.hubs[0].end()
            await page.until(lambda: page.of("session/reset") or page.statuses(session)[-1:] == ["exited"])
            bench.nursery.start_soon(slow.read)
            await slow.until(lambda: slow.of("session/reset", session))
            assert await slow.error("session/get", sessionId=session) == (503, "too slow")
        got = await slow.result("session/get", sessionId=session)
        assert [update["seq"] for update in got["updates"]] == [*range(1, 61)]


# Ends of turns

REASONS = ("end_turn", "max_tokens", "refusal", "cancelled")


async def work_off(agent: ServingAgent, session: str, count: int) -> None:
    """The agent answers so many prompts that wait for each other, each with a text and another end."""
    for turn in range(count):
        while not agent._prompts:
            await agent._arrived.park()
        await says(agent, session, f"answer {turn}")
        await ends_turn(agent, result={"stopReason": REASONS[turn % len(REASONS)]})
    await trio.testing.wait_all_tasks_blocked()


def told_turns(entries: list[dict[str, Any]]) -> list[tuple[str, str]]:
    """The kind of each entry, and its text or reason."""
    return [
        (entry["updateType"], payload["content"]["text"] if "content" in payload else payload["stopReason"])
        for entry in entries
        for payload in [entry["payload"]]
    ]


@pytest.mark.parametrize("reads", [True, False])
async def test_each_of_many_turns_is_told_with_its_end_at_its_place(reads: bool, bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    viewer = await bench.page(bench.access(), "viewer", reads=reads)
    await viewer.send(id="viewer", method="session/get", params={"sessionId": session})
    await trio.testing.wait_all_tasks_blocked()
    # More than fits on the way to one that does not read.
    for number in range(40):
        await says(bench.agents[0], session, f"{number:020000}")
    await page.until_updates(session, 40)
    widget = await bench.widget(bench.access(), "widget")
    await widget.load(session)
    count = 20
    for turn in range(count):
        await page.result("session/prompt", sessionId=session, prompt=[{"type": "text", "text": f"prompt {turn}"}])
    await work_off(bench.agents[0], session, count)
    if not reads:
        bench.nursery.start_soon(viewer.read)
    expected = [
        entry
        for turn in range(count)
        for entry in (
            ("user_message", f"prompt {turn}"),
            ("agent_message_chunk", f"answer {turn}"),
            ("turn_end", REASONS[turn % len(REASONS)]),
        )
    ]
    for one in (page, viewer):
        await one.until_updates(session, 40 + 2 * count)
        await one.until_status(session, "completed")
        entries = one.entries(session)[40:]
        assert told_turns(entries) == expected
        ends = [entry for entry in entries if entry["updateType"] == "turn_end"]
        assert [(end["seq"], end["nth"]) for end in ends] == [(42 + 2 * turn, 1) for turn in range(count)]
        statuses = one.of("session/status_changed", session)
        reasons = [status["stopReason"] for status in statuses if "stopReason" in status]
        assert reasons == [reason for kind, reason in expected if kind == "turn_end"]
    await widget.until(lambda: len(widget.of("turn_complete")) == count)
    told = [it.get("content") or it["stopReason"] for it in widget.of("message_chunk", "turn_complete")]
    assert told[-len(expected) :] == [text for _, text in expected]


async def test_why_turns_have_ended_is_in_the_history_also_after_a_restart(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        await prompted(page, loading_agents[0], session)
        await ends_turn(loading_agents[0], error={"code": 429, "message": "try again in 32 s"})
        await page.until_status(session, "error")
        await prompted(page, loading_agents[0], session)
        await ends_turn(loading_agents[0], result={"stopReason": "max_tokens"})
        await page.until_status(session, "completed")
        await prompted(page, loading_agents[0], session)
        told = page.entries(session)
        got = await page.result("session/get", sessionId=session)
        assert got["updates"] == told
    kinds = [(entry["seq"], entry["updateType"]) for entry in told]
    assert kinds == [(1, "user_message"), (1, "turn_end"), (2, "user_message"), (2, "turn_end"), (3, "user_message")]
    failed, ended = (entry for entry in told if entry["updateType"] == "turn_end")
    error = {"code": 429, "message": "try again in 32 s"}
    assert failed["payload"] == {"sessionUpdate": "turn_end", "error": error}
    assert ended["payload"] == {"sessionUpdate": "turn_end", "stopReason": "max_tokens"}
    assert failed["createdAt"] is not None
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        got = await page.result("session/get", sessionId=session)
        # The gateway has ended in the last turn.
        assert got["updates"][:-1] == told
        assert got["updates"][-1]["payload"]["error"]["reason"] == "gateway_restarted"
        cut = got["updates"][-1]
        for since in range(4):
            later = await page.result("session/get", sessionId=session, since=since, epoch=got["epoch"])
            # Ends right behind a number may be known or not.
            assert later["updates"] == [it for it in got["updates"] if (it["seq"], "nth" in it) > (since, False)]
        pages = [
            (await page.result("session/get", sessionId=session, limit=1, before=before))["updates"]
            for before in (2, 3, 4)
        ]
        assert [entry for one in pages for entry in one] == got["updates"]
        # Where it is opened again, the end that was told is written there.
        await prompted(page, loading_agents[0], session)
        assert (await page.result("session/get", sessionId=session))["updates"][:6] == [*told, cut]
