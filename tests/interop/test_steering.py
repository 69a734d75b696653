"""Agents of others that take text into a turn: a page steers the turn of an editor."""

import asyncio
import os
from pathlib import Path

import pytest

from tests.end_to_end.parties import party, run, texts
from tests.end_to_end.test_web_protocol import browser
from tests.interop.real_agents import real_agent
from tests.kit.running import RunningGateway

pytestmark = pytest.mark.interop


@pytest.mark.parametrize("program", ["claude-agent-acp"])
@pytest.mark.parametrize("by", ["page", "editor"])
def test_an_agent_gets_text_of_a_page_or_its_editor_within_the_turn(by: str, program: str, tmp_path: Path) -> None:
    async def scenario(gateway: RunningGateway) -> None:
        gate = tmp_path / "work/gate"
        os.mkfifo(gate)
        async with browser(gateway) as page, party(gateway, "tcp") as editor:
            session = (await editor.agent.new_session(cwd=str(tmp_path / "work"), mcp_servers=[])).session_id
            assert (await page.result("session/get", sessionId=session))["session"]["canSteer"]
            turn = await editor.begin(session, f"run: cat {gate} >read")
            options = (await editor.until(editor.asked))[0]["params"]["options"]
            await editor.decide(next(one["optionId"] for one in options if one["kind"] == "allow_once"))
            # It is open when the tool runs.
            writer = await asyncio.to_thread(gate.open, "w")
            if by == "page":
                await page.result("session/steer", sessionId=session, prompt=[{"type": "text", "text": "say: left"}])
                await editor.until(lambda: "say: left" in texts(editor.updates(session), "user_message_chunk"))
                second = turn
            else:
                second = await editor.begin(session, "say: left")
                await page.until(lambda: len([it for it in page.updates() if it["updateType"] == "user_message"]) == 2)
            writer.close()
            assert {await turn, await second} == {"end_turn"}
            assert "left" in "".join(texts(editor.updates(session)))
            await page.until(lambda: any(one["updateType"] == "turn_end" for one in page.entries()))
            words = [one["payload"] for one in page.updates() if one["updateType"] == "user_message"]
            assert [one["content"]["text"] for one in words] == [f"run: cat {gate} >read", "say: left"]

    with real_agent(program, tmp_path) as gateway:
        run(scenario(gateway))
