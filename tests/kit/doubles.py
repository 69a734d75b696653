"""Stand-ins that more than one test module uses: editors, agents, gateways."""

import json
import os
import select
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import trio
from click.testing import CliRunner, Result

from acp_gateway.cli.main import main
from acp_gateway.config.load import AgentSection, Config, GatewaySection, ListenSection, WorkspaceSection
from acp_gateway.gateway.agent.process import Agent, Launch, Spawner
from acp_gateway.gateway.gateway import DATABASE
from acp_gateway.gateway.storage.database import Database
from acp_gateway.gateway.storage.records import StoredSession
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason, MessageStream
from acp_gateway.transports.timers import TaskSpawner

TIMEOUT = 60.0
"""Seconds after which a test that waits has failed. None of them should come near."""

OBLIGING_AGENT = (sys.executable, "-I", "-S", str(Path(__file__).parents[1] / "agents" / "obliging_agent.py"))

SMALLEST_CONFIG = """
[gateway]
state_dir = "{directory}/state"
[[listen]]
url = "tcp://127.0.0.1:7443"
[agents.demo]
command = ["python3", "agent.py"]
"""
"""A configuration file, but for where its state is."""

INITIALIZE = {"protocolVersion": 1, "clientCapabilities": {}}


def run_command(*arguments: str | Path, input: str | None = None) -> Result:  # noqa: A002 - the runner's word.
    """Run a command of the program in this process."""
    return CliRunner().invoke(main, list(map(str, arguments)), input)


def remember_session(state_dir: Path, session_id: str) -> None:
    """Have a gateway know a session, which is not open."""
    database = Database(state_dir / DATABASE, 1)
    with database.transaction():
        # Far from those of a gateway that may be running.
        database.put_session(StoredSession(1_000_000, "demo", session_id, "ann", None, None, None, 0.0, 0.0, "e"))
    database.close()


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


FAIL = b"the stream raises an error in place of this message"


class FragileStream(MaintainedStream):
    """A stream that fails when it is told to, and knows how it was closed."""

    def __init__(self, stream: MaintainedStream) -> None:
        super().__init__()
        self._stream = stream
        self.receive_error: Exception = trio.EndOfChannel()
        """Raised where `FAIL` comes in."""
        self.drain_error: Exception | None = None
        """Raised by `drain`."""
        self.send_error: Exception | None = None
        """Raised by `send_nowait`."""
        self.runs = False
        """True while it is run, or has a task spawner."""
        self.closed_with: tuple[CloseReason, str] | None = None
        self.pending_when_closed = 0

    async def _receive_batch(self) -> list[bytes]:
        batch = await self._stream.receive_batch()
        if FAIL in batch:
            raise self.receive_error
        return batch

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        if self.send_error is not None:
            raise self.send_error
        self._stream.send_nowait(messages)

    @property
    def pending_bytes(self) -> int:
        return self._stream.pending_bytes

    async def drain(self, below: int = 0) -> None:
        if self.drain_error is not None:
            raise self.drain_error
        await self._stream.drain(below)

    async def run(self) -> None:
        self.runs = True
        try:
            await self._stream.run()
        finally:
            self.runs = False

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        self.runs = spawner is not None
        self._stream.use_spawner(spawner)

    def tick(self, now: float) -> float:
        return self._stream.tick(now)

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        self.closed_with = reason, text
        self.pending_when_closed = self.pending_bytes
        await self._stream.aclose(reason, text)


class FakeAgent:
    """An agent in memory, for a hub to run in place of a process: `run` is what the hub is given."""

    def __init__(self) -> None:
        ours, self.stream = memory_message_stream_pair()
        self.agent = Agent("fake", 4711, ours)
        self.runs = 0
        """Number of starts."""
        self.unread_when_stopped: list[dict[str, Any]] | None = None
        """Messages that it had not read when it was stopped; None until then."""

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
            with trio.CancelScope(shield=True):
                await self.close()
                if self.agent.relay_rest is not None:
                    await self.agent.relay_rest()
                await self.agent.messages.stream.aclose()

    def peek(self) -> list[bytes]:
        """Return the messages that it has not read yet."""
        inbox: list[bytes] = self.stream.inbox  # type: ignore[attr-defined] # Its class is private to its module.
        return inbox

    async def send(self, **message: Any) -> None:
        """Write one message."""
        await self.stream.send(encode(message))

    async def receive(self) -> dict[str, Any]:
        """Read one message."""
        message: dict[str, Any] = json.loads(await self.stream.receive())
        return message

    async def answer_initialize(self, **capabilities: Any) -> None:
        """Read `initialize` and answer it."""
        result = {"protocolVersion": 1, "agentCapabilities": capabilities} if capabilities else {"protocolVersion": 1}
        await self.answer("initialize", result)

    async def answer(self, method: str, result: Any) -> dict[str, Any]:
        """Read a request for `method`, answer it, and return it."""
        request = await self.receive()
        assert request.get("method") == method, request
        await self.send(id=request["id"], result=result)
        return request

    def end(self, exit_code: int, *stderr: str) -> None:
        """The process ends; what holds its pipes is another matter, see `close`."""
        self.agent.stderr_tail.extend(line.encode() for line in stderr)
        self.agent.exit_code = exit_code
        self.agent.ended.set()

    async def close(self) -> None:
        """Close its stdin and stdout."""
        await self.stream.aclose()


class ServingAgent(FakeAgent):
    """A fake agent that works by itself.

    It initializes, opens and loads sessions, answers a prompt when that is cancelled, and everything else with its
    number. What it has got is in `received`.
    """

    listed: ClassVar[list[Any]] = []
    """Its answer to `session/list`."""

    def __init__(
        self, launch: Launch, number: int, capabilities: dict[str, Any], session_id: str, may_stop: trio.Event
    ) -> None:
        super().__init__()
        self.launch = launch
        self.received: list[Any] = []
        self.cancelled = False
        """True once it was told to stop."""
        self._number = number
        self._capabilities = capabilities
        self._session_id = session_id
        self._may_stop = may_stop
        self._sessions = 0
        self._prompts: list[Any] = []
        self._arrived = trio.lowlevel.ParkingLot()

    async def run(self, *, task_status: trio.TaskStatus[Agent]) -> None:
        """Run until cancelled, and then until it may stop."""
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._serve)
                await super().run(task_status=task_status)
        finally:
            self.cancelled = True
            self.received += self.unread_when_stopped or []
            with trio.CancelScope(shield=True):
                await self._may_stop.wait()

    @property
    def prompts(self) -> list[Any]:
        """The prompts that it has got."""
        return [message for message in self.received if message.get("method") == "session/prompt"]

    async def got(self, method: str) -> Any:
        """Wait until it has got a message of this method, and return the last one."""
        while True:
            for message in reversed(self.received):
                if message.get("method") == method:
                    return message
            await self._arrived.park()

    async def _serve(self) -> None:
        try:
            while True:
                await self._handle(await self.receive())
        except (trio.BrokenResourceError, trio.EndOfChannel, trio.ClosedResourceError):
            pass  # The hub does not read any more, and the agent is about to be stopped; or it has closed its output.

    async def _handle(self, message: dict[str, Any]) -> None:
        self.received.append(message)
        self._arrived.unpark_all()
        if "id" in message and "method" in message:
            await self._answer(message["id"], message["method"])
        elif message.get("method") == "session/cancel":
            while self._prompts:
                await self.send(id=self._prompts.pop(), result={"stopReason": "cancelled"})

    async def _answer(self, to: Any, method: str) -> None:
        if method == "initialize":
            await self.send(id=to, result={"protocolVersion": 1, "agentCapabilities": self._capabilities})
        elif method in ("session/new", "session/fork"):
            self._sessions += 1
            await self.send(id=to, result={"sessionId": self._session_id.format(self._number, self._sessions)})
        elif method == "session/load":
            await self.send(id=to, result={})
        elif method == "session/list":
            await self.send(id=to, result={"sessions": self.listed, "nextCursor": "more" if self.listed else None})
        elif method == "session/prompt":
            self._prompts.append(to)
        else:
            await self.send(id=to, result=self._number)


class ServingAgents:
    """Agents in memory instead of processes, the first that was started first; `run` stands for `agent.run_agent`."""

    def __init__(self, **capabilities: Any) -> None:
        self.started: list[ServingAgent] = []
        self.may_stop = trio.Event()
        """Until it is set, an agent that is told to stop goes on."""
        self.may_stop.set()
        self.session_id = "s{}.{}"
        """The ids of their sessions, made of their own number and that of the session, each from 1 on."""
        self._capabilities = capabilities

    def __len__(self) -> int:
        return len(self.started)

    def __getitem__(self, index: int) -> ServingAgent:
        return self.started[index]

    async def run(self, launch: Launch, spawner: Spawner, *, task_status: trio.TaskStatus[Agent]) -> None:
        """Run another agent until cancelled."""
        agent = ServingAgent(launch, len(self.started) + 1, self._capabilities, self.session_id, self.may_stop)
        self.started.append(agent)
        await agent.run(task_status=task_status)


class FakeAgents:
    """Agents in memory, one after another, for a hub that starts its agent again: `run` is what the hub is given."""

    def __init__(self) -> None:
        self.next = FakeAgent()
        """The one that will be started next."""
        self.started: list[FakeAgent] = []

    async def run(self, *, task_status: trio.TaskStatus[Agent]) -> None:
        """Run the next one until cancelled."""
        agent, self.next = self.next, FakeAgent()
        self.started.append(agent)
        await agent.run(task_status=task_status)


def make_config(state_dir: Path, *urls: str, agents: dict[str, AgentSection] | None = None, **gateway: Any) -> Config:
    """A configuration; without `agents` there is one, an obliging one, and sessions may be anywhere."""
    return Config(
        gateway=GatewaySection(state_dir=state_dir, **gateway),
        listen=tuple(ListenSection(url=url) for url in urls),
        agents=agents or {"obliging": AgentSection(command=OBLIGING_AGENT)},
        workspaces={"everything": WorkspaceSection(root=Path("/"))},
    )


def open_descriptors() -> set[str]:
    """The descriptors that this process has open at the moment."""
    return set(os.listdir("/proc/self/fd"))


class Watch:
    """A process that is not ours to wait for, seen by a descriptor, so that its number can't be mistaken."""

    def __init__(self, pid: int) -> None:
        self._descriptor = os.pidfd_open(pid)

    def is_there(self) -> bool:
        """Return whether it has not ended."""
        return not select.select([self._descriptor], [], [], 0)[0]

    async def gone(self) -> None:
        """Wait for its end."""
        with trio.fail_after(TIMEOUT):
            await trio.lowlevel.wait_readable(self._descriptor)
        os.close(self._descriptor)
