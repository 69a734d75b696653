"""The options of commands that stay connected."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from acp_gateway.cli.client.gateway_options import Gateway, gateway_options
from acp_gateway.errors import UsageError


def parsed(*arguments: str) -> tuple[Gateway, dict[str, Any]]:
    found: list[tuple[Gateway, dict[str, Any]]] = []

    @click.command()
    @gateway_options
    @click.argument("session")
    def command(gateway: Gateway, **others: Any) -> None:
        """Do something."""
        found.append((gateway, others))

    done = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return found[0]


def test_the_options_of_a_gateway_are_one_argument_and_the_others_stay() -> None:
    gateway, others = parsed("box", "s", "--keepalive", "60", "--token-file", "t")
    assert (gateway.target, gateway.keepalive, gateway.connection.token_file) == ("box", 60.0, Path("t"))
    assert others == {"session": "s"}


def test_the_destination_is_that_of_connect() -> None:
    gateway, _ = parsed("tcp://127.0.0.1:7", "s")
    found = gateway.destination(session="s", observe=True, agent="a")
    assert (str(found.address), found.session, found.observe, found.agent) == ("tcp://127.0.0.1:7", "s", True, "a")
    assert gateway.destination(control=True).control
    with pytest.raises(UsageError, match="unencrypted"):
        parsed("tcp://box:7", "s")[0].destination()


def test_the_settings_of_a_link_map_no_paths() -> None:
    gateway, _ = parsed("tcp://127.0.0.1:7", "s", "--connect-timeout", "3", "--max-message-size", "99")
    settings = gateway.settings(lambda _: None)
    assert not settings.maps
    assert (settings.max_message_size, settings.reconnect.connect_timeout) == (99, 3.0)
