"""Sessions of a hub that another node has adopted."""

from collections.abc import Awaitable

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.core.registry import Registry
from acp_gateway.gateway.takeover import leave_adopted, stop_moved
from acp_gateway.transports.streams import CloseReason
from tests.doubles import encode
from tests.hub_scene import LOADS, Scene, in_conversation, methods_of, resuming, sharing

WHERE = "the session lives on gpu2: acp-gateway connect HOST --attach gpu1/s"

PROMPT = encode({"id": 9, "method": "session/prompt", "params": {"sessionId": "s", "prompt": []}})

CLOSES = LOADS | {"sessionCapabilities": {"close": {}}}


class Gate:
    """A gate that is open until `shut`."""

    def __init__(self) -> None:
        self.event = trio.Event()
        self.event.set()

    def __call__(self) -> Awaitable[None] | None:
        return None if self.event.is_set() else self.event.wait()

    def shut(self) -> None:
        self.event = trio.Event()


def adopt_elsewhere(scene: Scene) -> None:
    (session,) = scene.hub.multiplexer.sessions
    stop_moved(session, "gpu2", scene.registry, lambda _: scene.hub)


def registry() -> Registry:
    return Registry("me", node="gpu1")


async def test_moved_session_ends_its_turn_and_closes_the_connections_that_came_only_for_it() -> None:
    async with sharing(CLOSES, registry=registry()) as (scene, ann):
        guest = await scene.enter("guest", guest=True)
        await scene.open_turn()
        adopt_elsewhere(scene)
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["session/cancel", "session/close"]
        errors = [message["error"]["message"] for message in await ann.waiting() if "error" in message]
        assert errors == [WHERE]
        await guest.waiting()
        assert guest.closed_with == (CloseReason.POLICY, WHERE)
        assert ann.closed_with is None


async def test_agent_that_cannot_close_a_session_is_stopped_with_its_only_one() -> None:
    async with sharing(registry=registry()) as (scene, _):
        adopt_elsewhere(scene)
        await wait_all_tasks_blocked()
        assert scene.hub.supervisor.agent is None


async def test_hub_of_one_connection_ends_with_its_only_session() -> None:
    async with in_conversation(registry=registry()) as scene:
        adopt_elsewhere(scene)
        await scene.ended.wait()
        assert scene.registry.count_live() == 0


async def test_session_adopted_from_a_node_that_is_away_is_left_by_the_connections_that_came_only_for_it(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with sharing(CLOSES, registry=registry()) as (scene, ann):
        guest = await scene.enter("guest", guest=True)
        await scene.open_turn()
        (session,) = scene.hub.multiplexer.sessions
        for _ in range(2):
            leave_adopted(session, "gpu2", scene.registry, lambda _: scene.hub)
        await wait_all_tasks_blocked()
        assert scene.agent.peek() == []
        ends = [message["result"] for message in await ann.waiting() if "result" in message]
        assert ends == [{"stopReason": "cancelled"}]
        await guest.waiting()
        assert guest.closed_with == (CloseReason.POLICY, WHERE)
        assert ann.closed_with is None
        assert [it.getMessage() for it in caplog.records if "is left here" in it.getMessage()] == [
            "session 's' of agent fake lives on the node gpu2: it is left here"
        ]


async def test_session_that_is_not_live_is_marked_as_moved(caplog: pytest.LogCaptureFixture) -> None:
    async with sharing(CLOSES, registry=registry()) as (scene, _):
        (session,) = scene.hub.multiplexer.sessions
        adopt_elsewhere(scene)
        stop_moved(session, "gpu2", scene.registry, lambda _: scene.hub)
        assert [record.getMessage() for record in caplog.records if "lives on" in record.getMessage()] == [
            "session 's' of agent fake lives on the node gpu2: it is stopped here"
        ]


async def test_prompt_waits_at_the_gate_and_passes_when_it_opens() -> None:
    gate = Gate()
    async with sharing(CLOSES, registry=registry(), gate=gate) as (scene, _):
        gate.shut()
        ann = scene.editor
        ann.stream.send_nowait([PROMPT])
        await wait_all_tasks_blocked()
        assert scene.agent.peek() == []
        gate.event.set()
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["session/prompt"]


async def test_prompt_at_the_gate_is_refused_if_the_session_was_adopted_meanwhile() -> None:
    gate = Gate()
    async with sharing(CLOSES, registry=registry(), gate=gate) as (scene, ann):
        gate.shut()
        ann.stream.send_nowait([PROMPT])
        await wait_all_tasks_blocked()
        adopt_elsewhere(scene)
        gate.event.set()
        await wait_all_tasks_blocked()
        assert "session/prompt" not in methods_of(scene.agent.peek())
        assert [message["error"]["message"] for message in await ann.waiting() if "error" in message] == [WHERE]


async def test_messages_at_the_gate_are_not_lost_with_their_connection() -> None:
    gate = Gate()
    async with resuming(gate=gate) as (scene, ann):
        gate.shut()
        ann.link.send([encode({"id": 1, "method": "x/y"})])
        await wait_all_tasks_blocked()
        scene.hub.attachments[ann.client].drop_connection()
        gate.event.set()
        await wait_all_tasks_blocked()
        await ann.resume()
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["x/y"]


async def test_queued_prompt_waits_at_the_gate_for_the_end_of_the_turn() -> None:
    gate = Gate()
    async with sharing(CLOSES, registry=registry(), gate=gate) as (scene, ann):
        turn = await scene.open_turn()
        ann.stream.send_nowait([PROMPT])
        await wait_all_tasks_blocked()
        gate.shut()
        await scene.agent.send(id=turn, result={"stopReason": "end_turn"})
        await wait_all_tasks_blocked()
        assert scene.agent.peek() == []
        gate.event.set()
        await wait_all_tasks_blocked()
        assert methods_of(scene.agent.peek()) == ["session/prompt"]
