"""The I/O of `watch`: shows a session in the terminal, and answers the agent's questions by keys."""

import codecs
import math
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

import trio

from acp_gateway import __version__
from acp_gateway.client.dialing import Destination
from acp_gateway.client.ports.session_ports import SessionPorts
from acp_gateway.client.session_link import SessionLink
from acp_gateway.client.shim import LinkState, Settings
from acp_gateway.errors import GatewayError
from acp_gateway.terminal.content import Option
from acp_gateway.terminal.dialogue import FILL_IN, Closed, Dialogue, Event, Question
from acp_gateway.terminal.port_lines import Port, node_of, tell_ports, way_to
from acp_gateway.terminal.watching import STEERING, Watcher, json_line, link_json_line, ports_json_line

_STEER: Final = "s"
"""Key that begins a text for the turn that runs."""

READ_SIZE: Final = 1024
"""Bytes read at once: more than a person types."""


def has_keyboard() -> bool:
    """Return whether keys can be read: stdin and stdout are a terminal, and this process is in its foreground."""
    try:
        if sys.platform == "win32" or not (sys.stdin.isatty() and sys.stdout.isatty()):
            return False
        return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()
    except (AttributeError, OSError, ValueError):
        return False  # Closed, or no terminal of this process.


@contextmanager
def single_keys() -> Iterator[None]:
    """Have the terminal pass on each key at once, without echo; Ctrl-C still interrupts. Restored at the end."""
    if sys.platform == "win32":
        raise NotImplementedError
    import termios
    import tty

    fd = sys.stdin.fileno()
    before = termios.tcgetattr(fd)
    tty.setcbreak(fd, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(fd, termios.TCSADRAIN, before)


async def keep_single_keys() -> None:
    """Within `single_keys`, set the mode again whenever the process continues after Ctrl-Z: shells restore their own.

    Runs until it is cancelled.
    """
    if sys.platform == "win32":
        raise NotImplementedError
    import termios
    import tty

    with trio.open_signal_receiver(signal.SIGCONT) as signals:
        async for _ in signals:
            tty.setcbreak(sys.stdin.fileno(), termios.TCSADRAIN)


async def read_keys(handle: Callable[[str], None], wants_text: Callable[[], bool] = lambda: False) -> None:
    """Pass on characters as they are typed one by one, until the terminal is gone.

    Several that come at once are an escape sequence, or a paste, whose letters are not keys: they are passed on only
    while `wants_text` returns True.
    """
    fd = sys.stdin.fileno()
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    while True:
        await trio.lowlevel.wait_readable(fd)
        try:
            data = os.read(fd, READ_SIZE)
        except OSError:
            return
        if not data:
            return
        typed = decoder.decode(data)
        if wants_text() or (len(typed) == 1 and typed != "\x1b"):
            handle(typed)


async def write_text(text: str) -> None:
    """Write to stdout, in a thread: a terminal that was stopped by Ctrl-S, or a pipe without a reader, may block.

    Characters that the encoding of stdout lacks become question marks. Cancelling abandons the thread. Raises
    `OSError`.
    """
    if text:
        data = text.encode(sys.stdout.encoding or "utf-8", "replace")
        await trio.to_thread.run_sync(_write, sys.stdout.fileno(), data, abandon_on_cancel=True)


def _write(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    try:
        while rest:
            rest = rest[os.write(fd, rest) :]
    except OSError as error:
        raise OSError(error.errno, error.strerror, "stdout") from None


HELD_TIME: Final = 0.3
"""Seconds without more of a message after which the characters that were held back are written: tokens of a model come
faster."""

LAST_WORDS: Final = 1.0
"""Seconds for writing the rest at the end: a reader that has stopped must not hold it up."""


class _Display:
    """Writes what a watcher says, or lines of JSON without one.

    Args:
        watcher: None for JSON.
    """

    def __init__(self, watcher: Watcher | None) -> None:
        self._watcher = watcher
        self._json: list[str] = []
        self._lost_at: float | None = None
        # True while text is being written; unparked by new text, and when all was written.
        self._writing = False
        self._changed = trio.lowlevel.ParkingLot()
        self.ended = False
        """True after the last event: the session was closed, or its agent has ended."""

    async def run(self) -> None:
        """Write until the last event is written. Raises `OSError`."""
        while True:
            text = self._take()
            self._writing = bool(text)
            if text:
                await write_text(text)
            elif self.ended:
                return
            else:
                self._changed.unpark_all()
                await self._wait()

    async def _wait(self) -> None:
        """Wait for more to be written; a watcher has something to write after a pause of the agent too."""
        if self._watcher is None:
            await self._changed.park()
            return
        held_until = trio.current_time() + HELD_TIME if self._watcher.is_holding else math.inf
        with trio.move_on_at(min(held_until, self._watcher.silence_due)) as pause:
            await self._changed.park()
        if pause.cancelled_caught:
            self._watcher.flush()
            self._watcher.write_silence(trio.current_time())

    async def receive(self, events: Sequence[Event]) -> None:
        """Show events, and wait until they are written."""
        self.ended = self.ended or any(isinstance(event, Closed) for event in events)
        if self._watcher is None:
            self._json += map(json_line, events)
        else:
            self._watcher.receive(events, trio.current_time())
        self._writing = True
        self._changed.unpark_all()
        while self._writing:
            await self._changed.park()

    def link_changed(self, state: LinkState) -> None:
        """Show that the connection was lost, or is back; not the first one."""
        now = trio.current_time()
        if state is LinkState.LOST:
            self._lost_at = now
            self._show_link("the connection was lost; connecting again", up=False)
        elif state is LinkState.RESTING:
            self.ended = True
            self._show_link("the agent has ended", up=False)
        elif self._lost_at is not None:
            self._show_link(f"connected again after {now - self._lost_at:.0f} s", up=True)
            self._lost_at = None

    def ports_changed(self, ports: Sequence[Port], target: str, session: str) -> None:
        """Show the ports of the session's programs."""
        if self._watcher is None:
            way = way_to(target, ports[0].number, node_of(session)) if ports else None
            self._json.append(ports_json_line(ports, way))
        elif ports:
            self._watcher.note(tell_ports(ports, target, session))
        self._changed.unpark_all()

    def answer(self, key: str) -> tuple[Question, Option] | None:
        """Return the question that a key answers, and the answer; None if it answers none, or shows more of it."""
        answer = None if self._watcher is None else self._watcher.key(key, trio.current_time())
        self._changed.unpark_all()
        return answer

    @property
    def is_typing(self) -> bool:
        """True while a form is filled in."""
        return self._watcher is not None and self._watcher.is_typing

    def begin_form(self, question: Question) -> None:
        """Ask for the fields of a form."""
        if self._watcher is not None:
            self._watcher.begin_form(question)
            self._changed.unpark_all()

    def type(self, text: str) -> tuple[Question, Mapping[str, object]] | None:
        """Take what was typed for a form; return the form and its content when it is complete."""
        typed = None if self._watcher is None else self._watcher.type(text)
        self._changed.unpark_all()
        return typed

    def answered(self, question: Question) -> None:
        """Show the next question, if there is one."""
        if self._watcher is not None:
            self._watcher.answered(question.id, trio.current_time())
            self._changed.unpark_all()

    def last_text(self) -> str:
        """Return what is still to be written at the end."""
        if self._watcher is not None:
            self._watcher.end()
        return self._take()

    def _show_link(self, text: str, *, up: bool) -> None:
        if self._watcher is None:
            self._json.append(link_json_line(up=up, text=text))
        else:
            self._watcher.link_changed(text, trio.current_time(), up=up)
        self._changed.unpark_all()

    def _take(self) -> str:
        if self._watcher is not None:
            return self._watcher.take()
        lines, self._json = self._json, []
        return "".join(lines)


async def watch_session(
    session: str,
    destination: Callable[[], Destination],
    settings: Callable[[Callable[[LinkState], None]], Settings],
    watcher: Watcher | None,
    *,
    interactive: bool,
    target: str,
    ask_ports: Callable[[], Awaitable[list[Port]]],
) -> None:
    """Show the session until it ends, SIGINT or SIGTERM comes, or stdout is closed.

    Args:
        session: its id.
        destination: called before each attempt to connect.
        settings: returns the settings of the link.
        watcher: writes the events; None to print JSON.
        interactive: answer questions by keys.
        target: the gateway, as the user names it.
        ask_ports: returns the ports of the session's programs. Raises `GatewayError`.

    Raises `GatewayError` if the link fails for good, and `OSError` if stdout can't be written.
    """
    display = _Display(watcher)
    dialogue = Dialogue(("acp-gateway watch", __version__), session=session)
    link = SessionLink(dialogue, destination, settings(display.link_changed))
    ports = SessionPorts(ask_ports, lambda found: display.ports_changed(found, target, session))
    failures: list[GatewayError | OSError] = []

    async def receive(events: list[Event]) -> None:
        ports.receive(events)
        await display.receive(events)

    async def until_end(task: Awaitable[None]) -> None:
        try:
            await task
        except (GatewayError, OSError) as error:
            failures.append(error)
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(until_end, _wait_for_signal())
        nursery.start_soon(until_end, display.run())
        nursery.start_soon(until_end, link.run(receive))
        nursery.start_soon(ports.run)
        if interactive:
            nursery.start_soon(_read_answers, link, display)
            nursery.start_soon(keep_single_keys)
    for failure in failures:
        if isinstance(failure, OSError):
            raise failure
    with trio.move_on_after(LAST_WORDS):
        await write_text(display.last_text())
    for failure in failures:
        raise failure


async def _read_answers(link: SessionLink, display: _Display) -> None:
    def handle(typed: str) -> None:
        if display.is_typing:
            filled = display.type(typed)
            if filled is None:
                return
            question, content = filled
            if question is STEERING:
                link.dialogue.prompt(str(content["text"]), steers=True)
            else:
                link.dialogue.fill_in(question, content)
        else:
            answer = display.answer(typed)
            if answer is None and typed == _STEER and link.dialogue.opened is not None:
                display.begin_form(STEERING)
            if answer is None:
                return
            question, option = answer
            if option.kind == FILL_IN:
                display.begin_form(question)
                return
            link.dialogue.answer(question, option)
        link.flush()
        display.answered(question)

    await read_keys(handle, lambda: display.is_typing)


async def _wait_for_signal() -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for _ in signals:
            return
