"""The text of a new configuration, as the gateway reads it."""

from pathlib import Path

import pytest

from acp_gateway.config.agents.search import FoundAgent
from acp_gateway.config.editing.first_config import FirstConfig, free_name, quote, workspace_section
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
    assert config.default_agent == "opencode"
    assert config.agents["opencode"].env == {"PATH": "/usr/bin"}
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
