"""Fixtures of the tests of the server."""

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from acp_gateway.dialects.editor import answers as editor_answers
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.security.certificates import create_certificate
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server import pending
from tests.kit.doubles import ServingAgents
from tests.kit.echoing import EchoingGateway


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def token(state_dir: Path) -> str:
    return TokenStore(state_dir).create("laptop", "ann", None)[1]


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    with Spawner(ProcessRegistry(tmp_path / "state" / "agents")) as spawner:
        yield spawner


@pytest.fixture
def gateway(tmp_path: Path, spawner: Spawner) -> EchoingGateway:
    return EchoingGateway(tmp_path / "state", spawner)


@pytest.fixture
def unix(tmp_path: Path) -> str:
    return f"unix://{tmp_path}/socket"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificate")
    create_certificate(["127.0.0.1"], folder)
    return folder


@pytest.fixture
def free_handshakes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Handshakes cost nothing: their cost is real time, which a test's own clock, when it stands still, never pays."""
    monkeypatch.setattr(pending, "time", SimpleNamespace(thread_time=lambda: 0.0))


@pytest.fixture
def agents(monkeypatch: pytest.MonkeyPatch) -> ServingAgents:
    """All agents are in memory."""
    agents = ServingAgents()
    monkeypatch.setattr(startup, "run_agent", agents.run)
    return agents


@pytest.fixture
def loading_agents(monkeypatch: pytest.MonkeyPatch) -> ServingAgents:
    """All agents are in memory, and can load a session."""
    agents = ServingAgents(loadSession=True, promptCapabilities={"image": True})
    monkeypatch.setattr(startup, "run_agent", agents.run)
    return agents


@pytest.fixture
def heads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer to an editor in lines does not wait for the first of them."""
    monkeypatch.setattr(editor_answers, "HEAD_DELAY", 0.0)


@pytest.fixture
def no_bug_showed(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """A gateway logs bugs and goes on: a test that provokes one clears the log."""
    yield
    assert not [record for record in caplog.get_records("call") if record.exc_info]


@pytest.fixture
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Answers that come late come soon."""
    monkeypatch.setattr("acp_gateway.server.handshake_limits.REFUSAL_DELAY", 0.001)
