"""Oracle for random messages around one agent: recipients, responses, and forbidden leaks.

The witness knows what is said and heard on the wire, and nothing else. Words are planted in what is said: the id of a
session and each piece of its content is a word of that session, and each message of a client has a word of its author.
So a word in the wrong ear is a leak, whatever way it took.
"""

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from acp_gateway.core.sessions.session import Client, Role, SessionReach
from acp_gateway.protocol import jsonrpc, methods
from acp_gateway.protocol.jsonrpc import Kind
from acp_gateway.protocol.link_messages import Mark, Sent
from tests.fuzz import reference
from tests.fuzz.reference import Envelope, Object

Key: TypeAlias = tuple[str, str]
"""Return a key that is equal for equal ids."""

FRUIT: Final = {"me": "kiwi", "you": "plum"}
"""Prefix of the ids of an identity's sessions."""

_WORDS: Final = re.compile(rb"(?:kiwi|plum)-\d+\b|juice\d+\b|~\w+#\d+~")

GUESTS_MAY: Final = frozenset(
    {
        *("session/prompt", "_session/steering", "session/inject", "session/cancel"),
        *("session/set_mode", "session/set_model", "session/set_config_option"),
    }
)
"""Messages of a guest that may reach the agent, beside responses and the cancellation of its own requests."""


@dataclass(frozen=True)
class Part:
    """An identity with its role and scope."""

    name: str
    identity: str
    observes: bool = False
    only: str | None = None
    guest: bool = False
    counts: bool = False
    """True if its link can be resumed."""

    def may_see(self, owner: str, session: str) -> bool:
        """Return True if a session is in the scope."""
        return session == self.only if self.guest else owner == self.identity and self.only in (None, session)

    def may_hear(self, other: "Part") -> bool:
        """Return True if this one may receive another one's messages in some session."""
        return self.circle == other.circle

    @property
    def circle(self) -> str:
        """Identities whose sessions this one may attach to."""
        if not self.guest or self.only is None:
            return self.identity
        return next(identity for identity, fruit in FRUIT.items() if self.only.startswith(fruit))


@dataclass(eq=False)
class Party:
    """One connection of a participant, or a link."""

    part: Part
    client: Client
    open: dict[Key, bytes] = field(default_factory=dict)
    """Unanswered requests of the client, by id in its spelling."""
    refusals: int = 0
    """Number of errors under the id null that are due."""
    asked: dict[bytes, bytes] = field(default_factory=dict)
    """Unanswered requests of the agent to the client, by id."""
    last_minted: int = 0
    returning: set[Key] = field(default_factory=set)
    """Requests of the client that rejoin sessions from another link."""
    marks: dict[str, tuple[str, int]] = field(default_factory=dict)
    """Marked positions by session."""
    said: list[bytes] = field(default_factory=list)
    """Ids of all requests of the client."""
    wants_news: bool = False
    gone: bool = False
    away: bool = False


@dataclass(frozen=True)
class Word:
    """Owner of a word."""

    owner: str
    session: str


def make_client(part: Part, name: str) -> Client:
    """Describe a client of the core."""
    role = Role.OBSERVER if part.observes else Role.CONTROLLER
    return Client(
        name, SessionReach(part.identity, part.only, part.guest), role, link=f"link {name}" if part.counts else None
    )


class Witness:
    """All messages sent and received."""

    def __init__(self, *, truthful: bool) -> None:
        self.truthful = truthful
        """True if the agent names the right session in each message. If not, a leak may be the agent's own."""
        self.words: dict[str, Word] = {}
        """Words of sessions."""
        self.renewed: dict[str, str] = {}
        """Clients' ids of sessions that were made again, by the id at the agent."""
        self.authors: dict[str, Part] = {}
        """Words of clients' messages."""
        self.told: dict[str, set[str]] = {}
        """Words of the members of each circle."""
        self.asks: Counter[bytes] = Counter()
        """Unanswered requests of the agent, by id."""
        self.forwarded = 0
        """Highest id of the requests to the agent."""
        self.is_refused = False
        """True if the agent has answered its last request with an error."""
        self._numbers = iter(range(1, 10**9))

    def plant(self, owner: str, session: str) -> str:
        """Return a new word for a message in a session."""
        word = f"juice{next(self._numbers)}"
        self.words[word] = self.told_as(owner, session)
        return word

    def told_as(self, owner: str, session: str) -> Word:
        """Return the owner of a session of the agent, with the clients' id of it."""
        return Word(owner, self.renewed.get(session, session))

    def sign(self, part: Part) -> str:
        """Return a new word for a client's message."""
        word = f"~{part.name}#{next(self._numbers)}~"
        self.authors[word] = part
        return word

    # Clients

    def says(self, party: Party, text: bytes) -> None:
        """Note a message that a client is about to send, and the answers that are due."""
        self.told.setdefault(party.part.circle, set()).update(_words(text))
        envelope = reference.envelope(text)
        if isinstance(envelope, int):
            party.refusals += 1
            return
        if b'"initialize"' in text and b"acp-gateway" in text:
            party.wants_news = True
        repeated = reference.repeated_member(text)
        if envelope.kind is not Kind.REQUEST:
            party.refusals += repeated is not None
            if envelope.kind is Kind.RESPONSE and repeated is None:
                self._answers(party, envelope)
            return
        key = reference.id_key(envelope.raw_id)
        # An answer under an id in use would settle the earlier request, and one under a huge id would repeat it all.
        if (
            key in party.open
            or len(envelope.raw_id) > jsonrpc.ID_SIZE
            or (repeated is not None and repeated.casefold() == "id")
        ):
            party.refusals += 1
            return
        party.open[key] = envelope.raw_id
        party.said.append(envelope.raw_id)
        if b"acp-gateway" in text and envelope.method in (methods.LOAD, methods.RESUME):
            party.returning.add(key)

    def _answers(self, party: Party, envelope: Envelope) -> None:
        for raw in list(party.asked):
            if re.fullmatch(rb"%b(\.0+)?" % raw, envelope.raw_id):
                del party.asked[raw]

    def hears(self, party: Party, text: Sent) -> None:
        """Check a message that a client has received."""
        assert not party.gone, "a departed client receives a message"
        if isinstance(text, Mark):
            self._mark(party, text)
            return
        envelope = reference.envelope(text)
        assert isinstance(envelope, Envelope), f"{party.part.name} gets what is not a message: {text!r}"
        match envelope.kind:
            case Kind.RESPONSE:
                self._is_answered(party, envelope, text)
            case Kind.REQUEST:
                assert not party.part.observes, "an observer is asked something"
                minted = int(envelope.raw_id)
                assert minted > party.last_minted, "an id is used again"
                party.last_minted = minted
                party.asked[envelope.raw_id] = text
            case Kind.NOTIFICATION if envelope.method == methods.CANCEL_REQUEST:
                raw = _raw(text, "params", "requestId")
                assert party.asked.pop(raw, None) is not None, "something is taken back that was not asked, or twice"
            case Kind.NOTIFICATION if envelope.method.startswith(methods.RESERVED_PREFIX):
                assert envelope.method == methods.NEWS
                assert party.wants_news
        self._belongs_to_party(party, envelope, text)

    def _is_answered(self, party: Party, envelope: Envelope, text: bytes) -> None:
        if envelope.raw_id == b"null" and envelope.error and party.refusals:
            party.refusals -= 1
            return
        key = reference.id_key(envelope.raw_id)
        assert party.open.pop(key, None) == envelope.raw_id, f"{party.part.name} gets an answer to nothing: {text!r}"
        if key in party.returning:
            party.returning.discard(key)
            for raw in _elements(text, "prompts"):
                assert party.open.setdefault(reference.id_key(raw), raw) == raw
            for raw in _elements(text, "questions"):
                party.asked[raw] = b""
                party.last_minted = max(party.last_minted, int(raw))

    def _mark(self, party: Party, mark: Mark) -> None:
        assert party.part.counts, "a client that does not count gets a mark"
        positions = dict(reference.read(mark.text).get("params")).get("positions")
        assert isinstance(positions, Object)
        for session, place in positions:
            self._may_hear(party, session)
            party.marks[session] = place.get("epoch"), int(place.get("position").text)

    def _belongs_to_party(self, party: Party, envelope: Envelope, text: bytes) -> None:
        if self.truthful:
            for word in _words(text):
                self._may_hear(party, word, text)

    def _may_hear(self, party: Party, word: str, text: bytes = b"") -> None:
        part = party.part
        author, planted = self.authors.get(word), self.words.get(word)
        if author is not None:
            assert part.may_hear(author), f"{part.name} hears what {author.name} said: {text!r}"
        elif planted is not None and (word in self.renewed or not part.may_see(planted.owner, planted.session)):
            # The gateway keeps the agent's id of a session to itself.
            said = word in self.told.get(part.circle, ())
            assert said, f"{part.name} hears {word}, which is of {planted.session}: {text!r}"

    def nothing_is_due(self, party: Party) -> None:
        """Check that requests without need of the agent are answered."""
        assert not party.refusals, f"{party.part.name} is not told what is wrong with what it said"

    def everything_is_answered(self, party: Party) -> None:
        """Note the one response to a request."""
        assert not party.open, f"{party.part.name} waits for ever: {list(party.open.values())}"

    # The agent

    def agent_says(self, text: bytes) -> None:
        """Note a line that the agent is about to write."""
        envelope = reference.envelope(text)
        if isinstance(envelope, Envelope) and envelope.kind is Kind.REQUEST:
            self.asks[envelope.raw_id] += 1
        elif isinstance(envelope, Envelope) and envelope.raw_id == b"%d" % self.forwarded:
            self.is_refused = envelope.error

    def agent_hears(self, text: bytes) -> Envelope:
        """Check a message that the agent has received."""
        envelope = reference.envelope(text)
        assert isinstance(envelope, Envelope), f"the agent gets what is not a message: {text!r}"
        assert reference.repeated_member(text) is None or envelope.kind is Kind.RESPONSE
        assert not envelope.method.startswith(methods.RESERVED_PREFIX)
        if envelope.kind is Kind.RESPONSE:
            assert self.asks[envelope.raw_id], f"the agent gets an answer to nothing: {text!r}"
            self.asks[envelope.raw_id] -= 1
        elif envelope.kind is Kind.REQUEST:
            # What refuses one version is asked for the other one under the same id.
            again = self.is_refused and envelope.method == methods.INITIALIZE
            assert int(envelope.raw_id) == self.forwarded + (not again), "an id is used again"
            self.forwarded += not again
            self.is_refused = False
        for mark in self.marks_in(text):
            self._may_say(self.authors[mark], envelope, text)
        return envelope

    def marks_in(self, text: bytes) -> list[str]:
        """Return the words of clients' messages in a message."""
        return sorted(_words(text) & self.authors.keys())

    def _may_say(self, part: Part, envelope: Envelope, text: bytes) -> None:
        what = f"of {part.name}'s, who may not, the agent gets {text!r}"
        assert not part.observes, what
        if part.guest and envelope.kind is not Kind.RESPONSE and envelope.method != methods.CANCEL_REQUEST:
            assert envelope.method in GUESTS_MAY, what
        for session in _named(text):
            word = self.words.get(session)
            assert word is None or part.may_see(word.owner, word.session), what

    def agent_ends(self) -> None:
        """Forget the requests of an agent that has ended; the next one knows nothing of them."""
        self.asks.clear()

    def agent_is_answered(self) -> None:
        """Note the one response to a request of the agent."""
        left = [raw for raw, count in self.asks.items() if count]
        assert not left, f"the agent waits for ever: {left}"


def _words(text: bytes) -> set[str]:
    return {word.decode() for word in _WORDS.findall(text)}


def _named(text: bytes) -> Iterator[str]:
    """Return the sessions that a message may be about, in the reading of any parser."""
    value = reference.read(text)
    params = value.get("params") if isinstance(value, Object) else None
    for name, named in params if isinstance(params, Object) else ():
        if name.replace("_", "").casefold() == "sessionid":
            yield from (it for it in (named if isinstance(named, list) else [named]) if isinstance(it, str))


def _raw(text: bytes, *path: str) -> bytes:
    span = reference.find(text, *path)
    return b"" if span is None else text[slice(*span)]


def _elements(text: bytes, name: str) -> list[bytes]:
    """Return the requests that a response returns to their client."""
    raw = _raw(text, "result", "_meta", methods.META, name)
    return [raw[start:end] for start, end in reference.elements(raw)] if raw[:1] == b"[" else []
