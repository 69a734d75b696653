"""The gateway of this machine: which state folder is meant, and what is said where none runs."""

from pathlib import Path

import pytest

from acp_gateway.client.local import LocalGateway, find_local_gateway
from acp_gateway.errors import ConfigError, Unreachable
from acp_gateway.gateway.storage.state_folder import CONTROL_SOCKET, holding


def test_the_gateway_is_that_of_the_configuration(config: Path, tmp_path: Path) -> None:
    assert find_local_gateway(config) == LocalGateway(tmp_path / "state")
    with pytest.raises(ConfigError):
        find_local_gateway(tmp_path / "absent.toml")


def test_without_a_configuration_it_is_the_one_that_runs_on_the_default_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("acp_gateway.config.load.SYSTEM_CONFIG", tmp_path / "absent")
    with pytest.raises(ConfigError, match="there is no"):
        find_local_gateway(None)
    state_dir = tmp_path / ".local/state/acp-gateway"
    # As of a laptop that has connected.
    (state_dir / "reached").mkdir(parents=True)
    with pytest.raises(ConfigError, match="there is no"):
        find_local_gateway(None)
    with holding(state_dir):
        assert find_local_gateway(None) == LocalGateway(state_dir)


def test_its_destination_has_no_token_even_if_the_environment_has_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACP_GATEWAY_TOKEN", "x")
    destination = LocalGateway(tmp_path).destination
    assert (str(destination.address), destination.token) == (f"unix://{tmp_path}/{CONTROL_SOCKET}", None)


def test_where_no_gateway_runs_the_next_step_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unreachable, match=r"no gateway runs on .*: start one with `acp-gateway up`"):
        LocalGateway(tmp_path).check_running()


def test_a_gateway_without_a_control_socket_is_told_from_none(tmp_path: Path) -> None:
    with holding(tmp_path):
        with pytest.raises(Unreachable, match="has no control socket there"):
            LocalGateway(tmp_path).check_running()
        (tmp_path / CONTROL_SOCKET).touch()
        LocalGateway(tmp_path).check_running()


def test_a_folder_that_no_address_can_name_has_no_control_socket(tmp_path: Path) -> None:
    folder = tmp_path / "a?b"
    folder.mkdir()
    with holding(folder), pytest.raises(Unreachable, match="has no control socket there"):
        LocalGateway(folder).check_running()
