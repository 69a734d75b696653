"""The lines that `connect` prints for a user who has started it in a terminal."""

import pytest

from acp_gateway.cli.client.editor_relay import _tell_terminal
from acp_gateway.client.uplink import LinkEvent


def test_a_terminal_is_told_each_change_of_the_link(capsys: pytest.CaptureFixture[str]) -> None:
    for event in (
        LinkEvent("connected", "wss://box:7443/acp", seconds=0.14),
        LinkEvent("lost", "wss://box:7443/acp", "reset\x1b[2J"),
        LinkEvent("resumed", "wss://box:7443/acp", seconds=12.3),
    ):
        _tell_terminal("box", event)
    connected, lost, resumed = capsys.readouterr().err.splitlines()
    assert connected.startswith("Connected to wss://box:7443/acp in 0.1 s: a gateway, and it accepts you.")
    assert connected.endswith("acp-gateway ping box")
    assert lost == r"The connection is lost (reset\x1b[2J); it is tried again, and the agent goes on."
    assert resumed == "Connected again after 12 s; nothing was lost."
