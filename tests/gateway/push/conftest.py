"""Fixtures of these tests: those of the server."""

from tests.server.fixtures import *  # noqa: F403
