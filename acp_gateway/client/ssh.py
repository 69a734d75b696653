"""A command on another machine by the user's own ssh: how it is started there, and its input and output as bytes.

Everything about the way there (keys, jump hosts, names) is the business of ssh and its configuration. Nothing may ask
for anything where nobody would see it: what needs a password fails, but for pairing in a terminal.

Login shells are of all kinds, and many say something before they run a command. So the command is one `sh -c '…'` in
words that every shell reads alike, and what the program says there begins at a line with a number that was drawn for
this one connection.
"""

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

import trio

from acp_gateway import INSTALL
from acp_gateway.config.addresses import Address
from acp_gateway.errors import (
    AccessError,
    ConfigError,
    GatewayError,
    ProtocolError,
    TrustError,
    Unreachable,
    UsageError,
)
from acp_gateway.printable import printable
from acp_gateway.transports.streams import READ_SIZE, ByteStream, TrioBytes

SAID_SIZE: Final = 1024 * 1024
"""Bytes that may come until the program there has spoken, and that it may say at once: more than any greeting."""

STDERR_SIZE: Final = 8192
"""Bytes of stderr that are kept, the last ones: a warning of ssh's in a box of its own is 1 KiB."""

LAST_WORDS: Final = 1.0
"""Seconds that the end of the process and the rest of its stderr are waited for when its output has ended."""

TERM_GRACE: Final = 1.0
"""Seconds from SIGTERM, which has ssh end what it started itself, to SIGKILL."""

_FIRST: Final = ("RemoteCommand=none",)
_NO_QUESTIONS: Final = ("BatchMode=yes",)
"""Options that nothing goes before: of each the first one counts."""

_DEFAULTS: Final = (
    # What a person's own sessions forward would be in the way, or fail here because it is forwarded already.
    "ClearAllForwardings=yes",
    # A connection that others need must not end with this one; one that is there is used.
    "ControlMaster=no",
    # Without greetings, so that the last line of stderr is what went wrong.
    "LogLevel=ERROR",
    # Within the time of an attempt, so that the failure has ssh's own words.
    "ConnectTimeout=10",
    # A dead network is noticed by both ends of a link, and by ssh itself, which else would wait for hours.
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
)

# No quotation mark, backslash, exclamation mark or end of a line: csh and fish read those in their own way.
_FIND_PROGRAM: Final = (
    "program=$1; shift; "
    'case $program in "~/"*) program=$HOME/${program#"~/"};; esac; '
    'if [ -z "$program" ]; then '
    'for program in "$(command -v acp-gateway)" "$HOME/.local/bin/acp-gateway" /usr/local/bin/acp-gateway '
    "/opt/acp-gateway/bin/acp-gateway /opt/homebrew/bin/acp-gateway "
    '"$HOME/.venv/bin/acp-gateway" "$HOME/acp-gateway/.venv/bin/acp-gateway"; do '
    'case $program in /*) if [ -x "$program" ]; then break; fi;; esac; program=; done; fi; '
    'if [ -z "$program" ]; then exit 127; fi; '
    'exec "$program" "$@"'
)

_CHANGED: Final = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_FINGERPRINT: Final = re.compile(r"SHA256:[0-9A-Za-z+/=]+")
_NOT_VERIFIED: Final = "Host key verification failed"
_NOT_ALLOWED: Final = re.compile(
    r"Permission denied|authentication failures|No supported authentication", re.IGNORECASE
)
_TOO_OLD: Final = re.compile(r"No such (command|option)")

_SSH_FAILED: Final = 255
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127


@dataclass(frozen=True, slots=True)
class Way:
    """How a machine is reached, and what is run there."""

    address: Address
    """With the scheme `ssh`."""
    command: str | None = None
    """The path of this program there, which may begin with `~/`; None to look for it."""
    options: tuple[str, ...] = ()
    """Further options of ssh, each as `Name=value`."""
    asks: bool = False
    """Whether ssh may ask for a password in the terminal."""

    def arguments(self) -> list[str]:
        """Options of ssh and the host, for what comes behind them to be the command there."""
        address = self.address
        options = [*(() if self.asks else _NO_QUESTIONS), *_FIRST, *self.options, *_DEFAULTS]
        return [
            *("-T", "-a", "-x"),
            *(word for option in options for word in ("-o", option)),
            *(("-p", str(address.port)) if address.port else ()),
            *(("-l", address.user) if address.user else ()),
            *("--", address.host),
        ]

    @property
    def login(self) -> str:
        """What a person would give to ssh."""
        return f"{self.address.user}@{self.address.host}" if self.address.user else self.address.host

    def __str__(self) -> str:
        return f"ssh to {self.login}"


def remote_command(command: str | None, arguments: Sequence[str]) -> str:
    """What any login shell understands as: find this program, which may be at `command`, and run it with these."""
    return shlex.join(["sh", "-c", _FIND_PROGRAM, "acp-gateway", command or "", *arguments])


def mark(what: str, edge: Literal["BEGIN", "END"], nonce: str) -> str:
    """The line before, or behind, what the program says there."""
    return f"=== acp-gateway {what} 1 {edge} {nonce} ==="


async def open_relay(way: Way) -> "SshBytes":
    """A stream of bytes to the unix socket of a gateway: the address's own, else the first of its configuration.

    Raises `Unreachable`, `TrustError`, `AccessError`, `ConfigError`, `ProtocolError`. Cancelling ends ssh.
    """
    nonce = secrets.token_hex(16)
    path = way.address.path
    stream = await _start(way, ["relay", "--nonce", nonce, *(["--socket", path] if path else [])])
    try:
        await stream.read_past(mark("relay", "BEGIN", nonce))
    except BaseException:
        await stream.aclose()
        raise
    return stream


class RemoteCommand:
    """A command of this program on another machine that is told lines, and answers each between its marks.

    Everything here raises what `open_relay` does, and `UsageError` where that is what the program raises there.
    """

    def __init__(self, stream: "SshBytes", what: str, nonce: str) -> None:
        self._stream = stream
        self._what = what
        self._nonce = nonce

    async def read_answer(self) -> bytes:
        """Return what the program says between the next two marks."""
        await self._stream.read_past(mark(self._what, "BEGIN", self._nonce))
        return await self._stream.read_past(mark(self._what, "END", self._nonce))

    async def ask(self, line: str) -> bytes:
        """Tell the program a line, and return the answer."""
        rest = memoryview(f"{line}\n".encode())
        try:
            while rest:
                rest = rest[await self._stream.send_some(rest) :]
        except trio.BrokenResourceError:
            pass  # Why it has ended is what reading says.
        return await self.read_answer()

    async def aclose(self) -> None:
        """End ssh, and with it the program."""
        await self._stream.aclose()


async def start_command(way: Way, what: str, arguments: Sequence[str]) -> RemoteCommand:
    """Start a command of this program there, with `--nonce` added to its arguments. Raises `ConfigError`."""
    nonce = secrets.token_hex(16)
    return RemoteCommand(await _start(way, [*arguments, "--nonce", nonce]), what, nonce)


async def find_host_name(way: Way) -> str:
    """What ssh's configuration says that the host is really called: a name, or an IP address."""
    process = await trio.run_process(
        [_program(), "-G", *way.arguments()],
        capture_stdout=True,
        stderr=subprocess.DEVNULL,
        env=_environment(),
        check=False,
        **_NO_WINDOW,
    )
    for line in process.stdout.decode(errors="replace").splitlines():
        name, _, value = line.partition(" ")
        if name == "hostname" and value.strip():
            return value.strip()
    return way.address.host


class SshBytes(ByteStream):
    """The input and output of a command that ssh runs on another machine; closing ends ssh, and with it the command."""

    def __init__(self, process: trio.Process, way: Way) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._way = way
        self._pipes = TrioBytes(trio.StapledStream(process.stdin, process.stdout))
        self._stderr: trio.abc.ReceiveStream = process.stderr
        # The last of what came on stderr, and whether that is all of it.
        self._said = bytearray()
        self._stderr_read = trio.Event()
        # What was read and is not handed out yet.
        self._ahead = b""
        # Nobody may have to wait for stderr, and a full pipe would stop ssh.
        trio.lowlevel.spawn_system_task(self._read_stderr)

    async def read_past(self, line: str) -> bytes:
        """Read up to this line and behind it; what came before it. Raises what the end of ssh means before it came."""
        wanted = re.compile(re.escape(line.encode()) + rb"\r?\n")
        came = bytearray()
        while (found := wanted.search(came)) is None:
            if len(came) > SAID_SIZE:
                raise ProtocolError(f"{self._way}: more than {SAID_SIZE} bytes came, and not what was asked for")
            data = self._ahead or await self._pipes.receive_some()
            self._ahead = b""
            if not data:
                await self._until_ended()
                raise self._explain_end(bytes(came))
            came += data
        self._ahead = bytes(came[found.end() :])
        return bytes(came[: found.start()])

    async def receive_some(self) -> bytes:
        if self._ahead:
            data, self._ahead = self._ahead[:READ_SIZE], self._ahead[READ_SIZE:]
            return data
        data = await self._pipes.receive_some()
        if not data:
            await self._until_ended()
            if self._process.returncode:
                raise trio.BrokenResourceError(f"the connection was lost: {self._describe_end()}")
        return data

    def send_nowait(self, data: memoryview) -> int:
        return self._pipes.send_nowait(data)

    async def send_some(self, data: memoryview) -> int:
        return await self._pipes.send_some(data)

    async def send_eof(self) -> None:
        await self._pipes.send_eof()

    async def finish(self) -> None:
        """As `ByteStream.finish`: ssh has to pass on what it was given, and must not be ended before."""
        await self.send_eof()
        while await self._pipes.receive_some():
            pass

    async def aclose(self) -> None:
        # Also when cancelled: nothing of it may be left, and all of this is bounded.
        with trio.CancelScope(shield=True):
            await self._pipes.aclose()
            if self._process.poll() is None:
                self._process.terminate()
                with trio.move_on_after(TERM_GRACE):
                    await self._process.wait()
            if self._process.poll() is None:
                self._process.kill()
                await self._process.wait()
            await self._stderr.aclose()

    async def _read_stderr(self) -> None:
        try:
            while data := await self._stderr.receive_some(READ_SIZE):
                self._said += data
                del self._said[:-STDERR_SIZE]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # Nobody wants it any more.
        self._stderr_read.set()

    async def _until_ended(self) -> None:
        with trio.move_on_after(LAST_WORDS):
            await self._process.wait()
            await self._stderr_read.wait()

    def _explain_end(self, came: bytes) -> GatewayError:
        """What it means that ssh ended when only this had come on its output, and not what was waited for."""
        way, code, last_line = self._way, self._process.returncode, self._last_line()
        said = self._said.decode(errors="replace")
        if code == _SSH_FAILED:
            if _CHANGED in said:
                key = _FINGERPRINT.search(said)
                return TrustError(
                    f"{way}: it shows another host key than it did before{f', {key[0]}' if key else ''}: either the"
                    " machine has a new one, or this is not the machine; find out before you let ssh forget the old one"
                )
            if _NOT_VERIFIED in said:
                return TrustError(
                    f"{way}: its host key is not known here yet; log in once with `ssh`, and compare the key that it"
                    " shows with the machine's own"
                )
            if _NOT_ALLOWED.search(last_line):
                return AccessError(
                    f"{way}: ssh could not log in without asking: {last_line.rstrip('.')}. Set up a key for ssh "
                    f"(ssh-copy-id {way.login}), or load it into its agent, and run this again"
                )
            return Unreachable(f"{way}: {last_line or 'it failed without a word; try it with `ssh -v`'}")
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            name = way.command or "acp-gateway"
            what = f"{name} is not found there" if code == _NOT_FOUND else f"{name} can't be executed there"
            return ConfigError(
                f"{way}: {what}: install it there (`{INSTALL}` in a checkout), or give its path, by `command` in"
                " hosts.toml or --command of `pair`"
            )
        if code == UsageError.exit_code and _TOO_OLD.search(said):
            return ProtocolError(f"{way}: the acp-gateway there is too old for this; update it ({last_line})")
        if code in _KINDS and last_line:
            return _KINDS[code](f"{way}: {last_line.removeprefix('acp-gateway: ')}")
        if code is not None and code < 0:
            return Unreachable(f"{way}: {self._describe_end()}")
        if code is None:
            return ProtocolError(f"{way}: what runs there is no acp-gateway: {self._describe_end()}")
        said = last_line or _last_line(came)
        return ProtocolError(
            f"{way}: ssh logged in, but the shell there ended before acp-gateway had answered (exit code {code})"
            + (f"; it said: {said}" if said else "")
        )

    def _describe_end(self) -> str:
        code = self._process.returncode
        if code is None:
            how = "ssh has closed its output"
        elif code < 0:
            how = f"ssh was ended by {signal.Signals(-code).name}"
        else:
            how = f"ssh ended with exit code {code}"
        last_line = self._last_line()
        return f"{how}: {last_line}" if last_line else how

    def _last_line(self) -> str:
        """The last line of stderr that says something, fit for a terminal."""
        return _last_line(bytes(self._said))


def _last_line(said: bytes) -> str:
    """The last line that says something, fit for a terminal."""
    return printable(re.split(r"[\r\n]", said.decode(errors="replace").rstrip())[-1], size=400)


_KINDS: Final[dict[int, type[GatewayError]]] = {
    kind.exit_code: kind for kind in (UsageError, ConfigError, AccessError, Unreachable, ProtocolError)
}
"""By the exit code of this program."""

_NO_WINDOW: Final[dict[str, Any]] = {"creationflags": getattr(subprocess, "CREATE_NO_WINDOW", 0)}
"""A console would open in front of an editor on Windows."""


def _program() -> str:
    program = shutil.which("ssh")
    if program is None:
        raise ConfigError("there is no `ssh` on PATH; install OpenSSH's client, or use wss://")
    return program


def _environment() -> dict[str, str]:
    """ssh and what its configuration starts need no token, and SendEnv might send one."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ACP_GATEWAY_TOKEN")}


async def _start(way: Way, arguments: Sequence[str]) -> SshBytes:
    command = [_program(), *way.arguments(), remote_command(way.command, arguments)]
    try:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            **_NO_WINDOW,
        )
    except OSError as error:
        raise ConfigError(f"ssh cannot be started: {error.strerror}", file=command[0]) from error
    return SshBytes(process, way)
