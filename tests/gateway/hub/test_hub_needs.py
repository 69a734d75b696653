"""The interface between a hub and the gateway around it."""

import pytest

from acp_gateway.gateway.hub.hub import HubServices
from acp_gateway.gateway.hub.services import GatewayServices
from tests.kit.hub_scene import FakeServices


@pytest.mark.parametrize("services", [GatewayServices, FakeServices])
def test_services_have_what_a_hub_needs(services: type) -> None:
    needed = {name for name in vars(HubServices) if not name.startswith("_")}
    assert {"notify", "load_journal"} <= needed
    assert needed <= {name for name in dir(services) if not name.startswith("_")}
