"""Output of the core for its driver: messages to send, and effects to carry out."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias, cast

from acp_gateway.core.requests import Worktree
from acp_gateway.core.sessions.agent_ids import AgentIds
from acp_gateway.core.sessions.places import Place, place_of, step
from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Session
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.link_messages import Mark, Sent, acknowledgement, without_marks
from acp_gateway.protocol.methods import SESSION_UPDATE
from acp_gateway.protocol.outbox import Batch
from acp_gateway.protocol.text.pairs import Entry, Pair, are_same, has_pairs, is_hidden, shown, text_of
from acp_gateway.rules.rule import Rule
from acp_gateway.versions.translator import Output as Translated
from acp_gateway.versions.translator import Step

EventName = Literal["permission_waiting", "turn_end"]

_UPDATE: Final = SESSION_UPDATE.encode()

LOG_MESSAGE_SIZE: Final = 1000
"""Maximum length of a log message, in characters; its names and ids are each cut to less."""


@dataclass(frozen=True, slots=True)
class HookEvent:
    """An event for a configured hook."""

    name: EventName
    session: Session
    details: dict[str, Any]
    """JSON-compatible values."""
    age: float = 0.0
    """Seconds since it began."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """An event for the audit log; never a payload."""

    name: str
    """Name in the audit log."""
    client: Client | None
    """Client that caused it; None for the gateway itself."""
    details: dict[str, Any]
    """JSON-compatible values."""
    age: float = field(default=0.0, compare=False)
    """Seconds since it began; for metrics."""


@dataclass(frozen=True, slots=True)
class LogMessage:
    """A message for the log; never a payload."""

    text: str
    is_detail: bool = False
    """True if it is for debugging only."""


@dataclass(frozen=True, slots=True)
class LoadJournal:
    """Read the journal of a session from the archive; see `Multiplexer.journal_loaded`."""

    session: Session


@dataclass(frozen=True, slots=True)
class CheckDirectories:
    """Check directories; see `Multiplexer.directories_checked`."""

    check: DirectoryCheck


@dataclass(frozen=True, slots=True)
class DropWorktree:
    """Remove the working tree that was made for a session which could not be opened, or was never prompted."""

    client: Client
    worktree: Worktree
    session: Session | None = None
    """The session, if it was opened."""


@dataclass(frozen=True, slots=True)
class StopUnused:
    """Stop an unused agent process that holds a session requested elsewhere."""

    handle: AgentHandle


@dataclass(frozen=True, slots=True)
class WriteRule:
    """Write a rule that a client wants for permissions; see `Multiplexer.rule_written`."""

    rule: Rule
    session: Session
    client: Client


@dataclass(frozen=True, slots=True)
class StorePrompt:
    """Wait until the archive has stored what it was told of a prompt; see `Multiplexer.prompt_stored`."""

    key: str


_Event: TypeAlias = HookEvent | AuditEvent | LogMessage
Effect: TypeAlias = _Event | LoadJournal | CheckDirectories | DropWorktree | StopUnused | WriteRule | StorePrompt
"""Work for the driver besides sending messages. Storage is not an effect: see `archive`."""


@dataclass(slots=True)
class Output:
    """Messages to send, in order for each recipient, and effects to carry out afterwards, in order."""

    to_agent: list[bytes] = field(default_factory=list)
    to_clients: dict[Client, Sequence[Sent]] = field(default_factory=dict)
    replayed: dict[Client, int] = field(default_factory=dict)
    """Bytes of history among the messages for each client, which do not make it a slow one."""
    effects: list[Effect] = field(default_factory=list)


class Outgoing:
    """Collects output until the driver takes it."""

    def __init__(self) -> None:
        self._output = Output()
        self.carries = False
        """True if messages of the agent are pairs."""
        self.ids = AgentIds()
        """Ids of the sessions at the agent."""
        self.translated: deque[tuple[Client, bytes]] = deque()
        """Messages that translators send to the agent in the name of their clients."""

    @property
    def has_replay(self) -> bool:
        """True if the output contains a history."""
        return bool(self._output.replayed)

    def take(self) -> Output:
        """Return the output since the last call; it belongs to the caller."""
        taken, self._output = self._output, Output()
        return taken

    # Messages

    def agent(self, text: bytes) -> None:
        """Send a message to the agent."""
        self._output.to_agent.append(self.ids.to_agent(text))

    def client(self, client: Client, entry: Entry, session: Session | None = None) -> None:
        """Send a message that is in no journal to a client, unless it is gone; in a session, if one is named."""
        if client.gone:
            return
        if client.translator is not None:
            self.put(client, client.translator.from_agent(entry), session)
        elif not is_hidden(entry):
            self._send(client, self._uncounted(client, [text_of(entry)], session), session)

    def mark(self, client: Client, mark: Mark) -> None:
        """Send a client its position in sessions, unless it is gone."""
        if not client.gone:
            self._send(client, [mark])

    def send_position(self, session: Session, clients: Iterable[Client]) -> None:
        """Send the session's position to clients that count: counting alone would not lead them there."""
        for client in clients:
            if client.counts:
                self.mark(client, mark_at(session, place_of(session)))

    def clients(self, clients: Iterable[Client], entry: Entry) -> None:
        """Send the same message to several clients."""
        for client in clients:
            self.client(client, entry)

    def update(self, session: Session, entry: Entry, position: int, besides: Client | None = None) -> None:
        """Send an update to the clients of its session, but for one.

        `position` is the number of messages before it in the session's journal.
        """
        for client in session.attached:
            if client is not besides:
                self.update_for(client, session, entry, position)

    def update_for(self, client: Client, session: Session, entry: Entry, position: int) -> None:
        """Send an update of the session's journal to one of its clients, unless it reads the journal itself."""
        if client.gone or client.reads_journals:
            return
        if client.translator is None and client.cursors is None and not isinstance(entry, Pair):
            self._add_to(client).append(entry)
        else:
            self._send(client, self._journaled(client, [entry], position, _counting(client, session)), session)

    def fan_out(self, session: Session, entries: Sequence[Entry], position: int) -> None:
        """Send updates to the clients of their session (fan-out), as one object where a client gets nothing else.

        `position` is the number of messages before the first in the session's journal.
        """
        is_same = self.carries and are_same(entries)
        seen = shown(entries) if self.carries else cast("Sequence[Sent]", entries)
        batch, to_clients = Batch(seen), self._output.to_clients
        marked = batch if len(seen) == len(entries) else Batch(_shown_with_marks(session, entries, position))
        for client in session.attached:
            if client.gone or client.reads_journals:
                continue
            if client.translator is not None and not (is_same and client.translator.is_same):
                self._send(client, self._journaled(client, entries, position, _counting(client, session)), session)
                continue
            own = marked if _counting(client, session) else batch
            if client in to_clients or client.cursors is not None:
                self._send(client, own, session)
            elif own:
                to_clients[client] = own

    def replay(
        self,
        client: Client,
        history: Sequence[Entry | Mark],
        position: int | None = None,
        *,
        counts_in: Session | None = None,
        is_ordinary: bool = False,
    ) -> None:
        """Send a session's history, or a part of it, to a client.

        Args:
            client: the client.
            history: updates; with marks only for a client without a translator, and without a position.
            position: that of the first one in the journal; None if they are in no journal, or have marks.
            counts_in: the session, if the client has its place there and goes on counting.
            is_ordinary: count as other output, which a client that does not read is ended for.
        """
        if client.gone or client.reads_journals or not history:
            return
        sent: Sequence[Sent]
        if client.translator is None and position is None:
            sent = shown(history)
        else:
            sent = self._journaled(client, cast("Sequence[Entry]", history), position, counts_in)
        if sent:
            sent = self._send(client, sent, counts_in)
            if not is_ordinary:
                replayed = self._output.replayed
                replayed[client] = replayed.get(client, 0) + sum(map(len, sent))

    def rest(self, client: Client, session: Session, entry: Entry, position: int, updates: int) -> None:
        """Send the last so many of the updates that a message of the journal becomes for a client."""
        assert client.translator is not None, "a message has parts in a translation alone"
        made = client.translator.from_agent(entry, position)
        made.to_client = made.to_client[-updates:]
        made.steps = [Step(0, len(made.to_client), position)]
        self._send(client, _with_marks(session, made), session)

    def put(
        self, client: Client, translated: Translated, session: Session | None = None, end: int | None = None
    ) -> None:
        """Take what a client's translator has made of a message or an event, which is in no journal.

        Args:
            client: the client.
            translated: the messages.
            session: that of updates among them; None if there are none.
            end: position after the messages of the journal that the first update stands for; None if it is for none.
        """
        if client.gone:
            return
        if translated.to_client:
            self._send(client, self._uncounted(client, translated.to_client, session, end), session)
        self.translated.extend((client, text) for text in translated.to_agent)

    def _journaled(
        self, client: Client, entries: Sequence[Entry], position: int | None, counts_in: Session | None
    ) -> Sequence[Sent]:
        """Return what a client gets of updates of a journal, with marks where counting would lead it elsewhere."""
        if client.translator is None:
            if counts_in is None or position is None:
                return shown(entries)
            return _shown_with_marks(counts_in, entries, position) if has_pairs(entries) else shown(entries)
        if position is None:
            made = Translated()
            for entry in entries:
                made.extend(client.translator.from_agent(entry))
        else:
            made = client.translator.from_agent_together(entries, position)
        self.translated.extend((client, text) for text in made.to_agent)
        if counts_in is None or not made.steps:
            return made.to_client
        return _with_marks(counts_in, made)

    def _uncounted(
        self, client: Client, texts: Sequence[bytes], session: Session | None, end: int | None = None
    ) -> Sequence[Sent]:
        """Return messages that are in no journal, with marks around updates: they change no place.

        If `end` is given, the first update leads there. A client that is not attached gets its place later.
        """
        if session is None or session not in client.sessions or not _counting(client, session):
            return texts
        if not any(_UPDATE in text or b"\\" in text for text in texts):
            return texts
        here = session.journal.position
        begin = step(place_of(session), here, 0) if end is None else step(place_of(session), end, 1)
        return [mark_at(session, begin), *texts, mark_at(session, place_of(session, end))]

    def _send(self, client: Client, sent: Sequence[Sent], session: Session | None = None) -> Sequence[Sent]:
        """Send messages to a client, with its cursors if it has some; `session` is that of updates. Returns what is
        sent."""
        if client.cursors is not None:
            sent = client.cursors.stamp(sent, None if session is None else session.id)
            # Marks are control messages of a link that resumes.
            sent = without_marks(sent) if client.link is None else sent
        if sent:
            self._add_to(client).extend(sent)
        return sent

    def _add_to(self, client: Client) -> list[Sent]:
        """Return the messages for a client, as a list of its own."""
        messages = self._output.to_clients.get(client, ())
        if not isinstance(messages, list):
            messages = self._output.to_clients[client] = list(messages)
        return messages

    def refusal(self, client: Client, code: int, why: str, data: object = None) -> None:
        """Send a client an error under the id null."""
        self.client(client, jsonrpc.error(jsonrpc.NO_ID, code, why, data))

    # Effects

    def effect(self, effect: Effect) -> None:
        """Queue an effect."""
        self._output.effects.append(effect)

    def stop_unused(self, handle: AgentHandle) -> None:
        """Queue the stop of an unused agent process, once."""
        effect = StopUnused(handle)
        if effect not in self._output.effects:
            self.effect(effect)

    def audit(self, name: str, client: Client | None, /, **details: Any) -> None:
        """Queue an audit event."""
        self.effect(AuditEvent(name, client, details))

    def log(self, text: str, *, is_detail: bool = False) -> None:
        """Queue a log message. Names chosen by peers are escaped: they may contain terminal control sequences."""
        self.effect(LogMessage(printable(text, LOG_MESSAGE_SIZE), is_detail))


def _counting(client: Client, session: Session) -> Session | None:
    """Return a session if a client counts its position in it."""
    return session if client.counts else None


def mark_at(session: Session, place: Place) -> Mark:
    """Return the mark that tells a client its place in a session."""
    return Mark(acknowledgement(0, {session.id: place}))


def _shown_with_marks(session: Session, entries: Sequence[Entry], position: int) -> list[Sent]:
    """Return the messages of a journal that clients of version 1 get, with a mark after those that they do not."""
    found: list[Sent] = []
    is_behind = False
    for at, entry in enumerate(entries, position):
        if is_hidden(entry):
            is_behind = True
            continue
        if is_behind:
            found.append(mark_at(session, place_of(session, at)))
            is_behind = False
        found.append(text_of(entry))
    if is_behind:
        found.append(mark_at(session, place_of(session, position + len(entries))))
    return found


def _with_marks(session: Session, made: Translated) -> list[Sent]:
    """Return translated messages of a journal, with marks around those that have not become one each."""
    found: list[Sent] = []
    done = 0
    for start, end, position in made.steps:
        found += made.to_client[done:start]
        if end > start:
            found.append(mark_at(session, step(place_of(session, position), position + 1, end - start)))
            found += made.to_client[start:end]
        elif found and isinstance(found[-1], Mark):
            # It is followed by nothing.
            del found[-1]
        found.append(mark_at(session, place_of(session, position + 1)))
        done = end
    return [*found, *made.to_client[done:]]
