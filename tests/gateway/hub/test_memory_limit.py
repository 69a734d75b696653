"""The limit for all hubs together: when it is looked at, what counts, and who has to give up something."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
import trio
import trio.testing

from acp_gateway.core.sessions.session import Session
from acp_gateway.core.states import SessionState
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.agent.versions import AgentMessages
from acp_gateway.gateway.hub.attachment import Attachment, Disconnect
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.hub.memory_limit import CHECKS, MemoryLimiter
from acp_gateway.protocol import jsonrpc
from acp_gateway.protocol.link_messages import texts_of
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import CloseReason
from acp_gateway.versions.old_agent import OldAgent
from tests.kit import scene as core
from tests.kit import versions as wire
from tests.kit.hub_scene import FakeServices, hub_policy
from tests.kit.scene import Peer, make_policy
from tests.kit.wires import memory_wire

LIMIT = 100_000

POLICY = hub_policy(write_high_water=0, outbox_limit=1_000_000)


async def no_agent(**_: Any) -> None:
    raise AssertionError("no agent is to be started")


class Place:
    """A hub whose clients take nothing: what they are sent waits in their seats."""

    def __init__(self, *clients: str) -> None:
        self.core = core.Scene(make_policy())
        self.hub = Hub(
            "agent",
            policy=POLICY,
            run_agent=no_agent,
            multiplexer=self.core.multiplexer,
            services=FakeServices(),
        )
        self.peers: list[Peer] = []
        for name in clients:
            self.join(name)

    def sends(self, peer: Peer, size: int) -> None:
        """Have a client have sent so much that nothing was done about yet."""
        self.hub.attachments[peer.client].unhandled_bytes = size

    def leaves(self, peer: Peer) -> None:
        """A client is gone for good."""
        peer.gone()
        del self.hub.attachments[peer.client]
        self.peers.remove(peer)

    @property
    def agent(self) -> core.Agent:
        return self.core.agent

    @property
    def session(self) -> Session:
        """The one that there is."""
        (session,) = self.core.multiplexer.sessions
        return session

    def join(self, name: str, **who: Any) -> Peer:
        """Another client, in the session."""
        peer = self.core.join(name, **who)
        if self.core.multiplexer.sessions:
            peer.load()
        else:
            peer.new_session()
        self.peers.append(peer)
        _, ours = memory_message_stream_pair()
        attachment = self.hub.attachments[peer.client] = Attachment(peer.client, high_water=0, progressed=lambda: None)
        attachment.connect(ours)
        return peer

    def say(self, size: int, count: int = 1) -> None:
        """Have the agent say so much, so many times: it stands in the history, and waits for each client."""
        for _ in range(count):
            self.agent.update("x" * size)
        for peer in self.peers:
            if attachment := self.hub.attachments.get(peer.client):
                attachment.send(peer.heard_text())

    def send(self, peer: Peer, size: int) -> None:
        """Send a message to one client only."""
        self.hub.attachments[peer.client].send([b"x" * size])

    def detached(self) -> list[str]:
        """The names of those who were detached."""
        return [
            attachment.client.name for attachment in self.hub.attachments.values() if attachment.disconnect is not None
        ]


def look(*places: Place, limit: int = LIMIT, size: int = LIMIT) -> None:
    """Have a limit looked at."""
    MemoryLimiter(limit, lambda: [place.hub for place in places]).grown(size)


async def test_within_the_memory_limit_no_client_is_detached_and_no_history_cut() -> None:
    place = Place("ann", "bob")
    place.say(LIMIT // 10)
    look(place)
    assert place.detached() == []
    assert not place.session.journal.truncated


async def test_the_client_with_the_most_waiting_is_detached_and_told_of_the_setting(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place, other = Place("ann", "bob"), Place("carol")
    ann, bob = place.peers
    place.send(ann, LIMIT // 4)
    place.send(bob, LIMIT // 2)
    other.send(other.peers[0], LIMIT // 3)
    look(place, other)
    assert (place.detached(), other.detached()) == (["bob"], [])
    disconnect = place.hub.attachments[bob.client].disconnect
    assert disconnect is not None
    assert (disconnect.code, disconnect.reason) == (CloseReason.POLICY, "too_slow")
    assert f"memory_limit ({LIMIT} bytes)" in disconnect.text
    assert caplog.messages == [f"bob: detached: {disconnect.text}"]


async def test_the_client_that_has_been_away_for_the_longest_is_detached_before_any_other(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place, other = Place("ann", "bob"), Place("carol", "dave")
    ann, bob = place.peers
    carol, dave = other.peers
    for where, peer, size, since in (
        (place, ann, LIMIT * 98 // 100, None),
        (place, bob, LIMIT // 100, 20.0),
        (other, carol, LIMIT // 50, 10.0),
        (other, dave, 0, 5.0),
    ):
        if size:
            where.send(peer, size)
        where.hub.attachments[peer.client].away_since = since
    look(place, other)
    assert (place.detached(), other.detached()) == ([], ["carol"])
    disconnect = other.hub.attachments[carol.client].disconnect
    assert disconnect is not None
    assert disconnect.reason == "too_slow"
    assert f"memory_limit ({LIMIT} bytes)" in disconnect.text
    assert caplog.messages == [f"carol: detached: {disconnect.text}"]
    look(place, other, limit=LIMIT // 2)
    assert (place.detached(), other.detached()) == (["ann", "bob"], ["carol"])


async def test_who_is_away_and_holds_what_it_has_not_confirmed_is_detached_as_well() -> None:
    place = Place("ann", "bob")
    ann, bob = place.peers
    place.send(ann, 2 * LIMIT)
    attachment = place.hub.attachments[bob.client] = Attachment(
        bob.client, high_water=1, window=LIMIT, progressed=lambda: None
    )
    attachment.connect(memory_message_stream_pair()[0])
    place.send(bob, LIMIT)
    assert not attachment.behind
    attachment.connection_lost(1.0)
    look(place, limit=2 * LIMIT)
    assert place.detached() == ["bob"]


@pytest.mark.parametrize("waits", ["its turn runs", "its prompt waits"])
async def test_who_is_away_and_waits_for_a_turn_is_detached_after_others_that_are_away(waits: str) -> None:
    place = Place("ann", "bob", "carol")
    ann, bob, carol = place.peers
    if waits == "its prompt waits":
        carol.prompt()
    ann.prompt()
    for since, peer in enumerate((ann, bob)):
        place.send(peer, LIMIT * 2 // 3)
        place.hub.attachments[peer.client].away_since = float(since)
    look(place)
    assert place.detached() == ["bob"]
    look(place, limit=LIMIT // 2)
    assert place.detached() == ["ann", "bob"]


async def test_the_memory_limit_cuts_a_history_after_away_clients_are_detached() -> None:
    place = Place("ann")
    place.say(LIMIT // 100, count=120)
    place.hub.attachments[place.peers[0].client].away_since = 1.0
    look(place)
    assert place.detached() == ["ann"]
    assert place.session.journal.size <= LIMIT


async def test_as_many_are_detached_as_it_takes() -> None:
    place, other = Place("ann", "bob"), Place("carol")
    for number, (where, peer) in enumerate([(place, place.peers[0]), (place, place.peers[1]), (other, other.peers[0])]):
        where.send(peer, LIMIT + 1 + number)
    look(place, other)
    assert place.detached() + other.detached() == ["ann", "bob", "carol"]


async def test_what_waits_for_several_and_stands_in_a_history_is_there_once() -> None:
    place = Place(*"abcdefgh")
    place.say(LIMIT // 100, count=80)
    look(place)
    assert place.detached() == []
    assert not place.session.journal.truncated


async def test_what_is_the_same_by_chance_is_there_twice() -> None:
    place = Place("ann", "bob")
    for peer in place.peers:
        place.send(peer, LIMIT * 2 // 3)
    look(place)
    assert len(place.detached()) == 1


async def test_the_memory_limit_cuts_the_longest_history_where_no_client_has_a_backlog(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place, other = Place(), Place()
    for where, count in ((place, 80), (other, 40)):
        where.join("ann")
        where.say(LIMIT // 100, count=count)
        for attachment in where.hub.attachments.values():
            attachment.outbox.clear()
    before = other.session.journal.size
    look(place, other)
    assert (place.detached(), other.detached()) == ([], [])
    assert place.session.journal.truncated
    assert place.session.journal.size <= LIMIT // 2
    assert other.session.journal.size == before
    assert [record.levelno for record in caplog.records] == [logging.WARNING]
    assert f"memory_limit ({LIMIT} bytes)" in caplog.text


async def test_histories_that_are_too_much_by_themselves_are_cut_without_a_look_at_each_message(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    place = Place("ann")
    place.say(LIMIT // 100, count=120)
    place.hub.attachments[place.peers[0].client].outbox.clear()
    # With millions of messages that would take seconds, in which no client is served.
    monkeypatch.delattr(Journal, "replay")
    look(place)
    assert place.session.journal.truncated


async def test_a_client_stays_where_a_history_is_what_takes_the_memory() -> None:
    place = Place("ann")
    place.say(LIMIT // 100, count=120)
    place.hub.attachments[place.peers[0].client].outbox.clear()
    place.send(place.peers[0], LIMIT // 10)
    look(place)
    assert place.detached() == []
    assert place.session.journal.truncated


async def test_histories_are_cut_after_the_clients_are_detached_and_as_often_as_it_takes() -> None:
    place = Place("ann")
    place.say(LIMIT // 100, count=100)
    look(place, limit=LIMIT // 10)
    assert place.detached() == ["ann"]
    assert 0 < place.session.journal.size <= LIMIT // 10


async def test_a_history_that_is_being_recorded_counts_and_is_cut() -> None:
    place = Place("ann")
    place.peers[0].request("session/load", sessionId="other", cwd="/srv", mcpServers=[])
    opening = next(it for it in place.core.multiplexer.sessions if it.state is SessionState.OPENING)
    _, recorded = opening.journals
    for _ in range(100):
        recorded.append(bytes(LIMIT // 50))
    look(place)
    assert recorded.size <= LIMIT


@pytest.mark.parametrize("cut", ["cut before", "not cut yet"])
async def test_a_look_ends_where_nothing_is_left_but_states_that_a_late_joiner_needs(cut: str) -> None:
    place = Place("ann")
    place.agent.state("plan", entries=["x" * LIMIT])
    place.agent.state("usage_update", text="x" * LIMIT)
    if cut == "cut before":
        place.session.journal.shrink(0)
    look(place)
    assert place.session.journal.size > 2 * LIMIT
    assert not place.session.journal.truncated


async def test_a_shorter_history_is_cut_where_the_longest_has_only_states_left() -> None:
    place, other = Place("ann"), Place("bob")
    place.agent.state("plan", entries=["x" * 2 * LIMIT])
    other.say(LIMIT // 100, count=50)
    for where in (place, other):
        for attachment in where.hub.attachments.values():
            attachment.outbox.clear()
    look(place, other)
    assert other.session.journal.size == 0


async def test_a_look_ends_where_there_is_nothing_at_all() -> None:
    look(Place(), limit=0, size=1)


async def test_memory_is_looked_at_again_only_after_a_part_of_the_limit_was_added() -> None:
    place = Place("ann")
    memory = MemoryLimiter(LIMIT, lambda: [place.hub])
    for name in ("ann", "bob"):
        place.send(place.peers[-1], 2 * LIMIT)
        for _ in range(3):
            memory.grown(LIMIT // CHECKS // 4)
            assert name not in place.detached()
        memory.grown(LIMIT // CHECKS // 4 + 1)
        assert name in place.detached()
        place.join("bob")


# What clients have sent


async def test_what_clients_have_sent_counts_and_the_identity_with_most_of_it_goes_first() -> None:
    place = Place("ann", "also ann")
    other = Place()
    bobs = [other.join(f"bob {number}", identity="bob") for number in range(4)]
    for number, peer in enumerate(bobs):
        other.sends(peer, LIMIT // 4 + number)
    # The largest of all is another identity's.
    place.sends(place.peers[0], LIMIT // 3)
    look(place, other)
    assert (place.detached(), other.detached()) == ([], ["bob 2", "bob 3"])
    disconnect = other.hub.attachments[bobs[3].client].disconnect
    assert disconnect is not None
    assert disconnect.text == f"memory_limit ({LIMIT} bytes) is reached, and no client has sent more that is still kept"


async def test_the_memory_limit_detaches_the_identity_that_sent_most_not_away_clients_of_others() -> None:
    place, other = Place("ann", "also ann"), Place()
    place.say(LIMIT // 10)
    place.hub.attachments[place.peers[1].client].away_since = 1.0
    other.sends(other.join("bob", identity="bob"), LIMIT)
    look(place, other)
    assert (place.detached(), other.detached()) == ([], ["bob"])
    assert not place.session.journal.truncated


async def test_the_memory_limit_drops_prompts_of_gone_clients_before_it_detaches_clients(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place = Place("ann", "also ann")
    leaver = place.join("leaver", identity="me")
    for _ in range(4):
        leaver.prompt("x" * (LIMIT // 3))
    place.leaves(leaver)
    # The first is a turn that is not kept here.
    assert len(place.session.queue) == 3
    place.session.journal.clear()
    look(place)
    assert list(place.session.queue) == []
    assert place.detached() == []
    assert caplog.messages == [
        f"agent: memory_limit ({LIMIT} bytes) is reached: prompts that me has left behind are dropped"
    ]


async def test_unfinished_echoes_count_and_are_given_up_before_anything_else(
    caplog: pytest.LogCaptureFixture,
) -> None:
    place, other = Place("ann", "bob"), Place("carol")
    place.session.journal.shrink(0)
    ann, bob = place.peers
    ann.prompt("x" * LIMIT)
    bob.heard()
    update = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "x" * 1000}}
    place.agent.send(method="session/update", params={"sessionId": "s", "update": update})
    assert bob.heard() == []
    place.session.journal.shrink(0)
    other.say(LIMIT // 10)
    look(place, other)
    assert place.core.multiplexer.memory.echo_bytes == 0
    assert (place.detached(), other.detached()) == ([], [])
    attachment = place.hub.attachments[bob.client]
    assert [b"x" * 1000 in message for message in texts_of([*attachment.outbox.messages()])] == [True]
    assert caplog.messages == [f"agent: memory_limit ({LIMIT} bytes) is reached: echoes are not told apart"]


@pytest.mark.parametrize(("number", "size"), [(1, LIMIT), (150, LIMIT // 100)])
async def test_prompts_that_the_agent_has_not_accepted_get_their_place_so_that_the_look_ends(
    number: int, size: int
) -> None:
    places = [Place("ann", "bob") for _ in range(number)]
    chunk = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "x" * size}}
    message = jsonrpc.notification("session/update", {"sessionId": "s", "update": chunk})
    for place in places:
        place.peers[0].prompt("first")
        (request,) = place.session.turns
        # As one of version 2 has it until then.
        place.session.unplaced[request] = [message]
    look(*places)
    assert sum(place.core.multiplexer.memory.echo_bytes for place in places) <= LIMIT
    assert places[0].session.unplaced == {}


async def test_what_translators_remember_counts_and_is_halved_before_anything_is_lost(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place, other = Place("ann"), Place("bob")
    near, _ = memory_message_stream_pair()
    stream = AgentMessages(near)
    edge = stream._edge
    edge.to_agent(wire.request(0, "initialize", protocolVersion=1))
    edge.from_agent(wire.result(0, {"protocolVersion": 2}))
    before = stream.remembered_bytes
    for number in range(40):
        shown = [wire.content("y" * 2000)]
        edge.from_agent(wire.update("tool_call_update", toolCallId=f"t{number}", content=shown))
    monkeypatch.setattr(place.hub.supervisor, "agent", SimpleNamespace(messages=stream))
    assert before < LIMIT / 100 < 80_000 < place.hub.translation_bytes
    place.say(LIMIT // 4)
    look(place, other)
    assert place.hub.translation_bytes < LIMIT * 3 / 4
    assert (place.detached(), other.detached(), place.session.journal.truncated) == ([], [], False)
    assert caplog.messages == [f"agent: memory_limit ({LIMIT} bytes) is reached: its translators forget half"]


async def test_what_the_translator_of_a_client_remembers_counts() -> None:
    place = Place("ann")
    (ann,) = place.peers
    ann.client.translator = OldAgent()
    prompt = [wire.text("x" * LIMIT)]
    ann.client.translator.from_client(wire.request(9, "session/prompt", sessionId="s", prompt=prompt))
    assert LIMIT < place.hub.translation_bytes < LIMIT + 1000
    look(place)  # It ends, though nothing of that can be forgotten.
    assert place.hub.translation_bytes > LIMIT


@pytest.mark.parametrize("kept", ["request", "update", "result"])
async def test_what_an_agent_has_sent_and_no_client_has_counts(kept: str, caplog: pytest.LogCaptureFixture) -> None:
    place = Place("ann")
    (ann,) = place.peers
    words = "x" * 2 * LIMIT
    if kept == "request":
        place.leaves(ann)
        place.agent.send(id=1, method="session/request_permission", params={"sessionId": "s", "toolCall": words})
    else:
        ann.request("session/new", cwd="/srv", mcpServers=[])
        if kept == "update":
            place.agent.state("plan", "early", entries=[words])
        else:
            place.agent.answers("session/new", sessionId="t", modes={"x": words})
    assert place.hub.outgoing_bytes > 2 * LIMIT
    look(place)
    assert "most of it waits for the agent" in caplog.text


async def test_the_message_that_an_agent_has_begun_counts(
    autojump_clock: trio.testing.MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = Place("ann")
    here, there = memory_wire()
    stream = LineStream(here, max_message_size=3 * LIMIT)
    there.send_nowait(memoryview(b"[" * 50_000))
    before = place.hub.outgoing_bytes
    with trio.move_on_after(1):
        await stream.receive()
    monkeypatch.setattr(place.hub.supervisor, "agent", SimpleNamespace(messages=AgentMessages(stream)))
    assert place.hub.outgoing_bytes == before + 50_000


async def test_an_agent_for_which_most_waits_is_stopped(caplog: pytest.LogCaptureFixture) -> None:
    place, other = Place("ann"), Place("bob")
    other.hub.supervisor._queued.append(b"x" * 2 * LIMIT)
    place.sends(place.peers[0], LIMIT // 10)
    look(place, other)
    assert other.hub.outgoing_bytes == 0
    assert (place.detached(), place.hub.ended) == ([], False)
    assert caplog.messages == [
        f"agent: memory_limit ({LIMIT} bytes) is reached, and most of it waits for the agent agent"
    ]


class Browser:
    """A connection without a hub, that has sent so much, and still needs a part of it when it is closed."""

    def __init__(self, account: str, size: int, needs: int = 0) -> None:
        self.account = account
        self.needs = needs
        self.input_bytes = size
        self.disconnect: Disconnect | None = None

    def close(self, disconnect: Disconnect) -> None:
        self.disconnect = disconnect
        self.input_bytes = self.needs


async def test_what_connections_without_a_hub_have_sent_counts_and_the_largest_is_closed() -> None:
    place = Place("ann")
    browsers = [Browser("eve", LIMIT // 3), Browser("eve", LIMIT // 2), Browser("ann", LIMIT // 4)]
    MemoryLimiter(LIMIT, lambda: [place.hub], browsers).grown(LIMIT)
    assert place.detached() == []
    (closed,) = [browser for browser in browsers if browser.disconnect is not None]
    assert closed is browsers[1]
    assert closed.disconnect is not None
    assert f"memory_limit ({LIMIT} bytes)" in closed.disconnect.text


async def test_a_look_ends_where_a_connection_without_a_hub_still_needs_what_it_has() -> None:
    eve = Browser("eve", 2 * LIMIT, needs=2 * LIMIT)
    MemoryLimiter(LIMIT, list, [eve]).grown(LIMIT)
    assert (eve.disconnect is not None, eve.input_bytes) == (True, 2 * LIMIT)


async def test_what_connections_without_a_hub_have_sent_counts_where_no_hub_is() -> None:
    browser = Browser("eve", 2 * LIMIT)
    MemoryLimiter(LIMIT, list, [browser]).grown(LIMIT)
    assert browser.disconnect is not None


async def test_the_largest_input_of_an_identity_is_dropped_be_it_of_a_hub_or_not() -> None:
    place = Place("ann")
    (ann,) = place.peers
    browser = Browser("me", LIMIT // 2)
    place.sends(ann, LIMIT)
    MemoryLimiter(LIMIT, lambda: [place.hub], [browser]).grown(LIMIT)
    assert (place.detached(), browser.disconnect) == (["ann"], None)


async def test_the_archive_gets_a_history_before_the_memory_limit_cuts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Place("ann")
    place.say(LIMIT // 100, count=120)
    for attachment in place.hub.attachments.values():
        attachment.outbox.clear()
    stored, size = [], place.session.journal.size
    monkeypatch.setattr(
        type(place.session.archive), "finish_journal", lambda _, session: stored.append(session.journal.size)
    )
    look(place)
    assert stored[0] == size > place.session.journal.size


@pytest.mark.parametrize("little", ["for the agent", "sent by a client", "sent by a browser", "for one that is away"])
async def test_where_histories_take_the_memory_they_are_cut_and_nothing_little_is_given_up(little: str) -> None:
    place = Place("ann", "bob")
    (ann, bob), browser = place.peers, Browser("eve", 0)
    place.say(LIMIT // 100, count=120)
    for attachment in place.hub.attachments.values():
        attachment.outbox.clear()
    if little == "for the agent":
        place.hub.supervisor._queued.append(b"x" * 300)
    elif little == "sent by a client":
        place.sends(ann, 300)
    elif little == "sent by a browser":
        browser.input_bytes = 300
    else:
        place.send(bob, 300)
        place.hub.attachments[bob.client].away_since = 1.0
    waiting = place.hub.outgoing_bytes
    MemoryLimiter(LIMIT, lambda: [place.hub], [browser]).grown(LIMIT)
    assert place.session.journal.truncated
    assert (place.detached(), browser.disconnect, place.hub.outgoing_bytes) == ([], None, waiting)


async def test_many_little_parts_are_given_up_where_they_are_too_much_together() -> None:
    browsers = [Browser(f"eve{number}", LIMIT // 100) for number in range(150)]
    MemoryLimiter(LIMIT, list, browsers).grown(LIMIT)
    assert len([browser for browser in browsers if browser.disconnect is None]) == 100
