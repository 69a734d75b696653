"""Reads what clients ask for by URI: the texts of a change in a session, and the files that its client may see."""

import binascii
import mimetypes
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import trio

from acp_gateway.acp.updates import SessionUpdate, Update
from acp_gateway.core.sessions.session import Session
from acp_gateway.dialects.ahp.wire import DENIED, NOT_FOUND, from_segment, value_of
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.sessions.session_files import SessionFiles
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.gateway.viewing.open_sessions import CallRefused
from acp_gateway.made.files import PIECE, open_file
from acp_gateway.made.files_rules import FileRefused, Territory
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text import lookup
from acp_gateway.terminal.content import read_tool_content

MOST: Final = 4 * 1024 * 1024
"""Maximum bytes of a resource: VS Code shows no larger file as a text."""

_EDIT: Final = "/edit/"


def chat_of(uri: str) -> str | None:
    """Return the chat that the text of a change belongs to; None for the URI of anything else."""
    chat, edit, _ = uri.partition(_EDIT)
    return chat if edit and uri.startswith("ahp-chat://") else None


async def read_change(gateway: Gateway, viewer: Viewer, session: Session, uri: str) -> bytes:
    """Return the text of a file before or after a change. Raises `CallRefused` and `Busy`.

    It is looked up in what the agent asks, then in the history of the session, the latest first: none is kept for it.
    """
    place = uri.partition(_EDIT)[2].split("/")
    call, number, side = from_segment(place[0]), place[1] if len(place) > 2 else "", place[2] if len(place) > 2 else ""
    if call is None or not (number.isdecimal() and len(number) < 6) or side not in ("before", "after"):
        raise CallRefused(NOT_FOUND, "this is not the URI of a change")
    view = gateway.views.view(session, viewer)
    asked = [lookup.raw_at(request.message.text, "params", "toolCall") for request in view.waiting]
    found = await _find((Update.read(it) for it in reversed(asked) if it is not None), call, int(number), side)
    if found is None:
        history = await gateway.history.read(session)
        key = jsonrpc.encode(call)
        told = (it for it in reversed(history.messages) if b'"diff"' in it and key in it)
        found = await _find((SessionUpdate.of(it).update for it in told), call, int(number), side)
    if found is None:
        raise CallRefused(NOT_FOUND, "the history does not have this change any more")
    if len(found) > MOST:
        raise CallRefused(NOT_FOUND, f"the text has more than {MOST} characters")
    return found.encode("utf-8", "surrogatepass")


async def _find(updates: Iterable[Update], call: str, number: int, side: str) -> str | None:
    """Return a side of a change in the first update of its tool call that has it."""
    for update in updates:
        # The next one may have megabytes, too.
        await trio.lowlevel.checkpoint()
        if update.tool_call_id == call:
            diffs = read_tool_content(value_of(update.content)).diffs
            if number < len(diffs):
                return diffs[number].old if side == "before" else diffs[number].new
    return None


def path_of(uri: object) -> str | None:
    """Return the path of a file of this machine; None for any other URI."""
    try:
        parts = urlsplit(uri if isinstance(uri, str) else "")
    except ValueError:
        return None
    if parts.scheme != "file" or parts.netloc or parts.query or parts.fragment or "\0" in parts.path:
        return None
    return unquote(parts.path, errors="surrogateescape") or None


async def read_file(gateway: Gateway, access: Access, sessions: Iterable[Session], uri: str) -> bytes:
    """Return a file that a client may see in one of these sessions. Raises `CallRefused`.

    It passes the same checks as a file that the page reads.
    """
    path, files = path_of(uri), SessionFiles(gateway)
    if path is None:
        raise CallRefused(NOT_FOUND, "only files of this machine and changes in sessions are read here")
    why: FileRefused | None = None
    for session in sessions:
        try:
            territory = await files.territory(access, session)
            return await files.run(_read, territory, path)
        except FileRefused as refused:
            why = refused
    text = "open the session first whose file this is" if why is None else str(why)
    raise CallRefused(NOT_FOUND if why is not None and why.why in ("not_found", "is_folder") else DENIED, text)


def _read(territory: Territory, path: str) -> bytes:
    file = open_file(territory, path)
    if file.size > MOST:
        raise FileRefused("too_large", f"the file has more than {MOST} bytes")
    pieces = [file.read(at, PIECE) for at in range(0, file.size, PIECE)]
    return b"".join(pieces)


def described(data: bytes, uri: str, encoding: object) -> dict[str, Any]:
    """Return the result of reading a resource: as base64 if that was asked for, or if it is not text."""
    kind = mimetypes.guess_type(uri.rpartition("/")[2])[0]
    try:
        text = None if encoding == "base64" else data.decode()
    except UnicodeDecodeError:
        text = None
    if text is not None:
        return {"data": text, "encoding": "utf-8", "contentType": kind or "text/plain"}
    told = binascii.b2a_base64(data, newline=False).decode()
    return {"data": told, "encoding": "base64", "contentType": kind or "application/octet-stream"}
