"""The hosts that an ssh configuration names."""

from pathlib import Path

import pytest

from acp_gateway.cli.client.ssh_config import own_ssh_hosts, ssh_hosts

CONFIG = """\
# Host comment
Host box gpu  # the fast ones
    HostName 10.0.0.1
host="quoted"
Host *.example !bad star* box
Match host other
Include parts/*.conf absent
  HOST = last
=
"""


def test_names_are_listed_once_and_patterns_are_not(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "config").write_text(CONFIG)
    (tmp_path / "parts/a.conf").write_text("Host included\nInclude parts/b.conf\n")
    (tmp_path / "parts/b.conf").write_text("Host deeper\n")
    assert ssh_hosts(tmp_path / "config") == ["box", "gpu", "quoted", "included", "deeper", "last"]


def test_a_file_that_includes_itself_ends(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("Host a\nInclude config\n")
    assert ssh_hosts(tmp_path / "config") == ["a"]


def test_a_file_that_cannot_be_read_has_no_hosts(tmp_path: Path) -> None:
    assert ssh_hosts(tmp_path / "absent") == []
    assert ssh_hosts(tmp_path) == []


def test_the_users_own_file_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / ".ssh").mkdir()
    (tmp_path / ".ssh/config").write_text("Host box\n")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert own_ssh_hosts() == ["box"]
    monkeypatch.setattr("os.path.expanduser", lambda text: text)
    assert own_ssh_hosts() == []
