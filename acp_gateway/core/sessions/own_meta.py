"""The gateway's own member of `_meta` in requests and results: what gateways and shims tell each other. Pure.

A client that resumes its sessions over a new link describes its state there: see `joining`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, Self

from acp_gateway.acp.worktrees import WORKTREE
from acp_gateway.core.sessions.places import CURSOR, Cursor
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import IdKey, Message, RawId
from acp_gateway.protocol.methods import META
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.json_text import with_member
from acp_gateway.protocol.text.pairs import Pair
from acp_gateway.protocol.text.spans import TooMany

MAX_STATE_SIZE: Final = 64 * 1024
"""Maximum size of a client's state in a session, in bytes: the ids of a thousand prompts. Each is searched for."""

MAX_FORMER: Final = 16
"""Maximum number of earlier links that a client names beside the last one."""

MAX_ID: Final = 10**15
"""Maximum of the ids minted for a client; a larger number is not one of them."""

REPLAY: Final = "replayFrom"
"""Member of requests that open a session: where a replay begins, as a draft of the protocol may have it."""

CHOSEN: Final = "cwd"
"""Member of a result: the directory that a gateway has chosen for a session, whose request names none or another."""

_OWN_MEMBER: Final = b'"_meta":'


@dataclass(frozen=True, slots=True)
class Rejoin:
    """State of a client from another link."""

    epoch: str | None = None
    position: int = 0
    connections: tuple[str, ...] = ()
    """Ids of its former links, the last one first."""
    prompts: tuple[RawId, ...] = ()
    agent_requests: tuple[int, ...] = ()
    replays: bool = False
    """True if it asks for a replay from a cursor, which has the place: the client has no link that it was on."""
    cursor: Cursor | None = None
    """That cursor; None if what it names is not one."""

    @classmethod
    def read(cls, message: Message) -> Self | None:
        """Read the state from a `session/load` or `session/resume`; None if it has none."""
        raw = lookup.param(message, "_meta", META) if may_have_own_meta(message.text) else None
        said = {} if raw is None or len(raw) > MAX_STATE_SIZE else lookup.members_at(raw)
        if not said:
            return None
        if REPLAY in said:
            return cls._from_cursor(said[REPLAY])
        asked = (jsonrpc.id_number(RawId(raw)) for raw in _elements(said.get("questions")))
        return cls(
            epoch=_string(said.get("epoch")),
            position=_number(said.get("position")),
            connections=_links(said),
            prompts=tuple(RawId(raw) for raw in _elements(said.get("prompts"))),
            agent_requests=tuple(number for number in asked if number is not None),
        )

    @classmethod
    def _from_cursor(cls, replay: bytes) -> Self:
        named = lookup.text_at(replay, CURSOR) if lookup.text_at(replay, "type") == "cursor" else None
        cursor = None if named is None else Cursor.read(named)
        if cursor is None:
            return cls(replays=True)
        return cls(*cursor.place, replays=True, cursor=cursor)


def asks_to_forget(close: Message) -> bool:
    """Return whether a `session/close` asks that the session be forgotten, as if it had been deleted."""
    return may_have_own_meta(close.text) and lookup.param(close, "_meta", META, "forget") == b"true"


def asked_worktree(new: Message) -> str | Literal[False] | None:
    """Return the name of the working tree that a `session/new` asks for, empty for any.

    It is False for a session that is to have none, and None if nothing is said.
    """
    raw = lookup.param(new, "_meta", META, WORKTREE) if may_have_own_meta(new.text) else None
    if raw in (b"true", b"false"):
        return "" if raw == b"true" else False
    return _string(raw)


@dataclass(frozen=True, slots=True)
class Aim:
    """The aim of a `session/cancel`, as far as its client tells: the state when it was sent."""

    prompts: frozenset[IdKey] | None = None
    """The client's own open prompts in the session; None if it does not say."""
    seen: tuple[str, int] | None = None
    """Epoch and position up to which the client has seen the session; None if it does not say."""

    @classmethod
    def read(cls, cancel: Message) -> Self:
        """Read the aim of a `session/cancel`."""
        raw = lookup.param(cancel, "_meta", META) if may_have_own_meta(cancel.text) else None
        said = {} if raw is None or len(raw) > MAX_STATE_SIZE else lookup.members_at(raw)
        epoch, prompts = _string(said.get("epoch")), said.get("prompts")
        return cls(
            None if prompts is None else frozenset(jsonrpc.id_key(RawId(raw_id)) for raw_id in _elements(prompts)),
            None if epoch is None else (epoch, _number(said.get("position"))),
        )


def asks_to_steer(prompt: Message) -> bool:
    """Return whether a prompt is for the turn that runs, if the agent takes it there."""
    return may_have_own_meta(prompt.text) and lookup.param(prompt, "_meta", META, "steer") == b"true"


def goes_on(prompt: Message) -> bool:
    """Return whether a prompt that waits is sent by itself also after the end of the agent or of the gateway."""
    return may_have_own_meta(prompt.text) and lookup.param(prompt, "_meta", META, "queue", "auto") == b"true"


def last_id(initialize: Message) -> int:
    """Return the highest id of the agent's requests over an earlier link, from `initialize`; 0 if there was none."""
    return _number(lookup.param(initialize, "_meta", META, "lastId") if may_have_own_meta(initialize.text) else None)


def with_own_meta(result: bytes, value: bytes) -> bytes:
    """Add the gateway's own member of `_meta` to the result of opening a session; both are JSON texts."""
    members = lookup.members_at(result)
    meta = lookup.members_at(members.get("_meta", b"{}"))
    meta[META] = jsonrpc.compose(lookup.members_at(meta.get(META, b"{}")) | lookup.members_at(value))
    return jsonrpc.compose(members | {"_meta": jsonrpc.compose(meta)})


def with_result_meta(response: Message, value: bytes) -> Message:
    """Add the gateway's own member of `_meta`, which is JSON text, to the result of a response; as `with_own_meta`."""

    def added(text: bytes) -> bytes:
        at = spans.find(text, "result")
        return text if at is None else spans.splice(text, [(*at, with_own_meta(text[at[0] : at[1]], value))])

    text, original = added(response.text), response.original
    return jsonrpc.parse_entry(text if original is None else Pair(text, added(original)))


def with_cwd(text: bytes, directory: str) -> bytes:
    """Put a directory into the opening of a session; one without `params` is for the agent to refuse."""
    at = spans.find(text, "params")
    if at is None:
        return text
    return spans.splice(text, [(*at, with_member(text[at[0] : at[1]], "cwd", jsonrpc.encode(directory)))])


def without_own_meta(text: bytes) -> bytes:
    """Remove the gateway's own member of `params._meta` from a request for the agent."""
    if not may_have_own_meta(text):
        return text
    at = spans.find(text, "params", "_meta")
    meta = lookup.members_at(text, "params", "_meta")
    if at is None or meta.pop(META, None) is None:
        return text
    before = at[0] - len(_OWN_MEMBER)
    if not meta and text.startswith(b"{" + _OWN_MEMBER, before - 1) and text.startswith(b",", at[1]):
        # A gateway in front of this one has put all of it there.
        return spans.splice(text, [(before, at[1] + 1, b"")])
    return spans.splice(text, [(*at, jsonrpc.compose(meta))])


def may_have_own_meta(text: bytes) -> bool:
    """Return False if the gateway's own member cannot be in a message, which one search tells of most.

    A walk through the members of `_meta` costs many times as much. An escaped name has an escape of an ASCII character.
    """
    return META.encode() in text or rb"\u00" in text


def _elements(raw: bytes | None) -> list[bytes]:
    try:
        return lookup.elements_of(raw) if raw is not None and raw[:1] == b"[" else []
    except TooMany:
        return []


def _links(said: Mapping[str, bytes]) -> tuple[str, ...]:
    """Return the former links that a client names."""
    named = [said.get("connection"), *_elements(said.get("former"))[:MAX_FORMER]]
    return tuple(link for link in map(_string, named) if link)


def _string(raw: bytes | None) -> str | None:
    return spans.string_value(raw) if raw is not None and raw[:1] == b'"' else None


def _number(raw: bytes | None) -> int:
    number = jsonrpc.id_number(RawId(raw)) if raw is not None and raw[:1].isdigit() else None
    return number if number is not None and number <= MAX_ID else 0
