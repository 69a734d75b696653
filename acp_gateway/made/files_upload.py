"""Writes new files beneath folders: under another name until all is there, and never over another file unasked."""

import errno
import os
import secrets
import stat
import threading
from contextlib import suppress
from typing import Final

from acp_gateway.made.files import FOLDER, Entry, look, open_beneath, refusing, resolve
from acp_gateway.made.files_rules import FileRefused, Place, Territory, quoted

RESERVE: Final = 256 * 1024 * 1024
"""Bytes of a disk that an upload leaves free: the gateway's own histories and the agent's work need some."""

_NO_LINKS: Final = frozenset({errno.EPERM, errno.ENOSYS, errno.EOPNOTSUPP, errno.EMLINK, errno.EACCES})
"""Errors of file systems without hard links."""


class Upload:
    """A file that is being written.

    Args:
        territory: where it may be.
        path: the client's path for it.
        size: bytes that it will have.
        overwrite: True to replace a file that is there.
        limit: maximum bytes.

    The constructor and the methods read and write the disk, and raise `FileRefused`. One of `finish` and `abandon` has
    to be called; both may be repeated. Several threads may call them: one that was abandoned may still be writing.
    """

    def __init__(self, territory: Territory, path: str, size: int, *, overwrite: bool, limit: int) -> None:
        place = resolve(territory, path)
        self.place: Final = place
        self.size: Final = size
        self.offset = 0
        """Bytes that were written."""
        self._path = path
        self._territory = territory
        self._overwrite = overwrite
        self._ended = False
        self._lock = threading.RLock()
        if not place.parts:
            raise FileRefused("is_folder", f"{quoted(path)} is a folder")
        if not territory.may_write(place):
            raise FileRefused("read_only", f"{quoted(path)} is in a workspace that is only read")
        if size > limit:
            raise FileRefused("too_large", f"{quoted(path)} has {size} bytes; an upload has at most {limit}")
        with refusing(path):
            mode = _mode_there(place, path, overwrite=overwrite)
            folder = self._folder = open_beneath(place.root, place.parts[:-1], FOLDER)
        try:
            with refusing(path):
                room = os.statvfs(folder)
                if room.f_bavail * room.f_frsize < size + RESERVE:
                    raise FileRefused("no_space", f"{quoted(path)} can't be written: the disk has no room for it")
                self._name = f".{secrets.token_hex(8)}.upload"
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
                self._file = os.open(self._name, flags, 0o666 if mode is None else 0o600, dir_fd=folder)
                if mode is not None:
                    os.fchmod(self._file, mode)
        except BaseException:
            os.close(folder)
            raise

    def append(self, offset: int, data: bytes) -> None:
        """Write further bytes, which have to be the next ones."""
        with self._lock:
            self._check("is not in order", holds=offset == self.offset and offset + len(data) <= self.size)
            try:
                with refusing(self._path):
                    while data:
                        written = os.pwrite(self._file, data, self.offset)
                        self.offset, data = self.offset + written, data[written:]
            except FileRefused:
                self.abandon()
                raise

    def finish(self) -> Entry:
        """Give the file its name, and return it as it is now."""
        with self._lock:
            self._check("is not complete", holds=self.offset == self.size)
            try:
                with refusing(self._path):
                    self._rename()
            finally:
                self.abandon()
        return look(self._territory, self.place.path)[1]

    def _check(self, otherwise: str, *, holds: bool) -> None:
        """Raise `FileRefused` if the upload has ended, or something does not hold, which ends it."""
        if self._ended or not holds:
            self.abandon()
            raise FileRefused("failed", f"the upload of {quoted(self._path)} {otherwise}: begin again")

    def _rename(self) -> None:
        folder, name = self._folder, self.place.name
        if self._overwrite:
            os.rename(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)
            return
        try:
            os.link(self._name, name, src_dir_fd=folder, dst_dir_fd=folder, follow_symlinks=False)
        except FileExistsError:
            raise _exists(self._path) from None
        except OSError as error:
            if error.errno not in _NO_LINKS:
                raise
            try:
                os.close(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, dir_fd=folder))
            except FileExistsError:
                raise _exists(self._path) from None
            os.rename(self._name, name, src_dir_fd=folder, dst_dir_fd=folder)

    def abandon(self) -> None:
        """Remove what was written, unless the file has its name."""
        with self._lock:
            if self._ended:
                return
            self._ended = True
            with suppress(OSError):
                os.unlink(self._name, dir_fd=self._folder)
            os.close(self._file)
            os.close(self._folder)


def _mode_there(place: Place, path: str, *, overwrite: bool) -> int | None:
    """Return the mode of the file that is replaced; None if there is none. Raises `FileRefused` if it must stay."""
    folder = open_beneath(place.root, place.parts[:-1], FOLDER)
    try:
        info = os.stat(place.name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return None
    finally:
        os.close(folder)
    if stat.S_ISDIR(info.st_mode):
        raise FileRefused("is_folder", f"{quoted(path)} is a folder")
    if not stat.S_ISREG(info.st_mode):
        raise FileRefused("not_a_file", f"{quoted(path)} is a device, a pipe or a link, and is not replaced")
    if not overwrite:
        raise _exists(path)
    return stat.S_IMODE(info.st_mode) & 0o777


def _exists(path: str) -> FileRefused:
    return FileRefused("exists", f"{quoted(path)} exists already")
