"""The sessions of a gateway, followed over control connections in memory."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.client.control_feed import INTERVAL, ControlFeed, FeedHandler, Overview, Rights
from acp_gateway.client.dialing import Destination
from acp_gateway.client.reconnecting.attempts import ATTEMPT_TIMEOUT
from acp_gateway.client.uplink import BACKOFF_MAX
from acp_gateway.errors import Forbidden, GatewayError, ProtocolError, Unreachable
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.kit.fake_gateway import DESTINATION

pytestmark = pytest.mark.jumps

ACCESS = {
    "role": "observer",
    "agents": {"demo": "identity", "other": "shared"},
    "defaultAgent": "demo",
    "folders": ["/srv"],
}


@dataclass
class Scene:
    """A gateway that answers control requests, and a feed of it."""

    access: Any = field(default_factory=lambda: ACCESS)
    """Told with each list that has no rights, unless it is None."""
    listing: dict[str, Any] = field(default_factory=lambda: {"result": {"sessions": []}})
    destination: Destination = DESTINATION
    silent: bool = False
    failures: list[GatewayError] = field(default_factory=list)
    """Errors of the next attempts."""
    times: list[float] = field(default_factory=list)
    """Times of the lists."""
    overviews: list[Overview] = field(default_factory=list)
    lost: list[GatewayError] = field(default_factory=list)
    streams: list[MaintainedStream] = field(default_factory=list)
    end: GatewayError | None = None
    requests: list[object] = field(default_factory=list)
    """Ids of the requests."""

    def __post_init__(self) -> None:
        handler = FeedHandler(self.overviews.append, self.lost.append)
        self.feed = ControlFeed(lambda: self.destination, handler, connect=self._connect)
        self.nursery: trio.Nursery | None = None

    async def run(self) -> None:
        try:
            await self.feed.run()
        except GatewayError as error:
            self.end = error

    async def answer(self, result: dict[str, Any]) -> None:
        """Answer the last request, to which it is silent by itself."""
        if isinstance(result["result"], dict) and self.access is not None:
            result = {"result": {"access": self.access, **result["result"]}}
        answer = {"jsonrpc": "2.0", "id": self.requests[-1], **result}
        await self.streams[-1].send(json.dumps(answer).encode())

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
                    self.requests.append(request["id"])
                    assert request["method"] == "_acp-gateway/sessions"
                    self.times.append(trio.current_time())
                    if not self.silent:
                        await self.answer(self.listing)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


@asynccontextmanager
async def following(scene: Scene) -> AsyncIterator[Scene]:
    async with trio.open_nursery() as scene.nursery:
        scene.nursery.start_soon(scene.run)
        yield scene
        scene.nursery.cancel_scope.cancel()


async def test_sessions_are_listed_again_and_again_with_the_rights() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(2.5 * INTERVAL)
        assert scene.times == [0, INTERVAL, 2 * INTERVAL]
        assert {overview.rights for overview in scene.overviews} == {
            Rights("observer", ("demo", "other"), "demo", ("/srv",))
        }
        assert len(scene.streams) == 1


async def test_a_gateway_that_closes_is_not_kept_waiting_until_the_next_list() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        await scene.streams[0].aclose()
        await wait_all_tasks_blocked()
        assert len(scene.lost) == 1
        assert trio.current_time() == 1
        await trio.sleep(BACKOFF_MAX)
        assert len(scene.streams) == 2


async def test_refresh_asks_at_once() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        await scene.feed.refresh().wait()
        assert (scene.times, len(scene.overviews)) == ([0, 1], 2)


async def test_refresh_waits_for_a_list_that_was_asked_for_later() -> None:
    async with following(Scene(silent=True)) as scene:
        await wait_all_tasks_blocked()
        # The request for the first list is under way.
        listed = scene.feed.refresh()
        await scene.answer(scene.listing)
        await wait_all_tasks_blocked()
        assert len(scene.overviews) == 1
        assert not listed.is_set()
        await scene.answer(scene.listing)
        await listed.wait()
        assert len(scene.overviews) == 2


async def test_refresh_waits_for_no_list_of_a_lost_connection() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(1)
        scene.silent = True
        listed = scene.feed.refresh()
        await wait_all_tasks_blocked()
        scene.failures.append(Unreachable("no route"))
        await scene.streams[0].aclose()
        await listed.wait()
        assert len(scene.overviews) == 1


async def test_rights_that_have_changed_come_with_a_later_list() -> None:
    async with following(Scene()) as scene:
        await trio.sleep(INTERVAL / 2)
        scene.access = ACCESS | {"agents": {"another": "identity"}}
        await trio.sleep(INTERVAL)
        scene.access = None
        await trio.sleep(INTERVAL)
        agents = [overview.rights.agents for overview in scene.overviews]
        assert agents == [("demo", "other"), ("another",), ("another",)]


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
    async with following(Scene(listing={"result": []})) as scene:
        await trio.sleep(1)
        assert isinstance(scene.end, ProtocolError)


def row(session: str, **members: Any) -> dict[str, Any]:
    """A session in a list."""
    described = {"sessionId": session, "agent": "a", "owner": "me", "live": False, "turn": False, "waiting": []}
    return described | {"connected": 0, "away": 0} | members


async def test_changes_are_applied_to_the_list_of_before_which_stays_the_same_without_any() -> None:
    told: list[dict[str, Any]] = [
        {"sessions": [row("1"), row("2"), row("3")], "more": 5, "access": ACCESS},
        {"changed": [], "removed": [], "more": 5},
        {
            "changed": [row("4"), row("1", title="new")],
            "removed": [["a", "2", "me"], ["a", "9", "me"]],
            "problems": ["p"],
        },
        {"changed": [], "removed": [], "access": ACCESS | {"role": "controller"}},
        {"sessions": [row("5")]},
    ]
    scene = Scene(listing={"result": told[0]})
    async with following(scene):
        await trio.sleep(0.1)
        for result in told[1:]:
            scene.listing = {"result": result}
            await trio.sleep(INTERVAL)
    first, same, changed, other_rights, whole = scene.overviews
    assert [it["sessionId"] for it in first.listing.sessions] == ["1", "2", "3"]
    assert same == first
    assert [(it["sessionId"], it.get("title")) for it in changed.listing.sessions] == [
        ("1", "new"),
        ("3", None),
        ("4", None),
    ]
    assert (first.listing.more, changed.listing.more, changed.listing.problems) == (5, 0, ("p",))
    assert other_rights.listing.sessions is changed.listing.sessions
    assert (changed.rights.role, other_rights.rights.role) == ("observer", "controller")
    assert whole.listing.sessions == [row("5")]
    # Rights that come with a list are not asked for.
    assert len(scene.requests) == len(told)


@pytest.mark.parametrize(
    "changes",
    [
        {"changed": [{}], "removed": []},
        {"changed": [], "removed": [["a", "2"]]},
        {"changed": [], "removed": [["a", "2", 3]]},
        {"changed": []},
    ],
)
async def test_changes_of_another_form_are_an_error(changes: dict[str, Any]) -> None:
    scene = Scene(listing={"result": {"sessions": []}})
    async with following(scene):
        await trio.sleep(0.1)
        scene.listing = {"result": changes}
        await trio.sleep(INTERVAL)
        assert isinstance(scene.lost[0], ProtocolError)


async def test_changes_without_a_list_before_are_an_error() -> None:
    async with following(Scene(listing={"result": {"changed": [], "removed": []}})) as scene:
        await trio.sleep(1)
        assert isinstance(scene.end, ProtocolError)


async def test_sessions_take_no_more_memory_by_changes_than_by_a_list() -> None:
    scene = Scene(listing={"result": {"sessions": [row("0")]}}, destination=replace(DESTINATION, max_message_size=1000))
    async with following(scene):
        await trio.sleep(0.1)
        # One that changes often is not more and more.
        for number in range(50):
            scene.listing = {"result": {"changed": [row("1", title=f"{number}" * 50)], "removed": []}}
            await trio.sleep(INTERVAL)
        assert not scene.lost
        for number in range(50):
            scene.listing = {"result": {"changed": [row(f"{number}")], "removed": []}}
            await trio.sleep(INTERVAL)
        assert isinstance(scene.lost[0], ProtocolError)


async def test_sessions_of_a_node_that_does_not_answer_stay_as_they_were_and_are_away() -> None:
    own, there = row("1"), row("gpu1/1", agent="gpu1/a")
    told: list[dict[str, Any]] = [
        {"sessions": [own, there, row("gpu2/1", agent="gpu2/a")]},
        {"sessions": [own], "missing": ["gpu1", "gpu3"]},
        {"sessions": [own, row("gpu2/2", agent="gpu2/a")], "missing": ["gpu1"]},
        {"sessions": [own, row("gpu1/2", agent="gpu1/a")]},
    ]
    scene = Scene(listing={"result": told[0]})
    async with following(scene):
        await trio.sleep(0.1)
        for result in told[1:]:
            scene.listing = {"result": result}
            await trio.sleep(INTERVAL)
    listed = [
        [(it["sessionId"], "unreachableSince" in it) for it in overview.listing.sessions]
        for overview in scene.overviews
    ]
    assert listed == [
        [("1", False), ("gpu1/1", False), ("gpu2/1", False)],
        [("gpu1/1", True), ("1", False)],
        [("gpu1/1", True), ("1", False), ("gpu2/2", False)],
        [("1", False), ("gpu1/2", False)],
    ]
    since = [it["unreachableSince"] for overview in scene.overviews[1:3] for it in overview.listing.sessions[:1]]
    assert since[0] == since[1]
