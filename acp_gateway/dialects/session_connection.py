"""Serves one connection of a browser, in another dialect than ACP.

Two tasks share it: one reads and starts the calls, one writes. Calls about one session are served in their order,
others beside each other. The writer sends responses first, and then what the feeds of changed sessions have, as far as
the browser reads.
"""

import logging
import time
from abc import abstractmethod
from collections import deque
from collections.abc import Container, Hashable, Iterator
from dataclasses import replace
from typing import Any, Final, Generic, NamedTuple, TypeVar

import trio

from acp_gateway.core.sessions.session import Role
from acp_gateway.dialects.local_client import AwayClients
from acp_gateway.dialects.open_sessions import SHOWN, OpenSessions, Used
from acp_gateway.dialects.session_feed import SessionFeed
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.control_channel import ControlConnection
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.attachment import BUG, Disconnect
from acp_gateway.gateway.hub.large_messages import check_message
from acp_gateway.gateway.sessions.session_changes import Changed, Subscription
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.size_limit import SizeLimit
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.streams import CloseReason, Flooded, MessageTooLarge, Unfinished
from acp_gateway.transports.timers import Signal

log = logging.getLogger(__name__)

MAX_CALLS: Final = 64
"""Calls of one browser that are served at a time; a page has a handful. Further ones are not read yet."""

MAX_REPLIES: Final = 256
"""Responses that wait for a browser to read; then its calls are not read either."""

HIGH_WATER: Final = 256 * 1024
"""Bytes that wait for a browser above which no more is composed for it. Unlike the messages of editors, these bytes are
not shared with other connections."""

LARGE_RESPONSES: Final = 4
"""Large responses of one identity that are composed and not read yet, on all its connections."""

CallT = TypeVar("CallT", bound=Hashable)


class _Waiting(NamedTuple, Generic[CallT]):
    """A call that is not finished."""

    call: CallT
    size: int
    """Bytes."""


class SessionConnection(Generic[CallT]):
    """Serves one browser.

    Args:
        gateway: the gateway, which must be running.
        away: its clients that were kept.
        access: the browser's principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        name: its name in the log and the audit.
        via: the kind of its clients, as others are shown it and as the log names it.
        shown: methods of the agent's requests that it shows to its user.
        replaces: True if it takes the place of a connection that is counted already.

    Raises what `Gateway.admit` raises.
    """

    sessions: OpenSessions
    changes: Subscription
    shows_doubt = False
    """True for a browser whose user sees all sessions of the identity, see `Viewer.sees_doubt`."""

    def __init__(
        self,
        gateway: Gateway,
        away: AwayClients,
        access: Access,
        wanted: ConnectRequest,
        name: str,
        via: str,
        shown: Container[str] = SHOWN,
        *,
        replaces: bool = False,
    ) -> None:
        self.gateway = gateway
        self._away = away
        self.views = gateway.views
        """Describes sessions."""
        self.access = access
        self.name = name
        self.via = via
        self.size_limit: SizeLimit | None = None
        """Maximum size of a message of the client, once it is served."""
        self._shown = shown
        self._wanted = _as_control(wanted)
        grant = gateway.admit(access, self._wanted, replaces=replaces)
        self.role = grant.role
        # Wider than what is shown, which depends on the sessions that there are; each change is looked at again.
        wide = Viewer(grant.reach, grant.role, access.agents, self.shows_doubt)
        self._covers = wide.covers
        self.bound = grant.reach.only
        """The only session that exists for the browser; None for all of its identity."""
        self.composing = trio.StrictFIFOLock()
        """Large responses are composed one at a time."""
        # The viewer of a connection that is bound to nothing is the same for as long as that lasts.
        self._viewer = wide if self.bound is None and wanted.agent is None else None
        self._connection = ControlConnection(access)
        self._replies: deque[bytes] = deque()
        # Bytes of these, and those that the memory limit was not told of.
        self._reply_size = self._new_size = 0
        self._feeds: dict[SessionFeed, None] = {}
        # Calls of each session, and those that wait for no other one by one; the first of each is being served.
        self._lanes: dict[Hashable, deque[_Waiting[CallT]]] = {}
        self._calls = 0
        # Bytes of these calls: prompts may be large, and wait while their session is opened again.
        self._size = 0
        self._news = Signal()
        self._progress = Signal()
        self._is_ending = False

    @property
    def viewer(self) -> Viewer:
        """The browser, as sessions are shown to it."""
        token = self.access.token
        if self._viewer is not None:
            if token is not None:
                self.gateway.storage.token_used(token.id)
            return self._viewer
        # A guest's token is bound to a session's owner when it first leads to one.
        reach = self.gateway.admissions.authorize(self.access, self._wanted).reach
        return replace(self.views.viewer(reach, self.role, self.access.agents), sees_doubt=self.shows_doubt)

    async def serve(self, stream: MaintainedStream) -> None:
        """Serve the browser until its connection ends, and close the stream. Cancelled, it does so at once."""
        gateway, connection = self.gateway, self._connection
        self._stream = stream
        self.size_limit = gateway.bound(stream, self.role, "browser" if self.access.session is None else "guest")
        limiter = gateway.connections.rate_limiter(
            self.access.account, guest=self.access.session is not None, observer=self.role is Role.OBSERVER
        )
        self._charge = limiter.charge
        stream.meter.charge = self._charge_unfinished
        log.info("%s: %s of %s attached", self.name, self.via, self.access.identity)
        gateway.control_streams.add(stream)
        gateway.services.inputs.add(self)
        try:
            with (
                connection.scope,
                gateway.connections.watched(connection),
                gateway.changes.subscribe(self._covers, signal=self._news) as self.changes,
            ):
                connection.disconnect = await self._serve(stream)
        except Exception:
            connection.disconnect = BUG
            raise
        finally:
            gateway.control_streams.discard(stream)
            gateway.services.inputs.discard(self)
            self._ended()
            log.info("%s: %s detached", self.name, self.via)
            with trio.CancelScope(shield=True):
                await stream.aclose(connection.disconnect.code, connection.disconnect.text)

    # As an `Input` of the memory limit

    @property
    def account(self) -> str:
        """The identity for whose limits it counts."""
        return self.access.account

    @property
    def input_bytes(self) -> int:
        """Bytes of unfinished messages, of calls that are not finished, and of what waits for the browser to read."""
        if self._connection.scope.cancel_called:
            return 0
        return self._stream.unfinished_bytes + self._size + self._reply_size + self._stream.pending_bytes

    def close(self, disconnect: Disconnect) -> None:
        """End the connection."""
        self._stream.abandon()
        self._connection.close(disconnect)

    def _charge_unfinished(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        self.gateway.services.memory_grew(size)
        return self._charge(messages, size, seconds, frames)

    async def _serve(self, stream: MaintainedStream) -> Disconnect:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            self.sessions = OpenSessions(
                self.gateway,
                self._away,
                self.access,
                self.name,
                via=self.via,
                shown=self._shown,
                observe=self.role is Role.OBSERVER,
                start=nursery.start_soon,
                bound=self.bound,
            )
            self._begin()
            nursery.start_soon(stream.run)
            nursery.start_soon(self._write)
            try:
                disconnect = await self._read()
                await self._finish()
            finally:
                # Other connections have their turn between the end of the nursery and that of this task.
                self._is_ending = True
                nursery.cancel_scope.cancel()
                with trio.CancelScope(shield=True):
                    await self.sessions.close()
        return disconnect

    # What a dialect adds

    def _begin(self) -> None:
        """Prepare to serve calls; `sessions` is there now."""

    @abstractmethod
    def _receive(self, text: bytes) -> int:
        """Begin to serve a message of the browser, by `_start_call`; return what it counts as in rate limits."""

    @abstractmethod
    async def _serve_call(self, call: CallT) -> None:
        """Serve a call to its end."""

    @abstractmethod
    def _failure(self, why: str) -> bytes:
        """Return the message for a browser whose message was not read."""

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

    # From the browser

    async def _read(self) -> Disconnect:
        stream = self._stream
        try:
            while True:
                batch = await stream.receive_batch()
                for number, text in enumerate(batch, 1):
                    spent: list[float] = []
                    try:
                        checked = await check_message(text, spent.append)
                    except InvalidMessage as error:
                        self.reply(self._failure(str(error)))
                        checked = None
                    began = time.perf_counter()
                    weight = 1 if checked is None else self._receive(checked)
                    size, frames = stream.meter.take()
                    pause = self._charge_unfinished(weight, size, sum(spent) + time.perf_counter() - began, frames)
                    # One read may bring a thousand calls: others get their turn after each; before the next read, the
                    # stream sees to it.
                    if pause or number < len(batch):
                        await trio.sleep(pause)
                    while self._is_full:
                        await self._progress.wait()
        except trio.EndOfChannel:
            pass
        except MessageTooLarge as error:
            self._send_last(self._failure(str(error)))
            return Disconnect(CloseReason.TOO_LARGE, str(error))
        except (Flooded, Unfinished) as error:
            return Disconnect(CloseReason.POLICY, str(error))
        except trio.ClosedResourceError:
            # `close` was called when bytes had just come.
            return self._connection.disconnect
        except trio.BrokenResourceError as error:
            log.debug("%s: %s", self.name, error)
        return Disconnect(CloseReason.NORMAL, "")

    @property
    def _is_full(self) -> bool:
        """True while no further call is read."""
        limit = self.gateway.config.gateway.outbox_limit
        return self._calls >= MAX_CALLS or self._size >= limit or len(self._replies) >= MAX_REPLIES

    def _send_last(self, text: bytes) -> None:
        try:
            self._stream.send_nowait([text])
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # A WebSocket says it in its own way.

    def _waiting(self, lane: Hashable) -> list[CallT]:
        """Return the calls of a lane that are not finished."""
        return [waiting.call for waiting in self._lanes.get(lane, ())]

    def _unfinished(self) -> Iterator[CallT]:
        """Yield the calls that are not finished."""
        return (waiting.call for lane in self._lanes.values() for waiting in lane)

    def _start_call(self, call: CallT, lane: Hashable, size: int) -> None:
        """Serve a call of so many bytes after the others of its lane."""
        self._calls += 1
        self._size += size
        waiting = self._lanes.setdefault(lane, deque())
        waiting.append(_Waiting(call, size))
        if len(waiting) == 1:
            self._nursery.start_soon(self._work, lane)

    async def _work(self, lane: Hashable) -> None:
        """Serve the calls of a lane, one after another."""
        waiting = self._lanes[lane]
        while waiting:
            await self._serve_call(waiting[0].call)
            self._note_replies()
            self._size -= waiting.popleft().size
            self._calls -= 1
            self._progress.notify()
        del self._lanes[lane]

    # To the browser

    def reply(self, text: bytes) -> None:
        """Send a response, or a notification that is not repeated, before anything else."""
        self._replies.append(text)
        self._reply_size += len(text)
        self._new_size += len(text)
        self._news.notify()

    def _note_replies(self) -> None:
        """Tell the memory limit of new responses. Not as part of `reply`, which a hub may call in a decision."""
        size, self._new_size = self._new_size, 0
        self.gateway.services.memory_grew(size)

    def feed(self, feed: SessionFeed) -> None:
        """Write what a feed has."""
        self._feeds[feed] = None
        self._news.notify()

    def start(self, work: Any, *args: Any) -> None:
        """Start a task that ends with the connection, unless that is ending already."""
        if not self._is_ending:
            self._nursery.start_soon(work, *args)

    async def wait_quiet(self) -> None:
        """Wait until the browser has read nearly all of the responses: the next one is large."""
        self._note_replies()
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
                self._feeds[used.feed] = None
                # The agent was started again, or another client has opened the session.
                self.sessions.join_again(used)
        self._note(changed)
        for session in changed.removed:
            self.changes.unfollow(session)
            await self.sessions.leave(session)
            self._progress.notify()

    async def _write(self) -> None:
        """Write as far as the browser reads; ends the connection if it reads nothing for too long."""
        rested = True
        try:
            while True:
                if any(self.changes.changed):
                    await self._take_changes()
                texts = [*self._next_replies(), *self._next_news()]
                feed = next(iter(self._feeds), None)
                # No response waits for the disk.
                if feed is not None and not (texts and feed.wants_disk):
                    texts += await self._next_of(feed)
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
            self._connection.disconnect = Disconnect(CloseReason.POLICY, str(error), "too_slow")
            await self._finish()
            self._connection.scope.cancel()

    def _next_replies(self) -> list[bytes]:
        """Return the next responses, as many as are written together."""
        texts: list[bytes] = []
        size = 0
        while self._replies and size < HIGH_WATER:
            texts.append(self._replies.popleft())
            size += len(texts[-1])
        self._reply_size -= size
        return texts

    async def _next_of(self, feed: SessionFeed) -> list[bytes]:
        """Return the next messages of the first feed; none if it has none, or has to be asked again."""
        del self._feeds[feed]
        used = self.sessions.get(feed.session)
        if used is None or used.feed is not feed:
            return []
        if feed.wants_disk:
            await feed.read_rest(self.gateway.history)
            if used.feed is not feed:
                return []
        texts = feed.next()
        if feed.stopped:
            self._feed_stopped(used)
            self._progress.notify()
        elif feed.has_more:
            # Behind the others, which get their turn; but one rest at a time is in memory.
            self._feeds = {feed: None, **self._feeds} if feed.holds_rest else {**self._feeds, feed: None}
        return texts


def _as_control(wanted: ConnectRequest) -> ConnectRequest:
    """Return the request of a connection that begins with no agent."""
    return ConnectRequest(wanted.agent, wanted.session, wanted.observe, control=True)


_large_responses: Final = trio.lowlevel.RunVar[dict[str, trio.Semaphore]]("large responses")


def large_responses(identity: str) -> trio.Semaphore:
    """Return the semaphore of the large responses of an identity. There are as many as identities."""
    try:
        known = _large_responses.get()
    except LookupError:
        known = {}
        _large_responses.set(known)
    return known.setdefault(identity, trio.Semaphore(LARGE_RESPONSES))
