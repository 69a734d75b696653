"""Output of the core for its driver: messages to send, hook events, audit events, log messages, and requested work."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from acp_gateway.core.sessions import AgentHandle, Client, DirectoryCheck, Session
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.outbox import Batch

EventName = Literal["permission_waiting", "turn_end"]

NOTE_SIZE: Final = 1000
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


@dataclass(slots=True)
class Output:
    """Messages to send, in order for each recipient, and work for the driver."""

    to_agent: list[bytes] = field(default_factory=list)
    to_clients: dict[Client, Sequence[bytes]] = field(default_factory=dict)
    replayed: dict[Client, int] = field(default_factory=dict)
    """Bytes of history for each client, which do not make it a slow one."""
    abandoned: list[AgentHandle] = field(default_factory=list)
    """Unused processes that hold a session requested elsewhere: to be stopped."""
    events: list[HookEvent] = field(default_factory=list)
    wanted: list[Session] = field(default_factory=list)
    """Sessions whose journal is to be read from the archive; see `Multiplexer.journal_loaded`."""
    directory_checks: list[DirectoryCheck] = field(default_factory=list)
    """Directories to check; see `Multiplexer.directories_checked`."""
    audit_events: list[AuditEvent] = field(default_factory=list)
    """Events for the audit log."""


class Outgoing:
    """Collects output until the driver takes it."""

    def __init__(self) -> None:
        self._deliveries = Output()
        self._notes: list[str] = []

    @property
    def has_replay(self) -> bool:
        """True if the output contains a history."""
        return bool(self._deliveries.replayed)

    def take(self) -> Output:
        """Return the output since the last call; it belongs to the caller."""
        taken, self._deliveries = self._deliveries, Output()
        return taken

    def take_notes(self) -> list[str]:
        """Return the log messages since the last call; they never contain a payload."""
        taken, self._notes = self._notes, []
        return taken

    def agent(self, text: bytes) -> None:
        """Send a message to the agent."""
        self._deliveries.to_agent.append(text)

    def client(self, client: Client, text: bytes) -> None:
        """Send a message to a client, unless it is gone."""
        if not client.gone:
            self._add_to(client).append(text)

    def clients(self, clients: Iterable[Client], text: bytes) -> None:
        """Send the same message to several clients."""
        for client in clients:
            self.client(client, text)

    def talk(self, clients: Iterable[Client], texts: Iterable[bytes]) -> None:
        """Send the same messages to several clients."""
        batch, to_clients = Batch(texts), self._deliveries.to_clients
        for client in clients:
            if client in to_clients:
                self._add_to(client).extend(batch)
            elif not client.gone:
                to_clients[client] = batch

    def replay(self, client: Client, history: Sequence[bytes]) -> None:
        """Send a session's history to a client."""
        if not client.gone and history:
            self._add_to(client).extend(history)
            replayed = self._deliveries.replayed
            replayed[client] = replayed.get(client, 0) + sum(map(len, history))

    def _add_to(self, client: Client) -> list[bytes]:
        """Return the messages for a client, as a list of its own."""
        messages = self._deliveries.to_clients.get(client, ())
        if not isinstance(messages, list):
            messages = self._deliveries.to_clients[client] = list(messages)
        return messages

    def refusal(self, client: Client, code: int, why: str, data: object = None) -> None:
        """Send a client an error under the id null."""
        self.client(client, jsonrpc.error(jsonrpc.NO_ID, code, why, data))

    def stop(self, home: AgentHandle) -> None:
        """Request the stop of an abandoned process."""
        if home not in self._deliveries.abandoned:
            self._deliveries.abandoned.append(home)

    def event(self, event: HookEvent) -> None:
        """Queue a hook event."""
        self._deliveries.events.append(event)

    def load_journal(self, session: Session) -> None:
        """Request the journal of a session from the archive."""
        self._deliveries.wanted.append(session)

    def directory_check(self, directory_check: DirectoryCheck) -> None:
        """Request a check of directories."""
        self._deliveries.directory_checks.append(directory_check)

    def audit_event(self, name: str, client: Client | None, /, **details: Any) -> None:
        """Queue an audit event."""
        self._deliveries.audit_events.append(AuditEvent(name, client, details))

    def note(self, text: str) -> None:
        """Queue a log message. Names chosen by peers are escaped: they may contain terminal control sequences."""
        self._notes.append(printable(text, NOTE_SIZE))
