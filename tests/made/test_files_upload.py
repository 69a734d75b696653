"""New files are written beneath the folders of a session, whole, and never over another one unasked."""

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.made.files_rules import FileRefused, Territory
from acp_gateway.made.files_upload import Upload, Uploads


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    found = Path(os.path.realpath(tmp_path)) / "work/proj"
    (found / "data").mkdir(parents=True)
    (found / "there.txt").write_text("there")
    return found


def begin(folder: Path, path: str, size: int = 4, *, overwrite: bool = False, limit: int = 100, **more: Any) -> Upload:
    return Upload(Territory(str(folder), (str(folder),), **more), path, size, overwrite=overwrite, limit=limit)


def write(folder: Path, path: str, content: bytes = b"data", **options: Any) -> None:
    upload = begin(folder, path, len(content), **options)
    upload.append(0, content[:2])
    upload.append(2, content[2:])
    entry = upload.finish()
    assert (entry.kind, entry.size) == ("file", len(content))


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("path", ["new.txt", "data/new.bin", "./data/../new ü.txt"])
def test_a_file_gets_its_name_when_all_of_it_is_there(folder: Path, path: str) -> None:
    upload = begin(folder, path)
    upload.append(0, b"da")
    assert not (folder / path).exists()
    upload.append(2, b"ta")
    upload.finish()
    assert (folder / path).read_bytes() == b"data"
    assert not [name for name in names(folder) if name.endswith(".upload")]


def test_a_file_that_is_there_is_replaced_only_when_asked_and_keeps_its_mode(folder: Path) -> None:
    (folder / "there.txt").chmod(0o640)
    with pytest.raises(FileRefused) as refused:
        begin(folder, "there.txt")
    assert refused.value.why == "exists"
    write(folder, "there.txt", overwrite=True)
    assert (folder / "there.txt").read_text() == "data"
    assert (folder / "there.txt").stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("links", [True, False])
def test_a_file_that_has_appeared_until_then_is_not_replaced(
    folder: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:
        monkeypatch.setattr(os, "link", fails(errno.EPERM))
    upload = begin(folder, "new.txt")
    upload.append(0, b"data")
    (folder / "new.txt").write_text("another's")
    with pytest.raises(FileRefused) as refused:
        upload.finish()
    assert refused.value.why == "exists"
    assert (folder / "new.txt").read_text() == "another's"
    assert names(folder) == ["data", "new.txt", "there.txt"]


def fails(code: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> Any:
        raise OSError(code, os.strerror(code))

    return call


def test_a_file_system_without_hard_links_does_as_well(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "link", fails(errno.EPERM))
    write(folder, "new.txt")
    assert (folder / "new.txt").read_text() == "data"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("../new.txt", "outside"),
        ("/etc/new.txt", "outside"),
        ("out/new.txt", "outside"),
        ("dangling", "outside"),
        (".env", "secret"),
        (".ssh/authorized_keys", "secret"),
        ("data", "is_folder"),
        ("", "is_folder"),
        ("absent/new.txt", "not_found"),
        ("there.txt/new.txt", "not_found"),
        ("pipe", "not_a_file"),
        ("n" * 300, "bad_path"),
    ],
)
def test_nothing_is_written_elsewhere(folder: Path, path: str, why: str) -> None:
    (folder / "out").symlink_to(folder.parent)
    (folder / "dangling").symlink_to("/etc/new.txt")
    os.mkfifo(folder / "pipe")
    with pytest.raises(FileRefused) as refused:
        begin(folder, path, overwrite=True)
    assert refused.value.why == why
    assert names(folder) == ["dangling", "data", "out", "pipe", "there.txt"]


def test_nothing_is_written_into_a_workspace_that_is_only_read(folder: Path) -> None:
    with pytest.raises(FileRefused) as refused:
        begin(folder, "new.txt", read_only=frozenset({str(folder)}))
    assert refused.value.why == "read_only"


def test_a_folder_that_has_become_a_link_until_then_leads_nowhere(folder: Path) -> None:
    upload = begin(folder, "data/new.txt")
    upload.append(0, b"data")
    outside = folder.parent.parent / "outside"
    outside.mkdir()
    (folder / "data").rename(folder / "moved")
    (folder / "data").symlink_to(outside)
    with pytest.raises(FileRefused):
        upload.finish()
    assert names(outside) == []
    assert names(folder / "moved") == ["new.txt"]


def test_a_file_that_is_too_large_is_refused_before_anything_is_written(folder: Path) -> None:
    with pytest.raises(FileRefused) as refused:
        begin(folder, "new.txt", 101)
    assert refused.value.why == "too_large"


def test_a_file_for_which_the_disk_has_no_room_is_refused(folder: Path) -> None:
    with pytest.raises(FileRefused) as refused:
        begin(folder, "new.txt", 1 << 60, limit=1 << 61)
    assert refused.value.why == "no_space"
    assert names(folder) == ["data", "there.txt"]


def test_a_disk_that_becomes_full_ends_the_upload(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    upload = begin(folder, "new.txt")
    monkeypatch.setattr(os, "pwrite", fails(errno.ENOSPC))
    with pytest.raises(FileRefused) as refused:
        upload.append(0, b"data")
    assert refused.value.why == "no_space"
    assert names(folder) == ["data", "there.txt"]


@pytest.mark.parametrize("parts", [[(1, b"x")], [(0, b"xx"), (0, b"xx")], [(0, b"too long")]])
def test_parts_come_in_order_and_within_the_size(folder: Path, parts: list[tuple[int, bytes]]) -> None:
    upload = begin(folder, "new.txt")
    *first, last = parts
    for part in first:
        upload.append(*part)
    with pytest.raises(FileRefused, match="begin again"):
        upload.append(*last)
    assert names(folder) == ["data", "there.txt"]


def test_an_upload_that_is_not_complete_gets_no_name(folder: Path) -> None:
    upload = begin(folder, "new.txt")
    upload.append(0, b"da")
    with pytest.raises(FileRefused, match="not complete"):
        upload.finish()
    assert names(folder) == ["data", "there.txt"]


def test_an_abandoned_upload_leaves_nothing_and_takes_nothing_more(folder: Path) -> None:
    upload = begin(folder, "new.txt")
    upload.append(0, b"da")
    upload.abandon()
    upload.abandon()
    assert names(folder) == ["data", "there.txt"]
    with pytest.raises(FileRefused):
        upload.append(2, b"ta")
    with pytest.raises(FileRefused):
        upload.finish()


def test_a_name_as_long_as_the_disk_allows_is_written(folder: Path) -> None:
    write(folder, "\N{CJK UNIFIED IDEOGRAPH-6587}" * 80)
    write(folder, "n" * 255)


def test_what_a_killed_gateway_has_left_is_removed_by_the_next_upload_to_the_folder(folder: Path) -> None:
    left, running, other = (f".{'0' * 15}{name}.upload" for name in "123")
    for name in (left, running, "old.upload", ".0.upload"):
        (folder / name).write_text("x")
        os.utime(folder / name, (0, 0))
    os.utime(folder / running)
    (folder / other).symlink_to(folder / "there.txt")
    os.utime(folder / other, (0, 0), follow_symlinks=False)
    write(folder, "new.txt")
    assert names(folder) == sorted([running, other, "old.upload", ".0.upload", "data", "new.txt", "there.txt"])


def test_a_file_that_was_given_up_gets_no_name(folder: Path) -> None:
    upload = begin(folder, "new.txt", 0)
    upload.give_up()
    with pytest.raises(FileRefused):
        upload.finish()
    assert names(folder) == ["data", "there.txt"]


def test_an_upload_that_begins_when_its_connection_has_ended_is_abandoned(folder: Path) -> None:
    uploads = Uploads(2)
    with uploads.reserving() as name:
        assert uploads.end() == []
        uploads.add(name, "s", begin(folder, "new.txt"))
    assert names(folder) == ["data", "there.txt"]
    with pytest.raises(FileRefused), uploads.reserving():
        pass


def test_an_upload_that_begins_when_its_call_has_ended_is_abandoned(folder: Path) -> None:
    uploads = Uploads(2)
    with uploads.reserving() as name:
        pass
    uploads.add(name, "s", begin(folder, "new.txt"))
    assert names(folder) == ["data", "there.txt"]


def test_uploads_that_begin_at_the_same_time_count(folder: Path) -> None:
    uploads = Uploads(2)
    with uploads.reserving() as name, uploads.reserving():
        with pytest.raises(FileRefused, match="2 uploads"), uploads.reserving():
            pass
        uploads.add(name, "s", begin(folder, "new.txt"))
    with uploads.reserving():
        pass
    assert uploads.get(name, "s").size == 4
    for other in ((name, "t"), ("x", "s")):
        with pytest.raises(FileRefused):
            uploads.get(*other)
    (upload,) = uploads.end()
    upload.abandon()


def test_an_empty_file_is_written(folder: Path) -> None:
    begin(folder, "empty", 0).finish()
    assert (folder / "empty").read_bytes() == b""
