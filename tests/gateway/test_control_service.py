"""Control connections of a whole gateway: what another gateway is told that asks. Others: `test_gateway.py`."""

from pathlib import Path
from typing import Any

import pytest

from acp_gateway.client.control import request
from acp_gateway.protocol.methods import SESSIONS
from acp_gateway.transports.websocket.stream import PASSED
from tests.nodes.machines import control, node_config, save_token
from tests.server.serving import serving

THROUGH: dict[str, Any] = {"origin": ((PASSED, "0123456789abcdef"),)}


@pytest.mark.parametrize(("through", "told"), [(THROUGH, True), ({}, False)])
async def test_only_another_gateway_is_told_the_load(through: dict[str, Any], told: bool, tmp_path: Path) -> None:
    async with serving(node_config(tmp_path)) as (url,):
        answer = await request(control(url, tmp_path / "node.token", **through), SESSIONS, {}, time_limit=30)
    assert ("load" in answer) == told
    if told:
        assert {**answer["load"], "lag": 0} == {"sessions": 0, "turns": 0, "lag": 0}


async def test_a_token_for_one_session_is_not_told_the_load(tmp_path: Path) -> None:
    guest = save_token(tmp_path, "guest.token", session="s")
    async with serving(node_config(tmp_path)) as (url,):
        assert "load" not in await request(control(url, guest, **THROUGH), SESSIONS, {}, time_limit=30)
