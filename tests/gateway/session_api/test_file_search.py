"""The search for files below a session's directory."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from acp_gateway.gateway.session_api.file_search import MAX_FOUND, find_files
from acp_gateway.made.files_rules import Place


def at(folder: Path) -> Place:
    return Place(str(folder), ())


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    for name in ("main.py", "src/main.c", "src/domain/remains.txt", "docs/Mainly.md", "node_modules/main.js"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("main", ["main.py", "src/main.c", "docs/Mainly.md", "src/domain/remains.txt"]),
        ("MAIN.c", ["src/main.c"]),
        ("./src/m", ["src/main.c"]),
        ("src\\m", ["src/main.c"]),
        ("smc", ["src/main.c"]),
        ("", ["main.py", "src/main.c", "docs/Mainly.md", "src/domain/remains.txt"]),
        ("nothing", []),
    ],
)
def test_the_letters_of_the_query_are_in_the_path_and_the_best_match_is_first(
    query: str, found: list[str], project: Path
) -> None:
    files = find_files(at(project), query).files
    assert files[: len(found)] == found
    assert bool(files) == bool(found)


def test_links_are_not_followed_and_names_that_no_line_can_show_are_left_out(project: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("")
    os.symlink(tmp_path, project / "up")
    os.symlink(tmp_path / "secret.txt", project / "secret.txt")
    (project / "secret\n.txt").write_text("")
    (project / os.fsdecode(b"secret\xff.txt")).write_text("")
    assert find_files(at(project), "secret").files == []


def test_a_query_leads_out_of_no_directory(project: Path, tmp_path: Path) -> None:
    (tmp_path / "outside.txt").write_text("")
    assert find_files(at(project), "../outside").files == []


def test_the_search_ends_after_so_many_entries_or_seconds(project: Path) -> None:
    assert not find_files(at(project), "main", entries=2).complete
    for number in range(600):
        (project / f"main{number:03}.txt").write_text("")
    times = iter([0.0, 1.0, 9.0])
    found = find_files(at(project), "main", 1000, clock=lambda: next(times))
    assert not found.complete
    assert 0 < len(found.files) <= MAX_FOUND


def test_the_number_of_files_is_bounded(project: Path) -> None:
    for number in range(MAX_FOUND + 10):
        (project / f"main{number:03}.txt").write_text("")
    assert len(find_files(at(project), "main", 3).files) == 3
    assert len(find_files(at(project), "main", 10**6).files) == MAX_FOUND


def test_a_missing_directory_has_no_files(tmp_path: Path) -> None:
    assert find_files(at(tmp_path / "gone"), "").files == []


def test_of_a_folder_with_too_many_entries_no_more_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        (tmp_path / f"file{number}").write_text("")
    read = []
    scan = os.scandir

    @contextmanager
    def counted(path: int) -> Iterator[Iterator[os.DirEntry[str]]]:
        with scan(path) as entries:
            yield (read.append(entry.name) or entry for entry in entries)  # type: ignore[func-returns-value]

    monkeypatch.setattr(os, "scandir", counted)
    assert find_files(at(tmp_path), "", entries=5).complete is False
    assert len(read) == 6
