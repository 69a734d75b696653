"""Clients whose connection is lost: away, back as if nothing had been, or gone."""

import json
import logging
import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.core.sessions.session import Role
from acp_gateway.core.states import Presence
from acp_gateway.errors import LinkGone
from acp_gateway.gateway.hub.attachment import BYTES_PER_MARK, EXPIRED, MESSAGES_PER_MARK, TOO_SLOW
from acp_gateway.gateway.hub.hub import TICK, UNUSED_LINK_GRACE
from acp_gateway.gateway.resumption import claim, serve_resumed
from acp_gateway.protocol.link_messages import acknowledgement, goodbye
from acp_gateway.transports.link import CONFIRM_MESSAGES, HEARTBEAT
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.parts import EMPTY, PART_SIZE
from acp_gateway.transports.streams import CloseReason, MessageTooLarge
from acp_gateway.transports.timers import TaskSpawner
from tests.kit.doubles import FAIL, FakeAgent, FragileStream, encode
from tests.kit.hub_scene import (
    HIGH_WATER,
    HOUR,
    OPEN,
    UPDATE,
    WINDOW,
    Peer,
    ResumingPeer,
    Scene,
    choice,
    fill,
    flood,
    numbers_of,
    peek,
    permission,
    resuming,
    sharing,
    update,
)

ANY_SCOPE = pytest.mark.parametrize("shared", [False, True], ids=["own agent", "shared agent"])


def is_question(message: dict[str, Any]) -> bool:
    return message.get("method") == "session/request_permission"


def presence(peer: Peer) -> Presence:
    return peer.client.presence


# Away and back


@ANY_SCOPE
async def test_what_comes_while_a_client_is_away_is_there_in_order_when_it_is_back(shared: bool) -> None:
    async with resuming(shared=shared) as (scene, ann):
        turn = await scene.open_turn()
        await scene.flow(2)
        await ann.lose()
        assert presence(ann) is Presence.AWAY
        await scene.flow(2, first=2)
        await scene.agent.send(**permission())
        await scene.flow(1, first=4)
        assert scene.agent.peek() == []
        await ann.resume()
        assert presence(ann) is Presence.CONNECTED
        heard = await ann.waiting()
        assert [message["params"].get("n", "?") for message in heard] == [0, 1, 2, 3, "?", 4]
        ann.link.send([choice(heard[4]["id"])])
        assert (await scene.agent.receive())["result"]["outcome"]["optionId"] == "yes"
        await scene.agent.send(id=turn, result={"stopReason": "end_turn"})
        assert (await ann.receive())["id"] == "turn"


async def test_a_connection_that_ends_without_a_goodbye_is_lost() -> None:
    async with resuming() as (scene, ann):
        await ann.stream.aclose()
        await wait_all_tasks_blocked()
        assert presence(ann) is Presence.AWAY
        await scene.flow(1)
        await ann.resume()
        assert numbers_of(await ann.waiting()) == [0]


class Begun(FragileStream):
    """A stream with the beginning of a message, until it is closed."""

    text = b"x" * PART_SIZE

    @property
    def unfinished_bytes(self) -> int:
        return len(self.begun(PART_SIZE))

    def begun(self, size: int) -> bytes:
        return self.text[:size] if self.closed_with is None else b""


async def test_what_has_come_of_a_message_is_counted_while_its_client_is_away_and_told_when_it_is_back() -> None:
    async with resuming() as (scene, ann):
        await ann.resume(Begun)
        await ann.lose()
        attachment = scene.hub.attachments[ann.client]
        part = EMPTY.followed_by(Begun.text).sum
        assert attachment.incoming_bytes == part.size
        assert claim(ann.ticket, ann.link.received).part == part
        await ann.resume()
        await ann.send(method="another")
        await wait_all_tasks_blocked()
        assert attachment.incoming_bytes == 0


async def test_an_answer_that_is_lost_on_the_way_comes_again_and_the_agent_is_asked_once() -> None:
    async with resuming(shared=False) as (scene, ann):
        turn = await scene.open_turn()
        await scene.agent.send(id=turn, result={"stopReason": "end_turn"})
        await wait_all_tasks_blocked()
        assert peek(ann.stream)
        await ann.lose()
        await ann.resume()
        assert (await ann.receive())["id"] == "turn"
        await wait_all_tasks_blocked()
        assert scene.agent.peek() == []


async def test_an_agent_that_is_still_to_answer_initialize_is_waited_for_across_connections() -> None:
    scene = Scene()
    async with trio.open_nursery() as scene.nursery:
        scene.nursery.start_soon(scene.run)
        ann = scene.travel("ann")
        await ann.send_request(0, "initialize", protocolVersion=1)
        await wait_all_tasks_blocked()
        await ann.lose()
        await scene.agent.answer_initialize()
        await wait_all_tasks_blocked()
        await ann.resume()
        assert (await ann.receive())["id"] == 0
        scene.scope.cancel()


async def test_the_permission_waiting_and_turn_end_hooks_fire_while_all_clients_are_away(
    autojump_clock: MockClock,
) -> None:
    async with resuming(timeout=math.inf, away_grace=HOUR) as (scene, ann):
        turn = await scene.open_turn()
        await scene.agent.send(**permission())
        await wait_all_tasks_blocked()
        assert scene.services.events == []
        await ann.lose()
        assert scene.services.events == []
        await trio.sleep(2 * TICK)
        (event,) = scene.services.events
        assert (event.name, event.session.id, event.details["connected"]) == ("permission_waiting", "s", 0)
        await scene.agent.send(id=turn, result={"stopReason": "end_turn"})
        await wait_all_tasks_blocked()
        assert [event.name for event in scene.services.events] == ["permission_waiting", "turn_end"]
        assert scene.services.events[1].details["connected"] == 0


async def test_losses_and_returns_are_logged_with_what_was_not_confirmed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "acp_gateway.gateway.hub.client_pump")
    async with resuming() as (scene, ann):
        await ann.lose()
        await scene.flow(3)
        caplog.clear()
        await ann.resume()
        (text,) = caplog.messages
        assert text.startswith("ann: back after ")
        assert text.endswith("s, with 3 messages not confirmed")


class Fleeting(FragileStream):
    """A stream over which only so many messages come: it is cut then, and what was on its way is lost."""

    def __init__(self, stream: MaintainedStream, lifetime: int) -> None:
        super().__init__(stream)
        self.lifetime = lifetime

    async def _receive_batch(self) -> list[bytes]:
        batch = await super()._receive_batch()
        if not self.lifetime:
            raise trio.BrokenResourceError("cut")
        batch = batch[: self.lifetime]
        self.lifetime -= len(batch)
        return batch


class Storm:
    """Numbered messages both ways between an agent and a client whose connection is lost again and again."""

    MESSAGES = 1500
    LIFETIME = 120
    """Messages and confirmations that come over one connection, at most."""

    def __init__(self, scene: Scene, ann: ResumingPeer, seed: int) -> None:
        self.scene = scene
        self.ann = ann
        self.chance = random.Random(seed)  # noqa: S311 - the same each time is what is wanted
        self.heard_by_agent: list[int] = []
        self.heard_by_client: list[int] = []

    @property
    def over(self) -> bool:
        return min(len(self.heard_by_agent), len(self.heard_by_client)) >= self.MESSAGES

    async def rage(self) -> None:
        """Until all is said and heard."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._speak, lambda n: self.scene.agent.stream.send_nowait([update(n, 50)]))
            nursery.start_soon(self._speak, lambda n: self.ann.link.send([encode({"method": "x", "params": n})]))
            nursery.start_soon(self._listen_as_agent)
            while not self.over:
                await self._listen_as_client()
                if not self.over:
                    await self.ann.lose()
                    await trio.sleep(self.chance.choice([0, 0.1]))
                    await self.ann.resume(lambda end: Fleeting(end, self.chance.randint(1, self.LIFETIME)))
            nursery.cancel_scope.cancel()

    async def _speak(self, say: Callable[[int], None]) -> None:
        for number in range(self.MESSAGES):
            say(number)
            if not self.chance.randrange(20):
                await trio.sleep(self.chance.choice([0, 0.01, 0.1]))

    async def _listen_as_agent(self) -> None:
        while True:
            self.heard_by_agent.append((await self.scene.agent.receive())["params"])

    async def _listen_as_client(self) -> None:
        """Until the connection is lost, on whichever side, or all is over."""
        with trio.move_on_after(self.chance.choice([0.01, 0.3, 20])):
            try:
                while not self.over:
                    self.heard_by_client += numbers_of([await self.ann.receive()])
            except (trio.EndOfChannel, trio.BrokenResourceError):
                pass


@pytest.mark.parametrize("seed", range(3))
@ANY_SCOPE
async def test_whenever_its_connection_is_lost_a_client_and_the_agent_hear_everything_once(
    shared: bool, seed: int, autojump_clock: MockClock
) -> None:
    async with resuming(shared=shared, timeout=math.inf, outbox_limit=10**7, away_limit=10**7) as (scene, ann):
        storm = Storm(scene, ann, seed)
        await storm.rage()
        assert storm.heard_by_agent == list(range(storm.MESSAGES))
        assert storm.heard_by_client == list(range(storm.MESSAGES))
        assert len(ann.ends) > storm.MESSAGES / storm.LIFETIME
        await wait_all_tasks_blocked()
        assert [release.is_set() for release in ann.releases[:-1]] == [True] * (len(ann.releases) - 1)
        assert all(end.closed_with is not None for end in ann.ends[:-1])


async def test_a_connection_over_which_nothing_is_heard_is_given_up(autojump_clock: MockClock) -> None:
    async with resuming(timeout=math.inf, away_grace=HOUR) as (scene, ann):
        await trio.sleep(HOUR)
        assert presence(ann) is Presence.CONNECTED
    scene = Scene(shared=True, ping_interval=10.0)
    with trio.fail_after(HOUR):
        async with trio.open_nursery() as scene.nursery:
            scene.nursery.start_soon(scene.run)
            ann = scene.travel("ann")
            await trio.sleep(29)
            ann.link.send_control(acknowledgement(0))
            await trio.sleep(29)
            assert presence(ann) is Presence.CONNECTED
            await trio.sleep(2)
            assert presence(ann) is Presence.AWAY
            assert ann.ours.closed_with is not None
            scene.scope.cancel()


# The newest connection


@ANY_SCOPE
async def test_a_newer_connection_takes_the_link_from_one_that_may_long_be_dead_at_once(shared: bool) -> None:
    async with resuming(shared=shared) as (scene, ann):
        await scene.flow(2)
        await ann.resume()
        assert ann.ends[0].closed_with is not None
        assert not ann.ends[0].runs
        assert presence(ann) is Presence.CONNECTED
        await scene.flow(2, first=2)
        assert numbers_of(await ann.waiting()) == [0, 1, 2, 3]
        await ann.resume()
        assert ann.releases[0].is_set()
        assert not ann.releases[1].is_set()
        await scene.open_turn()


async def test_a_history_that_is_on_its_way_comes_once_when_a_newer_connection_takes_over() -> None:
    async with sharing() as (scene, editor):
        turn = await scene.open_turn(editor)
        history = 2 * WINDOW // UPDATE
        for number in range(history):
            scene.agent.stream.send_nowait([update(number, UPDATE)])
            await editor.receive()
        await scene.agent.send(id=turn, result={"stopReason": "end_turn"})
        ann = scene.travel("ann")
        await ann.initialize()
        await ann.send_request("load", "session/load", sessionId="s", cwd="/srv", mcpServers=[])
        await wait_all_tasks_blocked()
        assert scene.hub.attachments[ann.client].behind
        await ann.resume()
        heard = await ann.waiting()
        assert numbers_of(heard) == list(range(history))
        assert heard[-1]["id"] == "load"


class Lingering(FragileStream):
    """A stream that takes its time to end."""

    def __init__(self, stream: MaintainedStream) -> None:
        super().__init__(stream)
        self.may_end = trio.Event()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        super().use_spawner(spawner)
        if spawner is not None:
            spawner.spawn(self._linger)

    async def _linger(self) -> None:
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                await self.may_end.wait()


async def resume_lingering(ann: ResumingPeer) -> Lingering:
    """A connection that can't be got rid of at once."""
    await ann.resume(Lingering)
    lingering = ann.ours
    assert isinstance(lingering, Lingering)
    return lingering


async def test_a_connection_that_is_taken_over_before_it_was_served_is_closed() -> None:
    async with resuming() as (scene, ann):
        lingering = await resume_lingering(ann)
        await ann.resume()
        await ann.resume()
        assert [release.is_set() for release in ann.releases] == [False, True, False]
        assert ann.ends[2].closed_with is not None
        assert ann.ours.closed_with is None
        await scene.flow(1)
        lingering.may_end.set()
        await wait_all_tasks_blocked()
        assert [release.is_set() for release in ann.releases] == [True, True, False]
        assert numbers_of(await ann.waiting()) == [0]
        await scene.open_turn()


async def stop_hub(scene: Scene, ann: ResumingPeer) -> None:
    scene.scope.cancel()


async def cancel_all(scene: Scene, ann: ResumingPeer) -> None:
    scene.nursery.cancel_scope.cancel()


async def detach(scene: Scene, ann: ResumingPeer) -> None:
    scene.hub.detach(scene.hub.attachments[ann.client], "a test")


@pytest.mark.parametrize("end", [stop_hub, cancel_all, detach])
async def test_a_client_that_ends_while_its_old_connection_is_still_being_given_up_leaves_nothing_behind(
    end: Callable[[Scene, ResumingPeer], Any],
) -> None:
    async with resuming() as (scene, ann):
        lingering = await resume_lingering(ann)
        await ann.resume()
        await end(scene, ann)
        with trio.CancelScope(shield=True):
            await wait_all_tasks_blocked()
            lingering.may_end.set()
            await ann.gone.wait()
            await wait_all_tasks_blocked()
        assert [release.is_set() for release in ann.releases] == [True, True]
        assert all(stream.closed_with is not None for stream in ann.ends)


async def test_a_goodbye_over_a_connection_that_is_being_taken_over_ends_both() -> None:
    async with resuming() as (_, ann):
        lingering = await resume_lingering(ann)
        ann.stream.send_nowait([goodbye()])
        await ann.stream.aclose()
        await wait_all_tasks_blocked()
        await ann.resume()
        lingering.may_end.set()
        await ann.gone.wait()
        await wait_all_tasks_blocked()
        assert [release.is_set() for release in ann.releases] == [True, True]
        assert all(stream.closed_with is not None for stream in ann.ends)


async def test_a_link_that_was_taken_from_its_connection_by_one_that_never_came_is_away() -> None:
    async with resuming() as (scene, ann):
        claim(ann.ticket, ann.link.received)
        await wait_all_tasks_blocked()
        assert presence(ann) is Presence.AWAY
        assert ann.ours.closed_with is not None
        await scene.flow(1)
        await ann.resume()
        assert numbers_of(await ann.waiting()) == [0]


async def test_of_two_that_take_a_link_up_again_the_one_that_came_last_has_it_in_whatever_order_they_go_on() -> None:
    async with resuming() as (scene, ann):
        earlier = claim(ann.ticket, ann.link.received)
        await ann.resume()
        _, near = memory_message_stream_pair()
        stream = FragileStream(near)
        await serve_resumed(stream, earlier)
        assert stream.closed_with == (CloseReason.POLICY, "a newer connection has taken this link over")
        assert presence(ann) is Presence.CONNECTED
        await scene.flow(1)
        assert numbers_of(await ann.waiting()) == [0]


async def test_a_link_that_ends_between_a_claim_and_its_connection_is_not_taken_up() -> None:
    async with resuming() as (scene, ann):
        await ann.lose()
        resumption = claim(ann.ticket, ann.link.received)
        await detach(scene, ann)
        _, near = memory_message_stream_pair()
        stream = FragileStream(near)
        await serve_resumed(stream, resumption)
        assert stream.closed_with is not None
        await ann.gone.wait()


# Gone


@pytest.mark.parametrize("shared", [False, True])
async def test_more_than_away_limit_is_not_kept_for_one_that_is_away(shared: bool) -> None:
    async with resuming(shared=shared, away_limit=20 * UPDATE, outbox_limit=1) as (scene, ann):
        await ann.lose()
        await scene.flow(15)
        assert not ann.gone.is_set()
        scene.agent.stream.send_nowait([update(number, UPDATE) for number in range(10)])
        await ann.gone.wait()
        assert ann.disconnect is not None
        assert (ann.disconnect.reason, ann.disconnect.code) == (TOO_SLOW, CloseReason.POLICY)
        assert f"away_limit ({20 * UPDATE} bytes)" in ann.disconnect.text
        assert presence(ann) is Presence.GONE


async def test_what_a_client_has_not_confirmed_counts_while_it_is_away_and_not_while_it_is_there() -> None:
    async with resuming(away_limit=20 * UPDATE) as (scene, ann):
        await scene.flow(30)
        assert not ann.gone.is_set()
        await ann.lose()
        await scene.flow(1, first=30)
        await ann.gone.wait()


async def test_a_client_that_is_back_is_not_slow_because_of_what_waited_for_it() -> None:
    async with resuming(away_limit=150 * UPDATE, outbox_limit=20 * UPDATE, resume_window=40 * UPDATE) as (scene, ann):
        await ann.lose()
        await scene.flow(90)
        await ann.resume()
        await scene.flow(5, first=90)
        assert not ann.gone.is_set()
        assert numbers_of(await ann.waiting()) == list(range(95))
        # From here on it is like the others.
        assert not scene.hub.attachments[ann.client].catching_up


async def test_a_client_that_is_back_may_have_what_one_that_is_there_may_have() -> None:
    async with resuming(shared=True, outbox_limit=1000 * UPDATE, away_limit=150 * UPDATE) as (scene, ann):
        for name in ("bob", "carol"):
            await scene.enter(name)
        await ann.lose()
        await scene.flow(100)
        await ann.resume()
        await scene.flow(300, first=100)
        assert scene.hub.attachments[ann.client].disconnect is None


async def test_last_words_that_can_not_be_said_are_given_up_also_where_the_connection_is_lost(
    autojump_clock: MockClock,
) -> None:
    async with resuming(shared=False, timeout=math.inf, away_grace=HOUR, away_grace_idle=HOUR) as (scene, ann):
        await scene.open_turn()
        await scene.flow(2)
        scene.agent.end(1)
        await scene.agent.close()
        await wait_all_tasks_blocked()
        await ann.lose()
        await trio.sleep(200)
        assert ann.gone.is_set()


async def test_what_is_on_its_way_to_a_client_that_is_there_is_not_what_it_is_detached_for() -> None:
    async with sharing(outbox_limit=20 * UPDATE) as (scene, bob):
        ann = scene.travel("ann")
        await ann.initialize()
        await ann.load()
        for number in range(50):
            scene.agent.stream.send_nowait([update(number, UPDATE)])
            await bob.receive()
        assert scene.hub.attachments[ann.client].outbox.unconfirmed_bytes > 50 * UPDATE
        assert numbers_of(await ann.waiting()) == list(range(50))
        assert not ann.gone.is_set()


async def test_a_client_that_is_there_and_takes_nothing_is_detached_when_window_and_outbox_are_full() -> None:
    async with sharing(outbox_limit=20 * UPDATE) as (scene, bob):
        ann = scene.travel("ann")
        await ann.initialize()
        await ann.load()
        for number in range((WINDOW + 20 * UPDATE) // UPDATE + 5):
            scene.agent.stream.send_nowait([update(number, UPDATE)])
            await bob.receive()
        await ann.gone.wait()
        assert ann.disconnect is not None
        assert ann.disconnect.reason == TOO_SLOW


async def test_a_client_is_gone_when_its_grace_is_over(autojump_clock: MockClock) -> None:
    async with resuming(timeout=math.inf, away_grace=HOUR, away_grace_idle=60.0) as (scene, ann):
        await trio.sleep(2 * HOUR)
        await ann.lose()
        await trio.sleep(HOUR - 1)
        assert not ann.gone.is_set()
        await ann.resume()
        await trio.sleep(2 * HOUR)
        await ann.lose()
        await trio.sleep(HOUR + TICK)
        assert ann.gone.is_set()
        assert ann.disconnect is not None
        assert ann.disconnect.reason == EXPIRED
        with pytest.raises(LinkGone):
            claim(ann.ticket, ann.link.received)
        assert not scene.ended.is_set()


async def test_a_client_may_be_away_for_ever_where_the_configuration_says_so(autojump_clock: MockClock) -> None:
    async with resuming(timeout=math.inf) as (scene, ann):
        await ann.lose()
        await trio.sleep(25 * HOUR)
        await ann.resume()
        await scene.open_turn()


async def test_a_client_that_was_never_initialized_is_not_waited_for_for_long(autojump_clock: MockClock) -> None:
    async with resuming(timeout=math.inf) as (scene, _):
        bob = scene.travel("bob")
        await wait_all_tasks_blocked()
        await bob.lose()
        await trio.sleep(UNUSED_LINK_GRACE - 1)
        assert not bob.gone.is_set()
        await trio.sleep(1 + TICK)
        assert bob.gone.is_set()
        assert bob.disconnect is not None
        assert bob.disconnect.reason == EXPIRED


async def test_a_client_without_a_session_is_not_waited_for_for_long(autojump_clock: MockClock) -> None:
    async with resuming(timeout=math.inf) as (scene, _):
        bob = scene.travel("bob")
        await bob.send_request(1, "initialize", protocolVersion=1)
        await bob.receive()
        await bob.lose()
        await trio.sleep(UNUSED_LINK_GRACE + TICK)
        assert bob.gone.is_set()


async def test_a_link_whose_newest_connection_never_came_is_away(autojump_clock: MockClock) -> None:
    async with resuming(timeout=math.inf, away_grace=HOUR) as (scene, ann):
        # Two come to resume it before the first connection has ended, and neither gets as far as being served.
        here, _ = memory_message_stream_pair()
        first = claim(ann.ticket, ann.link.received)
        scene.hub.attachments[ann.client].connect(here, first.peer_received)
        claim(ann.ticket, ann.link.received)
        await wait_all_tasks_blocked()
        assert presence(ann) is Presence.AWAY
        await trio.sleep(HOUR + TICK)
        assert ann.gone.is_set()


async def test_an_own_agent_with_nothing_open_waits_for_its_client_for_a_shorter_time(
    autojump_clock: MockClock,
) -> None:
    async with resuming(shared=False, timeout=math.inf, away_grace=HOUR, away_grace_idle=60.0) as (scene, ann):
        await ann.lose()
        await trio.sleep(59)
        assert not ann.gone.is_set()
        await scene.ended.wait()
        assert ann.disconnect is not None
        assert ann.disconnect.reason == EXPIRED
        assert scene.agent.unread_when_stopped == []


async def test_the_short_time_begins_when_the_turn_ends(autojump_clock: MockClock) -> None:
    async with resuming(shared=False, timeout=math.inf, away_grace=HOUR, away_grace_idle=60.0) as (scene, ann):
        turn = await scene.open_turn()
        await ann.lose()
        await trio.sleep(1000)
        await scene.agent.send(id=turn, result={"stopReason": "end_turn"})
        await trio.sleep(59)
        assert not ann.gone.is_set()
        await trio.sleep(1 + TICK)
        assert ann.gone.is_set()


async def test_the_short_time_does_not_begin_while_a_permission_is_open(autojump_clock: MockClock) -> None:
    async with resuming(shared=False, timeout=math.inf, away_grace=HOUR, away_grace_idle=60.0) as (scene, ann):
        await scene.agent.send(**permission())
        await ann.lose()
        await trio.sleep(HOUR - 1)
        assert not ann.gone.is_set()
        await trio.sleep(1 + TICK)
        assert ann.gone.is_set()


async def say_goodbye(ann: ResumingPeer) -> None:
    ann.stream.send_nowait([goodbye()])
    await ann.stream.aclose()


async def end_politely(ann: ResumingPeer) -> None:
    class Polite(FragileStream):
        ended_normally = True

    await ann.resume(Polite)
    await ann.stream.aclose()


@pytest.mark.parametrize("leave", [say_goodbye, end_politely])
async def test_a_client_that_says_goodbye_is_gone_at_once(leave: Callable[[ResumingPeer], Any]) -> None:
    async with resuming(shared=False) as (scene, ann):
        await leave(ann)
        await scene.ended.wait()
        await ann.gone.wait()
        assert ann.disconnect is not None
        assert ann.disconnect.reason is None


@pytest.mark.parametrize("shared", [False, True])
async def test_a_message_above_the_limit_ends_the_link_and_names_the_setting(shared: bool) -> None:
    async with resuming(shared=shared) as (_, ann):
        ann.ours.receive_error = MessageTooLarge("a message has more than max_message_size (5) bytes")
        ann.stream.send_nowait([FAIL])
        assert "max_message_size" in (await ann.receive())["error"]["message"]
        await ann.gone.wait()
        assert ann.closed_with is not None
        assert ann.closed_with[0] is CloseReason.TOO_LARGE


@pytest.mark.parametrize("shared", [False, True])
async def test_a_client_that_confirms_what_it_was_never_sent_is_gone(shared: bool) -> None:
    async with resuming(shared=shared) as (_, ann):
        ann.link.send_control(acknowledgement(1000))
        await ann.gone.wait()
        assert ann.disconnect is not None
        assert ann.disconnect.reason == "miscounted"
        assert ann.closed_with is not None
        assert ann.closed_with[0] is CloseReason.POLICY


async def test_when_a_client_of_a_shared_agent_is_gone_its_turn_goes_on_and_what_is_asked_waits() -> None:
    async with resuming() as (scene, ann):
        turn = await scene.open_turn()
        await ann.lose()
        await scene.agent.send(**permission())
        await scene.flow(1)
        await detach(scene, ann)
        await ann.gone.wait()
        await wait_all_tasks_blocked()
        assert scene.agent.peek() == []
        bob = await scene.enter("bob")
        agent_request = await bob.receive()
        assert is_question(agent_request)
        await bob.stream.send(choice(agent_request["id"], "no"))
        assert (await scene.agent.receive())["result"]["outcome"]["optionId"] == "no"
        await scene.agent.send(id=turn, result={"stopReason": "end_turn"})
        await wait_all_tasks_blocked()
        assert [event.name for event in scene.services.events][-1] == "turn_end"


async def test_when_the_client_of_an_own_agent_is_gone_its_turn_is_cancelled_and_the_agent_stopped() -> None:
    async with resuming(shared=False) as (scene, ann):
        await scene.open_turn()
        await scene.agent.send(**permission())
        await ann.lose()
        await wait_all_tasks_blocked()
        assert scene.agent.peek() == []
        await detach(scene, ann)
        await scene.ended.wait()
        heard = scene.agent.unread_when_stopped
        assert heard is not None
        assert [message.get("method") for message in heard] == ["session/cancel", None]
        assert heard[1]["result"]["outcome"] == {"outcome": "cancelled"}


# An agent that does not read


async def flood_agent(ann: ResumingPeer, size: int) -> None:
    """Send so many bytes, as far as they leave."""
    for _ in range(size // UPDATE):
        ann.link.send([flood()])
    await wait_all_tasks_blocked()


@ANY_SCOPE
async def test_an_agent_that_reads_again_before_stall_timeout_slows_a_client_down_and_is_not_stopped(
    shared: bool, autojump_clock: MockClock
) -> None:
    async with resuming(shared=shared, timeout=math.inf, stall_timeout=60.0) as (scene, ann):
        await scene.open_turn()
        await scene.agent.send(**permission())
        (agent_request,) = filter(is_question, await ann.waiting())
        await flood_agent(ann, WINDOW - 10 * UPDATE)
        ann.link.send([choice(agent_request["id"])])
        await trio.sleep(50.0)
        assert await ann.waiting() == []
        assert ann.link.outbox.unconfirmed_bytes > WINDOW - 10 * UPDATE
        assert json.loads(scene.agent.peek()[-1])["result"]["outcome"]["optionId"] == "yes"
        await flood_agent(ann, 3 * WINDOW)
        assert sum(map(len, scene.agent.peek())) <= WINDOW + 2 * HIGH_WATER
        count = 0
        while ann.link.outbox.unconfirmed_bytes > HIGH_WATER:
            count += len(await scene.agent.stream.receive_batch())
            await ann.waiting()
        await trio.sleep(2 * HEARTBEAT)
        await ann.waiting()
        assert len(ann.link.outbox) == 0
        count += len(scene.agent.peek())
        assert count == (WINDOW - 10 * UPDATE) // UPDATE + 1 + 3 * WINDOW // UPDATE


@pytest.mark.parametrize("reconnects", [False, True])
async def test_stall_timeout_stops_an_agent_that_reads_nothing_from_a_client_with_a_link(
    *, reconnects: bool, autojump_clock: MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    async with resuming(timeout=math.inf, stall_timeout=60.0) as (scene, ann):
        await scene.open_turn()
        await flood_agent(ann, WINDOW)
        for _ in range(4):
            await trio.sleep(20.0)
            if reconnects:
                await ann.lose()
                await ann.resume()
        assert scene.agent.agent.exit_code == -15
        (answer,) = [message for message in await ann.waiting() if message.get("id") == "turn"]
        assert answer["error"]["data"] == {"reason": "agent_stalled", "agent": "fake"}
    assert "has read nothing for 60 s" in caplog.text


async def test_who_reconnects_again_and_again_to_an_agent_that_does_not_read_fills_no_more_than_another_window(
    autojump_clock: MockClock,
) -> None:
    async with resuming(timeout=math.inf, stall_timeout=10 * HOUR) as (scene, ann):
        await scene.open_turn()
        await scene.agent.send(**permission())
        (agent_request,) = filter(is_question, await ann.waiting())
        total = 10 * WINDOW
        await flood_agent(ann, total)
        for _ in range(5):
            await ann.lose()
            await ann.resume()
            await trio.sleep(HOUR)
            assert presence(ann) is Presence.CONNECTED
            assert sum(map(len, scene.agent.peek())) <= 2 * WINDOW + 2 * HIGH_WATER
        ann.link.send([choice(agent_request["id"])])
        heard: list[Any] = []
        while len(heard) < total // UPDATE + 1:
            with trio.fail_after(10 * HEARTBEAT):
                heard.append(await scene.agent.receive())
            if not peek(scene.agent.stream):
                await ann.waiting()
        assert [message.get("method") for message in heard] == [*["flood"] * (total // UPDATE), None]


async def test_the_loss_of_a_client_is_noticed_while_the_agent_does_not_read() -> None:
    async with resuming() as (scene, ann):
        await scene.open_turn()
        await flood_agent(ann, 2 * WINDOW)
        await ann.lose()
        assert presence(ann) is Presence.AWAY


async def test_the_end_of_an_agent_that_does_not_read_releases_the_throttled_client() -> None:
    async with resuming() as (scene, ann):
        await scene.open_turn()
        await flood_agent(ann, WINDOW // 2)
        before = ann.link.outbox.confirmed
        await ann.waiting()
        scene.agent.end(1)
        await scene.agent.close()
        await wait_all_tasks_blocked()
        ann.link.send([flood()] * CONFIRM_MESSAGES)
        await ann.waiting()
        assert ann.link.outbox.confirmed > before


# Where a client is


@pytest.mark.parametrize(("count", "size"), [(MESSAGES_PER_MARK, 0), (17, BYTES_PER_MARK // 16)])
async def test_who_counts_is_told_from_time_to_time_where_it_is(count: int, size: int) -> None:
    async with resuming(outbox_limit=10**8, resume_window=10**8) as (scene, ann):
        await ann.waiting()
        journal = next(iter(scene.hub.multiplexer.sessions)).journal
        assert [(mark["s"]["epoch"], mark["s"]["position"]) for mark in ann.marks] == [(journal.epoch, 0)]
        heard = 0
        for number in range(3 * count):
            scene.agent.stream.send_nowait([update(number, size)])
            heard += len(await ann.waiting())
        assert heard == 3 * count
        positions = [mark["s"]["position"] for mark in ann.marks]
        assert len(positions) in (3, 4)
        assert positions == sorted(set(positions))
        assert positions[-1] <= 3 * count


async def test_a_mark_says_where_a_client_is_that_has_read_up_to_it() -> None:
    async with resuming(outbox_limit=10**8, resume_window=10**8, write_high_water=10**8) as (scene, ann):
        scene.agent.stream.send_nowait([update(number) for number in range(MESSAGES_PER_MARK)])
        await wait_all_tasks_blocked()
        messages = peek(ann.stream)
        (at,) = [place for place, message in enumerate(messages[1:], 1) if b"positions" in message]
        position = json.loads(messages[at])["params"]["positions"]["s"]["position"]
        assert position == sum(b"session/update" in message for message in messages[:at])


async def test_a_stock_client_sees_nothing_of_links() -> None:
    async with sharing(outbox_limit=10**8) as (scene, ann):
        scene.agent.stream.send_nowait([update(number) for number in range(2 * MESSAGES_PER_MARK)])
        assert [message for message in await ann.waiting() if message.get("method") != "session/update"] == []
        ann.stream.send_nowait([flood()] * 3 * CONFIRM_MESSAGES)
        await wait_all_tasks_blocked()
        while scene.agent.peek():
            await scene.agent.stream.receive_batch()
            await wait_all_tasks_blocked()
        assert await ann.waiting() == []


async def test_a_stock_client_whose_connection_is_lost_is_gone() -> None:
    async with sharing() as (_, ann):
        await ann.stream.aclose()
        await ann.gone.wait()
        assert presence(ann) is Presence.GONE


# The agent's end


async def end(agent: FakeAgent) -> None:
    agent.end(3)
    await agent.close()
    await wait_all_tasks_blocked()


async def test_an_own_agent_that_ends_while_its_client_is_away_is_told_of_when_that_is_back(
    autojump_clock: MockClock,
) -> None:
    async with resuming(shared=False, timeout=math.inf, stall_timeout=60.0) as (scene, ann):
        await scene.open_turn()
        await scene.flow(1)
        await ann.lose()
        await end(scene.agent)
        await trio.sleep(HOUR)
        assert not ann.gone.is_set()
        await ann.resume()
        assert numbers_of([await ann.receive()]) == [0]
        answer = await ann.receive()
        assert (answer["id"], answer["error"]["data"]["exitCode"]) == ("turn", 3)
        await ann.gone.wait()
        assert ann.disconnect is not None
        assert ann.disconnect.code is CloseReason.AGENT_GONE


async def test_a_client_that_takes_no_last_words_is_not_waited_for_any_longer_than_for_an_agent(
    autojump_clock: MockClock,
) -> None:
    async with resuming(shared=False, timeout=math.inf, stall_timeout=60.0, resume_window=WINDOW) as (scene, ann):
        scene.agent.stream.send_nowait([update(number, UPDATE) for number in range(30)])
        await wait_all_tasks_blocked()
        await ann.lose()
        await end(scene.agent)
        await ann.resume()
        assert not ann.gone.is_set()
        await trio.sleep(61)
        assert ann.gone.is_set()


async def test_a_shared_agent_that_ends_while_a_client_is_away_ends_no_link() -> None:
    async with resuming() as (scene, ann):
        await scene.open_turn()
        await ann.lose()
        await end(scene.agent)
        await ann.resume()
        assert (await ann.receive())["error"]["data"]["exitCode"] == 3
        assert not ann.gone.is_set()


# Who slows the agent down


async def test_a_client_that_is_away_does_not_slow_the_agent_down() -> None:
    async with resuming(outbox_limit=10**7, away_limit=10**7) as (scene, ann):
        assert await fill(scene.agent.stream, update(0, UPDATE)) < 100
        await ann.lose()
        assert scene.agent.stream.pending_bytes == 0
        await scene.flow(100)
        assert scene.agent.stream.pending_bytes == 0


async def test_one_that_is_alone_but_for_others_that_are_away_slows_the_agent_down_until_they_are_back() -> None:
    async with resuming(outbox_limit=10**7, away_limit=10**7) as (scene, ann):
        await ann.lose()
        await scene.enter("bob")
        assert await fill(scene.agent.stream, update(0, UPDATE)) < 100
        await ann.resume()
        assert scene.agent.stream.pending_bytes == 0


# The end


async def test_a_hub_that_is_ended_gives_up_who_is_away() -> None:
    async with resuming() as (scene, ann):
        await ann.lose()
        scene.hub.end()
        await scene.ended.wait()
        await ann.gone.wait()
        assert ann.disconnect is not None
        assert ann.disconnect.reason == "agent_stopped"
        with pytest.raises(LinkGone):
            claim(ann.ticket, ann.link.received)


@pytest.mark.parametrize("cancel", [stop_hub, cancel_all])
@pytest.mark.parametrize("away", [False, True])
async def test_a_gateway_that_stops_does_not_wait_for_who_may_come_back(
    away: bool, cancel: Callable[[Scene, ResumingPeer], Any], autojump_clock: MockClock
) -> None:
    begin = trio.current_time()
    async with resuming(timeout=math.inf) as (scene, ann):
        await ann.resume()
        if away:
            await ann.lose()
        await cancel(scene, ann)
        with trio.CancelScope(shield=True):
            await scene.ended.wait()
    assert trio.current_time() - begin < 1
    assert presence(ann) is Presence.GONE
    assert all(release.is_set() for release in ann.releases)


async def test_an_observer_that_waits_for_a_session_is_refused_once_that_is_forgotten(
    autojump_clock: MockClock,
) -> None:
    async with sharing({"loadSession": True, "sessionCapabilities": {"close": {}}}, timeout=math.inf) as (scene, ann):
        await ann.send_request("end", "session/close", sessionId="s")
        await scene.agent.answer("session/close", {})
        assert (await ann.receive())["id"] == "end"
        eve = scene.join("eve", role=Role.OBSERVER)
        await eve.initialize()
        state = {"acp-gateway": {"epoch": "e", "position": 0}}
        await eve.send_request("back", "session/resume", sessionId="s", **OPEN, _meta=state)
        await trio.sleep(2 * TICK)
        assert peek(eve.stream) == []
        (session,) = scene.registry.by_id("s")
        scene.registry.remove(session)
        answer = await eve.receive()
        assert (answer["id"], answer["error"]["code"]) == ("back", -32002)
