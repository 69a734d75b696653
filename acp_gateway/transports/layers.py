"""Streams of bytes inside others: the base of them, and TLS.

Bytes are encoded in units. A unit counts as written once all of it was written below, so that nothing waits in a layer
for a task that writes it: what the stream below refuses is offered again by the caller, as TLS demands.
"""

import ssl
from abc import abstractmethod

import trio

from acp_gateway.transports.path_state import PathState
from acp_gateway.transports.sockets import TLS_RECORD, describe
from acp_gateway.transports.streams import READ_SIZE, WRITE_SIZE, ByteStream, closed_on_error


class Layer(ByteStream):
    """Bytes that another stream carries in an encoding.

    Args:
        below: the other stream, which is closed with this one.
        unit: maximum bytes that are encoded at once.
    """

    def __init__(self, below: ByteStream, unit: int) -> None:
        self.below = below
        self.committed = unit
        # Encoded bytes, how many of them are written, and the number of the caller's bytes in them.
        self._encoded = b""
        self._written = 0
        self._carried = 0
        # True while a task offers them below: others append to them only.
        self._writing = False
        self._ended = self._closed = False

    @abstractmethod
    def _encode(self, data: memoryview) -> bytes:
        """Encode at most a unit of bytes. Raises `BrokenResourceError`."""

    @abstractmethod
    def _encode_end(self) -> bytes:
        """Encode the end of the writing side; empty if it can't be told any more."""

    @property
    def path(self) -> PathState | None:
        return self.below.path

    def reset_when_closed(self, reset: bool) -> None:  # noqa: FBT001
        self.below.reset_when_closed(reset)

    def send_nowait(self, data: memoryview) -> int:
        sent = 0
        while sent < min(len(data), WRITE_SIZE):
            self._check_writable()
            if not self._carried:
                part = data[sent : sent + self.committed]
                self._append(self._encode(part))
                self._carried = len(part)
            if not self._flush():
                break
            sent += self._carried
            self._carried = 0
        return sent

    async def send_some(self, data: memoryview) -> int:
        while not (sent := self.send_nowait(data)):
            await self._write_some()
        return sent

    def _check_writable(self) -> None:
        if self._closed or self._ended:
            raise trio.ClosedResourceError

    @property
    def unwritten_bytes(self) -> int:
        """Encoded bytes that are not written."""
        return len(self._encoded) - self._written

    def _append(self, encoded: bytes) -> None:
        self._encoded = self._encoded[self._written :] + encoded
        self._written = 0

    def _flush(self) -> bool:
        """Write what is encoded as far as that takes no waiting; return whether all of it was written."""
        while self.unwritten_bytes and not self._writing and (sent := self.below.send_nowait(self._rest)):
            self._count(sent)
        return not self.unwritten_bytes

    @property
    def _rest(self) -> memoryview:
        return memoryview(self._encoded)[self._written :]

    def _count(self, sent: int) -> None:
        self._written += sent
        if self._written == len(self._encoded):
            self._encoded, self._written = b"", 0

    def _reply(self, encoded: bytes) -> None:
        """Write what is not the caller's. If that fails, what was received counts all the same."""
        self._append(encoded)
        try:
            self._flush()
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass

    async def _write_some(self) -> None:
        """Wait until some of what is encoded is written. Cancelling loses nothing."""
        self._writing = True
        try:
            sent = await self.below.send_some(self._rest)
        finally:
            self._writing = False
        self._count(sent)

    async def _write_all(self) -> None:
        """Write what is encoded. Cancelling loses nothing."""
        while not self._flush():
            await self._write_some()

    async def send_eof(self) -> None:
        await trio.lowlevel.checkpoint()
        if not self._ended and not self._closed:
            # A unit that has begun goes first, though its bytes were not counted.
            self._append(self._encode_end())
            self._ended = True
        await self._write_all()

    async def finish(self) -> None:
        await self.send_eof()
        await self.below.finish()

    async def aclose(self) -> None:
        self._closed = True
        await self.below.aclose()


class TlsBytes(Layer):
    """TLS inside another stream of bytes, its handshake done. Made by `start_tls_inside`."""

    def __init__(self, below: ByteStream, tls: ssl.SSLObject, incoming: ssl.MemoryBIO, outgoing: ssl.MemoryBIO) -> None:
        super().__init__(below, TLS_RECORD)
        self._tls = tls
        self._incoming = incoming
        self._outgoing = outgoing

    @property
    def peer_certificate(self) -> bytes | None:
        """Certificate of the peer in DER; None without one."""
        return self._tls.getpeercert(binary_form=True)

    @property
    def tls_version(self) -> str | None:
        """Version of TLS as OpenSSL names it, such as `TLSv1.3`."""
        return self._tls.version()

    async def receive_some(self) -> bytes:
        while not self._ended:
            try:
                data = self._tls.read(READ_SIZE)
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                return b""
            except ssl.SSLError as error:
                raise self._broken(error) from error
            else:
                return data
            # It may answer the peer, as for new keys.
            self._reply(self._outgoing.read())
            if not await self._read():
                # Not left to OpenSSL: as some builds of Python set it up, it takes this for the end that the peer says.
                raise trio.BrokenResourceError("the connection was lost: it ended in the middle of TLS")
        await trio.lowlevel.checkpoint()
        return b""

    async def _read(self) -> bool:
        """Wait for bytes for TLS; return False at the end of the stream below."""
        data = await self.below.receive_some()
        if data:
            self._incoming.write(data)
        else:
            self._incoming.write_eof()
        return bool(data)

    async def handshake(self) -> None:
        """Do the handshake. Raises `ssl.SSLError`, and what the stream below raises."""
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._tell()
                await self._read()
            except ssl.SSLError:
                # The peer is told why.
                try:
                    await self._tell()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass
                raise
            else:
                await self._tell()
                return

    async def _tell(self) -> None:
        self._append(self._outgoing.read())
        await self._write_all()

    def _encode(self, data: memoryview) -> bytes:
        try:
            self._tls.write(data)
        except ssl.SSLError as error:
            raise self._broken(error) from error
        return self._outgoing.read()

    def _encode_end(self) -> bytes:
        try:
            self._tls.unwrap()
        except (ssl.SSLError, ValueError):
            pass  # The peer has sent none yet.
        return self._outgoing.read()

    @staticmethod
    def _broken(error: ssl.SSLError) -> trio.BrokenResourceError:
        if isinstance(error, ssl.SSLEOFError):
            return trio.BrokenResourceError("the connection was lost: it ended in the middle of TLS")
        why = describe(error)
        return trio.BrokenResourceError(f"the TLS inside was broken, as by bytes that were changed on the way: {why}")


async def start_tls_inside(
    below: ByteStream, context: ssl.SSLContext, *, server_side: bool = False, server_hostname: str | None = None
) -> TlsBytes:
    """Do the TLS handshake inside a stream of bytes; a failure closes it.

    Raises `ssl.SSLError` as the handshake does, and what the stream raises. Cancelling closes it.
    """
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_side=server_side, server_hostname=server_hostname)
    stream = TlsBytes(below, tls, incoming, outgoing)
    async with closed_on_error(below):
        await stream.handshake()
    return stream
