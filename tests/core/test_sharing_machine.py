"""Any clients, any sessions, any order of events: what has to hold whatever happens.

Two machines drive multiplexers through random scenes: one shared process with all clients on it, and several processes
with a connection each and one registry. The agent and its disk are part of the scene. The rules are in `sharing_model`.
"""

from collections.abc import Iterator
from typing import Any, ClassVar

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acp_gateway.core.sessions.session import Role
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.jsonrpc import RawId
from tests.core.sharing_model import IDS, OPENINGS, OPTIONS, Body, Member, Record, SharingModel, World, gap
from tests.fuzz.effort import effort

MANY = st.integers(0, 2**16)
"""Draw one of those present."""


class Sharing(RuleBasedStateMachine):
    """All clients at one agent, or each at one of its own."""

    shared: ClassVar[bool]

    def __init__(self) -> None:
        super().__init__()
        self.world = World(False)

    @initialize(
        counting=st.booleans(), load=st.booleans(), sessions=st.sets(st.sampled_from(["resume", "close", "list"]))
    )
    def begin(self, counting: bool, load: bool, sessions: set[str]) -> None:
        self.world = World(counting)
        # Agents that count their sessions have them in memory, so a list of such ids would be useless.
        self.capabilities = {
            "loadSession": load,
            "sessionCapabilities": {name: {} for name in sessions if not (counting and name == "list")},
        }
        self.world.disk["old"] = Record("old", "me")
        for identity in ("me", "me", "you"):
            model = self.world.models[0] if self.shared and self.world.models else self.start()
            member = model.join(identity, Role.CONTROLLER, None, False, counts=identity == "me")
            model.request(member, "initialize", None, b"0", protocolVersion=1)
            for owed in list(model.owed):
                model.settle(owed, well=True)
        first = self.world.models[0]
        model.request(member, "session/new", None, b"1", cwd="/srv", mcpServers=[])
        first.request(next(iter(first.members.values())), "session/new", None, b"1", cwd="/srv", mcpServers=[])
        for model in self.world.models:
            for owed in list(model.owed):
                model.settle(owed, well=True)

    def start(self) -> SharingModel:
        model = SharingModel(self.world, shared=self.shared, **self.capabilities)
        self.world.models.append(model)
        return model

    # Clients

    def model(self, pick: int) -> SharingModel:
        alive = [model for model in self.world.models if not model.dead] or [self.start()]
        return alive[pick % len(alive)]

    def names(self) -> list[str]:
        """Ids of sessions that exist, that existed, or that are on the disk."""
        names = dict.fromkeys(self.world.disk)
        for model in self.world.models:
            names |= dict.fromkeys([*model.live, *model.closed])
        return ["nowhere", *names][-6:]

    def member(self, model: SharingModel, pick: int) -> Member | None:
        there = [member for member in model.present if not member.away]
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
        model = self.model(where)
        only = None
        names = self.names()
        if kind not in ("plain", "observer"):
            only = names[which % len(names)]
            holders = [model for model in self.world.models if not model.dead and only in model.live]
            model = holders[0] if holders else model
        elif not self.shared:
            if len(self.world.models) == 6:
                return
            model = self.start()
        if len(model.present) > 6:
            return
        guest = kind.startswith("guest")
        role = Role.OBSERVER if kind in ("observer", "watching", "guest observer") else Role.CONTROLLER
        member = model.join("guest-1" if guest else identity, role, only, guest, counts=which % 3 > 0)
        if hasty:
            model.introduce(member)
            if only is not None:
                model.request(member, "session/new", None, b"1", cwd="/srv", mcpServers=[])

    @rule(where=MANY, who=MANY, which=MANY, raw=st.sampled_from(IDS), count=st.integers(1, 2))
    def prompt(self, where: int, who: int, which: int, raw: bytes, count: int) -> None:
        model = self.model(where)
        taking_part = [member for member in model.present if not member.away and member.attached]
        if taking_part:
            member = taking_part[who % len(taking_part)]
            names = [*member.attached]
            model.request(member, "session/prompt", names[which % len(names)], raw, prompt=self.blocks(count))

    @rule(
        where=MANY,
        who=MANY,
        which=MANY,
        raw=st.sampled_from(IDS),
        method=st.sampled_from(["session/load", "session/load", "session/resume", "session/close"]),
    )
    def open_or_close(self, where: int, who: int, which: int, raw: bytes, method: str) -> None:
        """Mostly join a present session, or leave it."""
        model = self.model(where)
        member = self.member(model, who)
        if member is not None:
            names = [*model.live, *model.closed] or self.names()
            model.request(member, method, names[which % len(names)], raw, cwd="/srv", mcpServers=[])

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
        model = self.model(where)
        member = self.member(model, who)
        if member is None:
            return
        names = [*member.attached] if whose == "its own" else [*model.live] if whose == "live here" else []
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
        model.request(member, method, session, raw, **params)

    @rule(
        where=MANY,
        who=MANY,
        which=MANY,
        method=st.sampled_from(["$/cancel_request", "$/cancel_request", "session/cancel", "session/cancel", "x/news"]),
    )
    def notify(self, where: int, who: int, which: int, method: str) -> None:
        model = self.model(where)
        member = self.member(model, who)
        if member is None:
            return
        if method == "$/cancel_request":
            raws = [request.raw for other in model.present for request in other.requests.values()] or [b"0"]
            model.cancel_request(member, raws[which % len(raws)])
            return
        names: list[str | None] = [*member.attached, *self.names(), None]
        session = names[which % len(names)]
        if method == "session/cancel" and member.controls and session in member.attached:
            model.settled_in.add(member.attached[session])
        model.tell(member, method, session)

    @precondition(lambda self: any(member.copies for _, member in self.all_members()))
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
        asked = [(model, member) for model, member in self.all_members() if not member.away and member.copies]
        if asked and which % 8:
            model, member = asked[who % len(asked)]
            minted = [*member.copies]
            model.reply(member, minted[which % len(minted)], outcome)
        else:
            # A client that was not asked, or was earlier.
            model = self.model(where)
            receiver = self.member(model, who)
            if receiver is not None:
                model.reply(receiver, which % (receiver.last_minted + 3), outcome)

    @rule(where=MANY, who=MANY, how=st.sampled_from(["leave", "away", "away", "back", "back", "back", "dismiss"]))
    def go(self, where: int, who: int, how: str) -> None:
        model = self.model(where)
        if how == "back":
            away = [member for member in model.present if member.away]
            if away:
                away[who % len(away)].away = False
                away[who % len(away)].peer.back()
            return
        member = self.member(model, who)
        if member is None:
            return
        if how == "leave":
            model.leave(member)
        elif how == "dismiss":
            model.dismiss(member)
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
        """Rejoin a session over another link after the link could not be resumed."""
        lost = self.lost()
        old = lost[who % len(lost)]
        names = [*old.trail]
        name = names[which % len(names)]
        model = self.model(where)
        if old.only is not None or self.shared:
            model = next((it for it in self.world.models if not it.dead and name in it.live), model)
        elif len(self.world.models) < 8:
            model = self.start()
        else:
            return
        if len(model.present) < 7:
            trail = old.trail[name]
            model.come_back(old, name, trail[max(0, len(trail) - 1 - which % 4)], method, known=known)

    def lost(self) -> list[Member]:
        """Departed clients that knew their positions."""
        members = [member for model in self.world.models for member in model.members.values()]
        return [member for member in members if member.gone and member.trail and not member.returned]

    # The agent

    @precondition(lambda self: any(model.owed for model in self.world.models if not model.dead))
    @rule(
        where=MANY,
        which=MANY,
        count=st.sampled_from([1, 1, 100]),
        well=st.sampled_from([True, True, True, False]),
        spelling=st.sampled_from([b"%b", b"%b.0"]),
    )
    def settle(self, where: int, which: int, count: int, well: bool, spelling: bytes) -> None:
        busy = [model for model in self.world.models if not model.dead and model.owed]
        model = busy[where % len(busy)]
        for owed in [*model.owed[which % len(model.owed) :], *model.owed][:count]:
            if owed in model.owed:
                model.settle(owed, well=well, spelling=spelling)

    def spoken_of(self, model: SharingModel, which: int) -> tuple[str, Record | None] | None:
        """A session that the agent speaks of now: open, being opened, promised, closed, or one that no client opened.

        Of a child it tells the parent, of a stray it does not.
        """
        names: list[tuple[str, Record | None]] = [it for it in model.known.items() if it[0] not in model.openings]
        names += [(name, opening.record) for name, opening in model.openings.items() if opening.record is not None]
        promised = [owed.record for owed in model.promised if owed.record is not None]
        names += [(record.id, record) for record in promised if record.id not in model.used]
        names += [(name, record) for name, record in model.closed.items() if not model.has(name)]
        # A restarted process knows nothing of its former children.
        names += [(name, record) for name, record in model.begun.items() if record.id not in model.openings]
        open_here = [it for it in model.known.values() if model.live.get(it.id) is it and it.id not in model.openings]
        for kind in ("child", "stray") if open_here and not model.awaited else ():
            names.append((f"{kind}{next(self.world.numbers)}", open_here[which % len(open_here)]))
        if not names:
            return None
        name, record = names[which % len(names)]
        if name.startswith("child") and name not in model.begun and record is not None:
            model.announce(name, record)
        if name.startswith("stray") and len(model.had) < 2:
            return None  # There is no doubt whose it is.
        return name, record

    @rule(where=MANY, which=MANY, how=st.sampled_from(["talk", "state", "early"]))
    def update(self, where: int, which: int, how: str) -> None:
        model = self.model(where)
        # The response that names the session is pending.
        coming = [owed for owed in model.awaited if owed.request is not None]
        if how == "early" and coming:
            record = model.promise(coming[which % len(coming)])
            # Early updates under the id of an ended session count as that session's, and are dropped.
            if record.id not in model.used:
                model.update(record.id, record)
            return
        about = self.spoken_of(model, which)
        if about is not None:
            model.update(*about, state=how == "state")

    @rule(where=MANY, which=MANY, how=st.sampled_from(["all", "all", "text", "half"]))
    def retell(self, where: int, which: int, how: str) -> None:
        """Replay a session, or a part of it: while it is opened or afterwards, and a fork also before the response."""
        model = self.model(where)
        at_hand = [(name, it.record) for name, it in model.openings.items() if it.record is not None and not it.truth]
        at_hand += [(name, model.live[name]) for name in model.fresh if name in model.live]
        forks = [it for it in model.awaited if it.parent in model.live.values() and it not in model.promised]
        at_hand += [("", it.parent) for it in forks if it.parent is not None]
        if at_hand:
            name, record = at_hand[which % len(at_hand)]
            # Of a history without its beginning, an agent may tell that alone.
            cut = any(body == gap(record.id) for body in record.truth)
            fork = next((it for it in forks if it.parent is record and not name), None)
            told = model.retell(model.promise(fork).id if fork is not None else name, record, "all" if cut else how)
            if fork is not None:
                fork.told = told

    @rule(where=MANY, which=MANY, raw=st.sampled_from(IDS), recalls=st.sampled_from([False, False, True]))
    def ask(self, where: int, which: int, raw: bytes, recalls: bool) -> None:
        model = self.model(where)
        if recalls:
            raws = [*(ask.raw for ask in model.asks), b"7"]
            model.withdraw(raws[which % len(raws)])
            return
        if len(model.asks) == 8:
            return
        about = self.spoken_of(model, which)
        if about is not None:
            model.ask(*about, raw)

    @rule(where=MANY, raw=st.sampled_from(IDS))
    def babble(self, where: int, raw: bytes) -> None:
        """Send a response to no request; it is dropped."""
        model = self.model(where)
        if all(jsonrpc.id_number(RawId(owed.raw)) != jsonrpc.id_number(RawId(raw)) for owed in model.owed):
            model.scene.agent.say(b'{"jsonrpc":"2.0","id":%b,"result":{"for":"none"}}' % raw)

    @rule(where=MANY, sure=st.integers(0, 3))
    def lose_agent(self, where: int, sure: int) -> None:
        model = self.model(where)
        if sure == 1 and model.scene.multiplexer.wants_agent:
            model.lose_agent()

    # What holds at any time

    def all_members(self) -> Iterator[tuple[SharingModel, Member]]:
        for model in self.world.models:
            for member in model.present if not model.dead else []:
                yield model, member

    @invariant()
    def all_is_well(self) -> None:
        for model, member in self.all_members():
            model.all_see_the_same(member)
            model.no_client_waits_in_vain(member)
            model.every_controller_is_asked(member)
            model.losers_are_told(member)
            model.who_counts_is_where_the_gateway_says(member)
        for model in self.world.models:
            model.the_archive_has_the_same()

    def teardown(self) -> None:
        for model in self.world.models:
            if not model.dead and not model.reading:
                model.lose_agent()


class OneAgentForAll(Sharing):
    shared = True


class AnAgentForEach(Sharing):
    shared = False


TestOneAgentForAll = OneAgentForAll.TestCase
TestOneAgentForAll.settings = effort(50, steps=150)
TestAnAgentForEach = AnAgentForEach.TestCase
TestAnAgentForEach.settings = effort(50, steps=150)


ONE = {"where": 0, "which": 0}
USUAL: dict[str, dict[str, Any]] = {
    "begin": {"counting": False, "load": False, "sessions": set()},
    "prompt": ONE | {"who": 0, "raw": b"1", "count": 1},
    "request": ONE | {"who": 0, "whose": "any", "raw": b"2"},
    "settle": ONE | {"count": 1, "well": True, "spelling": b"%b"},
    "update": ONE | {"how": "talk"},
    "retell": ONE | {"how": "all"},
    "ask": ONE | {"raw": b"1", "recalls": False},
    "lose_agent": {"where": 0, "sure": 1},
    "go": {"where": 0, "who": 0},
    "open_or_close": ONE | {"raw": b"1"},
}
"""Arguments of the steps, unless those give others."""

CLOSE, FORK, LOAD = ({"method": f"session/{name}"} for name in ("close", "fork", "load"))
Step = tuple[str, dict[str, Any]]
WALKS: list[tuple[type[Sharing], list[Step]]] = [
    # A session without a prompt is about to be made again, and the agent has no name for it yet.
    (
        OneAgentForAll,
        [
            ("begin", {"sessions": {"resume"}}),
            ("lose_agent", {}),
            ("request", LOAD),
            ("settle", {}),
            ("settle", {"well": False}),
            ("settle", {"well": False}),
            ("update", {"how": "early"}),
            ("settle", {"count": 100, "well": False}),
        ],
    ),
    # The agent ends before it can make that again, and opens it the next time.
    (
        OneAgentForAll,
        [
            ("begin", {"sessions": {"resume"}}),
            ("lose_agent", {}),
            ("request", LOAD),
            ("settle", {}),
            ("settle", {"well": False}),
            ("lose_agent", {}),
            ("prompt", {}),
            ("settle", {}),
            ("settle", {}),
            ("ask", {}),
        ],
    ),
    # A fork says something of its own before its response, and tells its history behind that.
    (
        OneAgentForAll,
        [
            ("begin", {}),
            ("prompt", {}),
            ("request", FORK | {"which": 3}),
            ("update", {"how": "early"}),
            ("settle", {"which": 1}),
            ("retell", {}),
        ],
    ),
    # A fork tells the history of a session that is closed before the response.
    (
        OneAgentForAll,
        [
            ("begin", {"sessions": {"close"}}),
            ("prompt", {}),
            ("settle", {}),
            ("request", FORK | {"which": 3}),
            ("request", CLOSE | {"which": 3, "raw": b"3"}),
            ("retell", {}),
            ("settle", {"which": 1, "count": 100}),
        ],
    ),
    # An identity without a session has asked the new process for something: a question of no known session may be its.
    (
        OneAgentForAll,
        [
            ("begin", {"sessions": {"resume"}, "load": True}),
            ("go", {"how": "away"}),
            ("open_or_close", CLOSE | {"who": 1}),
            ("lose_agent", {}),
            ("go", {"how": "back"}),
            ("request", {"method": "session/new", "raw": b"1", "which": 1, "whose": "its own"}),
            ("settle", {}),
            ("settle", {}),
            ("settle", {}),
            ("prompt", {}),
            ("request", {"method": "x/anything", "raw": b"1", "who": 2, "whose": "its own"}),
            ("ask", {"which": 3}),
            ("settle", {}),
        ],
    ),
    # A session is opened again while it is forked.
    (
        AnAgentForEach,
        [
            ("begin", {"sessions": {"close", "resume"}}),
            ("request", FORK | {"where": 2, "which": 3}),
            ("request", CLOSE | {"where": 2, "which": 3, "raw": b"3"}),
            ("request", LOAD | {"where": 2, "which": 3, "raw": b"4"}),
            ("settle", {"which": 1, "count": 2}),
            ("request", LOAD | {"where": 2, "which": 4, "raw": b"5"}),
        ],
    ),
]


@pytest.mark.parametrize(("kind", "steps"), WALKS)
def test_walks_in_which_one_of_the_rules_was_broken_once(kind: type[Sharing], steps: list[Step]) -> None:
    machine = kind()
    for name, said in steps:
        getattr(machine, name)(**USUAL[name] | said)
        machine.all_is_well()
    machine.teardown()
