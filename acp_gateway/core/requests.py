"""Requests for the agent, of clients and of the gateway itself, and the directory checks that they wait for."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

from acp_gateway.core.sessions.own_meta import Rejoin
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import Message
from acp_gateway.protocol.methods import INITIALIZE
from acp_gateway.protocol.text import lookup

if TYPE_CHECKING:
    from acp_gateway.core.sessions.session import Client, Session

SHORT: Final = 4096
"""Maximum size of a parameter kept until the response after its client has gone, in bytes: a directory, a name."""


class ForwardedRequest:
    """A request to the agent, until its response: of a client, or of the gateway itself."""

    __slots__ = ("agent_id", "message", "then")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.agent_id: int | None = None
        """Id at the agent, while the agent works on it."""
        self.then: Callable[[Any, Message], None] | None = None
        """Handler of the agent's response, which takes the request as well."""

    @property
    def abandoned(self) -> bool:
        """True if its client has gone."""
        return False

    def forget_text(self) -> None:
        """Drop the text once the agent has it: prompts can be large."""
        message = self.message
        self.message = Message(b"", message.kind, message.id, message.method, session=message.session)


class OwnRequest(ForwardedRequest):
    """A request of the gateway itself."""

    __slots__ = ()


class Request(ForwardedRequest):
    """A request of a client, from its arrival until its response."""

    __slots__ = ("_rejoin", "claim", "client", "directory_check", "handed_over", "id", "key", "returned_at", "session")

    def __init__(self, client: "Client", message: Message) -> None:
        super().__init__(message)
        self.client = client
        self.id = message.id
        """The id in the client's spelling."""
        self.key = jsonrpc.id_key(message.id)
        """Key of the id among those of its client."""
        self.session: Session | None = None
        """The session of the request, once known."""
        self.directory_check: DirectoryCheck | None = None
        """Check of the directories that the request names, pending or done."""
        # False until it is read.
        self._rejoin: Rejoin | Literal[False] | None = False
        self.handed_over = False
        """True for a prompt whose client is a gateway that was started again and does not have its text."""
        self.claim: str | None = None
        """Word by which a prompt is found again after its link was lost; None for a client without such a link."""
        self.returned_at: float | None = None
        """Time, by the driver's clock, since when it waits for another client to re-open its session."""

    @property
    def abandoned(self) -> bool:
        """True if its client has gone."""
        return self.client.gone

    @property
    def workspace(self) -> str | None:
        """Workspace of the request's directory, as the directory check found it."""
        result = None if self.directory_check is None else self.directory_check.result
        return None if result is None else result.workspace

    @property
    def rejoin(self) -> Rejoin | None:
        """State of the client from another link, read once however often the request has to wait."""
        if self._rejoin is False:
            self._rejoin = Rejoin.read(self.message)
        return self._rejoin

    def replace(self, text: bytes) -> None:
        """Replace the message, under the same id."""
        self.client.waiting_size += len(text) - len(self.message.text)
        self.message = jsonrpc.parse(text)

    def forget_text(self) -> None:
        """Drop the text once the agent has it: prompts can be large."""
        self.client.waiting_size -= len(self.message.text)
        super().forget_text()

    def forget_most(self) -> None:
        """Drop large parameters once the client has gone; short ones may be needed with the response."""
        message = self.message
        if len(message.text) > SHORT * 4:
            members = lookup.members_at(message.text, "params")
            params = {name: text for name, text in members.items() if len(text) <= SHORT}
            text = b'{"params":%b}' % jsonrpc.compose(params)
            self.message = Message(text, message.kind, message.id, message.method, session=message.session)


def too_many_abandoned(request: Request, open_requests: Collection[ForwardedRequest], most: int) -> str | None:
    """Return why too many requests of closed connections are open for a further request; None if it may pass.

    With an agent that does not answer, each new connection would add some. They count for each identity.
    """
    if len(open_requests) < most or request.message.method == INITIALIZE:
        return None
    identity = request.client.scope.identity
    abandoned = sum(
        isinstance(other, Request) and other.abandoned and other.client.scope.identity == identity
        for other in open_requests
    )
    if abandoned < most:
        return None
    return f"comes while the agent has not answered max_open_requests ({most}) of closed connections"


@dataclass(frozen=True, slots=True)
class Problem:
    """Reason why a session can't be opened: a sentence for a person, data for a program."""

    message: str
    data: dict[str, Any]


class ErrorObject(NamedTuple):
    """Error of a response."""

    code: int
    message: str
    data: dict[str, Any] | None = None


class TurnOutcome(NamedTuple):
    """The end of a turn."""

    stop_reason: str | None = None
    """The agent's stop reason."""
    error: ErrorObject | None = None
    """The agent's error, without its data."""
    cut: str | None = None
    """Reason why the turn was ended in the agent's place."""


class LostErrors(NamedTuple):
    """Errors for requests to an agent that has ended."""

    for_all: ErrorObject
    with_output: ErrorObject
    """For clients that may see the output of the process."""


class Location(NamedTuple):
    """Location of a session in the gateway's file system."""

    directory: str
    workspace: str | None
    """Name of the workspace that contains it, where known."""


@dataclass(frozen=True, slots=True)
class DirectoryCheckResult:
    """Result of checking the directories of a session, which needs the gateway's file system."""

    problem: Problem | None = None
    """Reason why the session may not be opened in these directories."""
    workspace: str | None = None
    """Name of the workspace that contains the directories."""
    fallback: Location | None = None
    """Location for a session that names no permitted directory; None if there is none."""


class DirectoryCheck:
    """Directories that a request names, and the result of checking them."""

    def __init__(self, request: Request, directories: tuple[str, ...]) -> None:
        self.request = request
        self.directories = directories
        """`cwd` first, then the additional ones."""
        self.result: DirectoryCheckResult | None = None
        """None until the check is done."""
