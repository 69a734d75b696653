"""The table of all methods, updates, members and values of both versions, and the names of version 2.

What becomes of a method or an update is in the translators: `new_agent` has the functions for messages of version 2,
`old_agent` those for messages of version 1, by name; others pass. docs/reference/versions.md is written from both, with
the docstrings of the functions. A name that is None has no counterpart in that version.

A note in `to_new` says what becomes of a member of version 1 in version 2, one in `to_old` of the other way; an empty
note says that nothing is lost.
"""

import enum
from collections.abc import Mapping
from typing import Final, NamedTuple

from acp_gateway.protocol import methods


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
    draft: bool = False
    """True if only the drafts of the schemas have it."""


class Update(NamedTuple):
    """A kind of `session/update` in both versions."""

    old: str | None
    new: str | None
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

METHODS: Final = (
    Method(Caller.CLIENT, methods.INITIALIZE, methods.INITIALIZE),
    Method(Caller.CLIENT, methods.AUTHENTICATE, AUTH_LOGIN),
    Method(Caller.CLIENT, LOGOUT, AUTH_LOGOUT),
    Method(Caller.CLIENT, methods.NEW, methods.NEW),
    Method(Caller.CLIENT, methods.LOAD, methods.RESUME),
    Method(Caller.CLIENT, methods.RESUME, methods.RESUME),
    Method(Caller.CLIENT, methods.FORK, methods.FORK, draft=True),
    Method(Caller.CLIENT, methods.LIST, methods.LIST),
    Method(Caller.CLIENT, methods.CLOSE, methods.CLOSE),
    Method(Caller.CLIENT, methods.DELETE, methods.DELETE),
    Method(Caller.CLIENT, methods.PROMPT, methods.PROMPT),
    Method(Caller.CLIENT, methods.SESSION_CANCEL, methods.SESSION_CANCEL),
    Method(Caller.CLIENT, methods.SET_MODE, methods.SET_CONFIG_OPTION),
    Method(Caller.CLIENT, methods.SET_MODEL, methods.SET_CONFIG_OPTION, draft=True),
    Method(Caller.CLIENT, methods.SET_CONFIG_OPTION, methods.SET_CONFIG_OPTION),
    Method(Caller.CLIENT, None, CANCEL_TOOL_CALL),
    Method(Caller.CLIENT, None, CANCEL_TERMINAL),
    *(
        Method(Caller.CLIENT, name, name, draft=True)
        for name in (
            *("auth/status", "providers/list", "providers/set", "providers/disable"),
            *("session/archive", "session/unarchive", "session/status", "session/set_title"),
            *("nes/start", "nes/suggest", "nes/accept", "nes/reject", "nes/close"),
            *("document/didOpen", "document/didChange", "document/didClose", "document/didSave", "document/didFocus"),
            methods.PROXY_INITIALIZE,
        )
    ),
    Method(Caller.BOTH, methods.CANCEL_REQUEST, methods.CANCEL_REQUEST),
    Method(Caller.BOTH, "mcp/message", "mcp/message", draft=True),
    Method(Caller.BOTH, methods.PROXY_SUCCESSOR, methods.PROXY_SUCCESSOR, draft=True),
    Method(Caller.AGENT, "mcp/connect", "mcp/connect", draft=True),
    Method(Caller.AGENT, "mcp/disconnect", "mcp/disconnect", draft=True),
    Method(Caller.AGENT, "auth/status_update", "auth/status_update", draft=True),
    Method(Caller.AGENT, methods.SESSION_UPDATE, methods.SESSION_UPDATE),
    Method(Caller.AGENT, methods.REQUEST_PERMISSION, methods.REQUEST_PERMISSION),
    Method(Caller.AGENT, methods.CREATE_ELICITATION, methods.CREATE_ELICITATION),
    Method(Caller.AGENT, methods.COMPLETE_ELICITATION, methods.COMPLETE_ELICITATION),
    *(
        Method(Caller.AGENT, name, None)
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

UPDATES: Final = (
    Update(methods.USER_CHUNK, methods.USER_CHUNK),
    Update(methods.AGENT_CHUNK, methods.AGENT_CHUNK),
    Update(methods.THOUGHT_CHUNK, methods.THOUGHT_CHUNK),
    Update(None, USER_MESSAGE),
    Update(None, AGENT_MESSAGE),
    Update(None, AGENT_THOUGHT),
    Update(None, STATE_UPDATE),
    Update(methods.TOOL_CALL, methods.TOOL_CALL_UPDATE),
    Update(methods.TOOL_CALL_UPDATE, methods.TOOL_CALL_UPDATE),
    Update(None, CONTENT_CHUNK),
    Update(None, TERMINAL_UPDATE),
    Update(None, TERMINAL_CHUNK),
    Update(PLAN, PLAN_UPDATE),
    Update(PLAN_UPDATE, PLAN_UPDATE, draft=True),
    Update(PLAN_REMOVED, PLAN_REMOVED, draft=True),
    Update(COMMANDS_UPDATE, COMMANDS_UPDATE),
    Update(methods.MODE_UPDATE, methods.CONFIG_UPDATE),
    Update(methods.CONFIG_UPDATE, methods.CONFIG_UPDATE),
    Update(methods.INFO_UPDATE, methods.INFO_UPDATE),
    Update(USAGE_UPDATE, USAGE_UPDATE),
    Update(NOTICE, NOTICE),
    Update(COMPACTION_UPDATE, COMPACTION_UPDATE),
    Update(COMPACTION_CHUNK, COMPACTION_CHUNK),
    Update(methods.SUBAGENT_UPDATE, methods.SUBAGENT_UPDATE, draft=True),
    Update(SESSION_MESSAGE, SESSION_MESSAGE, draft=True),
    Update(SESSION_MESSAGE_CHUNK, SESSION_MESSAGE_CHUNK, draft=True),
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
    Member("result of `session/status`", None, "state", "told by the gateway", "passed on"),
    Member(AUTH_METHOD, "id", "methodId"),
    Member(AUTH_METHOD, "type", "type", "`agent` if there is none", "a method of an unknown type is left out"),
    Member(AUTH_METHOD, "env", "env", "a list", "an object"),
    Member(CONFIG_OPTION, "id", "configId"),
    Member(OPTION_GROUP, "group", "groupId"),
    Member("result of an opening", "modes", "configOptions", to_old="also told as `modes`"),
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

UNSERVED: Final = frozenset(row.old for row in METHODS if row.old is not None and row.new is None)
"""Requests of an agent of version 1 that no client of version 2 serves."""
