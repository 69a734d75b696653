"""Chat widgets over `/chat` with the real program: beside an editor, after a cut, and against what is not an event."""

import asyncio
import json
import re
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.end_to_end.chatting import start_chat_gateway
from tests.end_to_end.parties import party, run, texts
from tests.end_to_end.websocket_ends import WebSocketEnd
from tests.kit.running import AGENTS, WORK, RunningGateway

PAGE = "https://wiki.example"

YES = {"outcome": "selected", "optionId": "yes"}
NO = {"outcome": "selected", "optionId": "no"}


class Widget(WebSocketEnd):
    """A widget that is connected."""

    async def send(self, kind: str, **members: Any) -> None:
        await self.websocket.send(json.dumps({"type": kind, **members}))

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in self.told if event["type"] == kind]

    async def last(self, kind: str, count: int = 1) -> dict[str, Any]:
        """Wait for so many events of a type, and return the last one."""
        return (await self.until(lambda: self.of(kind) if len(self.of(kind)) >= count else None))[-1]

    def said(self) -> list[tuple[str, str]]:
        return [(event["role"], event["content"]) for event in self.of("message_chunk")]

    async def until_said(self, *said: tuple[str, str]) -> None:
        await self.until(lambda: self.said() == [*said])


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    directory = tmp_path_factory.mktemp("chat")
    (directory / "memory").mkdir()
    command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "memory")]
    agents = f"[agents.memory]\ncommand = {json.dumps(command)}\n"
    running = start_chat_gateway(directory, agents, PAGE, more="max_message_size = 1_000_000")
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)
        assert "Traceback" not in "".join(running.log)


@asynccontextmanager
async def widget(gateway: RunningGateway, token: str = "", query: str = "", **options: Any) -> AsyncIterator[Widget]:
    options = options or {"additional_headers": {"Authorization": f"Bearer {token or gateway.token}"}}
    async with connect(gateway.urls["chat"] + query, max_size=None, proxy=None, **options) as websocket:
        there = Widget(websocket)
        reading = asyncio.create_task(there.read())
        try:
            yield there
        finally:
            reading.cancel()


def test_an_editor_over_wss_and_a_widget_share_a_session(gateway: RunningGateway) -> None:
    async def scenario() -> None:
        async with widget(gateway) as chat, party(gateway, "wss") as editor:
            await chat.send("new_session", cwd=str(WORK))
            session = (await chat.last("session_created"))["sessionId"]
            await editor.agent.load_session(cwd=str(WORK), session_id=session)
            # The widget's message, the editor's decision.
            await chat.send("send_message", sessionId=session, content="ask")
            first = await chat.last("permission_request")
            assert first["toolCall"]["title"] == "do it"
            await editor.decide("yes")
            resolved = await chat.last("permission_resolved")
            assert (resolved["requestId"], resolved["outcome"]) == (first["requestId"], YES)
            assert resolved["by"] is not None
            await chat.until_said(("user", "ask"), ("assistant", "yes"))
            assert (await chat.last("turn_complete"))["stopReason"] == "end_turn"
            await editor.until_told(session, "yes")
            assert texts(editor.updates(session), "user_message_chunk") == ["ask"]
            # The editor's message, the widget's decision.
            turn = await editor.begin(session, "ask")
            second = await chat.last("permission_request", 2)
            await chat.send("permission_response", requestId=second["requestId"], outcome=NO)
            assert await turn == "end_turn"
            assert len(editor.withdrawn()) == 1
            assert (await chat.last("permission_resolved", 2))["outcome"] == NO
            await chat.until_said(("user", "ask"), ("assistant", "yes"), ("user", "ask"), ("assistant", "no"))
            await chat.last("turn_complete", 2)
            history = chat.said()
        # The connection is lost; another one loads the session.
        async with widget(gateway) as chat:
            await chat.send("load_session", sessionId=session)
            assert (await chat.last("session_loaded"))["truncated"] is False
            await chat.until_said(*history)
            await chat.send("send_message", sessionId=session, content="wait")
            await chat.until_said(*history, ("user", "wait"))
            await chat.send("cancel_turn", sessionId=session)
            # The history has the ends of the first two turns.
            assert (await chat.last("turn_complete", 3))["stopReason"] == "cancelled"

    run(scenario())


def test_the_widget_among_the_examples_has_less_than_150_lines_and_makes_no_html_of_text() -> None:
    text = (Path(__file__).parents[2] / "examples" / "chat.html").read_text(encoding="utf-8")
    assert len(text.splitlines()) < 150
    assert not re.search("innerHTML|outerHTML|insertAdjacentHTML|document.write|eval", text)
