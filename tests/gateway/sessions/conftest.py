"""Fixtures of these tests: those of the server, and a gateway with agents in memory."""

from tests.kit.bridging import bench, make_bench  # noqa: F401
from tests.kit.listeners import *  # noqa: F403
