"""Ends of turns in the history of a session: each has a place among the updates, and is not one of them.

No client counts an end, and the positions of updates do not depend on it. Clients get it in the words of their dialect;
a stock ACP client gets none.
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import msgspec

from acp_gateway.core.requests import ErrorObject, TurnOutcome
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.gaps import AGENT_LOST
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.reasons import MAX_ERROR_SIZE, in_one_line, reason_of
from acp_gateway.protocol.text import lookup

STOP_REASON_LENGTH: Final = 100
"""Maximum characters of a stop reason that are kept; the longest of the protocol has 17."""

END_SIZE: Final = 100
"""Bytes that an end counts for in a history, besides its texts."""

_CODE_LENGTH: Final = 12
"""Maximum length of an error code that is read, in digits: codes have 32 bits."""

_CUT_TEXTS: Final = {
    "gateway_restarted": "the gateway was restarted during the turn",
    "agent_ended": "the agent has ended during the turn",
    "agent_not_started": "the agent could not be started",
    "agent_silent": "the agent was stopped: it did not answer",
    "agent_stalled": "the agent was stopped: it read nothing",
    "agent_stopped": "the agent was stopped during the turn",
}
"""Messages for turns that were cut off, by reason."""


_STOP_TEXTS: Final = {
    "max_tokens": "The agent stopped: it has used all its tokens.",
    "max_turn_requests": "The agent stopped: it has made as many requests as a turn may have.",
    "refusal": "The agent refused to go on.",
    "cancelled": "Stopped.",
}
"""Words for stop reasons, as the page has them."""


class TurnEnd(NamedTuple):
    """The end of a turn in a history."""

    position: int
    """Number of updates before it."""
    nth: int
    """Its number among the ends at this position, from 1."""
    outcome: TurnOutcome
    time: int | None
    """Milliseconds since 1970; None if that is unknown."""

    @property
    def place(self) -> tuple[int, int]:
        """Its place among all ends, in order."""
        return self.position, self.nth

    @property
    def size(self) -> int:
        """Bytes that it counts for in a history."""
        reason, error, _ = self.outcome
        return END_SIZE + len(reason or "") + (len(error.message) if error is not None else 0)


def ends_between(ends: Sequence[TurnEnd], after: tuple[int, int], until: int) -> Sequence[TurnEnd]:
    """Return those of these ends, which are in order, that come after a place and up to a position."""
    first = bisect_right(ends, after, key=lambda end: end.place)
    return ends[first : bisect_right(ends, until, first, key=lambda end: end.position)]


def outcome_of(response: Message) -> TurnOutcome:
    """Return the end of a turn from the response to its prompt. Its texts are bounded, and have no secrets.

    The error of another gateway for an agent that has ended may quote what the agent wrote to stderr, which not all
    clients of the session may see: only its reason stays. One for a prompt that was not sent names that for its sender.
    """
    if response.error:
        reason = lookup.text_at(response.text, "error", "data", "reason")
        if reason in AGENT_LOST:
            return TurnOutcome(cut=reason)
        if lookup.raw_at(response.text, "error", "data", "notSent") == b"true":
            return TurnOutcome(error=ErrorObject(jsonrpc.INTERNAL_ERROR, "the prompt was not sent to the agent"))
        return TurnOutcome(error=error_of(response))
    reason = lookup.text_at(response.text, "result", "stopReason")
    return TurnOutcome(None if reason is None else in_one_line(reason, STOP_REASON_LENGTH))


def error_of(response: Message) -> ErrorObject:
    """Return code and message of an error response; -32603 if it has no readable code, or is very large."""
    is_read = len(response.text) <= MAX_ERROR_SIZE
    raw = (lookup.raw_at(response.text, "error", "code") if is_read else None) or b""
    code = int(raw) if raw.removeprefix(b"-").isdigit() and len(raw) < _CODE_LENGTH else jsonrpc.INTERNAL_ERROR
    return ErrorObject(code, reason_of(response.text))


def members_of(outcome: TurnOutcome) -> dict[str, Any]:
    """Return the end as members of an object: `stopReason`, or `error` with `code`, `message` and maybe `reason`."""
    if outcome.error is not None:
        return {"error": {"code": outcome.error.code, "message": outcome.error.message}}
    if outcome.cut is not None:
        text = _CUT_TEXTS.get(outcome.cut, "the turn was cut off")
        return {"error": {"code": jsonrpc.INTERNAL_ERROR, "message": text, "reason": outcome.cut}}
    return {"stopReason": outcome.stop_reason}


def words_of(outcome: TurnOutcome) -> str:
    """Return what a person is told of the end of a turn; empty for a turn that was done."""
    told = members_of(outcome)
    if "error" in told:
        return str(told["error"]["message"])
    reason = outcome.stop_reason
    return "" if reason in (None, "end_turn") else _STOP_TEXTS.get(reason or "", f"The turn has ended: {reason}.")


def described(end: TurnEnd) -> dict[str, Any]:
    """Return the end of a turn for translators of dialects: `seq`, `nth`, `time`, and what `members_of` returns."""
    return {"seq": end.position, "nth": end.nth, "time": end.time, **members_of(end.outcome)}


def end_news(outcome: TurnOutcome) -> dict[str, Any]:
    """Return the end of a turn as members of the news of it."""
    told: dict[str, Any] = {"stopReason": outcome.stop_reason}
    if outcome.cut is not None:
        told["reason"] = outcome.cut
    if outcome.error is not None:
        told["error"] = {"code": outcome.error.code, "message": outcome.error.message}
    return told


def past_end(session_id: str, end: TurnEnd) -> bytes:
    """Compose the news of the end of a turn in a history."""
    about = {"sessionId": session_id, "event": "turn_ended", **end_news(end.outcome), "past": True, "time": end.time}
    return jsonrpc.notification(methods.NEWS, about)


def encode_outcome(outcome: TurnOutcome) -> bytes:
    """Return an end as it is stored."""
    return msgspec.json.encode(outcome)


def decode_outcome(stored: object) -> TurnOutcome | None:
    """Return an end from what is stored; None if that is not one."""
    if not isinstance(stored, bytes):
        return None
    try:
        return _decode(stored)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


_decode: Final = msgspec.json.Decoder(TurnOutcome).decode
