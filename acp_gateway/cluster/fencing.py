"""Fencing: finds sessions of this node that another node has adopted, and stops them here.

A refused write or claim tells it, a message of the other node, or a look at the directory. After a pause (`Lease`), the
gateway looks before it handles anything of a client or an agent. When the directory can't be reached, it goes on:
nothing is decided from absence.
"""

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import Final, Protocol

import trio

from acp_gateway.cluster.lease import Lease, Times, read_clocks
from acp_gateway.cluster.records import SessionRecord
from acp_gateway.cluster.session_writer import is_own
from acp_gateway.cluster.store import Change, Claim, ClusterLost, ClusterStore
from acp_gateway.config.nodes import SEPARATOR
from acp_gateway.core.sessions import Session

log = logging.getLogger(__name__)

ASK_TIMEOUT: Final = 10.0
"""Seconds in which the directory has to say after a pause which sessions are still here."""

MAX_HINTS: Final = 10_000
"""Maximum number of sessions that are to be looked at because another node has told of them."""


class KnownEpochs(Protocol):
    """The part of a `SessionWriter` that fencing uses."""

    epochs: dict[str, int]

    def key_of(self, session: Session) -> str:
        """Return the key of a session."""

    def epoch_of(self, session: Session) -> int:
        """Return the epoch in which this node has a session."""


def is_fenced(record: SessionRecord | None, node: str, epoch: int) -> bool:
    """Return whether a session that a node has in an epoch belongs to another node by this record."""
    return record is not None and record.node != node and record.epoch > epoch


class Fence:
    """Stops sessions of this node that others have adopted.

    Args:
        store: the directory.
        node: the name of this node.
        lease: the last look at the directory.
        writer: knows the epochs of this node's sessions.
        sessions: returns all sessions of the gateway.
        stop: stops a session here, which a node has adopted.
        is_up: returns whether the directory could be reached at the last attempt.
        clocks: returns the present times.
    """

    def __init__(
        self,
        store: ClusterStore,
        node: str,
        lease: Lease,
        writer: KnownEpochs,
        sessions: Callable[[], Iterable[Session]],
        stop: Callable[[Session, str], None],
        is_up: Callable[[], bool],
        clocks: Callable[[], Times] = read_clocks,
    ) -> None:
        self._store = store
        self._node = node
        self._lease = lease
        self._writer = writer
        self._sessions = sessions
        self._stop = stop
        self._is_up = is_up
        self._clocks = clocks
        self.given_back: Callable[[Session, int], None] = lambda _session, _epoch: None
        """Called with a session that another node had adopted and could not open, and its epoch."""
        self._asking = trio.Lock()
        # Keys of sessions that another node has told of.
        self._hints: dict[str, None] = {}
        self._signal = trio.Event()

    def gate(self) -> Awaitable[None] | None:
        """Return what has to be awaited before messages are handled; None if nothing has."""
        return self._ask() if self._lease.lapsed(self._clocks()) else None

    async def _ask(self) -> None:
        async with self._asking:
            began = self._clocks()
            if not self._lease.lapsed(began):
                return
            log.info("this gateway was paused: it asks the directory of its cluster which sessions are still here")
            try:
                with trio.move_on_after(ASK_TIMEOUT) as asking:
                    await self.check()
                if asking.cancelled_caught:
                    raise ClusterLost(f"no answer in {ASK_TIMEOUT:g} s")
            except ClusterLost as error:
                self._lease.failed(began, self._clocks())
                log.warning("the directory of the cluster did not say which sessions are still here: %s", error)
            else:
                self._lease.looked(began)

    async def check(self) -> None:
        """Look at the directory, and stop the live sessions that others have adopted. Raises `ClusterLost`.

        Cancelling leaves some unchecked.
        """
        held = {record.key for record in await self._store.sessions(self._node)}
        for session in [session for session in self._sessions() if session.live and is_own(session)]:
            if self._writer.key_of(session) not in held:
                await self._look_at(session)

    async def _look_at(self, session: Session) -> None:
        key = self._writer.key_of(session)
        record = await self._store.session(key)
        if record is not None and is_fenced(record, self._node, self._writer.epoch_of(session)):
            self._stop_here(session, record.node)

    async def _look_for(self, session: Session) -> None:
        """Take back a session that has moved, if the directory has it here."""
        record = await self._store.session(self._writer.key_of(session))
        if record is not None and record.node == self._node and session.moved is not None:
            log.info("session %s of the cluster is here again: the node %s gave it back", record.key, session.moved)
            self.given_back(session, record.epoch)

    def _stop_here(self, session: Session, node: str) -> None:
        self._writer.epochs.pop(self._writer.key_of(session), None)
        self._stop(session, node)

    # What tells that a session has moved

    async def renewed(self, _emptied: bool) -> None:  # noqa: FBT001 # The interface of `Member.renewed`.
        """Look at the directory with a renewal, after a pause or where it was lost. Raises `ClusterLost`."""
        if self._lease.lapsed(self._clocks()) or not self._is_up():
            await self.check()

    def refused(self, session: Session, claim: Claim) -> None:
        """Take a refused write or claim of a session."""
        if claim.node and claim.node != self._node:
            self._stop_here(session, claim.node)

    def note(self, change: Change) -> None:
        """Take a change that another node has told of."""
        if change.kind == "adopt" and change.node != self._node and len(self._hints) < MAX_HINTS:
            self._hints[change.name] = None
            self._signal.set()

    async def run(self) -> None:
        """Look at the sessions that other nodes tell of, until cancelled."""
        while True:
            await self._signal.wait()
            self._signal = trio.Event()
            hints, self._hints = self._hints, {}
            # Past ones too: a later request to open them is refused then, without the directory.
            for session in [it for it in self._sessions() if self._writer.key_of(it) in hints]:
                try:
                    if is_own(session):
                        await self._look_at(session)
                    elif session.moved is not None and SEPARATOR not in session.agent:
                        await self._look_for(session)
                except ClusterLost:
                    break  # The next renewal looks at all.
