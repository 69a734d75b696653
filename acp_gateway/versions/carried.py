"""Makes pairs of the messages of an agent of version 2 and of those of version 1 that they become.

A client of version 2 gets the former, every other reader the latter. A history on disk has a pair as an array of both;
an array is never a message.
"""

from typing import Final

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Kind, Message, RawId
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.pairs import Entry, Pair
from acp_gateway.protocol.text.spans import TooMany
from acp_gateway.versions.parts import NULL, notification

ORIGINAL: Final = "_acp-gateway/original"
"""Kind of the updates of version 1 that show nothing: they keep the place of a message of version 2 in a history."""

ACCEPTED: Final = "_acp-gateway/accepted"
"""Method of the notification that an agent of version 2 has accepted a prompt, for the core alone."""

_UPDATE: Final = notification(methods.SESSION_UPDATE, {})[:-3]
"""Beginning of each update that a translator has made."""

_HIDDEN_END: Final = b'"update":{"sessionUpdate":"%b"}}}' % ORIGINAL.encode()


def paired(text: bytes, original: bytes | None) -> Pair:
    """Return the pair of a message of version 1 and one of version 2; None if clients of that version get nothing."""
    return Pair(text, original, text.endswith(_HIDDEN_END))


def hidden(session_id: bytes, original: bytes) -> Pair:
    """Return a message of version 2 that is nothing in version 1; `session_id` is JSON text."""
    params = {"sessionId": session_id, "update": b'{"sessionUpdate":"%b"}' % ORIGINAL.encode()}
    return Pair(notification(methods.SESSION_UPDATE, params), original, is_hidden=True)


def accepted(prompt: RawId, response: bytes) -> Pair:
    """Return the notification that a prompt was accepted by this response."""
    return Pair(notification(ACCEPTED, {"requestId": prompt}), response)


def stored(entry: Entry) -> bytes:
    """Return a message as it stands in a history on disk."""
    if not isinstance(entry, Pair):
        return entry
    if entry.is_same:
        return entry.text
    return b"[%b,%b]" % (entry.text, NULL if entry.original is None else entry.original)


def restored(text: bytes) -> Entry:
    """Return a message that stands like this in a history on disk."""
    if text[:1] != b"[":
        return text
    try:
        message, original = lookup.elements_of(text, 2)
    except (ValueError, TooMany):
        return text
    return paired(message, None if original == NULL else original)


def pairs_of(original: Message, made: list[bytes], prompt: RawId | None = None) -> list[Entry]:
    """Return the messages of version 1 that were made of one of version 2, paired with that one.

    `prompt` is the id of the prompt that it accepts, if it does.
    """
    text = original.text
    if any(message is text for message in made):
        # What comes before it was made of earlier ones.
        return [message if message is text else _old_update(message) for message in made]
    if prompt is not None:
        return [accepted(prompt, text), *map(_old_update, made)]
    if original.kind is Kind.RESPONSE:
        # Updates after a response say in version 1 what its result says in version 2.
        return [one if _is_update(one) else paired(one, text) for one in made]
    if original.kind is Kind.REQUEST:
        return [paired(one, text) if _is_request(one) else _old_update(one) for one in made]
    session_id = lookup.param(original, "sessionId")
    if original.method != methods.SESSION_UPDATE or session_id is None:
        return [*made]
    places = [place for place, one in enumerate(made) if _is_update(one)]
    if not places:
        return [hidden(session_id, text), *made]
    same = [place for place in places if len(places) > 1 and jsonrpc.parse(made[place]).update == original.update]
    at = (same or places)[-1]
    return [paired(one, text) if place == at else _old_update(one) for place, one in enumerate(made)]


def _is_request(message: bytes) -> bool:
    return jsonrpc.parse(message).kind is Kind.REQUEST


def _is_update(made: bytes) -> bool:
    return made.startswith(_UPDATE)


def _old_update(message: bytes) -> Entry:
    """Return an update as one that clients of version 2 do not get, any other message as it is."""
    return paired(message, None) if _is_update(message) else message
