"""Random acts of the peers of one agent; a driver carries them out.

A `Storm` turns steps, which are numbers drawn by chance, into acts: a client sends this, a client leaves, the agent
writes that. The driver carries an act out and reports what was heard. The agent works by itself as far as it is one:
it has sessions on its disk, answers what it is asked, and says of each session only what is of that session. A lying
one may be told to say anything.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias, TypeVar
from zlib import crc32

from hypothesis import strategies as st

from acp_gateway.protocol import methods
from acp_gateway.protocol.jsonrpc import Kind
from acp_gateway.protocol.link_messages import Sent, read_control
from acp_gateway.protocol.text import lookup
from tests.fuzz import texts
from tests.fuzz.corpus import METHODS, Mutation, Raw, message, mutations
from tests.fuzz.witness import FRUIT, Part, Party, Witness

T = TypeVar("T")

PUBLIC: Final = (
    Part("ann", "me"),
    Part("ben", "me", counts=True),
    Part("bob", "you"),
    Part("bea", "you", counts=True),
    Part("eve", "me", observes=True),
    Part("att", "me", only="kiwi-1", counts=True),
    Part("guy", "guest-1", only="kiwi-1", guest=True),
    Part("gil", "guest-2", observes=True, only="kiwi-1", guest=True),
)
"""Clients that share an agent for all identities."""

PRIVATE: Final = tuple(part for part in PUBLIC if part.name not in ("bob", "bea", "ben"))
"""Clients of an agent with one identity."""

HONEST: Final = Part("hon", "me")
"""A client that makes no mistakes."""

CAPABILITIES: Final[tuple[dict[str, Any], ...]] = (
    {"loadSession": True, "sessionCapabilities": {"list": {}, "resume": {}, "close": {}}},
    {"loadSession": True, "sessionCapabilities": {"list": {}}},
    {"sessionCapabilities": {"resume": {}, "close": {}}},
    {},
)

USUAL: Final = (*("session/prompt",) * 5, *methods.CLIENT_METHODS)
ASKED: Final = (
    *(methods.REQUEST_PERMISSION,) * 3,
    methods.CREATE_ELICITATION,
    "terminal/create",
    "terminal/output",
    "fs/x",
)
"""The agent's most frequent requests."""

_KINDS: Final = (
    *(*("request",) * 5, "notify", *("answer",) * 3, "cancel") * 2,
    *("settle", "settle", "settle", "update", "update", "ask", "ask", "tell") * 2,
    *("text", "text", "babble", "join", "leave", "lose", "return", "dismiss", "end", "stop", "tick", "survey"),
)
"""Kinds of steps, the likely ones several times."""

OPTIONS: Final = ("yes", "no")
"""Options of an agent's request."""

SERVERS: Final[tuple[list[Any], ...]] = (
    [],
    [],
    [{"name": "tool", "command": "tool", "args": [], "env": []}],
    [
        {"name": "web", "type": "http", "url": "http://127.1/"},
        {"name": "far", "type": "sse", "url": "http://a.example"},
    ],
    [{"name": "acp", "type": "acp", "id": "1"}, {"name": "six", "type": "sse", "url": "http://[::ffff:127.0.0.1]:1/"}],
    [{"name": "odd", "type": "http", "url": "http://0x7f.1"}, {"name": "no", "type": "http"}, {"url": "http://9" * 9}],
)
"""MCP servers: programs, loopback addresses in several spellings, and remote ones."""

KINDS: Final = (
    *sorted(methods.STATE_UPDATES),
    methods.USER_CHUNK,
    methods.AGENT_CHUNK,
    "tool_call",
    "subagent_update",
    "some_day",
)
GUESSES: Final = ("kiwi-1", "plum-1", "kiwi-9", "nowhere", "")
"""Ids of sessions to guess."""

MEMBERS: Final = 9
"""Maximum number of connections at a time."""


@dataclass(frozen=True)
class Plan:
    """All that chance decides of one storm.

    Each byte of `steps` is one step. It and the salt decide all the rest, among what there is at that moment; so little
    is drawn for so much.
    """

    steps: bytes
    salt: int
    mutations: list[list[Mutation]]
    """Possible mistakes in one message."""
    texts: list[bytes]
    """Possible texts in place of a message."""

    def __iter__(self) -> Iterator["Step"]:
        return (Step(self, byte) for byte in self.steps if byte)


@dataclass(frozen=True)
class Step:
    """The next choice."""

    plan: Plan
    number: int

    def pick(self, about: str, choices: Sequence[T]) -> T:
        """Pick one of these, with a number drawn for another choice."""
        return choices[crc32(b"%d %d %b" % (self.plan.salt, self.number, about.encode())) % len(choices)]

    def chance(self, about: str, percent: int) -> bool:
        """Return True with the given likelihood."""
        return self.pick(about, range(100)) < percent

    @property
    def kind(self) -> str:
        return self.pick("kind", _KINDS)

    @property
    def mutations(self) -> Sequence[Mutation]:
        return self.pick("mutations", self.plan.mutations) if self.plan.mutations and self.chance("wrong", 35) else ()

    @property
    def text(self) -> bytes:
        return self.pick("text", self.plan.texts or [b""])


plans = st.builds(
    Plan,
    st.binary(min_size=30, max_size=90),
    st.integers(0, 2**32),
    st.lists(st.lists(mutations, min_size=1, max_size=3), max_size=6),
    st.lists(texts.nearly_messages, max_size=4),
)


@dataclass(frozen=True)
class Says:
    """A client sends a message, or another text."""

    party: Party
    text: bytes


@dataclass(frozen=True)
class Writes:
    """The agent writes a line."""

    text: bytes


@dataclass(frozen=True)
class Joins:
    """A client connects, and has sent nothing yet."""

    part: Part


@dataclass(frozen=True)
class Does:
    """An event of a client: `leave`, `lose` and `return` are its own, `dismiss` the gateway's."""

    what: str
    party: Party


@dataclass(frozen=True)
class Happens:
    """An event of the agent or of time: `lose`, `stop`, `tick`, `directory_check`."""

    what: str


Act: TypeAlias = Says | Writes | Joins | Does | Happens


@dataclass(eq=False)
class Record:
    """A session on the agent's disk."""

    id: str
    owner: str
    said: list[dict[str, Any]] = field(default_factory=list)


@dataclass(frozen=True)
class Owed:
    """A request that the agent has not answered."""

    method: str
    session: str | None
    owner: str
    mark: str | None
    """Word of the client's message behind it."""


class Storm:
    """The clients, the agent's knowledge, and the choice of the next acts."""

    def __init__(
        self, cast: Sequence[Part], *, truthful: bool, eager: bool, capabilities: dict[str, Any], links: bool = False
    ) -> None:
        self.cast = cast
        self.links = links
        """True if there are real links, which keep messages for their ends."""
        self.witness = Witness(truthful=truthful)
        self.parties: list[Party] = []
        self.eager = eager
        """True if the agent answers all requests but prompts at once."""
        self.capabilities = capabilities
        self.log: list[str] = []
        """Log of the acts, for a person."""
        self.disk: dict[str, Record] = {}
        self.known: dict[str, Record] = {}
        """Sessions that the agent process has."""
        self.owed: dict[int, Owed] = {}
        self._count = dict.fromkeys(FRUIT.values(), 0)
        self._children: dict[str, str] = {}
        self._opened: dict[str, str] = {}
        """Sessions that clients' messages opened, by the word of the message."""
        self.all: list[Party] = []
        """Present and former clients."""
        self._fresh = iter(range(1000, 10**9))
        self.remember(Record("kiwi-9", "me"))

    # What the driver reports

    def joined(self, party: Party) -> None:
        self.parties.append(party)
        self.all.append(party)
        self._note(f"{party.part.name} is there as {party.client.name}")

    def heard(self, party: Party, texts: Sequence[Sent]) -> None:
        for text in texts:
            self._note(f"{party.client.name} <- {text!r}")
            self.witness.hears(party, text)

    def agent_heard(self, text: bytes) -> None:
        self._note(f"agent <- {text!r}")
        envelope = self.witness.agent_hears(text)
        if envelope.kind is Kind.REQUEST:
            self._owe(int(envelope.raw_id), envelope.method, text)

    def agent_lost(self) -> None:
        """End the process; the disk stays."""
        self._note("the agent ends")
        self.witness.agent_ends()
        self.owed.clear()
        self.known.clear()
        self._children.clear()

    def gone(self, party: Party) -> None:
        self._note(f"{party.client.name} has left")
        party.gone = True
        self.parties.remove(party)

    def _note(self, line: str) -> None:
        self.log.append(line[:2000])

    def _owe(self, number: int, method: str, text: bytes) -> None:
        session = _string(text, "sessionId")
        mark = next(iter(self.witness.marks_in(text)), None)
        owner = self._owner_of(session) if mark is None else self.witness.authors[mark].identity
        self.owed[number] = Owed(method, session, owner, mark)
        if mark is not None and session is not None and method in (methods.LOAD, methods.RESUME):
            self._opened[mark] = self.witness.renewed.get(session, session)

    def _owner_of(self, session: str | None) -> str:
        return self.disk[session].owner if session in self.disk else "me"

    # What happens next

    def acts(self, step: Step) -> Iterator[Act]:
        """Return the acts of a step; none if their client or session is missing."""
        there = [party for party in self.parties if not party.away]
        party = step.pick("who", there) if there else None
        match step.kind:
            case "request" | "notify" | "answer" | "cancel" if party is not None:
                yield self._says(party, step)
            case "text" if party is not None:
                yield self._says_text(party, step.text)
            case "settle" if self.owed:
                number = step.pick("what", [*self.owed])
                if self.owed[number].method != "session/prompt" or step.chance("turn", 40):
                    yield from self.settle(number, step)
            case "update" | "ask" | "tell":
                yield from self._speaks(step)
            case "babble" if not self.witness.truthful:
                yield self._writes(step.text)
            case "join" if len(self.parties) < MEMBERS:
                yield Joins(step.pick("part", self.cast))
            case "leave" | "dismiss" if party is not None and len(self.parties) > 3:
                yield Does(step.kind, party)
            case "lose" if party is not None and party.part.counts:
                yield Does("lose", party)
            case "return":
                yield from (Does("return", away) for away in [it for it in self.parties if it.away][:1])
            case "end" if step.chance("end", 20):
                yield Happens("lose")
            case "stop" if step.chance("stop", 20):
                yield Happens("stop")
            case "tick" | "survey":
                yield Happens(step.kind)

    def first_words(self, party: Party) -> Iterator[Act]:
        """Return the first acts, until one client is alone with a session, and another joins it."""
        yield self._request(party, "initialize", {"protocolVersion": 1, **_NEWS})
        yield from self.disconnect()
        if party.part.name in ("ann", "bob"):
            yield self._request(party, "session/new", {"cwd": "/srv", "mcpServers": []})
        elif party.part.name != "bea":
            yield self._request(party, "session/load", {"sessionId": "kiwi-1", "cwd": "/srv", "mcpServers": []})
        yield from self.disconnect()

    def round_trip(self, party: Party) -> Iterator[Act]:
        """Return the last acts, of a client that makes no mistakes and gets an answer, whatever came before."""
        for method, params in (("initialize", {"protocolVersion": 1}), ("session/list", {})):
            yield self._request(party, method, params)
            # An agent that has ended is not restarted at once.
            yield Happens("tick")
            yield from self.disconnect()
        self.witness.everything_is_answered(party)

    def return_of_the_owner(self, party: Party, awaited: Collection[str]) -> Iterator[Act]:
        """Return the acts of a client that may open the sessions that others wait for; or delete them, without room."""
        for method in ("session/load", "session/delete"):
            for session in awaited:
                yield self._request(party, method, {"sessionId": session, "cwd": "/srv", "mcpServers": []})
                yield from self.disconnect()

    def disconnect(self) -> Iterator[Act]:
        """Answer all requests at the agent, and those that follow."""
        for _ in range(1000):
            if not self.owed:
                return
            yield from self.settle(next(iter(self.owed)), None)
        raise AssertionError("there is no end of what the agent is asked")

    def reaction(self) -> Iterator[Act]:
        """Return an act of the agent itself."""
        while self.eager:
            number = next((number for number, owed in self.owed.items() if owed.method != "session/prompt"), None)
            if number is None:
                return
            yield from self.settle(number, None)

    # Clients

    def _says_text(self, party: Party, text: bytes) -> Says:
        self._note(f"{party.client.name} -> {text!r}")
        if not (self.links and party.part.counts and read_control(text) is not None):
            self.witness.says(party, text)
        return Says(party, text)

    def _request(self, party: Party, method: str, params: dict[str, Any]) -> Says:
        raw_id = Raw(b"%d" % next(self._fresh))
        signed = {**params, "by": self.witness.sign(party.part)}
        return self._says_text(party, message(id=raw_id, method=method, params=signed))

    def _says(self, party: Party, step: Step) -> Says:
        mark = self.witness.sign(party.part)
        members: dict[str, Any]
        if step.kind == "answer":
            members = self._answer(party, step, mark)
        elif step.kind == "cancel":
            wanted = step.pick("what", [*party.open.values(), b"1", b'"kiwi-1"'])
            members = {"method": methods.CANCEL_REQUEST, "params": {"requestId": Raw(wanted), "by": mark}}
        else:
            usual = USUAL if step.kind == "request" else (methods.SESSION_CANCEL,)
            method = step.pick("method", usual if step.chance("usual", 70) else METHODS)
            members = {"method": method, "params": self._params(party, method, step, mark)}
            if step.kind == "request":
                fresh = b"%d" % next(self._fresh)
                members["id"] = Raw(step.pick("id", texts.IDS) if step.chance("strange id", 30) else fresh)
        return self._says_text(party, message(step.mutations, **members, by=mark))

    def _session(self, party: Party, step: Step) -> str:
        """Return the id of a session that a client names: attached, visible, or a guess."""
        own = [record.id for record in self.disk.values() if party.part.may_see(record.owner, record.id)]
        joined = [session.id for session in party.client.sessions]
        children = [child for child, parent in self._children.items() if parent in own]
        for percent, names in ((60, joined), (60, own), (10, children)):
            if names and step.chance(f"{percent} {len(names)}", percent):
                return step.pick("session", names)
        return step.pick("guess", GUESSES)

    def _params(self, party: Party, method: str, step: Step, mark: str) -> dict[str, Any]:
        session = self._session(party, step)
        params: dict[str, Any] = {"by": mark}
        if method not in ("initialize", "session/new", "authenticate", "session/list", "logout"):
            params["sessionId"] = session
        if method in ("session/new", "session/load", "session/resume", "session/fork"):
            params |= {"cwd": step.pick("cwd", ("/srv", "/srv/x", "/nowhere")), "mcpServers": step.pick("mcp", SERVERS)}
        if method in ("session/load", "session/resume") and step.chance("returns", 50):
            params["_meta"] = {
                "mcpServers": step.pick("nested", SERVERS),
                "acp-gateway": self._said_of(party, session, step),
            }
        more: dict[str, dict[str, Any]] = {
            "initialize": {"protocolVersion": step.pick("version", range(4)), **_NEWS},
            "session/prompt": {"prompt": [{"type": "text", "text": mark}] * step.pick("blocks", range(3))},
            "session/set_mode": {"modeId": mark},
            "session/set_model": {"modelId": mark},
            "session/set_config_option": {"configId": "c", "value": mark},
            "session/list": step.pick("list", ({"cursor": None}, {"cwd": "/srv"}, {})),
            "authenticate": {"methodId": "m"},
        }
        return params | more.get(method, {})

    def _said_of(self, party: Party, session: str, step: Step) -> dict[str, Any]:
        """Compose a client's state from another link, its own or another client's."""
        own = [it for it in self.all if it.gone and it.part.counts and it.part.identity == party.part.identity]
        former = step.pick("link", own if own and step.chance("own", 70) else self.all)
        epoch, position = former.marks.get(session, ("run-1", 1))
        position += step.pick("position", (-1, 0, 0, 1))
        said = {"epoch": epoch, "position": position, "connection": former.client.link or "x"}
        prompts = [Raw(raw) for raw in former.said[-4:]]
        return said | {"prompts": prompts, "questions": [Raw(raw) for raw in [*former.asked][:4]]}

    def _answer(self, party: Party, step: Step, mark: str) -> dict[str, Any]:
        raw_id = step.pick("what", [*party.asked] or [b"7", b"1"])
        if step.chance("error", 15):
            return {"id": Raw(raw_id), "error": {"code": -32602, "message": mark}}
        option = step.pick("option", (*OPTIONS, "never"))
        results: tuple[dict[str, Any], ...] = (
            {"outcome": {"outcome": "selected", "optionId": option}},
            {"outcome": {"outcome": "cancelled"}},
            {"action": "accept"},
            {"terminalId": "t1"},
        )
        return {"id": Raw(raw_id), "result": step.pick("result", results) | {"mark": mark}}

    # The agent

    def _writes(self, text: bytes) -> Writes:
        self._note(f"agent -> {text!r}")
        self.witness.agent_says(text)
        return Writes(text)

    def _writes_made(self, step: Step | None, **members: Any) -> Writes:
        return self._writes(message(() if step is None or self.witness.truthful else step.mutations, **members))

    def settle(self, number: int, step: Step | None) -> Iterator[Writes]:
        """Answer a request at the agent, after its replay."""
        owed = self.owed.pop(number)
        if step is not None and step.mutations and not self.witness.truthful:
            # The answer may be unreadable: it is given again in the end.
            self.owed[number] = owed
        record = self.disk.get(owed.session or "")
        answer: dict[str, Any] = {"result": {}}
        match owed.method:
            case _ if step is not None and step.chance("error", 12):
                answer = {"error": {"code": step.pick("code", (-32603, -32000)), "message": "no"}}
            case "initialize":
                answer = {"result": {"protocolVersion": 1, "agentCapabilities": self.capabilities, **_LOGINS}}
            case "session/new" | "session/fork":
                made = self._make(owed.owner, owed.mark)
                modes = {"currentModeId": "m", "availableModes": []}
                answer = {"result": {"sessionId": made.id, "modes": modes, "configOptions": []}}
            case "session/load" | "session/resume" | "session/prompt" if record is None:
                answer = {"error": {"code": -32002, "message": "there is no such session"}}
            case "session/load" if record is not None:
                self.known[record.id] = record
                for said in record.said:
                    yield self._writes_made(None, method=methods.SESSION_UPDATE, params=said)
            case "session/resume" if record is not None:
                self.known[record.id] = record
            case "session/list":
                listed = [{"sessionId": it.id, "cwd": "/srv", "title": self._word(it)} for it in self.disk.values()]
                answer = {"result": {"sessions": listed}}
            case "session/delete" if record is not None:
                self.disk.pop(record.id)
                self.known.pop(record.id, None)
                # An id without a present owner may be requested by the gateway's own user.
                for name in (record.id, self.witness.renewed.get(record.id, "")):
                    self.witness.words.pop(name, None)
            case "session/prompt":
                answer = {"result": {"stopReason": "end_turn"}}
            case _ if record is not None:
                answer = {"result": {"of": self._word(record)}}
        yield self._writes_made(step, id=number, **answer)

    def _make(self, owner: str, mark: str | None) -> Record:
        """Create a session; in place of another one if a client's message that opened that one opens it again."""
        fruit = FRUIT[owner]
        self._count[fruit] += 1
        record = Record(f"{fruit}-{self._count[fruit]}", owner)
        if mark is not None and self._opened.setdefault(mark, record.id) != record.id:
            self.witness.renewed[record.id] = self._opened[mark]
        self.remember(record)
        self.known[record.id] = record
        return record

    def remember(self, record: Record) -> None:
        """Put a session on the disk."""
        self.disk[record.id] = record
        self.witness.words[record.id] = self.witness.told_as(record.owner, record.id)

    def _word(self, record: Record) -> str:
        return self.witness.plant(record.owner, record.id)

    def _running(self) -> list[Record]:
        found = (self.known.get(owed.session or "") for owed in self.owed.values() if owed.method == "session/prompt")
        return [record for record in found if record is not None]

    def _speaks(self, step: Step) -> Iterator[Writes]:
        """Compose a message of the agent itself."""
        if not self.known:
            return
        record = step.pick("record", [*self.known.values()])
        running = self._running()
        about: dict[str, Any] = {"sessionId": record.id}
        if running and step.kind != "update" and step.chance("nowhere", 35):
            # In a turn some agents omit the session.
            record, about = step.pick("running", running), {}
        elif len(running) == 1 and not self._awaited() and step.chance("child", 20):
            # A sub-agent's session, which no client requested.
            record = running[0]
            about = {"sessionId": f"child-{next(self._fresh)}"}
            self._children[about["sessionId"]] = record.id
        about["of"] = self._word(record)
        match step.kind:
            case "update":
                update = self._update(record, step)
                record.said.append({**about, "sessionId": record.id, "update": update})
                yield self._writes_made(step, method=methods.SESSION_UPDATE, params={**about, "update": update})
            case "ask":
                yield self._asks(step, about)
            case _:
                method = step.pick("method", (methods.CANCEL_REQUEST, methods.COMPLETE_ELICITATION, *METHODS))
                told = about
                if method == methods.CANCEL_REQUEST:
                    told = {"requestId": Raw(self._used_id(step))}
                elif method == methods.COMPLETE_ELICITATION:
                    told = {"elicitationId": self._elicitation(step)}
                elif method == methods.AUTH_STATUS_UPDATE:
                    told = {}  # It is of the agent as a whole.
                yield self._writes_made(step, method=method, params=told)

    def _update(self, record: Record, step: Step) -> dict[str, Any]:
        kind = step.pick("kind", KINDS)
        update: dict[str, Any] = {"sessionUpdate": kind, "content": {"type": "text", "text": self._word(record)}}
        if kind == "tool_call":
            update["content"] = [{"type": "terminal", "terminalId": self._terminal(step)}]
        if kind == "subagent_update":
            update["sessionId"] = f"child-{next(self._fresh)}"
            self._children[update["sessionId"]] = record.id
        return update | {"title": self._word(record), "currentModeId": "m", "configOptions": []}

    def _awaited(self) -> bool:
        return any(owed.method in ("session/new", "session/fork") for owed in self.owed.values())

    def _used_id(self, step: Step) -> bytes:
        return step.pick("asked", [raw for raw, count in self.witness.asks.items() if count] or [b"1"])

    def _terminal(self, step: Step) -> str:
        return step.pick("terminal", ("acp-gateway-terminal-1", "acp-gateway-terminal-2", "t1"))

    def _elicitation(self, step: Step) -> str:
        return step.pick("elicitation", ("e1", "e2", "e3"))

    def _asks(self, step: Step, about: dict[str, Any]) -> Writes:
        method = step.pick("method", ASKED if step.chance("usual", 70) else METHODS)
        params = dict(about)
        if method == methods.REQUEST_PERMISSION:
            options = [{"optionId": option, "name": option, "kind": "allow_once"} for option in OPTIONS]
            params |= {"options": options, "toolCall": {"toolCallId": "call", "title": about["of"], "kind": "edit"}}
        elif method == methods.CREATE_ELICITATION:
            params |= {"message": about["of"], "elicitationId": self._elicitation(step)}
            if self.owed and step.chance("because", 40):
                # For a request, and without a session.
                params = {"requestId": step.pick("request", [*self.owed]), "message": "?"}
        elif method.startswith("terminal/"):
            params |= {"command": "ls"} | ({} if method == "terminal/create" else {"terminalId": self._terminal(step)})
        return self._writes_made(step, id=Raw(step.pick("id", texts.IDS)), method=method, params=params)


_NEWS: Final = {"clientCapabilities": {"fs": {"readTextFile": True}, "terminal": True, "_meta": {"acp-gateway": {}}}}
_LOGINS: Final = {"authMethods": [{"id": "m", "name": "m"}, {"id": "t", "name": "t", "type": "terminal"}]}


def _string(text: bytes, name: str) -> str | None:
    return lookup.text_at(text, "params", name)
