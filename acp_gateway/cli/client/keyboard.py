"""Keys of the terminal that a command is run in, and text written to it without blocking the event loop."""

import codecs
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import trio

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


async def read_keys(handle: Callable[[str], None]) -> None:
    """Pass on characters as they are typed one by one, until the terminal is gone.

    Several that come at once are an escape sequence, or a paste, whose letters are not keys.
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
        if len(typed) == 1 and typed != "\x1b":
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
