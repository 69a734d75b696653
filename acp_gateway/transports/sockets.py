"""TCP, unix and TLS sockets as streams of bytes, driven directly.

Each operation is tried first and waits only if the kernel says so: a non-blocking call costs far less than a wake-up.
Reads that mostly find nothing wait first (`MAX_FRUITLESS`). TLS is `ssl.SSLSocket` on the same descriptor, for the same
reason. Works wherever Trio does, Windows included.
"""

import errno
import os
import re
import socket
import ssl
import struct
import sys
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeAlias

import trio

from acp_gateway.errors import ProtocolError, TrustError, Unreachable
from acp_gateway.printable import printable
from acp_gateway.transports.path_state import PathState, Route, path_state, route_of
from acp_gateway.transports.racing import Schedule, SocketAddress, race, resolve
from acp_gateway.transports.streams import (
    LITTLE,
    MAX_FRUITLESS,
    PLAIN_READ_SIZE,
    PROBE_EVERY,
    READ_COST,
    READ_SIZE,
    TURN,
    WRITE_SIZE,
    ByteStream,
)

TLS_RECORD: Final = 16384
"""Bytes given to OpenSSL at once, which reports no progress before all of them are written: the maximum size of a
record (RFC 8446, 5.1)."""

TLS_BURST: Final = 4 * TLS_RECORD
"""Bytes written at once after a wait, over TLS: encrypting costs several times as much as writing."""

MAX_DISCARDED: Final = 16 * 1024 * 1024
"""Bytes that are discarded after the end of this side before the connection is closed: more than systems have in flight
for one connection, so that a peer that reads still gets what was written. One that does not would send without end."""

SILENT_PEER: Final = 1.0
"""Seconds without a byte after which a peer is not waited for any more that has everything and leaves its side open: it
answers the end of this side within a round trip, or not at all."""

KEEPALIVE_IDLE = 20.0
KEEPALIVE_TIMEOUT = 20.0
"""Seconds of silence until a client's system probes the connection, and until it gives up; as the gateway's pings."""

_CERTIFICATE_ALERT: Final = re.compile(r"ALERT_(\w*CERTIFICATE\w*|UNKNOWN_CA|ACCESS_DENIED|DECRYPT_ERROR)")
"""OpenSSL's names of the alerts by which a server rejects its client's certificate (RFC 8446, 6.2); the last one is for
a signature by another authority."""

CERTIFICATE_REQUIRED: Final = "certificate required"
"""Result of `certificate_alert` if the client has sent no certificate and needs one."""

NO_TLS: Final = frozenset(
    {"WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG", "UNEXPECTED_MESSAGE", "HTTP_REQUEST"}
)
"""OpenSSL's reasons for an answer that is not TLS: the banner of sshd, an error of a web server."""

_Wait: TypeAlias = Callable[[socket.socket], Awaitable[None]]

_GREETING_TIMEOUT: Final = 1.0
"""Seconds to wait for the greeting of a server that does not speak TLS: sshd and mail servers say theirs at once."""

_GREETING_SIZE: Final = 80
"""Bytes of a greeting that are read: a line of a terminal."""

_NAME_MISMATCH: Final = (62, 64)
_EXPIRED: Final = 10
_NOT_YET_VALID: Final = 9
"""OpenSSL's numbers of certificate errors (X509_V_ERR_...); 62 is for names, 64 for addresses."""


class SocketBytes(ByteStream):
    """A connected, non-blocking socket, plain or TLS with its handshake done; closed with this stream."""

    __slots__ = ("_eof_sent", "_failure", "_finishing", "_fruitless", "_sock", "_tls", "_turn", "committed")

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        # Asked without `ssl`, whose import takes a while, which plain sockets do without.
        self._tls = hasattr(sock, "do_handshake")
        # A refused record is encrypted already and will be sent.
        self.committed = TLS_RECORD if self._tls else 0
        # Bytes read since other tasks had their turn.
        self._turn = 0
        # Calls in a row of `receive_some` that had to wait, for little.
        self._fruitless = 0
        self._eof_sent = False
        self._finishing = False
        # Error found behind bytes that are returned first.
        self._failure: OSError | None = None

    @property
    def peer_certificate(self) -> bytes | None:
        """Certificate of a TLS peer in DER; None without one."""
        return self._sock.getpeercert(binary_form=True) if isinstance(self._sock, ssl.SSLSocket) else None

    @property
    def tls_version(self) -> str | None:
        """Version of TLS as OpenSSL names it, such as `TLSv1.3`; None without TLS."""
        return self._sock.version() if isinstance(self._sock, ssl.SSLSocket) else None

    @property
    def path(self) -> PathState | None:
        return path_state(self._sock)

    @property
    def route(self) -> Route | None:
        return route_of(self._sock)

    def reset_when_closed(self, reset: bool) -> None:  # noqa: FBT001
        linger = struct.pack("hh" if sys.platform == "win32" else "ii", reset, 0)
        try:
            self._sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
        except OSError:
            pass  # The connection is lost.

    async def receive_some(self) -> bytes:
        if self._turn >= TURN:
            self._turn = 0
            await trio.lowlevel.checkpoint()
        waited = False
        while True:
            if self._finishing:
                raise trio.ClosedResourceError
            if self._eof_sent and self._tls:
                return b""
            wait: _Wait = trio.lowlevel.wait_readable
            # OpenSSL may hold bytes that no wait is told of.
            if waited or self._tls or self._fruitless % PROBE_EVERY < MAX_FRUITLESS:
                try:
                    if self._failure is not None:
                        raise self._failure
                    data = self._sock.recv(READ_SIZE if self._tls else PLAIN_READ_SIZE)
                    if len(data) == TLS_RECORD and self._tls:
                        data = self._read_on(data)
                    self._turn += READ_COST + len(data)
                    self._fruitless = self._fruitless + 1 if waited and len(data) < LITTLE else 0
                    return data
                except BlockingIOError:
                    pass
                except OSError as error:
                    wait = self._wait_after(error)
            # Not in the except clause, where the exception would be kept during the wait, with its traceback.
            await wait(self._sock)
            self._turn = 0
            waited = True

    def has_waited(self, data: bytes) -> bool:
        """Return whether other tasks had their turn while the last read waited for its `data`."""
        return self._turn == READ_COST + len(data)

    def _wait_after(self, error: OSError) -> _Wait:
        """Return the wait after which a call can be repeated that OpenSSL has refused for now.

        Raises the loss of the connection for any other error.
        """
        # A plain socket does without `ssl`, which may not be imported yet.
        if self._tls and isinstance(error, ssl.SSLWantReadError):
            return trio.lowlevel.wait_readable
        if self._tls and isinstance(error, ssl.SSLWantWriteError):
            return trio.lowlevel.wait_writable
        raise self._broken(error) from error

    def _read_on(self, record: bytes) -> bytes:
        """Return a full TLS record and the records that have come after it."""
        records = [record]
        try:
            while len(record) == TLS_RECORD and len(records) < READ_SIZE // TLS_RECORD:
                record = self._sock.recv(TLS_RECORD)
                records.append(record)
        except (ssl.SSLWantReadError, ssl.SSLWantWriteError):
            pass
        except OSError as error:
            self._failure = error
        return b"".join(records)

    def send_nowait(self, data: memoryview) -> int:
        try:
            return self._send(data, WRITE_SIZE)
        except BlockingIOError:
            return 0
        except OSError as error:
            self._wait_after(error)
            return 0

    async def send_some(self, data: memoryview) -> int:
        while True:
            wait: _Wait = trio.lowlevel.wait_writable
            try:
                return self._send(data, TLS_BURST if self._tls else WRITE_SIZE)
            except BlockingIOError:
                pass
            except OSError as error:
                wait = self._wait_after(error)
            await wait(self._sock)

    def _send(self, data: memoryview, most: int) -> int:
        """Write from the first `most` bytes without waiting; return their number, 1 or more. Raises as sockets."""
        if self._eof_sent:
            # After its end, a TLS socket would send plaintext.
            raise trio.ClosedResourceError
        if not self._tls:
            # The kernel takes all that it has room for.
            return self._sock.send(data if len(data) <= most else data[:most])
        sent = self._send_record(data)
        try:
            while sent < min(len(data), most):
                sent += self._send_record(data[sent:])
        except (ssl.SSLWantWriteError, ssl.SSLWantReadError):
            pass
        return sent

    def _send_record(self, data: memoryview) -> int:
        return self._sock.send(data[:TLS_RECORD])

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        self._eof_sent = True
        if self._tls:
            assert isinstance(self._sock, ssl.SSLSocket)
            try:
                # Sends the close_notify. It also reads up to the peer's own and discards the data before it, so reading
                # ends here as well.
                self._sock.unwrap()
            except (OSError, ValueError):
                pass  # The peer has sent none yet, or the connection is lost.
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # The connection is lost.

    async def finish(self) -> None:
        """As `ByteStream.finish`: closing a socket with unread bytes resets it and loses data in flight."""
        await self.send_eof()
        # A reading task would interfere, and what it reads does not count any more.
        self._finishing = True
        trio.lowlevel.notify_closing(self._sock)
        left = MAX_DISCARDED
        while True:
            try:
                # After its end, a TLS socket is read as a plain one.
                discarded = len(self._sock.recv(READ_SIZE))
                left -= discarded
                if not discarded or left <= 0 or not self._may_discard(discarded):
                    return
            except BlockingIOError:
                with trio.move_on_after(SILENT_PEER) as silence:
                    await trio.lowlevel.wait_readable(self._sock)
                if silence.cancelled_caught and not self._is_in_flight:
                    return
            except OSError:
                return  # The connection is lost, or this side was closed.
            else:
                await trio.lowlevel.checkpoint()

    @property
    def _is_in_flight(self) -> bool:
        """True if the peer's system has not confirmed all that was written, where that can be told."""
        return False

    def _may_discard(self, size: int) -> bool:
        """Return whether `finish` reads on after discarding this many bytes more."""
        return True

    async def aclose(self) -> None:
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
            # A closed socket can't be waited for.
            self._fruitless = 0
        await trio.lowlevel.checkpoint()

    def _broken(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self._sock.fileno() < 0:
            return trio.ClosedResourceError()
        return trio.BrokenResourceError(f"the connection was lost: {describe(error)}")


def take_socket(stream: trio.SocketStream) -> socket.socket:
    """Return the non-blocking socket inside a Trio stream, which must not be used afterwards."""
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


def keep_alive(sock: socket.socket, idle: float, timeout: float) -> None:
    """Let the system detect a lost TCP peer: probe after `idle` seconds of silence, give up `timeout` seconds later.

    For connections without pings, and for routers that forget idle connections. If the times can't be set, the
    system's own apply, often two hours.
    """
    probes = 4
    options = {
        "TCP_KEEPIDLE": max(1, round(idle)),
        "TCP_KEEPALIVE": max(1, round(idle)),  # The same on macOS.
        "TCP_KEEPINTVL": max(1, round(timeout / probes)),
        "TCP_KEEPCNT": probes,
        "TCP_USER_TIMEOUT": 1000 * max(1, round(idle + timeout)),
    }
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in options.items():
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    except OSError:
        pass  # macOS raises this for a connection that is lost already, which shows soon enough.


async def start_tls(
    sock: socket.socket,
    context: "ssl.SSLContext",
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
) -> SocketBytes:
    """Do the TLS handshake on a connected socket, and return the encrypted stream; a failure closes the socket.

    Raises `ssl.SSLError` and `OSError` as the handshake does. Cancelling closes the socket.
    """
    try:
        tls = context.wrap_socket(
            sock, server_side=server_side, server_hostname=server_hostname, do_handshake_on_connect=False
        )
    except BaseException:
        sock.close()
        raise
    try:
        while True:
            try:
                tls.do_handshake()
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(tls)
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(tls)
            else:
                return SocketBytes(tls)
    except BaseException:
        tls.close()
        raise


async def connect_tcp(
    host: str,
    port: int,
    context: "ssl.SSLContext | None" = None,
    server: str = "`acp-gateway serve`",
    accepts: Callable[[str], bool] = lambda _: True,
) -> SocketBytes:
    """Connect to a TCP port, with TLS if `context` is given; `server` names what should be there, for errors.

    All addresses of a name are tried (RFC 8305) that `accepts` returns True for. The first that connects, with TLS also
    verified, is used. Raises `Unreachable` if no server answers, `TrustError` if the certificate is not trusted, and
    `ProtocolError` if the server does not speak TLS. Cancelling closes the sockets.
    """
    try:
        found = await resolve(host, port)
    except OSError as error:
        raise Unreachable(f"cannot reach {host} port {port}: {describe(error)}") from error
    except UnicodeError:
        raise Unreachable(f"cannot reach {host} port {port}: no host can have that name") from None
    ways = [partial(_connect_to, at, host, port, context, server) for at in found if accepts(str(at[1][0]))]
    if not ways:
        raise Unreachable(f"cannot reach {host} port {port}: its addresses are not of the internet")
    if len(ways) == 1:
        return await ways[0]()
    outcome = await race(ways, Schedule([False] * len(ways)))
    if isinstance(outcome, SocketBytes):
        return outcome
    # An answer tells more than silence.
    raise next((error for error in outcome if not isinstance(error, Unreachable)), outcome[0])


async def _connect_to(
    address: SocketAddress, host: str, port: int, context: "ssl.SSLContext | None", server: str
) -> SocketBytes:
    """Connect to one address of a host. Raises as `connect_tcp`."""
    try:
        sock = await _open_socket(address)
    except OSError as error:
        why = describe(error)
        hint = f"; is {server} running on {host}?" if why == "connection refused" else ""
        raise Unreachable(f"cannot reach {host} port {port}: {why}{hint}") from error
    keep_alive(sock, KEEPALIVE_IDLE, KEEPALIVE_TIMEOUT)
    if context is None:
        return SocketBytes(sock)
    try:
        return await start_tls(sock, context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise TrustError(f"the certificate of {host} is not trusted: {explain_distrust(error)}") from error
    except (ssl.SSLError, OSError) as error:
        if getattr(error, "reason", None) in NO_TLS:
            greeting = await _read_greeting(address)
            said = f': it answers "{greeting}"' if greeting else f" ({describe(error)})"
            raise ProtocolError(
                f"{host} port {port} does not speak TLS{said}; the gateway's port is usually 7443"
            ) from error
        raise Unreachable(f"no TLS with {host} port {port}: {describe(error)}") from error


async def _open_socket(address: SocketAddress) -> socket.socket:
    """Return a socket that is connected to this address. Raises `OSError`. Cancelling closes it."""
    family, place = address
    sock = trio.socket.socket(family, socket.SOCK_STREAM)
    try:
        await sock.connect(place)
    except BaseException:
        sock.close()
        raise
    # Without delays of small packets.
    return take_socket(trio.SocketStream(sock))


async def _read_greeting(address: SocketAddress) -> str:
    """Return what a server says first, by which users recognize it; "" if it says nothing soon."""
    data = b""
    try:
        with trio.move_on_after(_GREETING_TIMEOUT):
            stream = SocketBytes(await _open_socket(address))
            try:
                data = (await stream.receive_some())[:_GREETING_SIZE]
            finally:
                await stream.aclose()
    except (OSError, trio.BrokenResourceError):
        pass
    return printable(data.partition(b"\n")[0].decode(errors="replace"), _GREETING_SIZE)


async def connect_unix(path: str) -> SocketBytes:
    """Connect to a unix socket. Raises `Unreachable`. Cancelling closes the socket."""
    if not hasattr(socket, "AF_UNIX"):
        raise Unreachable("this system's Python has no unix sockets; use wss:// or tcp+tls://")
    try:
        return SocketBytes(take_socket(await trio.open_unix_socket(path)))
    except OSError as error:
        is_absent = error.errno in (errno.ENOENT, errno.ECONNREFUSED)
        hint = "; is `acp-gateway serve` running, and does it listen there?" if is_absent else ""
        raise Unreachable(f"cannot reach {path}: {describe(error)}{hint}") from error


def explain_distrust(error: "ssl.SSLCertVerificationError") -> str:
    """Return why a certificate is not trusted, and the remedy."""
    return f"{error.verify_message.rstrip('.')}; {_what_to_do(error.verify_code)}"


def _what_to_do(verify_code: int) -> str:
    pin = "--pin with what `acp-gateway certs show` prints on the gateway's machine"
    if verify_code in _NAME_MISMATCH:
        return (
            f"call it by a name that the certificate is for, or give {pin}, or have it made for this name as well by "
            "`acp-gateway certs renew --host` there"
        )
    if verify_code == _EXPIRED:
        return f"renew it, by `acp-gateway certs renew` where it is the gateway's own, or give {pin}"
    if verify_code == _NOT_YET_VALID:
        return f"is the clock of this machine right? Else give {pin}"
    return f"give {pin}, or --ca with its certificate"


def certificate_alert(error: BaseException | None) -> str | None:
    """Return the TLS alert about this side's certificate that has caused an error, such as "unknown ca"; else None.

    With TLS 1.3 a client gets it only after its handshake, with its first read.
    """
    while error is not None:
        reason = getattr(error, "reason", None) if isinstance(error, ssl.SSLError) else None
        alert = _CERTIFICATE_ALERT.search(reason or "")
        if alert is not None:
            return alert[1].replace("_", " ").lower()
        error = error.__cause__
    return None


_CONNECTION_ERRORS: dict[type[OSError], str] = {
    BrokenPipeError: "broken pipe",
    ConnectionAbortedError: "software caused connection abort",
    ConnectionRefusedError: "connection refused",
    ConnectionResetError: "connection reset by peer",
}
"""The system's texts for these errors, because on Windows `os.strerror` does not know the numbers of sockets."""


def describe(error: OSError) -> str:
    """Return the system's text for an error, without its number and without Python's names."""
    if type(error) in _CONNECTION_ERRORS:
        return _CONNECTION_ERRORS[type(error)]
    if isinstance(error, ssl.SSLError):
        # Only errors of OpenSSL have a reason.
        return (getattr(error, "reason", None) or error.strerror or str(error)).replace("_", " ").lower()
    if error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    if isinstance(error.__cause__, ExceptionGroup) and isinstance(error.__cause__.exceptions[0], OSError):
        # Several addresses were tried.
        return describe(error.__cause__.exceptions[0])
    return (error.strerror or str(error) or type(error).__name__).lower()
