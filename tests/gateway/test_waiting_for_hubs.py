"""Connections that wait for the directory of a cluster before they have a hub."""

import pytest
import trio
import trio.testing

from acp_gateway.config.limits import LimitsSection
from acp_gateway.errors import Busy
from acp_gateway.gateway.access import Grant
from acp_gateway.gateway.attachment import STOPPING
from acp_gateway.gateway.connections import REVOKED
from acp_gateway.gateway.hub import Hub
from tests.gateway.test_gateway import Scene, agents, running, scene

__all__ = ["agents", "scene"]


async def never(_grant: Grant) -> Hub | None:
    await trio.sleep_forever()
    return None


async def test_connection_that_waits_for_a_directory_counts(scene: Scene) -> None:
    gateway = scene.gateway(limits=LimitsSection(connections_per_identity=2))
    gateway.find_reading_hub = never
    access = scene.access()
    async with running(gateway) as enter:
        for _ in range(2):
            enter(access)
        await trio.testing.wait_all_tasks_blocked()
        assert len(gateway.connections) == 2
        with pytest.raises(Busy, match="connections_per_identity"):
            enter(access)


async def test_connection_that_waits_for_a_directory_ends_with_its_token(scene: Scene) -> None:
    gateway = scene.gateway()
    gateway.find_reading_hub = never
    access = scene.access()
    async with running(gateway) as enter:
        served = enter(access)
        await trio.testing.wait_all_tasks_blocked()
        scene.revoke(access)
        gateway.connections.enforce()
        await served.ended.wait()
        assert served.closed_with == [(REVOKED.code, REVOKED.text)]
        assert not len(gateway.connections)


async def test_connection_that_has_waited_for_a_directory_counts_once(scene: Scene, agents: object) -> None:
    gateway = scene.gateway(limits=LimitsSection(connections_per_identity=1))

    async def none(_grant: Grant) -> Hub | None:
        await trio.lowlevel.checkpoint()
        return None

    gateway.find_reading_hub = none
    async with running(gateway) as enter:
        served = enter(scene.access())
        assert await served.agent() == 1
        assert len(gateway.connections) == 1
        await served.leave()
        assert not len(gateway.connections)


async def test_connection_that_waits_for_a_directory_gets_a_goodbye_when_the_gateway_stops(scene: Scene) -> None:
    gateway = scene.gateway()
    gateway.find_reading_hub = never
    async with running(gateway) as enter:
        served = enter(scene.access())
        await trio.testing.wait_all_tasks_blocked()
    assert served.closed_with == [(STOPPING.code, STOPPING.text)]
