"""The interface of the translators, and what both share: the way of a message, open requests, sessions."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Generic, NamedTuple, Protocol, TypeVar

from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import IdKey, InvalidMessage, Kind, Message, RawId, id_key
from acp_gateway.protocol.text import lookup, spans
from acp_gateway.protocol.text.pairs import Entry, Pair
from acp_gateway.versions import parts, plain_updates
from acp_gateway.versions.parts import Untranslatable
from acp_gateway.versions.plain_updates import Update
from acp_gateway.versions.state import REQUESTS, SESSIONS, bounded


class Step(NamedTuple):
    """A message of a journal that has become several for the client, or nothing."""

    start: int
    """Index of the first one."""
    end: int
    position: int
    """Number of messages before it in the journal."""


@dataclass(slots=True)
class Output:
    """The messages that one message becomes, in order."""

    to_client: list[bytes] = field(default_factory=list)
    to_agent: list[bytes] = field(default_factory=list)
    """For the agent, or what stands before it: the gateway's core."""
    source: Message | None = None
    """The message, if it was read as a whole."""
    steps: list[Step] = field(default_factory=list)
    """The messages of a journal, translated together, that have not become one each."""

    def extend(self, other: "Output") -> None:
        """Add other messages at the end."""
        self.to_client += other.to_client
        self.to_agent += other.to_agent


class Asked(NamedTuple):
    """An open request of the client, as the agent has it."""

    id: RawId
    method: str
    """The client's method."""
    session: str = ""
    detail: Any = None
    """Details that the translation of its response needs."""


class Remembered(Protocol):
    """Memory of a translator about one session."""

    @property
    def size(self) -> int:
        """Bytes that it counts as."""

    def shrink(self) -> None:
        """Forget half of what was shown, what was not changed for longest first."""


SessionT = TypeVar("SessionT", bound=Remembered)


class Translator(ABC, Generic[SessionT]):
    """Translates between one client and its agent, which speak different versions.

    It is fed each message in its order and returns what takes its place. It never raises. A message that both
    versions share is returned as the same object.
    """

    REQUESTS: ClassVar[Mapping[str, Callable[[Any, Message, dict[str, bytes], "Output"], None]]]
    """Functions for the requests of a client, by method; what is not in these tables passes."""
    NOTIFICATIONS: ClassVar[Mapping[str, Callable[[Any, Message, "Output"], None]]]
    """The same for its notifications."""
    AGENT_REQUESTS: ClassVar[Mapping[str, Callable[[Any, Message, "Output"], None]]]
    """The same for requests of an agent."""
    UPDATES: ClassVar[Mapping[str, Callable[..., Any]]]
    """The same for updates of sessions, by kind."""
    PLAIN: ClassVar[Mapping[type[Update], Callable[[Any, Any, Any, bytes, int | None], bytes | None]]]
    """Functions for plain updates, each a fourth of the work; they return None for what the slower way translates."""

    def __init__(self) -> None:
        self.is_same = False
        """True if the agent speaks the client's version: the originals of its messages are passed on."""
        self._asked: dict[IdKey, Asked] = {}
        self._sessions: dict[str, SessionT] = {}
        self._last: tuple[str, SessionT] | None = None
        """The last of them, with its id."""

    @property
    def size(self) -> int:
        """Bytes that it remembers of all sessions."""
        return sum(len(session_id) + session.size for session_id, session in self._sessions.items())

    def shrink(self) -> None:
        """Forget half of what was shown in each session: memory is short. A later change of it is shown as new."""
        for session in self._sessions.values():
            session.shrink()

    def from_client(self, text: bytes) -> Output:
        """Translate a message of the client. What is not a message is passed on: the core refuses it."""
        out = Output()
        message = parsed(text)
        if message is None:
            out.to_agent.append(text)
            return out
        try:
            if message.kind is Kind.REQUEST:
                handle = self.REQUESTS.get(message.method)
                if handle is None:
                    self._pass(message, out)
                else:
                    handle(self, message, params_of(message), out)
            elif message.kind is Kind.RESPONSE:
                self._answer(message, out)
            elif message.method in self.NOTIFICATIONS:
                self.NOTIFICATIONS[message.method](self, message, out)
            else:
                out.to_agent.append(message.text)
        except Untranslatable as error:
            # Only requests and responses are refused.
            out = Output()
            side = out.to_client if message.kind is Kind.REQUEST else out.to_agent
            side.append(jsonrpc.error(message.id, error.code, str(error)))
        return out

    def from_agent(self, entry: Entry, position: int | None = None) -> Output:
        """Translate a message of the agent for the client. What is not a message is dropped.

        Args:
            entry: the message.
            position: number of messages before it in the journal of its session; None if it is not in a journal.
        """
        if isinstance(entry, Pair):
            if not entry.is_same:
                return self._from_pair(entry, position)
            if self.is_same:
                return Output([entry.text])
            entry = entry.text
        plain = self.plain_update(entry, position)
        if plain is not None:
            return Output([plain])
        return self.from_agent_in_full(entry, position)

    def from_agent_in_full(self, text: bytes, position: int | None = None) -> Output:
        """Translate a message that `plain_update` has left."""
        out = Output()
        message = out.source = parsed(text)
        if message is None:
            return out
        try:
            if message.kind is Kind.RESPONSE:
                asked = self._asked.pop(id_key(message.id), None)
                if asked is None or (message.error and not self._takes_errors(asked)):
                    out.to_client.append(text)
                else:
                    self._response(asked, message, out)
            elif message.kind is Kind.REQUEST and (name := methods.current_name(message.method)) in self.AGENT_REQUESTS:
                self.AGENT_REQUESTS[name](self, message, out)
            elif message.kind is Kind.NOTIFICATION and message.method == methods.SESSION_UPDATE:
                self._update(message, position, out)
            else:
                out.to_client.append(message.text)
        except Untranslatable as error:
            # What was sent before stays.
            if message.kind is not Kind.NOTIFICATION:
                side = out.to_agent if message.kind is Kind.REQUEST else out.to_client
                side.append(jsonrpc.error(message.id, error.code, str(error)))
        return out

    def from_agent_together(self, entries: Sequence[Entry], position: int) -> Output:
        """Translate messages of a journal that follow each other, from a position on."""
        whole = Output()
        made = whole.to_client
        for place, entry in enumerate(entries, position):
            start = len(made)
            if isinstance(entry, Pair):
                whole.extend(self.from_agent(entry, place))
            elif (plain := self.plain_update(entry, place)) is not None:
                made.append(plain)
            else:
                whole.extend(self.from_agent_in_full(entry, place))
            if len(made) != start + 1:
                whole.steps.append(Step(start, len(made), place))
        return whole

    def plain_update(self, text: bytes, position: int | None = None) -> bytes | None:
        """Return what a plain update of the agent becomes; None for any other message, which is left as it was."""
        plain = plain_updates.read(text)
        return None if plain is None else self.plain(*plain, text, position)

    def plain(self, session_id: str, update: Update, text: bytes, position: int | None = None) -> bytes | None:
        """Return the same of a plain update that was read."""
        handle = self.PLAIN.get(type(update))
        return None if handle is None else handle(self, self._session(session_id), update, text, position)

    def _from_pair(self, pair: Pair, position: int | None) -> Output:
        """Translate a message that differs between the versions."""
        return self.from_agent(pair.text, position)

    @abstractmethod
    def begin_replay(self, session_id: str) -> None:
        """Forget a session's history: it is sent to the client again from its beginning."""

    def knows(self, session_id: str, result: bytes) -> None:
        """Tell what the client knows of a session that it opens again, as the result of opening it."""

    def turn_began(self, session_id: str, request: RawId | None = None, position: int | None = None) -> Output:
        """Tell that a turn has begun in a session, which agents of version 2 say themselves.

        Args:
            session_id: the session.
            request: id of the client's own prompt that it began with; None if it is another client's, or none.
            position: number of messages in the session's journal before those of the prompt.
        """
        return Output()

    def turn_runs(self, session_id: str) -> Output:
        """Tell that a turn runs in a session that the client enters, perhaps within a message."""
        return Output()

    @abstractmethod
    def turn_ended(self, session_id: str, error: bytes | None = None, *, is_lost: bool = False) -> Output:
        """Tell that the running turn of a session has ended or was cut off.

        Args:
            session_id: the session.
            error: the JSON-RPC error, if any.
            is_lost: True if the agent has ended, with all that it did in the background.
        """

    def accepted(self, request: RawId, response: bytes) -> Output:
        """Tell that an agent of the client's version has accepted a prompt of this id by this response."""
        return Output()

    def answered(self, response: bytes, original: bytes) -> Output:
        """Translate a response of version 1 for which an agent of version 2 has given this one, under the same id."""
        return self.from_agent(response)

    def turn_boundary(self, session_id: str) -> None:
        """Tell that a turn ends here in a history that is replayed: the next text begins another message."""

    def prime(self, session_id: str, history: Sequence[Entry], position: int) -> None:
        """Read the last messages of a session that the client gets without its history, from a position on."""
        for offset, entry in enumerate(history):
            self.from_agent(entry, position + offset)

    def forget(self, session_id: str) -> Output:
        """Forget a session that the client has left; its prompts that run are answered as cancelled."""
        self._sessions.pop(session_id, None)
        self._last = None
        return Output()

    @abstractmethod
    def _update(self, message: Message, position: int | None, out: Output) -> None: ...

    def _answer(self, response: Message, out: Output) -> None:
        """Translate a response of the client."""
        out.to_agent.append(response.text)

    @abstractmethod
    def _response(self, asked: Asked, response: Message, out: Output) -> None: ...

    @abstractmethod
    def _new_session(self, session_id: str) -> SessionT: ...

    @abstractmethod
    def _takes_errors(self, asked: Asked) -> bool:
        """Return True for a request whose error response needs a translation."""

    def _session(self, session_id: str) -> SessionT:
        """Return what is known of a session."""
        if self._last is not None and self._last[0] == session_id:
            return self._last[1]
        found = self._sessions.pop(session_id, None) or self._new_session(session_id)
        bounded(self._sessions, session_id, found, SESSIONS)
        self._last = session_id, found
        return found

    def _ask(self, message: Message, out: Output, method: str, params: dict[str, bytes], detail: Any = None) -> None:
        """Send a request on under another method or with other params, and remember it."""
        self._remember(message, detail)
        out.to_agent.append(parts.request(message.id, method, params))

    def _pass(self, message: Message, out: Output, detail: Any = None) -> None:
        """Send a request on as it is, and remember it."""
        self._remember(message, detail)
        out.to_agent.append(message.text)

    def _remember(self, message: Message, detail: Any = None) -> None:
        key = id_key(message.id)
        if len(self._asked) >= REQUESTS and key not in self._asked:
            raise Untranslatable(f"more than {REQUESTS} requests of this client are open", jsonrpc.INVALID_REQUEST)
        self._asked[key] = Asked(message.id, message.method, message.session or "", detail)


def parsed(text: bytes) -> Message | None:
    """Return a message; None for a text that is not one."""
    try:
        return jsonrpc.parse(text)
    except InvalidMessage:
        return None


def params_of(message: Message) -> dict[str, bytes]:
    """Return the members of a message's params, a new dict each time. Raises `Untranslatable` if there are too many."""
    found = {name: bytes(value) for name, value in lookup.params_of(message).items()}
    return found or _none_of(lookup.raw_params(message))


def result_of(response: Message) -> dict[str, bytes]:
    """Return the members of a response's result; none if it is not an object. Raises `Untranslatable`."""
    raw = lookup.raw_at(response.text, "result") or b""
    return parts.members(raw) or _none_of(raw)


def update_of(params: dict[str, bytes]) -> dict[str, bytes]:
    """Return the members of an update. Raises `Untranslatable` if there are too many."""
    raw = params.get("update", b"")
    return parts.members(raw) or _none_of(raw)


def _none_of(raw: bytes) -> dict[str, bytes]:
    """Return no members, of a value that has none. Raises `Untranslatable` for an object that has too many."""
    if raw[:1] == b"{" and raw.count(b":") > spans.MEMBERS:
        raise Untranslatable(f"an object has more than {spans.MEMBERS} members", jsonrpc.INVALID_REQUEST)
    return {}


ERROR: Final = b'{"code":-32603,"message":"the turn has ended with an error"}'


def error_of(response: Message) -> bytes:
    """Return the error object of an error response."""
    found = lookup.raw_at(response.text, "error")
    return ERROR if found is None else found
