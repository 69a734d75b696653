"""What the gateway says to those who may not come in, to its log and to its audit.

Refusals are counted by address where nobody knows who it was, and by what was shown; by the token or certificate where
that was right, and what it was for was not. Over the count the answer is 429 to all of them, and comes late. That the
second count goes by what was shown, and not by a token's entry, keeps it from telling which tokens there are.

What is over the count is told together, once in `failed_attempts_window`, so that a flood fills neither log nor audit.
"""

import hashlib
import logging
from dataclasses import dataclass
from typing import Any, Final

import trio

from acp_gateway.config.options import GatewaySection, LimitsSection
from acp_gateway.errors import (
    AccessError,
    Forbidden,
    LinkGone,
    TooFarBehind,
    TooManyAttempts,
    Unauthorized,
    UnknownAgent,
    UnknownSession,
)
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.rate_limits import EventAggregator, FailureCounter, network_of

log = logging.getLogger(__name__)

REFUSAL_DELAY: Final = 1.0
"""Seconds that the answer waits, over the count. A program that guesses one after another is slowed down a thousand
times, a person who has mistaken the token for another does not mind."""

SINGLE_LINES: Final = 10
"""How many times `failed_attempts` events, of all addresses together, are told one by one within the window. Whoever
has very many addresses fills the log no sooner than whoever has one."""

SINGLE: Final = 60
"""Connections of one identity that are audited one by one within the window: many devices, and each of them restarted.
A client that comes again and again in a loop must not push older entries out of the audit."""

_COUNTED: Final = (Unauthorized, Forbidden, UnknownAgent, UnknownSession)
"""What is refused to those who guess. A link that is gone, or a gateway that is full, is nobody's fault."""

_EVERYBODY: Final = "everybody"


@dataclass(slots=True, eq=False, kw_only=True)
class Peer:
    """Somebody at a door."""

    name: str
    """Of the connection, for the log and the audit."""
    address: str
    """Whose attempts these are: an IP address, or `unix`."""
    listener: str
    """Where they have come to."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """What somebody is told who may not come in, and when."""

    error: AccessError
    delay: float = 0.0
    """Seconds from now."""


@dataclass(frozen=True, slots=True)
class _Event:
    """What is told together with others of its kind."""

    address: str
    listener: str
    reason: str
    level: int = logging.WARNING
    audited: bool = True


class Refusals:
    """Those of all doors of a gateway. `report` has to run for it."""

    def __init__(self, settings: GatewaySection, limits: LimitsSection, audit: Audit) -> None:
        self._audit = audit
        self._delay = min(REFUSAL_DELAY, settings.handshake_timeout / 2)
        self._window = limits.failed_attempts_window
        # Refusals of those whom nobody knows, and by what was shown.
        self._by_address = FailureCounter(limits.failed_attempts, self._window)
        self._by_shown = FailureCounter(limits.failed_attempts, self._window)
        # What else there is to tell about an address, or a token.
        self._events = FailureCounter(limits.failed_attempts, self._window)
        # What has been told.
        self._told = FailureCounter(SINGLE_LINES * limits.failed_attempts, self._window, max_keys=1)
        # What comes in, by identity; and how often that was told together, by identity and credential.
        self._entries = FailureCounter(SINGLE, self._window)
        self._entered = EventAggregator(("various", "various"))
        self._gathered = EventAggregator(_Event("many addresses", "any listener", "various"))

    def refuse(self, visitor: Peer, error: AccessError, *, shown: str | None, credential: str | None) -> Refusal:
        """Count and tell that somebody is refused; what they are told.

        `shown` is the token that they have shown and that was not right, `credential` the name of what was.
        """
        level = logging.INFO if isinstance(error, TooFarBehind | LinkGone) else logging.WARNING
        event = _Event(visitor.address, visitor.listener, error.reason, level)
        text = f"refused: {error}"
        if not isinstance(error, _COUNTED):
            self._tell(event, visitor, text, together=self._is_frequent(event, credential), credential=credential)
            return Refusal(error)
        now = trio.current_time()
        if credential is not None:
            over = self._by_shown.add(credential, now)
        else:
            over = self._by_address.add(network_of(visitor.address), now)
            if shown:
                over |= self._by_shown.add(hashlib.sha256(shown.encode(errors="replace")).hexdigest(), now)
        self._tell(event, visitor, text, together=over, credential=credential)
        if not over:
            return Refusal(error)
        return Refusal(TooManyAttempts("refused too often: check the token and what it is for, and wait"), self._delay)

    def complain(self, visitor: Peer, text: str) -> float:
        """Log and audit what cannot be understood. Returns the seconds that its answer waits: none up to the count."""
        event = _Event(visitor.address, visitor.listener, "protocol")
        over = self._is_frequent(event)
        self._tell(event, visitor, text, together=over)
        return self._delay if over else 0.0

    def note(self, visitor: Peer, text: str) -> None:
        """Tell that somebody has come for nothing, which the audit need not know."""
        event = _Event(visitor.address, visitor.listener, "came for nothing", logging.INFO, audited=False)
        self._tell(event, visitor, text, together=self._is_frequent(event))

    def admitted(self, visitor: Peer, **details: str) -> None:
        """Audit that a connection was authenticated: one by one, or together where one identity comes very often."""
        identity = details.get("identity", "")
        if self._entries.add(identity, trio.current_time()):
            self._entered.add((identity, details.get("credential", "")))
        else:
            self._record("authenticated", visitor.address, visitor.listener, connection=visitor.name, **details)

    async def report(self) -> None:
        """Tell from time to time what is told together, until cancelled."""
        try:
            while True:
                await trio.sleep(self._window)
                self._report()
        finally:
            self._report()

    def _report(self) -> None:
        for (identity, credential), count in self._entered.take():
            self._audit.record("authenticated", identity=identity, credential=credential or None, count=count)
        for event, count in self._gathered.take():
            where = f"from {event.address} at {event.listener}: {event.reason}"
            log.log(event.level, "%d times more %s", count, where)
            if event.audited:
                self._record("refused", event.address, event.listener, reason=event.reason, count=count)

    def _is_frequent(self, event: _Event, credential: str | None = None) -> bool:
        who = credential or network_of(event.address)
        return self._events.add(f"{event.level} {who}", trio.current_time())

    def _tell(self, event: _Event, visitor: Peer, text: str, *, together: bool, credential: str | None = None) -> None:
        """Say it in the log and the audit: at once, or together with others of its kind."""
        if together or self._told.add(_EVERYBODY, trio.current_time()):
            self._gathered.add(event)
            return
        log.log(event.level, "%s: %s", visitor.name, text)
        if event.audited:
            about = {"connection": visitor.name, "reason": event.reason, "credential": credential}
            self._record("refused", event.address, event.listener, **about)

    def _record(self, event: str, address: str, listener: str, **details: Any) -> None:
        self._audit.record(event, address=address, listener=listener, **details)
