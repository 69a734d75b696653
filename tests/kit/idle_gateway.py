"""A gateway that does not run, around multiplexers that tests drive, and control connections of it in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.load import AgentSection
from acp_gateway.core.sessions.session import Role, Session, SessionReach
from acp_gateway.core.turns.journal import Journal
from acp_gateway.gateway.access import Access, ConnectRequest, Grant
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Agent, Spawner
from acp_gateway.gateway.control_channel import serve_control
from acp_gateway.gateway.gateway import Gateway
from acp_gateway.gateway.hub.hub import Hub
from acp_gateway.security.token_store import TokenStore
from acp_gateway.transports.maintained import MaintainedStream
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.kit.doubles import TIMEOUT, Editor, make_config
from tests.kit.hub_scene import FakeServices
from tests.kit.scene import Scene, make_policy

ME = SessionReach("me")


async def no_agent(*, task_status: trio.TaskStatus[Agent]) -> None:
    """None of these hubs starts one."""
    raise AssertionError("no agent is to be started")


NOON = 1_800_000_000_000
"""The time that `set_clock` sets, in milliseconds since 1970."""


def set_clock(scene: Scene, seconds: float = 0.0) -> None:
    """Have it be so many seconds before `NOON`."""
    scene.pass_time(trio.current_time() - seconds, NOON - int(1000 * seconds))


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
        grant = self.grant(reach, role)
        # As if it had been admitted so, when it begins and later.
        self.gateway.admit = lambda *_, **__: grant
        self.gateway.admissions.authorize = lambda *_: grant
        await serve_control(self.gateway, stream, grant)

    def remember(self, session_id: str, owner: str = "me", agent: str = "agent") -> Session:
        """A session of an earlier process of the gateway."""
        session = Session(agent, session_id, owner, Journal(1))
        self.registry.restore(session)
        return session

    def scene(self) -> Scene:
        """Another agent process and its hub, whose clock a test sets before the agent asks."""
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


@pytest.fixture
def idle(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> IdleGateway:
    """A gateway whose own user is `me`."""
    monkeypatch.setattr("acp_gateway.gateway.gateway.default_identity", lambda _: "me")
    return IdleGateway(tmp_path / "idle")


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
