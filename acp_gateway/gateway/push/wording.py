"""Says in words what an agent asks for, from its request and the tool call that it is about. Pure."""

from collections.abc import Iterable
from typing import Final

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import TOOL_CALL, TOOL_CALL_UPDATE
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.spans import TooMany, string_or_none

_CUT: Final = "…"
"""Stands for a command that is not read, as for the rest of a text: the page shows all of it, and decides."""


def words_of(request: AgentRequest, updates: Iterable[bytes]) -> str | None:
    """Return the title of what is asked for, and the command unless the title has it; None if there are no words.

    What the request leaves out is taken from the tool call: agents need not repeat what they have told.

    Args:
        request: a permission or a form.
        updates: whole `session/update` notifications of the session, the latest first.
    """
    call = request.tool_call
    title, kind, command = request.title, call.kind, _command_of(lookup.param(request.message, "toolCall"))
    for update in _updates_of(call.id, updates) if call.id else ():
        if title and command:
            break
        title = title or lookup.text_at(update, "title")
        kind = kind or lookup.text_at(update, "kind")
        command = command or _command_of(update)
    words = title or kind
    if not command or " ".join(command.split()) in " ".join((words or "").split()):
        return words
    return f"{words}: {command}" if words else command


def _updates_of(call: str, updates: Iterable[bytes]) -> Iterable[bytes]:
    """Yield what was told of a tool call, the latest first, back to its beginning."""
    spelled = jsonrpc.encode(call)
    for message in updates:
        # Most are about something else, and are not read.
        if spelled not in message:
            continue
        update = lookup.raw_at(message, "params", "update") or b"{}"
        told = lookup.text_at(update, "sessionUpdate")
        if told in (TOOL_CALL, TOOL_CALL_UPDATE) and lookup.text_at(update, "toolCallId") == call:
            yield update
            if told == TOOL_CALL:
                return


def _command_of(call: bytes | None) -> str | None:
    """Return the command of a tool call; None if it has none."""
    for name in ("command", "cmd"):
        raw = None if call is None else lookup.raw_at(call, "rawInput", name)
        if raw is None:
            continue
        words = [raw]
        if raw.startswith(b"["):
            try:
                words = lookup.elements_of(raw)
            except TooMany:
                return _CUT
        command = " ".join(filter(None, map(string_or_none, words)))
        if command:
            return command
    return None
