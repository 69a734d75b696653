"""Which agent for whom: who may come in, the hub that each gets, and what ends a connection from the gateway's side."""

import json
import logging
import os
import re
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import pytest
import trio

from acp_gateway import __version__
from acp_gateway.config.limits import LimitsSection
from acp_gateway.config.load import AgentSection, ListenSection, WorkspaceSection
from acp_gateway.core.requests import DirectoryCheckResult
from acp_gateway.core.sessions.session import Client, Role, SessionReach
from acp_gateway.errors import (
    AccessError,
    Busy,
    Forbidden,
    LinkExpired,
    LinkGone,
    Unauthorized,
    UnknownSession,
)
from acp_gateway.fence.plan import Fence
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.listeners import MARK
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Launch, Spawner
from acp_gateway.gateway.control_channel import serve_control
from acp_gateway.gateway.events.audit import NO_AUDIT, Audit
from acp_gateway.gateway.events.hooks import Hooks
from acp_gateway.gateway.gateway import PROMPT_SIZE, REVOCATION_INTERVAL, Gateway, Kind
from acp_gateway.gateway.hub import services as hub_services
from acp_gateway.gateway.hub.attachment import Disconnect
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.gateway.hub.services import CHECK_TIMEOUT
from acp_gateway.gateway.resumption import ResumeClaim
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.protocol.link_messages import Mark, acknowledgement
from acp_gateway.protocol.methods import Capability
from acp_gateway.protocol.on_behalf import OnBehalf
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.link import HEARTBEAT, Link
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from acp_gateway.transports.streams import CloseReason
from acp_gateway.transports.timers import TaskSpawner
from tests.kit.doubles import (
    INITIALIZE,
    OBLIGING_AGENT,
    TIMEOUT,
    Editor,
    FragileStream,
    ServingAgents,
    encode,
    make_config,
)
from tests.kit.registered import AgentDouble

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/home/ann",
    "LC_ALL": "C.UTF-8",
    "ACP_GATEWAY_TOKEN": "acpgw_of_the_gateway_itself",
    "ACP_GATEWAY_TOKEN_FILE": "/run/token",
    "API_KEY": "for some agents",
    "SSH_AUTH_SOCK": "/run/agent",
}

Scope = Literal["connection", "identity", "shared"]
SCOPES: tuple[Scope, ...] = ("connection", "identity", "shared")

SESSION = {"cwd": "/", "mcpServers": []}


def agent(scope: Scope = "identity", **options: Any) -> AgentSection:
    """An agent of the tests' own."""
    return AgentSection(command=OBLIGING_AGENT, scope=scope, **options)


async def at_once(look: Callable[[], DirectoryCheckResult]) -> DirectoryCheckResult:
    """In this thread: a clock that jumps takes a wait for another one for idleness."""
    await trio.lowlevel.checkpoint()
    return look()


class Reel:
    """The messages of one connection, in memory."""

    def __init__(self) -> None:
        self.written: list[tuple[str, str | None]] = []
        self.closed = False

    def write(self, direction: str, messages: Sequence[bytes]) -> None:
        assert not self.closed
        self.written += [(direction, json.loads(message).get("method")) for message in messages]

    def close(self) -> None:
        self.closed = True


class Camera:
    """Records in memory."""

    def __init__(self) -> None:
        self.reels: list[tuple[str, dict[str, Any], Reel]] = []

    def open(self, connection: str, about: Mapping[str, Any]) -> Reel:
        self.reels.append((connection, dict(about), Reel()))
        return self.reels[-1][2]


class Notebook(Audit):
    """An audit in memory."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, dict[str, Any]]] = []

    def record(self, event: str, **details: Any) -> None:
        self.entries.append((event, {name: value for name, value in details.items() if value is not None}))

    def close(self) -> None: ...

    def of(self, *events: str) -> list[tuple[str, dict[str, Any]]]:
        """Those of some kinds."""
        return [(event, details) for event, details in self.entries if event in events]


class Scene:
    """The parts of a gateway."""

    def __init__(self, tmp_path: Path) -> None:
        self.state_dir = tmp_path / "state"
        self._spawner = Spawner(ProcessRegistry(self.state_dir / "agents"))
        self.now = 1_800_000_000.0
        """The time, for tokens."""
        self.tokens = TokenStore(self.state_dir, lambda: self.now)

    def close(self) -> None:
        """End the spawner's thread."""
        with self._spawner:
            pass

    def gateway(
        self,
        agents: dict[str, AgentSection] | None = None,
        *,
        audit: Audit = NO_AUDIT,
        recorder: Camera | None = None,
        limits: LimitsSection | None = None,
        workspaces: dict[str, WorkspaceSection] | None = None,
        **settings: Any,
    ) -> Gateway:
        """A gateway, with an agent for each identity where none are named, and sessions anywhere."""
        config = make_config(self.state_dir, "tcp://127.0.0.1:0", agents=agents or {"fake": agent()}, **settings)
        if limits is not None:
            config = replace(config, limits=limits)
        if workspaces is not None:
            config = replace(config, workspaces=workspaces)
        gateway = Gateway(config, self.tokens, self._spawner, ENVIRONMENT, audit, recorder)
        gateway.services.in_thread = at_once
        return gateway

    def access(self, identity: str = "ann", *agents: str, **options: Any) -> Access:
        """With a token of this identity."""
        return Access.of(self.tokens.create("laptop", identity, agents or None, **options)[0])

    def guest(self, session: str, role: Literal["controller", "observer"] = "controller") -> Access:
        """With a token for one session."""
        return Access.of(self.tokens.create_guest(session, role=role, lifetime=None)[0])

    def revoke(self, access: Access) -> None:
        """Revoke a token."""
        assert access.token is not None
        self.tokens.revoke(access.token.id)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    scene = Scene(tmp_path)
    yield scene
    scene.close()


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> ServingAgents:
    """All agents are in memory, and can load a session."""
    agents = ServingAgents(loadSession=True)
    monkeypatch.setattr(startup, "run_agent", agents.run)
    return agents


@pytest.fixture(autouse=True)
def no_bug_showed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A gateway logs bugs and goes on: a test that provokes one clears the log."""
    yield
    assert not [record for record in caplog.get_records("call") if record.exc_info]


class Overheard(MaintainedStream):
    """The gateway's end of a connection in memory; what it was closed with is noted."""

    def __init__(self, stream: MaintainedStream) -> None:
        super().__init__()
        self._stream = stream
        self.closed_with: list[tuple[CloseReason, str]] = []

    async def _receive_batch(self) -> list[bytes]:
        return await self._stream.receive_batch()

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        self._stream.send_nowait(messages)

    @property
    def pending_bytes(self) -> int:
        return self._stream.pending_bytes

    async def drain(self, below: int = 0) -> None:
        await self._stream.drain(below)

    async def run(self) -> None:
        await self._stream.run()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        self._stream.use_spawner(spawner)

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        self.closed_with.append((reason, text))
        await self._stream.aclose(reason, text)


async def serve(gateway: Gateway, stream: MaintainedStream, grant: Grant) -> None:
    """Serve a connection, as a listener does."""
    if grant.connect_request.control:
        await serve_control(gateway, stream, grant)
    else:
        await gateway.serve(stream, grant, "test")


class ServedConnection:
    """A connection, from its admission until it is gone."""

    def __init__(self, gateway: Gateway, access: Access, connect_request: ConnectRequest) -> None:
        self._gateway = gateway
        self.grant = gateway.admit(access, connect_request)
        theirs, ours = memory_message_stream_pair()
        self.editor = Editor(theirs)
        self.stream = Overheard(ours)
        self.ended = trio.Event()
        self.bug: BaseException | None = None
        """The exception that the gateway raised; a listener would log it."""

    @property
    def closed_with(self) -> list[tuple[CloseReason, str]]:
        """The close reasons that the gateway gave."""
        return self.stream.closed_with

    async def serve(self) -> None:
        try:
            await serve(self._gateway, self.stream, self.grant)
        except Exception as error:
            self.bug = error
        finally:
            self.ended.set()

    async def agent(self) -> int:
        """The number of the agent that it works with; it is initialized by this."""
        await self.editor.initialize()
        number: int = (await self.editor.request("test/number"))["result"]
        return number

    async def new_session(self) -> str:
        """Open one, which initializes."""
        await self.editor.initialize()
        session_id: str = (await self.editor.request("session/new", SESSION))["result"]["sessionId"]
        return session_id

    async def load(self, session_id: str) -> dict[str, Any]:
        """The answer to loading one."""
        return await self.editor.request("session/load", SESSION | {"sessionId": session_id})

    async def leave(self) -> None:
        """Go, and wait until that is noticed."""
        await self.editor.stream.aclose()
        await self.ended.wait()


Enter = Callable[..., ServedConnection]


@asynccontextmanager
async def running(gateway: Gateway) -> AsyncIterator[Enter]:
    """A gateway that runs until the end of the block; what it yields lets a connection in, for what it asks."""
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)

            def enter(access: Access, **connect_request: Any) -> ServedConnection:
                served = ServedConnection(gateway, access, ConnectRequest(**connect_request))
                nursery.start_soon(served.serve)
                return served

            yield enter
            nursery.cancel_scope.cancel()


# Who may come in


def refusal(gateway: Gateway, access: Access, **connect_request: Any) -> tuple[type[AccessError], str]:
    """Return the error of a refused connection."""
    with pytest.raises(AccessError) as refused:
        gateway.admit(access, ConnectRequest(**connect_request))
    return type(refused.value), str(refused.value)


# Which hub for whom


@pytest.mark.parametrize(
    ("scope", "numbers"), [("connection", [1, 2, 3]), ("identity", [1, 1, 2]), ("shared", [1, 1, 1])]
)
async def test_the_scope_says_who_shares_an_agent(
    scope: Scope, numbers: list[int], scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway({"fake": agent(scope)})
    async with running(gateway) as enter:
        ann, anns_phone, bob = enter(scene.access("ann")), enter(scene.access("ann")), enter(scene.access("bob"))
        assert [await served.agent() for served in (ann, anns_phone, bob)] == numbers
        assert len(gateway.hubs) == len(agents) == max(numbers)


async def test_an_agent_of_a_connections_own_is_stopped_with_it(scene: Scene, agents: ServingAgents) -> None:
    gateway = scene.gateway({"fake": agent("connection")})
    async with running(gateway) as enter:
        served = enter(scene.access())
        await served.agent()
        await served.leave()
        await trio.testing.wait_all_tasks_blocked()
        assert gateway.hubs == []
        assert agents[0].cancelled


@pytest.mark.parametrize("scope", ["identity", "shared"])
async def test_an_agent_that_is_shared_outlives_its_clients(scope: Scope, scene: Scene, agents: ServingAgents) -> None:
    async with running(scene.gateway({"fake": agent(scope)})) as enter:
        for _ in range(2):
            served = enter(scene.access())
            assert await served.agent() == 1
            await served.leave()
        await trio.testing.wait_all_tasks_blocked()
        assert not agents[0].cancelled


async def test_a_client_that_comes_while_the_agent_stops_gets_another(scene: Scene, agents: ServingAgents) -> None:
    gateway = scene.gateway()
    agents.may_stop = trio.Event()
    async with running(gateway) as enter:
        served = enter(scene.access())
        await served.agent()
        gateway.hubs[0].end()
        await served.ended.wait()
        assert await enter(scene.access()).agent() == 2
        assert len(gateway.hubs) == 2
        agents.may_stop.set()
        await trio.testing.wait_all_tasks_blocked()
        assert len(gateway.hubs) == 1
        assert await enter(scene.access()).agent() == 2


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_session_that_is_live_is_joined_where_it_lives(
    scope: Scope, scene: Scene, agents: ServingAgents
) -> None:
    async with running(scene.gateway({"fake": agent(scope)})) as enter:
        session = await enter(scene.access()).new_session()
        for access, connect_request in (
            (scene.access(), {"session": session}),
            (scene.guest(session), {}),
            (scene.guest(session, "observer"), {"session": session}),
        ):
            assert await enter(access, **connect_request).new_session() == session
        assert len(agents) == 1
        assert [message["method"] for message in agents[0].received] == ["initialize", "session/new"]


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_session_that_is_not_live_any_more_is_opened_again_for_its_identity(
    scope: Scope, scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway({"fake": agent(scope)})
    async with running(gateway) as enter:
        served = enter(scene.access())
        session = await served.new_session()
        await served.leave()
        gateway.hubs[0].end()
        await trio.testing.wait_all_tasks_blocked()
        assert gateway.hubs == []
        assert refusal(gateway, scene.guest(session))[0] is UnknownSession
        assert await enter(scene.access(), session=session).new_session() == session
        assert len(agents) == 2
        assert (await agents[1].got("session/load"))["params"]["sessionId"] == session


async def test_of_live_sessions_with_one_id_the_agents_name_decides_which_is_joined(
    scene: Scene, agents: ServingAgents
) -> None:
    agents.session_id = "s"
    gateway = scene.gateway({"a": agent(), "b": agent()}, default_agent="a")
    async with running(gateway) as enter:
        for name in ("a", "b"):
            assert await enter(scene.access(), agent=name).new_session() == "s"
        await enter(scene.access(), agent="b", session="s").new_session()
        (hub,) = [hub for hub in gateway.hubs if hub.name == "b"]
        assert [len(session.attached) for session in hub.multiplexer.sessions] == [2]


async def test_a_guest_whose_session_has_gone_since_it_was_let_in_is_told_so(
    scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway({"fake": agent("connection")})
    async with running(gateway) as enter:
        owner = enter(scene.access())
        guest = ServedConnection(gateway, scene.guest(await owner.new_session()), ConnectRequest())
        await owner.leave()
        await guest.serve()
        assert guest.closed_with == [(CloseReason.POLICY, "the session is not open any more")]
        await trio.testing.wait_all_tasks_blocked()
        assert len(agents) == 1
        assert gateway.hubs == []


async def test_while_the_agent_of_a_session_is_being_stopped_a_guest_is_told_that_the_session_has_gone(
    scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway({"fake": agent("connection")})
    agents.may_stop = trio.Event()
    async with running(gateway) as enter:
        owner = enter(scene.access())
        access = scene.guest(await owner.new_session())
        await owner.leave()
        await trio.testing.wait_all_tasks_blocked()
        assert len(gateway.hubs) == 1
        guest = enter(access)
        await guest.ended.wait()
        assert guest.closed_with == [(CloseReason.POLICY, "the session is not open any more")]
        agents.may_stop.set()


@pytest.mark.parametrize("scope", SCOPES)
async def test_an_own_session_that_has_gone_since_one_was_let_in_is_opened_again(
    scope: Scope, scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway({"fake": agent(scope)})
    async with running(gateway) as enter:
        owner = enter(scene.access())
        session = await owner.new_session()
        phone = ServedConnection(gateway, scene.access(), ConnectRequest(session=session))
        await owner.leave()
        gateway.hubs[0].end()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(phone.serve)
            assert await phone.new_session() == session
            await phone.leave()
        assert len(agents) == 2


# Sessions of agents that each connection has its own of


async def test_a_session_that_is_open_in_another_connection_is_not_loaded_again_but_how_to_join_it_is_told(
    scene: Scene, agents: ServingAgents
) -> None:
    async with running(scene.gateway({"fake": agent("connection")})) as enter:
        session = await enter(scene.access()).new_session()
        other = enter(scene.access())
        await other.editor.initialize()
        for method in ("session/load", "session/resume"):
            error = (await other.editor.request(method, SESSION | {"sessionId": session}))["error"]
            assert error["code"] == -32002
            assert error["data"] == {"sessionId": session}
            assert f"acp-gateway connect TARGET --attach {session}" in error["message"]
        assert "session/load" not in [message["method"] for message in agents[1].received]


async def test_a_session_whose_agent_is_being_stopped_is_loaded_once_that_has_ended(
    scene: Scene, agents: ServingAgents
) -> None:
    agents.may_stop = trio.Event()
    async with running(scene.gateway({"fake": agent("connection")})) as enter:
        owner, other = enter(scene.access()), enter(scene.access())
        session = await owner.new_session()
        await other.editor.initialize()
        await owner.leave()
        await other.editor.send(id="load", method="session/load", params=SESSION | {"sessionId": session})
        await trio.testing.wait_all_tasks_blocked()
        assert agents[0].cancelled
        assert [message["method"] for message in agents[1].received] == ["initialize"]
        agents.may_stop.set()
        answer = await other.editor.receive()
        assert (answer["id"], "result" in answer) == ("load", True)
        assert agents[1].received[-1]["method"] == "session/load"


async def test_an_agent_whose_clients_are_all_away_is_stopped_when_its_session_is_loaded_elsewhere(
    scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway({"fake": agent("connection")})
    async with running(gateway) as enter:
        owner, other = enter(scene.access()), enter(scene.access())
        session = await owner.new_session()
        await other.editor.initialize()
        (hub,) = [hub for hub in gateway.hubs if hub.multiplexer.sessions]
        (client,) = hub.multiplexer.clients
        hub.multiplexer.client_away(client)
        assert "result" in await other.load(session)
        await owner.ended.wait()
        assert owner.closed_with == [(CloseReason.AGENT_GONE, "the agent fake was stopped")]
        assert agents[0].cancelled
        assert len(gateway.hubs) == 1


async def test_stop_unused_does_not_stop_an_agent_with_clients(scene: Scene, agents: ServingAgents) -> None:
    gateway = scene.gateway({"fake": agent("connection")})
    async with running(gateway) as enter:
        await enter(scene.access()).new_session()
        (hub,) = gateway.hubs
        gateway.services.stop_unused(hub.multiplexer.agent_handle)
        gateway.services.stop_unused(AgentDouble())
        assert not hub.ended


# What hubs are told of the configuration


@pytest.mark.parametrize("scope", SCOPES)
async def test_the_configuration_reaches_those_who_go_by_it(scope: Scope, scene: Scene, tmp_path: Path) -> None:
    section = agent(
        scope,
        cwd=tmp_path / "proj",
        client_fs=True,
        permission_timeout=60.0,
        idle_timeout=50.0,
        max_restarts=4,
        initialize_timeout=45.0,
        login="agent login",
        eof_grace=1.5,
        term_grace=2.5,
    )
    gateway = scene.gateway(
        {"fake": section},
        limits=LimitsSection(max_open_requests=11, queued_prompts_per_session=12),
        journal_limit=13,
        write_high_water=14,
        outbox_limit=15,
        stall_timeout=16.0,
        max_message_size=17,
    )
    async with trio.open_nursery() as gateway._nursery:
        run_agent = partial(gateway._agents.run, "fake", section, SessionReach("me"))
        hub = gateway._start_hub("fake", section, run_agent)
        gateway._nursery.cancel_scope.cancel()
    policy = hub._policy
    assert policy is hub.multiplexer._agent.policy
    assert (policy.agent, policy.gateway, policy.limits) == (section, gateway.config.gateway, gateway.config.limits)
    assert (policy.shared, policy.common) == (scope != "connection", scope == "shared")
    assert policy.serves == {Capability.FS}
    assert replace(policy, agent=agent(client_terminal=True)).serves == {Capability.TERMINAL}
    assert policy.version == __version__
    assert "agent login" in policy.login_hint([])
    launch = gateway._agents.launch("fake", section, SessionReach("me"))
    assert (launch.cwd, launch.max_message_size) == (str(tmp_path / "proj"), 17)
    assert (launch.eof_grace, launch.term_grace) == (1.5, 2.5)


async def test_what_is_kept_for_clients_is_reckoned_up_with_that_of_all_others(
    scene: Scene, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[tuple[int, list[Hub]]] = []

    gateway = scene.gateway()

    def grown(size: int) -> None:
        told.append((size, gateway.services._memory._hubs()))

    monkeypatch.setattr(gateway.services._memory, "grown", grown)
    async with running(gateway) as enter:
        await enter(scene.access()).agent()
        bob = enter(scene.access("bob"))
        await bob.agent()
        await bob.editor.request("test/number")
        assert len({id(hub) for hub in told[-1][1]}) == 2
        assert told[-1][0] == len(b'{"jsonrpc": "2.0", "id": 3, "result": 2}')


async def test_clients_are_logged_when_they_come_and_when_they_go_and_never_what_they_say(
    scene: Scene, agents: ServingAgents, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="acp_gateway")
    async with running(scene.gateway()) as enter:
        for observe in (False, True):
            served = enter(scene.access(), observe=observe)
            await served.editor.initialize()
            await served.editor.request("session/list", {"secret": "a secret"})
            await served.leave()
    messages = [record.getMessage() for record in caplog.records if record.name == "acp_gateway.gateway.gateway"]
    assert messages == [
        "test: attached to agent fake as ann",
        "test: detached",
        "test: attached to agent fake as ann, to observe",
        "test: detached",
    ]
    assert "a secret" not in caplog.text


# The desk


async def list_sessions(served: ServedConnection) -> list[dict[str, Any]]:
    listed = (await served.editor.request("session/list", {"all": True}))["result"]
    sessions: list[dict[str, Any]] = listed["sessions"]
    return sessions[::-1]


async def test_who_asks_the_gateway_itself_starts_no_agent_and_hears_of_what_it_may_join(
    scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway({"a": agent(), "b": agent("connection")}, default_agent="a")
    async with running(gateway) as enter:
        asking = enter(scene.access(), control=True)
        assert await list_sessions(asking) == []
        assert (len(agents), gateway.hubs) == (0, [])
        of_a = await enter(scene.access(), agent="a").new_session()
        of_b = await enter(scene.access(), agent="b").new_session()
        await enter(scene.access("bob"), agent="a").new_session()

        async def seen(access: Access, **connect_request: Any) -> list[str]:
            return [session["id"] for session in await list_sessions(enter(access, control=True, **connect_request))]

        assert [session["id"] for session in await list_sessions(asking)] == [of_a, of_b]
        assert await seen(scene.access(role="observer")) == [of_a, of_b]
        assert await seen(scene.access(), session=of_b) == [of_b]
        assert await seen(scene.access("ann", "b")) == [of_b]
        assert await seen(scene.guest(of_a)) == [of_a]
        assert await seen(scene.access("carol")) == []
        await asking.leave()
        assert asking.closed_with == [(CloseReason.NORMAL, "")]


async def test_who_asks_the_gateway_itself_is_told_when_that_stops(scene: Scene) -> None:
    async with running(scene.gateway()) as enter:
        asking = enter(scene.access(), control=True)
        await list_sessions(asking)
    assert asking.closed_with == [(CloseReason.GOING_AWAY, "the gateway is stopping")]


async def test_a_bug_in_answering_one_who_asks_the_gateway_ends_that_connection_only(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    def bug(*arguments: object) -> None:
        raise ZeroDivisionError

    async with running(scene.gateway()) as enter:
        one, other = enter(scene.access(), control=True), enter(scene.access(), control=True)
        with monkeypatch.context() as patch:
            patch.setattr("acp_gateway.gateway.session_api.listing.SessionLists.result", bug)
            await one.editor.send(id=1, method="session/list")
            await one.ended.wait()
        assert one.bug is not None
        assert one.closed_with == [(CloseReason.AGENT_GONE, "internal error")]
        assert await list_sessions(other) == []


# Links that are resumed


class ResumingClient:
    """A client of a gateway whose link can be resumed, and which confirms what it takes."""

    def __init__(self, gateway: Gateway, nursery: trio.Nursery, access: Access, **connect_request: Any) -> None:
        self._gateway = gateway
        self._nursery = nursery
        self.link = Link(window=1 << 20, high_water=1 << 30)
        self.stream, ours = memory_message_stream_pair()
        self.link.connect(self.stream)
        self.marks: list[dict[str, Any]] = []
        """The positions that it was told."""
        self.updates: list[Any] = []
        """Messages that it has received besides responses."""
        self.ended = trio.Event()
        nursery.start_soon(self._serve, ours, gateway.admit(access, ConnectRequest(**connect_request)))

    async def _serve(self, ours: MaintainedStream, admission: Grant) -> None:
        try:
            await self._gateway.serve(ours, admission, "ann", "the link")
        finally:
            self.ended.set()

    async def request(self, method: str, params: Any = None) -> Any:
        """The answer to a request."""
        self.link.send([encode({"id": method, "method": method, "params": params})])
        answers: list[Any] = []
        while not answers:
            for text in await self.link.receive_batch():
                message = json.loads(text.text if isinstance(text, Mark) else text)
                if isinstance(text, Mark):
                    self.marks.append(message["params"]["positions"])
                elif message.get("id") == method:
                    answers.append(message)
                else:
                    self.updates.append(message)
            self.link.acknowledge()
        return answers[0]

    async def new_session(self) -> str:
        """Open one, which initializes."""
        await self.request("initialize", INITIALIZE)
        session_id: str = (await self.request("session/new", SESSION))["result"]["sessionId"]
        return session_id

    async def lose(self) -> None:
        """Its connection is lost, and the gateway notices."""
        self.link.disconnect()
        await self.stream.aclose()
        await trio.testing.wait_all_tasks_blocked()

    def resume(self, access: Access) -> None:
        """Take the link up again; raises what the gateway says to that."""
        resumption = self._gateway.resume(access, "the link", self.link.received)
        self.stream, ours = memory_message_stream_pair()
        self.link.disconnect()
        self.link.connect(self.stream, resumption.received)
        self.take_over(ours, resumption)

    def take_over(self, ours: MaintainedStream, resumption: ResumeClaim, name: str = "ann") -> None:
        """Have the gateway serve the link over another connection."""
        self._nursery.start_soon(self._gateway.serve_resumed, ours, resumption, name)


@asynccontextmanager
async def resuming_client(gateway: Gateway, access: Access, **connect_request: Any) -> AsyncIterator[ResumingClient]:
    """A gateway that runs until the end of the block, and a client."""
    with trio.fail_after(TIMEOUT):
        async with trio.open_nursery() as nursery:
            await nursery.start(gateway.run)
            yield ResumingClient(gateway, nursery, access, **connect_request)
            nursery.cancel_scope.cancel()


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_link_is_resumed_at_the_agent_that_it_was_begun_with(
    scope: Scope, scene: Scene, agents: ServingAgents
) -> None:
    access = scene.access()
    async with resuming_client(scene.gateway({"fake": agent(scope)}), access) as client:
        session = await client.new_session()
        for number in range(3):
            await client.lose()
            await agents[0].send(method="session/update", params={"sessionId": session, "update": {}, "n": number})
            client.resume(access)
            assert (await client.request("test/number"))["result"] == 1
        assert [update["params"]["n"] for update in client.updates] == [0, 1, 2]
        assert len(agents) == 1


def change_token(scene: Scene, access: Access, **members: Any) -> Access:
    """Change a token's entry in its file by hand; what who presents it has from then on."""
    path = scene.state_dir / "tokens.json"
    content = json.loads(path.read_text())
    assert access.token is not None
    (entry,) = [entry for entry in content["tokens"] if entry["id"] == access.token.id]
    entry.update(members)
    path.with_suffix(".edited").write_text(json.dumps(content))
    path.with_suffix(".edited").chmod(0o600)
    path.with_suffix(".edited").replace(path)
    return Access.of(next(token for token in scene.tokens.tokens() if token.id == access.token.id))


@pytest.mark.parametrize("away", [False, True])
async def test_a_link_whose_token_allows_something_else_now_is_over(
    away: bool, scene: Scene, agents: ServingAgents
) -> None:
    access = scene.access()
    async with resuming_client(scene.gateway(), access) as client:
        await client.new_session()
        if away:
            await client.lose()
        changed = change_token(scene, access, role="observer")
        with pytest.raises(LinkGone, match="something else now"):
            client.resume(changed)
        await client.ended.wait()
        with pytest.raises(LinkGone):
            client.resume(changed)


async def test_a_link_whose_token_does_not_allow_the_agent_any_more_is_refused_and_ends(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    access = scene.access()
    async with resuming_client(scene.gateway(), access) as client:
        await client.new_session()
        await client.lose()
        with pytest.raises(Forbidden):
            client.resume(change_token(scene, access, agents=["another", "a third"]))
        await client.ended.wait()


async def test_a_link_that_is_away_ends_when_its_token_is_revoked(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    token, secret = scene.tokens.create("laptop", "ann", None)
    access = Access.of(token)
    async with resuming_client(scene.gateway(), access) as client:
        await client.new_session()
        await client.lose()
        scene.revoke(access)
        with pytest.raises(Unauthorized):
            scene.tokens.authenticate(secret)
        await client.ended.wait()
        with pytest.raises(LinkGone):
            client.resume(access)


async def test_a_second_connection_takes_a_link_over_at_once_from_one_that_is_alive(
    scene: Scene, agents: ServingAgents
) -> None:
    notebook = Notebook()
    access = scene.access()
    # A connection that takes over counts in no limit a second time.
    gateway = scene.gateway(audit=notebook, limits=LimitsSection(connections_per_identity=1))
    async with resuming_client(gateway, access) as client:
        session = await client.new_session()
        for number in range(3):
            old, told = client.stream, client.link.tell_count()
            # Nothing reads the old connection, and the new one does not wait for its end.
            await agents[0].send(method="session/update", params={"sessionId": session, "update": {}, "n": number})
            resumption = gateway.resume(access, "the link", told)
            stream, ours = memory_message_stream_pair()
            client.stream = stream
            client.link.connect(stream, resumption.received, told)
            client.take_over(ours, resumption, f"ann again {number}")
            assert (await client.request("test/number"))["result"] == 1
            with pytest.raises(trio.BrokenResourceError):
                old.send_nowait([b"{}"])
            assert len(gateway.connections) == 1
        assert [update["params"]["n"] for update in client.updates] == [0, 1, 2]
        with pytest.raises(Busy):
            gateway.admit(access, ConnectRequest())
        await client.lose()
        client.resume(access)
        assert (await client.request("test/number"))["result"] == 1
        (attached, _), *takeovers = notebook.of("attached", "detached", "taken_over")
        assert attached == "attached"
        # One line for each, and none for a link that was away.
        assert takeovers == [
            ("taken_over", {"connection": f"ann again {number}", "former": "ann", "identity": "ann"})
            for number in range(3)
        ]


async def test_of_two_connections_that_ask_for_a_link_one_after_the_other_the_audit_names_the_one_that_is_served(
    scene: Scene, agents: ServingAgents
) -> None:
    notebook = Notebook()
    access = scene.access()
    gateway = scene.gateway(audit=notebook)
    async with resuming_client(gateway, access) as client:
        await client.new_session()
        told = client.link.tell_count()
        earlier = gateway.resume(access, "the link", told)
        later = gateway.resume(access, "the link", told)
        client.take_over(memory_message_stream_pair()[1], earlier, "earlier")
        await trio.testing.wait_all_tasks_blocked()
        client.stream, ours = memory_message_stream_pair()
        client.link.connect(client.stream, later.received, told)
        client.take_over(ours, later, "later")
        assert (await client.request("test/number"))["result"] == 1
        assert notebook.of("taken_over") == [
            ("taken_over", {"connection": "later", "former": "ann", "identity": "ann"})
        ]


async def test_a_link_that_ends_before_its_new_connection_is_served_is_not_said_to_be_taken_over(
    scene: Scene, agents: ServingAgents
) -> None:
    notebook = Notebook()
    access = scene.access()
    gateway = scene.gateway(audit=notebook)
    async with resuming_client(gateway, access) as client:
        await client.new_session()
        resumption = gateway.resume(access, "the link", client.link.received)
        resumption.link.close(Disconnect(CloseReason.POLICY, "over", "over"))
        ours = FragileStream(memory_message_stream_pair()[1])
        await gateway.serve_resumed(ours, resumption, "ann again")
        assert ours.closed_with == (CloseReason.POLICY, "this link has ended")
        assert notebook.of("taken_over") == []


async def test_a_link_is_not_taken_over_with_another_token(scene: Scene, agents: ServingAgents) -> None:
    gateway = scene.gateway()
    async with resuming_client(gateway, scene.access()) as client:
        await client.new_session()
        with pytest.raises(LinkGone):
            client.resume(scene.access())
        assert (await client.request("test/number"))["result"] == 1


async def test_a_guest_resumes_its_link_to_the_session_that_its_token_led_to(
    scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway()
    async with running(gateway) as enter, trio.open_nursery() as nursery:
        session = await enter(scene.access()).new_session()
        access = scene.guest(session)
        client = ResumingClient(gateway, nursery, access)
        assert await client.new_session() == session
        await client.lose()
        client.resume(access)
        assert "error" in await client.request("session/new", SESSION)
        nursery.cancel_scope.cancel()


async def test_a_client_that_was_away_for_too_long_is_told_so(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    access = scene.access()
    gateway = scene.gateway({"fake": agent()}, away_grace=10.0)
    async with resuming_client(gateway, access) as client:
        await client.new_session()
        await client.lose()
        await trio.sleep(9)
        assert not client.ended.is_set()
        await client.ended.wait()
        with pytest.raises(LinkExpired):
            client.resume(access)


async def test_a_gateway_that_stops_does_not_wait_for_away_clients(scene: Scene, agents: ServingAgents) -> None:
    async with resuming_client(scene.gateway(), scene.access()) as client:
        await client.new_session()
        await client.lose()
    assert client.ended.is_set()


async def test_a_client_that_is_as_quiet_as_it_may_be_is_not_taken_for_lost(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    async with resuming_client(scene.gateway(ping_interval=1.0, ping_timeout=1.0), scene.access()) as client:
        await client.new_session()
        for _ in range(2):
            await trio.sleep(1.1 * HEARTBEAT)
            client.link.send_control(acknowledgement(client.link.received))
        assert client.link.received == 2
        assert (await client.request("test/number"))["result"] == 1


# What outlives a connection


@pytest.mark.parametrize("public_url", [None, "https://gpu.example/gateway"])
async def test_those_who_are_to_hear_of_what_waits_and_of_what_ends_get_what_the_documentation_says(
    scene: Scene, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch, public_url: str | None
) -> None:
    told: list[tuple[str, Any]] = []
    monkeypatch.setattr(Hooks, "fire", lambda _, event, details: told.append((event, details)))
    monkeypatch.setattr("acp_gateway.core.agent_requests.JUST_LOST", 0.0)
    gateway = scene.gateway()
    listener = ListenSection(url="ws://127.0.0.1:0", public_url=public_url)
    gateway.services.config = replace(gateway.config, listen=(listener,))
    async with resuming_client(gateway, scene.access()) as client:
        session = await client.new_session()
        client.link.send(
            [encode({"id": 1, "method": "session/prompt", "params": {"sessionId": session, "prompt": []}})]
        )
        prompt = await agents[0].got("session/prompt")
        await client.lose()
        call = {"toolCallId": "t7", "title": "Run make test", "kind": "execute", "rawInput": {"secret": 1}}
        params = {"sessionId": session, "toolCall": call, "options": []}
        await agents[0].send(id="?", method="session/request_permission", params=params)
        await trio.testing.wait_all_tasks_blocked()
        await agents[0].send(id=prompt["id"], result={"stopReason": "end_turn"})
        await trio.testing.wait_all_tasks_blocked()
    common = {"sessionId": session, "agent": "fake", "title": None, "identity": "ann", "connected": 0}
    (asked, waiting), (ended, turn) = told[:2]
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", waiting.pop("since"))
    link = None if public_url is None else f"{public_url}/#/s/{session}"
    assert waiting.pop("link") == (None if link is None else f"{link}/r/{waiting['requestId']}")
    assert waiting.pop("requestId")
    assert turn.pop("link") == link
    tool = {"toolCallId": "t7", "title": "Run make test", "kind": "execute"}
    assert (asked, waiting) == ("permission_waiting", common | {"method": "session/request_permission", "tool": tool})
    assert turn.pop("seconds") >= 0
    assert (ended, turn) == ("turn_end", common | {"stopReason": "end_turn"})


@pytest.mark.parametrize("journal", ["disk", "memory"])
async def test_who_comes_back_after_a_restart_gets_what_it_has_not_seen_from_the_stored_journal(
    journal: str, scene: Scene, agents: ServingAgents
) -> None:
    access = scene.access()
    async with resuming_client(scene.gateway(journal_storage=journal), access) as client:
        session = await client.new_session()
        for number in range(3):
            await agents[0].send(method="session/update", params={"sessionId": session, "update": {}, "n": number})
        await client.request("test/number")
        epoch = client.marks[0][session]["epoch"]
        assert len(client.updates) == 3
    async with resuming_client(scene.gateway(journal_storage=journal), access) as client:
        await client.request("initialize", INITIALIZE)
        meta = {"acp-gateway": {"epoch": epoch, "position": 1, "connection": "the link"}}
        await client.request("session/load", SESSION | {"sessionId": session, "_meta": meta})
        kept = journal == "disk"
        assert [update["params"]["n"] for update in client.updates] == ([1, 2] if kept else [])
        assert (client.marks[0][session] == {"epoch": epoch, "position": 1}) is kept


async def test_a_program_that_shows_sessions_follows_one_and_reads_it_after_a_restart_without_an_agent(
    scene: Scene, agents: ServingAgents
) -> None:
    access = scene.access()
    viewer = Viewer(SessionReach(access.identity))
    gateway = scene.gateway()
    async with running(gateway) as enter:
        with gateway.changes.subscribe(viewer.covers) as subscription:
            served = enter(access, via="browser")
            session_id = await served.new_session()
            session = gateway.views.find(viewer, session_id)
            assert session is not None
            assert session in (await subscription.wait()).sessions
            subscription.follow(session)
            for number in range(3):
                await agents[0].send(
                    method="session/update", params={"sessionId": session_id, "update": {}, "n": number}
                )
                while session not in (await subscription.wait()).journals:
                    pass
        view = gateway.views.view(session, viewer)
        assert [(client.name, client.via) for client in view.clients] == [("test", "browser")]
        assert (view.status, view.live) == ("completed", True)
        before = await gateway.history.read(session)
        created, active = session.created_at, session.active_at
        assert created is not None
        assert None not in before.times
        assert before.times[-1] == active
        gateway.registry.set_archived(session, archived=True)
    gateway = scene.gateway()
    async with running(gateway):
        found = gateway.views.find(viewer, session_id)
        assert found is not None
        view = gateway.views.view(found, viewer)
        assert (view.status, view.live, view.clients, view.process_exited) == ("exited", False, (), False)
        assert (found.created_at, found.active_at, found.archived) == (created, active, True)
        assert await gateway.history.read(found) == before
        after = await gateway.history.read(found, since=1, epoch=before.epoch)
        assert (after.reset, after.messages, after.times) == (False, before.messages[1:], before.times[1:])
        assert gateway.hubs == []


# Tokens that count no more


REVOKED = CloseReason.POLICY, "the token is not valid any more"


class SlowToClose(MaintainedStream):
    """A client that takes its time to go, in a time that jumps."""

    def __init__(self, *, gone: bool = False) -> None:
        super().__init__()
        self._gone = gone
        self.closed_with: list[tuple[CloseReason, str]] = []

    async def _receive_batch(self) -> list[bytes]:
        if self._gone:
            raise trio.EndOfChannel
        return await trio.sleep_forever()

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        raise AssertionError("nothing is to be sent")

    @property
    def pending_bytes(self) -> int:
        return 0

    async def drain(self, below: int = 0) -> None:
        raise AssertionError("nothing is to be sent")

    async def run(self) -> None:
        await trio.sleep_forever()

    def use_spawner(self, spawner: TaskSpawner | None) -> None:
        pass

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        self.closed_with.append((reason, text))
        await trio.sleep(10 * REVOCATION_INTERVAL)


@pytest.mark.parametrize("control", [False, True])
@pytest.mark.parametrize("scope", SCOPES)
async def test_a_connection_whose_token_is_revoked_is_closed_once_and_no_other(
    control: bool,
    scope: Scope,
    scene: Scene,
    autojump_clock: trio.testing.MockClock,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway = scene.gateway({"fake": agent(scope)})
    revoked, kept, vouched_for = scene.access(), scene.access(), Access("ann", None)
    clients = [SlowToClose(), SlowToClose(), SlowToClose()]
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        for client, access in zip(clients, (revoked, kept, vouched_for), strict=True):
            nursery.start_soon(serve, gateway, client, gateway.admit(access, ConnectRequest(control=control)))
        await trio.sleep(20 * REVOCATION_INTERVAL)
        assert [client.closed_with for client in clients] == [[], [], []]
        scene.revoke(revoked)
        await trio.sleep(1.5 * REVOCATION_INTERVAL)
        assert [client.closed_with for client in clients] == [[REVOKED], [], []]
        await trio.sleep(30 * REVOCATION_INTERVAL)
        assert [client.closed_with for client in clients] == [[REVOKED], [], []]
        nursery.cancel_scope.cancel()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert revoked.token is not None
    assert warnings == [f"token {revoked.token.id} is not valid any more: closing its connection"]


@pytest.mark.parametrize("control", [False, True])
async def test_a_token_revoked_while_its_connection_closes_does_not_close_it_again(
    control: bool, scene: Scene, autojump_clock: trio.testing.MockClock
) -> None:
    gateway, access, gone = scene.gateway(), scene.access(), SlowToClose(gone=True)
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        nursery.start_soon(serve, gateway, gone, gateway.admit(access, ConnectRequest(control=control)))
        await trio.testing.wait_all_tasks_blocked()
        assert gone.closed_with == [(CloseReason.NORMAL, "")]
        scene.revoke(access)
        await trio.sleep(20 * REVOCATION_INTERVAL)
        assert gone.closed_with == [(CloseReason.NORMAL, "")]
        nursery.cancel_scope.cancel()


async def test_what_is_open_is_answered_when_a_token_counts_no_more(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    async with running(scene.gateway()) as enter:
        access = scene.access()
        served = enter(access)
        session = await served.new_session()
        await served.editor.send(id="turn", method="session/prompt", params={"sessionId": session, "prompt": []})
        await agents[0].got("session/prompt")
        scene.revoke(access)
        (answer,) = await served.editor.receive_rest()
        assert answer["id"] == "turn"
        assert answer["error"]["data"] == {"reason": "unauthorized"}


# Bugs


def bug(*arguments: object) -> None:
    raise ZeroDivisionError("a bug")


def clear(caplog: pytest.LogCaptureFixture) -> list[str]:
    """The bugs that were logged; the log is empty then."""
    messages = [record.getMessage() for record in caplog.records if record.exc_info]
    caplog.clear()
    return messages


@pytest.mark.parametrize("scope", SCOPES)
async def test_a_bug_in_one_hub_ends_that_one_and_no_other(
    scope: Scope,
    scene: Scene,
    agents: ServingAgents,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    gateway = scene.gateway({"a": agent(scope), "b": agent(scope)}, default_agent="a")
    async with running(gateway) as enter:
        hit, other = enter(scene.access(), agent="a"), enter(scene.access(), agent="b")
        session = await hit.new_session()
        await other.agent()
        (hub,) = [hub for hub in gateway.hubs if hub.name == "a"]
        monkeypatch.setattr(hub.multiplexer, "receive_from_agent", bug)
        await agents[0].send(method="any")
        await hit.ended.wait()
        assert hit.closed_with == [(CloseReason.AGENT_GONE, "internal error")]
        await trio.testing.wait_all_tasks_blocked()
        assert agents[0].cancelled
        assert clear(caplog) == ["agent a: internal error, stopped"]
        assert (await other.editor.request("test/number"))["result"] == 2
        again = enter(scene.access(), agent="a")
        assert await again.agent() == 3
        assert "result" in await again.load(session)


async def test_a_bug_that_shows_in_a_hub_when_another_has_ended_ends_neither_the_gateway_nor_a_third_one(
    scene: Scene, agents: ServingAgents, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = scene.gateway({"a": agent("connection"), "b": agent(), "c": agent()}, default_agent="a")
    async with running(gateway) as enter:
        first, hit, third = [enter(scene.access(), agent=name) for name in ("a", "b", "c")]
        for served in (first, hit, third):
            await served.agent()
        (hub,) = [hub for hub in gateway.hubs if hub.name == "b"]
        monkeypatch.setattr(hub.multiplexer, "sessions_freed", bug)
        await first.leave()
        await hit.ended.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert clear(caplog) == ["agent b: internal error, stopped"]
        assert [hub.name for hub in gateway.hubs] == ["c"]
        assert (await third.editor.request("test/number"))["result"] == 3


# The end


async def test_a_gateway_that_is_stopped_stops_all_agents_in_the_middle_of_their_turns(
    scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway({"a": agent("connection"), "b": agent(), "c": agent("shared")}, default_agent="a")
    all_served = []
    async with running(gateway) as enter:
        for number, name in enumerate(("a", "b", "c")):
            served = enter(scene.access(), agent=name)
            session = await served.new_session()
            await served.editor.send(id="turn", method="session/prompt", params={"sessionId": session, "prompt": []})
            await agents[number].got("session/prompt")
            all_served.append(served)
    for started in agents.started:
        assert started.cancelled
        assert started.received[-1]["method"] == "session/cancel"
    for served in all_served:
        assert served.closed_with == [(CloseReason.GOING_AWAY, "the gateway is stopping")]
    assert gateway.hubs == []
    assert not [session for session in gateway.registry if session.live]


# Real processes


def owner_of(gateway: Gateway) -> Access:
    """The gateway's own user, to whom sessions belong that were never seen."""
    return Access(gateway.registry.own_identity, None)


async def test_the_processes_of_agents_are_known_while_they_run(scene: Scene) -> None:
    gateway = scene.gateway({"fake": agent("connection")})
    async with running(gateway) as enter:
        all_served = [enter(scene.access()) for _ in range(2)]
        pids = set()
        for served in all_served:
            await served.editor.initialize()
            pids.add((await served.editor.request("test/process"))["result"]["pid"])
        assert len(pids) == 2
        assert all(pid in gateway.agent_ancestors for pid in pids)
    assert not any(pid in gateway.agent_ancestors for pid in pids)


async def test_an_agent_gets_neither_the_gateways_secrets_nor_anything_that_is_not_for_it(scene: Scene) -> None:
    async with running(scene.gateway()) as enter:
        editor = enter(scene.access()).editor
        await editor.initialize()
        process = (await editor.request("test/process"))["result"]
    # The mark is made for each process.
    mark = process["environment"].pop(MARK)
    assert mark
    assert mark not in ENVIRONMENT.values()
    assert process["environment"] == {name: ENVIRONMENT[name] for name in ("PATH", "HOME", "LC_ALL")}
    assert not [word for word in process["command"] if "acpgw_" in word]


@pytest.mark.parametrize("flaw", ["missing", "mode", "text"])
async def test_an_env_file_that_cannot_be_used_is_an_answer_without_what_is_in_it(
    flaw: str, scene: Scene, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    if flaw != "missing":
        keys.write_text("KEY=secret\n" if flaw == "mode" else "secret\n")
        keys.chmod(0o640 if flaw == "mode" else 0o600)
    async with running(scene.gateway({"fake": agent(env_file=keys)})) as enter:
        error = (await enter(scene.access()).editor.request("initialize", {"protocolVersion": 1}))["error"]
    assert error["message"].startswith(f"the agent fake cannot be started: {keys}")
    assert error["data"] == {"reason": "agent_not_started"}
    assert "secret" not in json.dumps(error)


async def test_an_agent_that_dies_is_reported_with_its_exit_code_and_its_last_words(scene: Scene) -> None:
    gateway = scene.gateway({"fake": agent("connection")})
    async with running(gateway) as enter:
        served = enter(owner_of(gateway))
        await served.editor.initialize()
        await served.load("s")
        await served.editor.request("test/stderr", "Traceback:\nZeroDivisionError\n")
        await served.editor.send(id="turn", method="session/prompt", params={"sessionId": "s", "prompt": []})
        await served.editor.send(id="exit", method="test/exit", params=3)
        answers = await served.editor.receive_rest()
    assert {answer["id"] for answer in answers} == {"turn", "exit"}
    for answer in answers:
        assert answer["error"]["message"] == (
            "the agent fake ended with exit code 3; the last it wrote to stderr: ZeroDivisionError"
        )
        assert answer["error"]["data"]["stderr"] == ["Traceback:", "ZeroDivisionError"]


@pytest.mark.parametrize(
    ("scope", "knows"),
    [("connection", ["ann", "bob", "own"]), ("identity", ["ann", "bob", "own"]), ("shared", ["own"])],
)
async def test_the_last_words_of_an_agent_are_for_the_identity_whose_process_it_is(
    scope: Scope, knows: list[str], scene: Scene
) -> None:
    gateway = scene.gateway({"fake": agent(scope)})
    async with running(gateway) as enter:
        for name, access in {"ann": scene.access(), "bob": scene.access("bob"), "own": owner_of(gateway)}.items():
            served = enter(access)
            await served.editor.initialize()
            await served.editor.request("test/stderr", "hunter2\n")
            await served.editor.send(id="exit", method="test/exit", params=3)
            error = (await served.editor.receive())["error"]
            assert error["data"]["exitCode"] == 3
            assert ("hunter2" in str(error)) == (name in knows)
            await served.leave()


async def test_why_an_agent_cannot_be_started_is_for_the_identity_whose_process_it_is(scene: Scene) -> None:
    gateway = scene.gateway({"fake": AgentSection(command=("no-such-agent",), scope="shared")})
    async with running(gateway) as enter:
        for access, told in ((scene.access("bob"), False), (owner_of(gateway), True)):
            error = (await enter(access).editor.request("initialize", {"protocolVersion": 1}))["error"]
            assert error["message"].startswith("the agent fake cannot be started")
            assert ("no-such-agent" in str(error)) == told


# Where sessions may be


async def open_in(served: ServedConnection, cwd: Any, **params: Any) -> Any:
    """The answer to a request for a session in a directory."""
    named = {} if cwd is None else {"cwd": str(cwd)}
    return await served.editor.request("session/new", {**named, "mcpServers": [], **params})


@pytest.fixture
def folders(tmp_path: Path) -> Path:
    """Two projects and something else."""
    for name in ("a", "b", "c"):
        (tmp_path / name).mkdir()
    return tmp_path


def fenced(scene: Scene, folders: Path, agents: dict[str, AgentSection] | None = None, **settings: Any) -> Gateway:
    """A gateway with two workspaces."""
    workspaces = {name: WorkspaceSection(root=folders / name) for name in ("a", "b")}
    return scene.gateway(agents, workspaces=workspaces, **settings)


def fence_of(launch: Launch) -> Fence:
    """The fence of an agent in memory."""
    assert launch.fence is not None
    roots = tuple(root for root, _ in launch.fence.workspaces)
    nothing: dict[str, Any] = dict.fromkeys(("read", "devices", "hidden", "links"), ())
    return Fence(by="landlock", write=roots, cwd="/", temporary="/tmp", network="on", workspaces=roots, **nothing)


async def test_sessions_are_opened_in_the_workspaces_of_the_token_and_nowhere_else(
    scene: Scene, agents: ServingAgents, folders: Path
) -> None:
    async with running(fenced(scene, folders)) as enter:
        unlimited, limited = enter(scene.access()), enter(scene.access(workspaces=["a", "gone"]))
        for served, allowed in ((unlimited, ["a", "b"]), (limited, ["a"])):
            await served.editor.initialize()
            for name in ("a", "b", "c", "gone"):
                answer = await open_in(served, folders / name)
                if name in allowed:
                    assert "result" in answer
                    continue
                error = answer["error"]
                assert (error["code"], error["data"]["reason"]) == (-32602, "outside_workspaces")
                assert error["data"]["allowed"] == [str(folders / place) for place in allowed]
                assert all(str(folders / place) in error["message"] for place in allowed)
        for served in (unlimited, limited):
            made = (await open_in(served, None))["result"]
            assert made["_meta"]["acp-gateway"]["cwd"] == str(folders / "a")
        assert "error" in await open_in(limited, folders / "a", additionalDirectories=[str(folders / "b")])
        session = (await open_in(limited, folders / "a"))["result"]["sessionId"]
        assert "result" in await limited.editor.request("session/load", {"sessionId": session})


async def test_a_session_of_another_workspace_is_nowhere_for_a_token(
    scene: Scene, agents: ServingAgents, folders: Path
) -> None:
    async with running(fenced(scene, folders)) as enter:
        ann = enter(scene.access())
        await ann.editor.initialize()
        of_a, of_b = [(await open_in(ann, folders / name))["result"]["sessionId"] for name in ("a", "b")]
        limited = scene.access(workspaces=["a"])
        served, asking = enter(limited), enter(limited, control=True)
        await served.editor.initialize()
        listed = (await served.editor.request("session/list", {}))["result"]["sessions"]
        assert [session["sessionId"] for session in listed] == [of_a]
        assert [session["id"] for session in await list_sessions(asking)] == [of_a]
        for method in ("session/load", "session/resume"):
            wanted = {"cwd": str(folders / "a"), "mcpServers": []}
            assert "result" in await served.editor.request(method, wanted | {"sessionId": of_a})
            assert "error" in await served.editor.request(method, wanted | {"sessionId": of_b})
        assert await enter(limited, session=of_a).new_session() == of_a
        with pytest.raises(UnknownSession):
            enter(limited, session=of_b)


async def test_after_a_restart_sessions_are_still_in_their_workspaces(
    scene: Scene, agents: ServingAgents, folders: Path
) -> None:
    async with running(fenced(scene, folders)) as enter:
        ann = enter(scene.access())
        await ann.editor.initialize()
        for name in ("a", "b"):
            assert "result" in await open_in(ann, folders / name)
    gateway = fenced(scene, folders)
    async with running(gateway):
        places = {session.cwd: session.workspace for session in gateway.registry}
        assert places == {str(folders / "a"): "a", str(folders / "b"): "b"}


async def test_a_session_that_no_workspace_has_any_more_is_not_opened_by_joining_it(
    scene: Scene, agents: ServingAgents, folders: Path
) -> None:
    async with running(fenced(scene, folders)) as enter:
        ann = enter(scene.access())
        await ann.editor.initialize()
        session = (await open_in(ann, folders / "b"))["result"]["sessionId"]
    async with running(scene.gateway(workspaces={"a": WorkspaceSection(root=folders / "a")})) as enter:
        served = enter(scene.access(), session=session)
        await served.editor.initialize()
        error = (await open_in(served, folders / "a"))["error"]
        assert (error["code"], error["data"]["cwd"]) == (-32602, str(folders / "b"))
        assert [message["method"] for message in agents[1].received] == ["initialize"]


@pytest.mark.parametrize("ends", ["revoked", "expired"])
async def test_a_fenced_agent_is_restarted_once_a_token_that_its_fence_opens_more_for_counts_no_more(
    ends: str, scene: Scene, agents: ServingAgents, folders: Path, autojump_clock: trio.testing.MockClock
) -> None:
    kept, ending = scene.access(workspaces=["a"]), scene.access(workspaces=["b"], lifetime=3600)
    async with running(fenced(scene, folders, {"fake": agent(fence="on")})) as enter:
        served = enter(kept)
        await served.editor.initialize()
        session = (await open_in(served, folders / "a"))["result"]["sessionId"]
        agents[0].agent.fence = fence_of(agents[0].launch)
        await served.editor.send(id="turn", method="session/prompt", params={"sessionId": session, "prompt": []})
        await agents[0].got("session/prompt")
        await trio.sleep(3 * REVOCATION_INTERVAL)
        if ends == "revoked":
            scene.revoke(ending)
        else:
            scene.now += 3601
        await trio.sleep(3 * REVOCATION_INTERVAL)
        assert not agents[0].cancelled
        await served.editor.send(method="session/cancel", params={"sessionId": session})
        assert (await served.editor.receive())["id"] == "turn"
        await trio.sleep(15 * REVOCATION_INTERVAL)
        assert agents[0].cancelled
        assert "result" in await open_in(served, folders / "a")
        agents[1].agent.fence = fence_of(agents[1].launch)
        await trio.sleep(3 * REVOCATION_INTERVAL)
        assert not agents[1].cancelled
        assert fence_of(agents[1].launch).workspaces == (str(folders / "a"),)


async def test_a_fenced_agent_without_a_token_that_counts_no_more_runs_on(
    scene: Scene, agents: ServingAgents, folders: Path, autojump_clock: trio.testing.MockClock
) -> None:
    access, double, other = (scene.access(who, workspaces=["a"]) for who in ("ann", "ann", "bob"))
    async with running(fenced(scene, folders, {"fake": agent(fence="on")})) as enter:
        served = enter(access)
        await served.editor.initialize()
        assert "result" in await open_in(served, folders / "a")
        agents[0].agent.fence = fence_of(agents[0].launch)
        for revoked in (double, other):
            scene.revoke(revoked)
            await trio.sleep(3 * REVOCATION_INTERVAL)
        assert not agents[0].cancelled


async def test_a_directory_check_without_an_answer_times_out_and_does_not_hold_up_other_clients(
    scene: Scene, agents: ServingAgents, folders: Path, autojump_clock: trio.testing.MockClock
) -> None:
    gateway = fenced(scene, folders)

    async def never(look: Callable[[], DirectoryCheckResult]) -> DirectoryCheckResult:
        return await trio.sleep_forever()

    async with running(gateway) as enter:
        slow, quick = enter(scene.access()), enter(scene.access())
        for served in (slow, quick):
            await served.editor.initialize()
        gateway.services.in_thread = never
        await slow.editor.send(id=7, method="session/new", params={"cwd": str(folders / "a"), "mcpServers": []})
        await trio.testing.wait_all_tasks_blocked()
        gateway.services.in_thread = at_once
        began = trio.current_time()
        assert "result" in await open_in(quick, folders / "a")
        assert trio.current_time() - began < CHECK_TIMEOUT
        answer = await slow.editor.receive()
        assert (answer["id"], answer["error"]["data"]) == (7, {"reason": "slow"})
        assert "did not say in time" in answer["error"]["message"]
        assert trio.current_time() - began == pytest.approx(CHECK_TIMEOUT)


async def test_directories_are_looked_at_in_threads_of_their_own(
    scene: Scene, agents: ServingAgents, folders: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gateway = fenced(scene, folders)
    gateway.services.in_thread = Gateway(gateway.config, scene.tokens, gateway._spawner, ENVIRONMENT).services.in_thread
    threads = set()

    def looks(*arguments: Any, **options: Any) -> DirectoryCheckResult:
        threads.add(threading.get_ident())
        return DirectoryCheckResult()

    monkeypatch.setattr(hub_services, "directory_check", looks)
    async with running(gateway) as enter:
        served = enter(scene.access())
        await served.editor.initialize()
        assert "result" in await open_in(served, folders / "a")
    assert threads
    assert threading.get_ident() not in threads


@pytest.mark.parametrize("place", [(Hub, "directories_checked"), (hub_services, "directory_check")])
async def test_a_bug_in_a_look_or_in_going_on_after_it_ends_that_hub_and_no_other(
    place: tuple[object, str],
    scene: Scene,
    agents: ServingAgents,
    folders: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def bug(*arguments: object, **options: object) -> None:
        raise ZeroDivisionError

    async with running(fenced(scene, folders)) as enter:
        ann, bob = enter(scene.access("ann")), enter(scene.access("bob"))
        for served in (ann, bob):
            await served.editor.initialize()
        with monkeypatch.context() as patch:
            patch.setattr(*place, bug)
            await ann.editor.send(id=1, method="session/new", params={"cwd": str(folders / "a"), "mcpServers": []})
            await ann.ended.wait()
        assert "result" in await open_in(bob, folders / "a")
    assert [record.message for record in caplog.records if record.exc_info] == ["agent fake: internal error, stopped"]
    caplog.clear()


# How many and how fast


def below(door: Access, name: str) -> Access:
    """A person whom a door names below its own identity."""
    return door.acting_for(OnBehalf(name, "controller", otherwise="below"), ["fake"])


async def test_names_below_one_credential_have_only_so_many_agents(scene: Scene, agents: ServingAgents) -> None:
    gateway = scene.gateway(limits=LimitsSection(agents_below_identity=2))
    door = scene.access("door", may_speak_for=["dan"])
    async with running(gateway) as enter:
        ann, bob = (enter(below(door, name)) for name in ("ann", "bob"))
        assert [await served.agent() for served in (ann, bob)] == [1, 2]
        with pytest.raises(Busy, match=r"agents_below_identity \(2\) run already; try later"):
            enter(below(door, "carol"))
        # Who has an agent, who may be spoken for, and the credential itself.
        assert [await enter(access).agent() for access in (below(door, "bob"), below(door, "dan"), door)] == [2, 3, 4]
        await ann.leave()
        assert await enter(below(door, "carol")).agent() == 5
        with trio.fail_after(TIMEOUT):
            while len(gateway.hubs) != 4:
                await trio.lowlevel.checkpoint()


async def test_names_below_one_credential_share_a_rate(scene: Scene, autojump_clock: trio.testing.MockClock) -> None:
    gateway = scene.gateway(limits=LimitsSection(messages_per_second=10, message_burst=20))
    door = scene.access("door", may_speak_for=["dan"])

    def charge(access: Access) -> float:
        client = Client("test", gateway.admit(access, ConnectRequest()).reach, Role.CONTROLLER)
        return gateway.services.rate_limiter(client)(20)

    assert [charge(below(door, "ann")), charge(below(door, "dan"))] == [0, 0]
    assert charge(below(door, "bob")) == pytest.approx(2)


async def test_limits_of_the_configuration_reach_those_who_go_by_them(scene: Scene, agents: ServingAgents) -> None:
    limits = LimitsSection(
        connections_per_identity=3, max_connections=4, reserved_connections=1, sessions_per_identity=1
    )
    async with running(scene.gateway({"fake": agent("connection")}, limits=limits)) as enter:
        all_served = [enter(scene.access()), enter(scene.access(), control=True), enter(Access("ann", None))]
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy, match="connections_per_identity"):
            enter(scene.access())
        enter(scene.access("bob"))
        await trio.testing.wait_all_tasks_blocked()
        with pytest.raises(Busy, match="max_connections"):
            enter(scene.access("carol"))
        await all_served[0].new_session()
        await all_served[2].editor.initialize()
        error = (await all_served[2].editor.request("session/new", SESSION))["error"]
        assert error["data"] == {"reason": "too_many_sessions"}
        await all_served[1].leave()
        enter(scene.access("carol"))


@pytest.mark.parametrize("control", [False, True])
async def test_connections_that_are_admitted_close_together_do_not_exceed_a_limit(
    control: bool, scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway(limits=LimitsSection(connections_per_identity=2))
    async with running(gateway) as enter:
        ann = scene.access()
        served = [enter(ann, control=control) for _ in range(3)]
        await trio.testing.wait_all_tasks_blocked()
        (refused,) = (each for each in served if each.ended.is_set())
        why = "connections_per_identity (2) are there already; try later"
        assert (refused.bug, refused.closed_with) == (None, [(CloseReason.GOING_AWAY, why)])
        assert len(gateway.connections) == 2


@pytest.mark.parametrize(("role", "limited"), [("controller", False), ("observer", True)])
async def test_messages_of_clients_that_only_look_are_small(
    role: Literal["controller", "observer"], limited: bool, scene: Scene, agents: ServingAgents
) -> None:
    bounds: list[tuple[int, str]] = []
    limits = LimitsSection(observer_message_size=1000, message_timeout=7.0)
    async with running(scene.gateway(limits=limits)) as enter:
        ann = enter(scene.access(role=role))
        ann.stream.limit = lambda *bound: bounds.append(bound)  # type: ignore[method-assign]
        await trio.testing.wait_all_tasks_blocked()
        assert ann.stream.message_timeout == 7.0
        assert bounds == ([(1000, "observer_message_size")] if limited else [])


@pytest.mark.parametrize(
    ("role", "kinds", "bound"),
    [
        (Role.CONTROLLER, ["guest"], (PROMPT_SIZE, "guest_message_size")),
        (Role.CONTROLLER, ["browser"], (PROMPT_SIZE, "browser_message_size")),
        (Role.CONTROLLER, ["guest", "control"], (64 * 1024, "control_message_size")),
        (Role.OBSERVER, ["guest"], (64 * 1024, "observer_message_size")),
        (Role.CONTROLLER, [], None),
    ],
)
async def test_messages_of_guests_and_browsers_are_no_larger_than_a_prompt_with_images(
    role: Role, kinds: list[Kind], bound: tuple[int, str] | None, scene: Scene
) -> None:
    bounds: list[tuple[int, str]] = []
    stream, _ = memory_message_stream_pair()
    stream.limit = lambda *bound: bounds.append(bound)  # type: ignore[method-assign]
    scene.gateway().bound(stream, role, *kinds)
    assert bounds == ([] if bound is None else [bound])


async def test_a_client_that_is_away_takes_up_room_and_may_come_back_when_there_is_none(
    scene: Scene, agents: ServingAgents
) -> None:
    access = scene.access()
    gateway = scene.gateway(limits=LimitsSection(connections_per_identity=1))
    async with resuming_client(gateway, access) as client:
        await client.new_session()
        await client.lose()
        with pytest.raises(Busy):
            gateway.admit(access, ConnectRequest())
        client.resume(access)
        assert (await client.request("test/number"))["result"] == 1


async def test_a_link_that_is_away_makes_room_for_another_identity_at_max_connections(
    scene: Scene, agents: ServingAgents
) -> None:
    gateway = scene.gateway(limits=LimitsSection(max_connections=1))
    async with resuming_client(gateway, scene.access()) as client:
        await client.new_session()
        with pytest.raises(Busy, match="max_connections"):
            gateway.admit(scene.access("bob"), ConnectRequest())
        await client.lose()
        gateway.admit(scene.access("bob"), ConnectRequest())
        await client.ended.wait()


async def test_the_clients_of_an_identity_are_read_so_fast_together_and_others_as_before(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    limits = LimitsSection(messages_per_second=10, message_burst=20)
    async with running(scene.gateway(limits=limits)) as enter:
        ann, also_ann, bob = enter(scene.access("ann")), enter(scene.access("ann")), enter(scene.access("bob"))
        for served in (ann, also_ann, bob):
            await served.editor.initialize()
        began = trio.current_time()
        await ann.editor.stream.send_batch([encode({"id": n, "method": "test/number"}) for n in range(38)])
        heard = [await ann.editor.receive() for _ in range(38)]
        assert [message["id"] for message in heard] == list(range(38))
        await bob.editor.request("test/number")
        assert trio.current_time() - began < 0.5
        # Two seconds of silence for 20 messages too many; then it is read again.
        await ann.editor.request("test/number")
        assert trio.current_time() - began == pytest.approx(2, abs=0.3)
        await also_ann.editor.request("test/number")
        await also_ann.editor.request("test/number")
        assert trio.current_time() - began < 3


# Tokens that were rotated


ROTATED = CloseReason.POLICY, "the token was rotated: show the new one"


async def test_a_link_whose_token_was_rotated_comes_back_with_the_new_one_alone(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    token, secret = scene.tokens.create("laptop", "ann", None)
    async with resuming_client(scene.gateway(), Access.of(token)) as client:
        session = await client.new_session()
        rotated, new_secret = scene.tokens.rotate(token.id)
        with pytest.raises(trio.EndOfChannel):
            await client.link.receive_batch()
        assert not client.ended.is_set()
        with pytest.raises(Unauthorized):
            scene.tokens.authenticate(secret)
        await agents[0].send(method="session/update", params={"sessionId": session, "update": {}, "n": 1})
        await trio.sleep(3 * REVOCATION_INTERVAL)
        client.resume(Access.of(scene.tokens.authenticate(new_secret)))
        assert (await client.request("test/number"))["result"] == 1
        assert [update["params"]["n"] for update in client.updates] == [1]
        await trio.sleep(3 * REVOCATION_INTERVAL)
        assert (await client.request("test/number"))["result"] == 1
        scene.tokens.revoke(rotated.id)
        await client.ended.wait()


async def test_what_was_on_its_way_when_a_token_was_rotated_is_not_lost(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    token, _ = scene.tokens.create("laptop", "ann", None)
    async with resuming_client(scene.gateway(), Access.of(token)) as client:
        session = await client.new_session()
        prompt = {"sessionId": session, "prompt": []}
        client.link.send([encode({"id": "turn", "method": "session/prompt", "params": prompt})])
        await agents[0].got("session/prompt")
        rotated, _ = scene.tokens.rotate(token.id)
        await trio.sleep(2 * REVOCATION_INTERVAL)
        assert not client.ended.is_set()
        client.resume(Access.of(rotated))
        client.link.send([encode({"method": "session/cancel", "params": {"sessionId": session}})])
        assert (await client.request("test/number"))["result"] == 1
        (answer,) = [message for message in client.updates if message.get("id") == "turn"]
        assert answer["result"] == {"stopReason": "cancelled"}


# What is written down


async def test_who_was_here_and_what_was_opened_and_decided_is_written_down_and_nothing_that_was_said(
    scene: Scene, agents: ServingAgents, folders: Path
) -> None:
    notebook = Notebook()
    gateway = fenced(scene, folders, {"fake": agent(mcp_servers="drop")}, audit=notebook)
    access = scene.access()
    server = {"name": "files", "command": "s3cret", "args": ["s3cret"], "env": [{"name": "s3cret", "value": "s3cret"}]}
    async with running(gateway) as enter:
        served = enter(access)
        await served.editor.initialize()
        await open_in(served, "/nowhere")
        session = (await open_in(served, folders / "a", mcpServers=[server]))["result"]["sessionId"]
        options = [{"optionId": "yes", "name": "s3cret", "kind": "allow_once"}]
        call = {"toolCallId": "c", "title": "s3cret", "kind": "execute", "rawInput": "s3cret"}
        params = {"sessionId": session, "toolCall": call, "options": options}
        await agents[0].send(id="q", method="session/request_permission", params=params)
        agent_request = await served.editor.receive()
        await served.editor.send(id=agent_request["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        await served.editor.request("s3cret/method", {"s3cret": 1})
        await served.leave()
    who = {"connection": "test", "identity": "ann"}
    assert notebook.entries == [
        ("attached", who | {"agent": "fake", "credential": access.credential, "role": "controller"}),
        ("agent_started", {"agent": "fake", "pid": 4711}),
        ("cwd_refused", who | {"agent": "fake", "path": "/nowhere", "reason": "outside_workspaces"}),
        ("mcp_server_dropped", who | {"agent": "fake", "name": "files", "kind": "stdio"}),
        ("session_joined", who | {"session": session, "agent": "fake", "owner": "ann"}),
        (
            "permission_decided",
            who
            | {"session": session, "agent": "fake", "toolCallId": "c", "kind": "execute"}
            | {"decision": "yes", "optionKind": "allow_once"},
        ),
        ("session_left", who | {"session": session, "agent": "fake"}),
        ("detached", who | {"why": "left"}),
        ("agent_ended", {"agent": "fake", "pid": 4711, "signal": "SIGTERM", "how": "stopped"}),
    ]
    assert "s3cret" not in repr(notebook.entries)


async def test_a_rule_that_a_client_wants_is_written_and_decides_until_its_token_is_revoked(
    scene: Scene, agents: ServingAgents
) -> None:
    notebook = Notebook()
    gateway = scene.gateway(audit=notebook)
    async with running(gateway) as enter:
        access = scene.access()
        served = enter(access)
        session = await served.new_session()
        options = [{"optionId": "yes", "name": "Yes", "kind": "allow_once"}]
        call = {"toolCallId": "c", "title": "pytest -q", "kind": "execute", "rawInput": {"command": "pytest -q"}}
        params = {"sessionId": session, "toolCall": call, "options": options}
        await agents[0].send(id="q", method="session/request_permission", params=params)
        asked = await served.editor.receive()
        meta = {"acp-gateway": {"rule": {"subject": "`pytest …`", "for": "project"}}}
        await served.editor.send(
            id=asked["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}, "_meta": meta}
        )
        told = [await served.editor.receive()]
        await agents[0].send(id="r", method="session/request_permission", params=params)
        told.append(await served.editor.receive())
        scene.revoke(access)
        await agents[0].send(id="s", method="session/request_permission", params=params)
        other = enter(scene.access(), session=session)
        await other.new_session()
        while (await other.editor.receive()).get("method") != "session/request_permission":
            pass
    rule = "(rule-1: allow `pytest …` (agent fake, workspace everything, sessions of ann, sessions in /))"
    written, used = [message["params"]["update"]["content"]["text"] for message in told]
    assert written == f"[acp-gateway: ann has written a rule for such questions {rule}]"
    assert used.startswith(f"[acp-gateway: allowed by a rule of ann {rule[:-1]}")
    (entry,) = notebook.of("rule_written")
    who = {"connection": "test", "identity": "ann", "ruleBy": "ann", "credential": access.credential}
    assert entry[1] == who | {"rule": "rule-1", "says": rule[len("(rule-1: ") : -1]}
    assert [entry["rule"] for name, entry in notebook.of("permission_decided") if "rule" in entry] == ["rule-1"]
    assert gateway.metrics.rule_decisions["fake", "allow"] == 1


async def test_why_a_connection_has_ended_is_written_down(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    notebook = Notebook()
    gateway = scene.gateway(audit=notebook)
    async with running(gateway) as enter:
        revoked, stays = scene.access(), enter(scene.access(role="observer"))
        served = enter(revoked)
        await served.editor.initialize()
        await stays.editor.initialize()
        scene.revoke(revoked)
        await served.ended.wait()
    assert notebook.of("detached") == [
        ("detached", {"connection": "test", "identity": "ann", "why": "the token is not valid any more"}),
        ("detached", {"connection": "test", "identity": "ann", "why": "stopped"}),
    ]
    assert {details["role"] for _, details in notebook.of("attached")} == {"observer", "controller"}


# Recordings


async def test_what_each_connection_says_and_hears_is_recorded_to_its_end(scene: Scene, agents: ServingAgents) -> None:
    camera = Camera()
    async with running(scene.gateway(recorder=camera)) as enter:
        for identity in ("ann", "bob"):
            served = enter(scene.access(identity))
            await served.agent()
            await served.leave()
    for (connection, about, reel), identity in zip(camera.reels, ("ann", "bob"), strict=True):
        assert (connection, about) == ("test", {"connection": "test", "agent": "fake", "identity": identity})
        assert reel.closed
        assert reel.written == [
            ("from_client", "initialize"),
            ("to_client", None),
            ("from_client", "test/number"),
            ("to_client", None),
        ]


async def test_a_link_that_is_resumed_is_one_recording(scene: Scene, agents: ServingAgents) -> None:
    camera, access = Camera(), scene.access()
    async with resuming_client(scene.gateway(recorder=camera), access) as client:
        await client.new_session()
        await client.lose()
        client.resume(access)
        await client.request("test/number")
        (_, _, reel) = camera.reels[0]
        assert [method for direction, method in reel.written if direction == "from_client"] == [
            *("initialize", "session/new", "test/number")
        ]
        assert not reel.closed
    assert len(camera.reels) == 1
    assert reel.closed


async def test_an_agent_is_stopped_when_its_identity_has_no_credential_any_more(
    scene: Scene, agents: ServingAgents, autojump_clock: trio.testing.MockClock
) -> None:
    gateway = scene.gateway()
    first, second, bob = scene.access("ann"), scene.access("ann"), scene.access("bob")
    async with trio.open_nursery() as nursery:
        await nursery.start(gateway.run)
        for access in (first, bob):
            near, far = memory_message_stream_pair()
            nursery.start_soon(gateway.serve, far, gateway.admit(access, ConnectRequest()), "test")
            editor = Editor(near)
            await editor.initialize()
            await near.aclose()
        scene.revoke(first)
        await trio.sleep(2 * REVOCATION_INTERVAL)
        assert [agent.cancelled for agent in agents.started] == [False, False]
        scene.revoke(second)
        await trio.sleep(2 * REVOCATION_INTERVAL)
        assert [agent.cancelled for agent in agents.started] == [True, False]
        nursery.cancel_scope.cancel()
