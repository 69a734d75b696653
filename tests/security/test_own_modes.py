"""Modes that a program of the same user has changed."""

import os
import stat
import sys
from pathlib import Path

import pytest

from acp_gateway.security.own_modes import mend

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="modes are mended where there are fences")


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_a_file_and_the_way_to_it_are_opened_to_their_user_again(tmp_path: Path) -> None:
    file = tmp_path / "state/inner/file"
    file.parent.mkdir(parents=True)
    file.touch(0o600)
    file.chmod(0o044)
    (tmp_path / "state").chmod(0o650)
    assert mend(file, 0o600, 0o004)
    assert mode_of(file) == 0o640
    assert mode_of(tmp_path / "state") == 0o750
    assert not mend(file, 0o600, 0o004)


def test_what_a_link_leads_to_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0)
    (tmp_path / "link").symlink_to("file")
    assert not mend(tmp_path / "link", 0o600)
    assert mode_of(tmp_path / "file") == 0
    assert not mend(tmp_path / "missing", 0o600)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_file_of_another_user_keeps_its_mode(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "file").chmod(0o222)
    os.chown(tmp_path / "file", 65534, 65534)
    assert not mend(tmp_path / "file", 0o600)
    assert mode_of(tmp_path / "file") == 0o222
