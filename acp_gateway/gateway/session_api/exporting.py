"""Writes a session as a file for a client, in a thread."""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.ends import described
from acp_gateway.gateway.sessions.history import HistoryReader, HistorySlice
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.text.whole_values import parse_whole
from acp_gateway.terminal.export_formats import FORMATS

if TYPE_CHECKING:
    from acp_gateway.terminal.exporting import History

WRITERS: Final = 1
"""Files that are written at a time: each takes seconds of a processor for a long history."""

PIECE: Final = 64 * 1024
"""Characters of a file that are encoded at a time: other threads wait until then."""

_TYPES: Final = {"markdown": "text/markdown", "html": "text/html", "json": "application/json"}


async def write_file(
    reader: HistoryReader,
    limiter: Callable[[str, int], trio.CapacityLimiter],
    session: Session,
    form: str,
    *,
    redacted: bool,
) -> bytes:
    """Return name, type and text of a file with the history of a session, as a JSON object.

    `limiter` returns what limits a kind of work in the gateway. Raises `Busy` without an answer of the disk. When
    cancelled, a thread may still end its work; until then no other file is written.
    """
    # Loaded at the first export, not at the start.
    from acp_gateway.terminal.exporting import History

    async with limiter("readers of exports", WRITERS):
        found = await reader.read(session)
        about = History(session.name, session.agent, session.title or "", session.cwd or "", found.truncated, ())
        return await trio.to_thread.run_sync(
            partial(_write, about, found, session.id, form, redacted=redacted),
            abandon_on_cancel=True,
            # Not that of the reading, which is free when this is cancelled: the thread is not.
            limiter=limiter("writers of exports", WRITERS),
        )


def _write(about: "History", found: HistorySlice, own_id: str, form: str, *, redacted: bool) -> bytes:
    from acp_gateway.terminal.exporting import export, file_name, read_update, with_ends

    # One by one: all values of a history may take forty times its bytes.
    read = (
        read_update(parse_whole(message), time, own_id)
        for message, time in zip(found.messages, found.times, strict=True)
    )
    updates = with_ends(read, found.first, map(described, found.ends))
    text = export(replace(about, updates=updates), form, redacted=redacted)
    name, kind = (jsonrpc.encode(it) for it in (file_name(about.title, about.id, form), _TYPES[form]))
    pieces = [jsonrpc.encode(text[at : at + PIECE])[1:-1] for at in range(0, len(text), PIECE)]
    del text
    return b"".join([b'{"name":%b,"mimeType":%b,"text":"' % (name, kind), *pieces, b'"}'])


assert _TYPES.keys() == FORMATS.keys()
