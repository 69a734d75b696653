"""Requests of clients that wait, each for one event; an event releases its requests in the order in which they came.

A client's requests reach the agent in their order, as far as it matters: `must_follow` holds that rule.
"""

import enum
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import takewhile
from typing import Final, NamedTuple, TypeAlias

from acp_gateway.core.requests import ErrorObject
from acp_gateway.core.sessions.session import Client, DirectoryCheck, Request, Session


class Until(enum.Enum):
    """Kinds of events that requests wait for."""

    INITIALIZED = enum.auto()
    """The agent has answered `initialize`; only requests of that method wait for it."""
    AGENT_READY = enum.auto()
    """The agent is initialized, and its sessions are about to be re-opened."""
    SESSIONS_FREED = enum.auto()
    """Another process, which has the session, has ended."""
    SESSION_OPEN = enum.auto()
    """A session is not in transit any more."""
    SESSION_REOPENED = enum.auto()
    """A permitted client has re-opened the session of an id, or it is known that none can, see
    `core/sessions/rejoining.py`. Such a client may never come; the agent is not needed for that."""
    JOURNAL_LOADED = enum.auto()
    """The journal of a session was read from the archive."""
    DIRECTORIES_CHECKED = enum.auto()
    """A directory check is done; the first of its requests is the one that names the directories."""
    TURN_FREE = enum.auto()
    """The running turns of a session have ended; only prompts wait for it, also without their clients."""
    CONSENT = enum.auto()
    """A person has said whether the next prompt of a session is sent; likewise."""


Key: TypeAlias = Session | DirectoryCheck | str | None
"""The object of an event, or the id of a session; None if there is one such event for each process."""


class Event(NamedTuple):
    """An event that requests wait for."""

    until: Until
    key: Key = None


Objection: TypeAlias = ErrorObject | Event
"""Answer to a request that can't go on: its refusal, or the event after which it is judged again."""


ALONE: Final = frozenset({Until.TURN_FREE, Until.CONSENT})
"""Events for which prompts wait whose clients have gone."""

_FOLLOWED: Final = frozenset({Until.DIRECTORIES_CHECKED, Until.JOURNAL_LOADED})
"""Events of openings, which later requests for the same session follow."""


def _session_of(request: Request) -> str | None:
    """Return the id of the session that a request is for, if it names one, or its connection is bound to one."""
    return request.message.session or request.client.reach.only


class Waiting:
    """The waiting requests of one agent process."""

    def __init__(self) -> None:
        self._queues: dict[Until, dict[Key, dict[Request, None]]] = {until: {} for until in Until}
        # Those that later requests may have to follow; and how many there are of a client for a session.
        self._checking = self._queues[Until.DIRECTORIES_CHECKED]
        self._loading = self._queues[Until.JOURNAL_LOADED]
        self._ahead: Counter[tuple[Until, Client, str | None]] = Counter()
        self._events: dict[Request, Event] = {}
        self.handle: Callable[[Request], None]
        """Handles a request that has waited, as it does one that comes; the multiplexer sets it."""
        self.changed_queues: dict[Session, None] = {}
        """Sessions whose queue of prompts has changed since this was emptied."""

    def __len__(self) -> int:
        return len(self._events)

    @property
    def busy(self) -> bool:
        """True if a request waits for an event that comes without a further client."""
        return any(queues for until, queues in self._queues.items() if until is not Until.SESSION_REOPENED)

    def of(self, until: Until, key: Key = None) -> Sequence[Request]:
        """Return the requests that wait for an event, the earliest first."""
        return tuple(self._queues[until].get(key, ()))

    def of_kind(self, until: Until) -> Sequence[Request]:
        """Return the requests that wait for any event of a kind."""
        return tuple(request for queue in self._queues[until].values() for request in queue)

    def add(self, request: Request, until: Until, key: Key = None) -> None:
        """Queue a request until an event, after earlier ones. A request waits for one event at a time."""
        assert request not in self._events
        self._events[request] = Event(until, key)
        self._queues[until].setdefault(key, {})[request] = None
        if until in _FOLLOWED:
            self._ahead[until, request.client, _session_of(request)] += 1
        self._note_change(until, key)

    def release(self, until: Until, key: Key = None) -> list[Request]:
        """Return the requests that waited for an event, in order."""
        released = list(self._queues[until].pop(key, ()))
        if released:
            self._note_change(until, key)
        for request in released:
            self._forget(request)
        return released

    def resume(self, until: Until, key: Key = None) -> None:
        """Handle the requests that waited for an event, in order, and judge each again: the world has changed."""
        for request in self.release(until, key):
            self.handle(request)

    def release_kind(self, until: Until) -> list[Request]:
        """Return the requests that waited for any event of a kind, those for the same event in order."""
        return [request for key in list(self._queues[until]) for request in self.release(until, key)]

    def release_first(self, until: Until, key: Key = None) -> Request | None:
        """Return the earliest request that waited for an event; the others keep waiting."""
        request = next(iter(self._queues[until].get(key, ())), None)
        if request is not None:
            self._drop(request)
        return request

    def reorder(self, requests: Sequence[Request], until: Until, key: Key = None) -> None:
        """Put the requests that wait for an event, which are all of these, into this order."""
        queue = self._queues[until][key]
        assert len(requests) == len(queue)
        self._queues[until][key] = {request: queue[request] for request in requests}
        self._note_change(until, key)

    def withdraw(self, request: Request) -> list[Request] | None:
        """Drop a request; return the requests that waited only for it, or None if it does not wait."""
        event = self._events.get(request)
        if event is None:
            return None
        self._drop(request)
        # The result of a directory check is only for the request that names the directories.
        alone = isinstance(event.key, DirectoryCheck) and event.key.request is request
        return self.release(*event) if alone else []

    def take(self, condition: Callable[[Request], bool]) -> list[Request]:
        """Drop and return the requests that meet a condition, in the order in which they began to wait."""
        taken = [request for request in self._events if condition(request)]
        for request in taken:
            self._drop(request)
        return taken

    def client_gone(self, client: Client) -> None:
        """Drop a client's requests, except prompts that wait for their turn.

        A departed guest must not act in another owner's session: its prompts are dropped as well.
        """
        for request in client.requests.values():
            event = self._events.get(request)
            if event is not None and (event.until not in ALONE or client.reach.guest):
                self._drop(request)

    def clear(self, but: Until | None = None) -> None:
        """Drop all requests, but those that wait for an event of one kind."""
        for until in Until:
            if until is not but:
                self.release_kind(until)

    def must_follow(self, request: Request, session: Session | None) -> Event | None:
        """Return the event that a request has to wait for, so that it overtakes no earlier one of its client.

        Args:
            request: does not wait now; it may have waited already, for something else.
            session: the session that it names, if that is live and in the client's reach.
        """
        client, named = request.client, _session_of(request)
        # Openings of other sessions are independent: an editor that is back has a thousand at once.
        if self._checking and (named is None or (Until.DIRECTORIES_CHECKED, client, named) in self._ahead):
            for earlier in takewhile(lambda it: it is not request, client.requests.values()):
                event = self._events.get(earlier)
                alike = named is None or _session_of(earlier) == named
                if alike and event is not None and event.until is Until.DIRECTORIES_CHECKED:
                    return event
        if (Until.JOURNAL_LOADED, client, named) in self._ahead:
            for loading, queue in self._loading.items():
                alike = isinstance(loading, Session) and loading.id == named
                if alike and any(other.client is client for other in queue):
                    return Event(Until.JOURNAL_LOADED, loading)
        if session is not None and session.transit is not None:
            return Event(Until.SESSION_OPEN, session)
        return None

    def _drop(self, request: Request) -> None:
        until, key = self._forget(request)
        queue = self._queues[until][key]
        del queue[request]
        if not queue:
            del self._queues[until][key]
        self._note_change(until, key)

    def _forget(self, request: Request) -> Event:
        event = self._events.pop(request)
        if event.until in _FOLLOWED:
            place = event.until, request.client, _session_of(request)
            self._ahead[place] -= 1
            if not self._ahead[place]:
                del self._ahead[place]
        return event

    def _note_change(self, until: Until, key: Key) -> None:
        """Note that the requests that wait for an event of a session have changed."""
        if isinstance(key, Session):
            key.note_change()
            if until is Until.TURN_FREE:
                self.changed_queues[key] = None
