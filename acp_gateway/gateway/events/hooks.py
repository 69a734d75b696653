"""Runs programs of the user's when something happens that a person may want to know on the phone.

`Hooks.fire` is called on the way of the messages: it writes the event down as one line of JSON, puts that in line and
returns. `Hooks.run` takes the lines off again, starts a program for each, and gives it the line on its stdin. Whatever
such a program does, nothing but the log shows it: it gets its time and no more, few of them run at once, and what
waits for its turn is bounded. When a program has ended, so has everything in its process group.
"""

import json
import logging
import os
import signal
import subprocess
from collections import deque
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any, Final

import trio

from acp_gateway.config.load import inherited_environment
from acp_gateway.config.options import HooksSection
from acp_gateway.gateway.agent.hardening import give_limits_back
from acp_gateway.printable import printable

log = logging.getLogger(__name__)

MAX_PROGRAMS: Final = 4
"""Programs that run at the same time. One that hangs leaves three for the rest; a machine with one processor and
agents at work has no room for many more."""

MAX_WAITING: Final = 100
"""Events that may wait for a program. If each program took all of the default time, four at once need twelve minutes
for these: what is further back would no longer be news."""

MAX_WAITING_SIZE: Final = 1024 * 1024
"""Bytes of these events together. One has a few hundred."""

LINE_SIZE: Final = 32 * 1024
"""Bytes of one event. Less than a pipe of Linux holds, so that a program may read when it likes, or never."""

STRING_LENGTH: Final = 1024
"""Characters of one string in an event, as many as the id of a session may have; more fit on no phone."""

STDERR_SIZE: Final = 2000
"""Bytes at the end of a program's stderr that are looked at when it has failed."""

STDERR_LINES: Final = 5
"""Lines of these that are logged: what a program says last is why it failed."""

TERM_GRACE: Final = 2.0
"""Seconds between SIGTERM and SIGKILL. A program that is told to stop has nothing to save, at most a file to remove."""

STDERR_TIMEOUT: Final = 1.0
"""Seconds that the end of stderr is waited for when a program has ended. It is in the pipe already, but something that
left the process group may have it open."""


class _Waiting:
    """Events by identity: these take turns, so that the many events of one keep no others waiting."""

    def __init__(self) -> None:
        # The one whose turn is next at the beginning.
        self._by_identity: dict[str, deque[tuple[str, bytes]]] = {}
        self._count = self._size = 0

    def __len__(self) -> int:
        return self._count

    def add(self, identity: str, event: str, line: bytes) -> bool:
        """Add an event; return False if one had to be dropped, which may be this one."""
        self._by_identity.setdefault(identity, deque()).append((event, line))
        self._count += 1
        self._size += len(line)
        is_room = True
        while self._count > MAX_WAITING or self._size > MAX_WAITING_SIZE:
            is_room = False
            most = max(self._by_identity, key=lambda name: len(self._by_identity[name]))
            events = self._by_identity[most]
            ends = (at for at in range(len(events) - 1, -1, -1) if events[at][0] == "turn_end")
            at = next(ends, len(events) - 1)
            self._forget(events[at][1])
            del events[at]
            if not events:
                del self._by_identity[most]
        return is_room

    def take(self) -> tuple[str, bytes]:
        """Remove an event of the identity whose turn it is, and return it."""
        identity, events = next(iter(self._by_identity.items()))
        taken = events.popleft()
        self._forget(taken[1])
        del self._by_identity[identity]
        if events:
            self._by_identity[identity] = events
        return taken

    def _forget(self, line: bytes) -> None:
        self._count -= 1
        self._size -= len(line)


class Hooks:
    """The configured programs, and the events that wait for them. To be used in one Trio thread.

    Args:
        section: the configured programs.
        environment: the gateway's own; a program inherits the same default variables as an agent.
    """

    def __init__(self, section: HooksSection, environment: Mapping[str, str]) -> None:
        self.configure(section)
        self._environment = inherited_environment(environment)
        # Events that no program was started for yet, each as its line, and the bytes of these lines.
        self._waiting = _Waiting()
        # True if the log has reported dropped events; once is enough until the queue is empty again.
        self._dropping = False
        # The workers wait here for events.
        self._idle = trio.lowlevel.ParkingLot()

    def configure(self, section: HooksSection) -> None:
        """Run these programs from now on. A program that runs goes on."""
        self._commands: dict[str, tuple[str, ...] | None] = {
            "permission_waiting": section.on_permission_waiting,
            "turn_end": section.on_turn_end,
        }
        self._timeout = section.timeout

    def wants(self, event: str) -> bool:
        """Check whether a program is configured for an event; without one, its details need not be collected."""
        return bool(self._commands.get(event))

    def fire(self, event: str, details: Mapping[str, Any]) -> None:
        """Queue an event for its program, if one is configured.

        Neither raises nor waits. If the queue is full, an event of the identity with most of them is dropped, with a
        line in the log.

        Args:
            event: `"permission_waiting"` or `"turn_end"`.
            details: members of the JSON object that the program gets besides `event` and `time`.
        """
        if not self.wants(event):
            return
        try:
            line = encode(event, details)
        except (TypeError, ValueError, RecursionError) as error:
            # Its text may quote what could not be encoded.
            log.error("hooks.on_%s: dropped an event that is not JSON (%s)", event, type(error).__name__)
            return
        if not self._waiting.add(str(details.get("identity")), event, line) and not self._dropping:
            self._dropping = True
            log.warning(
                "hooks.on_%s: %d events wait for their programs already; further ones are dropped",
                event,
                len(self._waiting),
            )
        self._idle.unpark()

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Start programs for events until cancelled; then those that run are stopped, within `TERM_GRACE` seconds."""
        async with trio.open_nursery() as nursery:
            for _ in range(MAX_PROGRAMS):
                nursery.start_soon(self._work)
            task_status.started()

    async def _work(self) -> None:
        """Run one program after another."""
        while True:
            while not self._waiting:
                await self._idle.park()
            event, line = self._waiting.take()
            if not self._waiting:
                self._dropping = False
            try:
                await self._run_program(event, line)
            except Exception:
                # No message depends on a hook, so a bug in here must not end the gateway.
                log.exception("hooks.on_%s: a bug of the gateway", event)

    async def _run_program(self, event: str, line: bytes) -> None:
        """Run the program for an event to its end."""
        command = self._commands[event]
        if not command:
            return  # Another configuration has none.
        # Not its arguments: they may hold the secret of a push service.
        name = command[0]
        # Its time begins before it does: a slow disk counts.
        its_time = trio.CancelScope(deadline=trio.current_time() + self._timeout)
        try:
            process = await trio.lowlevel.open_process(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env=self._environment,
                start_new_session=True,
            )
        except OSError as error:
            log.error("hooks.on_%s: %s cannot be started: %s", event, name, error.strerror)
            return
        # Before it can have read what it is told.
        give_limits_back(process.pid)
        assert process.stdin is not None
        assert process.stderr is not None
        stderr = bytearray()
        in_time = False
        async with process.stdin, process.stderr, trio.open_nursery() as nursery:
            stderr_read = trio.Event()
            nursery.start_soon(_write, process.stdin, line)
            nursery.start_soon(_read_end, process.stderr, stderr, stderr_read)
            try:
                with its_time:
                    await _exit(process)
                    in_time = True
            finally:
                with trio.CancelScope(shield=True):
                    await _stop(process, exited=in_time)
            with trio.move_on_after(STDERR_TIMEOUT):
                await stderr_read.wait()
            nursery.cancel_scope.cancel()
        if in_time and process.returncode == 0:
            log.debug("hooks.on_%s: %s has run", event, name)
            return
        how = _describe(process.returncode) if in_time else f"was killed after {self._timeout:g} s (hooks.timeout)"
        log.warning("hooks.on_%s: %s %s", event, name, how)
        for text in _last_lines(stderr):
            log.warning("hooks.on_%s: %s stderr: %s", event, name, text)


def encode(event: str, details: Mapping[str, Any]) -> bytes:
    """The line for a program: an object in JSON, in ASCII, of at most `LINE_SIZE` bytes, and a newline.

    Strings are cut to `STRING_LENGTH` characters; if that is not enough, the largest members of `details` are left
    out. Raises `TypeError`, `ValueError` or `RecursionError` for what can't be JSON.
    """
    head = {"event": event, "time": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")}
    members = {name: _cut(value) for name, value in details.items()}
    while len(line := _json(head | members) + b"\n") > LINE_SIZE:
        del members[max(members, key=lambda name: len(_json(members[name])))]
    return line


def _json(value: Any) -> bytes:
    # In ASCII because agents send halves of surrogate pairs, which UTF-8 can't say.
    return json.dumps(value, allow_nan=False).encode("ascii")


def _cut(value: Any) -> Any:
    """The value, with no string in it longer than `STRING_LENGTH`."""
    if isinstance(value, str):
        return value if len(value) <= STRING_LENGTH else value[: STRING_LENGTH - 1] + "…"
    if isinstance(value, Mapping):
        return {name: _cut(member) for name, member in value.items()}
    if isinstance(value, list | tuple):
        return [_cut(element) for element in value]
    return value


async def _write(stdin: trio.abc.SendStream, line: bytes) -> None:
    async with stdin:
        try:
            await stdin.send_all(line)
        except trio.BrokenResourceError:
            pass  # The program doesn't want to know more than that something has happened.


async def _read_end(stderr: trio.abc.ReceiveStream, end: bytearray, all_read: trio.Event) -> None:
    """Read all of stderr, so that the program is not held up, and keep the end of it."""
    async for data in stderr:
        end += data
        del end[:-STDERR_SIZE]
    all_read.set()


async def _exit(process: trio.Process) -> None:
    """Wait until a program has exited, without reaping it where the system can do that.

    Until it is reaped, its id can't become that of another group, which would be killed instead.
    """
    try:
        descriptor = os.pidfd_open(process.pid)
    except (AttributeError, OSError):
        # Not Linux, or an old one, or there is no descriptor left.
        await process.wait()
        return
    try:
        await trio.lowlevel.wait_readable(descriptor)
    finally:
        os.close(descriptor)


async def _stop(process: trio.Process, *, exited: bool) -> None:
    """End a program, politely unless it has `exited` by itself, and what else is in its group; then reap it."""
    if not exited:
        _signal(process, signal.SIGTERM)
        with trio.move_on_after(TERM_GRACE):
            await _exit(process)
    _signal(process, signal.SIGKILL)
    await process.wait()


def _signal(process: trio.Process, number: signal.Signals) -> None:
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        pass  # All of the group have ended.
    except PermissionError:
        pass  # macOS says so of a group in which there are only zombies.


def _describe(exit_code: int | None) -> str:
    assert exit_code is not None
    return f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with exit code {exit_code}"


def _last_lines(stderr: bytearray) -> list[str]:
    """The last lines that a program wrote, without what would break a line of the log or rewrite a terminal."""
    text = stderr.decode(errors="replace")
    lines = [printable(line, size=STDERR_SIZE) for line in text.split("\n")]
    return [line for line in lines if line][-STDERR_LINES:]
