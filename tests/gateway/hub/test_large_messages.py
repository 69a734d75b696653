"""Large messages are checked piece by piece: others get their turn, and each client's messages keep their order."""

import itertools
import json
from collections.abc import Generator, Sequence
from types import SimpleNamespace

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.gateway.hub import agent_supervisor, large_messages
from acp_gateway.gateway.hub.large_messages import TURN, check_message, has_large, parse_message, parse_messages
from acp_gateway.protocol.jsonrpc import InvalidMessage
from acp_gateway.protocol.text.large_messages import LARGE, PIECE, Outline, Parsed, check_large, parse_large
from tests.kit.doubles import encode
from tests.kit.hub_scene import methods_of, resuming, sharing

WORDS = "x" * LARGE


def ignore(seconds: float) -> None:
    """Charge nothing."""


def large(**message: object) -> bytes:
    return encode({**message, "params": {"sessionId": "s", "x": WORDS}})


@pytest.mark.parametrize(("seconds", "each"), [(TURN, 1), (TURN / 4, 4), (0.0, 0)])
async def test_other_tasks_run_whenever_the_check_has_taken_its_turn(
    seconds: float, each: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    pieces = 0
    turns = 0

    def counted(text: bytes) -> Generator[None, None, Outline]:
        nonlocal now, pieces
        checking = check_large(text)
        while True:
            try:
                next(checking)
            except StopIteration as checked:
                outline: Outline = checked.value
                return outline
            pieces += 1
            now += seconds
            yield

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await trio.lowlevel.checkpoint()
            turns += 1

    monkeypatch.setattr(large_messages, "check_large", counted)
    monkeypatch.setattr(large_messages, "time", SimpleNamespace(perf_counter=lambda: now))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(count_turns)
        text = large(id=1, method="x/y")
        assert await check_message(text, ignore) is text
        nursery.cancel_scope.cancel()
    assert pieces > 2 * LARGE // PIECE
    if each:
        assert turns >= pieces // each
    else:
        assert turns <= 3


async def test_one_large_message_is_checked_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once: list[int] = []
    running = 0

    def counted(text: bytes) -> Generator[None, None, Outline]:
        nonlocal running
        running += 1
        at_once.append(running)
        outline = yield from check_large(text)
        running -= 1
        return outline

    monkeypatch.setattr(large_messages, "check_large", counted)
    async with trio.open_nursery() as nursery:
        for number in range(3):
            nursery.start_soon(check_message, large(id=number, method="x/y"), ignore)
    assert at_once == [1, 1, 1]


async def test_small_messages_are_left_as_they_are_and_errors_take_their_places() -> None:
    small, good, bad = b"{", large(id=1, method="x/y"), large(id=1, method="x/y")[:-1]
    assert not has_large([small])
    assert has_large([small, good])
    assert await check_message(small, ignore) is small
    first, second, third = await parse_messages([small, good, bad], ignore)
    assert first is small
    assert isinstance(second, Parsed)
    assert second.message.text is good
    assert isinstance(third, InvalidMessage)
    assert isinstance(await parse_message(bad, ignore), InvalidMessage)


async def test_a_check_that_is_cancelled_lets_the_next_one_begin() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        await check_message(large(id=1, method="x/y"), ignore)
    assert scope.cancelled_caught
    assert await check_message(large(id=1, method="x/y"), ignore)


async def test_the_messages_of_a_client_keep_their_order_and_others_pass_a_large_one() -> None:
    async with sharing() as (scene, ann):
        bob = await scene.enter("bob")
        ann.stream.send_nowait([large(id=1, method="x/large"), encode({"id": 2, "method": "x/small"})])
        bob.stream.send_nowait([encode({"id": 1, "method": "x/bob"})])
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["x/bob", "x/large", "x/small"]


async def test_an_invalid_large_message_is_refused_and_the_next_one_taken() -> None:
    async with sharing() as (scene, ann):
        ann.stream.send_nowait([large(id=1, method="x/y")[:-1], encode({"id": 2, "method": "x/small"})])
        refusal = await ann.receive()
        assert (refusal["id"], refusal["error"]["code"]) == (None, -32700)
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["x/small"]


async def test_a_large_message_counts_as_received_when_the_connection_is_cut_while_it_is_checked() -> None:
    async with resuming() as (scene, ann):
        ann.link.send([large(id=1, method="x/large")])
        for _ in range(20):
            await trio.lowlevel.checkpoint()
        scene.hub.attachments[ann.client].drop_connection()
        await wait_all_tasks_blocked()
        await ann.resume()
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["x/large"]


async def test_large_lines_of_an_agent_keep_their_order() -> None:
    async with sharing() as (scene, ann):
        updates = [
            {"method": "session/update", "params": {"sessionId": "s", "update": {"sessionUpdate": "x", "n": n, "x": x}}}
            for n, x in enumerate(("", WORDS, ""))
        ]
        scene.agent.stream.send_nowait([encode(update) for update in updates])
        heard = [(await ann.receive())["params"]["update"]["n"] for _ in range(3)]
        assert heard == [0, 1, 2]


async def test_small_lines_beside_a_large_one_are_taken_a_part_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with sharing() as (scene, _):
        monkeypatch.setattr(agent_supervisor, "AT_ONCE", 2)
        monkeypatch.setattr(scene.hub.supervisor, "_at_once", 2)
        taken: list[int] = []
        receive = scene.hub.receive_from_agent

        def counted(batch: Sequence[bytes]) -> None:
            taken.append(len(batch))
            receive(batch)

        monkeypatch.setattr(scene.hub, "receive_from_agent", counted)
        small = [encode({"method": "x/y", "params": {"n": number}}) for number in range(5)]
        scene.agent.stream.send_nowait([*small[:4], large(method="x/y"), *small[4:]])
        await wait_all_tasks_blocked()
        assert taken == [2, 2, 1]


async def test_a_large_line_that_cannot_be_read_fails_the_request_that_it_answers() -> None:
    async with sharing() as (scene, ann):
        await ann.send_request(7, "x/y", sessionId="s")
        await wait_all_tasks_blocked()
        asked = json.loads(scene.agent.peek()[-1])
        scene.agent.stream.send_nowait([b'{"jsonrpc":"2.0","id":%d,"result":"%b' % (asked["id"], WORDS.encode())])
        answer = await ann.receive()
        assert answer["id"] == 7
        assert "the agent's answer can't be read: not JSON" in answer["error"]["message"]


async def test_a_large_line_of_an_agent_counts_as_kept_and_in_the_metrics() -> None:
    async with sharing() as (scene, _):
        before, passed = scene.services.grown, scene.hub.multiplexer.traffic.bytes_from_agents
        text = large(method="x/y")
        scene.agent.stream.send_nowait([text])
        await wait_all_tasks_blocked()
        assert scene.services.grown >= before + len(text)
        assert scene.hub.multiplexer.traffic.bytes_from_agents == passed + len(text)


async def test_what_an_agent_has_begun_to_write_counts_before_it_is_read_on() -> None:
    async with sharing() as (scene, _):
        agent = scene.hub.supervisor.agent
        assert agent is not None
        assert agent.messages.stream.meter.charge is not None
        before = scene.services.grown
        assert agent.messages.stream.meter.charge(size=1000) == 0.0
        assert scene.services.grown == before + 1000


async def test_a_client_is_charged_for_the_time_of_the_check(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count()
    monkeypatch.setattr(large_messages, "time", SimpleNamespace(perf_counter=lambda: next(ticks)))
    async with sharing() as (scene, ann):
        ann.stream.send_nowait([large(id=1, method="x/large")])
        await wait_all_tasks_blocked()
        # A second for each piece.
        assert max(seconds for _, _, seconds, _ in scene.services.charged) > 2 * LARGE // PIECE


async def test_a_client_is_charged_for_the_time_of_the_parse(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0

    def parse_slowly(outline: Outline) -> Parsed:
        nonlocal now
        now += 7.0
        return parse_large(outline)

    spent: list[float] = []
    monkeypatch.setattr(large_messages, "time", SimpleNamespace(perf_counter=lambda: now))
    monkeypatch.setattr(large_messages, "parse_large", parse_slowly)
    assert isinstance(await parse_message(large(id=1, method="x/y"), spent.append), Parsed)
    assert sum(spent) == 7.0
