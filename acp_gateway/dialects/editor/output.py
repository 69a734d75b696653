"""Composes what a patched editor gets: the lines of a turn, or the completion in one piece.

Four things are told of a turn: text of the agent, its tool calls, its permissions, and the end. Thoughts, plans, states
and the updates of sub-agents are not: the editor has no words for them.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from acp_gateway.acp.updates import Block, SessionUpdate, Update
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup

LINES: Final = "application/x-ndjson"
"""Media type of a turn in lines."""

NO_RESPONSE: Final = "[No response]"
"""Content of a completion without text."""

KEEP_ALIVE: Final = b" "
"""White space before the next line, which JSON allows there."""

SUCCESS: Final = b'{"success":true}'

_TOOLS: Final = (methods.TOOL_CALL, methods.TOOL_CALL_UPDATE)
_COMMANDS: Final = "available_commands_update"

_ONE_LINE: Final = bytes.maketrans(b"\r\n", b"  ")
"""A message of an agent behind a WebSocket may have line ends, which JSON has between values only."""


def text_of(update: Update) -> bytes | None:
    """Return the text of an update that is text of the agent, as JSON text; None for other updates."""
    if update.kind != methods.AGENT_CHUNK:
        return None
    block = Block.read(update.content)
    raw = bytes(block.text)
    return raw if raw[:1] == b'"' and block.type == "text" else None


def update_in(message: bytes, session_id: str) -> Update:
    """Return the update of a `session/update`; one that says nothing for that of a sub-agent's session."""
    told = SessionUpdate.of(message)
    return told.update if told.session_id == session_id else Update()


class TurnLines:
    """One turn as lines of JSON, which have a `seq` from 1 on, without gaps.

    Args:
        session_id: the session of the turn.
    """

    def __init__(self, session_id: str) -> None:
        self._session = session_id
        self._seq = 0

    def update(self, message: bytes) -> bytes | None:
        """Return the line of a `session/update`; None for one that is not told."""
        update = update_in(message, self._session)
        text = text_of(update)
        if text is not None:
            return self._line("text", {"content": text})
        if update.kind in _TOOLS:
            return self._line("tool", lookup.members_at(message, "params", "update"))
        return None

    def permission(self, key: str, request: Message) -> bytes:
        """Return the line of a permission that waits for a decision."""
        params = {name: lookup.param(request, name) for name in ("toolCall", "options")}
        known = {name: raw for name, raw in params.items() if raw is not None}
        return self._line("permission", {"requestId": jsonrpc.encode(key), **known})

    def where_to_answer(self, session_id: str) -> bytes:
        """Return a line of text about a permission, for an editor that does not know those lines."""
        text = (
            f"\n[The agent asks for a permission and waits: answer in `acp-gateway chat`, on the gateway's page, or in "
            f"another client of the session {session_id}.]\n"
        )
        return self._line("text", {"content": jsonrpc.encode(text)})

    def done(self, stop_reason: str) -> bytes:
        """Return the last line of a turn that has ended."""
        return self._line("done", {"stopReason": jsonrpc.encode(stop_reason)})

    def error(self, text: str) -> bytes:
        """Return the last line of a turn that has failed."""
        return self._line("error", {"message": jsonrpc.encode(text)})

    def _line(self, kind: str, members: Mapping[str, bytes]) -> bytes:
        self._seq += 1
        own = {"type": jsonrpc.encode(kind), "seq": b"%d" % self._seq}
        # An update has no members of these names; one that has must not pass for another line.
        others = {name: raw for name, raw in members.items() if name not in own}
        line = jsonrpc.compose({"type": own["type"], **others, "seq": own["seq"]})
        return line.translate(_ONE_LINE) + b"\n"


class Completion:
    """One turn as a completion.

    Args:
        session_id: the session of the turn.
    """

    def __init__(self, session_id: str) -> None:
        self._session = session_id
        # The inner part of a JSON text: two halves of a character may come in two chunks.
        self._text = bytearray()

    @property
    def size(self) -> int:
        """Bytes of the text so far."""
        return len(self._text)

    def update(self, message: bytes) -> None:
        """Take a `session/update`."""
        text = text_of(update_in(message, self._session))
        if text is not None:
            self._text += text[1:-1]

    def body(self, completion_id: str, created: int, provider: str) -> bytes:
        """Return the completion.

        Args:
            completion_id: an id that no other completion has.
            created: its time, in seconds since 1970.
            provider: name of the agent.
        """
        content = b'"%b"' % bytes(self._text) if self._text else jsonrpc.encode(NO_RESPONSE)
        message = jsonrpc.compose({"role": b'"assistant"', "content": content})
        choice = jsonrpc.compose({"index": b"0", "message": message, "finish_reason": b'"stop"'})
        usage = {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0}
        return jsonrpc.compose(
            {
                "id": jsonrpc.encode(f"acp-{completion_id}"),
                "object": b'"chat.completion"',
                "created": b"%d" % created,
                "model": jsonrpc.encode(f"acp:{provider}"),
                "choices": b"[%b]" % choice,
                "usage": jsonrpc.encode(usage),
            }
        )


def commands_in(states: Sequence[bytes]) -> bytes | None:
    """Return the commands in the `session/update`s that hold states, as a JSON array; None if none has any."""
    for message in reversed(states):
        update = SessionUpdate.of(message).update
        if update.kind == _COMMANDS:
            commands = bytes(update.available_commands)
            return commands if commands[:1] == b"[" else None
    return None


def session(session_id: str, **members: bytes) -> bytes:
    """Return the answer that names a session; the members are JSON texts."""
    return jsonrpc.compose({"sessionId": jsonrpc.encode(session_id), **members})


def failure(text: str) -> bytes:
    """Return the body of an error."""
    return jsonrpc.encode({"error": True, "message": text})


def failure_of(response: Message) -> str:
    """Return the text of an ACP error response."""
    details = lookup.text_at(response.text, "error", "data", "details")
    text = lookup.text_at(response.text, "error", "message") or "the agent has failed"
    return f"{text}: {details}" if details else text


def stop_reason_of(response: Message) -> str:
    """Return the reason with which a turn has ended."""
    return lookup.text_at(response.text, "result", "stopReason") or "end_turn"
