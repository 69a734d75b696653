"""The command line, in this process: what is printed where, and exit codes. What needs a gateway is in end_to_end/."""

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from acp_gateway import __version__
from acp_gateway.cli import editor_settings
from acp_gateway.cli.main import EDITORS, READER_GONE, main
from acp_gateway.client import control
from tests.doubles import TIMEOUT
from tests.doubles import run_command as run


def test_the_version_is_the_packages() -> None:
    assert __version__ in run("--version").output


@pytest.mark.parametrize("words", [["version"], ["-V"]])
def test_the_version_is_shown_for_whatever_people_type(words: list[str]) -> None:
    shown = run(*words)
    assert (shown.exit_code, shown.output) == (0, run("--version").output)


def test_help_is_shown_for_whatever_people_type() -> None:
    for words, option in ((["help"], ["--help"]), (["help", "token", "create"], ["token", "create", "--help"])):
        shown = run(*words)
        assert (shown.exit_code, shown.output) == (0, run(*option).output)
    refused = run("help", "tokn")
    assert refused.exit_code == 2
    assert "'token'" in refused.stderr


@pytest.mark.parametrize(
    "command", [["--help"], ["audit"], ["token", "list"], ["certs", "show", "cert.pem"]], ids=lambda words: words[0]
)
def test_a_command_ends_quietly_when_the_reader_of_its_stdout_is_gone(
    config: Path, tmp_path: Path, command: list[str]
) -> None:
    run("certs", "create", "--out", tmp_path)
    run("token", "create", "--config", config, "--label", "x")
    options = ["--config", str(config)] if command[0] in ("audit", "token") else []
    reader, writer = os.pipe()
    os.close(reader)
    program = [sys.executable, "-m", "acp_gateway", *command, *options]
    done = subprocess.run(program, stdout=writer, stderr=subprocess.PIPE, cwd=tmp_path, check=False, timeout=TIMEOUT)
    os.close(writer)
    assert (done.returncode, done.stderr) == (READER_GONE, b"")


def test_every_command_explains_itself_and_its_options() -> None:
    def commands(group: click.Group, path: list[str]) -> list[list[str]]:
        found = [path]
        for name in group.list_commands(click.Context(group)):
            command = group.commands[name]
            found += commands(command, [*path, name]) if isinstance(command, click.Group) else [[*path, name]]
        return found

    found = commands(main, [])
    assert {"connect", "serve", "token", "relay"} <= {path[0] for path in found if path}
    for path in found:
        shown = run(*path, "--help")
        assert shown.exit_code == 0
        assert "Usage:" in shown.output
    for command in (main, *main.commands.values()):
        assert command.help
        assert all(option.help for option in command.params if isinstance(option, click.Option))


def test_a_command_with_a_typo_is_answered_with_the_one_that_was_meant() -> None:
    refused = run("tokn", "list")
    assert refused.exit_code == 2
    assert "'token'" in refused.stderr


def test_a_role_that_there_is_not_is_refused_with_those_that_there_are(config: Path) -> None:
    refused = run("token", "create", "--config", config, "--label", "x", "--role", "owner")
    assert refused.exit_code == 2
    assert "'controller', 'observer'" in refused.stderr


def test_check_config_says_which_key_in_which_line(config: Path) -> None:
    assert run("check-config", "--config", config).exit_code == 0
    config.write_text(config.read_text() + "scop = 1\n")
    wrong = run("check-config", "--config", config)
    assert wrong.exit_code == 3
    assert f"{config}:8" in wrong.stderr
    assert 'did you mean "scope"?' in wrong.stderr


def test_check_config_warns_of_a_command_that_is_not_found_and_is_content(config: Path) -> None:
    config.write_text(config.read_text().replace("python3", "no-such-agent"))
    warned = run("check-config", "--config", config)
    assert warned.exit_code == 0
    assert "warning" in warned.stderr
    assert "no-such-agent" in warned.stderr


def test_a_wrong_configuration_ends_serve_with_one_line(config: Path) -> None:
    config.write_text("[gateway]\nport = 1\n")
    ended = run("serve", "--config", config)
    assert ended.exit_code == 3
    assert len(ended.stderr.splitlines()) == 1


def test_the_editors_are_those_that_there_are_settings_for() -> None:
    assert EDITORS == editor_settings.EDITORS


@pytest.mark.parametrize("editor", EDITORS)
def test_the_settings_block_starts_this_very_command(editor: str) -> None:
    printed = run("connect", "box", "--agent", "demo", "--map", "/a b=/c", "--print-config", editor)
    assert printed.exit_code == 0
    assert "connect" in printed.stdout
    assert "/a b=/c" in printed.stdout


def test_the_settings_block_for_zed_is_json_with_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["bin/acp-gateway"])
    printed = run("connect", "wss://box:7443", "--token-file", "token", "--print-config", "zed").stdout
    block = json.loads("\n".join(line for line in printed.splitlines() if not line.startswith("//")))
    (entry,) = block["agent_servers"].values()
    assert entry["args"] == ["connect", "wss://box:7443", "--token-file", str(Path("token").absolute())]
    assert entry["command"] == str(Path("bin/acp-gateway").absolute())


def test_the_settings_block_keeps_every_option_that_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["acp-gateway"])
    options = ["--connect-timeout", "5", "--max-message-size", "1000", "--insecure-plaintext", "--agent", "x"]
    options += ["--keepalive", "45"]
    block = json.loads(run("connect", "tcp://box:1", *options, "--print-config", "jetbrains").stdout)
    (entry,) = block["agent_servers"].values()
    assert set(options) <= set(entry["args"])


def test_the_settings_block_has_the_client_certificate_by_absolute_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["acp-gateway"])
    block = json.loads(run("connect", "box", "--cert", "c.pem", "--key", "k", "--print-config", "jetbrains").stdout)
    (entry,) = block["agent_servers"].values()
    assert entry["args"] == [
        *("connect", "box", "--cert", str(Path("c.pem").absolute()), "--key", str(Path("k").absolute()))
    ]


@pytest.mark.parametrize("option", ["--cert", "--key"])
@pytest.mark.parametrize("command", [["sessions", "box"], ["connect", "box", "--print-config", "zed"]])
def test_half_a_client_certificate_is_a_wrong_command_line(command: list[str], option: str) -> None:
    refused = run(*command, option, "file.pem")
    assert refused.exit_code == 2
    assert "a client certificate is two files" in refused.stderr


def test_started_as_a_module_the_settings_block_starts_it_as_a_module(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/x/acp_gateway/__main__.py"])
    block = json.loads(run("connect", "box", "--print-config", "jetbrains").stdout)
    (entry,) = block["agent_servers"].values()
    assert entry["command"] == sys.executable
    assert entry["args"][:2] == ["-m", "acp_gateway"]


@pytest.mark.parametrize(
    "arguments", [["http://nope"], ["box", "--pin", "junk"], ["box", "--map", "junk"]], ids=["url", "pin", "map"]
)
def test_no_settings_are_printed_for_what_could_not_work(arguments: list[str]) -> None:
    refused = run("connect", *arguments, "--print-config", "zed")
    assert refused.exit_code == 2
    assert refused.stdout == ""


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1"])
def test_a_timeout_must_be_a_time(value: str) -> None:
    assert run("connect", "box", "--connect-timeout", value).exit_code == 2


@pytest.mark.parametrize("value", ["nan", "inf", "19.9", "-1"])
def test_a_link_is_not_dead_before_it_had_to_be_heard_twice(value: str) -> None:
    assert run("connect", "box", "--keepalive", value).exit_code == 2


def test_check_config_finds_what_only_shows_in_the_files(config: Path, tmp_path: Path) -> None:
    state = tmp_path / "state"
    run("token", "create", "--config", config, "--label", "x")
    (state / "tokens.json").chmod(0o644)
    assert run("check-config", "--config", config).exit_code == 3
    (state / "tokens.json").chmod(0o600)
    for name in ("cert.pem", "key.pem"):
        (tmp_path / name).write_text("no PEM")
    text = config.read_text().replace("tcp://127.0.0.1:7443", "wss://127.0.0.1:7443")
    config.write_text(text.replace("[agents.demo]", 'cert = "cert.pem"\nkey = "key.pem"\n[agents.demo]'))
    refused = run("check-config", "--config", config)
    assert refused.exit_code == 3
    assert "PEM" in refused.stderr


def test_check_config_warns_of_sessions_that_cannot_be_read_and_is_content(config: Path, tmp_path: Path) -> None:
    run("token", "create", "--config", config, "--label", "x")
    (tmp_path / "state" / "sessions.db").write_text("junk")
    warned = run("check-config", "--config", config)
    assert warned.exit_code == 0
    (line,) = warned.stderr.splitlines()
    assert line.startswith(f"warning: {tmp_path}/state/sessions.db: ")


def test_a_token_is_no_option(config: Path) -> None:
    assert run("connect", "box", "--token", "x").exit_code == 2


def test_the_settings_block_joins_the_session_that_was_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["acp-gateway"])

    def arguments(*options: str) -> list[str]:
        block = json.loads(run("connect", "box", *options, "--print-config", "jetbrains").stdout)
        (entry,) = block["agent_servers"].values()
        found: list[str] = entry["args"]
        return found

    assert arguments("--attach", "s 1", "--observe") == ["connect", "box", "--observe", "--attach", "s 1"]
    assert arguments("--observe") == ["connect", "box", "--observe"]
    assert arguments() == ["connect", "box"]
    assert run("connect", "box", "--attach", "", "--print-config", "zed").exit_code == 2


SESSIONS: list[dict[str, Any]] = [
    {
        "sessionId": "s1",
        "agent": "demo",
        "title": "\x1b[2JÜ\x7f\ud83d",
        "cwd": "/srv",
        "owner": "ann",
        "live": True,
        "connected": 1,
        "away": 0,
        "turn": True,
        "waiting": [],
        "later": 1,
    },
    {
        "sessionId": "longer",
        "agent": "other",
        "owner": "bob",
        "live": False,
        "connected": 0,
        "away": 0,
        "turn": False,
        "waiting": [{"method": "session/request_permission", "since": "2026-11-22T10:00:00Z"}],
    },
]


@pytest.fixture
def gateway_of(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start gateways that accept any token and answer one request with these sessions; return their addresses."""
    threads: list[threading.Thread] = []

    def start(sessions: object, **besides: object) -> str:
        path = tmp_path / f"socket{len(threads)}"
        listener = socket.socket(socket.AF_UNIX)
        listener.settimeout(TIMEOUT)
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener, listener.accept()[0] as sock, sock.makefile("rwb") as lines:
                for result in ({}, {"sessions": sessions} | besides):
                    request = json.loads(lines.readline())
                    lines.write(json.dumps({"id": request["id"], "result": result}).encode() + b"\n")
                    lines.flush()
                lines.read()

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"unix://{path}"

    yield start
    for thread in threads:
        thread.join()


def test_sessions_are_listed_a_row_each_for_scripts_without_heads(gateway_of: Callable[[object], str]) -> None:
    listed = run("sessions", gateway_of(SESSIONS))
    assert listed.exit_code == 0
    first, second = listed.stdout.splitlines()
    assert first == r"s1      demo   \x1b[2JÜ\x7f\ud83d  /srv  ann  yes  -  1  0  open  -"
    assert re.fullmatch(
        r"longer  other  - {19}-     bob  no   -  0  0  -     session/request_permission for \d+ (s|min|h|d)",
        second,
    )


def test_sessions_have_heads_on_a_terminal(
    gateway_of: Callable[[object], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = os.openpty()
    with open(leader, "rb", buffering=0) as terminal, open(follower, "w", encoding="cp1252") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        main(["sessions", gateway_of([SESSIONS[0] | {"title": "机"}])], standalone_mode=False)
        stdout.flush()
        shown = b""
        while shown.count(b"\n") < 2:
            shown += terminal.read(4096)
        heads, row = shown.decode().splitlines()
    assert heads == "ID  AGENT  TITLE  CWD   OWNER  LIVE  HISTORY  CONNECTED  AWAY  TURN  WAITS"
    # What the terminal has no character for is no reason to fail.
    assert row == "s1  demo   ?      /srv  ann    yes   -        1          0     open  -"


def test_sessions_are_json_for_programs_with_all_that_the_gateway_says(gateway_of: Callable[[object], str]) -> None:
    printed = run("sessions", gateway_of(SESSIONS), "--json")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == SESSIONS
    assert printed.stdout.replace("\n", "").isprintable()
    assert run("sessions", gateway_of([]), "--json").stdout == "[]\n"


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_what_is_wrong_with_the_gateway_and_what_is_not_shown_is_said_beside_the_sessions(
    gateway_of: Callable[..., str], options: list[str]
) -> None:
    quiet = run("sessions", gateway_of(SESSIONS), *options)
    assert quiet.stderr == ""
    told = run("sessions", gateway_of(SESSIONS, more=12, problems=["one\nline", "\x1b[2Jx"]), *options)
    assert told.exit_code == 0
    assert told.stderr.splitlines() == [
        "warning: one line",
        r"warning: \x1b[2Jx",
        "Not shown: 12 more that are not live and were used longer ago.",
    ]
    assert told.stdout == quiet.stdout


def test_only_an_agents_sessions_are_listed_where_it_is_named(gateway_of: Callable[[object], str]) -> None:
    listed = run("sessions", gateway_of(SESSIONS), "--agent", "other")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["longer"]


def test_where_there_are_no_sessions_that_is_said_and_no_error(gateway_of: Callable[[object], str]) -> None:
    listed = run("sessions", gateway_of([]))
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert len(listed.stderr.splitlines()) == 1


def test_a_gateway_that_cannot_be_asked_for_sessions_is_one_line_and_an_exit_code(
    tmp_path: Path, gateway_of: Callable[[object], str]
) -> None:
    for target, code in ((f"unix://{tmp_path}/absent", 6), (gateway_of("junk"), 7), ("http://nope", 2)):
        failed = run("sessions", target)
        assert failed.exit_code == code
        assert failed.stdout == ""
        assert len(failed.stderr.splitlines()) == 1


def test_ctrl_c_while_a_gateway_is_waited_for_shows_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise BaseExceptionGroup("tasks", [BaseExceptionGroup("tasks", [KeyboardInterrupt()])])

    monkeypatch.setattr(control, "list_sessions", interrupted)
    stopped = run("sessions", "unix:///absent")
    assert stopped.exit_code == 1
    assert stopped.stderr.strip() == "Aborted!"


def test_a_bug_that_comes_along_with_ctrl_c_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    async def interrupted(*_: object, **__: object) -> None:
        raise BaseExceptionGroup("tasks", [KeyboardInterrupt(), ZeroDivisionError()])

    monkeypatch.setattr(control, "list_sessions", interrupted)
    with pytest.raises(BaseExceptionGroup):
        main(["sessions", "unix:///absent"])
