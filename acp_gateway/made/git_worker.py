"""Marks states of a git working tree, compares them, puts files back, and makes further working trees: a program of
its own, run in a fence.

The fence is that of an agent, as the agent would run git. A repository's configuration can name programs
(fsmonitor, filters, textconv, hooks, pagers, credential helpers, remotes to fetch from), so git never reads it: it
gets a folder of its own, the *store*, with a configuration that is written here, an index, and the objects of marks.
Three options of the repository's are written there: plain words that run nothing. The repository's objects are read as
alternates; its index is copied once, so that files that have not changed need not be read. Nothing in the
repository is written, but for the branch and the administrative files of a working tree that is made or removed.

It imports nothing but the standard library, and gets its text by the environment, see `gateway/made/git_jobs.py`. The
job is JSON on stdin; the result, or why there is none, is JSON on stdout.
"""

import contextlib
import fcntl
import json
import os
import re
import resource
import shutil
import signal
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from typing import Any, NamedTuple, NoReturn

FILE_SIZE = 1 << 20
"""Bytes of a file up to which its text is kept; of a larger one, size and time."""

MARK_SIZE = 16 << 20
"""Bytes of changed files that one mark adds: with an index, the first and the last mark have room in a store."""

STORE_SIZE = 64 << 20
"""Bytes that the marks of one session take, with the index."""

INDEX_SIZE = 32 << 20
"""Bytes of an index; one of 250,000 files has as many."""

MAX_PATHS = 20_000
"""Changed and untracked files of one mark; a folder of packages that is not ignored has more."""

MAX_FILES = 300
"""Files of one comparison: a person reads fewer."""

TEXT_SIZE = 256 * 1024
TEXTS_SIZE = 2 << 20
"""Bytes of one text of a comparison, and of all."""

MAX_COMMITS = 50
MAX_WORKTREES = 50
GIT_OUTPUT = 32 << 20
"""Bytes that one git command may write: 20,000 paths of the longest kind, or the texts of a comparison."""

MAX_SAME = 100
"""Working trees whose names begin alike, `fix-2` to `fix-100`: a person removes some before."""

NAME_SIZE = 200
"""Bytes of the name of a branch; that of a file has 255, and git adds some."""

WORKTREES = ".worktrees"
"""Folder of a repository's working tree for those of sessions. `acp/worktrees.py` has the same."""

SHOWN = 10
"""Files that a refusal names."""

CPU_SECONDS = 60
ADDRESS_SPACE = 4 << 30
LARGE = b"acp-gateway: a large file, "
"""Beginning of what stands for a file whose text is not kept."""

ASIDE = "now"
"""Folder of a store for what is not kept."""

LFS = b"version https://git-lfs"

SAFE = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_SYSTEM": os.devnull,
    "GIT_CONFIG_GLOBAL": os.devnull,
    "GIT_ATTR_NOSYSTEM": "1",
    "GIT_OPTIONAL_LOCKS": "0",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_LITERAL_PATHSPECS": "1",
    "GIT_ALLOW_PROTOCOL": "none",
    "GIT_PAGER": "cat",
    "LC_ALL": "C",
}
"""Environment of git: no configuration but the store's, no program, no network."""

CONFIG = """\
[core]
	repositoryformatversion = 1
	bare = false
	fsmonitor = false
	hooksPath = /dev/null
	attributesFile = /dev/null
	excludesFile = /dev/null
	untrackedCache = false
	splitIndex = false
[extensions]
	objectFormat = {object_format}
[gc]
	auto = 0
[diff]
	ignoreSubmodules = all
"""

CHANGED = "The file has changed since it was shown: look again."
UNSHOWN = "What is there now can't be shown, so it is not replaced."


_BOOLEANS = frozenset((b"true", b"false", b"yes", b"no", b"on", b"off", b"1", b"0"))
SETTINGS = {
    b"core.autocrlf": _BOOLEANS | {b"input"},
    b"core.eol": frozenset((b"lf", b"crlf", b"native")),
    b"core.filemode": _BOOLEANS,
}
"""Options that are taken from the repository's configuration: how files are read, by plain words, which run nothing."""

_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")

MAX_ODD = 20
"""Files of one mark that git can't convert: each takes a dozen processes to find."""


_NO_NAME = re.compile(r"[ ~^:?*\[\\]|\.\.|@\{|//|/\.|^[./-]|[./]$|\.lock(/|$)|^(@|HEAD)$")
"""Found in no name of a branch, as `git check-ref-format --branch` says."""

UNDER_WAY = {
    "MERGE_HEAD": "a merge",
    "CHERRY_PICK_HEAD": "a cherry-pick",
    "REVERT_HEAD": "a revert",
    "rebase-merge": "a rebase",
    "rebase-apply": "a rebase",
    "BISECT_LOG": "a bisection",
    "modules": "a submodule",
    "locked": "a lock",
}
"""Files in the git folder of a working tree that is not to be removed, each with what it stands for."""


class Refused(Exception):
    """Something can't be done; the text is for a person."""


class GitFailed(Refused):
    """A git command has failed."""


def read_file(path: str | bytes, most: int = 1 << 20) -> bytes:
    """Return at most so many bytes of a regular file; none of a link or a pipe, or if nothing is there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return b""
    with os.fdopen(descriptor, "rb") as file:
        return file.read(most) if stat.S_ISREG(os.fstat(descriptor).st_mode) else b""


def _contains(folder: str, path: str) -> bool:
    return os.path.commonpath([folder, os.path.realpath(path)]) == folder


class Repository:
    """The working tree that contains a directory. Raises `Refused` if none does.

    Args:
        cwd: the directory.
        roots: the working tree lies in one of these directories.
    """

    def __init__(self, cwd: str, roots: Iterable[str]) -> None:
        real = os.path.realpath(cwd)
        self._allowed = [os.path.realpath(root) for root in roots]
        self.root = real
        while not os.path.lexists(os.path.join(self.root, ".git")):
            if self.root == "/":
                raise Refused("The session's folder is in no git working tree.")
            self.root = os.path.dirname(self.root)
        if not self.allows(self.root):
            raise Refused(f"The git working tree {self.root} begins above the workspace.")
        self.git_dir = os.path.join(self.root, ".git")
        if not os.path.isdir(self.git_dir):
            link = read_file(self.git_dir, 4096).decode(errors="surrogateescape")
            self.git_dir = os.path.join(self.root, link.removeprefix("gitdir:").strip())
        common = read_file(os.path.join(self.git_dir, "commondir"), 4096).decode(errors="surrogateescape").strip()
        self.common_dir = os.path.normpath(os.path.join(self.git_dir, common))
        self.objects = os.path.join(self.common_dir, "objects")
        if not os.path.isdir(self.objects) or "\n" in self.objects:
            raise Refused(f"The git folder of {self.root} can't be read here.")
        if not self.allows(self.objects):
            raise Refused(f"The git folder of {self.root} is outside of the workspace.")

    def allows(self, path: str) -> bool:
        """Return whether a path is in the workspace after links are resolved."""
        return any(_contains(root, path) for root in self._allowed)

    @property
    def object_format(self) -> str:
        """`sha1` or `sha256`."""
        text = read_file(os.path.join(self.common_dir, "config")).decode(errors="replace")
        return "sha256" if re.search(r"(?im)^\s*objectformat\s*=\s*\"?sha256", text) else "sha1"

    @property
    def head(self) -> str | None:
        """The commit that is checked out; None before the first one, or where this can't be told."""
        text = self._head
        if text.startswith("ref:"):
            name = text[4:].strip()
            if ".." in name or not name.startswith("refs/"):
                return None
            text = read_file(os.path.join(self.common_dir, name), 4096).decode(errors="replace").strip()
            if not text:
                text = self.packed().get(name, "")
        return text if _COMMIT.fullmatch(text) else None

    @property
    def _head(self) -> str:
        return read_file(os.path.join(self.git_dir, "HEAD"), 4096).decode(errors="replace").strip()

    @property
    def branch(self) -> str | None:
        """The branch that is checked out."""
        return self._head.partition("ref: refs/heads/")[2] or None

    def packed(self) -> dict[str, str]:
        """Return the references that are kept in one file, with their commits."""
        lines = read_file(os.path.join(self.common_dir, "packed-refs"), 16 << 20).decode(errors="replace").splitlines()
        return {
            name: commit for commit, _, name in (line.partition(" ") for line in lines) if _COMMIT.fullmatch(commit)
        }

    def refs(self) -> dict[str, str]:
        """Return all branches, tags and other references, with their commits."""
        found = self.packed()
        for folder, _, names in os.walk(os.path.join(self.common_dir, "refs")):
            for name in names:
                path = os.path.join(folder, name)
                text = read_file(path, 4096).decode(errors="replace").strip()
                if _COMMIT.fullmatch(text):
                    found[os.path.relpath(path, self.common_dir)] = text
        return found

    def worktrees(self, most: int | None = None) -> dict[str, str]:
        """Return the linked working trees of the repository, at most so many, each with its branch or commit."""
        folder, found = os.path.join(self.common_dir, "worktrees"), {}
        try:
            names = sorted(os.listdir(folder))[:most]
        except OSError:
            return {}
        for name in names:
            place = read_file(os.path.join(folder, name, "gitdir"), 4096).decode(errors="replace").strip()
            head = read_file(os.path.join(folder, name, "HEAD"), 4096).decode(errors="replace").strip()
            if place:
                found[os.path.dirname(place)] = head.removeprefix("ref:").strip().removeprefix("refs/heads/")[:256]
        return found


class Store:
    """git, with a folder of its own instead of the repository's.

    One process uses it at a time, and waits for another one: a file of it is locked until the process ends, and as long
    as a git command runs that was started here.

    Args:
        path: the folder; it is made if it is missing.
        repository: the working tree and its objects.
        keeps: whether what it finds is kept; otherwise it goes to a folder that the next one removes.
    """

    def __init__(self, path: str, repository: Repository, *, keeps: bool = True) -> None:
        self.path = path
        self.repository = repository
        os.makedirs(path, mode=0o700, exist_ok=True)
        self._lock = os.open(os.path.join(path, "lock"), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self._remove("index.lock")  # A git that was killed leaves it.
        shutil.rmtree(os.path.join(path, ASIDE), ignore_errors=True)
        index, objects = os.path.join(path, "index"), os.path.join(path, "objects")
        self._sources = [os.path.join(repository.git_dir, "index")]
        if not keeps:
            self._sources.insert(0, index)
            self._write(f"{ASIDE}/objects/info/alternates", os.fsencode(objects) + b"\n")
            index, objects = os.path.join(path, ASIDE, "index"), os.path.join(path, ASIDE, "objects")
        self.index = index
        places = {"GIT_DIR": path, "GIT_WORK_TREE": repository.root, "GIT_INDEX_FILE": index}
        places["GIT_OBJECT_DIRECTORY"] = objects
        self._environment = {"PATH": os.environ.get("PATH", os.defpath), "HOME": path, **SAFE, **places}
        self._make()

    def _make(self) -> None:
        os.makedirs(os.path.join(self.path, "refs/heads"), mode=0o700, exist_ok=True)
        self._write("HEAD", b"ref: refs/heads/none\n")
        config = CONFIG.format(object_format=self.repository.object_format).encode()
        self._write("config", config)
        self._write("config", config + self._settings())
        self._write("objects/info/alternates", os.fsencode(self.repository.objects) + b"\n")
        self._write("info/exclude", read_file(os.path.join(self.repository.common_dir, "info", "exclude")))

    def _settings(self) -> bytes:
        """Return the settings of the repository that are taken, as lines of a configuration."""
        words = ("config", "--file", "-", "--no-includes", "-z", "--get-regexp", r"^core\.(autocrlf|eol|filemode)$")
        listed = self.git(*words, data=read_file(os.path.join(self.repository.common_dir, "config")), fails=False)
        found = [item.lower().partition(b"\n") for item in listed.split(b"\0")]
        taken = [(name, value) for name, _, value in found if value in SETTINGS.get(name, ())]
        return b"".join(b"[core]\n\t%b = %b\n" % (name.removeprefix(b"core."), value) for name, value in taken)

    def _write(self, name: str, data: bytes) -> None:
        path = os.path.join(self.path, name)
        os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
        with open(path, "wb") as file:
            file.write(data)

    def _remove(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self.path, name))

    def git(self, *words: str, data: bytes = b"", fails: bool = True, most: int = GIT_OUTPUT) -> bytes:
        """Return what a git command writes. Raises `GitFailed` if it fails, or writes more bytes than `most`."""
        with tempfile.TemporaryFile(dir=self.path) as given, tempfile.TemporaryFile(dir=self.path) as said:
            given.write(data)
            given.seek(0)
            with subprocess.Popen(
                ["git", "--no-pager", *words],
                stdin=given,
                stdout=subprocess.PIPE,
                stderr=said,
                cwd=self.repository.root,
                env=self._environment,
                pass_fds=(self._lock,),
            ) as process:
                assert process.stdout is not None
                try:
                    found = process.stdout.read(most + 1)
                except Refused:
                    process.kill()
                    raise
                if len(found) > most:
                    process.kill()
            if process.returncode != 0 and fails:
                said.seek(0)
                why = said.read(2000).decode(errors="replace").strip().splitlines()
                raise GitFailed(f"git {words[0]} fails here: {why[-1] if why else 'it writes too much'}")
            return found

    def tree(self) -> str:
        """Return the tree of all that is in the working tree now but ignored files."""
        if not os.path.exists(self.index):
            self._first_index()
        try:
            self._update()
        except GitFailed:
            try:
                self._update()  # A file has gone since it was listed.
            except GitFailed:
                self._first_index()  # The index is damaged.
                self._update()
        return self.git("write-tree", "--missing-ok").decode().strip()

    def _first_index(self) -> None:
        """Make the index from that of the store or the repository, or from the commit where none can be read."""
        while self._sources:
            source = self._sources.pop(0)
            changed_at = 0
            with contextlib.suppress(FileNotFoundError):
                changed_at = os.lstat(source).st_mtime_ns
            copied = read_file(source, INDEX_SIZE + 1)
            if len(copied) > INDEX_SIZE:
                raise Refused(f"This working tree has too many files: its index is over {INDEX_SIZE >> 20} MiB.")
            if copied and self._copy(copied, changed_at):
                return
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.index)
        if self.repository.head is not None:
            self.git("read-tree", self.repository.head)

    def _copy(self, copied: bytes, changed_at: int) -> bool:
        """Make the index from another one; return False if git can't read that: it is split or damaged.

        git reads files that were changed as late as their index, so that the copy keeps its time, in nanoseconds.
        """
        beside = os.path.join(self.path, "index.new")
        with open(beside, "wb") as file:
            file.write(copied)
        os.utime(beside, ns=(changed_at, changed_at))
        os.rename(beside, self.index)
        try:
            listed = self.git("ls-files", "-z", "-v", most=8 * INDEX_SIZE)
        except GitFailed:
            return False
        # git looks at no files that are assumed to be unchanged.
        assumed = [line[2:] + b"\0" for line in listed.split(b"\0") if line[:1].islower()]
        if assumed:
            self.git("update-index", "--no-assume-unchanged", "-z", "--stdin", data=b"".join(assumed))
        return True

    def make_room(self, trees: list[str]) -> list[str]:
        """Return which trees are kept: the last one, the first one while there is room, and the latest between them.

        Raises `GitFailed` if there is not even room for the last one, or git can't tell what it needs.
        """
        while self._size() > STORE_SIZE:
            if len(trees) == 1:
                raise GitFailed(f"The changes of one turn take more than {STORE_SIZE >> 20} MiB.")
            first, *rest = trees
            trees = [first, *rest[len(rest) // 2 :]] if len(rest) > 1 else rest
            self.git("prune", "--expire=now", "--", *trees)
        return trees

    def _size(self) -> int:
        found = [os.path.join(folder, name) for folder, _, names in os.walk(self.path) for name in names]
        return sum(os.lstat(path).st_size for path in found)

    def clear(self) -> None:
        """Remove all marks with the index."""
        self._remove("index")
        shutil.rmtree(os.path.join(self.path, "objects"), ignore_errors=True)
        self._make()
        self._sources = [os.path.join(self.repository.git_dir, "index")]

    def _update(self) -> None:
        changed = self.git("diff-files", "-z", "--name-only", "--ignore-submodules=all")
        others = self.git("ls-files", "-z", "--others", "--exclude-standard")
        paths = [path for path in dict.fromkeys((changed + others).split(b"\0")) if path and not path.endswith(b"/")]
        if len(paths) > MAX_PATHS:
            raise Refused(f"More than {MAX_PATHS} files are changed or untracked: add some to .gitignore.")
        small, entries, left = [], [], MARK_SIZE
        zero = b"0" * (64 if self.repository.object_format == "sha256" else 40)
        stand_ins: dict[bytes, bytes] = {}
        root, real = os.fsencode(self.repository.root), {b""}
        for path in paths:
            try:
                if not self._is_real(os.path.dirname(path), real):
                    entries.append(b"0 %b\t%b" % (zero, path))
                    continue
                status = os.lstat(os.path.join(root, path))
            except OSError:
                small.append(path)  # It is removed from the index.
                continue
            is_file = stat.S_ISREG(status.st_mode)
            if not is_file and not stat.S_ISLNK(status.st_mode):
                if stat.S_ISDIR(status.st_mode):
                    small.append(path)
                else:
                    entries.append(b"0 %b\t%b" % (zero, path))
            elif is_file and (status.st_size > FILE_SIZE or status.st_size > left):
                told = b"of %d bytes, changed at %d\n" % (status.st_size, status.st_mtime_ns)
                stand_ins[path] = LARGE + told
            elif not is_file or os.access(os.path.join(root, path), os.R_OK):
                left -= status.st_size
                small.append(path)
        odd: list[bytes] = []
        if small:
            self._add(small, odd)
        for path, text in stand_ins.items():
            blob = self.git("hash-object", "-w", "--stdin", "--no-filters", data=text).strip()
            entries.append(b"100644 %b\t%b" % (blob, path))
        if entries:
            self.git("update-index", "-z", "--replace", "--index-info", data=b"\0".join(entries) + b"\0")
        if odd:
            self.git("update-index", "--force-write-index")  # Not it is what fails.
        for path in odd:
            blob = self.git("hash-object", "-w", "--stdin", "--no-filters", data=read_file(os.path.join(root, path)))
            entry = b"100644 %b\t%b\0" % (blob.strip(), path)
            self.git("update-index", "-z", "--replace", "--index-info", data=entry, fails=False)

    def _add(self, paths: list[bytes], odd: list[bytes]) -> None:
        """Put files into the index, and those that git can't convert or name into a list.

        Raises `GitFailed` if that is full.
        """
        try:
            self.git("update-index", "-z", "--add", "--remove", "--replace", "--stdin", data=b"\0".join(paths) + b"\0")
        except GitFailed:
            if len(odd) == MAX_ODD:
                raise
            if len(paths) == 1:
                odd += paths
                return
            self._add(paths[: len(paths) // 2], odd)
            self._add(paths[len(paths) // 2 :], odd)

    def uncommitted(self, head: str) -> list[bytes]:
        """Return the paths that differ from a commit, in the index or on the disk, and untracked ones."""
        self._first_index()
        words = ("-z", "--name-only", "--no-renames", "--ignore-submodules=all")
        found = self.git("diff-index", "--cached", *words, head)
        root, skipped = os.fsencode(self.repository.root), b""
        for entry in self.git("ls-files", "-z", "-t", "--stage").split(b"\0"):
            mode, _, path = entry.partition(b"\t")
            place = os.path.join(root, path)
            # git would read the submodule's own configuration.
            if mode[2:].startswith(b"160000") and os.path.isdir(place) and os.listdir(place):
                found += path + b"\0"
            # git looks at no files that are to be skipped, also where they are there.
            elif mode.startswith(b"S") and os.path.lexists(place):
                skipped += path + b"\0"
        self.git("update-index", "--no-skip-worktree", "-z", "--stdin", data=skipped)
        self.git("update-index", "-q", "--refresh", "--ignore-submodules", fails=False)
        found += self.git("diff-files", *words) + self.git("ls-files", "-z", "--others", "--exclude-standard")
        return [path for path in dict.fromkeys(found.split(b"\0")) if path]

    def _is_real(self, folder: bytes, real: set[bytes]) -> bool:
        """Return whether a folder of the working tree is not behind a link. `real` has those that were found so."""
        if folder in real:
            return True
        is_real = self._is_real(os.path.dirname(folder), real) and not os.path.islink(
            os.path.join(os.fsencode(self.repository.root), folder)
        )
        if is_real:
            real.add(folder)
        return is_real

    def blobs(self, names: Iterable[str], most: int) -> dict[str, bytes]:
        """Return the contents of blobs by name, without those that are missing or larger."""
        wanted = [name for name in dict.fromkeys(names) if name.strip("0")]
        sizes = self.git("cat-file", "--batch-check", data="".join(f"{name}\n" for name in wanted).encode())
        left, small = TEXTS_SIZE, []
        for line in sizes.decode(errors="replace").splitlines():
            name, _, rest = line.partition(" ")
            kind, _, size = rest.partition(" ")
            if kind == "blob" and int(size) <= min(most, left):
                left -= int(size)
                small.append(name)
        data = self.git("cat-file", "--batch", data="".join(f"{name}\n" for name in small).encode())
        found, at = {}, 0
        for name in small:
            begin = data.index(b"\n", at) + 1
            length = int(data[at:begin].split()[2])
            found[name] = data[begin : begin + length]
            at = begin + length + 1
        return found


def _repository(job: dict[str, Any]) -> Repository:
    """Return the working tree of a job. Raises `Refused` if it is not the one that was marked."""
    repository = Repository(job["cwd"], job["roots"])
    if job.get("root", repository.root) != repository.root:
        raise Refused("The session is in another git working tree than at its last prompt.")
    return repository


def do_mark(job: dict[str, Any]) -> dict[str, Any]:
    """Return the present state of the working tree."""
    repository = _repository(job)
    store = Store(job["store"], repository)
    tree = store.tree()
    try:
        kept = store.make_room([*job.get("keep", []), tree])
    except GitFailed:
        store.clear()
        tree = store.tree()
        kept = [tree]
    state = {
        "root": repository.root,
        "tree": tree,
        "head": repository.head,
        "worktrees": repository.worktrees(MAX_WORKTREES),
    }
    return {**state, "kept": kept}


def do_changes(job: dict[str, Any]) -> dict[str, Any]:
    """Return what has changed since a mark, until another one or now."""
    repository = _repository(job)
    store = Store(job["store"], repository, keeps=False)
    now = job["to"] or store.tree()
    raw = store.git("diff-tree", "-r", "-z", "--raw", "--no-renames", "--ignore-submodules=all", job["from"], now)
    parts = raw.split(b"\0")
    changed = [_Change.read(head, path) for head, path in zip(parts[::2], parts[1::2], strict=False)]
    shown = changed[:MAX_FILES]
    texts, left = store.blobs((name for one in shown for name in (one.old, one.new)), TEXT_SIZE), TEXTS_SIZE
    files = []
    for one in shown:
        # Files may have the same text, and each has it in the result.
        size = sum(len(texts.get(name, b"")) for name in (one.old, one.new))
        files.append(_described(one, texts if size <= left else {}))
        left -= size if size <= left else 0
    return {
        "root": repository.root,
        "files": files,
        "more": len(changed) - len(shown),
        "commits": _commits(store, job["head"], repository.head),
        "worktrees": repository.worktrees(),
    }


class _Change(NamedTuple):
    """A line of `git diff-tree --raw`."""

    old_mode: str
    mode: str
    old: str
    new: str
    status: str
    path: bytes

    @classmethod
    def read(cls, head: bytes, path: bytes) -> "_Change":
        """Return what a line says."""
        old_mode, mode, old, new, status = head[1:].decode().split(" ")
        return cls(old_mode, mode, old, new, status, path)


_STATUS = {"A": "added", "D": "deleted"}


def _described(one: _Change, texts: dict[str, bytes]) -> dict[str, Any]:
    old_data, data = (texts.get(name) if name.strip("0") else b"" for name in (one.old, one.new))
    why = _reason(old_data) or _reason(data)
    has_mode = one.mode != one.old_mode and "000000" not in (one.mode, one.old_mode)
    return {
        "path": one.path.decode(errors="backslashreplace"),
        "status": _STATUS.get(one.status[:1], "modified"),
        "old": one.old,
        "new": one.new,
        "executable": one.mode == "100755" if has_mode else None,
        "oldText": None if why or not one.old.strip("0") else _text(old_data),
        "newText": None if why or not one.new.strip("0") else _text(data),
        "why": why,
    }


def _reason(data: bytes | None) -> str | None:
    """Return why contents are not shown as a text; None if they are."""
    if data is None or data.startswith(LARGE):
        return "large"
    if b"\0" in data[:8000] or not _is_text(data):
        return "binary"
    return "elsewhere" if data.startswith(LFS) else None


def _text(data: bytes | None) -> str:
    return (data or b"").decode()


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _commits(store: Store, before: str | None, now: str | None) -> list[dict[str, Any]]:
    if now is None or now == before:
        return []
    since = [] if before is None else [f"^{before}"]
    form = "--format=%H%x00%ct%x00%s"
    words = ["log", "-z", f"--max-count={MAX_COMMITS}", form, "--no-color", "--no-notes", "--no-show-signature", now]
    lines = store.git(*words, *since, "--", fails=False).decode(errors="replace").split("\0")
    found = zip(lines[::3], lines[1::3], lines[2::3], strict=False)
    return [{"id": name, "at": int(at), "subject": subject[:256]} for name, at, subject in found if at.isdigit()]


def do_undo(job: dict[str, Any]) -> dict[str, Any]:
    """Put a file, or some of its lines, back to a mark. Raises `Refused` if it is not as it was shown any more."""
    repository = _repository(job)
    path = _checked(job["path"])
    # Read before git looks: at the end, what is replaced has to be the same.
    present = _Present.at(repository.root, path)
    store = Store(job["store"], repository, keeps=False)
    now = _entry(store.git("ls-tree", "-z", store.tree(), "--", job["path"]))
    before = _entry(store.git("ls-tree", "-z", job["from"], "--", job["path"]))
    if (_blob(now), _blob(before)) != (job["new"].strip("0"), job["old"].strip("0")):
        raise Refused(CHANGED)
    if now == before:
        raise Refused("This file has not changed.")
    if (now is None) != (present is None):
        raise Refused(CHANGED)
    contents = store.blobs([entry[1] for entry in (before, now) if entry], FILE_SIZE)
    if now is not None and contents.get(now[1], LARGE).startswith(LARGE):
        raise Refused(UNSHOWN)
    if before is None:
        with _Folder(repository.root, path, make=False) as (folder, name):
            _Present.check(folder, name, present)
            os.unlink(name, dir_fd=folder)
        return {}
    mode, blob = before
    if blob not in contents or contents[blob].startswith((LARGE, LFS)) or mode not in ("100644", "100755", "120000"):
        raise Refused("What the file was before is not kept here.")
    filtered = ("cat-file", "--filters", f"--path={job['path']}")
    data = contents[blob] if mode == "120000" else store.git(*filtered, blob)
    if job["lines"] is not None:
        if now is None or now[1] not in contents or mode == "120000":
            raise Refused("Only the whole file can be put back.")
        text = contents[now[1]]
        on_disk = present.data if present is not None and stat.S_ISREG(present.mode) else None
        if data != contents[blob] or store.git(*filtered, now[1]) != text or on_disk != text:
            raise Refused("git converts this file: only the whole of it can be put back.")
        data = _with_lines(contents[blob], text, job["lines"])
    with _Folder(repository.root, path, make=True) as (folder, name):
        _replace(folder, name, mode, data, present)
    return {}


def _checked(path: str) -> bytes:
    """Return a path as the disk has it. Raises `Refused` for one that no file of a working tree has."""
    with contextlib.suppress(UnicodeEncodeError):
        if "\0" not in path and not any(step.casefold() in ("", ".", "..", ".git") for step in path.split("/")):
            return path.encode()
    raise Refused("This path can't be put back.")


def _entry(listed: bytes) -> tuple[str, str] | None:
    head = listed.partition(b"\t")[0].decode().split(" ")
    return (head[0], head[2]) if len(head) == 3 else None


def _blob(entry: tuple[str, str] | None) -> str:
    """Return the name of an entry's blob as it is compared: git names nothing by zeros."""
    return "" if entry is None else entry[1].strip("0")


def _with_lines(old: bytes, new: bytes, places: list[int]) -> bytes:
    """Return the new text with the old lines at a place: `[first old line, number, first new line, number]`, from 0."""
    first, count, at, length = places
    before, after = old.split(b"\n"), new.split(b"\n")
    if min(places) < 0 or first + count > len(before) or at + length > len(after):
        raise Refused("These lines are not in the file.")
    return b"\n".join(after[:at] + before[first : first + count] + after[at + length :])


class _Folder:
    """The folder of a file, opened step by step without following links; `make` makes what is missing."""

    def __init__(self, root: str, path: bytes, *, make: bool) -> None:
        *self._steps, self._name = path.split(b"/")
        self._make = make
        self._descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def __enter__(self) -> tuple[int, bytes]:
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        for step in self._steps:
            if self._make:
                try:
                    os.mkdir(step, dir_fd=self._descriptor)
                except FileExistsError:
                    pass
            below = os.open(step, flags, dir_fd=self._descriptor)
            os.close(self._descriptor)
            self._descriptor = below
        return self._descriptor, self._name

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)


class _Present(NamedTuple):
    """A file or a link as it is on the disk: its mode, and its text or target."""

    mode: int
    data: bytes

    @classmethod
    def at(cls, root: str, path: bytes) -> "_Present | None":
        """Return what is at a path; None for nothing. Raises `Refused` as `read`."""
        try:
            with _Folder(root, path, make=False) as (folder, name):
                return cls.read(folder, name)
        except (FileNotFoundError, NotADirectoryError):
            return None

    @classmethod
    def read(cls, folder: int, name: bytes) -> "_Present | None":
        """Return what has a name in a folder. Raises `Refused` for neither file nor link, or a large one."""
        try:
            mode = os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode
        except FileNotFoundError:
            return None
        if stat.S_ISLNK(mode):
            return cls(mode, os.readlink(name, dir_fd=folder))
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        with os.fdopen(os.open(name, flags, dir_fd=folder), "rb") as file:
            mode = os.fstat(file.fileno()).st_mode
            data = file.read(FILE_SIZE + 1) if stat.S_ISREG(mode) else None
        if data is None or len(data) > FILE_SIZE:
            raise Refused(UNSHOWN)
        return cls(mode, data)

    @classmethod
    def check(cls, folder: int, name: bytes, expected: "_Present | None") -> None:
        """Raise `Refused` if something else has this name by now."""
        if cls.read(folder, name) != expected:
            raise Refused(CHANGED)


def _replace(folder: int, name: bytes, mode: str, data: bytes, present: _Present | None) -> None:
    beside = b".acp-gateway-%d" % os.getpid()
    try:
        if mode == "120000":
            os.symlink(data, beside, dir_fd=folder)
        else:
            _write(folder, beside, data, _permissions(present, mode))
        _Present.check(folder, name, present)
        os.rename(beside, name, src_dir_fd=folder, dst_dir_fd=folder)
    except (OSError, Refused):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside, dir_fd=folder)
        raise


def _permissions(present: _Present | None, mode: str) -> int:
    """Return the permissions of a file with this mode of git: but for execution those of the file that is there now.

    Else they are those of a new file.
    """
    if present is not None and stat.S_ISREG(present.mode):
        before = present.mode & 0o777
    else:
        mask = os.umask(0o077)
        os.umask(mask)
        before = 0o666 & ~mask
    return before | (before & 0o444) >> 2 if mode == "100755" else before & ~0o111


def _write(folder: int, name: bytes, data: bytes, permissions: int) -> None:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with os.fdopen(os.open(name, flags, 0o600, dir_fd=folder), "wb") as file:
        file.write(data)
        os.fchmod(file.fileno(), permissions)


def _spelled(cwd: str, root: str) -> str:
    """Return the root of a directory's working tree as the directory spells it, which may be by links."""
    path = cwd
    while path != "/":
        if os.path.samefile(path, root):
            return path
        path = os.path.dirname(path)
    return root


def do_worktree(job: dict[str, Any]) -> dict[str, Any]:
    """Make a working tree, with a branch of its own from the commit that is checked out; return where it is.

    `name` is the branch's; one that ends with `*` is only its beginning. `seconds` are those after which it is given
    up. What `git worktree add` writes is written here, as that reads the repository's configuration. Raises `Refused`.
    """
    repository = _repository(job)
    commit = repository.head
    if os.path.isdir(os.path.join(repository.common_dir, "reftable")):
        raise Refused("This repository keeps its branches in a table (reftable): make the working tree with git.")
    if commit is None:
        raise Refused("The repository has no commit yet, so that nothing could be in a new working tree.")
    first = os.path.dirname(repository.common_dir)
    if os.path.basename(repository.common_dir) != ".git" or not repository.allows(first):
        first = repository.root
    beside = os.path.join(first, WORKTREES)
    with contextlib.suppress(FileExistsError):
        os.mkdir(beside)
    for path in (beside, *(os.path.join(repository.common_dir, name) for name in ("worktrees", "refs/heads", "info"))):
        if os.path.islink(path) or not repository.allows(path) or (os.path.lexists(path) and not os.path.isdir(path)):
            raise Refused(f"{path} is not a folder of the repository: no working tree is made behind a link.")
    _exclude(repository)
    branch = _free_name(repository, beside, job["name"])
    tree = os.path.join(beside, _folder_of(branch))

    def late(*_: object) -> NoReturn:
        raise Refused(f"A working tree of this repository takes more than {job['seconds']} seconds to make.")

    try:
        os.mkdir(tree)
    except FileExistsError:
        raise Refused(_taken(branch)) from None
    signal.signal(signal.SIGALRM, late)
    signal.alarm(job["seconds"])
    try:
        _fill(job, repository, tree, branch, commit)
    except BaseException:
        signal.alarm(0)
        _remove_tree(tree, _admin(repository, branch))
        raise
    signal.alarm(0)
    root = _spelled(job["cwd"], repository.root)
    below = os.path.relpath(job["cwd"], root)
    spelled = os.path.join(root, WORKTREES, _folder_of(branch)) if first == repository.root else tree
    inside = os.path.normpath(os.path.join(spelled, below))
    return {"root": spelled, "cwd": inside if os.path.isdir(inside) else spelled, "branch": branch}


def _exclude(repository: Repository) -> None:
    """Let git ignore the folder of working trees, in no file that is committed."""
    line = f"/{WORKTREES}/".encode()
    path = os.path.join(repository.common_dir, "info", "exclude")
    if line in read_file(path).splitlines():
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o644), "wb") as file:
        file.write(b"\n%b\n" % line)


def _folder_of(branch: str) -> str:
    return branch.replace("/", "-")


def _taken(name: str) -> str:
    return f"There is a branch or a working tree {name} already: choose another name."


def _free_name(repository: Repository, beside: str, name: str) -> str:
    """Return the name of the new branch. Raises `Refused` for one that git does not allow, or that is taken."""
    begins = name.endswith("*")
    stem = name.removesuffix("*")
    if not stem or _NO_NAME.search(stem) or not stem.isprintable() or len(stem.encode(errors="replace")) > NAME_SIZE:
        raise Refused(f"{stem[:NAME_SIZE]!r} can't be the name of a branch.")
    taken = repository.packed()
    for branch in [stem, *(f"{stem}-{number}" for number in range(2, MAX_SAME + 1) if begins)]:
        ref = f"refs/heads/{branch}"
        above = [ref[: at.start()] for at in re.finditer("/", ref)][2:]
        is_free = not any(each in taken or os.path.isfile(os.path.join(repository.common_dir, each)) for each in above)
        is_free = is_free and ref not in taken and not any(each.startswith(f"{ref}/") for each in taken)
        places = (os.path.join(repository.common_dir, ref), _admin(repository, branch))
        if is_free and not any(map(os.path.lexists, (*places, os.path.join(beside, _folder_of(branch))))):
            return branch
    raise Refused(_taken(stem))


def _admin(repository: Repository, branch: str) -> str:
    return os.path.join(repository.common_dir, "worktrees", _folder_of(branch))


def _fill(job: dict[str, Any], repository: Repository, tree: str, branch: str, commit: str) -> None:
    """Make a working tree of a commit in an empty folder. The branch is the last: without it nothing counts."""
    admin = _admin(repository, branch)
    ref = os.path.join(repository.common_dir, "refs/heads", branch)
    os.makedirs(admin)
    files = {"HEAD": f"ref: refs/heads/{branch}", "commondir": "../..", "gitdir": os.path.join(tree, ".git")}
    places = {os.path.join(admin, name): text for name, text in files.items()} | {
        os.path.join(tree, ".git"): f"gitdir: {admin}"
    }
    for path, text in places.items():
        with open(path, "x") as file:
            file.write(f"{text}\n")
    store = Store(job["store"], Repository(tree, job["roots"]))
    store.git("read-tree", "--reset", "-u", commit)
    # With its time: git reads files again that are as old as their index.
    shutil.copy2(store.index, os.path.join(admin, "index"))
    os.makedirs(os.path.dirname(ref), exist_ok=True)
    with open(ref, "x") as file:
        file.write(f"{commit}\n")


def _remove_tree(tree: str, admin: str) -> None:
    """Remove a working tree with its administrative files."""
    shutil.rmtree(tree, ignore_errors=True)
    if os.path.lexists(tree):
        raise Refused(f"{tree} can't be removed: some files there may not be deleted.")
    shutil.rmtree(admin, ignore_errors=True)


def do_remove(job: dict[str, Any]) -> dict[str, Any]:
    """Remove the working tree that contains the folder `tree`, with its branch, unless something would be lost.

    Returns the branch if that stays, and how many commits no other one has. With `looks`, nothing is removed yet.
    Raises `Refused`, which names what is not committed.
    """
    repository = Repository(job["tree"], job["roots"])
    root, admin, head = repository.root, repository.git_dir, repository.head
    link, back = os.path.join(root, ".git"), read_file(os.path.join(admin, "gitdir"), 4096).decode(errors="replace")
    is_linked = (
        os.path.isfile(link)
        and not os.path.islink(admin)
        and os.path.realpath(os.path.join(admin, back.strip())) == link
    )
    if not is_linked or (os.path.basename(os.path.dirname(root)), os.path.dirname(admin)) != (
        WORKTREES,
        os.path.join(repository.common_dir, "worktrees"),
    ):
        raise Refused(f"{root} is not a working tree that was made for a session.")
    for name, what in UNDER_WAY.items():
        if os.path.lexists(os.path.join(admin, name)):
            raise Refused(f"{root} is not removed, as it has {what}.")
    if head is None:
        raise Refused(f"{root} is not removed: which commit it has can't be told.")
    trees = {os.path.realpath(path): name for path, name in repository.worktrees().items()}
    for path in trees:
        if path.startswith(f"{root}/"):
            raise Refused(f"{root} is not removed, as another working tree is in it: {path}.")
    store = Store(job["store"], repository)
    changed = [path.decode(errors="backslashreplace") for path in store.uncommitted(head)]
    if changed:
        more = f" and {len(changed) - SHOWN} more" if len(changed) > SHOWN else ""
        raise Refused(f"{root} is not removed, as this is not committed: {', '.join(changed[:SHOWN])}{more}.")
    branch, packed = repository.branch, repository.packed()
    ref = f"refs/heads/{branch}"
    kinds = ("refs/heads/", "refs/remotes/", "refs/tags/")
    others = {commit for name, commit in repository.refs().items() if name.startswith(kinds) and name != ref}
    given = "".join(f"{name}\n" for name in (head, *(f"^{other}" for other in others))).encode()
    commits = int(store.git("rev-list", "--count", "--ignore-missing", "--stdin", data=given))
    if commits and branch is None:
        raise Refused(f"{root} is not removed: {commits} of its commits are on no branch.")
    used = {name for path, name in trees.items() if path != root}
    stays = commits or branch is None or ref in packed or branch in used or _folder_of(branch) != os.path.basename(root)
    if not job["looks"]:
        _remove_tree(root, admin)
        if not stays:
            _remove_branch(repository, ref)
    return {"branch": branch if stays else None, "commits": commits}


def _remove_branch(repository: Repository, ref: str) -> None:
    for path in (os.path.join(repository.common_dir, "logs", ref), os.path.join(repository.common_dir, ref)):
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    above = os.path.dirname(ref)
    while above != "refs/heads":  # git would not make a branch of that name.
        with contextlib.suppress(OSError):
            os.rmdir(os.path.join(repository.common_dir, above))
        above = os.path.dirname(above)


def _limit(most_in_file: int) -> None:
    os.nice(19)
    for kind, most in (
        (resource.RLIMIT_CPU, CPU_SECONDS),
        (resource.RLIMIT_FSIZE, most_in_file),
        (resource.RLIMIT_AS, ADDRESS_SPACE),
        (resource.RLIMIT_CORE, 0),
    ):
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (most if hard == resource.RLIM_INFINITY else min(most, hard), hard))


JOBS = {"mark": do_mark, "changes": do_changes, "undo": do_undo, "worktree": do_worktree, "remove": do_remove}


def main() -> NoReturn:
    """Carry out the job on stdin."""
    job = json.load(sys.stdin)
    # A working tree has files of any size.
    _limit(ADDRESS_SPACE if job["do"] == "worktree" else INDEX_SIZE)
    try:
        result = JOBS[job["do"]](job)
    except Refused as error:
        result = {"refused": str(error)}
    except OSError as error:
        result = {"refused": f"{error.filename or 'git'}: {error.strerror}"}
    shutil.rmtree(os.path.join(job["store"], ASIDE), ignore_errors=True)
    sys.stdout.write(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
