"""Calls of other dialects in sessions."""

from pathlib import Path

import pytest
import trio

from acp_gateway.core.sessions.session import Role
from acp_gateway.dialects.members import AcpRequest
from acp_gateway.dialects.open_sessions import CallRefused, OpenSessions
from acp_gateway.dialects.session_calls import SessionCalls
from acp_gateway.errors import UnknownSession
from acp_gateway.gateway.access import Access, ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.sessions.session_view import Viewer
from acp_gateway.protocol.jsonrpc import Message
from tests.dialects.bridging import Bench, ends_turn, running, section
from tests.doubles import ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")


def calls_of(bench: Bench, access: Access, bound: str | None = None) -> SessionCalls:
    sessions = OpenSessions(
        bench.gateway, bench.away, access, "program", via="program", observe=False, start=bench.nursery.start_soon
    )
    return SessionCalls(bench.gateway, access, sessions, bound)


def viewer_of(bench: Bench, access: Access) -> Viewer:
    scope = bench.gateway.admissions.authorize(access, ConnectRequest(control=True)).scope
    return Viewer(scope, Role.CONTROLLER, access.agents)


async def test_a_session_is_created_found_prompted_and_cancelled(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        access = bench.access()
        calls = calls_of(bench, access)
        session = await calls.create("open", None, None)
        assert calls.find(session.id, viewer_of(bench, access)) is session
        failures: list[Message] = []
        params = b'{"sessionId":"%b","prompt":[{"type":"text","text":"a"}]}' % session.id.encode()
        await calls.prompt(session, AcpRequest("session/prompt", params), failures.append)
        await loading_agents[0].got("session/prompt")
        await calls.cancel(session, AcpRequest("session/cancel", b'{"sessionId":"%b"}' % session.id.encode()))
        await loading_agents[0].got("session/cancel")
        await trio.testing.wait_all_tasks_blocked()
        assert session.last_turn is not None
        assert failures == []


async def test_a_prompt_that_is_refused_at_once_raises_and_one_that_fails_in_its_turn_does_not(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        calls = calls_of(bench, bench.access())
        session = await calls.create("open", None, None)
        failures: list[Message] = []
        named = b'{"sessionId":"%b","prompt":' % session.id.encode()
        refused = AcpRequest("session/prompt", named + b"[%b]}" % (b"{}," * 2000 + b"{}"))
        # Trio runs tasks in a random order, so a refusal that came too late would show in one of many.
        for _ in range(30):
            with pytest.raises(CallRefused) as raised:
                await calls.prompt(session, refused, failures.append)
            assert raised.value.response is not None
        await calls.prompt(session, AcpRequest("session/prompt", named + b"[]}"), failures.append)
        await ends_turn(loading_agents[0], error={"code": -1, "message": "no"})
        await trio.testing.wait_all_tasks_blocked()
        assert failures == []


async def test_a_connection_for_one_session_creates_none(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        with pytest.raises(CallRefused, match="this connection is for one session only: no new_session"):
            await calls_of(bench, bench.access(), "s").create("new_session", None, None)
        assert len(loading_agents) == 0


async def test_a_session_of_another_identity_is_not_found(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        session = await calls_of(bench, bench.access()).create("open", None, None)
        other = bench.access("ben")
        with pytest.raises(UnknownSession):
            calls_of(bench, other).find(session.id, viewer_of(bench, other))


async def test_the_default_agent_is_the_only_one_of_a_token(
    tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner, fake=section(), other=section()) as bench:
        assert calls_of(bench, bench.access(agents=["other"])).default_agent == "other"
