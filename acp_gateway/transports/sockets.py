"""TCP, unix and TLS sockets as streams of bytes, driven directly.

The kernel is asked first and waited for only when it says so: a non-blocking call costs far less than a task's wake-up.
TLS is `ssl.SSLSocket` on the same descriptor, for the same reason. Works wherever Trio does, Windows included.
"""

import os
import socket
import ssl

import trio

from acp_gateway.errors import TrustError, Unreachable
from acp_gateway.transports.base import READ_SIZE, ByteStream

READS_PER_CHECKPOINT = 16
"""Reads in a row that bring bytes at once before other tasks get their turn: one busy peer must not starve the rest."""


class SocketBytes(ByteStream):
    """A connected, non-blocking socket, plain or TLS with its handshake done; closed with this stream."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._reads = 0

    @property
    def peer_certificate(self) -> bytes | None:
        """The certificate of a TLS peer in DER, None where there is none."""
        return self._sock.getpeercert(binary_form=True) if isinstance(self._sock, ssl.SSLSocket) else None

    async def receive_some(self) -> bytes:
        self._reads += 1
        if self._reads % READS_PER_CHECKPOINT == 0:
            await trio.lowlevel.checkpoint()
        while True:
            try:
                return self._sock.recv(READ_SIZE)
            except (BlockingIOError, ssl.SSLWantReadError):
                await trio.lowlevel.wait_readable(self._open_socket())
            except ssl.SSLWantWriteError:
                await trio.lowlevel.wait_writable(self._open_socket())
            except OSError as error:
                raise self._broken(error) from error

    def send_nowait(self, data: memoryview) -> int:
        try:
            return self._sock.send(data)
        except (BlockingIOError, ssl.SSLWantWriteError, ssl.SSLWantReadError):
            return 0
        except OSError as error:
            raise self._broken(error) from error

    async def send_some(self, data: memoryview) -> int:
        while True:
            try:
                return self._sock.send(data)
            except (BlockingIOError, ssl.SSLWantWriteError):
                await trio.lowlevel.wait_writable(self._open_socket())
            except ssl.SSLWantReadError:
                await trio.lowlevel.wait_readable(self._open_socket())
            except OSError as error:
                raise self._broken(error) from error

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        try:
            if isinstance(self._sock, ssl.SSLSocket):
                # Writes the close_notify; the peer's own is not waited for.
                self._sock.unwrap()
            else:
                self._sock.shutdown(socket.SHUT_WR)
        except (OSError, ValueError):
            pass  # The peer is gone, or has said goodbye first.

    async def aclose(self) -> None:
        if self._sock.fileno() >= 0:
            trio.lowlevel.notify_closing(self._sock)
            self._sock.close()
        await trio.lowlevel.checkpoint()

    def _open_socket(self) -> socket.socket:
        if self._sock.fileno() < 0:
            raise trio.ClosedResourceError
        return self._sock

    def _broken(self, error: OSError) -> trio.BrokenResourceError | trio.ClosedResourceError:
        if self._sock.fileno() < 0:
            return trio.ClosedResourceError()
        return trio.BrokenResourceError(f"the connection was lost: {describe(error)}")


def take_socket(stream: trio.SocketStream) -> socket.socket:
    """The plain non-blocking socket inside a Trio stream, which must not be used any more."""
    sock = socket.socket(fileno=stream.socket.detach())
    sock.setblocking(False)
    return sock


async def start_tls(
    sock: socket.socket,
    context: ssl.SSLContext,
    *,
    server_side: bool = False,
    server_hostname: str | None = None,
) -> SocketBytes:
    """Do the TLS handshake on a connected socket and return the encrypted stream; the socket is closed on failure.

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


async def connect_tcp(host: str, port: int, context: ssl.SSLContext | None = None) -> SocketBytes:
    """Connect to a TCP port, with TLS where `context` is given.

    Raises `Unreachable` when nobody answers, `TrustError` when the certificate is not trusted. Cancelling closes.
    """
    try:
        sock = take_socket(await trio.open_tcp_stream(host, port))
    except OSError as error:
        raise Unreachable(f"cannot reach {host} port {port}: {describe(error)}") from error
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    if context is None:
        return SocketBytes(sock)
    try:
        return await start_tls(sock, context, server_hostname=host)
    except ssl.SSLCertVerificationError as error:
        raise TrustError(
            f"the certificate of {host} is not trusted: {error.verify_message}; give --pin with what "
            "`acp-gateway certs create` printed on the gateway's machine, or --ca with its certificate"
        ) from error
    except (ssl.SSLError, OSError) as error:
        raise Unreachable(f"no TLS with {host} port {port}: {describe(error)}") from error


async def connect_unix(path: str) -> SocketBytes:
    """Connect to a unix socket. Raises `Unreachable`. Cancelling closes."""
    if not hasattr(socket, "AF_UNIX"):
        raise Unreachable("this system's Python has no unix sockets; use wss:// or tcp+tls://")
    try:
        return SocketBytes(take_socket(await trio.open_unix_socket(path)))
    except OSError as error:
        raise Unreachable(f"cannot reach {path}: {describe(error)}") from error


def describe(error: OSError) -> str:
    """What the system says of an error, without its number and without Python's names."""
    if isinstance(error, ssl.SSLError):
        return (error.reason or str(error)).replace("_", " ").lower()
    if error.errno is not None and not isinstance(error, socket.gaierror):
        return os.strerror(error.errno).lower()
    if isinstance(error.__cause__, ExceptionGroup) and isinstance(error.__cause__.exceptions[0], OSError):
        # Several addresses were tried.
        return describe(error.__cause__.exceptions[0])
    return (error.strerror or str(error) or type(error).__name__).lower()
