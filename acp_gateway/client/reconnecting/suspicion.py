"""Decides when a connection may be dead, so that a second one is to be dialed beside it. Pure: the time is an argument.

A wrong suspicion costs one handshake, since the first connection goes on until the second one has resumed the link. So
it may be early. It comes from

- a probe without an answer: one is sent behind a message, and in a silence while an answer is expected;
- bytes that the peer's system does not confirm;
- in the end, a probe without an answer while messages come;
- another source address for the gateway, none while bytes wait, and a machine that has slept.

A second connection cuts off a message that is on its way, which has to be sent from its beginning. Over a slow line
that could go on for ever, so the timeout doubles with each connection over which nothing came.
"""

from math import inf
from typing import Final, Literal, NamedTuple

from acp_gateway.transports.path_state import PathState

TIMEOUT: Final = 1.0
"""Seconds without an answer until a suspicion, however fast the line is: busy machines and lost packets take less."""

ROUND_TRIPS: Final = 1.25
"""The same in round trips, for a slow line. The second connection asks for the link only after its handshakes, another
one or two round trips later: until then an answer makes it superfluous."""

SILENCE: Final = 1.0
"""Seconds of silence, while an answer is expected, until a probe is sent."""

SILENCE_TIMEOUT: Final = 0.5
"""Seconds more for the answer to that probe, which is behind no message."""

PROBE_INTERVAL: Final = 0.25
"""Seconds between two probes behind messages at least, and between two looks while something is on its way."""

DIAL_INTERVAL: Final = 10.0
"""Seconds between two connections that are dialed in vain at least."""

REDIAL_INTERVAL: Final = 1.0
"""The same once a connection was suspected for `DIAL_INTERVAL`: it is dead, and a network that is back is used soon."""

MAX_ROUND_TRIP: Final = 3.0
"""Seconds that a round trip counts for at most: an answer behind a large message takes longer."""

STUCK: Final = 20.0
"""Seconds without progress until bytes that wait are a reason: the peer may take little at a time."""

DEAF: Final = 10.0
"""Seconds until a probe without an answer is a reason although messages come: the way there may be dead alone, or the
answer waits behind them."""

LATE: Final = 2 * PROBE_INTERVAL
"""Seconds by which a look is late after this program was stopped, or busy."""

_MAX_PROBES: Final = 2
"""Probes without an answer after which no more are sent."""


class Sample(NamedTuple):
    """A look at a connection."""

    now: float
    """Seconds of any clock; so are all times here."""
    heard_at: float = -inf
    """Time of the last bytes from the gateway."""
    expects: bool = False
    """True while an answer or a turn is expected."""
    pending: int = 0
    """Bytes that wait in this process."""
    path: PathState | None = None
    """State of the connection in the system, where it tells."""
    source: str | None = None
    """Address from which the gateway would be reached now; None if it is not known."""
    received: int = 0
    """Number of messages from the gateway so far. A large one that comes over a slow line counts at its end."""
    answer_due: float = -inf
    """Time until which a second connection that has asked for the link has for its answer."""

    @property
    def waits(self) -> bool:
        """True if bytes wait, in this process or in the system."""
        return self.pending > 0 or (self.path is not None and self.path.queued)


class Step(NamedTuple):
    """The next step: a probe, another connection, or neither."""

    probe: int = 0
    """Number of a probe that is to be sent; 0 for none."""
    dial: str = ""
    """Reason to dial a second connection now; empty for none."""
    due: float = inf
    """Time of the next look."""


class _Probe(NamedTuple):
    number: int
    sent_at: float
    since: float
    """Time since which its answer is missing: that of the first message that it stands behind, if there is one."""
    grace: float
    """Seconds that its answer may take beside the timeout."""
    received: int
    """Number of messages from the gateway before it."""


class Probes:
    """The probes over one connection, and the round trip that they measure."""

    def __init__(self, last: int, round_trip: float, *, are_answered: bool) -> None:
        self.last = last
        """Number of the last one over the link."""
        self.round_trip = min(max(round_trip, 0.0), MAX_ROUND_TRIP)
        """Smoothed round trip, in seconds."""
        self.are_answered = are_answered
        """True if the gateway does."""
        self.open: list[_Probe] = []
        """Those without an answer, the earliest first."""
        self.sent_at = -inf
        """Time of the last one."""
        self.message_at: float | None = None
        """Time of the first message that none was sent behind."""
        self.measured_from = -inf
        """Time from which they measure the round trip: those before it were delayed by this machine."""

    def note_delay(self, now: float) -> None:
        """Note that this program was stopped, or busy, until now."""
        self.measured_from = now
        self.message_at = None if self.message_at is None else now

    def answered(self, now: float, number: int, *, in_time: bool) -> None:
        """Take an answer; `in_time` if it was read when it came."""
        for probe in self.open:
            if probe.number == number and probe.sent_at >= self.measured_from and in_time:
                took = min(now - probe.sent_at, MAX_ROUND_TRIP)
                self.round_trip = took if not self.round_trip else self.round_trip + (took - self.round_trip) / 8
        self.open = [probe for probe in self.open if probe.number > number]

    def next(self, sample: Sample, *, is_urgent: bool) -> int:
        """Return the number of the probe that is to be sent now; 0 for none."""
        now = sample.now
        if not self.are_answered:
            self.message_at = None
        if not self.are_answered or len(self.open) >= _MAX_PROBES:
            return 0
        behind = self.message_at is not None and now >= self.sent_at + PROBE_INTERVAL
        quiet = sample.expects and now >= max(sample.heard_at, self.sent_at) + SILENCE and not self.open
        if not (behind or quiet or is_urgent):
            return 0
        self.last += 1
        since, grace = (now, SILENCE_TIMEOUT) if self.message_at is None else (self.message_at, 0.0)
        self.open.append(_Probe(self.last, now, since, grace, sample.received))
        self.message_at, self.sent_at = None, now
        return self.last


class _Delivery:
    """The bytes that wait for one connection, those on their way, and confirmations by the peer's system."""

    def __init__(self, now: float) -> None:
        self.confirmed_at = -inf
        """Time of the last confirmation."""
        self.in_flight_at: float | None = None
        """Time since which one is missing; None while none is."""
        self.progress_at = now
        """Time of the last progress of bytes that wait."""
        self.waits_since: float | None = None
        """Time since which bytes wait; None while none do."""
        self.passing_until = -inf
        """Time until which the rest of those that have waited may be in other queues."""
        self._acknowledged = self._pending = 0
        # Time of the last look at which bytes waited.
        self._waited_at = -inf

    def note(self, sample: Sample) -> None:
        """Note what a look has found."""
        now, path = sample.now, sample.path
        if sample.pending < self._pending:
            self.progress_at = now
        self._pending = sample.pending
        # The time in which this program was stopped does not count.
        late = now > self._waited_at + LATE
        if sample.waits:
            self.waits_since = now if self.waits_since is None or late else self.waits_since
            self._waited_at = now
        elif self.waits_since is not None:
            # A proxy or a tunnel on the way may hold as much again, and take as long for it.
            self.passing_until = now + min((self._waited_at if late else now) - self.waits_since, STUCK)
            self.waits_since = None
        if path is None:
            return
        if path.acknowledged != self._acknowledged:
            self._acknowledged = path.acknowledged
            self.confirmed_at = self.progress_at = self.in_flight_at = now
        if not sample.waits:
            self.progress_at = now
        if not path.in_flight:
            self.in_flight_at = None
        elif self.in_flight_at is None:
            self.in_flight_at = now


_Proof = Literal["anything", "confirmation", "answer"]
"""Proof that a suspected connection is alive: whatever is heard or confirmed, a confirmation by the peer's system
alone, as what is heard does not come from these bytes, or the answer to a probe alone."""


class Suspect:
    """A connection that is suspected."""

    def __init__(self, at: float, silent_since: float, proof: _Proof = "anything", why: str = "") -> None:
        self.at = at
        self.silent_since = silent_since
        """Time since which an answer is missing."""
        self.proof = proof
        self.why = why
        """The reason; empty if no answer comes."""

    def is_cleared(self, heard_at: float, confirmed_at: float) -> bool:
        """Return whether it is alive, if something was heard, and confirmed, at these times last."""
        if self.proof == "answer":
            return False
        return (heard_at > self.at and self.proof == "anything") or confirmed_at > self.at


class Suspicion:
    """Watches one link over its connections."""

    def __init__(self) -> None:
        # Of the present connection.
        self.suspect: Suspect | None = None
        """Set while it is suspected."""
        self.probes = Probes(0, 0.0, are_answered=False)
        self._delivery = _Delivery(-inf)
        self._source: str | None = None
        # True while there is no way to the gateway, though there was one.
        self._has_no_way = False
        # Times of the last second connection beside it, and of the last one that was in vain.
        self._dialed_at = self._vain_at = -inf
        # Times at which the next look is due, and, after a late one, until which what has come is read.
        self._due_at, self._reads_until = inf, -inf
        # Reason to dial at once; that of the last suspicion.
        self._urgent = self._why = ""
        # Grows with each connection over which nothing came.
        self._patience = 1.0

    # Events

    def connected(self, now: float, round_trip: float, *, answers_probes: bool, moved: bool = True) -> None:
        """Begin with a new connection.

        Args:
            now: the time.
            round_trip: an estimate, in seconds.
            answers_probes: True if the gateway does.
            moved: True if messages came or were confirmed over the one before.
        """
        self._patience = 1.0 if moved else 2 * self._patience
        self.probes = Probes(self.probes.last, round_trip, are_answered=answers_probes)
        self._delivery, self.suspect = _Delivery(now), None
        self._source, self._has_no_way = None, False
        self._dialed_at = self._vain_at = -inf
        self._due_at, self._reads_until = inf, -inf
        self._urgent = ""

    def sent(self, now: float) -> bool:
        """A message was sent; return whether to look now, as for the next probe. Else a look is due soon enough."""
        if self.probes.message_at is None:
            self.probes.message_at = now
        if now < self.probes.sent_at + PROBE_INTERVAL and self._due_at <= now + PROBE_INTERVAL:
            return False
        self._due_at = min(self._due_at, now)
        return True

    def answered(self, now: float, number: int) -> None:
        """The gateway has answered a probe, hence received what was sent before it."""
        self.probes.answered(now, number, in_time=now <= self._due_at + LATE)
        self._clear()

    def slept(self, seconds: float) -> None:
        """The machine has slept for so long: connections are often dead then. The clock did not advance."""
        self._urgent = "the machine slept"
        self._dialed_at -= seconds
        self._vain_at -= seconds

    # Decisions

    def describe(self, now: float) -> str:
        """Return the reason of the last suspicion, in one line, as it is at this time."""
        if self._why or self.suspect is None:
            return self._why or "the connection was suspected"
        return f"no answer for {now - self.suspect.silent_since:.1f} s"

    @property
    def timeout(self) -> float:
        """Seconds without an answer after which a connection is suspected."""
        return max(TIMEOUT, ROUND_TRIPS * self.probes.round_trip) * self._patience

    def look(self, sample: Sample) -> Step:
        """Return what is to be done now, and when to look again."""
        now = sample.now
        self._note_time(now)
        self._delivery.note(sample)
        self._note_source(sample.source)
        if self._has_no_way:
            self.probes.measured_from = now + PROBE_INTERVAL
        if self.suspect is not None and self.suspect.is_cleared(sample.heard_at, self._delivery.confirmed_at):
            self._clear()
        if self.suspect is None:
            self.suspect = self._judge(sample)
            self._why = self._why if self.suspect is None else self.suspect.why
        suspect = self.suspect
        if suspect is not None and suspect.proof == "answer":
            # While it speaks it may be slow alone: it is neither shown as lost nor dialed beside often.
            suspect.silent_since = max(suspect.silent_since, sample.heard_at)
        probe = self.probes.next(sample, is_urgent=bool(self._urgent))
        dial = self._urgent if now >= self._vain_at + DIAL_INTERVAL else ""
        self._urgent, self._why = "", dial or self._why
        if not dial and suspect is not None:
            since = max(suspect.at, suspect.silent_since)
            interval = DIAL_INTERVAL if now < since + DIAL_INTERVAL else REDIAL_INTERVAL
            ready = max(self._dialed_at + interval, sample.answer_due, self._reads_until)
            dial = self.describe(now) if now >= ready else ""
        if dial:
            self._dialed_at = now
        self._due_at = self._due(sample)
        return Step(probe, dial, self._due_at)

    def _clear(self) -> None:
        """Suspect the connection no more."""
        if self.suspect is not None and self._dialed_at >= self.suspect.at:
            self._vain_at = self._dialed_at
        self.suspect, self._urgent = None, ""
        # A confirmation is missing from now on at the earliest.
        self._delivery.in_flight_at = None

    def _note_time(self, now: float) -> None:
        """Wait after a late look, once: an answer may have come that is not read yet."""
        if now >= self._reads_until:
            waited, self._reads_until = self._reads_until > -inf, -inf
            if now > self._due_at + LATE and not waited:
                self._reads_until = now + PROBE_INTERVAL
                self.probes.note_delay(now)

    def _note_source(self, source: str | None) -> None:
        """Dial at once if the way to the gateway has changed, or is back."""
        if source is None:
            self._has_no_way = self._source is not None
            return
        if self._source not in (None, source):
            self._urgent = f"the way to the gateway has changed: from {source} instead of {self._source}"
        elif self._has_no_way and self.suspect is not None:
            self._urgent = "the way to the gateway is back"
            # Without a way, an attempt cost nothing.
            self._dialed_at = self._vain_at = -inf
        self._source, self._has_no_way = source, False

    def _judge(self, sample: Sample) -> Suspect | None:
        """Suspect the connection if there is a reason."""
        now, probes, delivery = sample.now, self.probes, self._delivery
        if self._urgent:
            # A proxy on this machine confirms bytes, and what is read may have come before.
            return Suspect(now, now, "answer" if probes.are_answered else "anything")
        if now < self._reads_until:
            return None
        if delivery.in_flight_at is not None and now >= delivery.in_flight_at + self.timeout:
            return Suspect(now, delivery.in_flight_at, "confirmation")
        waits_since = delivery.waits_since
        if self._has_no_way and waits_since is not None and now >= waits_since + self.timeout:
            # The system keeps the bytes and sends nothing, so that none are in flight. Once the way is back it may wait
            # for seconds, though the gateway is heard at once; that is all there is where nothing confirms them.
            confirms = sample.path is not None or probes.are_answered
            return Suspect(now, waits_since, "confirmation" if confirms else "anything")
        if not probes.open or now < delivery.passing_until or (sample.waits and now - delivery.progress_at < STUCK):
            return None
        first = probes.open[0]
        if sample.received > first.received and now >= first.sent_at + max(DEAF * self._patience, self.timeout):
            why = f"messages come, but no answer for {now - first.since:.1f} s"
            return Suspect(now, first.since, "answer", why)
        since = max(first.since, sample.heard_at, delivery.progress_at if sample.pending else -inf)
        return Suspect(now, since) if now >= since + first.grace + self.timeout else None

    def _due(self, sample: Sample) -> float:
        now, probes, in_flight_at = sample.now, self.probes, self._delivery.in_flight_at
        is_busy = probes.open or probes.message_at is not None or self.suspect is not None
        if not (is_busy or sample.waits or sample.expects):
            return inf
        # In time for the suspicion, or for the probe in a silence, and not up to an interval later.
        missing = [] if in_flight_at is None else [in_flight_at + self.timeout]
        if probes.open:
            first = probes.open[0]
            missing.append(first.since + first.grace + self.timeout)
        elif sample.expects:
            missing.append(max(sample.heard_at, probes.sent_at) + SILENCE)
        return min([now + PROBE_INTERVAL, *(at for at in missing if at > now)])
