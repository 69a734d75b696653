"""A window of VS Code over `/ahp` with the real program, and after a restart of the gateway."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from websockets.asyncio.client import connect

from acp_gateway.dialects.ahp.wire import ROOT, chat_uri
from tests.end_to_end.parties import run
from tests.end_to_end.websocket_ends import WebSocketEnd
from tests.kit.running import AGENTS, WORK, RunningGateway, prepare, start_gateway

URI = "memory:/9f0c"
BEGIN = {"channel": ROOT, "protocolVersions": ["0.9.0"], "clientId": "w", "initialSubscriptions": [ROOT]}
PROMPT = {"type": "chat/turnStarted", "turnId": "t1", "startedAt": "2026-11-28T10:00:00.000Z"}
YES = {"type": "chat/toolCallConfirmed", "turnId": "t1", "approved": True, "selectedOptionId": "yes"}


class Window(WebSocketEnd):
    """A window that is connected."""

    async def ask(self, method: str, **params: Any) -> Any:
        """The response to a call."""
        number = f"{len(self.told)} {method}"
        await self.websocket.send(json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params}))
        return await self.until(lambda: next((it for it in self.told if it.get("id") == number), None))

    async def dispatch(self, channel: str, **action: Any) -> None:
        params = {"channel": channel, "clientSeq": 1, "action": action}
        await self.websocket.send(json.dumps({"jsonrpc": "2.0", "method": "dispatchAction", "params": params}))

    async def last(self, kind: str) -> dict[str, Any]:
        """Wait for an action, and return the last one of its kind."""

        def look() -> dict[str, Any] | None:
            told = [it["params"]["action"] for it in self.told if it.get("method") == "action"]
            return next((it for it in reversed(told) if it["type"] == kind), None)

        return await self.until(look)

    async def chat(self) -> dict[str, Any]:
        """Subscribe to the session, and return its chat."""
        await self.ask("subscribe", channel=URI)
        state: dict[str, Any] = (await self.ask("subscribe", channel=chat_uri(URI)))["result"]["snapshot"]["state"]
        return state


@asynccontextmanager
async def window(gateway: RunningGateway) -> AsyncIterator[Window]:
    headers = {"Authorization": f"Bearer {gateway.token}"}
    async with connect(gateway.urls["ahp"], max_size=None, proxy=None, additional_headers=headers) as websocket:
        there = Window(websocket)
        reading = asyncio.create_task(there.read())
        try:
            yield there
        finally:
            reading.cancel()


def test_a_session_that_a_window_has_created_is_there_after_a_restart(tmp_path: Path) -> None:
    async def first(gateway: RunningGateway) -> None:
        async with window(gateway) as there:
            await there.ask("initialize", **BEGIN)
            about = {"provider": "memory", "workingDirectories": [WORK.as_uri()]}
            assert (await there.ask("createSession", channel=URI, **about))["result"] is None
            assert (await there.chat())["turns"] == []
            message = {"text": "ask", "origin": {"kind": "user"}}
            await there.dispatch(chat_uri(URI), **PROMPT, message=message)
            asked = await there.last("chat/toolCallReady")
            await there.dispatch(chat_uri(URI), **YES, toolCallId=asked["toolCallId"])
            assert (await there.last("chat/turnComplete"))["turnId"] == "t1"
            assert (await there.last("chat/delta"))["content"] == "yes"

    async def second(gateway: RunningGateway) -> None:
        async with window(gateway) as there:
            again = {"clientId": "w", "lastSeenServerSeq": 9, "subscriptions": [ROOT, URI]}
            assert (await there.ask("reconnect", **again))["error"]["code"] == -32008
            await there.ask("initialize", **BEGIN)
            (listed,) = (await there.ask("listSessions", channel=ROOT))["result"]["items"]
            assert (listed["resource"], listed["title"]) == (URI, "ask")
            (turn,) = (await there.chat())["turns"]
            assert (turn["id"], turn["state"]) == ("t1", "complete")

    (tmp_path / "memory").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(tmp_path / "memory")]
    pin = prepare(tmp_path, f"[agents.memory]\ncommand = {json.dumps(command)}\n")
    for scenario in (first, second):
        gateway = start_gateway(tmp_path, pin)
        gateway.urls["ahp"] = gateway.urls["ws"].removesuffix("/acp") + "/ahp"
        try:
            run(scenario(gateway))
        finally:
            assert gateway.stop() == 0, "".join(gateway.log)
        assert "Traceback" not in "".join(gateway.log)
