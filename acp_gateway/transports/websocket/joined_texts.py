"""Several messages in one text message, one in each line: a frame costs a receiver more than a line.

A client asks for it with a header of its upgrade request, and a server that does it confirms that in its answer. Only
the server joins messages: a client sends few.
"""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from acp_gateway.transports.framing import CachedEncoder
from acp_gateway.transports.ndjson import in_one_line
from acp_gateway.transports.websocket.frames import encode_text

JOINED: Final = "Acp-Gateway-Joined"
"""Header that asks for joined messages with the value 1, and confirms them."""

JOINED_SIZE: Final = 32768
"""Maximum bytes of a text message with several messages: some hundred updates, so that a larger one saves nothing. A
text of more bytes is one message, so the number of lines is bounded."""


def encode_joined(messages: Sequence[bytes]) -> bytes:
    """Encode messages as a server's frames, each with as many messages as `JOINED_SIZE` allows."""
    return encode_text(b"\n".join(part) for part in _parts(in_one_line(messages)))


joined_once: Final = CachedEncoder(encode_joined)
"""Encodes a batch once for all clients that get the same one."""


def _parts(messages: Sequence[bytes]) -> Iterator[Sequence[bytes]]:
    """Halve a batch until each part has one message or at most `JOINED_SIZE` bytes."""
    if len(messages) > 1 and sum(map(len, messages)) + len(messages) > JOINED_SIZE:
        half = len(messages) // 2
        yield from _parts(messages[:half])
        yield from _parts(messages[half:])
    elif messages:
        yield messages


def split(texts: Iterable[bytes]) -> list[bytes]:
    """Return the messages in these text messages."""
    messages: list[bytes] = []
    for text in texts:
        if len(text) <= JOINED_SIZE:
            messages += text.split(b"\n")
        else:
            messages.append(text)
    return messages
