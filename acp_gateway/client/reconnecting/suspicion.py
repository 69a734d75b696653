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
from typing import Final, NamedTuple

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
    message_at: float | None
    """Time of the first message that it stands behind; None for a probe in a silence."""
    received: int
    """Number of messages from the gateway before it."""


class Suspicion:
    """Watches one link over its connections."""

    def __init__(self) -> None:
        self.suspected_at: float | None = None
        """Time since which the connection is suspected; None while it is not."""
        self.silent_since = 0.0
        """Time since which an answer is missing, while the connection is suspected."""
        self.round_trip = 0.0
        """Smoothed round trip, in seconds."""
        self._answers_probes = False
        self._patience = 1.0
        self._number = 0
        self._probes: list[_Probe] = []
        self._probed_at = -inf
        # Time of the first message that no probe was sent behind.
        self._message_at: float | None = None
        self._source: str | None = None
        # True while there is no way to the gateway, though there was one.
        self._has_no_way = False
        self._urgent = ""
        self._why = ""
        # True if only a confirmation shows that the connection is alive: what is heard does not come from these bytes.
        self._needs_confirmation = False
        # True if only the answer to a probe does.
        self._needs_answer = False
        # Times of the last dial, and of the last one that was in vain.
        self._dialed_at = -inf
        self._vain_at = -inf
        self._acknowledged = 0
        # Times of the last confirmation by the peer's system, and of the last progress of bytes that wait.
        self._confirmed_at = -inf
        self._in_flight_at: float | None = None
        self._pending = 0
        self._progress_at = -inf
        # Time since which bytes wait; None while none do. And until when the rest of them may be in other queues.
        self._waits_since: float | None = None
        self._passing_until = -inf
        # Time of the last look at which bytes waited.
        self._waited_at = -inf
        # Times at which the next look is due, and, after a late one, until which what has come is read.
        self._due_at = inf
        self._reads_until = -inf
        # Time from which probes measure the round trip: those before it were delayed by this machine.
        self._measured_from = -inf

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
        self._clear()
        self.round_trip = min(max(round_trip, 0.0), MAX_ROUND_TRIP)
        self._answers_probes = answers_probes
        self._probes.clear()
        self._message_at = self._source = None
        self._has_no_way = False
        self._probed_at = self._dialed_at = self._vain_at = -inf
        self._acknowledged = self._pending = 0
        self._in_flight_at = self._waits_since = None
        self._due_at, self._reads_until = inf, -inf
        self._progress_at, self._passing_until = now, -inf

    def sent(self, now: float) -> bool:
        """A message was sent; return whether to look now, as for the next probe. Else a look is due soon enough."""
        if self._message_at is None:
            self._message_at = now
        if now < self._probed_at + PROBE_INTERVAL and self._due_at <= now + PROBE_INTERVAL:
            return False
        self._due_at = min(self._due_at, now)
        return True

    def answered(self, now: float, number: int) -> None:
        """The gateway has answered a probe, hence received what was sent before it."""
        for probe in self._probes:
            if probe.number == number and probe.sent_at >= self._measured_from and now <= self._due_at + LATE:
                took = min(now - probe.sent_at, MAX_ROUND_TRIP)
                self.round_trip = took if not self.round_trip else self.round_trip + (took - self.round_trip) / 8
        self._probes = [probe for probe in self._probes if probe.number > number]
        self._clear()

    def slept(self, seconds: float) -> None:
        """The machine has slept for so long: connections are often dead then. The clock did not advance."""
        self._urgent = "the machine slept"
        self._dialed_at -= seconds
        self._vain_at -= seconds

    # Decisions

    def describe(self, now: float) -> str:
        """Return the reason of the last suspicion, in one line, as it is at this time."""
        if self._why or self.suspected_at is None:
            return self._why or "the connection was suspected"
        return f"no answer for {now - self.silent_since:.1f} s"

    @property
    def timeout(self) -> float:
        """Seconds without an answer after which a connection is suspected."""
        return max(TIMEOUT, ROUND_TRIPS * self.round_trip) * self._patience

    def look(self, sample: Sample) -> Step:
        """Return what is to be done now, and when to look again."""
        now = sample.now
        self._note_time(now)
        self._note_progress(sample)
        self._note_source(sample.source)
        if self._has_no_way:
            self._measured_from = now + PROBE_INTERVAL
        if self.suspected_at is not None:
            heard = sample.heard_at > self.suspected_at and not self._needs_confirmation
            if not self._needs_answer and (heard or self._confirmed_at > self.suspected_at):
                self._clear()
        if self.suspected_at is None:
            self._judge(sample)
        if self._needs_answer:
            # While it speaks it may be slow alone: it is neither shown as lost nor dialed beside often.
            self.silent_since = max(self.silent_since, sample.heard_at)
        probe = self._next_probe(sample)
        dial = self._urgent if now >= self._vain_at + DIAL_INTERVAL else ""
        self._urgent, self._why = "", dial or self._why
        if not dial and self.suspected_at is not None:
            since = max(self.suspected_at, self.silent_since)
            interval = DIAL_INTERVAL if now < since + DIAL_INTERVAL else REDIAL_INTERVAL
            ready = max(self._dialed_at + interval, sample.answer_due, self._reads_until)
            dial = self.describe(now) if now >= ready else ""
        if dial:
            self._dialed_at = now
        self._due_at = self._due(sample)
        return Step(probe, dial, self._due_at)

    def _clear(self) -> None:
        if self.suspected_at is not None and self._dialed_at >= self.suspected_at:
            self._vain_at = self._dialed_at
        self.suspected_at = None
        self._needs_confirmation = self._needs_answer = False
        self._urgent = ""
        # A confirmation is missing from now on at the earliest.
        self._in_flight_at = None

    def _note_time(self, now: float) -> None:
        """Wait after a late look, once: an answer may have come that is not read yet."""
        if now >= self._reads_until:
            waited, self._reads_until = self._reads_until > -inf, -inf
            if now > self._due_at + LATE and not waited:
                self._reads_until = now + PROBE_INTERVAL
                self._measured_from = now
                self._message_at = None if self._message_at is None else now

    def _note_progress(self, sample: Sample) -> None:
        now, path = sample.now, sample.path
        if sample.pending < self._pending:
            self._progress_at = now
        self._pending = sample.pending
        # The time in which this program was stopped does not count.
        late = now > self._waited_at + LATE
        if sample.pending or (path is not None and path.queued):
            self._waits_since = now if self._waits_since is None or late else self._waits_since
            self._waited_at = now
        elif self._waits_since is not None:
            # A proxy or a tunnel on the way may hold as much again, and take as long for it.
            self._passing_until = now + min((self._waited_at if late else now) - self._waits_since, STUCK)
            self._waits_since = None
        if path is None:
            return
        if path.acknowledged != self._acknowledged:
            self._acknowledged = path.acknowledged
            self._confirmed_at = self._progress_at = now
            self._in_flight_at = now
        if not path.queued and not sample.pending:
            self._progress_at = now
        if not path.in_flight:
            self._in_flight_at = None
        elif self._in_flight_at is None:
            self._in_flight_at = now

    def _note_source(self, source: str | None) -> None:
        if source is None:
            self._has_no_way = self._source is not None
            return
        if self._source not in (None, source):
            self._urgent = f"the way to the gateway has changed: from {source} instead of {self._source}"
        elif self._has_no_way and self.suspected_at is not None:
            self._urgent = "the way to the gateway is back"
            # Without a way, an attempt cost nothing.
            self._dialed_at = self._vain_at = -inf
        self._source, self._has_no_way = source, False

    def _judge(self, sample: Sample) -> None:
        """Suspect the connection if there is a reason."""
        now = sample.now
        if self._urgent:
            self._suspect(now, now)
            # A proxy on this machine confirms bytes, and what is read may have come before.
            self._needs_answer = self._answers_probes
            return
        if now < self._reads_until:
            return
        if self._in_flight_at is not None and now >= self._in_flight_at + self.timeout:
            self._suspect(now, self._in_flight_at)
            self._needs_confirmation = True
            return
        if self._has_no_way and self._waits_since is not None and now >= self._waits_since + self.timeout:
            # The system keeps the bytes and sends nothing, so that none are in flight. Once the way is back it may wait
            # for seconds, though the gateway is heard at once; that is all there is where nothing confirms them.
            self._suspect(now, self._waits_since)
            self._needs_confirmation = sample.path is not None or self._answers_probes
            return
        waits = sample.pending > 0 or (sample.path is not None and sample.path.queued)
        if not self._probes or now < self._passing_until or (waits and now - self._progress_at < STUCK):
            return
        first = self._probes[0]
        since = first.sent_at if first.message_at is None else first.message_at
        if sample.received > first.received and now >= first.sent_at + max(DEAF * self._patience, self.timeout):
            self._suspect(now, since)
            self._why = f"messages come, but no answer for {now - since:.1f} s"
            self._needs_answer = True
            return
        since = max(since, sample.heard_at, self._progress_at if sample.pending else -inf)
        if now >= since + (SILENCE_TIMEOUT if first.message_at is None else 0.0) + self.timeout:
            self._suspect(now, since)

    def _suspect(self, now: float, since: float) -> None:
        self.suspected_at, self.silent_since = now, since
        self._why = ""

    def _next_probe(self, sample: Sample) -> int:
        """Return the number of the probe that is to be sent now; 0 for none."""
        now = sample.now
        if not self._answers_probes:
            self._message_at = None
        if not self._answers_probes or len(self._probes) >= _MAX_PROBES:
            return 0
        behind = self._message_at is not None and now >= self._probed_at + PROBE_INTERVAL
        quiet = sample.expects and now >= max(sample.heard_at, self._probed_at) + SILENCE and not self._probes
        if not (behind or quiet or self._urgent):
            return 0
        self._number += 1
        self._probes.append(_Probe(self._number, now, self._message_at, sample.received))
        self._message_at, self._probed_at = None, now
        return self._number

    def _due(self, sample: Sample) -> float:
        now = sample.now
        waits = self._probes or self._message_at is not None or self.suspected_at is not None
        queued = sample.pending or (sample.path is not None and sample.path.queued)
        if not (waits or queued or sample.expects):
            return inf
        # In time for the suspicion, or for the probe in a silence, and not up to an interval later.
        missing = [] if self._in_flight_at is None else [self._in_flight_at + self.timeout]
        if self._probes:
            first = self._probes[0]
            since = first.sent_at + SILENCE_TIMEOUT if first.message_at is None else first.message_at
            missing.append(since + self.timeout)
        elif sample.expects:
            missing.append(max(sample.heard_at, self._probed_at) + SILENCE)
        return min([now + PROBE_INTERVAL, *(at for at in missing if at > now)])
