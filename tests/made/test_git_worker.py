"""Marks of git working trees: what has changed since, what is put back, and what a hostile repository gets to run."""

import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.made import git_worker
from tests.kit.machine import needs_git

pytestmark = needs_git

USER = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")


class Work:
    """A repository with a commit, and the marks of a session in it."""

    def __init__(self, path: Path) -> None:
        self.root = path / "shop"
        self.store = path / "store"
        self.root.mkdir()
        self.git("init", "-q", "-b", "main")
        self.write("a.txt", "one\ntwo\nthree\n")
        self.write("b.txt", "other\n")
        self.write(".gitignore", "*.log\n")
        self.commit("first")

    def git(self, *words: str) -> str:
        """Run git as its user does."""
        done = subprocess.run(["git", *USER, *words], cwd=self.root, check=True, capture_output=True, text=True)
        return done.stdout

    def commit(self, subject: str) -> None:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", subject)

    def write(self, name: str, text: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def run(self, do: str, **members: Any) -> dict[str, Any]:
        """Run the program, and return its result."""
        job = {"do": do, "cwd": str(self.root), "roots": [str(self.root)], "store": str(self.store), **members}
        done = subprocess.run(
            [sys.executable, git_worker.__file__], input=json.dumps(job), capture_output=True, text=True, check=True
        )
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def mark(self) -> dict[str, Any]:
        found = self.run("mark")
        assert "refused" not in found, found
        return found

    def changes(self, mark: dict[str, Any], to: str | None = None, head: str | None = None) -> dict[str, Any]:
        return self.run("changes", **{"from": mark["tree"], "to": to, "head": head or mark["head"]})

    def files(self, mark: dict[str, Any]) -> dict[str, tuple[str, Any, Any]]:
        """Return status and texts by path."""
        found = self.changes(mark)
        assert "refused" not in found, found
        return {it["path"]: (it["status"], it["oldText"], it["newText"]) for it in found["files"]}

    def undo(self, mark: dict[str, Any], path: str, lines: list[int] | None = None) -> dict[str, Any]:
        (file,) = [it for it in self.changes(mark)["files"] if it["path"] == path]
        named = {"from": mark["tree"], "path": path, "old": file["old"], "new": file["new"], "lines": lines}
        return self.run("undo", **named)


@pytest.fixture
def work(tmp_path: Path) -> Work:
    return Work(tmp_path)


def test_what_was_added_changed_and_deleted_since_a_mark_is_told_with_its_texts(work: Work) -> None:
    work.write("before.txt", "untracked\n")
    mark = work.mark()
    assert work.files(mark) == {}
    work.write("a.txt", "one\n2\nthree\n")
    work.write("new/c.txt", "new\n")
    work.write("out.log", "ignored\n")
    work.write("before.txt", "changed\n")
    (work.root / "b.txt").unlink()
    assert work.files(mark) == {
        "a.txt": ("modified", "one\ntwo\nthree\n", "one\n2\nthree\n"),
        "b.txt": ("deleted", "other\n", None),
        "before.txt": ("modified", "untracked\n", "changed\n"),
        "new/c.txt": ("added", None, "new\n"),
    }


def test_a_turn_is_what_lies_between_two_marks(work: Work) -> None:
    first = work.mark()
    work.write("a.txt", "1\n")
    second = work.mark()
    work.write("b.txt", "2\n")
    between = work.changes(first, to=second["tree"])["files"]
    assert [it["path"] for it in between] == ["a.txt"]
    assert [it["path"] for it in work.changes(second)["files"]] == ["b.txt"]


def test_index_refs_stash_and_folder_of_the_user_stay_as_they_are(work: Work) -> None:
    work.write("a.txt", "staged\n")
    work.git("add", "a.txt")
    work.write("a.txt", "not staged\n")

    def state() -> dict[str, bytes]:
        folder = work.root / ".git"
        return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}

    before = state()
    mark = work.mark()
    work.write("c.txt", "c\n")
    work.changes(mark)
    work.undo(mark, "c.txt")
    assert state() == before


def test_commits_since_a_mark_are_told_and_change_nothing_of_the_comparison(work: Work) -> None:
    mark = work.mark()
    assert work.changes(mark)["commits"] == []
    work.write("a.txt", "1\n")
    work.commit("second: a")
    work.git("pack-refs", "--all")
    found = work.changes(mark)
    assert [it["subject"] for it in found["commits"]] == ["second: a"]
    assert [it["path"] for it in found["files"]] == ["a.txt"]


def test_worktrees_are_told_with_their_branches(work: Work) -> None:
    assert work.mark()["worktrees"] == {}
    place = work.root.parent / "beside"
    work.git("worktree", "add", "-q", "-b", "try", str(place))
    assert work.mark()["worktrees"] == {str(place): "try"}
    refused = work.run("mark", cwd=str(place), roots=[str(place)], store=str(work.store) + "2")["refused"]
    assert "outside of the workspace" in refused
    found = work.run("mark", cwd=str(place), roots=[str(place.parent)], store=str(work.store) + "2")
    assert (found["root"], found["head"]) == (str(place), work.mark()["head"])


def test_a_folder_without_a_commit_is_marked_as_well(tmp_path: Path) -> None:
    work = Work(tmp_path)
    shutil.rmtree(work.root / ".git")
    work.git("init", "-q")
    mark = work.mark()
    assert mark["head"] is None
    work.write("a.txt", "1\n")
    assert [*work.files(mark)] == ["a.txt"]


@pytest.mark.parametrize("outside", ["no repository", "above the workspace"])
def test_outside_of_a_working_tree_there_is_a_sentence(work: Work, tmp_path: Path, outside: str) -> None:
    below = work.root / "below"
    below.mkdir()
    cwd = tmp_path if outside == "no repository" else below
    refused = work.run("mark", cwd=str(cwd), roots=[str(cwd)])["refused"]
    assert ("begins above the workspace" if outside != "no repository" else "in no git working tree") in refused


def test_large_and_binary_files_are_told_without_their_texts(work: Work) -> None:
    work.write("large.bin", "x" * (git_worker.FILE_SIZE + 1))
    mark = work.mark()
    work.write("large.bin", "y" * (git_worker.FILE_SIZE + 2))
    (work.root / "picture.png").write_bytes(b"\x89PNG\0\xff")
    found = {it["path"]: (it["status"], it["why"]) for it in work.changes(mark)["files"]}
    assert found == {"large.bin": ("modified", "large"), "picture.png": ("added", "binary")}
    assert "can't be shown" in work.undo(mark, "large.bin")["refused"]
    work.write("large.bin", "z")
    assert "not kept" in work.undo(mark, "large.bin")["refused"]
    objects = sum(path.stat().st_size for path in (work.store / "objects").rglob("*") if path.is_file())
    assert objects < git_worker.FILE_SIZE


def test_a_link_is_marked_and_put_back_as_one(work: Work) -> None:
    (work.root / "link").symlink_to("a.txt")
    mark = work.mark()
    (work.root / "link").unlink()
    (work.root / "link").symlink_to("/etc/passwd")
    assert work.files(mark)["link"] == ("modified", "a.txt", "/etc/passwd")
    assert work.undo(mark, "link") == {}
    assert os.readlink(work.root / "link") == "a.txt"


@pytest.mark.parametrize("change", ["modified", "deleted", "added", "replaced by a folder"])
def test_a_file_is_put_back_whole(work: Work, change: str) -> None:
    (work.root / "a.txt").chmod(0o755)
    mark = work.mark()
    path = work.root / ("c/new.txt" if change == "added" else "a.txt")
    if change == "modified":
        path.write_text("1\n")
        path.chmod(0o644)
    elif change == "added":
        work.write("c/new.txt", "new\n")
    else:
        path.unlink()
    if change == "replaced by a folder":
        work.write("a.txt/inside", "x\n")
        assert "refused" in work.undo(mark, "a.txt")
        assert (path / "inside").exists()
        return
    assert work.undo(mark, "c/new.txt" if change == "added" else "a.txt") == {}
    assert work.files(mark) == {}
    if change != "added":
        assert (path.read_text(), path.stat().st_mode & 0o777) == ("one\ntwo\nthree\n", 0o755)


def test_some_lines_are_put_back_and_others_stay(work: Work) -> None:
    mark = work.mark()
    work.write("a.txt", "one\n2\nthree\nfour\n")
    assert work.undo(mark, "a.txt", [1, 1, 1, 1]) == {}
    assert (work.root / "a.txt").read_text() == "one\ntwo\nthree\nfour\n"
    assert "not in the file" in work.undo(mark, "a.txt", [1, 99, 1, 1])["refused"]
    assert "not in the file" in work.undo(mark, "a.txt", [-1, 1, 1, 1])["refused"]


def test_what_has_changed_since_it_was_shown_is_not_put_back(work: Work) -> None:
    mark = work.mark()
    work.write("a.txt", "1\n")
    (file,) = work.changes(mark)["files"]
    work.write("a.txt", "2\n")
    named = {"from": mark["tree"], "path": "a.txt", "old": file["old"], "new": file["new"], "lines": None}
    assert "has changed since" in work.run("undo", **named)["refused"]
    assert (work.root / "a.txt").read_text() == "2\n"


@pytest.mark.parametrize(
    "path", ["", "/etc/passwd", "../outside", "a/../../outside", ".git/config", ".GIT/config", "sub/.git/hooks/x"]
)
def test_no_path_leads_out_of_the_working_tree_or_into_the_repository(work: Work, path: str) -> None:
    mark = work.mark()
    named = {"from": mark["tree"], "path": path, "old": "0" * 40, "new": "0" * 40, "lines": None}
    assert "can't be put back" in work.run("undo", **named)["refused"]


def test_a_link_in_the_way_is_not_followed(work: Work, tmp_path: Path) -> None:
    work.write("sub/c.txt", "before\n")
    mark = work.mark()
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "c.txt").write_text("outside\n")
    shutil.rmtree(work.root / "sub")
    (work.root / "sub").symlink_to(outside)
    assert "refused" in work.undo(mark, "sub/c.txt")
    assert (outside / "c.txt").read_text() == "outside\n"


def test_submodules_and_repositories_within_are_left_alone(work: Work, tmp_path: Path) -> None:
    (tmp_path / "inner").mkdir()
    inner = Work(tmp_path / "inner")
    work.git("-c", "protocol.file.allow=always", "submodule", "add", "-q", str(inner.root), "module")
    work.commit("module")
    subprocess.run(["git", "init", "-q", str(work.root / "nested")], check=True)
    (work.root / "nested/x").write_text("x\n")
    mark = work.mark()
    (work.root / "module/a.txt").write_text("changed\n")
    assert work.files(mark) == {}


def test_a_repository_of_sha256_is_marked(tmp_path: Path) -> None:
    work = Work(tmp_path)
    shutil.rmtree(work.root / ".git")
    work.git("init", "-q", "--object-format=sha256")
    work.commit("first")
    mark = work.mark()
    assert len(mark["tree"]) == 64
    work.write("a.txt", "1\n")
    assert work.files(mark)["a.txt"] == ("modified", "one\ntwo\nthree\n", "1\n")


def test_a_split_index_is_made_again(work: Work) -> None:
    work.git("update-index", "--split-index")
    work.write("a.txt", "1\n")
    work.git("add", "a.txt")
    mark = work.mark()
    work.write("b.txt", "2\n")
    assert [*work.files(mark)] == ["b.txt"]


def test_what_a_killed_git_leaves_does_not_end_the_marks(work: Work) -> None:
    mark = work.mark()
    index = work.store / "index"
    (work.store / "index.lock").write_bytes(b"half")
    work.write("b.txt", "2\n")
    assert [*work.files(mark)] == ["b.txt"]
    for damaged in (index.read_bytes()[: index.stat().st_size // 2], b"", b"DIRC"):
        index.write_bytes(damaged)
        assert [*work.files(mark)] == ["b.txt"]


def test_an_index_is_there_whole_or_not_at_all(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    repository = git_worker.Repository(str(work.root), [str(work.root)])
    monkeypatch.setattr(os, "rename", killed)
    with pytest.raises(KeyboardInterrupt):
        git_worker.Store(str(work.store), repository).tree()
    assert not (work.store / "index").exists()


def test_processes_use_a_store_one_after_the_other(work: Work) -> None:
    mark = work.mark()
    with open(work.store / "lock") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        job = {"do": "mark", "cwd": str(work.root), "roots": [str(work.root)], "store": str(work.store)}
        command = [sys.executable, git_worker.__file__]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None
            process.stdin.write(json.dumps(job))
            process.stdin.close()
            # What is written while it waits is in its mark.
            work.write("a.txt", "1\n")
            fcntl.flock(other, fcntl.LOCK_UN)
            assert process.stdout is not None
            found = json.loads(process.stdout.read())
    assert [it["path"] for it in work.changes(mark, to=found["tree"])["files"]] == ["a.txt"]


def test_the_copy_of_an_index_has_its_time_by_which_git_knows_what_may_have_changed(work: Work) -> None:
    os.utime(work.root / ".git/index", (1000, 1000))
    work.mark()
    assert (work.store / "index").stat().st_mtime == 1000


def test_lines_are_put_back_only_if_the_disk_has_what_was_compared(work: Work) -> None:
    work.write(".gitattributes", "* text=auto\n")
    path = work.root / "c.txt"
    path.write_bytes(b"one\r\ntwo\r\n")
    mark = work.mark()
    path.write_bytes(b"1\r\ntwo\r\n")
    assert "only the whole" in work.undo(mark, "c.txt", [0, 1, 0, 1])["refused"]
    assert path.read_bytes() == b"1\r\ntwo\r\n"


def test_line_endings_and_modes_are_read_as_the_repository_says(work: Work) -> None:
    work.git("config", "core.autocrlf", "true")
    work.git("config", "core.fileMode", "false")
    mark = work.mark()
    (work.root / "a.txt").write_bytes(b"one\r\n2\r\nthree\r\n")
    (work.root / "b.txt").chmod(0o755)
    assert work.files(mark) == {"a.txt": ("modified", "one\ntwo\nthree\n", "one\n2\nthree\n")}
    assert work.undo(mark, "a.txt") == {}
    assert (work.root / "a.txt").read_bytes() == b"one\r\ntwo\r\nthree\r\n"


@pytest.mark.parametrize("value", ["", "maybe", 'true"', "true\\n[core]\\nfsmonitor=x", "!x"])
def test_other_values_of_settings_are_not_taken(work: Work, value: str) -> None:
    with open(work.root / ".git/config", "a") as config:
        config.write(f'[core]\n\tautocrlf = "{value}\n')
        config.write(f"[core]\n\teol = {value}\n")
    work.mark()
    kept = (work.store / "config").read_text()
    assert "eol" not in kept
    assert "autocrlf" not in kept


def test_a_file_that_git_cannot_convert_is_marked_as_it_is(work: Work) -> None:
    work.write(".gitattributes", "*.u working-tree-encoding=UTF-16\n")
    work.mark()
    for name in ("b.u", "z.u"):
        work.write(name, "odd")
    work.write("y.txt", "y\n")
    mark = work.mark()
    work.write("b.u", "changed")
    assert work.files(mark) == {"b.u": ("modified", "odd", "changed")}


def test_a_file_that_is_assumed_to_be_unchanged_is_looked_at(work: Work) -> None:
    work.git("update-index", "--assume-unchanged", "a.txt")
    mark = work.mark()
    work.write("a.txt", "1\n")
    assert [*work.files(mark)] == ["a.txt"]


def test_too_many_files_are_refused_with_the_remedy(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_worker, "MAX_PATHS", 2)
    for number in range(3):
        work.write(f"many{number}", "x")
    repository = git_worker.Repository(str(work.root), [str(work.root)])
    with pytest.raises(git_worker.Refused, match=r"add some to \.gitignore"):
        git_worker.Store(str(work.store), repository).tree()


def sized(path: Path) -> int:
    return sum(each.stat().st_size for each in path.rglob("*") if each.is_file())


def filled(
    work: Work, monkeypatch: pytest.MonkeyPatch, *, turns: int, size: int, room: int, name: str = "new"
) -> list[list[str]]:
    """Mark turns that each write so many random bytes to a file; return what each has kept."""
    kept: list[list[str]] = [[work.mark()["tree"]]]
    monkeypatch.setattr(git_worker, "STORE_SIZE", sized(work.store) + room)
    monkeypatch.setattr(fcntl, "flock", lambda *_: None)  # The program ends; this process does not.
    for turn in range(turns):
        (work.root / name.format(turn)).write_bytes(os.urandom(size))
        job = {"cwd": str(work.root), "roots": [str(work.root)], "store": str(work.store), "keep": kept[-1]}
        kept.append(git_worker.do_mark(job)["kept"])
        assert sized(work.store) <= git_worker.STORE_SIZE
    return kept


def test_a_store_that_is_full_drops_the_oldest_marks_but_the_first(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    first, *kept = filled(work, monkeypatch, turns=8, size=20_000, room=100_000)
    assert [len(each) for each in kept][:4] == [2, 3, 4, 5]
    assert all(each[0] == first[0] for each in kept)
    assert len(kept[-1]) < 6
    for tree in kept[-1]:
        found = work.changes({"tree": tree, "head": None}, to=kept[-1][-1])
        assert "refused" not in found
    (work.root / "a.txt").write_text("1\n")
    assert [*work.files({"tree": kept[-1][-1], "head": None})] == ["a.txt"]


def test_marks_begin_again_where_even_the_last_one_has_no_room(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_worker, "MARK_SIZE", 10_000)
    kept = filled(work, monkeypatch, turns=5, size=9_000, room=25_000, name="new{}")
    assert [len(each) for each in kept][:4] == [1, 2, 3, 1]
    work.write("a.txt", "1\n")
    assert "a.txt" in work.files({"tree": kept[-1][0], "head": None})


def test_a_look_adds_nothing_to_the_store(work: Work) -> None:
    mark = work.mark()
    before = {*work.store.rglob("*")}
    size = sized(work.store)
    (work.root / "new").write_bytes(os.urandom(9_000))
    assert [*work.files(mark)] == ["new"]
    assert work.undo(mark, "new") == {}
    assert {*work.store.rglob("*")} == before
    assert sized(work.store) == size


def test_an_index_for_which_there_is_no_room_is_refused(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_worker, "INDEX_SIZE", 100)
    repository = git_worker.Repository(str(work.root), [str(work.root)])
    with pytest.raises(git_worker.Refused, match="too many files"):
        git_worker.Store(str(work.store), repository).tree()


def test_a_text_counts_for_each_file_that_has_it(work: Work) -> None:
    mark = work.mark()
    for number in range(20):
        work.write(f"copy{number}", "x" * (git_worker.TEXT_SIZE - 1))
    whys = [it["why"] for it in work.changes(mark)["files"]]
    assert (whys.count(None), whys.count("large")) == (8, 12)


# A hostile repository


TRAPS = {
    "fsmonitor": ("core.fsmonitor", "{trap}"),
    "pager": ("core.pager", "{trap}"),
    "editor": ("core.editor", "{trap}"),
    "hooks": ("core.hooksPath", "{hooks}"),
    "ssh": ("core.sshCommand", "{trap}"),
    "askpass": ("core.askPass", "{trap}"),
    "gitproxy": ("core.gitProxy", "{trap}"),
    "alternate refs": ("core.alternateRefsCommand", "{trap}"),
    "external diff": ("diff.external", "{trap}"),
    "diff driver": ("diff.evil.command", "{trap}"),
    "textconv": ("diff.evil.textconv", "{trap}"),
    "clean filter": ("filter.evil.clean", "{trap}"),
    "smudge filter": ("filter.evil.smudge", "{trap}"),
    "process filter": ("filter.evil.process", "{trap}"),
    "merge driver": ("merge.evil.driver", "{trap}"),
    "credential helper": ("credential.helper", "!{trap}"),
    "alias diff-files": ("alias.diff-files", "!{trap}"),
    "alias mark": ("alias.write-tree", "!{trap}"),
    "gpg": ("gpg.program", "{trap}"),
    "signature": ("log.showSignature", "true"),
    "trace": ("trace2.eventTarget", "{ran}"),
    "include": ("include.path", "{included}"),
    "sequence editor": ("sequence.editor", "{trap}"),
    "ext transport": ("protocol.ext.allow", "always"),
    "promisor": ("remote.origin.promisor", "true"),
    "partial clone filter": ("remote.origin.partialclonefilter", "blob:none"),
    "upload pack": ("remote.origin.uploadpack", "{trap}"),
    "vcs": ("remote.origin.vcs", "ext"),
    "url": ("remote.origin.url", "ext::{trap}"),
    "recursing": ("submodule.recurse", "true"),
    "submodule update": ("submodule.module.update", "!{trap}"),
    "worktree": ("core.worktree", "/"),
    "attributes": ("core.attributesFile", "{attributes}"),
    "gc": ("gc.auto", "1"),
    "maintenance": ("maintenance.auto", "true"),
}
"""Options by which git runs a program, and those that make it more likely."""


@pytest.fixture
def trapped(work: Work, tmp_path: Path) -> Path:
    """The file that a trap of the repository would make: each of its programs is one, and each file has its filter."""
    ran, trap = tmp_path / "ran", tmp_path / "trap"
    trap.write_text(f'#!/bin/sh\necho "$0 $*" >> {ran}\ncat\n')
    trap.chmod(0o755)
    hooks = tmp_path / "hooks"
    names = "post-index-change pre-commit fsmonitor-watchman reference-transaction post-checkout pre-auto-gc"
    for folder in (hooks, work.root / ".git/hooks"):
        folder.mkdir(exist_ok=True)
        for name in names.split():
            shutil.copy(trap, folder / name)
    included, attributes = tmp_path / "included", tmp_path / "attributes"
    included.write_text(f"[core]\n\tfsmonitor = {trap}\n")
    attributes.write_text("* filter=evil diff=evil merge=evil\n")
    work.write(".gitattributes", "* filter=evil diff=evil merge=evil\n")
    (work.root / ".git/info").mkdir(exist_ok=True)
    (work.root / ".git/info/attributes").write_text("* filter=evil diff=evil\n")
    places = {"trap": trap, "hooks": hooks, "ran": ran, "included": included, "attributes": attributes}
    inner = work.root / "module"
    subprocess.run(["git", "init", "-q", str(inner)], check=True)
    for folder in (work.root / ".git", inner / ".git"):
        for name, value in TRAPS.values():
            words = ["config", "--file", str(folder / "config"), "--add", name, value.format(**places)]
            subprocess.run(["git", *words], check=True)
    sub = "160000,1111111111111111111111111111111111111111,module"
    quiet = ("-c", "core.fsmonitor=", "-c", "core.hooksPath=/dev/null", "-c", f"core.worktree={work.root}")
    words = ["git", f"--git-dir={work.root}/.git", *quiet, "update-index", "--add", "--cacheinfo", sub]
    subprocess.run(words, check=True)
    ran.unlink(missing_ok=True)
    return ran


def test_nothing_that_a_repository_configures_is_run(work: Work, trapped: Path) -> None:
    mark = work.mark()
    work.write("a.txt", "1\n2\n")
    work.write("new.txt", "new\n")
    (work.root / "b.txt").unlink()
    found = work.changes(mark, head="1" * 40)
    assert {it["path"] for it in found["files"]} == {"a.txt", "b.txt", "new.txt"}
    for path in ("a.txt", "b.txt", "new.txt"):
        assert work.undo(mark, path) == {}
    assert not trapped.exists()


def test_the_traps_are_ones_that_git_falls_into(work: Work, trapped: Path) -> None:
    words = ["git", f"--git-dir={work.root}/.git", f"--work-tree={work.root}", "status"]
    subprocess.run(words, check=False, capture_output=True, timeout=60)
    assert trapped.exists()


def test_a_missing_object_of_a_partial_clone_is_not_fetched(work: Work, trapped: Path) -> None:
    mark = work.mark()
    for path in (work.root / ".git/objects").glob("??/*"):
        path.unlink()
    work.write("a.txt", "1\n")
    found = work.changes(mark)
    assert not trapped.exists()
    assert "refused" in found or found["files"][0]["why"] == "large"


@pytest.mark.parametrize("name", ["config", "HEAD", "index", "info/exclude", "packed-refs"])
def test_a_pipe_or_a_link_in_place_of_a_file_of_the_repository_is_not_read(work: Work, name: str) -> None:
    path = work.root / ".git" / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    assert len(work.mark()["tree"]) == 40
    path.unlink()
    path.symlink_to("/dev/zero")
    assert len(work.mark()["tree"]) == 40


@pytest.mark.parametrize("link", ["gitdir: /nowhere", "gitdir: ", "", "gitdir: .", "x" * 10000])
def test_a_git_file_that_leads_nowhere_is_refused(work: Work, link: str) -> None:
    shutil.rmtree(work.root / ".git")
    (work.root / ".git").write_text(link)
    assert "can't be read" in work.run("mark")["refused"]


def test_a_branch_that_leads_out_of_the_repository_has_none(work: Work) -> None:
    (work.root / ".git/HEAD").write_text("ref: refs/../../secret\n")
    (work.root / "secret").write_text("1" * 40)
    assert work.mark()["head"] is None


@pytest.mark.parametrize("path", ["a.txt", "b.txt", "c.txt"])
def test_what_a_person_has_just_saved_is_not_replaced(work: Work, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mark = work.mark()
    work.write("a.txt", "modified\n")
    (work.root / "b.txt").unlink()
    work.write("c.txt", "added\n")
    (file,) = [it for it in work.changes(mark)["files"] if it["path"] == path]
    look = git_worker.Store.blobs

    def save(*args: Any) -> dict[str, bytes]:
        work.write(path, "saved just now\n")
        return look(*args)

    monkeypatch.setattr(git_worker.Store, "blobs", save)
    named = {"from": mark["tree"], "path": path, "old": file["old"], "new": file["new"], "lines": None}
    with pytest.raises(git_worker.Refused, match="has changed since"):
        git_worker.do_undo({"cwd": str(work.root), "roots": [str(work.root)], "store": str(work.store), **named})
    assert (work.root / path).read_text() == "saved just now\n"
    assert not list(work.root.glob(".acp-gateway*"))


def test_a_file_that_was_never_shown_is_not_removed(work: Work) -> None:
    mark = work.mark()
    work.write("out.log", "ignored\n")
    work.write("inner/.git/config", "")
    work.write("inner/f", "of another tree\n")
    for path in ("out.log", "inner/f", "inner/.GIT/config", "a.txt", "absent", "a\0b", "\ud800", ""):
        for nothing in ("", "0" * 40):
            named = {"from": mark["tree"], "path": path, "old": nothing, "new": nothing, "lines": None}
            assert work.run("undo", **named).get("refused"), path
    assert (work.root / "out.log").exists()
    assert (work.root / "inner/f").exists()


def test_a_file_whose_text_is_not_kept_is_not_removed(work: Work) -> None:
    mark = work.mark()
    work.write("large.txt", "x" * (git_worker.FILE_SIZE + 1))
    assert "can't be shown" in work.undo(mark, "large.txt")["refused"]
    assert (work.root / "large.txt").exists()


def test_a_change_of_the_mode_alone_is_put_back(work: Work) -> None:
    mark = work.mark()
    (work.root / "a.txt").chmod(0o755)
    assert work.undo(mark, "a.txt") == {}
    assert (work.root / "a.txt").stat().st_mode & 0o777 == 0o644


def test_a_file_that_is_made_again_has_the_permissions_of_a_new_one(work: Work) -> None:
    (work.root / "run").write_text("#!/bin/sh\n")
    (work.root / "run").chmod(0o755)
    mark = work.mark()
    for name in ("a.txt", "b.txt", "run"):
        (work.root / name).unlink()
    (work.root / "a.txt").symlink_to(".gitignore")
    mask = os.umask(0o027)
    try:
        assert [work.undo(mark, name) for name in ("a.txt", "b.txt", "run")] == [{}, {}, {}]
    finally:
        os.umask(mask)
    modes = [(work.root / name).lstat().st_mode & 0o777 for name in ("a.txt", "b.txt", "run")]
    assert modes == [0o640, 0o640, 0o750]


# Further working trees


def make(work: Work, name: str, cwd: Path | None = None, **members: Any) -> dict[str, Any]:
    return work.run("worktree", name=name, seconds=20, **{"cwd": str(cwd or work.root), **members})


def remove(work: Work, tree: str, *, looks: bool = False) -> dict[str, Any]:
    return work.run("remove", tree=str(work.root / ".worktrees" / tree), looks=looks)


def branches(work: Work) -> set[str]:
    return set(work.git("branch", "--format=%(refname:short)").split())


def test_a_working_tree_has_what_is_committed_and_a_branch_and_git_takes_it_for_its_own(work: Work) -> None:
    work.write("sub/c.txt", "c\n")
    work.commit("second")
    work.write("a.txt", "not committed\n")
    made = make(work, "fix/it", work.root / "sub")
    tree = work.root / ".worktrees/fix-it"
    assert made == {"root": str(tree), "cwd": str(tree / "sub"), "branch": "fix/it"}
    assert (tree / "a.txt").read_text() == "one\ntwo\nthree\n"
    assert work.git("status", "--short") == " M a.txt\n"
    assert work.git("-C", str(tree), "status", "--short", "--branch") == "## fix/it\n"
    assert f"{tree} " in work.git("worktree", "list")
    assert work.git("rev-parse", "fix/it") == work.git("rev-parse", "HEAD")
    work.git("fsck", "--strict")
    # One of a session in there is beside it, from what is checked out there.
    (tree / "d.txt").write_text("d\n")
    work.git("-C", str(tree), "add", "d.txt")
    work.git("-C", str(tree), "commit", "-q", "-m", "third")
    assert make(work, "again", tree)["root"] == str(work.root / ".worktrees/again")
    assert (work.root / ".worktrees/again/d.txt").exists()


def test_a_directory_is_spelled_as_its_client_does(work: Work, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(work.root)
    assert make(work, "one", tmp_path / "link")["root"] == str(tmp_path / "link/.worktrees/one")


def test_a_name_that_is_taken_is_refused_or_counted_on(work: Work) -> None:
    work.git("branch", "packed/one")
    work.git("pack-refs", "--all")
    work.git("branch", "loose/one")
    for name in ("main", "packed/one", "packed", "packed/one/more", "loose", "loose/one/more", "loose/one"):
        assert "already" in make(work, name)["refused"], name
    (work.root / ".worktrees/folder").mkdir()
    assert "already" in make(work, "folder")["refused"]
    assert [make(work, "main*")["branch"] for _ in range(2)] == ["main-2", "main-3"]
    assert sorted(path.name for path in (work.root / ".worktrees").iterdir()) == ["folder", "main-2", "main-3"]


NAMES = [
    "a",
    "ä/b",
    "a.b",
    "a-",
    "-a",
    "",
    "..",
    "a..b",
    "a b",
    "a~",
    "a^",
    "a:b",
    "a?",
    "a[",
    "a\\b",
    "a@{1}",
    "@a",
]
NAMES += [
    "HEAD",
    "/a",
    "a/",
    "a//b",
    ".a",
    "a/.b",
    "a.",
    "a.lock",
    "a.lock/b",
    "a\nb",
    "a\x7f",
    "--help",
    "refs/heads/a",
]


@pytest.mark.parametrize("name", NAMES)
def test_names_are_those_that_git_allows(work: Work, name: str) -> None:
    asked = subprocess.run(["git", "check-ref-format", "--branch", name], capture_output=True, check=False)
    made = make(work, name)
    assert ("refused" not in made) == (asked.returncode == 0), made
    if "refused" in made:
        assert "can't be the name" in made["refused"]


@pytest.mark.parametrize("name", ["x" * 201, "x\u202ey", "x\ud800", "@"])
def test_names_that_no_folder_or_line_should_have_are_refused(work: Work, name: str) -> None:
    assert "can't be the name" in make(work, name)["refused"]


@pytest.mark.parametrize("path", [".worktrees", ".git/worktrees", ".git/refs/heads", ".git/info"])
def test_no_working_tree_is_made_behind_a_link(work: Work, tmp_path: Path, path: str) -> None:
    outside, place = tmp_path / "outside", work.root / path
    if place.exists():
        place.rename(outside)
    else:
        outside.mkdir()
    place.symlink_to(outside)
    before = sorted(outside.rglob("*"))
    assert "refused" in make(work, "one")
    assert sorted(outside.rglob("*")) == before


def test_without_a_commit_or_in_a_table_of_references_there_is_none(work: Work) -> None:
    (work.root / ".git/reftable").mkdir()
    assert "reftable" in make(work, "one")["refused"]
    shutil.rmtree(work.root / ".git")
    assert "no git working tree" in make(work, "one")["refused"]
    work.git("init", "-q")
    assert "no commit yet" in make(work, "one")["refused"]


def test_what_fails_or_takes_too_long_leaves_nothing(work: Work, monkeypatch: pytest.MonkeyPatch) -> None:
    for blob in (work.root / ".git/objects").glob("??/*"):
        if work.git("cat-file", "-t", f"{blob.parent.name}{blob.name}") == "blob\n":
            blob.unlink()
    assert "git read-tree fails" in make(work, "one")["refused"]

    def wait(*_: Any, **__: Any) -> None:
        signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(git_worker.Store, "git", wait)
    job = {"cwd": str(work.root), "roots": [str(work.root)], "store": f"{work.store}2", "name": "one", "seconds": 20}
    with pytest.raises(git_worker.Refused, match="more than 20 seconds"):
        git_worker.do_worktree(job)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert branches(work) == {"main"}
    assert not list((work.root / ".worktrees").iterdir())
    assert not list((work.root / ".git/worktrees").iterdir())


def test_making_and_removing_a_working_tree_runs_nothing_that_the_repository_configures(
    work: Work, trapped: Path
) -> None:
    assert "refused" not in make(work, "one")
    assert (work.root / ".worktrees/one/a.txt").exists()
    assert remove(work, "one") == {"branch": None, "commits": 0}
    assert not trapped.exists()
    # They are traps for git's own command.
    words = ["git", f"--git-dir={work.root}/.git", "worktree", "add", "-q", str(work.root / "two")]
    subprocess.run(words, check=False, capture_output=True, timeout=60)
    assert trapped.exists()


def test_a_working_tree_is_removed_with_its_branch_if_nothing_is_lost(work: Work) -> None:
    make(work, "deep/one")
    (work.root / ".worktrees/deep-one/out.log").write_text("ignored\n")
    os.utime(work.root / ".worktrees/deep-one/a.txt")
    assert remove(work, "deep-one", looks=True) == {"branch": None, "commits": 0}
    assert remove(work, "deep-one") == {"branch": None, "commits": 0}
    assert branches(work) == {"main"}
    assert len(work.git("worktree", "list").splitlines()) == 1
    # Nothing is left that makes a name unusable.
    assert make(work, "deep")["branch"] == "deep"


@pytest.mark.parametrize("kind", ["changed", "untracked", "staged", "put back", "deleted", "nested", "skipped"])
def test_what_is_not_committed_is_named_and_nothing_removed(work: Work, kind: str) -> None:
    tree = Path(make(work, "one")["root"])
    if kind == "nested":
        subprocess.run(["git", "init", "-q", str(tree / "odd")], check=True)
    elif kind == "deleted":
        (tree / "a.txt").unlink()
    else:
        (tree / ("odd" if kind == "untracked" else "a.txt")).write_text("new\n")
    if kind in ("staged", "put back"):
        work.git("-C", str(tree), "add", "a.txt")
    if kind == "put back":
        (tree / "a.txt").write_text("one\ntwo\nthree\n")
    if kind == "skipped":
        work.git("-C", str(tree), "update-index", "--skip-worktree", "a.txt")
    refused = remove(work, "one")["refused"]
    assert "not committed: " + ("odd" if kind in ("untracked", "nested") else "a.txt") in refused
    assert tree.exists()
    assert branches(work) == {"main", "one"}


def test_a_working_tree_with_another_one_in_it_is_not_removed(work: Work) -> None:
    tree = Path(make(work, "one")["root"])
    # Its folder is one that git ignores.
    work.git("-C", str(tree), "worktree", "add", "-q", ".worktrees/two")
    assert f"is in it: {tree}/.worktrees/two." in remove(work, "one")["refused"]
    assert (tree / ".worktrees/two/a.txt").exists()


def test_of_many_files_some_are_named(work: Work) -> None:
    tree = Path(make(work, "one")["root"])
    for number in range(12):
        (tree / f"new{number:02}").touch()
    assert remove(work, "one")["refused"].endswith("new08, new09 and 2 more.")


def test_commits_that_no_other_branch_has_keep_the_branch_or_the_tree(work: Work) -> None:
    tree = Path(make(work, "one")["root"])
    (tree / "a.txt").write_text("new\n")
    work.git("-C", str(tree), "commit", "-q", "-a", "-m", "second")
    work.git("-C", str(tree), "switch", "-q", "--detach")
    work.git("branch", "-q", "-f", "one", "main")
    assert "1 of its commits are on no branch" in remove(work, "one")["refused"]
    work.git("-C", str(tree), "switch", "-q", "-C", "one")
    assert remove(work, "one") == {"branch": "one", "commits": 1}
    assert branches(work) == {"main", "one"}
    # Those of another branch that a person has checked out there stay as well.
    make(work, "two")
    work.git("-C", str(work.root / ".worktrees/two"), "switch", "-q", "-c", "other")
    assert remove(work, "two") == {"branch": "other", "commits": 0}
    assert branches(work) == {"main", "one", "two", "other"}


def test_a_branch_that_git_packs_or_another_tree_uses_stays(work: Work) -> None:
    make(work, "one")
    work.git("pack-refs", "--all")
    assert remove(work, "one") == {"branch": "one", "commits": 0}
    make(work, "two")
    work.git("worktree", "add", "-q", "-f", "beside", "two")
    assert remove(work, "two") == {"branch": "two", "commits": 0}
    assert branches(work) == {"main", "one", "two"}


def test_a_commit_that_only_a_stash_has_is_on_no_other_branch(work: Work) -> None:
    tree = make(work, "one")["root"]
    work.git("-C", tree, "commit", "-q", "--allow-empty", "-m", "second")
    (Path(tree) / "a.txt").write_text("later\n")
    work.git("-C", tree, "stash", "-q")
    assert remove(work, "one") == {"branch": "one", "commits": 1}


def test_what_a_submodule_has_is_not_looked_at_and_not_removed(work: Work) -> None:
    work.git("update-index", "--add", "--cacheinfo", f"160000,{'1' * 40},module")
    work.git("commit", "-q", "-m", "module")
    tree = Path(make(work, "one")["root"])
    (tree / "module/x").touch()
    assert "not committed: module." in remove(work, "one")["refused"]
    (tree / "module/x").unlink()
    assert remove(work, "one") == {"branch": None, "commits": 0}


@pytest.mark.parametrize("name", [*git_worker.UNDER_WAY])
def test_a_working_tree_at_work_is_not_removed(work: Work, name: str) -> None:
    make(work, "one")
    (work.root / ".git/worktrees/one" / name).touch()
    assert f"has {git_worker.UNDER_WAY[name]}" in remove(work, "one")["refused"]


def test_only_working_trees_of_sessions_are_removed(work: Work) -> None:
    make(work, "one")
    two = Path(make(work, "two")["root"])
    (two / ".git").write_text(f"gitdir: {work.root}/.git/worktrees/one\n")
    assert "not a working tree that was made" in remove(work, "two")["refused"]
    work.git("worktree", "add", "-q", "beside")
    for tree in ("..", "../beside"):
        assert (
            "not a working tree that was made"
            in work.run("remove", tree=str(work.root / tree.strip(".").strip("/")), looks=False)["refused"]
        )
    assert (work.root / "beside/a.txt").exists()
