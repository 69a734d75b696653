"""Feeds one viewer with the news of one session: updates by number, the agent's requests, and the status.

Nothing is queued. A feed remembers what it has told, and compares that with the present state whenever the viewer can
take more: a slow viewer lags without memory, and misses only states that were over before it could be told. The
messages are composed by the translator of the viewer's dialect.
"""

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any, Final, Protocol

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.requests import QueuedPrompt
from acp_gateway.core.turns.ends import TurnEnd, described, ends_between
from acp_gateway.core.turns.queue import shown_queue
from acp_gateway.errors import Busy
from acp_gateway.gateway.sessions.history import HistoryReader, HistorySlice
from acp_gateway.gateway.sessions.session_view import SessionView, SessionViews, Viewer
from acp_gateway.protocol.jsonrpc import Message

PIECE_SIZE: Final = 128 * 1024
"""Bytes of updates that one notification is filled with. Composing them takes some 5 ms."""

PIECE_COUNT: Final = 256
"""Updates of one notification, at most."""

_BUSY: Final = ("running", "waiting")


class FeedOutput(Protocol):
    """Composes the messages for a viewer; none where its dialect has no word for it. Errors are members of objects."""

    def updates(
        self,
        session_id: str,
        messages: Sequence[bytes],
        first: int,
        times: Sequence[int | None],
        name: str | None = None,
    ) -> list[bytes]:
        """Tell `session/update` messages, if any; the first one has the number `first`, and none is passed over.

        `name` is that of the session for the viewer, where it is not the id.
        """

    def request(self, session_id: str, request_id: str, message: Message) -> list[bytes]:
        """Tell a request of the agent."""

    def request_resolved(
        self, session_id: str, request_id: str, message: Message, by: str | None, outcome: str | None
    ) -> list[bytes]:
        """Tell that a request of the agent is not open any more; see `Decision`."""

    def queue(self, session_id: str, prompts: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Tell the prompts that wait for the end of the turn, all of them; see `queue_for`."""

    def turn_ended(self, session_id: str, status: str, end: Mapping[str, Any]) -> list[bytes]:
        """Tell the end of a turn, as `described` has it, after the updates before it."""

    def status(self, session_id: str, status: str, exit_reason: str | None) -> list[bytes]:
        """Tell another status."""

    def reset(self, session_id: str, epoch: str) -> list[bytes]:
        """Tell that the history has to be asked for again."""


class SessionFeed:
    """The feed of a session for one viewer.

    Args:
        view: the session as the viewer was just told of it.
        viewer: the viewer.
        views: describes the session.
        epoch: epoch of `place`.
        place: number of the last update that the viewer was told of, and how many ends of turns after it.
        output: composes the messages.
        rest: the history from there on, of a session that has ended.
        knows_requests: True if the viewer was told of the agent's requests.
    """

    def __init__(
        self,
        view: SessionView,
        viewer: Viewer,
        views: SessionViews,
        epoch: str,
        place: tuple[int, int],
        output: FeedOutput,
        rest: HistorySlice | None = None,
        *,
        knows_requests: bool = True,
    ) -> None:
        self.session = view.session
        self._name = view.session.name
        self.stopped = False
        """True after the viewer was told to ask for the history again."""
        self.has_more = False
        """True if something may follow what `next` has returned."""
        self._viewer = viewer
        self._views = views
        self._epoch = epoch
        self._position, self._ends_told = place
        self._output = output
        self._is_read = not view.session.journal.epoch
        # The epoch of a history that does not continue at the position.
        self._reset_to: str | None = None
        # The end of the history of an ended session as it was read from the disk, until it is told.
        self._rest = rest
        self._requests = {request.key: request for request in requests_for(view)} if knows_requests else {}
        self._queue = queued_in(view)
        self._status = status_of(view)

    @property
    def wants_disk(self) -> bool:
        """True if the session has ended, and its last updates have to be read by `read_rest`."""
        if self.session.journal.epoch:
            self._is_read = False
            return False
        return not (self._is_read or self.stopped)

    @property
    def holds_rest(self) -> bool:
        """True while updates that were read from the disk wait in memory to be told."""
        return self._rest is not None

    async def read_rest(self, reader: HistoryReader) -> None:
        """Read the last updates of a session that has ended; if the disk is too slow, the viewer has to ask again."""
        try:
            found = await reader.read(self.session, since=self._position, epoch=self._epoch)
        except Busy:
            self._is_read, self._reset_to = True, self._epoch
            return
        if self.session.journal.epoch:
            return
        self._is_read = True
        if not found.reset and (found.messages or found.ends) and found.first == self._position + 1:
            self._rest = found
        elif found.epoch and (found.reset or found.last > self._position):
            self._reset_to = found.epoch

    def next(self) -> list[bytes]:
        """Return the next messages for the viewer, as many as fit one write; none if it was told everything."""
        self.has_more = False
        if self.stopped:
            return []
        epoch = self.session.journal.epoch
        if epoch:
            self._reset_to = None if self._follows() else epoch
        if self._reset_to is not None:
            self.stopped = True
            self._rest = None
            return self._output.reset(self._name, self._reset_to)
        updates = self._next_updates()
        if updates is not None:
            self.has_more = True
            return updates
        view = self._views.view(self.session, self._viewer)
        return [*self._next_requests(view), *self._next_queue(view), *self._next_status(view)]

    def _follows(self) -> bool:
        """Return True if the journal continues at the position; adopts the journal's epoch."""
        journal = self.session.journal
        if journal.epoch != self._epoch:
            if journal.shared_with(self._epoch, self._position) != self._position:
                return False
            self._epoch = journal.epoch
        self._rest = None
        return journal.start <= self._position <= journal.position

    def _next_updates(self) -> list[bytes] | None:
        """Return the next updates up to the end of a turn, with that; None if all are told."""
        journal, rest, place = self.session.journal, self._rest, (self._position, self._ends_told)
        if journal.epoch:
            last = min(journal.position, self._position + PIECE_COUNT)
            ends: Sequence[TurnEnd] = journal.ends(place, last)
            last = ends[0].position if ends else last
            messages: Sequence[bytes] = journal.messages(self._position, last)
            times: Sequence[int | None] = journal.times(self._position, last)
        elif rest is not None:
            ends = ends_between(rest.ends, place, self._position + PIECE_COUNT)
            last = ends[0].position if ends else self._position + PIECE_COUNT
            some = slice(self._position + 1 - rest.first, last + 1 - rest.first)
            messages, times = rest.messages[some], rest.times[some]
        else:
            return None
        if not messages and not ends:
            self._rest = None
            return None
        count = fitting(messages, PIECE_SIZE, PIECE_COUNT)
        first = self._position + 1
        self._position += count
        self._ends_told = 0 if count else self._ends_told
        told = self._output.updates(self.session.id, messages[:count], first, times[:count], self._name)
        if not ends or ends[0].position != self._position:
            return told
        # A turn that is over was never told to run, if the viewer was slow.
        began = [] if self._status[0] in _BUSY else self._output.status(self._name, "running", None)
        outcome, self._ends_told = ends[0].outcome, ends[0].nth
        self._status = "completed" if outcome.error is None and outcome.cut is None else "error", None
        return began + told + self._output.turn_ended(self._name, self._status[0], described(ends[0]))

    def _next_requests(self, view: SessionView) -> list[bytes]:
        now = {request.key: request for request in requests_for(view)}
        told: list[bytes] = []
        for key, request in list(self._requests.items()):
            if key not in now:
                del self._requests[key]
                by, outcome = self.session.decisions.get(key, (None, None))
                told += self._output.request_resolved(self._name, key, request.message, by, outcome)
        for key, request in now.items():
            if key not in self._requests:
                self._requests[key] = request
                told += self._output.request(self._name, key, request.message)
        return told

    def _next_queue(self, view: SessionView) -> list[bytes]:
        now = queued_in(view)
        if now == self._queue:
            return []
        self._queue = now
        return self._output.queue(self._name, queue_for(view, self._viewer))

    def _next_status(self, view: SessionView) -> list[bytes]:
        now = status_of(view)
        if now == self._status:
            return []
        self._status = now
        return self._output.status(self._name, *now)


def fitting(messages: Sequence[bytes], size: int, count: int) -> int:
    """Return how many of the messages fit so many bytes and are so many at most; at least one."""
    fit = 0
    for message in islice(messages, count):
        size -= len(message)
        if size < 0 and fit:
            break
        fit += 1
    return fit


def requests_for(view: SessionView) -> Sequence[AgentRequest]:
    """Return the agent's requests that the viewer may answer."""
    return view.waiting if view.may_control else ()


def queued_in(view: SessionView) -> list[QueuedPrompt]:
    """Return what all viewers are shown of the queue: equal as long as it has not changed."""
    return view.session.shown_prompts


def queue_for(view: SessionView, viewer: Viewer) -> list[dict[str, Any]]:
    """Return the queue as the viewer may see and change it; its prompts are members of objects."""
    return [
        {
            "promptId": it.prompt.key,
            "identity": it.identity,
            "text": it.prompt.text,
            "whole": it.prompt.whole,
            "attached": it.prompt.attached,
            "createdAt": it.prompt.at,
            "mayChange": it.may_change,
            "mayEdit": it.may_edit,
            "state": it.prompt.state,
            "due": it.prompt.due,
            "auto": it.prompt.auto,
            "why": it.prompt.why or None,
        }
        for it in shown_queue(view.session, viewer.reach, controls=view.may_control)
    ]


def status_of(view: SessionView) -> tuple[str, str | None]:
    return view.status, "process_exit" if view.status == "exited" and view.process_exited else None
