"""A socket that tells how many of the bytes written to it the peer's system has not confirmed.

A write only hands bytes to the kernel. After a connection was lost, the queue of unconfirmed bytes says what did not
arrive, where the system tells: on Linux. Over TLS the queue holds records, whose sizes are remembered for that.
"""

import fcntl
import socket
import ssl
import sys
import termios
from collections import deque
from typing import Final

from acp_gateway.transports.sockets import SocketBytes

MAX_RECORDS: Final = 1024
"""TLS records whose sizes are remembered: 16 MiB at most, more than the system queues for one connection."""


class ConfirmedBytes(SocketBytes):
    """A socket as a stream of bytes, with the number of unconfirmed ones."""

    __slots__ = ("_records",)

    def __init__(self, sock: socket.socket) -> None:
        super().__init__(sock)
        # Sizes of the last TLS records that were written; None until `count_unconfirmed`.
        self._records: deque[int] | None = None

    def count_unconfirmed(self) -> None:
        self._records = deque(maxlen=MAX_RECORDS)

    @property
    def unconfirmed_bytes(self) -> int:
        try:
            queued = _output_queue(self._sock)
        except (OSError, ValueError):
            return 0  # It is closed.
        if not isinstance(self._sock, ssl.SSLSocket):
            return queued
        # A record is missing as long as a byte of it is.
        size = 0
        overhead = _record_overhead(self._sock)
        for record in reversed(self._records or ()):
            if queued <= 0:
                break
            queued -= record + overhead
            size += record
        return size

    @property
    def _is_in_flight(self) -> bool:
        try:
            return _output_queue(self._sock) > 0
        except (OSError, ValueError):
            return False  # It is closed.

    def _send_record(self, data: memoryview) -> int:
        sent = super()._send_record(data)
        if self._records is not None:
            self._records.append(sent)
        return sent


def _output_queue(sock: socket.socket) -> int:
    """Return the bytes that the peer's system has not confirmed, where the system tells; else 0. Raises `OSError`."""
    if sys.platform != "linux":
        return 0
    # SIOCOUTQ of tcp(7) has the number of TIOCOUTQ.
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def _record_overhead(sock: ssl.SSLSocket) -> int:
    """Return how many bytes a TLS record has besides its data (RFC 8446, 5.2; RFC 5288, 3; RFC 7905, 2)."""
    name, version, _ = sock.cipher() or ("", "", 0)
    if version == "TLSv1.3":
        return 5 + 1 + 16
    return 5 + 16 if "CHACHA20" in name else 5 + 8 + 16
