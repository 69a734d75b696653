"""Keeps the clients of browsers that have left, where an agent would end with them.

An agent with `scope = "connection"` ends with the last connection of its owner. A page is reloaded, and a phone sleeps:
so its client stays in the session for as long as the link of an editor would, counts as away, and the browser takes it
over when it returns.
"""

import logging
from dataclasses import dataclass, field
from typing import Final, TypeAlias
from weakref import WeakKeyDictionary

import trio

from acp_gateway.core.sessions.session import Client, Role, Session
from acp_gateway.dialects.local_client import LocalClient
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.hub import Hub

log = logging.getLogger(__name__)

CHECK_INTERVAL: Final = 10.0
"""Seconds between two looks at whether a client has been away for too long, or a quarter of `away_grace_idle`."""

_Key: TypeAlias = tuple[Session, str, Role, str]
"""A session, the credential with which the client was admitted, its role, and its kind: what one kind shows to its
user, another one refuses."""


@dataclass(slots=True, eq=False)
class _Kept:
    client: LocalClient
    hub: Hub
    as_core: Client
    waiting: trio.CancelScope = field(default_factory=trio.CancelScope)


class AwayClients:
    """The kept clients of one gateway."""

    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway
        self._kept: dict[_Key, _Kept] = {}

    def keep(self, session: Session, client: LocalClient) -> bool:
        """Keep a client in a session; return False if its agent goes on without it, or it may not keep the agent."""
        grant = client.grant
        key = session, grant.access.credential, grant.role, grant.connect_request.via
        hub = next((hub for hub in self._gateway.hubs if hub.multiplexer.agent_handle is session.agent_handle), None)
        if hub is None or hub.ended or key in self._kept or not self._gateway.config.is_private(hub.name):
            return False
        controllers = [it for it in hub.multiplexer.clients if it.controls and not it.scope.guest]
        if [it.name for it in controllers] != [client.name]:
            return False
        kept = self._kept[key] = _Kept(client, hub, controllers[0])
        hub.tell_time(trio.current_time())
        hub.multiplexer.client_away(kept.as_core)
        hub.deliver()
        log.info("%s: the browser has left, keeping its client", client.name)
        self._gateway.start_task(self._expire, key, kept)
        return True

    async def _expire(self, key: _Key, kept: _Kept) -> None:
        settings = self._gateway.config.gateway
        since = quiet_since = trio.current_time()
        with kept.waiting:
            while not kept.client.ended:
                await trio.sleep(min(CHECK_INTERVAL, settings.away_grace_idle / 4))
                now = trio.current_time()
                if kept.hub.multiplexer.busy:
                    quiet_since = now
                if now - since >= settings.away_grace or now - quiet_since >= settings.away_grace_idle:
                    break
        if self._kept.get(key) is kept:
            del self._kept[key]
            await kept.client.leave()

    def take(self, session: Session, access: Access, role: Role, via: str) -> LocalClient | None:
        """Return the client of this kind that was kept for this principal in a session, which is connected again."""
        kept = self._kept.pop((session, access.credential, role, via), None)
        if kept is None:
            return None
        kept.waiting.cancel()
        if kept.client.ended or kept.as_core.gone:
            return None
        kept.hub.tell_time(trio.current_time())
        kept.hub.multiplexer.client_back(kept.as_core)
        kept.hub.deliver()
        return kept.client


_of_gateways: Final[WeakKeyDictionary[Gateway, AwayClients]] = WeakKeyDictionary()


def away_clients(gateway: Gateway) -> AwayClients:
    """Return the kept clients of a gateway."""
    found = _of_gateways.get(gateway)
    if found is None:
        found = _of_gateways[gateway] = AwayClients(gateway)
    return found
