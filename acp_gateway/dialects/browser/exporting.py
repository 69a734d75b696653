"""Writes a session as a file for a browser, in a thread."""

import json
from typing import Any, Final

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.gateway.sessions.history import HistoryReader, HistorySlice
from acp_gateway.protocol import jsonrpc
from acp_gateway.terminal.exporting import FORMATS, History, Update, export, file_name, read_update

WRITERS: Final = 1
"""Files that are written at a time: each takes seconds of a processor for a long history."""

_TYPES: Final = {"markdown": "text/markdown", "html": "text/html", "json": "application/json"}

_readers: Final = trio.lowlevel.RunVar[trio.CapacityLimiter]("readers for exports")
_writers: Final = trio.lowlevel.RunVar[trio.CapacityLimiter]("writers of exports")


async def write_file(reader: HistoryReader, session: Session, form: str, *, redacted: bool) -> bytes:
    """Return name, type and text of a file with the history of a session, as a JSON object.

    Raises `Busy` without an answer of the disk. When cancelled, a thread may still end its work; until then no other
    file is written.
    """
    async with _limiter(_readers):
        found = await reader.read(session)
        return await trio.to_thread.run_sync(
            _write,
            session.name,
            session.id,
            session.agent,
            session.title,
            session.cwd,
            found,
            form,
            redacted,
            abandon_on_cancel=True,
            # Not that of the reading, which is free when this is cancelled: the thread is not.
            limiter=_limiter(_writers),
        )


def _write(
    name: str,
    own_id: str,
    agent: str,
    title: str | None,
    cwd: str | None,
    found: HistorySlice,
    form: str,
    redacted: bool,  # noqa: FBT001 - for a thread.
) -> bytes:
    updates = [_read(message, time, own_id) for message, time in zip(found.messages, found.times, strict=True)]
    history = History(name, agent, title or "", cwd or "", found.truncated, updates)
    text = export(history, form, redacted=redacted)
    told: dict[str, Any] = {"name": file_name(title or "", name, form), "mimeType": _TYPES[form], "text": text}
    return jsonrpc.encode(told)


def _read(message: bytes, time: int | None, own_id: str) -> Update:
    try:
        parsed = json.loads(message)
    except (ValueError, RecursionError):
        parsed = None
    return read_update(parsed, time, own_id)


def _limiter(variable: "trio.lowlevel.RunVar[trio.CapacityLimiter]") -> trio.CapacityLimiter:
    try:
        return variable.get()
    except LookupError:
        limiter = trio.CapacityLimiter(WRITERS)
        variable.set(limiter)
        return limiter


assert _TYPES.keys() == FORMATS.keys()
