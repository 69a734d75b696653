"""The agents that `acp-gateway agents` has added: a folder of each in `state_dir`, with a record and its binaries.

installed-agents/NAME/installed.json    where the agent comes from, its version, its command, hashes
installed-agents/NAME/VERSION-HASH/     its unpacked files; the ones before are kept until the next update

The archives are not trusted. Refused are paths and links that lead out of the folder, devices and the like, and more
bytes or files than allowed. Each folder is opened from the one above it without following links, so that nothing is
made below one. Links are made last, each after its end has been found among the others.
"""

import bz2
import errno
import gzip
import hashlib
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, Literal, cast

import msgspec

from acp_gateway.config.agent_registry import Choice, archive_format
from acp_gateway.errors import ConfigError
from acp_gateway.gateway.agent.download import Report, download

FOLDER: Final = "installed-agents"
"""Folder in `state_dir`."""

RECORD: Final = "installed.json"

_RECORD_SIZE: Final = 1024 * 1024

State = Literal["ok", "missing", "changed"]


class Installed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, rename={"variables": "env"}):
    """The record of one agent that was added."""

    id: str
    """Its id in the registry."""
    source: str
    """The file or URL of the registry."""
    kind: Literal["binary", "npx", "uvx"]
    version: str
    command: list[str]
    """The command that was written into the configuration."""
    variables: dict[str, str] = {}
    archive: str | None = None
    archive_sha256: str | None = None
    folder: str | None = None
    """Name of the folder with the files of a binary."""
    program_sha256: str | None = None
    """Hash of a binary's program when it was unpacked."""


class InstalledAgents:
    """The folders and records of the agents that were added to one gateway."""

    def __init__(self, state_dir: Path) -> None:
        self._root = state_dir / FOLDER

    def folder(self, name: str) -> Path:
        """Return the folder of an agent. Raises `ConfigError` for a name that would be another folder."""
        if not _is_folder_name(name):
            raise ConfigError(f"{name[:64]!r} can't be the name of an agent with files: choose another")
        return self._root / name

    def read(self, name: str) -> Installed | None:
        """Return the record of an agent, None if it was not added. Raises `ConfigError` for a damaged record."""
        if not _is_folder_name(name):
            return None
        path = self.folder(name) / RECORD
        try:
            with path.open("rb") as file:
                content = file.read(_RECORD_SIZE)
            return msgspec.json.decode(content, type=Installed)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise ConfigError(f"cannot be read: {error.strerror}", file=str(path)) from None
        except msgspec.DecodeError as error:
            raise ConfigError(f"is damaged: {error}; remove it and add the agent again", file=str(path)) from None

    def names(self) -> list[str]:
        """Return the names of all that were added."""
        return sorted(path.parent.name for path in self._root.glob(f"*/{RECORD}") if _is_folder_name(path.parent.name))

    def check(self, name: str, installed: Installed) -> State:
        """Return whether a binary is there as it was unpacked. A package is kept by its runner, and is `ok`."""
        if installed.kind != "binary" or not installed.command:
            return "ok"
        try:
            digest = _hash(Path(installed.command[0]))
        except OSError:
            return "missing"
        return "ok" if digest == installed.program_sha256 else "changed"

    @contextmanager
    def prepare(
        self, name: str, agent_id: str, source: str, choice: Choice, limits: tuple[int, int], report: Report
    ) -> Iterator[tuple[Installed, Callable[[], None]]]:
        """Download and unpack what a choice needs, beside what is there.

        Yields the record to keep, and a function that keeps it. Without its call, nothing stays.

        Args:
            name: the agent's name in the configuration.
            agent_id: its id in the registry.
            source: the registry.
            choice: the distribution.
            limits: maximum bytes of the download, and of the unpacked files.
            report: called as the download goes on.

        Raises `ConfigError` and `Unreachable`.
        """
        folder = self.folder(name)
        before = self.read(name)
        made: Path | None = None
        kept = False

        def keep() -> None:
            nonlocal kept
            self._write(name, installed)
            kept = True
            self._remove_former(name, {installed.folder, before.folder if before else None})

        try:
            self._make_folder(folder)
            archive_hash: str | None = None
            program_hash: str | None = None
            if choice.kind == "binary":
                made, archive_hash, program_hash = self._unpack(folder, choice, limits, report)
                command = [str(made / choice.words[0]), *choice.words[1:]]
            else:
                command = list(choice.words)
            installed = Installed(
                id=agent_id,
                source=source,
                kind=choice.kind,
                version=choice.version,
                command=command,
                variables=dict(choice.env),
                archive=choice.archive,
                archive_sha256=archive_hash,
                folder=made.name if made else None,
                program_sha256=program_hash,
            )
            yield installed, keep
        finally:
            if not kept:
                if made is not None and not (before and before.folder == made.name):
                    shutil.rmtree(made, ignore_errors=True)
                _remove_if_empty(folder)

    def remove(self, name: str) -> None:
        """Remove the folder of an agent. Raises `ConfigError`."""
        try:
            shutil.rmtree(self.folder(name))
        except FileNotFoundError:
            pass
        except OSError as error:
            raise ConfigError(f"cannot be removed: {error.strerror}", file=str(self.folder(name))) from None

    def _make_folder(self, folder: Path) -> None:
        try:
            for path in (self._root.parent, self._root, folder):
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            status = self._root.lstat()
        except OSError as error:
            raise ConfigError(f"cannot be made: {error.strerror}", file=str(folder)) from None
        if not stat.S_ISDIR(status.st_mode) or stat.S_IMODE(status.st_mode) & 0o022:
            raise ConfigError("other users may write there, or it is a link: remove it", file=str(self._root))

    def _unpack(self, folder: Path, choice: Choice, limits: tuple[int, int], report: Report) -> tuple[Path, str, str]:
        """Return the folder with the files, and the hashes of the archive and of the program in it."""
        assert choice.archive is not None
        file = folder / "download"
        new = folder / "unpacked"
        try:
            file.unlink(missing_ok=True)
            shutil.rmtree(new, ignore_errors=True)
            digest = download(choice.archive, file, limits[0], report)
            if choice.sha256 is not None and choice.sha256 != digest:
                raise ConfigError(f"{choice.archive} has the SHA-256 {digest}, and not {choice.sha256} as announced")
            form = archive_format(choice.archive)
            if form is None:
                new.mkdir(mode=0o700)
                (new / choice.words[0]).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                file.rename(new / choice.words[0])
            else:
                unpack(file, form, new, limits[1])
            program = new / choice.words[0]
            if not program.is_file():
                raise ConfigError(f"{choice.archive} has no file {choice.words[0]!r:.200}, which the registry names")
            program.chmod(0o700)
            made = folder / f"{choice.version}-{digest[:12]}"
            if made.exists():
                shutil.rmtree(made)
            program_hash = _hash(program)
            new.rename(made)
            return made, digest, program_hash
        except OSError as error:
            raise ConfigError(f"{folder}: {error.strerror or error}") from None
        finally:
            file.unlink(missing_ok=True)
            shutil.rmtree(new, ignore_errors=True)

    def _write(self, name: str, installed: Installed) -> None:
        path = self.folder(name) / RECORD
        new = path.with_suffix(".new")
        try:
            new.unlink(missing_ok=True)
            with open(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                file.write(msgspec.json.format(msgspec.json.encode(installed)) + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(new, path)
        except OSError as error:
            raise ConfigError(f"cannot be written: {error.strerror}", file=str(path)) from None

    def _remove_former(self, name: str, kept: set[str | None]) -> None:
        """Remove unpacked files of versions before the former one, which a running gateway may still start."""
        for path in self.folder(name).iterdir():
            if path.is_dir() and path.name not in kept:
                shutil.rmtree(path, ignore_errors=True)


def _is_folder_name(name: str) -> bool:
    return name not in (".", "..") and re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) is not None


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _remove_if_empty(folder: Path) -> None:
    try:
        folder.rmdir()
        folder.parent.rmdir()
    except OSError:
        pass  # There is more in it.


MOST_FILES: Final = 100_000
"""Maximum entries of an archive. A Node.js program with its modules has some ten thousand."""

LARGEST_DIRECTORY: Final = 16 * 1024 * 1024
"""Maximum bytes of the directory of a zip file, which is read into memory: as many files have a directory of 12 MB."""

HEADER_SIZE: Final = 4096
"""Bytes for the headers of one file in a tar file, on average: a long name and some attributes."""

_TOO_LARGE: Final = "the archive unpacks to too many bytes: --max-unpacked allows more"
_PIECE: Final = 256 * 1024
_LARGEST_READ: Final = 1024 * 1024
_LONGEST_LINK: Final = 4096
_DEEPEST: Final = 100
"""Maximum parts of a path: nested modules of Node.js have some thirty. Removing them opens one folder for each."""

_MOST_LINKS: Final = 40
"""Maximum links on the way to the end of one, as in Linux."""

_FOLDER_FLAGS: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
_ZIP_END: Final = b"PK\x05\x06"
_ZIP64_LOCATOR: Final = b"PK\x06\x07"


@dataclass(frozen=True, slots=True)
class _Entry:
    """A file, folder or link of an archive."""

    path: PurePosixPath
    kind: str
    """`file`, `folder` or `link`."""
    executable: bool = False
    content: IO[bytes] | None = None
    target: str = ""


def unpack(archive: Path, form: str, folder: Path, most: int) -> None:
    """Unpack a `tar` or `zip` archive into `folder`, which must not exist, for its owner alone.

    Raises `ConfigError` for a damaged archive, one with an entry that is refused, or with more than `most` bytes.
    Nothing of the archive is left then.
    """
    folder.mkdir(mode=0o700)
    done = False
    try:
        root = os.open(folder, _FOLDER_FLAGS)
        try:
            _unpack(_read_tar(archive, most) if form == "tar" else _read_zip(archive), root, most)
        finally:
            os.close(root)
        # Some file systems take several spellings for one name, which has been compared by text.
        for path in _links(folder):
            if not path.resolve().is_relative_to(folder.resolve()):
                raise ConfigError(f"the archive has a link that leads out of it: {path.name!r:.200}")
        done = True
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
        raise ConfigError(f"the archive is damaged: {error or type(error).__name__}") from None
    except RuntimeError as error:  # Of zipfile, for an encrypted file or an unknown method.
        raise ConfigError(f"the archive can't be unpacked: {error}") from None
    except OSError as error:
        raise ConfigError(f"the archive can't be unpacked: {error.strerror or error}") from None
    finally:
        if not done:
            shutil.rmtree(folder, ignore_errors=True)


def _unpack(entries: Iterator[_Entry], root: int, most: int) -> None:
    """Make all entries below an open folder."""
    links: dict[tuple[str, ...], _Entry] = {}
    left = most
    for number, entry in enumerate(entries):
        if number >= MOST_FILES:
            raise ConfigError(f"the archive has more than {MOST_FILES} files")
        parts = entry.path.parts
        if entry.kind == "folder":
            with _open_folder(root, parts):
                pass
        elif not parts:
            raise ConfigError("the archive has a file or link in place of its folder")
        elif entry.kind == "link":
            if links.setdefault(parts, entry) is not entry:
                raise ConfigError(f"the archive has two links of one name: {str(entry.path)!r:.200}")
        else:
            with _open_folder(root, parts[:-1]) as parent:
                left -= _write(parent, entry, left)
    targets = {parts: link.target for parts, link in links.items()}
    for parts in links:
        _check_end(parts, targets)
    for parts, link in links.items():
        with _open_folder(root, parts[:-1]) as parent:
            os.symlink(link.target, parts[-1], dir_fd=parent)


def _links(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (path for name in (*folders, *files) if (path := Path(place, name)).is_symlink())


@contextmanager
def _open_folder(root: int, parts: tuple[str, ...]) -> Iterator[int]:
    """Open a folder below another one, and make what is missing on the way; no link is followed."""
    opened = os.dup(root)
    try:
        for part in parts:
            try:
                os.mkdir(part, 0o700, dir_fd=opened)
            except FileExistsError:
                pass
            try:
                below = os.open(part, _FOLDER_FLAGS, dir_fd=opened)
            except OSError as error:
                if error.errno in (errno.ELOOP, errno.ENOTDIR):
                    path = "/".join(parts)
                    raise ConfigError(f"the archive has something below a link or file: {path!r:.200}") from None
                raise
            os.close(opened)
            opened = below
        yield opened
    finally:
        os.close(opened)


def _write(parent: int, entry: _Entry, most: int) -> int:
    """Write a new file and return its bytes. Raises `ConfigError` past `most` of them."""
    assert entry.content is not None
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    written = 0
    new = os.open(entry.path.name, flags, 0o700 if entry.executable else 0o600, dir_fd=parent)
    with open(new, "wb") as file, entry.content:
        while piece := entry.content.read(_PIECE):
            written += len(piece)
            if written > most:
                raise ConfigError(_TOO_LARGE)
            file.write(piece)
    return written


def _check_end(link: tuple[str, ...], targets: Mapping[tuple[str, ...], str]) -> None:
    """Raise `ConfigError` for a link that leads out of the folder, also through other links, or to no end.

    Args:
        link: the path of the link, in parts.
        targets: the targets of all links, by path.
    """
    # The way still to go, with its next part last.
    way, at, followed = [*reversed(link)], list[str](), 0
    while way:
        part = way.pop()
        if part == "..":
            if not at:
                raise ConfigError(f"the archive has a link that leads out of it: {'/'.join(link)!r:.200}")
            at.pop()
            continue
        at.append(part)
        target = targets.get(tuple(at)) if len(at) <= _DEEPEST else None
        if target is None:
            continue
        at.pop()
        followed += 1
        if followed > _MOST_LINKS or len(way) > _LONGEST_LINK:
            raise ConfigError(f"the archive has a link that leads in a circle: {'/'.join(link)!r:.200}")
        way += reversed(PurePosixPath(target).parts)


def _check_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ConfigError(f"the archive has a path that leads out of it: {name!r:.200}")
    if len(path.parts) > _DEEPEST:
        raise ConfigError(f"the archive has a path of more than {_DEEPEST} parts: {name!r:.200}")
    return path


def _check_link(path: PurePosixPath, target: str) -> str:
    """Return the target of a link, which has to be relative. `_check_end` tells where it leads."""
    if target.startswith("/") or not target or len(target) > _LONGEST_LINK or "\0" in target:
        raise ConfigError(f"the archive has a link that leads out of it: {str(path)!r:.200}")
    return target


class _Bounded:
    """A file that refuses large reads: a header of a tar file may claim any size, and is read into memory at once.

    Args:
        file: the file.
        most: maximum bytes of all reads.
    """

    def __init__(self, file: IO[bytes], most: int) -> None:
        self._file = file
        self._left = most
        self.seek = file.seek
        self.tell = file.tell

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LARGEST_READ:
            raise ValueError("a header is too large")
        content = self._file.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise ConfigError(_TOO_LARGE)
        return content


def _decompress(archive: Path) -> IO[bytes]:
    with archive.open("rb") as file:
        start = file.read(6)
    if start.startswith(b"\x1f\x8b"):
        return cast("IO[bytes]", gzip.open(archive))
    if start.startswith(b"BZh"):
        return cast("IO[bytes]", bz2.open(archive))
    return cast("IO[bytes]", lzma.open(archive)) if start == b"\xfd7zXZ\x00" else archive.open("rb")


def _read_tar(archive: Path, most: int) -> Iterator[_Entry]:
    most += MOST_FILES * HEADER_SIZE
    with (
        _decompress(archive) as file,
        tarfile.open(fileobj=cast("IO[bytes]", _Bounded(file, most)), mode="r:") as opened,
    ):
        for member in opened:
            # It would keep all headers, of up to a megabyte each, in memory.
            opened.members.clear()  # type: ignore[attr-defined]
            path = _check_path(member.name)
            if member.isdir():
                yield _Entry(path, "folder")
            elif member.isreg():
                yield _Entry(path, "file", bool(member.mode & 0o111), opened.extractfile(member))
            elif member.issym():
                yield _Entry(path, "link", target=_check_link(path, member.linkname))
            else:
                raise ConfigError(
                    f"the archive has an entry that is not a file, folder or symbolic link: {str(path)!r:.200}"
                )


def _check_zip(archive: Path) -> None:
    """Raise `ConfigError` for a zip file whose directory is too large to be read."""
    with archive.open("rb") as file:
        file.seek(max(0, archive.stat().st_size - 70_000))  # A comment of at most 64 KiB follows the end record.
        tail = file.read()
    at = tail.rfind(_ZIP_END)
    if at < 0 or len(tail) < at + 22:
        raise ConfigError("the archive is damaged: it has no directory")
    if int.from_bytes(tail[at + 12 : at + 16], "little") > LARGEST_DIRECTORY or _ZIP64_LOCATOR in tail:
        raise ConfigError("the archive has too many files")


def _read_zip(archive: Path) -> Iterator[_Entry]:
    _check_zip(archive)
    with zipfile.ZipFile(archive) as opened:
        for member in opened.infolist():
            path = _check_path(member.filename)
            mode = member.external_attr >> 16
            kind = stat.S_IFMT(mode)
            if member.is_dir():
                yield _Entry(path, "folder")
            elif kind == stat.S_IFLNK:
                with opened.open(member) as content:
                    target = content.read(_LONGEST_LINK + 1).decode("utf-8", "surrogateescape")
                yield _Entry(path, "link", target=_check_link(path, target))
            elif kind in (0, stat.S_IFREG):
                yield _Entry(path, "file", bool(mode & 0o111), opened.open(member))
            else:
                raise ConfigError(
                    f"the archive has an entry that is not a file, folder or symbolic link: {str(path)!r:.200}"
                )
