"""Serves the file tap: tells one reader which files the agents of its sessions use, as lines of JSON.

Four tasks share the connection: one reads requests, one follows the sessions, one lets files cool, one writes. A reader
joins no session, is not a client of an agent, and can change nothing.
"""

import logging
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Final

import trio

from acp_gateway.acp.reading import ABSENT
from acp_gateway.acp.updates import Modes
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.core.states import SessionState
from acp_gateway.dialects.tap import lines as tap
from acp_gateway.dialects.tap.file_events import FileEvents, SharedFileEvents
from acp_gateway.dialects.tap.files import Touch
from acp_gateway.dialects.tap.heat import STEP, HeatMap
from acp_gateway.dialects.tap.lines import SessionTap
from acp_gateway.dialects.tap.service import TapSection
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.served_connection import ControlConnection, read_messages, serving
from acp_gateway.gateway.sessions.session_changes import Subscription
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.gateway.viewing.admitted import Admitted
from acp_gateway.protocol import methods
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.timers import Signal

log = logging.getLogger(__name__)

HIGH_WATER: Final = 256 * 1024
"""Bytes that wait for a reader above which no more is composed for it."""

MAX_ERRORS: Final = 16
"""Errors that wait for a reader to read; of more, the last ones are told."""

MAX_NOTICED: Final = 1000
"""Requests of an agent that are noticed at a time in one session; further ones are not told."""

WEIGHT: Final = 20
"""Messages that a request counts as in rate limits: a snapshot takes that much longer than passing one on."""


def _wall_clock() -> int:
    return time.time_ns() // 1_000_000


class _Tapped:
    """A session that is told, and how far it was read."""

    def __init__(self, session: Session, events: FileEvents, told: SessionTap) -> None:
        self.session = session
        self.events = events
        self.tap = told
        self.history = events.history
        self.position = events.first
        """Number of the next event."""
        self.noticed: dict[str, AgentRequest] = {}
        """The agent's requests that were noticed, by key."""
        self.asked: deque[tuple[AgentRequest, tuple[Touch, ...], int]] = deque(maxlen=MAX_NOTICED)
        """Requests of the agent for files, with the files and the time, until they are told."""
        self.is_read = False
        """True once its history was read."""
        self.ended = False


class FileTap:
    """Serves one reader.

    Args:
        gateway: the gateway, which must be running.
        access: the reader's principal.
        wanted: what it connects for: the agent or the session that it is restricted to.
        name: its name in the log.
        events: what is known of the sessions that have readers; None for readers that share nothing.
        now: returns the time in milliseconds since 1970.

    Raises what `Gateway.admit` raises.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        wanted: ConnectRequest,
        name: str,
        events: SharedFileEvents | None = None,
        now: Callable[[], int] = _wall_clock,
    ) -> None:
        self._gateway = gateway
        self._name = name
        self._now = now
        if access.session is not None:
            # A guest's token is for the session that it leads to first; this raises if there is none.
            gateway.admissions.authorize(access, ConnectRequest(session=wanted.session, observe=True))
        self._admitted = Admitted(gateway, access, ConnectRequest(wanted.agent, wanted.session, observe=True))
        self._agents = access.agents if wanted.agent is None or access.session is not None else (wanted.agent,)
        self._options = gateway.config.of_service(TapSection)
        self._events = SharedFileEvents() if events is None else events
        self._connection = ControlConnection(access)
        self._tapped: dict[Session, _Tapped] = {}
        self._errors: deque[bytes] = deque(maxlen=MAX_ERRORS)
        # The only session that the reader wants to be told; None for all.
        self._filter: str | None = None
        self._news = Signal()
        self._cooling = Signal()

    @property
    def _viewer(self) -> Viewer:
        return replace(self._admitted.viewer, agents=self._agents)

    async def serve(self, stream: MaintainedStream) -> None:
        """Serve the reader until its connection ends, and close the stream. Cancelled, it does so at once."""
        gateway, connection = self._gateway, self._connection
        gateway.bound(stream, Role.OBSERVER)
        self._stream = stream
        log.info("%s: file tap of %s attached", self._name, self._admitted.access.identity)
        async with serving(connection, stream, self._admitted.grant, gateway.connections) as self._charge:
            try:
                with gateway.changes.subscribe(self._viewer.covers, self._notice) as changes:
                    async with trio.open_nursery() as nursery:
                        for task in (stream.run, self._cool, self._write):
                            nursery.start_soon(task)
                        nursery.start_soon(self._follow, changes)
                        ended = await read_messages(stream, self._receive, self._charge)
                        connection.disconnect = ended or connection.disconnect
                        nursery.cancel_scope.cancel()
            finally:
                log.info("%s: file tap detached", self._name)

    # From the reader

    async def _receive(self, text: bytes) -> tuple[int, float]:
        began = time.perf_counter()
        try:
            request = tap.read_request(text)
        except tap.BadRequest as error:
            self._errors.append(tap.error(str(error)))
        else:
            named = [tapped for tapped in self._tapped.values() if request.session in (None, tapped.session.name)]
            if request.type == "set_stream_filter":
                self._filter = request.session
            elif not named and request.session is not None:
                self._errors.append(tap.error("no live session has this id", request.session))
            for tapped in named:
                tapped.tap.tell_again()
        self._news.notify()
        return WEIGHT, time.perf_counter() - began

    # From the sessions

    def _notice(self, session: Session) -> None:
        """Note the requests of the agent that are open now: some are answered before the next look."""
        tapped = self._tapped.get(session)
        multiplexer = self._gateway.views.multiplexer_of(session)
        if tapped is None or multiplexer is None:
            return
        for request in multiplexer.waiting(session):
            if request.key in tapped.noticed or len(tapped.noticed) >= MAX_NOTICED:
                continue
            tapped.noticed[request.key] = request
            touches = tapped.events.finder.in_request(request.message)
            if touches:
                tapped.asked.append((request, touches, request.arrived_time or self._now()))

    async def _follow(self, changes: Subscription) -> None:
        viewer = self._viewer
        for session in list(self._gateway.views.sessions(viewer)):
            await self._look_at(session, viewer, changes)
        while True:
            changed = await changes.wait()
            viewer = self._viewer
            for session in changed.removed:
                self._end(session, changes)
            for session in changed.journals | changed.sessions:
                await self._look_at(session, viewer, changes)

    async def _look_at(self, session: Session, viewer: Viewer, changes: Subscription) -> None:
        """Tell what is new in a session."""
        is_there = session.live and session.state is not SessionState.DORMANT and bool(session.journal.epoch)
        if not (is_there and viewer.sees(session)):
            self._end(session, changes)
            return
        tapped = self._tapped.get(session)
        if tapped is None or tapped.ended:
            if tapped is None and len(self._tapped) >= self._options.sessions:
                log.debug("%s: session %.80r is beyond tap.sessions", self._name, session.id)
                return
            changes.follow(session)
            seq = 0 if tapped is None else tapped.tap.seq
            events = self._events.of(session, self._options.ignore)
            tapped = self._tapped[session] = _Tapped(session, events, self._new_tap(session, events, seq))
            self._notice(session)
        await self._catch_up(tapped)

    def _new_tap(self, session: Session, events: FileEvents, seq: int) -> SessionTap:
        """Return what tells a session from its beginning, behind the batch of this number."""
        options = self._options
        heat = HeatMap(options.files, options.context_turns, events.turns_before)
        return SessionTap(session.agent, session.name, heat, seq + 1)

    async def _catch_up(self, tapped: _Tapped) -> None:
        """Take what a journal has, in steps between which other tasks get their turn."""
        session, events = tapped.session, tapped.events
        # Later messages are taken at the next look, after other sessions.
        until = session.journal.position
        while events.read_some(until):
            await trio.lowlevel.checkpoint()
        end = events.end
        while True:
            if tapped.history != events.history:
                tapped.tap = self._new_tap(session, events, tapped.tap.seq)
                tapped.history, tapped.position, end = events.history, events.first, events.end
            if tapped.position >= end:
                break
            tapped.position = max(tapped.position, events.first)
            found = events.since(tapped.position)
            for seen, since in found:
                tapped.tap.take(seen, since)
            tapped.position += len(found)
            await trio.lowlevel.checkpoint()
        self._take_requests(tapped)
        tapped.tap.mode = Modes.read(session.result.get("modes", ABSENT)).current_mode_id
        tapped.is_read = True
        self._end_batch(tapped)

    def _take_requests(self, tapped: _Tapped) -> None:
        """Take the files of the agent's requests, and those that a user or the gateway has refused."""
        session = tapped.session
        while tapped.asked:
            request, touches, since = tapped.asked.popleft()
            if request.fenced_off:
                tapped.tap.block(touches, since)
            else:
                tapped.tap.touch(touches, since)
        multiplexer = self._gateway.views.multiplexer_of(session)
        still_open = set() if multiplexer is None else {request.key for request in multiplexer.waiting(session)}
        for key, request in list(tapped.noticed.items()):
            # Looked into while its tool call is remembered.
            refusable = tapped.events.refusable(request) if request.method == methods.REQUEST_PERMISSION else None
            if key in still_open:
                continue
            del tapped.noticed[key]
            decision = session.decisions.get(key)
            if refusable is not None and decision is not None and decision.outcome in refusable.refusals:
                tapped.tap.block(refusable.touches, self._now())

    def _end(self, session: Session, changes: Subscription) -> None:
        """Tell that a session has no files any more."""
        tapped = self._tapped.get(session)
        changes.unfollow(session)
        if tapped is not None and not tapped.ended:
            tapped.ended = True
            tapped.tap.end()
            self._end_batch(tapped)

    def _end_batch(self, tapped: _Tapped) -> None:
        tapped.tap.end_batch(self._now())
        self._news.notify()
        if tapped.tap.heat.cools:
            self._cooling.notify()

    async def _cool(self) -> None:
        """Let files cool, while some do."""
        while True:
            cooling = [tapped for tapped in self._tapped.values() if tapped.tap.heat.cools]
            if not cooling:
                await self._cooling.wait()
                continue
            await trio.sleep(STEP / 1000)
            began = time.perf_counter()
            for tapped in cooling:
                tapped.tap.end_batch(self._now())
            self._news.notify()
            await self._pay(began)

    # To the reader

    async def _pay(self, began: float) -> None:
        """Charge the reader's identity for the time since `began`, and pause if it has used up its share.

        Files cool without any message, and many readers of a thousand files would take the whole loop.
        """
        await trio.sleep(self._charge(seconds=time.perf_counter() - began))

    async def _write(self) -> None:
        """Write as far as the reader reads; ends the connection if it reads nothing for too long."""
        try:
            while True:
                began = time.perf_counter()
                lines = self._next()
                if not lines:
                    await self._news.wait()
                    continue
                self._stream.send_nowait(lines)
                await self._pay(began)
                if self._stream.pending_bytes > HIGH_WATER:
                    await self._stream.drain(HIGH_WATER // 2)
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            log.info("%s: %s", self._name, error)
            self._connection.close_unread(error)

    def _next(self) -> list[bytes]:
        """Return the next lines: errors, then those of sessions, up to some size."""
        lines, size = list(self._errors), 0
        self._errors.clear()
        for session, tapped in list(self._tapped.items()):
            if self._filter in (None, session.name) and (tapped.is_read or tapped.ended):
                told = tapped.tap.next(self._now())
                lines += told
                size += sum(map(len, told))
            # Behind the others, which get their turn.
            del self._tapped[session]
            if not tapped.ended:
                self._tapped[session] = tapped
            if size > HIGH_WATER:
                break
        return lines
