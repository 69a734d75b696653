"""Browsers over `/ws` with the real program: beside an editor, across a restart, with the cookie of a sign-in."""

import asyncio
import http.client
import itertools
import json
import ssl
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from websockets.asyncio.client import ClientConnection, connect

from tests.end_to_end.parties import party, run
from tests.end_to_end.websocket_ends import WebSocketEnd
from tests.kit.running import AGENTS, WORK, RunningGateway, prepare, run_program, start_gateway


class Browser(WebSocketEnd):
    """A page that is connected."""

    def __init__(self, websocket: ClientConnection) -> None:
        super().__init__(websocket)
        self._ids = itertools.count(1)
        self._responses: dict[Any, dict[str, Any]] = {}

    def _take(self, message: dict[str, Any]) -> None:
        if "method" in message:
            super()._take(message)
        else:
            self._responses[message["id"]] = message

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        await self.websocket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        return await self.until(lambda: self._responses.pop(number, None))

    async def result(self, method: str, **params: Any) -> Any:
        response = await self.ask(method, **params)
        assert "result" in response, response
        return response["result"]

    async def prompt(self, session: str, text: str) -> None:
        await self.result("session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}])

    def of(self, method: str) -> list[dict[str, Any]]:
        return [message["params"] for message in self.told if message["method"] == method]

    def entries(self) -> list[dict[str, Any]]:
        """Return the updates and the ends of turns that were told."""
        return [update for params in self.of("session/updated") for update in params["updates"]]

    def updates(self) -> list[dict[str, Any]]:
        return [entry for entry in self.entries() if entry["updateType"] != "turn_end"]

    async def until_said(self, text: str) -> None:
        await self.until(lambda: text in said(self.updates()))

    async def until_status(self, status: str) -> dict[str, Any]:
        await self.until(lambda: [it["status"] for it in self.of("session/status_changed")][-1:] == [status])
        return self.of("session/status_changed")[-1]


def said(updates: list[dict[str, Any]]) -> list[str]:
    return [update["payload"]["content"]["text"] for update in updates if update["updateType"] != "turn_end"]


@asynccontextmanager
async def browser(gateway: RunningGateway, *, query: str = "", **headers: str) -> AsyncIterator[Browser]:
    """A page that is connected over TLS, with the gateway's token unless it has other headers."""
    headers = headers or {"Authorization": f"Bearer {gateway.token}"}
    url = gateway.urls["wss"].replace("/acp", "") + "/ws" + query
    trust = ssl.create_default_context(cafile=gateway.directory / "cert.pem")
    async with connect(url, ssl=trust, additional_headers=headers, max_size=None) as websocket:
        there = Browser(websocket)
        reading = asyncio.create_task(there.read())
        try:
            yield there
        finally:
            reading.cancel()


def set_up(directory: Path, scope: str = "identity") -> str:
    (directory / "memory").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "memory")]
    missing = '[agents.missing]\ncommand = ["/no/such/program"]\n'
    agents = f'[agents.memory]\ncommand = {json.dumps(command)}\nscope = "{scope}"\n{missing}'
    return prepare(directory, agents, more='default_agent = "memory"')


@pytest.fixture
def gateway(tmp_path: Path) -> Any:
    running = start_gateway(tmp_path, set_up(tmp_path))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "Traceback" not in "".join(running.log)


def test_two_browsers_and_an_editor_share_a_session(gateway: RunningGateway) -> None:
    async def scenario() -> None:
        async with browser(gateway) as first, browser(gateway) as second, party(gateway, "wss") as editor:
            session = (await first.result("session/new", cwd=str(WORK), title="Mend it"))["sessionId"]
            for page in (first, second):
                await page.result("session/get", sessionId=session)
            await editor.agent.load_session(cwd=str(WORK), session_id=session)
            await first.prompt(session, "one")
            await first.until_status("completed")
            turn = await editor.begin(session, "ask")
            for page in (first, second):
                asked = await page.until(lambda page=page: page.of("session/request"))  # type: ignore[misc]
                assert asked[0]["request"]["toolCall"]["title"] == "do it"
            await editor.decide("yes")
            assert await turn == "end_turn"
            for page in (first, second):
                (resolved,) = await page.until(lambda page=page: page.of("session/request_resolved"))  # type: ignore[misc]
                assert (resolved["by"] is not None, resolved["outcome"]) == (True, "Yes")
                await page.until_said("yes")
                assert [update["seq"] for update in page.updates()] == [1, 2, 3, 4]
                assert said(page.updates()) == ["one", "one", "ask", "yes"]
                await page.until_status("completed")
            got = await second.result("session/get", sessionId=session)
            assert got["updates"] == first.entries()
            presences = {(client["via"], client["you"]) for client in got["session"]["clients"]}
            assert presences == {("browser", True), ("browser", False), ("editor", False)}
            assert said(got["updates"]) == [it["content"]["text"] for it in [*editor.updates(session)[:2]]] + [
                "ask",
                "yes",
            ]

    run(scenario())


def test_numbers_and_titles_survive_a_restart(tmp_path: Path) -> None:
    pin = set_up(tmp_path)
    before: dict[str, Any] = {}
    session = ""

    async def first_run(gateway: RunningGateway) -> None:
        nonlocal before, session
        async with browser(gateway) as page:
            session = (await page.result("session/new", cwd=str(WORK), title="Mend it"))["sessionId"]
            await page.result("session/get", sessionId=session)
            await page.prompt(session, "one")
            await page.until_status("completed")
            before = await page.result("session/get", sessionId=session)

    async def second_run(gateway: RunningGateway) -> None:
        async with browser(gateway) as page:
            (listed,) = (await page.result("session/list"))["sessions"]
            assert (listed["id"], listed["title"], listed["status"]) == (session, "Mend it", "exited")
            got = await page.result("session/get", sessionId=session, since=1, epoch=before["epoch"])
            assert (got["updates"], got["reset"], got["truncated"]) == (before["updates"][1:], False, False)
            assert [entry for entry in gateway.log if "agent memory" in entry] == []
            await page.prompt(session, "two")
            await page.until(lambda: len(page.updates()) == 2)
            await page.until_status("completed")
            assert [(it["seq"], *said([it])) for it in page.updates()] == [(3, "two"), (4, "two")]
            assert page.of("session/reset") == []
            async with party(gateway, "wss", "--attach", session) as editor:
                await editor.agent.new_session(cwd=str(WORK), mcp_servers=[])
                await editor.until(lambda: len(editor.updates(session)) == 4)
            again = await page.result("session/get", sessionId=session, since=2, epoch=before["epoch"])
            # The end of a turn right behind the number may be known.
            later = [entry for entry in again["updates"] if entry["seq"] > 2]
            assert (later, again["reset"]) == (page.entries(), False)

    for play in (first_run, second_run):
        gateway = start_gateway(tmp_path, pin)
        try:
            run(play(gateway))
        finally:
            assert gateway.stop() == 0
        assert "Traceback" not in "".join(gateway.log)


def test_a_restart_in_a_turn_is_told_as_its_error(tmp_path: Path) -> None:
    pin = set_up(tmp_path)
    session = ""

    async def first_run(gateway: RunningGateway) -> None:
        nonlocal session
        async with browser(gateway) as page:
            session = (await page.result("session/new", cwd=str(WORK)))["sessionId"]
            await page.result("session/get", sessionId=session)
            await page.prompt(session, "wait")
            await page.until_status("running")
            gateway.process.terminate()
            await page.until(lambda: page.closed)
            assert page.closed == (1001, "the gateway is stopping")

    async def second_run(gateway: RunningGateway) -> None:
        async with browser(gateway) as page:
            assert said((await page.result("session/get", sessionId=session))["updates"]) == ["wait"]
            await page.prompt(session, "two")
            await page.until_said("two")

    for play in (first_run, second_run):
        gateway = start_gateway(tmp_path, pin)
        try:
            run(play(gateway))
            if play is first_run:
                gateway.process.wait(60)
        finally:
            assert gateway.stop() == 0
        assert "Traceback" not in "".join(gateway.log)


def test_a_signed_in_browser_shares_a_session_with_a_guest_until_the_token_is_revoked(gateway: RunningGateway) -> None:
    def signed_in(code: str) -> dict[str, str]:
        place = urlsplit(gateway.urls["wss"])
        trust = ssl.create_default_context(cafile=gateway.directory / "cert.pem")
        connection = http.client.HTTPSConnection("127.0.0.1", place.port, context=trust, timeout=60)
        origin = f"https://127.0.0.1:{place.port}"
        fields = {"Origin": origin, "Content-Type": "application/json"}
        with closing(connection):
            connection.request("POST", "/login", json.dumps({"code": code}), fields)
            response = connection.getresponse()
            assert response.status == 200
            return {"Origin": origin, "Cookie": response.headers["Set-Cookie"].partition(";")[0]}

    async def scenario() -> None:
        there = ("--target", gateway.urls["wss"], "--pin", gateway.pin, "--token-file", gateway.token_file)
        owner = await asyncio.to_thread(signed_in, link_code(await asyncio.to_thread(run_program, "open", *there)))
        async with browser(gateway, **owner) as page:
            session = (await page.result("session/new", cwd=str(WORK)))["sessionId"]
            other = (await page.result("session/new", cwd=str(WORK)))["sessionId"]
            shared = await page.result("session/share", sessionId=session, observe=True)
            assert shared["link"].endswith(f"/s/{session}")
            guest_cookie = await asyncio.to_thread(signed_in, link_code(shared["link"]))
            async with browser(gateway, **guest_cookie) as guest:
                info = await guest.result("gateway/info")
                assert (info["guest"], info["role"], info["session"]) == (True, "observer", session)
                assert (await guest.ask("session/get", sessionId=other))["error"]["code"] == -32602
                await guest.result("session/get", sessionId=session)
                await page.prompt(session, "seen")
                await guest.until_said("seen")
                tokens = run_program("token", "list", "--plain", "--config", gateway.config)
                (token,) = [line.split()[0] for line in tokens.splitlines() if "guest-" in line][:1]
                run_program("token", "revoke", token, "--config", gateway.config)
                await guest.until(lambda: guest.closed)
                assert guest.closed == (1008, "this browser is not signed in any more")
            await page.prompt(session, "unseen")
            await page.result("gateway/info")

    run(scenario())


def link_code(text: str) -> str:
    """The code of a link."""
    return text.strip().partition("#")[2].partition("/")[0]


def test_a_reloaded_page_finds_the_agent_of_its_own(tmp_path: Path) -> None:
    gateway = start_gateway(tmp_path, set_up(tmp_path, scope="connection"))

    async def scenario() -> None:
        async with browser(gateway) as page:
            session = (await page.result("session/new", cwd=str(WORK)))["sessionId"]
            await page.result("session/get", sessionId=session)
            await page.prompt(session, "pid")
            await page.until(lambda: len(page.updates()) == 2)
            pid = said(page.updates())[1]
            await page.prompt(session, "ask")
            await page.until(lambda: page.of("session/request"))
        async with browser(gateway) as page:
            (asked,) = (await page.result("session/get", sessionId=session))["pendingRequests"]
            outcome = {"outcome": {"outcome": "selected", "optionId": "yes"}}
            await page.result("session/respond", sessionId=session, requestId=asked["requestId"], response=outcome)
            await page.until_said("yes")
            await page.prompt(session, "pid")
            await page.until_said(pid)

    try:
        run(scenario())
    finally:
        assert gateway.stop() == 0
    assert "Traceback" not in "".join(gateway.log)
