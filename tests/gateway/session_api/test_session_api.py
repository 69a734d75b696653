"""Clients of the session API, side by side with others."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.agent_supervisor import RestartBackoff
from acp_gateway.gateway.session_api import listing
from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.gateway.session_api.description import Describer
from acp_gateway.gateway.sessions.session_view import SessionView
from acp_gateway.rules.rule import CommandPattern, Rule
from tests.kit.bridging import (
    TEXT,
    YES,
    Bench,
    MakeBench,
    asks,
    editor_in,
    ends_turn,
    prompted,
    running,
    says,
    section,
    texts,
)
from tests.kit.doubles import ServingAgent, ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def test_a_watching_browser_is_told_of_every_session_in_its_reach(bench: Bench) -> None:
    watching = await bench.page(bench.access(), "watching")
    assert (await watching.result("session/list", watch=True))["sessions"] == []
    page = await bench.page(bench.access())
    session = await page.new_session(title="one")
    await (await bench.page(bench.access("ben"), "ben")).new_session()
    await prompted(page, bench.agents[0], session)

    def states() -> list[tuple[str, str]]:
        return [(it["session"]["id"], it["session"]["status"]) for it in watching.of("session/changed")]

    await watching.until(lambda: (session, "running") in states())
    assert {name for name, _ in states()} == {session}
    await page.result("session/archive", sessionId=session)
    await watching.until(lambda: watching.of("session/changed")[-1]["session"]["archived"])
    assert (await page.result("session/list"))["sessions"] == []
    assert len((await page.result("session/list", archived=True))["sessions"]) == 1
    await page.result("session/archive", sessionId=session, archived=False)
    assert len((await page.result("session/list"))["sessions"]) == 1


async def test_two_browsers_and_an_editor_see_the_same(bench: Bench) -> None:
    first, second = [await bench.page(bench.access(), name) for name in ("first", "second")]
    session = await first.new_session()
    await second.result("session/get", sessionId=session)
    editor = await editor_in(bench, session)
    await prompted(first, bench.agents[0], session)
    await says(bench.agents[0], session, "a", "b")
    await ends_turn(bench.agents[0])
    await editor.send(id=9, method="session/prompt", params={"sessionId": session, "prompt": TEXT})
    await second.until_status(session, "completed", "running")
    await says(bench.agents[0], session, "c")
    await ends_turn(bench.agents[0], result={"stopReason": "refusal"})
    for page in (first, second):
        await page.until_status(session, "running", "completed", "running", "completed")
        found = page.updates(session)
        assert [update["seq"] for update in found] == [1, 2, 3, 4, 5]
        assert texts(found) == ["hello", "a", "b", "hello", "c"]
        assert page.of("session/status_changed", session)[-1]["stopReason"] == "refusal"
    got = await (await bench.page(bench.access(), "third")).result("session/get", sessionId=session)
    assert got["updates"] == first.entries(session)
    seen: list[str] = []
    while len(seen) < 4:
        message = await editor.receive()
        if message.get("method") == "session/update":
            seen.append(message["params"]["update"]["content"]["text"])
    assert seen == ["hello", "a", "b", "c"]


async def test_an_update_is_composed_once_for_a_hundred_viewers(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    composed: list[int] = []
    compose = api_output.entries

    def entries(session_id: str, messages: Any, first: int, times: Any) -> list[bytes]:
        composed.append(first)
        return compose(session_id, messages, first, times)

    async with make_bench(limits=LimitsSection(connections_per_identity=300)) as bench:
        access = bench.access()
        pages = [await bench.page(access, f"page {number}") for number in range(100)]
        session = await pages[0].new_session()
        for page in pages[1:]:
            await page.result("session/get", sessionId=session)
        monkeypatch.setattr(api_output, "entries", entries)
        for number, text in enumerate("abc", 1):
            await says(bench.agents[0], session, text)
            for page in pages:
                assert texts(await page.until_updates(session, number))[-1] == text
    assert composed == [1, 2, 3]


async def test_a_change_during_a_list_is_told_after_it(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    page = await bench.page(bench.access())
    for _ in range(5):
        await page.new_session()
    watching = await bench.page(bench.access(), "watching")
    await watching.result("gateway/info")
    monkeypatch.setattr(listing, "AT_ONCE", 1)
    describe = Describer.of

    def change_after(self: Describer, view: SessionView) -> dict[str, Any]:
        described = describe(self, view)
        if view.session.title is None:
            view.session.title = "changed"
            view.session.archive.keep(view.session)
        return described

    monkeypatch.setattr(Describer, "of", change_after)
    await watching.result("session/list", watch=True)
    await trio.testing.wait_all_tasks_blocked()
    shown: dict[str, str] = {}
    for message in watching.arrived:
        if "method" in message:
            shown[message["params"]["session"]["id"]] = message["params"]["session"]["title"]
        elif "sessions" in message["result"]:
            shown |= {it["id"]: it["title"] for it in message["result"]["sessions"]}
    assert list(shown.values()) == ["changed"] * 5


async def test_a_session_whose_id_the_agent_gives_again_is_told_by_a_name_of_its_own(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.session_id = "only"
    monkeypatch.setattr(RestartBackoff, "next_start", lambda _, now: now)
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        await page.result("session/list", watch=True)
        session = await page.new_session()
        agents[0].end(0)
        await agents[0].close()
        await page.until_status(session, "exited")
        await page.result("session/get", sessionId=session)
        del page.told[:]
        assert (await page.result("session/new"))["sessionId"] == session
        await trio.testing.wait_all_tasks_blocked()
        moved = {"sessionId": session, "epoch": None, "movedTo": f"{session}~former-1"}
        assert page.of("session/reset") == [moved]
        assert (await page.result("session/get", sessionId=session))["session"]["id"] == session
        listed = {it["id"] for it in (await page.result("session/list"))["sessions"]}
        assert listed == {session, f"{session}~former-1"}
        assert {*[it["params"]["session"]["id"] for it in page.told if it["method"] == "session/changed"]} == listed


async def test_of_two_owners_with_sessions_of_one_id_a_guest_is_shown_none(
    make_bench: MakeBench, loading_agents: ServingAgents
) -> None:
    loading_agents.session_id = "s"
    async with make_bench() as bench:
        session = await (await bench.page(bench.access("ann"), "ann")).new_session()
        guest, control = (
            await bench.page(bench.guest(session), "guest"),
            bench.editor(bench.guest(session), control=True),
        )
        assert len((await guest.result("session/list", watch=True))["sessions"]) == 1
        await (await bench.page(bench.access("bob"), "bob")).new_session()
        assert (await guest.result("session/list"))["sessions"] == []
        assert guest.of("session/changed") == []
        await control.send(id=1, method="session/list", params={"all": True})
        assert (await control.receive())["result"]["sessions"] == []
        assert (await guest.error("session/get", sessionId=session))[0] == -32602


async def test_a_guest_who_has_joined_keeps_the_session_of_that_owner(
    make_bench: MakeBench, loading_agents: ServingAgents
) -> None:
    loading_agents.session_id = "s"
    async with make_bench() as bench:
        session = await (await bench.page(bench.access("ann"), "ann")).new_session(title="ann's")
        guest = await bench.page(bench.guest(session), "guest")
        await guest.result("session/get", sessionId=session)
        await (await bench.page(bench.access("bob"), "bob")).new_session()
        assert [it["title"] for it in (await guest.result("session/list"))["sessions"]] == ["ann's"]


async def test_an_idle_session_that_ends_is_removed_for_its_guests_and_no_other_of_its_id_is(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    agents.session_id = "only"
    monkeypatch.setattr(RestartBackoff, "next_start", lambda _, now: now)
    async with running(tmp_path, spawner) as bench:
        owner, other = await bench.page(bench.access(), "owner"), await bench.page(bench.access("ben"), "other")
        session = await owner.new_session()
        guest = await bench.page(bench.guest(session), "guest")
        await guest.result("session/list", watch=True)
        await guest.result("session/get", sessionId=session)
        await other.new_session()
        agents[1].end(0)
        await agents[1].close()
        await other.until_status(session, "exited")
        assert (await other.result("session/new"))["sessionId"] == session
        await trio.testing.wait_all_tasks_blocked()
        assert guest.of("session/removed") == []
        agents[0].end(0)
        await agents[0].close()
        await guest.until(lambda: guest.of("session/removed"))
        assert guest.of("session/removed") == [{"sessionId": session}]


@pytest.mark.parametrize("method", ["session/cancel", "session/respond"])
async def test_a_call_that_the_agent_does_not_answer_delays_no_cancellation_and_no_decision(
    method: str, make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ServingAgent._answer

    async def without_modes(agent: ServingAgent, to: Any, name: str) -> None:
        if name != "session/set_mode":
            await answer(agent, to, name)

    monkeypatch.setattr(ServingAgent, "_answer", without_modes)
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        await prompted(page, bench.agents[0], session)
        await asks(bench.agents[0], session)
        (asked,) = await page.until(lambda: page.of("session/request"))
        await page.send(id="mode", method="session/set_mode", params={"sessionId": session, "modeId": "plan"})
        await bench.agents[0].got("session/set_mode")
        answered = {"requestId": asked["requestId"], "response": YES} if method == "session/respond" else {}
        await page.result(method, sessionId=session, **answered)
        await page.until(lambda: page.of("session/request_resolved"))
        assert "mode" not in [message.get("id") for message in page.arrived]


# Questions of sub-agents whose session is not certain


async def test_a_page_answers_a_question_that_may_be_of_any_of_its_sessions_and_others_are_not_shown_it(
    bench: Bench,
) -> None:
    page = await bench.page(bench.access())
    sessions = [await page.new_session() for _ in range(2)]
    agent = bench.agents[0]
    await prompted(page, agent, sessions[0])
    # It has joined the session for this one alone.
    second = await bench.page(bench.access(), "second")
    observer = await bench.page(bench.access(role="observer"), "observer")
    guest = await bench.page(bench.guest(sessions[0]), "guest")
    for other in (second, observer, guest):
        await other.result("session/get", sessionId=sessions[0])
    await asks(agent, "child")
    for browser in (page, second):
        (asked,) = await browser.until(partial(browser.of, "session/request"))
        assert (asked["sessionId"], asked["request"]["toolCall"]) == (sessions[0], {"toolCallId": "call"})
    listed = {it["id"]: it["waiting"] for it in (await second.result("session/list"))["sessions"]}
    assert [len(listed[name]) for name in sessions] == [1, 0]
    for other in (observer, guest):
        (shown,) = [it for it in (await other.result("session/list"))["sessions"] if it["id"] == sessions[0]]
        assert (shown["waiting"], other.of("session/request")) == ([], [])
    members = {"sessionId": sessions[0], "requestId": asked["requestId"], "response": YES}
    for other in (observer, guest):
        await other.error("session/respond", **members)
    await second.result("session/respond", **members)
    await page.until(lambda: page.of("session/request_resolved"))
    assert [got["result"] for got in agent.received if got.get("id") == "may I?"] == [YES]


async def test_a_page_is_told_the_rules_for_a_question_and_has_one_written(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    guest = await bench.page(bench.guest(session), "guest")
    for other in (page, guest):
        await other.result("session/get", sessionId=session)
    agent, call = bench.agents[0], {"toolCallId": "c", "kind": "execute", "rawInput": {"command": "pytest -q"}}
    options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
    params = {"sessionId": session, "toolCall": call, "options": options}
    await agent.send(id="q", method="session/request_permission", params=params)
    (asked,) = await page.until(partial(page.of, "session/request"))
    members = {"sessionId": session, "requestId": asked["requestId"]}
    offered = await page.result("session/rules", **members)
    assert offered["rules"] == ["`pytest …`", "`pytest -q`"]
    assert (await guest.result("session/rules", **members))["rules"] == []
    rule = {"subject": offered["rules"][0], "for": "session"}
    chosen = {"outcome": {"outcome": "selected", "optionId": "yes"}, "_meta": {"acp-gateway": {"rule": rule}}}
    await page.result("session/respond", **members, response=chosen)
    await page.until(lambda: bench.audit.of("rule_written"))
    await agent.send(id="r", method="session/request_permission", params=params)
    answers = await page.until(lambda: [got["result"] for got in agent.received if got.get("id") == "r"])
    assert answers == [{"outcome": {"outcome": "selected", "optionId": "yes"}}]
    assert (await page.error("session/rules", **members))[0] == -32602


async def test_a_command_is_tried_against_the_rules_for_the_sessions_of_who_asks_alone(bench: Bench) -> None:
    access = bench.access()
    page, ben = await bench.page(access), await bench.page(bench.access("ben"), "ben")
    guest = await bench.page(bench.guest(await page.new_session()), "guest")
    observer = await bench.page(bench.access(role="observer"), "observer")
    pattern = CommandPattern(("git", "fetch"), True)
    written = Rule(id="", decision="allow", author="ann", project="/srv", command=pattern)
    bench.gateway.services.rules_file.add(written)
    tried = {"command": "git fetch -q", "cwd": "/srv/a"}
    told = await page.result("rules/try", **tried)
    assert (told["decision"], told["rule"]["id"], told["rule"]["command"]) == ("allow", "rule-1", "git fetch …")
    told = await page.result("rules/try", **tried | {"command": "git fetch --upload-pack=x"})
    assert (told["decision"], told["rule"], told["why"].partition(",")[0]) == (
        *("ask", None),
        "rule-1 does not name --upload-pack=x",
    )
    for other, change in ((ben, {"command": "git fetch --upload-pack=x"}), (page, {"cwd": "/tmp"})):
        told = await other.result("rules/try", **tried | change)
        assert (told["decision"], told["why"]) == ("ask", "no rule is for it")
    assert (await page.error("rules/try", **tried, agentType="other"))[0] == -32602
    assert (await guest.error("rules/try", **tried))[1] == "a guest has no rules"
    assert "observers may only look" in (await observer.error("rules/try", **tried))[1]


async def test_a_page_can_cancel_a_question_that_may_be_another_identitys_and_is_not_shown_it(
    make_bench: MakeBench,
) -> None:
    async with make_bench(fake=section("shared")) as bench:
        ann, ben = [await bench.page(bench.access(name), name) for name in ("ann", "ben")]
        sessions = [await page.new_session() for page in (ann, ben)]
        agent = bench.agents[0]
        await prompted(ben, agent, sessions[1])
        await asks(agent, "child")
        for page, session in ((ann, sessions[0]), (ben, sessions[1])):
            (asked,) = await page.until(partial(page.of, "session/request"))
            assert asked["sessionId"] == session
            assert "call" not in asked["request"]["toolCall"]["toolCallId"]
        members = {"sessionId": sessions[1], "requestId": asked["requestId"]}
        code, _ = await ben.error("session/respond", **members, response=YES)
        assert code == -32602
        cancel = {"outcome": {"outcome": "selected", "optionId": "cancel"}}
        await ben.result("session/respond", **members, response=cancel)
        await ann.until(lambda: ann.of("session/request_resolved"))
        answers = [got["result"] for got in agent.received if got.get("id") == "may I?"]
        assert answers == [{"outcome": {"outcome": "cancelled"}}]
        (decided,) = bench.audit.of("permission_decided")
        assert (decided["identity"], decided["decision"]) == ("ben", "cancelled")
