"""Changes of the configuration by `agents`: nothing is written that the gateway would refuse."""

import json
import os
from pathlib import Path

import click
import pytest

from acp_gateway.cli import agent_changes as registry_agents
from acp_gateway.cli.agent_changes import Configuration, find_agent, offer_agents, read_agents
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


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    path = tmp_path / "registry.json"
    entry = {"id": "slow", "name": "Slow", "version": "1.0.0", "distribution": {"uvx": {"package": "slow"}}}
    path.write_text(json.dumps({"agents": [entry | {"description": "x\x1b[2J" * 20}]}))
    monkeypatch.setattr("acp_gateway.config.agent_registry.PUBLIC_REGISTRY", str(path))
    return path


def test_an_agent_that_is_not_in_the_registry_is_refused_with_the_likely_one(registry: Path) -> None:
    source, entries = read_agents(None)
    assert source == str(registry)
    with pytest.raises(ConfigError, match='did you mean "slow"'):
        find_agent("slwo", source, entries)


def test_no_agent_is_offered_that_this_machine_can_not_run(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry_agents, "runners_here", lambda: ["npx"])
    with pytest.raises(ConfigError, match=r"without Node\.js or uv"):
        offer_agents()


def test_what_a_registry_says_commands_no_terminal_and_no_answer_installs_nothing(
    registry: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(registry_agents, "runners_here", lambda: ["uvx"])

    def no_answer(*_: object, **__: object) -> None:
        raise click.Abort

    monkeypatch.setattr(click, "prompt", no_answer)
    with pytest.raises(click.Abort):
        offer_agents()
    assert "slow  1.0.0    x\\x1b[2J" in capsys.readouterr().out
    assert sorted(path.name for path in registry.parent.iterdir()) == ["registry.json"]
