"""One message a line: newline-delimited JSON over any stream of bytes.

Lines end at `\\n` alone. Peers written in JavaScript put U+2028, U+2029 and U+0085 raw into strings, and those are no
ends of a line here. One trailing `\\r`, blank lines and a last line without its newline are tolerated.
"""

from collections.abc import Sequence

import trio

from acp_gateway.transports.base import ByteStream, ByteWriter, CloseReason, MessageStream, MessageTooLarge

GOODBYE_TIMEOUT = 5.0
"""Seconds that closing waits for the peer to take what is pending."""


class LineStream(MessageStream):
    """Messages as lines. A message from outside that is pretty-printed over several lines is sent as one.

    Args:
        stream: what carries the lines; closed with this stream.
        max_message_size: bytes of the longest line that is read; past it `MessageTooLarge`, naming `size_setting`.
        stall_timeout: seconds that the peer may take nothing while something is pending.
    """

    def __init__(
        self,
        stream: ByteStream,
        *,
        max_message_size: int,
        size_setting: str = "max_message_size",
        stall_timeout: float = float("inf"),
    ) -> None:
        super().__init__()
        self.bytes = stream
        self._writer = ByteWriter(stream, stall_timeout=stall_timeout)
        self._max_message_size = max_message_size
        self._size_setting = size_setting
        # The line that has begun: its pieces, joined once when it ends, and how many bytes they are.
        self._pieces: list[bytes] = []
        self._size = 0
        # Why the stream broke while sending, for the task that receives.
        self._lost: str | None = None

    def limit(self, max_message_size: int, size_setting: str) -> None:
        """Set another limit for the lines that come from now on."""
        self._max_message_size, self._size_setting = max_message_size, size_setting

    async def _receive_batch(self) -> list[bytes]:
        while True:
            try:
                data = await self.bytes.receive_some()
            except trio.ClosedResourceError:
                if self._lost is None:
                    raise
                raise trio.BrokenResourceError(self._lost) from None
            if not data:
                if not self._pieces:
                    raise trio.EndOfChannel
                messages = self._whole([self._take(b"")])
            elif b"\n" not in data:
                self._pieces.append(data)
                self._size += len(data)
                self._check(self._size)
                continue
            else:
                lines = data.split(b"\n")
                rest = lines.pop()
                lines[0] = self._take(lines[0])
                if rest:
                    self._pieces.append(rest)
                    self._size = len(rest)
                messages = self._whole(lines)
            if messages:
                return messages

    def _take(self, end: bytes) -> bytes:
        """The line that `end` completes."""
        if not self._pieces:
            return end
        self._pieces.append(end)
        line = b"".join(self._pieces)
        self._pieces, self._size = [], 0
        return line

    def _whole(self, lines: list[bytes]) -> list[bytes]:
        messages = [line.removesuffix(b"\r") for line in lines if line and not line.isspace()]
        if messages:
            self._check(max(map(len, messages)))
        return messages

    def _check(self, size: int) -> None:
        if size > self._max_message_size:
            raise MessageTooLarge(
                f"a message is larger than {self._size_setting} ({self._max_message_size} bytes) allows"
            )

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        data = b"\n".join(messages) + b"\n"
        if data.count(b"\n") > len(messages) or b"\r" in data:
            # Raw line ends can only be white space between tokens: inside a JSON string they would be escaped.
            data = b"\n".join(message.translate(_ONE_LINE) for message in messages) + b"\n"
        self._writer.write(data)

    @property
    def pending_bytes(self) -> int:
        return self._writer.pending

    async def drain(self, below: int = 0) -> None:
        await self._writer.drain(below)

    async def run(self) -> None:
        try:
            await self._writer.run()
        except (trio.BrokenResourceError, trio.ClosedResourceError) as error:
            # Whoever receives must learn of it, also where the peer has only stopped to read.
            self._lost = str(error)
            await self.bytes.aclose()

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        try:
            with trio.move_on_after(GOODBYE_TIMEOUT):
                try:
                    await self._writer.drain()
                    await self.bytes.send_eof()
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    pass  # The peer is gone already.
        finally:
            await self.bytes.aclose()


_ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
