"""Archives of agents are unpacked for their owner, and nothing gets out of the folder."""

import io
import os
import stat
import tarfile
import tempfile
import tracemalloc
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import event, example, given
from hypothesis import strategies as st

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.agent import installed as archives
from acp_gateway.gateway.agent.installed import unpack
from tests.fuzz.effort import effort

PLENTY = 1_000_000


def tar_of(path: Path, *members: tuple[tarfile.TarInfo, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for member, content in members:
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return path


def info(name: str, kind: bytes = tarfile.REGTYPE, target: str = "", mode: int = 0o644) -> tarfile.TarInfo:
    member = tarfile.TarInfo(name)
    member.type, member.linkname, member.mode = kind, target, mode
    return member


def link(name: str, target: str) -> tuple[tarfile.TarInfo, bytes]:
    return info(name, tarfile.SYMTYPE, target), b""


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("mode", ["w:gz", "w:bz2", "w:xz", "w"])
def test_a_tar_archive_is_unpacked_for_its_owner_alone(tmp_path: Path, mode: str) -> None:
    archive = tar_of(
        tmp_path / "a",
        (info("./bin/", tarfile.DIRTYPE, mode=0o777), b""),
        (info("./bin/demo", mode=0o6755), b"program"),
        (info("lib/deep/data.txt", mode=0o666), b"data"),
        link("bin/alias", "../lib/deep/data.txt"),
        mode=mode,
    )
    unpack(archive, "tar", tmp_path / "out", PLENTY)
    out = tmp_path / "out"
    assert (out / "bin/demo").read_bytes() == b"program"
    assert (out / "bin/alias").read_bytes() == b"data"
    assert [mode_of(out / name) for name in (".", "bin", "bin/demo", "lib/deep/data.txt")] == [
        0o700,
        0o700,
        0o700,
        0o600,
    ]


def test_a_zip_archive_is_unpacked_with_modes_and_links(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w", zipfile.ZIP_DEFLATED) as archive:
        for name, mode, content in (("bin/demo", 0o100755, "program"), ("bin/alias", 0o120777, "demo"), ("x", 0, "y")):
            member = zipfile.ZipInfo(name)
            member.external_attr = mode << 16
            archive.writestr(member, content)
        archive.writestr("empty/", "")
    unpack(tmp_path / "a", "zip", tmp_path / "out", PLENTY)
    assert (tmp_path / "out/bin/alias").read_text() == "program"
    assert mode_of(tmp_path / "out/bin/demo") == 0o700
    assert mode_of(tmp_path / "out/x") == 0o600
    assert (tmp_path / "out/empty").is_dir()


@pytest.mark.parametrize("name", ["../x", "/x", "a/../../x", "a\\..\\x"])
def test_a_path_out_of_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigError, match="leads out of it"):
        unpack(tar_of(tmp_path / "a", (info(name), b"x")), "tar", tmp_path / "out", PLENTY)
    with zipfile.ZipFile(tmp_path / "z", "w") as archive:
        archive.writestr(name, "x")
    with pytest.raises(ConfigError, match="leads out of it"):
        unpack(tmp_path / "z", "zip", tmp_path / "zipped", PLENTY)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize("target", ["/etc/passwd", "..", "../..", "a/../../..", ""])
def test_a_link_out_of_the_folder_is_refused(tmp_path: Path, target: str) -> None:
    with pytest.raises(ConfigError, match=r"leads out of it|damaged"):
        unpack(tar_of(tmp_path / "a", link("here", target)), "tar", tmp_path / "out", PLENTY)
    with zipfile.ZipFile(tmp_path / "z", "w") as archive:
        member = zipfile.ZipInfo("here")
        member.external_attr = stat.S_IFLNK << 16
        archive.writestr(member, target)
    with pytest.raises(ConfigError, match="leads out of it"):
        unpack(tmp_path / "z", "zip", tmp_path / "zipped", PLENTY)


def test_a_link_that_only_leads_out_through_another_is_refused(tmp_path: Path) -> None:
    archive = tar_of(
        tmp_path / "a", (info("d/e/f/file"), b""), link("d/e/f/top", "../../.."), link("d/e/f/out", "top/../../secret")
    )
    with pytest.raises(ConfigError, match="leads out of it: 'd/e/f/out'"):
        unpack(archive, "tar", tmp_path / "out", PLENTY)


def test_no_file_is_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    archive = tar_of(tmp_path / "a", link("dir", "other"), (info("dir/file"), b"x"), (info("other/z"), b""))
    with pytest.raises(ConfigError, match="File exists"):
        unpack(archive, "tar", tmp_path / "out", PLENTY)


def test_nothing_is_made_below_a_link_and_nothing_stays_after_an_error(tmp_path: Path) -> None:
    archive = tar_of(
        tmp_path / "a",
        (info("a/b/file"), b""),
        link("a/b/l", "../.."),
        link("k", "a/b/l/../.."),
        link("k/.config/autostart/x", "y"),
    )
    (tmp_path / "home").mkdir()
    with pytest.raises(ConfigError):
        unpack(archive, "tar", tmp_path / "home/out", PLENTY)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "home"]


def test_a_link_below_a_link_is_refused(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a", (info("d/file"), b""), link("l", "d"), link("l/m", "file"))
    with pytest.raises(ConfigError, match="below a link or file: 'l'"):
        unpack(archive, "tar", tmp_path / "out", PLENTY)


@pytest.mark.parametrize("links", [{"a": "a"}, {"a": "b", "b": "a"}, {"a": "a/a/a"}])
def test_a_link_in_a_circle_is_refused(tmp_path: Path, links: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="in a circle"):
        unpack(tar_of(tmp_path / "a", *(link(*pair) for pair in links.items())), "tar", tmp_path / "out", PLENTY)


def test_a_path_of_very_many_parts_is_refused(tmp_path: Path) -> None:
    unpack(tar_of(tmp_path / "a", (info("d/" * 99 + "x"), b"")), "tar", tmp_path / "fits", PLENTY)
    with pytest.raises(ConfigError, match="more than 100 parts"):
        unpack(tar_of(tmp_path / "a", (info("d/" * 100 + "x"), b"")), "tar", tmp_path / "out", PLENTY)


Entry = tuple[str, str, str]
"""Kind, path, and target of a link or content of a file."""


def as_tar(path: Path, entries: list[Entry]) -> None:
    kinds = {"file": tarfile.REGTYPE, "folder": tarfile.DIRTYPE, "link": tarfile.SYMTYPE}
    members = [
        (info(name, kinds[kind], text if kind == "link" else ""), text.encode() if kind == "file" else b"")
        for kind, name, text in entries
    ]
    tar_of(path, *members, mode="w")


def as_zip(path: Path, entries: list[Entry]) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for kind, name, text in entries:
            member = zipfile.ZipInfo(name + "/" * (kind == "folder"))
            member.external_attr = (stat.S_IFLNK if kind == "link" else 0) << 16
            archive.writestr(member, "" if kind == "folder" else text)


def tree(folder: Path, but: Path) -> list[tuple[str, str]]:
    """Return all that is below a folder, with the content of files and the targets of links."""
    found = []
    for place, folders, files in os.walk(folder):
        folders[:] = [name for name in folders if Path(place, name) != but]
        for path in (Path(place, name) for name in (*folders, *files)):
            what = os.readlink(path) if path.is_symlink() else path.read_bytes().hex() if path.is_file() else "folder"
            found.append((str(path), what))
    return sorted(found)


names = st.lists(st.sampled_from(["a", "b", "c", ".config"]), min_size=1, max_size=4).map("/".join)
targets = st.lists(st.sampled_from(["..", "..", "a", "b", "c", ".", ".config"]), min_size=1, max_size=6).map("/".join)
entries = st.one_of(
    st.tuples(st.just("file"), names, st.just("new")),
    st.tuples(st.just("folder"), names, st.just("")),
    st.tuples(st.just("link"), names, targets | targets.map("/".__add__)),
    st.tuples(st.sampled_from(["file", "folder", "link"]), targets, targets),
)


@pytest.mark.filterwarnings("ignore:Duplicate name")
@effort(200)
@given(form=st.sampled_from(["tar", "zip"]), content=st.lists(entries, min_size=1, max_size=8))
@example("tar", [("link", "a/b/c", "../.."), ("link", "b", "a/b/c/../.."), ("link", "b/.config/a", "a")])
@example("zip", [("link", "a/b/c", "../.."), ("link", "b", "a/b/c/../.."), ("file", "b/.config/a", "new")])
def test_no_archive_changes_anything_beside_its_folder(form: str, content: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as name:
        beside = Path(name, "a")
        (beside / "b/c").mkdir(parents=True)
        for place in (beside, beside / "b", beside / "b/c"):
            (place / "canary").write_text("old")
        archive, out = Path(name, "archive"), beside / "b/out"
        (as_tar if form == "tar" else as_zip)(archive, content)
        before = tree(Path(name), out)
        try:
            unpack(archive, form, out, PLENTY)
        except ConfigError:
            event("refused")
            assert not os.path.lexists(out)
        else:
            event("unpacked")
            assert all(path.resolve().is_relative_to(out.resolve()) for path in out.rglob("*"))
        assert tree(Path(name), out) == before


def test_a_file_is_not_replaced_by_a_later_one(tmp_path: Path) -> None:
    archive = tar_of(tmp_path / "a", (info("x"), b"1"), (info("x"), b"2"))
    with pytest.raises(ConfigError, match="File exists"):
        unpack(archive, "tar", tmp_path / "out", PLENTY)


@pytest.mark.parametrize("kind", [tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE])
def test_devices_pipes_and_hard_links_are_refused(tmp_path: Path, kind: bytes) -> None:
    archive = tar_of(tmp_path / "a", (info("x", kind, "y"), b""))
    with pytest.raises(ConfigError, match="not a file, folder or symbolic link"):
        unpack(archive, "tar", tmp_path / "out", PLENTY)


def test_a_device_in_a_zip_archive_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a", "w") as archive:
        member = zipfile.ZipInfo("x")
        member.external_attr = stat.S_IFIFO << 16
        archive.writestr(member, "")
    with pytest.raises(ConfigError, match="not a file, folder or symbolic link"):
        unpack(tmp_path / "a", "zip", tmp_path / "out", PLENTY)


def zipped(path: Path, content: bytes) -> tuple[Path, str]:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", content)
        archive.writestr("b", content)
    return path, "zip"


def tarred(path: Path, content: bytes) -> tuple[Path, str]:
    return tar_of(path, (info("a"), content), (info("b"), content)), "tar"


@pytest.mark.parametrize("make", [zipped, tarred])
def test_the_bytes_of_all_files_together_are_bounded(
    tmp_path: Path, make: Callable[[Path, bytes], tuple[Path, str]]
) -> None:
    archive, form = make(tmp_path / "a", bytes(1000))
    unpack(archive, form, tmp_path / "fits", 2000)
    with pytest.raises(ConfigError, match="--max-unpacked"):
        unpack(archive, form, tmp_path / "out", 1999)


def test_the_number_of_files_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "MOST_FILES", 2)
    members = [(info(name), b"") for name in "abc"]
    unpack(tar_of(tmp_path / "a", *members[:2]), "tar", tmp_path / "fits", PLENTY)
    with pytest.raises(ConfigError, match="more than 2 files"):
        unpack(tar_of(tmp_path / "b", *members), "tar", tmp_path / "out", PLENTY)


def test_a_header_of_any_size_is_not_read_into_memory(tmp_path: Path) -> None:
    member = info("x")
    member.pax_headers = {"comment": "y" * 3_000_000}
    with tarfile.open(tmp_path / "a", "w:gz", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    with pytest.raises(ConfigError, match="damaged: a header is too large"):
        unpack(tmp_path / "a", "tar", tmp_path / "out", PLENTY)


def with_long_headers(path: Path, files: int, size: int) -> Path:
    """Return a small archive whose headers are large."""
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as archive:
        for number in range(files):
            member = tarfile.TarInfo(f"file{number}")
            member.pax_headers = {"comment": "a" * size}
            archive.addfile(member)
    return path


def test_headers_of_earlier_files_are_not_kept_in_memory(tmp_path: Path) -> None:
    archive = with_long_headers(tmp_path / "a", 100, 400_000)
    # It counts what threads of earlier tests allocate as well, which may be some megabytes.
    tracemalloc.start()
    try:
        unpack(archive, "tar", tmp_path / "out", PLENTY)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20_000_000
    assert len(list((tmp_path / "out").iterdir())) == 100


def test_the_bytes_of_all_headers_together_are_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = with_long_headers(tmp_path / "a", 20, 10_000)
    monkeypatch.setattr(archives, "MOST_FILES", 20)
    with pytest.raises(ConfigError, match="too many bytes"):
        unpack(archive, "tar", tmp_path / "out", 1000)


def test_a_large_directory_of_a_zip_archive_is_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive, form = zipped(tmp_path / "a", b"")
    monkeypatch.setattr(archives, "LARGEST_DIRECTORY", 10)
    with pytest.raises(ConfigError, match="too many files"):
        unpack(archive, form, tmp_path / "out", PLENTY)


@pytest.mark.parametrize("form", ["tar", "zip"])
@pytest.mark.parametrize("content", [b"", b"x", b"PK\x05\x06", b"\x1f\x8bx", b"BZhx", b"\xfd7zXZ\x00x"])
def test_a_damaged_archive_is_an_error(tmp_path: Path, form: str, content: bytes) -> None:
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(ConfigError, match="archive"):
        unpack(tmp_path / "a", form, tmp_path / "out", PLENTY)


@pytest.mark.parametrize("make", [zipped, tarred])
def test_an_archive_that_ends_in_the_middle_is_an_error(
    tmp_path: Path, make: Callable[[Path, bytes], tuple[Path, str]]
) -> None:
    archive, form = make(tmp_path / "a", bytes(range(256)) * 100)
    archive.write_bytes(archive.read_bytes()[:200])
    with pytest.raises(ConfigError, match="damaged"):
        unpack(archive, form, tmp_path / "out", PLENTY)
