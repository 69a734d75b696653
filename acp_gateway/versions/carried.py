"""Messages of version 1 that carry the message of version 2 which they were made of.

A client of version 2 gets that one, every other reader the message of version 1. What it carries is not part of the
text: no agent and no client can make one. A history on disk has it as an array of both; an array is never a message.
"""

from collections.abc import Iterable, Sequence
from typing import Final, Self

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Kind, Message, RawId
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.spans import TooMany
from acp_gateway.versions.parts import NULL, notification

ORIGINAL: Final = "_acp-gateway/original"
"""Kind of the updates of version 1 that show nothing: they keep the place of a message of version 2 in a history."""

ACCEPTED: Final = "_acp-gateway/accepted"
"""Method of the notification that an agent of version 2 has accepted a prompt, for the core alone."""

_UPDATE: Final = notification(methods.SESSION_UPDATE, {})[:-3]
"""Beginning of each update that a translator has made."""

_HIDDEN_END: Final = b'"update":{"sessionUpdate":"%b"}}}' % ORIGINAL.encode()


class Carried(bytes):
    """A message of version 1.

    `original` is the message of version 2 that clients of that version get in its place; None if they get nothing.
    """

    original: bytes | None
    is_hidden: bool
    """True if clients of version 1 get nothing."""

    def __new__(cls, text: bytes, original: bytes | None = None) -> Self:
        made = super().__new__(cls, text)
        made.original = original
        made.is_hidden = text.endswith(_HIDDEN_END)
        return made


class Same(bytes):
    """An update of an agent of version 2 that clients of both versions get as it is."""

    __slots__ = ()


class Passing(Same):
    """One that was read and found to be nothing but text for a session's clients and journal."""

    __slots__ = ()


_SAME: Final = frozenset({Same, Passing})


def hidden(session_id: bytes, original: bytes) -> Carried:
    """Return a message of version 2 that is nothing in version 1; `session_id` is JSON text."""
    params = {"sessionId": session_id, "update": b'{"sessionUpdate":"%b"}' % ORIGINAL.encode()}
    return Carried(notification(methods.SESSION_UPDATE, params), original)


def accepted(prompt: RawId, response: bytes) -> Carried:
    """Return the notification that a prompt was accepted by this response."""
    return Carried(notification(ACCEPTED, {"requestId": prompt}), response)


def has_carried(messages: Iterable[bytes]) -> bool:
    """Return True if a message carries another one."""
    return Carried in map(type, messages)


def size_of(messages: Sequence[bytes]) -> int:
    """Return the bytes of messages, with those that they carry."""
    size = sum(map(len, messages))
    if has_carried(messages):
        size += sum([len(message.original or b"") for message in messages if type(message) is Carried])
    return size


def shown(messages: Sequence[bytes]) -> Sequence[bytes]:
    """Return the messages that clients of version 1 get; the same object if these are all."""
    if not has_carried(messages):
        return messages
    return [message for message in messages if not (type(message) is Carried and message.is_hidden)]


def are_same(messages: Iterable[bytes]) -> bool:
    """Return True if all messages are the same for clients of both versions."""
    return _SAME.issuperset(map(type, messages))


def only_old(message: bytes) -> Carried:
    """Return a message of version 1 that clients of version 2 do not get."""
    return Carried(message, None)


def stored(message: bytes) -> bytes:
    """Return a message as it stands in a history on disk."""
    if type(message) is not Carried:
        return message
    return b"[%b,%b]" % (message, NULL if message.original is None else message.original)


def restored(text: bytes) -> bytes:
    """Return a message that stands like this in a history on disk."""
    if text[:1] != b"[":
        return text
    try:
        message, original = lookup.elements_of(text, 2)
    except (ValueError, TooMany):
        return text
    return Carried(message, None if original == NULL else original)


def carry(original: Message, made: list[bytes], prompt: RawId | None = None) -> list[bytes]:
    """Return the messages of version 1 that were made of one of version 2, with that one.

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
        return [one if _is_update(one) else Carried(one, text) for one in made]
    if original.kind is Kind.REQUEST:
        return [Carried(one, text) if _is_request(one) else _old_update(one) for one in made]
    session_id = lookup.param(original, "sessionId")
    if original.method != methods.SESSION_UPDATE or session_id is None:
        return made
    places = [place for place, one in enumerate(made) if _is_update(one)]
    if not places:
        return [hidden(session_id, text), *made]
    same = [place for place in places if len(places) > 1 and jsonrpc.parse(made[place]).update == original.update]
    at = (same or places)[-1]
    return [Carried(one, text) if place == at else _old_update(one) for place, one in enumerate(made)]


def _is_request(message: bytes) -> bool:
    return jsonrpc.parse(message).kind is Kind.REQUEST


def _is_update(made: bytes) -> bool:
    return made.startswith(_UPDATE)


def _old_update(message: bytes) -> bytes:
    """Return an update as one that clients of version 2 do not get, any other message as it is."""
    return only_old(message) if _is_update(message) else message
