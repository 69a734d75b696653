"""Several connections of one page: which of them carries on, and calls that are made again."""

from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.dialects.browser.bridge import BrowserBridge
from acp_gateway.dialects.browser.pages import MAX_CALLS, MAX_OWN_PAGES, MAX_REPLY, Forgotten, Page, Pages
from acp_gateway.errors import Busy
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.hub.memory_limit import MemoryLimiter
from acp_gateway.gateway.session_api.disk_sessions import OVERHEAD, DiskSession
from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import RawId
from acp_gateway.security.token_store import TokenStore
from tests.kit.bridging import TEXT, YES, Bench, MakeBench, asks, prompted, running, says, section, texts
from tests.kit.doubles import ServingAgent

PAGE = "0123456789abcdef"


@pytest.mark.parametrize("scope", ["identity", "connection"])
async def test_a_second_connection_of_a_page_carries_on_as_the_same_client(
    scope: str, make_bench: MakeBench, no_bug_showed: None
) -> None:
    async with make_bench(fake=section(scope)) as bench:
        access = bench.access()
        first = await bench.page(access, "first", page_id=PAGE)
        assert (await first.result("gateway/info"))["known"] is False
        session = await first.new_session()
        watching = await bench.page(access, "watching")
        await watching.result("session/list", watch=True)
        await prompted(first, bench.agents[0], session)
        second = await bench.page(access, "second", page_id=PAGE)
        assert (await second.result("gateway/info"))["known"] is True
        assert not first.ended
        got = await second.result("session/get", sessionId=session, since=1, epoch="")
        await trio.testing.wait_all_tasks_blocked()
        assert first.ended
        assert [it["you"] for it in got["session"]["clients"]] == [True]
        assert {len(it["session"]["clients"]) for it in watching.of("session/changed")} == {1}
        assert bench.audit.of("taken_over") == [{"connection": "second", "former": "first", "identity": "ann"}]
        await says(bench.agents[0], session, "a")
        assert texts(await second.until_updates(session, 1)) == ["a"]
        assert len(bench.agents) == 1


async def test_a_connection_that_the_page_has_not_chosen_changes_nothing(bench: Bench, no_bug_showed: None) -> None:
    access = bench.access()
    first = await bench.page(access, "first", page_id=PAGE)
    session = await first.new_session()
    in_vain = await bench.page(access, "in vain", page_id=PAGE)
    await trio.testing.wait_all_tasks_blocked()
    await first.result("session/get", sessionId=session)
    assert not in_vain.ended
    await in_vain.stream.aclose()
    await prompted(first, bench.agents[0], session)
    assert not first.ended


async def test_a_page_carries_on_at_the_moment_at_which_its_former_connection_has_ended(
    make_bench: MakeBench, monkeypatch: pytest.MonkeyPatch, no_bug_showed: None
) -> None:
    end = BrowserBridge._ended

    def end_late(bridge: BrowserBridge) -> None:
        if bridge.name == "first":
            page = bridge._shown_page
            assert page is not None
            later = page.connections[-1]
            assert isinstance(later, BrowserBridge)
            later._note_call(None)
        end(bridge)

    monkeypatch.setattr(BrowserBridge, "_ended", end_late)
    async with make_bench() as bench:
        access = bench.access()
        first = await bench.page(access, "first", page_id=PAGE)
        session = await first.new_session()
        second = await bench.page(access, "second", page_id=PAGE)
        await second.result("gateway/info")
        await first.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        assert bench.audit.of("taken_over") == [{"connection": "second", "former": "first", "identity": "ann"}]
        assert (await second.result("session/get", sessionId=session))["session"]["live"]


async def test_a_prompt_that_is_sent_again_on_another_connection_of_the_page_runs_once(
    bench: Bench, no_bug_showed: None
) -> None:
    access = bench.access()
    first = await bench.page(access, "first", page_id=PAGE)
    session = await first.new_session()
    prompt = {"id": 77, "method": "session/prompt", "params": {"sessionId": session, "prompt": TEXT}}
    await first.send(**prompt)
    await first.response(77)
    second = await bench.page(access, "second", page_id=PAGE)
    await second.send(**prompt)
    assert (await second.response(77))["result"] == {"success": True}
    got = await second.result("session/get", sessionId=session)
    assert (texts(got["updates"]), got["session"]["queued"]) == (["hello"], 0)


async def test_a_call_is_finished_after_its_connection_was_lost_and_answered_on_the_next_one(
    bench: Bench, no_bug_showed: None
) -> None:
    access = bench.access()
    first = await bench.page(access, "first", page_id=PAGE)
    await first.send(id=1, method="session/new", params={})
    await first.stream.aclose()
    second = await bench.page(access, "second", page_id=PAGE)
    await second.send(id=1, method="session/new", params={})
    session = (await second.response(1))["result"]["sessionId"]
    assert [it["id"] for it in (await second.result("session/list"))["sessions"]] == [session]


async def test_an_answer_that_is_sent_again_on_another_connection_of_the_page_has_the_same_response(
    bench: Bench, no_bug_showed: None
) -> None:
    access = bench.access()
    first = await bench.page(access, "first", page_id=PAGE)
    session = await first.new_session()
    await prompted(first, bench.agents[0], session)
    await asks(bench.agents[0], session)
    (told,) = await first.until(lambda: first.of("session/request"))
    answer = {"sessionId": session, "requestId": told["requestId"], "response": YES}
    for page in (first, await bench.page(access, "second", page_id=PAGE)):
        await page.send(id="answer", method="session/respond", params=answer)
        assert (await page.response("answer"))["result"] == {"success": True}


async def test_two_connections_of_a_page_count_as_one_but_not_three(
    tmp_path: Path, spawner: Spawner, no_bug_showed: None
) -> None:
    async with running(tmp_path, spawner, LimitsSection(connections_per_identity=1)) as bench:
        access = bench.access()
        await (await bench.page(access, page_id=PAGE)).result("gateway/info")
        await (await bench.page(access, page_id=PAGE)).result("gateway/info")
        for page_id in (None, PAGE, PAGE[::-1]):
            with pytest.raises(Busy):
                await bench.page(access, page_id=page_id)


async def unanswered() -> bytes | None:
    await trio.sleep_forever()


async def answered(reply: bytes | None) -> bytes | None:
    return reply


async def test_the_response_to_a_call_that_was_cancelled_or_is_large_is_not_known() -> None:
    page, large = Page("ann"), b"x" * (MAX_REPLY + 1)
    with trio.CancelScope() as scope:
        scope.cancel()
        await page.once(RawId(b"1"), unanswered)
    assert await page.once(RawId(b"2"), lambda: answered(large)) == large
    for call_id in (b"1", b"2"):
        with pytest.raises(Forgotten):
            await page.once(RawId(call_id), lambda: answered(b"again"))


async def test_a_page_remembers_its_last_calls() -> None:
    page = Page("ann")
    for i in range(MAX_CALLS + 1):
        await page.once(RawId(b"%d" % i), lambda: answered(b"first"))
    assert await page.once(RawId(b"1"), lambda: answered(b"again")) == b"first"
    assert await page.once(RawId(b"0"), lambda: answered(b"again")) == b"again"


async def test_the_outcomes_of_calls_count_in_the_memory_limit_and_what_is_forgotten_is_not_carried_out_again(
    tmp_path: Path,
) -> None:
    kept: set[Page] = set()
    grown: list[int] = []
    limiter = MemoryLimiter(1000, list, kept)
    access = Access.of(TokenStore(tmp_path).create("laptop", "ann", None)[0])
    page, _ = Pages(kept, grown.append).find(access, ConnectRequest(), PAGE)
    assert page.account == "ann"
    for i in range(3):
        assert await page.once(RawId(b"%d" % i), lambda: answered(b"x" * 399)) is not None
    assert (page.input_bytes, grown) == (1200, [400, 400, 400])
    limiter.grown(1000)
    assert page.input_bytes == 0
    with pytest.raises(Forgotten):
        await page.once(RawId(b"2"), lambda: answered(b"again"))
    page.on_disk.add([DiskSession("x" * 1000, "agent")])
    assert page.input_bytes == 1000 + len("agent") + OVERHEAD
    limiter.grown(1000)
    assert (page.input_bytes, list(page.on_disk.sessions)) == (0, [])


def test_pages_are_of_one_principal_and_the_oldest_without_a_connection_is_forgotten(tmp_path: Path) -> None:
    kept: set[Page] = set()
    pages, wanted, tokens = Pages(kept, lambda _: None), ConnectRequest(), TokenStore(tmp_path)
    ann, bob = (Access.of(tokens.create("laptop", identity, None)[0]) for identity in ("ann", "bob"))
    page, known = pages.find(ann, wanted, PAGE)
    assert not known
    bobs, _ = pages.find(bob, wanted, PAGE)
    assert bobs is not page
    assert pages.find(ann, ConnectRequest(observe=True), PAGE)[0] is not page
    assert pages.find(ann, wanted, PAGE) == (page, True)
    for i in range(MAX_OWN_PAGES):
        pages.find(ann, wanted, f"other {i}")
    assert not pages.find(ann, wanted, PAGE)[1]
    # No page of others pushes one out.
    assert pages.find(bob, wanted, PAGE) == (bobs, True)
    assert len(kept) == MAX_OWN_PAGES + 1


def test_of_all_pages_one_of_the_credential_with_most_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acp_gateway.dialects.browser.pages.MAX_PAGES", 5)
    pages, wanted, tokens = Pages(set(), lambda _: None), ConnectRequest(), TokenStore(tmp_path)
    ann, bob, eve = (Access.of(tokens.create("laptop", identity, None)[0]) for identity in ("ann", "bob", "eve"))
    for access, count in ((ann, 2), (bob, 3), (eve, 1)):
        for i in range(count):
            pages.find(access, wanted, f"page {i}")
    assert [pages.find(access, wanted, "page 0")[1] for access in (ann, eve, bob)] == [True, True, False]


@pytest.fixture
def modes_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent never answers a change of the mode, so that its call goes on."""
    answer = ServingAgent._answer

    async def answer_others(agent: ServingAgent, to: Any, name: str) -> None:
        if name != methods.SET_MODE:
            await answer(agent, to, name)

    monkeypatch.setattr(ServingAgent, "_answer", answer_others)


@pytest.mark.usefixtures("modes_go_on")
async def test_a_call_that_comes_late_on_a_former_connection_ends_nothing(bench: Bench, no_bug_showed: None) -> None:
    access = bench.access()
    first = await bench.page(access, "first", page_id=PAGE)
    session = await first.new_session()
    await first.send(id="mode", method="session/set_mode", params={"sessionId": session, "modeId": "plan"})
    await bench.agents[0].got("session/set_mode")
    second = await bench.page(access, "second", page_id=PAGE)
    await second.result("session/list")
    await first.send(id="late", method="session/list", params={})
    await trio.testing.wait_all_tasks_blocked()
    assert not first.ended
    assert not second.ended


@pytest.mark.usefixtures("modes_go_on")
async def test_former_connections_with_calls_under_way_count_towards_the_limit(make_bench: MakeBench) -> None:
    async with make_bench(limits=LimitsSection(connections_per_identity=3)) as bench:
        access = bench.access()
        page = await bench.page(access, page_id=PAGE)
        session = await page.new_session()

        params = {"sessionId": session, "modeId": "plan"}
        for number in range(2):
            await page.send(id=f"mode{number}", method="session/set_mode", params=params)
            await trio.testing.wait_all_tasks_blocked()
            page = await bench.page(access, page_id=PAGE)
            await page.result("session/list")
        await page.send(id="mode", method="session/set_mode", params=params)
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy):
            await bench.page(access, page_id=PAGE)
