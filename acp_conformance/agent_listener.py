"""The command that a checked client runs as its agent, and the streams that come from it.

The command is one executable file without arguments. Clients take an agent's command in different forms: as a list, as
a line for a shell, as the name of a program. A path without special characters is right in all of them.
"""

import array
import os
import shlex
import socket
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from typing import Final

import trio

from acp_conformance import lent_agent
from acp_gateway.errors import ConfigError

MARK: Final = "# Written by acp-gateway check-client."
"""Second line of a file that may be overwritten."""

PATH_SIZE: Final = 90
"""Maximum bytes of the path of a unix socket on all systems, which allow 104 or more, less the margin for a name."""

LENT_SIZE: Final = len(lent_agent.LENT) * array.array("i").itemsize


class LentStreams:
    """The stdin and stdout of one agent that the client has started, and the way to its process.

    Attributes:
        stdin: what the client writes.
        stdout: what the client reads.
    """

    def __init__(self, control: trio.socket.SocketType, stdin: int, stdout: int) -> None:
        self._control = control
        self.stdin = trio.lowlevel.FdStream(stdin)
        self.stdout = trio.lowlevel.FdStream(stdout)

    async def write_noise(self, size: int) -> None:
        """Have the agent write bytes to stderr; return when they are written, or it is gone."""
        with suppress(OSError, trio.ClosedResourceError):
            await self._control.send(b"stderr %d\n" % size)
            await self._control.recv(1)

    async def until_gone(self) -> None:
        """Wait until the process of the agent has ended. Not to be called while it writes noise."""
        with suppress(OSError, trio.ClosedResourceError):
            while await self._control.recv(1):
                pass

    async def aclose(self, exit_code: int = 0) -> None:
        """Close the streams, and have the agent end with a code. Cancelling closes them as well."""
        with trio.CancelScope(shield=True):
            with suppress(OSError, trio.ClosedResourceError):
                await self._control.send(b"exit %d\n" % exit_code)
            self._control.close()
            await self.stdin.aclose()
            await self.stdout.aclose()


class AgentListener:
    """Listens for the agents that the client starts.

    Attributes:
        command: the executable that is the agent.
    """

    def __init__(self, command: str, listener: trio.socket.SocketType) -> None:
        self.command = command
        self._listener = listener

    async def accept(self) -> LentStreams:
        """Wait for the next agent. Cancelling may end one that has just connected."""
        while True:
            control, _ = await self._listener.accept()
            try:
                _, sent, _, _ = await control.recvmsg(1, socket.CMSG_LEN(LENT_SIZE))
            except OSError:
                sent = []
            except trio.Cancelled:
                control.close()
                raise
            found = array.array("i")
            for level, kind, data in sent:
                if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                    found.frombytes(data[: len(data) - len(data) % found.itemsize])
            for each in found:
                os.set_inheritable(each, False)
            if len(found) == len(lent_agent.LENT):
                return LentStreams(control, *found)
            for each in found:
                os.close(each)
            control.close()


@asynccontextmanager
async def open_listener(path: Path | None = None) -> AsyncIterator[AgentListener]:
    """Open a listener, and remove its files at the end.

    Args:
        path: the file of the command, in place of a temporary one: a client's settings may name it.

    Raises `ConfigError` if the file cannot be written, or if there is one that is not of this program.
    """
    with _short_directory() as directory, trio.socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        await listener.bind(str(directory / "s"))
        listener.listen(16)
        command = (path or directory / "agent").absolute()
        _write_command(command, directory / "s")
        try:
            yield AgentListener(str(command), listener)
        finally:
            command.unlink(missing_ok=True)


@contextmanager
def _short_directory() -> Iterator[Path]:
    """Make a private directory whose path is short and has no character that a shell would read."""
    places = (tempfile.gettempdir(), "/tmp", "/var/tmp")  # noqa: S108
    fit = (place for place in places if shlex.quote(place) == place and len(os.fsencode(place)) < PATH_SIZE - 30)
    with tempfile.TemporaryDirectory(prefix="acp-check-", dir=next(fit, None), ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def _write_command(command: Path, address: Path) -> None:
    program = shlex.join([sys.executable, "-I", "-S", str(Path(lent_agent.__file__).absolute()), str(address)])
    try:
        if command.exists() and MARK not in command.read_text(errors="replace").splitlines()[1:2]:
            raise ConfigError("is there already, and was not written by this command", file=str(command))
        command.write_text(f"#!/bin/sh\n{MARK}\nexec {program}\n")
        command.chmod(0o700)
    except OSError as error:
        raise ConfigError(f"cannot be written: {error.strerror}", file=str(command)) from None
