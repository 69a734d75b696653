"""The first bytes of a large message whose connection was lost, so that its sender goes on behind them.

The receiver keeps them as a `Part` and tells its `PartSum` when the link is resumed. The sender sends the rest if its
message begins with the same bytes, and all of it again if not: the content decides, whatever either end has counted.
"""

import re
from binascii import crc32
from typing import Final, NamedTuple

PART_SIZE: Final = 64 * 1024
"""Bytes below which a part is not kept: they are sent again in no time, and most messages are smaller."""

SPELLED: Final = r"(0|[1-9][0-9]{0,14}) ([0-9a-f]{8})"
"""A `PartSum` in the answer and the request for a link, such as `65536 1c291ca3`."""

_LATER_BYTES: Final = bytes(range(0x80, 0xC0))
"""Bytes of a character of UTF-8 after its first one."""


class PartSum(NamedTuple):
    """Size and checksum of a part."""

    size: int = 0
    """Bytes; 0 for no part."""
    checksum: int = 0
    """CRC-32 of these bytes."""

    def __str__(self) -> str:
        return f"{self.size} {self.checksum:08x}"

    def rest(self, message: bytes) -> bytes:
        """Return the rest of a message that begins with this part; empty if all of the message is to be sent.

        That is so for another message, and for a rest that would not be a message of its own on the wire.
        """
        if not 0 < self.size < len(message) or message[self.size] in _LATER_BYTES:
            return b""
        if crc32(memoryview(message)[: self.size]) != self.checksum:
            return b""
        rest = message[self.size :]
        return b"" if rest.isspace() else rest


NO_PART: Final = PartSum()


def read_part_sum(spelled: object) -> PartSum | None:
    """Read a size and a checksum as they are spelled; None for anything else."""
    found = re.fullmatch(SPELLED, spelled) if isinstance(spelled, str) else None
    return None if found is None else PartSum(int(found[1]), int(found[2], 16))


class Part(NamedTuple):
    """The first bytes of a message, as far as they are kept."""

    data: bytes
    sum: PartSum

    def followed_by(self, more: bytes) -> "Part":
        """Return the part with more bytes, but for the last character, which may be cut off.

        So a rest is never empty, and begins with a character, as a text message must.
        """
        whole = more.rstrip(_LATER_BYTES)[:-1]
        data = self.data + whole
        return Part(data, PartSum(len(data), crc32(whole, self.sum.checksum)))


EMPTY: Final = Part(b"", NO_PART)
