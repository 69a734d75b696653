"""One agent process: started, listened to, stopped politely, and never left behind.

`run_agent` owns the process for as long as it runs. Whatever ends it, the whole process group is ended, because
what the configuration starts is often a wrapper (`npx`, `uvx`) around the real agent. Agents don't stop reliably
(some ignore the end of their input, some hang in the middle of a prompt), hence the ladder: close stdin, wait,
SIGTERM to the group, wait, SIGKILL to the group.

A gateway that is killed can't do any of this. On Linux the kernel does then: the process asks for SIGKILL when its
parent dies (`PR_SET_PDEATHSIG`). To the kernel, the parent is the *thread* that started it, and Trio's own threads end
when they have been idle for a while, which would kill healthy agents. So a `Spawner` keeps one thread for as long as
the gateway lives. What that doesn't reach, a wrapper's children, is recorded and killed at the next start (`orphans`).
"""

import contextlib
import logging
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import trio

from acp_gateway.config.agent_search import explain_missing, explain_words
from acp_gateway.errors import AgentError
from acp_gateway.fence.plan import Fence, FenceOptions, refusals
from acp_gateway.fence.start import Start, fenced
from acp_gateway.gateway.agent.descendants import Descendants, named
from acp_gateway.gateway.agent.hardening import inherited_limits
from acp_gateway.gateway.agent.listeners import MARK, Family
from acp_gateway.gateway.agent.orphans import (
    ProcessRegistry,
    kill_session,
    process_start_time,
    read_stat,
    terminate_followers,
)
from acp_gateway.gateway.agent.versions import AgentMessages
from acp_gateway.printable import printable
from acp_gateway.protocol.secret_patterns import HIDDEN, MAX_SECRET_LENGTH, redact_text
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.pipes import FileBytes
from acp_gateway.transports.streams import READ_SIZE

log = logging.getLogger(__name__)

T = TypeVar("T")

STDERR_TAIL_LINES = 20
"""Last lines of stderr that are kept for the error clients get when the agent dies: a traceback's worth."""

STDERR_LINE_SIZE = 400
"""Characters of one such line that are shown and logged; longer ones are cut."""

STDERR_KEPT_SIZE = STDERR_LINE_SIZE + MAX_SECRET_LENGTH + 1
"""Bytes of one such line that are kept: enough to recognize a secret whose beginning alone would be shown."""

STDERR_LOG_SIZE = 256 * 1024
"""Bytes of one process's stderr that are logged at most: an agent in a loop must not fill the log."""

NOT_FOUND = 127  # Of shells and `env`, for a program such as the interpreter of a script.

LAST_OUTPUT_TIMEOUT = 1.0
"""Seconds that the rest of stdout and stderr is waited for when a process has ended: it is in the pipes already, unless
others of its group still have something to say, and they get this time to end by themselves."""

KILLER_TIMEOUT = 5.0
"""Seconds for the killer of a fence to do its work, some milliseconds, on a machine that is busy."""

# Colours; they may stand in the middle of a secret.
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
# The first line of a private key; and the end of one whose beginning is not there any more.
_KEY_BEGINS = re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----")
_REST_OF_KEY = re.compile(r"\A(?:(?!-----BEGIN ).)*-----END [A-Z ]*PRIVATE KEY-----", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything that starting an agent takes."""

    name: str
    command: Sequence[str]
    environment: Mapping[str, str] = field(repr=False)
    cwd: str | None
    max_message_size: int
    """Bytes of one line from the agent."""
    eof_grace: float
    """Seconds from closing stdin to SIGTERM."""
    term_grace: float
    """Seconds from SIGTERM to SIGKILL."""
    log_stderr: bool = False
    """Log its stderr, redacted, at the level of other messages; otherwise only in detail."""
    fence: FenceOptions | None = None
    """The wishes for its fence; None without a fence."""


class Spawner:
    """Starts processes from one thread that lives until the end of the `with` block."""

    def __init__(self, registry: ProcessRegistry) -> None:
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="spawner")
        self.registry = registry
        self.ancestors = {os.getpid()}
        """The processes whose descendants are agents: those that run, which are the process sessions of what they
        start as well, and this one, because an agent may be quicker than the news of its start."""

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
    """A running agent as its hub sees it: its messages, and how it ended."""

    def __init__(
        self,
        name: str,
        pid: int | None,
        stream: MaintainedStream,
        command: Sequence[str] = (),
        url: str | None = None,
        fence: Fence | None = None,
    ) -> None:
        self.name = name
        self.url = url
        """Address of an agent that listens, which has neither process nor command."""
        self.command = command
        """As the configuration has it. It may hold secrets."""
        self.pid = pid
        """Also the id of its process group and of its process session. None without a process of the gateway's."""
        self.fence = fence
        """The places that it may use; None without a fence."""
        self.messages = AgentMessages(stream)
        """Its stdin and stdout, or its connection. Run and closed by `run_agent`, or `run_listening_agent`."""
        self.stderr_tail: deque[bytes] = deque(maxlen=STDERR_TAIL_LINES)
        """As it was written: to be shown only by way of `last_lines`."""
        self.exit_code: int | None = None
        """The negative number of a signal where one ended it; None while it runs."""
        self.relay_rest: Callable[[], Awaitable[None]] | None = None
        """Reads and relays what it still writes while it is being stopped; None to drop that."""
        self.descendants: Descendants | None = None
        """Its descendants; None where the system does not tell."""
        self.family: Family | None = None
        """The means by which its processes are known; None where the system does not tell."""
        self.ended = trio.Event()
        """Its stderr is read, and nothing of its process group is left; some of its output may be unread."""

    def last_lines(self) -> list[str]:
        """The last lines of its stderr, redacted and printable."""
        return readable_lines(self.stderr_tail)

    def describe_end(self) -> tuple[str, dict[str, Any]]:
        """Return how the ended process ended, in one line and as `error.data`, fit for all clients."""
        data: dict[str, Any] = {"reason": "agent_ended", "agent": self.name}
        assert self.exit_code is not None
        if self.exit_code < 0:
            data["signal"] = _signal_name(-self.exit_code)
            how = f"was ended by {data['signal']}"
        else:
            data["exitCode"] = self.exit_code
            how = f"ended with exit code {self.exit_code}"
            if self.exit_code == NOT_FOUND:
                how += ", as programs do that find another one not on PATH"
        return f"the agent {self.name} {how}", data

    def describe_refusal(self) -> str:
        """Return what its fence has refused according to its stderr, as the end of a line for those who may see that.

        Empty without a refusal.
        """
        refused = [] if self.fence is None else refusals(self.fence, self.last_lines())
        if not refused:
            return ""
        path, option = refused[0]
        return f"; its fence refuses {path}: add it to {option} of [agents.{self.name}], if it may use that"


def readable_lines(lines: Iterable[bytes]) -> list[str]:
    """Lines that an agent wrote besides messages, redacted, printable and cut; without the empty ones."""
    # Together: a private key has many lines.
    text = _REST_OF_KEY.sub(HIDDEN, "\n".join(map(_decoded, lines)))
    return [shown for line in redact_text(text, len(text)).split("\n") if (shown := _cut(line.rstrip()))]


def _decoded(line: bytes) -> str:
    text = _COLOURS.sub("", line[:STDERR_KEPT_SIZE].decode(errors="replace"))
    # A line that was cut may end within a secret.
    return text if len(line) < STDERR_KEPT_SIZE else redact_text(text, len(text))[:-MAX_SECRET_LENGTH]


def _cut(line: str) -> str:
    return printable(line, STDERR_LINE_SIZE) + (" …" if len(line) > STDERR_LINE_SIZE else "")


async def run_agent(
    launch: Launch, spawner: Spawner, *, task_status: trio.TaskStatus[Agent] = trio.TASK_STATUS_IGNORED
) -> None:
    """Start an agent, hand it over by `task_status`, and see to it until cancelled; then nothing of it is left.

    It runs on when the agent has ended by itself, so that what the agent wrote last can be read. Raises `AgentError`
    when the agent can't be started. Cancelled, it stops the agent by the ladder first, which takes up to `eof_grace +
    term_grace` seconds and a little more; by then no task may be receiving from `Agent.messages`.
    """
    try:
        program = find_program(launch)
        process = _Process(launch, spawner, await spawner.run(lambda: _spawn(launch, program, spawner)))
    except OSError as error:
        what = f"{error.filename}: {error.strerror}" if error.filename else error.strerror
        raise AgentError(f"the agent {launch.name} cannot be started: {what}") from error
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.run)
        try:
            task_status.started(process.agent)
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await process.stop()


def start_folder(launch: Launch) -> str:
    """Return the folder that an agent starts in: its `cwd`; in a fence its first workspace, else the gateway's own.

    Raises `AgentError` for a fenced agent whose clients may use no workspace.
    """
    if launch.cwd is not None:
        return launch.cwd
    if launch.fence is None:
        return os.getcwd()
    roots = [root for root, _ in launch.fence.workspaces]
    if not roots:
        raise AgentError(
            f"the agent {launch.name} cannot be started: its clients may use no workspace: name one in "
            "[workspaces], or for their token"
        )
    return next(filter(os.path.isdir, roots), roots[0])


def find_program(launch: Launch) -> str:
    """Return the absolute path of a command's program, found as a shell would in the agent's directory.

    Raises `AgentError` for a directory that isn't there, and for a program that isn't there or can't be executed.
    """
    cwd = start_folder(launch)
    if not os.path.isdir(cwd):
        raise AgentError(f"the agent {launch.name} cannot be started: its cwd {cwd} is not a directory")
    name = launch.command[0]
    place = os.path.join(cwd, name) if os.path.dirname(name) else name
    path = launch.environment.get("PATH", os.defpath)
    program = shutil.which(place, path=os.pathsep.join(os.path.join(cwd, folder) for folder in path.split(os.pathsep)))
    if program is None:
        why = "is not executable" if os.path.exists(place) else "is not found"
        mistake = explain_words(launch.command, Path(cwd))
        if mistake is not None:
            why += f": {mistake}"
        elif not os.path.dirname(name):
            why += f" {explain_missing(name, path, launch.environment.get('HOME'), f'agents.{launch.name}')}"
        raise AgentError(f"the agent {launch.name} cannot be started: the command {name} {why}")
    return program


@dataclass(frozen=True, slots=True)
class _Spawned:
    """A new process and our ends of its pipes."""

    popen: subprocess.Popen[bytes]
    stdin: int
    stdout: int
    stderr: int
    start: Start
    killer: tuple[int, int] | None
    """Our ends of the killer's pipes: to close when the agent has ended, and to read."""
    mark: str
    """The mark in its environment, by which what it leaves behind is found."""


def _spawn(launch: Launch, program: str, spawner: Spawner) -> _Spawned:
    cwd = start_folder(launch)
    mark = secrets.token_hex(16)
    marked = {**launch.environment, MARK: mark}
    start = Start(program, launch.command, marked)
    if launch.fence is not None:
        start = fenced(launch.name, program, launch.command, marked, cwd, launch.fence)
    descriptors: list[int] = []
    try:
        for _ in range(5 if start.has_killer else 3):
            descriptors += os.pipe()
        far_stdin, stdin, stdout, far_stdout, stderr, far_stderr, *killers = descriptors
        far_killer = (killers[0], killers[3]) if killers else None
        with contextlib.ExitStack() as files:
            executable, command = start.program, [*start.command]
            environment, passed = dict(start.environment), tuple[int, ...]()
            if sys.platform == "linux":
                # A program of its own instead of `preexec_fn`, which is not safe in a process with threads.
                order = files.enter_context(start.order(os.getpid(), inherited_limits(), far_killer))
                executable, passed = sys.executable, (order.fileno(), *(far_killer or ()))
                command, environment = start.launched_by(order)
            popen = subprocess.Popen(
                command,
                executable=executable,
                stdin=far_stdin,
                stdout=far_stdout,
                stderr=far_stderr,
                cwd=cwd,
                env=environment,
                start_new_session=True,
                pass_fds=passed,
            )
            # At once, in this thread: of a process that an agent has left behind, only the process session tells.
            spawner.ancestors.add(popen.pid)
    except BaseException:
        for descriptor in descriptors:
            os.close(descriptor)
        start.clean_up()
        raise
    for descriptor in (far_stdin, far_stdout, far_stderr, *(far_killer or ())):
        os.close(descriptor)
    return _Spawned(popen, stdin, stdout, stderr, start, (killers[1], killers[2]) if killers else None, mark)


class _Process:
    """The process group of an agent, from its start to its end."""

    def __init__(self, launch: Launch, spawner: Spawner, spawned: _Spawned) -> None:
        self._launch = launch
        self._spawner = spawner
        self._popen = spawned.popen
        self._stderr = spawned.stderr
        self._pipes = FileBytes(spawned.stdout, spawned.stdin)
        self._pid = spawned.popen.pid
        self._start = spawned.start
        self._killer = spawned.killer
        self.agent = Agent(
            launch.name,
            self._pid,
            LineStream(self._pipes, max_message_size=launch.max_message_size, skips=True),
            launch.command,
            fence=spawned.start.fence,
        )
        self._stderr_level = logging.INFO if launch.log_stderr else logging.DEBUG
        # Bytes of stderr that have been logged, and whether they end within a private key.
        self._logged = 0
        self._in_key = False
        self._has_told = False
        started = process_start_time(self._pid)
        if started is not None:
            spawner.registry.record(self._pid, started)
        leader = read_stat(self._pid)
        if leader is not None:
            self.agent.descendants = Descendants(leader)
            self.agent.family = Family(leader, spawned.mark)
        within = "" if self.agent.fence is None else f", fenced by {self.agent.fence.by}"
        log.info("agent %s started with pid %d%s", launch.name, self._pid, within)

    async def run(self) -> None:
        """Write stdin and read stderr until the process has ended; then end its group, and only then reap it.

        Until it is reaped, its id can't become that of another group, which would be killed instead. Not to be
        cancelled: `stop` ends it by ending the process.
        """
        with trio.CancelScope(shield=True):
            try:
                async with trio.open_nursery() as nursery:
                    stderr_read = trio.Event()
                    nursery.start_soon(self._read_stderr, stderr_read)
                    nursery.start_soon(self.agent.messages.stream.run)
                    await self._exit()
                    with trio.move_on_after(LAST_OUTPUT_TIMEOUT):
                        await stderr_read.wait()
                    nursery.cancel_scope.cancel()
            finally:
                self._signal(signal.SIGKILL)
                # A shell with job control gives its children groups of their own; the session is still the agent's.
                kill_session(self._pid)
                if self._killer is not None:
                    await self._kill_all_in_fence(*self._killer)
                if self.agent.descendants is not None:
                    self.agent.descendants.kill()
                self.agent.exit_code = self._exit_code(self._popen.wait())
                os.close(self._stderr)
                self._spawner.registry.forget(self._pid)
                self._spawner.ancestors.discard(self._pid)
                if self.agent.fence is not None:
                    await trio.to_thread.run_sync(self._start.clean_up)
                refused = self.agent.describe_refusal()
                log.info("%s%s%s", self.agent.describe_end()[0], refused, self._where_stderr_is())
                self.agent.ended.set()

    async def _kill_all_in_fence(self, until: int, ended: int) -> None:
        """Have the killer kill what has left the group and the session as well."""
        os.close(until)
        try:
            with trio.move_on_after(KILLER_TIMEOUT):
                await trio.lowlevel.wait_readable(ended)
                if os.read(ended, 1):
                    return
            log.warning("agent %s (%d): what it has left behind can't be killed", self._launch.name, self._pid)
        finally:
            os.close(ended)

    def _exit_code(self, code: int) -> int:
        """Return the exit code of the agent itself: bubblewrap passes the number of a signal on like a shell."""
        fence = self.agent.fence
        if fence is None or fence.by != "bubblewrap" or not 128 < code <= 128 + signal.SIGRTMAX:
            return code
        return 128 - code

    async def stop(self) -> None:
        """Climb the ladder until the process has ended, and close its pipes."""
        ended, all_read = self.agent.ended, trio.Event()
        await self._note_descendants()
        async with trio.open_nursery() as nursery:
            # An agent that can't get rid of its output doesn't get to its end.
            nursery.start_soon(self._read_rest, all_read)
            nursery.start_soon(self._close_stdin)
            with trio.move_on_after(self._launch.eof_grace):
                await ended.wait()
            if not ended.is_set():
                log.info("agent %s (%d) does not mind the end of its input; SIGTERM", self._launch.name, self._pid)
                await self._note_descendants()
                self._terminate()
                with trio.move_on_after(self._launch.term_grace):
                    await ended.wait()
            if not ended.is_set():
                log.warning("agent %s (%d) does not mind SIGTERM; SIGKILL", self._launch.name, self._pid)
                self._signal(signal.SIGKILL)
                await ended.wait()
            with trio.move_on_after(LAST_OUTPUT_TIMEOUT):
                await all_read.wait()
            nursery.cancel_scope.cancel()
        await self._pipes.aclose()

    async def _note_descendants(self) -> None:
        """Note what ends with the agent: what has made a process session of its own is found while the agent runs."""
        if self.agent.descendants is not None:
            started = await self.agent.descendants.note_end()
            if started and not self._has_told:
                self._has_told = True
                log.info(
                    "agent %s (%d) ends with what it has started: %s", self._launch.name, self._pid, named(started)
                )

    async def _exit(self) -> None:
        """Wait until the process has exited, without reaping it where the system can do that."""
        try:
            descriptor = os.pidfd_open(self._pid)
        except (AttributeError, OSError):
            # Not Linux, or an old one, or there is no descriptor left. A thread of its own: agents may be many.
            await trio.to_thread.run_sync(self._exit_in_thread, limiter=trio.CapacityLimiter(1))
            return
        try:
            await trio.lowlevel.wait_readable(descriptor)
        finally:
            os.close(descriptor)

    def _exit_in_thread(self) -> None:
        if hasattr(os, "waitid"):
            os.waitid(os.P_PID, self._pid, os.WEXITED | os.WNOWAIT)
        else:
            self._popen.wait()

    async def _read_stderr(self, all_read: trio.Event) -> None:
        line = b""
        while True:
            await trio.lowlevel.wait_readable(self._stderr)
            data = os.read(self._stderr, READ_SIZE)
            if not data:
                break
            first, *others = data.split(b"\n")
            # Of a line without an end only as much is kept as is shown.
            line = (line + first)[:STDERR_KEPT_SIZE]
            for other in others:
                self._keep(line)
                line = other[:STDERR_KEPT_SIZE]
            await trio.lowlevel.checkpoint()
        self._keep(line)
        all_read.set()

    def _keep(self, line: bytes) -> None:
        """Keep a line of stderr for `last_lines`, and log it where that is asked for."""
        if not line.strip():
            return
        self.agent.stderr_tail.append(line)
        if self._logged >= STDERR_LOG_SIZE or not log.isEnabledFor(self._stderr_level):
            return
        self._logged += min(len(line), STDERR_LINE_SIZE)
        if not self._in_key:
            for text in readable_lines([line]):
                log.log(self._stderr_level, "agent %s (%d) stderr: %s", self._launch.name, self._pid, text)
        # The lines of a private key can't be told from other text.
        self._in_key = b"-----END " not in line and (self._in_key or _KEY_BEGINS.search(line) is not None)
        if self._logged >= STDERR_LOG_SIZE:
            log.warning("agent %s (%d) writes much to stderr; no more of it is logged", self._launch.name, self._pid)

    def _where_stderr_is(self) -> str:
        if not self.agent.stderr_tail or log.isEnabledFor(self._stderr_level):
            return ""
        return "; `serve --verbose` logs what it writes to stderr"

    async def _close_stdin(self) -> None:
        try:
            await self.agent.messages.stream.drain()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # It doesn't read any more.
        await self._pipes.send_eof()

    async def _read_rest(self, all_read: trio.Event) -> None:
        """Relay what the agent still writes, as far as that is wanted, and read the rest."""
        try:
            if self.agent.relay_rest is not None:
                await self.agent.relay_rest()
        except Exception:
            # A bug must not leave the agent behind.
            log.exception("agent %s: internal error, its last messages are lost", self._launch.name)
        try:
            while await self._pipes.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # Then there is nothing left to read.
        all_read.set()

    def _terminate(self) -> None:
        """Send SIGTERM to the group; not to bubblewrap, whose end would be the agent's at once."""
        fence = self.agent.fence
        if fence is None or fence.by != "bubblewrap" or not terminate_followers(self._pid):
            self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._pid, number)
        except ProcessLookupError:
            pass  # All of the group have ended.
        except PermissionError:
            pass  # macOS says so of a group in which there are only zombies.


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"  # Real-time signals have no names of their own.
