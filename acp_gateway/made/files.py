"""Opens files beneath folders: the only way by which the gateway opens a file for a client.

A path is resolved, the result is judged (`files_rules`), and what was judged is opened without following any link, by
`openat2` where the kernel has it, else name by name. So a link that is put into the path in between leads nowhere: the
file is refused. Devices, pipes, sockets and files of the kernel are never opened.

The functions read the disk: they are called in a thread.
"""

import ctypes
import errno
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Final, Literal

from acp_gateway.made.files_rules import FileRefused, Place, Reason, Territory, check_path, quoted

PIECE: Final = 256 * 1024
"""Maximum bytes that are read at once: a disk takes a millisecond, and a slow reader keeps as much in memory."""

MAX_LISTED: Final = 2000
"""Maximum entries of a folder that are told: as many as a person scrolls through."""

MAX_SCANNED: Final = 50_000
"""Maximum entries of a folder that are looked at, some 100 ms."""

_OPENAT2: Final = 437
"""The number of the system call, the same on all architectures."""

_BENEATH: Final = 0x08 | 0x04 | 0x02
"""`RESOLVE_BENEATH`, `RESOLVE_NO_SYMLINKS`, `RESOLVE_NO_MAGICLINKS`."""

_ATTEMPTS: Final = 8
"""Attempts of `openat2`, which fails with `EAGAIN` while folders are moved."""

FOLDER: Final = getattr(os, "O_PATH", os.O_RDONLY) | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
"""Flags for a folder in which something is opened."""

_READ: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC

_NO_LINKS: Final = getattr(os, "O_NOFOLLOW_ANY", 0)
"""The flag of macOS by which no link on a path is followed."""

_KERNEL: Final = ("/proc", "/sys")
"""Folders of the kernel's own file systems."""

Opener = Callable[[str, tuple[str, ...], int], int]
"""Opens a folder or a file below a folder: its path, the names below it, and flags. Raises `OSError`."""


class _How(ctypes.Structure):
    _fields_ = [("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64)]


def open_by_kernel(root: str, parts: tuple[str, ...], flags: int) -> int:
    """Open what is below a folder by `openat2`. Raises `OSError`."""
    for name in parts:
        _check_name(name)
    top = os.open("/", FOLDER)
    try:
        path, how = os.fsencode("/".join((root, *parts)).strip("/") or "."), _How(flags, 0, _BENEATH)
        libc = _libc()
        for _ in range(_ATTEMPTS):
            found = libc.syscall(_OPENAT2, top, path, ctypes.byref(how), ctypes.sizeof(how))
            if found >= 0:
                return int(found)
            code = ctypes.get_errno()
            if code != errno.EAGAIN:
                break
        raise OSError(code, os.strerror(code))
    finally:
        os.close(top)


def open_by_names(root: str, parts: tuple[str, ...], flags: int) -> int:
    """Open what is below a folder name by name, where the kernel has no `openat2`. Raises `OSError`."""
    # Where macOS opens a path only without links, the folders above need not be readable.
    names = parts if _NO_LINKS else (*root.strip("/").split("/"), *parts) if root.strip("/") else parts
    at = os.open(root if _NO_LINKS else "/", FOLDER | _NO_LINKS)
    try:
        for name in names[:-1]:
            _check_name(name)
            following = os.open(name, FOLDER, dir_fd=at)
            os.close(at)
            at = following
        last = names[-1] if names else "."
        if names:
            _check_name(last)
        return os.open(last, flags | os.O_NOFOLLOW, dir_fd=at)
    finally:
        os.close(at)


def open_beneath(root: str, parts: tuple[str, ...], flags: int) -> int:
    """Open what is below a folder, without following a link on the way there or below. Raises `OSError`."""
    return (open_by_kernel if _has_openat2() else open_by_names)(root, parts, flags)


def _check_name(name: str) -> None:
    if name in ("", ".", "..") or "/" in name:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


@cache
def _has_openat2() -> bool:
    """Return whether the kernel has the call; a container may forbid it."""
    if os.uname().sysname != "Linux":
        return False
    try:
        os.close(open_by_kernel("/", (), FOLDER))
    except OSError:
        return False
    return True


def resolve(territory: Territory, path: str) -> Place:
    """Return the place that a client's path leads to, whether or not anything is there. Raises `FileRefused`."""
    check_path(path)
    try:
        real = os.path.realpath(os.path.join(territory.base, path))
    except (OSError, ValueError, RecursionError):
        raise FileRefused("bad_path", f"{quoted(path)} is not a path") from None
    return territory.judge(real, path)


@contextmanager
def refusing(path: str) -> Iterator[None]:
    """Turn the errors of the system about a path into `FileRefused`."""
    try:
        yield
    except OSError as error:
        why, text = _WORDS.get(error.errno or 0, ("failed", f"can't be used: {error.strerror}"))
        raise FileRefused(why, f"{quoted(path)} {text}") from None
    except ValueError:
        raise FileRefused("bad_path", f"{quoted(path)} is not a path") from None


_LINK: Final[tuple[Reason, str]] = ("changed", "was changed just now, or leads through a link in a circle; try again")
_NONE: Final[tuple[Reason, str]] = ("not_found", "does not exist")
_FULL: Final[tuple[Reason, str]] = ("no_space", "can't be written: the disk is full")
_WORDS: Final[dict[int, tuple[Reason, str]]] = {
    **dict.fromkeys((errno.ELOOP, errno.EXDEV, errno.EAGAIN), _LINK),
    **dict.fromkeys((errno.ENOENT, errno.ENOTDIR), _NONE),
    **dict.fromkeys((errno.ENOSPC, errno.EDQUOT), _FULL),
    **dict.fromkeys((errno.EACCES, errno.EPERM), ("unreadable", "is not for the user of the gateway")),
    errno.ENAMETOOLONG: ("bad_path", "has a name that is too long"),
    errno.EROFS: ("read_only", "is on a disk where nothing can be written"),
    errno.ENXIO: ("not_a_file", "is a device, a pipe or a socket"),
}
"""The reason and the words for errors of the system."""

Kind = Literal["file", "folder", "link", "other"]


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or a folder, as clients are told of it."""

    name: str
    kind: Kind
    """That of its target for a link that may be followed."""
    size: int
    """Bytes."""
    modified: int
    """Milliseconds since 1970."""
    secret: bool = False
    """True for one that is not shown."""


@dataclass(frozen=True, slots=True)
class Listing:
    """The content of a folder."""

    place: Place
    entries: list[Entry]
    """Folders first, by name."""
    more: bool
    """True if there are further entries."""


@contextmanager
def opened_parent(place: Place) -> Iterator[tuple[int, str]]:
    """Open the folder of a place, and yield it with the name in it: `.` for the root itself. Raises `OSError`."""
    folder = open_beneath(place.root, place.parts[:-1], FOLDER)
    try:
        yield folder, place.parts[-1] if place.parts else "."
    finally:
        os.close(folder)


def look(territory: Territory, path: str) -> tuple[Place, Entry]:
    """Return the place of a path, and what is there. Raises `FileRefused`."""
    place = resolve(territory, path)
    with refusing(path), opened_parent(place) as (folder, name):
        info = os.stat(name, dir_fd=folder, follow_symlinks=False)
    return place, _entry(place.name, info)


def _entry(name: str, info: os.stat_result, *, secret: bool = False) -> Entry:
    kinds: dict[int, Kind] = {stat.S_IFREG: "file", stat.S_IFDIR: "folder", stat.S_IFLNK: "link"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), "other")
    return Entry(name, kind, info.st_size if kind == "file" else 0, info.st_mtime_ns // 1_000_000, secret)


@contextmanager
def scanned(place: Place) -> Iterator[Iterator[os.DirEntry[str]]]:
    """Open a folder and yield its entries; no link among them is followed. Raises `OSError`."""
    folder = open_beneath(place.root, place.parts, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        with os.scandir(folder) as entries:
            yield entries
    finally:
        os.close(folder)


def list_folder(territory: Territory, path: str, most: int = MAX_LISTED) -> Listing:
    """Return what is in a folder. Raises `FileRefused`.

    Names that are not valid Unicode are left out.
    """
    place = resolve(territory, path)
    is_secret = territory.secrets_in(place)
    entries, more = [], False
    with refusing(path), _only_folders(path), scanned(place) as scan:
        found = list(islice(scan, MAX_SCANNED + 1))
        named = [(not entry.is_dir(follow_symlinks=False), entry.name, entry) for entry in found[:MAX_SCANNED]]
        named = sorted((one for one in named if _is_text(one[1])), key=lambda one: one[:2])
        more = len(named) > most or len(found) > MAX_SCANNED
        for _, name, entry in named[:most]:
            with suppress(OSError):  # Just removed.
                entries.append(_listed(territory, is_secret, place, name, entry.stat(follow_symlinks=False)))
    return Listing(place, entries, more)


@contextmanager
def _only_folders(path: str) -> Iterator[None]:
    try:
        yield
    except NotADirectoryError:
        raise FileRefused("not_a_folder", f"{quoted(path)} is not a folder") from None


def _listed(
    territory: Territory, is_secret: Callable[[str], bool], folder: Place, name: str, info: os.stat_result
) -> Entry:
    if not stat.S_ISLNK(info.st_mode):
        return _entry(name, info, secret=is_secret(name))
    try:
        _, target = look(territory, folder.below(name).path)
    except FileRefused as refused:
        return _entry(name, info, secret=refused.why == "secret")
    return Entry(name, target.kind, target.size, target.modified)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


class OpenFile:
    """A file that is read in pieces.

    Its descriptor is closed when nothing refers to the object any more: a read that was abandoned in its thread must
    not find the descriptor of another file.
    """

    def __init__(self, descriptor: int, place: Place, info: os.stat_result) -> None:
        self._descriptor = descriptor
        self.place = place
        self.size = info.st_size
        """Bytes at the time when it was opened."""
        self.modified = info.st_mtime_ns // 1_000_000
        """Milliseconds since 1970."""
        self.tag = f"{info.st_ino:x}-{info.st_size:x}-{info.st_mtime_ns:x}"
        """A text that is another one when the file has changed."""

    def read(self, offset: int, length: int) -> bytes:
        """Return the bytes of a range, fewer at the end of the file, and `PIECE` at most. Raises `OSError`."""
        return os.pread(self._descriptor, min(length, PIECE), offset)

    def __del__(self) -> None:
        os.close(self._descriptor)


def open_file(territory: Territory, path: str) -> OpenFile:
    """Open a file to read it. Raises `FileRefused`."""
    place = resolve(territory, path)
    with refusing(path):
        return open_place(place, path)


def open_place(place: Place, path: str) -> OpenFile:
    """Open the file of a place. Raises `FileRefused` and `OSError`."""
    with opened_parent(place) as (folder, name):
        # Opening a pipe or a device may do something.
        _check_file(os.stat(name, dir_fd=folder, follow_symlinks=False), path)
        descriptor = os.open(name, _READ, dir_fd=folder)
    try:
        info = os.fstat(descriptor)
        _check_file(info, path)
    except BaseException:
        os.close(descriptor)
        raise
    return OpenFile(descriptor, place, info)


def _check_file(info: os.stat_result, path: str) -> None:
    if stat.S_ISDIR(info.st_mode):
        raise FileRefused("is_folder", f"{quoted(path)} is a folder")
    if stat.S_ISLNK(info.st_mode):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if not stat.S_ISREG(info.st_mode) or info.st_dev in _kernel_devices():
        raise FileRefused("not_a_file", f"{quoted(path)} is a device, a pipe or a file of the kernel, and is not read")


@cache
def _kernel_devices() -> frozenset[int]:
    return frozenset(os.stat(path).st_dev for path in _KERNEL if os.path.ismount(path))
