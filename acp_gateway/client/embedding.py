"""Embeds files of the editor's machine in prompts: of a link, the agent's machine would not have the file.

Only links that the editor has put in a prompt count, to regular files that its user owns, outside of the session's
directories and of what path maps name. The last component of a path may not be a symbolic link, whose name would show
another file than it is. What is not embedded stays a link, and the user is told why.
"""

import errno
import os
import stat
from base64 import b64encode
from collections.abc import Callable, Container, Sequence
from dataclasses import dataclass
from typing import BinaryIO, Final, NamedTuple
from urllib.parse import unquote, urlsplit

from acp_gateway.printable import counted, printable
from acp_gateway.protocol.text import spans
from acp_gateway.protocol.text.json_text import encode, object_at, raw_at, text_at
from acp_gateway.protocol.text.spans import MalformedJson

FILE_SIZE: Final = 4 * 1024 * 1024
"""Maximum bytes of an embedded file: most agents' models take pictures of 5 MB at most, which Base64 has a third more
of."""

FILES_SIZE: Final = 16 * 1024 * 1024
"""Maximum bytes that are read of all files for one prompt: as Base64, that is more than a message takes by default."""

MOST_NOTES: Final = 5
"""Maximum number of files of a prompt that the user is told of by name."""

IMAGE, CONTEXT = "image", "embeddedContext"
"""Names of what an agent may take in prompts."""

_MAGIC: Final = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF8", "image/gif"),
    (b"RIFF", "image/webp"),
)
"""First bytes of the images that agents take."""

_HEAD_SIZE: Final = 12
"""Bytes that tell them from other files."""

_NO_FILE: Final = "it is not a file"

_TOO_LARGE: Final = "it is too large for a message"

_KEPT: Final = ("annotations", "_meta")
"""Members of a link that its block keeps."""


class Embedded(NamedTuple):
    """A prompt with files in it."""

    message: bytes
    notes: list[str]
    """Lines for the user, about files that are not in it."""


@dataclass(slots=True)
class _Room:
    """The bytes that are left, of a prompt and of all files for it."""

    message: int
    files: int


class _Refused(Exception):
    """The file is not embedded, and the user is told why."""


def embed(
    message: bytes, directories: Sequence[str], is_mapped: Callable[[str], bool], takes: Container[str], limit: int
) -> Embedded:
    """Return a prompt with the files that its links name. Reads files, and may take as long as the disk.

    Args:
        message: the prompt, as the editor has sent it.
        directories: those of its session on the editor's machine: their files are on the agent's as well.
        is_mapped: returns whether a path map has the file of a URI.
        takes: names of what the agent takes in prompts.
        limit: bytes of the message.
    """
    notes: list[str] = []
    edits: list[tuple[int, int, bytes]] = []
    room = _Room(limit - len(message), FILES_SIZE)
    try:
        at = spans.find(message, "params", "prompt")
        blocks = [*spans.elements(message, at[0])] if at is not None and message[at[0]] == ord("[") else []
        for start, end in blocks:
            link = message[start:end]
            path = _linked_path(link, directories, is_mapped)
            if path is None:
                continue
            try:
                edits.append((start, end, _block(link, path, takes, room)))
            except FileNotFoundError:
                pass  # It may be a file of the agent's machine.
            except (_Refused, OSError) as error:
                why = error.strerror if isinstance(error, OSError) else error
                name = printable(path)
                notes.append(f"[acp-gateway: {name} is not on the agent's machine, and was sent as a link: {why}.]")
    except MalformedJson:
        return Embedded(message, [])  # The gateway refuses it.
    if len(notes) > MOST_NOTES:
        more = counted(len(notes) - MOST_NOTES, "more file")
        notes[MOST_NOTES:] = [f"[acp-gateway: sent as links for such reasons as well: {more}.]"]
    return Embedded(spans.splice(message, edits) if edits else message, notes)


def _linked_path(block: bytes, directories: Sequence[str], is_mapped: Callable[[str], bool]) -> str | None:
    """Return the path of a link to a file that only this machine may have; None for any other block."""
    uri = text_at(block, "uri") if text_at(block, "type") == "resource_link" else None
    if uri is None or is_mapped(uri):
        return None
    try:
        parts = urlsplit(uri)
    except ValueError:
        return None
    path = unquote(parts.path, errors="surrogateescape")
    if parts.scheme.lower() != "file" or parts.netloc.lower() not in ("", "localhost") or "\0" in path:
        return None
    path = os.path.normpath(path)
    inside = (os.path.normpath(directory) for directory in directories if os.path.isabs(directory))
    if not os.path.isabs(path) or any(path == one or path.startswith(one.rstrip("/") + "/") for one in inside):
        return None
    return path


def _block(link: bytes, path: str, takes: Container[str], room: _Room) -> bytes:
    """Return the block for a regular file that the user of this process owns, and take its bytes from the room.

    Raises `_Refused` and `OSError`.
    """
    with _open(path) as file:
        found = os.fstat(file.fileno())
        if not stat.S_ISREG(found.st_mode):
            raise _Refused(_NO_FILE)
        if found.st_uid != os.geteuid():
            raise _Refused("it is another user's")
        size = found.st_size
        if size > FILE_SIZE:
            raise _Refused(f"it has more than {FILE_SIZE:,} bytes")
        if size > room.files:
            raise _Refused(f"the files of a prompt may have {FILES_SIZE:,} bytes together")
        content = file.read(min(_HEAD_SIZE, size))
        kind = next((kind for magic, kind in _MAGIC if content.startswith(magic)), None)
        if kind == "image/webp" and content[8:] != b"WEBP":
            kind = None
        is_image = kind is not None and IMAGE in takes
        if not is_image and CONTEXT not in takes:
            raise _Refused("the agent takes no images" if kind is not None else "the agent takes no files in prompts")
        if (size * 4 // 3 if is_image else size) > room.message:
            raise _Refused(_TOO_LARGE)
        # It may have grown since.
        content += file.read(size - len(content))
    room.files -= len(content)
    uri = raw_at(link, "uri") or b'""'
    if is_image:
        parts = [
            b'"type":"image"',
            b'"data":"%b"' % b64encode(content),
            b'"mimeType":%b' % encode(kind),
            b'"uri":%b' % uri,
        ]
    else:
        mime = text_at(link, "mimeType") or kind
        told = b"" if mime is None else b'"mimeType":%b,' % encode(mime)
        parts = [b'"type":"resource"', b'"resource":{"uri":%b,%b%b}' % (uri, told, _content_member(content))]
    for name in _KEPT:
        kept = object_at(link, name)
        if kept != b"{}":
            parts.append(b'"%b":%b' % (name.encode(), kept))
    block = b"{%b}" % b",".join(parts)
    if len(block) - len(link) > room.message:
        raise _Refused(_TOO_LARGE)
    room.message -= len(block) - len(link)
    return block


def _content_member(content: bytes) -> bytes:
    """Return the member of a resource that has a content: as text, or in Base64 if it is not text."""
    try:
        if b"\0" not in content:
            return b'"text":%b' % encode(content.decode())
    except UnicodeError:
        pass
    return b'"blob":"%b"' % b64encode(content)


def _open(path: str) -> BinaryIO:
    """Open a file. Raises `_Refused` and `OSError`."""
    try:
        return open(path, "rb", opener=_descriptor)
    except IsADirectoryError:
        raise _Refused(_NO_FILE) from None
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _Refused("it is a symbolic link") from None
        raise


def _descriptor(path: str, flags: int) -> int:
    # Neither a pipe nor a device is waited for, and no link followed.
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)
