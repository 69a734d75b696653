"""The client of a connection as it was admitted, and the sessions and agents that exist for it."""

from collections.abc import Container
from dataclasses import replace
from typing import Final

from acp_gateway.core.sessions.session import Role, Session
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.sessions.session_view import Viewer


class UsableAgents(Container[str]):
    """The agents whose sessions a connection is told of: also agents of nodes that do not answer now.

    Args:
        gateway: the gateway, for the configuration in force.
        grant: the connection, which may have asked for one of them.
    """

    def __init__(self, gateway: Gateway, grant: Grant) -> None:
        self._gateway = gateway
        self._grant = grant

    def __contains__(self, name: object) -> bool:
        asked = self._grant.connect_request
        if not isinstance(name, str) or asked.agent not in (None, name) or not self._grant.access.may_use(name):
            return False
        config = self._gateway.config
        return name in config.agents or (not asked.passed and config.leads_to(name))


class Admitted:
    """A client that begins with no agent.

    Args:
        gateway: the gateway, which must be running.
        access: its principal.
        wanted: what it connects for: a session that it is restricted to, or to observe.
        sees_doubt: see `Viewer.sees_doubt`.
        replaces: True if its connection takes the place of one that is counted already.
        evicts: False if the connection is not needed yet: none that is away is evicted for it.

    Raises what `Gateway.admit` raises.
    """

    def __init__(
        self,
        gateway: Gateway,
        access: Access,
        wanted: ConnectRequest,
        *,
        sees_doubt: bool = False,
        replaces: bool = False,
        evicts: bool = True,
    ) -> None:
        self._gateway = gateway
        wanted = ConnectRequest(wanted.agent, wanted.session, wanted.observe, control=True, passed=wanted.passed)
        self.grant: Final = gateway.admit(access, wanted, replaces=replaces, evicts=evicts)
        self._sees_doubt = sees_doubt
        # Wider than what is shown, which depends on the sessions that there are; each change is looked at again.
        self._widest = Viewer(self.grant.reach, self.role, access.agents, sees_doubt)
        # One that is bound to nothing is the same viewer for as long as that lasts.
        self._is_constant = self.bound is None and wanted.agent is None

    @property
    def access(self) -> Access:
        """Its principal."""
        return self.grant.access

    @property
    def role(self) -> Role:
        """Its role."""
        return self.grant.role

    @property
    def bound(self) -> str | None:
        """The only session that exists for it; None for all of its identity."""
        return self.grant.reach.only

    @property
    def viewer(self) -> Viewer:
        """The client, as sessions are shown to it now. Raises `AccessError`."""
        access = self.access
        if self._is_constant:
            if access.token is not None:
                self._gateway.storage.token_used(access.token.id)
            return self._widest
        # A guest's token is bound to a session's owner when it first leads to one.
        reach = self._gateway.admissions.authorize(access, self.grant.connect_request).reach
        return replace(self._gateway.views.viewer(reach, self.role, access.agents), sees_doubt=self._sees_doubt)

    def covers(self, session: Session) -> bool:
        """Return True if changes of a session may be for it, as `Viewer.covers`."""
        return self._widest.covers(session)
