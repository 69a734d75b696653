"""Fixtures of these tests: those of the server, and directories of clusters."""

from collections.abc import Iterator

import pytest

from tests.kit.listeners import *  # noqa: F403
from tests.kit.redis_server import RedisServer


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
