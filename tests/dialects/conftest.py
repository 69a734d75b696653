"""Fixtures of these tests: those of the server, and a gateway with agents in memory."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.gateway.agent.process import Spawner
from tests.dialects.bridging import Bench, MakeBench, running
from tests.doubles import ServingAgents
from tests.server.fixtures import *  # noqa: F403


@pytest.fixture
def make_bench(tmp_path: Path, spawner: Spawner, loading_agents: ServingAgents) -> MakeBench:
    """Run a gateway with these options, as `running` does, whose agents can load sessions."""

    @asynccontextmanager
    async def make(**options: Any) -> AsyncIterator[Bench]:
        async with running(tmp_path, spawner, **options) as bench:
            bench.agents = loading_agents
            yield bench

    return make


@pytest.fixture
async def bench(make_bench: MakeBench) -> AsyncIterator[Bench]:
    """A gateway that runs until the end of the test."""
    async with make_bench() as bench:
        yield bench
