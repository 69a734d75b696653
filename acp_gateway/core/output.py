"""Output of the core for its driver: messages to send, and effects to carry out."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeAlias

from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Session
from acp_gateway.printable import printable
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.outbox import Batch

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
        self._output.to_agent.append(text)

    def client(self, client: Client, text: bytes) -> None:
        """Send a message to a client, unless it is gone."""
        if not client.gone:
            self._add_to(client).append(text)

    def clients(self, clients: Iterable[Client], text: bytes) -> None:
        """Send the same message to several clients."""
        for client in clients:
            self.client(client, text)

    def fan_out(self, clients: Iterable[Client], texts: Iterable[bytes]) -> None:
        """Send the same messages to several clients (fan-out), as one object where a client gets nothing else."""
        batch, to_clients = Batch(texts), self._output.to_clients
        for client in clients:
            if client in to_clients:
                self._add_to(client).extend(batch)
            elif not client.gone:
                to_clients[client] = batch

    def replay(self, client: Client, history: Sequence[bytes]) -> None:
        """Send a session's history to a client."""
        if not client.gone and history:
            self._add_to(client).extend(history)
            replayed = self._output.replayed
            replayed[client] = replayed.get(client, 0) + sum(map(len, history))

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
