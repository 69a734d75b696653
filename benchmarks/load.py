"""Runs the load generator, `native/load.c`, and reads what it has measured.

It is compiled from all of `native/load*.c`, with `-DWITH_TLS` and `-lssl -lcrypto` where OpenSSL's headers are; without
them it has no `--tls`. Without arguments it prints its modes and options, which are given to `run` and `start` as
keywords: `load.run("stream", where, count=20_000, batch=50, size=200)`.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Literal

SIZE: Final = 200
"""Bytes of an update: a few words of an agent."""

TIMEOUT: Final = 60.0
"""Seconds for a whole run, its connections included."""

GRACE: Final = 5.0
"""Seconds after which a program that has not kept to its timeout is ended."""

FLAGS: Final = {"resume"}
"""Options without a value."""


class LoadFailed(Exception):
    """A run has failed; the message is what there is to say about it, in one line."""


@dataclass(frozen=True)
class Where:
    """What a load is put on, and how it is reached."""

    kind: Literal["ws", "lines", "exec"]
    """Over a WebSocket, in lines over TCP, or in lines over the pipes of a child."""
    address: str = ""
    """`host:port`, with a path for a WebSocket."""
    tls: bool = False
    token: str | None = field(default=None, repr=False)
    subprotocol: str | None = None
    """What a WebSocket's client offers to speak."""
    command: tuple[str, ...] = ()
    """Of the child."""

    def arguments(self) -> list[str]:
        """What stands for it on the command line, at its end."""
        if self.kind == "exec":
            return ["--exec", "--", *self.command]
        tls = ["--tls"] if self.tls else []
        subprotocol = ["--subprotocol", self.subprotocol] if self.subprotocol else []
        return [*tls, *subprotocol, f"--{self.kind}", self.address]

    def environment(self) -> dict[str, str]:
        """With the token, which is nothing for a command line that everybody can read."""
        others = {name: value for name, value in os.environ.items() if name != "LOAD_TOKEN"}
        return others if self.token is None else others | {"LOAD_TOKEN": self.token}


@dataclass(frozen=True)
class Held:
    """A load that has come to its result, and stays."""

    result: dict[str, Any]
    pid: int


class Load:
    """The load generator."""

    def __init__(self, program: Path) -> None:
        self._program = program

    def run(self, mode: str, where: Where, timeout: float = TIMEOUT, **options: int | str | bool) -> dict[str, Any]:
        """What was measured; seconds are those of the measured part only.

        Raises `LoadFailed`.
        """
        with self.start(mode, where, timeout, **options) as held:
            return held.result

    @contextmanager
    def start(self, mode: str, where: Where, timeout: float = TIMEOUT, **options: int | str | bool) -> Iterator[Held]:
        """Wait for the result, and for `idle` hold its connections until the end of the block.

        `timeout` seconds are for the time until the result. Raises `LoadFailed`, at the end as well.
        """
        command = [str(self._program), mode, "--timeout", str(timeout), *_arguments(options), *where.arguments()]
        with (
            tempfile.TemporaryFile() as stderr,
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=where.environment()
            ) as process,
        ):
            try:
                assert process.stdout is not None
                # It keeps to its timeout by itself.
                line = process.stdout.readline()
                if not line:
                    process.wait(GRACE)
                    raise LoadFailed(_complaint(stderr, mode, process.returncode))
                yield Held(json.loads(line), process.pid)
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
    """What the program said, and the last that a child of it did."""
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").splitlines()
    own = [line.removeprefix("load: ") for line in lines if line.startswith("load: ")]
    others = [line for line in lines if line and not line.startswith("load: ")]
    said = "; ".join(own) or f"it ended with {code}"
    return f"{mode}: {said}" + (f" (its child: {others[-1]})" if others else "")
