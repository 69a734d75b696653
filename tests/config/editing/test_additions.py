"""A workspace and an agent added to a configuration that has comments and values of its own."""

import stat
from pathlib import Path

import pytest

from acp_gateway.config.agents.search import FoundAgent
from acp_gateway.config.editing.additions import Addition, add, agent_additions, workspace_additions
from acp_gateway.config.load import load_config
from acp_gateway.errors import ConfigError

AGENT = FoundAgent("demo", ("other", "--acp"), "/usr/bin", "other login")


def test_a_workspace_is_added_behind_what_there_is(config: Path, tmp_path: Path) -> None:
    config.write_text(f"# mine\n{config.read_text()}[workspaces.proj]  # the first\nroot = '/srv/proj'\n")
    config.chmod(0o640)
    before = config.read_text()
    added = add(config, workspace_additions(load_config(config), Path("/other/proj"), ["/srv/proj"]))
    assert added == load_config(config)
    assert {name: str(section.root) for name, section in added.workspaces.items()} == {
        "proj": "/srv/proj",
        "proj-2": "/other/proj",
    }
    assert config.read_text().startswith(before.rstrip())
    assert stat.S_IMODE(config.stat().st_mode) == 0o640


def test_the_first_workspace_comes_with_the_default_that_it_would_replace(config: Path) -> None:
    added = add(config, workspace_additions(load_config(config), Path("/srv/x"), ["/home/ann"]))
    assert {name: str(section.root) for name, section in added.workspaces.items()} == {
        "ann": "/home/ann",
        "x": "/srv/x",
    }


def test_an_agent_is_added_under_a_free_name_and_the_default_stays(config: Path, tmp_path: Path) -> None:
    added = add(config, agent_additions(load_config(config), AGENT, tmp_path, fence=True))
    assert list(added.agents) == ["demo", "demo-2"]
    agent = added.agents["demo-2"]
    assert (agent.fence, agent.command, agent.env, agent.cwd, agent.login) == (
        "on",
        ("other", "--acp"),
        {"PATH": "/usr/bin"},
        tmp_path,
        "other login",
    )
    assert added.default_agent == "demo"
    third = agent_additions(added, AGENT, tmp_path, fence=False)
    assert [addition.keys for addition in third] == [("agents", "demo-3")]


def test_through_a_link_its_file_is_changed(config: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.toml"
    link.symlink_to(config)
    add(link, [Addition(("workspaces", "x"), {"root": "/x"})])
    assert link.is_symlink()
    assert "[workspaces.x]" in config.read_text()


@pytest.mark.parametrize(
    ("more", "addition"),
    [
        ("workspaces = 7\n", Addition(("workspaces", "x"), {"root": "/x"})),
        ("", Addition(("workspaces", "x"), {"root": "relative"})),
    ],
)
def test_what_can_not_be_added_changes_nothing(config: Path, more: str, addition: Addition) -> None:
    config.write_text(more + config.read_text())
    before = config.read_text()
    with pytest.raises(ConfigError):
        add(config, [addition])
    assert config.read_text() == before
