"""Run a command on another machine over the user's own ssh, with its stdin and stdout as a byte stream.

Keys, jump hosts and host names are left to ssh and its configuration. ssh must not prompt, because an editor would not
show it: a login that needs a password fails, except for `pair` in a terminal.

Login shells differ, and many print something before they run a command. So the command is one `sh -c '…'` in words that
every shell parses alike, and its output starts after a line with a nonce.
"""

import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Literal

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
from acp_gateway.transports.sockets import connect_unix
from acp_gateway.transports.streams import READ_SIZE, ByteStream, TrioBytes, closed_on_error, send_all

if TYPE_CHECKING:
    from acp_gateway.config.load import Config

OUTPUT_SIZE: Final = 1024 * 1024
"""Maximum bytes before the begin line, and between begin and end line: more than any greeting."""

STDERR_SIZE: Final = 8192
"""Bytes at the end of stderr that are kept: ssh's longest warning has 1 KiB."""

EXIT_TIMEOUT: Final = 1.0
"""Seconds to wait for the exit of ssh and the rest of its stderr after its stdout has ended."""

_SHOWN_LINES: Final = 200
"""Maximum lines of one read of stderr that are shown."""

TERM_GRACE: Final = 1.0
"""Seconds from SIGTERM, which lets ssh end its own child processes, to SIGKILL."""

_FIRST: Final = ("RemoteCommand=none",)
_NO_PROMPTS: Final = ("BatchMode=yes",)
"""Options placed before all others: ssh uses the first value of each."""

_DEFAULTS: Final = (
    # Forwardings of the user's own sessions are not needed, or fail because their ports are taken.
    "ClearAllForwardings=yes",
    # Use an existing shared connection, but don't become one: others would end with this one.
    "ControlMaster=no",
    # Without greetings, the last line of stderr is the error.
    "LogLevel=ERROR",
    # Less than the timeout of an attempt, so that ssh reports the failure itself.
    "ConnectTimeout=10",
    # Without this, ssh would wait for hours on a dead network.
    "ServerAliveInterval=10",
    "ServerAliveCountMax=3",
)

# No single quote, backslash, exclamation mark or newline: csh and fish parse those differently.
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

_CONTROL_PATH_SIZE: Final = 80
"""Maximum characters of the path of a shared connection: with what ssh adds, a socket's path has 104 at most."""

_CHANGED: Final = "REMOTE HOST IDENTIFICATION HAS CHANGED"
_FINGERPRINT: Final = re.compile(r"SHA256:[0-9A-Za-z+/=]+")
_NOT_VERIFIED: Final = "Host key verification failed"
_NOT_ALLOWED: Final = re.compile(
    r"Permission denied|authentication failures|No supported authentication", re.IGNORECASE
)
_NO_SSHD: Final = re.compile(r"kex_exchange_identification|banner exchange")
_TOO_OLD: Final = re.compile(r"No such (command|option)")

_SSH_FAILED: Final = 255
_NOT_EXECUTABLE: Final = 126
_NOT_FOUND: Final = 127


@dataclass(frozen=True, slots=True)
class SshTarget:
    """An ssh login, and the program to run there."""

    address: Address
    """The address, with the scheme `ssh`."""
    command: str | None = None
    """The path of this program there, which may begin with `~/`; None to search for it."""
    options: tuple[str, ...] = ()
    """Additional ssh options, each as `Name=value`."""
    asks: bool = False
    """True if ssh may prompt for a password in the terminal."""
    shared: str | None = None
    """Path of the socket of one connection for all commands, which the first one opens; see `log_in_once`."""

    def arguments(self) -> list[str]:
        """Return the options of ssh and the host; the remote command follows them."""
        address = self.address
        share = (f"ControlPath={self.shared}", "ControlMaster=auto", "ControlPersist=60") if self.shared else ()
        options = [*(() if self.asks else _NO_PROMPTS), *_FIRST, *self.options, *share, *_DEFAULTS]
        return [
            *("-T", "-a", "-x"),
            *(word for option in options for word in ("-o", option)),
            *(("-p", str(address.port)) if address.port else ()),
            *(("-l", address.user) if address.user else ()),
            *("--", address.host),
        ]

    @property
    def login(self) -> str:
        """The login as an argument of `ssh`: [USER@]HOST."""
        return f"{self.address.user}@{self.address.host}" if self.address.user else self.address.host

    def __str__(self) -> str:
        return f"ssh to {self.login}"


@contextmanager
def log_in_once(target: SshTarget) -> Iterator[SshTarget]:
    """Yield the login so that ssh asks for a password once only, however many commands are run.

    The login is unchanged if ssh does not ask, if a connection of the user's own is there to be shared, or on Windows.
    """
    if not target.asks or sys.platform == "win32" or _control(target, "check"):
        yield target
        return
    folder = tempfile.mkdtemp(prefix="acp-")
    path = f"{folder}/ssh"
    shared = replace(target, shared=path if len(path) <= _CONTROL_PATH_SIZE else None)
    try:
        yield shared
    finally:
        if os.path.exists(path):
            _control(shared, "exit")
        shutil.rmtree(folder, ignore_errors=True)


def _control(target: SshTarget, command: Literal["check", "exit"]) -> bool:
    """Return whether a shared connection of the login exists and has carried out the command."""
    done = subprocess.run(
        [_program(), "-O", command, *target.arguments()],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=_environment(),
        check=False,
    )
    return done.returncode == 0


def remote_command(command: str | None, arguments: Sequence[str]) -> str:
    """Return a command line, valid in any login shell, that finds this program and runs it with `arguments`."""
    return shlex.join(["sh", "-c", _FIND_PROGRAM, "acp-gateway", command or "", *arguments])


def mark(what: str, edge: Literal["BEGIN", "END"], nonce: str) -> str:
    """Return the line before or after the output of the remote program."""
    return f"=== acp-gateway {what} 1 {edge} {nonce} ==="


async def open_relay(target: SshTarget) -> "SshBytes":
    """Open a byte stream to a gateway's unix socket: the address's path, else the first of its configuration.

    Raises `Unreachable`, `TrustError`, `AccessError`, `ConfigError`, `ProtocolError`. Cancelling ends ssh.
    """
    nonce = secrets.token_hex(16)
    path = target.address.path
    stream = await _open(target, ["relay", "--nonce", nonce, *(["--socket", path] if path else [])])
    async with closed_on_error(stream):
        await stream.read_past(mark("relay", "BEGIN", nonce))
    return stream


class RemoteCommand:
    """A command of this program on another machine that reads lines and writes a response to each.

    Each method raises what `open_relay` does, and `UsageError` if the remote program does.
    """

    def __init__(self, stream: "SshBytes", what: str, nonce: str) -> None:
        self._stream = stream
        self._what = what
        self._nonce = nonce

    async def read_answer(self) -> bytes:
        """Return the output between the next begin and end line."""
        await self._stream.read_past(mark(self._what, "BEGIN", self._nonce))
        return await self._stream.read_past(mark(self._what, "END", self._nonce))

    async def ask(self, line: str) -> bytes:
        """Send a line, and return the response."""
        try:
            await send_all(self._stream, f"{line}\n".encode())
        except trio.BrokenResourceError:
            pass  # Reading raises the cause.
        return await self.read_answer()


@asynccontextmanager
async def open_command(target: SshTarget, what: str, arguments: Sequence[str]) -> AsyncIterator[RemoteCommand]:
    """Run a command of this program on the remote machine, with `--nonce` added, until exit. Raises `ConfigError`."""
    nonce = secrets.token_hex(16)
    stream = await _open(target, [*arguments, "--nonce", nonce])
    try:
        yield RemoteCommand(stream, what, nonce)
    finally:
        await stream.aclose()


async def run_script(target: SshTarget, script: str, arguments: Sequence[str], data: bytes) -> str:
    """Run a script of `sh` on the remote machine, with `data` as its stdin; return its last line of output.

    The script must not have a single quote, backslash, exclamation mark or newline, see `_FIND_PROGRAM`. Raises what
    `open_relay` does, with the last line of stderr if the script fails. Cancelling ends ssh.
    """
    nonce = secrets.token_hex(16)
    done = mark("script", "END", nonce)
    command = shlex.join(["sh", "-c", f'{script} && echo && echo "{done}"', "sh", *arguments])
    stream = await _start(target, command)
    try:
        try:
            await send_all(stream, data)
            await stream.send_eof()
        except trio.BrokenResourceError:
            pass  # Reading raises the cause.
        return _last_line(await stream.read_past(done))
    finally:
        await stream.aclose()


async def find_host_name(target: SshTarget) -> str:
    """Return the real host name or IP address of the host in ssh's configuration."""
    process = await trio.run_process(
        [_program(), "-G", *target.arguments()],
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
    return target.address.host


class SshBytes(ByteStream):
    """Stdin and stdout of a command that ssh runs on another machine. Closing ends ssh, and with it the command."""

    def __init__(self, process: trio.Process, target: SshTarget) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        self._process = process
        self._target = target
        self._pipes = TrioBytes(trio.StapledStream(process.stdin, process.stdout))
        self._stderr: trio.abc.ReceiveStream = process.stderr
        # The end of stderr, and its unfinished line; the event is set at its end of file.
        self._stderr_tail = bytearray()
        self._stderr_read = trio.Event()
        self._stderr_line = b""
        # Bytes read past the begin line and not returned yet.
        self._unread = b""

    async def read_past(self, line: str) -> bytes:
        """Read until after this line, and return the bytes before it.

        If ssh ends before that, raises the error that describes why.
        """
        wanted = re.compile(re.escape(line.encode()) + rb"\r?\n")
        output = bytearray()
        while (found := wanted.search(output)) is None:
            if len(output) > OUTPUT_SIZE:
                raise ProtocolError(f"{self._target}: {OUTPUT_SIZE} bytes of output without the expected line")
            data = self._unread or await self._pipes.receive_some()
            self._unread = b""
            if not data:
                await self._wait_for_exit()
                raise self._explain_end(bytes(output))
            output += data
        self._unread = bytes(output[found.end() :])
        return bytes(output[: found.start()])

    async def receive_some(self) -> bytes:
        if self._unread:
            data, self._unread = self._unread[:READ_SIZE], self._unread[READ_SIZE:]
            return data
        data = await self._pipes.receive_some()
        if not data:
            await self._wait_for_exit()
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
        """Half-close, and wait until ssh has forwarded everything; it must not be ended before."""
        await self.send_eof()
        while await self._pipes.receive_some():
            pass

    async def aclose(self) -> None:
        # Shielded, so that no process is left behind when cancelled. Every step is bounded in time.
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

    async def read_stderr(self) -> None:
        """Read stderr until its end or until the stream is closed, and keep the last bytes of it."""
        try:
            while data := await self._stderr.receive_some(READ_SIZE):
                self._stderr_tail += data
                if self._target.asks:
                    self._show(bytes(data))
                del self._stderr_tail[:-STDERR_SIZE]
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # The stream was closed.
        self._stderr_read.set()

    def _show(self, data: bytes) -> None:
        """Show whole lines of stderr in the terminal, where ssh asks as well: why a password was wrong, what to press.

        The errors of the program there are left out, because they are raised.
        """
        *lines, self._stderr_line = (self._stderr_line + data).split(b"\n")
        del lines[:-_SHOWN_LINES]
        for line in lines:
            text = printable(line.decode(errors="replace"), 400)
            if text and not text.startswith("acp-gateway: "):
                print(text, file=sys.stderr)  # noqa: T201
        self._stderr_line = self._stderr_line[-STDERR_SIZE:]

    async def _wait_for_exit(self) -> None:
        with trio.move_on_after(EXIT_TIMEOUT):
            await self._process.wait()
            await self._stderr_read.wait()

    def _explain_end(self, output: bytes) -> GatewayError:
        """Return the error for ssh ending with only `output` on its stdout, before the expected line."""
        target, code, last_line = self._target, self._process.returncode, self._last_line()
        stderr = self._stderr_tail.decode(errors="replace")
        if code == _SSH_FAILED:
            if _CHANGED in stderr:
                key = _FINGERPRINT.search(stderr)
                return TrustError(
                    f"{target}: the host key has changed{f' to {key[0]}' if key else ''}: either the machine has a new"
                    " key, or another machine answers; find out before you remove the old key from known_hosts"
                )
            if _NOT_VERIFIED in stderr:
                return TrustError(
                    f"{target}: its host key is not known here yet; log in once with `ssh`, and compare the key that it"
                    " shows with the machine's own"
                )
            if _NOT_ALLOWED.search(last_line):
                return AccessError(
                    f"{target}: ssh could not log in without asking: {last_line.rstrip('.')}. Set up a key for ssh "
                    f"(ssh-copy-id {target.login}), or load it into its agent, and run this again"
                )
            if target.address.port and _NO_SSHD.search(stderr):
                return Unreachable(
                    f"{target}: what listens at port {target.address.port} does not speak ssh ({last_line}); is that "
                    "the gateway's port? Leave it out"
                )
            if "Could not resolve hostname" in last_line:
                return Unreachable(f"{target}: {last_line}; is it a name that `ssh {target.login}` knows?")
            if last_line.endswith("Connection refused"):
                return Unreachable(
                    f"{target}: {last_line}; is sshd running there? Without ssh: `acp-gateway files first-steps.md`"
                )
            return Unreachable(f"{target}: {last_line or 'ssh failed without an error message; try `ssh -v`'}")
        if code in (_NOT_FOUND, _NOT_EXECUTABLE):
            name = target.command or "acp-gateway"
            what = f"{name} was not found there" if code == _NOT_FOUND else f"{name} can't be executed there"
            return ConfigError(
                f"{target}: {what}: install it there (`{INSTALL}` in a checkout), or give its path, by `command` in"
                " hosts.toml or --command of `pair`"
            )
        if code == UsageError.exit_code and _TOO_OLD.search(stderr):
            return ProtocolError(f"{target}: the acp-gateway there is too old for this; update it ({last_line})")
        if code in _KINDS and last_line:
            return _KINDS[code](f"{target}: {last_line.removeprefix('acp-gateway: ')}")
        if code is not None and code < 0:
            return Unreachable(f"{target}: {self._describe_end()}")
        if code is None:
            return ProtocolError(f"{target}: the program there is not an acp-gateway: {self._describe_end()}")
        said = last_line or _last_line(output)
        return ProtocolError(
            f"{target}: ssh logged in, but the shell there ended before acp-gateway had answered (exit code {code})"
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
        """Return the last non-empty line of stderr, escaped for terminals."""
        return _last_line(bytes(self._stderr_tail))


def _last_line(text: bytes) -> str:
    """Return the last non-empty line, escaped for terminals."""
    return printable(re.split(r"[\r\n]", text.decode(errors="replace").rstrip())[-1], size=400)


_KINDS: Final[dict[int, type[GatewayError]]] = {
    kind.exit_code: kind for kind in (UsageError, ConfigError, AccessError, Unreachable, ProtocolError)
}
"""The error for each exit code of this program."""

_NO_WINDOW: Final[dict[str, Any]] = {"creationflags": getattr(subprocess, "CREATE_NO_WINDOW", 0)}
"""Prevents a console window on Windows."""


def _program() -> str:
    program = shutil.which("ssh")
    if program is None:
        raise ConfigError("there is no `ssh` on PATH; install OpenSSH's client, or use wss://")
    return program


def _environment() -> dict[str, str]:
    """Return the environment without tokens: ssh does not need them, and SendEnv could send them."""
    return {name: value for name, value in os.environ.items() if not name.startswith("ACP_GATEWAY_TOKEN")}


async def _open(target: SshTarget, arguments: Sequence[str]) -> SshBytes:
    return await _start(target, remote_command(target.command, arguments))


async def _start(target: SshTarget, command_line: str) -> SshBytes:
    command = [_program(), *target.arguments(), command_line]
    # Ctrl-C in a terminal must not end ssh before the link is closed. Prompts need the foreground.
    group: dict[str, Any] = {} if target.asks or sys.platform == "win32" else {"process_group": 0}
    try:
        process = await trio.lowlevel.open_process(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=_environment(),
            **_NO_WINDOW | group,
        )
    except OSError as error:
        raise ConfigError(f"ssh cannot be started: {error.strerror}", file=command[0]) from error
    stream = SshBytes(process, target)
    # A full pipe would block ssh, so stderr is read also while no task reads the stream. The task ends with the stream.
    trio.lowlevel.spawn_system_task(stream.read_stderr)
    return stream


# The remote end

_NONCE = re.compile(r"--nonce '?([0-9a-f]{1,64})'?(?:\s|$)")


def find_socket(config: "Config") -> str:
    """Return the path of the gateway's first unix socket. Raises `ConfigError` if it listens at none."""
    for section in config.listen:
        if section.address.scheme == "unix" and "acp" in section.services:
            return section.address.path
    raise ConfigError(
        'there is no listener for connections over ssh; add one: [[listen]] url = "unix:///absolute/path/of/a/socket"'
    )


def nonce_of(command: str) -> str:
    """Return the value of --nonce in the command that the client requested from sshd; "" if it has none.

    A forced command replaces the requested one, which then exists only in SSH_ORIGINAL_COMMAND.
    """
    found = _NONCE.search(command)
    return found[1] if found else ""


async def relay(stdio: ByteStream, path: str, nonce: str) -> None:
    """Connect to the socket, write the begin line to stdout, and relay bytes until either side has closed.

    The end of stdin is relayed as a half-close; the gateway's remaining output still reaches stdout. Raises
    `Unreachable`.
    """
    gateway = await connect_unix(path)
    try:
        # A shell's greeting may lack its final newline.
        await send_all(stdio, f"\n{mark('relay', 'BEGIN', nonce)}\n".encode())
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_pass_on, stdio, gateway)
            await _pass_on(gateway, stdio)
            nursery.cancel_scope.cancel()
    finally:
        await gateway.aclose()
        await stdio.aclose()


async def _pass_on(source: ByteStream, sink: ByteStream) -> None:
    try:
        while data := await source.receive_some():
            await send_all(sink, data)
        await sink.send_eof()
    except (trio.BrokenResourceError, trio.ClosedResourceError):
        pass  # One side is closed: the other direction ends as well.
