"""Tells the history of a session in pages, from the oldest update on."""

from bisect import bisect_right
from itertools import accumulate
from typing import Any, Final

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.ends import described, ends_between
from acp_gateway.gateway.sessions.history import HistoryReader, HistorySlice
from acp_gateway.protocol import jsonrpc

PAGE_SIZE: Final = 3 * 1024 * 1024
"""Bytes of the updates in one page, at least one: a whole history has five or six, and each is read from the disk
again."""


async def read_page(reader: HistoryReader, session: Session, since: int, epoch: str | None) -> bytes:
    """Return the updates after `since`, a number in an epoch, as the members of a response in JSON.

    Raises `Busy` without an answer of the disk. Cancelling has no effect.
    """
    found = await reader.read(session, since, epoch=epoch)
    about: dict[str, Any] = {
        "sessionId": session.name,
        "agent": session.agent,
        "title": session.title,
        "cwd": session.cwd,
    }
    # As many as fit in a page.
    count = max(1, bisect_right(list(accumulate(map(len, found.messages))), PAGE_SIZE))
    last = found.first - 1 + min(count, len(found.messages))
    return jsonrpc.compose(
        {
            "session": jsonrpc.encode(about),
            # The id that the updates have.
            "ownId": jsonrpc.encode(session.id),
            "epoch": jsonrpc.encode(found.epoch),
            "last": jsonrpc.encode(found.last),
            "first": jsonrpc.encode(found.first),
            "truncated": jsonrpc.encode(found.truncated),
            "reset": jsonrpc.encode(found.reset),
            "updates": _updates(found, count),
            "ends": jsonrpc.encode([described(end) for end in ends_between(found.ends, (0, 0), last)]),
        }
    )


def _updates(found: HistorySlice, count: int) -> bytes:
    """Return so many updates, each with its time, as JSON."""
    pairs = zip(found.times[:count], found.messages[:count], strict=True)
    return b"[%b]" % b",".join(b"[%b,%b]" % (jsonrpc.encode(time), message) for time, message in pairs)
