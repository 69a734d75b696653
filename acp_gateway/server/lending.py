"""Serves the connections that this gateway lends to its doors, as a listener with TLS does those that it accepts."""

import socket
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

import trio

from acp_gateway.client.pairing import LENT_CERTIFICATE
from acp_gateway.config.load import Config, ListenSection
from acp_gateway.config.nodes import DoorSection
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.nodes.lent.lending import Lending
from acp_gateway.security.certificates import create_certificate, read_certificate
from acp_gateway.security.tls import server_context
from acp_gateway.server.http.routes import SharedState
from acp_gateway.server.listener import Listener
from acp_gateway.server.pending import PendingConnection, make_id
from acp_gateway.server.sockets import BoundSockets
from acp_gateway.transports.timers import Signal

_URL: Final = "wss://0.0.0.0:7443"
"""URL of a listener that accepts any `Host`. Nothing listens there."""


class LentListener(Listener):
    """Serves connections that have come through a door, and accepts none itself."""

    def __init__(self, section: ListenSection, gateway: Gateway, shared: SharedState, door: str) -> None:
        assert section.cert is not None
        assert section.key is not None
        context = server_context(section.cert, section.key, section.client_ca)
        super().__init__(section, gateway, shared, context, BoundSockets(section.address, [], owns_file=False))
        self._door = door

    def _make_pending(self, sock: socket.socket) -> PendingConnection:
        connection_id = make_id()
        place = f"by way of the door {self._door}"
        return PendingConnection(
            name=f"{connection_id[:8]} ({place})",
            peer=place,
            listener=place,
            connection_id=connection_id,
            network=place,
            # All clients of the door have this address.
            limited=False,
        )


class Lendings:
    """Lends connections to the doors of a gateway's configuration.

    Args:
        gateway: the gateway.
        shared: limits and clients that its listeners share.

    Raises `ConfigError` if a certificate can't be used, as `reload`.
    """

    def __init__(self, gateway: Gateway, shared: SharedState) -> None:
        self._gateway = gateway
        self._shared = shared
        self._lent: dict[str, _Lent] = {}
        # Notified with other doors.
        self._changed = Signal()
        self.reload(gateway.config)

    def __iter__(self) -> Iterator[Lending]:
        """Return what lends to each door."""
        return (lent.lending for lent in self._lent.values())

    async def run(self, connections: trio.Nursery) -> None:
        """Lend connections until cancelled; serve those that are taken in `connections`."""
        async with trio.open_nursery() as nursery:
            while True:
                for lent in self._lent.values():
                    if not lent.is_started:
                        lent.is_started = True
                        nursery.start_soon(lent.run, connections)
                await self._changed.wait()

    def reload(self, config: Config) -> None:
        """Use the doors of a configuration from now on, and read the certificate again.

        Clients that have come through a door that was removed or changed lose their connections within a second.
        """
        section = lent_section(config)
        assert section.cert is not None
        pin = read_certificate(section.cert).pin
        for name, lent in list(self._lent.items()):
            if config.doors.get(name) == lent.lending.section:
                lent.listener.reload()
                lent.lending.renew(pin)
            else:
                del self._lent[name]
                lent.scope.cancel()
                self._gateway.tokens.end_lending(name)
        for name, door in config.doors.items():
            if name not in self._lent:
                self._lent[name] = self._lend(name, door, section, pin)
        self._changed.notify()

    def _lend(self, name: str, door: DoorSection, section: ListenSection, pin: str) -> "_Lent":
        listener = LentListener(section, self._gateway, self._shared, name)
        lending = Lending(
            name,
            door,
            pin=pin,
            token=self._gateway.tokens.lend_to(name),
            serve=listener.serve,
            stall_timeout=self._gateway.config.gateway.stall_timeout,
        )
        return _Lent(lending, listener)


@dataclass(eq=False, slots=True)
class _Lent:
    """Connections lent to one door, and the listener that serves them."""

    lending: Lending
    listener: LentListener
    scope: trio.CancelScope = field(default_factory=trio.CancelScope)
    is_started: bool = False

    async def run(self, connections: trio.Nursery) -> None:
        with self.scope:
            await self.lending.run(connections)


def lent_section(config: Config) -> ListenSection:
    """Return the section by which lent connections are served: the first with TLS for all, else one of their own."""
    for section in config.listen:
        if section.address.tls and section.speaks_http and "acp" in section.services:
            # Its clients name it as the door does, and the door has checked the name by which a page has reached it.
            return replace(section, url=_URL, local_user=None, allowed_hosts=())
    cert, key = own_certificate(config.gateway.state_dir)
    return ListenSection(url=_URL, cert=cert, key=key)


def own_certificate(state_dir: Path) -> tuple[Path, Path]:
    """Return the certificate of lent connections and its key, which are made once. Raises `ConfigError`."""
    cert = state_dir / LENT_CERTIFICATE
    folder, key = cert.parent, cert.with_name("key.pem")
    if not (cert.exists() and key.exists()):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        create_certificate(["localhost"], folder)
    return cert, key
