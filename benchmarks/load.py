"""Runs the load generators, `native/load.c` and for Streamable HTTP `http_load.py`, and parses their measurements.

The first is compiled from all of `native/load*.c`, with `-DWITH_TLS` and `-lssl -lcrypto` if OpenSSL's headers are
installed; otherwise it has no `--tls`. Run without arguments, it prints its modes and options. `run` and `start` take
the options as keywords: `load.run("stream", endpoint, count=20_000, batch=50, size=200)`.
"""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal

SIZE: Final = 200
"""Bytes of an update; with the JSON around it, a few words of text."""

TIMEOUT: Final = 60.0
"""Seconds for a whole run, connecting included."""

GRACE: Final = 5.0
"""Seconds beyond its own timeout after which the load generator is killed."""

HTTP_LOAD: Final = (sys.executable, "-m", "benchmarks.http_load")

FLAGS: Final = {"resume"}
"""Options that take no value."""


class LoadFailed(Exception):
    """A run has failed; the message gives the reason in one line."""


@dataclass(frozen=True)
class Endpoint:
    """Address of a relay, and how to connect to it."""

    kind: Literal["ws", "http", "lines", "exec"]
    """WebSocket, Streamable HTTP, newline-delimited JSON over TCP, or the same over the pipes of a child process."""
    address: str = ""
    """`host:port`, followed by a path for a WebSocket and for HTTP."""
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    subprotocol: str | None = None
    """WebSocket subprotocol that the client offers."""
    command: tuple[str, ...] = ()
    """Command line of the child process."""

    def arguments(self) -> list[str]:
        """Return the last arguments of the load generator's command line."""
        if self.kind == "exec":
            return ["--exec", "--", *self.command]
        tls = ["--tls"] if self.tls else []
        subprotocol = ["--subprotocol", self.subprotocol] if self.subprotocol else []
        return [*tls, *subprotocol, f"--{self.kind}", self.address]

    def environment(self) -> dict[str, str]:
        """Return the environment with the token: command lines are readable by other users, the environment isn't."""
        others = {name: value for name, value in os.environ.items() if name != "LOAD_TOKEN"}
        return others if self.token is None else others | {"LOAD_TOKEN": self.token}


@dataclass(frozen=True)
class HeldLoad:
    """A load that has reported its result and keeps its connections open."""

    result: dict[str, Any]
    pid: int


class Load:
    """The load generator."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def run(
        self, mode: str, endpoint: Endpoint, timeout: float = TIMEOUT, **options: int | str | bool
    ) -> dict[str, Any]:
        """Run a load and return its measurements; `seconds` covers the measured part only.

        Raises `LoadFailed`.
        """
        with self.start(mode, endpoint, timeout, **options) as held:
            return held.result

    @contextmanager
    def start(
        self, mode: str, endpoint: Endpoint, timeout: float = TIMEOUT, **options: int | str | bool
    ) -> Iterator[HeldLoad]:
        """Start a load, wait for its result, and in mode `idle` hold its connections until the end of the block.

        `timeout` limits the seconds until the result. Raises `LoadFailed`, also at the end of the block.
        """
        program = HTTP_LOAD if endpoint.kind == "http" else (str(self._program),)
        command = [*program, mode, "--timeout", str(timeout), *_arguments(options), *endpoint.arguments()]
        with (
            tempfile.TemporaryFile() as stderr,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=endpoint.environment()
            ) as process,
        ):
            try:
                assert process.stdout is not None
                # The load generator enforces the timeout itself.
                line = process.stdout.readline()
                if not line:
                    process.wait(GRACE)
                    raise LoadFailed(_complaint(stderr, mode, process.returncode))
                yield HeldLoad(json.loads(line), process.pid)
                process.communicate(timeout=GRACE)
                if process.returncode:
                    raise LoadFailed(_complaint(stderr, mode, process.returncode))
            except subprocess.TimeoutExpired:
                raise LoadFailed(f"{mode}: the load generator did not end") from None
            finally:
                process.kill()


def _arguments(options: dict[str, int | str | bool]) -> Iterator[str]:
    for name, value in options.items():
        option = f"--{name.replace('_', '-')}"
        if name not in FLAGS:
            yield from (option, str(int(value) if isinstance(value, bool) else value))
        elif value:
            yield option


def _complaint(stderr: IO[bytes], mode: str, code: int) -> str:
    """Return the load generator's error messages and the last line of its child."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").splitlines()
    own = [line.removeprefix("load: ") for line in lines if line.startswith("load: ")]
    others = [line for line in lines if line and not line.startswith("load: ")]
    said = "; ".join(own) or f"exit code {code}"
    return f"{mode}: {said}" + (f" (its child: {others[-1]})" if others else "")
