"""Folders are packed while they are sent, and nothing leads out of them."""

import io
import os
import zipfile
from pathlib import Path

import pytest

from acp_gateway.made import files_zip
from acp_gateway.made.files import PIECE
from acp_gateway.made.files_rules import FileRefused, Territory
from acp_gateway.made.files_zip import LEFT_OUT, pack


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = Path(os.path.realpath(tmp_path)) / "proj"
    (found / "runs/1").mkdir(parents=True)
    (found / "runs/1/loss.csv").write_text("step,loss\n1,0.5\n")
    (found / "runs/notes ü.txt").write_text("notes")
    return found


def packed(folder: Path, path: str = "") -> zipfile.ZipFile:
    archive = b"".join(pack(Territory(str(folder), (str(folder),)), path))
    return zipfile.ZipFile(io.BytesIO(archive))


def test_a_folder_is_packed_with_all_that_is_below_it(folder: Path) -> None:
    archive = packed(folder, "runs")
    assert archive.testzip() is None
    assert sorted(archive.namelist()) == ["runs/1/loss.csv", "runs/notes ü.txt"]
    assert archive.read("runs/1/loss.csv") == b"step,loss\n1,0.5\n"


def test_what_is_left_out_is_named_in_the_archive(folder: Path) -> None:
    (folder / ".env").write_text("secret")
    (folder / "out").symlink_to("/etc")
    os.mkfifo(folder / "pipe")
    archive = packed(folder)
    names = [name for name in archive.namelist() if name != LEFT_OUT]
    assert sorted(names) == ["proj/runs/1/loss.csv", "proj/runs/notes ü.txt"]
    told = archive.read(LEFT_OUT).decode().splitlines()
    assert told == [
        "proj/.env: may hold a key or a login",
        "proj/out: is a link",
        "proj/pipe: is a device, a pipe or a socket",
    ]


def test_an_archive_has_a_bounded_number_of_entries_and_says_where_it_ends(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files_zip, "MAX_ENTRIES", 2)
    archive = packed(folder)
    assert "at most 2" in archive.read(LEFT_OUT).decode()


def test_a_large_file_is_packed_in_pieces(folder: Path) -> None:
    with (folder / "weights.bin").open("wb") as made:
        made.truncate(64 << 20)
    parts = list(pack(Territory(str(folder), (str(folder),)), ""))
    assert max(map(len, parts)) <= 2 * PIECE
    archive = zipfile.ZipFile(io.BytesIO(b"".join(parts)))
    assert archive.getinfo("proj/weights.bin").file_size == 64 << 20
    assert archive.testzip() is None


def test_a_file_that_grows_is_packed_as_it_was_when_it_was_opened(folder: Path) -> None:
    log = folder / "runs/a.log"
    log.write_bytes(b"x" * (PIECE + 10))
    parts = []
    for part in pack(Territory(str(folder), (str(folder),)), "runs"):
        parts.append(part)
        with log.open("ab") as more:
            more.write(b"more")
    archive = zipfile.ZipFile(io.BytesIO(b"".join(parts)))
    assert archive.testzip() is None


def test_a_name_that_is_not_unicode_and_a_time_before_zip_are_packed(folder: Path) -> None:
    path = folder / "runs" / os.fsdecode(b"caf\xe9")
    try:
        path.write_text("old")
    except OSError:
        pytest.skip("this file system has names of Unicode only")
    os.utime(path, (0, 0))
    archive = packed(folder, "runs")
    assert archive.read("runs/caf?") == b"old"
    assert archive.getinfo("runs/caf?").date_time[0] == 1980


@pytest.mark.parametrize(
    ("path", "why"), [("runs/1/loss.csv", "not_a_folder"), ("absent", "not_found"), ("..", "outside")]
)
def test_only_a_folder_of_the_session_is_packed(folder: Path, path: str, why: str) -> None:
    with pytest.raises(FileRefused) as refused:
        packed(folder, path)
    assert refused.value.why == why


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_what_can_not_be_read_is_left_out(folder: Path) -> None:
    (folder / "runs/notes ü.txt").chmod(0)
    assert "notes" in packed(folder).read(LEFT_OUT).decode()
