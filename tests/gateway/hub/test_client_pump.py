"""Relaying of clients' messages: turns, charges, and errors of a connection; `test_hub` has the flow control."""

import json
from collections.abc import Sequence

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.core.agent_requests import AgentRequest
from acp_gateway.core.sessions.session import Client
from acp_gateway.gateway.events.recording import Direction
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.hub.client_pump import AT_ONCE, TURN
from acp_gateway.transports.streams import CloseReason, Flooded, Unfinished
from tests.kit.doubles import FAIL, encode
from tests.kit.hub_scene import HIGH_WATER, WINDOW, Scene, flood, methods_of, permission, resuming, sharing


async def test_between_what_one_client_sent_at_once_others_get_their_turn() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        ann.stream.send_nowait([encode({"id": number, "method": "x/ann"}) for number in range(4 * AT_ONCE)])
        bob.stream.send_nowait([encode({"id": 1, "method": "x/bob"})])
        await wait_all_tasks_blocked()
        methods = methods_of(scene.agent.peek())
        assert methods.count("x/ann") == 4 * AT_ONCE
        assert methods.index("x/bob") <= 2 * AT_ONCE


async def test_nothing_is_lost_of_what_had_come_when_a_connection_is_cut() -> None:
    async with resuming() as (scene, ann):
        ann.link.send([encode({"id": number, "method": "x/y"}) for number in range(4 * AT_ONCE)])
        # As soon as something of it has arrived.
        scene.hub.attachments[ann.client].drop_connection()
        await wait_all_tasks_blocked()
        await ann.resume()
        await wait_all_tasks_blocked()
        sent = [json.loads(message) for message in scene.agent.peek()]
        assert [message["method"] for message in sent] == ["x/y"] * (4 * AT_ONCE)
        assert len({message["id"] for message in sent}) == len(sent)


async def test_nothing_is_lost_of_what_is_seen_to_when_a_connection_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    async with resuming() as (scene, ann):
        seen: list[bytes] = []
        receive = scene.hub.multiplexer.receive_from_client

        def cut(client: Client, text: bytes) -> None:
            receive(client, text)
            seen.append(text)
            if len(seen) == AT_ONCE // 2:
                scene.hub.attachments[client].drop_connection()

        monkeypatch.setattr(scene.hub.multiplexer, "receive_from_client", cut)
        ann.link.send([encode({"id": number, "method": "x/y"}) for number in range(4 * AT_ONCE)])
        await wait_all_tasks_blocked()
        assert scene.hub.attachments[ann.client].away_since is not None
        await ann.resume()
        await wait_all_tasks_blocked()
        assert [json.loads(text)["id"] for text in seen] == list(range(4 * AT_ONCE))
        assert len(scene.agent.peek()) == 4 * AT_ONCE


async def test_a_client_that_is_cut_off_when_it_has_just_said_something_is_not_a_bug() -> None:
    async with sharing() as (scene, ann):
        # What a stream says that was abandoned, once bytes have come.
        ann.ours.receive_error = trio.ClosedResourceError()
        ann.stream.send_nowait([FAIL])
        why = Disconnect(CloseReason.POLICY, "it is too slow")
        scene.hub.attachments[ann.client].discard_and_close(why)
        await ann.gone.wait()
        assert ann.disconnect is why


async def test_over_a_link_no_more_than_its_window_comes_while_the_agent_reads_nothing() -> None:
    async with resuming() as (scene, ann):
        ann.link.send([flood(HIGH_WATER)] * (3 * WINDOW // HIGH_WATER))
        await ann.waiting()
        assert HIGH_WATER < scene.output.pending_bytes <= WINDOW + 2 * HIGH_WATER
        received = 0
        while scene.agent.peek():
            received += len(await scene.agent.stream.receive_batch())
            await ann.waiting()
        assert received == 3 * WINDOW // HIGH_WATER


async def test_a_client_is_charged_for_bytes_and_for_the_time_that_its_messages_took() -> None:
    async with sharing() as (scene, ann):
        scene.services.charged.clear()
        scene.tick = 0.0001
        ann.ours.meter.size, ann.ours.meter.frames = 500, 3
        await ann.send_request(1, "x/y")
        await wait_all_tasks_blocked()
        (name, size, seconds, frames) = scene.services.charged[-1]
        assert (name, size, frames) == ("ann", 500, 3)
        assert seconds > 0


async def test_a_client_is_charged_for_the_time_in_which_its_messages_are_recorded() -> None:
    class SlowTape:
        def write(self, direction: Direction, messages: Sequence[bytes]) -> None:
            scene.time += 5.0 if direction == "from_client" else 0.0

        def close(self) -> None:
            """Nothing is open."""

    async with sharing() as (scene, _):
        bob = scene.join("bob")
        bob.tape = SlowTape()
        await bob.initialize()
        await wait_all_tasks_blocked()
        assert scene.services.charged[-1][::2] == ("bob", 5.0)


YES = b'{"outcome":{"outcome":"selected","optionId":"yes"}}'


async def asked(scene: Scene) -> AgentRequest:
    """Ask for a permission in session "s"; return the request."""
    await scene.open_turn()
    await scene.agent.send(**permission())
    await wait_all_tasks_blocked()
    (found,) = scene.hub.multiplexer.waiting(next(iter(scene.hub.multiplexer.sessions)))
    scene.services.charged.clear()
    return found


async def test_an_answer_from_inside_the_process_is_recorded_and_taken_once_and_not_charged_again() -> None:
    recorded: list[bytes] = []

    class Tape:
        def write(self, direction: Direction, messages: Sequence[bytes]) -> None:
            recorded.extend(messages if direction == "from_client" else ())

        def close(self) -> None:
            """Nothing is open."""

    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        agent_request = await asked(scene)
        scene.hub.attachments[ann.client].tape = Tape()
        reply = agent_request.reply(YES)
        assert reply is not None
        number, messages = agent_request.forwarded_ids[ann.client], scene.hub.multiplexer.traffic.from_clients[""]
        assert scene.hub.answer(ann.client, agent_request, reply)
        assert scene.services.charged == []
        assert [json.loads(text) for text in recorded] == [{"jsonrpc": "2.0", "id": number, "result": json.loads(YES)}]
        assert not scene.hub.answer(bob.client, agent_request, reply)
        assert scene.hub.multiplexer.traffic.from_clients[""] == messages + 2
        await wait_all_tasks_blocked()
        decided = [it for it in map(json.loads, scene.agent.peek()) if it.get("id") == "may I?"]
        assert decided == [{"jsonrpc": "2.0", "id": "may I?", "result": json.loads(YES)}]


async def test_a_bug_in_an_answer_ends_its_client_and_no_other(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError("a bug")

    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        agent_request = await asked(scene)
        reply = agent_request.reply(YES)
        assert reply is not None
        with monkeypatch.context() as patch:
            patch.setattr(scene.hub.multiplexer, "answer", fail)
            assert not scene.hub.answer(ann.client, agent_request, reply)
        await wait_all_tasks_blocked()
        assert not scene.hub.answer(ann.client, agent_request, reply)
        assert (ann.closed_with, bob.closed_with) == ((CloseReason.AGENT_GONE, "internal error"), None)
    assert "internal error, connection closed" in caplog.text


async def test_after_each_message_that_takes_long_others_get_their_turn() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        scene.tick = TURN
        ann.stream.send_nowait([encode({"id": number, "method": "x/ann"}) for number in range(10)])
        bob.stream.send_nowait([encode({"id": 1, "method": "x/bob"})])
        await wait_all_tasks_blocked()
        methods = methods_of(scene.agent.peek())
        assert methods.count("x/ann") == 10
        assert methods.index("x/bob") <= 2


async def test_between_batches_that_come_without_a_wait_others_get_their_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        batches = [[encode({"id": number, "method": "x/ann"})] for number in range(10)]
        receive = ann.ours._receive_batch

        async def receive_at_once() -> list[bytes]:
            if len(batches) == 10:
                bob.stream.send_nowait([encode({"id": 1, "method": "x/bob"})])
            return batches.pop(0) if batches else await receive()

        await wait_all_tasks_blocked()
        monkeypatch.setattr(ann.ours, "_receive_batch", receive_at_once)
        scene.tick = TURN / 4
        ann.stream.send_nowait([encode({"method": "x/first"})])
        await wait_all_tasks_blocked()
        methods = methods_of(scene.agent.peek())
        assert methods.count("x/ann") == 10
        assert methods.index("x/bob") <= 6


async def test_what_comes_without_a_message_is_charged_and_counts_as_kept() -> None:
    async with sharing() as (scene, ann):
        before = scene.services.grown
        assert ann.ours.meter.charge is not None
        ann.ours.meter.charge(size=1000, frames=2)
        assert scene.services.charged[-1] == ("ann", 1000, 0.0, 2)
        assert scene.services.grown == before + 1000


@pytest.mark.parametrize("error", [Flooded("frames_without_message"), Unfinished("message_timeout")])
async def test_who_floods_or_does_not_finish_is_told_so_and_closed(error: Exception) -> None:
    async with sharing() as (_, ann):
        ann.ours.receive_error = error
        ann.stream.send_nowait([FAIL])
        await ann.gone.wait()
        assert ann.closed_with == (CloseReason.POLICY, str(error))


async def test_a_message_that_is_not_finished_costs_a_client_that_can_come_back_its_connection_only() -> None:
    async with resuming() as (_, ann):
        ann.ours.receive_error = Unfinished("message_timeout")
        ann.stream.send_nowait([FAIL])
        await wait_all_tasks_blocked()
        assert not ann.gone.is_set()
        await ann.resume()
        await ann.send_request(1, "x/y")


async def test_a_dear_request_is_charged_as_several_and_others_get_their_turn_after_it() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        scene.services.paced.clear()
        ann.stream.send_nowait(
            [encode({"id": number, "method": "session/list", "params": {}}) for number in range(4)]
            + [encode({"id": 9, "method": "x/ann"})]
        )
        bob.stream.send_nowait([encode({"id": 1, "method": "x/bob"})])
        await wait_all_tasks_blocked()
        assert scene.services.paced[-1] == ("ann", 401)
        assert methods_of(scene.agent.peek()) == ["x/bob", "x/ann"]
