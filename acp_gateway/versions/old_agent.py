"""Translates for a client of version 2 whose agent speaks version 1.

An agent of version 1 says neither that a turn has begun nor who has sent a prompt: whatever runs the turns tells that.
Messages without an id get one from their position in the journal, which is the same for all clients.
"""

from collections.abc import Sequence
from typing import ClassVar, Final, NamedTuple

from msgspec import UNSET

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import IdKey, Message, RawId, id_key
from acp_gateway.protocol.not_sent import NOT_SENT, first_text, name_prompt, was_not_sent
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.pairs import Entry, Pair
from acp_gateway.versions import initialize, plain_updates, table, told, values
from acp_gateway.versions.diffs import new_diff, new_diff_of
from acp_gateway.versions.parts import (
    EMPTY,
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
    request,
    respelled,
    result,
    text,
    text_item,
    with_kind,
)
from acp_gateway.versions.plain_updates import Chunk, OldDiff, Plan, TextItem, ThoughtChunk, ToolCall, ToolUpdate, Usage
from acp_gateway.versions.state import MADE_MODE, MADE_MODEL, MADE_PLAN, OPTIONS_SIZE, made_id
from acp_gateway.versions.translator import Asked, Output, Translator, error_of, params_of, result_of, update_of

_compose: Final = jsonrpc.compose
_encode: Final = jsonrpc.encode

_Members = dict[str, bytes]

_THOUGHT: Final = ".thought"
"""End of the id of a thought: agents of version 1 may give it that of the message which follows."""

_KIND: Final = b'"sessionUpdate"'

_STATE: Final = table.STATE_UPDATE.encode()
_OPTIONS: Final = b'"configOptions"'

_HISTORY: Final = methods.CHUNKS | {methods.TOOL_CALL, methods.TOOL_CALL_UPDATE, table.PLAN}

_ANSWERED: Final = frozenset({methods.NEW, methods.RESUME, methods.FORK, methods.SET_CONFIG_OPTION})
"""Requests whose response is that of the agent, if that speaks version 2 as well."""


class _Choice(NamedTuple):
    """An option that stands for the modes or the models of the agent."""

    config_id: str
    name: str
    category: str
    member: str
    offered: str
    current: str
    method: str
    param: str


_MODES: Final = _Choice(
    MADE_MODE, "Mode", "mode", "modes", "availableModes", "currentModeId", methods.SET_MODE, "modeId"
)
_MODELS: Final = _Choice(
    MADE_MODEL, "Model", "model", "models", "availableModels", "currentModelId", methods.SET_MODEL, "modelId"
)
_CHOICES: Final = (_MODES, _MODELS)


_NOT_SENT: Final = "this prompt was not sent to the agent, because it was cancelled while it waited"


class _Prompt:
    """A prompt of the client whose turn has not ended yet."""

    def __init__(self, raw_id: RawId, blocks: bytes) -> None:
        self.id = raw_id
        self.blocks = blocks
        self.is_answered = False
        self.message_id = b"null"
        """Id of its message, as JSON text, once it is answered."""


class _Session:
    """State of one session."""

    def __init__(self, session_id: str) -> None:
        self.id = session_id
        self.prompts: dict[IdKey, _Prompt] = {}
        self.message: tuple[str, str] | None = None
        """Kind and id of the message that the next chunk without an id continues."""
        self.made = 0
        """Number of ids made for messages that are not in a journal."""
        self.is_running = False
        self.works_alone = False
        """True while the agent works without a prompt."""
        self.is_replaying = False
        """True while the client gets the history."""
        self.background = NOTHING
        """Work of an agent of version 2 in the background."""
        self.plans: list[str] = []
        """Ids of the plans of an agent of version 2."""
        self.is_silent = False
        """True while the agent sends a history that the client did not ask for."""
        self.options: bytes = b"[]"
        self.choices: dict[str, _Members] = {}
        """The modes and models of the agent, by the member that they came in."""

    @property
    def size(self) -> int:
        """Bytes that it counts as."""
        offered = sum(len(raw) for choice in self.choices.values() for raw in choice.values())
        return len(self.options) + offered + sum(len(prompt.blocks) for prompt in self.prompts.values())

    def shrink(self) -> None:
        """Forget nothing: it remembers nothing of what was shown."""


def restated(message: Message) -> bytes:
    """Return the text of a request in version 1 that was passed on for an agent of version 2, which has not got it.

    One that is the same in both versions, or is of version 1, stays as it is. Raises `Untranslatable`.
    """
    params = params_of(message)
    said = dict(params)
    match message.method:
        case methods.PROMPT:
            blocks = elements(params.get("prompt"))
            said["prompt"] = old = values.old_prompt(params.get("prompt"))
            if old == array(blocks):
                return message.text
        case methods.SET_CONFIG_OPTION:
            _check_option(text(params.get("type")))
            if text(params.get("type")) == "id":
                del said["type"]
        case methods.NEW | methods.LOAD | methods.RESUME | methods.FORK:
            servers = elements(params.get("mcpServers"))
            if servers and all("type" in members(server) for server in servers):
                said["mcpServers"] = values.old_servers(params["mcpServers"])
        case table.CANCEL_TOOL_CALL | table.CANCEL_TERMINAL:
            raise _no_cancel(message)
    return message.text if said == params else request(message.id, message.method, said)


def _check_option(kind: str | None) -> None:
    if kind not in ("id", "boolean", None):
        why = f"the agent speaks version 1, which has no option with a value of the type {kind!r:.80}"
        raise Untranslatable(why)


def _no_cancel(message: Message) -> Untranslatable:
    return Untranslatable(f"{message.method}: it is unknown, or can't be cancelled alone")


class OldAgent(Translator[_Session]):
    """Translator for a client of version 2 and an agent of version 1."""

    def __init__(self) -> None:
        super().__init__()
        self._has: _Members = {}
        """Capabilities of the agent's sessions."""
        self._can_load = False

    def _new_session(self, session_id: str) -> _Session:
        return _Session(session_id)

    def begin_replay(self, session_id: str) -> None:
        session = self._session(session_id)
        session.message, session.is_replaying, session.plans, session.background = None, True, [], NOTHING

    def knows(self, session_id: str, result: bytes) -> None:
        _take_options(self._session(session_id), members(result))

    def turn_boundary(self, session_id: str) -> None:
        self._session(session_id).message = None

    def prime(self, session_id: str, history: Sequence[Entry], position: int) -> None:
        super().prime(session_id, history, position)
        if self.is_same:
            # A turn of the history may lack its end. Whether one runs is told.
            self._session(session_id).is_running = False

    def _from_pair(self, pair: Pair, position: int | None) -> Output:
        if not self.is_same:
            # Of an earlier process, which spoke version 2.
            return Output() if pair.is_hidden else self.from_agent(pair.text, position)
        if not pair.is_hidden:
            self._note_choices(pair.text)
        if pair.original is None:
            return Output()
        self._note_state(pair.original)
        return Output(to_client=[pair.original])

    def _note_choices(self, text: bytes) -> None:
        """Remember the options that an update tells."""
        if _OPTIONS in text:
            # What it becomes is not sent.
            self.from_agent(text)

    def _note_state(self, original: bytes) -> None:
        if _STATE not in original:
            return
        message = jsonrpc.parse(original)
        if message.update == table.STATE_UPDATE:
            session, state = self._session(message.session or ""), lookup.text_param(message, "update", "state")
            session.is_running = state != "idle"
            session.background = background_of(lookup.param(message, "update", "background"), NOTHING)

    def accepted(self, request: RawId, response: bytes) -> Output:
        out = Output()
        if not self.is_same:
            return out
        key = id_key(request)
        for session in self._sessions.values():
            prompt = session.prompts.get(key)
            if prompt is not None and not prompt.is_answered:
                prompt.is_answered, prompt.blocks = True, b""
                prompt.message_id = lookup.raw_at(response, "result", "messageId") or b"null"
                # Until the agent tells another state.
                session.is_running = True
                out.to_client.append(jsonrpc.with_id(jsonrpc.parse(response), request))
        return out

    def answered(self, response: bytes, original: bytes) -> Output:
        asked = self._asked.get(id_key(jsonrpc.parse(response).id))
        out = self.from_agent(response)
        if self.is_same and asked is not None and asked.method in _ANSWERED:
            # The rest tells the state.
            out.to_client[-1] = original
        return out

    def turn_began(self, session_id: str, request: RawId | None = None, position: int | None = None) -> Output:
        out = Output()
        session = self._session(session_id)
        session.message = None
        session.works_alone = False
        if self.is_same:
            return out
        prompt = None if request is None else session.prompts.get(id_key(request))
        if prompt is not None and not prompt.is_answered:
            self._begin(session, prompt, position, out)
        self._run(session, out)
        return out

    def turn_runs(self, session_id: str) -> Output:
        out = Output()
        self._run(self._session(session_id), out)
        return out

    def turn_ended(self, session_id: str, error: bytes | None = None, *, is_lost: bool = False) -> Output:
        out = Output()
        session = self._session(session_id)
        session.message = None
        if session.is_running or (is_lost and self.is_same and session.background != NOTHING):
            self._rest(session, {} if error is None else {"stopReason": b'"error"', "error": error}, out)
        return out

    # From the client

    def _answer(self, message: Message, out: Output) -> None:
        outcome = text(members(result_of(message).get("outcome")).get("outcome"))
        if outcome not in (None, "selected", "cancelled"):
            raise Untranslatable(f"the agent speaks version 1, which has no outcome {outcome!r:.80}")
        out.to_agent.append(message.text)

    def _cancel_request(self, message: Message, out: Output) -> None:
        """Drop that of a prompt which runs, as it was answered."""
        raw = lookup.param(message, "requestId")
        key = None if raw is None else id_key(RawId(raw))
        prompts = (session.prompts.get(key) for session in self._sessions.values() if key is not None)
        if not any(prompt is not None and prompt.is_answered for prompt in prompts):
            out.to_agent.append(message.text)

    def _initialize(self, message: Message, params: _Members, out: Output) -> None:
        self._ask(message, out, methods.INITIALIZE, initialize.old_params(params))

    def _rename(self, message: Message, params: _Members, out: Output) -> None:
        self._ask(message, out, table.OLD_NAMES[message.method], params)

    def _resume(self, message: Message, params: _Members, out: Output) -> None:
        """Load it if there is `replayFrom`, and tell its state afterwards.

        One of another type than `start`: error -32602. Without it, the history of an agent that can only load is not
        passed on. MCP servers as of `session/new`.
        """
        method, is_silent, cursor = methods.RESUME, False, params.pop("replayFrom", None)
        if given(cursor):
            kind = text(members(cursor).get("type"))
            if kind != "start":
                raise Untranslatable(f"the agent speaks version 1, which has no replay from {kind!r:.80}")
            method = methods.LOAD
        elif self._can_load and not given(self._has.get("resume")):
            # To a client that returns, only what it has missed is passed on.
            method, is_silent = methods.LOAD, not given(members(params.get("_meta")).get(methods.META))
        self._open(message, params, out, method)
        if method == methods.LOAD:
            self.begin_replay(message.session or "")
            self._session(message.session or "").is_silent = is_silent

    def _open(self, message: Message, params: _Members, out: Output, method: str | None = None) -> None:
        """Take the `type` `stdio` from MCP servers; of another type than that and `http`: error -32602."""
        method = method or message.method
        if self.is_same:
            if method in (methods.NEW, methods.LOAD):
                # In version 1 it is required.
                params.setdefault("mcpServers", b"[]")
        elif method in (methods.NEW, methods.LOAD) or "mcpServers" in params:
            params["mcpServers"] = values.old_servers(params.get("mcpServers"))
        self._ask(message, out, method, params)

    def _prompt(self, message: Message, params: _Members, out: Output) -> None:
        """Answer when the turn begins; the agent's response becomes `state_update` `idle`.

        Content of an unknown type: error -32602.
        """
        blocks = array(elements(params.get("prompt")))
        if self.is_same:
            self._pass(message, out)
        else:
            params["prompt"] = values.old_prompt(blocks)
            self._ask(message, out, methods.PROMPT, params)
        self._session(message.session or "").prompts[id_key(message.id)] = _Prompt(message.id, blocks)

    def _set_option(self, message: Message, params: _Members, out: Output) -> None:
        """Set the mode or the model where the option stands for these.

        Of another type than `id` and `boolean`: error -32602.
        """
        kind, config_id = text(params.get("type")), text(params.get("configId"))
        if self.is_same:
            self._pass(message, out)
            return
        _check_option(kind)
        choice = next((choice for choice in _CHOICES if choice.config_id == config_id), None)
        if choice is None:
            if kind == "id":
                del params["type"]
            self._ask(message, out, methods.SET_CONFIG_OPTION, params)
        else:
            rest = {name: value for name, value in params.items() if name in ("sessionId", "_meta")}
            value = params.get("value", b"null")
            self._ask(message, out, choice.method, {**rest, choice.param: value}, (choice, value))

    def _list(self, message: Message, params: _Members, out: Output) -> None:
        """Answer for an agent that lacks it."""
        if self._has and not given(self._has.get("list")):
            out.to_client.append(result(message.id, b'{"sessions":[]}'))
        else:
            self._pass(message, out)

    def _close(self, message: Message, params: _Members, out: Output) -> None:
        """Answer for an agent that lacks it, and cancel the turn."""
        if self._has and not given(self._has.get("close")):
            session_id = {name: params[name] for name in ("sessionId",) if name in params}
            out.to_agent.append(notification(methods.SESSION_CANCEL, session_id))
            out.to_client.append(result(message.id, EMPTY))
        else:
            self._pass(message, out)

    def _refuse_cancel(self, message: Message, params: _Members, out: Output) -> None:
        """Refuse it with error -32602; neither a tool call nor a terminal offers it."""
        if self.is_same:
            self._pass(message, out)
            return
        raise _no_cancel(message)

    # Responses of the agent

    def _takes_errors(self, asked: Asked) -> bool:
        return asked.method in (methods.PROMPT, methods.RESUME)

    def _response(self, asked: Asked, response: Message, out: Output) -> None:
        session = self._session(asked.session)
        match asked.method:
            case methods.PROMPT:
                self._prompted(session, asked, response, out)
            case methods.INITIALIZE:
                found = result_of(response)
                has = members(found.get("agentCapabilities"))
                self._has = members(has.get("sessionCapabilities")) | {"": b"true"}
                self._can_load = has.get("loadSession") == b"true"
                out.to_client.append(result(asked.id, _compose(initialize.new_result(found))))
            case methods.NEW | methods.RESUME | methods.FORK:
                session.is_silent = session.is_replaying = False
                if response.error:
                    out.to_client.append(response.text)
                else:
                    self._opened(asked, result_of(response), out)
            case methods.SET_CONFIG_OPTION:
                found = result_of(response)
                if asked.detail is not None:
                    choice, value = asked.detail
                    session.choices.setdefault(choice.member, {})[choice.current] = value
                else:
                    session.options = _limited(found.get("configOptions"))
                found["configOptions"] = self._options(session)
                out.to_client.append(result(asked.id, _compose(found)))
            case methods.SESSION_STATUS:
                found = result_of(response)
                state = members(told.own(found).get("status")).get("state")
                told_state = {} if state is None else {"state": _compose({"state": state})}
                out.to_client.append(result(asked.id, _compose(found | told_state)) if found else response.text)
            case table.AUTH_LOGIN | table.AUTH_LOGOUT | methods.CLOSE | methods.DELETE:
                # Agents of version 1 may answer null.
                whole = is_object(lookup.raw_at(response.text, "result"))
                out.to_client.append(response.text if whole else result(asked.id, EMPTY))
            case _:
                out.to_client.append(response.text)

    def _opened(self, asked: Asked, found: _Members, out: Output) -> None:
        session = self._session(text(found.get("sessionId")) or asked.session)
        _take_options(session, found)
        found["configOptions"] = self._options(session)
        if asked.method == methods.RESUME:
            own = told.own(found)
            state, session.background = text(own.get("state")), background_of(own.get("background"), NOTHING)
            if state is not None and not session.is_running:
                session.is_running = session.works_alone = True
            now = state or ("running" if session.is_running else "idle")
            self._tell(session, now, out)
        out.to_client.append(result(asked.id, _compose(found)))

    def _options(self, session: _Session) -> bytes:
        """Return all options of version 2, with those for modes and models that have no option of their own."""
        found = [new for option in elements(session.options) if (new := values.new_option(option)) is not None]
        categories = {text(members(option).get("category")) for option in found}
        for choice in _CHOICES:
            offered = session.choices.get(choice.member, {})
            choices = elements(offered.get(choice.offered))
            if choices and choice.category not in categories:
                current = offered.get(choice.current)
                found.append(values.option_for(choice.config_id, choice.name, choice.category, current, choices))
        return array(found)

    # Turns

    def _prompted(self, session: _Session, asked: Asked, response: Message, out: Output) -> None:
        """End the turn of a prompt, or answer it with an error if its turn has not begun."""
        prompt = session.prompts.pop(id_key(asked.id), None)
        if prompt is None or (response.error and not prompt.is_answered):
            out.to_client.append(response.text)
            return
        if was_not_sent(response.text):
            if not prompt.is_answered:
                # Its turn has not begun, so it is not a message of the conversation.
                words = name_prompt(_NOT_SENT, first_text(prompt.blocks))
                failure = {"code": jsonrpc.INTERNAL_ERROR, "message": words, "data": {"reason": NOT_SENT}}
                out.to_client.append(error(asked.id, _encode(failure)))
                return
            mark = {"type": "text", "text": f"\n\n[acp-gateway: {_NOT_SENT}.]"}
            kind = _encode(methods.USER_CHUNK)
            chunk = {"sessionUpdate": kind, "messageId": prompt.message_id, "content": _encode(mark)}
            self._send({"sessionId": _encode(session.id)}, chunk, out)
        if not prompt.is_answered:
            self._begin(session, prompt, None, out)
            self._run(session, out)
        if session.is_running:
            end = {"stopReason": b'"error"', "error": error_of(response)} if response.error else result_of(response)
            self._rest(session, {name: end[name] for name in ("stopReason", "error", "usage") if name in end}, out)

    def _begin(self, session: _Session, prompt: _Prompt, position: int | None, out: Output) -> None:
        """Answer a prompt, and show it as the message that it is now."""
        prompt.is_answered = True
        message_id = prompt.message_id = _encode(self._made(session, methods.USER_CHUNK, position))
        out.to_client.append(result(prompt.id, b'{"messageId":%b}' % message_id))
        shown = {"sessionUpdate": _encode(table.USER_MESSAGE), "messageId": message_id, "content": prompt.blocks}
        self._send({"sessionId": _encode(session.id)}, shown, out)
        prompt.blocks = b""

    def _run(self, session: _Session, out: Output) -> None:
        if not session.is_running:
            session.is_running = True
            self._tell(session, "running", out)

    def _rest(self, session: _Session, end: _Members, out: Output) -> None:
        session.is_running = session.works_alone = False
        if self.is_same:
            # The agent would have said so itself, but it has ended.
            session.background = NOTHING
        self._tell(session, "idle", out, end)

    def _tell(self, session: _Session, state: str, out: Output, end: _Members | None = None) -> None:
        """Send a state, with the work in the background."""
        update = {"sessionUpdate": _encode(table.STATE_UPDATE), "state": _encode(state), **(end or {})}
        if session.background != NOTHING:
            update["background"] = session.background
        self._send({"sessionId": _encode(session.id)}, update, out)

    def _made(self, session: _Session, kind: str, position: int | None) -> str:
        if position is not None:
            return made_id(kind, position)
        session.made += 1
        return made_id(kind, f"x{session.made}")

    # Requests and notifications of the agent

    def _refuse(self, message: Message, out: Output) -> None:
        """Answer the agent with error -32601: clients of version 2 serve no files and no terminals."""
        why = f"{message.method}: the client speaks version 2, which serves no files and terminals"
        raise Untranslatable(why, jsonrpc.METHOD_NOT_FOUND)

    def _form(self, message: Message, out: Output) -> None:
        """Give the schema `type` and `properties`; a property without choices is left out."""
        out.to_client.append(request(message.id, methods.CREATE_ELICITATION, values.new_form(params_of(message))))

    def _permission(self, message: Message, out: Output) -> None:
        """Take the tool call's title as `title` too; without options: error -32602, which decides nothing."""
        params = params_of(message)
        if not elements(params.get("options")):
            raise Untranslatable("the client speaks version 2, in which a permission request has options")
        call = members(params.pop("toolCall", None))
        title = text(call.get("title")) or text(call.get("name")) or "The agent asks for permission"
        subject = {"type": b'"tool_call"', "toolCall": _compose(_tool(call))}
        params = {"title": _encode(title), **params, "subject": _compose(subject)}
        out.to_client.append(request(message.id, methods.REQUEST_PERMISSION, params))

    def _update(self, message: Message, position: int | None, out: Output) -> None:
        kind = message.update or ""
        session = self._session(message.session or "")
        if session.is_silent and kind in _HISTORY:
            return
        handle = self.UPDATES.get(kind)
        is_told = told.OWN in message.text
        if handle is None and not (is_told and kind == methods.INFO_UPDATE):
            out.to_client.append(message.text)
            return
        params = params_of(message)
        whole = update_of(params)
        update = self._told(session, params, kind, whole, out) if is_told else whole
        if handle is not None and update is not None:
            update = handle(self, session, update, position)
        if update is whole:
            out.to_client.append(message.text)
        elif update is not None:
            self._send(params, update, out)

    def _told(self, session: _Session, params: _Members, kind: str, update: _Members, out: Output) -> _Members | None:
        """Send what `_meta` tells of an agent of version 2, and return the rest of the update; None without one."""
        rest = told.without_own(update)
        if kind == methods.INFO_UPDATE:
            self._tell_state(session, told.own(update), out)
            return rest if rest.keys() > {"sessionUpdate"} else None
        about = {"sessionId": params.get("sessionId", b'""')}
        if kind in methods.CHUNKS:
            notice = told.own(update).get("notice")
            if notice is None:
                return update
            session.message = None
            self._send(about, {"sessionUpdate": _encode(table.NOTICE), **members(notice)}, out)
            return None
        if kind == table.PLAN:
            found = told.plans(update, session.plans)
            if found is None:
                return rest
            plans, session.plans = found
            for plan in plans:
                self._send(about, plan, out)
            return None
        if kind not in (methods.TOOL_CALL, methods.TOOL_CALL_UPDATE):
            return update
        for terminal in told.terminals(update):
            self._send(about, terminal, out)
        return rest if rest.keys() > {"sessionUpdate", "toolCallId"} else None

    def _tell_state(self, session: _Session, own: _Members, out: Output) -> None:
        """Tell that the agent waits for a person, or works without a prompt; the end of a turn is told by itself."""
        if session.is_replaying:
            return
        state, before = text(own.get("state")), session.background
        session.background = background_of(own.get("background"), before)
        if state in ("running", "requires_action"):
            session.works_alone = session.works_alone or not session.is_running
            session.is_running = True
            self._tell(session, state, out)
        elif state == "idle" and session.works_alone:
            self._rest(session, {}, out)
        elif session.background != before:
            self._tell(session, "running" if session.is_running else "idle", out)

    def _send(self, params: _Members, update: _Members, out: Output) -> None:
        out.to_client.append(notification(methods.SESSION_UPDATE, {**params, "update": _compose(update)}))

    def _plain_plan(self, session: _Session, update: Plan, text: bytes, position: int | None) -> bytes | None:
        entries = bytes(update.entries)
        if session.is_silent or plain_updates.statuses_of(entries) is None:
            return None
        plan = _compose({"type": b'"items"', "planId": _encode(MADE_PLAN), "entries": entries})
        sent = {"sessionUpdate": _encode(table.PLAN_UPDATE), "plan": plan}
        return notification(methods.SESSION_UPDATE, {"sessionId": _encode(session.id), "update": _compose(sent)})

    def _plain_usage(self, session: _Session, update: Usage, text: bytes, position: int | None) -> bytes:
        return text

    def _plain_tool_update(
        self, session: _Session, update: ToolUpdate, text: bytes, position: int | None
    ) -> bytes | None:
        if session.is_silent or not update.is_same:
            return None
        sent: bytes | None = text
        if isinstance(update, ToolCall):
            session.message = None
            sent = with_kind(text, methods.TOOL_CALL, methods.TOOL_CALL_UPDATE)
        if sent is None or update.content is UNSET:
            return sent
        content = bytes(update.content)
        items = plain_updates.old_items(content)
        if not items or all(isinstance(item, TextItem) for item in items):
            return None if items is None else sent
        return respelled(sent, content, array(map(_plain_item, items)))

    def _plain_chunk(self, session: _Session, chunk: Chunk, text: bytes, position: int | None) -> bytes | None:
        """Return a chunk with its id; None if the slower way has to give it one."""
        if session.is_silent:
            return None
        kind = methods.THOUGHT_CHUNK if isinstance(chunk, ThoughtChunk) else methods.AGENT_CHUNK
        if chunk.message_id is UNSET:
            # The name may stand within text too, or be written in another way.
            if text.count(_KIND) != 1:
                return None
            message_id = _encode(self._continued(session, kind, position))
            return text.replace(_KIND, b'"messageId":%b,%b' % (message_id, _KIND))
        if self.is_same:
            return text
        if kind == methods.THOUGHT_CHUNK:
            return None
        session.message = None
        return text

    def _continued(self, session: _Session, kind: str, position: int | None) -> str:
        """Return the id of the message that a chunk without one continues, or begins."""
        if session.message is None or session.message[0] != kind:
            session.message = kind, self._made(session, kind, position)
        return session.message[1]

    def _chunk(self, session: _Session, update: _Members, position: int | None) -> _Members:
        """Make a `messageId` from the position in the history where there is none; a thought's is marked as such."""
        kind = text(update.get("sessionUpdate")) or ""
        given_id, block = text(update.get("messageId")), update.get("content", NULL)
        content = values.new_block(block)
        if given_id is None:
            message_id = self._continued(session, kind, position)
        else:
            session.message = None
            is_thought = kind == methods.THOUGHT_CHUNK and not self.is_same
            if not is_thought and content is block:
                return update
            message_id = given_id + _THOUGHT if is_thought else given_id
        return update | {"messageId": _encode(message_id), "content": content}

    def _tool_call(self, session: _Session, update: _Members, position: int | None) -> _Members:
        """Leave null out, as it changes nothing in version 1."""
        if text(update.get("sessionUpdate")) == methods.TOOL_CALL:
            session.message = None
        return _tool(update) | {"sessionUpdate": _encode(methods.TOOL_CALL_UPDATE)}

    def _plan(self, session: _Session, update: _Members, position: int | None) -> _Members:
        """Send the only plan with the id `acp-gateway-plan`."""
        plan = {
            "type": b'"items"',
            "planId": _encode(MADE_PLAN),
            "entries": array(elements(update.pop("entries", None))),
        }
        return update | {"sessionUpdate": _encode(table.PLAN_UPDATE), "plan": _compose(plan)}

    def _commands(self, session: _Session, update: _Members, position: int | None) -> _Members:
        """Give commands the `type` `command`, and inputs `text`."""
        return update | {"availableCommands": values.new_commands(update.get("availableCommands"))}

    def _blocks(self, session: _Session, update: _Members, position: int | None) -> _Members:
        """Leave a size below 0, and a priority beyond 0 to 1, out of the content."""
        return values.with_blocks(update, values.new_block)

    def _config(self, session: _Session, update: _Members, position: int | None) -> _Members:
        """Leave an option without choices out."""
        session.options = _limited(update.get("configOptions"))
        return update | {"configOptions": self._options(session)}

    def _mode(self, session: _Session, update: _Members, position: int | None) -> _Members | None:
        """Send all options, with the mode among them."""
        current = update.get("currentModeId", b"null")
        session.choices.setdefault(_MODES.member, {})[_MODES.current] = current
        session.options = array(_with_mode(option, current) for option in elements(session.options))
        options = self._options(session)
        if options == b"[]":
            return None
        rest = {"_meta": update["_meta"]} if "_meta" in update else {}
        return {"sessionUpdate": _encode(methods.CONFIG_UPDATE), "configOptions": options, **rest}

    # What becomes of each message that does not pass as it is: docs/reference/versions.md has the docstrings.

    REQUESTS: ClassVar = {
        methods.INITIALIZE: _initialize,
        table.AUTH_LOGIN: _rename,
        table.AUTH_LOGOUT: _rename,
        methods.NEW: _open,
        methods.RESUME: _resume,
        methods.FORK: _open,
        methods.PROMPT: _prompt,
        methods.SET_CONFIG_OPTION: _set_option,
        methods.LIST: _list,
        methods.CLOSE: _close,
        table.CANCEL_TOOL_CALL: _refuse_cancel,
        table.CANCEL_TERMINAL: _refuse_cancel,
    }
    NOTIFICATIONS: ClassVar = {methods.CANCEL_REQUEST: _cancel_request}
    AGENT_REQUESTS: ClassVar = {
        methods.REQUEST_PERMISSION: _permission,
        methods.CREATE_ELICITATION: _form,
        **dict.fromkeys(table.UNSERVED, _refuse),
    }
    UPDATES: ClassVar = {
        **dict.fromkeys(methods.CHUNKS, _chunk),
        methods.TOOL_CALL: _tool_call,
        methods.TOOL_CALL_UPDATE: _tool_call,
        table.PLAN: _plan,
        table.COMMANDS_UPDATE: _commands,
        methods.MODE_UPDATE: _mode,
        methods.CONFIG_UPDATE: _config,
        table.COMPACTION_UPDATE: _blocks,
        table.COMPACTION_CHUNK: _blocks,
        table.SESSION_MESSAGE: _blocks,
        table.SESSION_MESSAGE_CHUNK: _blocks,
    }
    PLAIN: ClassVar = {
        Chunk: _plain_chunk,
        ThoughtChunk: _plain_chunk,
        ToolCall: _plain_tool_update,
        ToolUpdate: _plain_tool_update,
        Plan: _plain_plan,
        Usage: _plain_usage,
    }


def _take_options(session: _Session, found: _Members) -> None:
    """Remember the options of a session, and take them out of the result of opening it."""
    session.options = _limited(found.pop("configOptions", None))
    session.choices = {
        choice.member: members(_limited(raw, b"{}"))
        for choice in _CHOICES
        if is_object(raw := found.pop(choice.member, None))
    }


def _with_mode(option: bytes, current: bytes) -> bytes:
    """Return an option of version 1 with another value, if it is that of the modes and has this one."""
    parts = members(option)
    is_mode = text(parts.get("category")) == _MODES.category
    if not is_mode or all(choice.get("value") != current for choice in values.choices(parts)):
        return option
    return _compose({**parts, "currentValue": current})


def _tool(update: _Members) -> _Members:
    """Return the members of a tool call of version 2; null changes nothing in version 1."""
    found = {name: value for name, value in update.items() if given(value)}
    if "content" in found:
        found["content"] = array(map(_item, told.content(elements(found["content"]))))
    if "locations" in found:
        found["locations"] = values.new_locations(found["locations"])
    return found


def _plain_item(item: TextItem | OldDiff) -> bytes:
    return text_item(item.content.text) if isinstance(item, TextItem) else new_diff_of(item.path, item.old, item.new)


def _item(item: bytes) -> bytes:
    """Return an item of a tool call's content of version 2."""
    parts = members(item)
    match text(parts.get("type")):
        case "diff" if "changes" not in parts:
            return new_diff(parts)
        case "content":
            block = parts.get("content", NULL)
            changed = values.new_block(block)
            return item if changed is block else _compose({**parts, "content": changed})
    return item


def _limited(raw: bytes | None, empty: bytes = b"[]") -> bytes:
    """Return what is remembered of options, modes or models; nothing beyond `OPTIONS_SIZE`."""
    return raw if raw is not None and given(raw) and len(raw) <= OPTIONS_SIZE else empty
