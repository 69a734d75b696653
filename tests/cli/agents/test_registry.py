"""The choice of an agent of the registry where this machine has none."""

import json
from pathlib import Path

import click
import pytest

from acp_gateway.cli.agents import registry as registry_agents
from acp_gateway.cli.agents.registry import find_agent, offer_agents, read_agents
from acp_gateway.errors import ConfigError


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("CONFIG", "STATE"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name))
    path = tmp_path / "registry.json"
    entry = {"id": "slow", "name": "Slow", "version": "1.0.0", "distribution": {"uvx": {"package": "slow"}}}
    path.write_text(json.dumps({"agents": [entry | {"description": "x\x1b[2J" * 20}]}))
    monkeypatch.setattr("acp_gateway.config.agents.registry.PUBLIC_REGISTRY", str(path))
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
