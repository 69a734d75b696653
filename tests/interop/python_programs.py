"""A short conversation by a program from PyPI, with the Python of its environment: PROGRAM CWD TARGET…

TARGET is the command that leads to the agent, or an address, for which TOKEN has the token. The prompt is "ask", for
which the agent asks for a permission: it is granted. What the agent has said is printed. CWD may be empty: the program
then sends what it sends by default.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any


async def ag2(cwd: str, url: str) -> str:
    from ag2 import Agent
    from ag2.acp import ACPRemoteConfig

    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"}
    named = {"cwd": cwd} if cwd else {}
    config = ACPRemoteConfig(url=url, headers=headers, permission_policy="auto", expose_tools=False, **named)
    reply = await Agent("interop", config=config).ask("ask")
    await config.aclose()
    return str(reply.body)


async def acpremote(cwd: str, url: str) -> str:
    import acp
    from acpremote.client import connect_remote_agent

    said: list[str] = []

    class Client:
        async def session_update(self, session_id: str, update: Any, **_: Any) -> None:
            if update.session_update == "agent_message_chunk":
                said.append(update.content.text)

        async def request_permission(self, options: Any, **_: Any) -> Any:
            chosen = next(option for option in options if option.kind == "allow_once")
            return {"outcome": {"outcome": "selected", "optionId": chosen.option_id}}

    remote = await connect_remote_agent(Client(), url, bearer_token=os.environ["TOKEN"])
    agent = remote.connection
    await agent.initialize(protocol_version=1)
    session = await agent.new_session(cwd=cwd, mcp_servers=[])
    await agent.prompt(session_id=session.session_id, prompt=[acp.text_block("ask")])
    await remote.close()
    return "".join(said)


async def acp_client(cwd: str, *command: str) -> str:
    from acp_client import Agent

    async def permission(request: dict[str, Any]) -> str:
        return str(next(option["optionId"] for option in request["options"] if option["kind"] == "allow_once"))

    agent = Agent(list(command), Path(cwd), permission=permission)
    said: str = await agent.ask("ask")
    await agent.stop()
    return said


RUN: dict[str, Callable[..., Coroutine[Any, Any, str]]] = {
    "ag2": ag2,
    "acpremote": acpremote,
    "acp-client": acp_client,
}

if __name__ == "__main__":
    program, *arguments = sys.argv[1:]
    sys.stdout.write(asyncio.run(RUN[program](*arguments)) + "\n")
