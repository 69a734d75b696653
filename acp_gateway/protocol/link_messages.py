"""Control messages between the two ends of a link: confirmations, marks (with positions), probes, the announcement of
the rest of a message, and the goodbye.

Neither end counts them. Their methods are reserved, so that neither an agent nor an editor can send one.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias, cast

from acp_gateway.protocol.methods import ACK, GOODBYE, PROBE, RESERVED_PREFIX, REST
from acp_gateway.protocol.text import spans

CONTROL_SIZE: Final = 1024 * 1024
"""Bytes of a message between the two ends of a link at most; what is larger is a message like any other."""

SMALL_SIZE: Final = 16 * 1024
"""Bytes of a control message that is parsed as a whole; most have a hundred, and a peer may fill a larger one with
brackets."""

COUNT_SIZE: Final = 20
"""Characters of a number of messages at most."""

CONTROL_WORD: Final = RESERVED_PREFIX.encode()
"""Text in every control message of a link: a message without it need not be parsed."""


class Mark:
    """A confirmation that stands at its place among the messages, and is not counted."""

    # Not a struct of msgspec, which no shim may import before the first reply.
    __slots__ = ("text",)

    def __init__(self, text: bytes) -> None:
        self.text = text

    def __len__(self) -> int:
        """Return its bytes."""
        return len(self.text)

    def __repr__(self) -> str:
        return f"Mark({self.text!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Mark) and other.text == self.text

    def __hash__(self) -> int:
        return hash(self.text)


Sent: TypeAlias = bytes | Mark
"""A message, or a mark among messages."""


def without_marks(sent: Sequence[Sent]) -> Sequence[bytes]:
    """Return the messages; the same object if there is no mark."""
    if Mark not in map(type, sent):
        return cast("Sequence[bytes]", sent)
    return [message for message in sent if not isinstance(message, Mark)]


def texts_of(sent: Sequence[Sent]) -> Sequence[bytes]:
    """Return the texts of messages and marks; the same object if there is no mark."""
    if Mark not in map(type, sent):
        return cast("Sequence[bytes]", sent)
    return [message.text if isinstance(message, Mark) else message for message in sent]


def positions_in(mark: bytes) -> dict[str, tuple[str, int]]:
    """Return the epoch and position of each session in the text of a mark; none if it is not one."""
    try:
        positions = json.loads(mark)["params"]["positions"]
        found = {session_id: (at["epoch"], at["position"]) for session_id, at in positions.items()}
    except (ValueError, LookupError, TypeError, AttributeError):
        return {}
    return {
        session_id: (epoch, position)
        for session_id, (epoch, position) in found.items()
        if isinstance(epoch, str) and isinstance(position, int)
    }


class Control(NamedTuple):
    """Control message between the two ends of a link."""

    received: int = 0
    """Number of messages that the sender has received and passed on; 0 says nothing."""
    has_positions: bool = False
    """True if it holds its reader's positions in sessions."""
    goodbye: bool = False
    """True if the sender leaves for good."""
    probe: int = 0
    """Number of a probe that is to be answered; 0 for none."""
    answered: int = 0
    """Number of the reader's probe that this answers; 0 for none."""
    rest_from: int = 0
    """Bytes that the reader has kept of a message whose rest is the next message; 0 for none."""


def acknowledgement(received: int, positions: Mapping[str, tuple[str, int]] | None = None, probe: int = 0) -> bytes:
    """The confirmation of so many messages, counted since the beginning of the link.

    `positions`: of sessions, by id, the epoch and position that a reader of everything up to here has seen. `probe`:
    number of the probe that this answers; 0 for none.
    """
    params: dict[str, Any] = {"received": received}
    if probe:
        params["probe"] = probe
    if positions is not None:
        params["positions"] = {
            session: {"epoch": epoch, "position": position} for session, (epoch, position) in positions.items()
        }
    return json.dumps({"jsonrpc": "2.0", "method": ACK, "params": params}, separators=(",", ":")).encode()


def goodbye() -> bytes:
    """Return the control message of a client that leaves for good."""
    return b'{"jsonrpc":"2.0","method":"%b","params":{}}' % GOODBYE.encode()


def probe(number: int) -> bytes:
    """Return the control message that asks for an answer with this number, 1 or more."""
    return b'{"jsonrpc":"2.0","method":"%b","params":{"probe":%d}}' % (PROBE.encode(), number)


def rest_follows(begin: int) -> bytes:
    """Return the control message directly before a message without its first `begin` bytes."""
    return b'{"jsonrpc":"2.0","method":"%b","params":{"from":%d}}' % (REST.encode(), begin)


def read_control(message: bytes) -> Control | None:
    """Return a control message of the other end, None for a message that is counted and passed on."""
    if CONTROL_WORD not in message or len(message) > CONTROL_SIZE:
        return None
    try:
        value = json.loads(message) if len(message) <= SMALL_SIZE else _outline(message)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict) or "id" in value:
        return None
    if value.get("method") == GOODBYE:
        return Control(goodbye=True)
    params = value.get("params")
    if value.get("method") == PROBE:
        return Control(probe=_number(params, "probe"))
    if value.get("method") == REST:
        return Control(rest_from=_number(params, "from"))
    if value.get("method") != ACK:
        return None
    has_positions = isinstance(params, dict) and isinstance(params.get("positions"), dict)
    return Control(_number(params, "received"), has_positions, answered=_number(params, "probe"))


def _number(params: object, name: str) -> int:
    """Return a whole number of the params, 0 for anything else."""
    number = params.get(name) if isinstance(params, dict) else None
    return number if type(number) is int and number > 0 else 0


def _outline(message: bytes) -> dict[str, Any] | None:
    """Return what `read_control` looks at in a large message, without building the rest of it. Raises `ValueError`."""
    message.decode()
    plain = spans.structure(message)
    start = spans.skip_space(plain, 0)
    if spans.skip_space(plain, spans.value_end(plain, start)) < len(plain):
        raise ValueError("something follows the message")
    if plain[start : start + 1] != b"{":
        return None
    top = _members(message, plain, start)
    outline: dict[str, Any] = {name: None for name in top if name == "id"}
    for name in ("method", "params"):
        first, end = top.get(name, (0, 0))
        if name == "method" and message[first : first + 1] == b'"':
            outline[name] = spans.string_value(message[first:end])
        elif name == "params" and end and plain[first : first + 1] == b"{":
            params = _members(message, plain, first)
            first, end = params.get("received", (0, 0))
            received = json.loads(message[first:end]) if 0 < end - first <= COUNT_SIZE else None
            first, end = params.get("positions", (0, 0))
            outline[name] = {"received": received, "positions": {} if end and plain[first] == ord("{") else None}
    return outline


def _members(message: bytes, plain: bytes, start: int) -> dict[str, tuple[int, int]]:
    return {spans.string_value(name): (at, end) for name, at, end in spans.members(message, start, plain=plain)}
