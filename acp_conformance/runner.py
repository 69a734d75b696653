"""Runs an agent in a process of its own for each scenario, and records the dialogues; has what both runners share."""

import math
import os
import signal
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import trio
from trio.abc import ReceiveStream, SendStream

from acp_conformance.client_script import ClientScript, Scenario, load_fixture
from acp_conformance.dialogue import Dialogue, Ending, Line
from acp_gateway.errors import AgentError

LINE_COST: Final = 256
"""Bytes that each line counts more: a short one takes that much memory as well."""


@dataclass(frozen=True)
class RunLimits:
    """Limits of one dialogue."""

    timeout: float = 10.0
    """Seconds of a dialogue: a program starts in one or two, and a turn may need a model."""
    exit_timeout: float = 3.0
    """Seconds in which the program has to end after its input has ended."""
    output_size: int = 16 * 1024 * 1024
    """Bytes that are read from the program, and `LINE_COST` for each line: 2 MiB may come back, as escapes."""
    stderr_size: int = 4096
    """Bytes of stderr that are kept, the last ones."""
    reaction: float = 0.2
    """Seconds in which the user of a client reads what it shows, before the user does something."""


class LineSplitter:
    """Splits the output of a program into lines.

    Args:
        limit: maximum bytes of all output, and `LINE_COST` for each line.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._size = 0
        # The line that has begun.
        self._rest = b""

    @property
    def overflow(self) -> bool:
        """True if there was more output than the limit allows."""
        return self._size > self._limit

    def feed(self, data: bytes | bytearray) -> list[bytes]:
        """Return the lines that data completes, but for blank ones. Empty data is the end, which completes the last."""
        self._size += len(data)
        data = bytes(data)
        *lines, self._rest = (self._rest + data).split(b"\n") if b"\n" in data else [self._rest + data]
        if not data:
            lines, self._rest = [*lines, self._rest], b""
        self._size += LINE_COST * len(lines)
        return [line.removesuffix(b"\r") for line in lines if line.strip()]


class Tail:
    """Keeps the last bytes of a stream."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._kept = b""

    @property
    def text(self) -> str:
        """The kept bytes, decoded."""
        return self._kept.decode(errors="replace")

    async def read(self, stream: ReceiveStream) -> None:
        """Read a stream to its end. Cancelling keeps what was read."""
        async for data in stream:
            kept = self._kept + data
            self._kept = kept[max(0, len(kept) - self._size) :]


async def reap(process: trio.Process) -> None:
    """Kill the process group of a program, which may have children, and wait for the program. Not to be cancelled."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # All of it has ended.
    with trio.CancelScope(shield=True):
        await process.wait()


async def open_program(
    command: Sequence[str], cwd: str | None = None, env: Mapping[str, str] | None = None
) -> tuple[trio.Process, SendStream, ReceiveStream, ReceiveStream]:
    """Start a program in a process group of its own; return it with its stdin, stdout and stderr.

    Raises `AgentError` if it cannot be started. Cancelling starts nothing.
    """
    pipe = subprocess.PIPE
    try:
        process = await trio.lowlevel.open_process(
            command, stdin=pipe, stdout=pipe, stderr=pipe, cwd=cwd, env=env, start_new_session=True
        )
    except OSError as error:
        raise AgentError(f"{command[0]} cannot be started: {error.strerror}") from None
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    return process, process.stdin, process.stdout, process.stderr


async def send_pieces(stream: SendStream, data: bytes, piece: int) -> bool:
    """Write data in pieces of a size, all at once for 0. Return False if the reader has closed the stream.

    Cancelling may leave a part unwritten.
    """
    size = piece or len(data)
    try:
        for start in range(0, len(data), size):
            await stream.send_all(data[start : start + size])
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        return False
    return True


async def run_scenarios(
    command: Sequence[str],
    scenarios: Sequence[Scenario],
    cwd: str,
    *,
    prompt: str | None = None,
    limits: RunLimits | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> dict[str, Dialogue]:
    """Return the dialogues of an agent by scenario, one after the other.

    Args:
        command: the agent's program and its arguments.
        cwd: the directory of its sessions; the process begins in the present one.
        prompt: the text of prompts, in place of the fixtures'.
        progress: called with the name of each scenario before it begins.

    Raises `AgentError` if the program cannot be started. Cancelling ends the agent's process group.
    """
    dialogues = {}
    for scenario in scenarios:
        progress(scenario.name)
        text = prompt if scenario.prompt is None else scenario.prompt
        script = ClientScript(load_fixture(scenario.fixture), cwd, text)
        dialogues[scenario.name] = await _Run(script, scenario, limits or RunLimits()).run(command)
    return dialogues


class _Run:
    """One process and its dialogue."""

    def __init__(self, script: ClientScript, scenario: Scenario, limits: RunLimits) -> None:
        self._script = script
        self._scenario = scenario
        self._limits = limits
        self._lines: list[Line] = []
        self._ending: Ending = "finished"
        self._began = trio.current_time()
        self._stderr = Tail(limits.stderr_size)
        self._splitter = LineSplitter(limits.output_size)

    async def run(self, command: Sequence[str]) -> Dialogue:
        """Run the agent and return the dialogue."""
        process, stdin, stdout, stderr = await open_program(command)
        exited = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stderr.read, stderr)
                with trio.move_on_after(self._limits.timeout) as time:
                    await self._talk(stdin, stdout)
                if time.cancelled_caught:
                    self._ending = "timeout"
                waiting_for = self._script.waiting_for
                await stdin.aclose()
                with trio.move_on_after(self._limits.exit_timeout):
                    # An agent that is about to end may still write.
                    await self._listen(stdout, self._record)
                    await process.wait()
                    exited = True
                nursery.cancel_scope.cancel()
        finally:
            await reap(process)
        code = process.returncode if exited else None
        return Dialogue(tuple(self._lines), self._ending, waiting_for, exited, code, self._stderr.text)

    async def _talk(self, stdin: SendStream, stdout: ReceiveStream) -> None:
        """Play the script until it is done, or the agent ends."""
        # The agent may write while it does not read.
        outgoing, to_write = trio.open_memory_channel[bytes](math.inf)

        async def write() -> None:
            async for data in to_write:
                if not await send_pieces(stdin, data, self._scenario.piece):
                    return  # The agent has ended, which its stdout tells.

        def send(messages: list[bytes]) -> None:
            for message in messages:
                self._record(message, outgoing=True)
                outgoing.send_nowait(message + b"\n")

        def take(line: bytes) -> None:
            self._record(line)
            if not self._script.done:
                send(self._script.receive(line))

        async with trio.open_nursery() as nursery:
            nursery.start_soon(write)
            send([self._scenario.first] if self._scenario.first else [])
            send(self._script.begin())
            await self._listen(stdout, take, until=lambda: self._script.done)
            if self._ending == "finished" and not self._script.done:
                self._ending = "ended"
            nursery.cancel_scope.cancel()

    async def _listen(
        self, stdout: ReceiveStream, take: Callable[[bytes], None], until: Callable[[], bool] = lambda: False
    ) -> None:
        """Pass each line of stdout on, until its end, the condition or the limit of the output."""
        while not until() and self._ending != "overflow":
            data = await stdout.receive_some(65536)
            for line in self._splitter.feed(data):
                take(line)
            if self._splitter.overflow:
                self._ending = "overflow"
            if not data:
                return

    def _record(self, text: bytes, *, outgoing: bool = False) -> None:
        self._lines.append(Line(outgoing, text, trio.current_time() - self._began))
