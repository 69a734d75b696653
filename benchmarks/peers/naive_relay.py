"""The relay that everybody writes first, on Trio: naive_relay.py PROGRAM [ARGUMENT...].

One agent for all, and all see everything: each line is parsed, put together again, and sent to one client after the
other.
"""

import json
import subprocess
import sys
from functools import partial

import trio
from websockets.exceptions import ConnectionClosed
from websockets.trio.server import ServerConnection, serve


class Relay:
    """An agent and those who are connected to it."""

    def __init__(self, agent: trio.Process) -> None:
        self._agent = agent
        self._agent_takes = trio.Lock()
        self._clients: set[ServerConnection] = set()

    async def listen_to(self, client: ServerConnection) -> None:
        """Pass on what a client says, until it leaves."""
        assert self._agent.stdin is not None
        self._clients.add(client)
        try:
            async for text in client:
                message = json.loads(text)
                async with self._agent_takes:
                    await self._agent.stdin.send_all(json.dumps(message).encode() + b"\n")
        finally:
            self._clients.discard(client)

    async def tell_all(self) -> None:
        """Tell everybody what the agent says."""
        assert self._agent.stdout is not None
        rest = b""
        async for chunk in self._agent.stdout:
            *lines, rest = (rest + chunk).split(b"\n")
            for line in lines:
                message = json.loads(line)
                for client in list(self._clients):
                    try:
                        await client.send(json.dumps(message))
                    except ConnectionClosed:
                        self._clients.discard(client)


async def run(command: list[str]) -> None:
    """Relay until the process is ended."""
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        relay = Relay(await nursery.start(start))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(serve, relay.listen_to, listeners=listeners, max_size=None))
        print("listening on", listeners[0].socket.getsockname()[1], flush=True)
        await relay.tell_all()


if __name__ == "__main__":
    trio.run(run, sys.argv[1:])
