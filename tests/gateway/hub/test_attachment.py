"""A client's place: what goes into its stream, what waits, what counts as being behind, and how it is told goodbye."""

import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.core.sessions.session import SESSION_ID_SIZE, Client, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.hub.attachment import (
    BYTES_PER_MARK,
    MESSAGES_PER_MARK,
    SESSIONS_PER_MARK,
    Attachment,
    Disconnect,
)
from acp_gateway.protocol.link_messages import Mark
from acp_gateway.transports.link import CHUNK
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.timers import TaskSpawner
from tests.kit.doubles import TIMEOUT, FragileStream
from tests.kit.wires import Script

HIGH_WATER = 100

SMALL = b"x" * 10

LOST = [trio.BrokenResourceError("lost"), trio.ClosedResourceError("closed")]

BYE = Disconnect(CloseReason.AGENT_GONE, "the agent has ended")


class Scene:
    """A seat and its peer."""

    def __init__(self) -> None:
        self.peer, ours = memory_message_stream_pair()
        self.stream = FragileStream(ours)
        self.progress = 0
        """Number of times that the peer has caught up."""
        self.attachment = Attachment(
            Client("test", SessionReach("me")), high_water=HIGH_WATER, progressed=self._progressed
        )
        self.attachment.connect(self.stream)
        self.done = trio.Event()
        """Check whether it is served no more."""

    def _progressed(self) -> None:
        self.progress += 1

    def fall_behind(self) -> None:
        """Send more than the stream takes."""
        self.attachment.send([b"y" * HIGH_WATER])
        self.attachment.send([SMALL])
        assert self.attachment.behind

    async def serve(self) -> None:
        assert self.attachment.connection is not None
        async with trio.open_nursery() as nursery:
            self.attachment.use_spawner(TaskSpawner(nursery))
            await trio.sleep_forever()
        self.attachment.connection.drop_spawner()
        self.done.set()


@asynccontextmanager
async def serving(scene: Scene) -> AsyncIterator[Scene]:
    """An attachment that has a spawner, and has to end within the block."""
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.serve)
            await wait_all_tasks_blocked()
            yield scene
            await scene.done.wait()


# Sending


async def test_what_the_stream_takes_is_handed_over_at_once() -> None:
    scene = Scene()
    scene.attachment.send([SMALL, SMALL])
    scene.attachment.send([SMALL])
    assert scene.stream.pending_bytes == 3 * len(SMALL)
    assert not scene.attachment.behind
    assert scene.progress == 0


async def test_above_the_high_water_mark_messages_wait_in_the_outbox() -> None:
    scene = Scene()
    scene.attachment.send([b"y" * (HIGH_WATER - 1)])
    scene.attachment.send([b"z"])
    assert not scene.attachment.behind
    scene.attachment.send([SMALL])
    assert scene.attachment.behind
    assert scene.stream.pending_bytes == HIGH_WATER
    assert list(scene.attachment.outbox.messages()) == [SMALL]


async def test_a_stream_that_takes_everything_gets_no_more_than_a_chunk_above_its_mark() -> None:
    scene = Scene()
    scene.attachment.send([b"y" * (CHUNK // 4)] * 20)
    assert scene.stream.pending_bytes == CHUNK


async def test_what_waits_is_sent_in_order_as_the_peer_reads_and_the_hub_is_told_when_none_of_it_waits() -> None:
    async with serving(Scene()) as scene:
        messages = [b"%d" % number * (CHUNK // 2) for number in range(8)]
        scene.attachment.send(messages)
        received: list[bytes] = []
        while scene.attachment.behind:
            assert scene.progress == 0
            received += await scene.peer.receive_batch()
            await wait_all_tasks_blocked()
        assert scene.progress == 1
        assert len(received) == 6
        assert received + await scene.peer.receive_batch() == messages
        await wait_all_tasks_blocked()
        assert scene.progress == 1
        scene.attachment.end()


async def test_the_hub_is_told_as_well_where_sending_itself_catches_up() -> None:
    scene = Scene()
    scene.fall_behind()
    await scene.peer.receive_batch()
    scene.attachment.send([SMALL])
    assert not scene.attachment.behind
    assert scene.progress == 1
    assert scene.attachment.excess <= 0


async def test_a_pump_that_is_cancelled_loses_nothing() -> None:
    async with serving(Scene()) as scene:
        scene.fall_behind()
        scene.attachment.end()
    assert list(scene.attachment.outbox.messages()) == [SMALL]


@pytest.mark.parametrize("error", LOST)
async def test_what_cannot_be_sent_any_more_does_not_pile_up(error: Exception) -> None:
    scene = Scene()
    scene.fall_behind()
    await scene.peer.receive_batch()
    scene.stream.send_error = error
    scene.attachment.send([SMALL])
    assert not scene.attachment.behind


@pytest.mark.parametrize("error", LOST)
async def test_an_attachment_whose_stream_is_lost_does_not_hold_up_the_agent(error: Exception) -> None:
    async with serving(Scene()) as scene:
        scene.stream.drain_error = error
        scene.fall_behind()
        await wait_all_tasks_blocked()
        assert not scene.attachment.behind
        assert scene.progress == 1
        assert not scene.done.is_set()
        scene.attachment.end()


# How far behind


async def test_what_waits_beyond_one_message_is_the_excess() -> None:
    scene = Scene()
    scene.fall_behind()
    assert scene.attachment.excess <= 0
    scene.attachment.send([SMALL] * 4)
    assert scene.attachment.excess == 4 * len(SMALL)


@pytest.mark.parametrize("before", [0, 3])
@pytest.mark.parametrize("after", [0, 3])
async def test_one_message_may_be_as_large_as_it_is_wherever_it_stands(before: int, after: int) -> None:
    scene = Scene()
    scene.attachment.send([b"y" * HIGH_WATER])
    scene.attachment.send([SMALL] * before)
    scene.attachment.send([b"z" * 100_000])
    scene.attachment.send([SMALL] * after)
    assert scene.attachment.excess == (before + after) * len(SMALL)


async def test_of_two_large_messages_one_counts() -> None:
    scene = Scene()
    scene.fall_behind()
    scene.attachment.send([b"z" * 100_000, b"z" * 90_000])
    assert scene.attachment.excess == 90_000 + len(SMALL)


async def test_a_large_message_that_the_peer_has_excuses_no_other() -> None:
    async with serving(Scene()) as scene:
        scene.fall_behind()
        scene.attachment.send([b"z" * 100_000])
        while scene.attachment.behind:
            await scene.peer.receive_batch()
            await wait_all_tasks_blocked()
        scene.fall_behind()
        scene.attachment.send([SMALL] * 4)
        assert scene.attachment.excess > 0
        scene.attachment.end()


async def test_history_does_not_count() -> None:
    scene = Scene()
    scene.fall_behind()
    history = [SMALL] * 1000
    scene.attachment.send([*history, SMALL], replayed=sum(map(len, history)))
    assert scene.attachment.excess == len(SMALL)


# Goodbye


async def test_what_is_said_first_about_the_end_counts() -> None:
    attachment = Scene().attachment
    attachment.close(Disconnect(CloseReason.POLICY, "revoked"))
    attachment.close(BYE)
    attachment.close_after_sending(BYE)
    attachment.discard_and_close(BYE)
    assert attachment.disconnect is not None
    assert attachment.disconnect.text == "revoked"


async def test_a_connection_that_is_closed_at_once_keeps_what_there_still_is_for_it() -> None:
    async with serving(Scene()) as scene:
        scene.fall_behind()
        scene.attachment.close(BYE)
        await scene.done.wait()
        scene.attachment.link.flush()
        assert not scene.attachment.behind
        assert await scene.peer.receive_batch() == [b"y" * HIGH_WATER, SMALL]


async def test_a_peer_that_is_cut_off_gets_nothing_more_until_its_last_answers() -> None:
    async with serving(Scene()) as scene:
        scene.fall_behind()
        scene.attachment.discard_and_close(BYE)
        scene.attachment.send([b"behind the gap"])
        assert not scene.attachment.behind
        scene.attachment.discarding = False
        scene.attachment.send([b"an answer"])
        scene.attachment.link.flush()
        assert await scene.peer.receive_batch() == [b"y" * HIGH_WATER, b"an answer"]


@pytest.mark.parametrize("error", LOST)
async def test_giving_up_on_a_stream_that_is_lost_leaves_nothing(error: Exception) -> None:
    scene = Scene()
    scene.fall_behind()
    scene.stream.send_error = error
    scene.attachment.link.flush()
    assert not scene.attachment.behind


async def test_last_words_are_waited_for_until_the_peer_has_taken_them() -> None:
    async with serving(Scene()) as scene:
        scene.fall_behind()
        scene.attachment.close_after_sending(BYE)
        await wait_all_tasks_blocked()
        assert not scene.attachment.ended
        assert await scene.peer.receive_batch() == [b"y" * HIGH_WATER]
        await wait_all_tasks_blocked()
        assert not scene.attachment.ended
        assert await scene.peer.receive_batch() == [SMALL]
        await scene.done.wait()
    assert scene.attachment.ended


async def test_a_connection_with_nothing_on_its_way_ends_at_once() -> None:
    async with serving(Scene()) as scene:
        scene.attachment.close_after_sending(BYE)
    assert scene.attachment.ended


@pytest.mark.parametrize("error", LOST)
@pytest.mark.parametrize("behind", [False, True])
async def test_last_words_for_a_peer_that_is_lost_are_not_waited_for(behind: bool, error: Exception) -> None:
    async with serving(Scene()) as scene:
        if behind:
            scene.fall_behind()
            await wait_all_tasks_blocked()
        scene.stream.drain_error = error
        scene.attachment.close_after_sending(BYE)
        await wait_all_tasks_blocked()
        await scene.peer.aclose()
    assert scene.attachment.ended


@pytest.mark.parametrize("error", LOST)
async def test_the_loss_of_a_stream_does_not_keep_its_connection_from_ending_later(error: Exception) -> None:
    async with serving(Scene()) as scene:
        scene.stream.drain_error = error
        scene.fall_behind()
        await wait_all_tasks_blocked()
        scene.attachment.close_after_sending(BYE)
    assert scene.attachment.ended


# Where a client is


async def test_who_takes_part_in_many_sessions_is_told_of_them_in_small_marks() -> None:
    client = Client("test", SessionReach("me"), link="L")
    for number in range(SESSIONS_PER_MARK + 1):
        client.sessions[Session("agent", f"s{number}", "me", Journal(1000, f"e{number}"))] = None
    attachment = Attachment(client, high_water=1 << 20, window=1 << 20, progressed=lambda: None)
    attachment.send([SMALL] * MESSAGES_PER_MARK)
    marks = [json.loads(message.text) for message in attachment.outbox.messages() if isinstance(message, Mark)]
    assert [len(mark["params"]["positions"]) for mark in marks] == [SESSIONS_PER_MARK, 1]
    assert {name for mark in marks for name in mark["params"]["positions"]} == {s.id for s in client.sessions}


async def test_marks_that_are_large_themselves_do_not_call_for_others() -> None:
    client = Client("test", SessionReach("me"), link="L")
    for number in range(BYTES_PER_MARK // SESSION_ID_SIZE):
        client.sessions[Session("agent", f"{number:0{SESSION_ID_SIZE}}", "me", Journal(1000, "e"))] = None
    attachment = Attachment(client, high_water=1 << 20, window=1 << 20, progressed=lambda: None)
    attachment.send([SMALL] * MESSAGES_PER_MARK)
    told = attachment.outbox.unconfirmed_bytes
    assert told > BYTES_PER_MARK
    attachment.send([SMALL])
    assert attachment.outbox.unconfirmed_bytes == told + len(SMALL)


async def test_marks_are_a_small_part_of_what_a_link_gets_that_opens_a_thousand_sessions() -> None:
    client = Client("test", SessionReach("me"), link="L")
    attachment = Attachment(client, high_water=1 << 30, window=1 << 30, progressed=lambda: None)
    history = [b"x" * 1000] * 20
    for number in range(1000):
        client.sessions[Session("agent", f"{number:036}", "me", Journal(1000, "e"))] = None
        attachment.send(history)
    messages = list(attachment.outbox.messages())
    told = sum(len(message) for message in messages if isinstance(message, Mark))
    assert 0 < told < sum(map(len, messages)) / 10


async def test_a_client_without_a_link_gets_no_marks_although_its_cursors_are_counted() -> None:
    client = Client("test", SessionReach("me"))
    client.counts = True
    client.sessions[Session("agent", "s", "me", Journal(1000, "e"))] = None
    attachment = Attachment(client, high_water=1 << 20, progressed=lambda: None)
    attachment.send([SMALL] * MESSAGES_PER_MARK)
    assert list(attachment.outbox.messages()) == [SMALL] * MESSAGES_PER_MARK


async def test_a_client_that_counts_and_is_in_no_session_is_told_nothing() -> None:
    attachment = Attachment(
        Client("test", SessionReach("me"), link="L"), high_water=100, window=1 << 20, progressed=lambda: None
    )
    attachment.send([SMALL] * MESSAGES_PER_MARK)
    assert list(attachment.outbox.messages()) == [SMALL] * MESSAGES_PER_MARK


# What is written down


class Roll:
    """A tape in memory."""

    def __init__(self) -> None:
        self.written: list[tuple[str, list[bytes]]] = []

    def close(self) -> None: ...

    def write(self, direction: str, messages: Sequence[bytes]) -> None:
        self.written.append((direction, list(messages)))


def taped(*, link: str | None = None) -> tuple[Attachment, Roll]:
    """A seat whose tape can be read."""
    roll = Roll()
    client = Client("test", SessionReach("me"), link=link)
    window = None if link is None else 1 << 20
    attachment = Attachment(client, high_water=HIGH_WATER, window=window, progressed=lambda: None, tape=roll)
    attachment.connect(FragileStream(memory_message_stream_pair()[1]))
    return attachment, roll


async def test_everything_that_is_sent_is_on_the_tape_also_what_has_to_wait() -> None:
    attachment, roll = taped()
    attachment.send([b"y" * HIGH_WATER])
    attachment.send([SMALL, SMALL], replayed=len(SMALL))
    assert attachment.behind
    assert roll.written == [("to_client", [b"y" * HIGH_WATER]), ("to_client", [SMALL, SMALL])]


async def test_what_a_client_is_not_sent_any_more_is_not_on_the_tape() -> None:
    attachment, roll = taped()
    attachment.discard_and_close(BYE)
    attachment.send([SMALL])
    assert roll.written == []
    attachment.discarding = False
    attachment.send([b"last words"])
    assert roll.written == [("to_client", [b"last words"])]


async def test_what_keeps_a_link_together_is_not_on_the_tape() -> None:
    attachment, roll = taped(link="a link")
    for _ in range(MESSAGES_PER_MARK):
        attachment.send([SMALL])
    attachment.connection_lost(0.0)
    attachment.send([b"missed"])
    attachment.connect(FragileStream(memory_message_stream_pair()[1]))
    assert [message for _, messages in roll.written for message in messages] == [
        *[SMALL] * MESSAGES_PER_MARK,
        b"missed",
    ]


# Connections


async def test_a_client_that_is_away_is_waited_for() -> None:
    scene = Scene()
    scene.attachment.connection_lost(0.0)
    returned: list[bool] = []

    async def wait() -> None:
        returned.append(await scene.attachment.wait_connected())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await wait_all_tasks_blocked()
        assert returned == []
        scene.attachment.connect(scene.stream)
    assert returned == [True]
    assert await scene.attachment.wait_connected()


@pytest.mark.parametrize("away", [False, True])
async def test_a_client_that_is_given_up_is_not_waited_for_any_more(away: bool) -> None:
    scene = Scene()
    if away:
        scene.attachment.connection_lost(0.0)
    async with trio.open_nursery() as nursery:
        if away:
            nursery.start_soon(scene.attachment.wait_connected)
            await wait_all_tasks_blocked()
        scene.attachment.close(BYE)
    assert not await scene.attachment.wait_connected()
    assert scene.attachment.disconnect is BYE


async def test_what_is_over_before_it_is_served_is_left_as_soon_as_it_is() -> None:
    scene = Scene()
    scene.attachment.close(BYE)
    async with serving(scene):
        pass
    assert not scene.stream.runs


async def test_a_connection_has_helpers_only_while_it_is_served() -> None:
    scene = Scene()
    scene.attachment.spawn(trio.sleep_forever)
    async with serving(scene):
        assert scene.stream.runs
        scene.attachment.drop_connection()
    assert not scene.stream.runs
    scene.attachment.spawn(trio.sleep_forever)


async def test_what_a_client_has_sent_and_nothing_was_done_about_is_known_and_let_go_of_with_it() -> None:
    scene = Scene()
    lines = LineStream(Script([b"x" * 500, b"y"]), max_message_size=1000)
    lines.accepts_unterminated_line = False
    scene.attachment.connect(lines)
    memory_grew: list[int] = []
    scene.attachment._memory_grew = memory_grew.append
    with pytest.raises(trio.BrokenResourceError):
        await lines.receive_batch()
    assert sum(memory_grew) == 501
    scene.attachment.unhandled_bytes = 20
    scene.attachment.client.waiting_size = 3
    assert scene.attachment.incoming_bytes == 524
    scene.attachment.discard_and_close(BYE)
    assert scene.attachment.incoming_bytes == 23
