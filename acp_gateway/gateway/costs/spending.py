"""Adds up what a session has cost, from what its agent tells: the tokens of each turn, and a running total of money.

The tokens are in the result of a prompt, for its turn. Money is told as what the session has cost so far, so what a
total exceeds the last one by counts. When a session is opened again, such totals go on with some agents, and begin at
zero with others. A total that comes before the next prompt says where they begin; of later ones, one below the last has
begun at zero. Where both are possible, the lesser amount counts: nothing counts twice.

Amounts are whole numbers by unit: a currency, in millionths, or one of `UNITS`. They are never added across units.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any, Final, TypeAlias
from weakref import WeakKeyDictionary

import msgspec
from msgspec import Meta

from acp_gateway.core.sessions.archive import CostEvent
from acp_gateway.core.sessions.session import Session
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup

Amounts: TypeAlias = Counter[str]
"""Amounts by unit."""

MILLION: Final = 1_000_000

TURNS: Final = "turns"
TOKENS: Final = "tokens"
"""All tokens of a turn, of whatever kind."""

UNITS: Final = (TURNS, TOKENS, "input", "output", "cachedRead", "cachedWrite")

MOST_CURRENCIES: Final = 4
"""Maximum currencies of one session; an agent bills in one."""

_MOST: Final = 2**53 - 1
"""The largest number that is told: beyond it, clients refuse all that is told with it."""

_Total = Annotated[float, Meta(ge=0, le=1e9)]
_Count = Annotated[int, Meta(ge=0, le=10**12)] | None
"""Larger ones are a mistake, and would not fit into what is stored."""


class _Cost(msgspec.Struct, gc=False):
    amount: _Total
    currency: Annotated[str, Meta(pattern=r"\A[A-Za-z]{3}\Z")]


class _Usage(msgspec.Struct, gc=False, rename="camel"):
    total_tokens: _Count = None
    input_tokens: _Count = None
    output_tokens: _Count = None
    cached_read_tokens: _Count = None
    cached_write_tokens: _Count = None


_decode_cost: Final = msgspec.json.Decoder(_Cost).decode
_decode_usage: Final = msgspec.json.Decoder(_Usage).decode


def read_total(update: Message) -> tuple[str, int] | None:
    """Return the currency and the total of a `usage_update`, in millionths; None if it tells none that is valid."""
    raw = lookup.param(update, "update", "cost")
    try:
        cost = None if raw is None else _decode_cost(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return None if cost is None else (cost.currency.upper(), round(cost.amount * MILLION))


def read_turn(response: Message) -> Amounts:
    """Return what the response to a prompt adds: a turn, and its tokens if the agent tells them."""
    raw = lookup.raw_at(response.text, "result", "usage")
    try:
        told = _Usage() if raw is None or raw == b"null" else _decode_usage(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        told = _Usage()
    parts = (told.input_tokens, told.output_tokens, told.cached_read_tokens, told.cached_write_tokens)
    total = sum(part or 0 for part in parts) if told.total_tokens is None else told.total_tokens
    return Counter({unit: count for unit, count in zip(UNITS, (1, total, *parts), strict=True) if count})


class Meter:
    """Counts what one session has cost, from the totals that its agent tells.

    Args:
        is_whole: nothing was spent in the session that this meter has not counted.
        former: totals from which the agent may go on, by currency; those of another session, if it is a copy.
        is_new: the session has just been made, so that its totals begin at zero.
    """

    __slots__ = ("_former", "_is_prompted", "_is_whole", "_told", "spent")

    def __init__(
        self, *, is_whole: bool = False, former: Mapping[str, int] | None = None, is_new: bool = False
    ) -> None:
        self.spent: Amounts = Counter()
        """All that was counted."""
        self._is_whole = is_whole or is_new
        # The highest totals since the session was opened, and the last ones before that.
        self._told: dict[str, int] = {}
        self._former = dict(former or {})
        # True if what is told now may have been spent since the opening.
        self._is_prompted = is_new

    def forked(self) -> "Meter":
        """Return the meter of a copy of the session."""
        return Meter(is_whole=self._is_whole, former=self._former | self._told)

    def opened(self) -> None:
        """Note that the agent opens the session again: its totals may begin at zero."""
        self._former |= self._told
        self._told = {}
        self._is_prompted = False

    def prompted(self) -> None:
        """Note that the agent gets a prompt."""
        self._is_prompted = True

    def take_total(self, currency: str, total: int) -> Amounts:
        """Take a total that the agent tells, in millionths; return what it adds."""
        if currency not in (known := self._former | self._told) and len(known) >= MOST_CURRENCIES:
            return Counter()
        last, former = self._told.get(currency), self._former.get(currency)
        self._told[currency] = max(total, last or 0)
        if last is not None:
            added = max(total - last, 0)
        elif not self._is_prompted:
            added = 0
        elif former is None:
            added = total if self._is_whole else 0
        else:
            added = total - former if total >= former else total
        return self.add(Counter({currency: added} if added else {}))

    def add(self, amounts: Amounts) -> Amounts:
        """Count amounts, and return them."""
        self.spent.update(amounts)
        return amounts

    def encode(self) -> str | None:
        """Return a text for `decode`; None if nothing is known."""
        state = _State(self._is_whole, self._former | self._told, dict(self.spent))
        return None if state == _State() else msgspec.json.encode(state).decode()

    @classmethod
    def decode(cls, text: str | None) -> "Meter":
        """Return the meter of a session that is not open; one that knows nothing for a text that is not valid."""
        try:
            state = msgspec.json.decode(text or "{}", type=_State)
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return cls()
        meter = cls(is_whole=state.whole, former=state.told)
        meter.spent.update(state.spent)
        return meter


class _State(msgspec.Struct):
    whole: bool = False
    told: dict[str, int] = {}
    spent: dict[str, int] = {}


class Meters:
    """The meters of the sessions of a gateway."""

    def __init__(self) -> None:
        self._of: WeakKeyDictionary[Session, Meter] = WeakKeyDictionary()

    def of(self, session: Session) -> Meter:
        """Return the meter of a session."""
        meter = self._of.get(session)
        return self._set(session, Meter()) if meter is None else meter

    def restore(self, session: Session, text: str | None) -> None:
        """Set the meter of a session of an earlier gateway process, as `Meter.encode` has encoded it."""
        self._set(session, Meter.decode(text))

    def note(self, session: Session, event: CostEvent, told: Session | Message | None) -> Amounts:
        """Note an event of a session, as `Archive.meter`; return what it adds."""
        meter = self.of(session)
        if event == "made":
            self._set(session, self.of(told).forked() if isinstance(told, Session) else Meter(is_new=True))
        elif event == "opened":
            meter.opened()
        elif event == "prompted":
            meter.prompted()
        elif isinstance(told, Message):
            if event == "turn":
                return meter.add(read_turn(told))
            total = read_total(told)
            return Counter() if total is None else meter.take_total(*total)
        return Counter()

    def _set(self, session: Session, meter: Meter) -> Meter:
        self._of[session] = meter
        session.spent = meter.spent
        return meter


def describe(amounts: Mapping[str, int]) -> dict[str, Any]:
    """Return amounts as members of a JSON object: `costs` by currency, and each of `UNITS`."""
    costs = {unit: min(amount, _MOST) / MILLION for unit, amount in sorted(amounts.items()) if unit not in UNITS}
    return {"costs": costs} | {unit: min(amounts.get(unit, 0), _MOST) for unit in UNITS}


def summarize(amounts: Mapping[str, int]) -> dict[str, Any] | None:
    """Return the costs and the tokens alone, as members of a JSON object; None if nothing was spent."""
    described = describe(amounts)
    summary = {name: described[name] for name in ("costs", TOKENS)}
    return summary if any(summary.values()) else None


def amounts_of(described: Mapping[str, Any]) -> Amounts:
    """Return the amounts that `describe` has described."""
    costs = {currency: round(cost * MILLION) for currency, cost in described["costs"].items()}
    return Counter(costs | {unit: described[unit] for unit in UNITS})


def amount_text(amount: int, unit: str) -> str:
    """Return an amount as a person reads it; the unit is a currency or `TOKENS`."""
    return f"{amount:,} {unit}" if unit in UNITS else f"{amount / MILLION:.2f} {unit}"
