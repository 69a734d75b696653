"""Runs Redis or Valkey for tests: on loopback, on a free port, without persistence, ended by its id."""

import shutil
import signal
import socket
import subprocess
from io import BufferedRWPair
from typing import Any, Self

from tests.kit.free_ports import free_port

PROGRAMS = ("redis-server", "valkey-server")


class RedisServer:
    """A server that can be ended, paused and started again at the same port.

    Args:
        options: further ones of its command line.
        port: its port; a free one if None.
    """

    def __init__(self, *options: str, port: int | None = None) -> None:
        self.port = free_port() if port is None else port
        self.url = f"redis://127.0.0.1:{self.port}"
        self._options = options
        self._process: subprocess.Popen[str] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def start(self) -> None:
        """Start it, and wait until it accepts connections."""
        program = next(path for path in map(shutil.which, PROGRAMS) if path is not None)
        command = [program, "--bind", "127.0.0.1", "--port", str(self.port), "--save", "", "--appendonly", "no"]
        self._process = subprocess.Popen(
            [*command, *self._options], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, cwd="/"
        )
        assert self._process.stdout is not None
        lines = []
        for line in self._process.stdout:
            lines.append(line)
            if "ready to accept" in line.lower():
                return
        self.kill()
        raise AssertionError("".join(lines))

    def kill(self) -> None:
        """End it at once, if it runs."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            assert self._process.stdout is not None
            self._process.stdout.close()
            self._process = None

    def pause(self) -> None:
        """Let it hang."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def go_on(self) -> None:
        """End a pause."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def ask(self, *words: str) -> Any:
        """Return the answer to a command: text, a number, None, or a list of these. An error fails the test."""
        command = "".join(f"${len(word.encode())}\r\n{word}\r\n" for word in words)
        with socket.create_connection(("127.0.0.1", self.port), 60) as connection, connection.makefile("rwb") as stream:
            stream.write(f"*{len(words)}\r\n{command}".encode())
            stream.flush()
            return _answer(stream)


def _answer(stream: BufferedRWPair) -> Any:
    line = stream.readline().decode().rstrip()
    kind, rest = line[:1], line[1:]
    if kind == "+":
        return rest
    assert kind in (":", "$", "*"), line
    number = int(rest)
    if kind == ":":
        return number
    if number < 0:
        return None
    if kind == "*":
        return [_answer(stream) for _ in range(number)]
    return stream.read(number + 2)[:-2].decode(errors="replace")
