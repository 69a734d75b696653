"""Which gateways this machine has reached: one of these is waited for where a new address is soon given up.

A file for each, in the user's state folder, named by a hash of the address; its time is that of the last connection.
What can't be written or read counts as never reached: no connection fails for it.
"""

import hashlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from acp_gateway.config.directories import state_home
from acp_gateway.errors import ConfigError

log = logging.getLogger(__name__)

REMEMBERED: Final = 30 * 86400.0
"""Seconds after which a gateway is new again: who comes back from a holiday has not got another box."""

RENEWED: Final = 86400.0
"""Seconds between two notes of the same gateway: a link that is resumed all day long need not write each time."""


class Reached:
    """The gateways that were reached, as far as the folder tells; none without a folder.

    Args:
        folder: where they are noted; made when there is something to note.
        now: says the time, in seconds since 1970.
    """

    def __init__(self, folder: Path | None, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now

    def knows(self, address: str) -> bool:
        """Whether the gateway was reached lately."""
        age = self._age(address)
        return age is not None and age < REMEMBERED

    def note(self, address: str) -> None:
        """The gateway has been reached."""
        age = self._age(address)
        if self._folder is None or (age is not None and 0 <= age < RENEWED):
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._path(self._folder, address)
            path.touch(mode=0o600)
            os.utime(path, (self._now(), self._now()))
        except OSError as error:
            log.info("%s: cannot be written: %s", self._folder, error.strerror)

    def _age(self, address: str) -> float | None:
        """Seconds since it was noted; None where it never was."""
        try:
            return None if self._folder is None else self._now() - self._path(self._folder, address).stat().st_mtime
        except OSError:
            return None

    def _path(self, folder: Path, address: str) -> Path:
        return folder / hashlib.sha256(address.encode(errors="replace")).hexdigest()[:32]


def own_reached() -> Reached:
    """What this user has reached."""
    try:
        return Reached(state_home() / "reached")
    except ConfigError:
        return Reached(None)  # Without any home directory nothing is remembered.
