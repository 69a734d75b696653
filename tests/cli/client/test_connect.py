"""The command `connect`: its options, and the settings that it prints for editors."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import trio

from acp_gateway.cli.client import editor_files
from acp_gateway.cli.plain_options import CONNECT, EDITORS, ConnectOptions, read_plain_line
from acp_gateway.client import agent_host
from acp_gateway.client.dialing import Destination
from tests.kit.doubles import run_command as run


def test_the_editors_are_those_that_there_are_settings_for() -> None:
    assert EDITORS == editor_files.EDITORS


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
    options += ["--keepalive", "45", "--known-timeout", "0", "--observe", "--tell-outages", "--attach", "s1"]
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
    (entry,) = json.loads(run("connect", "box", "--print-config", "jetbrains").stdout)["agent_servers"].values()
    assert (entry["command"], entry["args"][:3]) == (sys.executable, ["-P", "-m", "acp_gateway"])


@pytest.mark.parametrize(
    "arguments", [["ftp://nope"], ["box", "--pin", "junk"], ["box", "--map", "junk"]], ids=["url", "pin", "map"]
)
def test_no_settings_are_printed_for_what_could_not_work(arguments: list[str]) -> None:
    refused = run("connect", *arguments, "--print-config", "zed")
    assert (refused.exit_code, refused.stdout) == (2, "")


@pytest.mark.parametrize("value", ["nan", "inf", "0", "-1"])
def test_a_timeout_must_be_a_time(value: str) -> None:
    assert run("connect", "box", "--connect-timeout", value).exit_code == 2


@pytest.mark.parametrize("value", ["nan", "inf", "19.9", "-1"])
def test_a_link_is_not_dead_before_it_had_to_be_heard_twice(value: str) -> None:
    assert run("connect", "box", "--keepalive", value).exit_code == 2


def test_a_token_is_not_an_option(config: Path) -> None:
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


def test_the_settings_block_keeps_the_feedback_that_was_asked_for() -> None:
    options = ["--status-file", "s.json", "--tell-outages"]
    block = json.loads(run("connect", "tcp://box:1", *options, "--print-config", "jetbrains").stdout)
    (entry,) = block["agent_servers"].values()
    assert entry["args"][-3:] == ["--tell-outages", "--status-file", str(Path("s.json").absolute())]


def test_connect_through_click_relays_with_the_values_of_a_plain_line(monkeypatch: pytest.MonkeyPatch) -> None:
    relayed = []
    monkeypatch.setattr("acp_gateway.cli.client.connect.relay_editor", lambda *line: relayed.append(line))
    words = ["box", "--agent", "demo", "--keepalive", "45", "--observe"]
    assert run("connect", *words).exit_code == 0
    line = read_plain_line(CONNECT, words)
    assert line is not None
    assert relayed == [(line.target, ConnectOptions(**line.values), line.given)]


# Windows of VS Code

BOX = "ws://127.0.0.1:1"


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """Report failures in place of serving; return the URL of each port, and where it leads."""
    told: list[str] = []

    async def serve(
        listener: trio.SocketListener, place: Callable[[], Destination], secret: str, report: Callable[[str], None]
    ) -> None:
        told.extend((agent_host.url_of(listener, secret), f"{place().address} {place().connect_params}"))
        for why in ("lost", "lost", "lost\x07"):
            report(why)

    monkeypatch.setattr(agent_host, "serve_windows", serve)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    return told


def test_ahp_prints_the_url_of_a_port_with_a_token_of_this_run(served: list[str]) -> None:
    first, second = (run("connect", BOX, "--ahp", "--observe", "--agent", "demo") for _ in range(2))
    assert (first.exit_code, first.stdout, second.stdout) == (0, f"{served[0]}\n", f"{served[2]}\n")
    assert re.fullmatch(r"ws://127\.0\.0\.1:[0-9]+/\?tkn=[A-Za-z0-9_-]{43}", served[0])
    assert served[0].partition("tkn=")[2] != served[2].partition("tkn=")[2]
    assert served[1] == "ws://127.0.0.1:1/ahp {'agent': 'demo', 'observe': True}"
    assert first.stderr.count("warning: lost") == 2


def test_ahp_is_in_the_settings_of_vs_code_under_a_name_with_the_same_port_and_token_each_time(
    served: list[str], tmp_path: Path
) -> None:
    settings = tmp_path / ".config/Code/User/settings.json"
    settings.parent.mkdir(parents=True)
    other = {"address": "10.0.0.1:1", "name": "127.0.0.1:1", "connectionToken": "another"}
    settings.write_text(f'// mine\n{{\n  "a": 1, // one\n  "chat.remoteAgentHosts": {json.dumps([other])}\n}}\n')
    command = ("connect", BOX, "--ahp", "--install", "vscode-host", "--name", "127.0.0.1:1")
    assert "this can't ask without a terminal: --yes writes it" in run(*command).stderr
    assert served == []
    first = run(*command, "--yes")
    port, secret = served[0].rpartition("/")[0].rpartition(":")[2], served[0].partition("tkn=")[2]
    written = settings.read_text()
    assert written.startswith('// mine\n{\n  "a": 1, // one\n')
    entry = {"address": f"127.0.0.1:{port}", "name": "127.0.0.1:1", "connectionToken": secret}
    assert json.loads(written.partition('Hosts":')[2].rpartition("}")[0]) == [other, entry]
    # The difference is shown without the tokens of all hosts.
    assert "another" not in first.stderr
    assert secret not in first.stderr
    again = run(*command)
    assert "has this already" in again.stderr
    assert served[2] == served[0]
    run(*command, "--yes", "--port", "0")
    assert served[4].partition("tkn=")[2] == secret
    settings.write_text('{"chat.remoteAgentHosts": {}}')
    assert "chat.remoteAgentHosts is not a list there" in run(*command).stderr
    # Those of Insiders, where that is installed.
    insiders = tmp_path / ".config/Code - Insiders/User/settings.json"
    insiders.parent.mkdir(parents=True)
    run(*command, "--yes")
    assert "127.0.0.1:1" in insiders.read_text()
    assert settings.read_text() == '{"chat.remoteAgentHosts": {}}'


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--ahp", "--map", "/a=/b"), "--map is for editors that run this command"),
        (("--ahp", "--known-timeout", "5"), "--known-timeout is for editors that run this command"),
        (("--ahp", "--install", "zed"), "--ahp goes with --install vscode-host alone"),
        (("--ahp", "--print-config", "zed"), "--ahp goes with --install vscode-host alone"),
        (("--install", "vscode-host"), "--ahp goes with --install vscode-host alone"),
        (("--port", "1"), "--port is for --ahp"),
    ],
)
def test_ahp_goes_with_its_own_options(words: tuple[str, ...], error: str, served: list[str]) -> None:
    refused = run("connect", BOX, *words)
    assert (refused.exit_code, served) == (2, [])
    assert error in refused.stderr


def test_ahp_needs_an_address_for_websockets(served: list[str]) -> None:
    assert "an agent host is reached over wss:// or ws:// only" in run("connect", "ssh://box", "--ahp").stderr
