"""Writes this node's sessions to the directory, behind their changes: each at most once in a second.

Only a person's decision begins an epoch: an adoption. The node that adopts remembers it with the session, and writes it
again after the directory was emptied. So whichever node is the first to write then, the last adoption wins.
"""

import logging
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Final

import msgspec
import trio

from acp_gateway.cluster.records import ID_SIZE, TEXT, SessionRecord
from acp_gateway.cluster.store import MAX_LISTED, Claim, ClusterLost, ClusterStore
from acp_gateway.config.nodes import SEPARATOR
from acp_gateway.core.sessions import Session
from acp_gateway.gateway.session_changes import SessionChanges

log = logging.getLogger(__name__)

PAUSE: Final = 1.0
"""Seconds between two rounds of writing, in which each session that has changed is written once."""


HOME_EPOCH: Final = 1
"""The epoch of a session on its home node, before any adoption."""


class SessionWriter:
    """Writes the sessions of one node.

    Args:
        store: the directory.
        node: the name of this node.
        changes: tells which sessions have changed.
        sessions: returns all sessions of the gateway, those of other nodes as well.
        is_up: returns whether the directory can be reached.
    """

    def __init__(
        self,
        store: ClusterStore,
        node: str,
        changes: SessionChanges,
        sessions: Callable[[], Iterable[Session]],
        is_up: Callable[[], bool],
    ) -> None:
        self._store = store
        self._node = node
        self._changes = changes
        self._sessions = sessions
        self._is_up = is_up
        self.epochs: dict[str, int] = {}
        """The epoch of each session that this process has written, by key."""
        self.refused: Callable[[Session, Claim], None] = lambda _session, _claim: None
        """Called with a session that another node holds."""
        self._dirty: dict[Session, None] = {}
        # Keys, with the epochs.
        self._removed: dict[str, int] = {}
        self._signal = trio.Event()

    async def run(self) -> None:
        """Write until cancelled."""
        with self._changes.subscribe(is_own) as subscription:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._write)
                while True:
                    changed = await subscription.wait()
                    for session in changed.removed:
                        self._dirty.pop(session, None)
                        self._removed[self.key_of(session)] = self.epoch_of(session)
                    self._dirty |= dict.fromkeys(changed.sessions)
                    self._signal.set()
                    # What changes often is noted once.
                    await trio.sleep(PAUSE)

    async def renewed(self, emptied: bool) -> None:  # noqa: FBT001 # The interface of `Member.renewed`.
        """Write all sessions again if the directory was emptied, the latest `MAX_LISTED` of them."""
        if emptied:
            own = [session for session in self._sessions() if is_own(session)]
            own.sort(key=lambda session: (session.live, session.active_at or session.created_at or 0))
            self._dirty = dict.fromkeys(own[-MAX_LISTED:]) | self._dirty
        if self._dirty or self._removed:
            self._signal.set()

    def key_of(self, session: Session) -> str:
        """Return the key of a session: the node that first had it, and its id."""
        return f"{session.home or self._node}{SEPARATOR}{session.id}"

    def epoch_of(self, session: Session) -> int:
        """Return the epoch in which this node has a session."""
        return session.adopted_epoch or HOME_EPOCH

    async def _write(self) -> None:
        while True:
            await self._signal.wait()
            self._signal = trio.Event()
            try:
                await self.flush()
            except ClusterLost:
                pass  # They stay noted, and the next renewal begins anew.
            await trio.sleep(PAUSE)

    async def flush(self) -> None:
        """Write the sessions that have changed. Raises `ClusterLost`; what is not written stays noted."""
        while self._removed:
            key = next(iter(self._removed))
            if len(key) <= ID_SIZE:
                # An earlier process may have written it, and mirrored its history.
                await self._store.remove(key, self._node, self.epochs.get(key, self._removed[key]))
            self._removed.pop(key, None)
            self.epochs.pop(key, None)
        for session in [*self._dirty]:
            # It may change again while it is written.
            self._dirty.pop(session, None)
            try:
                await self._write_one(session)
            except ClusterLost:
                self._dirty[session] = None
                raise

    async def _write_one(self, session: Session) -> None:
        record = self.record_of(session) if is_own(session) else None
        if record is None:
            return
        claim = await self._store.write(msgspec.structs.replace(record, epoch=self.epoch_of(session)))
        if claim.granted:
            if claim.epoch > self.epoch_of(session):
                # Another node has adopted it and given it back.
                session.adopted_epoch = claim.epoch
                if session in self._sessions():
                    session.archive.keep(session)
            self.epochs[record.key] = self.epoch_of(session)
        else:
            self.epochs.pop(record.key, None)
            log.warning("session %s of the cluster is held by the node %s, it is not written", record.key, claim.node)
            self.refused(session, claim)

    def record_of(self, session: Session) -> SessionRecord | None:
        """Return the record of a session, in no epoch yet; None if its id is too long."""
        key = self.key_of(session)
        if len(key) > ID_SIZE:
            return None
        return SessionRecord(
            key=key,
            node=self._node,
            agent=session.agent,
            owner=session.owner[:TEXT],
            epoch=0,
            title=None if session.title is None else session.title[:TEXT],
            cwd=None if session.cwd is None else session.cwd[:TEXT],
            updated=_iso(session.active_at) or (session.updated_at or "")[:64] or None,
            live=session.live,
            turn=bool(session.turns),
        )


def is_own(session: Session) -> bool:
    """Return whether a session is of an agent of this node, and lives here: no other node has adopted it."""
    return SEPARATOR not in session.agent and session.moved is None


def _iso(milliseconds: int | None) -> str | None:
    if milliseconds is None:
        return None
    return datetime.fromtimestamp(milliseconds / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
