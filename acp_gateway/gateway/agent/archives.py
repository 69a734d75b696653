"""Unpacks the archive of an agent into a new folder. The archive is not trusted.

Refused are paths and links that lead out of the folder, devices and the like, and more bytes or files than allowed.
Links are made after all files, so that no file is written through one.
"""

import bz2
import gzip
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, Final, cast

from acp_gateway.errors import ConfigError

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

    Raises `ConfigError` for a damaged archive, one with an entry that is refused, or with more than `most` bytes. The
    folder is then incomplete, for the caller to remove.
    """
    folder.mkdir(mode=0o700)
    links: list[_Entry] = []
    left = most
    try:
        for number, entry in enumerate(_read_tar(archive, most) if form == "tar" else _read_zip(archive)):
            if number >= MOST_FILES:
                raise ConfigError(f"the archive has more than {MOST_FILES} files")
            path = folder / entry.path
            if entry.kind == "link":
                links.append(entry)
            elif entry.kind == "folder":
                path.mkdir(mode=0o700, parents=True, exist_ok=True)
            else:
                left -= _write(path, entry, left)
        for link in links:
            path = folder / link.path
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.symlink(link.target, path)
        root = folder.resolve()
        # A link may lead through others, so only now can be seen where it ends.
        for link in links:
            if not (folder / link.path).resolve().is_relative_to(root):
                raise ConfigError(f"the archive has a link that leads out of it: {str(link.path)!r:.200}")
    except (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, ValueError) as error:
        raise ConfigError(f"the archive is damaged: {error or type(error).__name__}") from None
    except RuntimeError as error:  # Of zipfile, for an encrypted file or an unknown method; for links in a circle.
        raise ConfigError(f"the archive can't be unpacked: {error}") from None
    except OSError as error:
        raise ConfigError(f"the archive can't be unpacked: {error.strerror or error}") from None


def _write(path: Path, entry: _Entry, most: int) -> int:
    """Write a new file and return its bytes. Raises `ConfigError` past `most` of them."""
    assert entry.content is not None
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    written = 0
    with entry.content, open(os.open(path, flags, 0o700 if entry.executable else 0o600), "wb") as file:
        while piece := entry.content.read(_PIECE):
            written += len(piece)
            if written > most:
                raise ConfigError(_TOO_LARGE)
            file.write(piece)
    return written


def _check_path(name: str) -> PurePosixPath:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts or "\\" in name or "\0" in name:
        raise ConfigError(f"the archive has a path that leads out of it: {name!r:.200}")
    return path


def _check_link(path: PurePosixPath, target: str) -> str:
    """Return the target of a link. Raises `ConfigError` if its text alone leads out of the folder."""
    depth = len(path.parts) - 1
    if target.startswith("/") or not target or len(target) > _LONGEST_LINK or "\0" in target:
        raise ConfigError(f"the archive has a link that leads out of it: {str(path)!r:.200}")
    for part in PurePosixPath(target).parts:
        depth += -1 if part == ".." else 1
        if depth < 0:
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
