"""The text of a new configuration, as the gateway reads it."""

import stat
from pathlib import Path

import pytest

from acp_gateway.config.agent_search import FoundAgent
from acp_gateway.config.editing.first_config import (
    Addition,
    FirstConfig,
    add,
    agent_additions,
    agent_section,
    free_name,
    quote,
    workspace_additions,
    workspace_section,
)
from acp_gateway.config.load import Config, load_config
from acp_gateway.errors import ConfigError

OPENCODE = FoundAgent("opencode", ("opencode", "acp"), "/usr/bin", "opencode auth login")
MINE = FoundAgent("my.agent", ("mine", '"x"\x7f'), "/opt")


def read(
    tmp_path: Path, *agents: FoundAgent, state_dir: Path, host: str = "127.0.0.1", cwd: Path | None = None
) -> Config:
    """Return the configuration that the gateway reads in a new file."""
    first = FirstConfig(
        host=host,
        port=7443,
        cert="cert.pem",
        key="key.pem",
        state_dir=state_dir,
        workspace=tmp_path / "my project",
        agents=agents,
        cwd=cwd,
    )
    (tmp_path / "config.toml").write_text(first.write())
    return load_config(tmp_path / "config.toml")


def test_a_new_configuration_has_tls_a_socket_one_workspace_and_the_agents(tmp_path: Path) -> None:
    config = read(tmp_path, OPENCODE, MINE, state_dir=Path("/state"))
    assert [section.url for section in config.listen] == ["wss://127.0.0.1:7443", "unix:///state/socket"]
    assert (config.listen[0].cert, config.listen[0].key) == (tmp_path / "cert.pem", tmp_path / "key.pem")
    assert {name: section.root for name, section in config.workspaces.items()} == {
        "my-project": tmp_path / "my project"
    }
    assert {name: agent.command for name, agent in config.agents.items()} == {
        "opencode": OPENCODE.command,
        "my.agent": MINE.command,
    }
    assert (config.default_agent, config.agents["opencode"].env) == ("opencode", {"PATH": "/usr/bin"})
    assert config.agents["opencode"].login == "opencode auth login"
    assert (config.agents["opencode"].cwd, config.agents["my.agent"].login) == (None, None)


def test_an_explicit_command_is_started_in_its_folder(tmp_path: Path) -> None:
    assert read(tmp_path, MINE, state_dir=Path("/state"), cwd=tmp_path).agents["my.agent"].cwd == tmp_path


def test_an_ipv6_address_stands_in_brackets(tmp_path: Path) -> None:
    assert read(tmp_path, MINE, state_dir=Path("/state"), host="::").listen[0].address.host == "::"


def test_a_path_that_is_not_utf_8_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"/srv/\\udcff is not UTF-8"):
        workspace_section(Path("/srv/\udcff"))


def test_no_socket_is_made_whose_path_is_too_long(tmp_path: Path) -> None:
    assert len(read(tmp_path, MINE, state_dir=Path("/", "x" * 100)).listen) == 1


@pytest.mark.parametrize(
    ("folder", "header"),
    [
        ("/srv/proj", "[workspaces.proj]"),
        ("/srv/a.b", '[workspaces."a.b"]'),
        ("/srv/日本", "[workspaces.root]"),
        ("/", "[workspaces.root]"),
    ],
)
def test_a_workspace_has_the_name_of_its_folder(folder: str, header: str) -> None:
    assert workspace_section(Path(folder)) == f"{header}\nroot = {quote(folder)}\n"


def test_a_name_that_is_taken_gets_a_number() -> None:
    assert [free_name("a", taken) for taken in ([], ["a"], ["a", "a-2"], ["b"])] == ["a", "a-2", "a-3", "a"]


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


def test_an_agent_that_can_not_be_shared_is_added_with_its_scope(config: Path, tmp_path: Path) -> None:
    pi = FoundAgent("pi", ("pi-acp",), None)
    assert (
        add(config, agent_additions(load_config(config), pi, tmp_path, fence=False)).agents["pi"].scope == "connection"
    )
    assert '\nscope = "connection"\n' in agent_section(pi)


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
