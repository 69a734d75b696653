"""Translates for a client of version 1 whose agent speaks version 2.

Messages and tool calls of version 2 are changed in place; version 1 can add text and replace the content of a tool call
as a whole. So this remembers what the client was shown. What it sends is a function of the agent's messages alone,
except that the client's own prompts are not shown to it again: a client that gets the history sees the same.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar, Final

from msgspec import UNSET

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import IdKey, Message, RawId, id_key
from acp_gateway.protocol.text import lookup
from acp_gateway.versions import initialize, plain_updates, table, values
from acp_gateway.versions.diffs import old_diff_of
from acp_gateway.versions.foreground import Foreground, TurnEnded
from acp_gateway.versions.parts import (
    NOTHING,
    NULL,
    Untranslatable,
    array,
    background_of,
    elements,
    error,
    given,
    is_object,
    members,
    notification,
    own_meta,
    request,
    respelled,
    result,
    text,
    text_block,
    text_item,
    with_kind,
)
from acp_gateway.versions.plain_updates import Chunk, PlanUpdate, TextItem, ThoughtChunk, ToolUpdate, Usage
from acp_gateway.versions.shown import ShownMessage, ShownPlan, Tool
from acp_gateway.versions.state import CONTENT_SIZE, MADE, STATE_SIZE, WITHHELD, Memory, bounded, digest_id
from acp_gateway.versions.terminals import Terminal
from acp_gateway.versions.translator import ERROR, Asked, Output, Translator, params_of, result_of, update_of

_compose: Final = jsonrpc.compose
_encode: Final = jsonrpc.encode

_Members = dict[str, bytes]

REMEMBERED_PROMPTS: Final = 64
"""Messages of the client's own prompts that are recognized at most."""

TOOLS: Final = 64
"""Tool calls that show one terminal at most; one is usual."""

ALONE: Final = 64
"""Terminals without a tool call that are remembered as such at most; agents refer to a terminal at once."""

INFO_SIZE: Final = 4096
"""Bytes of a title that are repeated at most; one has a line."""

IDLE: Final = "idle"

PLANS: Final = 32
"""Plans of one session that are shown or named at most; each agent at work has one."""

_PLAIN_SIZE: Final = CONTENT_SIZE // 4
"""Bytes of a plain update of a tool call at most; its content is at most a few times as large in version 1."""

_PLANS: Final = b'{"sessionUpdate":"%b","entries":%%b,"_meta":{"%b":{"plans":%%b,"entries":%%d}}}' % (
    table.PLAN.encode(),
    methods.META.encode(),
)
_NO_PLAN: Final = ShownPlan(b"[]", 0, "", is_done=True)
_MESSAGES: Final = {
    table.USER_MESSAGE: methods.USER_CHUNK,
    table.AGENT_MESSAGE: methods.AGENT_CHUNK,
    table.AGENT_THOUGHT: methods.THOUGHT_CHUNK,
}
_NOTICE: Final = ("severity", "title", "description")
_INFO: Final = ("title", "updatedAt")
_CANCELLED: Final = b'{"stopReason":"cancelled"}'
_ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class _Session:
    """State of one session."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.memory = Memory()
        self.foreground: Foreground[IdKey] = Foreground()
        self.ids: dict[IdKey, RawId] = {}
        """Ids of the client's prompts that are not answered."""
        self.own: dict[str, bool] = {}
        """Ids of the messages that are the client's own prompts."""
        self.withheld: list[tuple[str, bytes]] = []
        """User messages that may be the client's own prompt, by their ids."""
        self.pending: dict[str, None] = {}
        """Tool calls whose content has to be sent."""
        self.mode: bytes | None = None
        self.mode_option: bytes | None = None
        self.model_option: bytes | None = None
        self.plans: dict[str, None] = {}
        """Ids of the plans; the last one changed last."""
        self.alone: dict[str, None] = {}
        """Terminals that no tool call refers to."""
        self.state = IDLE
        """The state that the client was told last."""
        self.background = NOTHING
        """The work in the background that the client was told last."""
        self.info: _Members = {}
        """Title and time of the session as they were told last."""

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        return self.memory.size + sum(len(held) for _, held in self.withheld)

    def shrink(self) -> None:
        """Forget half of what was shown."""
        self.memory.shrink(self.memory.size // 2)

    def answer(self, ended: TurnEnded[IdKey], out: Output) -> None:
        """Answer the prompts of a turn that has ended."""
        out.to_client += [_answer(self.ids.pop(key), ended.end) for key in ended.prompts]


class NewAgent(Translator[_Session]):
    """Translator for a client of version 1 and an agent of version 2."""

    def __init__(self) -> None:
        super().__init__()
        self._shows_booleans = self._shows_notices = self._shows_compaction = False
        self.accepts: RawId | None = None
        """Id of the prompt that the last message has accepted; the reader sets it back."""
        self._cancelled: set[IdKey] = set()
        """Prompts that were cancelled before the agent's response to them came."""

    def _new_session(self, session_id: str) -> _Session:
        return _Session(session_id)

    def begin_replay(self, session_id: str) -> None:
        session = self._session(session_id)
        session.memory = Memory()
        # A history has the client's own prompts too.
        session.own.clear()
        session.withheld.clear()
        session.pending.clear()
        session.plans.clear()
        session.alone.clear()
        session.state, session.background = IDLE, NOTHING

    def turn_ended(self, session_id: str, error: bytes | None = None, *, is_lost: bool = False) -> Output:
        """Answer the session's prompts: the agent will not say that the turn has ended, as it was cut off."""
        out = Output()
        session = self._session(session_id)
        self._flush(session, out)
        ended = TurnEnded(session.foreground.cut(), {} if error is None else {"error": error})
        self._tell_state(session, out, NOTHING)
        session.answer(ended, out)
        return out

    def forget(self, session_id: str) -> Output:
        out = Output()
        session = self._sessions.get(session_id)
        super().forget(session_id)
        if session is not None:
            session.answer(TurnEnded(session.foreground.cut(), {"stopReason": b'"cancelled"'}), out)
        return out

    # From the client

    def _initialize(self, message: Message, params: _Members, out: Output) -> None:
        """Make objects of capabilities; `fs` and `terminal` are not offered."""
        offered = members(members(params.get("clientCapabilities")).get("session"))
        self._shows_booleans = given(members(offered.get("configOptions")).get("boolean"))
        self._shows_notices = given(offered.get("notices"))
        self._shows_compaction = given(offered.get("compaction"))
        self._ask(message, out, methods.INITIALIZE, initialize.new_params(params))

    def _rename(self, message: Message, params: _Members, out: Output) -> None:
        self._ask(message, out, table.NEW_NAMES[message.method], params)

    def _open(self, message: Message, params: _Members, out: Output) -> None:
        """Give MCP servers a `type`; `sse`: error -32602. To load is to resume with a `replayFrom` `start`."""
        if "mcpServers" in params:
            params["mcpServers"] = values.new_servers(params["mcpServers"])
        if message.method == methods.LOAD:
            params["replayFrom"] = b'{"type":"start"}'
            self.begin_replay(message.session or "")
        self._ask(message, out, table.NEW_NAMES.get(message.method, message.method), params)

    def _prompt(self, message: Message, params: _Members, out: Output) -> None:
        """Answer at `state_update` `idle`; without content: error -32602."""
        params["prompt"] = values.new_prompt(params.get("prompt"))
        self._ask(message, out, methods.PROMPT, params)
        session, key = self._session(message.session or ""), id_key(message.id)
        session.ids[key] = message.id
        session.foreground.sent(key)

    def _set_mode(self, message: Message, params: _Members, out: Output) -> None:
        """Set the option of the category `mode` or `model`; without one: error -32602."""
        is_mode = message.method == methods.SET_MODE
        session = self._session(message.session or "")
        option = session.mode_option if is_mode else session.model_option
        value = params.pop("modeId" if is_mode else "modelId", None)
        if option is None or value is None:
            what = "modes" if is_mode else "models"
            raise Untranslatable(f"{message.method}: the agent offers no {what} in this session")
        params |= {"configId": option, "type": b'"id"', "value": value}
        self._ask(message, out, methods.SET_CONFIG_OPTION, params)

    def _set_option(self, message: Message, params: _Members, out: Output) -> None:
        """Give it the `type` `id`, or `boolean`."""
        if text(params.get("type")) is not None:
            # Of a client of version 2.
            self._pass(message, out)
            return
        value = params.get("value", b"")
        params["type"] = b'"boolean"' if value in (b"true", b"false") else b'"id"'
        self._ask(message, out, methods.SET_CONFIG_OPTION, params)

    def _cancel_request(self, message: Message, out: Output) -> None:
        """Send `session/cancel` for a prompt that runs."""
        # The agent may have answered when it comes, so that of another prompt is remembered.
        raw = lookup.param(message, "requestId")
        if raw is not None:
            key = id_key(RawId(raw))
            for session in self._sessions.values():
                if session.foreground.has_accepted(key):
                    out.to_agent.append(_cancel(session))
                    return
            asked = self._asked.get(key)
            if asked is not None and asked.method == methods.PROMPT:
                # The agent's response may be on its way.
                self._cancelled.add(key)
        out.to_agent.append(message.text)

    # Responses of the agent

    def _takes_errors(self, asked: Asked) -> bool:
        return asked.method == methods.PROMPT

    def _response(self, asked: Asked, response: Message, out: Output) -> None:
        match asked.method:
            case methods.PROMPT:
                self._accepted(asked, response, out)
                return
            case methods.INITIALIZE:
                answer = _compose(initialize.old_result(result_of(response)))
            case methods.NEW | methods.LOAD | methods.RESUME | methods.FORK:
                self._opened(asked, response, out)
                return
            case methods.SET_MODE | methods.SET_MODEL:
                found = result_of(response)
                self._note_options(self._session(asked.session), found.pop("configOptions", None))
                answer = _compose(found)
            case methods.SET_CONFIG_OPTION:
                found = result_of(response)
                found["configOptions"] = self._options(self._session(asked.session), found.get("configOptions"))
                answer = _compose(found)
            case _:
                out.to_client.append(response.text)
                return
        out.to_client.append(result(asked.id, answer))

    def _accepted(self, asked: Asked, response: Message, out: Output) -> None:
        session = self._session(asked.session)
        key = id_key(asked.id)
        self.accepts = None if response.error else asked.id
        is_cancelled = key in self._cancelled
        self._cancelled.discard(key)
        if response.error or key not in session.ids:
            session.foreground.refused(key)
            session.ids.pop(key, None)
            out.to_client.append(response.text if response.error else result(asked.id, _CANCELLED))
        else:
            message_id = text(result_of(response).get("messageId"))
            if message_id is not None:
                bounded(session.own, message_id, True, REMEMBERED_PROMPTS)
                session.withheld = [held for held in session.withheld if held[0] != message_id]
            ended = session.foreground.accepted(key, message_id)
            if ended is not None:
                session.answer(ended, out)
            elif is_cancelled:
                out.to_agent.append(_cancel(session))
        if not session.foreground.waits_for_acceptance:
            self._release(session, out)

    def _release(self, session: _Session, out: Output) -> None:
        """Show the user messages that were not the client's own prompts."""
        out.to_client += [update for _, update in session.withheld]
        session.withheld.clear()

    def _opened(self, asked: Asked, response: Message, out: Output) -> None:
        found = result_of(response)
        session_id = text(found.get("sessionId")) or asked.session
        session = self._session(session_id)
        commands = found.pop("availableCommands", None)
        options = found.get("configOptions")
        found["configOptions"] = self._options(session, options)
        mode = _option_of(options, "mode")
        if mode is not None:
            found["modes"] = values.modes_of(mode)
        out.to_client.append(result(asked.id, _compose(found)))
        if given(commands):
            update = {
                "sessionUpdate": _encode(table.COMMANDS_UPDATE),
                "availableCommands": values.old_commands(commands),
            }
            out.to_client.append(
                notification(methods.SESSION_UPDATE, {"sessionId": _encode(session_id), "update": _compose(update)})
            )

    def _note_options(self, session: _Session, options: bytes | None) -> None:
        """Remember the options that stand for modes and models."""
        mode, model = _option_of(options, "mode"), _option_of(options, "model")
        session.mode_option = None if mode is None else mode.get("configId")
        session.model_option = None if model is None else model.get("configId")
        session.mode = None if mode is None else mode.get("currentValue")

    def _options(self, session: _Session, options: bytes | None) -> bytes:
        """Return the config options for the client, and remember those for modes and models."""
        self._note_options(session, options)
        found = (values.old_option(option, booleans=self._shows_booleans) for option in elements(options))
        return array(option for option in found if option is not None)

    # Requests and notifications of the agent

    def _form(self, message: Message, out: Output) -> None:
        """Leave an unknown `format` out."""
        params = params_of(message)
        changed = values.old_form(params)
        same = changed is params
        out.to_client.append(message.text if same else request(message.id, message.method, changed))

    def _refuse(self, message: Message, out: Output) -> None:
        """Answer the agent with error -32601."""
        why = f"{message.method}: version 2 of the protocol has no such method"
        raise Untranslatable(why, jsonrpc.METHOD_NOT_FOUND)

    def _update(self, message: Message, position: int | None, out: Output) -> None:
        handle = self.UPDATES.get(message.update or "")
        session = self._session(message.session or "")
        if session.pending and message.update not in (table.TERMINAL_CHUNK, table.CONTENT_CHUNK):
            self._flush(session, out)
        if handle is None:
            if message.update == methods.INFO_UPDATE:
                told = update_of(params_of(message))
                session.info |= {name: told[name] for name in _INFO if len(told.get(name, b"")) in range(1, INFO_SIZE)}
            out.to_client.append(message.text)
            return
        params = params_of(message)
        handle(self, session, params, update_of(params), out)

    def _plain_chunk(self, session: _Session, chunk: Chunk, text: bytes, position: int | None) -> bytes | None:
        return text if self.take_chunk(session.id, chunk) else None

    def take_chunk(self, session_id: str, chunk: Chunk) -> bool:
        """Take a chunk that is the same in version 1, as most are; return False for another one."""
        session, message_id = self._session(session_id), chunk.message_id
        if session.pending or not isinstance(message_id, str):
            return False
        shown = session.memory.last(ShownMessage, message_id)
        if shown is None:
            shown = ShownMessage()
            session.memory.keep(message_id, shown)
        elif shown.versions:
            return False
        shown.append_text(chunk.content.text)
        session.foreground.agent_said()
        return True

    def _plain_tool_update(
        self, session: _Session, update: ToolUpdate, text: bytes, position: int | None
    ) -> bytes | None:
        """Return the update of a tool call that is nearly the same in version 1; the first has another kind."""
        tool = session.memory.get(Tool, update.id)
        if session.pending or not update.is_same or len(text) > _PLAIN_SIZE:
            return None
        sent: bytes | None = text
        if tool is None:
            sent = None if update.title is UNSET else with_kind(text, methods.TOOL_CALL_UPDATE, methods.TOOL_CALL)
        elif tool.is_renamed or tool.has_content or tool.is_cancelled:
            return None
        items: list[bytes] | None = None
        if sent is not None and update.content is not UNSET:
            content = bytes(update.content)
            items, is_same = _old_items(content)
            sent = None if items is None else sent if is_same else respelled(sent, content, array(items))
        if sent is None:
            return None
        tool = tool or Tool()
        if isinstance(update.title, str):
            tool.title = update.title
        if items is not None:
            tool.show(items)
        session.memory.keep(update.id, tool)
        return sent

    def _plain_plan(self, session: _Session, update: PlanUpdate, text: bytes, position: int | None) -> bytes | None:
        raw = bytes(update.plan.entries)
        statuses = plain_updates.statuses_of(raw)
        if session.pending or statuses is None:
            return None
        self._keep_plan(session, update.plan.id, _plan_of(update.plan.id, raw, statuses))
        return self._plans(session, {"sessionId": _encode(session.id)})

    def _plain_usage(self, session: _Session, update: Usage, text: bytes, position: int | None) -> bytes | None:
        return None if session.pending else text

    def _send(self, params: _Members, update: _Members, out: Output) -> None:
        out.to_client.append(_notify(params, _compose(update)))

    # Messages

    def _chunk(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Name content of an unknown type in a text. A prompt of the client itself is not sent."""
        kind, message_id = text(update["sessionUpdate"]) or "", text(update.get("messageId")) or ""
        block = update.get("content", NULL)
        shown = session.memory.get(ShownMessage, message_id) or ShownMessage()
        shown.append(block)
        session.memory.keep(message_id, shown)
        sent = values.old_block(block)
        if shown.versions or sent is not block:
            update |= {"messageId": _encode(shown.id(message_id)), "content": sent}
        self._show(session, kind, message_id, [_notify(params, _compose(update))], out)

    def _message(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Send what is new as a chunk; if it is not an extension, the whole again under another id, after a line.

        If it was cleared, a line says so. A `_meta` alone is not sent, nor is a prompt of the client itself.
        """
        kind, message_id = _MESSAGES[text(update["sessionUpdate"]) or ""], text(update.get("messageId")) or ""
        shown = session.memory.get(ShownMessage, message_id) or ShownMessage()
        blocks = shown.replace(elements(update["content"])) if "content" in update else []
        session.memory.keep(message_id, shown)
        name = {"sessionUpdate": _encode(kind), "messageId": _encode(shown.id(message_id))}
        chunks = [_notify(params, _compose({**name, "content": values.old_block(block)})) for block in blocks]
        self._show(session, kind, message_id, chunks, out)

    def _show(self, session: _Session, kind: str, message_id: str, chunks: list[bytes], out: Output) -> None:
        """Send chunks of a message, except those of the client's own prompt."""
        if kind != methods.USER_CHUNK:
            session.foreground.agent_said()
            out.to_client += chunks
            return
        session.foreground.user_said(message_id)
        if message_id in session.own:
            return
        if session.foreground.waits_for_acceptance:
            session.withheld += [(message_id, chunk) for chunk in chunks]
            if len(session.withheld) > WITHHELD or sum(len(held) for _, held in session.withheld) > STATE_SIZE:
                self._release(session, out)
        else:
            out.to_client += chunks

    # Turns

    def _state(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Answer the prompts when it is `idle`.

        The `_meta` of a `session_info_update` tells `requires_action`, `running` without a prompt, and the beginning of
        `background`.
        """
        if text(update.get("state")) == "idle":
            for name in list(session.alone):
                self._show_alone(session, name, out)
        ended = session.foreground.updated(update)
        self._tell_state(session, out, update.get("background", NOTHING))
        if ended is not None:
            session.answer(ended, out)
            if text(update.get("stopReason")) == "error" and not ended.prompts:
                words = text(members(update.get("error")).get("message")) or "it said nothing"
                self._say(params, f"[acp-gateway: the agent's work has ended with an error: {words}]", out)

    def _tell_state(self, session: _Session, out: Output, background: bytes) -> None:
        """Tell what version 1 has no word for: the agent waits for a person, works by itself, or in the background."""
        state, told = session.foreground.state, {}
        if state != session.state and not (
            state == "running" and session.state == IDLE and session.foreground.has_prompts
        ):
            session.state, told["state"] = state, _encode(state)
        background = background_of(background, session.background)
        if background != session.background:
            session.background = told["background"] = background
        if not told:
            return
        about = {"sessionUpdate": _encode(methods.INFO_UPDATE), **session.info, "_meta": own_meta(**told)}
        self._send({"sessionId": _encode(session.id)}, about, out)

    def _say(self, params: _Members, words: str, out: Output, **told: bytes) -> None:
        """Send a message of its own, with members of the gateway's own."""
        raw = text_block(words)
        said = {"sessionUpdate": _encode(methods.AGENT_CHUNK), "messageId": _encode(digest_id(raw)), "content": raw}
        meta = {"_meta": own_meta(**told)} if told else {}
        self._send({"sessionId": params.get("sessionId", b'""')}, said | meta, out)

    # Tool calls

    def _tool_update(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Make a `tool_call` of the first of an id.

        Null becomes the default, but clears no `name`, `rawInput`, `rawOutput` and `_meta`. A tool call that was
        cancelled says so in a text.
        """
        tool_id = text(update.get("toolCallId"))
        if tool_id is None:
            return
        tool = session.memory.get(Tool, tool_id)
        is_new = tool is None
        tool = tool or Tool()
        session.pending.pop(tool_id, None)
        sent = {"sessionUpdate": _encode(methods.TOOL_CALL if is_new else methods.TOOL_CALL_UPDATE)}
        for name, value in update.items():
            match name:
                case "sessionUpdate" | "capabilities":
                    pass
                case "title":
                    tool.title = text(value)
                    sent["title"] = _title(tool, update)
                case "kind":
                    sent["kind"] = values.old_value(table.TOOL_KIND, value, "other")
                case "status":
                    sent["status"] = values.old_value(table.TOOL_STATUS, value, "pending")
                    is_cancelled = text(value) == "cancelled"
                    if is_cancelled != tool.is_cancelled:
                        tool.is_cancelled, tool.has_content = is_cancelled, True
                case "content":
                    self._refer(session, tool_id, tool, tool.replace(elements(value)))
                case "locations":
                    sent["locations"] = array(elements(value))
                case _ if given(value):
                    sent[name] = value
        if (is_new and "title" not in sent) or tool.is_renamed:
            sent["title"] = _title(tool, update)
        if tool.is_renamed or tool.has_content:
            sent["content"] = tool.content(session.memory)
        tool.is_renamed = False
        session.memory.keep(tool_id, tool)
        self._send(params, sent, out)

    def _tool_chunk(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Send a `tool_call_update` with all content; under load not for each chunk."""
        tool_id = text(update.get("toolCallId"))
        if tool_id is None or "content" not in update:
            return
        tool = session.memory.get(Tool, tool_id)
        if tool is None:
            self._tool_update(
                session, params, {"toolCallId": update["toolCallId"], "content": array([update["content"]])}, out
            )
            return
        name = tool.append(update["content"])
        self._refer(session, tool_id, tool, [] if name is None else [name])
        session.memory.keep(tool_id, tool)
        self._repeat(session, tool_id, tool, out)

    def _refer(self, session: _Session, tool_id: str, tool: Tool, terminals: list[str]) -> None:
        """Remember which terminals a tool call shows."""
        for name in terminals:
            session.alone.pop(name, None)
            terminal = session.memory.get(Terminal, name) or Terminal()
            bounded(terminal.tools, tool_id, None, TOOLS)
            if not terminal.text:
                tool.followed.add(name)
            session.memory.keep(name, terminal)

    def _repeat(self, session: _Session, tool_id: str, tool: Tool, out: Output, *, at_once: bool = False) -> None:
        """Send the content of a tool call, at once or with the next other message."""
        if not at_once and not tool.may_repeat:
            session.pending[tool_id] = None
            return
        session.pending.pop(tool_id, None)
        sent = {"sessionUpdate": _encode(methods.TOOL_CALL_UPDATE), "toolCallId": _encode(tool_id)}
        sent["content"] = tool.content(session.memory)
        self._send({"sessionId": _encode(session.id)}, sent, out)

    def _flush(self, session: _Session, out: Output) -> None:
        """Send the content that waits."""
        for tool_id in list(session.pending):
            tool = session.memory.get(Tool, tool_id)
            if tool is not None:
                self._repeat(session, tool_id, tool, out, at_once=True)
        session.pending.clear()

    # Terminals

    def _terminal_update(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Send its text in the tool call that refers to it, or in one that is made when it ends.

        That is the last part, with escape sequences, and how it ended, also in `_meta`; `cwd` and `size` are lost.
        """
        name = text(update.get("terminalId"))
        if name is None:
            return
        terminal = self._terminal(session, name)
        terminal.command = text(update.get("command")) or terminal.command
        count = 0
        if "output" in update:
            count = terminal.replace(members(update["output"]).get("data"))
        has_ended = is_object(update.get("exitStatus"))
        if has_ended:
            terminal.end(update["exitStatus"])
        session.memory.keep(name, terminal)
        if count or "output" in update or has_ended:
            self._grown(session, name, terminal, count, out, at_once=has_ended, is_whole="output" in update)
        if has_ended:
            self._show_alone(session, name, out)

    def _terminal_chunk(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Send the same text, decoded as UTF-8 across chunks; under load not for each chunk, but then in `_meta`."""
        name = text(update.get("terminalId"))
        if name is None:
            return
        terminal = self._terminal(session, name)
        count = terminal.append(update.get("data"))
        session.memory.keep(name, terminal)
        self._grown(session, name, terminal, count, out)

    def _grown(
        self,
        session: _Session,
        name: str,
        terminal: Terminal,
        count: int,
        out: Output,
        *,
        at_once: bool = False,
        is_whole: bool = False,
    ) -> None:
        """Send the text of a terminal in the tool calls that refer to it."""
        for tool_id in list(terminal.tools):
            tool = session.memory.get(Tool, tool_id)
            if tool is None or not tool.refers_to(name):
                del terminal.tools[tool_id]
            else:
                tool.grew(count)
                self._repeat(session, tool_id, tool, out, at_once=at_once)
        last = next(reversed(terminal.tools), "")
        tool = session.memory.get(Tool, last)
        waits = tool is not None and last in session.pending and name in tool.followed
        if waits and (terminal.added or is_whole):
            # What is new is told to clients that know the gateway.
            self._send_output(session, last, name, terminal, out, is_whole=is_whole)

    def _send_output(
        self, session: _Session, tool_id: str, name: str, terminal: Terminal, out: Output, *, is_whole: bool
    ) -> None:
        """Send the text that was added to a terminal, or all of it."""
        words = {"output": terminal.shown()} if is_whole else {"data": terminal.added}
        about = {"terminalId": name, **words}
        sent = {"sessionUpdate": _encode(methods.TOOL_CALL_UPDATE), "toolCallId": _encode(tool_id)}
        sent["_meta"] = own_meta(terminal=_encode(about))
        self._send({"sessionId": _encode(session.id)}, sent, out)

    def _terminal(self, session: _Session, name: str) -> Terminal:
        """Return a terminal, which may be new."""
        terminal = session.memory.get(Terminal, name) or Terminal()
        if not terminal.tools:
            bounded(session.alone, name, None, ALONE)
        return terminal

    def _show_alone(self, session: _Session, name: str, out: Output) -> None:
        """Make a tool call for a terminal that has ended, or is at rest, and that no tool call refers to."""
        terminal = session.memory.get(Terminal, name)
        if name not in session.alone or terminal is None or not terminal.shown():
            return
        tool_id = f"{MADE}terminal-{name}"
        status = b'"completed"' if terminal.is_over else b'"in_progress"'
        made = {
            "toolCallId": _encode(tool_id),
            "title": _encode(terminal.command or "terminal"),
            "kind": b'"execute"',
            "status": status,
            "content": array([_compose({"type": b'"terminal"', "terminalId": _encode(name)})]),
        }
        self._tool_update(session, {"sessionId": _encode(session.id)}, made, out)

    # Plans

    def _plan_update(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Send the plan that changed last; the others are named, and the ids are in `_meta`.

        A file is named, Markdown is one entry.
        """
        plan = members(update.get("plan"))
        plan_id = text(plan.get("planId")) or ""
        self._keep_plan(session, plan_id, _read_plan(plan_id, plan))
        out.to_client.append(self._plans(session, params))

    def _keep_plan(self, session: _Session, plan_id: str, plan: ShownPlan) -> None:
        session.memory.keep(plan_id, plan)
        session.plans.pop(plan_id, None)
        bounded(session.plans, plan_id, None, PLANS)

    def _plan_removed(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Send the plan before it, or an empty one."""
        session.plans.pop(text(update.get("planId")) or "", None)
        out.to_client.append(self._plans(session, params))

    def _plans(self, session: _Session, params: _Members) -> bytes:
        """Return the update with the plan that changed last, and with the names of the others."""
        found = {name: plan for name in session.plans if (plan := session.memory.get(ShownPlan, name)) is not None}
        *others, last = [_NO_PLAN, *found.values()]
        entries = last.entries
        named = [values.made_entry(plan.words, done=plan.is_done) for plan in others if plan.words]
        if named:
            entries = array([*elements(entries), *named])
        return _notify(params, _PLANS % (entries, _encode(list(found)), last.count))

    # State of the session

    def _commands(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Leave an unknown input out, unless it has a `hint`."""
        self._send(params, update | {"availableCommands": values.old_commands(update.get("availableCommands"))}, out)

    def _config(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Tell the mode as `current_mode_update` too.

        An option of an unknown type is left out, and a boolean one for a client that did not offer them.
        """
        before = session.mode
        options = self._options(session, update.get("configOptions"))
        self._send(params, update | {"configOptions": options}, out)
        if session.mode is not None and session.mode != before:
            mode = {"sessionUpdate": _encode(methods.MODE_UPDATE), "currentModeId": session.mode}
            self._send({"sessionId": _encode(session.id)}, mode, out)

    def _notice(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Send a message in brackets to a client that did not offer notices, with the notice in `_meta`."""
        if self._shows_notices:
            self._send(params, update, out)
            return
        words = [text(update.get(name)) for name in ("title", "description")]
        said = ": ".join(word for word in words if word)
        told = _compose({name: update[name] for name in _NOTICE if name in update})
        self._say(params, f"[{text(update.get('severity')) or 'info'}: {said}]", out, notice=told)

    def _session_message(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Name content of an unknown type in a text."""
        self._send(params, values.with_blocks(update, values.old_block), out)

    def _compaction(self, session: _Session, params: _Members, update: _Members, out: Output) -> None:
        """Send its end in brackets, without the summary, to a client that did not offer compaction."""
        if self._shows_compaction:
            self._send(params, values.with_blocks(update, values.old_block), out)
        elif text(update.get("status")) in _ENDED:
            why = text(update.get("error"))
            words = f"the compaction of the conversation: {text(update['status'])}{f', {why}' if why else ''}"
            self._say(params, f"[{words}]", out)

    # Permissions

    def _permission(self, message: Message, out: Output) -> None:
        """Make the `title` that of the tool call until its next update, and the `description` its first text.

        Without a tool call one is made, with an id from the text of the request, which has the command or an unknown
        subject.
        """
        params = params_of(message)
        session = self._session(message.session or "")
        self._flush(session, out)
        title = text(params.pop("title", None)) or "The agent asks for permission"
        words = [text(params.pop("description", None)) or ""]
        subject = members(params.pop("subject", None))
        kind = text(subject.get("type"))
        call = members(subject.get("toolCall")) if kind == "tool_call" else {}
        if text(call.get("toolCallId")) is not None:
            self._tool_update(session, {"sessionId": params.get("sessionId", b'""')}, call, out)
        else:
            call = {"toolCallId": subject.get("toolCallId", b""), "kind": b'"other"', "status": b'"pending"'}
            if text(call["toolCallId"]) is None:
                call["toolCallId"] = _encode(digest_id(lookup.raw_params(message)))
            if kind == "command":
                call["kind"] = b'"execute"'
                call["rawInput"] = _compose({name: subject[name] for name in ("command", "cwd") if name in subject})
                words.append(f"{text(subject.get('command')) or ''}\n(in {text(subject.get('cwd')) or ''})")
            elif subject:
                words.append(values.shown(_compose(subject)))
        tool = session.memory.get(Tool, text(call["toolCallId"]) or "")
        blocks = [text_item(word) for word in words if word]
        shown: Iterable[bytes] = blocks
        if tool is not None:
            tool.is_renamed = True
            content = tool.content(session.memory)
            shown = [*blocks, *elements(content, len(content))]
        params["toolCall"] = _permission_call(call, title, array(shown))
        params["options"] = values.old_answers(params.get("options"))
        out.to_client.append(request(message.id, message.method, params))

    # What becomes of each message that does not pass as it is: docs/reference/versions.md has the docstrings.

    REQUESTS: ClassVar = {
        methods.INITIALIZE: _initialize,
        methods.AUTHENTICATE: _rename,
        table.LOGOUT: _rename,
        methods.NEW: _open,
        methods.LOAD: _open,
        methods.RESUME: _open,
        methods.FORK: _open,
        methods.PROMPT: _prompt,
        methods.SET_MODE: _set_mode,
        methods.SET_MODEL: _set_mode,
        methods.SET_CONFIG_OPTION: _set_option,
    }
    NOTIFICATIONS: ClassVar = {methods.CANCEL_REQUEST: _cancel_request}
    AGENT_REQUESTS: ClassVar = {
        methods.REQUEST_PERMISSION: _permission,
        methods.CREATE_ELICITATION: _form,
        **dict.fromkeys(table.UNSERVED, _refuse),
    }
    UPDATES: ClassVar = {
        **dict.fromkeys(methods.CHUNKS, _chunk),
        **dict.fromkeys(_MESSAGES, _message),
        table.STATE_UPDATE: _state,
        methods.TOOL_CALL_UPDATE: _tool_update,
        table.CONTENT_CHUNK: _tool_chunk,
        table.TERMINAL_UPDATE: _terminal_update,
        table.TERMINAL_CHUNK: _terminal_chunk,
        table.PLAN_UPDATE: _plan_update,
        table.PLAN_REMOVED: _plan_removed,
        table.COMMANDS_UPDATE: _commands,
        methods.CONFIG_UPDATE: _config,
        table.NOTICE: _notice,
        table.COMPACTION_UPDATE: _compaction,
        table.COMPACTION_CHUNK: _compaction,
        table.SESSION_MESSAGE: _session_message,
        table.SESSION_MESSAGE_CHUNK: _session_message,
    }
    PLAIN: ClassVar = {
        Chunk: _plain_chunk,
        ThoughtChunk: _plain_chunk,
        ToolUpdate: _plain_tool_update,
        PlanUpdate: _plain_plan,
        Usage: _plain_usage,
    }


def _cancel(session: _Session) -> bytes:
    return notification(methods.SESSION_CANCEL, {"sessionId": _encode(session.id)})


def _notify(params: _Members, update: bytes) -> bytes:
    return notification(methods.SESSION_UPDATE, {**params, "update": update})


def _answer(raw_id: RawId, update: Mapping[str, bytes]) -> bytes:
    """Return the response to a prompt whose turn has ended with this update."""
    reason = text(update.get("stopReason"))
    if reason == "error" or "error" in update:
        failure = update.get("error")
        parts = members(failure)
        whole = failure is not None and text(parts.get("message")) is not None and "code" in parts
        return error(raw_id, failure if whole and failure is not None else ERROR)
    answer = {"stopReason": _encode(table.STOP_REASON.value(reason or "") or "end_turn")}
    if given(update.get("usage")):
        answer["usage"] = update["usage"]
    return result(raw_id, _compose(answer))


def _option_of(options: bytes | None, category: str) -> _Members | None:
    """Return the first option of a category that has choices."""
    for option in map(members, elements(options)):
        if text(option.get("category")) == category and text(option.get("type")) == "select":
            return option
    return None


def _title(tool: Tool, update: _Members) -> bytes:
    """Return the title of a tool call, and one for a tool call without."""
    if tool.title is not None:
        return _encode(tool.title)
    return _encode(text(update.get("name")) or text(update.get("kind")) or "tool call")


def _permission_call(call: _Members, title: str, content: bytes) -> bytes:
    """Return the tool call of a permission request."""
    parts = {name: value for name, value in call.items() if given(value) and name not in ("capabilities", "content")}
    parts |= {"title": _encode(title), "content": content}
    if "kind" in parts:
        parts["kind"] = values.old_value(table.TOOL_KIND, parts["kind"], "other")
    if "status" in parts:
        parts["status"] = values.old_value(table.TOOL_STATUS, parts["status"], "pending")
    return _compose(parts)


def _old_items(content: bytes) -> tuple[list[bytes] | None, bool]:
    """Return the content of a tool call in version 1, and whether it is the same; None if it is not plain."""
    items = plain_updates.new_items(content) or ()
    if len(items) == 1 and isinstance(items[0], TextItem):
        return [content[1:-1]], True
    found: list[bytes] = []
    is_same = True
    for item in items:
        if isinstance(item, TextItem):
            found.append(text_item(item.content.text))
            continue
        diff = old_diff_of(item.changes[0].path, item.patch.text)
        if diff is None:
            return None, False
        found.append(diff)
        is_same = False
    return found or None, is_same


def _plan_of(plan_id: str, entries: bytes, statuses: Sequence[str | None]) -> ShownPlan:
    done, count = statuses.count("completed"), len(statuses)
    return ShownPlan(entries, count, f"plan {plan_id}: {done} of {count} done", is_done=done == count)


def _read_plan(plan_id: str, plan: _Members) -> ShownPlan:
    kind = text(plan.get("type"))
    if kind == "items":
        entries = values.old_entries(plan.get("entries"))
        return _plan_of(plan_id, array(entries), [text(members(entry).get("status")) for entry in entries])
    words = text(plan.get("content")) or text(plan.get("uri")) or f"a plan of the type {kind or 'unknown'}"
    return ShownPlan(array([values.made_entry(words)]), 1, f"plan {plan_id}: {words[:80]}", is_done=False)
