"""For whom links to nodes are opened, and what the audit has of it."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.load import AgentSection
from acp_gateway.config.nodes import NodeSection
from acp_gateway.core.sessions.session import SessionScope
from acp_gateway.errors import AgentError, Forbidden
from acp_gateway.gateway.agent.connection import LinkOrigin
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Agent, Spawner
from acp_gateway.gateway.agent.startup import AgentRunner
from acp_gateway.gateway.events.audit import NO_AUDIT, AuditThrottle
from tests.doubles import make_config


class Recorder(AuditThrottle):
    """An audit that remembers."""

    def __init__(self) -> None:
        super().__init__(NO_AUDIT)
        self.entries: list[Mapping[str, Any]] = []

    def record(self, event: str, **details: Any) -> None:
        self.entries.append({"event": event, **details})


async def origin_of(tmp_path: Path, name: str, scope: SessionScope) -> tuple[LinkOrigin | None, Recorder]:
    """Start an agent that refuses the connection; return what it was told, and the audit."""
    origins: list[LinkOrigin | None] = []

    async def dial(*told: Any) -> Any:
        origins.append(told[4])
        raise Forbidden("not now")

    node = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))
    config = replace(make_config(tmp_path, agents={"near": AgentSection(url="ws://127.0.0.1:1")}), nodes={"gpu": node})
    audit = Recorder()
    runner = AgentRunner(lambda: config, Spawner(ProcessRegistry(tmp_path)), {}, dial, audit, lambda *_: None)
    section = config.find_agent(name)
    assert section is not None
    with pytest.raises(AgentError, match="not now"):
        await runner.run(name, section, scope, task_status=_NEVER)
    return origins[0], audit


class _Never(trio.TaskStatus[Agent]):
    def started(self, value: Agent | None = None) -> None:
        raise AssertionError(value)


_NEVER = _Never()


@pytest.mark.parametrize(("apart", "told"), [(True, "alice"), (False, None)])
async def test_a_link_to_a_node_is_opened_for_its_identity_only_if_the_node_keeps_identities_apart(
    apart: bool, told: str | None, tmp_path: Path
) -> None:
    origin, audit = await origin_of(tmp_path, "gpu/memory", SessionScope("alice", apart=apart))
    assert origin is not None
    assert origin.identity == told
    assert re.fullmatch("[0-9a-f]{16}", origin.request_id)
    assert audit.entries == [
        {
            "event": "node_link",
            "agent": "gpu/memory",
            "identity": "alice",
            "request": origin.request_id,
            "speaks_for": apart,
        }
    ]


async def test_an_agent_that_listens_and_is_of_no_node_is_told_nothing(tmp_path: Path) -> None:
    origin, audit = await origin_of(tmp_path, "near", SessionScope("alice"))
    assert origin is None
    assert audit.entries == []
