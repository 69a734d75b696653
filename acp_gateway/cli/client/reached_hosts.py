"""Gateways that this machine has reached before: they get a longer timeout for the first connection than new ones.

Each has a file in the user's state directory, named by a hash of its address; the modification time is that of the
last connection. A file that can't be written or read counts as absent: no connection fails because of it.
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

REMEMBER_TIME: Final = 30 * 86400.0
"""Seconds after which a gateway counts as new: longer than a holiday."""

RENEWAL_INTERVAL: Final = 86400.0
"""Seconds between two updates of the same file, so that frequent resumes don't write each time."""


class ReachedHosts:
    """The gateways that were reached.

    Args:
        folder: directory of the files, created when needed; None to remember nothing.
        now: returns the time, in seconds since 1970.
    """

    def __init__(self, folder: Path | None, now: Callable[[], float] = time.time) -> None:
        self._folder = folder
        self._now = now

    def knows(self, address: str) -> bool:
        """Return whether the gateway was reached in the last `REMEMBER_TIME` seconds."""
        age = self._age(address)
        return age is not None and age < REMEMBER_TIME

    def record(self, address: str) -> None:
        """Record that the gateway has been reached."""
        age = self._age(address)
        if self._folder is None or (age is not None and 0 <= age < RENEWAL_INTERVAL):
            return
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            path = self._path(self._folder, address)
            path.touch(mode=0o600)
            os.utime(path, (self._now(), self._now()))
        except OSError as error:
            log.info("%s: cannot be written: %s", self._folder, error.strerror)

    def _age(self, address: str) -> float | None:
        """Return the seconds since the last record; None if there is none."""
        try:
            return None if self._folder is None else self._now() - self._path(self._folder, address).stat().st_mtime
        except OSError:
            return None

    def _path(self, folder: Path, address: str) -> Path:
        return folder / hashlib.sha256(address.encode(errors="replace")).hexdigest()[:32]


def own_reached_hosts() -> ReachedHosts:
    """Return the gateways that this user has reached."""
    try:
        return ReachedHosts(state_home() / "reached")
    except ConfigError:
        return ReachedHosts(None)  # Without a home directory nothing is remembered.
