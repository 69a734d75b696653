"""Sends the histories of sessions to a client, and begins the feeds that follow them."""

import logging
from contextlib import AsyncExitStack
from typing import Final

import trio

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.ends import described, ends_between
from acp_gateway.gateway.session_api import output as api_output
from acp_gateway.gateway.session_api.connection import ApiConnection
from acp_gateway.gateway.session_api.output import SessionOutput
from acp_gateway.gateway.session_api.requests import Call
from acp_gateway.gateway.sessions.history import HistorySlice
from acp_gateway.gateway.viewing.open_sessions import Used, can_fork, prompt_capabilities
from acp_gateway.gateway.viewing.session_feed import (
    PIECE_COUNT,
    PIECE_SIZE,
    SessionFeed,
    fitting,
    queue_for,
    requests_for,
)
from acp_gateway.protocol import jsonrpc

log = logging.getLogger(__name__)

LARGE: Final = 256 * 1024
"""Bytes of a history above which its response is large."""

_KEPT: Final = ("modes", "models", "configOptions")
"""Members of the result of opening a session that a client gets with the history."""


class SentHistories:
    """The histories for one client."""

    def __init__(self, bridge: ApiConnection) -> None:
        self._bridge = bridge
        self._gateway = bridge.gateway
        self._sessions = bridge.sessions
        self._output = bridge.gateway.services.one(SessionOutput)

    async def send(self, call: Call, session: Session) -> None:
        """Send a part of the history of a session as the response to a call; with the newest part it is subscribed to.

        Raises `CallRefused`.
        """
        bridge, sessions, members = self._bridge, self._sessions, call.members
        before = members.get("before")
        used = None
        if before is None:
            used = sessions.use(session)
            bridge.changes.follow(session)
            if sessions.is_open(session):
                await sessions.try_join(session)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(bridge.composing)
            await bridge.wait_quiet()
            places = bridge.large_responses
            from_disk = not session.journal.epoch
            if from_disk:
                await stack.enter_async_context(places)
            found = await self._gateway.history.read(
                session, members.get("since", 0), before, members.get("limit"), members.get("epoch")
            )
            if not from_disk and sum(map(len, found.messages)) > LARGE:
                await stack.enter_async_context(places)
            await self._send(call, session, found, used)
            del found
            # Where much waits for a client, further histories of its identity are composed later.
            await bridge.wait_quiet()

    async def _send(self, call: Call, session: Session, found: HistorySlice, used: Used | None) -> None:
        bridge = self._bridge
        views, viewer = self._gateway.views, bridge.admitted.viewer
        view = views.view(session, viewer)
        answered = bridge.describer.of(view)
        kept = {name: session.result.get(name, b"null") for name in _KEPT}
        feed = SessionFeed(view, viewer, views, found.epoch, found.place, self._output)
        requests = [api_output.pending_request(it.key, it.message) for it in requests_for(view)]
        queue = jsonrpc.encode(api_output.queued_prompts(queue_for(view, viewer)))
        if used is not None:
            # The former feed must not tell what the next one will.
            used.feed = None
        # Megabytes are copied with a checkpoint between two times.
        updates = b"[%b]" % b",".join(await entries_of(session.id, found))
        await trio.lowlevel.checkpoint()
        result = {
            "session": jsonrpc.encode(answered),
            "updates": updates,
            "states": b"[%b]" % b",".join(api_output.states(found.states)),
            "pendingRequests": b"[%b]" % b",".join(requests),
            "queue": queue,
            "epoch": jsonrpc.encode(found.epoch),
            "truncated": jsonrpc.encode(found.truncated),
            "more": jsonrpc.encode(found.more),
            "reset": jsonrpc.encode(found.reset),
            **kept,
            "promptCapabilities": prompt_capabilities(None if used is None else used.joined),
            "canFork": jsonrpc.encode(used is not None and can_fork(used.joined)),
        }
        composed = jsonrpc.compose(result)
        await trio.lowlevel.checkpoint()
        bridge.reply_to(call, composed)
        if used is not None:
            used.feed = feed
            bridge.feeds.add(feed)


async def entries_of(session_id: str, found: HistorySlice) -> list[bytes]:
    """Compose a history in steps, between which other tasks get their turn.

    Each of the texts returned holds several entries, with commas between them.
    """
    before = [api_output.end_entry(described(end)) for end in found.ends if end.position < found.first]
    entries = [b",".join(before)] if before else []
    start = 0
    while start < len(found.messages):
        some = found.messages[start : start + PIECE_COUNT]
        some = some[: fitting(some, PIECE_SIZE, PIECE_COUNT)]
        times = found.times[start : start + len(some)]
        first = found.first + start
        told = api_output.entries(session_id, some, first, times)
        for end in reversed(ends_between(found.ends, (first, 0), first + len(some) - 1)):
            told.insert(end.position + 1 - first, api_output.end_entry(described(end)))
        entries.append(b",".join(told))
        start += len(some)
        await trio.lowlevel.checkpoint()
    return entries
