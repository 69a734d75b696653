"""Counts of events since the start of the gateway, for metrics.

They are plain numbers: what counts an event adds one, and nothing else happens. States, such as the number of
connections, are not counted here but read when the metrics are.
"""

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, get_args

from acp_gateway.core.output import AuditEvent, HookEvent
from acp_gateway.core.traffic import Traffic
from acp_gateway.errors import LinkExpired, LinkGone, TooFarBehind
from acp_gateway.gateway.costs.spending import TURNS, UNITS
from acp_gateway.gateway.hub.agent_supervisor import End
from acp_gateway.gateway.hub.attachment import EXPIRED, TOO_SLOW, Disconnect
from acp_gateway.transports.streams import CloseReason

STOP_REASONS: Final = ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled")
"""Stop reasons of the protocol; agents may send any text, which is counted as `other`."""

NOT_STARTED: Final = "not_started"
"""Manner of an agent's end before its start, which failed."""

TURN_BOUNDS: Final = (1.0, 3.0, 10.0, 30.0, 60.0, 180.0, 600.0, 1800.0, 3600.0, 10800.0)
"""Seconds: a turn is one short answer, or an hour of work."""

WAIT_BOUNDS: Final = (1.0, 3.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 3600.0, 14400.0, 86400.0)
"""Seconds: a decision is made at once, or on the next morning."""

LAG_BOUNDS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)
"""Seconds: an idle event loop is late by less than the first."""

MOST_CURRENCIES: Final = 8
"""Maximum currencies that are counted of one agent: agents name them, and each is a series."""

KINDS: Final = ("total", "input", "output", "cached_read", "cached_write")
"""Kinds of tokens, in the order of their units."""

_KINDS: Final = dict(zip((unit for unit in UNITS if unit != TURNS), KINDS, strict=True))

LATEST_LAGS: Final = 5
"""Number of values, one a second, whose maximum other gateways are told: as many seconds as between two lists.
"""

_NOT_RESUMED: Final = (LinkGone, LinkExpired, TooFarBehind)

_COMMON_ENDS: Final = (
    "left",
    "gateway_stopping",
    "agent_gone",
    TOO_SLOW,
    EXPIRED,
    "unauthorized",
    "evicted",
    "internal",
)


class Histogram:
    """Counts observed values by ranges.

    Args:
        bounds: upper bounds of the ranges, ascending; the last range has none.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        """Number of values in each range."""
        self.total = 0.0
        """Sum of all values."""

    def observe(self, value: float) -> None:
        """Count a value; a bound belongs to the range below it."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value


class Metrics:
    """The counts of one gateway.

    Args:
        agents: names of the configured agents.
    """

    def __init__(self, agents: Iterable[str]) -> None:
        self.traffic = Traffic()
        self.turns: Counter[tuple[str, str]] = Counter()
        """Ended turns, by agent and stop reason."""
        self.turn_seconds: dict[str, Histogram] = {}
        self.decision_wait: dict[str, Histogram] = {}
        """Seconds from a request for a decision to the decision, by agent."""
        self.rule_decisions: Counter[tuple[str, str]] = Counter()
        """Permission requests that a rule has decided, by agent, and whether it allows or denies."""
        self.tokens: Counter[tuple[str, str]] = Counter()
        """By agent and kind."""
        self.costs: dict[str, Counter[str]] = {}
        """Money in millionths, by agent and currency."""
        self.agent_starts: Counter[str] = Counter()
        self.agent_exits: Counter[tuple[str, str]] = Counter()
        """By agent, and by how it ended."""
        self.add_agents(agents)
        self.detached = Counter(dict.fromkeys(_COMMON_ENDS, 0))
        """By reason."""
        self.resumes = Counter(dict.fromkeys(("resumed", *(error.reason for error in _NOT_RESUMED)), 0))
        """Attempts to resume a link, by result."""
        self.pushes = Counter(dict.fromkeys(("sent", "ended", "failed"), 0))
        """Messages for push services, by outcome."""
        self.event_loop_lag = Histogram(LAG_BOUNDS)
        """Seconds that the event loop was late, once a second."""
        self._latest_lags: deque[float] = deque([0.0], LATEST_LAGS)

    def add_agents(self, names: Iterable[str]) -> None:
        """Count the events of these agents too, from zero: else the first of a kind would not show as an increase."""
        for name in names:
            self.turns.update({(name, reason): 0 for reason in (*STOP_REASONS, "none", "other")})
            self.turn_seconds.setdefault(name, Histogram(TURN_BOUNDS))
            self.decision_wait.setdefault(name, Histogram(WAIT_BOUNDS))
            self.rule_decisions.update({(name, kind): 0 for kind in ("allow", "deny")})
            self.tokens.update({(name, kind): 0 for kind in KINDS})
            self.agent_starts.update({name: 0})
            self.agent_exits.update({(name, how): 0 for how in (*get_args(End), NOT_STARTED)})

    @property
    def recent_lag(self) -> float:
        """The most of the last seconds by which the event loop was late."""
        return max(self._latest_lags)

    def observe_lag(self, seconds: float) -> None:
        """Count by how much the event loop was late, once a second."""
        self.event_loop_lag.observe(seconds)
        self._latest_lags.append(seconds)

    def count_hook_event(self, event: HookEvent) -> None:
        """Count the end of a turn."""
        if event.name == "turn_end":
            reason = event.details.get("stopReason")
            known = "none" if reason is None else reason if reason in STOP_REASONS else "other"
            self.turns[event.session.agent, known] += 1
            self.turn_seconds[event.session.agent].observe(event.details["seconds"])

    def count_audit_event(self, event: AuditEvent) -> None:
        """Count a decision, or the start or end of an agent."""
        if event.name == "agent_started":
            self.agent_starts[event.details["agent"]] += 1
        elif event.name == "agent_not_started":
            self.agent_exits[event.details["agent"], NOT_STARTED] += 1
        elif event.name == "agent_ended":
            self.agent_exits[event.details["agent"], event.details["how"]] += 1
        elif event.name in ("permission_decided", "elicitation_decided"):
            self.decision_wait[event.details["agent"]].observe(event.age)
            if "rule" in event.details:
                allows = event.details["optionKind"] == "allow_once"
                self.rule_decisions[event.details["agent"], "allow" if allows else "deny"] += 1

    def count_spent(self, agent: str, amounts: Mapping[str, int]) -> None:
        """Count what a session of an agent has cost in addition."""
        costs = self.costs.setdefault(agent, Counter())
        for unit, amount in amounts.items():
            if unit in _KINDS:
                self.tokens[agent, _KINDS[unit]] += amount
            elif unit != TURNS and (unit in costs or len(costs) < MOST_CURRENCIES):
                costs[unit] += amount

    def count_detached(self, disconnect: Disconnect | None) -> None:
        """Count the end of a client; None if the gateway stops."""
        if disconnect is None:
            reason = "gateway_stopping"
        elif disconnect.reason is not None:
            reason = disconnect.reason
        else:
            reason = "agent_gone" if disconnect.code is CloseReason.AGENT_GONE else "left"
        self.detached[reason] += 1
