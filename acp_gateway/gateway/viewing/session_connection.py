"""Serves one connection of a client, in another dialect than ACP.

Two tasks share it: one reads and starts the calls, one writes. Calls about one session are served in their order,
others beside each other. The writer sends responses first, and then what the feeds of changed sessions have, as far as
the client reads.
"""

import logging
import time
from abc import abstractmethod
from collections.abc import AsyncIterator, Container
from contextlib import asynccontextmanager
from typing import Any, Final, Generic

import trio

from acp_gateway.core.sessions.session import Role
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.hub.large_messages import check_message
from acp_gateway.gateway.served_connection import ControlConnection, read_messages, serving
from acp_gateway.gateway.sessions.session_changes import Changed, Subscription
from acp_gateway.gateway.viewing.admitted import Admitted
from acp_gateway.gateway.viewing.call_lanes import CallLanes, CallT
from acp_gateway.gateway.viewing.feeds import Feeds
from acp_gateway.gateway.viewing.open_sessions import SHOWN, OpenSessions, Used
from acp_gateway.gateway.viewing.replies import Replies
from acp_gateway.gateway.viewing.session_feed import SessionFeed
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.timers import Signal

log = logging.getLogger(__name__)

MAX_CALLS: Final = 64
"""Calls of one client that are served at a time; a page has a handful. Further ones are not read yet."""

MAX_REPLIES: Final = 256
"""Responses that wait for a client to read; then its calls are not read either."""

HIGH_WATER: Final = 256 * 1024
"""Bytes that wait for a client above which no more is composed for it."""

LARGE_RESPONSES: Final = 4
"""Large responses of one identity that are composed and not read yet, on all its connections."""


class LargeResponses:
    """The large responses of one gateway that are composed, or not read yet."""

    def __init__(self) -> None:
        self._places: dict[str, trio.Semaphore] = {}

    def of(self, identity: str) -> trio.Semaphore:
        """Return the semaphore of those of an identity. There are as many as identities."""
        return self._places.setdefault(identity, trio.Semaphore(LARGE_RESPONSES))


class SessionConnection(Generic[CallT]):
    """Serves one client.

    Args:
        gateway: the gateway, which must be running.
        access: the client's principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        name: its name in the log and the audit.
        via: the kind of its clients, as others are shown it and as the log names it.
        shown: methods of the agent's requests that it shows to its user.
        sees_doubt: True for a client whose user sees all sessions of the identity, see `Viewer.sees_doubt`.
        replaces: True if it takes the place of a connection that is counted already.

    Raises what `Gateway.admit` raises.
    """

    # While it is served
    size_limit: SizeLimit
    """Maximum size of a message of the client."""
    changes: Subscription
    _stream: MaintainedStream

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        wanted: ConnectRequest,
        name: str,
        via: str,
        shown: Container[str] = SHOWN,
        *,
        sees_doubt: bool = False,
        replaces: bool = False,
    ) -> None:
        self.gateway = gateway
        self.name = name
        self.via = via
        self.admitted = Admitted(gateway, access, wanted, sees_doubt=sees_doubt, replaces=replaces)
        """The client."""
        self.composing = trio.StrictFIFOLock()
        """Large responses are composed one at a time."""
        self.large_responses = gateway.services.one(LargeResponses).of(access.identity)
        """Held for a large response until it is read."""
        self._connection = ControlConnection(access)
        self._news = Signal()
        self._progress = Signal()
        self.sessions = OpenSessions(
            gateway,
            access,
            name,
            via=via,
            shown=shown,
            observe=self.admitted.role is Role.OBSERVER,
            start=self.start,
            bound=self.admitted.bound,
        )
        self.lanes = CallLanes(self._serve_call, self.start, self._call_finished)
        """Its calls."""
        self._replies = Replies(gateway.services.memory_grew, self._news)
        self.feeds = Feeds(self.sessions, gateway.history, self._news, self._feed_stopped)
        # None unless it is served, and while it ends.
        self._nursery: trio.Nursery | None = None

    async def serve(self, stream: MaintainedStream) -> None:
        """Serve the client until its connection ends, and close the stream. Cancelled, it does so at once."""
        gateway, access = self.gateway, self.admitted.access
        self.size_limit = gateway.bound(stream, self.admitted.role, "browser" if access.session is None else "guest")
        log.info("%s: %s of %s attached", self.name, self.via, access.identity)
        connection, grew = self._connection, gateway.services.memory_grew
        async with serving(connection, stream, self.admitted.grant, gateway.connections, grew) as charge:
            try:
                async with self.open(stream, connection):
                    self.start(stream.run)
                    ended = await read_messages(stream, self.handle, charge, self.until_ready, self._failure)
                    connection.disconnect = ended or connection.disconnect
                    await self._finish()
            finally:
                log.info("%s: %s detached", self.name, self.via)

    @asynccontextmanager
    async def open(self, stream: MaintainedStream, connection: ControlConnection) -> AsyncIterator[None]:
        """Write to a stream in this block what the client is to be told; messages of it are for `handle`.

        `connection` is closed if the client reads nothing, or if memory is short.
        """
        self._stream, self._connection = stream, connection
        self.gateway.services.inputs.add(self)
        try:
            with self.gateway.changes.subscribe(self.admitted.covers, signal=self._news) as self.changes:
                async with trio.open_nursery() as self._nursery:
                    nursery = self._nursery
                    self._begin()
                    nursery.start_soon(self._write)
                    try:
                        yield
                    finally:
                        # Other connections have their turn between the end of the nursery and that of this task.
                        self._nursery = None
                        nursery.cancel_scope.cancel()
                        with trio.CancelScope(shield=True):
                            await self.sessions.close()
        finally:
            self.gateway.services.inputs.discard(self)
            self._ended()

    # As an `Input` of the memory limit

    @property
    def account(self) -> str:
        """The identity for whose limits it counts."""
        return self.admitted.access.account

    @property
    def input_bytes(self) -> int:
        """Bytes of unfinished messages, of calls that are not finished, and of what waits for the client to read."""
        if self._connection.scope.cancel_called:
            return 0
        return self._stream.unfinished_bytes + self.lanes.size + self._replies.size + self._stream.pending_bytes

    def close(self, disconnect: Disconnect) -> None:
        """End the connection."""
        self._stream.abandon()
        self._connection.close(disconnect)

    # What a dialect adds

    def _begin(self) -> None:
        """Prepare to serve calls; tasks can be started now."""

    @abstractmethod
    def _receive(self, text: bytes) -> int:
        """Begin to serve a message of the client, by `lanes`; return what it counts as in rate limits."""

    @abstractmethod
    async def _serve_call(self, call: CallT) -> None:
        """Serve a call to its end."""

    @abstractmethod
    def _failure(self, why: str) -> bytes:
        """Return the message for a client whose message was not read."""

    async def _finish(self) -> None:
        """Wait for calls that must not be cut off when the connection has ended."""

    def _ended(self) -> None:
        """Take note that the connection has ended."""

    def _note(self, changed: Changed) -> None:
        """Take note of changes, which feeds tell otherwise, before sessions that were removed are left."""

    def _next_news(self) -> list[bytes]:
        """Return the next messages that are of no feed; none if there are none."""
        return []

    def _feed_stopped(self, used: Used) -> None:
        """Take note that a feed has ended, as its session's history is another one."""

    # From the client

    async def handle(self, text: bytes) -> tuple[int, float]:
        """Begin to serve a message; return what it counts as in rate limits, and the seconds that it has taken."""
        spent: list[float] = []
        try:
            checked = await check_message(text, spent.append)
        except InvalidMessage as error:
            self.reply(self._failure(str(error)))
            return 1, sum(spent)
        began = time.perf_counter()
        return self._receive(checked), sum(spent) + time.perf_counter() - began

    async def until_ready(self) -> None:
        """Wait until a further call may be read."""
        limit = self.gateway.config.gateway.outbox_limit
        while len(self.lanes) >= MAX_CALLS or self.lanes.size >= limit or len(self._replies) >= MAX_REPLIES:
            await self._progress.wait()

    def _call_finished(self) -> None:
        self._replies.note()
        self._progress.notify()

    # To the client

    def reply(self, text: bytes) -> None:
        """Send a response, or a notification that is not repeated, before anything else."""
        self._replies.add(text)

    def start(self, work: Any, *args: Any) -> bool:
        """Start a task that ends with the connection; return False if that is ending already."""
        if self._nursery is None:
            return False
        self._nursery.start_soon(work, *args)
        return True

    async def wait_quiet(self) -> None:
        """Wait until the client has read nearly all of the responses: the next one is large."""
        self._replies.note()
        while self._replies or self._stream.pending_bytes > HIGH_WATER:
            await self._progress.wait()

    async def wait_told(self, feed: SessionFeed) -> None:
        """Wait until a feed has told the updates that it read from the disk, or is followed no more."""
        while feed.holds_rest and (used := self.sessions.get(feed.session)) is not None and used.feed is feed:
            await self._progress.wait()

    async def _take_changes(self) -> None:
        """Have the feeds of changed sessions asked, and leave the sessions that were removed."""
        changed = self.changes.take()
        for session in changed.journals | changed.sessions:
            used = self.sessions.get(session)
            if used is not None and used.feed is not None:
                self.feeds.add(used.feed)
                # The agent was started again, or another client has opened the session.
                self.sessions.join_again(used)
        self._note(changed)
        for session in changed.removed:
            self.changes.unfollow(session)
            await self.sessions.leave(session)
            self._progress.notify()

    async def _write(self) -> None:
        """Write as far as the client reads; ends the connection if it reads nothing for too long."""
        rested = True
        try:
            while True:
                if any(self.changes.changed):
                    await self._take_changes()
                texts = [*self._replies.take(HIGH_WATER), *self._next_news()]
                feed = self.feeds.first
                # No response waits for the disk.
                if feed is not None and not (texts and feed.wants_disk):
                    texts += await self.feeds.next_of(feed)
                    self._progress.notify()
                if texts:
                    if not rested:
                        await trio.lowlevel.checkpoint()
                    self._stream.send_nowait(texts)
                    if self._stream.pending_bytes > HIGH_WATER:
                        await self._stream.drain(HIGH_WATER // 2)
                    self._progress.notify()
                    rested = False
                elif feed is None:
                    await self._news.wait()
                    rested = True
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.info("%s: %s", self.name, error)
            await self._finish()
            self._connection.close_unread(error)
