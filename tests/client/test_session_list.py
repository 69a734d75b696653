"""The sessions of a gateway, followed over control connections in memory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.client.control import PAST, Rights
from acp_gateway.client.dialing import Destination
from acp_gateway.client.reconnecting.attempts import ATTEMPT_TIMEOUT
from acp_gateway.client.session_list import INTERVAL, ListHandler, Overview, SessionList
from acp_gateway.client.uplink import BACKOFF_MAX
from acp_gateway.errors import Forbidden, GatewayError, ProtocolError, Unreachable
from acp_gateway.gateway.session_api.requests import LIST
from acp_gateway.protocol.methods import ACCESS
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.kit.fake_gateway import DESTINATION
from tests.kit.wire_sessions import listed, on_the_wire

pytestmark = pytest.mark.jumps

RIGHTS = {
    "role": "observer",
    "agents": {"demo": "identity", "other": "shared"},
    "defaultAgent": "demo",
    "folders": ["/srv"],
}


@dataclass
class Scene:
    """A gateway that answers control requests, and a client that follows its sessions."""

    access: Any = field(default_factory=lambda: RIGHTS)
    listing: Any = field(default_factory=lambda: listed([]))
    destination: Destination = DESTINATION
    silent: bool = False
    failures: list[GatewayError] = field(default_factory=list)
    """Errors of the next attempts."""
    times: list[float] = field(default_factory=list)
    """Times of the lists."""
    questions: list[float] = field(default_factory=list)
    """Times of the questions for the rights."""
    overviews: list[Overview] = field(default_factory=list)
    lost: list[GatewayError] = field(default_factory=list)
    streams: list[MaintainedStream] = field(default_factory=list)
    end: GatewayError | None = None

    def __post_init__(self) -> None:
        handler = ListHandler(self.overviews.append, self.lost.append)
        self.following = SessionList(lambda: self.destination, handler, connect=self._connect)
        self.nursery: trio.Nursery | None = None

    async def run(self) -> None:
        try:
            await self.following.run()
        except GatewayError as error:
            self.end = error

    async def tell(self, method: str, **params: Any) -> None:
        """Send a notification."""
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        await self.streams[-1].send(json.dumps(message).encode())
        await wait_all_tasks_blocked()

    def told(self) -> list[list[tuple[str, str | None]]]:
        """Ids and titles of the sessions in each overview."""
        return [[(it["sessionId"], it.get("title")) for it in one.listing.sessions] for one in self.overviews]

    async def _connect(self, _destination: Destination, _timing: object) -> MaintainedStream:
        if self.failures:
            raise self.failures.pop(0)
        here, there = memory_message_stream_pair()
        self.streams.append(there)
        assert self.nursery is not None
        self.nursery.start_soon(self._serve, there)
        return here

    async def _serve(self, stream: MaintainedStream) -> None:
        try:
            async for batch in stream:
                for request in map(json.loads, batch):
                    if request["method"] == LIST:
                        assert request["params"] == {"all": True, "watch": True, "limit": PAST}
                        self.times.append(trio.current_time())
                        result = self.listing
                    else:
                        assert request["method"] == ACCESS
                        self.questions.append(trio.current_time())
                        result = self.access
                    if not self.silent:
                        await stream.send(json.dumps({"id": request["id"], "result": result}).encode())
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


@asynccontextmanager
async def following(scene: Scene) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as scene.nursery:
        scene.nursery.start_soon(scene.run)
        yield scene
        scene.nursery.cancel_scope.cancel()


def row(session: str, **members: Any) -> dict[str, Any]:
    """A session in a list."""
    described = {"sessionId": session, "agent": "a", "owner": "me", "live": False, "turn": False, "waiting": []}
    return described | {"connected": 0, "away": 0} | members


async def test_sessions_are_listed_once_and_the_rights_asked_for_again_and_again() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(INTERVAL / 2)
        assert scene.overviews[0].rights == Rights("observer", ("demo", "other"), "demo", ("/srv",))
        for scene.access in (RIGHTS | {"agents": {"another": "identity"}}, None):
            await trio.sleep(INTERVAL)
        assert (scene.times, scene.questions, len(scene.streams)) == ([0], [0, INTERVAL, 2 * INTERVAL], 1)
        assert [overview.rights.agents for overview in scene.overviews[1:]] == [("another",), ("another",)]


async def test_changes_are_told_at_once() -> None:
    async with following(Scene(listing=listed([row("1"), row("2")], more=5))) as scene:
        await trio.sleep(1)
        await scene.tell("session/changed", session=on_the_wire(row("3", title="new")))
        await scene.tell("session/changed", session=on_the_wire(row("1", title="new")))
        await scene.tell("session/removed", sessionId="2")
        await scene.tell("session/removed", sessionId="9")
        await scene.tell("machines/changed", machines=[])
        assert trio.current_time() == 1
        assert scene.told() == [
            [("1", None), ("2", None)],
            [("1", None), ("2", None), ("3", "new")],
            [("1", "new"), ("2", None), ("3", "new")],
            [("1", "new"), ("3", "new")],
        ]
        assert {overview.listing.more for overview in scene.overviews} == {5}


async def test_a_change_that_comes_before_an_answer_is_not_lost() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        scene.silent = True
        await trio.sleep(INTERVAL)
        await scene.tell("session/changed", session=on_the_wire(row("1")))
        assert len(scene.overviews) == 1
        await scene.streams[0].send(json.dumps({"id": 1, "result": None}).encode())
        await wait_all_tasks_blocked()
        assert scene.told() == [[], [("1", None)]]


@pytest.mark.parametrize("params", [{}, {"session": {}}, {"session": None}, []])
async def test_a_change_of_another_form_is_an_error(params: Any) -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        message = {"method": "session/changed", "params": params}
        await scene.streams[0].send(json.dumps(message).encode())
        await wait_all_tasks_blocked()
        assert isinstance(scene.lost[0], ProtocolError)


async def test_refresh_lists_at_once() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        scene.listing = listed([row("1")])
        scene.following.refresh()
        await wait_all_tasks_blocked()
        assert (scene.times, scene.told()) == ([0, 1], [[], [("1", None)]])


async def test_refresh_during_a_question_is_not_forgotten() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        scene.silent = True
        await trio.sleep(INTERVAL)
        scene.following.refresh()
        scene.silent = False
        await scene.streams[0].send(json.dumps({"id": 1, "result": RIGHTS}).encode())
        await wait_all_tasks_blocked()
        assert scene.times == [0, INTERVAL + 1]


async def test_refresh_without_a_connection_tries_once_at_once() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        scene.failures += [Unreachable("no route")] * 50
        await scene.streams[0].aclose()
        await wait_all_tasks_blocked()
        before = len(scene.lost)
        scene.following.refresh()
        await wait_all_tasks_blocked()
        assert len(scene.lost) == before + 1


@pytest.mark.parametrize("access", [None, [], {"agents": 3}])
async def test_without_rights_the_sessions_are_followed_all_the_same(access: Any) -> None:
    async with following(Scene(access=access)) as scene:
        await trio.sleep(1)
        assert [overview.rights for overview in scene.overviews] == [Rights()]


async def test_a_lost_connection_is_told_and_replaced() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        scene.failures += [Unreachable("no route")] * 3
        await scene.streams[0].aclose()
        await wait_all_tasks_blocked()
        assert (len(scene.lost), trio.current_time()) == (1, 1)
        await trio.sleep(2 * BACKOFF_MAX)
        assert [type(error) for error in scene.lost] == [Unreachable] * 4
        assert len(scene.streams) == 2
        assert len(scene.overviews) > 1


async def test_a_connection_without_answers_is_replaced() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        scene.silent = True
        await trio.sleep(INTERVAL + ATTEMPT_TIMEOUT)
        assert len(scene.lost) == 1


async def test_a_gateway_that_never_answers_is_unreachable() -> None:
    async with following(Scene(silent=True)) as scene:
        await trio.sleep(ATTEMPT_TIMEOUT + 1)
        assert isinstance(scene.end, Unreachable)


@pytest.mark.parametrize("error", [Unreachable("no answer"), Forbidden("no")])
async def test_the_first_failure_ends_it(error: GatewayError) -> None:
    async with following(Scene(failures=[error])) as scene:
        await trio.sleep(1)
        assert scene.end is error


async def test_a_refusal_ends_it_later_too() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        refusal = Forbidden("the token was revoked")
        scene.failures.append(refusal)
        await scene.streams[0].aclose()
        await trio.sleep(2 * BACKOFF_MAX)
        assert scene.end is refusal


async def test_a_response_that_is_not_a_list_is_an_error() -> None:
    async with following(Scene(listing=[])) as scene:
        await trio.sleep(1)
        assert isinstance(scene.end, ProtocolError)


async def test_sessions_take_no_more_memory_by_changes_than_by_a_list() -> None:
    scene = Scene(listing=listed([row("0")]), destination=replace(DESTINATION, max_message_size=1500))
    async with following(scene):
        await trio.sleep(0.1)
        # One that changes often is not more and more.
        for number in range(50):
            await scene.tell("session/changed", session=on_the_wire(row("1", title=f"{number}" * 50)))
        assert not scene.lost
        for number in range(50):
            await scene.tell("session/changed", session=on_the_wire(row(f"{number}")))
            if scene.lost:
                break
        assert isinstance(scene.lost[0], ProtocolError)


async def test_sessions_of_a_node_that_does_not_answer_stay_as_they_were_and_are_away() -> None:
    own, there = row("1"), row("gpu1/1", agent="gpu1/a")
    told: list[dict[str, Any]] = [
        listed([own, there, row("gpu2/1", agent="gpu2/a")]),
        listed([own], missing=["gpu1", "gpu3"]),
        listed([own, row("gpu2/2", agent="gpu2/a")], missing=["gpu1"]),
        listed([own, row("gpu1/2", agent="gpu1/a")]),
    ]
    scene = Scene(listing=told[0])
    async with following(scene):
        await trio.sleep(0.1)
        for result in told[1:]:
            scene.listing = result
            scene.following.refresh()
            await wait_all_tasks_blocked()
    lists = [
        [(it["sessionId"], "unreachableSince" in it) for it in overview.listing.sessions]
        for overview in scene.overviews
    ]
    assert lists == [
        [("1", False), ("gpu1/1", False), ("gpu2/1", False)],
        [("gpu1/1", True), ("1", False)],
        [("gpu1/1", True), ("1", False), ("gpu2/2", False)],
        [("1", False), ("gpu1/2", False)],
    ]
    away = [it for overview in scene.overviews for it in overview.listing.sessions if "unreachableSince" in it]
    assert len({it["unreachableSince"] for it in away}) == 1
