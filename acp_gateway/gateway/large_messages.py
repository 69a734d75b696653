"""Checks large messages before the event loop reads them, one at a time and piece by piece.

Every message that is larger than `LARGE` comes through here: those of clients, of browsers and of agents, over any
transport. All of them share the one that is checked, so that a hundred at once hold the loop no longer than one.
"""

from collections.abc import Sequence

import trio

from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.large_messages import Parsed, parse_large
from acp_gateway.protocol.large_texts import LARGE, Outline, check_large

_turn = trio.lowlevel.RunVar[trio.StrictFIFOLock]("large messages")


def has_large(messages: Sequence[bytes]) -> bool:
    """Return True if one of these messages is to be checked before it is read."""
    return max(map(len, messages), default=0) > LARGE


async def check_message(text: bytes) -> bytes:
    """Check a message, and return it as it is to be read, see `check_large`; other tasks run after each piece.

    Raises `InvalidMessage`. A small message is returned at once.
    """
    return text if len(text) <= LARGE else (await _outline_of(text)).text


async def parse_message(text: bytes) -> Parsed | InvalidMessage:
    """Check and parse a large message, as `check_message`; return the error of an invalid one."""
    try:
        return parse_large(await _outline_of(text))
    except InvalidMessage as error:
        return error


async def parse_messages(messages: Sequence[bytes]) -> list[bytes | Parsed | InvalidMessage]:
    """Check and parse large messages, as `parse_message`; leave small ones as they are."""
    return [text if len(text) <= LARGE else await parse_message(text) for text in messages]


async def _outline_of(text: bytes) -> Outline:
    async with _lock():
        checking = check_large(text)
        while True:
            try:
                next(checking)
            except StopIteration as checked:
                # Reading it takes a turn of its own.
                await trio.lowlevel.checkpoint()
                outline: Outline = checked.value
                return outline
            await trio.lowlevel.checkpoint()


def _lock() -> trio.StrictFIFOLock:
    try:
        return _turn.get()
    except LookupError:
        lock = trio.StrictFIFOLock()
        _turn.set(lock)
        return lock
