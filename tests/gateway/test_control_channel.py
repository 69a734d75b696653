"""Control connections, end to end over streams in memory: what is asked, what is told to whom."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import trio

from acp_gateway import __version__
from acp_gateway.client.control import request
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import AgentSection, WorkspaceSection
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.session import Role, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import UnknownAgent, UsageError
from acp_gateway.gateway import control_channel, extensions
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Agent, Spawner
from acp_gateway.gateway.control_channel import (
    CODE_WEIGHT,
    PAST,
    TEXT,
    WEIGHT,
    ControlChannel,
    describe_access,
    serve_control,
)
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.made.machine import read_told
from acp_gateway.protocol.methods import ACCESS, NOTICES, SESSIONS
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.ndjson import LineStream
from acp_gateway.transports.streams import CloseReason, TrioBytes
from acp_gateway.transports.websocket.stream import PASSED
from tests.kit.doubles import TIMEOUT, Editor, FragileStream, make_config
from tests.kit.hub_scene import FakeServices
from tests.kit.machines import control, node_config, save_token
from tests.kit.scene import Scene, encode, make_policy
from tests.kit.serving import serving

METHOD = "_acp-gateway/sessions"

ME = SessionReach("me")

PROBLEM = "/state/sessions.db: disk full"


async def no_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
    """None of these hubs starts one."""
    raise AssertionError("no agent is to be started")


class IdleGateway:
    """A gateway that does not run, with hubs around multiplexers that tests drive."""

    access = Access("me", None)

    def __init__(self, state_dir: Path) -> None:
        config = make_config(state_dir, agents={"agent": AgentSection(command=("agent",))})
        self.gateway: Any = Gateway(config, TokenStore(state_dir), Spawner(ProcessRegistry(state_dir / "agents")), {})
        self.registry = self.gateway.registry
        self.passed: tuple[str, ...] = ()
        """The gateways that its connections come through."""

    def grant(self, reach: SessionReach = ME, role: Role = Role.CONTROLLER) -> Grant:
        """A control connection as it is admitted."""
        access = replace(self.access, identity=reach.identity)
        return Grant(access, ConnectRequest(control=True, passed=self.passed), "", reach, role)

    async def serve(self, stream: MaintainedStream, reach: SessionReach = ME, role: Role = Role.CONTROLLER) -> None:
        """Serve a control connection."""
        await serve_control(self.gateway, stream, self.grant(reach, role))

    def remember(self, session_id: str, owner: str = "me", agent: str = "agent") -> Session:
        """A session of an earlier process of the gateway."""
        session = Session(agent, session_id, owner, Journal(1))
        self.registry.restore(session)
        return session

    def scene(self) -> Scene:
        """Another agent process and its hub."""
        policy = make_policy()
        scene = Scene(policy, self.registry)
        self.gateway._hubs[scene.multiplexer.agent_handle] = Hub(
            "agent",
            policy=policy,
            run_agent=no_agent,
            multiplexer=scene.multiplexer,
            services=FakeServices(),
        )
        return scene

    async def told(self, reach: SessionReach = ME, role: Role = Role.CONTROLLER) -> dict[str, Any]:
        """All that this one is told."""
        async with connection(self, reach, role) as editor:
            result: dict[str, Any] = (await editor.request(METHOD, {}))["result"]
        return result

    async def sessions(self, reach: SessionReach = ME, role: Role = Role.CONTROLLER) -> list[dict[str, Any]]:
        """The sessions that this one is told of, and nothing else."""
        result = await self.told(reach, role)
        assert list(result) == ["sessions"]
        sessions: list[dict[str, Any]] = result["sessions"]
        return sessions

    async def ids(self, reach: SessionReach = ME) -> list[str]:
        """The ids of the sessions that this one is told of."""
        return [session["sessionId"] for session in await self.sessions(reach)]


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IdleGateway:
    monkeypatch.setattr("acp_gateway.gateway.gateway.default_identity", lambda _: "me")
    return IdleGateway(tmp_path / "idle")


@pytest.fixture
def weights(idle: IdleGateway, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The weights of the requests of connections."""
    found: list[int] = []

    def charge(messages: int = 0, size: int = 0, seconds: float = 0.0, frames: int = 0) -> float:
        found.append(messages)
        return 0.0

    limiter = SimpleNamespace(charge=charge)
    monkeypatch.setattr(idle.gateway.connections, "rate_limiter", lambda *_, **__: limiter)
    return found


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> float:
    """The time that it is, in seconds since 1970."""

    class Clock:
        @staticmethod
        def time() -> float:
            return 1_800_000_000.0

    monkeypatch.setattr(control_channel, "time", Clock)
    return Clock.time()


@asynccontextmanager
async def connection(
    idle: IdleGateway, reach: SessionReach = ME, role: Role = Role.CONTROLLER
) -> AsyncIterator[Editor]:
    """The other end of a control connection."""
    theirs, ours = memory_message_stream_pair()
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(idle.serve, ours, reach, role)
            yield Editor(theirs)
            await theirs.aclose()


async def end_of(idle: IdleGateway, stream: MaintainedStream) -> tuple[CloseReason, str] | None:
    """Serve a control connection, and return what it is closed with."""
    ours = FragileStream(stream)
    with trio.fail_after(TIMEOUT):
        await idle.serve(ours)
    return ours.closed_with


async def test_after_each_message_others_get_their_turn(idle: IdleGateway, weights: list[int]) -> None:
    theirs, ours = memory_message_stream_pair()
    seen: set[int] = set()

    async def other_client() -> None:
        while len(weights) < 10:
            await trio.lowlevel.checkpoint()
            seen.add(len(weights))

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            theirs.send_nowait([encode(method=METHOD)] * 10)
            nursery.start_soon(idle.serve, ours)
            await other_client()
            await theirs.aclose()
    assert weights == [WEIGHT] * 10
    # Of two tasks that are ready, either may be first.
    assert len(seen) > 4


# What is told


async def test_what_the_credential_allows_is_told(idle: IdleGateway) -> None:
    async with connection(idle) as editor:
        told = (await editor.request(ACCESS, {}))["result"]
    assert (told["identity"], told["agents"]) == ("me", {"agent": "identity"})


async def test_where_there_is_no_session_the_list_is_empty(idle: IdleGateway) -> None:
    assert await idle.sessions() == []
    idle.scene().join("A")
    assert await idle.sessions() == []


async def test_a_session_is_told_with_all_there_is_to_say(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s", cwd="/srv/proj")
    scene.agent.state("session_info_update", title="Fix the tests", updatedAt="2026-11-22T10:00:00Z")
    assert await idle.sessions() == [
        {
            "sessionId": "s",
            "agent": "agent",
            "title": "Fix the tests",
            "cwd": "/srv/proj",
            "updatedAt": "2026-11-22T10:00:00Z",
            "owner": "me",
            "live": True,
            "connected": 1,
            "away": 0,
            "turn": False,
            "fence": None,
            "waiting": [],
        }
    ]


async def test_the_session_list_leaves_out_unknown_title_cwd_and_time(idle: IdleGateway) -> None:
    owner = (scene := idle.scene()).join("A")
    # Of a session without a cwd, only its node knows where it is.
    scene.look = lambda _: DirectoryCheckResult()
    owner.request("session/new", mcpServers=[])
    scene.agent.answers("session/new", sessionId="s")
    (session,) = await idle.sessions()
    assert not {"title", "cwd", "updatedAt"} & set(session)


async def test_any_title_that_an_agent_gives_can_be_told(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    scene.agent.state("session_info_update", title='\ud83d "ü"\x00\u2028')
    (session,) = await idle.sessions()
    assert session["title"] == '\ud83d "ü"\x00\u2028'


async def test_of_a_title_without_an_end_the_beginning_is_told(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    scene.agent.state("session_info_update", title="x" * (TEXT + 1))
    assert [session["title"] for session in await idle.sessions()] == ["x" * TEXT]


async def test_those_who_are_there_and_those_who_may_come_back_are_counted(idle: IdleGateway) -> None:
    scene = idle.scene()
    owner, phone = scene.join("A"), scene.join("B")
    viewer = scene.join("C", "guest", Role.OBSERVER, only="s", guest=True)
    owner.new_session("s")
    phone.load("s")
    viewer.load("s")
    scene.join("D")
    phone.away()
    (session,) = await idle.sessions()
    assert (session["connected"], session["away"]) == (2, 1)
    viewer.gone()
    (session,) = await idle.sessions()
    assert (session["connected"], session["away"]) == (1, 1)


async def test_a_turn_is_told_while_it_is_open(idle: IdleGateway) -> None:
    scene = idle.scene()
    owner = scene.join("A")
    owner.new_session("s")
    owner.prompt("hello")
    assert [session["turn"] for session in await idle.sessions()] == [True]
    scene.agent.answers("session/prompt", stopReason="end_turn")
    assert [session["turn"] for session in await idle.sessions()] == [False]


async def test_what_waits_for_a_person_is_told_with_what_it_is_about_and_since_when(
    idle: IdleGateway, now: float, autojump_clock: trio.testing.MockClock
) -> None:
    await trio.sleep(1000)
    scene = idle.scene()
    owner = scene.join("A")
    owner.new_session("s")
    scene.pass_time(trio.current_time() - 720)
    scene.agent.ask_permission(1)
    scene.pass_time(trio.current_time() - 60)
    params = {"sessionId": "s", "message": "Which one?", "requestedSchema": {}}
    scene.agent.send(id=2, method="elicitation/create", params=params)
    scene.pass_time(trio.current_time())
    scene.agent.send(id=3, method="x/ask", params={"sessionId": "s"})
    (session,) = await idle.sessions()
    assert session["waiting"] == [
        {"method": "session/request_permission", "title": "do it", "since": "2027-01-15T07:48:00Z"},
        {"method": "elicitation/create", "title": "Which one?", "since": "2027-01-15T07:59:00Z"},
        {"method": "x/ask", "since": "2027-01-15T08:00:00Z"},
    ]
    await trio.sleep(30)
    owner.send(id=owner.heard()[0]["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
    (session,) = await idle.sessions()
    assert [waiting["method"] for waiting in session["waiting"]] == ["elicitation/create", "x/ask"]
    assert session["waiting"][0]["since"] == "2027-01-15T07:58:30Z"


async def test_an_agent_that_waits_without_a_request_is_told_as_waiting(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    scene.multiplexer.set_time(trio.current_time(), 1_800_000_000_000)
    scene.agent.state("session_info_update", _meta={"acp-gateway": {"state": "requires_action"}})
    (session,) = await idle.sessions()
    (waits,) = session["waiting"]
    assert (session["turn"], waits) == (True, {"method": "requires_action", "since": "2027-01-15T08:00:00Z"})
    scene.agent.ask_permission(1)
    (session,) = await idle.sessions()
    assert [waits["method"] for waits in session["waiting"]] == ["session/request_permission"]


async def test_sessions_of_all_agent_processes_are_told_the_oldest_first(idle: IdleGateway) -> None:
    one, other = idle.scene(), idle.scene()
    for scene, session_id in ((one, "a"), (other, "b"), (one, "c")):
        scene.join(session_id).new_session(session_id)
    assert await idle.ids() == ["a", "b", "c"]


async def test_only_sessions_of_the_agents_that_one_is_told_of_are_told(idle: IdleGateway) -> None:
    idle.scene().join("A").new_session("a")
    asking = idle.scene()
    asking.join("B").away()
    asking.agent.send(id=1, method="x/ask", params={})
    idle.remember("old")
    idle.remember("others", agent="another")
    assert await idle.ids() == ["old", "a", "?"]
    agents = {"another": AgentSection(command=("another",))}
    idle.gateway.config = replace(idle.gateway.config, agents=agents)
    assert await idle.ids() == ["others"]


async def test_the_session_list_has_the_sessions_of_its_reach(idle: IdleGateway) -> None:
    scene = idle.scene()
    for identity, session_id in (("me", "a"), ("me", "b"), ("bob", "c")):
        scene.join(identity, identity).new_session(session_id)
    assert await idle.ids(SessionReach("me")) == ["a", "b"]
    assert await idle.ids(SessionReach("me", "b")) == ["b"]
    assert await idle.ids(SessionReach("me", "c")) == []
    assert await idle.ids(SessionReach("bob")) == ["c"]
    assert await idle.ids(SessionReach("carol")) == []
    assert await idle.ids(SessionReach("guest", "c", guest=True)) == ["c"]
    assert await idle.ids(SessionReach("guest", "d", guest=True)) == []


# Sessions that are not live


async def test_a_session_of_before_is_told_with_what_is_known_of_it(idle: IdleGateway) -> None:
    session = idle.remember("s")
    session.title, session.cwd, session.updated_at = "Fix the tests", "/srv/proj", "2026-11-22T10:00:00Z"
    assert await idle.sessions() == [
        {
            "sessionId": "s",
            "agent": "agent",
            "title": "Fix the tests",
            "cwd": "/srv/proj",
            "updatedAt": "2026-11-22T10:00:00Z",
            "owner": "me",
            "live": False,
            "connected": 0,
            "away": 0,
            "turn": False,
            "fence": None,
            "waiting": [],
        }
    ]


async def test_a_session_that_no_agent_process_has_any_more_is_told_as_one_of_before(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    assert [session["live"] for session in await idle.sessions()] == [True]
    scene.retire()
    assert [session["live"] for session in await idle.sessions()] == [False]


async def test_sessions_of_before_come_first_those_that_were_not_used_for_the_longest_before_the_others(
    idle: IdleGateway,
) -> None:
    idle.scene().join("A").new_session("now")
    for session_id in ("older", "newer"):
        idle.remember(session_id)
    assert await idle.ids() == ["older", "newer", "now"]


async def test_of_many_sessions_of_before_the_last_are_told_and_the_others_counted(idle: IdleGateway) -> None:
    idle.scene().join("A").new_session("now")
    for number in range(PAST):
        idle.remember(f"s{number}")
    idle.remember("yours", "you")
    told = await idle.told()
    assert len(told["sessions"]) == PAST + 1
    assert "more" not in told
    idle.remember("another")
    idle.remember("one more")
    told = await idle.told()
    assert told["more"] == 2
    ids = [session["sessionId"] for session in told["sessions"]]
    assert (len(ids), ids[0], ids[-3:]) == (PAST + 1, "s2", ["another", "one more", "now"])


async def test_the_rest_of_the_sessions_of_before_is_told_in_pages(
    idle: IdleGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_channel, "PAGE", 3)
    idle.scene().join("A").new_session("now")
    for number in range(7):
        idle.remember(f"s{number}")
    idle.remember("yours", "you")

    async def told(skip: int) -> tuple[list[str], Any]:
        async with connection(idle) as editor:
            result = (await editor.request(METHOD, {"skip": skip}))["result"]
        return [it["sessionId"] for it in result["sessions"]], result.get("more")

    assert await told(2) == (["s2", "s3", "s4"], 2)
    assert await told(5) == (["s0", "s1"], None)
    assert await told(9) == ([], None)


async def test_another_gateway_is_told_as_many_as_it_takes_live_ones_before_others(idle: IdleGateway) -> None:
    client = idle.scene().join("A")
    for session_id in ("now", "also now"):
        client.new_session(session_id)
    for number in range(PAST + 2):
        idle.remember(f"s{number}")

    limits = LimitsSection(max_node_sessions=PAST + 3)
    idle.gateway.config = replace(idle.gateway.config, limits=limits)

    def told(limit: int) -> tuple[list[str], Any]:
        answer = ControlChannel(idle.gateway, idle.grant()).list_sessions(limit)
        return [it["sessionId"] for it in answer["sessions"]], answer.get("more")

    assert told(3) == ([f"s{PAST + 1}", "now", "also now"], PAST + 1)
    assert told(1) == (["also now"], PAST + 3)
    assert [len(told(limit)[0]) for limit in (0, PAST + 3, 10**6)] == [0, PAST + 3, PAST + 3]


@pytest.mark.parametrize(
    ("params", "count"), [({"limit": 1}, 1), ({"limit": -1}, 3), ({"limit": "1"}, 3), ({"limit": 1.5}, 3), ({}, 3)]
)
async def test_the_limit_of_a_list_is_a_number(idle: IdleGateway, params: dict[str, Any], count: int) -> None:
    for session_id in "abc":
        idle.remember(session_id)
    async with connection(idle) as editor:
        answer = await editor.request(METHOD, params)
    assert len(answer["result"]["sessions"]) == count


async def test_a_session_of_before_is_told_to_those_who_can_have_it_opened_again(idle: IdleGateway) -> None:
    for session_id, owner in (("a", "me"), ("b", "me"), ("c", "bob")):
        idle.remember(session_id, owner)
    assert await idle.ids(SessionReach("me")) == ["a", "b"]
    assert await idle.ids(SessionReach("me", "b")) == ["b"]
    assert await idle.ids(SessionReach("me", "c")) == []
    assert await idle.ids(SessionReach("bob")) == ["c"]
    assert await idle.ids(SessionReach("guest", "c", guest=True)) == []


async def test_a_session_of_before_whose_id_was_given_to_another_one_is_not_told(idle: IdleGateway) -> None:
    idle.remember("1", "me")
    idle.remember("1", "bob")
    assert await idle.ids(SessionReach("me")) == []
    assert await idle.ids(SessionReach("bob")) == ["1"]


# What is wrong


async def test_what_is_not_stored_is_told_to_the_gateways_own_user_in_full_and_to_others_without_names_of_files(
    idle: IdleGateway,
) -> None:
    assert "problems" not in await idle.told()
    idle.gateway.storage = SimpleNamespace(problem=PROBLEM)
    assert (await idle.told())["problems"] == [PROBLEM]
    for stranger in (SessionReach("bob"), SessionReach("guest", "s", guest=True)):
        assert (await idle.told(stranger))["problems"] == ["the gateway's storage has a problem; its log says which"]


# Questions that no session was found for


async def test_a_question_in_doubt_stands_in_each_session_of_its_identity_that_it_may_belong_to(
    idle: IdleGateway, now: float, autojump_clock: trio.testing.MockClock
) -> None:
    scene = idle.scene()
    peer = scene.join("A")
    for name in ("s", "t"):
        peer.new_session(name)
    scene.agent.ask_permission(1, "child")
    asked = [{"method": "session/request_permission", "title": "do it", "since": "2027-01-15T08:00:00Z"}]
    assert [session["waiting"] for session in await idle.sessions()] == [asked, asked]
    for reach in (SessionReach("me", "s"), SessionReach("guest", "s", guest=True)):
        assert [session["waiting"] for session in await idle.sessions(reach)] == [[]]
    assert [session["waiting"] for session in await idle.sessions(role=Role.OBSERVER)] == [[], []]
    idle.passed = ("0123456789abcdef",)
    assert [session["waiting"] for session in (await idle.told())["sessions"]] == [[], []]


async def test_a_question_that_names_no_session_and_may_be_of_none_is_listed_too(idle: IdleGateway) -> None:
    scene = idle.scene()
    scene.join("A").away()
    scene.agent.send(id=1, method="x/ask", params={})
    (waiting,) = await idle.sessions()
    assert (waiting["sessionId"], waiting["owner"], waiting["waiting"][0]["method"]) == ("?", "me", "x/ask")
    assert await idle.ids(SessionReach("bob")) == []
    assert await idle.sessions(role=Role.OBSERVER) == []


async def test_a_question_that_may_be_another_identitys_stands_in_the_list_without_its_words(
    idle: IdleGateway,
) -> None:
    scene = idle.scene()
    scene.join("A").new_session("s")
    scene.join("B", "bob").new_session("t")
    scene.agent.ask_permission(1, "child")
    for identity, name in (("me", "s"), ("bob", "t")):
        (session,) = await idle.sessions(SessionReach(identity))
        (waiting,) = session["waiting"]
        assert (session["sessionId"], waiting["method"]) == (name, "session/request_permission")
        assert "do it" not in waiting["title"]


async def test_a_question_of_another_agent_process_is_not_mixed_up_with_ones_own(idle: IdleGateway) -> None:
    mine, theirs = idle.scene(), idle.scene()
    mine.join("A").new_session("s")
    theirs.join("B", "bob").new_session("t")
    theirs.agent.ask_permission(1, "child")
    (session,) = await idle.sessions()
    assert session["waiting"] == []
    (session,) = await idle.sessions(SessionReach("bob"))
    assert session["waiting"][0]["title"] == "do it"


# Notices


async def test_notices_are_told_after_the_response_until_the_client_has_to_connect_again(
    idle: IdleGateway,
) -> None:
    asked, ends = [], trio.Event()

    async def tell(_: Access, __: ConnectRequest, since: int | None, send: Any) -> None:
        asked.append(since)
        await send(b'{"jsonrpc":"2.0","method":"_acp-gateway/notices","params":{}}')
        await ends.wait()

    idle.gateway.push.tell = tell
    theirs, ours = memory_message_stream_pair()
    editor, ended = Editor(theirs), []

    async def serve() -> None:
        ended.append(await end_of(idle, ours))

    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await editor.send(id=1, method=NOTICES, params={"since": 7})
            assert (await editor.receive())["result"] == {}
            assert (await editor.receive())["method"] == NOTICES
            assert asked == [7]
            again = (await editor.request(NOTICES, {}))["error"]
            assert (again["code"], again["message"]) == (-32600, "this connection is told already")
            # Other requests are answered beside.
            assert "result" in await editor.request(METHOD)
            ends.set()
            with pytest.raises((trio.EndOfChannel, trio.BrokenResourceError)):
                await editor.receive()
    assert ended == [(CloseReason.GOING_AWAY, "there are other agents now: connect again")]


async def test_notices_are_refused_to_those_who_decide_nothing(idle: IdleGateway) -> None:
    async with connection(idle, role=Role.OBSERVER) as editor:
        error = (await editor.request(NOTICES, {}))["error"]
        assert (error["code"], error["data"]) == (403, {"reason": "forbidden"})


# What may be asked


@pytest.mark.parametrize("method", ["initialize", "session/load", "_acp-gateway/hello", "_acp-gateway/", ""])
async def test_nothing_else_may_be_asked(method: str, idle: IdleGateway) -> None:
    async with connection(idle) as editor:
        error = (await editor.request(method, {}))["error"]
        assert error["code"] == -32601
        assert error["message"].startswith(f"a control connection knows only {METHOD}, ")
        assert "result" in await editor.request(METHOD)


@pytest.mark.parametrize(
    ("method", "result"),
    [
        ("_acp-gateway/status", {"state": "fine"}),
        ("_acp-gateway/reload", {"changed": "fine"}),
        ("_acp-gateway/stop_agent", {"processes": 2}),
    ],
)
async def test_operations_are_for_the_own_user_alone(
    method: str, result: Any, idle: IdleGateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def status(*, with_nodes: bool) -> dict[str, Any]:
        return {"state": "fine"}

    async def stop_agent(name: str) -> dict[str, Any]:
        if name != "demo":
            raise UsageError("there is none") if name else UnknownAgent("there is none")
        return {"processes": 2}

    idle.gateway.extensions.operations = extensions.Operations(status, lambda: {"changed": "fine"}, stop_agent)
    with monkeypatch.context() as patch:
        patch.setattr(IdleGateway, "access", Access("me", None, certificate="laptop"))
        async with connection(idle) as editor:
            error = (await editor.request(method, {"agent": "demo"}))["error"]
        assert (error["code"], error["data"]) == (403, {"reason": "forbidden"})
    async with connection(idle) as editor:
        assert (await editor.request(method, {"agent": "demo"}))["result"] == result
        assert (await editor.request("_acp-gateway/stop_agent", {}))["error"]["code"] == 404
        assert (await editor.request("_acp-gateway/stop_agent", {"agent": "box/a"}))["error"]["code"] == -32602


@pytest.mark.parametrize(
    ("line", "code"),
    [
        (b"nonsense", -32700),
        (b"\xff", -32700),
        (b"[" * 100_000, -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"_acp-gateway/sessions"}]', -32600),
        (b"7", -32600),
        (b"{}", -32600),
    ],
    ids=lambda value: str(value)[:40],
)
async def test_what_is_not_a_message_is_answered_and_the_connection_goes_on(
    line: bytes, code: int, idle: IdleGateway
) -> None:
    async with connection(idle) as editor:
        await editor.stream.send(line)
        answer = await editor.receive()
        assert (answer["id"], answer["error"]["code"]) == (None, code)
        assert "result" in await editor.request(METHOD)


async def test_what_asks_nothing_is_not_answered(idle: IdleGateway) -> None:
    async with connection(idle) as editor:
        await editor.send(method=METHOD)
        await editor.send(id=7, result={})
        await editor.send(id=8, error={"code": 1, "message": "no"})
        assert "result" in await editor.request(METHOD)


async def test_ids_come_back_as_they_were_spelled_and_answers_in_the_order_of_the_requests(
    idle: IdleGateway,
) -> None:
    ids = [b'"\\u0061"', b"1.0", b"0", b'""', b"123456789012345678901234567890", b"1"]
    async with connection(idle) as editor:
        await editor.stream.send_batch([b'{"jsonrpc":"2.0","id":%b,"method":"x"}' % raw for raw in ids])
        for raw in ids:
            assert (await editor.stream.receive()).startswith(b'{"jsonrpc":"2.0","id":%b,' % raw)


async def test_each_answer_is_of_its_own_moment(idle: IdleGateway) -> None:
    async with connection(idle) as editor:
        assert (await editor.request(METHOD))["result"] == {"sessions": []}
        idle.scene().join("A").new_session("s")
        assert [one["sessionId"] for one in (await editor.request(METHOD))["result"]["sessions"]] == ["s"]


# The end


async def test_who_goes_is_not_told_anything(idle: IdleGateway) -> None:
    theirs, ours = memory_message_stream_pair()
    await theirs.aclose()
    assert await end_of(idle, ours) == (CloseReason.NORMAL, "")


async def test_who_goes_before_the_answer_is_not_an_event(idle: IdleGateway) -> None:
    theirs, ours = memory_message_stream_pair()
    theirs.send_nowait([b'{"jsonrpc":"2.0","id":1,"method":"x"}'] * 2)
    await theirs.aclose()
    assert await end_of(idle, ours) == (CloseReason.NORMAL, "")


class ClosedLines(LineStream):
    """Lines that know how they were closed."""

    closed_with: tuple[CloseReason, str] | None = None

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        self.closed_with = reason, text
        await super().aclose(reason, text)


async def test_who_sends_too_much_is_told_so(idle: IdleGateway) -> None:
    theirs, ours = trio.testing.memory_stream_pair()
    lines = ClosedLines(TrioBytes(ours), max_message_size=1 << 20)
    await theirs.send_all(b"x" * 65537 + b"\n")
    with trio.fail_after(TIMEOUT):
        await idle.serve(lines)
    assert lines.closed_with is not None
    code, text = lines.closed_with
    assert code is CloseReason.TOO_LARGE
    assert "larger than control_message_size (65536 bytes)" in text
    assert json.loads(await theirs.receive_some())["error"] == {"code": -32600, "message": text}


# Codes for browsers


@pytest.mark.parametrize(
    ("params", "answer"),
    [
        ({"session": "s1", "label": "phone"}, "acpgwp_"),
        ({}, "acpgwp_"),
        (None, "acpgwp_"),
        ({"session": "theirs"}, (404, {"reason": "unknown_session"})),
        ({"sesion": "s1"}, (-32602, None)),
    ],
)
async def test_open_answers_with_a_code_or_the_refusal(params: Any, answer: Any, idle: IdleGateway) -> None:
    idle.remember("s1")
    idle.remember("theirs", "bob")
    request = {"jsonrpc": "2.0", "id": 1, "method": "_acp-gateway/open"}
    async with connection(idle) as editor:
        await editor.send(**(request if params is None else request | {"params": params}))
        told = await editor.receive()
    if isinstance(answer, str):
        assert told["result"]["code"].startswith(answer)
    else:
        assert (told["error"]["code"], told["error"].get("data")) == answer


async def test_open_counts_as_more_messages_than_a_list(idle: IdleGateway, weights: list[int]) -> None:
    async with connection(idle) as editor:
        for method in ("_acp-gateway/open", METHOD):
            await editor.request(method)
    assert [weight for weight in weights if weight] == [CODE_WEIGHT, WEIGHT]


def describe(
    access: Access, state_dir: Path, *, only: str | None = None, role: Role = Role.CONTROLLER
) -> dict[str, Any]:
    agents = {"a": AgentSection(command=("a",), scope="connection"), "b": AgentSection(command=("b",))}
    workspaces = {name: WorkspaceSection(root=Path(f"/srv/{name}")) for name in ("w", "v")}
    config = make_config(state_dir, "tcp://127.0.0.1:1", agents=agents, default_agent="b")
    config = replace(config, workspaces=workspaces)
    reach = SessionReach(access.identity, only, access.session is not None)
    return describe_access(Grant(access, ConnectRequest(control=True), "", reach, role), config)


@pytest.fixture
def tokens(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path, now=lambda: 1_800_000_000.0)


def test_a_token_is_described_with_what_it_allows(tokens: TokenStore, tmp_path: Path) -> None:
    token, secret = tokens.create("laptop", "ann", None, lifetime=60.0, workspaces=["w"])
    told = describe(Access.of(token), tmp_path)
    assert told == {
        "version": __version__,
        "identity": "ann",
        "credential": f"token {token.id}",
        "role": "controller",
        "agents": {"a": "connection", "b": "identity"},
        "claims": 1,
        "defaultAgent": "b",
        "label": "laptop",
        "workspaces": ["w"],
        "folders": ["/srv/w"],
        "expires": "2027-01-15T08:01:00Z",
    }
    assert secret not in str(told)


def test_a_token_for_one_agent_is_told_of_no_other(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create("x", "ann", ["a"])[0]), tmp_path, role=Role.OBSERVER)
    assert (told["agents"], told["defaultAgent"], told["role"]) == ({"a": "connection"}, "a", "observer")
    assert "expires" not in told
    assert told["folders"] == ["/srv/w", "/srv/v"]


def test_a_token_for_an_agent_that_was_removed_has_none(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create("x", "ann", ["gone"])[0]), tmp_path)
    assert told["agents"] == {}
    assert "defaultAgent" not in told


def test_a_guest_is_told_of_its_session_and_no_agent(tokens: TokenStore, tmp_path: Path) -> None:
    told = describe(Access.of(tokens.create_guest("s1", role="observer", lifetime=None)[0]), tmp_path, only="s1")
    assert (told["session"], told["agents"]) == ("s1", {})
    assert "defaultAgent" not in told
    assert "folders" not in told


def test_a_client_certificate_is_described_with_its_end(tmp_path: Path) -> None:
    told = describe(replace(Access("ann", None), certificate="ann", expires=1_800_000_000.0), tmp_path)
    assert (told["credential"], told["expires"]) == ("certificate ann", "2027-01-15T08:00:00Z")
    assert "label" not in told


THROUGH: dict[str, Any] = {"origin": ((PASSED, "0123456789abcdef"),)}


@pytest.mark.parametrize(("through", "told"), [(THROUGH, True), ({}, False)])
async def test_only_another_gateway_is_told_the_load(through: dict[str, Any], told: bool, tmp_path: Path) -> None:
    async with serving(node_config(tmp_path)) as (url,):
        answer = await request(control(url, tmp_path / "node.token", **through), SESSIONS, {}, time_limit=30)
    assert ("load" in answer) == told
    if told:
        assert {**answer["load"], "lag": 0} == {"sessions": 0, "turns": 0, "lag": 0}


@pytest.mark.parametrize(("through", "told"), [(THROUGH, True), ({}, False)])
async def test_another_gateway_that_asks_is_told_of_the_machine(
    through: dict[str, Any], told: bool, tmp_path: Path
) -> None:
    async with serving(node_config(tmp_path)) as (url,):
        node = control(url, tmp_path / "node.token", **through)
        answer = await request(node, SESSIONS, {"machine": True}, time_limit=30)
    machine = read_told(answer.get("load", {}).get("machine"))
    assert (machine is not None) == told
    if machine is not None:
        assert (machine.cpus, [gpu.holders for gpu in machine.gpus]) == (os.cpu_count(), [() for _ in machine.gpus])


async def test_a_token_for_one_session_is_not_told_the_load(tmp_path: Path) -> None:
    guest = save_token(tmp_path, "guest.token", session="s")
    async with serving(node_config(tmp_path)) as (url,):
        assert "load" not in await request(control(url, guest, **THROUGH), SESSIONS, {}, time_limit=30)
