"""The gateway's own member of `_meta` in requests and results: what gateways and shims tell each other. Pure.

A client that resumes its sessions over a new link describes its state there: see `rejoining`.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Self

from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message, RawId
from acp_gateway.protocol.methods import META
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.spans import TooMany

MAX_STATE_SIZE: Final = 64 * 1024
"""Maximum size of a client's state in a session, in bytes: the ids of a thousand prompts. Each is searched for."""

MAX_FORMER: Final = 16
"""Maximum number of earlier links that a client names beside the last one."""

MAX_ID: Final = 10**15
"""Maximum of the ids minted for a client; a larger number is not one of them."""

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
    claims: tuple[str, ...] = ()
    """Claims of the prompts of its clients, from a gateway in front of this one."""
    takes_over: bool = False
    """True for a gateway in front of this one: its former links are over, and it takes over their turns."""
    only_live: bool = False
    """True for a gateway in front of this one that asks for an observer: a session that is not live stays as it is."""

    @classmethod
    def read(cls, message: Message) -> Self | None:
        """Read the state from a `session/load` or `session/resume`; None if it has none."""
        raw = lookup.param(message, "_meta", META) if may_have_own_meta(message.text) else None
        said = {} if raw is None or len(raw) > MAX_STATE_SIZE else lookup.members_at(raw)
        if not said:
            return None
        asked = (jsonrpc.id_number(RawId(raw)) for raw in _elements(said.get("questions")))
        return cls(
            epoch=_string(said.get("epoch")),
            position=_number(said.get("position")),
            connections=_links(said),
            prompts=tuple(RawId(raw) for raw in _elements(said.get("prompts"))),
            agent_requests=tuple(number for number in asked if number is not None),
            claims=tuple(claim for claim in map(_string, _elements(said.get("claims"))) if claim),
            takes_over=said.get("takesOver") == b"true",
            only_live=said.get("onlyLive") == b"true",
        )


def asks_to_forget(close: Message) -> bool:
    """Return whether a `session/close` asks that the session be forgotten, as if it had been deleted."""
    return may_have_own_meta(close.text) and lookup.param(close, "_meta", META, "forget") == b"true"


KEEPS_QUEUE: Final = b'{"keepsQueue":true}'
"""Member with which a `session/cancel` of a gateway in front of this one spares the prompts of others that wait."""


def keeps_queue(cancel: Message) -> bool:
    """Return whether a `session/cancel` spares the prompts of other clients that wait."""
    return may_have_own_meta(cancel.text) and lookup.param(cancel, "_meta", META, "keepsQueue") == b"true"


ONLY_LIVE: Final = b'{"onlyLive":true}'
"""Member with which a `session/list` of a gateway in front of this one asks for live sessions alone, and its answer."""


def asks_for_live(listing: Message) -> bool:
    """Return whether a `session/list` asks for the sessions that are live."""
    return may_have_own_meta(listing.text) and lookup.param(listing, "_meta", META, "onlyLive") == b"true"


def last_id(initialize: Message) -> int:
    """Return the highest id of the agent's requests over an earlier link, from `initialize`; 0 if there was none."""
    return _number(lookup.param(initialize, "_meta", META, "lastId") if may_have_own_meta(initialize.text) else None)


def with_own_meta(result: bytes, value: bytes) -> bytes:
    """Add the gateway's own member of `_meta` to the result of opening a session; both are JSON texts."""
    members = lookup.members_at(result)
    meta = lookup.members_at(members.get("_meta", b"{}"))
    meta[META] = jsonrpc.compose(lookup.members_at(meta.get(META, b"{}")) | lookup.members_at(value))
    return jsonrpc.compose(members | {"_meta": jsonrpc.compose(meta)})


def without_result_meta(response: Message) -> Message:
    """Remove what another gateway has told this one in a result; what it tells clients stays."""
    at = spans.find(response.text, "result", "_meta")
    meta = lookup.members_at(response.text, "result", "_meta")
    told = lookup.members_at(meta.pop(META, b"{}"))
    if at is None or not told:
        return response
    kept = {name: value for name, value in told.items() if name == "truncated"}
    meta |= {META: jsonrpc.compose(kept)} if kept else {}
    return jsonrpc.parse(spans.splice(response.text, [(*at, jsonrpc.compose(meta))]))


def with_request_meta(text: bytes, value: bytes) -> bytes:
    """Put a member of the gateway's own into `params._meta` of a request with params, in place of the client's."""
    text = without_own_meta(text)
    at = spans.find(text, "params", "_meta")
    if at is not None:
        meta = lookup.members_at(text, "params", "_meta") | {META: value}
        return spans.splice(text, [(*at, jsonrpc.compose(meta))])
    params = spans.find(text, "params")
    assert params is not None, "it names a session"
    start = params[0] + 1
    return spans.splice(text, [(start, start, b"%b%b," % (_OWN_MEMBER, jsonrpc.compose({META: value})))])


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
