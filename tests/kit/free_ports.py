"""Ports of loopback for programs that tests start, and start again at the same one.

A port that the system has chosen is one of those that it gives to any socket which connects: while the program is down,
another one may get it. The ports here are outside of that range.
"""

import os
import socket
import sys
from collections import deque
from collections.abc import Iterator
from itertools import chain, cycle
from pathlib import Path
from typing import Final

RANGE_FILE: Final = Path("/proc/sys/net/ipv4/ip_local_port_range")
"""First and last port that Linux chooses."""

OTHER_RANGE: Final = "49152 65535"
"""The same of other systems."""

FIRST: Final = 10_000
"""Lowest port here: well-known services have lower ones."""

LAST: Final = 65_535

KEPT: Final = 100
"""Number of ports that stay claimed: more than programs are down at once."""


def ports_to_choose(system_range: str) -> list[int]:
    """Return the ports that the system does not choose; all if it may choose any."""
    low, high = map(int, system_range.split())
    return [*range(FIRST, min(low, LAST + 1)), *range(max(high + 1, FIRST), LAST + 1)] or [*range(FIRST, LAST + 1)]


def _in_turn() -> Iterator[int]:
    """Yield all ports again and again; each process begins at another one."""
    ports = ports_to_choose(RANGE_FILE.read_text() if RANGE_FILE.exists() else OTHER_RANGE)
    start = os.getpid() * 997 % len(ports)
    return cycle(chain(ports[start:], ports[:start]))


_ports: Final = _in_turn()
_claims: Final[deque[int]] = deque()


def claim(port: int) -> int | None:
    """Claim a port until the returned descriptor is closed; None if a program listens there, or has claimed it.

    The claim is an abstract socket where there are some, otherwise the port of that number for datagrams, which only
    HTTP/3 uses. It counts for all processes of this machine, and ends with its own.
    """
    family, kind, address = _claim_of(port)
    # Detached, since it is kept until this process ends.
    with socket.socket() as listener, socket.socket(family, kind) as claimed:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("127.0.0.1", port))
            listener.listen()
            claimed.bind(address)
        except OSError:
            return None
        return claimed.detach()


def _claim_of(port: int) -> tuple[socket.AddressFamily, socket.SocketKind, str | tuple[str, int]]:
    if sys.platform == "linux":
        return socket.AF_UNIX, socket.SOCK_DGRAM, f"\0test port {port}"
    return socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", port)


def free_port() -> int:
    """Return a port of loopback at which no program listens, for this process alone."""
    while True:
        port = next(_ports)
        descriptor = claim(port)
        if descriptor is not None:
            _claims.append(descriptor)
            if len(_claims) > KEPT:
                os.close(_claims.popleft())
            return port
