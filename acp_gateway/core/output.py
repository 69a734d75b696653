"""What the core has decided and its driver has to carry out: messages for whom, and words for the log and the audit."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from acp_gateway.core.sessions import AgentHandle, Client, DirectoryCheck, Session
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.outbox import Batch

EventName = Literal["permission_waiting", "turn_end"]

NOTE_SIZE: Final = 1000
"""Characters of one log message: what names and ids in it are cut to adds up to less."""


@dataclass(frozen=True, slots=True)
class HookEvent:
    """Something that a person may want to be told who is not looking."""

    name: EventName
    session: Session
    details: dict[str, Any]
    """What JSON can hold."""
    age: float = 0.0
    """Seconds since it began."""


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """Something that somebody may want to look up later; never what was said."""

    name: str
    """As the audit calls it."""
    client: Client | None
    """Who did it; None for the gateway itself."""
    details: dict[str, Any]
    """What JSON can hold."""


@dataclass(slots=True)
class Output:
    """Messages to be sent, in order for each recipient."""

    to_agent: list[bytes] = field(default_factory=list)
    to_clients: dict[Client, Sequence[bytes]] = field(default_factory=dict)
    replayed: dict[Client, int] = field(default_factory=dict)
    """How many of a client's bytes are history: no reason to call it slow."""
    abandoned: list[AgentHandle] = field(default_factory=list)
    """Processes that hold a session which is wanted elsewhere, and that nobody uses: to be stopped."""
    events: list[HookEvent] = field(default_factory=list)
    wanted: list[Session] = field(default_factory=list)
    """Sessions whose journal is to be read from the archive; see `Multiplexer.journal_loaded`."""
    directory_checks: list[DirectoryCheck] = field(default_factory=list)
    """Directories that are to be looked at, for the core to go on; see `Multiplexer.directories_checked`."""
    audit_events: list[AuditEvent] = field(default_factory=list)
    """For the audit."""


class Outgoing:
    """Where decisions are collected until the driver takes them."""

    def __init__(self) -> None:
        self._deliveries = Output()
        self._notes: list[str] = []

    @property
    def has_replay(self) -> bool:
        """Whether a history is among what is to be sent."""
        return bool(self._deliveries.replayed)

    def take(self) -> Output:
        """What is to be sent since the last call; the caller's from now on."""
        taken, self._deliveries = self._deliveries, Output()
        return taken

    def take_notes(self) -> list[str]:
        """What a person should know since the last call; never a payload."""
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
        """What is to be sent to a client, as a list of its own."""
        messages = self._deliveries.to_clients.get(client, ())
        if not isinstance(messages, list):
            messages = self._deliveries.to_clients[client] = list(messages)
        return messages

    def refusal(self, client: Client, code: int, why: str, data: object = None) -> None:
        """Answer a client under the id null."""
        self.client(client, jsonrpc.error(jsonrpc.NO_ID, code, why, data))

    def stop(self, home: AgentHandle) -> None:
        """Have a deserted process stopped."""
        if home not in self._deliveries.abandoned:
            self._deliveries.abandoned.append(home)

    def event(self, event: HookEvent) -> None:
        """Tell a person, if that was asked for."""
        self._deliveries.events.append(event)

    def load_journal(self, session: Session) -> None:
        """Have a session's journal read."""
        self._deliveries.wanted.append(session)

    def directory_check(self, directory_check: DirectoryCheck) -> None:
        """Have directories looked at."""
        self._deliveries.directory_checks.append(directory_check)

    def audit_event(self, name: str, client: Client | None, /, **details: Any) -> None:
        """Write something down in the audit."""
        self._deliveries.audit_events.append(AuditEvent(name, client, details))

    def note(self, text: str) -> None:
        """Queue a log message. Names chosen by peers are escaped: they may contain terminal control sequences."""
        self._notes.append(printable(text, NOTE_SIZE))
