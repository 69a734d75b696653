"""The Python SDK's server of Streamable HTTP as a program, on the smallest ASGI host that can carry it.

    python -m tests.end_to_end.sdk_http_server PORT

It prints a line once it listens. It sets a cookie with `initialize` and wants it back, and refuses WebSockets. A line
is printed for each `initialize` that shows the cookie.
"""

import asyncio
import sys
from typing import Any, cast

import acp
import h11
from acp.http.asgi import create_asgi_app
from acp.schema import AgentCapabilities

from tests.end_to_end.sdk_agent import DirectedAgent

COOKIE = b"node=here"


def say(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class LoadingAgent(DirectedAgent):
    """Loads any session, and says so."""

    async def initialize(self, protocol_version: int, **kwargs: Any) -> acp.InitializeResponse:
        response = await super().initialize(protocol_version, **kwargs)
        response.agent_capabilities = AgentCapabilities(load_session=True)
        return response

    async def load_session(self, cwd: str, session_id: str, **kwargs: Any) -> acp.LoadSessionResponse:
        say(f"loaded {session_id}")
        return acp.LoadSessionResponse()


APP = create_asgi_app(cast("Any", lambda _: LoadingAgent()))


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer the requests of one connection."""
    http = h11.Connection(h11.SERVER)

    async def next_event() -> Any:
        while (event := http.next_event()) is h11.NEED_DATA:
            http.receive_data(await reader.read(65536))
        return event

    async def write(event: Any) -> None:
        writer.write(http.send(event) or b"")
        await writer.drain()

    try:
        while isinstance(request := await next_event(), h11.Request):
            await answer(request, next_event, write)
            if http.our_state is not h11.DONE or http.their_state is not h11.DONE:
                break
            http.start_next_cycle()
    except (ConnectionError, h11.RemoteProtocolError):
        pass
    finally:
        writer.close()


async def answer(request: h11.Request, next_event: Any, write: Any) -> None:
    """Have the application answer one request, and look at its cookie."""
    headers = [(name.lower(), value) for name, value in request.headers]
    body = b""
    while isinstance(event := await next_event(), h11.Data):
        body += bytes(event.data)
    known = any(name == b"acp-connection-id" for name, _ in headers)
    if not known and (b"cookie", COOKIE) in headers:
        say("a client with a cookie")
    if known and (b"cookie", COOKIE) not in headers:
        await write(h11.Response(status_code=421, headers=[("Content-Length", "0")]))
        await write(h11.EndOfMessage())
        return

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            sent = [*message["headers"], (b"transfer-encoding", b"chunked"), (b"set-cookie", COOKIE)]
            await write(h11.Response(status_code=message["status"], headers=sent))
            return
        if message["body"]:
            await write(h11.Data(data=message["body"]))
        if not message.get("more_body"):
            await write(h11.EndOfMessage())

    scope = {"type": "http", "method": request.method.decode(), "path": "/acp", "headers": headers}
    await APP(scope, receive, send)


async def main(port: int) -> None:
    """Serve until killed."""
    server = await asyncio.start_server(serve, "127.0.0.1", port)
    say(str(server.sockets[0].getsockname()[1]))
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))
