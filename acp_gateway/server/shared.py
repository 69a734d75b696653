"""State that all listeners of a gateway share."""

from functools import cached_property

from acp_gateway.dialects.editor.sessions import Composers
from acp_gateway.dialects.local_client import AwayClients
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.server.handshake_limits import HandshakeLimiter
from acp_gateway.server.http.link import HttpLinks


class SharedState:
    """Limits and clients that do not depend on the address of a connection."""

    def __init__(self, gateway: Gateway) -> None:
        self.limiter = HandshakeLimiter(gateway.config, gateway.audit)
        """The limits of unauthenticated connections and of refusals."""
        self.links = HttpLinks(gateway)
        """The links over Streamable HTTP."""
        self.away = AwayClients(gateway)
        """The clients of browsers, widgets and editors that were kept."""
        self._gateway = gateway

    @cached_property
    def composers(self) -> Composers:
        """The composers of editors. Reads the file of them for the first time."""
        return Composers(self._gateway)
