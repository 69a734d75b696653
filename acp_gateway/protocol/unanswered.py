"""Which requests of a peer wait for an answer, seen from beside the stream: for whoever settles them at its end.

Messages pass here by the thousand and are looked into only where an id may be: one without the letters `"id"` is a
notification, unless it spells them with escapes.
"""

from acp_gateway.protocol import spans
from acp_gateway.protocol.spans import MalformedJson


class Unanswered:
    """The requests of one side that the other has not answered."""

    def __init__(self) -> None:
        # The method of each, by the text of its id.
        self._open: dict[bytes, str] = {}

    def asked(self, message: bytes) -> None:
        """A message went from the side that asks to the side that answers.

        What can't be an id (an object, an array, a truth value) gets its answer under another one.
        """
        raw_id, method = _envelope(message)
        if raw_id is not None and method is not None and raw_id[0] not in b"{[tf":
            self._open[raw_id] = method

    def answered(self, message: bytes) -> None:
        """A message went the other way. Answers are known by the very text of the id."""
        if self._open:
            raw_id, method = _envelope(message)
            if raw_id is not None and method is None:
                self._open.pop(raw_id, None)

    def methods(self) -> list[str]:
        """The methods of the requests that are open."""
        return list(self._open.values())

    def take(self) -> list[bytes]:
        """The ids of the requests that are open, as JSON text, the oldest first; forgets them."""
        ids = list(self._open)
        self._open.clear()
        return ids


def _envelope(message: bytes) -> tuple[bytes | None, str | None]:
    """The text of a message's id and its method, each None where there is none; both for what is no message."""
    raw_id = method = None
    if b'"id"' not in message and b"\\u" not in message:
        return None, None
    try:
        for member in spans.members(message):
            if member.name == b'"id"' or (b"\\" in member.name and spans.string_value(member.name) == "id"):
                raw_id = message[member.start : member.end]
            elif member.name == b'"method"' or (b"\\" in member.name and spans.string_value(member.name) == "method"):
                method = spans.string_value(message[member.start : member.end])
    except MalformedJson:
        return None, None
    return raw_id, method
