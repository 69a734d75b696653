"""Any clients, any sessions, any order of events: what has to hold whatever happens.

Two machines drive multiplexers through random scenes: one shared process with everybody on it, and several processes
with a connection each and one registry. The agent and its disk are part of the scene. What must hold is in `office`.
"""

from collections.abc import Iterator
from typing import ClassVar

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acp_gateway.core.sessions import Role
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from tests.core.sharing_model import IDS, OPENINGS, OPTIONS, Body, Member, Record, SharingModel, World

MANY = st.integers(0, 2**16)
"""Which of those that there are at the moment."""


class Sharing(RuleBasedStateMachine):
    """Everybody at one agent, or each at one of their own."""

    shared: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(False)

    @initialize(
        counting=st.booleans(), load=st.booleans(), sessions=st.sets(st.sampled_from(["resume", "close", "list"]))
    )
    def begin(self, counting: bool, load: bool, sessions: set[str]) -> None:
        self.world = World(counting)
        # Agents that count their sessions have them in memory; a list of such ids would be of no use to anybody.
        self.capabilities = {
            "loadSession": load,
            "sessionCapabilities": {name: {} for name in sessions if not (counting and name == "list")},
        }
        self.world.disk["old"] = Record("old", "me")
        for identity in ("me", "me", "you"):
            office = self.world.offices[0] if self.shared and self.world.offices else self.start()
            member = office.join(identity, Role.CONTROLLER, None, False, counts=identity == "me")
            office.wish(member, "initialize", None, b"0", protocolVersion=1)
            for owed in list(office.owed):
                office.settle(owed, well=True)
        first = self.world.offices[0]
        office.wish(member, "session/new", None, b"1", cwd="/srv", mcpServers=[])
        first.wish(next(iter(first.members.values())), "session/new", None, b"1", cwd="/srv", mcpServers=[])
        for office in self.world.offices:
            for owed in list(office.owed):
                office.settle(owed, well=True)

    def start(self) -> SharingModel:
        office = SharingModel(self.world, shared=self.shared, **self.capabilities)
        self.world.offices.append(office)
        return office

    # Clients

    def office(self, pick: int) -> SharingModel:
        alive = [office for office in self.world.offices if not office.dead] or [self.start()]
        return alive[pick % len(alive)]

    def names(self) -> list[str]:
        """Ids of sessions that there are, that there were, or that are on the disk."""
        names = dict.fromkeys(self.world.disk)
        for office in self.world.offices:
            names |= dict.fromkeys([*office.live, *office.closed])
        return ["nowhere", *names][-6:]

    def member(self, office: SharingModel, pick: int) -> Member | None:
        there = [member for member in office.present if not member.away]
        return there[pick % len(there)] if there else None

    def blocks(self, count: int) -> list[Body]:
        return [{"type": "text", "text": self.world.tag(None)} for _ in range(count)]

    @rule(
        where=MANY,
        which=MANY,
        identity=st.sampled_from(["me", "me", "you"]),
        kind=st.sampled_from(["plain", "plain", "observer", "attached", "watching", "guest", "guest observer"]),
        hasty=st.booleans(),
    )
    def join(self, where: int, which: int, identity: str, kind: str, hasty: bool) -> None:
        office = self.office(where)
        only = None
        names = self.names()
        if kind not in ("plain", "observer"):
            only = names[which % len(names)]
            holders = [office for office in self.world.offices if not office.dead and only in office.live]
            office = holders[0] if holders else office
        elif not self.shared:
            if len(self.world.offices) == 6:
                return
            office = self.start()
        if len(office.present) > 6:
            return
        guest = kind.startswith("guest")
        role = Role.OBSERVER if kind in ("observer", "watching", "guest observer") else Role.CONTROLLER
        member = office.join("guest-1" if guest else identity, role, only, guest, counts=which % 3 > 0)
        if hasty:
            office.introduce(member)
            if only is not None:
                office.wish(member, "session/new", None, b"1", cwd="/srv", mcpServers=[])

    @rule(where=MANY, who=MANY, which=MANY, raw=st.sampled_from(IDS), count=st.integers(1, 2))
    def prompt(self, where: int, who: int, which: int, raw: bytes, count: int) -> None:
        office = self.office(where)
        taking_part = [member for member in office.present if not member.away and member.attached]
        if taking_part:
            member = taking_part[who % len(taking_part)]
            names = [*member.attached]
            office.wish(member, "session/prompt", names[which % len(names)], raw, prompt=self.blocks(count))

    @rule(
        where=MANY,
        who=MANY,
        which=MANY,
        raw=st.sampled_from(IDS),
        method=st.sampled_from(["session/load", "session/load", "session/resume", "session/close"]),
    )
    def open_or_close(self, where: int, who: int, which: int, raw: bytes, method: str) -> None:
        """Somebody comes to a session that is there, mostly, or leaves it."""
        office = self.office(where)
        member = self.member(office, who)
        if member is not None:
            names = [*office.live, *office.closed] or self.names()
            office.wish(member, method, names[which % len(names)], raw, cwd="/srv", mcpServers=[])

    @rule(
        where=MANY,
        who=MANY,
        which=MANY,
        whose=st.sampled_from(["its own", "its own", "live here", "live here", "any"]),
        raw=st.sampled_from(IDS),
        method=st.sampled_from(
            [
                *("session/load", "session/load", "session/load", "session/resume", "session/new", "session/fork"),
                *("session/set_mode", "session/prompt", "session/close", "session/close", "session/delete"),
                *("session/list", "initialize", "x/about", "x/anything"),
            ]
        ),
    )
    def request(self, where: int, who: int, which: int, whose: str, raw: bytes, method: str) -> None:
        office = self.office(where)
        member = self.member(office, who)
        if member is None:
            return
        names = [*member.attached] if whose == "its own" else [*office.live] if whose == "live here" else []
        names = names or self.names()
        session: str | None = names[which % len(names)]
        if method in ("session/new", "session/list", "initialize", "x/anything"):
            session = None
        params: Body = {}
        if method == "session/prompt":
            params["prompt"] = self.blocks(1)
        elif method == "session/set_mode":
            params["modeId"] = self.world.tag(None)
        elif method == "initialize":
            params["protocolVersion"] = min(which, 1)
        elif method in OPENINGS:
            params |= {"cwd": "/srv" if which % 8 else "/tmp", "mcpServers": []}
        office.wish(member, method, session, raw, **params)

    @rule(
        where=MANY,
        who=MANY,
        which=MANY,
        method=st.sampled_from(["$/cancel_request", "$/cancel_request", "session/cancel", "session/cancel", "x/news"]),
    )
    def notify(self, where: int, who: int, which: int, method: str) -> None:
        office = self.office(where)
        member = self.member(office, who)
        if member is None:
            return
        if method == "$/cancel_request":
            raws = [wish.raw for other in office.present for wish in other.wishes.values()] or [b"0"]
            office.cancel_request(member, raws[which % len(raws)])
            return
        names: list[str | None] = [*member.attached, *self.names(), None]
        session = names[which % len(names)]
        if method == "session/cancel" and member.controls and session in member.attached:
            office.settled_in.add(member.attached[session])
        office.tell(member, method, session)

    @precondition(lambda self: any(member.copies for _, member in self.everybody()))
    @rule(
        where=MANY,
        who=MANY,
        which=MANY,
        outcome=st.sampled_from(
            [
                *({"outcome": "selected", "optionId": option} for option in (*OPTIONS, "always", "never")),
                *({"outcome": "cancelled"}, None, None),
            ]
        ),
    )
    def answer(self, where: int, who: int, which: int, outcome: Body | None) -> None:
        asked = [(office, member) for office, member in self.everybody() if not member.away and member.copies]
        if asked and which % 8:
            office, member = asked[who % len(asked)]
            minted = [*member.copies]
            office.reply(member, minted[which % len(minted)], outcome)
        else:
            # Somebody who was not asked, or was, once.
            office = self.office(where)
            anybody = self.member(office, who)
            if anybody is not None:
                office.reply(anybody, which % (anybody.last_minted + 3), outcome)

    @rule(where=MANY, who=MANY, how=st.sampled_from(["leave", "away", "away", "back", "back", "back", "dismiss"]))
    def go(self, where: int, who: int, how: str) -> None:
        office = self.office(where)
        if how == "back":
            away = [member for member in office.present if member.away]
            if away:
                away[who % len(away)].away = False
                away[who % len(away)].peer.back()
            return
        member = self.member(office, who)
        if member is None:
            return
        if how == "leave":
            office.leave(member)
        elif how == "dismiss":
            office.dismiss(member)
        else:
            member.away = True
            member.peer.away()

    @precondition(lambda self: self.lost())
    @rule(
        where=MANY,
        who=MANY,
        which=MANY,
        method=st.sampled_from(["session/load", "session/resume"]),
        known=st.sampled_from([True, True, True, False]),
    )
    def come_back(self, where: int, who: int, which: int, method: str, known: bool) -> None:
        """Somebody whose link could not be resumed takes up a session over another one."""
        lost = self.lost()
        old = lost[who % len(lost)]
        names = [*old.trail]
        name = names[which % len(names)]
        office = self.office(where)
        if old.only is not None or self.shared:
            office = next((it for it in self.world.offices if not it.dead and name in it.live), office)
        elif len(self.world.offices) < 8:
            office = self.start()
        else:
            return
        if len(office.present) < 7:
            trail = old.trail[name]
            office.come_back(old, name, trail[max(0, len(trail) - 1 - which % 4)], method, known=known)

    def lost(self) -> list[Member]:
        """Those that are gone, and knew where they were."""
        members = [member for office in self.world.offices for member in office.members.values()]
        return [member for member in members if member.gone and member.trail and not member.returned]

    # The agent

    @precondition(lambda self: any(office.owed for office in self.world.offices if not office.dead))
    @rule(
        where=MANY,
        which=MANY,
        count=st.sampled_from([1, 1, 100]),
        well=st.sampled_from([True, True, True, False]),
        spelling=st.sampled_from([b"%b", b"%b.0"]),
    )
    def settle(self, where: int, which: int, count: int, well: bool, spelling: bytes) -> None:
        busy = [office for office in self.world.offices if not office.dead and office.owed]
        office = busy[where % len(busy)]
        for owed in [*office.owed[which % len(office.owed) :], *office.owed][:count]:
            if owed in office.owed:
                office.settle(owed, well=well, spelling=spelling)

    def spoken_of(self, office: SharingModel, which: int) -> tuple[str, Record | None] | None:
        """A session that the agent speaks of now: open, being opened, promised, closed, or a child's.

        It must be heard, or a child would have a parent here that the gateway can't know of when the turn is over.
        """
        names: list[tuple[str, Record | None]] = [it for it in office.known.items() if it[0] not in office.openings]
        names += [(name, opening.record) for name, opening in office.openings.items() if opening.record is not None]
        promised = [owed.record for owed in office.promised if owed.record is not None]
        names += [(record.id, record) for record in promised if record.id not in office.used]
        names += [(name, record) for name, record in office.closed.items() if not office.has(name)]
        # A process that was started again knows nothing of the children that it had.
        names += [(name, record) for name, record in office.begun.items() if record.id not in office.openings]
        running = office.running()
        if len(running) == 1 and not office.awaited:
            names.append((f"child{next(self.world.numbers)}", running[0]))
        if not names:
            return None
        name, record = names[which % len(names)]
        if name.startswith("child") and record is not None:
            office.begun[name] = self.world.children[name] = record
        return name, record

    @rule(where=MANY, which=MANY, how=st.sampled_from(["talk", "state", "early"]))
    def update(self, where: int, which: int, how: str) -> None:
        office = self.office(where)
        if how == "early" and office.awaited:
            # The response that names the session is still to come.
            record = office.promise(office.awaited[which % len(office.awaited)])
            # What comes early under the id of a session that has ended counts as that one's, and is for nobody.
            if record.id not in office.used:
                office.update(record.id, record)
            return
        about = self.spoken_of(office, which)
        if about is not None:
            office.update(*about, state=how == "state")

    @rule(where=MANY, which=MANY, raw=st.sampled_from(IDS), recalls=st.sampled_from([False, False, True]))
    def ask(self, where: int, which: int, raw: bytes, recalls: bool) -> None:
        office = self.office(where)
        if recalls:
            raws = [*(ask.raw for ask in office.asks), b"7"]
            office.withdraw(raws[which % len(raws)])
            return
        if len(office.asks) == 8:
            return
        about = self.spoken_of(office, which)
        if about is not None:
            office.ask(*about, raw)

    @rule(where=MANY, raw=st.sampled_from(IDS))
    def babble(self, where: int, raw: bytes) -> None:
        """An answer to what nobody has asked: nobody gets it."""
        office = self.office(where)
        if all(jsonrpc.id_number(RawId(owed.raw)) != jsonrpc.id_number(RawId(raw)) for owed in office.owed):
            office.scene.agent.say(b'{"jsonrpc":"2.0","id":%b,"result":{"for":"nobody"}}' % raw)

    @rule(where=MANY, sure=st.integers(0, 3))
    def lose_agent(self, where: int, sure: int) -> None:
        office = self.office(where)
        if sure == 1 and office.scene.multiplexer.wants_agent:
            office.lose_agent()

    # What holds at any time

    def everybody(self) -> Iterator[tuple[SharingModel, Member]]:
        for office in self.world.offices:
            for member in office.present if not office.dead else []:
                yield office, member

    @invariant()
    def all_is_well(self) -> None:
        for office, member in self.everybody():
            office.all_see_the_same(member)
            office.nobody_waits_for_nothing(member)
            office.every_controller_is_asked(member)
            office.losers_are_told(member)
            office.who_counts_is_where_the_gateway_says(member)
        for office in self.world.offices:
            office.the_archive_has_the_same()

    def teardown(self) -> None:
        for office in self.world.offices:
            if not office.dead and not office.reading:
                office.lose_agent()


class OneAgentForAll(Sharing):
    shared = True


class AnAgentForEach(Sharing):
    shared = False


TestOneAgentForAll = OneAgentForAll.TestCase
TestOneAgentForAll.settings = settings(max_examples=200, stateful_step_count=150)
TestAnAgentForEach = AnAgentForEach.TestCase
TestAnAgentForEach.settings = settings(max_examples=200, stateful_step_count=150)
