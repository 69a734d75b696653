"""Chat widgets over `/chat`, side by side with others."""

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.dialects.chat import bridge as chat_bridge
from acp_gateway.dialects.chat.output import ChatOutput
from acp_gateway.errors import Busy
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.agent_supervisor import RestartBackoff
from acp_gateway.gateway.sessions.history import HistoryReader, HistorySlice
from acp_gateway.gateway.viewing.session_connection import HIGH_WATER
from acp_gateway.gateway.viewing.session_feed import PIECE_SIZE, SessionFeed
from tests.kit.bridging import TEXT, Bench, MakeBench, Widget, asks, editor_in, ends_turn, running, says, section
from tests.kit.doubles import ServingAgent, ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")

YES = {"outcome": "selected", "optionId": "yes"}


async def updates(agent: ServingAgent, session: str, *found: dict[str, Any]) -> None:
    for update in found:
        await agent.send(method="session/update", params={"sessionId": session, "update": update})


async def sent(widget: Widget, session: str, text: str = "hello") -> None:
    """The widget has sent a message, and its turn has begun."""
    await widget.send("send_message", sessionId=session, content=text)
    await widget.until(lambda: widget.of("message_chunk", session=session))


async def test_a_message_is_prompted_and_the_turn_is_told_to_its_end(bench: Bench) -> None:
    widget = await bench.widget(bench.access())
    await widget.send("new_session")
    created = await widget.next("session_created")
    session = created["sessionId"]
    assert created == {
        "type": "session_created",
        "sessionId": session,
        "timestamp": 5000,
        "agent": "fake",
        "cwd": created["cwd"],
        "title": None,
        "status": "completed",
        "modes": None,
        "models": None,
        "configOptions": None,
    }
    await widget.send("send_message", sessionId=session, content="hello")
    assert (await widget.next("message_chunk"))["role"] == "user"
    await says(bench.agents[0], session, "a", "b")
    await ends_turn(bench.agents[0], result={"stopReason": "max_tokens"})
    ended = await widget.next("turn_complete")
    (end,) = next(iter(bench.gateway.registry)).journal.ends()
    expected = {"type": "turn_complete", "sessionId": session, "timestamp": end.time, "stopReason": "max_tokens"}
    assert ended == expected


async def test_a_permission_that_another_decides_is_told_with_who_did(bench: Bench) -> None:
    first, second = [await bench.widget(bench.access(), name) for name in ("first", "second")]
    session = await first.new_session()
    await second.load(session)
    await sent(first, session)
    await asks(bench.agents[0], session)
    asked = [await widget.next("permission_request") for widget in (first, second)]
    assert asked[0] == asked[1]
    assert [option["optionId"] for option in asked[0]["options"]] == ["yes", "no"]
    await first.send("permission_response", requestId=asked[0]["requestId"], outcome=YES)
    for widget in (first, second):
        told = await widget.next("permission_resolved")
        assert (told["requestId"], told["outcome"], told["by"]) == (asked[0]["requestId"], YES, "ann")
    assert (await second.error("permission_response", requestId=asked[0]["requestId"], outcome=YES))[0] == -32602
    await ends_turn(bench.agents[0])
    await second.next("turn_complete")


async def test_a_session_that_was_neither_created_nor_loaded_here_does_not_exist(bench: Bench) -> None:
    first, second = [await bench.widget(bench.access(), name) for name in ("first", "second")]
    session = await first.new_session()
    for kind, members in [("send_message", {"content": "a"}), ("cancel_turn", {}), ("change_mode", {"modeId": "m"})]:
        await second.send(kind, sessionId=session, **members)
        error = await second.next("error")
        assert (error["code"], error["message"], error["data"]) == (-32001, "Session not found", {"sessionId": session})
        assert (error["requestType"], error["sessionId"]) == (kind, session)
    await sent(first, session)
    await asks(bench.agents[0], session)
    asked = await first.next("permission_request")
    assert (await second.error("permission_response", requestId=asked["requestId"], outcome=YES))[0] == -32602
    assert second.told == []


async def test_nothing_of_another_identity_is_told_and_its_sessions_can_not_be_loaded(bench: Bench) -> None:
    ann, ben = await bench.widget(bench.access(), "ann"), await bench.widget(bench.access("ben"), "ben")
    session, own = await ann.new_session(), await ben.new_session()
    await ben.send("load_session", sessionId=session if session != own else "none")
    assert (await ben.next("error"))["code"] == -32001
    await sent(ann, session)
    await says(bench.agents[0], session, "secret")
    await asks(bench.agents[0], session)
    await ann.next("permission_request")
    assert ben.told == []


async def test_load_session_gives_the_history_and_then_what_is_new(bench: Bench) -> None:
    first = await bench.widget(bench.access())
    session = await first.new_session()
    await sent(first, session)
    await says(bench.agents[0], session, "a")
    await asks(bench.agents[0], session)
    await first.next("permission_request")
    second = await bench.widget(bench.access(), "second")
    loaded = await second.load(session)
    assert (loaded["status"], loaded["truncated"]) == ("waiting", False)
    await second.until(lambda: second.of("permission_request"))
    assert [it["type"] for it in second.told] == ["message_chunk", "message_chunk", "permission_request"]
    assert second.texts() == ["hello", "a"]
    assert all(it["timestamp"] > 0 for it in second.told)
    await says(bench.agents[0], session, "b")
    await second.until_texts("hello", "a", "b")
    # Once more: from the beginning, and not twice.
    await second.load(session)
    await says(bench.agents[0], session, "c")
    await second.until_texts("hello", "a", "b", "c")


async def test_the_history_of_a_session_that_has_ended_is_read_from_the_disk_and_a_message_opens_it_again(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        await sent(widget, session)
        mode = {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
        await updates(loading_agents[0], session, mode)
        await says(loading_agents[0], session, *map(str, range(50)))
        await ends_turn(loading_agents[0])
        await widget.next("turn_complete")
    async with running(tmp_path, spawner) as bench:
        widget = await bench.widget(bench.access())
        loaded = await widget.load(session)
        assert (loaded["status"], loaded["modes"]) == ("exited", None)
        await widget.until_texts("hello", *map(str, range(50)))
        assert len(widget.of("mode_changed")) == 1
        assert len(loading_agents.started) == 1
        await widget.send("send_message", sessionId=session, content="again")
        await widget.until_texts("hello", *map(str, range(50)), "again")
        await says(loading_agents[1], session, "yes")
        await widget.until(lambda: widget.texts()[-1] == "yes")


async def test_an_observer_can_load_and_act_on_nothing(bench: Bench) -> None:
    widget = await bench.widget(bench.access())
    session = await widget.new_session()
    await sent(widget, session)
    await asks(bench.agents[0], session)
    asked = await widget.next("permission_request")
    observers = [
        await bench.widget(bench.access(role="observer"), "by token"),
        await bench.widget(bench.access(), "by query", observe=True),
        await bench.widget(bench.guest(session, role="observer"), "guest"),
    ]
    before = len(bench.agents[0].received)
    for observer in observers:
        assert (await observer.load(session))["status"] == "waiting"
        await observer.until_texts("hello")
        for kind, members in [
            ("send_message", {"sessionId": session, "content": "a"}),
            ("cancel_turn", {"sessionId": session}),
            ("change_mode", {"sessionId": session, "modeId": "m"}),
            ("permission_response", {"requestId": asked["requestId"], "outcome": YES}),
            ("new_session", {}),
        ]:
            code, text = await observer.error(kind, **members)
            assert (code, text) == (-32601, f"observers may only look: no {kind}")
        assert observer.of("permission_request") == []
    await trio.testing.wait_all_tasks_blocked()
    assert (len(bench.agents[0].received), len(bench.agents.started)) == (before, 1)


async def test_a_guest_acts_in_its_own_session_alone(bench: Bench) -> None:
    widget = await bench.widget(bench.access())
    session, other = await widget.new_session(), await widget.new_session()
    guest = await bench.widget(bench.guest(session), "guest")
    assert (await guest.error("load_session", sessionId=other))[0] == -32001
    assert (await guest.error("new_session"))[0] == -32600
    await guest.load(session)
    await sent(guest, session, "from the guest")
    await bench.agents[0].got("session/prompt")


async def test_a_type_that_is_not_known_is_answered_and_the_connection_stays(bench: Bench) -> None:
    widget = await bench.widget(bench.access())
    assert await widget.error("dance") == (-32601, "there is no type 'dance' here")
    for text in (b"garbage", b"[]", b"\xff", b"{}", b'{"type":"send_message"}', b"[" * 100_000):
        await widget.stream.send(text)
        assert (await widget.next("error"))["code"] in (-32700, -32600, -32602)
    await widget.new_session()


async def test_a_change_of_mode_is_told_and_an_error_of_the_agent_too(bench: Bench) -> None:
    widget = await bench.widget(bench.access())
    session = await widget.new_session()
    await widget.send("change_mode", sessionId=session, modeId="plan")
    assert (await widget.next("mode_changed"))["modeId"] == "plan"
    await sent(widget, session)
    await ends_turn(bench.agents[0], error={"code": -32000, "message": "log in"})
    error = await widget.next("error")
    assert (error["code"], error["requestType"]) == (-32000, "send_message")
    assert "log in" in error["message"]
    assert (await widget.next("turn_complete"))["stopReason"] is None


async def test_cancel_turn_ends_the_turn_and_its_permission(bench: Bench) -> None:
    widget = await bench.widget(bench.access())
    session = await widget.new_session()
    await sent(widget, session)
    await asks(bench.agents[0], session)
    asked = await widget.next("permission_request")
    await widget.send("cancel_turn", sessionId=session)
    resolved = await widget.next("permission_resolved")
    assert (resolved["requestId"], resolved["outcome"]) == (asked["requestId"], {"outcome": "cancelled"})
    assert (await widget.next("turn_complete"))["stopReason"] == "cancelled"


async def test_a_widget_and_an_editor_share_a_session(bench: Bench) -> None:
    widget, page = await bench.widget(bench.access()), await bench.page(bench.access())
    session = await widget.new_session()
    editor = await editor_in(bench, session)
    got = await page.result("session/get", sessionId=session)
    assert sorted(client["via"] for client in got["session"]["clients"]) == ["browser", "chat", "editor"]
    await editor.send(id=9, method="session/prompt", params={"sessionId": session, "prompt": TEXT})
    await widget.until_texts("hello")
    await asks(bench.agents[0], session)
    asked = await widget.next("permission_request")
    await widget.send("permission_response", requestId=asked["requestId"], outcome=YES)
    await widget.next("permission_resolved")
    await page.until(lambda: page.of("session/request_resolved"))
    while (await editor.receive()).get("method") != "$/cancel_request":
        pass
    assert next(it for it in bench.agents[0].received if "result" in it)["result"] == {"outcome": YES}


async def test_a_request_that_is_not_a_permission_is_refused_and_waits_for_another_client(bench: Bench) -> None:
    widget, page = await bench.widget(bench.access()), await bench.page(bench.access())
    session = await widget.new_session()
    await page.result("session/get", sessionId=session)
    await bench.agents[0].send(
        id="q", method="elicitation/create", params={"sessionId": session, "message": "name?", "mode": "form"}
    )
    asked = await page.until(lambda: page.of("session/request"))
    await trio.testing.wait_all_tasks_blocked()
    assert widget.told == []
    key = asked[0]["requestId"]
    error = await widget.error("permission_response", requestId=key, outcome=YES)
    assert error == (-32602, "no open request has this id")
    await page.result("session/respond", sessionId=session, requestId=key, response={"action": "decline"})


async def test_an_agent_that_ends_fails_the_turn_and_a_message_starts_it_again(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestartBackoff, "next_start", lambda _, now: now)
    async with make_bench() as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        await sent(widget, session)
        bench.agents[0].end(3)
        await bench.agents[0].close()
        error = await widget.next("error")
        assert (error["requestType"], "ended during the turn" in error["message"]) == ("send_message", True)
        await widget.next("turn_complete")
        await sent(widget, session)
        await bench.agents[1].got("session/prompt")


async def test_a_widget_that_reads_nothing_costs_no_memory_delays_no_other_and_gets_everything_later(
    bench: Bench,
) -> None:
    widget = await bench.widget(bench.access())
    session = await widget.new_session()
    slow = await bench.widget(bench.access(), "slow", reads=False)
    await slow.send("load_session", sessionId=session)
    await trio.testing.wait_all_tasks_blocked()
    count, size = 200, 20_000
    for number in range(count):
        await says(bench.agents[0], session, f"{number:0{size}}")
        await widget.until(lambda number=number: len(widget.told) > number)  # type: ignore[misc]
    late = await bench.widget(bench.access(), "late", reads=False)
    await late.send("load_session", sessionId=session)
    await trio.testing.wait_all_tasks_blocked()
    # A step of a history that is there already is no larger either.
    assert max(slow.pending_bytes, late.pending_bytes) < HIGH_WATER + 3 * PIECE_SIZE < count * size
    bench.nursery.start_soon(slow.read)
    await slow.until(lambda: len(slow.texts()) == count)
    assert slow.texts() == widget.texts()


async def test_a_widget_that_lags_behind_what_is_kept_is_told_the_session_again(make_bench: MakeBench) -> None:
    async with make_bench(journal_limit=2_000_000) as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        slow = await bench.widget(bench.access(), "slow", reads=False)
        await slow.send("load_session", sessionId=session)
        await trio.testing.wait_all_tasks_blocked()
        for number in range(300):
            await says(bench.agents[0], session, f"{number:020000}")
            await widget.until(lambda number=number: len(widget.told) > number)  # type: ignore[misc]
        bench.nursery.start_soon(slow.read)
        await slow.next("session_loaded")
        assert (await slow.next("session_loaded"))["truncated"]
        await says(bench.agents[0], session, "more")
        await slow.until(lambda: slow.texts()[-1:] == ["more"])
        assert slow.texts() == widget.texts()[-len(slow.texts()) :]


async def test_an_event_that_is_larger_than_its_limit_is_refused_and_a_message_is_not(make_bench: MakeBench) -> None:
    async with make_bench(limits=LimitsSection(session_request_size=500, decision_size=400)) as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        events: dict[str, dict[str, Any]] = {
            "load_session": {"sessionId": session, "cwd": "x" * 500},
            "permission_response": {"requestId": "r", "outcome": {"outcome": "x" * 400}},
        }
        for kind, members in events.items():
            code, text = await widget.error(kind, **members)
            assert (code, "has at most" in text) == (-32602, True)
        await sent(widget, session, "x" * 5000)


async def test_a_session_that_is_removed_does_not_exist_any_more(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.session_id = "only"
    monkeypatch.setattr(RestartBackoff, "next_start", lambda _, now: now)
    async with running(tmp_path, spawner) as bench:
        widget, page = await bench.widget(bench.access()), await bench.page(bench.access())
        other = await bench.widget(bench.access(), "other")
        session = await page.new_session()
        await widget.load(session)
        agents[0].end(0)
        await agents[0].close()
        await page.until_status(session, "exited")
        (removed,) = bench.gateway.registry.by_id(session)
        bench.gateway.registry.remove(removed)
        error = await widget.next("error")
        assert (error["code"], error["data"]) == (-32001, {"sessionId": session})
        assert other.told == []
        assert (await widget.error("cancel_turn", sessionId=session))[0] == -32001


async def test_a_disk_that_is_too_slow_for_a_history_is_told(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def too_slow(*_: object, **__: object) -> HistorySlice:
        raise Busy("too slow")

    async with running(tmp_path, spawner) as bench:
        session = await (await bench.widget(bench.access())).new_session()
    async with running(tmp_path, spawner) as bench:
        widget = await bench.widget(bench.access())
        with monkeypatch.context() as patched:
            patched.setattr(HistoryReader, "read", too_slow)
            assert await widget.error("load_session", sessionId=session) == (503, "too slow")
        await widget.load(session)


async def test_modes_are_told_once_they_are_known(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    modes = {"currentModeId": "a", "availableModes": []}
    answer = ServingAgent._answer

    async def with_modes(agent: ServingAgent, to: Any, method: str) -> None:
        if method == "session/load":
            await agent.send(id=to, result={"modes": modes})
        else:
            await answer(agent, to, method)

    async with running(tmp_path, spawner) as bench:
        session = await (await bench.widget(bench.access())).new_session()
    async with running(tmp_path, spawner) as bench:
        widget = await bench.widget(bench.access())
        assert (await widget.load(session))["modes"] is None
        monkeypatch.setattr(ServingAgent, "_answer", with_modes)
        await widget.send("send_message", sessionId=session, content="a")
        assert (await widget.next("config"))["modes"] == modes


async def test_an_agent_that_does_not_exist_for_a_widget_is_a_wrong_member_as_for_pages(bench: Bench) -> None:
    widget, page = await bench.widget(bench.access()), await bench.page(bench.access())
    code, text = await widget.error("new_session", agent="other")
    assert (code, "has no agent" in text) == (-32602, True)
    assert (await page.error("session/new", agentType="other"))[0] == code


async def test_sessions_beyond_subscribed_sessions_are_refused(make_bench: MakeBench) -> None:
    async with make_bench(limits=LimitsSection(subscribed_sessions=1)) as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        assert "subscribed_sessions (1)" in (await widget.error("new_session"))[1]
        await widget.load(session)


async def test_a_widget_that_has_loaded_a_session_is_a_client_in_it(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = (await page.result("session/new"))["sessionId"]
    await (await bench.widget(bench.access(role="observer"))).load(session)
    (listed,) = (await page.result("session/list"))["sessions"]
    assert [(client["via"], client["role"]) for client in listed["clients"]] == [
        ("browser", "controller"),
        ("chat", "observer"),
    ]


async def test_a_guest_has_no_session_any_more_once_its_agent_has_ended(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RestartBackoff, "next_start", lambda _, now: now)
    async with running(tmp_path, spawner) as bench:
        session = await (await bench.widget(bench.access())).new_session()
        guest = await bench.widget(bench.guest(session), "guest")
        await guest.load(session)
        agents[0].end(0)
        await agents[0].close()
        await trio.testing.wait_all_tasks_blocked()
        assert (await guest.error("send_message", sessionId=session, content="a"))[0] == -32001
        assert (await guest.error("load_session", sessionId=session))[0] == -32001
        assert len(agents) == 1


async def test_states_that_are_older_than_the_history_are_told_before_it(make_bench: MakeBench) -> None:
    async with make_bench(journal_limit=2_000_000) as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        mode = {"sessionUpdate": "current_mode_update", "currentModeId": "plan"}
        await updates(bench.agents[0], session, mode)
        await says(bench.agents[0], session, *("x" * 20_000 for _ in range(150)))
        await widget.until(lambda: len(widget.texts()) == 150)
        second = await bench.widget(bench.access(), "second")
        assert (await second.load(session))["truncated"]
        await second.until(lambda: second.of("message_chunk"))
        assert (second.told[0]["type"], second.told[0]["modeId"]) == ("mode_changed", "plan")


async def test_a_call_that_the_agent_does_not_answer_delays_no_cancellation(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ServingAgent._answer

    async def without_modes(agent: ServingAgent, to: Any, name: str) -> None:
        if name != "session/set_mode":
            await answer(agent, to, name)

    monkeypatch.setattr(ServingAgent, "_answer", without_modes)
    async with make_bench() as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        await sent(widget, session)
        await widget.send("change_mode", sessionId=session, modeId="plan")
        await bench.agents[0].got("session/set_mode")
        await widget.send("cancel_turn", sessionId=session)
        ended = await widget.until(lambda: widget.of("turn_complete"))
        assert (ended[0]["stopReason"], widget.of("error")) == ("cancelled", [])


async def test_a_session_that_the_agent_does_not_know_has_the_code_of_one_that_does_not_exist(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ServingAgent._answer

    async def forgetful(agent: ServingAgent, to: Any, name: str) -> None:
        if name == "session/set_mode":
            await agent.send(id=to, error={"code": -32002, "message": "gone"})
        else:
            await answer(agent, to, name)

    monkeypatch.setattr(ServingAgent, "_answer", forgetful)
    async with make_bench() as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        await widget.send("change_mode", sessionId=session, modeId="plan")
        error = await widget.next("error")
        assert (error["code"], error["data"]) == (-32001, {"sessionId": session})


async def test_a_session_that_becomes_live_while_its_history_is_read_is_told_once(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, spawner) as bench:
        widget = await bench.widget(bench.access())
        session = await widget.new_session()
        await sent(widget, session, "one")
        await ends_turn(loading_agents[0])
        await widget.next("turn_complete")
    async with running(tmp_path, spawner) as bench:
        first, second = [await bench.widget(bench.access(), name) for name in ("first", "second")]
        await first.load(session)
        read = HistoryReader.read

        async def slowly(reader: HistoryReader, *arguments: Any) -> HistorySlice:
            found = await read(reader, *arguments)
            await sent(first, session, "two")
            await first.until(lambda: "two" in first.texts())
            await says(loading_agents[1], session, "three")
            await first.until(lambda: "three" in first.texts())
            return found

        monkeypatch.setattr(HistoryReader, "read", slowly)
        await second.load(session)
        await second.until_texts("one", "two", "three")
        await says(loading_agents[1], session, "four")
        await second.until_texts("one", "two", "three", "four")
        assert first.texts() == second.texts()


async def test_of_several_histories_from_the_disk_one_at_a_time_is_in_memory(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[SessionFeed] = []
    most = 0

    class Counted(SessionFeed):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            nonlocal most
            super().__init__(*arguments, **options)
            made.append(self)
            most = max(most, sum(feed.holds_rest for feed in made))

    async with running(tmp_path, spawner) as bench:
        widget = await bench.widget(bench.access())
        sessions = [await widget.new_session() for _ in range(3)]
        for session in sessions:
            await says(loading_agents[0], session, *("x" * 20_000 for _ in range(60)))
        await widget.until(lambda: len(widget.texts()) == 180)
    monkeypatch.setattr(chat_bridge, "SessionFeed", Counted)
    async with running(tmp_path, spawner) as bench:
        slow = await bench.widget(bench.access(), "slow", reads=False)
        for session in sessions:
            await slow.send("load_session", sessionId=session)
        await trio.testing.wait_all_tasks_blocked()
        bench.nursery.start_soon(slow.read)
        await slow.until(lambda: len(slow.texts()) == 180)
    assert (len(made), most) == (3, 1)


KINDS: list[Callable[[str], dict[str, Any]]] = [
    lambda said: {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": said}},
    lambda said: {"sessionUpdate": "agent_thought_chunk", "content": {"type": "text", "text": said}},
    lambda said: {"sessionUpdate": "tool_call", "toolCallId": "c", "title": said, "status": "pending"},
    lambda said: {"sessionUpdate": "tool_call_update", "toolCallId": "c", "status": "completed", "rawOutput": said},
    lambda said: {"sessionUpdate": "current_mode_update", "currentModeId": said},
    lambda said: {"sessionUpdate": "tomorrow", "said": said},
]


@pytest.mark.parametrize("seed", range(6))
async def test_in_the_end_each_widget_has_all_of_its_sessions_and_nothing_of_others(
    seed: int, make_bench: MakeBench
) -> None:
    chance = random.Random(seed)  # noqa: S311
    async with make_bench() as bench:
        widgets: dict[str, list[Widget]] = {}
        sessions: dict[str, list[str]] = {}
        for identity in ("ann", "ben"):
            slow = await bench.widget(bench.access(identity), f"{identity}'s slow one", reads=False)
            widgets[identity] = [await bench.widget(bench.access(identity), identity), slow]
            sessions[identity] = [await widgets[identity][0].new_session() for _ in range(2)]
        agents = {identity: bench.agents[number] for number, identity in enumerate(widgets)}
        sent: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for number in range(60):
            identity = chance.choice(["ann", "ben"])
            session = chance.choice(sessions[identity])
            if chance.random() < 0.3:
                await chance.choice(widgets[identity]).send("load_session", sessionId=session)
            else:
                update = chance.choice(KINDS)(f"{identity} {session} {number} {'x' * chance.choice([0, 0, 30_000])}")
                sent.setdefault((identity, session), []).append(update)
                await updates(agents[identity], session, update)
            if chance.random() < 0.5:
                await trio.testing.wait_all_tasks_blocked()
        for identity, (_, slow) in widgets.items():
            for session in sessions[identity]:
                await slow.send("load_session", sessionId=session)
            bench.nursery.start_soon(slow.read)
        await trio.testing.wait_all_tasks_blocked()
        for identity, its in widgets.items():
            for widget in its:
                assert {event["sessionId"] for event in widget.told} <= {*sessions[identity]}
                for session in sessions[identity]:
                    assert since_opened(widget, session) == told_for(session, sent.get((identity, session), []))


def since_opened(widget: Widget, session: str) -> list[dict[str, Any]]:
    """The events of a session since it was created or loaded last, without their times."""
    events = [{**event, "timestamp": 0} for event in widget.told if event["sessionId"] == session]
    opened = [at for at, event in enumerate(events, 1) if event["type"] in ("session_created", "session_loaded")]
    return events[opened[-1] if opened else 0 :]


def told_for(session: str, found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    messages = [json.dumps({"params": {"sessionId": session, "update": update}}).encode() for update in found]
    return [*map(json.loads, ChatOutput(lambda: 0).updates(session, messages, 1, [0] * len(messages)))]


async def test_a_widget_that_loads_again_and_again_is_throttled_and_no_other_identity_is(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: object
) -> None:
    async with running(
        tmp_path, spawner, LimitsSection(messages_per_second=100, message_burst=200), timeout=600
    ) as bench:
        widget, other = await bench.widget(bench.access()), await bench.widget(bench.access("ben"), "ben")
        session, own = await widget.new_session(), await other.new_session()
        began = trio.current_time()

        async def load() -> None:
            for _ in range(100):
                await widget.send("load_session", sessionId=session)

        bench.nursery.start_soon(load)
        await other.load(own)
        assert trio.current_time() - began < 1
        await widget.until(lambda: len(widget.of("session_loaded")) == 100)
        # A load counts as 20 messages.
        assert trio.current_time() - began > 10


async def test_equal_ids_of_two_agents_are_the_later_session(
    make_bench: MakeBench, loading_agents: ServingAgents
) -> None:
    loading_agents.session_id = "1"
    agents: Any = dict.fromkeys(("a", "b"), section())
    async with make_bench(**agents) as bench:
        widget = await bench.widget(bench.access())
        for agent in agents:
            assert await widget.new_session(agent=agent, cwd="/") == "1"
        for process, text in zip(bench.agents.started, ("of a", "of b"), strict=True):
            await says(process, "1", text)
        await widget.until_texts("of b")
        await widget.send("send_message", sessionId="1", content="hi")
        assert (await bench.agents[1].got("session/prompt"))["params"]["sessionId"] == "1"
        assert not [it for it in bench.agents[0].received if it.get("method") == "session/prompt"]
