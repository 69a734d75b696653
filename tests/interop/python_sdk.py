"""A client made with the Python SDK, for tests: it does what lines of JSON on its standard input say.

    python -m tests.interop.python_sdk PROFILE URL, with the token in TOKEN; PROFILE is `http` or `ws`.

See sdk_clients.py for the lines. The end of the input closes the connection.
"""

import asyncio
import json
import os
import sys
from typing import Any, cast

import acp
from acp.http.client import create_http_stream
from acp.ws.client import create_websocket_stream

METHODS = {
    "initialize": "initialize",
    "session/new": "new_session",
    "session/load": "load_session",
    "session/resume": "resume_session",
    "session/prompt": "prompt",
    "session/cancel": "cancel",
}
"""The methods of the SDK's connection, by those of the protocol."""

NAMES = {
    "clientCapabilities": "client_capabilities",
    "protocolVersion": "protocol_version",
    "sessionId": "session_id",
    "mcpServers": "mcp_servers",
}


def say(**message: Any) -> None:
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class SayingClient:
    """Says what it is told and asked."""

    def __init__(self) -> None:
        self.decision: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def session_update(self, session_id: str, update: Any, **kwargs: Any) -> None:
        told = update.model_dump(mode="json", by_alias=True)
        say(update={"sessionId": session_id, "update": told, "_meta": kwargs})

    async def ext_notification(self, method: str, params: dict[str, Any]) -> None:
        say(news=params)

    async def request_permission(self, session_id: str, tool_call: Any, **kwargs: Any) -> acp.RequestPermissionResponse:
        say(asked=tool_call.title)
        outcome = {"outcome": "selected", "optionId": await asyncio.shield(self.decision)}
        return acp.RequestPermissionResponse.model_validate({"outcome": outcome})


class Watched:
    """A transport of the SDK that says when it has ended: the SDK itself only fails the requests."""

    def __init__(self, transport: Any) -> None:
        self._transport = transport

    async def send(self, message: dict[str, Any]) -> None:
        await self._transport.send(message)

    async def receive(self) -> dict[str, Any] | None:
        message: dict[str, Any] | None = await self._transport.receive()
        if message is None:
            say(ended=True)
        return message

    async def close(self) -> None:
        await self._transport.close()


async def call(connection: Any, method: str, params: dict[str, Any]) -> Any:
    # The SDK makes `_meta` of the arguments that it does not know.
    named = {NAMES.get(name, name): value for name, value in params.items() if name != "_meta"}
    named |= params.get("_meta", {})
    if method == "session/prompt":
        named["prompt"] = [acp.text_block(block["text"]) for block in params["prompt"]]
    answer = await getattr(connection, METHODS[method])(**named)
    return None if answer is None else answer.model_dump(mode="json", by_alias=True)


async def request(connection: Any, command: dict[str, Any]) -> None:
    try:
        say(id=command["id"], result=await call(connection, command["request"], command["params"]))
    except Exception as error:
        say(id=command["id"], error=str(error) or type(error).__name__)


async def main(profile: str, url: str) -> None:
    headers = {"Authorization": f"Bearer {os.environ['TOKEN']}"}
    if profile == "http":
        transport = create_http_stream(url, headers=headers)
    else:
        transport = await create_websocket_stream(url, headers=headers)
    client = SayingClient()
    connection = acp.connect_to_agent(cast("Any", client), cast("Any", Watched(transport)))
    requests = set()
    while line := await asyncio.to_thread(sys.stdin.readline):
        command = json.loads(line)
        if "request" in command:
            requests.add(asyncio.create_task(request(connection, command)))
        elif "notify" in command:
            await call(connection, command["notify"], command["params"])
        else:
            client.decision.set_result(command["decide"])
    await connection.close()


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
