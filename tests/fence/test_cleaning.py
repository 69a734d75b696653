"""The temporary files of an agent are removed, whatever it has made of them."""

import os
import sys
from pathlib import Path

import pytest

from acp_gateway.fence.cleaning import own, remove, sweep

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="fences are Linux's")

UNPRIVILEGED = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "agent"
    made.mkdir()
    (made / "file").write_text("")
    return made


def test_a_tree_deeper_than_the_stack_is_removed(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    for _ in range(3000):
        os.mkdir("deeper", dir_fd=descriptor)
        inner = os.open("deeper", os.O_RDONLY, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = inner
    os.close(descriptor)
    remove(str(folder))
    assert not folder.exists()


@pytest.mark.parametrize("place", [".", "shut", "shut/inner"])
def test_folders_without_permissions_are_removed(place: str, folder: Path) -> None:
    (folder / "shut/inner").mkdir(parents=True)
    (folder / "shut/inner/file").write_text("")
    (folder / place).chmod(0)
    if os.geteuid() == 0:
        for path in (folder.parent, *folder.parent.rglob("*")):
            os.chown(path, UNPRIVILEGED, UNPRIVILEGED)
        _without_rights(folder)
    else:
        remove(str(folder))
    assert not folder.exists()


def _without_rights(folder: Path) -> None:
    """Remove a folder without the rights of root, to which each one is open."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.chdir(folder.parent)
            os.setgroups([])
            os.setgid(UNPRIVILEGED)
            os.setuid(UNPRIVILEGED)
            remove(folder.name)
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_links_are_not_followed(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir(mode=0o755)
    (tmp_path / "other/file").write_text("")
    (folder / "link").symlink_to(tmp_path / "other")
    remove(str(folder))
    assert not folder.exists()
    folder.symlink_to(tmp_path / "other")
    remove(str(folder))
    assert (tmp_path / "other/file").exists()
    assert (tmp_path / "other").stat().st_mode & 0o777 == 0o755


def test_what_cannot_be_removed_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    remove(str(tmp_path / "missing"))
    assert "cannot remove" in caplog.text


def test_a_sweep_removes_only_folders_whose_owner_has_ended(tmp_path: Path) -> None:
    for name in ("ended", "living"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("")
    owned = own(str(tmp_path / "living"))
    assert sweep(str(tmp_path)) == 1
    assert os.listdir(tmp_path) == ["living"]
    os.close(owned)
    assert sweep(str(tmp_path)) == 1
    assert sweep(str(tmp_path / "missing")) == 0
