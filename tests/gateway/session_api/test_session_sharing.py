"""Links for guests of one session, made by browsers."""

import logging
import math
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from acp_gateway.errors import Unauthorized
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.session_api.session_sharing import qr_code
from acp_gateway.security.browser_sessions import CODE_LIFETIME
from tests.kit.bridging import Bench, MakeBench, Page, running
from tests.kit.doubles import ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")


def signed_in(bench: Bench, link: str) -> Access:
    """The principal of the browser that has opened a link."""
    code = urlsplit(link).fragment.partition("/")[0]
    return Access.of_browser(*bench.gateway.browsers.authenticate(bench.gateway.browsers.sign_in(code).cookie))


async def shared_at_once(page: Page, session: str, clock: trio.testing.MockClock) -> Any:
    """Share a session while the clock stands still: it would not wait for the thread that makes the QR code."""
    clock.autojump_threshold = math.inf
    shared = await page.result("session/share", sessionId=session)
    clock.autojump_threshold = 0
    return shared


@pytest.mark.parametrize(("params", "role"), [({}, "controller"), ({"observe": True}, "observer")])
async def test_a_link_signs_a_guest_in_once_for_one_session(
    params: Any, role: str, make_bench: MakeBench, loading_agents: ServingAgents
) -> None:
    loading_agents.session_id = "s {}/{}"
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        session, other = await page.new_session(), await page.new_session()
        shared = await page.result("session/share", sessionId=session, **params)
        assert shared["link"].startswith("https://box:7443/#acpgwp_")
        assert shared["link"].endswith("/s/s%201%2F1")
        assert {len(row) for row in shared["qr"]} == {len(shared["qr"])}
        assert set("".join(shared["qr"])) == {"0", "1"}
        access = signed_in(bench, shared["link"])
        with pytest.raises(Unauthorized):
            signed_in(bench, shared["link"])
        guest = await bench.page(access, "guest")
        info = await guest.result("gateway/info")
        assert (info["guest"], info["role"], info["session"], info["mayShare"]) == (True, role, session, False)
        assert (await guest.error("session/get", sessionId=other))[0] == -32602
        (entry,) = bench.audit.of("session_shared")
        assert (entry["session"], entry["identity"], entry["role"]) == (session, "ann", role)
        assert access.token is not None
        assert entry["token"] == access.token.id
        assert access.token.expires is not None


async def test_a_link_is_for_the_session_of_its_owner_and_no_other_of_the_same_id(
    make_bench: MakeBench, loading_agents: ServingAgents
) -> None:
    loading_agents.session_id = "s"
    async with make_bench() as bench:
        page, other = await bench.page(bench.access()), await bench.page(bench.access("bob"), "bob")
        session = await page.new_session(title="ann's")
        await other.new_session(title="bob's")
        shared = await page.result("session/share", sessionId=session)
        guest = await bench.page(signed_in(bench, shared["link"]), "guest")
        assert (await guest.result("session/get", sessionId=session))["session"]["title"] == "ann's"


def test_the_qr_code_of_a_link_is_rows_of_dark_and_light_modules() -> None:
    rows = qr_code("https://box:7443/#acpgwp_x/s/1")
    assert rows[0].startswith("1111111")
    assert set(map(len, rows)) == {len(rows)}


async def test_a_revoked_guest_token_makes_the_link_worthless(make_bench: MakeBench) -> None:
    async with make_bench() as bench:
        page = await bench.page(bench.access())
        shared = await page.result("session/share", sessionId=await page.new_session())
        bench.gateway.tokens.revoke(bench.audit.of("session_shared")[0]["token"])
        with pytest.raises(Unauthorized):
            signed_in(bench, shared["link"])


async def test_a_file_that_cannot_be_written_is_told_without_its_name(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path, spawner) as bench:
        page = await bench.page(bench.access())
        session = await page.new_session()
        (tmp_path / "state" / "tokens.json").write_text("[")
        code, text = await page.error("session/share", sessionId=session)
        assert (code, "tokens.json" in text) == (503, False)
    (error,) = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR][-1:]
    assert error.startswith("sessions can't be shared: ")


@pytest.mark.parametrize("used", [False, True])
async def test_the_token_of_a_link_ends_with_the_code_unless_that_was_used(
    used: bool, make_bench: MakeBench, autojump_clock: trio.testing.MockClock
) -> None:
    async with make_bench(timeout=2 * CODE_LIFETIME) as bench:
        page = await bench.page(bench.access())
        shared = await shared_at_once(page, await page.new_session(), autojump_clock)
        if used:
            signed_in(bench, shared["link"])
        await trio.sleep(CODE_LIFETIME + 1)
        token = bench.audit.of("session_shared")[0]["token"]
        revoked = [entry["id"] for entry in bench.audit.of("token_revoked")]
        assert (token in [it.id for it in bench.gateway.tokens.tokens()], revoked) == (used, [] if used else [token])


@pytest.mark.parametrize("flaw", ["revoked before", "unreadable"])
async def test_a_token_that_cannot_be_revoked_is_logged_unless_it_was_before(
    flaw: str,
    tmp_path: Path,
    spawner: Spawner,
    loading_agents: ServingAgents,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with running(tmp_path, spawner, timeout=2 * CODE_LIFETIME) as bench:
        page = await bench.page(bench.access())
        await shared_at_once(page, await page.new_session(), autojump_clock)
        token = bench.audit.of("session_shared")[0]["token"]
        if flaw == "unreadable":
            (tmp_path / "state" / "tokens.json").write_text("[")
        else:
            bench.gateway.tokens.revoke(token)
        await trio.sleep(CODE_LIFETIME + 1)
        logged = [f"the token {token} of an unused link" in record.getMessage() for record in caplog.records]
        assert any(logged) is (flaw == "unreadable")
        assert bench.audit.of("token_revoked") == []
