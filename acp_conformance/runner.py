"""Runs an agent in a process of its own for each scenario, and records the dialogues."""

import math
import subprocess
from collections.abc import Callable, Sequence

import trio
from trio.abc import ReceiveStream, SendStream

from acp_conformance.client_script import ClientScript, Scenario, load_fixture
from acp_conformance.dialogue import Dialogue, Ending, Line
from acp_conformance.processes import LineSplitter, RunLimits, Tail, reap
from acp_gateway.errors import AgentError


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
        try:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except OSError as error:
            raise AgentError(f"{command[0]} cannot be started: {error.strerror}") from None
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        exited = False
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._stderr.read, process.stderr)
                with trio.move_on_after(self._limits.timeout) as time:
                    await self._talk(process.stdin, process.stdout)
                if time.cancelled_caught:
                    self._ending = "timeout"
                waiting_for = self._script.waiting_for
                await process.stdin.aclose()
                with trio.move_on_after(self._limits.exit_timeout):
                    # An agent that is about to end may still write.
                    await self._listen(process.stdout, self._record)
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
                size = self._scenario.piece or len(data)
                try:
                    for start in range(0, len(data), size):
                        await stdin.send_all(data[start : start + size])
                except trio.BrokenResourceError:
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
