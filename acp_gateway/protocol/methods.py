"""What the gateway thinks of each ACP method: one table. A method that is not in it is passed on as it is.

Unknown methods are passed on, with or without a leading underscore, because agents and editors use methods that are
newer than any gateway. The only names it keeps to itself are its own.
"""

import enum
from dataclasses import dataclass

RESERVED_PREFIX = "_acp-gateway/"
"""The gateway's own methods: never passed on, from either side."""

HELLO = RESERVED_PREFIX + "hello"
"""The first line of a connection that is no WebSocket: who is there, and for which agent."""

INITIALIZE = "initialize"
CANCEL_REQUEST = "$/cancel_request"
SESSION_CANCEL = "session/cancel"
REQUEST_PERMISSION = "session/request_permission"
CREATE_ELICITATION = "elicitation/create"


class Capability(enum.Enum):
    """What a client may offer to do for an agent on its own machine."""

    FS = enum.auto()
    TERMINAL = enum.auto()


@dataclass(frozen=True, slots=True)
class ClientMethod:
    """A method that clients call."""

    opens_session: bool = False
    """`params.cwd` names a directory on the agent's machine; it must be there."""
    opens_turn: bool = False
    """While it is not answered, the agent works for `params.sessionId`."""


@dataclass(frozen=True, slots=True)
class AgentMethod:
    """A method that agents call."""

    needs: Capability | None = None
    """Only for clients that serve this. Two machines have two file systems: a file written by the editor never appears
    where the agent works, so neither is offered unless the configuration asks for it."""


CLIENT_METHODS = {
    "session/new": ClientMethod(opens_session=True),
    "session/load": ClientMethod(opens_session=True),
    "session/resume": ClientMethod(opens_session=True),
    "session/fork": ClientMethod(opens_session=True),
    "session/prompt": ClientMethod(opens_turn=True),
}

# By family: what a later version of the protocol adds to one runs on the client's machine just the same.
AGENT_FAMILIES = {
    "fs": AgentMethod(needs=Capability.FS),
    "terminal": AgentMethod(needs=Capability.TERMINAL),
}

_ANY_CLIENT_METHOD = ClientMethod()
_ANY_AGENT_METHOD = AgentMethod()


def client_method(name: str) -> ClientMethod:
    """What to think of a method that a client calls."""
    return CLIENT_METHODS.get(name, _ANY_CLIENT_METHOD)


def agent_method(name: str) -> AgentMethod:
    """What to think of a method that an agent calls."""
    family, _, rest = name.partition("/")
    return AGENT_FAMILIES.get(family, _ANY_AGENT_METHOD) if rest else _ANY_AGENT_METHOD
