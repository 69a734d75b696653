"""The methods of `/ws` over control connections, beside those of the control channel."""

from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.errors import Busy
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.control_channel import serve_control
from acp_gateway.protocol import jsonrpc
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.kit.bridging import TEXT, YES, Bench, Page, asks, ends_turn, running, says, texts
from tests.kit.doubles import ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def connect(bench: Bench, access: Access, **wanted: Any) -> Page:
    """A control connection that is read."""
    theirs, ours = memory_message_stream_pair()
    grant = bench.gateway.admit(access, ConnectRequest(control=True, **wanted))
    bench.nursery.start_soon(serve_control, bench.gateway, ours, grant)
    page = Page(theirs, ours)
    bench.nursery.start_soon(page.read)
    return page


async def test_a_session_is_opened_followed_and_decided_in_beside_the_methods_of_the_channel(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        client = await connect(bench, bench.access())
        assert (await client.result("_acp-gateway/access"))["identity"] == "ann"
        assert bench.gateway.services.inputs == set()
        session = await client.new_session()
        await client.result("session/prompt", sessionId=session, prompt=TEXT)
        await loading_agents[0].got("session/prompt")
        await says(loading_agents[0], session, "said")
        assert texts(await client.until_updates(session, 2)) == ["hello", "said"]
        await asks(loading_agents[0], session)
        (told,) = await client.until(lambda: client.of("session/request"))
        await client.send(id=told["requestId"], result=YES)
        await client.until(lambda: client.of("session/request_resolved"))
        await ends_turn(loading_agents[0])
        await client.until_status(session, "completed")
        (listed,) = (await client.result("session/list", all=True))["sessions"]
        assert (listed["id"], listed["connected"]) == (session, 1)
        assert (await client.result("gateway/info"))["limit"] == {"size": 65536, "option": "control_message_size"}
        await client.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert len(bench.gateway.connections) == 0
        assert bench.gateway.services.inputs == set()


async def test_what_neither_knows_is_answered_as_before(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        client = await connect(bench, bench.access())
        for _ in range(2):
            code, text = await client.error("session/nothing")
            assert (code, text[:29]) == (jsonrpc.METHOD_NOT_FOUND, "a control connection knows on")
            await client.result("session/list")
        await client.stream.send(b"no json")
        assert (await client.response(None))["error"]["code"] == jsonrpc.PARSE_ERROR


async def test_an_observer_and_a_guest_may_no_more_than_over_ws(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        session = await (await bench.page(bench.access())).new_session()
        observer = await connect(bench, bench.access(), observe=True)
        assert (await observer.error("session/new"))[0] == jsonrpc.METHOD_NOT_FOUND
        guest = await connect(bench, bench.guest(session))
        assert [it["id"] for it in (await guest.result("session/list"))["sessions"]] == [session]
        assert (await guest.error("session/new"))[0] == jsonrpc.INVALID_REQUEST
        owner = await connect(bench, bench.access())
        assert (await owner.error("session/share", sessionId=session))[0] == jsonrpc.INVALID_REQUEST


async def test_another_gateway_and_a_page_that_it_passes_on_are_not_told_a_question_that_may_be_of_any_session(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        sessions = [await page.new_session() for _ in range(2)]
        await asks(loading_agents[0], "child")
        asked = (await page.until(lambda: page.of("session/request")))[0]
        for passed, shown in ((), True), (("0123456789abcdef",), False):
            for client in (
                await connect(bench, bench.access(), passed=passed),
                await bench.page(bench.access(), "further", passed=passed),
            ):
                listed = (await client.result("session/list"))["sessions"]
                assert [any(it["waiting"]) for it in listed] == [shown, shown]
                found = await client.result("session/get", sessionId=sessions[0])
                assert [it["requestId"] for it in found["pendingRequests"]] == [asked["requestId"]] * shown
        answer = {"sessionId": sessions[0], "requestId": asked["requestId"], "response": YES}
        assert (await client.error("session/respond", **answer))[0] == jsonrpc.INVALID_PARAMS


async def test_a_client_that_wants_all_is_told_changes_with_owners(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        client = await connect(bench, bench.access())
        assert await client.result("session/list", all=True, watch=True) == {"sessions": []}
        page = await bench.page(bench.access())
        session = await page.new_session()

        def told(watching: Page) -> list[tuple[Any, ...]]:
            changes = [it["session"] for it in watching.of("session/changed")]
            return [(it["id"], it.get("owner"), it.get("connected")) for it in changes]

        await client.until(lambda: (session, "ann", 1) in told(client))
        await page.result("session/list", watch=True)
        await page.result("session/set_title", sessionId=session, title="t")
        await page.until(lambda: told(page))
        assert set(told(page)) == {(session, None, None)}


async def test_a_refusal_of_the_first_call_ends_nothing_and_the_connection_counts_once(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise Busy("max_connections (1) are there already; try later")

    async with running(tmp_path, spawner, LimitsSection(connections_per_identity=1)) as bench:
        client = await connect(bench, bench.access())
        with monkeypatch.context() as patch:
            patch.setattr(bench.gateway, "admit", refuse)
            await client.send(method="session/cancel", params={"sessionId": "s"})
            code, text = await client.error("session/list")
        assert (code, text) == (503, "max_connections (1) are there already; try later")
        assert (await client.result("session/list"))["sessions"] == []
        assert len(bench.gateway.connections) == 1
