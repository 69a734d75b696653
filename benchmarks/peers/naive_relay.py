"""A naive relay on Trio, as a first attempt would look: naive_relay.py PROGRAM [ARGUMENT...].

All clients share one agent and receive all of its messages: each line is parsed, serialized again, and sent to one
client after the other.
"""

import json
import subprocess
import sys
from functools import partial

import trio
from websockets.exceptions import ConnectionClosed
from websockets.trio.server import ServerConnection, serve


class Relay:
    """An agent and its connected clients."""

    def __init__(self, agent: trio.Process) -> None:
        self._agent = agent
        self._agent_lock = trio.Lock()
        self._clients: set[ServerConnection] = set()

    async def handle_client(self, client: ServerConnection) -> None:
        """Forward a client's messages to the agent until the client disconnects."""
        assert self._agent.stdin is not None
        self._clients.add(client)
        try:
            async for text in client:
                message = json.loads(text)
                async with self._agent_lock:
                    await self._agent.stdin.send_all(json.dumps(message).encode() + b"\n")
        finally:
            self._clients.discard(client)

    async def broadcast(self) -> None:
        """Forward the agent's messages to all clients."""
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
    """Relay until the process is terminated."""
    async with trio.open_nursery() as nursery:
        start = partial(trio.run_process, command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        relay = Relay(await nursery.start(start))
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(partial(serve, relay.handle_client, listeners=listeners, max_size=None))
        print("listening on", listeners[0].socket.getsockname()[1], flush=True)
        await relay.broadcast()


if __name__ == "__main__":
    trio.run(run, sys.argv[1:])
