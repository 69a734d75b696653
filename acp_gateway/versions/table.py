"""The table of all methods, updates, members and values of both versions: the translators use it, and the tables of
docs/versions.md are written from it.

A note in `to_new` says what becomes of a version 1 message in version 2, one in `to_old` of the other way; an empty
note says that nothing is lost. A name that is None has no counterpart in that version.
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from acp_gateway.protocol import methods
from acp_gateway.versions.state import MADE_PLAN, TERMINAL_SIZE

OLD: Final = 1
NEW: Final = 2


class Caller(enum.Enum):
    """The side that sends a request or notification."""

    CLIENT = "client"
    AGENT = "agent"
    BOTH = "both"


class Method(NamedTuple):
    """A method in both versions."""

    caller: Caller
    old: str | None
    new: str | None
    to_new: str = ""
    to_old: str = ""
    draft: bool = False
    """True if only the drafts of the schemas have it."""


class Update(NamedTuple):
    """A kind of `session/update` in both versions."""

    old: str | None
    new: str | None
    to_new: str = ""
    to_old: str = ""
    draft: bool = False
    """True if only the drafts of the schemas have it."""


class Member(NamedTuple):
    """A member that has another name, or is lost, in the other version."""

    where: str
    old: str | None
    new: str | None
    to_new: str = ""
    to_old: str = ""


class Enumeration(NamedTuple):
    """Values that version 1 has a closed list of, and version 2 an open one."""

    where: str
    old: tuple[str, ...]
    """The values of version 1, which mean the same in version 2."""
    to_old: Mapping[str, str]
    """The further values of version 2, with those that replace them."""
    unknown: str | None
    """The value that replaces all others; None if the thing is left out."""

    def value(self, value: str) -> str | None:
        """Return the value of version 1 for one of version 2."""
        return value if value in self.old else self.to_old.get(value, self.unknown)


AUTH_LOGIN: Final = "auth/login"
AUTH_LOGOUT: Final = methods.NEW_LOGOUT
LOGOUT: Final = methods.LOGOUT
CANCEL_TOOL_CALL: Final = "tool_call/cancel"
CANCEL_TERMINAL: Final = "terminal/cancel"

_SERVERS = "MCP servers get a `type`"
_OLD_SERVERS = "MCP servers lose the `type` `stdio`; of another type than `stdio` and `http`: error -32602"
_OPENED = "`modes` become a config option"
_OLD_OPENED = "a config option of the category `mode` is also told as `modes`; commands follow in an update"
_HOST = "error -32601 for the agent: clients of version 2 serve no files and no terminals"
_STRAY = "error -32601 for the agent"
_CHAIN = "error -32601: the gateway stands in no chain of proxies"

METHODS: Final = (
    Method(
        Caller.CLIENT,
        methods.INITIALIZE,
        methods.INITIALIZE,
        "`fs` and `terminal` are not offered; capabilities become objects",
        "an agent that lacks `session/list` or `session/close` is answered for by the gateway",
    ),
    Method(Caller.CLIENT, methods.AUTHENTICATE, AUTH_LOGIN),
    Method(Caller.CLIENT, LOGOUT, AUTH_LOGOUT),
    Method(
        Caller.CLIENT,
        methods.NEW,
        methods.NEW,
        f"{_SERVERS}; `sse`: error -32602; in the result, {_OPENED}",
        f"{_OLD_SERVERS}; in the result, {_OLD_OPENED}",
    ),
    Method(
        Caller.CLIENT,
        methods.LOAD,
        methods.RESUME,
        "`replayFrom` is `start`; otherwise as `session/new`",
        "only with `replayFrom`; one of another type than `start`: error -32602; the state follows the history",
    ),
    Method(
        Caller.CLIENT,
        methods.RESUME,
        methods.RESUME,
        "as `session/new`",
        "without `replayFrom`; of an agent that can only load, the history is not passed on",
    ),
    Method(Caller.CLIENT, methods.FORK, methods.FORK, "as `session/new`", "as `session/new`", draft=True),
    Method(Caller.CLIENT, methods.LIST, methods.LIST),
    Method(Caller.CLIENT, methods.CLOSE, methods.CLOSE),
    Method(Caller.CLIENT, methods.DELETE, methods.DELETE),
    Method(
        Caller.CLIENT,
        methods.PROMPT,
        methods.PROMPT,
        "the response waits for `state_update` `idle`; without content: error -32602",
        "answered when the turn begins; the agent's response becomes `state_update` `idle`; content of an unknown "
        "type: error -32602",
    ),
    Method(Caller.CLIENT, methods.SESSION_CANCEL, methods.SESSION_CANCEL),
    Method(
        Caller.CLIENT,
        methods.SET_MODE,
        methods.SET_CONFIG_OPTION,
        "sets the option of the category `mode`; without one: error -32602",
        "only for the option that stands for `modes`",
    ),
    Method(
        Caller.CLIENT,
        methods.SET_MODEL,
        methods.SET_CONFIG_OPTION,
        "sets the option of the category `model`; without one: error -32602",
        "only for the option that stands for `models`",
        draft=True,
    ),
    Method(
        Caller.CLIENT,
        methods.SET_CONFIG_OPTION,
        methods.SET_CONFIG_OPTION,
        "gets the `type` `id`",
        "of another type than `id` and `boolean`: error -32602",
    ),
    Method(Caller.CLIENT, None, CANCEL_TOOL_CALL, to_old="error -32602; no tool call offers it"),
    Method(Caller.CLIENT, None, CANCEL_TERMINAL, to_old="error -32602; no terminal offers it"),
    *(
        Method(Caller.CLIENT, name, name, draft=True)
        for name in (
            *("auth/status", "providers/list", "providers/set", "providers/disable"),
            *("session/archive", "session/unarchive", "session/status", "session/set_title"),
            *("nes/start", "nes/suggest", "nes/accept", "nes/reject", "nes/close"),
            *("document/didOpen", "document/didChange", "document/didClose", "document/didSave", "document/didFocus"),
        )
    ),
    Method(Caller.CLIENT, methods.PROXY_INITIALIZE, methods.PROXY_INITIALIZE, _CHAIN, _CHAIN, draft=True),
    Method(
        Caller.BOTH,
        methods.CANCEL_REQUEST,
        methods.CANCEL_REQUEST,
        "for a prompt that runs: `session/cancel`",
        "for a prompt that runs: dropped, as it was answered",
    ),
    Method(Caller.BOTH, "mcp/message", "mcp/message", draft=True),
    Method(Caller.BOTH, methods.PROXY_SUCCESSOR, methods.PROXY_SUCCESSOR, _CHAIN, _CHAIN, draft=True),
    Method(Caller.AGENT, "mcp/connect", "mcp/connect", draft=True),
    Method(Caller.AGENT, "mcp/disconnect", "mcp/disconnect", draft=True),
    Method(Caller.AGENT, "auth/status_update", "auth/status_update", draft=True),
    Method(Caller.AGENT, methods.SESSION_UPDATE, methods.SESSION_UPDATE, "see the updates", "see the updates"),
    Method(
        Caller.AGENT,
        methods.REQUEST_PERMISSION,
        methods.REQUEST_PERMISSION,
        "the tool call's title is the `title` too; without options: error -32602, which decides nothing",
        "the `title` is the tool call's until its next update, the `description` is its first text; without a tool "
        "call one is made, with an id from the text of the request, which has the command or an unknown subject",
    ),
    Method(
        Caller.AGENT,
        methods.CREATE_ELICITATION,
        methods.CREATE_ELICITATION,
        "the schema gets `type` and `properties`; a property without choices is left out",
        "an unknown `format` is left out",
    ),
    Method(Caller.AGENT, methods.COMPLETE_ELICITATION, methods.COMPLETE_ELICITATION),
    *(
        Method(Caller.AGENT, name, None, _HOST, _STRAY)
        for name in (
            *("fs/read_text_file", "fs/write_text_file", methods.CREATE_TERMINAL, "terminal/output"),
            *("terminal/release", "terminal/wait_for_exit", "terminal/kill"),
        )
    ),
)

USER_MESSAGE: Final = "user_message"
AGENT_MESSAGE: Final = "agent_message"
AGENT_THOUGHT: Final = "agent_thought"
STATE_UPDATE: Final = "state_update"
CONTENT_CHUNK: Final = "tool_call_content_chunk"
TERMINAL_UPDATE: Final = "terminal_update"
TERMINAL_CHUNK: Final = "terminal_output_chunk"
PLAN: Final = "plan"
PLAN_UPDATE: Final = "plan_update"
PLAN_REMOVED: Final = "plan_removed"
COMMANDS_UPDATE: Final = "available_commands_update"
USAGE_UPDATE: Final = "usage_update"
NOTICE: Final = "notice"
COMPACTION_UPDATE: Final = "compaction_update"
COMPACTION_CHUNK: Final = "compaction_summary_chunk"
SESSION_MESSAGE: Final = "session_message"
SESSION_MESSAGE_CHUNK: Final = "session_message_chunk"

_CHUNK = "without a `messageId`, one is made from the position in the history"
_UPSERT = (
    "what is new is a chunk; if it is not an extension, the whole again under another id, after a line that says so; "
    "a line if it was cleared; `_meta` alone is not passed on"
)
_NUMBERS = "content without a size below 0 and a priority beyond 0 to 1"
_CONTENT = "content of an unknown type is named in a text"

UPDATES: Final = (
    Update(
        methods.USER_CHUNK,
        methods.USER_CHUNK,
        _CHUNK,
        f"not for the client whose prompt it is; {_CONTENT}",
    ),
    Update(methods.AGENT_CHUNK, methods.AGENT_CHUNK, _CHUNK, _CONTENT),
    Update(
        methods.THOUGHT_CHUNK, methods.THOUGHT_CHUNK, f"{_CHUNK}; a given one is marked as that of a thought", _CONTENT
    ),
    Update(None, USER_MESSAGE, to_old=f"chunks: {_UPSERT}; not for the client whose prompt it is"),
    Update(None, AGENT_MESSAGE, to_old=f"chunks: {_UPSERT}"),
    Update(None, AGENT_THOUGHT, to_old=f"chunks: {_UPSERT}"),
    Update(
        None,
        STATE_UPDATE,
        to_old="`idle` answers the prompts; `requires_action`, and `running` without a prompt, are told in the `_meta` "
        "of a `session_info_update`; so is `background`, the first 4,096 bytes of it",
    ),
    Update(methods.TOOL_CALL, methods.TOOL_CALL_UPDATE),
    Update(
        methods.TOOL_CALL_UPDATE,
        methods.TOOL_CALL_UPDATE,
        "null is left out, as it changes nothing in version 1",
        "the first of an id is a `tool_call`; null becomes the default, but clears no `name`, `rawInput`, `rawOutput` "
        "and `_meta`; a tool call that was cancelled says so in a text",
    ),
    Update(None, CONTENT_CHUNK, to_old="a `tool_call_update` with all content; under load not for each chunk"),
    Update(
        None,
        TERMINAL_UPDATE,
        to_old="text of the tool call that refers to it, or of one that is made when it ends: the last "
        f"{TERMINAL_SIZE:,} characters, with escape sequences, and how it ended, also in `_meta`; `cwd` and `size` are "
        "lost",
    ),
    Update(
        None,
        TERMINAL_CHUNK,
        to_old="the same text, decoded as UTF-8 across chunks; under load not for each chunk, but then in `_meta`",
    ),
    Update(
        PLAN,
        PLAN_UPDATE,
        f"with the id `{MADE_PLAN}`",
        "the plan that changed last; the others are named, and the ids are in `_meta`",
    ),
    Update(
        PLAN_UPDATE,
        PLAN_UPDATE,
        to_old="as `plan`; a file is named, Markdown is one entry",
        draft=True,
    ),
    Update(PLAN_REMOVED, PLAN_REMOVED, to_old="the plan before it, or an empty one", draft=True),
    Update(
        COMMANDS_UPDATE,
        COMMANDS_UPDATE,
        "commands get the `type` `command`, inputs `text`",
        "an unknown input has its `hint`, or is left out",
    ),
    Update(methods.MODE_UPDATE, methods.CONFIG_UPDATE, "with all options", "also as `current_mode_update`"),
    Update(
        methods.CONFIG_UPDATE,
        methods.CONFIG_UPDATE,
        "an option without choices is left out",
        "an option of an unknown type is left out, and a boolean one for a client that did not offer them",
    ),
    Update(methods.INFO_UPDATE, methods.INFO_UPDATE),
    Update(USAGE_UPDATE, USAGE_UPDATE),
    Update(NOTICE, NOTICE, to_old="a message in brackets for a client that did not offer notices, with it in `_meta`"),
    Update(
        COMPACTION_UPDATE,
        COMPACTION_UPDATE,
        _NUMBERS,
        "a message in brackets at its end, without the summary, for a client that did not offer them",
    ),
    Update(COMPACTION_CHUNK, COMPACTION_CHUNK, _NUMBERS, "lost for a client that did not offer compaction"),
    Update(methods.SUBAGENT_UPDATE, methods.SUBAGENT_UPDATE, draft=True),
    Update(SESSION_MESSAGE, SESSION_MESSAGE, _NUMBERS, _CONTENT, draft=True),
    Update(SESSION_MESSAGE_CHUNK, SESSION_MESSAGE_CHUNK, _NUMBERS, _CONTENT, draft=True),
)

AUTH_METHOD: Final = "authentication method"
CONFIG_OPTION: Final = "config option"
OPTION_GROUP: Final = "group of options"

MEMBERS: Final = (
    Member("`initialize`", "clientInfo", "info", "a client without one is `unknown`"),
    Member("`initialize`", "clientCapabilities", "capabilities", "`fs` and `terminal` are lost"),
    Member("result of `initialize`", "agentInfo", "info", "an agent without one is `unknown`"),
    Member("result of `initialize`", "agentCapabilities", "capabilities"),
    Member("capabilities of the agent", "loadSession", None, "always there", "true"),
    Member("capabilities of the agent", "promptCapabilities", "session.prompt"),
    Member("capabilities of the agent", "mcpCapabilities", "session.mcp", "`sse` is lost", "`stdio` is lost"),
    Member("capabilities of the agent", "sessionCapabilities", "session", to_old="`list`, `resume`, `close` are added"),
    Member("capabilities of the agent", "auth.logout", None, "always there", "with `authMethods`"),
    Member("capabilities of the client", "session", None, "always there", "all is offered"),
    Member("capabilities of the client", "auth.terminal", "auth.terminal", "an object", "true or false"),
    Member("capabilities of the client", "subagents", None, "passed on"),
    Member("result of `session/status`", None, "state", to_old="passed on"),
    Member(AUTH_METHOD, "id", "methodId"),
    Member(AUTH_METHOD, "type", "type", "`agent` if there is none", "a method of an unknown type is left out"),
    Member(AUTH_METHOD, "env", "env", "a list", "an object"),
    Member(CONFIG_OPTION, "id", "configId"),
    Member(OPTION_GROUP, "group", "groupId"),
    Member("result of an opening", "modes", "configOptions"),
    Member("result of an opening", "models", "configOptions", to_old="not told as `models`"),
    Member("result of an opening", None, "availableCommands", to_old="an update after the response"),
    Member("result of `session/prompt`", "stopReason", "stopReason", "of `state_update` `idle`"),
    Member("result of `session/prompt`", "usage", "usage", "of `state_update` `idle`"),
    Member("result of `session/prompt`", None, "messageId", "made from the position in the history"),
    Member(
        "diff",
        "path",
        "changes",
        to_old="a text for each deleted, moved, copied, binary or unknown change, with it in `_meta`",
    ),
    Member(
        "diff",
        "oldText, newText",
        "patch",
        "all lines in one hunk; no patch if nothing changes",
        "one diff for each file, from its hunks; as text in another format, or with more than 8,192 runs of lines",
    ),
    Member("content of a tool call", "terminal", "terminal", "refers to a terminal without output", "a text"),
    Member("tool call", None, "capabilities", to_old="lost: a tool call is not cancelled alone"),
    Member("link to a resource", None, "icons", to_old="passed on"),
    Member("place in a file", "line", "line", "0 is left out"),
    Member("annotations", "priority", "priority", "left out beyond 0 to 1"),
    Member("annotations", "audience", "audience", to_old="unknown roles are left out"),
    Member("`session/request_permission`", "toolCall", "subject", "of the type `tool_call`", "made if it has none"),
    Member(
        "result of `session/request_permission`",
        "outcome",
        "outcome",
        to_old="unknown: error -32602, which decides nothing",
    ),
)

RENAMED: Final = {
    row.where: (row.old, row.new)
    for row in MEMBERS
    if row.where in (AUTH_METHOD, CONFIG_OPTION, OPTION_GROUP) and row.old != row.new
}
"""The names of the member that identifies each of these things, in version 1 and in version 2."""

STOP_REASON: Final = Enumeration(
    "stop reason",
    ("end_turn", "max_tokens", "max_turn_requests", "refusal", "cancelled"),
    {"error": "an error response"},
    "end_turn",
)
TOOL_KIND: Final = Enumeration(
    "kind of tool",
    ("read", "edit", "delete", "move", "search", "execute", "think", "fetch", "switch_mode", "other"),
    {},
    "other",
)
TOOL_STATUS: Final = Enumeration(
    "status of a tool call",
    ("pending", "in_progress", "completed", "failed"),
    {"paused": "in_progress", "cancelled": "failed"},
    "in_progress",
)
ENTRY_STATUS: Final = Enumeration(
    "status of a plan's entry", ("pending", "in_progress", "completed"), {"cancelled": "completed"}, "pending"
)
ENTRY_PRIORITY: Final = Enumeration("priority of a plan's entry", ("high", "medium", "low"), {}, "medium")
OPTION_KIND: Final = Enumeration(
    "kind of an answer to a permission request",
    ("allow_once", "allow_always", "reject_once", "reject_always"),
    {},
    "reject_once",
)
ROLE: Final = Enumeration("role of an audience", ("assistant", "user"), {}, None)
CONTENT_TYPE: Final = Enumeration(
    "type of content", ("text", "image", "audio", "resource_link", "resource"), {}, "text"
)
STRING_FORMAT: Final = Enumeration("format of a string in a form", ("email", "uri", "date", "date-time"), {}, None)

ENUMERATIONS: Final = (
    *(STOP_REASON, TOOL_KIND, TOOL_STATUS, ENTRY_STATUS, ENTRY_PRIORITY, OPTION_KIND),
    *(ROLE, CONTENT_TYPE, STRING_FORMAT),
)

NEW_NAMES: Final = {
    row.old: row.new for row in METHODS if row.caller is Caller.CLIENT and row.old and row.new and row.old != row.new
}
"""Names in version 2 of the methods of clients that have another one there."""

OLD_NAMES: Final = {new: old for old, new in NEW_NAMES.items() if new in (AUTH_LOGIN, AUTH_LOGOUT)}
"""Names in version 1 of the methods of clients that have one other name there; the rest is chosen by params."""

UNSERVED: Final = frozenset(row.old for row in METHODS if row.caller is Caller.AGENT and row.new is None)
"""Requests of an agent of version 1 that no client of version 2 serves."""

SAME_FOR_OLD: Final = frozenset(row.new for row in UPDATES if row.old == row.new and not row.to_old)
"""Updates of an agent of version 2 that are passed on as they are."""

SAME_FOR_NEW: Final = frozenset(row.old for row in UPDATES if row.old == row.new and not row.to_new)
"""Updates of an agent of version 1 that are passed on as they are."""
