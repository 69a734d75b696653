"""Fixtures of these tests: those of the server, and directories of clusters."""

from collections.abc import Iterator

import pytest

from acp_gateway.nodes import asking, looks
from tests.kit.listeners import *  # noqa: F403
from tests.kit.redis_server import RedisServer


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes may take long to answer, as they do on a busy machine."""
    monkeypatch.setattr(asking, "LIST_TIMEOUT", 10.0)
    monkeypatch.setattr(asking, "SEARCH_TIMEOUT", 10.0)
    monkeypatch.setattr(looks, "PATIENCE", looks.LOOK_TIMEOUT - 1)


@pytest.fixture(scope="session")
def shared_redis() -> Iterator[RedisServer]:
    """A Redis for all tests of a session, which each empties."""
    with RedisServer() as server:
        yield server


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    """A Redis for one test, which may end it."""
    with RedisServer() as server:
        yield server
