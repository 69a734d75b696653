"""The Python SDK's HTTP server in front of an agent that speaks over stdio: python_sdk_server.py PROGRAM [ARGUMENT...].

The server's agent is an object over a message transport; here the transport is piped to a child process, with the SDK's
own transport for stdio. An agent and a client of the SDK back to back, which validate each message, would be slower.
"""

import asyncio
import socket
import sys
from asyncio.subprocess import PIPE
from typing import Any

import uvicorn
from acp._transport import NdjsonTransport
from acp.http import server
from acp.http.asgi import AcpAsgiApp
from acp.task import MessageSender, TaskSupervisor

MAX_LINE = 64 << 20


class ChildAgent:
    """A child process behind a transport, in place of the SDK's `AgentSideConnection`."""

    def __init__(self, _factory: object, transport: Any, **_options: object) -> None:
        self._transport = transport
        self._running = asyncio.create_task(self._run())

    async def _run(self) -> None:
        process = await asyncio.create_subprocess_exec(*sys.argv[1:], stdin=PIPE, stdout=PIPE, limit=MAX_LINE)
        assert process.stdin is not None
        assert process.stdout is not None
        child = NdjsonTransport(process.stdout, MessageSender(process.stdin, TaskSupervisor(source="child")))
        try:
            await asyncio.gather(_pipe(self._transport, child), _pipe(child, self._transport))
        finally:
            process.kill()
            await child.close()
            await process.wait()

    async def close(self) -> None:
        self._running.cancel()
        await asyncio.wait({self._running})


async def _pipe(source: Any, sink: Any) -> None:
    while (message := await source.receive()) is not None:
        await sink.send(message)


if __name__ == "__main__":
    # It serves as one.
    vars(server)["AgentSideConnection"] = ChildAgent
    listener = socket.create_server(("127.0.0.1", 0))
    print("listening on", listener.getsockname()[1], flush=True)
    app = AcpAsgiApp(server.AcpServer(lambda _connection: None))  # type: ignore[arg-type, return-value] # Not called.
    config = uvicorn.Config(app, log_level="error", access_log=False, ws="none")
    uvicorn.Server(config).run([listener])
