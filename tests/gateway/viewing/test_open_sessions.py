"""The sessions that a browser uses: joined, answered and left by its clients."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.errors import UnknownSession
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.gateway.viewing.local_client import LocalClient
from acp_gateway.gateway.viewing.open_sessions import CallRefused, OpenSessions
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text.members import AcpRequest
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


async def test_a_permission_that_an_editor_decides_is_told_with_who_and_what(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    editor = await editor_in(bench, session)
    await prompted(page, bench.agents[0], session)
    await asks(bench.agents[0], session)
    (told,) = await page.until(lambda: page.of("session/request", session))
    assert told["request"]["toolCall"] == {"toolCallId": "call"}
    await page.until_status(session, "running", "waiting")
    message = await editor.receive()
    while message.get("method") != "session/request_permission":
        message = await editor.receive()
    await editor.send(id=message["id"], result=YES)
    (resolved,) = await page.until(lambda: page.of("session/request_resolved", session))
    assert resolved == {"sessionId": session, "requestId": told["requestId"], "by": "ann", "outcome": "yes"}
    await page.until_status(session, "waiting", "running")


async def test_a_browser_is_asked_for_a_permission_by_its_early_name_under_the_current_one(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    await prompted(page, bench.agents[0], session)
    await asks(bench.agents[0], session, method="request_permission")
    (told,) = await page.until(lambda: page.of("session/request", session))
    (waiting,) = (await page.result("session/get", sessionId=session))["pendingRequests"]
    assert waiting["requestType"] == "session/request_permission"
    await page.result("session/respond", sessionId=session, requestId=told["requestId"], response=YES)
    (resolved,) = await page.until(lambda: page.of("session/request_resolved", session))
    assert resolved["outcome"] == "yes"


@pytest.mark.parametrize("raw", [True, False])
async def test_a_browser_decides_a_permission_by_a_call_or_a_response(raw: bool, bench: Bench) -> None:
    pages = [await bench.page(bench.access(), name) for name in ("first", "second")]
    session = await pages[0].new_session()
    await prompted(pages[0], bench.agents[0], session)
    await asks(bench.agents[0], session)
    (told,) = await pages[0].until(lambda: pages[0].of("session/request"))
    got = await pages[1].result("session/get", sessionId=session)
    assert got["pendingRequests"] == [
        {"requestId": told["requestId"], "requestType": "session/request_permission", "payload": told["request"]}
    ]
    wrong = {"outcome": {"outcome": "selected", "optionId": "never offered"}}
    answer = {"sessionId": session, "requestId": told["requestId"]}
    assert (await pages[1].error("session/respond", **answer, response=wrong))[0] == jsonrpc.INVALID_PARAMS
    if raw:
        await pages[1].send(id=told["requestId"], result=YES)
    else:
        assert await pages[1].result("session/respond", **answer, response=YES) == {"success": True}
    for page in pages:
        await page.until(lambda page=page: page.of("session/request_resolved"))  # type: ignore[misc]
    (reply,) = [it for it in bench.agents[0].received if it.get("id") == "may I?"]
    assert reply["result"] == YES
    code, text = await pages[0].error("session/respond", **answer, response=YES)
    assert (code, "open" in text) == (jsonrpc.INVALID_PARAMS, True)


async def test_a_browser_decides_a_permission_in_a_session_that_it_has_not_opened(bench: Bench) -> None:
    first, second = [await bench.page(bench.access(), name) for name in ("first", "second")]
    session = await first.new_session()
    await prompted(first, bench.agents[0], session)
    await asks(bench.agents[0], session)
    (told,) = await first.until(lambda: first.of("session/request"))
    answer = {"sessionId": session, "requestId": told["requestId"], "response": YES}
    assert await second.result("session/respond", **answer) == {"success": True}
    await first.until(lambda: first.of("session/request_resolved"))
    (reply,) = [it for it in bench.agents[0].received if it.get("id") == "may I?"]
    assert reply["result"] == YES


async def test_a_permission_of_a_cancelled_turn_is_resolved(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    await prompted(page, bench.agents[0], session)
    await asks(bench.agents[0], session)
    await page.until(lambda: page.of("session/request"))
    await page.result("session/cancel", sessionId=session)
    (resolved,) = await page.until(lambda: page.of("session/request_resolved"))
    assert (resolved["by"], resolved["outcome"]) == ("ann", "cancelled")


async def test_what_a_browser_cannot_do_for_an_agent_is_refused_for_it(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    await bench.agents[0].send(id=77, method="ext/method", params={"sessionId": session})
    while not (replies := [it for it in bench.agents[0].received if it.get("id") == 77]):
        await trio.testing.wait_all_tasks_blocked()
    assert replies[0]["error"]["code"] == jsonrpc.METHOD_NOT_FOUND
    assert page.of("session/request") == []


async def test_a_guest_sees_one_session_only(bench: Bench) -> None:
    owner = await bench.page(bench.access())
    session, other = await owner.new_session(), await owner.new_session()
    guest = await bench.page(bench.guest(session), "guest")
    assert [it["id"] for it in (await guest.result("session/list", watch=True))["sessions"]] == [session]
    assert (await guest.result("agents/list"))["agents"] == []
    for unknown in (other, "never"):
        code, text = await guest.error("session/get", sessionId=unknown)
        assert (code, text) == (jsonrpc.INVALID_PARAMS, f"no session {unknown!r} is open here, or it is not yours")
    for method in ("session/new", "session/delete", "session/share", "session/archive"):
        assert (await guest.error(method, sessionId=session))[0] == jsonrpc.INVALID_REQUEST
    await guest.result("session/get", sessionId=session)
    await guest.result("session/prompt", sessionId=session, prompt=TEXT)
    await says(bench.agents[0], other, "secret")
    await owner.until_updates(other, 1)
    await owner.until_status(session, "running")
    assert {it["session"]["id"] for it in guest.of("session/changed")} == {session}


async def test_a_bound_browser_has_its_session_alone(bench: Bench) -> None:
    owner = await bench.page(bench.access())
    session, other = await owner.new_session(), await owner.new_session()
    for page in (
        await bench.page(replace(bench.access(), only=session), "narrowed"),
        await bench.page(bench.access(), "query", session=session),
    ):
        assert [it["id"] for it in (await page.result("session/list"))["sessions"]] == [session]
        assert (await page.error("session/get", sessionId=other))[0] == jsonrpc.INVALID_PARAMS
        assert (await page.error("session/new"))[0] == jsonrpc.INVALID_REQUEST
        assert (await page.error("session/share", sessionId=session))[0] == jsonrpc.INVALID_REQUEST
        await page.result("session/prompt", sessionId=session, prompt=TEXT)


async def test_a_closed_tab_leaves_the_turn_and_the_queue_alone(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    for _ in range(2):
        await page.result("session/prompt", sessionId=session, prompt=TEXT)
    await page.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()
    assert len(bench.gateway.connections) == 0
    second = await bench.page(bench.access(), "second")
    got = await second.result("session/get", sessionId=session)
    assert (got["session"]["status"], got["session"]["queued"]) == ("running", 1)
    await ends_turn(bench.agents[0])
    await second.until_status(session, "completed", "running")
    assert texts(second.updates(session)) == ["hello"]


async def test_beyond_subscribed_sessions_a_call_is_refused_until_one_is_left(make_bench: MakeBench) -> None:
    async with make_bench(limits=LimitsSection(subscribed_sessions=1)) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        code, text = await page.error("session/new")
        assert (code, "subscribed_sessions (1)" in text) == (jsonrpc.INVALID_REQUEST, True)
        await page.result("session/unsubscribe", sessionId=session)
        await says(bench.agents[0], session, "unheard")
        other = await page.new_session()
        assert (await page.error("session/get", sessionId=session))[0] == jsonrpc.INVALID_REQUEST
        await says(bench.agents[0], other, "heard")
        await page.until_updates(other, 1)
        assert page.updates(session) == []


async def test_leaving_a_session_by_unsubscribe_does_not_end_an_agent_of_the_connections_own(
    make_bench: MakeBench,
) -> None:
    async with make_bench(fake=section("connection")) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        await prompted(page, bench.agents[0], session)
        await page.result("session/unsubscribe", sessionId=session)
        await says(bench.agents[0], session, "unheard")
        await trio.testing.wait_all_tasks_blocked()
        assert not bench.agents[0].cancelled
        assert "unheard" not in str(page.told)
        assert texts((await page.result("session/get", sessionId=session))["updates"]) == ["hello", "unheard"]


@pytest.mark.parametrize("scope", ["connection", "identity", "shared"])
async def test_browsers_and_editors_share_a_session_in_every_scope(scope: str, make_bench: MakeBench) -> None:
    async with make_bench(fake=section(scope)) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        second = await bench.page(bench.access(), "second")
        await second.result("session/get", sessionId=session)
        guest = await bench.page(bench.guest(session), "guest")
        await guest.result("session/get", sessionId=session)
        await guest.result("session/prompt", sessionId=session, prompt=TEXT)
        for there in (page, second, guest):
            await there.until_status(session, "running")
            assert texts(await there.until_updates(session, 1)) == ["hello"]
        assert len(bench.agents) == 1


async def test_a_browser_joins_again_when_an_editor_opens_the_session(bench: Bench) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session()
    bench.gateway.hubs[0].end()
    await page.until_status(session, "exited")
    await editor_in(bench, session)
    await trio.testing.wait_all_tasks_blocked()
    (listed,) = (await page.result("session/list"))["sessions"]
    assert {(client["via"], client["you"]) for client in listed["clients"]} == {("editor", False), ("browser", True)}


async def test_an_agent_that_cannot_continue_sessions_is_told_in_words(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer = ServingAgent._answer

    async def without_sessions(agent: ServingAgent, to: Any, method: str) -> None:
        if method in ("session/load", "session/resume"):
            await agent.send(id=to, error={"code": -32601, "message": f"Method not found: {method}"})
        else:
            await answer(agent, to, method)

    monkeypatch.setattr(ServingAgent, "_answer", without_sessions)
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        await prompted(page, bench.agents[0], session)
        await ends_turn(bench.agents[0])
        await page.until_status(session, "completed")
        bench.gateway.hubs[0].end()
        await page.until_status(session, "exited")
        code, text = await page.error("session/prompt", sessionId=session, prompt=TEXT)
        assert (code, text) == (-32603, "the agent fake can't continue a session after its process has ended")


async def test_a_bug_in_a_client_ends_that_and_the_session_can_be_used_again(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    async with make_bench() as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        with monkeypatch.context() as patch:
            patch.setattr(OpenSessions, "_receive", broken)
            await bench.agents[0].send(id=77, method="ext/method", params={"sessionId": session})
            await trio.testing.wait_all_tasks_blocked()
        assert [record.message for record in caplog.records if record.exc_info] == [
            "page #1: internal error, connection closed"
        ]
        caplog.clear()
        await prompted(page, bench.agents[0], session)


async def test_a_session_of_an_agent_that_is_not_configured_any_more_can_be_read_and_left(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        await says(loading_agents[0], session, "a")
        await page.until_updates(session, 1)
    async with running(tmp_path, spawner, other=section()) as bench:
        page = await bench.page(bench.access())
        assert texts((await page.result("session/get", sessionId=session))["updates"]) == ["a"]
        assert (await page.error("session/prompt", sessionId=session, prompt=TEXT))[0] == jsonrpc.INVALID_PARAMS
        assert (await page.error("files/list", sessionId=session, query=""))[0] == jsonrpc.INVALID_PARAMS
        assert await page.result("session/unsubscribe", sessionId=session) == {"success": True}


async def test_a_session_that_is_got_before_session_new_is_answered_has_one_client(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    adopt, joining, created = OpenSessions._adopt, trio.Event(), trio.Event()
    initialize = LocalClient.initialize

    async def late(sessions: OpenSessions, client: LocalClient, session: Session) -> None:
        # The second client has begun to join, and goes on after this.
        await joining.wait()
        await adopt(sessions, client, session)
        created.set()

    async def slow(client: LocalClient) -> Message:
        if client.grant.reach.only is not None:
            joining.set()
            await created.wait()
        return await initialize(client)

    monkeypatch.setattr(OpenSessions, "_adopt", late)
    monkeypatch.setattr(LocalClient, "initialize", slow)
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        await page.result("session/list", watch=True)
        await page.send(id="new", method="session/new", params={})
        told = await page.until(lambda: page.of("session/changed"))
        session = told[0]["session"]["id"]
        await page.result("session/get", sessionId=session)
        await page.response("new")
        await trio.testing.wait_all_tasks_blocked()
        (listed,) = (await page.result("session/list"))["sessions"]
        assert [client["you"] for client in listed["clients"]] == [True]


def calls_of(bench: Bench, access: Access, bound: str | None = None) -> OpenSessions:
    start = bench.nursery.start_soon
    return OpenSessions(bench.gateway, access, "program", via="program", observe=False, start=start, bound=bound)


def viewer_of(bench: Bench, access: Access) -> Viewer:
    reach = bench.gateway.admissions.authorize(access, ConnectRequest(control=True)).reach
    return Viewer(reach, Role.CONTROLLER, access.agents)


async def test_a_session_is_created_found_prompted_and_cancelled(bench: Bench) -> None:
    access = bench.access()
    calls = calls_of(bench, access)
    session = await calls.new("open", None, None)
    assert calls.find(session.id, viewer_of(bench, access)) is session
    failures: list[Message] = []
    params = b'{"sessionId":"%b","prompt":[{"type":"text","text":"a"}]}' % session.id.encode()
    await calls.prompt(session, AcpRequest("session/prompt", params), failures.append)
    await bench.agents[0].got("session/prompt")
    await calls.cancel(session)
    await bench.agents[0].got("session/cancel")
    await trio.testing.wait_all_tasks_blocked()
    assert session.last_turn is not None
    assert failures == []


async def test_a_prompt_that_is_refused_at_once_raises_and_one_that_fails_in_its_turn_does_not(bench: Bench) -> None:
    calls = calls_of(bench, bench.access())
    session = await calls.new("open", None, None)
    failures: list[Message] = []
    named = b'{"sessionId":"%b","prompt":' % session.id.encode()
    with pytest.raises(CallRefused) as raised:
        await calls.prompt(
            session, AcpRequest("session/prompt", named + b"[%b]}" % (b"{}," * 2000 + b"{}")), failures.append
        )
    assert raised.value.response is not None
    await calls.prompt(session, AcpRequest("session/prompt", named + b"[]}"), failures.append)
    await ends_turn(bench.agents[0], error={"code": -1, "message": "no"})
    await trio.testing.wait_all_tasks_blocked()
    assert failures == []


async def test_a_connection_for_one_session_creates_none(bench: Bench) -> None:
    with pytest.raises(CallRefused, match="this connection is for one session only: no new_session"):
        await calls_of(bench, bench.access(), "s").new("new_session", None, None)
    assert len(bench.agents) == 0


async def test_a_session_of_another_identity_is_not_found(bench: Bench) -> None:
    session = await calls_of(bench, bench.access()).new("open", None, None)
    other = bench.access("ben")
    with pytest.raises(UnknownSession):
        calls_of(bench, other).find(session.id, viewer_of(bench, other))


async def test_the_default_agent_is_the_only_one_of_a_token(make_bench: MakeBench) -> None:
    async with make_bench(fake=section(), other=section()) as bench:
        assert calls_of(bench, bench.access(agents=["other"])).default_agent == "other"
