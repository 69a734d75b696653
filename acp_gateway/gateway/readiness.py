"""Readiness: the problems that keep the gateway from serving new clients, and those of browsers, which do not."""

import math
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

import trio

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.extensions import Extensions
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.token_store import TokenStore

CHECK_INTERVAL: Final = 1.0
"""Seconds for which the result of a check is used again: anyone may ask, and a check looks at the disk."""


class Readiness:
    """Checks listeners, storage, tokens and browsers.

    Args:
        state_dir: folder of tokens and sessions.
        tokens: the tokens in it.
        browsers: the browsers in it.
        storage_problem: returns the failures of the storage, None without any.
        extensions: the cluster, where there is one.
    """

    def __init__(
        self,
        state_dir: Path,
        tokens: TokenStore,
        browsers: BrowserStore,
        storage_problem: Callable[[], str | None],
        extensions: Extensions,
    ) -> None:
        self.stopping = False
        """True once the gateway has been told to stop."""
        self._extensions = extensions
        self._state_dir = state_dir
        self._tokens = tokens
        self._browsers = browsers
        self._storage_problem = storage_problem
        # By URL: whether connections are accepted there.
        self._listeners: dict[str, bool] = {}
        self._problems: list[str] = []
        self._tokens_problem: str | None = None
        self._browsers_problem: str | None = None
        self._checked_at = -math.inf

    def set_listening(self, urls: Iterable[str], *, accepting: bool) -> None:
        """Note that a listener is open at these addresses, and whether it accepts connections."""
        self._listeners |= dict.fromkeys(urls, accepting)
        self.look_again()

    def look_again(self) -> None:
        """Use no earlier result for the next answer."""
        self._checked_at = -math.inf

    @property
    def ready(self) -> bool:
        """True if new clients can be served."""
        return not self.problems

    @property
    def tokens_readable(self) -> bool:
        """True if a token can be told from another text."""
        self._check()
        return self._tokens_problem is None

    @property
    def problems(self) -> list[str]:
        """The reasons why the gateway is not ready, each in one line."""
        if self.stopping:
            return ["the gateway is stopping"]
        self._check()
        return self._problems

    @property
    def warnings(self) -> list[str]:
        """The reasons, each in one line, why a part of the gateway fails that clients with tokens do not need."""
        self._check()
        found = self._browsers_problem, self._extensions.cluster_problem()
        return [problem for problem in found if problem is not None]

    def _check(self) -> None:
        now = trio.current_time()
        if now - self._checked_at < CHECK_INTERVAL:
            return
        self._checked_at = now
        self._tokens_problem = _problem_of(self._tokens.tokens)
        self._browsers_problem = _problem_of(self._browsers.check)
        storage = self._storage_problem()
        if storage is None and not os.access(self._state_dir, os.W_OK | os.X_OK):
            storage = f"{self._state_dir} cannot be written"
        found = [f"{url} accepts no connections" for url, accepting in self._listeners.items() if not accepting]
        self._problems = [*found, *(problem for problem in (storage, self._tokens_problem) if problem is not None)]


def _problem_of(read: Callable[[], object]) -> str | None:
    """Return the error of reading a file of secrets, which names the remedy."""
    try:
        read()
    except ConfigError as error:
        return str(error)
    return None
