"""One agent process: started, listened to, stopped politely, and never left behind.

`run_agent` owns the process for as long as it runs. Whatever ends it, the whole process group is ended, because
what the configuration starts is often a wrapper (`npx`, `uvx`) around the real agent. Agents don't stop reliably
(some ignore the end of their input, some hang in the middle of a prompt), hence the ladder: close stdin, wait,
SIGTERM to the group, wait, SIGKILL to the group.

A gateway that is killed can't do any of this. On Linux the kernel does then: the process asks for SIGKILL when its
parent dies (`PR_SET_PDEATHSIG`). To the kernel, the parent is the *thread* that started it, and Trio's own threads end
when they have been idle for a while, which would kill healthy agents. So a `Spawner` keeps one thread for as long as
the gateway lives. What that doesn't reach, a wrapper's children, is written down in a ledger and swept at the next
start.
"""

import logging
import os
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from acp_gateway.errors import AgentError
from acp_gateway.leftovers import Ledger, process_start_time
from acp_gateway.transports.base import READ_SIZE, MessageStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.stdio import FileBytes

log = logging.getLogger(__name__)

T = TypeVar("T")

STDERR_TAIL_LINES = 20
"""Last lines of stderr that are kept for the error clients get when the agent dies: a traceback's worth."""

STDERR_LINE_SIZE = 400
"""Bytes of one such line that are kept and logged; longer ones are cut."""

STDERR_LOG_SIZE = 256 * 1024
"""Bytes of one process's stderr that are logged at most: an agent in a loop must not fill the log."""

LAST_WORDS = 1.0
"""Seconds that the rest of stdout and stderr is waited for when a process has ended: it is in the pipes already."""

# What a new agent on Linux runs first: die with the gateway, unless that has happened already, and become the agent.
_DIE_WITH_PARENT = """
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execv(sys.argv[2], sys.argv[3:])
except OSError as error:
    sys.exit(f"cannot execute {sys.argv[2]}: {error.strerror}")
"""


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that starting an agent takes."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str]
    cwd: str | None
    max_message_size: int
    """Bytes of one line from the agent."""
    eof_grace: float
    """Seconds from closing stdin to SIGTERM."""
    term_grace: float
    """Seconds from SIGTERM to SIGKILL."""


class Spawner:
    """Starts processes from one thread that lives until the end of the `with` block."""

    def __init__(self, ledger: Ledger) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
        self.ledger = ledger

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._thread.shutdown()

    async def run(self, function: Callable[[], T]) -> T:
        """Call `function` in the thread and wait for its result, also when cancelled: what it starts must be known."""
        done = trio.Event()
        token = trio.lowlevel.current_trio_token()

        def tell(_: Future[T]) -> None:
            token.run_sync_soon(done.set)

        future = self._thread.submit(function)
        future.add_done_callback(tell)
        with trio.CancelScope(shield=True):
            await done.wait()
        return future.result()


class Agent:
    """A running agent: its messages, and how it ended."""

    def __init__(self, launch: Launch, process: subprocess.Popen[bytes], pipes: "_Pipes") -> None:
        self.name = launch.name
        self.pid = process.pid
        """Also the id of its process group and of its process session."""
        self.messages: MessageStream = LineStream(
            FileBytes(pipes.stdout, pipes.stdin), max_message_size=launch.max_message_size
        )
        self.stderr_tail: deque[str] = deque(maxlen=STDERR_TAIL_LINES)
        self._launch = launch
        self._process = process
        self._stderr = pipes.stderr
        self._ended = trio.Event()

    def describe_end(self) -> tuple[str, dict[str, Any]]:
        """How it ended, in one line for a person and as `error.data` for a program. Once it has ended."""
        code = self._process.returncode
        data: dict[str, Any] = {"reason": "agent_ended", "agent": self.name, "stderr": list(self.stderr_tail)}
        if code is None:
            how = "has been stopped"
        elif code < 0:
            how = f"was ended by {signal.Signals(-code).name}"
            data["signal"] = signal.Signals(-code).name
        else:
            how = f"ended with exit code {code}"
            data["exitCode"] = code
        last_words = f"; the last it wrote to stderr: {self.stderr_tail[-1]}" if self.stderr_tail else ""
        return f"the agent {self.name} {how}{last_words}", data

    async def ended(self) -> None:
        """Wait until the process has ended and its stderr is read. Cancelling only stops the waiting."""
        await self._ended.wait()

    async def _run(self) -> None:
        """Read stderr, write what stdin did not take at once, and wait for the end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.messages.run)
            stderr_read = trio.Event()
            nursery.start_soon(self._read_stderr, stderr_read)
            await self._wait()
            with trio.move_on_after(LAST_WORDS):
                await stderr_read.wait()
            log.info("%s", self.describe_end()[0])
            self._ended.set()
            nursery.cancel_scope.cancel()

    async def _read_stderr(self, all_read: trio.Event) -> None:
        logged = 0
        line = b""
        while True:
            await trio.lowlevel.wait_readable(self._stderr)
            data = os.read(self._stderr, READ_SIZE)
            *lines, rest = data.split(b"\n")
            for end in lines:
                line, whole = b"", line + end
                logged = self._keep(whole, logged)
            # Of a line without an end only as much is kept as is shown.
            line = (line + rest)[: STDERR_LINE_SIZE + 1]
            if not data:
                if line:
                    self._keep(line, logged)
                all_read.set()
                return
            await trio.lowlevel.checkpoint()

    def _keep(self, line: bytes, logged: int) -> int:
        """Keep a line for `describe_end` and log it; returns how many bytes have been logged by now."""
        text = line[:STDERR_LINE_SIZE].decode(errors="replace").rstrip("\r")
        if not text.strip():
            return logged
        if len(line) > STDERR_LINE_SIZE:
            text += " …"
        self.stderr_tail.append(text)
        if logged < STDERR_LOG_SIZE:
            log.info("agent %s (%d) stderr: %s", self.name, self.pid, text)
            if logged + len(text) >= STDERR_LOG_SIZE:
                log.warning("agent %s (%d) writes much to stderr; no more of it is logged", self.name, self.pid)
        return logged + len(text)

    async def _wait(self) -> None:
        """Wait for the end of the process, end what is left of its group, and only then reap it.

        Until it is reaped, its id can't become that of another group, which would be killed instead.
        """
        if hasattr(os, "pidfd_open"):
            descriptor = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(descriptor)
            finally:
                os.close(descriptor)
        else:
            await trio.to_thread.run_sync(
                os.waitid, os.P_PID, self.pid, os.WEXITED | os.WNOWAIT, abandon_on_cancel=True
            )
        self._signal(signal.SIGKILL)
        self._process.wait()

    async def _stop(self) -> None:
        """Climb the ladder until the process has ended."""
        async with trio.open_nursery() as nursery:
            # An agent that can't get rid of its output doesn't get to its end.
            nursery.start_soon(self._discard_output)
            nursery.start_soon(self._run)
            with trio.move_on_after(self._launch.eof_grace):
                await self._close_stdin()
                await self._ended.wait()
            if not self._ended.is_set():
                log.info("agent %s (%d) does not mind the end of its input; SIGTERM", self.name, self.pid)
                self._signal(signal.SIGTERM)
                with trio.move_on_after(self._launch.term_grace):
                    await self._ended.wait()
            if not self._ended.is_set():
                log.warning("agent %s (%d) does not mind SIGTERM; SIGKILL", self.name, self.pid)
                self._signal(signal.SIGKILL)
                await self._ended.wait()
            nursery.cancel_scope.cancel()

    async def _close_stdin(self) -> None:
        stream = self.messages
        assert isinstance(stream, LineStream)
        try:
            await stream.drain()
        except trio.BrokenResourceError:
            pass  # It doesn't read any more.
        await stream.bytes.send_eof()

    async def _discard_output(self) -> None:
        try:
            async for _ in self.messages:
                pass
        except trio.BrokenResourceError:
            pass  # Its last line was too long, or it is gone.

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self.pid, number)
        except ProcessLookupError:
            pass  # All of the group have ended.
        except PermissionError:
            pass  # macOS says so of a group in which there are only zombies.


async def run_agent(
    launch: Launch, spawner: Spawner, *, task_status: trio.TaskStatus[Agent] = trio.TASK_STATUS_IGNORED
) -> None:
    """Start an agent, hand it over by `task_status`, and see to it until cancelled; then nothing of it is left.

    It runs on when the agent has ended by itself, so that what the agent wrote last can be read. Raises `AgentError`
    when the agent can't be started. Cancelled, it stops the agent by the ladder first, which takes up to `eof_grace +
    term_grace` seconds and a little more; by then nobody may be receiving from `Agent.messages`.
    """
    program = find_program(launch)
    pipes = _Pipes()
    try:
        process = await spawner.run(lambda: _spawn(launch, program, pipes))
    except OSError as error:
        pipes.close()
        raise AgentError(f"the agent {launch.name} cannot be started: {program}: {error.strerror}") from error
    pipes.close_far_ends()
    started = process_start_time(process.pid)
    if started is not None:
        spawner.ledger.record(process.pid, started)
    agent = Agent(launch, process, pipes)
    log.info("agent %s started with pid %d", launch.name, process.pid)
    try:
        task_status.started(agent)
        await agent._run()  # noqa: SLF001 - the lifetime of an Agent is this function's.
        await trio.sleep_forever()
    finally:
        with trio.CancelScope(shield=True):
            if process.returncode is None:
                await agent._stop()  # noqa: SLF001
            spawner.ledger.forget(process.pid)
            await agent.messages.aclose()
            os.close(pipes.stderr)


def find_program(launch: Launch) -> str:
    """The absolute path of the program that a command names, found as a shell would in the agent's directory.

    Raises `AgentError` for a directory that isn't there, and for a program that isn't there or can't be executed.
    """
    cwd = launch.cwd or os.getcwd()
    if not os.path.isdir(cwd):
        raise AgentError(f"the agent {launch.name} cannot be started: its cwd {cwd} is not a directory")
    name = launch.command[0]
    place = os.path.join(cwd, name) if os.path.dirname(name) else name
    program = shutil.which(place, path=launch.environment.get("PATH", os.defpath))
    if program is None:
        why = "is not executable" if os.path.exists(place) else "is not found"
        where = "" if os.path.dirname(name) else f" on PATH ({launch.environment.get('PATH', os.defpath)})"
        raise AgentError(f"the agent {launch.name} cannot be started: the command {name} {why}{where}")
    return os.path.join(cwd, program)


class _Pipes:
    """The three pipes of a new process: our ends as `stdin`, `stdout`, `stderr`, its ends in `far`."""

    def __init__(self) -> None:
        far_stdin, self.stdin = os.pipe()
        self.stdout, far_stdout = os.pipe()
        self.stderr, far_stderr = os.pipe()
        self.far = (far_stdin, far_stdout, far_stderr)

    def close_far_ends(self) -> None:
        for descriptor in self.far:
            os.close(descriptor)

    def close(self) -> None:
        self.close_far_ends()
        for descriptor in (self.stdin, self.stdout, self.stderr):
            os.close(descriptor)


def _spawn(launch: Launch, program: str, pipes: _Pipes) -> subprocess.Popen[bytes]:
    command = [*launch.command]
    executable = program
    if sys.platform == "linux":
        # A program of its own instead of `preexec_fn`, which is not safe in a process with threads.
        command = [sys.executable, "-I", "-S", "-c", _DIE_WITH_PARENT, str(os.getpid()), program, *command]
        executable = sys.executable
    return subprocess.Popen(
        command,
        executable=executable,
        stdin=pipes.far[0],
        stdout=pipes.far[1],
        stderr=pipes.far[2],
        cwd=launch.cwd,
        env=dict(launch.environment),
        start_new_session=True,
    )
