"""Notifications of sessions of nodes, for browsers that have signed in at a gateway in front."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
from trio.testing import MockClock

from acp_gateway.client.dialing import Destination
from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import Forbidden, GatewayError, ProtocolError, UnknownSession, Unreachable
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.control_channel import serve_control
from acp_gateway.gateway.node_directory import NodeDirectory
from acp_gateway.gateway.push import watching
from acp_gateway.gateway.push.deciding import PATIENCE, Message, Verdict
from acp_gateway.gateway.push.service import WebPush
from acp_gateway.gateway.push.store import PushStore, Subscription
from acp_gateway.nodes import pushing
from acp_gateway.nodes.door import NodeAdmission
from acp_gateway.nodes.pushing import NodePushing
from acp_gateway.nodes.reaching import NodeReacher
from acp_gateway.protocol.methods import NOTICES
from acp_gateway.security.browser_sessions import BrowserStore
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.gateway.push.test_service import PushServices, signed_in
from tests.gateway.push.test_service import pushing as pushing_bench
from tests.kit.bridging import YES, Bench, Page, asks, ends_turn, prompted, running
from tests.kit.doubles import Editor, ServingAgent, ServingAgents
from tests.kit.fake_gateway import DESTINATION
from tests.kit.hub_scene import permission
from tests.kit.push_service import Receiver
from tests.nodes.test_door import fronted
from tests.nodes.test_node_watcher import new_session
from tests.nodes.test_node_watcher import prompted as prompted_at

pytestmark = pytest.mark.usefixtures("no_bug_showed")

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))
SOON = 5.0
"""Seconds in which all that is due at once has been sent."""


@pytest.fixture
def spare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the hours of these tests two checks in each second."""
    monkeypatch.setattr(pushing, "CHECK", 1.0)


class Node(Bench):
    """The node `gpu1`, to which the front connects in memory."""

    def __init__(self, bench: Bench) -> None:
        super().__init__(bench.gateway, bench.nursery, bench.audit)
        self.door = Access.of(self.gateway.tokens.create("door", "door", None)[0])
        self.lines: list[tuple[Access, MaintainedStream]] = []
        """The open connections: the access and the end of each."""
        self.refusal: GatewayError | None = None
        """Raised for the next connections."""
        self.tried = 0
        self.admission: NodeAdmission | None = None

    def acting(self, access: Access) -> Access:
        """The access here of a client of the front."""
        assert self.admission is not None
        return self.gateway.admissions.act_for(self.door, self.admission.claim(access, "gpu1"))

    @asynccontextmanager
    async def connect(self, name: str, access: Access) -> AsyncIterator[tuple[Destination, MaintainedStream]]:
        assert name == "gpu1"
        self.tried += 1
        if self.refusal is not None:
            raise self.refusal
        acting = self.acting(access)
        grant = self.gateway.admit(acting, ConnectRequest(control=True, passed=("0" * 16,)))
        theirs, ours = memory_message_stream_pair()
        self.nursery.start_soon(serve_control, self.gateway, ours, grant)
        line = acting, theirs
        self.lines.append(line)
        try:
            yield DESTINATION, theirs
        finally:
            self.lines.remove(line)
            await theirs.abort()

    async def cut(self) -> None:
        """Lose all connections."""
        for _, stream in list(self.lines):
            await stream.abort()

    async def asked(self, agents: ServingAgents, access: Access) -> tuple[Page, ServingAgent, str]:
        """A page of a client of the front whose session here has a turn, and its agent."""
        page = await self.page(self.acting(access))
        session = await page.new_session()
        await prompted(page, agents[-1], session)
        return page, agents[-1], session


class Scene:
    """A front with a phone, and its node."""

    def __init__(
        self, front: Bench, services: PushServices, node: Node, directory: NodeDirectory, phone: Receiver
    ) -> None:
        self.front = front
        self.services = services
        self.node = node
        self.directory = directory
        self.phone = phone

    async def subscribe(self, access: Access, receiver: Receiver | None = None, **wanted: Any) -> None:
        """Turn notifications on in a browser, and close its page."""
        page = await self.front.page(access, "phone")
        await page.result("push/subscribe", **(receiver or self.phone).members, **wanted)
        await page.stream.aclose()
        await trio.sleep(SOON)

    @property
    def told(self) -> list[dict[str, Any]]:
        """The messages to the phone."""
        return [self.phone.read(got.body) for got in self.services.got if got.target.endswith("phone")]

    @property
    def titles(self) -> list[str]:
        return [content.get("title", "decided") for content in self.told]


@asynccontextmanager
async def fronting(front: Path, spawner: Spawner, node: Node, phone: Receiver | None = None) -> AsyncIterator[Scene]:
    """A front with the node."""
    async with pushing_bench(front, spawner) as (bench, services):
        gateway = bench.gateway
        directory = NodeDirectory({"gpu1": SECTION}, 0.0)
        gateway.reconfigure(replace(gateway.config, nodes=directory.sections), ())
        gateway.extensions.directory = directory
        node.admission = NodeAdmission(gateway, NodeReacher(lambda: directory.sections).reach)
        it = NodePushing(gateway.push, directory, node.admission, node.connect, lambda: gateway.push.now())
        gateway.push.elsewhere = it.questions
        bench.nursery.start_soon(it.run)
        yield Scene(bench, services, node, directory, phone or Receiver())


@asynccontextmanager
async def at_node(tmp_path: Path, spawner: Spawner) -> AsyncIterator[Node]:
    async with running(tmp_path / "gpu1", spawner, timeout=30 * 86400) as bench:
        yield Node(bench)


@asynccontextmanager
async def both(tmp_path: Path, spawner: Spawner) -> AsyncIterator[Scene]:
    async with at_node(tmp_path, spawner) as node, fronting(tmp_path / "front", spawner, node) as scene:
        yield scene


async def test_a_question_at_a_node_reaches_a_phone_and_is_taken_away_when_it_is_decided(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with both(tmp_path, spawner) as it:
        access = signed_in(it.front)
        await it.subscribe(access)
        page, agent, session = await it.node.asked(loading_agents, access)
        await page.stream.aclose()
        await trio.sleep(SOON)
        call = {"toolCallId": "1", "title": "Run make"}
        await asks(agent, session, params=permission()["params"] | {"sessionId": session, "toolCall": call})
        await trio.sleep(SOON)
        (told,) = it.told
        assert (told["title"], told["body"]) == ("hello needs you", "Run make")
        assert (told["sessionId"], told["machine"]) == (f"gpu1/{session}", "gpu1")
        assert told["tag"] == f"gpu1/{session} {told['requestId']}"
        assert [option["optionId"] for option in told["options"]] == ["yes", "no"]
        # As a service worker answers it.
        answering = await it.node.page(it.node.acting(access), "answering")
        await answering.result("session/respond", sessionId=session, requestId=told["requestId"], response=YES)
        await trio.sleep(SOON)
        assert it.told[1:] == [{"tag": told["tag"], "decided": True, "replace": False}]


async def test_a_question_waits_while_a_controller_is_connected_to_the_session_through_the_front(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with both(tmp_path, spawner) as it:
        access = signed_in(it.front)
        await it.subscribe(access)
        _, agent, session = await it.node.asked(loading_agents, access)
        await asks(agent, session)
        await trio.sleep(PATIENCE - 1)
        assert it.told == []
        await trio.sleep(SOON)
        assert it.titles == ["hello needs you"]


async def test_the_ends_of_chosen_and_of_long_turns_at_a_node_are_told_until_the_next_begins(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with both(tmp_path, spawner) as it:
        access = signed_in(it.front)
        page, agent, session = await it.node.asked(loading_agents, access)
        await it.subscribe(access, done={"sessions": [f"gpu1/{session}"]})
        await ends_turn(agent)
        await trio.sleep(SOON)
        assert it.told == [
            {"tag": f"turn gpu1/{session}", "title": "hello is done", "sessionId": f"gpu1/{session}", "body": ""}
        ]
        await prompted(page, agent, session)
        await trio.sleep(SOON)
        assert it.told[1]["decided"]
        await it.subscribe(access, done={"after": 1})
        await ends_turn(agent, error={"code": 429, "message": "try again in 32 s"})
        await trio.sleep(SOON)
        assert len(it.told) == 2
        await prompted(page, agent, session)
        await trio.sleep(60)
        await ends_turn(agent, error={"code": 429, "message": "try again in 32 s"})
        await trio.sleep(SOON)
        assert [(one["title"], one["body"]) for one in it.told[2:]] == [("hello has failed", "try again in 32 s")]


async def test_a_node_that_is_lost_and_back_tells_nothing_twice_and_what_has_happened_until_then(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with both(tmp_path, spawner) as it:
        access = signed_in(it.front)
        page, agent, session = await it.node.asked(loading_agents, access)
        second = await page.new_session()
        await prompted(page, agent, second)
        await it.subscribe(access, done={"sessions": [f"gpu1/{second}"]})
        await page.stream.aclose()
        await trio.sleep(SOON)
        await asks(agent, session, "one")
        await trio.sleep(SOON)
        await it.node.cut()
        await trio.sleep(SOON)
        assert it.titles == ["hello needs you"]
        it.node.refusal = Unreachable("no route")
        await it.node.cut()
        await trio.sleep(SOON)
        # A notification of a machine that is away stays.
        assert len(it.told) == 1
        answering = await it.node.page(it.node.acting(access), "answering")
        key = {"sessionId": session, "requestId": it.told[0]["requestId"]}
        await answering.result("session/respond", **key, response=YES)
        await ends_turn(agent)
        await answering.stream.aclose()
        await trio.sleep(60)
        it.node.refusal = None
        await trio.sleep(30)
        await it.node.cut()
        # It was tried seldom only while it was away.
        await trio.sleep(1)
        assert len(it.node.lines) == 1
        assert it.told[1:] == [
            {"tag": it.told[0]["tag"], "decided": True, "replace": False},
            {"tag": f"turn gpu1/{second}", "title": "hello is done", "sessionId": f"gpu1/{second}", "body": ""},
        ]


async def test_a_front_that_is_restarted_takes_away_only_what_was_decided_and_repeats_nothing(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with at_node(tmp_path, spawner) as node:
        async with fronting(tmp_path / "front", spawner, node) as it:
            access = signed_in(it.front)
            page, agent, session = await node.asked(loading_agents, access)
            await it.subscribe(access)
            await page.stream.aclose()
            await trio.sleep(SOON)
            await asks(agent, session)
            await trio.sleep(SOON)
            (told,) = it.told
        node.refusal = Unreachable("no route")
        async with fronting(tmp_path / "front", spawner, node, it.phone) as it:
            await trio.sleep(SOON)
            assert it.told == []
            node.refusal = None
            await trio.sleep(60)
            assert (len(node.lines), it.told) == (1, [])
            answering = await node.page(node.acting(access), "answering")
            await answering.result("session/respond", sessionId=session, requestId=told["requestId"], response=YES)
            await trio.sleep(SOON)
            assert it.told == [{"tag": told["tag"], "decided": True, "replace": False}]


async def test_a_turn_that_has_ended_while_the_front_was_down_is_told_once(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with at_node(tmp_path, spawner) as node:
        async with fronting(tmp_path / "front", spawner, node) as it:
            access = signed_in(it.front)
            page, agent, session = await node.asked(loading_agents, access)
            await ends_turn(agent)
            await it.subscribe(access, done={"sessions": [f"gpu1/{session}"]})
            # A browser with the same claim that comes later shares the connection.
            await it.subscribe(signed_in(it.front), Receiver("later"), done={"sessions": [f"gpu1/{session}"]})
        await prompted(page, agent, session)
        await ends_turn(agent)
        titles = []
        for _ in range(2):
            async with fronting(tmp_path / "front", spawner, node, it.phone) as it:
                await trio.sleep(60)
                titles.append((it.titles, len(it.services.got)))
        assert titles == [(["hello is done"], 2), ([], 0)]


@pytest.mark.parametrize(
    ("refusal", "lines"),
    [(ProtocolError("a control connection knows only x"), 1), (Forbidden("not you"), 1), (UnknownSession("gone"), 0)],
    ids=str,
)
async def test_a_node_that_refuses_is_named_once_and_asked_again(
    tmp_path: Path,
    spawner: Spawner,
    loading_agents: ServingAgents,
    autojump_clock: MockClock,
    spare: None,
    caplog: pytest.LogCaptureFixture,
    refusal: GatewayError,
    lines: int,
) -> None:
    async with both(tmp_path, spawner) as it:
        it.node.refusal = refusal
        access = signed_in(it.front)
        await it.subscribe(access)
        await it.subscribe(signed_in(it.front, "ben"), Receiver("ben"))
        await trio.sleep(600)
        assert 15 < it.node.tried < 25
        assert caplog.text.count("browsers are not notified of sessions of the node gpu1") == lines
        it.node.refusal = None
        await trio.sleep(60)
        _, agent, session = await it.node.asked(loading_agents, access)
        await asks(agent, session)
        await trio.sleep(PATIENCE + SOON)
        assert len(it.told) == 1


async def test_a_node_of_an_earlier_version_and_one_that_tells_nonsense_are_named_once(
    tmp_path: Path,
    spawner: Spawner,
    loading_agents: ServingAgents,
    autojump_clock: MockClock,
    spare: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def nonsense(_access: Access, _wanted: ConnectRequest, _since: int | None, send: Any) -> None:
        await send(b'{"jsonrpc":"2.0","method":"_acp-gateway/notices","params":{"time":1,"questions":[{}]}}')
        await trio.sleep_forever()

    async with both(tmp_path, spawner) as it:
        monkeypatch.setattr("acp_gateway.gateway.control_channel.NOTICES", "_acp-gateway/other")
        await it.subscribe(signed_in(it.front))
        await trio.sleep(200)
        assert caplog.text.count("does not know _acp-gateway/notices: upgrade acp-gateway there") == 1
        monkeypatch.undo()
        monkeypatch.setattr(it.node.gateway.push, "tell", nonsense)
        await trio.sleep(200)
        assert caplog.text.count("what it tells is not understood") == 1


async def test_connections_are_shared_by_browsers_with_the_same_rights_and_end_within_a_second_with_them(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock
) -> None:
    async with both(tmp_path, spawner) as it:
        ann, more, ben, gone = (signed_in(it.front, name) for name in ("ann", "ann", "ben", "carl"))
        for name, access in (("phone", ann), ("more", more), ("ben", ben), ("gone", gone)):
            await it.subscribe(access, Receiver(name))

        def people() -> list[str]:
            return sorted(access.identity for access, _ in it.node.lines)

        assert people() == ["door/ann", "door/ben", "door/carl"]
        push, browsers = it.front.gateway.push, it.front.gateway.browsers
        assert ann.browser is not None
        assert ben.browser is not None
        assert more.browser is not None
        assert gone.token is not None
        it.front.gateway.tokens.revoke(gone.token.id)
        push.unsubscribe(ben.browser)
        browsers.end(ann.browser.id)
        await trio.sleep(1)
        assert people() == ["door/ann"]
        push.unsubscribe(more.browser)
        await trio.sleep(1)
        assert people() == []
        await trio.sleep(SOON)
        # A browser whose token was revoked is known until it has expired.
        assert [bench.gateway.push.watch.watchers for bench in (it.front, it.node)] == [1, 0]


async def test_a_second_browser_is_told_what_is_known_over_the_connection_of_the_first(
    tmp_path: Path,
    spawner: Spawner,
    loading_agents: ServingAgents,
    autojump_clock: MockClock,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pushing, "CHECK", 3.0)
    async with both(tmp_path, spawner) as it:
        access = signed_in(it.front)
        page, agent, session = await it.node.asked(loading_agents, access)
        await it.subscribe(access)
        await page.stream.aclose()
        await trio.sleep(SOON)
        await asks(agent, session)
        await trio.sleep(SOON)
        await it.subscribe(signed_in(it.front), Receiver("second"))
        assert [got.target.rpartition("/")[2] for got in it.services.got] == ["phone", "second"]
        assert it.node.tried == 1


async def test_a_node_tells_turns_that_have_ended_since_a_time_and_none_from_before_without(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock
) -> None:
    async with at_node(tmp_path, spawner) as node:
        access = node.access("door")
        wanted = ConnectRequest(control=True)
        told: dict[str, list[Any]] = {}

        async def follow(name: str, since: int | None) -> None:
            told[name] = []

            async def send(text: bytes) -> None:
                told[name].append(json.loads(text)["params"]["turns"])

            node.nursery.start_soon(node.gateway.push.tell, access, wanted, since, send)

        await follow("before", None)
        page = await node.page(access)
        session = await page.new_session()
        await prompted(page, loading_agents[0], session)
        await trio.sleep(SOON)
        await ends_turn(loading_agents[0])
        await page.until_status(session, "completed")
        (known,) = node.gateway.registry.live(SessionReach("door"))
        assert known.last_turn is not None
        assert known.last_turn.time is not None
        ended = known.last_turn.time
        await follow("none", None)
        await follow("since then", ended)
        await follow("since before", ended - 1)
        await trio.sleep(SOON)
        assert [[turn.get("end") for turn in turns] for turns in told.pop("before")] == [[], ["done"]]
        assert {name: [len(turns) for turns in all_of_them] for name, all_of_them in told.items()} == {
            "none": [0],
            "since then": [0],
            "since before": [1],
        }


async def test_an_observer_is_told_no_notices(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock
) -> None:
    async with at_node(tmp_path, spawner) as node:
        grant = node.gateway.admit(node.access("ann", role="observer"), ConnectRequest(control=True))
        theirs, ours = memory_message_stream_pair()
        node.nursery.start_soon(serve_control, node.gateway, ours, grant)
        assert (await Editor(theirs).request(NOTICES, {}))["error"]["data"] == {"reason": "forbidden"}
        await theirs.aclose()


async def test_a_node_that_is_removed_is_not_followed_and_its_notifications_are_taken_away(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock
) -> None:
    async with both(tmp_path, spawner) as it:
        access = signed_in(it.front)
        _, agent, session = await it.node.asked(loading_agents, access)
        await it.subscribe(access)
        await asks(agent, session)
        await trio.sleep(PATIENCE + SOON)
        it.directory.configure({}, 0.0)
        await trio.sleep(1)
        assert it.node.lines == []
        await trio.sleep(SOON)
        assert it.told[1]["decided"]


async def test_each_browser_is_told_no_more_than_it_may_decide(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with both(tmp_path, spawner) as it:
        tokens = it.front.gateway.tokens
        access = signed_in(it.front)
        page, agent, session = await it.node.asked(loading_agents, access)
        second = await page.new_session()
        await prompted(page, agent, second)

        def browser(token: Any, **code: Any) -> Access:
            _, secret = it.front.gateway.browsers.make_code(token, token.identity, label="phone", **code)
            return Access.of_browser(it.front.gateway.browsers.sign_in(secret).browser, token)

        guest = tokens.create_guest(f"gpu1/{second}", role="controller", lifetime=None)[0]
        # A guest is one of the sessions of the person who has invited it.
        it.front.gateway.storage.token_used(guest.id, "ann")
        browsers = {
            "guest": browser(guest),
            "one": browser(tokens.create("one", "ann", None)[0], session=f"gpu1/{second}"),
            "looks": browser(tokens.create("looks", "ann", None, role="observer")[0]),
            "other": browser(tokens.create("other", "ann", ["gpu1/other"])[0]),
            "none": browser(tokens.create("none", "ann", ["fake"])[0]),
            "places": browser(tokens.create("places", "ann", None, workspaces=["w"])[0]),
            "ben": signed_in(it.front, "ben"),
        }
        receivers = {name: Receiver(name) for name in browsers} | {"phone": it.phone}
        for name, each in browsers.items():
            assert each.browser is not None
            subscription = msgspec.convert(receivers[name].members, Subscription)
            it.front.gateway.push._store.set(each.browser.id, subscription, lambda _: True)
        it.front.gateway.push.watch.look_again()
        await it.subscribe(access, session=f"gpu1/{session}")
        await page.stream.aclose()
        await trio.sleep(SOON)
        await asks(agent, session, "one")
        await asks(agent, second, "two")
        await trio.sleep(2 * SOON)
        told: dict[str, list[str]] = {name: [] for name in receivers}
        for got in it.services.got:
            name = got.target.rpartition("/")[2]
            told[name].append(receivers[name].read(got.body)["sessionId"])
        expected = {"guest": [second], "one": [second], "phone": [session]}
        # An observer, and those whose tokens are not for this node, ask for nothing there.
        assert it.node.tried == len(it.node.lines) == 5
        assert told == {name: [f"gpu1/{one}" for one in expected.get(name, [])] for name in told}


async def test_a_node_without_push_content_tells_no_words(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with both(tmp_path, spawner) as it:
        config = it.node.gateway.config
        it.node.gateway.config = replace(config, gateway=replace(config.gateway, push_content=False))
        access = signed_in(it.front)
        await it.subscribe(access, done={"after": 0})
        page, agent, session = await it.node.asked(loading_agents, access)
        await page.stream.aclose()
        await trio.sleep(SOON)
        await asks(agent, session)
        await trio.sleep(SOON)
        await ends_turn(agent)
        await trio.sleep(SOON)
        assert it.titles[0] == "gpu1/fake needs you"
        assert "gpu1/fake is done" in it.titles
        assert not any(one.get("body") or one.get("options") for one in it.told)


async def test_a_node_with_other_agents_is_asked_again_for_the_rights_there(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents, autojump_clock: MockClock, spare: None
) -> None:
    async with both(tmp_path, spawner) as it:
        access = signed_in(it.front)
        await it.subscribe(access)
        config = it.node.gateway.config
        it.node.gateway.reconfigure(replace(config, agents={**config.agents, "new": config.agents["fake"]}), ())
        await it.node.asked(loading_agents, access)
        await trio.sleep(SOON)
        ((acting, _),) = it.node.lines
        assert acting.agents == ("fake", "new")


async def test_no_more_connections_are_opened_than_allowed(
    tmp_path: Path,
    spawner: Spawner,
    loading_agents: ServingAgents,
    autojump_clock: MockClock,
    spare: None,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pushing, "MOST", 2)
    async with both(tmp_path, spawner) as it:
        accesses = [signed_in(it.front, name) for name in ("ann", "ben", "carl")]
        for access in accesses:
            await it.subscribe(access, Receiver(access.identity))
        assert len(it.node.lines) == 2
        assert caplog.text.count("no more are opened") == 1
        assert accesses[0].browser is not None
        it.front.gateway.push.unsubscribe(accesses[0].browser)
        await trio.sleep(SOON)
        assert sorted(access.identity for access, _ in it.node.lines) == ["door/ben", "door/carl"]


# Over the network


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """The contents of the messages that are sent, without delays."""
    found: list[dict[str, Any]] = []

    async def send(_: WebPush, _subscription: Subscription, message: Message) -> tuple[Verdict, str]:
        await trio.lowlevel.checkpoint()
        found.append(json.loads(message.content))
        return Verdict("sent"), ""

    monkeypatch.setattr(WebPush, "_send", send)
    monkeypatch.setattr(watching, "LOOK_PAUSE", 0.001)
    monkeypatch.setattr(pushing, "CHECK", 0.001)
    return found


def sign_in_phone(folder: Path) -> None:
    """Sign a browser in at a gateway, with its last token, and have it told of each turn."""
    tokens = TokenStore(folder)
    token = tokens.tokens()[-1]
    browsers = BrowserStore(folder, tokens)
    _, secret = browsers.make_code(token, token.identity, label="phone")
    subscription = msgspec.convert(Receiver().members | {"done": {"after": 0}}, Subscription)
    PushStore(folder).set(browsers.sign_in(secret).browser.id, subscription, lambda _: True)


async def until_told(sent: list[dict[str, Any]], editor: Editor, session: str) -> None:
    """Have turns end until one is told: what has ended before the node was asked is not."""
    while not sent:
        await prompted_at(editor, session, "hello")


async def test_a_phone_is_told_of_a_turn_over_a_connection_to_the_node(
    tmp_path: Path, sent: list[dict[str, Any]]
) -> None:
    async with fronted(tmp_path) as front:
        editor = await front.editor(front.token("ann"))
        sign_in_phone(tmp_path / "front")
        session = await new_session(editor)
        await until_told(sent, editor, session)
        assert sent[0]["sessionId"] == f"gpu1/{session}"
        await editor.stream.aclose()
