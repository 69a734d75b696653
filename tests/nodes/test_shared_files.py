"""Two nodes whose agents keep their sessions in one folder, as machines with a shared file system do."""

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import trio

from acp_gateway.client.control import list_sessions
from acp_gateway.client.dialing import dial
from acp_gateway.config.load import AgentSection, Config
from acp_gateway.transports.websocket.stream import Timing
from tests.kit.doubles import Editor
from tests.kit.machines import control, until_agents
from tests.kit.running import AGENTS
from tests.kit.serving import serving
from tests.nodes.memory_store import MemoryDirectory
from tests.nodes.test_membership import directory, member_config

__all__ = ["directory"]


def sharing_config(folder: Path, name: str) -> Config:
    """The configuration of a node whose agent has its sessions where that of each other one has them."""
    shared = folder / "shared"
    shared.mkdir(exist_ok=True)
    command = (sys.executable, "-I", "-S", str(AGENTS / "remembering_agent.py"), str(shared))
    return replace(member_config(folder, name), agents={"memory": AgentSection(command=command, eof_grace=0.1)})


async def editor_at(url: str, agent: str = "memory") -> Editor:
    editor = Editor(await dial(control(url, agent=agent, control=False), Timing()))
    await editor.initialize()
    return editor


async def turn(editor: Editor, session: str, text: str) -> None:
    """Send a prompt, and wait for the end of the turn."""
    prompt = {"sessionId": session, "prompt": [{"type": "text", "text": text}]}
    await editor.send(id="turn", method="session/prompt", params=prompt)
    while (message := await editor.receive()).get("id") != "turn":
        pass
    assert message["result"] == {"stopReason": "end_turn"}


async def load(editor: Editor, session: str) -> list[str]:
    """Load a session; return the texts of the agent in its history."""
    await editor.send(id="load", method="session/load", params={"sessionId": session, "cwd": "/", "mcpServers": []})
    said = []
    while (message := await editor.receive()).get("id") != "load":
        update = message["params"]["update"]
        if update["sessionUpdate"] == "agent_message_chunk":
            said.append(update["content"]["text"])
    assert "result" in message, message
    return said


async def test_session_of_a_node_that_is_away_is_listed_and_loaded_by_the_agent_of_another_one(
    directory: MemoryDirectory, tmp_path: Path
) -> None:
    first, second = (sharing_config(tmp_path, name) for name in ("gpu1", "gpu2"))
    async with serving(second) as (_, front):
        async with serving(first) as (_, url):
            await until_agents(front, "gpu1/memory")
            editor = await editor_at(url)
            session = (await editor.request("session/new", {"cwd": "/", "mcpServers": []}))["result"]["sessionId"]
            await turn(editor, session, "hello")
            await editor.stream.aclose()
            while f"gpu1/{session}" not in await rows_at(front):
                pass
        # The front names its node, which is away.
        while "gpu1" not in str((await list_sessions(control(front), time_limit=30)).problems):
            await trio.lowlevel.checkpoint()
        editor = await editor_at(front)
        listed = await editor.request("session/list", {})
        assert session in [it["sessionId"] for it in listed["result"]["sessions"]]
        assert await load(editor, session) == ["hello"]
        await turn(editor, session, "on another machine")
        await editor.stream.aclose()
        # What was said there is in the files, so the first node has it when it is back.
        async with serving(first) as (_, url):
            editor = await editor_at(url)
            assert await load(editor, session) == ["hello", "on another machine"]
            await editor.stream.aclose()


async def rows_at(url: str) -> dict[str, dict[str, Any]]:
    """By id: the sessions that a gateway lists."""
    return {it["sessionId"]: it for it in (await list_sessions(control(url), time_limit=30)).sessions}
