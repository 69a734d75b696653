"""Arguments and environment of ssh, and errors from its output, with a shell script in its place."""

import os
import re
import subprocess
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import trio
import trio.testing

from acp_gateway.client import ssh
from acp_gateway.client.ssh import (
    SshTarget,
    find_host_name,
    find_socket,
    log_in_once,
    mark,
    nonce_of,
    open_command,
    open_relay,
    relay,
    remote_command,
    run_script,
)
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.load import AgentSection, Config, GatewaySection, ListenSection
from acp_gateway.errors import (
    AccessError,
    ConfigError,
    GatewayError,
    ProtocolError,
    TrustError,
    Unreachable,
    UsageError,
)
from acp_gateway.transports.streams import TrioBytes
from tests.kit.doubles import TIMEOUT

BOX = SshTarget(parse_target("ssh://ann@box"))

NONCE = 'nonce=${last##*"--nonce "}; nonce=${nonce%% *}; '
"""For a stand-in, the number that it has to say."""


@pytest.fixture
def stand_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> "StandIn":
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    return StandIn(tmp_path)


class StandIn:
    """A program that is called ssh."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def does(self, lines: str) -> None:
        """Have it do this, in the shell's language; `$here` is its directory, `$last` the command with `$nonce`."""
        path = self.directory / "ssh"
        path.write_text(f"#!/bin/sh\nhere=${{0%/*}}; for last; do :; done; {NONCE}\n{lines}\n")
        path.chmod(0o755)

    async def failure(self, way: SshTarget = BOX) -> GatewayError:
        """Return the error of opening a relay."""
        with trio.fail_after(TIMEOUT), pytest.raises(GatewayError) as caught:
            await open_relay(way)
        assert "\n" not in str(caught.value)
        return caught.value


# The command


def test_the_host_is_behind_all_options_and_cannot_be_an_option_itself() -> None:
    way = SshTarget(parse_target("ssh://ann@box:2222/run/socket"), options=("User=bob", "BatchMode=no"))
    arguments = way.arguments()
    assert (arguments[-2:], arguments[-6:-2]) == (["--", "box"], ["-p", "2222", "-l", "ann"])
    options = [arguments[index + 1] for index, word in enumerate(arguments) if word == "-o"]
    # Of each the first one counts.
    assert options.index("BatchMode=yes") < options.index("BatchMode=no") < options.index("ServerAliveInterval=10")
    assert "-T" in arguments
    assert SshTarget(parse_target("ssh://box")).arguments()[-3] != "-l"
    asking = SshTarget(parse_target("ssh://box"), asks=True).arguments()
    assert "BatchMode=yes" not in asking
    assert "RemoteCommand=none" in asking


CONTROL = "for word; do case $word in ControlPath=*) path=${word#*=};; check|exit) command=$word;; esac; done; "
"""For a stand-in, the command for a shared connection, and its path."""


def test_commands_share_one_connection_where_ssh_asks(stand_in: StandIn) -> None:
    stand_in.does(f'{CONTROL} echo "$command $path" >> "$here/told"; [ "$command" = exit ]')
    with log_in_once(replace(BOX, asks=True)) as login:
        assert login.shared
        Path(login.shared).touch()
        options = login.arguments()
        # Of each the first one counts.
        assert options.index("ControlMaster=auto") < options.index("ControlMaster=no")
    assert (stand_in.directory / "told").read_text().splitlines() == ["check ", f"exit {login.shared}"]
    assert not Path(login.shared).parent.exists()


def test_a_connection_of_the_users_own_is_shared_instead(stand_in: StandIn) -> None:
    stand_in.does("exit 0")
    asking = replace(BOX, asks=True)
    with log_in_once(asking) as login:
        assert login is asking


def test_no_connection_is_shared_where_ssh_does_not_ask(stand_in: StandIn) -> None:
    stand_in.does("exit 1")
    with log_in_once(BOX) as login:
        assert login is BOX


def test_no_connection_is_shared_at_a_path_that_is_too_long_for_a_socket(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stand_in.does("exit 1")
    (folder := tmp_path / ("x" * 80)).mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with log_in_once(replace(BOX, asks=True)) as login:
        assert login.shared is None
    assert not list(folder.iterdir())


@pytest.mark.parametrize("asks", [False, True])
async def test_ctrl_c_in_a_terminal_reaches_ssh_only_while_it_may_ask(stand_in: StandIn, asks: bool) -> None:
    # Field 5 of the status is the process group.
    stand_in.does('cut -d" " -f5 /proc/self/stat > "$here/group"; exit 255')
    await stand_in.failure(replace(BOX, asks=asks))
    assert (int((stand_in.directory / "group").read_text()) == os.getpgrp()) is asks


@pytest.mark.parametrize("text", ["ssh://-oProxyCommand=x", "ssh://-x@box", "ssh://[-x]", "ssh://--"])
def test_nothing_that_looks_like_an_option_can_be_a_host(text: str) -> None:
    with pytest.raises(UsageError):
        parse_target(text)


def test_the_command_has_nothing_in_it_that_shells_read_differently() -> None:
    assert not set(remote_command("/opt/x", ["relay", "--nonce", "ab"]).removeprefix("sh -c '")) & set("!\\\n\r")
    assert remote_command(None, []).count("'") == 4


def run_there(command: str, home: Path, path: str = "/usr/bin:/bin") -> subprocess.CompletedProcess[str]:
    """Run what ssh would pass to the login shell."""
    return subprocess.run(
        ["/bin/sh", "-c", command], env={"HOME": str(home), "PATH": path}, capture_output=True, text=True, check=False
    )


def make_program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text('#!/bin/sh\nprintf "%s\\n" "$0" "$@"\n')
    path.chmod(0o755)
    return path


def test_the_program_is_found_at_usual_places_when_the_path_is_short(tmp_path: Path) -> None:
    later = make_program(tmp_path / ".venv/bin/acp-gateway")
    assert run_there(remote_command(None, ["a b", "it's"]), tmp_path).stdout == f"{later}\na b\nit's\n"
    program = make_program(tmp_path / ".local/bin/acp-gateway")
    assert run_there(remote_command(None, []), tmp_path).stdout == f"{program}\n"
    on_path = make_program(tmp_path / "bin/acp-gateway")
    assert run_there(remote_command(None, []), tmp_path, f"/bin:{tmp_path}/bin").stdout == f"{on_path}\n"


def test_a_path_given_for_the_remote_command_is_used_and_its_tilde_expanded(tmp_path: Path) -> None:
    program = make_program(tmp_path / "my tools/acp-gateway")
    make_program(tmp_path / ".local/bin/acp-gateway")
    assert run_there(remote_command(str(program), []), tmp_path).stdout == f"{program}\n"
    assert run_there(remote_command("~/my tools/acp-gateway", []), tmp_path).stdout == f"{program}\n"
    assert run_there(remote_command("/nowhere", []), tmp_path).returncode == 127


def test_a_program_that_is_nowhere_is_what_a_shell_says_of_one(tmp_path: Path) -> None:
    (tmp_path / "acp-gateway").touch()
    done = run_there(remote_command(None, []), tmp_path, f"/bin:{tmp_path}")
    assert (done.returncode, done.stdout) == (127, "")


# The stream


RELAY = 'printf "hello\\r\\nno end of a line"; echo "=== acp-gateway relay 1 BEGIN $nonce ==="; '


async def test_a_stream_begins_behind_the_mark_and_goes_both_ways(stand_in: StandIn) -> None:
    stand_in.does(RELAY + "exec cat")
    with trio.fail_after(TIMEOUT):
        stream = await open_relay(BOX)
        await stream.send_some(memoryview(b"over"))
        assert await stream.receive_some() == b"over"
        await stream.send_eof()
        assert await stream.receive_some() == b""
        await stream.aclose()
        with pytest.raises(trio.ClosedResourceError):
            stream.send_nowait(memoryview(b"x"))
        await stream.aclose()


async def test_the_command_names_the_socket_and_no_variable_has_the_token(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", "acpgw_secret")
    monkeypatch.setenv("ACP_GATEWAY_TOKEN_FILE", "/secret")
    stand_in.does(f'printf "%s\\n" "$@" > "$here/arguments"; env > "$here/env"; {RELAY}')
    with trio.fail_after(TIMEOUT):
        await (await open_relay(SshTarget(parse_target("ssh://box/run/my socket"), "/opt/acp-gateway"))).aclose()
    last = (stand_in.directory / "arguments").read_text().splitlines()[-1]
    assert re.search(r" acp-gateway /opt/acp-gateway relay --nonce [0-9a-f]{32} --socket '/run/my socket'$", last)
    variables = (stand_in.directory / "env").read_text()
    assert "ACP_GATEWAY_TOKEN" not in variables
    assert "acpgw_secret" not in variables


async def test_closing_ends_ssh_even_if_it_does_not_mind_being_told(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "TERM_GRACE", 0.01)
    stand_in.does(f'trap "" TERM; echo $$ > "$here/pid"; {RELAY} while :; do read x || sleep 0.01; done')
    with trio.fail_after(TIMEOUT):
        stream = await open_relay(BOX)
        with trio.CancelScope() as scope:
            scope.cancel()
            await stream.aclose()
    with pytest.raises(ProcessLookupError):
        os.kill(int((stand_in.directory / "pid").read_text()), 0)


async def test_an_attempt_that_is_given_up_leaves_nothing_behind(stand_in: StandIn) -> None:
    os.mkfifo(stand_in.directory / "pid")
    stand_in.does('echo $$ > "$here/pid"; exec sleep 1000')
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(open_relay, BOX)
            pid = int(await trio.Path(stand_in.directory / "pid").read_text())
            nursery.cancel_scope.cancel()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_ssh_that_is_killed_is_a_lost_connection_with_its_last_words(stand_in: StandIn) -> None:
    stand_in.does(RELAY + "read x; echo first >&2; echo last$(printf '\\033') >&2; kill -9 $$")
    with trio.fail_after(TIMEOUT):
        stream = await open_relay(BOX)
        await stream.send_some(memoryview(b"\n"))
        with pytest.raises(trio.BrokenResourceError, match=r"ssh was ended by SIGKILL: last\\x1b$"):
            await stream.receive_some()
        await stream.aclose()


async def test_much_on_stderr_stops_nothing_and_its_end_is_kept(stand_in: StandIn) -> None:
    stand_in.does(RELAY + "i=0; while [ $i -lt 40000 ]; do echo $i; i=$((i+1)); done >&2; echo done; read x; exit 255")
    with trio.fail_after(TIMEOUT):
        stream = await open_relay(BOX)
        assert await stream.receive_some() == b"done\n"
        await stream.send_eof()
        with pytest.raises(trio.BrokenResourceError, match=r"exit code 255: 39999$"):
            await stream.receive_some()
        await stream.aclose()


async def test_the_end_is_waited_for_when_everything_is_said(stand_in: StandIn) -> None:
    stand_in.does(RELAY + 'sleep 0.05; cat > "$here/heard"; echo too late')
    with trio.fail_after(TIMEOUT):
        stream = await open_relay(BOX)
        await stream.send_some(memoryview(b"goodbye"))
        await stream.finish()
        await stream.aclose()
    assert (stand_in.directory / "heard").read_bytes() == b"goodbye"


# Failures


@pytest.mark.parametrize("words", ["kex_exchange_identification: read: Connection reset by peer", "banner exchange"])
async def test_a_port_that_does_not_speak_ssh_is_told_if_it_was_named(stand_in: StandIn, words: str) -> None:
    stand_in.does(f"echo '{words}' >&2; exit 255")
    for port, told in ((7444, True), (0, False)):
        with pytest.raises(Unreachable) as error:
            await open_relay(replace(BOX, address=replace(BOX.address, port=port)))
        assert ("what listens at port 7444 does not speak ssh" in str(error.value)) is told


@pytest.mark.parametrize(
    ("words", "code", "kind", "text"),
    [
        (
            "ssh: connect to host box port 22: Connection refused",
            255,
            Unreachable,
            "Connection refused; is sshd running",
        ),
        ("ssh: Could not resolve hostname box: no", 255, Unreachable, "is it a name that `ssh ann@box` knows?"),
        ("", 255, Unreachable, "ssh -v"),
        (
            "ann@box: Permission denied (publickey,password).",
            255,
            AccessError,
            "Set up a key for ssh (ssh-copy-id ann@box)",
        ),
        ("Received disconnect from 192.0.2.1 port 22:2: Too many authentication failures", 255, AccessError, "key"),
        (
            "@ REMOTE HOST IDENTIFICATION HAS CHANGED! @\nis\nSHA256:a+b/9.\nHost key verification failed.",
            255,
            TrustError,
            "the host key has changed to SHA256:a+b/9: either",
        ),
        ("@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @", 255, TrustError, "the host key has changed: either"),
        ("No key is known for box.\nHost key verification failed.", 255, TrustError, "not known here yet; log in once"),
        (
            "sh: 1: exec: /opt/x: not found",
            127,
            ConfigError,
            "acp-gateway was not found there: install it there (`pipx install .`",
        ),
        ("sh: 1: exec: /opt/x: Permission denied", 126, ConfigError, "can't be executed there"),
        ("Usage: acp-gateway [OPTIONS]\n\nError: No such command 'relay'.", 2, ProtocolError, "too old"),
        ("acp-gateway: /c.toml:1: x: no", 3, ConfigError, "ssh to ann@box: /c.toml:1: x: no"),
        ("acp-gateway: cannot reach /s: no such file", 6, Unreachable, "ssh to ann@box: cannot reach /s"),
        (
            "This account is currently not available.",
            1,
            ProtocolError,
            "ssh logged in, but the shell there ended before acp-gateway had answered (exit code 1); it said: This",
        ),
        ("\x1b[31mred\x1b[0m\r\n\r\n", 1, ProtocolError, r"(exit code 1); it said: \x1b[31mred\x1b[0m"),
        # What a shell prints may be on stdout.
        ("", 0, ProtocolError, "(exit code 0); it said: a greeting"),
    ],
)
async def test_a_failure_is_one_line_of_its_own_kind(
    stand_in: StandIn, words: str, code: int, kind: type[GatewayError], text: str
) -> None:
    (stand_in.directory / "words").write_text(words)
    stand_in.does(f'echo a greeting; cat "$here/words" >&2; exit {code}')
    error = await stand_in.failure()
    assert type(error) is kind
    assert text in str(error)


async def test_ssh_that_closes_its_output_and_stays_is_not_waited_for(
    stand_in: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh, "EXIT_TIMEOUT", 0.01)
    stand_in.does("exec >&- 2>&-; exec sleep 1000")
    assert "ssh has closed its output" in str(await stand_in.failure())


async def test_the_program_that_is_not_found_is_named(stand_in: StandIn) -> None:
    stand_in.does("exit 127")
    assert "/opt/x was not found there" in str(await stand_in.failure(SshTarget(BOX.address, "/opt/x")))


async def test_a_greeting_has_an_end(stand_in: StandIn, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "OUTPUT_SIZE", 10_000)
    stand_in.does("exec yes")
    assert "10000 bytes of output without" in str(await stand_in.failure())


async def test_without_ssh_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="install OpenSSH"):
        await open_relay(BOX)


async def test_an_ssh_that_cannot_be_started_is_an_error_in_words(stand_in: StandIn) -> None:
    stand_in.does("")
    (stand_in.directory / "ssh").write_text("#!/nowhere/sh\n")
    assert "ssh cannot be started" in str(await stand_in.failure())


# Questions


async def answer(*lines: str) -> list[bytes]:
    """Return a command's first output, and its response to each line."""
    with trio.fail_after(TIMEOUT):
        async with open_command(BOX, "pairing", ["pair-here"]) as command:
            return [(await command.read_answer()).strip(), *[(await command.ask(line)).strip() for line in lines]]


async def test_an_answer_is_what_stands_between_the_marks(stand_in: StandIn) -> None:
    stand_in.does(
        "printf 'hi\\r\\nthere'; echo; "
        'printf "=== acp-gateway pairing 1 BEGIN $nonce ===\\r\\nyes\\r\\n"; '
        'echo "=== acp-gateway pairing 1 END $nonce ==="; '
        "echo bye; exec sleep 1000"
    )
    assert await answer() == [b"yes"]


async def test_each_line_has_an_answer_of_its_own(stand_in: StandIn) -> None:
    begin, end = (f'echo "=== acp-gateway pairing 1 {edge} $nonce ==="; ' for edge in ("BEGIN", "END"))
    say = f'{begin} echo "$x!"; {end}'
    stand_in.does(f"x=hi; {say} while read x; do {say} done")
    assert await answer("keep", "a b") == [b"hi!", b"keep!", b"a b!"]


async def test_a_command_that_ends_instead_of_answering_is_an_error(stand_in: StandIn) -> None:
    say = 'echo "=== acp-gateway pairing 1 BEGIN $nonce ==="; echo "=== acp-gateway pairing 1 END $nonce ==="; '
    stand_in.does(f"{say} echo gone >&2; exit 255")
    with pytest.raises(Unreachable, match="gone"):
        await answer("keep")


async def test_an_error_of_usage_there_is_one_here(stand_in: StandIn) -> None:
    stand_in.does('echo "acp-gateway: there is no agent x" >&2; exit 2')
    with pytest.raises(UsageError, match="ssh to ann@box: there is no agent x"):
        await answer()


async def test_the_name_of_the_host_is_what_ssh_makes_of_it(stand_in: StandIn) -> None:
    stand_in.does('printf "%s\\n" "$@" > "$here/arguments"; printf "user ann\\nhostname 192.0.2.1\\n"')
    assert await find_host_name(BOX) == "192.0.2.1"
    assert (stand_in.directory / "arguments").read_text().splitlines() == ["-G", *BOX.arguments()]
    stand_in.does("exit 255")
    assert await find_host_name(BOX) == "box"


def test_a_mark_of_the_relay_is_one_line_with_the_nonce() -> None:
    assert mark("relay", "BEGIN", "ab") == "=== acp-gateway relay 1 BEGIN ab ==="


# Scripts


async def run_there_by_ssh(script: str, *arguments: str, data: bytes = b"", target: SshTarget = BOX) -> str:
    with trio.fail_after(TIMEOUT):
        return await run_script(target, script, arguments, data)


async def test_a_script_gets_its_arguments_and_its_input_and_its_last_line_is_returned(stand_in: StandIn) -> None:
    stand_in.does('echo welcome; exec sh -c "$last"')
    assert await run_there_by_ssh('wc -c; echo "$1-$2"', "a b", "c", data=b"x" * 100_000) == "a b-c"
    assert (await run_there_by_ssh("wc -c", data=b"x" * 100_000)).strip() == "100000"


async def test_a_script_that_fails_is_an_error_with_the_last_line_of_stderr(stand_in: StandIn) -> None:
    stand_in.does('exec sh -c "$last"')
    with pytest.raises(ProtocolError, match="no room here"):
        await run_there_by_ssh("echo no room here >&2; false")


async def test_a_terminal_is_shown_what_ssh_says_but_not_the_errors_that_are_raised(
    stand_in: StandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    stand_in.does("printf 'Permission denied, \\033[2Jplease try again.\\nacp-gateway: no\\nhalf' >&2; exit 255")
    with pytest.raises(Unreachable):
        await run_there_by_ssh("true", target=replace(BOX, asks=True))
    assert capsys.readouterr().err == "Permission denied, \\x1b[2Jplease try again.\n"
    with pytest.raises(Unreachable):
        await run_there_by_ssh("true")
    assert capsys.readouterr().err == ""


# The remote end


def config(*urls: str) -> Config:
    return Config(
        gateway=GatewaySection(),
        listen=tuple(ListenSection(url=url) for url in urls),
        agents={"demo": AgentSection(command=("x",))},
    )


class Scene:
    """Both sides of a relay."""

    def __init__(self, client: trio.abc.HalfCloseableStream) -> None:
        self.client = client
        self.gateway: trio.SocketStream
        self.ended = trio.Event()

    async def read(self, size: int) -> bytes:
        data = b""
        while len(data) < size:
            came = await self.client.receive_some()
            assert came
            data += came
        return data


@asynccontextmanager
async def relaying(path: Path) -> AsyncIterator[Scene]:
    """A relay that has said that it is connected."""
    client, stdio = trio.testing.memory_stream_pair()
    scene = Scene(client)
    connected = trio.Event()

    async def accept(stream: trio.SocketStream) -> None:
        scene.gateway = stream
        connected.set()
        await trio.sleep_forever()

    async def run() -> None:
        await relay(TrioBytes(stdio), str(path), "ab12")
        scene.ended.set()

    with trio.fail_after(TIMEOUT), trio.socket.socket(trio.socket.AF_UNIX) as socket:
        await socket.bind(str(path))
        socket.listen()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trio.serve_listeners, accept, [trio.SocketListener(socket)])
            nursery.start_soon(run)
            await connected.wait()
            marked = f"\n{mark('relay', 'BEGIN', 'ab12')}\n".encode()
            assert await scene.read(len(marked)) == marked
            yield scene
            nursery.cancel_scope.cancel()


async def test_bytes_go_both_ways_as_they_are(tmp_path: Path) -> None:
    async with relaying(tmp_path / "socket") as scene:
        much = bytes(range(256)) * 5000
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.gateway.send_all, much)
            nursery.start_soon(scene.client.send_all, much)
            assert await scene.read(len(much)) == much
            heard = b""
            while len(heard) < len(much):
                heard += await scene.gateway.receive_some()
            assert heard == much


async def test_the_clients_end_is_passed_on_and_the_answer_to_it_back(tmp_path: Path) -> None:
    async with relaying(tmp_path / "socket") as scene:
        await scene.client.send_eof()
        assert await scene.gateway.receive_some() == b""
        await scene.gateway.send_all(b"goodbye")
        assert await scene.read(7) == b"goodbye"
        assert not scene.ended.is_set()
        await scene.gateway.aclose()
        await scene.ended.wait()
        assert await scene.client.receive_some() == b""


async def test_the_gateways_end_is_the_end_though_the_client_stays(tmp_path: Path) -> None:
    async with relaying(tmp_path / "socket") as scene:
        await scene.gateway.aclose()
        await scene.ended.wait()
        assert await scene.client.receive_some() == b""


async def test_a_client_that_is_gone_ends_it_when_the_gateway_has_something_to_say(tmp_path: Path) -> None:
    async with relaying(tmp_path / "socket") as scene:
        await scene.client.aclose()
        await scene.gateway.send_all(b"hello?")
        await scene.ended.wait()


async def test_a_gateway_that_does_not_run_is_said_with_what_to_do_and_without_a_mark(tmp_path: Path) -> None:
    client, stdio = trio.testing.memory_stream_pair()
    with pytest.raises(Unreachable, match=r"cannot reach .*/socket: no such file or directory; is `acp-gateway serve`"):
        await relay(TrioBytes(stdio), str(tmp_path / "socket"), "ab12")
    await stdio.aclose()
    assert await client.receive_some() == b""


def test_the_first_unix_socket_of_the_configuration_is_the_one() -> None:
    metrics = ListenSection(url="unix:///metrics", serves=("metrics",))
    sockets = config("tcp://127.0.0.1:1", "unix:///a", "unix:///b")
    assert find_socket(replace(sockets, listen=(metrics, *sockets.listen))) == "/a"
    with pytest.raises(ConfigError, match=r"\[\[listen\]\] url = .unix:///"):
        find_socket(config("tcp://127.0.0.1:1"))


@pytest.mark.parametrize("command", [None, "/opt/my tools/acp-gateway"])
def test_a_key_that_is_bound_to_the_command_still_learns_the_number(command: str | None) -> None:
    assert nonce_of(remote_command(command, ["relay", "--nonce", "0a" * 16])) == "0a" * 16
    assert nonce_of(remote_command(command, ["relay", "--nonce", "0a" * 16, "--socket", "/a b"])) == "0a" * 16
    assert nonce_of("scp -t x") == ""
