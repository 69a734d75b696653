"""Packs a folder as a zip archive while it is sent: in memory are one piece of it, and the names."""

import io
import os
import re
import stat
import zipfile
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Final

from acp_gateway.made.files import OpenFile, open_place, resolve, scanned
from acp_gateway.made.files_rules import FileRefused, Place, Territory
from acp_gateway.printable import printable

MAX_ENTRIES: Final = 50_000
"""Maximum files and folders in an archive: its directory, which is sent last, takes some 500 bytes for each."""

MAX_TOLD: Final = 1000
"""Maximum lines about what was left out."""

LEFT_OUT: Final = "LEFT-OUT.txt"
"""The name of the file that says what is not in the archive."""

_BIG: Final = 1 << 30
"""Bytes from which a file gets the larger form of its entry, far below 2 GiB: compressed it may be larger."""

_LEADING: Final = re.compile(r"[\\:\x00-\x1f\x7f]")
"""Characters that separate parts of paths on Windows, and those that no name has there."""

_FIRST_YEAR: Final = 1980
"""The year before which zip has no dates."""


class _Sink(io.RawIOBase):
    """Collects what is written, for who sends it."""

    def __init__(self) -> None:
        super().__init__()
        self._parts: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(data)  # type: ignore[call-overload]
        self._parts.append(part)
        return len(part)

    def take(self) -> bytes:
        """Return what was written since the last call."""
        taken, self._parts = b"".join(self._parts), []
        return taken


def pack(territory: Territory, path: str) -> Iterator[bytes]:
    """Yield the parts of an archive of a folder. Raises `FileRefused` at the first one.

    Links, devices, secrets, and what can't be read are left out; a file in the archive says so. Each step reads one
    piece of a file: it takes milliseconds in a thread.
    """
    top = resolve(territory, path)
    try:
        with scanned(top):
            pass
    except NotADirectoryError:
        raise FileRefused("not_a_folder", f"{printable(path)} is not a folder") from None
    except OSError as error:
        raise FileRefused("not_found", f"{printable(path)} can't be read: {error.strerror}") from None
    sink, packed = _Sink(), _Packed()
    archive = zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED, compresslevel=1)
    try:
        for place in _walk(territory, top, packed):
            yield from _add(archive, sink, top, place, packed)
        if packed.left_out:
            archive.writestr(LEFT_OUT, "".join(f"{line}\n" for line in packed.lines()))
    except BaseException:
        archive.fp = None  # The directory, which takes its time, is not read.
        raise
    archive.close()
    yield sink.take()


class _Packed:
    """The number of entries, and those that were left out."""

    def __init__(self) -> None:
        self.entries = 0
        self.left_out = 0
        self._told: list[str] = []
        self._names: set[str] = set()

    def name(self, place: Place, top: Place) -> str:
        """Return the name of a file in the archive, which no other one has in any case."""
        plain = name = _name(place, top)
        number = 2
        while name.casefold() in self._names:
            name, number = f"{plain}~{number}", number + 1
        self._names.add(name.casefold())
        return name

    def leave_out(self, place: Place, top: Place, why: str) -> None:
        self.left_out += 1
        if len(self._told) < MAX_TOLD:
            self._told.append(f"{printable(_name(place, top), size=4096)}: {why}")

    def lines(self) -> list[str]:
        """Return a line for each that was left out."""
        more = self.left_out - len(self._told)
        return [*self._told, *([f"and {more} more"] if more else [])]


def _walk(territory: Territory, top: Place, packed: _Packed) -> Iterator[Place]:
    """Yield the files below a folder."""
    pending = deque([top])
    while pending:
        folder = pending.popleft()
        try:
            with scanned(folder) as scan:
                found = sorted(islice(scan, MAX_ENTRIES), key=lambda entry: entry.name)
                kinds = [(entry.name, _kind(entry)) for entry in found]
        except OSError as error:
            packed.leave_out(folder, top, error.strerror or "can't be read")
            continue
        is_secret = territory.secrets_in(folder)
        for name, kind in kinds:
            place = folder.below(name)
            packed.entries += 1
            if packed.entries > MAX_ENTRIES:
                packed.leave_out(place, top, f"an archive has at most {MAX_ENTRIES} files and folders")
                return
            if is_secret(name):
                packed.leave_out(place, top, "may hold a key or a login")
            elif kind == "folder" and place.path in territory.others:
                packed.leave_out(place, top, "is not in a folder that this session may use")
            elif kind == "folder":
                pending.append(place)
            elif kind == "file":
                yield place
            else:
                packed.leave_out(place, top, f"is a {kind}")


def _kind(entry: os.DirEntry[str]) -> str:
    if entry.is_symlink():
        return "link"
    if entry.is_dir(follow_symlinks=False):
        return "folder"
    return "file" if entry.is_file(follow_symlinks=False) else "device, a pipe or a socket"


def _add(archive: zipfile.ZipFile, sink: _Sink, top: Place, place: Place, packed: _Packed) -> Iterator[bytes]:
    """Add a file, and yield what that has written."""
    try:
        file = open_place(place, place.name)
    except (OSError, FileRefused) as error:
        packed.leave_out(place, top, str(error.strerror if isinstance(error, OSError) else error))
        return
    info = zipfile.ZipInfo(packed.name(place, top), _date(file))
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = (stat.S_IFREG | 0o644) << 16
    with archive.open(info, "w", force_zip64=file.size >= _BIG) as entry:
        offset = 0
        while offset < file.size:
            try:
                data = file.read(offset, file.size - offset)
            except OSError as error:
                packed.leave_out(place, top, f"was cut off: {error.strerror}")
                break
            if not data:
                break
            entry.write(data)
            offset += len(data)
            yield sink.take()
    yield sink.take()


def _name(place: Place, top: Place) -> str:
    """Return the name in the archive: relative, below the folder's own name, and text.

    What leads elsewhere on Windows becomes `_`.
    """
    parts = (top.name or "files", *place.parts[len(top.parts) :])
    plain = (_LEADING.sub("_", part) if part.strip(" .") else "_" * len(part) for part in parts)
    return "/".join(plain).encode("utf-8", "replace").decode()


def _date(file: OpenFile) -> tuple[int, int, int, int, int, int]:
    import time

    year, *rest = time.localtime(file.modified / 1000)[:6]
    month, day, hour, minute, second = rest
    return (year, month, day, hour, minute, second) if year >= _FIRST_YEAR else (_FIRST_YEAR, 1, 1, 0, 0, 0)
