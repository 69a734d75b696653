"""Says in words what an agent asks for, from its request and the tool call that it is about. Pure."""

from collections.abc import Iterable
from typing import Final

from acp_gateway.acp.reading import string
from acp_gateway.acp.updates import Input, SessionUpdate, Update
from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.methods import TOOL_CALL, TOOL_CALL_UPDATE
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.spans import TooMany

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
    title, kind, command = request.title, call.tool_kind, _command_of(call)
    for update in _updates_of(call.tool_call_id, updates) if call.tool_call_id else ():
        if title and command:
            break
        title = title or update.title
        kind = kind or update.tool_kind
        command = command or _command_of(update)
    words = title or kind
    if not command or " ".join(command.split()) in " ".join((words or "").split()):
        return words
    return f"{words}: {command}" if words else command


def _updates_of(call: str, messages: Iterable[bytes]) -> Iterable[Update]:
    """Yield what was told of a tool call, the latest first, back to its beginning."""
    spelled = jsonrpc.encode(call)
    for message in messages:
        # Most are about something else, and are not read.
        update = SessionUpdate.of(message).update if spelled in message else None
        if update is not None and update.kind in (TOOL_CALL, TOOL_CALL_UPDATE) and update.tool_call_id == call:
            yield update
            if update.kind == TOOL_CALL:
                return


def _command_of(call: Update) -> str | None:
    """Return the command of a tool call; None if it has none."""
    told = Input.read(call.raw_input)
    for raw in map(bytes, (told.command, told.cmd)):
        words = [raw]
        if raw.startswith(b"["):
            try:
                words = lookup.elements_of(raw)
            except TooMany:
                return _CUT
        command = " ".join(filter(None, map(string, words)))
        if command:
            return command
    return None
