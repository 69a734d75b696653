"""Random messages to a hub, with lost links and ended agents: it keeps running, and keeps the promises of the core."""

from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st
from trio.testing import wait_all_tasks_blocked

from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.protocol.link_messages import Sent, goodbye, read_control
from acp_gateway.transports.streams import CloseReason
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
from tests.kit.doubles import FakeAgent
from tests.kit.hub_scene import Peer, ResumingPeer, Scene, peek

EXPELLED = Disconnect(CloseReason.POLICY, "the token is not valid any more", "unauthorized")

LOST = (trio.EndOfChannel, trio.BrokenResourceError, trio.ClosedResourceError)


class Hall:
    """A hub with its clients and agents, who carry out the acts of a storm; all is in memory."""

    def __init__(self, storm: Storm, scene: Scene) -> None:
        self.storm = storm
        self.scene = scene
        self.peers: dict[Party, Peer] = {}
        self._agent: FakeAgent | None = None
        self._names = 0

    async def carry_out(self, act: Act) -> None:
        """Carry out an act, and check all invariants."""
        await self._do(act)
        nothing_is_too_much(self.scene.hub.multiplexer, self.scene.registry)
        for reaction in self.storm.reaction():
            await self._do(reaction)

    async def _do(self, act: Act) -> None:
        match act:
            case Says(party, text):
                self._say(self.peers[party], text)
            case Writes(text) if self._agent is not None:
                self._agent.stream.send_nowait([text])
            case Joins(part) if not self.scene.hub.ended:
                self.comes(part)
            case Does(what, party):
                await self._does(what, party)
            case Happens("lose") if self._agent is not None:
                self._agent_is_lost()
                assert self.scene.agents.started
                self.scene.agents.started[-1].end(1)
                await self.scene.agents.started[-1].close()
            case Happens("tick"):
                await trio.sleep(30.0)
        await self.settle_down()

    def comes(self, part: Part) -> Party:
        self._names += 1
        client = make_client(part, f"{part.name}{self._names}")
        party = Party(part, client)
        peer = self.peers[party] = ResumingPeer(self.scene, client) if part.counts else Peer(client)
        self.scene.nursery.start_soon(self.scene._serve, peer)
        self.storm.joined(party)
        return party

    def _say(self, peer: Peer, text: bytes) -> None:
        try:
            if isinstance(peer, ResumingPeer) and read_control(text) is None:
                peer.link.send([text])
            else:
                # What is for the other end of the link is not counted.
                peer.stream.send_nowait([text])
        except LOST:
            pass

    async def _does(self, what: str, party: Party) -> None:
        peer = self.peers[party]
        match what:
            case "leave" if isinstance(peer, ResumingPeer):
                peer.stream.send_nowait([goodbye()])
            case "leave":
                await peer.stream.aclose()
            case "dismiss":
                self.scene.hub.attachments[party.client].close(EXPELLED)
            case "lose" if isinstance(peer, ResumingPeer):
                party.away = True
                await peer.lose()
            case "return" if isinstance(peer, ResumingPeer):
                party.away = False
                await peer.resume()

    # What is heard

    async def settle_down(self) -> None:
        """Deliver messages until none is left."""
        heard = True
        while heard:
            await wait_all_tasks_blocked()
            heard = await self._agents_hear()
            for party, peer in list(self.peers.items()):
                heard |= await self._hears(party, peer)
        for party, peer in list(self.peers.items()):
            if peer.gone.is_set():
                await self._has_gone(party, peer)
            elif not party.away:
                self.storm.witness.nothing_is_due(party)

    async def _hears(self, party: Party, peer: Peer) -> bool:
        texts: Sequence[Sent] = []
        if peek(peer.stream) and not party.away:
            texts = await (take(peer) if isinstance(peer, ResumingPeer) else peer.stream.receive_batch())
        self.storm.heard(party, texts)
        return bool(texts)

    async def _agents_hear(self) -> bool:
        started = self.scene.agents.started
        if started and started[-1] is not self._agent and not started[-1].agent.ended.is_set():
            self._agent = started[-1]
        if self._agent is None:
            return False
        texts: list[bytes] = []
        # An agent that was stopped has closed its stream, and reads nothing more.
        with suppress(trio.ClosedResourceError):
            texts = await self._agent.stream.receive_batch() if peek(self._agent.stream) else []
        for text in texts:
            self.storm.agent_heard(text)
        if self._agent.agent.ended.is_set():
            self._agent_is_lost()
        return bool(texts)

    def _agent_is_lost(self) -> None:
        self._agent = None
        self.storm.agent_lost()

    async def _has_gone(self, party: Party, peer: Peer) -> None:
        """End a connection for good. A client that returns finds out the outcome of its requests itself."""
        assert peer.disconnect is not None
        if peer.disconnect.reason is not None and not party.part.counts:
            self.storm.witness.everything_is_answered(party)
        await peer.stream.aclose()
        del self.peers[party]
        self.storm.gone(party)


async def take(peer: ResumingPeer) -> list[Sent]:
    """Deliver all messages over a resumed link, until none is left."""
    texts: list[Sent] = []

    async def listen() -> None:
        try:
            while True:
                texts.extend(await peer.link.receive_batch())
                peer.link.acknowledge()
        except LOST:
            pass

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    return texts


@asynccontextmanager
async def hall(storm: Storm, *, shared: bool) -> AsyncIterator[Hall]:
    scene = Scene(shared=shared)
    async with trio.open_nursery() as scene.nursery:
        scene.nursery.start_soon(scene.run)
        yield Hall(storm, scene)
        scene.scope.cancel()
    assert not scene.hub.attachments


async def play(storm: Storm, plan: Plan, *, shared: bool) -> None:
    async with hall(storm, shared=shared) as there:
        for part in storm.cast:
            party = there.comes(part)
            for act in storm.first_words(party):
                await there.carry_out(act)
        for step in plan:
            for act in storm.acts(step):
                await there.carry_out(act)
        if not there.scene.hub.ended:
            honest = there.comes(HONEST)
            for act in storm.round_trip(honest):
                await there.carry_out(act)
            for act in storm.return_of_the_owner(honest, awaited(there.scene.hub.multiplexer)):
                await there.carry_out(act)
        for party in storm.parties:
            if not party.away:
                storm.witness.everything_is_answered(party)
        for party in list(storm.parties):
            await there.carry_out(Does("dismiss", party))
        multiplexer, registry = there.scene.hub.multiplexer, there.scene.registry
        nothing_is_left_of([party.client for party in storm.all], multiplexer, registry)
    nothing_is_left(multiplexer, registry)


@pytest.mark.parametrize("truthful", [True, False], ids=["an agent that says what is", "an agent that says anything"])
@pytest.mark.parametrize("shared", [True, False], ids=["shared", "own"])
@effort(15)
@given(plans, st.booleans(), st.sampled_from(CAPABILITIES))
def test_a_hub_withstands(shared: bool, truthful: bool, plan: Plan, eager: bool, capabilities: dict[str, Any]) -> None:
    cast = PUBLIC if shared else PRIVATE
    storm = Storm(cast, truthful=truthful, eager=eager, capabilities=capabilities, links=True)
    try:
        trio.run(lambda: play(storm, plan, shared=shared), clock=trio.testing.MockClock(autojump_threshold=0))
    except BaseException as error:
        error.add_note("\n".join(storm.log))
        raise
