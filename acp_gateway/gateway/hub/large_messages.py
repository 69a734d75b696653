"""Checks large messages before the event loop reads them, one at a time and piece by piece.

Every message that is larger than `LARGE` comes through here: those of clients, of browsers and of agents, over any
transport. All of them share the one that is checked, so that a hundred at once hold the loop no longer than one.

`Spend` is called with the seconds of the event loop that a check has taken, to charge for them.
"""

import time
from collections.abc import Callable, Sequence
from typing import Final

import msgspec
import trio

from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.text.large_messages import LARGE, Outline, Parsed, check_large, parse_large
from acp_gateway.protocol.text.pairs import Entry, Pair, text_of

TURN: Final = 0.0005
"""Seconds of a check after which other tasks run: two messages of each of their round trips wait for one."""

Spend = Callable[[float], object]


def _charge_nothing(seconds: float) -> None:
    """Charge nothing."""


_turn = trio.lowlevel.RunVar[trio.StrictFIFOLock]("large messages")


def has_large(messages: Sequence[Entry]) -> bool:
    """Return True if one of these messages is to be checked before it is read."""
    return max(map(len, messages), default=0) > LARGE


async def check_message(text: bytes, spend: Spend) -> bytes:
    """Check a message, and return it as it is to be read, see `check_large`; other tasks run after each `TURN`.

    Raises `InvalidMessage`. A small message is returned at once.
    """
    return text if len(text) <= LARGE else (await _outline_of(text, spend)).text


async def parse_message(text: bytes, spend: Spend = _charge_nothing) -> Parsed | InvalidMessage:
    """Check and parse a large message, as `check_message`; return the error of an invalid one."""
    try:
        outline = await _outline_of(text, spend)
        began = time.perf_counter()
        try:
            return parse_large(outline)
        finally:
            spend(time.perf_counter() - began)
    except InvalidMessage as error:
        return error


async def parse_messages(messages: Sequence[bytes], spend: Spend) -> list[bytes | Parsed | InvalidMessage]:
    """Check and parse large messages, as `parse_message`; leave small ones as they are."""
    return [text if len(text) <= LARGE else await parse_message(text, spend) for text in messages]


async def parse_entry(entry: Entry, spend: Spend) -> Parsed | InvalidMessage:
    """Check and parse a large message of an agent, as `parse_message`."""
    parsed = await parse_message(text_of(entry), spend)
    if not isinstance(entry, Pair) or isinstance(parsed, InvalidMessage):
        return parsed
    text = parsed.message.text
    pair = msgspec.structs.replace(entry, text=text, original=text if entry.is_same else entry.original)
    return Parsed(msgspec.structs.replace(parsed.message, pair=pair), parsed.repeated)


async def _outline_of(text: bytes, spend: Spend) -> Outline:
    spent = turn = 0.0
    async with _lock():
        checking = check_large(text)
        try:
            while True:
                began = time.perf_counter()
                try:
                    next(checking)
                except StopIteration as checked:
                    outline: Outline = checked.value
                    break
                finally:
                    took = time.perf_counter() - began
                    spent += took
                turn += took
                if turn >= TURN:
                    turn = 0.0
                    await trio.lowlevel.checkpoint()
        finally:
            spend(spent)
    # Reading it takes a turn of its own.
    await trio.lowlevel.checkpoint()
    return outline


def _lock() -> trio.StrictFIFOLock:
    try:
        return _turn.get()
    except LookupError:
        lock = trio.StrictFIFOLock()
        _turn.set(lock)
        return lock
