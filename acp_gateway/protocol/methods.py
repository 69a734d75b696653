"""Table of the ACP methods that the gateway treats specially. Other methods are passed on unchanged.

Unknown methods are passed on, with or without a leading underscore, because agents and editors use methods that are
newer than any gateway. Its own names, and those of chains of proxies, are passed on from neither side.
"""

import enum
from typing import NamedTuple

RESERVED_PREFIX = "_acp-gateway/"
"""The gateway's own methods: never passed on, from either side."""

HELLO = RESERVED_PREFIX + "hello"
"""The first line of a connection that is not a WebSocket: who is there, and for which agent."""

ACK = RESERVED_PREFIX + "ack"
"""On a link that resumes: how many messages have arrived, and up to where in which session a client is then."""

GOODBYE = RESERVED_PREFIX + "goodbye"
"""On a link that resumes: its client leaves and will not come back."""

PROBE = RESERVED_PREFIX + "probe"
"""On a link that resumes: asks for a confirmation at once, to learn whether the connection is alive."""

REST = RESERVED_PREFIX + "rest"
"""On a link that resumes: the next message is the rest of one whose beginning the other end has kept."""

OPEN = RESERVED_PREFIX + "open"
"""On a control connection: a code that signs a browser in."""

NOTICES = RESERVED_PREFIX + "notices"
"""On a control connection: tell open questions and the ends of turns from now on, in notifications of this name."""

ACCESS = RESERVED_PREFIX + "access"
"""On a control connection: what its credential allows."""

STATUS = RESERVED_PREFIX + "status"
"""On a control connection of the gateway's own user: its listeners, agents and clients."""

RELOAD = RESERVED_PREFIX + "reload"
"""On a control connection of the gateway's own user: read the configuration again."""

STOP_AGENT = RESERVED_PREFIX + "stop_agent"
"""On a control connection of the gateway's own user: end the processes of an agent."""

TOKENS = RESERVED_PREFIX + "tokens"
"""On a control connection of a node of the same cluster: which tokens were revoked or rotated."""

CONFIRM = RESERVED_PREFIX + "confirm"
"""On a control connection of the gateway's own user: which nodes know that a token was revoked or rotated."""

NEWS = RESERVED_PREFIX + "news"
"""Notification of events around a session, for clients that set `clientCapabilities._meta["acp-gateway"]`."""

CHAIN_PREFIXES = ("proxy/", "_proxy/")
"""Methods between the proxies of a chain and its conductor, which the gateway is neither of. The second is of earlier
drafts. `proxy/successor` wraps another method, on which no rule would be applied."""

UNPASSED_PREFIXES = (RESERVED_PREFIX, *CHAIN_PREFIXES)
"""Methods that are refused from either side."""

META = "acp-gateway"
"""The gateway's own member of any `_meta`."""

INITIALIZE = "initialize"
PROXY_INITIALIZE = "proxy/initialize"
PROXY_SUCCESSOR = "proxy/successor"
AUTHENTICATE = "authenticate"
CANCEL_REQUEST = "$/cancel_request"
NEW = "session/new"
LOAD = "session/load"
RESUME = "session/resume"
FORK = "session/fork"
LIST = "session/list"
CLOSE = "session/close"
DELETE = "session/delete"
PROMPT = "session/prompt"
SET_MODE = "session/set_mode"
SET_MODEL = "session/set_model"
SET_CONFIG_OPTION = "session/set_config_option"
SESSION_CANCEL = "session/cancel"
SESSION_UPDATE = "session/update"
REQUEST_PERMISSION = "session/request_permission"
CREATE_ELICITATION = "elicitation/create"
COMPLETE_ELICITATION = "elicitation/complete"
CREATE_TERMINAL = "terminal/create"
RELEASE_TERMINAL = "terminal/release"
LOGOUT = "logout"
NEW_LOGOUT = "auth/logout"
"""The same in version 2, which a client of version 1 may send too."""

AUTH_STATUS = "auth/status"
AUTH_STATUS_UPDATE = "auth/status_update"
LIST_PROVIDERS = "providers/list"
SET_PROVIDER = "providers/set"
DISABLE_PROVIDER = "providers/disable"
ARCHIVE = "session/archive"
UNARCHIVE = "session/unarchive"
SESSION_STATUS = "session/status"
SET_TITLE = "session/set_title"
STEER = "_session/steering"
"""Text for the turn that runs, of agents that serve this."""

INJECT = "session/inject"
"""The same in a draft of the protocol; the agent shows the text itself."""

NES_START = "nes/start"
NES_SUGGEST = "nes/suggest"
NES_CLOSE = "nes/close"
MCP_CONNECT = "mcp/connect"
MCP_DISCONNECT = "mcp/disconnect"
MCP_MESSAGE = "mcp/message"

EARLY_NAMES = {
    "request_permission": REQUEST_PERMISSION,
    "read_text_file": "fs/read_text_file",
    "write_text_file": "fs/write_text_file",
    "create_terminal": CREATE_TERMINAL,
    "terminal_output": "terminal/output",
    "wait_for_terminal_exit": "terminal/wait_for_exit",
    "kill_terminal": "terminal/kill",
    "release_terminal": "terminal/release",
}
"""Names without a prefix, of the protocol's first versions, by which some clients still serve an agent. Every rule for
the method on the right holds for them; the message keeps its own name."""

MODE_UPDATE = "current_mode_update"
CONFIG_UPDATE = "config_option_update"
INFO_UPDATE = "session_info_update"
USER_CHUNK = "user_message_chunk"
AGENT_CHUNK = "agent_message_chunk"
THOUGHT_CHUNK = "agent_thought_chunk"
CHUNKS = frozenset({USER_CHUNK, AGENT_CHUNK, THOUGHT_CHUNK})
"""The updates that are parts of messages."""
SUBAGENT_UPDATE = "subagent_update"
TOOL_CALL = "tool_call"
TOOL_CALL_UPDATE = "tool_call_update"

STATE_UPDATES = frozenset(
    {"available_commands_update", MODE_UPDATE, CONFIG_UPDATE, INFO_UPDATE, "usage_update", "plan"}
)
"""Kinds of `session/update` that replace each other; a late joiner needs the last of each whatever else is left out."""


_CHECKED = (
    *(
        "sessionId",
        "cwd",
        "additionalDirectories",
        "mcpServers",
        "prompt",
        "messageId",
        "modeId",
        "modelId",
        "configId",
    ),
    *("value", "requestId", "cursor", "protocolVersion", "clientCapabilities", "methodId"),
    *("update", "toolCall", "options", "terminalId", "elicitationId", "path"),
    *("workspaceUri", "workspaceFolders", "serverId", "connectionId"),
)
"""The members of `params` that the gateway reads in methods that it knows, from either side."""

PLAIN_NAMES = frozenset((*_CHECKED, "_meta", "clientInfo", "content", "line", "limit", "command", "args", "env"))
"""Names that need no check: those above, and others that are frequent."""


def fold(name: str) -> str:
    """A member's name as lenient parsers compare it: up to a NUL, and without regard to case, `_` and `-`."""
    return name.partition("\0")[0].replace("_", "").replace("-", "").casefold()


CHECKED_NAMES = {fold(name): name for name in _CHECKED}
"""The name that each of them must have, by how it is compared."""


class Capability(enum.Enum):
    """Service that a client may offer to an agent on the client's machine."""

    FS = enum.auto()
    TERMINAL = enum.auto()


class Audience(enum.Enum):
    """Which of a session's clients a request of the agent is for."""

    CONTROLLERS = enum.auto()
    """All that may decide: the first valid result wins."""
    HOST = enum.auto()
    """The connection whose machine the session works with: several would do the thing several times."""
    ONE = enum.auto()
    """One client: the method is unknown here, and several might do it several times."""
    SENDER = enum.auto()
    """The client whose request has caused it."""


MEMBERS = 64
"""Members of the `params` of a method that is known here, at most: those of the protocol have less than ten."""


class ClientMethod(NamedTuple):
    """A method that clients call."""

    observer: bool = False
    """Observers may call it: then it never reaches the agent."""
    guest: bool = False
    """Guests of one session may call it; unknown methods might do anything."""
    beyond: bool = False
    """Creates or deletes sessions: refused on a connection bound to one session."""
    whole: bool = False
    """About the agent as a whole, its account or its providers: refused on a connection bound to one session or to some
    workspaces, and of an agent that serves several identities to all but its owner."""
    kept: bool = False
    """The request's text is needed when its response comes."""
    weight: int = 1
    """As how many messages it counts for the rate limit, by what it takes the gateway: a list looks through thousands
    of sessions, an opening may have directories looked at and send a whole history."""
    bare: bool = False
    """`params` may be absent; otherwise they must be an object."""
    notifies: bool = False
    """It may be a notification as well."""


class AgentMethod(NamedTuple):
    """A method that agents call."""

    audience: Audience = Audience.ONE
    needs: Capability | None = None
    """Only for clients that serve this. Two machines have two file systems: a file written by the editor never appears
    where the agent works, so neither is offered unless the configuration asks for it."""


CLIENT_METHODS = {
    INITIALIZE: ClientMethod(observer=True, guest=True),
    NEW: ClientMethod(observer=True, guest=True, kept=True, weight=20),
    LOAD: ClientMethod(observer=True, guest=True, weight=20),
    RESUME: ClientMethod(observer=True, guest=True, weight=20),
    FORK: ClientMethod(beyond=True, kept=True, weight=20),
    LIST: ClientMethod(observer=True, guest=True, kept=True, bare=True, weight=100),
    CLOSE: ClientMethod(observer=True, guest=True),
    DELETE: ClientMethod(beyond=True),
    PROMPT: ClientMethod(guest=True),
    STEER: ClientMethod(guest=True, kept=True),
    INJECT: ClientMethod(guest=True, kept=True),
    SET_MODE: ClientMethod(guest=True, kept=True),
    SET_MODEL: ClientMethod(guest=True, kept=True),
    SET_CONFIG_OPTION: ClientMethod(guest=True, kept=True),
    SET_TITLE: ClientMethod(),
    SESSION_STATUS: ClientMethod(observer=True, guest=True),
    ARCHIVE: ClientMethod(beyond=True),
    UNARCHIVE: ClientMethod(beyond=True),
    LOGOUT: ClientMethod(whole=True, bare=True),
    NEW_LOGOUT: ClientMethod(whole=True, bare=True),
    AUTH_STATUS: ClientMethod(whole=True, bare=True),
    LIST_PROVIDERS: ClientMethod(whole=True, bare=True),
    SET_PROVIDER: ClientMethod(whole=True),
    DISABLE_PROVIDER: ClientMethod(whole=True),
    NES_START: ClientMethod(beyond=True, weight=20),
    NES_SUGGEST: ClientMethod(weight=5),
    NES_CLOSE: ClientMethod(),
    MCP_MESSAGE: ClientMethod(notifies=True),
}

CLIENT_NOTIFICATIONS = {
    SESSION_CANCEL: 1,
    CANCEL_REQUEST: 1,
    "nes/accept": 1,
    "nes/reject": 1,
    "document/didOpen": 5,
    "document/didChange": 5,
    "document/didClose": 1,
    "document/didSave": 1,
    "document/didFocus": 1,
}
"""Notifications of clients that are never requests, each with its weight. Those of files have their text."""

SURCHARGES = {name: method.weight - 1 for name, method in CLIENT_METHODS.items()} | {
    name: weight - 1 for name, weight in CLIENT_NOTIFICATIONS.items()
}
"""Number of messages that each method counts as beside the one that it is."""

PROMPTS = {PROMPT: "prompt", STEER: "prompt", INJECT: "content"}
"""Requests with what a person says to the agent, and the member that has its blocks."""

UNREAD = frozenset({*PROMPTS, NES_SUGGEST, MCP_MESSAGE})
"""Requests with text of any size: the gateway reads little of it."""

AGENT_METHODS = {
    REQUEST_PERMISSION: AgentMethod(Audience.CONTROLLERS),
    CREATE_ELICITATION: AgentMethod(Audience.CONTROLLERS),
}

AGENT_NOTIFICATIONS = frozenset({SESSION_UPDATE, COMPLETE_ELICITATION, AUTH_STATUS_UPDATE, CANCEL_REQUEST})
"""Notifications of agents that are routed by rules of their own."""

# By family: what a later version of the protocol adds to one runs on the client's machine just the same.
AGENT_FAMILIES = {
    "fs": AgentMethod(Audience.HOST, Capability.FS),
    "terminal": AgentMethod(Audience.HOST, Capability.TERMINAL),
    "mcp": AgentMethod(Audience.HOST),
}

_KNOWN_PARAMS = frozenset(
    {*CLIENT_METHODS, AUTHENTICATE, *CLIENT_NOTIFICATIONS, *AGENT_METHODS, COMPLETE_ELICITATION, *EARLY_NAMES}
)

_ANY_CLIENT_METHOD = ClientMethod()
_ANY_AGENT_METHOD = AgentMethod()


def is_known(name: str) -> bool:
    """Return True for a client's method of the protocol."""
    return name in CLIENT_METHODS or name == AUTHENTICATE


def has_known_params(name: str) -> bool:
    """Return True for a method or notification, of either side, whose params the protocol defines."""
    return name in _KNOWN_PARAMS or name.partition("/")[0] in AGENT_FAMILIES


def why_unpassed(name: str) -> str:
    """Return why a method that begins with one of `UNPASSED_PREFIXES` is refused."""
    if name.startswith(RESERVED_PREFIX):
        return "is a reserved method"
    return "belongs to a chain of proxies, and the gateway is outside of one"


def current_name(name: str) -> str:
    """Return the name that a method has today, for one of `EARLY_NAMES`; else the name itself."""
    return EARLY_NAMES.get(name, name)


def client_method(name: str) -> ClientMethod:
    """Return how a client's method is treated."""
    return CLIENT_METHODS.get(name, _ANY_CLIENT_METHOD)


def agent_method(name: str) -> AgentMethod:
    """Return how an agent's method is treated."""
    name = current_name(name)
    if name in AGENT_METHODS:
        return AGENT_METHODS[name]
    family, _, rest = name.partition("/")
    return AGENT_FAMILIES.get(family, _ANY_AGENT_METHOD) if rest else _ANY_AGENT_METHOD
