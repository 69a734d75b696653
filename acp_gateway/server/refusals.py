"""Counts, logs and audits refused connections.

Refusals without a valid credential are counted by address and by the token that was sent; refusals of a valid one, by
that token or certificate. Over the limit the response is 429 to all of them, and delayed. The second count goes by the
text that was sent, and not by a token's entry, so that it does not reveal which tokens exist.

Beyond the limit events are aggregated and reported once in `failed_attempts_window`, so that a flood fills neither log
nor audit.
"""

import hashlib
import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import trio

from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.options import GatewaySection
from acp_gateway.errors import (
    AccessError,
    Busy,
    Forbidden,
    LinkGone,
    ProtocolError,
    TooFarBehind,
    TooManyAttempts,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
)
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.rate_limits import EventAggregator, FailureCounter, network_of
from acp_gateway.server.pending import PendingConnection

log = logging.getLogger(__name__)

REFUSAL_DELAY: Final = 1.0
"""Delay of the response, in seconds, over the limit. It slows down a sequential guesser by a factor of a thousand; a
person with the wrong token hardly notices."""

MAX_SINGLE_LINES: Final = 10
"""Multiple of `failed_attempts` up to which events, of all addresses together, are logged one by one within the window.
An attacker with very many addresses fills the log no sooner than with one."""

MAX_SINGLE_ENTRIES: Final = 60
"""Connections of one identity that are audited one by one within the window: many devices, each of them restarted. A
client that reconnects in a loop must not push older entries out of the audit."""

_COUNTED: Final = (Unauthorized, Forbidden, UnknownAgent, UnknownSession)
"""Refusals that a guess may cause. A link that is gone, or a full gateway, is not the client's fault."""

_ALL_ADDRESSES: Final = "all addresses"


@dataclass(frozen=True, slots=True)
class Refusal:
    """The error of a refused connection, and the delay of the response."""

    error: AccessError
    delay: float = 0.0
    """Seconds from now."""


@dataclass(frozen=True, slots=True)
class _Event:
    """A kind of event that is aggregated."""

    address: str
    listener: str
    reason: str
    level: int = logging.WARNING
    audited: bool = True


class Refusals:
    """The refusals of all listeners of a gateway. Needs `report` to run."""

    def __init__(self, settings: GatewaySection, limits: LimitsSection, audit: Audit) -> None:
        self._audit = audit
        self.counts = Counter(dict.fromkeys((error.reason for error in (*_COUNTED, Busy, ProtocolError)), 0))
        """Refused connections and requests since the start, by reason."""
        self._delay = min(REFUSAL_DELAY, settings.handshake_timeout / 2)
        self._window = limits.failed_attempts_window
        # Refusals without a valid credential, by network, and refusals by token or credential.
        self._by_address = FailureCounter(limits.failed_attempts, self._window)
        self._by_token = FailureCounter(limits.failed_attempts, self._window)
        # Other events of an address or a token.
        self._events = FailureCounter(limits.failed_attempts, self._window)
        # Events that were logged.
        self._logged = FailureCounter(MAX_SINGLE_LINES * limits.failed_attempts, self._window, max_keys=1)
        # Authenticated connections by identity, and the aggregated rest by identity and credential.
        self._entries = FailureCounter(MAX_SINGLE_ENTRIES, self._window)
        self._aggregated_entries = EventAggregator(("various", "various"))
        self._aggregated = EventAggregator(_Event("many addresses", "any listener", "various"))

    def refuse(
        self, connection: PendingConnection, error: AccessError, *, presented: str | None, credential: str | None
    ) -> Refusal:
        """Count, log and audit a refusal; return the error for the client.

        `presented` is the token that was sent, `credential` the name of a valid one.
        """
        self.counts[error.reason] += 1
        level = logging.INFO if isinstance(error, TooFarBehind | LinkGone) else logging.WARNING
        event = _Event(connection.address, connection.listener, error.reason, level)
        text = f"refused: {error}"
        if not isinstance(error, _COUNTED):
            self._log(event, connection, text, aggregated=self._is_frequent(event, credential), credential=credential)
            return Refusal(error)
        now = trio.current_time()
        if credential is not None:
            over = self._by_token.add(credential, now)
        else:
            over = self._by_address.add(network_of(connection.address), now)
            if presented:
                over |= self._by_token.add(hashlib.sha256(presented.encode(errors="replace")).hexdigest(), now)
        self._log(event, connection, text, aggregated=over, credential=credential)
        if not over:
            return Refusal(error)
        return Refusal(TooManyAttempts("refused too often: check the token and what it is for, and wait"), self._delay)

    def refuse_malformed(self, connection: PendingConnection, text: str) -> float:
        """Log and audit data that can't be understood. Return the delay of the response: 0 up to the limit."""
        event = _Event(connection.address, connection.listener, ProtocolError.reason)
        self.counts[event.reason] += 1
        over = self._is_frequent(event)
        self._log(event, connection, text, aggregated=over)
        return self._delay if over else 0.0

    def log_end(self, connection: PendingConnection, text: str) -> None:
        """Log a connection that ended without authentication; it is not audited."""
        event = _Event(connection.address, connection.listener, "came for nothing", logging.INFO, audited=False)
        self._log(event, connection, text, aggregated=self._is_frequent(event))

    def record_authenticated(self, connection: PendingConnection, **details: str) -> None:
        """Audit an authenticated connection: one by one, or aggregated if an identity connects very often."""
        identity = details.get("identity", "")
        if self._entries.add(identity, trio.current_time()):
            self._aggregated_entries.add((identity, details.get("credential", "")))
        else:
            self._record(
                "authenticated", connection.address, connection.listener, connection=connection.name, **details
            )

    async def report(self) -> None:
        """Report aggregated events once in a window, until cancelled."""
        try:
            while True:
                await trio.sleep(self._window)
                self._report()
        finally:
            self._report()

    def _report(self) -> None:
        for (identity, credential), count in self._aggregated_entries.take():
            self._audit.record("authenticated", identity=identity, credential=credential or None, count=count)
        for event, count in self._aggregated.take():
            where = f"from {event.address} at {event.listener}: {event.reason}"
            log.log(event.level, "%d times more %s", count, where)
            if event.audited:
                self._record("refused", event.address, event.listener, reason=event.reason, count=count)

    def _is_frequent(self, event: _Event, credential: str | None = None) -> bool:
        who = credential or network_of(event.address)
        return self._events.add(f"{event.level} {who}", trio.current_time())

    def _log(
        self,
        event: _Event,
        connection: PendingConnection,
        text: str,
        *,
        aggregated: bool,
        credential: str | None = None,
    ) -> None:
        """Log and audit an event, at once or aggregated."""
        if aggregated or self._logged.add(_ALL_ADDRESSES, trio.current_time()):
            self._aggregated.add(event)
            return
        log.log(event.level, "%s: %s", connection.name, text)
        if event.audited:
            about = {"connection": connection.name, "reason": event.reason, "credential": credential}
            self._record("refused", event.address, event.listener, **about)

    def _record(self, event: str, address: str, listener: str, **details: Any) -> None:
        self._audit.record(event, address=address, listener=listener, **details)
