import os
from pathlib import Path

import pytest

from acp_gateway.config import directories
from acp_gateway.errors import ConfigError
from tests.kit.machine import needs_entry


@pytest.fixture(autouse=True)
def empty_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.delenv(name, raising=False)


def test_the_xdg_variables_are_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", "/c")
    monkeypatch.setenv("XDG_STATE_HOME", "/s")
    assert directories.config_home() == Path("/c/acp-gateway")
    assert directories.state_home() == Path("/s/acp-gateway")


@pytest.mark.parametrize("value", ["", "relative", "~/config"])
def test_an_xdg_variable_that_is_not_absolute_is_ignored(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/ann")
    monkeypatch.setenv("XDG_CONFIG_HOME", value)
    assert directories.config_home() == Path("/home/ann/.config/acp-gateway")


@needs_entry
def test_without_variables_the_directories_come_from_the_user_database() -> None:
    import pwd

    home = Path(pwd.getpwuid(os.getuid()).pw_dir)
    assert directories.config_home() == home / ".config/acp-gateway"
    assert directories.state_home() == home / ".local/state/acp-gateway"


def test_an_unknown_home_directory_is_a_config_error_and_never_a_folder_called_tilde() -> None:
    with pytest.raises(ConfigError, match="no home directory is known"):
        directories.expand_user("~missing-user/x")


def test_a_path_without_tilde_is_left_alone() -> None:
    assert directories.expand_user("a/~/b") == Path("a/~/b")
