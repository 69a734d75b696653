"""What has to hold in any scene of sharing, as one check for each rule: a naive model of who may see and hear what.

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

from acp_gateway.core.output import Output
from acp_gateway.core.sessions import (
    AgentHandle,
    Client,
    DirectoryCheck,
    DirectoryCheckResult,
    Registry,
    Request,
    Role,
    Session,
    State,
)
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.gaps import GAP, MAY_BE_MISSING
from acp_gateway.protocol.outbox import Mark
from tests.core.scene import Peer, Place, Scene, Shelf, look, make_policy, places

IDS = (
    *(b"1", b'"1"', b"1.0", b"1e2", b"0", b'""', b"null", b"-0", b"9223372036854775808", rb'"\u0041"', b'"A"', b"100"),
    *(b'"0"', b"0.0", b"2", b"3", b"4", b'"9f1c2b6e-0000-4000-8000-000000000000"', rb'"\ud83d"', b"-1", b"5e0", b"6"),
)
"""Spellings that somebody has mixed up: most are taken for another one by one language or the other."""

OPENINGS = ("session/new", "session/load", "session/resume", "session/fork")
OPTIONS = ("yes", "no")
Body = dict[str, Any]


@dataclass(eq=False)
class Record:
    """What one session is about, whichever ids it has had."""

    id: str
    owner: str
    truth: list[Body] = field(default_factory=list)
    """The updates that a loader has to get."""


@dataclass(eq=False)
class Back:
    """What somebody who takes up a session again has seen of it over another link."""

    old: "Member"
    place: Place
    view: list[Body]


@dataclass(eq=False)
class ConnectRequest:
    """A request of a client."""

    member: "Member"
    number: int
    raw: bytes
    method: str
    session: str | None
    at_agent: bool = False
    heard: list[Body] = field(default_factory=list)
    """What the agent replayed because of it."""
    back: Back | None = None
    goes_on: bool = False
    """Whether only what was missed is due, once the agent has it."""
    keeps: bool = False
    """Whether the history stays what it was, once the agent has it."""

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
    """The marks of those answers that were errors."""
    open: bool = True


@dataclass(eq=False)
class Owed:
    """A request that the agent has got and not answered."""

    raw: bytes
    method: str
    session: str | None
    wish: ConnectRequest | None
    body: Body
    record: Record | None = None
    """The session that it is about, or that it will be answered with."""
    parent: Record | None = None
    """For a fork."""


@dataclass(eq=False)
class Opening:
    """A load or resume that the agent works on."""

    wish: ConnectRequest | None
    """Whose replay it is; None where it is nobody's."""
    record: Record | None
    """What the agent has under that id: what others write to the disk meanwhile is nothing to it."""
    replaces: bool
    """Whether the history is to be what the agent tells now."""
    reopens: bool = False
    """Whether it is the gateway's own, in a new process."""
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
    wishes: dict[str, ConnectRequest] = field(default_factory=dict)
    attached: dict[str, Record] = field(default_factory=dict)
    views: dict[Record, list[Body] | None] = field(default_factory=dict)
    """What it has seen of each session that it is attached to; None where it did not ask for the beginning."""
    copies: dict[int, Ask] = field(default_factory=dict)
    last_minted: int = 0
    places: dict[str, Place] = field(default_factory=dict)
    """Where in its sessions one that counts is, as far as it knows."""
    trail: dict[str, list[Back]] = field(default_factory=dict)
    """For each session where it has been, and what it had seen of it there."""
    lost_copies: dict[int, Ask] = field(default_factory=dict)
    """What it was asked and had not answered when it left."""
    returned: bool = False
    unsure: set[str] = field(default_factory=set)
    """Sessions that it has asked to load since it has had a place in them."""

    @property
    def counts(self) -> bool:
        return self.peer.client.counts

    @property
    def controls(self) -> bool:
        return self.role is Role.CONTROLLER

    def may_see(self, record: Record) -> bool:
        """Whether a session exists for this one. What was granted to a guest was granted by its id."""
        return (
            record.id == self.only if self.guest else record.owner == self.identity and self.only in (None, record.id)
        )


class World:
    """What all processes have in common: the registry, the agent's disk, and the tags."""

    def __init__(self, counting: bool) -> None:
        self.counting = counting
        """Whether agents count their sessions, each process from the beginning."""
        self.shelf = Shelf()
        self.registry = Registry("me", self.shelf, "run")
        self.disk: dict[str, Record] = {}
        self.offices: list[SharingModel] = []
        self.tags: dict[str, Record | None] = {}
        self.children: dict[str, Record] = {}
        """Sessions that nobody has asked for, and the one that each of them belongs to."""
        self.own: dict[str, Member] = {}
        """By whom something was said that the journal has and that is not sent to the one who said it."""
        self.marks: dict[str, tuple[Member, str | None, str]] = {}
        """Who has said something: about which session, by which method."""
        self.numbers = itertools.count(1)

    def tag(self, record: Record | None) -> str:
        """A word that nobody has used, for what is said in a session."""
        tag = f"t{next(self.numbers)}"
        self.tags[tag] = record
        return tag

    def stop(self, home: AgentHandle) -> None:
        """A process that nobody uses is stopped for somebody who wants one of its sessions."""
        for office in self.offices:
            if office.scene.multiplexer.home is home:
                office.end()


class Wire(Scene):
    """A scene whose deliveries are read by an office."""

    office: "SharingModel"

    def deliver(self, leaving: Client | None = None) -> None:
        self.notes += self.multiplexer.take_notes()
        deliveries = self.multiplexer.take_deliveries()
        self.office.read(deliveries)
        self.look_at(deliveries.directory_checks)


class SharingModel:
    """One process, its clients, and the checks of all that is delivered because of them."""

    def __init__(self, world: World, *, shared: bool, **capabilities: Any) -> None:
        self.world = world
        self.shared = shared
        self.reopens = bool(capabilities.get("loadSession") or "resume" in capabilities["sessionCapabilities"])
        self.scene = Wire(make_policy(shared=shared), world.registry, agentCapabilities=capabilities)
        self.scene.office = self
        self.scene.look = self.look_at
        self.dead = False
        self.members: dict[Client, Member] = {}
        self.known: dict[str, Record] = {}
        """The sessions that the agent process has."""
        self.live: dict[str, Record] = {}
        """Those that are open for the gateway, asleep or not."""
        self.asleep: set[str] = set()
        """Those whose process has ended: the next one opens them again."""
        self.openings: dict[str, Opening] = {}
        self.promised: dict[Owed, str] = {}
        """Ids that the agent has used before it named them in a response."""
        self.begun: dict[str, Record] = {}
        """The children of the agent process."""
        self.owed: list[Owed] = []
        self.asks: list[Ask] = []
        self.seen_ids: set[bytes] = set()
        self.last_prompt: dict[Record, int] = {}
        self.places: dict[int, int] = {}
        """For what has waited until somebody had looked at directories: where in order it is since then."""
        self.settled_in: set[Record] = set()
        """The sessions in which somebody has ended all turns just now."""
        self.withdrawn: Ask | None = None
        """What the agent does not want to know any more, just now."""
        self.answering: tuple[Member, Ask] | None = None
        """Who decides what, just now."""
        self.unwelcome: str | None = None
        """The mark of the `initialize` that the agent refuses just now, if it was a client's."""
        self.closed: dict[str, Record] = {}
        """Sessions that the agent process has closed."""
        self.used: set[str] = set()
        """Ids that the agent process has had sessions under, or was asked for."""
        self.count = 0
        """The sessions that the agent process has opened."""
        self.reading = False
        self.refusals = 0
        """How many answers under no id of a client's own are due just now."""

    @property
    def present(self) -> list[Member]:
        return [member for member in self.members.values() if not member.gone]

    def running(self) -> list[Record]:
        return list({owed.record: None for owed in self.owed if owed.record and owed.method == "session/prompt"})

    @property
    def awaited(self) -> list[Owed]:
        """The requests whose responses will name a new session."""
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
        """A client gets through `initialize`."""
        self.wish(member, "initialize", None, b"0", protocolVersion=1, **params)
        for owed in list(self.owed):
            if owed.method == "initialize":
                self.settle(owed, well=True)

    def come_back(self, old: Member, session: str, back: Back, method: str, *, known: bool) -> None:
        """One that is gone is there again, over another link."""
        old.returned = True
        member = self.join(old.identity, old.role, old.only, old.guest, counts=True)
        member.last_minted = old.last_minted
        self.introduce(member, _meta={"acp-gateway": {"lastId": old.last_minted}})
        position = back.place[1]
        back = back if known else Back(old, ("run-x", position), back.view)
        open_there = [wish for wish in old.wishes.values() if wish.method == "session/prompt"]
        said = {"epoch": back.place[0], "position": position, "connection": old.peer.client.link}
        questions = [minted for minted, ask in old.lost_copies.items() if ask.session == session]
        said |= {"prompts": [f"raw {wish.raw.hex()}" for wish in open_there], "questions": questions}
        meta = {"acp-gateway": said, "other": 1}
        self.wish(member, method, session, b'"back"', back=back, cwd="/srv", mcpServers=[], _meta=meta)

    def wish(
        self, member: Member, method: str, session: str | None, raw: bytes, back: Back | None = None, **params: Any
    ) -> None:
        """A client asks for something."""
        about = member.only if method == "session/new" else session
        if method in OPENINGS and about in self.promised.values():
            return  # From an agent that counts it might get one of two sessions of that id.
        number = next(self.world.numbers)
        mark = f"m{number}"
        self.world.marks[mark] = member, session, method
        key = id_key(raw)
        if key in member.wishes:
            self.refusals += 1
        else:
            member.wishes[key] = ConnectRequest(member, number, raw, method, session, back=back)
            if method in ("session/load", "session/resume") and back is None:
                # What comes now is history.
                member.places.pop(session or "", None)
                member.unsure.add(session or "")
        named = {} if session is None else {"sessionId": session}
        params = {**named, **params, "mark": mark}
        text = re.sub(rb'"raw (\w+)"', lambda it: bytes.fromhex(it[1].decode()), encode(params))
        member.peer.say(b'{"jsonrpc":"2.0","method":"%b","id":%b,"params":%b}' % (method.encode(), raw, text))

    def tell(self, member: Member, method: str, session: str | None, **params: Any) -> None:
        """A client says something that is not answered."""
        mark = f"m{next(self.world.numbers)}"
        self.world.marks[mark] = member, session, method
        about = {} if session is None else {"sessionId": session}
        member.peer.send(method=method, params={**about, **params, "mark": mark})

    def cancel_request(self, member: Member, raw: bytes) -> None:
        wish = member.wishes.get(id_key(raw))
        mark = f"m{next(self.world.numbers)}"
        self.world.marks[mark] = member, None if wish is None else wish.about, "$/cancel_request"
        params = b'{"mark":"%b","requestId":%b}' % (mark.encode(), raw)
        member.peer.say(b'{"jsonrpc":"2.0","method":"$/cancel_request","params":%b}' % params)

    def reply(self, member: Member, minted: int, outcome: Body | None) -> None:
        """A client answers what it was asked, or something else; None is an error."""
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
            member.peer.send(id=minted, result={"outcome": outcome, "_meta": {"mark": mark}, "dropped": mark})
        self.answering = None

    def leave(self, member: Member) -> None:
        member.gone = True
        self.forget(member)
        member.peer.gone()
        if not self.shared and not self.present:
            self.end()

    def dismiss(self, member: Member) -> None:
        """The gateway ends a connection."""
        self.scene.multiplexer.dismiss(member.peer.client, "token expired", {"reason": "unauthorized"})
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
        """The process is stopped because nobody uses it, and what it had can be opened by others."""
        self.settled_in.update(self.live.values())
        for member in self.present:
            member.gone = True
            self.forget(member)
            self.scene.multiplexer.client_gone(member.peer.client)
        self.dead = True
        self.scene.multiplexer.retire()
        self.scene.deliver()
        for office in self.world.offices:
            if not office.dead:
                office.scene.multiplexer.sessions_freed()
                office.scene.deliver()

    def lose_agent(self) -> None:
        self.owed.clear()
        self.openings.clear()
        self.promised.clear()
        self.known.clear()
        self.closed.clear()
        self.used.clear()
        self.count = 0
        self.begun.clear()
        for ask in self.asks:
            ask.open = False
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

    def finish(self, record: Record) -> None:
        """A session is closed for everybody."""
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
        """The session that a request for a new one is about to get."""
        if owed not in self.promised:
            assert owed.wish is not None
            self.promised[owed] = name = self.next_id()
            owed.record = Record(name, owed.wish.member.identity)
        assert owed.record is not None
        return owed.record

    def settle(self, owed: Owed, *, well: bool, spelling: bytes = b"%b") -> None:
        """The agent answers."""
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
                if owed in self.promised or (well and there):
                    well = True
                    record = self.promise(owed)
                    del self.promised[owed]
                    self.used.add(record.id)
                    if owed.method == "session/fork":
                        parent = owed.parent if owed.parent in self.live.values() else None
                        copied = [gap(record.id)] if parent is None else parent.truth
                        record.truth[:0] = [under(record, body, owed.session) for body in copied]
                    self.known[record.id] = self.live[record.id] = self.world.disk[record.id] = record
                    result = {"sessionId": record.id}
                else:
                    well = False
            case "session/load" | "session/resume":
                assert opening is not None
                assert owed.session is not None
                del self.openings[owed.session]
                found = opening.record
                well = well and found is not None
                if well:
                    assert found is not None
                    self.known[found.id] = self.live[found.id] = found
                    if opening.replaces:
                        beginning = [gap(found.id)] if owed.method == "session/resume" else []
                        found.truth = [*beginning, *opening.truth]
                    else:
                        # Of what is told again only how things are now is news.
                        states = [body for body in opening.truth if body["update"]["sessionUpdate"] == "plan"]
                        found.truth += states[-1:]
                elif opening.reopens:
                    self.finish(self.live[owed.session])
                else:
                    self.settled_in.update(
                        ask.record for ask in self.asks if ask.session == owed.session and ask.record
                    )
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
            # A session is opened again with the parameters, the mark included, that it was opened with first.
            data = {} if owed.method in OPENINGS else {"for": mark}
            error = {"code": -32603, "message": "no", "data": data}
            self.unwelcome = mark if owed.method == "initialize" else None
            self.scene.agent.say(b'{"jsonrpc":"2.0","id":%b,"error":%b}' % (raw, encode(error)))
            self.unwelcome = None

    def mode_was_set(self, owed: Owed, record: Record) -> None:
        if self.live.get(record.id) is not record:
            return
        tag = owed.body["params"]["modeId"]
        self.world.tags[tag] = record
        body = {"sessionId": record.id, "update": {"sessionUpdate": "current_mode_update", "currentModeId": tag}}
        record.truth.append(body)
        assert owed.wish is not None
        self.world.own[tag] = owed.wish.member
        view = owed.wish.member.views.get(record)
        if view is not None:
            view.append(body)

    def entry(self, record: Record) -> Body:
        return {"sessionId": record.id, "cwd": "/srv", "title": self.world.tag(record)}

    def update(self, session_id: str, record: Record | None, *, state: bool = False) -> None:
        """The agent says something in a session, or in one that has begun there."""
        opening = self.openings.get(session_id)
        tag = self.world.tag(opening.record if opening is not None else record)
        update: Body = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": tag}}
        if state:
            update = {"sessionUpdate": "plan", "entries": [], "tag": tag}
        body = {"sessionId": session_id, "update": update}
        if opening is not None:
            opening.truth.append(body)
        elif record is not None and (self.live.get(record.id) is record or session_id in self.promised.values()):
            record.truth.append(body)
        self.scene.agent.send(method="session/update", params=body)

    def ask(self, session_id: str, record: Record | None, raw: bytes) -> None:
        """The agent asks whether it may."""
        ask = Ask(self.world.tag(record), raw, session_id, record)
        self.asks.append(ask)
        offered = [{"optionId": option, "name": option, "kind": "allow_once"} for option in OPTIONS]
        params = {"sessionId": session_id, "toolCall": {"toolCallId": ask.tag}, "options": offered}
        self.scene.agent.say(
            b'{"jsonrpc":"2.0","id":%b,"method":"session/request_permission","params":%b}' % (raw, encode(params))
        )

    def withdraw(self, raw: bytes) -> None:
        """The agent does not want to know any more."""
        same = [ask for ask in self.asks if ask.open and id_key(ask.raw) == id_key(raw)]
        self.withdrawn = same[0] if same else None
        self.scene.agent.say(b'{"jsonrpc":"2.0","method":"$/cancel_request","params":{"requestId":%b}}' % raw)
        assert self.withdrawn is None

    # Reading what is delivered

    def read(self, deliveries: Output) -> None:
        """See to all that was delivered because of one event."""
        self.reading = True  # And still so where a check fails.
        before = {member: dict(member.attached) for member in self.members.values()}
        for directory_check in deliveries.directory_checks:
            self.who_has_to_wait_for_a_look_has_come_later(directory_check)
        for text in deliveries.to_agent:
            self.note_prompt(json.loads(text))
        for client, told in deliveries.to_clients.items():
            member, texts = self.members[client], list(told)
            self.no_delivery_to_who_is_gone(member)
            forked = self.forked(member, texts)
            self.who_counts_is_right_at_every_point(member, texts, forked)
            self.read_batch(member, texts, forked)
        for text in deliveries.to_agent:
            self.read_by_agent(text, before)
        assert self.refusals == 0
        self.settled_in.clear()
        self.reading = False
        for member in self.present:
            self.remember_where(member)
        for session in deliveries.wanted:
            self.scene.multiplexer.journal_loaded(session, self.world.shelf.read(session))
            self.scene.deliver()
        for home in deliveries.abandoned:
            self.world.stop(home)

    def remember_where(self, member: Member) -> None:
        """One that counts may have to tell later how far it was now."""
        for name, record in member.attached.items() if member.counts else ():
            view, place = member.views.get(record), member.places.get(name)
            if view is not None and place is not None:
                member.trail.setdefault(name, []).append(Back(member, place, list(view)))

    def note_prompt(self, body: Body) -> None:
        """A turn begins: what its prompt says belongs to the session from here on."""
        if body.get("method") == "session/prompt":
            record = self.live[body["params"]["sessionId"]]
            sender = self.sender(body["params"])
            for chunk in chunks(body["params"]):
                if sender is not None:
                    self.world.own[tag_of(chunk)] = sender
                self.world.tags[tag_of(chunk)] = record
                record.truth.append(chunk)

    def sender(self, params: Body) -> Member | None:
        """Whose prompt it is, whoever sent it over which link."""
        wishes = [wish for member in self.members.values() for wish in member.wishes.values()]
        return next((wish.member for wish in wishes if f"m{wish.number}" == params["mark"]), None)

    def forked(self, member: Member, texts: list[bytes]) -> dict[int, Record]:
        """Which of these texts are history of which fork, although they name somebody else.

        A fork's history has the words of the other session's sub-agents, under their own names.
        """
        found: dict[int, Record] = {}
        coming = [name for text in texts for name in self.opened_by(member, text)]
        for at, text in enumerate(texts):
            body = json.loads(text)
            if body.get("method") == "session/update" and coming:
                fork, parent = self.live.get(coming[0] or ""), self.world.children.get(body["params"]["sessionId"])
                if fork is not None and parent not in (None, fork) and body["params"] in fork.truth:
                    found[at] = fork
            elif member.only is None:
                # Who came for one session gets the history behind the answer.
                coming = coming[len(list(self.opened_by(member, text))) :]
        return found

    def read_batch(self, member: Member, texts: list[bytes], forked: dict[int, Record]) -> None:
        arriving = {name for text in texts for name in self.opened_by(member, text)}
        said: dict[Record, list[Body]] = {}
        for at, text in enumerate(texts):
            body = json.loads(text)
            params = body.get("params", {})
            if isinstance(text, Mark):
                self.take_mark(member, places(text), said)
            elif "method" not in body:
                wish = member.wishes.get(id_key(raw_id(text)))
                if wish is not None and wish.back is not None and "result" in body:
                    self.what_was_open_is_taken_over(member, wish.back, str(wish.session), text)
                self.every_response_reaches_its_asker_once_under_its_own_id(member, body, raw_id(text), said)
            elif body["method"] == "session/update":
                record = forked.get(at) or self.record_of(params["sessionId"])
                assert record is not None
                self.nobody_sees_a_session_that_is_not_for_them(member, params, record, arriving)
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
        for wish in member.wishes.values():
            if wish.back is not None and named.get(str(wish.session)) == wish.back.place:
                # What comes from here on is what it has missed.
                record = self.record_of(str(wish.session))
                assert record is not None
                said[record] = []

    def opened_by(self, member: Member, text: bytes) -> Iterator[str | None]:
        body = json.loads(text)
        wish = None if "method" in body else member.wishes.get(id_key(raw_id(text)))
        if wish is not None and wish.method in OPENINGS and "result" in body:
            yield body["result"].get("sessionId") or wish.session

    def add_to_view(self, member: Member, params: Body, record: Record) -> None:
        opening = self.openings.get(params["sessionId"])
        if opening is not None and opening.wish is not None:
            opening.wish.heard.append(params)
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
        fresh = [w for m in self.members.values() for w in m.wishes.values() if w.number == number and not w.at_agent]
        wish = fresh[0] if fresh else None
        session = params.get("sessionId")
        owed = Owed(raw, body["method"], session, wish, body, self.live.get(session or ""))
        if wish is not None:
            wish.at_agent = True
        if owed.method in ("session/load", "session/resume"):
            assert session is not None
            assert session not in self.openings
            self.used.add(session)
            reopened = wish is None and session in self.live
            listens = wish is not None and wish.method == "session/load"
            goes_on = wish is not None and wish.back is not None and self.knows(owed.session, wish.back.place)
            keeps = wish is not None and wish.back is not None and self.is_kept(owed.session)
            if wish is not None:
                wish.goes_on, wish.keeps = goes_on, keeps
            heard_by = wish if listens and not keeps else None
            found = self.world.disk.get(session)
            self.openings[session] = Opening(heard_by, found, not reopened and not keeps, reopened)
            if not reopened:
                assert session not in self.live, "a session that is live was opened again"
        elif owed.method in ("session/new", "session/fork"):
            owed.parent, owed.record = owed.record, None
        elif owed.method == "session/delete":
            assert session is not None
            self.used.add(session)
        elif owed.method == "session/prompt":
            assert owed.record is not None
            self.one_turn_at_a_time_and_prompts_in_order(owed, owed.record, number)
            if wish is not None and not wish.member.gone:
                view = wish.member.views.get(owed.record)
                if view is not None:
                    # It may have asked for the history behind its prompt.
                    view += [chunk for chunk in chunks(params) if chunk not in view]
        self.owed.append(owed)

    def is_over(self, record: Record | None) -> bool:
        """Whether a session was closed here: what is asked in it ends with the last turn that it may be of.

        It also ends when the agent uses the id again.
        """
        if record is None or self.closed.get(record.id) is not record:
            return False
        opening = self.openings.get(record.id)
        return (self.known.get(record.id) if opening is None else opening.record) is not record

    def knows(self, name: str | None, place: Place) -> bool:
        """Whether a place in a session can be told. A journal goes on under another epoch, and knows the former one."""
        (session,) = [session for session in self.scene.multiplexer.sessions if session.id == name]
        return session.journal.shared_with(*place) is not None

    def is_kept(self, name: str | None) -> bool:
        """Whether the history of a session that is opened again was read from the archive."""
        (session,) = [session for session in self.scene.multiplexer.sessions if session.id == name]
        return session.journal_loaded and bool(session.journal.epoch)

    def waits_for_owner(self, member: Member, wish: ConnectRequest) -> bool:
        """Whether one that has come back is there before somebody has opened the session who may."""
        may_open = member.controls and not member.guest
        return wish.back is not None and not may_open and wish.session not in self.live

    # The rules

    def no_delivery_to_who_is_gone(self, member: Member) -> None:
        assert not member.gone

    def nobody_sees_a_session_that_is_not_for_them(
        self, member: Member, params: Body, record: Record, arriving: set[str | None]
    ) -> None:
        opening = self.openings.get(params["sessionId"])
        if opening is not None:
            assert opening.wish is not None
            assert opening.wish.member is member
        else:
            assert member.attached.get(record.id) is record or record.id in arriving
        assert member.may_see(record), "another identity's session"
        # By what was said, too: ids are used again. A fork says what another session said.
        tag = tag_of(params)
        said_in = record if tag in (GAP, MAY_BE_MISSING) else self.world.tags[tag]
        assert said_in is not None
        assert said_in.owner == record.owner, "another identity's session"

    def the_agent_sees_no_id_twice(self, raw: bytes) -> None:
        assert raw not in self.seen_ids
        self.seen_ids.add(raw)

    def every_response_reaches_its_asker_once_under_its_own_id(
        self, member: Member, body: Body, raw: bytes, said: dict[Record, list[Body]]
    ) -> None:
        if raw == b"null" and self.refusals and "still in use" in body["error"]["message"]:
            self.refusals -= 1
            return
        wish = member.wishes.pop(id_key(raw), None)
        assert wish is not None, "nobody has asked for that"
        assert wish.raw == raw
        result = body.get("result")
        answer = body["error"].get("data") or {} if result is None else result
        # All that waits for the agent to be initialized gets the error, whoever's `initialize` that was.
        shared_fate = self.unwelcome if result is None and not wish.at_agent else None
        assert answer.get("for") in (None, f"m{wish.number}", shared_fate), "somebody else's answer"
        if result is not None:
            self.take_result(member, wish, result, said)

    def take_result(self, member: Member, wish: ConnectRequest, result: Body, said: dict[Record, list[Body]]) -> None:
        if wish.method in OPENINGS:
            name = str(result.get("sessionId") or wish.session)
            record = self.live[name]
            assert member.may_see(record), "another identity's session"
            view: list[Body] | None = None
            if wish.method == "session/new":
                view = [] if member.only is not None else list(said.get(record, []))
            elif wish.back is not None and (wish.goes_on if wish.at_agent else self.knows(name, wish.back.place)):
                view = [*wish.back.view, *said[record]]
            elif wish.method == "session/load":
                view = wish.heard if wish.at_agent and not wish.keeps else replay(said.get(record, []), record.truth)
            member.attached[name] = record
            member.views[record] = view
        elif wish.method == "session/close" and wish.session in member.attached:
            self.let_go(member, member.attached[wish.session])
        elif wish.method == "session/list":
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
        assert "dropped" not in result, "an answer is built anew from what was checked"
        mark = result.get("_meta", {}).get("mark") if error is None else error.get("data")
        if isinstance(mark, str):
            member = self.world.marks[mark][0]
            if error is None:
                assert self.answering is not None, "who was not asked has decided"
                ask = self.answering[1]
                assert self.answering[0] is member
                assert ask in candidates
                self.decided_by_a_controller_that_takes_part_with_what_was_offered(member, ask, result, before)
            else:
                (ask,) = [ask for ask in candidates if mark in ask.errors]
                self.an_error_decides_only_when_nobody_is_left(ask)
        elif error is not None and error["code"] == jsonrpc.REQUEST_CANCELLED:
            assert self.withdrawn in candidates
            ask, self.withdrawn = candidates[0], None
        elif error is not None:
            assert error["code"] == jsonrpc.INTERNAL_ERROR
            # Several of one id may be open: it is the one that was answered just now, not any that somebody passed on.
            assert self.answering is not None
            ask = self.answering[1]
            assert ask in candidates
            assert ask.abstained
            self.an_error_decides_only_when_nobody_is_left(ask)
        else:
            assert result == {"outcome": {"outcome": "cancelled"}}
            # Several of one id may be open: it is one of those that are not any more.
            waiting = self.tags_that_wait()
            gone = [ask for ask in candidates if ask.tag not in waiting]
            settled = [ask for ask in gone if ask.record in self.settled_in or self.is_over(ask.record)]
            assert settled, "a question was denied by default"
            ask = settled[0]
        ask.open = False
        self.asks.remove(ask)

    def tags_that_wait(self) -> set[str]:
        """The tags of the questions that wait in a session, or for one."""
        multiplexer = self.scene.multiplexer
        waiting = [question for session in (None, *multiplexer.sessions) for question in multiplexer.waiting(session)]
        return {question.describe()["tool"]["toolCallId"] for question in waiting}

    def decided_by_a_controller_that_takes_part_with_what_was_offered(
        self, member: Member, ask: Ask, result: Body, before: dict[Member, dict[str, Record]]
    ) -> None:
        assert member.controls
        assert ask.record is not None
        assert before[member].get(ask.record.id) is ask.record
        outcome = result["outcome"]
        assert outcome["outcome"] == "cancelled" or outcome["optionId"] in OPTIONS

    def an_error_decides_only_when_nobody_is_left(self, ask: Ask) -> None:
        for member in self.present:
            if ask.record is not None and member.controls and member.attached.get(ask.record.id) is ask.record:
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
            for wish in member.wishes.values():
                overtaken = wish.method == owed.method and wish.session == owed.session and not wish.at_agent
                assert not overtaken or self.place(wish.number) > self.place(number)

    def who_has_to_wait_for_a_look_has_come_later(self, directory_check: DirectoryCheck) -> None:
        """Nobody else waits for it, so that what does has its place in any order behind all that there is now."""
        for request in directory_check.behind:
            assert request.client is directory_check.request.client
            assert number_of(request) > number_of(directory_check.request)
            self.places[number_of(request)] = next(self.world.numbers)

    def look_at(self, directory_check: DirectoryCheck) -> DirectoryCheckResult:
        self.who_has_to_wait_for_a_look_has_come_later(directory_check)
        return look(directory_check)

    def place(self, number: int) -> int:
        """Where in order something is that was asked."""
        return self.places.get(number, number)

    def everyone_is_answered_in_the_end(self, member: Member) -> None:
        assert all(self.waits_for_owner(member, wish) for wish in member.wishes.values())

    def nobody_waits_for_nothing(self, member: Member) -> None:
        for wish in member.wishes.values():
            open_requests = [owed for owed in self.owed if owed.wish is wish]
            causes = [owed for owed in self.owed if owed.method == "initialize" or owed.session == wish.about]
            if self.waits_for_owner(member, wish):
                continue
            assert open_requests if wish.at_agent else causes, f"{wish.method} is forgotten"

    def who_counts_is_right_at_every_point(self, member: Member, texts: list[bytes], forked: dict[int, Record]) -> None:
        """Whatever it has received of these texts when its link is lost: what comes after its count is the rest."""
        if not member.counts:
            assert not any(isinstance(text, Mark) for text in texts)
            return
        everything = b"".join(texts)
        for session in self.scene.multiplexer.sessions:
            if session.id.encode() in everything:
                self.counts_right(member, session, texts, forked)

    def counts_right(self, member: Member, session: Session, texts: list[bytes], forked: dict[int, Record]) -> None:
        place = member.places.pop(session.id, None)
        loading = {
            key
            for key, wish in member.wishes.items()
            if wish.session == session.id and wish.method in ("session/load", "session/resume") and wish.back is None
        }
        answered: set[str] = set()
        points = [] if loading else [(place, 0)]
        received: list[Body] = []
        for number, text in enumerate(texts):
            body = json.loads(text)
            if isinstance(text, Mark):
                place = places(text).get(session.id, place)
                loading -= answered
            elif "method" not in body:
                # What follows on the answer to a resume is how things are; then comes a mark.
                (loading.discard if "error" in body else answered.add)(id_key(raw_id(text)))
                wish = member.wishes.get(id_key(raw_id(text)))
                if wish and (wish.method, wish.session) == ("session/close", session.id) and "result" in body:
                    place, points, received = None, [], []  # What comes later is not for one that has left.
            elif body["method"] == "session/update" and body["params"]["sessionId"] == session.id:
                received.append(body["params"])
                # While it waits for history, it does not know what this is.
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
                rest = [json.loads(text)["params"] for text in missing]
                assert [body for body in rest if self.world.own.get(tag_of(body)) is not member] == received[at:]
        if place is not None:
            member.places[session.id] = place
            if not loading:
                # A mark that comes before the answer may have crossed the request: what follows may still be history.
                member.unsure.discard(session.id)

    def who_counts_is_where_the_gateway_says(self, member: Member) -> None:
        if member.counts:
            positions = member.peer.client.positions()
            member.places = {name: place for name, place in member.places.items() if name in positions}
            assert member.places.items() <= positions.items()
            unknown = positions.keys() - member.places.keys()
            assert unknown <= member.unsure

    def the_archive_has_the_same(self) -> None:
        for session in self.scene.multiplexer.sessions:
            if session.state in (State.OPEN, State.DORMANT):
                kept, journal = self.world.shelf.journals[session], session.journal
                assert (kept.epoch, kept.position) == (journal.epoch, journal.position)
                assert kept.replay() == journal.replay()
                assert kept.truncated == journal.truncated

    def what_was_open_is_taken_over(self, member: Member, back: Back, name: str, text: bytes) -> None:
        old, record = back.old, self.record_of(name)
        said = jsonrpc.members_at(text, "result", "_meta", "acp-gateway")
        prompts, questions = jsonrpc.elements_of(said["prompts"]), json.loads(said["questions"])
        running = [owed.wish for owed in self.owed if owed.method == "session/prompt" and owed.record is record]
        for key, wish in list(old.wishes.items()) if old.controls else ():
            if wish.method == "session/prompt" and wish.session == name and wish in running:
                assert wish.raw in prompts or key in member.wishes
        for raw in prompts:
            wish = old.wishes.pop(id_key(raw))
            assert (wish.raw, wish.method, wish.session) == (raw, "session/prompt", name)
            assert id_key(raw) not in member.wishes
            member.wishes[id_key(raw)] = wish
            wish.member = member
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
            if ask.record is None or ask.record.id in self.openings or self.live.get(ask.record.id) is not ask.record:
                continue
            if member.controls and member.attached.get(ask.record.id) is ask.record:
                assert ask in member.copies.values() or member in ask.abstained


def encode(value: Any) -> bytes:
    return json.dumps(value, separators=(",", ":")).encode()


def id_key(raw: bytes) -> str:
    """What makes two ids the same."""
    return f"text {json.loads(raw)}" if raw.startswith(b'"') else raw.decode()


def number_of(request: Request) -> int:
    """Of what a client has asked."""
    return int(json.loads(request.message.text)["params"]["mark"][1:])


def raw_id(text: bytes) -> bytes:
    """The id of a message as it is spelled there."""
    return jsonrpc.parse(text).id


def chunks(prompt: Body) -> list[Body]:
    """A prompt as the others see it."""
    return [
        {"sessionId": prompt["sessionId"], "update": {"sessionUpdate": "user_message_chunk", "content": block}}
        for block in prompt["prompt"]
    ]


def tag_of(params: Body) -> str:
    """What an update says."""
    update = params["update"]
    text = update.get("tag") or update.get("currentModeId") or update["content"]["text"]
    assert isinstance(text, str)
    return text


def under(fork: Record, body: Body, parent: str | None) -> Body:
    """What was said in the session that a fork is of, as the fork has it."""
    return {**body, "sessionId": fork.id} if body["sessionId"] == parent else body


def gap(session_id: str) -> Body:
    content = {"type": "text", "text": GAP}
    return {"sessionId": session_id, "update": {"sessionUpdate": "agent_message_chunk", "content": content}}


def replay(said: list[Body], truth: list[Body]) -> list[Body]:
    """What of all that a client was told was told again, because it asked for the beginning."""
    begin = max((at for at, body in enumerate(said) if body in truth[:1]), default=0)
    return said[begin:]
