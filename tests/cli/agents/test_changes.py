"""Changes of the configuration by `agents`: nothing is written that the gateway would refuse."""

import os
from pathlib import Path

import pytest

from acp_gateway.cli.agents.changes import Configuration
from acp_gateway.errors import ConfigError


def test_a_second_agent_makes_the_first_the_default(config: Path) -> None:
    text = Configuration(config).change("new", ("new", "acp"), {})
    assert 'default_agent = "demo"' in text
    assert text.endswith('[agents.new]\ncommand = ["new", "acp"]\n')


def test_a_default_that_is_set_stays(config: Path) -> None:
    config.write_text(config.read_text().replace("[gateway]\n", '[gateway]\ndefault_agent = "demo"  # mine\n'))
    text = Configuration(config).change("new", ("new",), {})
    assert text.count("default_agent") == 1
    assert "# mine" in text


def test_a_change_that_the_gateway_would_refuse_is_an_error(config: Path) -> None:
    with pytest.raises(ConfigError, match="a name is 1 to 64"):
        Configuration(config).change("a b", ("new",), {})
    with pytest.raises(ConfigError, match="ACP_GATEWAY_"):
        Configuration(config).change("new", ("new",), {"ACP_GATEWAY_TOKEN": "x"})


def test_a_link_to_the_configuration_is_followed(config: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(config)
    changed = Configuration(link)
    changed.write(changed.change("new", ("new",), {}))
    assert link.is_symlink()
    assert "[agents.new]" in config.read_text()


def test_root_does_not_add_agents_for_another_user(
    config: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    if os.getuid() == 0:
        os.chown(state, 1234, -1)
    with pytest.raises(ConfigError, match="run this as that user"):
        Configuration(config)
