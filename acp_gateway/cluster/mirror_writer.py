"""Mirrors the histories of this node's live sessions to the directory, where others read them while this node is away.

It writes behind the changes, in rounds, from the journals in memory, so nothing is queued. What the directory has of a
history ends with the last round, and has its last `limit` bytes.
"""

from collections.abc import Callable, Iterable
from typing import Final, NamedTuple, Protocol

import trio

from acp_gateway.cluster.records import ID_SIZE
from acp_gateway.cluster.session_writer import is_own
from acp_gateway.cluster.store import Claim, ClusterLost, ClusterStore, mirror_word
from acp_gateway.core.journal import Journal
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.session_changes import SessionChanges, Subscription

PAUSE: Final = 0.5
"""Seconds between two rounds: a reader elsewhere misses as little as a gateway that is killed."""

BATCH: Final = 64 * 1024
"""Bytes that one operation writes, and one message more: sealing them takes the event loop about a millisecond."""

MESSAGES: Final = 512
"""Maximum number of messages that one operation writes."""

ROUND: Final = 1024 * 1024
"""Bytes of one session that are written in one round: the rest follows in the next ones, or is skipped if there is more
of it than the mirror holds."""


class Claims(Protocol):
    """The part of a `SessionWriter` that mirroring uses."""

    epochs: dict[str, int]
    refused: Callable[[Session, Claim], None]

    def key_of(self, session: Session) -> str:
        """Return the key of a session."""


class _Place(NamedTuple):
    """The end of the mirrored part of a journal."""

    journal: str
    position: int


class MirrorWriter:
    """Mirrors the histories of one node.

    Args:
        store: the directory.
        node: the name of this node.
        changes: tells which histories have grown.
        sessions: returns all sessions of the gateway, those of other nodes as well.
        claims: knows the epochs of this node's sessions, and is told of refusals.
        limit: bytes of one mirrored history. A larger message is left out.
        is_up: returns whether the directory can be reached.
    """

    def __init__(
        self,
        store: ClusterStore,
        node: str,
        changes: SessionChanges,
        sessions: Callable[[], Iterable[Session]],
        claims: Claims,
        limit: int,
        is_up: Callable[[], bool],
    ) -> None:
        self._store = store
        self._node = node
        self._changes = changes
        self._sessions = sessions
        self._claims = claims
        self._limit = limit
        self._is_up = is_up
        # By key, also of sessions that are not live: they may be opened again.
        self._places: dict[str, _Place] = {}
        self._dirty: dict[Session, None] = {}
        self._signal = trio.Event()

    async def run(self) -> None:
        """Mirror until cancelled."""
        with self._changes.subscribe(is_own) as subscription:
            self._follow(subscription, self._sessions())
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                while True:
                    changed = await subscription.wait()
                    for session in changed.removed:
                        self._dirty.pop(session, None)
                        self._places.pop(self._claims.key_of(session), None)
                    self._follow(subscription, changed.sessions)
                    self._dirty |= dict.fromkeys(changed.journals)
                    self._signal.set()
                    # What grows often is noted once.
                    await trio.sleep(PAUSE)

    async def renewed(self, emptied: bool) -> None:  # noqa: FBT001 # The interface of `Member.renewed`.
        """Go on with what could not be written; if the directory was emptied, mirror all live sessions anew."""
        if emptied:
            self._places.clear()
            self._dirty |= dict.fromkeys(session for session in self._sessions() if session.live and is_own(session))
        if self._dirty:
            self._signal.set()

    def _follow(self, subscription: Subscription, sessions: Iterable[Session]) -> None:
        """Follow the histories of those of these sessions that are live, and no more those of the others."""
        for session in sessions:
            if session.live and is_own(session) and len(self._claims.key_of(session)) <= ID_SIZE:
                subscription.follow(session)
                self._dirty[session] = None
            else:
                subscription.unfollow(session)

    async def _write(self) -> None:
        while True:
            await self._signal.wait()
            self._signal = trio.Event()
            try:
                await self.flush()
            except ClusterLost:
                continue  # They stay noted, and the next renewal goes on.
            await trio.sleep(PAUSE)
            if self._dirty and self._is_up():
                self._signal.set()

    async def flush(self) -> None:
        """Write a part of what is not mirrored yet, of each session. Raises `ClusterLost`; the rest stays noted."""
        for session in [*self._dirty]:
            # It may grow again while it is written.
            self._dirty.pop(session, None)
            try:
                is_whole = await self._mirror(session)
            except ClusterLost:
                self._dirty[session] = None
                raise
            if not is_whole:
                self._dirty[session] = None

    async def _mirror(self, session: Session) -> bool:
        """Write at most `ROUND` bytes of a history; return False if more is to be written later."""
        if not is_own(session):
            return True
        key, left = self._claims.key_of(session), ROUND
        while left > 0:
            journal, epoch = session.journal, self._claims.epochs.get(key)
            word = mirror_word(journal.epoch, session.owner)
            begin = self._begin(key, journal, word)
            if begin >= journal.position:
                return True
            if epoch is None:
                return False  # The session is not claimed yet.
            batch, size = self._batch(journal, begin)
            # What was cut off or skipped meanwhile begins the mirror anew.
            continues = self._places.get(key) == _Place(word, begin)
            claim = await self._store.append(key, self._node, epoch, word, begin, batch, continues=continues)
            if not claim.granted:
                return self._refused(session, claim)
            self._places[key] = _Place(word, begin + len(batch))
            left -= size
        return False

    def _begin(self, key: str, journal: Journal, word: str) -> int:
        """Return the position after which a journal is to be mirrored: its end, if that is mirrored."""
        place = self._places.get(key)
        if place is None or place.journal != word:
            place = _Place(word, journal.start)
        begin = max(place.position, journal.start)
        if journal.position - begin > MESSAGES:
            # What the mirror has no room for would be cut off again.
            begin = max(begin, journal.begin_of_last(self._limit))
        return begin

    def _batch(self, journal: Journal, begin: int) -> tuple[list[tuple[int | None, bytes]], int]:
        """Return the next messages with their times, and their size."""
        end, batch, size = min(begin + MESSAGES, journal.position), [], 0
        for time, message in zip(journal.times(begin, end), journal.messages(begin, end), strict=True):
            batch.append((time, message if len(message) <= self._limit else b""))
            size += len(batch[-1][1])
            if size >= BATCH:
                break
        return batch, size

    def _refused(self, session: Session, claim: Claim) -> bool:
        """Take a refusal; return False if the session is to be mirrored later."""
        key = self._claims.key_of(session)
        self._places.pop(key, None)
        if not claim.node:
            return False  # The directory was emptied: the session is written again first.
        if claim.node != self._node:
            self._claims.refused(session, claim)
            return True
        return False  # The directory has lost a part of the mirror: it begins again with all that is in memory.
