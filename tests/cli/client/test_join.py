"""The command `join`: what it writes, and what it refuses before the code is used."""

import io
import json
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner

from acp_gateway.cli.client import editor_files
from acp_gateway.cli.main import main
from acp_gateway.client import joining
from acp_gateway.client.joining import Invitation, Joined
from acp_gateway.config.hosts import load_hosts
from acp_gateway.errors import Unauthorized
from acp_gateway.security.token_format import mint
from tests.doubles import run_command as run

PIN = "sha256:" + "0a" * 32
LINE = f"wss://box:7443/acp#{mint('invitation')},{PIN}"
TOKEN = mint("guest")


@pytest.fixture
def used(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Invitation]:
    """The invitations that were used at a gateway."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    seen: list[Invitation] = []

    async def join(invitation: Invitation) -> Joined:
        seen.append(invitation)
        return Joined(TOKEN, "0a0a0a0a", "observer", "s1", "2027-01-15T08:00:00Z")

    monkeypatch.setattr(joining, "join", join)
    monkeypatch.setattr(editor_files, "installed_editors", lambda _: [])
    return seen


def test_an_invitation_becomes_a_host_and_the_next_step_is_said(used: list[Invitation], tmp_path: Path) -> None:
    joined = run("join", LINE, "--map", "/a=/b")
    assert joined.exit_code == 0, joined.output
    assert joined.stdout == "Next: acp-gateway connect box --install zed\n"
    folder = tmp_path / "acp-gateway"
    host = load_hosts(folder / "hosts.toml")["box"]
    assert (str(host.address), host.pin, host.maps) == ("wss://box:7443/acp", PIN, (("/a", "/b"),))
    assert host.token_file is not None
    assert host.token_file.read_text() == f"{TOKEN}\n"
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert "you may watch the session s1, until 2027-01-15T08:00:00Z" in joined.stderr
    assert "acp-gateway ping box" in joined.stderr
    assert TOKEN not in joined.output
    assert [str(invitation) for invitation in used] == [LINE]


def test_the_line_may_come_from_stdin(used: list[Invitation], monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["join", "--name", "b"], input=f"acp-gateway join {LINE}\n")
    assert result.exit_code == 0, result.output
    assert result.stdout == "Next: acp-gateway connect b --install zed\n"

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr("sys.stdin", Terminal(f"{LINE}\n"))
    main(["join", "--name", "c"], standalone_mode=False)
    assert len(used) == 2


def test_what_could_fail_fails_before_the_code_is_used(used: list[Invitation], tmp_path: Path) -> None:
    folder = tmp_path / "acp-gateway"
    folder.mkdir()
    (folder / "hosts.toml").write_text('[hosts.box]\nurl = "box"\n')
    for arguments, code, words in (
        ((LINE,), 2, "--name, such as box-guest"),
        *(((LINE, "--name", name), 2, "give --name") for name in ("a b", "..", "-x", "a/b")),
        ((LINE, "--map", "x"), 2, "path map"),
        (("junk",), 2, "not an invitation"),
    ):
        refused = run("join", *arguments)
        assert refused.exit_code == code
        assert words in refused.stderr
    (folder / "b.token").write_text("mine")
    refused = run("join", LINE, "--name", "b")
    assert refused.exit_code == 3
    assert "b.token: this file exists already" in refused.stderr
    (folder / "hosts.toml").write_text("[hosts.box]\nurl = 1\n")
    assert run("join", LINE, "--name", "c").exit_code == 3
    assert used == []
    assert (folder / "b.token").read_text() == "mine"


def test_what_the_gateway_says_can_not_command_the_terminal(
    used: list[Invitation], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def join(_: Invitation) -> Joined:
        return Joined(TOKEN, "0a0a0a0a", "\x1b]0;r\x07", "s\x1b[2J\u202e", "\x9b2J\ntomorrow")

    monkeypatch.setattr(joining, "join", join)
    shown = run("join", LINE).stderr
    assert r"the session s\x1b[2J\u202e, until \x9b2J tomorrow." in shown
    assert not set(shown) & set("\x1b\x07\u202e\x9b")


def test_a_refused_code_writes_nothing(used: list[Invitation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def join(_: Invitation) -> Joined:
        raise Unauthorized("this invitation is not valid")

    monkeypatch.setattr(joining, "join", join)
    refused = run("join", LINE)
    assert refused.exit_code == 4
    assert "not valid" in refused.stderr
    assert not (tmp_path / "acp-gateway").exists()


def test_join_with_json_prints_the_host_and_what_the_guest_may_do(used: list[Invitation], tmp_path: Path) -> None:
    joined = run("join", LINE, "--json")
    assert (joined.exit_code, joined.stderr) == (0, "")
    assert json.loads(joined.stdout) == {
        "name": "box",
        "hosts": str(tmp_path / "acp-gateway/hosts.toml"),
        "role": "observer",
        "session": "s1",
        "expires": "2027-01-15T08:00:00Z",
        "next": "acp-gateway connect box --install zed",
    }
