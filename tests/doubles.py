"""Stand-ins that more than one test module uses: editors, agents, gateways."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import trio

from acp_gateway.agent import Agent
from acp_gateway.config import AgentSection, Config, GatewaySection, ListenSection
from acp_gateway.transports.base import MessageStream, memory_message_stream_pair

PATIENCE = 30.0
"""Seconds after which a test that waits has failed. None of them should come near."""

OBLIGING_AGENT = (sys.executable, "-I", "-S", str(Path(__file__).parent / "agents" / "obliging_agent.py"))

INITIALIZE = {"protocolVersion": 1, "clientCapabilities": {}}


def python(code: str) -> tuple[str, ...]:
    """The command of an agent that is a few lines of Python."""
    return (sys.executable, "-I", "-S", "-c", code)


def encode(message: dict[str, Any]) -> bytes:
    """A message of an editor or an agent; `jsonrpc` is added."""
    return json.dumps({"jsonrpc": "2.0"} | message).encode()


class Editor:
    """A client at the other end of a stream."""

    def __init__(self, stream: MessageStream) -> None:
        self.stream = stream
        self._last_id = 0

    async def send(self, **message: Any) -> None:
        """Send one message."""
        await self.stream.send(encode(message))

    async def receive(self) -> dict[str, Any]:
        """The next message."""
        message: dict[str, Any] = json.loads(await self.stream.receive())
        return message

    async def request(self, method: str, params: Any = None) -> dict[str, Any]:
        """Send a request and return its response, which has to be the next message."""
        self._last_id += 1
        await self.send(id=self._last_id, method=method, params=params)
        response = await self.receive()
        assert response.get("id") == self._last_id, response
        return response

    async def initialize(self) -> dict[str, Any]:
        """The result of `initialize`."""
        result: dict[str, Any] = (await self.request("initialize", INITIALIZE))["result"]
        return result

    async def receive_rest(self) -> list[dict[str, Any]]:
        """All messages up to the end of the stream."""
        return [json.loads(message) async for batch in self.stream for message in batch]

    async def leave(self) -> None:
        """Read to the end of the stream and close it, as a client does that is told goodbye."""
        await self.receive_rest()
        await self.stream.aclose()


class FakeAgent:
    """An agent in memory, for a hub to run in place of a process: `run` is what the hub is given."""

    def __init__(self) -> None:
        ours, self.stream = memory_message_stream_pair()
        self.agent = Agent("fake", 4711, ours)
        self.runs = 0
        """How often it was started."""
        self.unread_when_stopped: list[dict[str, Any]] | None = None
        """What had reached it, and it had not read, when it was told to stop; None until then."""

    async def run(self, *, task_status: trio.TaskStatus[Agent]) -> None:
        """Run until cancelled."""
        self.runs += 1
        task_status.started(self.agent)
        try:
            await trio.sleep_forever()
        finally:
            self.unread_when_stopped = [json.loads(message) for message in self.peek()]
            if not self.agent.ended.is_set():
                self.end(-15)

    def peek(self) -> list[bytes]:
        """What has reached it and is not read yet."""
        inbox: list[bytes] = self.stream.inbox  # type: ignore[attr-defined] # Its class is private to its module.
        return inbox

    async def send(self, **message: Any) -> None:
        """Write one message."""
        await self.stream.send(encode(message))

    async def receive(self) -> dict[str, Any]:
        """Read one message."""
        message: dict[str, Any] = json.loads(await self.stream.receive())
        return message

    async def answer_initialize(self) -> None:
        """Read `initialize` and answer it."""
        request = await self.receive()
        assert request["method"] == "initialize", request
        await self.send(id=request["id"], result={"protocolVersion": 1})

    def end(self, exit_code: int, *stderr: str) -> None:
        """The process ends; what holds its pipes is another matter, see `close`."""
        self.agent.stderr_tail.extend(stderr)
        self.agent.exit_code = exit_code
        self.agent.ended.set()

    async def close(self) -> None:
        """Close its stdin and stdout."""
        await self.stream.aclose()


def make_config(state_dir: Path, *urls: str, agents: dict[str, AgentSection] | None = None, **gateway: Any) -> Config:
    """A configuration; without `agents` there is one, an obliging one."""
    return Config(
        gateway=GatewaySection(state_dir=state_dir, **gateway),
        listen=tuple(ListenSection(url=url) for url in urls),
        agents=agents or {"obliging": AgentSection(command=OBLIGING_AGENT)},
    )


def open_descriptors() -> set[str]:
    """The descriptors that this process has open at the moment."""
    return set(os.listdir("/proc/self/fd"))


class Watch:
    """A process that is not ours to wait for, seen by a descriptor, so that its number can't be mistaken."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    async def gone(self) -> None:
        """Wait for its end."""
        with trio.fail_after(PATIENCE):
            await trio.lowlevel.wait_readable(self._descriptor)
        os.close(self._descriptor)
