"""The way to a peer as the system knows it: whether sent bytes are confirmed, and the address that is used for it."""

import socket
import struct
import sys
from typing import Final, NamedTuple


class PathState(NamedTuple):
    """The state of a connection in the system."""

    acknowledged: int = 0
    """Bytes that the peer's system has confirmed, since the beginning."""
    in_flight: bool = False
    """True if segments were sent that are not confirmed."""
    queued: bool = False
    """True if bytes wait in the system, sent or not."""
    ended: bool = False
    """True if the peer has closed its side, though it may read on."""
    lost: bool = False
    """True if nothing can be sent or come any more, but for what has come."""


class Route(NamedTuple):
    """The addresses of a connection."""

    local: str
    """The address on this machine."""
    peer: tuple[str, int]
    """The address and the port of the other end."""


_CLOSE: Final = 7
_CLOSE_WAIT: Final = 8
"""Linux's numbers of the states of a connection that is lost, and of one whose peer has closed its side."""

_TCP_INFO_SIZE: Final = 148
_UNACKED: Final = 24
_BYTES_ACKED: Final = 120
_NOT_SENT: Final = 144
"""Offsets in Linux's `struct tcp_info`, which only grows at its end."""


def path_state(sock: socket.socket) -> PathState | None:
    """Return the state of a TCP connection; None where the system does not tell: only Linux does."""
    if sys.platform != "linux" or sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_SIZE)
    except OSError:
        return None
    if len(info) < _TCP_INFO_SIZE:
        return None
    unacked, acknowledged, not_sent = (
        struct.unpack_from("=I", info, _UNACKED)[0],
        struct.unpack_from("=Q", info, _BYTES_ACKED)[0],
        struct.unpack_from("=I", info, _NOT_SENT)[0],
    )
    queued = unacked > 0 or not_sent > 0
    return PathState(acknowledged, unacked > 0, queued, info[0] == _CLOSE_WAIT, info[0] == _CLOSE)


def route_of(sock: socket.socket) -> Route | None:
    """Return the addresses of a TCP connection; None for other sockets, and for a closed one."""
    if sock.family not in (socket.AF_INET, socket.AF_INET6):
        return None
    try:
        return Route(sock.getsockname()[0], sock.getpeername()[:2])
    except OSError:
        return None


def source_address(peer: tuple[str, int]) -> str | None:
    """Return the address of this machine from which a peer would be reached now; None if there is no way to it.

    `peer` has a numeric address. Nothing is sent.
    """
    family = socket.AF_INET6 if ":" in peer[0] else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect(peer)
            return str(probe.getsockname()[0])
    except OSError:
        return None
