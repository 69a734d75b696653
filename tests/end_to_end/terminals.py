"""A program in a terminal: a pseudo-terminal on one side, an emulated screen on the other."""

import fcntl
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pyte

from tests.end_to_end.traces import TRACES
from tests.kit.running import ENVIRONMENT, PROGRAM

TIMEOUT = 60.0
"""Seconds until a screen must show what is waited for."""


_TAKE_TERMINAL = (
    "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
)
"""Makes its terminal that of its session, so that Ctrl-C is a signal, and runs a program."""


class Terminal:
    """A running program, and its screen.

    Args:
        process: the program, whose stdin, stdout and stderr are the terminal.
        master: the other side of the terminal.
    """

    def __init__(self, process: subprocess.Popen[bytes], master: int, columns: int, rows: int) -> None:
        self.process = process
        self._master = master
        self.screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self.screen)
        self.output = b""
        """All that the program has written."""

    @property
    def lines(self) -> list[str]:
        """The lines of the screen, without those that are empty at its end."""
        lines = [line.rstrip() for line in self.screen.display]
        while lines and not lines[-1]:
            lines.pop()
        return lines

    def type(self, keys: str) -> None:
        """Type characters."""
        os.write(self._master, keys.encode())

    def until(self, condition: Callable[[], bool]) -> None:
        """Read on until a condition of the screen holds."""
        deadline = time.monotonic() + TIMEOUT
        while not condition():
            assert select.select([self._master], [], [], max(deadline - time.monotonic(), 0))[0], self.lines
            assert self._read(), self.lines

    def until_shown(self, text: str) -> list[str]:
        """Read on until a line of the screen contains `text`, and return the lines."""
        self.until(lambda: any(text in line for line in self.lines))
        return self.lines

    def press_until_shown(self, key: str, text: str) -> list[str]:
        """Type a key until a line contains `text`, each second: for a moment it may not count.

        One that was typed again may show in a line of its own.
        """
        deadline, again = time.monotonic() + TIMEOUT, 0.0
        while not any(text in line for line in self.lines):
            now = time.monotonic()
            assert now < deadline, self.lines
            if now >= again:
                self.type(key)
                again = now + 1.0
            if select.select([self._master], [], [], max(again - now, 0))[0]:
                assert self._read(), self.lines
        return self.lines

    def end(self) -> int:
        """Read to the end of the program, and return its exit code."""
        while select.select([self._master], [], [], TIMEOUT)[0] and self._read():
            pass
        return self.process.wait(TIMEOUT)

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65536)
        except OSError:
            return False  # The program has closed its side.
        self.output += data
        self._stream.feed(data)
        return bool(data)


@contextmanager
def terminal(*arguments: str | Path, columns: int = 80, rows: int = 24, **variables: str) -> Iterator[Terminal]:
    """Run the program in a terminal. It is killed at the end if it still runs."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _TAKE_TERMINAL, *PROGRAM, *map(str, arguments)],
        env=ENVIRONMENT | {"TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONPATH": os.getcwd()} | variables,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        start_new_session=True,
    )
    os.close(slave)
    running = Terminal(process, master, columns, rows)
    try:
        yield running
    finally:
        process.kill()
        process.wait()
        os.close(master)
        TRACES.note("a terminal", running.output.decode(errors="replace"))
