"""Random messages of all peers to the core: it never raises, answers every request, and leaks no message."""

import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.config.agent_options import McpPolicy
from acp_gateway.config.load import AgentSection
from acp_gateway.core.agent_state import Policy
from acp_gateway.core.output import LogMessage
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client
from acp_gateway.gateway.hub.services import login_hint
from acp_gateway.protocol.methods import Capability
from tests.fuzz.corpus import message
from tests.fuzz.effort import effort
from tests.fuzz.storm import (
    CAPABILITIES,
    HONEST,
    PRIVATE,
    PUBLIC,
    Act,
    Does,
    Happens,
    Joins,
    Plan,
    Says,
    Storm,
    Writes,
    plans,
)
from tests.fuzz.tables import awaited, nothing_is_left, nothing_is_left_of, nothing_is_too_much
from tests.fuzz.witness import Part, Party, make_client
from tests.kit.scene import Scene, Shelf, checks_of, journals_of, look, make_policy

SECTION = AgentSection(command=("agent",))

JOURNAL = 3000
OPEN = 6
QUEUED = 2
WAITING = 20_000


def policy(*, shared: bool, serves: frozenset[Capability], tools: McpPolicy) -> Policy:
    """A policy with small limits."""
    return make_policy(
        shared=shared,
        serves=serves,
        mcp_servers=tools,
        login_hint=lambda methods: login_hint(SECTION, methods),
        max_open_requests=OPEN,
        queued_prompts_per_session=QUEUED,
        outbox_limit=WAITING,
        journal_limit=JOURNAL,
        permission_timeout=50.0,
        max_sessions=7,
        sessions_per_identity=5,
        max_queued_prompts=3,
        queued_prompts_per_identity=3,
        common=shared,
    )


class Wire(Scene):
    """A scene whose output a storm observes; it carries out the storm's acts."""

    def __init__(self, storm: Storm, policy: Policy) -> None:
        self.shelf = Shelf(JOURNAL)
        super().__init__(policy, Registry("me", self.shelf, "run"))
        self.storm = storm
        self.by_client: dict[Client, Party] = {}
        self._names = itertools.count(1)
        self._now = 0.0
        self._leaving: Client | None = None

    def deliver(self, leaving: Client | None = None) -> None:
        output = self.multiplexer.take_output()
        assert all(effect.text.isprintable() for effect in output.effects if isinstance(effect, LogMessage))
        for client, texts in output.to_clients.items():
            assert not client.gone or client is leaving
            self.storm.heard(self.by_client[client], texts)
            # All messages have arrived.
            client.replays.clear()
        for text in output.to_agent:
            self.storm.agent_heard(text)
        for session in journals_of(output):
            self.multiplexer.journal_loaded(session, self.shelf.read(session))
            self.deliver()
        self.look_at(checks_of(output))

    def carry_out(self, act: Act) -> None:
        """Carry out an act, and check all invariants."""
        self._do(act)
        for party in self.storm.parties:
            self.storm.witness.nothing_is_due(party)
        nothing_is_too_much(self.multiplexer, self.registry)
        for reaction in self.storm.reaction():
            self._do(reaction)

    def _do(self, act: Act) -> None:
        match act:
            case Says(party, text):
                self.multiplexer.receive_from_client(party.client, text)
                self.deliver()
            case Writes(text):
                self.multiplexer.receive_from_agent([text])
                self.deliver()
            case Joins(part):
                self.comes(part)
            case Does(what, party):
                self.does(what, party)
            case Happens(what):
                self.happens(what)

    def comes(self, part: Part) -> Party:
        client = make_client(part, f"{part.name}{next(self._names)}")
        party = self.by_client[client] = Party(part, client)
        self.multiplexer.attach(client)
        self.storm.joined(party)
        self.deliver()
        return party

    def does(self, what: str, party: Party) -> None:
        match what:
            case "leave":
                self.multiplexer.client_gone(party.client)
                self.storm.gone(party)
                self.deliver()
            case "dismiss":
                self.multiplexer.close_client(party.client, "it is slow", {"reason": "slow"})
                self.deliver(leaving=party.client)
                self.storm.witness.everything_is_answered(party)
                self.storm.gone(party)
            case "lose":
                party.away = True
                self.multiplexer.client_away(party.client)
                self.deliver()
            case "return":
                party.away = False
                self.multiplexer.client_back(party.client)
                self.deliver()

    def happens(self, what: str) -> None:
        match what:
            case "lose" if self.multiplexer.wants_agent:
                self.storm.agent_lost()
                self.lose_agent()
                for party in self.storm.parties:
                    self.storm.witness.everything_is_answered(party)
            case "stop" if not self.multiplexer.busy:
                self.storm.agent_lost()
                self.stop_agent()
            case "tick":
                self._now += 30.0
                self.pass_time(self._now)
            case "survey" if self.look is not None:
                self.look = None
            case "survey":
                self.look_at_once()

    def look_at_once(self) -> None:
        """Finish all directory checks, and later ones at once."""
        self.look = look
        while self.directory_checks:
            directory_check = self.directory_checks.pop(0)
            self.multiplexer.directories_checked(directory_check, look(directory_check))
            self.deliver()


def play(storm: Storm, wire: Wire, plan: Plan) -> None:
    for part in storm.cast:
        for act in storm.first_words(wire.comes(part)):
            wire.carry_out(act)
    for step in plan:
        for act in storm.acts(step):
            wire.carry_out(act)


def end(storm: Storm, wire: Wire, *, politely: bool) -> None:
    witness = storm.witness
    if politely:
        wire.look_at_once()
        honest = wire.comes(HONEST)
        for act in storm.round_trip(honest):
            wire.carry_out(act)
        wire.end_turns()
        for act in storm.return_of_the_owner(honest, awaited(wire.multiplexer)):
            wire.carry_out(act)
        for act in storm.disconnect():
            wire.carry_out(act)
        wire.end_turns()
        for party in storm.parties:
            witness.everything_is_answered(party)
        witness.agent_is_answered()
    else:
        wire.happens("lose")
    for party in list(storm.parties):
        wire.does("leave", party)
    nothing_is_left_of([party.client for party in storm.all], wire.multiplexer, wire.registry)
    wire.retire()
    nothing_is_left(wire.multiplexer, wire.registry)


@pytest.mark.parametrize("truthful", [True, False], ids=["an agent that says what is", "an agent that says anything"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@effort(30)
@given(
    plans,
    st.booleans(),
    st.sampled_from(CAPABILITIES),
    st.sampled_from((frozenset(), frozenset(Capability))),
    st.sampled_from(("drop", "deny", "allow", ("tool",))),
    st.booleans(),
)
def test_the_core_withstands(
    shared: bool,
    truthful: bool,
    plan: Plan,
    eager: bool,
    capabilities: dict[str, Any],
    serves: frozenset[Capability],
    tools: McpPolicy,
    politely: bool,
) -> None:
    storm = Storm(PUBLIC if shared else PRIVATE, truthful=truthful, eager=eager, capabilities=capabilities)
    wire = Wire(storm, policy(shared=shared, serves=serves, tools=tools))
    try:
        play(storm, wire, plan)
        end(storm, wire, politely=politely)
    except Exception as error:
        error.add_note("\n".join(storm.log))
        raise


def test_a_session_that_was_made_again_is_the_same_one_to_the_witness() -> None:
    storm = Storm(PRIVATE, truthful=True, eager=False, capabilities=CAPABILITIES[0])
    wire = Wire(storm, policy(shared=False, serves=frozenset(), tools="drop"))
    play(storm, wire, Plan(b"", 0, [], []))
    wire.happens("stop")
    # An agent that stores nothing before the first prompt.
    del storm.disk["kiwi-1"]
    for act in storm.round_trip(wire.comes(HONEST)):
        wire.carry_out(act)
    assert storm.witness.renewed == {"kiwi-2": "kiwi-1"}
    word = storm.witness.plant("me", "kiwi-2")
    wire.carry_out(
        Writes(message(method="session/request_permission", id=1, params={"sessionId": "kiwi-2", "of": word}))
    )
    assert any(line.startswith("att") and word in line for line in storm.log)
    with pytest.raises(AssertionError, match="att hears kiwi-2"):
        storm.heard(
            next(party for party in storm.parties if party.part.name == "att"), [b'{"method":"x","params":"kiwi-2"}']
        )
