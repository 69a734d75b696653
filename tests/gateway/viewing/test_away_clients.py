"""Clients of browsers that have left, in sessions whose agent would end with them."""

from dataclasses import replace

import pytest
import trio

from acp_gateway.gateway.viewing.open_sessions import OpenSessions
from tests.kit.bridging import Bench, MakeBench, Page, asks, ends_turn, prompted, section, texts

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def left(bench: Bench, page: Page) -> None:
    """The page is gone, and the gateway has noticed."""
    await page.stream.aclose()
    await trio.testing.wait_all_tasks_blocked()


async def test_a_page_that_is_reloaded_finds_its_agent_with_the_turn_and_the_question(make_bench: MakeBench) -> None:
    async with make_bench(fake=section("connection")) as bench:
        access = bench.access()
        page = await bench.page(access)
        session = await page.new_session()
        await prompted(page, bench.agents[0], session)
        await asks(bench.agents[0], session)
        await page.until(lambda: page.of("session/request"))
        await left(bench, page)
        assert not bench.agents[0].cancelled
        (found,) = bench.gateway.hubs[0].multiplexer.sessions
        assert [client.presence.name for client in found.attached] == ["AWAY"]
        again = await bench.page(access, "again")
        got = await again.result("session/get", sessionId=session)
        assert (got["session"]["status"], texts(got["updates"])) == ("waiting", ["hello"])
        assert [(client["presence"], client["you"]) for client in got["session"]["clients"]] == [("connected", True)]
        (asked,) = got["pendingRequests"]
        answer = {"outcome": {"outcome": "selected", "optionId": "yes"}}
        await again.result("session/respond", sessionId=session, requestId=asked["requestId"], response=answer)
        await again.until(lambda: again.of("session/request_resolved"))
        await ends_turn(bench.agents[0])
        await again.until_status(session, "completed")
        assert len(bench.agents) == 1


@pytest.mark.parametrize(("busy", "seconds"), [(False, 900), (True, 3600)])
async def test_an_agent_is_kept_as_long_as_for_the_link_of_an_editor(
    busy: bool, seconds: float, make_bench: MakeBench, autojump_clock: object
) -> None:
    async with make_bench(timeout=10**6, fake=section("connection")) as bench:
        config = bench.gateway.config
        bench.gateway.config = replace(config, gateway=replace(config.gateway, away_grace=3600))
        page = await bench.page(bench.access())
        session = await page.new_session()
        if busy:
            await prompted(page, bench.agents[0], session)
        await left(bench, page)
        await trio.sleep(seconds - 10)
        assert not bench.agents[0].cancelled
        await trio.sleep(30)
        assert bench.agents[0].cancelled


async def test_another_principal_does_not_get_the_client_and_joins_with_its_own(make_bench: MakeBench) -> None:
    async with make_bench(fake=section("connection")) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        await left(bench, page)
        got = await (await bench.page(bench.access(), "other")).result("session/get", sessionId=session)
        assert sorted((it["presence"], it["you"]) for it in got["session"]["clients"]) == [
            ("away", False),
            ("connected", True),
        ]
        assert len(bench.agents) == 1


async def test_a_client_of_another_kind_is_not_taken_over(make_bench: MakeBench) -> None:
    async with make_bench(fake=section("connection")) as bench:
        access = bench.access()
        widget = await bench.widget(access)
        session = await widget.new_session()
        await widget.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()
        got = await (await bench.page(access)).result("session/get", sessionId=session)
        assert sorted((it["via"], it["presence"]) for it in got["session"]["clients"]) == [
            ("browser", "connected"),
            ("chat", "away"),
        ]


async def test_a_browser_that_has_left_before_it_joins_takes_no_client_over(make_bench: MakeBench) -> None:
    async with make_bench(fake=section("connection")) as bench:
        access = bench.access()
        page = await bench.page(access)
        await page.new_session()
        await left(bench, page)
        (found,) = bench.gateway.hubs[0].multiplexer.sessions
        async with trio.open_nursery() as nursery:
            sessions = OpenSessions(
                bench.gateway, access, "again", observe=False, start=nursery.start_soon, via="browser"
            )
            sessions.join_again(sessions.use(found))
            nursery.cancel_scope.cancel()
            await sessions.close()
        assert [client.presence.name for client in found.attached] == ["AWAY"]


async def test_neither_a_guest_nor_an_observer_nor_one_of_two_keeps_an_agent(make_bench: MakeBench) -> None:
    async with make_bench(fake=section("connection")) as bench:
        access = bench.access()
        session = await (await bench.page(access)).new_session()
        others = [
            await bench.page(bench.guest(session), "guest"),
            await bench.page(access, "observer", observe=True),
            await bench.page(access, "second"),
        ]
        for other in others:
            await other.result("session/get", sessionId=session)
            await left(bench, other)
        (found,) = bench.gateway.hubs[0].multiplexer.sessions
        assert [client.presence.name for client in found.attached] == ["CONNECTED"]


async def test_an_agent_that_others_share_needs_no_client(make_bench: MakeBench) -> None:
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        await page.new_session()
        await left(bench, page)
        assert len(bench.gateway.connections) == 0
        assert not bench.agents[0].cancelled


async def test_a_revoked_token_ends_the_client_that_is_kept(make_bench: MakeBench, autojump_clock: object) -> None:
    async with make_bench(fake=section("connection")) as bench:
        access = bench.access()
        page = await bench.page(access)
        session = await page.new_session()
        await left(bench, page)
        assert access.token is not None
        bench.gateway.tokens.revoke(access.token.id)
        await trio.sleep(3)
        assert bench.agents[0].cancelled
        again = await bench.page(replace(bench.access()), "again")
        assert [(it["id"], it["status"]) for it in (await again.result("session/list"))["sessions"]] == [
            (session, "exited")
        ]
