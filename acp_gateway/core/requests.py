"""Requests for the agent as it sees them, and the ends of requests, of turns and of directory checks."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

from acp_gateway.protocol.jsonrpc import Message


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

    def set_text(self, text: bytes) -> None:
        """Replace the text by one whose id, method and session are the same; by none once the agent has it, as prompts
        can be large."""
        message = self.message
        if text is not message.text:
            self.message = Message(text, message.kind, message.id, message.method, session=message.session)


class OwnRequest(ForwardedRequest):
    """A request of the gateway itself."""

    __slots__ = ()


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


class Exceeded(NamedTuple):
    """A limit on costs that was reached."""

    option: str
    limit: str
    """Its value, as a person reads it."""
    spent: str

    def __str__(self) -> str:
        return f"{self.option} ({self.limit} a day) is reached: {self.spent} today"


class TurnOutcome(NamedTuple):
    """The end of a turn."""

    stop_reason: str | None = None
    """The agent's stop reason."""
    error: ErrorObject | None = None
    """The agent's error, without its data."""
    cut: str | None = None
    """Reason why the turn was ended in the agent's place."""


class EndedTurn(NamedTuple):
    """A turn that has ended in this gateway process."""

    outcome: TurnOutcome
    seconds: float
    time: int | None
    """Time of its end, in milliseconds since 1970; None if the driver does not tell."""
    ended_at: float
    """The same in seconds of the driver's clock."""


class LostErrors(NamedTuple):
    """Errors for requests to an agent that has ended."""

    for_all: ErrorObject
    with_output: ErrorObject
    """For clients that may see the output of the process."""


QueueState: TypeAlias = Literal["queued", "timed", "held", "lost"]
"""State of a prompt that waits: for the end of a turn, for its time, or for a person; or it may have reached the agent,
which is not known, and is never sent again."""


@dataclass(frozen=True, slots=True, eq=False)
class QueuedPrompt:
    """A prompt that waits, as clients are shown it; another object after each change."""

    key: str
    """Name that no other prompt has, in any run of the gateway."""
    at: int | None
    """Time of its arrival, in milliseconds since 1970; None if the driver does not tell it."""
    text: str
    """Beginning of its text; files that it links to are in it as `@NAME`."""
    whole: bool
    """True if that is all of its text."""
    attached: int
    """Number of its blocks that `text` does not show."""
    auto: bool = False
    """True if it is sent by itself also after the end of the agent or of the gateway."""
    state: QueueState = "queued"
    due: int | None = None
    """Time at which it is sent, in milliseconds since 1970, of one that is `timed`."""
    why: str = ""
    """Reason why it waits for a person, if that is not the end of the agent or of the gateway."""


@dataclass(frozen=True, slots=True, eq=False)
class KeptPrompt:
    """A prompt that waits without a request of a client, or as the archive stores it."""

    shown: QueuedPrompt
    identity: str
    """Identity that has sent it."""
    sender: str
    """Its principal, in the driver's words."""
    text: bytes
    """The request."""
    is_new: bool = False
    """True if its text may be of version 2."""


class Location(NamedTuple):
    """Location of a session in the gateway's file system."""

    directory: str
    workspace: str | None
    """Name of the workspace that contains it, where known."""


class Worktree(NamedTuple):
    """A working tree of git that was made for a new session."""

    directory: str
    """The session's directory in it."""
    branch: str


@dataclass(frozen=True, slots=True)
class DirectoryCheckResult:
    """Result of checking the directories of a session, which needs the gateway's file system."""

    problem: Problem | None = None
    """Reason why the session may not be opened in these directories."""
    workspace: str | None = None
    """Name of the workspace that contains the directories."""
    fallback: Location | None = None
    """Location for a session that names no permitted directory; None if there is none."""
    worktree: Worktree | None = None
    """The working tree that was made for the session; None if none was."""
