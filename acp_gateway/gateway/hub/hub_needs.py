"""The services that a hub needs from the gateway around it; an interface. `hub_services` implements it."""

from typing import TYPE_CHECKING, Protocol

from acp_gateway.core.output import AuditEvent, HookEvent
from acp_gateway.core.requests import DirectoryCheck
from acp_gateway.core.sessions.session import AgentHandle, Client, Session
from acp_gateway.transports.metering import Charge

if TYPE_CHECKING:
    from acp_gateway.gateway.hub.hub import Hub


class HubServices(Protocol):
    """The services that a hub needs from the gateway around it."""

    def notify(self, event: HookEvent) -> None:
        """Run the hook for an event."""

    def audit(self, event: AuditEvent) -> None:
        """Record an event in the audit."""

    def load_journal(self, hub: "Hub", session: Session) -> None:
        """Read the journal of a session, and call `hub.journal_loaded` afterwards."""

    def check_directories(self, hub: "Hub", check: DirectoryCheck) -> None:
        """Check the directories of a request, and call `hub.directories_checked` afterwards."""

    def stop_unused(self, handle: AgentHandle, *, left: bool = False) -> None:
        """Stop the unused agent of another hub, and call `sessions_freed` of this one afterwards."""

    def memory_grew(self, size: int) -> None:
        """Account for bytes that were kept, and make room if all hubs together keep too many."""

    def rate_limiter(self, client: Client) -> Charge:
        """Return the function that charges a client for what it sends."""
