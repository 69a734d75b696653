"""The client of a connection as it was admitted, and the sessions that exist for it."""

from pathlib import Path

import pytest

from acp_gateway.core.sessions.session import Role
from acp_gateway.gateway.access import ConnectRequest
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.viewing.admitted import Admitted
from tests.kit.bridging import running
from tests.kit.doubles import ServingAgents

pytestmark = pytest.mark.usefixtures("no_bug_showed")


async def test_one_that_is_bound_to_nothing_sees_all_sessions_of_its_identity(
    tmp_path: Path, spawner: Spawner, agents: ServingAgents
) -> None:
    async with running(tmp_path, spawner) as bench:
        first = Admitted(bench.gateway, bench.access(), ConnectRequest(), sees_doubt=True)
        session = await (await bench.client(bench.access())).new_session()
        found = bench.gateway.views.find(first.viewer, session)
        assert found is not None
        assert first.covers(found)
        assert (first.role, first.bound, first.viewer.sees_doubt) == (Role.CONTROLLER, None, True)
        other = Admitted(bench.gateway, bench.access("bob"), ConnectRequest(observe=True))
        assert other.role is Role.OBSERVER
        assert not other.covers(found)
