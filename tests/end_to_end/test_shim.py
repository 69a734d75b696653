"""The shim as editors start and end it: what it says where, and what it ends with."""

import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.kit.free_ports import free_port
from tests.kit.running import ENVIRONMENT, PROGRAM, WORK, RunningGateway, lines_of, sees_processes

INITIALIZE = b'{"jsonrpc":"2.0","id":"i","method":"initialize","params":{"protocolVersion":1}}\n'


def run_shim(
    command: list[str], environment: dict[str, str] | None = None, given: bytes = INITIALIZE
) -> tuple[int, dict[str, Any], str]:
    """Start a shim that can't succeed, as an editor would; its exit code, its answer to `initialize`, its stderr."""
    with subprocess.Popen(
        command,
        env=ENVIRONMENT if environment is None else environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(given)
        process.stdin.flush()
        out = process.stdout.read()
        err = process.stderr.read().decode()
        code = process.wait(60)
    return code, json.loads(out), err


def run_in_vain(
    command: list[str], words: str, environment: dict[str, str] | None = None
) -> tuple[int, dict[str, Any], str]:
    """Run a shim that tries to connect until its time is over; what `run_shim` returns.

    On a busy machine the first attempt, whose modules are imported then, may take longer: without these words in its
    error it is run again with more time.
    """
    for seconds in (3, 15, 60):
        outcome = run_shim([*command, "--connect-timeout", str(seconds)], environment)
        if words in outcome[2]:
            break
    return outcome


def assert_told(outcome: tuple[int, dict[str, Any], str], code: int, reason: str, words: str) -> None:
    exit_code, answer, err = outcome
    assert exit_code == code
    assert (answer["id"], answer["error"]["data"]["reason"]) == ("i", reason)
    assert words in answer["error"]["message"]
    assert len(err.splitlines()) == 1
    assert words in err


def test_a_gateway_that_is_not_there_is_an_answer_to_initialize(gateway: RunningGateway) -> None:
    target = f"tcp://127.0.0.1:{free_port()}"
    command = [*PROGRAM, "connect", target, "--token-file", str(gateway.token_file)]
    words = "connection refused"
    assert_told(run_in_vain(command, words), 6, "unreachable", words)


def test_a_gateway_that_is_not_there_is_an_error_also_for_who_says_nothing(gateway: RunningGateway) -> None:
    for target, options, code in (
        (f"tcp://127.0.0.1:{free_port()}", [], 6),
        ("bad.invalid", ["--token-file", str(gateway.token_file)], 6),
        ("bad.invalid", [], 3),
        (gateway.urls["tcp"], ["--token-file", str(gateway.token_file)], 0),
        (gateway.urls["wss"].replace("wss", "tcp+tls").replace("/acp", ""), ["--pin", gateway.pin], 7),
    ):
        # An answer ends it before.
        command = [*PROGRAM, "connect", target, *options, "--connect-timeout", "0.5" if code == 6 else "60"]
        done = subprocess.run(
            command, env=ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=60
        )
        assert (done.returncode, done.stdout) == (code, b""), (target, done.stderr)
        assert len(done.stderr.splitlines()) == (code != 0)


def test_in_a_terminal_it_says_what_it_is_for_and_that_it_works(gateway: RunningGateway, tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"XDG_STATE_HOME": str(tmp_path / "state")}
    path = tmp_path / "socket"
    os.link(gateway.urls["unix"].removeprefix("unix://"), path)
    command = [*PROGRAM, "connect", f"unix://{path}"]
    leader, follower = os.openpty()
    try:
        # Ctrl-D.
        os.write(leader, b"\x04")
        done = subprocess.run(
            command, env=environment, stdin=follower, capture_output=True, text=True, check=False, timeout=60
        )
    finally:
        os.close(leader)
        os.close(follower)
    first, second = done.stderr.splitlines()
    assert first.startswith("Editors run this: it speaks JSON-RPC on stdin and stdout")
    assert f"for an editor's settings: acp-gateway connect unix://{path} --print-config zed|" in first
    assert re.match(rf"Connected to unix://{path} in \d+\.\d s: .* acp-gateway ping unix://{path}$", second)
    assert (done.returncode, done.stdout) == (0, "")


def test_a_gateway_that_was_reached_before_is_waited_for(gateway: RunningGateway, tmp_path: Path) -> None:
    environment = ENVIRONMENT | {"XDG_STATE_HOME": str(tmp_path / "state")}
    path = tmp_path / "socket"
    os.link(gateway.urls["unix"].removeprefix("unix://"), path)
    command = [*PROGRAM, "connect", f"unix://{path}", "--token-file", str(gateway.token_file), "--agent", "raw"]
    first = subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, check=False, timeout=60)
    assert first.returncode == 0
    path.unlink()
    # With the time for new ones alone it would end.
    given = [*command, "--connect-timeout", "0.1"]
    assert_told(run_shim(given, environment), 6, "unreachable", "(tried for 0.1 s)")
    given = [*command, "--known-timeout", "16"]
    with subprocess.Popen(given, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        os.link(gateway.urls["unix"].removeprefix("unix://"), path)
        assert b'"id":"i"' in next(lines_of(process))
        process.stdin.close()
        assert process.wait(60) == 0


def test_a_gateway_that_comes_late_is_still_reached(gateway: RunningGateway, tmp_path: Path) -> None:
    path = tmp_path / "late"
    log = tmp_path / "log"
    os.mkfifo(log)
    command = [*PROGRAM, "connect", f"unix://{path}", "--token-file", str(gateway.token_file), "--log-file", str(log)]
    command += ["--agent", "raw"]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        with log.open() as lines:
            # The first attempt has failed by the time it is logged.
            assert "cannot reach" in next(lines)
            os.link(gateway.urls["unix"].removeprefix("unix://"), path)
            assert b'"id":"i"' in next(lines_of(process))
            process.stdin.close()
            assert process.wait(60) == 0
            lines.read()


def test_a_wrong_token_ends_it_at_once(gateway: RunningGateway, tmp_path: Path) -> None:
    # The right shape, and of no gateway.
    from acp_gateway.security.token_format import mint

    token_file = tmp_path / "token"
    token_file.touch(0o600)
    token_file.write_text(mint())
    for transport, code, reason, words in (
        ("wss", 4, "unauthorized", "token"),
        ("tcp", 7, "protocol", "did not prove that it knows this token"),
    ):
        command = gateway.connect_command(transport, "--token-file", str(token_file), "--connect-timeout", "1000")
        assert_told(run_shim(command), code, reason, words)


def test_a_wrong_pin_ends_it_at_once_and_shows_both(gateway: RunningGateway) -> None:
    wrong = "sha256:" + 64 * "0"
    for transport in ("wss", "tcp+tls"):
        outcome = run_shim(gateway.connect_command(transport, "--pin", wrong, "--connect-timeout", "1000"))
        assert_told(outcome, 5, "tls", wrong)
        assert gateway.pin in outcome[2]


def test_an_untrusted_certificate_ends_it_at_once(gateway: RunningGateway) -> None:
    command = [*PROGRAM, "connect", gateway.urls["wss"], "--token-file", str(gateway.token_file)]
    assert_told(run_shim(command), 5, "tls", "not trusted")


def test_the_gateways_own_certificate_may_be_given_as_the_authority(gateway: RunningGateway) -> None:
    command = [
        *(*PROGRAM, "connect", gateway.urls["wss"], "--token-file", str(gateway.token_file)),
        *("--ca", str(gateway.directory / "cert.pem"), "--agent", "raw"),
    ]
    with subprocess.Popen(command, env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        assert b'"result"' in next(lines_of(process))
        process.stdin.close()
        assert process.wait(60) == 0


def test_an_unknown_agent_ends_it_at_once(gateway: RunningGateway) -> None:
    for transport in ("wss", "tcp"):
        assert_told(run_shim(gateway.connect_command(transport, "--agent", "nosuch")), 4, "unknown_agent", "nosuch")


def test_an_agent_that_cannot_be_started_is_told_to_the_editor(gateway: RunningGateway) -> None:
    for transport in ("wss", "tcp"):
        outcome = run_shim(gateway.connect_command(transport, "--agent", "missing"))
        assert outcome[1]["error"]["data"]["reason"] == "agent_not_started"
        assert "/nonexistent/agent is not found" in outcome[1]["error"]["message"]
        # Lines have no word for why they are closed.
        assert outcome[0] == (8 if transport == "wss" else 6)


def test_a_web_server_that_is_not_a_gateway_is_told_apart(gateway: RunningGateway) -> None:
    command = gateway.connect_command("ws")
    command[command.index(gateway.urls["ws"])] = gateway.urls["ws"].replace("/acp", "/healthz")
    assert_told(run_shim(command), 7, "protocol", "200")


def test_without_a_token_it_says_where_to_get_one(gateway: RunningGateway) -> None:
    assert_told(run_shim([*PROGRAM, "connect", "wss://box.example"]), 4, "unauthorized", "token create")
    # On this machine there may be servers that want none.
    assert_told(
        run_shim([*PROGRAM, "connect", gateway.urls["ws"]]), 4, "unauthorized", "no token was sent: give one by"
    )


def test_a_mistyped_host_is_told_from_one_that_answers() -> None:
    assert_told(run_shim([*PROGRAM, "connect", "nohost"]), 3, "configuration", '"nohost" is not in hosts.toml')


def test_a_token_with_a_typo_is_found_before_it_is_sent() -> None:
    environment = ENVIRONMENT | {"ACP_GATEWAY_TOKEN": "acpgw_" + "a" * 39}
    assert_told(run_shim([*PROGRAM, "connect", "127.0.0.1"], environment), 4, "unauthorized", "checksum")


def test_a_token_file_that_others_may_read_is_refused(gateway: RunningGateway, tmp_path: Path) -> None:
    token_file = tmp_path / "token"
    token_file.write_text(gateway.token)
    token_file.chmod(0o644)
    assert_told(
        run_shim([*PROGRAM, "connect", "127.0.0.1", "--token-file", str(token_file)]), 3, "configuration", "chmod 600"
    )


def test_a_wrong_map_is_an_answer_to_initialize() -> None:
    assert_told(run_shim([*PROGRAM, "connect", "127.0.0.1", "--map", "here=there"]), 2, "usage", "LOCAL=REMOTE")


def test_a_name_from_hosts_toml_is_all_it_needs(gateway: RunningGateway, tmp_path: Path) -> None:
    place = tmp_path / "acp-gateway"
    place.mkdir()
    (place / "hosts.toml").write_text(
        f'[hosts.box]\nurl = "{gateway.urls["wss"]}"\nagent = "raw"\npin = "{gateway.pin}"\n'
        f'token_file = "{gateway.token_file}"\nmaps = {{ "/laptop/proj" = "{WORK}" }}\n'
    )
    with subprocess.Popen(
        [*PROGRAM, "connect", "box"],
        env=ENVIRONMENT | {"XDG_CONFIG_HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE)
        process.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"session/new","params":{"cwd":"/laptop/proj"}}\n')
        process.stdin.flush()
        lines = lines_of(process)
        next(lines)
        assert json.loads(json.loads(next(lines))["result"]["line"])["params"]["cwd"] == str(WORK)
        process.stdin.close()
        assert process.wait(60) == 0


def test_it_starts_with_nothing_but_path_in_its_environment(gateway: RunningGateway) -> None:
    command = gateway.connect_command("wss", "--agent", "raw")
    with subprocess.Popen(
        command,
        env={"PATH": ENVIRONMENT["PATH"]},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        assert b'"result"' in next(lines_of(process))
        process.stdin.close()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_politely_and_silently(gateway: RunningGateway, number: signal.Signals) -> None:
    with subprocess.Popen(
        gateway.connect_command("wss", "--agent", "raw"),
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        next(lines_of(process))
        process.send_signal(number)
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


@sees_processes
@pytest.mark.parametrize("numbers", [[signal.SIGKILL], [signal.SIGTERM, signal.SIGKILL]])
@pytest.mark.parametrize("transport", ["wss", "tcp"])
def test_a_killed_shim_leaves_no_agent_behind_when_it_has_been_away_for_long_enough(
    gateway: RunningGateway, transport: str, numbers: list[signal.Signals]
) -> None:
    with subprocess.Popen(
        gateway.connect_command(transport, "--agent", "raw"),
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        agent = os.pidfd_open(json.loads(next(lines_of(process)))["result"]["pid"])
        for number in numbers:
            process.send_signal(number)
        process.wait(60)
    ended, _, _ = select.select([agent], [], [], 60)
    os.close(agent)
    assert ended


def test_an_editor_that_reads_no_more_ends_it_silently(gateway: RunningGateway) -> None:
    with subprocess.Popen(
        gateway.connect_command("wss", "--agent", "raw"),
        env=ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdin.write(INITIALIZE)
        process.stdin.flush()
        next(lines_of(process))
        process.stdout.close()
        process.stdin.write(b'{"jsonrpc":"2.0","id":2,"method":"raw/echo"}\n')
        process.stdin.flush()
        assert process.wait(60) == 0
        assert process.stderr.read() == b""


def test_stdin_from_a_file_works_too(gateway: RunningGateway, tmp_path: Path) -> None:
    given = tmp_path / "given"
    given.write_bytes(INITIALIZE)
    with given.open("rb") as file:
        done = subprocess.run(
            gateway.connect_command("wss", "--agent", "raw"),
            env=ENVIRONMENT,
            stdin=file,
            capture_output=True,
            check=False,
            timeout=60,
        )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b'"result"' in done.stdout


def modules_after(script: str, given: bytes = b"") -> tuple[set[str], bytes]:
    """Return the modules imported by a process that runs this script, and the script's output."""
    script += "\nprint(*sys.modules, sep='\\n', file=sys.stderr)\n"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys\n{script}"],
        env=ENVIRONMENT,
        input=given,
        capture_output=True,
        check=True,
        timeout=60,
    )
    return set(done.stderr.decode().split()), done.stdout


@pytest.mark.parametrize("transport", ["wss", "ws", "tcp", "unix"])
def test_up_to_the_first_reply_it_imports_trio_websockets_client_json_and_little_of_its_own(
    gateway: RunningGateway, transport: str
) -> None:
    # The encodings are those of names of hosts, which Python asks for itself, and of a token's file; zlib has its sum,
    # and fcntl makes pipes larger.
    needed, _ = modules_after(
        "from acp_gateway.cli.quick_imports import PUT_OFF, quick_imports\n"
        "with quick_imports(PUT_OFF):\n"
        "    import json, trio, websockets.client, encodings.idna, encodings.utf_8_sig, fcntl, zlib\n"
        f"{'import ssl' if transport == 'wss' else ''}"
    )
    imported, said = modules_after(
        "import gc\n"
        "from acp_gateway.__main__ import main\n"
        f"sys.argv[1:] = {gateway.connect_command(transport, '--agent', 'raw')[3:]!r}\n"
        "main()\n"
        # What is imported is not the business of the garbage collector's; what comes then is.
        "assert gc.get_freeze_count() > 10_000 and gc.isenabled()",
        INITIALIZE,
    )
    assert b'"result"' in said
    put_off = {"click", "ctypes.util", "datetime", "idna", "importlib.metadata", "subprocess", "tokenize"}
    assert (put_off if transport == "wss" else put_off | {"ssl"}) & imported == set()
    own = {name for name in imported if name.split(".")[0] == "acp_gateway"}
    assert imported - needed - own == set()
    assert own >= {"acp_gateway.client.shim", "acp_gateway.transports.websocket.stream"}
    packages_for_others = {"core", "dialects", "gateway", "nodes", "server"}
    for_others = {
        *("cli.certs", "cli.client.editor_files", "cli.client.pair", "cli.client.sessions", "cli.support"),
        *("cli.gateway.serve", "cli.gateway.share", "cli.tokens"),
        *("protocol.text.lookup", "protocol.secret_patterns", "protocol.jsonrpc", "protocol.redaction"),
        *("client.control", "client.joining", "client.pairing", "client.ssh"),
        *("config.hosts", "config.limits", "config.load", "config.options", "config.schema"),
        *("config.editing.toml_file", "security.certificates", "security.token_store", "transports.websocket.server"),
    }
    for name in for_others:
        assert importlib.util.find_spec(f"acp_gateway.{name}") is not None, name
    assert {name.split(".")[1] for name in own if "." in name} & packages_for_others == set()
    assert {name.partition(".")[2] for name in own} & for_others == set()
    for name in own:
        source = importlib.util.find_spec(name)
        assert source is not None
        assert source.origin is not None
        # Windows has none of these: an indented one is below a question for the platform.
        assert not re.search(
            r"^(import|from) (fcntl|pwd|grp|resource|termios|pty)\b", Path(source.origin).read_text(), re.MULTILINE
        )
