"""Shared parts of the runners: limits, lines of output, the end of a process group."""

import os
import signal
from dataclasses import dataclass
from typing import Final

import trio
from trio.abc import ReceiveStream

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
