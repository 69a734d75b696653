"""Fixtures of these tests: those of the server, and a gateway that seldom checks credentials."""

import pytest

from acp_gateway.gateway import gateway as gateways
from tests.kit.listeners import *  # noqa: F403


@pytest.fixture(autouse=True)
def seldom_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare the hours of these tests a check in each second."""
    monkeypatch.setattr(gateways, "REVOCATION_INTERVAL", 60.0)
