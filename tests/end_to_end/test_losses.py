"""A bad network between the real shim and the real gateway: the editor and the agent don't notice."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import trio

from tests.kit import running
from tests.kit.faulty_proxy import QUICK, Fault, FaultyProxy
from tests.kit.running import AGENTS, ENVIRONMENT, WORK, RunningGateway, prepare, read_fifo, start_gateway

SEED = int(os.environ.get("TEST_SEED", "1"))
"""Seed of the faults; a failure prints it, so that it can be repeated."""

TIMEOUT = 300.0
"""Seconds after which something hangs: a busy machine takes ten times as long as an idle one."""

PING_INTERVAL = 300.0
"""Seconds that a gateway waits here before it asks whether a silent client is there."""
AGENT_NAMES = [f"{name}{suffix}" for name in ("wss", "tcp", "usual", "silent") for suffix in ("", "-cut")]
SESSION = "the-session"
PADDING = 300
"""Bytes by which each message is longer: as an agent's may be, and so that cuts come inside of messages as well."""
GROWTH = 16 * 1024 * 1024
"""Bytes by which a process may be larger after many cuts: what an allocator keeps, not what a leak of links would."""

HURRIED = [sys.executable, str(AGENTS / "hurried.py")]


@contextmanager
def hurried_gateway(directory: Path, more: str) -> Iterator[RunningGateway]:
    """A gateway with counting agents, and options of `[gateway]`."""
    agents = ""
    for name in AGENT_NAMES:
        command = [sys.executable, "-I", "-S", str(AGENTS / "counting_agent.py"), str(directory / f"{name}.log")]
        agents += f"[agents.{name}]\ncommand = {json.dumps(command)}\n"
    pin = prepare(directory, agents, more=f'default_agent = "wss"\n{more}')
    os.mkfifo(directory / "tasks")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PROGRAM", [*HURRIED, str(directory / "tasks")])
        gateway = start_gateway(directory, pin)
    with reading_log(gateway):
        yield gateway
    assert gateway.stop() == 0, "".join(gateway.log)


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway that does not wait for half of a handshake, but long for a silent client."""
    limits = f"handshake_timeout = 1.0\nping_interval = {PING_INTERVAL}"
    with hurried_gateway(tmp_path_factory.mktemp("losses"), limits) as gateway:
        yield gateway


@contextmanager
def reading_log(gateway: RunningGateway) -> Iterator[None]:
    """Read what a gateway logs, which is more than a pipe holds; ended, it has been told to stop."""
    assert gateway.process.stderr is not None
    reader = threading.Thread(target=gateway.log.extend, args=[gateway.process.stderr])
    reader.start()
    try:
        yield
    finally:
        gateway.process.terminate()
        reader.join()


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    """Path of the file in which a hurried shim names its tasks."""
    path = tmp_path / "tasks-of-shim"
    os.mkfifo(path)
    return path


@dataclass(frozen=True, slots=True)
class Size:
    """Resources that a process has in use."""

    tasks: list[str]
    """Their names."""
    descriptors: int
    threads: int
    children: set[str]
    memory: int
    """Bytes."""

    def assert_not_grown(self, since: "Size") -> None:
        """Hold it against an earlier one of the same process."""
        # A link that was resumed has the task that began it and the one of its connection, once each.
        more = Counter(self.tasks) - Counter(since.tasks)
        assert set(more) <= {"acp_gateway.server.listener.Listener.serve"}
        assert more.total() <= 1
        assert self.descriptors <= since.descriptors
        assert self.threads <= since.threads
        assert self.children == since.children
        assert self.memory <= since.memory + GROWTH

    @classmethod
    def of(cls, pid: int, report: Path) -> "Size":
        """Measure a process of `hurried`."""
        os.kill(pid, signal.SIGUSR1)
        reported = json.loads(read_fifo(report))
        status = Path(f"/proc/{pid}/status").read_text()
        numbers = dict(re.findall(r"^(VmRSS|Threads):\s*(\d+)", status, re.MULTILINE))
        return cls(
            reported["tasks"],
            reported["descriptors"],
            int(numbers["Threads"]),
            {child for path in Path(f"/proc/{pid}/task").glob("*/children") for child in path.read_text().split()},
            int(numbers["VmRSS"]) * 1024,
        )


class Shim:
    """A shim and the editor in front of it, which counts in step with a counting agent."""

    def __init__(self, process: trio.Process) -> None:
        self.process = process
        self.transcript: list[bytes] = []
        """All lines that came."""
        self._buffered = bytearray()
        self._last_id = 0

    async def read(self) -> dict[str, Any]:
        """The next message."""
        assert self.process.stdout is not None
        while b"\n" not in self._buffered:
            data = await self.process.stdout.receive_some()
            assert data, "the shim has ended"
            self._buffered += data
        line, _, self._buffered = self._buffered.partition(b"\n")
        self.transcript.append(bytes(line))
        message: dict[str, Any] = json.loads(line)
        return message

    async def send(self, *messages: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.send_all(
            b"".join(json.dumps({"jsonrpc": "2.0"} | one).encode() + b"\n" for one in messages)
        )

    async def ask(self, method: str, params: dict[str, Any]) -> None:
        """Send a request."""
        self._last_id += 1
        await self.send({"id": self._last_id, "method": method, "params": params})

    async def answered(self) -> dict[str, Any]:
        """Read until the last request is answered; the result."""
        while (message := await self.read()).get("id") != self._last_id or "method" in message:
            pass
        result: dict[str, Any] = message["result"]
        return result

    async def open(self) -> None:
        """Come to have a session."""
        await self.ask("initialize", {"protocolVersion": 1})
        await self.answered()
        await self.ask("session/new", {"cwd": str(WORK), "mcpServers": []})
        await self.answered()

    async def talk(self, talk: "Talk") -> None:
        """Say all that, and read what comes of it."""
        said = 0
        for _ in range(talk.rounds):
            prompt = {"sessionId": SESSION, "prompt": [{"type": "text", "text": str(talk.updates // 2)}]}
            await self.ask("session/prompt", prompt)
            while (asked := await self.read()).get("method") != "session/request_permission":
                pass
            await self.send({"id": asked["id"], "result": {"outcome": {"outcome": "selected", "optionId": "yes"}}})
            numbers = range(said, said + talk.notifications)
            said += talk.notifications
            params = [{"sessionId": SESSION, "n": number, "pad": "x" * PADDING} for number in numbers]
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.send, *({"method": "_test/say", "params": one} for one in params))
                assert (await self.answered())["stopReason"] == "end_turn"
                for _ in params:
                    await self.read()


@asynccontextmanager
async def shim(
    gateway: RunningGateway,
    transport: str,
    agent: str,
    *options: str,
    via: FaultyProxy | None = None,
    report: Path | None = None,
) -> AsyncIterator[Shim]:
    """A shim that is connected, with an open session; it must end without a word on stderr.

    `report`: a FIFO; then it is one in a hurry.
    """
    command = gateway.connect_command(transport, "--agent", agent, *options)
    if report is not None:
        command = [*HURRIED, str(report), *command[3:]]
    if via is not None:
        port = urlsplit(gateway.urls[transport]).port
        command = [word.replace(f":{port}", f":{via.port}") for word in command]
    process = await trio.lowlevel.open_process(
        command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        editor = Shim(process)
        await editor.open()
        yield editor
        await process.stdin.aclose()
        assert await process.stdout.receive_some() == b""
        assert await process.stderr.receive_some() == b""
        assert await process.wait() == 0
    finally:
        if process.poll() is None:
            process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            await stream.aclose()


@dataclass(frozen=True, slots=True)
class Talk:
    """The amount of traffic: turns, updates in each, and notifications, which are answered with one each."""

    rounds: int
    notifications: int
    updates: int = 20


async def assert_unnoticed(
    gateway: RunningGateway,
    transport: str,
    talk: Talk,
    *,
    agent: str,
    proxy: FaultyProxy,
    cuts: int,
    options: Sequence[str] = (),
    report: Path | None = None,
) -> None:
    """Talk over a good network and over a bad one: the editor and the agent must get the same.

    With `report`, neither the shim nor the gateway may have more in use after so many cuts than before.
    """
    async with shim(gateway, transport, agent) as editor:
        await editor.talk(talk)
    expected = editor.transcript
    async with trio.open_nursery() as nursery:
        await nursery.start(proxy.run)
        async with shim(gateway, transport, f"{agent}-cut", *options, via=proxy, report=report) as editor:
            if report is not None:
                await search_is_open(gateway)
            before = await measured(gateway, editor, report)
            await editor.talk(talk)
            # A fault has happened once both directions of its connection have ended, maybe after the last message.
            await proxy.reached(cuts)
            assert len(proxy.happened) == cuts
            # What was half open the gateway has closed long before it would have taken it for dead.
            with trio.fail_after(PING_INTERVAL / 4):
                await proxy.all_closed(but=1)
            await not_grown(before, gateway, editor, report)
        nursery.cancel_scope.cancel()
    assert editor.transcript == expected
    received = [(gateway.directory / f"{name}.log").read_bytes() for name in (agent, f"{agent}-cut")]
    assert received[0] == received[1]


async def search_is_open(gateway: RunningGateway) -> None:
    """Wait until the gateway has its search index open to write and to read, as it does after the first turn."""
    with trio.fail_after(TIMEOUT):
        while opened_files(gateway.process.pid).count("search.db") < 2:
            await trio.lowlevel.checkpoint()


def opened_files(pid: int) -> list[str]:
    """The names of the files that a process has open."""
    return [file.resolve().name for file in Path(f"/proc/{pid}/fd").iterdir()]


async def not_grown(since: list[Size], gateway: RunningGateway, editor: Shim, report: Path | None) -> None:
    """Wait until processes have no more in use than at a time: they may notice the last ends of connections late."""
    deadline = trio.current_time() + 60
    while True:
        try:
            for earlier, now in zip(since, await measured(gateway, editor, report), strict=True):
                now.assert_not_grown(earlier)
        except AssertionError:
            if trio.current_time() > deadline:
                raise
        else:
            return


async def measured(gateway: RunningGateway, editor: Shim, report: Path | None) -> list[Size]:
    """The sizes of the gateway and of the shim."""
    if report is None:
        return []
    processes = (gateway.process.pid, gateway.directory / "tasks"), (editor.process.pid, report)
    return [await trio.to_thread.run_sync(Size.of, *process) for process in processes]


def proxy_for(gateway: RunningGateway, transport: str, *, cuts: int, **options: Any) -> FaultyProxy:
    port = urlsplit(gateway.urls[transport]).port
    assert port is not None
    return FaultyProxy(port, seed=SEED, cuts=cuts, **options)


@pytest.mark.slow
@pytest.mark.parametrize("transport", ["wss", "tcp"])
async def test_two_hundred_cuts_during_ten_thousand_messages_each_way_go_unnoticed(
    gateway: RunningGateway, fifo: Path, transport: str
) -> None:
    proxy = proxy_for(gateway, transport, cuts=200, size=(1, 60_000), timeout=0.1)
    with trio.fail_after(TIMEOUT), told_seed(proxy):
        talk = Talk(rounds=20, notifications=500)
        await assert_unnoticed(gateway, transport, talk, agent=transport, proxy=proxy, cuts=200, report=fifo)


@pytest.mark.slow
async def test_the_program_as_it_is_gets_over_a_bad_network(gateway: RunningGateway) -> None:
    proxy = proxy_for(gateway, "wss", cuts=12, size=(20_000, 60_000), faults=(*QUICK, Fault.MUTE))
    with trio.fail_after(TIMEOUT), told_seed(proxy):
        await assert_unnoticed(gateway, "wss", Talk(rounds=10, notifications=200), agent="usual", proxy=proxy, cuts=12)


@pytest.mark.slow
async def test_a_connection_that_goes_silent_without_an_end_is_given_up_by_both_sides(
    tmp_path: Path, fifo: Path
) -> None:
    faults = (Fault.STALL, Fault.GATEWAY_LOST, Fault.DEAF, Fault.MUTE)
    with hurried_gateway(tmp_path, "ping_interval = 0.5\nping_timeout = 1.0") as gateway:
        proxy = proxy_for(gateway, "tcp", cuts=4, size=(5000, 20_000), faults=faults, timeout=2 * TIMEOUT)
        with trio.fail_after(TIMEOUT), told_seed(proxy):
            talk = Talk(rounds=2, notifications=200)
            await assert_unnoticed(
                *(gateway, "tcp", talk), agent="silent", proxy=proxy, cuts=4, options=["--keepalive", "1"], report=fifo
            )


@contextmanager
def told_seed(proxy: FaultyProxy) -> Iterator[None]:
    """A failure says how to have the same faults again."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"faults were drawn from the seed {proxy.seed}; {len(proxy.happened)} have happened")
        raise
