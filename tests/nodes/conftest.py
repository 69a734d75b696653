"""Fixtures of these tests: those of the server, and directories of clusters."""

from collections.abc import Iterator

import pytest

from tests.nodes.redis_server import RedisServer
from tests.server.fixtures import *  # noqa: F403


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
