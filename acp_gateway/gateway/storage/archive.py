"""The core's archive: passes its changes to the storage, and restores sessions at the start."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import trio

from acp_gateway.core.requests import KeptPrompt
from acp_gateway.core.sessions.archive import CostEvent, JournalLoss
from acp_gateway.core.sessions.registry import FORMER
from acp_gateway.core.sessions.session import Session
from acp_gateway.core.turns.journal import Journal, TurnMessages
from acp_gateway.core.turns.queued_prompts import describe_prompt, left
from acp_gateway.gateway.costs.spending import Amounts, Meters
from acp_gateway.gateway.storage.records import SpentBy, StoredJournal, StoredPrompt, StoredRun, StoredSession
from acp_gateway.gateway.storage.spending import day_of
from acp_gateway.gateway.storage.store import Storage
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.text.pairs import Entry, size_of


class StoredArchive:
    """An archive in a storage.

    Args:
        storage: the storage, before `open`.
        journals: keep histories as well.
        spent: is told what sessions cost.
        now: returns the time, in seconds since 1970.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        journals: bool = True,
        spent: Callable[[Session, Amounts], None] = lambda _, __: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        self._storage = storage
        self._journals = journals
        self._spent = spent
        self._meters = Meters()
        self._now = now
        # The key and the time of creation of each session, and the sessions by key.
        self._keys: dict[Session, tuple[int, float]] = {}
        self._sessions: dict[int, Session] = {}
        # Epoch and position of the histories that were on disk at the start.
        self._places: dict[Session, tuple[str, int]] = {}
        storage.rely_on(self)

    def restore(self, journal_limit: int) -> list[Session]:
        """Return the sessions of earlier processes, the least recently used first. Called at the start; blocks."""
        restored = []
        for stored in sorted(self._storage.open(), key=lambda stored: stored.used):
            session_id, mark, number = stored.session_id.rpartition(FORMER)
            is_aside = bool(mark) and number.isdecimal()
            session_id = session_id if is_aside else stored.session_id
            session = Session(stored.agent, session_id, stored.owner, Journal(journal_limit))
            session.aside = stored.session_id.removeprefix(session_id)
            session.cwd, session.title, session.updated_at = stored.cwd, stored.title, stored.updated_at
            session.created_at = round(stored.created * 1000)
            session.active_at = round(stored.used * 1000) if stored.active is None else stored.active
            session.archived = stored.archived
            session.is_named = stored.named
            session.agent_id = stored.agent_id
            self._meters.restore(session, stored.meter)
            session.keep_directory()
            session.may_lack_end = stored.open
            self._enter(session, stored.key, stored.created)
            self._places[session] = stored.epoch, stored.position
            restored.append(session)
        for prompt in self._storage.prompts():
            self._restore_prompt(prompt)
        return restored

    def _restore_prompt(self, stored: StoredPrompt) -> None:
        try:
            shown = describe_prompt(stored.key, stored.at, jsonrpc.parse(stored.text))
        except InvalidMessage:
            self._storage.drop_prompt(stored.key)
            return
        shown = replace(shown, auto=stored.auto, due=stored.due)
        prompt = KeptPrompt(shown, stored.identity, stored.sender, stored.text, stored.is_new)
        kept = self._sessions[stored.session].kept
        kept[stored.key] = left(prompt, round(self._now() * 1000), was_sent=stored.sent)

    async def prompts_written(self) -> None:
        """Wait until what was told of prompts is on disk, as `Storage.prompts_written`."""
        await self._storage.prompts_written()

    async def read(self, session: Session, journal_limit: int) -> Journal | None:
        """Return the stored journal of a session; None if there is none. Cancelling loses nothing."""
        if session not in self._keys:
            return None
        key = self._keys[session][0]
        stored = await self._storage.read_journal(key)
        if stored is None:
            return None
        journal = Journal(journal_limit, stored.epoch)
        runs = (TurnMessages(run.messages, run.states, run.ends_turn, run.times) for run in stored.runs)
        restoring = journal.restoring(
            stored.states,
            runs,
            stored.position,
            truncated=stored.truncated,
            former=stored.former,
            ends=stored.ends,
        )
        for _ in restoring:
            await trio.lowlevel.checkpoint()
        return journal

    def key_of(self, session: Session) -> int | None:
        """Return the key of a session on disk; None if it is not stored."""
        return self._keys[session][0] if session in self._keys else None

    def stored_places(self) -> dict[Session, tuple[int, str, int]]:
        """Return key, epoch and position of the history of each stored session, as they were at the start, the least
        recently used session first. Called once."""
        places, self._places = self._places, {}
        return {session: (key, *places.get(session, ("", 0))) for session, (key, _) in self._keys.items()}

    def expired(self) -> list[Session]:
        """Return the sessions that were unused for `retention_days`, live ones too."""
        keys = set(self._storage.expired())
        return [session for session, (key, _) in self._keys.items() if key in keys] if keys else []

    def _enter(self, session: Session, key: int, created: float) -> None:
        self._keys[session] = key, created
        self._sessions[key] = session

    # Called by the core

    def keep(self, session: Session) -> None:
        now = self._now()
        if session not in self._keys:
            created = now if session.created_at is None else session.created_at / 1000
            self._enter(session, self._storage.new_key(), created)
        key, created = self._keys[session]
        self._storage.keep(
            StoredSession(
                key=key,
                agent=session.agent,
                session_id=session.name,
                owner=session.owner,
                cwd=session.cwd,
                title=session.title,
                updated_at=session.updated_at,
                created=created,
                used=now,
                epoch=session.journal.epoch,
                former=session.journal.former,
                open=session.counts_as_open,
                active=session.active_at,
                archived=session.archived,
                named=session.is_named,
                agent_id=session.agent_id,
                meter=self._meters.of(session).encode(),
            )
        )

    def remove(self, session: Session) -> None:
        if session in self._keys:
            key, _ = self._keys.pop(session)
            del self._sessions[key]
            self._storage.forget(key)

    def write(self, session: Session, message: Entry, state: str | None, time: int | None) -> None:
        self._grow(session, size_of((message,)))

    def extend(self, session: Session, messages: Sequence[Entry], time: int | None) -> None:
        self._grow(session, size_of(messages) if session.journal.carries else sum(map(len, messages)))

    def _grow(self, session: Session, size: int) -> None:
        key, _ = self._keys[session]
        self._storage.grow(key, size)

    def meter(self, session: Session, event: CostEvent, told: Any = None) -> None:
        amounts = self._meters.note(session, event, told)
        if event not in ("total", "turn") or session not in self._keys:
            return  # Nothing is to be stored, or it was deleted in its turn.
        if amounts:
            self._spent(session, amounts)
            by = SpentBy(day_of(self._now()), session.agent, session.name, session.owner)
            self._storage.spend(self._keys[session][0], by, amounts)
        self.keep(session)

    def note_change(self, session: Session) -> None: ...

    def end_turn(self, session: Session) -> None:
        key = self._keys[session][0]
        self._storage.grow(key, 0)
        if self._storage.problem is None and not self.holds(session):
            # It was given up because a write failed; writing works again.
            self.replace(session)
        self.keep(session)

    def keep_prompt(self, session: Session, prompt: KeptPrompt) -> bool:
        if session not in self._keys:
            return False
        shown = prompt.shown
        return self._storage.put_prompt(
            StoredPrompt(
                shown.key,
                self._keys[session][0],
                shown.at,
                shown.due,
                shown.auto,
                shown.state == "lost",
                prompt.identity,
                prompt.sender,
                prompt.is_new,
                prompt.text,
            )
        )

    def send_prompt(self, session: Session, key: str) -> bool:
        return self._storage.send_prompt(key)

    def drop_prompt(self, session: Session, key: str) -> None:
        self._storage.drop_prompt(key)

    def replace(self, session: Session) -> None:
        key = self._keys[session][0]
        self._storage.replace(key)

    def finish_journal(self, session: Session) -> None:
        if session in self._keys:
            key = self._keys[session][0]
            self._storage.finish_journal(key)

    def holds(self, session: Session) -> bool:
        return session in self._keys and self._storage.keeps_journal(self._keys[session][0])

    def loss(self, session: Session) -> JournalLoss | None:
        if not self._journals or session not in self._keys:
            return None
        if not self.holds(session):
            return "removed"
        return "cut" if self._storage.has_cut_journal(self._keys[session][0]) else None

    # Called by the storage

    def has(self, key: int) -> bool:
        """Return True if the journal of the session with this key is in memory. A cleared one has no epoch."""
        session = self._sessions.get(key)
        return session is not None and bool(session.journal.epoch)

    def snapshot(self, key: int, epoch: str, position: int) -> StoredJournal:
        """Return a copy of that journal's messages after this position in this epoch; of all if some are lost."""
        journal = self._sessions[key].journal
        follows = journal.epoch == epoch and position <= journal.position
        runs = [StoredRun(*run) for run in journal.runs(position if follows else 0)]
        return StoredJournal(
            journal.epoch,
            journal.position,
            journal.truncated,
            journal.states_set_aside(),
            runs,
            journal.former,
            tuple(journal.ends((position, 0) if follows else (0, 0))),
            carries=journal.carries,
        )
