"""Writes new files beneath folders: under another name until all is there, and never over another file unasked."""

import errno
import os
import re
import secrets
import stat
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from typing import Final

from acp_gateway.made.files import FOLDER, MAX_SCANNED, Entry, look, open_beneath, refusing, resolve
from acp_gateway.made.files_rules import FileRefused, Place, Territory, quoted

RESERVE: Final = 256 * 1024 * 1024
"""Bytes of a disk that an upload leaves free: the gateway's own histories and the agent's work need some."""

LEFT_FOR: Final = 24 * 3600
"""Seconds after which what was not finished was left by a gateway that was killed: parts come within minutes."""

_UNFINISHED: Final = re.compile(r"\.[0-9a-f]{16}\.upload")
"""Names of files until all is there."""

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

    The constructor removes what a gateway that was killed has left in the folder.

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
        self._wanted = True
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
                _remove_left(folder)
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
            self._check("is not complete", holds=self._wanted and self.offset == self.size)
            try:
                with refusing(self._path):
                    self._rename()
            finally:
                self.abandon()
        return look(self._territory, self.place.path)[1]

    def give_up(self) -> None:
        """Let `finish`, which a disk without an answer keeps in another thread, give the file no name any more."""
        self._wanted = False

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


class Uploads:
    """The uploads of one connection, which threads add to.

    Args:
        most: how many there may be at a time; each holds two descriptors.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._lock = threading.Lock()
        # Each with the session that it was begun for; None while it begins.
        self._places: dict[str, tuple[str | None, Upload] | None] = {}
        self._ended = False

    @contextmanager
    def reserving(self) -> Iterator[str]:
        """Keep a place for a new one, until the end of the block if it was not added. Raises `FileRefused`."""
        name = secrets.token_hex(8)
        with self._lock:
            if self._ended or len(self._places) >= self._most:
                raise FileRefused("failed", f"{self._most} uploads of this connection are not finished")
            self._places[name] = None
        try:
            yield name
        finally:
            with self._lock:
                if name in self._places and self._places[name] is None:
                    del self._places[name]

    def add(self, name: str, session: str | None, upload: Upload) -> None:
        """Put an upload in its place; abandon it if that is not kept any more."""
        with self._lock:
            if name in self._places:
                self._places[name] = session, upload
                return
        upload.abandon()

    def get(self, name: str, session: str | None) -> Upload:
        """Return an upload of a session. Raises `FileRefused`."""
        of, upload = self._places.get(name) or (None, None)
        if upload is None or of != session:
            raise FileRefused("failed", "there is no such upload: the connection was lost; begin again")
        return upload

    def remove(self, name: str) -> None:
        """Forget an upload that has ended."""
        with self._lock:
            self._places.pop(name, None)

    def end(self) -> list[Upload]:
        """Take no further ones, and return those that there are."""
        with self._lock:
            self._ended = True
            uploads = [place[1] for place in self._places.values() if place is not None]
            self._places.clear()
            return uploads


def _remove_left(folder: int) -> None:
    """Remove files that were not finished for a day."""
    until = time.time() - LEFT_FOR
    top = os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=folder)
    try:
        with os.scandir(top) as entries:
            left = [entry.name for entry in islice(entries, MAX_SCANNED) if _UNFINISHED.fullmatch(entry.name)]
        for name in left:
            with suppress(OSError):
                info = os.stat(name, dir_fd=top, follow_symlinks=False)
                if stat.S_ISREG(info.st_mode) and info.st_mtime < until:
                    os.unlink(name, dir_fd=top)
    finally:
        os.close(top)


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
