"""Records and files of the agents that were added."""

import gzip
import hashlib
import io
import stat
import tarfile
from pathlib import Path

import pytest

from acp_gateway.config.agent_registry import Choice
from acp_gateway.errors import ConfigError, Unreachable
from acp_gateway.gateway.agent.installed import FOLDER, Installed, InstalledAgents
from tests.gateway.agent.web_server import serve

LIMITS = (1_000_000, 1_000_000)

PROGRAM = b"#!/bin/sh\n"


def archive(content: bytes = PROGRAM) -> bytes:
    """Return an archive with one program. The same content has the same bytes at any time."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as opened:
        member = tarfile.TarInfo("demo/run")
        member.size = len(content)
        opened.addfile(member, io.BytesIO(content))
    return gzip.compress(file.getvalue(), mtime=0)


def binary(url: str, version: str = "1.0.0", sha256: str | None = None) -> Choice:
    words = ("demo/run" if url.endswith(".tar.gz") else "run", "acp")
    return Choice(kind="binary", version=version, words=words, env={}, archive=url, sha256=sha256)


def install(store: InstalledAgents, choice: Choice, limits: tuple[int, int] = LIMITS) -> Installed:
    with store.prepare("demo", "demo", "registry.json", choice, limits, lambda *_: None) as (installed, keep):
        keep()
    return installed


@pytest.fixture
def store(tmp_path: Path) -> InstalledAgents:
    return InstalledAgents(tmp_path)


def test_a_binary_is_unpacked_into_a_private_folder_and_noted(store: InstalledAgents, tmp_path: Path) -> None:
    with serve({"/a.tar.gz": archive()}) as url:
        installed = install(store, binary(f"{url}/a.tar.gz"))
    program = Path(installed.command[0])
    assert program.is_relative_to(tmp_path / FOLDER / "demo")
    assert program.read_bytes() == PROGRAM
    assert stat.S_IMODE(program.stat().st_mode) == 0o700
    assert stat.S_IMODE((tmp_path / FOLDER).stat().st_mode) == 0o700
    assert installed.command[1:] == ["acp"]
    assert installed.archive_sha256 == hashlib.sha256(archive()).hexdigest()
    assert store.read("demo") == installed
    assert store.check("demo", installed) == "ok"
    assert sorted(path.name for path in store.folder("demo").iterdir()) == sorted(
        ["installed.json", str(installed.folder)]
    )


def test_a_program_without_an_archive_is_taken_as_it_is(store: InstalledAgents) -> None:
    with serve({"/run": PROGRAM}) as url:
        installed = install(store, binary(f"{url}/run"))
    assert Path(installed.command[0]).read_bytes() == PROGRAM


def test_a_package_needs_no_files(store: InstalledAgents) -> None:
    choice = Choice(kind="npx", version="1.0.0", words=("npx", "--yes", "demo@1.0.0"), env={"A": "1"}, package="demo")
    installed = install(store, choice)
    assert (installed.command, installed.variables, installed.folder) == (
        ["npx", "--yes", "demo@1.0.0"],
        {"A": "1"},
        None,
    )
    assert store.check("demo", installed) == "ok"


def test_a_changed_or_missing_program_is_told(store: InstalledAgents) -> None:
    with serve({"/run": PROGRAM}) as url:
        installed = install(store, binary(f"{url}/run"))
    program = Path(installed.command[0])
    program.write_bytes(PROGRAM + b"x")
    assert store.check("demo", installed) == "changed"
    program.unlink()
    assert store.check("demo", installed) == "missing"


def test_a_download_with_another_hash_than_announced_leaves_nothing(store: InstalledAgents, tmp_path: Path) -> None:
    with serve({"/run": PROGRAM}) as url, pytest.raises(ConfigError, match="as announced"):
        install(store, binary(f"{url}/run", sha256="0" * 64))
    assert list(tmp_path.iterdir()) == []


def test_a_download_that_fails_leaves_nothing(store: InstalledAgents, tmp_path: Path) -> None:
    with serve({}) as url, pytest.raises(Unreachable):
        install(store, binary(f"{url}/run"))
    assert list(tmp_path.iterdir()) == []


def test_an_archive_without_the_named_program_leaves_nothing(store: InstalledAgents, tmp_path: Path) -> None:
    with serve({"/a.tar.gz": archive()}) as url, pytest.raises(ConfigError, match="has no file 'other'"):
        install(store, Choice(kind="binary", version="1", words=("other",), env={}, archive=f"{url}/a.tar.gz"))
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_kept_is_removed(store: InstalledAgents, tmp_path: Path) -> None:
    with (
        serve({"/run": PROGRAM}) as url,
        store.prepare("demo", "demo", "r", binary(f"{url}/run"), LIMITS, lambda *_: None) as (installed, _),
    ):
        assert Path(installed.command[0]).exists()
    assert list(tmp_path.iterdir()) == []


def test_an_update_keeps_the_version_before_and_removes_older_ones(store: InstalledAgents) -> None:
    with serve({"/1": b"one", "/2": b"two", "/3": b"three"}) as url:
        found = [install(store, binary(f"{url}/{number}", f"{number}.0.0")) for number in (1, 2, 3)]
    assert [Path(each.command[0]).exists() for each in found] == [False, True, True]


def test_the_same_version_can_be_installed_again(store: InstalledAgents) -> None:
    with serve({"/run": PROGRAM}) as url:
        Path(install(store, binary(f"{url}/run")).command[0]).write_bytes(b"broken")
        assert store.check("demo", install(store, binary(f"{url}/run"))) == "ok"


def test_the_bytes_of_download_and_archive_are_bounded(store: InstalledAgents) -> None:
    with serve({"/a.tar.gz": archive()}) as url:
        with pytest.raises(ConfigError, match="max-download"):
            install(store, binary(f"{url}/a.tar.gz"), (10, 1000))
        with pytest.raises(ConfigError, match="max-unpacked"):
            install(store, binary(f"{url}/a.tar.gz"), (1000, 5))


def test_an_agent_is_removed_with_its_files(store: InstalledAgents) -> None:
    with serve({"/run": PROGRAM}) as url:
        install(store, binary(f"{url}/run"))
    store.remove("demo")
    assert store.read("demo") is None
    assert not store.folder("demo").exists()
    store.remove("demo")


@pytest.mark.parametrize("name", ["..", ".", "a/b", "", "x" * 65])
def test_a_name_that_is_another_folder_is_refused(store: InstalledAgents, name: str) -> None:
    with pytest.raises(ConfigError, match="can't be the name"):
        store.remove(name)
    assert store.read(name) is None


def test_a_folder_that_other_users_may_change_is_refused(store: InstalledAgents, tmp_path: Path) -> None:
    (tmp_path / FOLDER).mkdir()
    (tmp_path / FOLDER).chmod(0o777)
    with serve({"/run": PROGRAM}) as url, pytest.raises(ConfigError, match="other users may write there"):
        install(store, binary(f"{url}/run"))


def test_a_damaged_record_is_an_error_with_the_remedy(store: InstalledAgents) -> None:
    store.folder("demo").mkdir(parents=True)
    (store.folder("demo") / "installed.json").write_text("{")
    with pytest.raises(ConfigError, match="add the agent again"):
        store.read("demo")
