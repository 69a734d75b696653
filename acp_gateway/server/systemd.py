"""Implements systemd's socket activation and notifications, sd_listen_fds(3) and sd_notify(3).

Both need only variables and a socket, so no library is used. Variables that are taken out of the environment here are
not inherited by processes that the gateway starts.
"""

import errno
import ipaddress
import logging
import os
import socket
import time
from collections.abc import Callable, MutableMapping
from typing import Final

import trio

from acp_gateway.config.addresses import Address
from acp_gateway.errors import ConfigError

log = logging.getLogger(__name__)

FIRST_DESCRIPTOR: Final = 3
"""The first inherited descriptor, after stdin, stdout and stderr."""

STATUS_INTERVAL: Final = 5.0
"""Minimum seconds between two status lines: users read them, and each wakes systemd up."""

TIMEOUT: Final = 1.0
"""Maximum seconds that the gateway blocks to send that it is ready or stops. The socket is local, and systemd reads it
at once unless the machine is overloaded."""


def take_sockets(environment: MutableMapping[str, str]) -> list[socket.socket]:
    """Return the listening sockets that systemd passed to this process; none without socket activation.

    Removes systemd's variables from `environment`, and keeps child processes from inheriting the sockets. Raises
    `ConfigError` for a descriptor that is not a listening socket.
    """
    pid = environment.pop("LISTEN_PID", "")
    count = environment.pop("LISTEN_FDS", "")
    names = environment.pop("LISTEN_FDNAMES", "").split(":")
    if pid != str(os.getpid()):
        # They were passed to an ancestor of this process.
        return []
    if not (count.isascii() and count.isdigit() and len(count) < 6):
        raise ConfigError(f"expected a number of sockets, found {count[:64]!r}", key="LISTEN_FDS")
    sockets: list[socket.socket] = []
    try:
        for index in range(int(count)):
            name = names[index] if index < len(names) and names[index] else "without a name"
            sockets.append(_take(FIRST_DESCRIPTOR + index, name))
    except ConfigError:
        for sock in sockets:
            sock.close()
        raise
    return sockets


def fits(sock: socket.socket, address: Address) -> bool:
    """Return whether a listening socket listens at this address.

    A socket for all addresses of both families, as systemd binds a bare port, fits `0.0.0.0` and `[::]`. No other
    socket fits that listens at more addresses than configured.
    """
    bound = sock.getsockname()
    if address.scheme == "unix":
        # One in the abstract namespace is bytes, or begins with a NUL.
        named = isinstance(bound, str) and bound.startswith("/")
        return sock.family == socket.AF_UNIX and named and os.path.realpath(bound) == os.path.realpath(address.path)
    if sock.family not in (socket.AF_INET, socket.AF_INET6) or bound[1] != address.port:
        return False
    hosts = _numeric(address.host)
    host = ipaddress.ip_address(bound[0].partition("%")[0])
    if host in hosts:
        return True
    both = sock.family == socket.AF_INET6 and not sock.getsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY)
    return both and host.is_unspecified and ipaddress.IPv4Address(0) in hosts


def describe(sock: socket.socket) -> str:
    """Return the address of a listening socket for an error text."""
    bound = sock.getsockname()
    if sock.family == socket.AF_UNIX:
        return f"unix://{bound}" if isinstance(bound, str) else f"the abstract unix socket {bound!r}"
    host, port = bound[:2]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _take(descriptor: int, name: str) -> socket.socket:
    try:
        os.set_inheritable(descriptor, False)
        sock = socket.socket(fileno=descriptor)
    except OSError as error:
        why = "is not a socket" if error.errno == errno.ENOTSOCK else os.strerror(error.errno or 0).lower()
        raise ConfigError(f"descriptor {descriptor} ({name}) {why}", key="LISTEN_FDS") from None
    if sock.type != socket.SOCK_STREAM or not sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        sock.close()
        message = f"descriptor {descriptor} ({name}) does not listen; the socket unit needs ListenStream= alone"
        raise ConfigError(f"{message}, and Accept=no", key="LISTEN_FDS")
    return sock


def _numeric(host: str) -> set[ipaddress.IPv4Address | ipaddress.IPv6Address]:
    """Resolve a host of the configuration; none if it does not resolve."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError:
        return set()
    return {ipaddress.ip_address(str(address[0]).partition("%")[0]) for *_, address in found}


class Notifier:
    """Notifies the service manager of the gateway's state, as sd_notify(3) does; does nothing without one.

    Removes its variables from `environment`. No method raises: a faulty service manager must not stop the gateway.
    """

    def __init__(self, environment: MutableMapping[str, str]) -> None:
        path = environment.pop("NOTIFY_SOCKET", "")
        microseconds = environment.pop("WATCHDOG_USEC", "")
        pid = environment.pop("WATCHDOG_PID", str(os.getpid()))
        self._path = "\0" + path[1:] if path.startswith("@") else path
        self._socket: socket.socket | None = None
        if path.startswith(("@", "/")):
            self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        # Seconds between two watchdog notifications; None without a watchdog.
        self._interval: float | None = None
        if microseconds.isascii() and microseconds.isdigit() and int(microseconds) and pid == str(os.getpid()):
            self._interval = int(microseconds) / 2 / 1e6
        # Only the first failure is a warning.
        self._warned = False

    def ready(self) -> None:
        """Notify that all listeners are open, or that the reload is done."""
        self._notify("READY=1", timeout=TIMEOUT)

    def reloading(self) -> None:
        """Notify that files are being read again; `ready` follows."""
        microseconds = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        self._notify(f"RELOADING=1\nMONOTONIC_USEC={microseconds}", timeout=TIMEOUT)

    def stopping(self) -> None:
        """Notify that the gateway stops: it accepts no connections, and agents are being stopped."""
        self._notify("STOPPING=1\nSTATUS=stopping", timeout=TIMEOUT)

    async def run(self, describe_state: Callable[[], str]) -> None:
        """Ping the watchdog in its interval, and report the state when it has changed, until cancelled.

        `describe_state` returns the state as one line; it is called every `STATUS_INTERVAL` seconds.
        """
        if self._socket is None:
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._report_status, describe_state)
            if self._interval is not None:
                nursery.start_soon(self._ping_watchdog, self._interval)

    def close(self) -> None:
        """Close the socket; later notifications are dropped."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    async def _report_status(self, describe_state: Callable[[], str]) -> None:
        shown = None
        while True:
            state = describe_state()
            if state != shown:
                self._notify(f"STATUS={state}")
                shown = state
            await trio.sleep(STATUS_INTERVAL)

    async def _ping_watchdog(self, interval: float) -> None:
        # From the event loop, not from a thread: the watchdog is to notice a blocked loop.
        while True:
            self._notify("WATCHDOG=1")
            await trio.sleep(interval)

    def _notify(self, text: str, *, timeout: float = 0.0) -> None:
        if self._socket is None:
            return
        try:
            self._socket.settimeout(timeout)
            self._socket.sendto(text.encode(), self._path)
        except OSError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            self._warned = True
            why = error.strerror or "it takes too long"
            log.log(level, "cannot tell the service manager %s: %s", text.partition("\n")[0], why)
