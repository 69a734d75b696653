"""Fixtures of these tests: those of the server."""

from tests.kit.listeners import *  # noqa: F403
