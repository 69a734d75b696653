"""The steps around a pairing. Terminals, networks and other machines are made up."""

import base64
import hashlib
import io
import os
import shlex
import subprocess
import sys
import zipfile
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import click
import pytest

from acp_gateway import __version__
from acp_gateway.cli.client import editor_files, pair_steps
from acp_gateway.cli.client.editor_files import Machine
from acp_gateway.cli.client.pair_steps import (
    choose_machine,
    correct_maps,
    install_there,
    make_own_wheel,
    next_step,
    parse_local_map,
    show_editors,
    try_agent,
)
from acp_gateway.client import pairing
from acp_gateway.client.pairing import Installed
from acp_gateway.client.ssh import SshTarget
from acp_gateway.config.addresses import parse_target
from acp_gateway.diagnosis import ping
from acp_gateway.diagnosis.checks import fault, ok, warning
from acp_gateway.errors import ConfigError, Unreachable, UsageError

BOX = SshTarget(parse_target("ssh://ann@box"))


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    found = ["box", "gpu"]
    monkeypatch.setattr("acp_gateway.cli.client.ssh_config.own_ssh_hosts", lambda: found)
    return found


def choose(monkeypatch: pytest.MonkeyPatch, answer: str) -> tuple[str, str]:
    """Return the choice in a terminal, and what was shown."""
    shown = Terminal()
    monkeypatch.setattr("sys.stdin", Terminal(f"{answer}\n"))
    monkeypatch.setattr("sys.stderr", shown)
    return choose_machine(), shown.getvalue()


@pytest.mark.parametrize(
    ("answer", "machine"), [("2", "gpu"), ("ann@other", "ann@other"), ("3", "3"), ("0", "0"), ("1", "box")]
)
def test_a_host_is_chosen_by_number_or_typed(
    monkeypatch: pytest.MonkeyPatch, hosts: list[str], answer: str, machine: str
) -> None:
    chosen, shown = choose(monkeypatch, answer)
    assert chosen == machine
    assert "  1  box\n  2  gpu\n" in shown


def test_no_answer_chooses_nothing(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    with pytest.raises(click.Abort):
        choose(monkeypatch, "")


def test_without_a_terminal_the_hosts_are_named(monkeypatch: pytest.MonkeyPatch, hosts: list[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    with pytest.raises(UsageError, match="box, gpu"):
        choose_machine()
    hosts.clear()
    with pytest.raises(UsageError, match=r"acp-gateway pair \[USER@\]HOST"):
        choose_machine()


def test_a_map_may_begin_with_the_home_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    assert parse_local_map("~/proj=/srv/proj") == ("/home/ann/proj", "/srv/proj")
    assert parse_local_map("/a=b=/c") == ("/a=b", "/c")
    for text in ("~/proj", "proj=/x", "~/a=~/b"):
        with pytest.raises(UsageError):
            parse_local_map(text)


def test_a_folder_of_a_map_that_is_not_here_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parse_local_map(f"{tmp_path}=/srv/proj")
    assert capsys.readouterr().err == ""
    parse_local_map(f"{tmp_path}/a\x1b[2J=/srv/proj")
    assert capsys.readouterr().err == f"note: there is no folder {tmp_path}/a\\x1b[2J here\n"


def test_a_reversed_map_is_refused_with_the_right_one(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=f"there is no folder /srv/none here, .*--map {shlex.quote(f'{tmp_path}=/srv/none')}$"
    ):
        parse_local_map(f"/srv/none={tmp_path}")


@pytest.mark.parametrize(
    ("folder", "first"), [("/found", ("/a", "/found")), ("/a", ("/b", "/a")), ("", ("/a", "FOLDER"))]
)
def test_the_first_map_is_corrected(folder: str, first: tuple[str, str]) -> None:
    refused = replace(fault("session", "no", "", 3), folder=folder)
    assert [*correct_maps({"/a": "/b", "/c": "/d"}, refused).items()] == [first, ("/c", "/d")]


@pytest.mark.parametrize(
    ("by", "said"), [("uv", "Installed by uv."), ("x\x1b[2J", r"by x\x1b[2J."), (None, "It is there already.")]
)
def test_this_version_is_installed_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], by: str | None, said: str
) -> None:
    handed = []

    async def install(target: SshTarget, name: str, wheel: bytes, version: str) -> Installed:
        handed.append((target, name, version, wheel[:2]))
        return Installed(by)

    monkeypatch.setattr(pairing, "install", install)
    install_there(BOX)
    assert handed == [(BOX, f"acp_remote_gateway-{__version__}-py3-none-any.whl", __version__, b"PK")]
    assert said in capsys.readouterr().err


def test_an_installation_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def install(*_: object) -> None:
        import trio

        await trio.sleep_forever()

    monkeypatch.setattr(pairing, "install", install)
    monkeypatch.setattr(pair_steps, "INSTALL_TIMEOUT", 0.0)
    with pytest.raises(Unreachable, match="has not ended within 0 s"):
        install_there(BOX)


@pytest.fixture
def pinged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The settings of each ping; their lines are put in front by tests."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    (tmp_path / "acp-gateway").mkdir()
    (tmp_path / "acp-gateway/hosts.toml").write_text('[hosts.box]\nurl = "tcp://127.0.0.1:1"\nmaps = { "/a" = "/b" }\n')
    seen: list[Any] = []

    class FakePing:
        def __init__(self, destination: object, settings: Any, report: Any, probes: object, waiting: object) -> None:
            seen.append(settings)
            self.settings, self.report = settings, report

        async def run(self) -> None:
            for line in (
                ok("port", "open", 0.1),
                warning("token", "it ends soon", "rotate it"),
                ok("agent", "demo starts", 0.2),
                replace(fault("session", "no folder", "map it", 3), folder=self.settings.folder),
            ):
                self.report(line)

    monkeypatch.setattr(ping, "Ping", FakePing)
    return seen


def test_the_agent_is_tried_and_what_is_wrong_shown(pinged: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    try_agent("box", None)
    refused = try_agent("box", "/a")
    assert refused is not None
    assert (refused.text, refused.folder) == ("no folder", "/a")
    assert [(settings.folder, settings.until) for settings in pinged] == [("/", "agent"), ("/a", "session")]
    assert pinged[1].maps.local_path("/b") == "/a"
    shown = capsys.readouterr().err
    assert "open" not in shown
    assert "-> rotate it" in shown
    assert "demo starts (200 ms)" in shown
    assert "-> map it" in shown


def test_a_host_that_cannot_be_read_again_is_a_warning(pinged: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    try_agent("bxo", None)
    assert "warning: there is no [hosts.bxo]" in capsys.readouterr().err
    assert pinged == []


def test_editors_are_shown_their_blocks(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(editor_files, "own_machine", lambda: Machine(tmp_path, {}, "linux"))
    monkeypatch.setattr(editor_files, "installed_editors", lambda _: ["zed", "emacs", "toad"])
    show_editors("box")
    shown = capsys.readouterr().err
    assert f"acp-gateway connect box --install zed`, or paste this into {tmp_path}/.config/zed/settings.json:" in shown
    assert '"agent_servers"' in shown
    assert "For Emacs, paste this:\n;; Emacs" in shown
    assert "Toad: acp-gateway connect box --print-config toad" in shown
    monkeypatch.setattr(editor_files, "installed_editors", lambda _: [])
    show_editors("box")
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("editors", "option"),
    [
        ([], "--install zed"),
        (["emacs"], "--print-config emacs"),
        (["emacs", "vscode", "jetbrains"], "--install vscode"),
    ],
)
def test_the_next_step_is_an_editor_of_this_machine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, editors: list[str], option: str
) -> None:
    monkeypatch.setattr(editor_files, "own_machine", lambda: Machine(tmp_path, {}, "linux"))
    monkeypatch.setattr(editor_files, "installed_editors", lambda _: editors)
    assert next_step("box") == f"acp-gateway connect box {option}"


def test_without_a_home_folder_no_editor_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> Machine:
        raise ConfigError("no home")

    monkeypatch.setattr(editor_files, "own_machine", missing)
    show_editors("box")
    assert next_step("box") == "acp-gateway connect box --print-config zed"


def test_the_wheel_has_the_program_its_files_and_a_record_of_each() -> None:
    name, content = make_own_wheel()
    assert name == f"acp_remote_gateway-{__version__}-py3-none-any.whl"
    archive = zipfile.ZipFile(io.BytesIO(content))
    names = archive.namelist()
    info = f"acp_remote_gateway-{__version__}.dist-info"
    assert {
        "acp_conformance/runner.py",
        "acp_conformance/fixtures/ids.jsonl",
        "acp_gateway/cli/main.py",
        "acp_gateway/web/index.html",
        "acp_gateway/share/README.md",
        "acp_gateway/share/systemd/acp-gateway.service",
        f"{info}/METADATA",
    } <= set(names)
    assert not any(name.endswith(".pyc") for name in names)
    assert "acp-gateway = acp_gateway." in archive.read(f"{info}/entry_points.txt").decode()
    rows = [line.rsplit(",", 2) for line in archive.read(f"{info}/RECORD").decode().splitlines()]
    assert [row[0] for row in rows] == names
    for path, digest, size in rows[:-1]:
        data = archive.read(path)
        assert digest == "sha256=" + base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        assert int(size) == len(data)


def test_a_program_that_is_not_installed_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(_: str) -> None:
        raise metadata.PackageNotFoundError

    monkeypatch.setattr(metadata, "distribution", missing)
    with pytest.raises(ConfigError, match="not installed as a package"):
        make_own_wheel()


@pytest.mark.slow
def test_pip_installs_the_wheel_and_the_program_runs(tmp_path: Path) -> None:
    name, content = make_own_wheel()
    (tmp_path / name).write_bytes(content)
    there = tmp_path / "there"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(there)]
    subprocess.run([*pip, str(tmp_path / name)], check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "acp_gateway", "files"],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "PYTHONPATH": str(there)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "systemd/acp-gateway.service" in shown.stdout
    assert (there / "acp_gateway/share/README.md").is_file()
