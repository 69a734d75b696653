"""Output of the core for its driver: messages to send, and effects to carry out."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Session
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.link_messages import Mark, acknowledgement
from acp_gateway.protocol.outbox import Batch
from acp_gateway.versions.carried import Carried, are_same, for_gateway, shown
from acp_gateway.versions.translator import Output as Translated

EventName = Literal["permission_waiting", "turn_end"]

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


@dataclass(frozen=True, slots=True)
class LoadJournal:
    """Read the journal of a session from the archive; see `Multiplexer.journal_loaded`."""

    session: Session


@dataclass(frozen=True, slots=True)
class CheckDirectories:
    """Check directories; see `Multiplexer.directories_checked`."""

    check: DirectoryCheck


@dataclass(frozen=True, slots=True)
class StopUnused:
    """Stop an unused agent process that holds a session requested elsewhere."""

    handle: AgentHandle
    left: bool = False
    """True if the gateway that had all of its clients was started again."""


@dataclass(frozen=True, slots=True)
class EndLink:
    """End the link of a client, in whose place another one has come."""

    client: Client


Effect: TypeAlias = HookEvent | AuditEvent | LogMessage | LoadJournal | CheckDirectories | StopUnused | EndLink
"""Work for the driver besides sending messages. Storage is not an effect: see `archive`."""


@dataclass(slots=True)
class Output:
    """Messages to send, in order for each recipient, and effects to carry out afterwards, in order."""

    to_agent: list[bytes] = field(default_factory=list)
    to_clients: dict[Client, Sequence[bytes]] = field(default_factory=dict)
    replayed: dict[Client, int] = field(default_factory=dict)
    """Bytes of history among the messages for each client, which do not make it a slow one."""
    effects: list[Effect] = field(default_factory=list)


class Outgoing:
    """Collects output until the driver takes it."""

    def __init__(self) -> None:
        self._output = Output()
        self.carries = False
        """True if the agent's messages carry others."""
        # Clients that were not sent messages which count in a history.
        self._passed_over: set[Client] = set()
        self.translated: deque[tuple[Client, bytes]] = deque()
        """Messages that translators send to the agent in the name of their clients."""

    @property
    def has_replay(self) -> bool:
        """True if the output contains a history."""
        return bool(self._output.replayed)

    def take(self) -> Output:
        """Return the output since the last call; it belongs to the caller."""
        for client in self._output.to_clients:
            if client.translator is not None and client.counts:
                # What was translated may have been more messages, or fewer, than count in the history.
                self._add_to(client).append(Mark(acknowledgement(0, client.positions())))
        while self._passed_over:
            client = self._passed_over.pop()
            if client.counts and not client.gone:
                self._add_to(client).append(Mark(acknowledgement(0, client.positions())))
        taken, self._output = self._output, Output()
        return taken

    # Messages

    def agent(self, text: bytes) -> None:
        """Send a message to the agent."""
        self._output.to_agent.append(text)

    def client(self, client: Client, text: bytes, position: int | None = None) -> None:
        """Send a message to a client, unless it is gone.

        `position` is the number of messages before it in the journal of its session; None if it is in no journal.
        """
        if client.gone:
            return
        if client.carries:
            self._add_to(client).append(for_gateway(text))
        elif client.translator is None and isinstance(text, Carried) and text.is_hidden:
            self._passed_over.add(client)
        elif client.translator is None or isinstance(text, Mark):
            self._add_to(client).append(text)
        else:
            self.put(client, client.translator.from_agent(text, position))

    def clients(self, clients: Iterable[Client], text: bytes, position: int | None = None) -> None:
        """Send the same message to several clients."""
        for client in clients:
            self.client(client, text, position)

    def fan_out(self, clients: Iterable[Client], texts: Sequence[bytes], position: int = 0) -> None:
        """Send the same messages to several clients (fan-out), as one object where a client gets nothing else.

        `position` is the number of messages before the first in the journal of their session.
        """
        is_same = self.carries and are_same(texts)
        seen = shown(texts) if self.carries and not is_same else texts
        batch, to_clients = Batch(seen), self._output.to_clients
        for client in clients:
            if client.translator is not None and not (is_same and client.translator.is_same):
                self.put(client, client.translator.from_agent_together(texts, position))
                continue
            if client.carries and not client.gone:
                self._add_to(client).extend(map(for_gateway, texts))
                continue
            if len(seen) < len(texts):
                self._passed_over.add(client)
            if not seen:
                continue
            if client in to_clients:
                self._add_to(client).extend(batch)
            elif not client.gone:
                to_clients[client] = batch

    def replay(self, client: Client, history: Sequence[bytes], position: int | None = None) -> None:
        """Send a session's history to a client; `position` is that of its first message, for translators."""
        if client.gone or not history:
            return
        replayed = self._output.replayed
        if client.translator is None:
            seen = list(map(for_gateway, history)) if client.carries else shown(history)
            if len(seen) < len(history):
                self._passed_over.add(client)
            self._add_to(client).extend(seen)
            replayed[client] = replayed.get(client, 0) + sum(map(len, seen))
            return
        for offset, text in enumerate(history):
            translated = client.translator.from_agent(text, None if position is None else position + offset)
            self.put(client, translated)
            replayed[client] = replayed.get(client, 0) + sum(map(len, translated.to_client))

    def put(self, client: Client, translated: Translated) -> None:
        """Take what a client's translator has made of a message or an event."""
        if client.gone:
            return
        if translated.to_client:
            self._add_to(client).extend(translated.to_client)
        self.translated.extend((client, text) for text in translated.to_agent)

    def _add_to(self, client: Client) -> list[bytes]:
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

    def stop_unused(self, handle: AgentHandle, *, left: bool = False) -> None:
        """Queue the stop of an unused agent process, once."""
        effect = StopUnused(handle, left)
        if effect not in self._output.effects:
            self.effect(effect)

    def audit(self, name: str, client: Client | None, /, **details: Any) -> None:
        """Queue an audit event."""
        self.effect(AuditEvent(name, client, details))

    def log(self, text: str) -> None:
        """Queue a log message. Names chosen by peers are escaped: they may contain terminal control sequences."""
        self.effect(LogMessage(printable(text, LOG_MESSAGE_SIZE)))
