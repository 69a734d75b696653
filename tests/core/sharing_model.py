"""Naive model of sharing, with one check for each rule of visibility and delivery.

`SharingModel` watches what passes on the wire and knows nothing else. A `Record` is what one session is about, and each
update, prompt and question carries a tag that says which, so that an id that is used for something else cannot hide a
leak.
"""

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from acp_gateway.core.output import LogMessage, Output, StopUnused
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import AgentHandle, Client, DirectoryCheck, Request, Role, Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.waiting import Until
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.gaps import GAP, MAY_BE_MISSING
from acp_gateway.protocol.link_messages import Mark, Sent, texts_of
from acp_gateway.protocol.text import lookup
from acp_gateway.protocol.text.pairs import text_of
from tests.kit.scene import Peer, Place, Scene, Shelf, checks_of, journals_of, look, make_policy, places

IDS = (
    *(b"1", b'"1"', b"1.0", b"1e2", b"0", b'""', b"null", b"-0", b"9223372036854775808", rb'"\u0041"', b'"A"', b"100"),
    *(b'"0"', b"0.0", b"2", b"3", b"4", b'"9f1c2b6e-0000-4000-8000-000000000000"', rb'"\ud83d"', b"-1", b"5e0", b"6"),
)
"""Spellings of ids that are easily mixed up: most equal another one in one programming language or another."""

OPENINGS = ("session/new", "session/load", "session/resume", "session/fork")
OPTIONS = ("yes", "no")
STATES = ("plan", "current_mode_update")
Body = dict[str, Any]


@dataclass(eq=False)
class Record:
    """Content of one session, under any of its ids."""

    id: str
    owner: str
    truth: list[Body] = field(default_factory=list)
    """The updates that a loader has to get."""


@dataclass(eq=False)
class Back:
    """Position and history that a rejoining client has seen over another link."""

    old: "Member"
    place: Place
    view: list[Body]


@dataclass(eq=False)
class ClientRequest:
    """A request of a client."""

    member: "Member"
    number: int
    raw: bytes
    method: str
    session: str | None
    at_agent: bool = False
    heard: list[Body] = field(default_factory=list)
    """Updates that the agent replayed for it."""
    back: Back | None = None
    goes_on: bool = False
    """True if only the missed updates are due, once the agent has it."""
    listens: bool = False
    """True if it gets what the agent replays, once the agent has it."""

    @property
    def about(self) -> str | None:
        """The session that it needs."""
        return self.member.only if self.method == "session/new" else self.session


@dataclass(eq=False)
class Ask:
    """A request of the agent."""

    tag: str
    raw: bytes
    session: str
    record: Record | None
    abstained: set["Member"] = field(default_factory=set)
    errors: set[str] = field(default_factory=set)
    """The marks of error responses."""
    open: bool = True

    @property
    def is_stray(self) -> bool:
        """True if the gateway can't know the session that it is about."""
        return self.session.startswith("stray")


@dataclass(eq=False)
class Owed:
    """A request that the agent has got and not answered."""

    raw: bytes
    method: str
    session: str | None
    request: ClientRequest | None
    body: Body
    record: Record | None = None
    """The session of the request, or of its response."""
    parent: Record | None = None
    """For a fork."""
    told: list[Body] = field(default_factory=list)
    """For a fork: what the agent has told of its parent's history before the response."""


@dataclass(eq=False)
class Opening:
    """A load or resume that the agent works on."""

    request: ClientRequest | None
    """Recipient of the replay; None if there is none."""
    record: Record | None
    """History of the agent under that id: later writes of other processes to the disk don't matter. None if it has
    none, or does not give it."""
    reopens: bool = False
    """True for the gateway's own request, in a new process."""
    kept: int | None = None
    """Prompts of the stored history that the agent's replay replaces if it has more; None if it does not."""
    lacks_beginning: bool = False
    """True if nothing is known of what the agent does not replay."""
    truth: list[Body] = field(default_factory=list)


@dataclass(eq=False)
class Member:
    """A client, as the machine sees it."""

    peer: Peer
    identity: str
    role: Role
    only: str | None
    guest: bool
    away: bool = False
    gone: bool = False
    requests: dict[str, ClientRequest] = field(default_factory=dict)
    attached: dict[str, Record] = field(default_factory=dict)
    views: dict[Record, list[Body] | None] = field(default_factory=dict)
    """Updates seen of each attached session; None if the client did not ask for the beginning."""
    copies: dict[int, Ask] = field(default_factory=dict)
    last_minted: int = 0
    places: dict[str, Place] = field(default_factory=dict)
    """Positions of a counting client, as far as it knows."""
    trail: dict[str, list[Back]] = field(default_factory=dict)
    """Positions in each former session, and the updates seen of it."""
    lost_copies: dict[int, Ask] = field(default_factory=dict)
    """Unanswered requests of the agent when the client left."""
    returned: bool = False
    unsure: set[str] = field(default_factory=set)
    """Sessions that it has asked to load since it had a position in them."""

    @property
    def counts(self) -> bool:
        return self.peer.client.counts

    @property
    def controls(self) -> bool:
        return self.role is Role.CONTROLLER

    def may_see(self, record: Record) -> bool:
        """Return True if a session is in the client's reach; a guest's reach is an id."""
        return (
            record.id == self.only if self.guest else record.owner == self.identity and self.only in (None, record.id)
        )


class World:
    """State that all processes share: the registry, the agent's disk, and the tags."""

    def __init__(self, counting: bool) -> None:
        self.counting = counting
        """True if agents count their sessions, each process from the beginning."""
        self.shelf = Shelf()
        self.registry = Registry("me", self.shelf, "run")
        self.disk: dict[str, Record] = {}
        self.models: list[SharingModel] = []
        self.tags: dict[str, Record | None] = {}
        self.children: dict[str, Record] = {}
        """Sessions that no client opened, and their parents."""
        self.own: dict[tuple[str, str], Member] = {}
        """Senders of updates, by session and tag, that the journal has and their sender does not get."""
        self.marks: dict[str, tuple[Member, str | None, str]] = {}
        """Senders of messages: about which session, by which method."""
        self.numbers = itertools.count(1)

    def tag(self, record: Record | None) -> str:
        """Return a new word for a message in a session."""
        tag = f"t{next(self.numbers)}"
        self.tags[tag] = record
        return tag

    def stop(self, home: AgentHandle) -> None:
        """Stop an unused process for a client that requests one of its sessions."""
        for model in self.models:
            if model.scene.multiplexer.agent_handle is home:
                model.end()


class Wire(Scene):
    """A scene whose output is read by a model."""

    model: "SharingModel"

    def deliver(self, leaving: Client | None = None) -> None:
        output = self.multiplexer.take_output()
        self.notes += [effect.text for effect in output.effects if isinstance(effect, LogMessage)]
        self.model.read(output)
        self.look_at(checks_of(output))


class SharingModel:
    """One process, its clients, and the checks of its output."""

    def __init__(self, world: World, *, shared: bool, **capabilities: Any) -> None:
        self.world = world
        self.shared = shared
        self.reopens = bool(capabilities.get("loadSession") or "resume" in capabilities["sessionCapabilities"])
        self.scene = Wire(make_policy(shared=shared), world.registry, agentCapabilities=capabilities)
        self.scene.model = self
        self.scene.look = self.look_at
        self.dead = False
        self.members: dict[Client, Member] = {}
        self.known: dict[str, Record] = {}
        """Sessions that the agent process has."""
        self.live: dict[str, Record] = {}
        """Sessions open for the gateway, dormant or not."""
        self.asleep: set[str] = set()
        """Dormant sessions: the next process re-opens them."""
        self.openings: dict[str, Opening] = {}
        self.promised: dict[Owed, str] = {}
        """Ids that the agent has used before it named them in a response."""
        self.begun: dict[str, Record] = {}
        """Children of the agent process."""
        self.had: set[Record] = set()
        """Sessions that the agent process has had open."""
        self.heard_from: set[str] = set()
        """Identities whose requests the agent process has got, but for those of guests and for lists."""
        self.fresh: set[str] = set()
        """Sessions that were opened again, in which the agent has said nothing since."""
        self.refused: str | None = None
        """The session that the agent refuses to open in the present event, if it had no prompt."""
        self.owed: list[Owed] = []
        self.asks: list[Ask] = []
        self.seen_ids: set[bytes] = set()
        self.last_prompt: dict[Record, int] = {}
        self.places: dict[int, int] = {}
        """Requests that waited for a directory check, with their place in order since then."""
        self.settled_in: set[Record] = set()
        """Sessions whose turns were cancelled by the present event."""
        self.withdrawn: Ask | None = None
        """Requests that the agent has cancelled in the present event."""
        self.answering: tuple[Member, Ask] | None = None
        """Decisions in the present event, with the deciding client."""
        self.unwelcome: str | None = None
        """Mark of the `initialize` that the agent refuses in the present event, if it was a client's."""
        self.closed: dict[str, Record] = {}
        """Sessions that the agent process has closed."""
        self.used: set[str] = set()
        """Ids under which the agent process has had sessions, or was asked for them."""
        self.count = 0
        """Sessions that the agent process has opened."""
        self.reading = False
        self.refusals = 0
        """Number of errors under the id null due in the present event."""

    @property
    def present(self) -> list[Member]:
        return [member for member in self.members.values() if not member.gone]

    def running(self) -> list[Record]:
        return list({owed.record: None for owed in self.owed if owed.record and owed.method == "session/prompt"})

    @property
    def awaited(self) -> list[Owed]:
        """Requests whose responses will name a new session."""
        return [owed for owed in self.owed if owed.method in ("session/new", "session/fork")]

    # What happens

    def join(self, identity: str, role: Role, only: str | None, guest: bool, *, counts: bool) -> Member:
        name = f"c{next(self.world.numbers)}"
        link = f"link of {name}" if counts else None
        peer = self.scene.join(name, identity, role, only=only, guest=guest, link=link, initialize=False)
        member = Member(peer, identity, role, only, guest)
        self.members[peer.client] = member
        return member

    def introduce(self, member: Member, **params: Any) -> None:
        """Initialize a client."""
        self.request(member, "initialize", None, b"0", protocolVersion=1, **params)
        for owed in list(self.owed):
            if owed.method == "initialize":
                self.settle(owed, well=True)

    def come_back(self, old: Member, session: str, back: Back, method: str, *, known: bool) -> None:
        """Bring a departed client back over another link."""
        old.returned = True
        member = self.join(old.identity, old.role, old.only, old.guest, counts=True)
        member.last_minted = old.last_minted
        self.introduce(member, _meta={"acp-gateway": {"lastId": old.last_minted}})
        position = back.place[1]
        back = back if known else Back(old, ("run-x", position), back.view)
        open_there = [request for request in old.requests.values() if request.method == "session/prompt"]
        said = {"epoch": back.place[0], "position": position, "connection": old.peer.client.link}
        questions = [minted for minted, ask in old.lost_copies.items() if ask.session == session]
        said |= {"prompts": [f"raw {request.raw.hex()}" for request in open_there], "questions": questions}
        meta = {"acp-gateway": said, "other": 1}
        self.request(member, method, session, b'"back"', back=back, cwd="/srv", mcpServers=[], _meta=meta)

    def request(
        self, member: Member, method: str, session: str | None, raw: bytes, back: Back | None = None, **params: Any
    ) -> None:
        """Send a request of a client."""
        about = member.only if method == "session/new" else session
        if method in OPENINGS and about in self.promised.values():
            return  # From an agent that counts it might get one of two sessions of that id.
        number = next(self.world.numbers)
        mark = f"m{number}"
        self.world.marks[mark] = member, session, method
        key = id_key(raw)
        if key in member.requests:
            self.refusals += 1
        else:
            member.requests[key] = ClientRequest(member, number, raw, method, session, back=back)
            if method in ("session/load", "session/resume") and back is None:
                # From here on, updates are history.
                member.places.pop(session or "", None)
                member.unsure.add(session or "")
        named = {} if session is None else {"sessionId": session}
        params = {**named, **params, "mark": mark}
        text = re.sub(rb'"raw (\w+)"', lambda it: bytes.fromhex(it[1].decode()), encode(params))
        member.peer.say(b'{"jsonrpc":"2.0","method":"%b","id":%b,"params":%b}' % (method.encode(), raw, text))

    def tell(self, member: Member, method: str, session: str | None, **params: Any) -> None:
        """Send a notification of a client."""
        mark = f"m{next(self.world.numbers)}"
        self.world.marks[mark] = member, session, method
        about = {} if session is None else {"sessionId": session}
        member.peer.send(method=method, params={**about, **params, "mark": mark})

    def cancel_request(self, member: Member, raw: bytes) -> None:
        request = member.requests.get(id_key(raw))
        mark = f"m{next(self.world.numbers)}"
        self.world.marks[mark] = member, None if request is None else request.about, "$/cancel_request"
        params = b'{"mark":"%b","requestId":%b}' % (mark.encode(), raw)
        member.peer.say(b'{"jsonrpc":"2.0","method":"$/cancel_request","params":%b}' % params)

    def reply(self, member: Member, minted: int, outcome: Body | None) -> None:
        """Send a client's response, valid or not; None is an error."""
        ask = member.copies.pop(minted, None)
        mark = f"m{next(self.world.numbers)}"
        self.world.marks[mark] = member, None if ask is None or ask.record is None else ask.record.id, "answer"
        if ask is not None and (outcome is None or outcome.get("optionId", "yes") not in OPTIONS):
            ask.abstained.add(member)
            ask.errors |= {mark} if outcome is None else set()
        self.answering = None if ask is None else (member, ask)
        if outcome is None:
            member.peer.send(id=minted, error={"code": -32602, "message": "no dialog here", "data": mark})
        else:
            member.peer.send(id=minted, result={"outcome": outcome, "_meta": {"mark": mark}, "answers": mark})
        self.answering = None

    def leave(self, member: Member) -> None:
        member.gone = True
        self.forget(member)
        member.peer.gone()
        if not self.shared and not self.present:
            self.end()

    def dismiss(self, member: Member) -> None:
        """Have the gateway end a connection."""
        self.scene.multiplexer.close_client(member.peer.client, "token expired", {"reason": "unauthorized"})
        self.forget(member)
        self.scene.deliver()
        member.gone = True
        self.everyone_is_answered_in_the_end(member)
        if not self.shared and not self.present:
            self.end()

    def forget(self, member: Member) -> None:
        member.lost_copies = dict(member.copies)
        member.copies.clear()
        member.attached.clear()
        member.views.clear()
        for ask in self.asks:
            ask.abstained.discard(member)

    def end(self) -> None:
        """Stop the process because it is unused; others can open its sessions then."""
        self.settled_in.update(self.live.values())
        for member in self.present:
            member.gone = True
            self.forget(member)
            self.scene.multiplexer.client_gone(member.peer.client)
        self.dead = True
        self.scene.multiplexer.shut_down()
        self.scene.deliver()
        for model in self.world.models:
            if not model.dead:
                model.scene.multiplexer.sessions_freed()
                model.scene.deliver()

    def lose_agent(self) -> None:
        self.owed.clear()
        self.openings.clear()
        self.promised.clear()
        self.known.clear()
        self.closed.clear()
        self.used.clear()
        self.count = 0
        self.begun.clear()
        self.had.clear()
        self.heard_from.clear()
        self.fresh.clear()
        for ask in self.asks:
            ask.open = False
        self.what_guests_have_waiting_is_told()
        for record in list(self.live.values()):
            in_use = any(record.id in member.attached for member in self.present)
            if not (self.shared and in_use and self.reopens):
                self.finish(record)
        self.asleep = set(self.live)
        self.dead = not self.shared
        self.scene.lose_agent()
        for member in self.present:
            self.everyone_is_answered_in_the_end(member)
            self.losers_are_told(member)
        self.asks.clear()

    def what_guests_have_waiting_is_told(self) -> None:
        """Expect the texts of guests' prompts in the conversations; those of others go on waiting."""
        for session in self.scene.multiplexer.sessions:
            record = self.live.get(session.id)
            for request in session.queue if record is not None else ():
                assert record is not None
                assert request.queued is not None
                if not request.client.reach.guest:
                    continue
                text = (
                    f"[acp-gateway: the agent has ended, and a prompt that waited was not sent: {request.queued.text}]"
                )
                self.world.tags[text] = record
                chunk = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
                record.truth.append({"sessionId": record.id, "update": chunk})

    def finish(self, record: Record) -> None:
        """Close a session for all clients."""
        self.live.pop(record.id, None)
        self.settled_in.add(record)
        for owed in self.owed:
            if owed.record is record and owed.method == "session/prompt":
                owed.record = None
        for member in self.members.values():
            if member.attached.get(record.id) is record:
                self.let_go(member, record)

    def let_go(self, member: Member, record: Record) -> None:
        del member.attached[record.id]
        member.views.pop(record, None)
        for ask in self.asks:
            if ask.record is record:
                ask.abstained.discard(member)

    # The agent

    def next_id(self) -> str:
        if self.world.counting:
            self.count += 1
            return f"s{self.count}" if not self.has(f"s{self.count}") else self.next_id()
        return f"s{next(self.world.numbers)}"

    def has(self, session_id: str) -> bool:
        return session_id in self.known or session_id in self.openings or session_id in self.promised.values()

    def promise(self, owed: Owed) -> Record:
        """Return the session that a request for a new one is about to get."""
        if owed not in self.promised:
            assert owed.request is not None
            self.promised[owed] = name = self.next_id()
            owed.record = Record(name, owed.request.member.identity)
        assert owed.record is not None
        return owed.record

    def settle(self, owed: Owed, *, well: bool, spelling: bytes = b"%b") -> None:
        """Send a response of the agent."""
        mark = owed.body["params"].get("mark")
        result: Body = {"for": mark}
        opening = self.openings.get(owed.session or "")
        match owed.method:
            case "initialize":
                result = self.scene.welcome
                for record in [self.live[name] for name in self.asleep] if well else []:
                    if not any(record.id in member.attached for member in self.present):
                        self.finish(record)
                self.asleep -= self.asleep if well else set()
            case "session/new" | "session/fork":
                there = owed.method == "session/new" or owed.parent is not None or owed.session in self.world.disk
                is_asked = owed.request is not None
                has_spoken = owed in self.promised
                if has_spoken or (well and there and is_asked):
                    well = True
                    record = self.promise(owed)
                    del self.promised[owed]
                    self.used.add(record.id)
                    if owed.method == "session/fork":
                        parent = owed.parent if self.has_history_of(owed) else None
                        copied = [gap(record.id), *owed.told] if parent is None else parent.truth
                        record.truth[:0] = [under(record, body, owed.session) for body in copied]
                        if not has_spoken:
                            self.fresh.add(record.id)
                    self.known[record.id] = self.live[record.id] = self.world.disk[record.id] = record
                    self.had.add(record)
                    result = {"sessionId": record.id}
                else:
                    well = False
                    if not is_asked:
                        # The agent makes no session again.
                        assert owed.session is not None
                        self.end_opening(owed.session)
            case "session/load" | "session/resume":
                assert opening is not None
                assert owed.session is not None
                found = opening.record
                well = well and found is not None
                if well:
                    assert found is not None
                    del self.openings[owed.session]
                    self.known[found.id] = self.live[found.id] = found
                    self.had.add(found)
                    self.fresh.add(found.id)
                    if opening.kept is not None and (opening.kept < 0 or len(prompts(opening.truth)) > opening.kept):
                        found.truth = [*([gap(found.id)] if opening.lacks_beginning else []), *opening.truth]
                    else:
                        # Of a replay only the states are new.
                        states = [body for body in opening.truth if body["update"]["sessionUpdate"] == "plan"]
                        found.truth += states[-1:]
                elif self.had_no_prompt(owed.session, opening):
                    # The gateway asks for another one in its place.
                    opening.record, self.refused = None, owed.session
                else:
                    self.end_opening(owed.session)
                result = {}
            case "session/close" | "session/delete" if well:
                assert owed.session is not None
                if owed.session in self.known:
                    self.closed[owed.session] = self.known.pop(owed.session)
                if owed.method == "session/delete":
                    self.world.disk.pop(owed.session, None)
                if owed.session in self.live:
                    self.finish(self.live[owed.session])
            case "session/list":
                result = {"sessions": [self.entry(record) for record in (self.world.disk | self.known).values()]}
            case "session/prompt":
                result["stopReason"] = "end_turn"
            case "session/set_mode" if well and owed.record is not None:
                self.mode_was_set(owed, owed.record)
        self.owed.remove(owed)
        raw = spelling % owed.raw
        if well:
            self.scene.agent.say(b'{"jsonrpc":"2.0","id":%b,"result":%b}' % (raw, encode(result)))
        else:
            # A session is re-opened with its first parameters, the mark included.
            data = {} if owed.method in OPENINGS else {"for": mark}
            error = {"code": -32603, "message": "no", "data": data}
            self.unwelcome = mark if owed.method == "initialize" else None
            self.scene.agent.say(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw, encode(error)))
            self.unwelcome = None
            assert self.refused is None, "a session that had no prompt is not made again"

    def has_history_of(self, fork: Owed) -> bool:
        """Return True if the origin of a fork is open, or being opened again."""
        is_there = fork.session in self.openings and self.world.disk.get(fork.session) is fork.parent
        return is_there or fork.parent in self.live.values()

    def had_no_prompt(self, session_id: str, opening: Opening) -> bool:
        (session,) = [session for session in self.scene.multiplexer.sessions if session.id == session_id]
        return session.is_unprompted and (opening.reopens or session.journal_loaded)

    def end_opening(self, session_id: str) -> None:
        """End a session that the agent does not open."""
        opening = self.openings.pop(session_id)
        if opening.reopens:
            self.finish(self.live[session_id])
        else:
            self.settled_in.update(ask.record for ask in self.asks if ask.session == session_id and ask.record)

    def mode_was_set(self, owed: Owed, record: Record) -> None:
        if self.live.get(record.id) is not record:
            return
        tag = owed.body["params"]["modeId"]
        self.world.tags[tag] = record
        body = {"sessionId": record.id, "update": {"sessionUpdate": "current_mode_update", "currentModeId": tag}}
        record.truth.append(body)
        assert owed.request is not None
        self.world.own[record.id, tag] = owed.request.member
        view = owed.request.member.views.get(record)
        if view is not None:
            view.append(body)

    def entry(self, record: Record) -> Body:
        return {"sessionId": record.id, "cwd": "/srv", "title": self.world.tag(record)}

    def update(self, session_id: str, record: Record | None, *, state: bool = False) -> None:
        """Send text of the agent in a session, or in a child that begins there."""
        opening = self.openings.get(session_id)
        if not state:
            self.fresh.discard(session_id)
        tag = self.world.tag(opening.record if opening is not None else record)
        update: Body = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": tag}}
        if state:
            update = {"sessionUpdate": "plan", "entries": [], "tag": tag}
        body = {"sessionId": session_id, "update": update}
        if opening is not None:
            opening.truth.append(body)
        elif session_id.startswith("stray"):
            pass  # It is in no history.
        elif record is not None and (self.live.get(record.id) is record or session_id in self.promised.values()):
            record.truth.append(body)
        self.scene.agent.send(method="session/update", params=body)

    def retell(self, session_id: str, record: Record, how: str) -> list[Body]:
        """Tell the history of a session, or of the parent of a fork, again: all of it, its text, or the first half."""
        bodies = [body for body in record.truth if body["sessionId"] == record.id and can_be_retold(body)]
        if how == "half":
            bodies = bodies[: len(bodies) // 2]
        elif how == "text":
            bodies = joined(bodies)
            self.world.tags |= {tag_of(body): record for body in bodies}
        self.fresh.discard(session_id)
        opening = self.openings.get(session_id)
        told = [{**body, "sessionId": session_id} for body in bodies]
        for params in told:
            if opening is not None:
                opening.truth.append(params)
            self.scene.agent.send(method="session/update", params=params)
        return told

    def announce(self, child: str, record: Record) -> None:
        """Tell the parent of a child in its parent's session."""
        self.fresh.discard(record.id)
        self.begun[child] = self.world.children[child] = record
        update = {"sessionUpdate": "subagent_update", "sessionId": child, "tag": self.world.tag(record)}
        body: Body = {"sessionId": record.id, "update": update}
        record.truth.append(body)
        self.scene.agent.send(method="session/update", params=body)

    def ask(self, session_id: str, record: Record | None, raw: bytes) -> None:
        """Request a permission."""
        ask = Ask(self.world.tag(record), raw, session_id, record)
        self.asks.append(ask)
        offered = [{"optionId": option, "name": option, "kind": "allow_once"} for option in OPTIONS]
        params = {"sessionId": session_id, "toolCall": {"toolCallId": ask.tag}, "options": offered}
        self.scene.agent.say(
            b'{"jsonrpc":"2.0","id":%b,"method":"session/request_permission","params":%b}' % (raw, encode(params))
        )

    def withdraw(self, raw: bytes) -> None:
        """Cancel a request of the agent."""
        same = [ask for ask in self.asks if ask.open and id_key(ask.raw) == id_key(raw)]
        self.withdrawn = same[0] if same else None
        self.scene.agent.say(b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":%b}}' % raw)
        assert self.withdrawn is None

    # Reading what is delivered

    def read(self, output: Output) -> None:
        """Read all output of one event."""
        self.reading = True  # And still so where a check fails.
        before = {member: dict(member.attached) for member in self.members.values()}
        for directory_check in checks_of(output):
            self.who_has_to_wait_for_a_look_has_come_later(directory_check)
        for text in output.to_agent:
            self.note_prompt(json.loads(text))
        for client, told in output.to_clients.items():
            member, sent = self.members[client], list(told)
            self.no_delivery_to_who_is_gone(member)
            forked = self.forked(member, sent)
            self.who_counts_is_right_at_every_point(member, sent, forked)
            self.read_batch(member, sent, forked)
        for text in output.to_agent:
            self.read_by_agent(text, before)
        assert self.refusals == 0
        self.settled_in.clear()
        self.reading = False
        for member in self.present:
            self.remember_where(member)
        for session in journals_of(output):
            self.scene.multiplexer.journal_loaded(session, self.world.shelf.read(session))
            self.scene.deliver()
        for effect in output.effects:
            if isinstance(effect, StopUnused):
                self.world.stop(effect.handle)

    def remember_where(self, member: Member) -> None:
        """Remember positions: a counting client may have to name its position later."""
        for name, record in member.attached.items() if member.counts else ():
            view, place = member.views.get(record), member.places.get(name)
            if view is not None and place is not None:
                member.trail.setdefault(name, []).append(Back(member, place, list(view)))

    def note_prompt(self, body: Body) -> None:
        """Begin a turn: its prompt belongs to the session from here on."""
        if body.get("method") == "session/prompt":
            record = self.live[body["params"]["sessionId"]]
            sender = self.sender(body["params"])
            for chunk in chunks(body["params"]):
                if sender is not None:
                    self.world.own[chunk["sessionId"], tag_of(chunk)] = sender
                self.world.tags[tag_of(chunk)] = record
                record.truth.append(chunk)

    def sender(self, params: Body) -> Member | None:
        """Return the client of a prompt, whichever link it was sent over."""
        requests = [request for member in self.members.values() for request in member.requests.values()]
        return next((request.member for request in requests if f"m{request.number}" == params["mark"]), None)

    def forked(self, member: Member, sent: list[Sent]) -> dict[int, Record]:
        """Return the texts that are a fork's history although they name another session."""
        found: dict[int, Record] = {}
        texts = texts_of(sent)
        coming = [name for text in texts for name in self.opened_by(member, text)]
        for at, text in enumerate(texts):
            body = json.loads(text)
            if body.get("method") == "session/update" and coming:
                fork, parent = self.live.get(coming[0] or ""), self.world.children.get(body["params"]["sessionId"])
                if fork is not None and parent not in (None, fork) and body["params"] in fork.truth:
                    found[at] = fork
            elif member.only is None:
                # A connection bound to one session gets the history after the response.
                coming = coming[len(list(self.opened_by(member, text))) :]
        return found

    def read_batch(self, member: Member, sent: list[Sent], forked: dict[int, Record]) -> None:
        texts = texts_of(sent)
        arriving = {name for text in texts for name in self.opened_by(member, text)}
        said: dict[Record, list[Body]] = {}
        for at, (message, text) in enumerate(zip(sent, texts, strict=True)):
            body = json.loads(text)
            params = body.get("params", {})
            if isinstance(message, Mark):
                self.take_mark(member, places(message), said)
            elif "method" not in body:
                request = member.requests.get(id_key(raw_id(text)))
                if request is not None and request.back is not None and "result" in body:
                    self.what_was_open_is_taken_over(member, request.back, str(request.session), text)
                self.every_response_reaches_its_asker_once_under_its_own_id(member, body, raw_id(text), said)
            elif params.get("sessionId", "").startswith("stray") and body["method"] == "session/update":
                self.what_may_belong_to_any_session_comes_to_who_sees_them_all(member, self.world.tags[tag_of(params)])
            elif body["method"] == "session/update":
                record = forked.get(at) or self.record_of(params["sessionId"])
                if record is None and self.world.tags.get(tag_of(params)) in self.settled_in:
                    continue  # The session ends with its agent: the line is its last one.
                assert record is not None
                self.no_client_sees_a_session_out_of_its_reach(member, params, record, arriving)
                said.setdefault(record, []).append(params)
                self.add_to_view(member, params, record)
            elif body["method"] == "session/request_permission":
                self.questions_come_to_controllers_that_take_part(member, body)
            elif body["method"] == "$/cancel_request":
                assert params["requestId"] in member.copies
                del member.copies[params["requestId"]]
            else:
                assert params["sessionId"] in member.attached

    def take_mark(self, member: Member, named: dict[str, Place], said: dict[Record, list[Body]]) -> None:
        for request in member.requests.values():
            if request.back is not None and named.get(str(request.session)) == request.back.place:
                # From here on, the messages are those missed.
                record = self.record_of(str(request.session))
                assert record is not None
                said[record] = []

    def opened_by(self, member: Member, text: bytes) -> Iterator[str | None]:
        body = json.loads(text)
        request = None if "method" in body else member.requests.get(id_key(raw_id(text)))
        if request is not None and request.method in OPENINGS and "result" in body:
            yield body["result"].get("sessionId") or request.session

    def add_to_view(self, member: Member, params: Body, record: Record) -> None:
        opening = self.openings.get(params["sessionId"])
        if opening is not None and opening.request is not None:
            opening.request.heard.append(params)
        else:
            view = member.views.get(record)
            if view is not None:
                view.append(params)

    def record_of(self, name: str) -> Record | None:
        opening = self.openings.get(name)
        return self.world.children.get(name) or (self.live.get(name) if opening is None else opening.record)

    def read_by_agent(self, text: bytes, before: dict[Member, dict[str, Record]]) -> None:
        body = json.loads(text)
        assert "acp-gateway" not in body.get("params", {}).get("_meta", {}), "that is the gateway's own"
        self.who_may_only_look_is_never_heard_by_the_agent(body)
        if "method" not in body:
            self.one_answer_to_each_request_of_the_agent(body, raw_id(text), before)
        elif "id" in body:
            self.the_agent_sees_no_id_twice(raw_id(text))
            self.take_request(body, raw_id(text))

    def take_request(self, body: Body, raw: bytes) -> None:
        params = body["params"]
        number = int(params["mark"][1:]) if "mark" in params else 0
        fresh = [w for m in self.members.values() for w in m.requests.values() if w.number == number and not w.at_agent]
        request = fresh[0] if fresh else None
        session = params.get("sessionId")
        owed = Owed(raw, body["method"], session, request, body, self.live.get(session or ""))
        if request is not None:
            request.at_agent = True
            if not request.member.guest and owed.method != "session/list":
                self.heard_from.add(request.member.identity)
        if owed.method in ("session/load", "session/resume"):
            assert session is not None
            assert session not in self.openings
            self.used.add(session)
            reopened = request is None and session in self.live
            opening = self.openings[session] = Opening(None, self.world.disk.get(session), reopened)
            if not reopened:
                self.note_history(opening, request, session, owed.method)
            if request is not None and request.back is not None:
                request.goes_on = self.knows(session, request.back.place)
            if not reopened:
                assert session not in self.live, "a session that is live was opened again"
        elif owed.method == "session/new" and request is None:
            owed.session, self.refused = self.refused, None
            assert owed.session is not None, "a session is made without a reason"
        elif owed.method in ("session/new", "session/fork"):
            owed.parent, owed.record = owed.record, None
        elif owed.method == "session/delete":
            assert session is not None
            self.used.add(session)
        elif owed.method == "session/prompt":
            assert owed.record is not None
            self.fresh.discard(owed.record.id)
            self.one_turn_at_a_time_and_prompts_in_order(owed, owed.record, number)
            if request is not None and not request.member.gone:
                view = request.member.views.get(owed.record)
                if view is not None:
                    # It may have asked for the history after its prompt.
                    view += [chunk for chunk in chunks(params) if chunk not in view]
        self.owed.append(owed)

    def is_over(self, record: Record | None) -> bool:
        """Return True if a session was closed here: its requests end with the last turn that they may belong to.

        They also end when the agent reuses the id.
        """
        if record is None or self.closed.get(record.id) is not record:
            return False
        opening = self.openings.get(record.id)
        return (self.known.get(record.id) if opening is None else opening.record) is not record

    def knows(self, name: str | None, place: Place) -> bool:
        """Return True if a position in a session is known. A journal continues under another epoch, and knows the
        former one."""
        (session,) = [session for session in self.scene.multiplexer.sessions if session.id == name]
        return session.journal.shared_with(*place) is not None

    def note_history(self, opening: Opening, request: ClientRequest | None, name: str, method: str) -> None:
        """Note what is stored of a session that is opened, and who gets the replay: it takes nothing from a stored
        history whose beginning is known."""
        (session,) = [session for session in self.scene.multiplexer.sessions if session.id == name]
        journal, comes_back = session.journal, request is not None and request.back is not None
        is_held = session.journal_loaded and bool(journal.epoch)
        is_empty = not journal.position
        opening.lacks_beginning = method == "session/resume" and (not is_held or journal.truncated)
        if not (is_held and (comes_back or not (is_empty or (journal.truncated and not journal.start)))):
            stored = [json.loads(text)["params"] for text in map(text_of, journal.replay())]
            opening.kept = -1 if is_empty else len(prompts(stored))
        if request is not None and request.method == "session/load" and is_empty and not comes_back:
            request.listens, opening.request = True, request

    def waits_for_owner(self, member: Member, request: ClientRequest) -> bool:
        """Return True if a returning client is earlier than the client that may re-open its session."""
        may_open = member.controls and not member.guest
        return request.back is not None and not may_open and request.session not in self.live

    # The rules

    def no_delivery_to_who_is_gone(self, member: Member) -> None:
        assert not member.gone

    def no_client_sees_a_session_out_of_its_reach(
        self, member: Member, params: Body, record: Record, arriving: set[str | None]
    ) -> None:
        opening = self.openings.get(params["sessionId"])
        if opening is not None:
            assert opening.request is not None
            assert opening.request.member is member
        else:
            assert member.attached.get(record.id) is record or record.id in arriving
        assert member.may_see(record), "another identity's session"
        # By text, too: ids are reused. A fork repeats another session's text.
        tag = tag_of(params)
        said_in = record if tag in (GAP, MAY_BE_MISSING) else self.world.tags[tag]
        assert said_in is not None
        assert said_in.owner == record.owner, "another identity's session"

    def what_may_belong_to_any_session_comes_to_who_sees_them_all(self, member: Member, record: Record | None) -> None:
        assert record is not None
        assert member.controls
        assert not member.guest
        assert member.only is None
        assert {record.owner for record in self.had} == {record.owner} == {member.identity}

    def the_agent_sees_no_id_twice(self, raw: bytes) -> None:
        assert raw not in self.seen_ids
        self.seen_ids.add(raw)

    def every_response_reaches_its_asker_once_under_its_own_id(
        self, member: Member, body: Body, raw: bytes, said: dict[Record, list[Body]]
    ) -> None:
        if raw == b"null" and self.refusals and "still in use" in body["error"]["message"]:
            self.refusals -= 1
            return
        request = member.requests.pop(id_key(raw), None)
        assert request is not None, "the response is for no request"
        assert request.raw == raw
        result = body.get("result")
        answer = body["error"].get("data") or {} if result is None else result
        # All requests that wait for the agent's initialization get the error, also those of other clients.
        shared_fate = self.unwelcome if result is None and not request.at_agent else None
        assert answer.get("for") in (None, f"m{request.number}", shared_fate), "the response is for another request"
        if result is not None:
            self.take_result(member, request, result, said)

    def take_result(self, member: Member, request: ClientRequest, result: Body, said: dict[Record, list[Body]]) -> None:
        if request.method in OPENINGS:
            name = str(result.get("sessionId") or request.session)
            record = self.live[name]
            assert member.may_see(record), "another identity's session"
            view: list[Body] | None = None
            if request.method == "session/new":
                view = [] if member.only is not None else list(said.get(record, []))
            elif request.back is not None and (
                request.goes_on if request.at_agent else self.knows(name, request.back.place)
            ):
                view = [*request.back.view, *said[record]]
            elif request.method == "session/load":
                view = request.heard if request.listens else replay(said.get(record, []), record.truth)
            member.attached[name] = record
            member.views[record] = view
        elif request.method == "session/close" and request.session in member.attached:
            self.let_go(member, member.attached[request.session])
        elif request.method == "session/list":
            for entry in result["sessions"]:
                known = self.world.tags.get(entry.get("title"))
                assert known is None or member.may_see(known)
                assert member.only in (None, entry["sessionId"])

    def questions_come_to_controllers_that_take_part(self, member: Member, body: Body) -> None:
        params = body["params"]
        (ask,) = [ask for ask in self.asks if ask.tag == params["toolCall"]["toolCallId"]]
        assert member.controls
        assert ask.open
        assert ask.record is not None
        if ask.is_stray:
            self.what_may_belong_to_any_session_comes_to_who_sees_them_all(member, ask.record)
        else:
            assert member.attached.get(ask.record.id) is ask.record
        assert body["id"] > member.last_minted, "an id was used twice"
        member.last_minted = body["id"]
        assert ask not in member.copies.values()
        member.copies[body["id"]] = ask

    def one_answer_to_each_request_of_the_agent(
        self, body: Body, raw: bytes, before: dict[Member, dict[str, Record]]
    ) -> None:
        candidates = [ask for ask in self.asks if ask.open and ask.raw == raw]
        assert candidates, "the agent has not asked that, or was answered already"
        error, result = body.get("error"), body.get("result", {})
        mark = result.get("_meta", {}).get("mark") if error is None else error.get("data")
        if isinstance(mark, str):
            member = self.world.marks[mark][0]
            if error is None:
                assert self.answering is not None, "who was not asked has decided"
                assert result["answers"] == mark, "what the schema has not is passed on"
                ask = self.answering[1]
                assert self.answering[0] is member
                assert ask in candidates
                self.decided_by_a_controller_that_takes_part_with_what_was_offered(member, ask, result, before)
            else:
                (ask,) = [ask for ask in candidates if mark in ask.errors]
                self.an_error_decides_only_when_no_client_is_left(ask)
        elif error is not None and error["code"] == jsonrpc.REQUEST_CANCELLED:
            assert self.withdrawn in candidates
            ask, self.withdrawn = candidates[0], None
        elif error is not None and error["code"] == jsonrpc.SESSION_NOT_FOUND:
            # Several of one id may be open: one of those closed by now counts.
            waiting, ended = self.tags_that_wait(), error["data"]["sessionId"]
            assert ended not in {session.id for session in self.scene.multiplexer.sessions}
            ask = next(ask for ask in candidates if ask.tag not in waiting and ask.session == ended)
        elif error is not None:
            assert error["code"] == jsonrpc.INTERNAL_ERROR
            # Several of one id may be open: the one answered in this event counts, not any that was forwarded.
            assert self.answering is not None
            ask = self.answering[1]
            assert ask in candidates
            assert ask.abstained
            self.an_error_decides_only_when_no_client_is_left(ask)
        else:
            assert result == {"outcome": {"outcome": "cancelled"}}
            # Several of one id may be open: one of those closed by now counts.
            waiting = self.tags_that_wait()
            gone = [ask for ask in candidates if ask.tag not in waiting]
            settled = [ask for ask in gone if self.may_be_settled(ask)]
            assert settled, "a question was denied by default"
            ask = settled[0]
        ask.open = False
        self.asks.remove(ask)

    def may_be_settled(self, ask: Ask) -> bool:
        """Return True if a request may be cancelled in this event: its session or turn has ended, or the turn of a
        session that it may belong to."""
        if ask.is_stray:
            identities = self.heard_from.union(record.owner for record in self.had)
            return bool(self.settled_in) or identities != {ask.record and ask.record.owner}
        return ask.record in self.settled_in or self.is_over(ask.record)

    def tags_that_wait(self) -> set[str]:
        """Tags of the agent's requests that wait."""
        waiting = self.scene.multiplexer._agent.agent_requests
        return {str(agent_request.tool_call.tool_call_id) for agent_request in waiting}

    def decided_by_a_controller_that_takes_part_with_what_was_offered(
        self, member: Member, ask: Ask, result: Body, before: dict[Member, dict[str, Record]]
    ) -> None:
        assert member.controls
        assert ask.record is not None
        if ask.is_stray:
            self.what_may_belong_to_any_session_comes_to_who_sees_them_all(member, ask.record)
        else:
            assert before[member].get(ask.record.id) is ask.record
        outcome = result["outcome"]
        assert outcome["outcome"] == "cancelled" or outcome["optionId"] in OPTIONS

    def an_error_decides_only_when_no_client_is_left(self, ask: Ask) -> None:
        for member in self.present:
            if ask.is_stray:
                assert ask not in member.copies.values()
            elif ask.record is not None and member.controls and member.attached.get(ask.record.id) is ask.record:
                assert member in ask.abstained

    def losers_are_told(self, member: Member) -> None:
        assert all(ask.open for ask in member.copies.values())

    def who_may_only_look_is_never_heard_by_the_agent(self, body: Body) -> None:
        said = {**body.get("params", {}), **body.get("result", {})}
        mark = said.get("mark") or said.get("_meta", {}).get("mark") or body.get("error", {}).get("data")
        if isinstance(mark, str):
            member, session, method = self.world.marks[mark]
            assert member.controls
            assert not member.guest or method == "initialize" or session == member.only

    def one_turn_at_a_time_and_prompts_in_order(self, owed: Owed, record: Record, number: int) -> None:
        open_turns = [other for other in self.owed if other.method == owed.method and other.record is record]
        assert not open_turns or (not self.shared and len(self.present) <= 1)
        assert self.place(number) > self.last_prompt.get(record, 0)
        self.last_prompt[record] = self.place(number)
        for member in self.present:
            for request in member.requests.values():
                overtaken = request.method == owed.method and request.session == owed.session and not request.at_agent
                assert not overtaken or self.place(request.number) > self.place(number)

    def who_has_to_wait_for_a_look_has_come_later(self, directory_check: DirectoryCheck) -> None:
        """Forget waiting: the place of a request in order is then behind all present ones."""
        waiting = self.scene.multiplexer._agent.waiting.of(Until.DIRECTORIES_CHECKED, directory_check)
        for request in waiting[1:]:
            assert request.client is directory_check.request.client
            assert number_of(request) > number_of(directory_check.request)
            self.places[number_of(request)] = next(self.world.numbers)

    def look_at(self, directory_check: DirectoryCheck) -> DirectoryCheckResult:
        self.who_has_to_wait_for_a_look_has_come_later(directory_check)
        return look(directory_check)

    def place(self, number: int) -> int:
        """Return the place of a request in order."""
        return self.places.get(number, number)

    def everyone_is_answered_in_the_end(self, member: Member) -> None:
        assert all(self.waits_for_owner(member, request) for request in member.requests.values())

    def no_client_waits_in_vain(self, member: Member) -> None:
        for request in member.requests.values():
            open_requests = [owed for owed in self.owed if owed.request is request]
            causes = [owed for owed in self.owed if owed.method == "initialize" or owed.session == request.about]
            if self.waits_for_owner(member, request):
                continue
            # The gateway makes a session again that had no prompt, for the request that opens it.
            renewals = [owed for owed in causes if owed.method == "session/new"]
            assert renewals or (open_requests if request.at_agent else causes), f"{request.method} is forgotten"

    def who_counts_is_right_at_every_point(self, member: Member, sent: list[Sent], forked: dict[int, Record]) -> None:
        """Drop any number of the texts from the end, as a lost link does: the client's count is the rest."""
        if not member.counts:
            assert not any(isinstance(message, Mark) for message in sent)
            return
        everything = b"".join(texts_of(sent))
        # The answer to a close does not name its session.
        left = {request.session for request in member.requests.values() if request.method == "session/close"}
        for session in self.scene.multiplexer.sessions:
            if session.id.encode() in everything or session.id in left:
                self.counts_right(member, session, sent, forked)

    def counts_right(self, member: Member, session: Session, sent: list[Sent], forked: dict[int, Record]) -> None:
        place = member.places.pop(session.id, None)
        loading = {
            key
            for key, request in member.requests.items()
            if request.session == session.id
            and request.method in ("session/load", "session/resume")
            and request.back is None
        }
        answered: set[str] = set()
        points = [] if loading else [(place, 0)]
        received: list[Body] = []
        for number, (message, text) in enumerate(zip(sent, texts_of(sent), strict=True)):
            body = json.loads(text)
            if isinstance(message, Mark):
                place = places(message).get(session.id, place)
                loading -= answered
            elif "method" not in body:
                # After the response to a resume come the states, then a mark.
                (loading.discard if "error" in body else answered.add)(id_key(raw_id(text)))
                request = member.requests.get(id_key(raw_id(text)))
                if request and (request.method, request.session) == ("session/close", session.id) and "result" in body:
                    place, points, received = None, [], []  # What comes later is not for one that has left.
            elif body["method"] == "session/update" and body["params"]["sessionId"] == session.id:
                received.append(body["params"])
                # While it waits for history, the meaning is unknown.
                place = (place[0], place[1] + 1) if place and not loading else None
            elif body["method"] == "session/update" and body["params"]["sessionId"] in self.world.children:
                record = forked.get(number) or self.world.children[body["params"]["sessionId"]]
                if record is self.record_of(session.id):
                    received.append(body["params"])
                    continue  # The mark that it counts comes next.
            if not loading:
                points.append((place, len(received)))
        for point, at in points:
            if point is not None and point[0] == session.journal.epoch:
                missing = session.journal.since(point[1])
                assert missing is not None
                rest = [json.loads(text)["params"] for text in map(text_of, missing)]
                assert [body for body in rest if not self.is_own(body, member)] == received[at:]
        if place is not None:
            member.places[session.id] = place
            if not loading:
                # A mark before the response may have crossed the request: further messages may still be history.
                member.unsure.discard(session.id)

    def is_own(self, body: Body, member: Member) -> bool:
        return self.world.own.get((body["sessionId"], tag_of(body))) is member

    def who_counts_is_where_the_gateway_says(self, member: Member) -> None:
        if member.counts:
            positions = member.peer.client.positions()
            member.places = {name: place for name, place in member.places.items() if name in positions}
            assert member.places.items() <= positions.items()
            unknown = positions.keys() - member.places.keys()
            assert unknown <= member.unsure

    def the_archive_has_the_same(self) -> None:
        for session in self.scene.multiplexer.sessions:
            if session.state in (SessionState.OPEN, SessionState.DORMANT):
                kept, journal = self.world.shelf.journals[session], session.journal
                assert (kept.epoch, kept.position) == (journal.epoch, journal.position)
                assert kept.replay() == journal.replay()
                assert kept.truncated == journal.truncated

    def what_was_open_is_taken_over(self, member: Member, back: Back, name: str, text: bytes) -> None:
        old, record = back.old, self.record_of(name)
        said = lookup.members_at(text, "result", "_meta", "acp-gateway")
        prompts, questions = lookup.elements_of(said["prompts"]), json.loads(said["questions"])
        running = [owed.request for owed in self.owed if owed.method == "session/prompt" and owed.record is record]
        for key, request in list(old.requests.items()) if old.controls else ():
            if request.method == "session/prompt" and request.session == name and request in running:
                assert request.raw in prompts or key in member.requests
        for raw in prompts:
            request = old.requests.pop(id_key(raw))
            assert (request.raw, request.method, request.session) == (raw, "session/prompt", name)
            assert id_key(raw) not in member.requests
            member.requests[id_key(raw)] = request
            request.member = member
        for minted in questions:
            ask = old.lost_copies[minted]
            assert ask.open
            assert ask.record is record
            assert member.controls
            member.copies[minted] = ask
        for minted, ask in old.lost_copies.items() if old.controls else ():
            assert minted in questions or not (ask in self.asks and ask.session == name and ask.record is record)

    def all_see_the_same(self, member: Member) -> None:
        for record, view in member.views.items():
            assert view is None or record.id in self.openings or view == record.truth

    def every_controller_is_asked(self, member: Member) -> None:
        if self.awaited:
            return  # It may be the new session that a question is about.
        for ask in self.asks:
            record = None if ask.is_stray else ask.record
            if record is None or record.id in self.openings or self.live.get(record.id) is not record:
                continue
            if member.controls and member.attached.get(record.id) is record:
                assert ask in member.copies.values() or member in ask.abstained


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def id_key(raw: bytes) -> str:
    """Return a key that is equal for equal ids."""
    return f"text {json.loads(raw)}" if raw.startswith(b'"') else raw.decode()


def number_of(request: Request) -> int:
    """Return the mark of a client's request."""
    return int(json.loads(request.message.text)["params"]["mark"][1:])


def raw_id(text: bytes) -> bytes:
    """Return the id of a message in its spelling."""
    return jsonrpc.parse(text).id


def chunks(prompt: Body) -> list[Body]:
    """Return a prompt as the other clients see it."""
    return [
        {"sessionId": prompt["sessionId"], "update": {"sessionUpdate": "user_message_chunk", "content": block}}
        for block in prompt["prompt"]
    ]


def tag_of(params: Body) -> str:
    """Return the text of an update."""
    update = params["update"]
    text = update.get("tag") or update.get("currentModeId") or update["content"]["text"]
    assert isinstance(text, str)
    return text


def can_be_retold(body: Body) -> bool:
    """Return True for what an agent may tell again: it does not repeat states, and knows nothing of the gateway's
    texts."""
    return body["update"]["sessionUpdate"] not in STATES and not tag_of(body).startswith("[acp-gateway")


def joined(bodies: list[Body]) -> list[Body]:
    """Return the chunks of a history, the texts of an answer in one."""
    found: list[Body] = []
    for body in bodies:
        kind = body["update"]["sessionUpdate"]
        if found and kind == "agent_message_chunk" == found[-1]["update"]["sessionUpdate"]:
            found[-1] = text_chunk(body["sessionId"], f"{tag_of(found[-1])} {tag_of(body)}")
        elif kind.endswith("_chunk"):
            found.append(body)
    return found


def prompts(bodies: list[Body]) -> list[Body]:
    """Return the first chunks of the prompts in a history."""
    talk = [body for body in bodies if body["update"]["sessionUpdate"] not in STATES]
    is_prompt = [body["update"]["sessionUpdate"] == "user_message_chunk" for body in talk]
    return [body for body, is_it, before in zip(talk, is_prompt, [False, *is_prompt], strict=False) if is_it > before]


def under(fork: Record, body: Body, parent: str | None) -> Body:
    """Return the history of a fork's origin, as the fork has it."""
    return {**body, "sessionId": fork.id} if body["sessionId"] == parent else body


def gap(session_id: str) -> Body:
    return text_chunk(session_id, GAP)


def text_chunk(session_id: str, text: str) -> Body:
    content = {"type": "text", "text": text}
    return {"sessionId": session_id, "update": {"sessionUpdate": "agent_message_chunk", "content": content}}


def replay(said: list[Body], truth: list[Body]) -> list[Body]:
    """Return the replayed part of all messages of a client that asked for the beginning."""
    begin = max((at for at, body in enumerate(said) if body in truth[:1]), default=0)
    return said[begin:]
