"""Serves the connections that this gateway lends to its doors, as a listener with TLS does those that it accepts."""

import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Final

from acp_gateway.client.pairing import LENT_CERTIFICATE
from acp_gateway.config.load import Config, ListenSection
from acp_gateway.config.nodes import DoorSection
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.nodes.lent.lending import Lending
from acp_gateway.security.certificates import create_certificate, read_certificate
from acp_gateway.security.tls import server_context
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.http.routes import SharedState
from acp_gateway.server.listener import Listener
from acp_gateway.server.pending import PendingConnection, make_id
from acp_gateway.server.sockets import BoundSockets

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


def open_lendings(
    config: Config, gateway: Gateway, shared: SharedState, tokens: TokenStore, doors: Mapping[str, DoorSection]
) -> list[Lending]:
    """Return what lends connections to each door. Raises `ConfigError` if a certificate can't be used."""
    section = lent_section(config)
    assert section.cert is not None
    pin = read_certificate(section.cert).pin
    return [
        Lending(
            name,
            door,
            pin=pin,
            token=tokens.lend_to(name),
            serve=LentListener(section, gateway, shared, name).serve,
            stall_timeout=config.gateway.stall_timeout,
        )
        for name, door in doors.items()
    ]


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
