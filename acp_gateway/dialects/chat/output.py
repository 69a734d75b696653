"""Composes the events that chat widgets get over `/chat` from updates, requests of the agent, and ends of turns.

Values of the agent are passed on as the bytes that they are. Each event stands for itself: nothing is remembered
between two of them. The wire is described in `docs/dialects-reference.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, Final, NamedTuple

from acp_gateway.acp.reading import elements
from acp_gateway.acp.updates import Block, Item, Meta, Option, Passed, SessionUpdate, Terminal, kind_of
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.text import lookup

EVENTS: Final = (
    "message_chunk",
    "tool_call_started",
    "tool_call_updated",
    "tool_call_completed",
    "permission_request",
    "permission_resolved",
    "terminal_output",
    "plan_created",
    "mode_changed",
    "commands",
    "usage",
    "config",
    "session_created",
    "session_loaded",
    "turn_complete",
    "error",
    "unknown_update",
)
"""All types of events."""

_ROLES: Final = {
    methods.AGENT_CHUNK: "assistant",
    methods.USER_CHUNK: "user",
    "agent_thought_chunk": "thought",
}

_OWN: Final = b'"%b"' % methods.META.encode()

_STATES: Final = {"available_commands_update": "commands", "usage_update": "usage", methods.CONFIG_UPDATE: "config"}

_RESERVED: Final = frozenset({"type", "sessionId", "timestamp", "sessionUpdate"})
"""Members of an update that an event does not take over."""

_ENDS: Final = (b'"completed"', b'"failed"')

_NAMES: Final = {
    "toolCallId": ("toolCallId", "id"),
    "toolName": ("toolName", "title", "name"),
    "kind": ("kind",),
    "arguments": ("arguments", "rawInput"),
    "locations": ("locations",),
    "status": ("status",),
    "content": ("content",),
    "result": ("result", "rawOutput"),
}
"""Members of a tool call, each with the names that agents have for it."""

_STATE: Final = ("status", "content", "result")
"""Those that say how far it is."""

TERMINALS: Final = 16
"""Items in the content of one update that are looked into for terminals, of those that may have one: one or two do."""

ID_SIZE: Final = 1024
"""Maximum bytes of the id of a tool call whose terminals are told, as each event repeats it; a UUID has 36."""


_KNOWN_SIZE: Final = 64


class _Update(NamedTuple):
    """A `session/update`."""

    kind: str
    session: str | None
    raw: bytes
    """The `update`, as JSON text."""
    members: Mapping[str, bytes]


def _read(message: bytes) -> _Update:
    told = Passed.of(message)
    raw = bytes(told.update) or b"null"
    return _Update(kind_of(raw) or "", told.session_id, raw, lookup.members_at(raw))


def event(kind: str, session_id: str | None, time: int | None, members: Mapping[str, bytes]) -> bytes:
    """Return an event; the members are JSON texts, `time` is in milliseconds since 1970, 0 where it is unknown."""
    rest = b"".join(b",%b:%b" % (_name(name), text) for name, text in members.items())
    return b'{"type":%b,"sessionId":%b,"timestamp":%d%b}' % (_name(kind), jsonrpc.encode(session_id), time or 0, rest)


def _name(name: str) -> bytes:
    return _known_name(name) if len(name) <= _KNOWN_SIZE else jsonrpc.encode(name)


@lru_cache(maxsize=256)
def _known_name(name: str) -> bytes:
    return jsonrpc.encode(name)


def error(
    session_id: str | None, time: int, code: int, text: str, request_type: str | None = None, data: Any = None
) -> bytes:
    """Return the event of an error; `request_type` is the type of the event that it answers."""
    more = {"requestType": request_type, "data": data}
    members = {"code": code, "message": text} | {name: value for name, value in more.items() if value is not None}
    return event("error", session_id, time, {name: jsonrpc.encode(value) for name, value in members.items()})


class ChatOutput:
    """Composes the events of sessions.

    Args:
        now: returns the time in milliseconds since 1970.
    """

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now

    def updates(
        self,
        session_id: str,
        messages: Sequence[bytes],
        first: int,
        times: Sequence[int | None],
        name: str | None = None,
    ) -> list[bytes]:
        """Return the events of `session/update` messages, one at least for each; an unknown time is 0.

        `name` is that of the session for widgets, if not its id.
        """
        events: list[bytes] = []
        name = session_id if name is None else name
        quoted = jsonrpc.encode(name)
        for message, time in zip(messages, times, strict=True):
            chunk = _text_chunk(message, session_id, quoted, time)
            if chunk is not None:
                events.append(chunk)
                continue
            update = _read(message)
            found = [("unknown_update", _unknown(update, session_id))]
            if update.session in (session_id, None):
                found = _events_of(update) or found
            events += [event(kind, name, time, members) for kind, members in found]
        return events

    def request(self, session_id: str, request_id: str, message: Message) -> list[bytes]:
        """Return the event of a permission that the agent asks for; none for its other requests."""
        if methods.current_name(message.method) != methods.REQUEST_PERMISSION:
            return []
        members = {
            "requestId": jsonrpc.encode(request_id),
            "toolCall": lookup.param(message, "toolCall") or b"null",
            "options": lookup.param(message, "options") or b"[]",
        }
        return [event("permission_request", session_id, self._now(), members)]

    def request_resolved(
        self, session_id: str, request_id: str, message: Message, by: str | None, outcome: str | None
    ) -> list[bytes]:
        """Return the event that a permission is not asked for any more.

        Args:
            session_id: its session.
            request_id: its id for widgets.
            message: the request of the agent.
            by: the identity that has decided it, if one did.
            outcome: the name of the option that was selected, or the outcome without one.
        """
        if methods.current_name(message.method) != methods.REQUEST_PERMISSION:
            return []
        members = {
            "requestId": jsonrpc.encode(request_id),
            "outcome": jsonrpc.encode(_outcome(message, outcome)),
            "by": jsonrpc.encode(by),
        }
        return [event("permission_resolved", session_id, self._now(), members)]

    def queue(self, session_id: str, prompts: Sequence[Mapping[str, Any]]) -> list[bytes]:
        """Return nothing: widgets show no queue."""
        return []

    def turn_ended(self, session_id: str, status: str, end: Mapping[str, Any]) -> list[bytes]:
        """Return the events of the end of a turn: its error, if it has failed, then its end."""
        failed, time = end.get("error"), end["time"] or 0
        ended = event("turn_complete", session_id, time, {"stopReason": jsonrpc.encode(end.get("stopReason"))})
        if failed is None:
            return [ended]
        return [error(session_id, time, failed["code"], failed["message"], "send_message"), ended]

    def status(self, session_id: str, status: str, exit_reason: str | None) -> list[bytes]:
        """Return nothing: a widget knows of turns, and of no other status."""
        return []

    def reset(self, session_id: str, epoch: str) -> list[bytes]:
        """Return nothing: the session is loaded again, which is told."""
        return []

    def opened(self, kind: str, session_id: str, members: Mapping[str, bytes]) -> bytes:
        """Return the event of a session that was created or loaded; the members are JSON texts."""
        return event(kind, session_id, self._now(), members)

    def failure(
        self, session_id: str | None, code: int, text: str, request_type: str | None = None, data: Any = None
    ) -> bytes:
        """Return the event of an error, see `error`."""
        return error(session_id, self._now(), code, text, request_type, data)


_Events = list[tuple[str, dict[str, bytes]]]


def _events_of(update: _Update) -> _Events:
    """Return the events of an update; none if it is not known, or lacks what its kind has."""
    kind, members = update.kind, update.members
    role = _ROLES.get(kind)
    if role is not None:
        return _chunk(role, members)
    match kind:
        case methods.TOOL_CALL | methods.TOOL_CALL_UPDATE:
            return _tool_call(kind, members)
        case "plan" if members.get("entries", b"")[:1] == b"[":
            own = Meta.read(members.get("_meta", b"")).own
            both = own.plans and own.entries
            plans = {"plans": bytes(own.plans), "ownEntries": bytes(own.entries)} if both else {}
            return [("plan_created", {"entries": members["entries"], **plans})]
        case methods.MODE_UPDATE:
            mode = members.get("currentModeId") or members.get("modeId")
            return [] if mode is None else [("mode_changed", {"modeId": mode})]
    state = _STATES.get(kind)
    if state is None:
        return []
    return [(state, {name: value for name, value in members.items() if name not in _RESERVED})]


def _text_chunk(message: bytes, session_id: str, quoted: bytes, time: int | None) -> bytes | None:
    """Return the event of a chunk of text, at once; None for any other update. Nearly all updates are such chunks."""
    told = SessionUpdate.of(message)
    role = _ROLES.get(told.update.kind or "")
    if role is None or told.session_id not in (session_id, None):
        return None
    block = Block.read(told.update.content)
    text, message_id = bytes(block.text), bytes(told.update.message_id)
    if block.type != "text" or text[:1] != b'"':
        return None
    said = b"" if message_id in (b"", b"null") else b',"messageId":%b' % message_id
    return b'{"type":"message_chunk","sessionId":%b,"timestamp":%d,"content":%b,"role":"%b"%b}' % (
        quoted,
        time or 0,
        text,
        role.encode(),
        said,
    )


def _chunk(role: str, members: Mapping[str, bytes]) -> _Events:
    block = members.get("content")
    if block is None:
        return []
    content = {"content": block} if block[:1] == b'"' else {"content": b'""', "block": block}
    said = {"messageId": members["messageId"]} if members.get("messageId", b"null") != b"null" else {}
    return [("message_chunk", {**content, "role": jsonrpc.encode(role), **said})]


def _tool_call(kind: str, members: Mapping[str, bytes]) -> _Events:
    """Return the events of a tool call that begins, changes or ends."""
    nested = lookup.members_at(members.get("toolCall", b"null"))
    call = {}
    for name, names in _NAMES.items():
        found = (source[it] for source in (nested, members) for it in names if source.get(it, b"null") != b"null")
        value = next(found, None)
        if value is not None:
            call[name] = value
    if "toolCallId" not in call:
        return []
    tool = {"toolCallId": call["toolCallId"]}
    terminals = _terminals(tool, call.get("content", b"[]"), members.get("_meta", b"null"))
    ended = call.get("status") in _ENDS
    if kind == methods.TOOL_CALL:
        absent = {"toolName": b'""', "kind": b'"other"', "arguments": b"null", "locations": b"[]"}
        about: dict[str, bytes] = {name: call[name] for name in _STATE if name in call and not ended}
        begun = {name: call.get(name, value) for name, value in absent.items()}
        told: _Events = [("tool_call_started", {**tool, **begun, **about})]
    else:
        told = [] if ended else [("tool_call_updated", {"status": b"null", **call})]
    if ended:
        call.setdefault("result", call.get("content", b"null"))
        if kind == methods.TOOL_CALL:
            call = {name: call[name] for name in ("toolCallId", *_STATE) if name in call}
        told.append(("tool_call_completed", call))
    return [*told, *terminals]


def _terminals(tool: dict[str, bytes], content: bytes, meta: bytes) -> _Events:
    """Return the events of terminals in the content of a tool call, and of those that `_meta` tells.

    The latter are those that agents report, and those of agents of version 2, as the gateway tells them.
    """
    events: _Events = []
    if len(tool["toolCallId"]) > ID_SIZE:
        return events
    items = elements(content) if b'"terminal' in content else []
    for element in islice((item for item in items if b'"terminal' in item), TERMINALS):
        events += _shown_terminals(tool, element)
    own = Meta.read(meta).own.terminal if _OWN in meta else Terminal()
    if own.terminal_id:
        whole = {"output": bytes(own.output), "whole": b"true"} if own.output else {}
        added = {"terminalId": bytes(own.terminal_id), "output": bytes(own.data) or b'""', **whole}
        events.append(("terminal_output", {**tool, **added}))
    if b"terminal_" not in meta:
        return events
    for name in ("terminal_output", "terminal_exit"):
        about = lookup.members_at(meta, name)
        if about:
            ids = {"terminalId": about["terminal_id"]} if "terminal_id" in about else {}
            told = {**tool, **ids, "output": about.get("data", b'""')}
            if name == "terminal_exit":
                status = {"exitCode": about.get("exit_code", b"null"), "signal": about.get("signal", b"null")}
                told |= {"output": b'""', "exitStatus": jsonrpc.compose(status)}
            events.append(("terminal_output", told))
    return events


def _shown_terminals(tool: dict[str, bytes], element: bytes) -> _Events:
    """Return the event of an element of a content that is a terminal, or a text that is its output, or says its end."""
    item = Item.read(element)
    if item.type == "terminal":
        terminal = Terminal.read(element)
        return [_terminal(tool, terminal, {"output": bytes(terminal.output) or b'""'})]
    own = Meta.read(item.meta).own
    if own.terminal.terminal_id:
        text = bytes(item.content.text) or b'""'
        return [_terminal(tool, own.terminal, {"output": text, "whole": b"true"})]
    return [_terminal(tool, own.terminal_end, {"output": b'""'})] if own.terminal_end.terminal_id else []


def _terminal(tool: dict[str, bytes], terminal: Terminal, output: dict[str, bytes]) -> tuple[str, dict[str, bytes]]:
    shown = {"terminalId": bytes(terminal.terminal_id), "exitStatus": bytes(terminal.exit_status)}
    return "terminal_output", {**tool, **{name: raw for name, raw in shown.items() if raw}, **output}


def _unknown(update: _Update, session_id: str) -> dict[str, bytes]:
    """Return the members of an event for an update that widgets have no word for, or that is a sub-agent's."""
    of = {} if update.session in (session_id, None) else {"sub": jsonrpc.encode(update.session)}
    return {"raw": update.raw, **of}


def _outcome(message: Message, outcome: str | None) -> dict[str, str]:
    """Return the outcome of a permission as ACP has it."""
    options = lookup.param(message, "options") or b""
    # Their number was limited when the request came.
    for option in Option.each(options, len(options)):
        chosen = option.option_id
        if chosen is not None and outcome is not None and outcome in (option.name, chosen):
            return {"outcome": "selected", "optionId": chosen}
    return {"outcome": outcome or "cancelled"}
