"""Binds listening sockets or takes inherited ones, and removes them afterwards."""

import errno
import ipaddress
import logging
import os
import socket
import stat
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final

import trio

from acp_gateway.config.addresses import Address, overlap
from acp_gateway.errors import CannotListen
from acp_gateway.gateway.agent.orphans import PROC, descriptors_of, process_ids, read_stat
from acp_gateway.server import systemd

log = logging.getLogger(__name__)

_LISTENING: Final = "0A"
"""The state of a listening socket in `/proc/net/tcp`."""

_TAILSCALE: Final = "100.100.100.100"
"""Address of Tailscale's name server, to which only machines in a network of Tailscale have a route of their own."""

_FREE_PORTS: Final = 1024
"""The first port that any user may listen on."""


class BoundSockets:
    """The listening sockets of one address, see `bind`."""

    def __init__(self, address: Address, listeners: list[trio.SocketListener], *, owns_file: bool) -> None:
        self.listeners = listeners
        self.urls = [_url(address, listener) for listener in listeners]
        """Their actual addresses, with the port that the system chose."""
        # Path of the unix socket, to be removed with it.
        self._file = Path(address.path) if owns_file else None
        self._closed = False

    def close(self) -> None:
        """Stop listening, and remove the file of a unix socket.

        May be called again: the file is removed once, because the next one may belong to another gateway.
        """
        if self._closed:
            return
        self._closed = True
        for listener in self.listeners:
            listener.socket.close()
        if self._file is not None:
            try:
                self._file.unlink(missing_ok=True)
            except OSError as error:
                log.warning("cannot remove %s: %s", self._file, error.strerror)


async def bind(address: Address, inherited: Sequence[socket.socket] = ()) -> BoundSockets:
    """Listen at an address: on matching inherited sockets, else on new ones.

    An inherited socket is closed with the rest, but its file belongs to its creator and stays. Raises `CannotListen` if
    the system refuses.
    """
    given = [sock for sock in inherited if systemd.fits(sock, address)]
    if given:
        listeners = [trio.SocketListener(trio.socket.from_stdlib_socket(sock)) for sock in given]
        return BoundSockets(address, listeners, owns_file=False)
    try:
        if address.scheme == "unix":
            return BoundSockets(address, [_bind_unix(address.path)], owns_file=True)
        return BoundSockets(address, await trio.open_tcp_listeners(address.port, host=address.host), owns_file=False)
    except OSError as error:
        raise CannotListen(f"cannot listen on {address}: {_explain(error, address)}") from error


def check_free(address: Address) -> None:
    """Raise `CannotListen` if the gateway could not listen at a TCP address now. Listens there for a moment."""
    try:
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, kind, protocol, _, place in found:
            with socket.socket(family, kind, protocol) as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                sock.bind(place)
                # Only this fails where another socket, bound with the same option, listens.
                sock.listen(1)
    except OSError as error:
        raise CannotListen(f"cannot listen on {address}: {_explain(error, address)}") from error


def find_own_addresses() -> list[str]:
    """Return the addresses by which other machines reach this one: in its network, and in a VPN. Sends nothing."""
    # The first are addresses for documentation: the system only chooses the route to the rest of the world.
    found = (
        _find_source(socket.AF_INET, "192.0.2.1"),
        _find_source(socket.AF_INET6, "2001:db8::1"),
        _find_source(socket.AF_INET, _TAILSCALE),
    )
    return list(dict.fromkeys(host for host in found if host is not None))


def _find_source(family: socket.AddressFamily, elsewhere: str) -> str | None:
    """Return the own address for packets to another one; None without a route, and on loopback."""
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((elsewhere, 9))
            host = str(sock.getsockname()[0])
    except OSError:
        return None
    return None if ipaddress.ip_address(host).is_loopback else host


def find_overlap(addresses: Sequence[Address]) -> tuple[Address, Address] | None:
    """Return the first two addresses that can't both be listened at, because they are the same; None if there are none.

    Resolves host names, and blocks while it does.
    """
    resolved = [_resolve(address) for address in addresses]
    for (first, its), (second, others) in combinations(zip(addresses, resolved, strict=True), 2):
        may_meet = first.port == second.port and (first.port != 0 or first.scheme == second.scheme == "unix")
        if may_meet and any(overlap(one, other) for one in its for other in others):
            return first, second
    return None


def _resolve(address: Address) -> list[str]:
    """Return the IP addresses of a host, or the resolved path of a unix socket."""
    if address.scheme == "unix":
        path = Path(address.path)
        return [str(path.parent.resolve() / path.name)]
    try:
        return [str(found[4][0]) for found in socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)]
    except (OSError, UnicodeError):
        return []  # Listening at it reports the error.


def _explain(error: OSError, address: Address) -> str:
    """Explain why the system refused an address, with the likeliest cause and the next step."""
    if isinstance(error, socket.gaierror):
        return f"{address.host} is not a name or address of this machine (it does not resolve)"
    if error.errno == errno.EADDRNOTAVAIL:
        return f"this machine does not have the address {address.host}: use one that it has, or 0.0.0.0 for all"
    if error.errno == errno.ENOENT and address.scheme == "unix":
        return f"there is no directory {Path(address.path).parent} for the socket"
    if error.errno == errno.EACCES and 0 < address.port < _FREE_PORTS and address.scheme != "unix":
        return (
            f"ports below {_FREE_PORTS} are for root: use 7443, or a socket unit"
            " (`acp-gateway files systemd/README.md`)"
        )
    if error.errno == errno.EADDRINUSE:
        holder = find_listener(address.port)
        return (
            f"address already in use by {holder}"
            if holder
            else "address already in use; is another acp-gateway running?"
        )
    return os.strerror(error.errno).lower() if error.errno else str(error)


def find_listener(port: int) -> str | None:
    """Name the process that listens on a TCP port, as `process 4711 (nginx)`; None where /proc does not tell."""
    inodes = set()
    for table in ("tcp", "tcp6"):
        try:
            lines = (PROC / "net" / table).read_text().splitlines()[1:]
        except OSError:
            continue
        for fields in map(str.split, lines):
            if fields[3] == _LISTENING and int(fields[1].rpartition(":")[2], 16) == port:
                inodes.add(f"socket:[{fields[9]}]")
    for pid in process_ids(PROC) if inodes else ():
        if not inodes.isdisjoint(descriptors_of(pid, PROC)):
            process = read_stat(pid, PROC)
            name = process.name if process is not None and process.name.isprintable() else "?"
            return f"process {pid} ({name})"
    return None


def _bind_unix(path: str) -> trio.SocketListener:
    """Bind a unix socket that only its owner can open; a stale one, of a gateway that was killed, is replaced."""
    if os.path.exists(path):
        if not stat.S_ISSOCK(os.stat(path).st_mode):
            raise OSError(f"{path} exists and is not a socket")
        with socket.socket(socket.AF_UNIX) as probe:
            # Otherwise a full backlog would block.
            probe.setblocking(False)
            refused = probe.connect_ex(path)
        if refused == errno.ECONNREFUSED:
            os.unlink(path)
        elif refused in (0, errno.EAGAIN):
            raise OSError(f"another gateway is listening at {path}")
        else:
            raise OSError(refused, os.strerror(refused))
    sock = socket.socket(socket.AF_UNIX)
    # The mode has to be right from the start: other users could connect before a later chmod.
    before = os.umask(0o177)
    try:
        sock.bind(path)
    except OSError:
        sock.close()
        raise
    finally:
        os.umask(before)
    sock.listen(128)
    return trio.SocketListener(trio.socket.from_stdlib_socket(sock))


def _url(address: Address, listener: trio.SocketListener) -> str:
    if address.scheme == "unix":
        return str(address)
    host, port = listener.socket.getsockname()[:2]
    return str(replace(address, host=host, port=port))
