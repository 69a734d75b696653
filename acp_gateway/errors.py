"""The program's errors, with exit code, HTTP status and machine-readable reason.

    GatewayError                      exit 1
    ├── UsageError                    exit 2    (click's own number for a wrong command line)
    ├── ConfigError                   exit 3    a configuration file; names the file, the line, the key
    ├── AccessError                   exit 4    who you are, or what you may use
    │   ├── Unauthorized              HTTP 401  no token, or a wrong one
    │   ├── Forbidden                 HTTP 403  a right token that may not do this
    │   ├── UnknownAgent              HTTP 404  no agent of that name
    │   ├── UnknownSession            HTTP 404  no session of that id, or not for you
    │   ├── UnknownPort               HTTP 404  no such port of an agent's, or not for you
    │   ├── TooFarBehind              HTTP 409  a link that more was kept for than there is room
    │   └── LinkGone                  HTTP 410  an unknown link, or another identity's
    │   │   └── LinkExpired           HTTP 410  a link that was away for too long
    │   ├── TooManyAttempts           HTTP 429  refused too often within a short time
    │   └── Busy                      HTTP 503  more connections than the configuration allows
    ├── TrustError                    exit 5    TLS: the certificate or the pin does not match; ssh: the host's key
    ├── Unreachable                   exit 6    no answer from there, or the connection was lost
    ├── ProtocolError                 exit 7    the other side does not speak what it should
    │   ├── TooOld                    exit 7    an acp-gateway of an earlier version
    │   └── ForeignRefusal            exit 7    a server that is not a gateway refuses the credentials
    ├── AgentError                    exit 8    an agent that cannot start or has ended
    ├── CannotListen                  exit 9    an address that the gateway can't be reached at, now
    ├── AgentRefused                  exit 10   an agent that refuses a prompt
    ├── LimitReached                  exit 11   a turn that has ended at a limit of the agent
    ├── TurnStopped                   exit 12   a turn that was stopped, or its session closed
    └── Undecided                     exit 13   a turn that waits for an answer which has not come in time

Streams raise Trio's own exceptions (`BrokenResourceError`, `ClosedResourceError`, `EndOfChannel`), not these.
`str(error)` is one line for a person, with the next step in it, and never holds a secret. Only the error for a gateway
with several addresses has a line for each.
"""

from typing import ClassVar, Final

BUSY: Final = frozenset({408, 425, 429, 500, 502, 503, 504})
"""HTTP statuses of a proxy that may succeed later."""

NO_ADDRESS: Final = "addresses works:\n"
"""The end of the first line of an error that has a line for each address."""


class GatewayError(Exception):
    """An error that is reported as one clear line instead of a traceback."""

    exit_code: ClassVar[int] = 1
    """Exit code of the command."""

    http_status: ClassVar[int] = 500
    """HTTP status of the response; also the code of the JSON-RPC error that refuses a `_acp-gateway/hello`."""

    reason: ClassVar[str] = "internal"
    """A word for programs: `error.data.reason` of the JSON-RPC error that an editor gets."""


class UsageError(GatewayError):
    """The command line asks for something impossible."""

    exit_code = 2
    reason = "usage"


class ConfigError(GatewayError):
    """A configuration file is wrong: `FILE:LINE: KEY: what is wrong`, as far as these are known."""

    exit_code = 3
    reason = "configuration"

    def __init__(
        self, message: str, *, file: str | None = None, line: int | None = None, key: str | None = None
    ) -> None:
        self.message = message
        self.file = file
        self.line = line
        self.key = key
        place = file or ""
        if place and line is not None:
            place += f":{line}"
        super().__init__(": ".join(part for part in (place, key, message) if part))


class AccessError(GatewayError):
    """The gateway understands the request and refuses it."""

    exit_code = 4
    http_status = 403
    reason = "forbidden"


class Unauthorized(AccessError):
    """No token, or not a token that this gateway knows. The text does not say which."""

    http_status = 401
    reason = "unauthorized"


class Forbidden(AccessError):
    """The token is right and does not allow this."""


class UnknownAgent(AccessError):
    """The gateway has no agent of that name."""

    http_status = 404
    reason = "unknown_agent"


class UnknownSession(AccessError):
    """No session of that id, or the token may not see it. The text does not say which."""

    http_status = 404
    reason = "unknown_session"


class UnknownPort(AccessError):
    """No process of an agent listens on that port, or the token may not use it. The text does not say which."""

    http_status = 404
    reason = "unknown_port"


class TooFarBehind(AccessError):
    """A link can't be resumed: its client has missed more than could be kept."""

    http_status = 409
    reason = "too_far_behind"


class LinkGone(AccessError):
    """A link cannot be resumed: no link has that id, or this token may not resume it. The text does not say which."""

    http_status = 410
    reason = "unknown"


class LinkExpired(LinkGone):
    """A link can't be resumed: it was away for longer than the gateway waits."""

    reason = "expired"


class TooManyAttempts(AccessError):
    """No valid token, and not for the first time: a client should wait before it tries again."""

    http_status = 429
    reason = "too_many_attempts"


class Busy(AccessError):
    """There is no room for a further connection at the moment; the text names the limit."""

    http_status = 503
    reason = "busy"


class TrustError(GatewayError):
    """The far side's certificate, or its ssh host key, is not the expected one."""

    exit_code = 5
    reason = "tls"


class Unreachable(GatewayError):
    """No server answers at that address, or the connection was lost."""

    exit_code = 6
    reason = "unreachable"


class ProtocolError(GatewayError):
    """The far side answers, but is not an acp-gateway that this one can talk to."""

    exit_code = 7
    reason = "protocol"


class TooOld(ProtocolError):
    """The far side is an acp-gateway of an earlier version, which can't do what is needed."""

    reason = "too_old"


class ForeignRefusal(ProtocolError):
    """A server that is not a gateway, or a proxy, refuses the credentials; it may accept them later."""

    reason = "refused"


class AgentError(GatewayError):
    """An agent cannot be started or reached, or has ended; its clients are sent `str()`.

    Attributes:
        retry_for: seconds for which further attempts to reach it make sense; 0 if none does.
    """

    exit_code = 8
    reason = "agent"

    def __init__(self, message: str, *, retry_for: float = 0.0) -> None:
        self.retry_for = retry_for
        super().__init__(message)


class CannotListen(GatewayError):
    """The system does not let the gateway listen at an address; a network that comes up later may change that."""

    exit_code = 9
    reason = "listen"


class AgentRefused(GatewayError):
    """The agent refuses a prompt."""

    exit_code = 10
    reason = "agent_refused"


class LimitReached(GatewayError):
    """A turn has ended at a limit of the agent: tokens, or requests to the model."""

    exit_code = 11
    reason = "limit_reached"


class TurnStopped(GatewayError):
    """A client has stopped a turn, taken its prompt out of the queue, or closed its session."""

    exit_code = 12
    reason = "turn_stopped"


class Undecided(GatewayError):
    """A turn waits for an answer to a question of the agent, which has not come in time."""

    exit_code = 13
    reason = "undecided"
