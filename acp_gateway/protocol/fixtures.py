"""Fixtures: dialogues between a client and an agent as lines of JSON, to test other programs with.

Each line is a message with one further member, `direction`: `outgoing` from the client to the agent, `incoming` from
the agent to the client. A fixture has no header and no times. It is written from a recording, with secrets redacted,
and read like one.
"""

from collections.abc import Iterable
from typing import Final

from acp_gateway.errors import ConfigError
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.redaction import redact_json
from acp_gateway.protocol.text import lookup

DIRECTION: Final = "direction"
OUTGOING: Final = b'"outgoing"'
INCOMING: Final = b'"incoming"'

GROWTH: Final = 4
"""Bytes of a redacted message for each byte of the message, at most: characters become escapes."""


def is_fixture_line(line: bytes) -> bool:
    """Return True if a line of a file is one of a fixture."""
    try:
        read_line(line)
    except ValueError:
        return False
    return True


def read_line(line: bytes) -> tuple[bool, bytes]:
    """Return whether the message of a fixture's line is the client's, and the message itself, without `direction`.

    The order and the spelling of its other members stay. Raises `ValueError` for a line that is not one of a fixture.
    """
    members = lookup.members_at(line) if line.lstrip().startswith(b"{") else {}
    direction = members.pop(DIRECTION, None)
    if direction not in (OUTGOING, INCOMING):
        raise ValueError('no "direction" that is "outgoing" or "incoming"')
    return direction == OUTGOING, jsonrpc.compose(members)


def write_lines(messages: Iterable[tuple[bool, bytes]], largest: int) -> bytes:
    """Return the fixture of a dialogue, with known kinds of secrets redacted.

    Args:
        messages: those of the dialogue, each with True if it is the client's.
        largest: maximum bytes of one message. Raises `ConfigError`, with the message's number, for a larger one.
    """
    lines = []
    for number, (from_client, message) in enumerate(messages, 1):
        redacted = redact_json(message, GROWTH * largest, largest)
        if redacted is None:
            raise ConfigError(
                f"message {number} has {len(message)} bytes, more than --message-size, or is nested too deep"
            )
        lines.append(b'{"direction":%b,%b\n' % (OUTGOING if from_client else INCOMING, redacted.lstrip()[1:]))
    return b"".join(lines)
