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


def test_names_lead_nowhere_on_windows_and_stay_distinct(folder: Path) -> None:
    made = ("..\\..\\x", "C:\\x", "C:_x", "a\nb", "a_b", "A_B")
    for name in made:
        (folder / "runs/1" / name).write_text(name)
    (folder / "runs/.. .").mkdir()
    (folder / "runs/.. ./x").write_text("x")
    archive = packed(folder, "runs")
    names = [name for name in archive.namelist() if name != LEFT_OUT]
    assert not [name for name in names if set(name) & set("\\:\n")]
    assert "runs/____/x" in names
    assert len({name.casefold() for name in names}) == len(names) == len(made) + 3
    assert {archive.read(name).decode() for name in names} >= set(made)


def test_a_workspace_that_may_not_be_used_is_not_packed_with_the_one_around_it(folder: Path) -> None:
    parts = pack(Territory(str(folder), (str(folder),), others=(str(folder / "runs/1"),)), "")
    archive = zipfile.ZipFile(io.BytesIO(b"".join(parts)))
    assert archive.namelist() == ["proj/runs/notes ü.txt", LEFT_OUT]
    assert archive.read(LEFT_OUT).decode() == "proj/runs/1: is not in a folder that this session may use\n"


def test_an_archive_that_is_not_read_to_its_end_gets_no_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(100):
        (folder / f"runs/{number}.txt").write_text("x")
    parts = pack(Territory(str(folder), (str(folder),)), "")
    for _ in range(90):
        next(parts)
    written: list[int] = []
    whole = files_zip._Sink.write

    def noted(self: files_zip._Sink, data: bytes) -> int:
        written.append(len(data))
        return whole(self, data)

    monkeypatch.setattr(files_zip._Sink, "write", noted)
    parts.close()  # type: ignore[attr-defined]
    del parts
    assert sum(written) < 200


def test_a_file_that_does_not_compress_fits_the_form_of_its_entry() -> None:
    # Deflate adds less than a thousandth.
    assert files_zip._BIG * 1.001 < zipfile.ZIP64_LIMIT


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
