from pathlib import Path

import pytest

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import Busy, UnknownAgent
from acp_gateway.gateway.node_directory import MAX_AGENTS, MAX_FOLDERS, PATH_SIZE, NodeDirectory

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))


@pytest.fixture
def directory() -> NodeDirectory:
    return NodeDirectory({"gpu1": SECTION, "gpu2": SECTION}, 0.0)


def test_agents_are_named_after_their_node(directory: NodeDirectory) -> None:
    assert directory.agents == []
    assert directory.set_up("gpu2", ["opencode", "claude"], "1.0", 10.0)
    assert directory.agents == ["gpu2/opencode", "gpu2/claude"]
    directory.check_agent("gpu2/claude")


def test_only_names_of_agents_are_taken_and_not_too_many(directory: NodeDirectory) -> None:
    # The agents of its own nodes have slashes.
    directory.set_up("gpu1", ["ok", "a/b", "", "a b", "\x1b[2J"], "1.0\x1b", 10.0)
    assert directory.agents == ["gpu1/ok"]
    assert "\x1b" not in directory.nodes["gpu1"].version
    directory.set_up("gpu1", [f"agent{number}" for number in range(MAX_AGENTS + 1)], "1.0", 11.0)
    assert len(directory.agents) == MAX_AGENTS


def test_only_changes_are_news(directory: NodeDirectory) -> None:
    assert directory.set_away("gpu1", "refused", 5.0)
    assert not directory.set_away("gpu1", "no answer", 6.0)
    assert directory.set_up("gpu1", ["a"], "1.0", 10.0)
    assert not directory.set_up("gpu1", ["a"], "1.0", 15.0)
    assert directory.set_up("gpu1", ["a", "b"], "1.0", 20.0)
    assert directory.set_away("gpu1", "refused", 25.0)
    assert not directory.set_away("gpu1", "refused", 30.0)


def test_a_node_is_away_since_it_was_lost_and_keeps_its_agents(directory: NodeDirectory) -> None:
    directory.set_up("gpu1", ["a"], "1.0", 10.0)
    directory.set_up("gpu1", ["a"], "1.0", 20.0)
    assert directory.nodes["gpu1"].since == 10.0
    directory.set_away("gpu1", "cannot reach\n gpu", 1_000_000_000.0)
    directory.set_away("gpu1", "no answer\x1b", 1_000_000_100.0)
    away = directory.nodes["gpu1"].away
    assert away.startswith("the node gpu1 is away since 2001-09-09T01:46:40Z: no answer")
    assert "\x1b" not in away
    assert directory.agents == ["gpu1/a"]
    directory.check_agent("gpu1/a")


def test_an_agent_of_a_node_that_was_never_reached_is_for_later(directory: NodeDirectory) -> None:
    with pytest.raises(Busy, match="the node gpu1 is away since 1970-01-01T00:00:00Z: not reached yet"):
        directory.check_agent("gpu1/a")


def test_an_agent_that_the_node_does_not_have_is_unknown(directory: NodeDirectory) -> None:
    directory.set_up("gpu1", ["opencode"], "1.0", 10.0)
    with pytest.raises(UnknownAgent, match='did you mean "gpu1/opencode"'):
        directory.check_agent("gpu1/opencod")
    directory.set_up("gpu1", [], "1.0", 10.0)
    with pytest.raises(UnknownAgent, match=r"no agent x for this gateway$"):
        directory.check_agent("gpu1/x")


def test_the_directories_of_a_node_are_those_of_its_agents(directory: NodeDirectory) -> None:
    folders = ["/srv/proj", "/" + "x" * PATH_SIZE, *(f"/{number}" for number in range(MAX_FOLDERS))]
    directory.set_up("gpu1", ["a"], "1.0", 10.0, folders)
    assert directory.folders_of("gpu1/a")[:2] == ("/srv/proj", "/0")
    assert len(directory.folders_of("gpu1/a")) == MAX_FOLDERS
    assert directory.folders_of("gpu2/a") == directory.folders_of("a") == ()


def test_each_node_that_is_away_is_told(directory: NodeDirectory) -> None:
    directory.set_up("gpu1", [], "1.0", 10.0)
    assert directory.absences == ["the node gpu2 is away since 1970-01-01T00:00:00Z"]
