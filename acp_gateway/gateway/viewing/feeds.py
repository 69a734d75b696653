"""The feeds of one connection that may have something to tell, each in its turn."""

from collections.abc import Callable

from acp_gateway.gateway.sessions.history import HistoryReader
from acp_gateway.gateway.viewing.open_sessions import OpenSessions, Used
from acp_gateway.gateway.viewing.session_feed import SessionFeed
from acp_gateway.transports.timers import Signal


class Feeds:
    """The feeds that are asked next.

    Args:
        sessions: the sessions that the client has open; a feed that is of none any more tells nothing.
        reader: reads from the disk.
        news: notified of each feed that is to be asked.
        stopped: called when a feed has ended, as its session's history is another one.
    """

    def __init__(
        self, sessions: OpenSessions, reader: HistoryReader, news: Signal, stopped: Callable[[Used], None]
    ) -> None:
        self._sessions = sessions
        self._reader = reader
        self._news = news
        self._stopped = stopped
        self._waiting: dict[SessionFeed, None] = {}

    @property
    def first(self) -> SessionFeed | None:
        """The feed that is asked next; None if none is to be asked."""
        return next(iter(self._waiting), None)

    def add(self, feed: SessionFeed) -> None:
        """Ask a feed after the others."""
        self._waiting[feed] = None
        self._news.notify()

    async def next_of(self, feed: SessionFeed) -> list[bytes]:
        """Return the next messages of the first feed; none if it has none, or has to be asked again."""
        del self._waiting[feed]
        used = self._sessions.get(feed.session)
        if used is None or used.feed is not feed:
            return []
        if feed.wants_disk:
            await feed.read_rest(self._reader)
            if used.feed is not feed:
                return []
        texts = feed.next()
        if feed.stopped:
            self._stopped(used)
        elif feed.has_more:
            # Behind the others, which get their turn; but one rest at a time is in memory.
            self._waiting = {feed: None, **self._waiting} if feed.holds_rest else {**self._waiting, feed: None}
        return texts
