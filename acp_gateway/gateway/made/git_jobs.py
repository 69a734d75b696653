"""Runs `made/git_worker.py` in the fence of an agent: a process of its own, bounded in time and in what it writes.

These functions wait for the process, so they are called in a thread.
"""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from acp_gateway.config.load import AgentSection, Config
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import AgentError, ConfigError, UsageError
from acp_gateway.fence.plan import FenceOptions
from acp_gateway.fence.start import Start, fenced
from acp_gateway.gateway.agent.fencing import fence_options
from acp_gateway.gateway.workspaces import workspaces_of
from acp_gateway.made import git_worker
from acp_gateway.made.changes import Refusal
from acp_gateway.protocol.reasons import in_one_line

TIME_LIMIT: Final = 30.0
"""Seconds for one job: a repository with 250,000 files takes three, and a person may wait for it."""

RESULT_SIZE: Final = 32 << 20
"""Bytes of a result: texts of 2 MiB, in the longest spelling of JSON, with paths."""

_VARIABLE: Final = "ACP_GATEWAY_GIT_WORKER"
# Read at the start of the gateway: after an upgrade, that on the disk may expect other jobs.
_TEXT: Final = Path(git_worker.__file__).read_text("utf-8")
_BEGINNING: Final = f"import os; exec(os.environ.pop({_VARIABLE!r}))"

Result = TypeVar("Result", bound=msgspec.Struct)

Usable = Callable[[AgentSection, SessionReach], Sequence[str] | None]
"""Returns the names of the workspaces that the clients of an agent's process may use; None for all."""


class GitJobs:
    """Runs jobs in the workspaces of the clients of agents.

    Args:
        config: returns the configuration in force.
        usable: returns which workspaces an agent's clients may use.
    """

    def __init__(self, config: Callable[[], Config], usable: Usable) -> None:
        self._config = config
        self._usable = usable

    def run(
        self,
        agent: str,
        section: AgentSection,
        reach: SessionReach,
        store: Path,
        cwd: str,
        job: Mapping[str, Any],
        kind: type[Result],
        *,
        time_limit: float = TIME_LIMIT,
    ) -> Result:
        """Run a job in a directory as `run_job`, where a client of this reach may use it, and return its result.

        Raises `UsageError` with the reason why it has none.
        """
        config = self._config()
        try:
            allowed = self._usable(section, reach)
        except ConfigError as error:
            raise UsageError(str(error)) from None
        real = os.path.realpath(cwd)
        usable = [
            each.root
            for each in workspaces_of(config.workspaces, section.cwd)
            if all(names is None or each.name in names for names in (allowed, reach.workspaces))
        ]
        roots = [
            root for root in usable if os.path.commonpath([real, os.path.realpath(root)]) == os.path.realpath(root)
        ]
        if not roots:
            raise UsageError("The folder of this session is in no workspace any more.")
        options = fence_options(section, config, reach, allowed)
        if options is not None:
            options = _narrowed(options, roots)
        result = run_job(agent, options, store, cwd, {**job, "roots": roots}, kind, time_limit=time_limit)
        if isinstance(result, Refusal):
            raise UsageError(result.refused)
        return result


def _narrowed(options: FenceOptions, roots: Sequence[str]) -> FenceOptions:
    """Return the options without the workspaces in which a session is not: an agent can make links to them."""
    inside = [each for each in options.workspaces if each[0] in roots]
    outside = [root for root, _ in options.workspaces if root not in roots]
    return replace(options, workspaces=inside, others=(*options.others, *outside))


def run_job(
    agent: str,
    options: FenceOptions | None,
    store: Path,
    cwd: str,
    job: Mapping[str, Any],
    kind: type[Result],
    *,
    time_limit: float = TIME_LIMIT,
) -> Result | Refusal:
    """Run a job, and return its result, or why there is none.

    Args:
        agent: the agent in whose fence it runs.
        options: what that fence opens; None without one.
        store: the folder for git, which is made if it is missing.
        cwd: the directory of the session.
        job: `do`, `roots` and what it needs, as `git_worker` has them.
        kind: the type of its result.
        time_limit: seconds.
    """
    text = json.dumps({**job, "cwd": cwd, "store": str(store)}).encode()
    try:
        store.mkdir(mode=0o700, parents=True, exist_ok=True)
        start = _start(agent, options, store, cwd)
    except (AgentError, OSError) as error:
        return Refusal(in_one_line(str(error), 1000))
    try:
        data = _output(start, cwd, text, time_limit)
    except OSError as error:
        return Refusal(f"git can't be run here: {error.strerror}")
    finally:
        start.clean_up()
    if isinstance(data, Refusal):
        return data
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(data, type=Refusal)
    with suppress(msgspec.MsgspecError):
        return msgspec.json.decode(data, type=kind)
    return Refusal("git can't be run here: the gateway's log may say why.")


def _start(agent: str, options: FenceOptions | None, store: Path, cwd: str) -> Start:
    """Return how the process is started; its own folders are the store alone. Raises as `fenced`."""
    command = [sys.executable, "-I", "-S", "-c", _BEGINNING]
    environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": str(store), _VARIABLE: _TEXT}
    if options is None:
        return Start(sys.executable, command, environment)
    narrow = replace(options, own=(), home=str(store), writable=(), readable=())
    return fenced(agent, sys.executable, command, environment, cwd, narrow)


def _output(start: Start, cwd: str, text: bytes, time_limit: float) -> bytes | Refusal:
    """Return what the process writes; a refusal if it takes too long, or writes too much."""
    with ExitStack() as opened:
        executable, command, environment = start.program, [*start.command], dict(start.environment)
        passed: tuple[int, ...] = ()
        if sys.platform == "linux":
            order = opened.enter_context(start.order(os.getpid(), {}))
            executable, passed = sys.executable, (order.fileno(),)
            command, environment = start.launched_by(order)
        process = subprocess.Popen(
            command,
            executable=executable,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=cwd,
            env=environment,
            pass_fds=passed,
            start_new_session=True,
        )
    is_late = threading.Event()

    def end() -> None:
        is_late.set()
        _kill(process)

    late = threading.Timer(time_limit, end)
    late.start()
    try:
        assert process.stdin is not None
        assert process.stdout is not None
        with process.stdin, suppress(BrokenPipeError):
            process.stdin.write(text)
        with process.stdout:
            data = process.stdout.read(RESULT_SIZE + 1)
    finally:
        late.cancel()
        _kill(process)
        process.wait()
    if len(data) > RESULT_SIZE:
        return Refusal(f"The changes take more than {RESULT_SIZE >> 20} MiB: look at a single turn.")
    if is_late.is_set() and not data:
        return Refusal(f"git has not answered within {time_limit:.0f} seconds: the folder is too large or too slow.")
    return data


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process with what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
