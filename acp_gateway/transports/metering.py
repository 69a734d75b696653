"""Charging a peer for what it sends, so that a flood delays only the peer that sends it."""

from typing import Protocol

import trio


class Charge(Protocol):
    """Charges a peer for what it has sent, and returns the seconds for which it is not to be read; raises `Flooded`."""

    def __call__(self, messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        """`size` in bytes, `seconds` of the event loop's time; `frames` had no message in them."""


def free(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:  # noqa: ARG001
    """Charge nothing."""
    return 0.0


class Meter:
    """Counts what came from a peer and was not charged yet.

    The receiver charges for all that comes with messages (`take`); the stream charges for what comes without (`pay`).
    """

    __slots__ = ("charge", "frames", "size")

    def __init__(self) -> None:
        self.charge: Charge | None = None
        """Charges the peer; None: nothing is charged."""
        self.size = 0
        """Bytes."""
        self.frames = 0
        """Frames without a message (pings, fragments, blank lines), where the transport can tell."""

    def take(self) -> tuple[int, int]:
        """Return the bytes and the frames that are to be charged now."""
        taken = self.size, self.frames
        self.size = self.frames = 0
        return taken

    async def pay(self, seconds: float = 0.0) -> None:
        """Charge the peer for what came without a message, and wait for as long as it is not to be read.

        `seconds` are of the event loop, spent before a message is handed on.

        After frames without a message other tasks get their turn. Raises `Flooded`. Cancelling loses nothing.
        """
        size, frames = self.take()
        if self.charge is not None:
            pause = self.charge(size=size, seconds=seconds, frames=frames)
            if pause or frames:
                await trio.sleep(pause)
