"""A gateway that is killed or stopped at any moment: each viewer sees what the agent said, or is told that it may not.

A gateway is a multiplexer here, and an archive with a copy on the disk: the copy is made at random moments, as
writing behind does it, and is all that the next gateway has. Viewers are what `connect` has at its core. What a gateway
says to them arrives when chance has it, or never. The agent says numbered updates; to a session that is loaded it tells
all of them, or nothing. A stock client, which proves no position, may have a session loaded as well.
"""

import json
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from acp_gateway.client.editor_state import Outcome
from acp_gateway.client.recovery import RecoveryState
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, Role, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.protocol.link_messages import texts_of
from tests.fuzz.effort import effort
from tests.kit.scene import Shelf, checks_of, encode, journals_of, look, make_policy

PLENTY = 1_000_000
ABILITIES: list[dict[str, Any]] = [
    {"loadSession": True},
    {"loadSession": True, "sessionCapabilities": {"resume": {}}},
    {"sessionCapabilities": {"resume": {}}},
]
LOST = "[acp-gateway: "


@dataclass(eq=False)
class Watcher:
    """An editor, with the core of a shim in front of it."""

    name: str
    role: Role
    is_new: bool = False
    """True for an editor of version 2."""
    conversation: RecoveryState = field(default_factory=RecoveryState)
    client: Client | None = None
    incoming: deque[bytes] = field(default_factory=deque)
    """Messages of a gateway that have not arrived."""
    seen: list[int | None] = field(default_factory=list)
    """Numbers of the updates that the editor got since it has the session; None for a gap."""
    has_session: bool = False
    links: int = 0


class Restarting(RuleBasedStateMachine):
    """Gateways, one after the other, and the watchers of one session."""

    @initialize(
        ability=st.sampled_from(ABILITIES), limit=st.sampled_from([600, PLENTY]), new=st.sets(st.integers(0, 2))
    )
    def begin(self, ability: dict[str, Any], limit: int, new: set[int]) -> None:
        self.ability, self.limit = ability, limit
        self.said = 0
        self.lives = 0
        # The history on the disk, of the last copy.
        self.disk: Journal | None = None
        self.stored = self.stored_as_open = False
        self.watchers = [
            Watcher("ann", Role.CONTROLLER),
            Watcher("bob", Role.CONTROLLER),
            Watcher("eve", Role.OBSERVER),
        ]
        for index in new:
            self.watchers[index].is_new = True
        self.start()
        ann = self.watchers[0]
        self.arrive_all(ann)
        self.ask(ann, 1, "session/new", cwd="/srv", mcpServers=[])
        self.answer_all(replayed=False)
        self.arrive_all(ann)
        assert ann.has_session
        for watcher in self.watchers[1:]:
            self.arrive_all(watcher)
            if watcher.is_new:
                self.ask(watcher, 1, "session/resume", sessionId="s", cwd="/srv", replayFrom={"type": "start"})
            else:
                self.ask(watcher, 1, "session/load", sessionId="s", cwd="/srv", mcpServers=[])
            self.arrive_all(watcher)
            assert watcher.has_session
        self.commit()

    # The gateway

    def start(self) -> None:
        """Start another gateway with the content of the disk."""
        self.lives += 1
        self.shelf = Shelf(self.limit)
        self.registry = Registry("me", self.shelf, f"run{self.lives}")
        self.multiplexer = Multiplexer("agent", make_policy(journal_limit=self.limit), self.registry)
        self.wanted: list[Session] = []
        self.to_agent: deque[dict[str, Any]] = deque()
        if self.stored:
            session = Session("agent", "s", "me", Journal(self.limit))
            session.cwd = "/srv"
            session.keep_directory()
            session.may_lack_end = self.stored_as_open
            self.registry.restore(session)
            if self.stored_as_open:
                # The disk keeps that until it is told otherwise.
                self.shelf.open.add(session)
            if self.disk is not None:
                self.shelf.journals[session] = self.copied(self.disk)
        for watcher in self.watchers:
            watcher.client = None
            watcher.incoming.clear()
            self.connect(watcher)

    def copied(self, journal: Journal) -> Journal:
        copy = Journal(self.limit, journal.epoch)
        copy.restore(
            journal.states_set_aside(),
            journal.runs(),
            journal.position,
            truncated=journal.truncated,
            former=journal.former,
        )
        return copy

    def deliver(self) -> None:
        output = self.multiplexer.take_output()
        for text in output.to_agent:
            message = json.loads(text)
            if message["method"] == "initialize":
                welcome = {"protocolVersion": 1, "agentCapabilities": self.ability}
                self.multiplexer.receive_from_agent([encode(id=message["id"], result=welcome)])
                self.deliver()
            else:
                self.to_agent.append(message)
        self.wanted += journals_of(output)
        for watcher in self.watchers:
            if watcher.client is not None:
                watcher.incoming += texts_of(output.to_clients.get(watcher.client, ()))
        for directory_check in checks_of(output):
            self.multiplexer.directories_checked(directory_check, look(directory_check))
            self.deliver()

    @property
    def session(self) -> Session | None:
        return next((session for session in self.multiplexer.sessions if session.id == "s"), None)

    # Watchers

    def connect(self, watcher: Watcher) -> None:
        """Connect over a new link."""
        lost = "" if watcher.links == 0 else f"{watcher.name}{watcher.links}"
        watcher.links += 1
        watcher.incoming.clear()
        link = f"{watcher.name}{watcher.links}"
        watcher.client = Client(watcher.name, SessionReach("me"), watcher.role, link=link)
        self.multiplexer.attach(watcher.client)
        if watcher.conversation.started:
            self.do(watcher, watcher.conversation.begin_recovery(lost, [], "lost"))
        else:
            self.ask(watcher, 0, "initialize", protocolVersion=2 if watcher.is_new else 1)

    def ask(self, watcher: Watcher, number: int, method: str, **params: Any) -> None:
        self.do(watcher, watcher.conversation.from_editor([encode(id=number, method=method, params=params)]))

    def do(self, watcher: Watcher, outcome: Outcome) -> None:
        for text in outcome.to_editor:
            self.editor_hears(watcher, json.loads(text))
        for text in outcome.to_gateway:
            assert watcher.client is not None
            self.multiplexer.receive_from_client(watcher.client, text)
        self.deliver()

    def editor_hears(self, watcher: Watcher, message: dict[str, Any]) -> None:
        if message.get("id") == 1:
            assert "result" in message, message
            watcher.has_session = True
        elif message.get("method") == "session/update" and "content" in message["params"]["update"]:
            text = message["params"]["update"]["content"]["text"]
            watcher.seen.append(None if text.startswith(LOST) else int(text.split()[0]))

    def arrive_all(self, watcher: Watcher) -> None:
        self.arrive_some(watcher, len(watcher.incoming))
        while watcher.incoming:
            self.arrive_some(watcher, 1)

    def arrive_some(self, watcher: Watcher, count: int) -> None:
        batch = [watcher.incoming.popleft() for _ in range(min(count, len(watcher.incoming)))]
        if batch:
            self.do(watcher, watcher.conversation.from_gateway(batch))

    def answer_all(self, *, replayed: bool) -> None:
        """Answer the requests at the agent, with a replay if requested."""
        while self.to_agent:
            message = self.to_agent.popleft()
            result = {"sessionId": "s"} if message["method"] == "session/new" else {}
            if message["method"] == "session/load" and replayed:
                self.multiplexer.receive_from_agent([self.update(number) for number in range(1, self.said + 1)])
            self.multiplexer.receive_from_agent([encode(id=message["id"], result=result)])
        self.deliver()

    def update(self, number: int) -> bytes:
        content = {"type": "text", "text": f"{number} {'x' * 40}"}
        update = {"sessionUpdate": "agent_message_chunk", "content": content}
        return encode(method="session/update", params={"sessionId": "s", "update": update})

    # What happens

    @rule(count=st.integers(1, 4))
    def agent_speaks(self, count: int) -> None:
        session = self.session
        if session is not None and session.transit is None:
            for _ in range(count):
                self.said += 1
                self.multiplexer.set_time(0.0, self.said)
                self.multiplexer.receive_from_agent([self.update(self.said)])
            self.deliver()

    @rule(index=st.integers(0, 2), count=st.integers(1, 5))
    def some_arrives(self, index: int, count: int) -> None:
        self.arrive_some(self.watchers[index], count)

    @rule(index=st.integers(0, 2))
    def all_arrives(self, index: int) -> None:
        self.arrive_all(self.watchers[index])

    @rule()
    def commit(self) -> None:
        """Write all calls of the archive to the disk."""
        for session, journal in self.shelf.journals.items():
            self.stored, self.disk = True, self.copied(journal)
            self.stored_as_open = session in self.shelf.open
            assert session.id == "s"
            self.times_are_right(journal)

    @rule(failed=st.sampled_from([False, False, False, True]))
    def history_is_read(self, *, failed: bool) -> None:
        """Return a requested journal, as the disk has it after all queued writes, or too late."""
        for session in self.wanted:
            self.commit()
            self.multiplexer.journal_loaded(session, None if failed else self.shelf.read(session))
        self.wanted.clear()
        self.deliver()

    @rule(replayed=st.booleans())
    def agent_answers(self, *, replayed: bool) -> None:
        self.answer_all(replayed=replayed)

    @rule(replayed=st.booleans())
    def all_goes_on(self, *, replayed: bool) -> None:
        """Let everything arrive that is on its way, and what follows from it."""
        for _ in range(4):
            self.history_is_read(failed=False)
            self.answer_all(replayed=replayed)
            for watcher in self.watchers:
                self.arrive_all(watcher)

    @rule(index=st.integers(0, 2))
    def link_is_lost_for_good(self, index: int) -> None:
        watcher = self.watchers[index]
        assert watcher.client is not None
        self.multiplexer.client_gone(watcher.client)
        self.deliver()
        self.connect(watcher)

    @rule()
    def stock_client_loads(self) -> None:
        client = Client("max", SessionReach("me"))
        self.multiplexer.attach(client)
        for number, method in enumerate(("initialize", "session/load")):
            params = {"protocolVersion": 1} if number == 0 else {"sessionId": "s", "cwd": "/srv", "mcpServers": []}
            self.multiplexer.receive_from_client(client, encode(id=number, method=method, params=params))
            self.deliver()

    @precondition(lambda self: self.lives < 12)
    @rule()
    def gateway_is_killed(self) -> None:
        self.start()

    @precondition(lambda self: self.lives < 12)
    @rule()
    def gateway_is_stopped(self) -> None:
        is_open = self.session is not None and self.session.transit is None
        self.multiplexer.shut_down()
        self.commit()
        if is_open:
            assert not self.stored_as_open, "the next opening would bring a gap without a kill"
        self.start()

    def teardown(self) -> None:
        """Check that no editor has an unknown gap once all messages have arrived.

        What has reached no disk and no editor counts as well: the agent may tell it later, as history.
        """
        if not hasattr(self, "watchers"):
            return
        for _ in range(5):
            self.all_goes_on(replayed=True)
        assert self.session is not None
        self.times_are_right(self.session.journal)
        for watcher in self.watchers:
            assert not watcher.conversation.recovering
            self.nothing_comes_twice(watcher)
            self.nothing_is_missing_silently(watcher)

    def times_are_right(self, journal: Journal) -> None:
        """Check that each update has the time at which it came, or none if the agent replayed it."""
        held = journal.start, journal.position
        for text, time in zip(journal.messages(*held), journal.times(*held), strict=True):
            words = json.loads(text)["params"]["update"]["content"]["text"]
            assert words.startswith(LOST) or time in (None, int(words.split()[0]))

    def nothing_comes_twice(self, watcher: Watcher) -> None:
        numbers = [number for number in watcher.seen if number is not None]
        assert numbers == sorted(set(numbers)), f"{watcher.name} has seen {watcher.seen}"

    def nothing_is_missing_silently(self, watcher: Watcher) -> None:
        seen = watcher.seen
        for number in set(range(1, self.said + 1)) - set(seen):
            before = max((at for at, other in enumerate(seen) if other is not None and other < number), default=-1)
            after = next((at for at, other in enumerate(seen) if other is not None and other > number), len(seen))
            assert None in seen[before + 1 : after], f"{watcher.name} misses {number}, and has seen {seen}"


TestRestarting = Restarting.TestCase
TestRestarting.settings = effort(100, steps=60)
