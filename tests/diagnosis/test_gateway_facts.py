"""The facts of `doctor`, gathered from files, ports and processes of the test's own."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from acp_gateway.diagnosis import gateway_facts as doctor_facts
from acp_gateway.diagnosis.gateway_checks import SYSTEMD, MachineFacts, UnitFacts
from acp_gateway.diagnosis.gateway_facts import find_units, gather, looks_like_key, other_gateways
from acp_gateway.gateway.storage.state_folder import holding
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_store import TokenStore

CONFIG = """
[gateway]
state_dir = "{0}/state"
default_agent = "demo"
[[listen]]
url = "wss://127.0.0.1:{1}"
cert = "cert.pem"
key = "key.pem"
[[listen]]
url = "unix://{0}/socket"
[agents.demo]
command = ["demo", "acp"]
pass_env = ["B_API_KEY"]
[agents.remote]
url = "tcp://127.0.0.1:1"
"""


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path, listener: socket.socket) -> Path:
    """A gateway's configuration, with a port at which a program listens."""
    create_certificate(["127.0.0.1"], tmp_path)
    (tmp_path / "config.toml").write_text(CONFIG.format(tmp_path, listener.getsockname()[1]))
    for name in ("bin", "service"):
        (tmp_path / name).mkdir()
    (tmp_path / "bin/demo").touch(0o755)
    return tmp_path


def look(folder: Path, **variables: str) -> MachineFacts:
    environment = {"PATH": str(folder / "bin"), "USER": "ann"} | variables
    return gather(folder / "config.toml", environment, proc=folder / "proc")


def test_files_ports_and_tokens_are_looked_at(folder: Path) -> None:
    TokenStore(folder / "state").create("laptop", "ann", None)
    facts = look(folder, A_API_KEY="x", EDITOR="vi")
    assert facts.config.problems == ()
    assert (facts.gateway, facts.environment_known) == (None, False)
    wss, unix = facts.listeners
    assert (wss.accepting, wss.own) == (True, False)
    assert wss.holder is None or f"process {os.getpid()} " in wss.holder
    assert (unix.url, unix.accepting) == (f"unix://{folder}/socket", False)
    (certificate,) = facts.certificates
    assert certificate.self_signed
    assert [(token.label, token.expires, token.expired) for token in facts.tokens] == [("laptop", None, False)]
    (agent,) = facts.agents
    assert (agent.here, agent.in_service, agent.withheld) == (str(folder / "bin/demo"), None, ("A_API_KEY",))
    assert facts.state is not None
    assert facts.state.problem is None
    assert 0 < facts.state.size < facts.state.free


def test_the_environment_of_the_running_gateway_decides_what_agents_get(folder: Path) -> None:
    (folder / "state").mkdir(mode=0o700)
    process = folder / "proc" / str(os.getpid())
    process.mkdir(parents=True)
    (process / "environ").write_bytes(f"PATH={folder}/service\0JUNK\0".encode())
    with holding(folder / "state"):
        facts = look(folder, A_API_KEY="x", B_API_KEY="x")
    assert (facts.gateway, facts.environment_known) == (os.getpid(), True)
    (agent,) = facts.agents
    assert (agent.here, agent.in_service) == (str(folder / "bin/demo"), None)
    assert (agent.withheld, agent.promised) == (("A_API_KEY", "B_API_KEY"), ("B_API_KEY",))
    assert not any("runs on" in text for _, text in facts.config.problems)


def test_a_state_folder_that_others_may_write_is_told_once(folder: Path) -> None:
    (folder / "state").mkdir()
    (folder / "state").chmod(0o777)
    facts = look(folder)
    assert facts.state is not None
    assert "chmod 700" in str(facts.state.problem)
    assert facts.config.problems == ()


def test_a_configuration_that_is_wrong_is_all_that_is_known(folder: Path) -> None:
    (folder / "config.toml").write_text("[gateway]\nx = 1\n")
    facts = look(folder)
    assert "error" in {severity for severity, _ in facts.config.problems}
    assert facts.listeners == ()


def test_a_certificate_and_tokens_that_cannot_be_read_are_left_to_the_check_of_the_configuration(folder: Path) -> None:
    (folder / "cert.pem").write_text("junk")
    (folder / "state").mkdir(mode=0o700)
    (folder / "state/tokens.json").write_text("junk")
    facts = look(folder)
    assert (facts.certificates, facts.tokens) == ((), ())
    assert {severity for severity, _ in facts.config.problems} == {"error"}


@pytest.mark.parametrize(
    ("name", "is_key"),
    [
        *((name, True) for name in ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "GH_TOKEN", "HF_TOKEN")),
        *((name, False) for name in ("PATH", "SSH_AUTH_SOCK", "ACP_GATEWAY_TOKEN", "OPENAI_BASE_URL")),
    ],
)
def test_keys_are_told_by_their_names(name: str, is_key: bool) -> None:
    assert looks_like_key(name) is is_key


def test_other_gateways_are_found_by_their_command_lines(tmp_path: Path) -> None:
    commands = {
        10: "acp-gateway\0serve\0",
        11: "/usr/bin/python3\0/home/ann/.local/bin/acp-gateway\0serve\0",
        12: "python\0-m\0acp_gateway\0serve\0--config\0x\0",
        13: "acp-gateway\0connect\0box\0",
        14: "vi\0acp-gateway\0",
        15: "acp-gateway\0serve\0",
        os.getpid(): "acp-gateway\0serve\0",
    }
    for pid, command in commands.items():
        (tmp_path / str(pid)).mkdir()
        (tmp_path / str(pid) / "cmdline").write_text(command)
        (tmp_path / str(pid) / "environ").write_text("A=b\0HOME=/home/ann\0")
    (tmp_path / "16").mkdir()
    ended = tmp_path / "9"
    ended.symlink_to("x" * 300)  # Can't be looked into, like one that has just ended.
    # Of another home folder, and of another user, whose environment may not be read.
    (tmp_path / "10/environ").write_text("HOME=/home/bob\0")
    (tmp_path / "17").mkdir()
    (tmp_path / "17/cmdline").write_text("acp-gateway\0serve\0")
    found = dict(other_gateways(15, {"HOME": "/home/ann"}, tmp_path))
    ended.unlink()  # Nothing that searches the folders of tests could go past it.
    assert found == {
        11: "/usr/bin/python3 /home/ann/.local/bin/acp-gateway serve",
        12: "python -m acp_gateway serve --config x",
    }


def test_root_is_told_of_no_gateway_of_another_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "11").mkdir()
    (tmp_path / "11/cmdline").write_text("acp-gateway\0serve\0")
    (tmp_path / "11/environ").write_text("HOME=/\0")
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    assert list(other_gateways(None, {"HOME": "/"}, tmp_path)) == []


def make_systemctl(folder: Path, script: str) -> dict[str, str]:
    (folder / "systemctl").write_text(f"#!/bin/sh\n{script}\n")
    (folder / "systemctl").chmod(0o755)
    return {"PATH": f"{folder}:{os.environ['PATH']}", "USER": "ann"}


def test_units_of_the_account_and_of_the_system_are_asked_for(tmp_path: Path) -> None:
    environment = make_systemctl(
        tmp_path,
        'case "$1 $3" in "--user acp-gateway.service") echo LoadState=loaded; echo UnitFileState=enabled; '
        'echo ActiveState=active;; "--system acp-gateway@ann.service") echo LoadState=loaded; '
        "echo UnitFileState=disabled; echo ActiveState=failed;; *) echo LoadState=not-found;; esac",
    )
    assert list(find_units(environment)) == [
        UnitFacts("acp-gateway.service", user=True, enabled=True, active=True),
        UnitFacts("acp-gateway@ann.service", user=False, enabled=False, active=False),
    ]


def test_a_gateway_that_systemd_would_start_is_not_connected_to(folder: Path, listener: socket.socket) -> None:
    make_systemctl(folder / "bin", 'case "$3" in *.socket) echo LoadState=loaded; echo ActiveState=active;; esac')
    facts = look(folder)
    assert {unit.name for unit in facts.units} == {"acp-gateway.socket", "acp-gateway@ann.socket"}
    assert {(found.holder, found.own) for found in facts.listeners} == {(SYSTEMD, True)}
    listener.setblocking(False)
    with pytest.raises(BlockingIOError):
        listener.accept()


def test_without_systemd_there_are_no_units(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(find_units({"PATH": str(tmp_path)})) == []
    monkeypatch.setattr(doctor_facts, "COMMAND_TIMEOUT", 0.0)
    assert list(find_units(make_systemctl(tmp_path, "exec sleep 60"))) == []
