from dataclasses import replace
from pathlib import Path

import pytest

from acp_gateway.config.addresses import parse_target
from acp_gateway.config.nodes import NodeSection
from acp_gateway.errors import Busy, UnknownAgent
from acp_gateway.gateway.node_directory import MAX_AGENTS, NO_SESSIONS, Counts, NodeDirectory
from acp_gateway.made.machine import Machine, read_told

SECTION = NodeSection(url=parse_target("wss://gpu.example"), token_file=Path("/token"))
OTHER = replace(SECTION, token_file=Path("/other"))
MOVED = replace(SECTION, url=parse_target("wss://moved.example"))


COUNTS = Counts(3, 2, 1)


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


def test_the_cause_of_an_absence_is_told_with_its_reason_for_as_long_as_it_lasts(directory: NodeDirectory) -> None:
    directory.set_away("gpu1", "refused", 10.0, "forbidden")
    assert [(node["why"], node["reason"]) for node in directory.describe()] == [
        ("refused", "forbidden"),
        ("not reached yet", None),
    ]
    directory.set_up("gpu1", [], "1.0", 20.0)
    assert directory.describe()[0]["reason"] is None


def test_each_node_that_is_away_is_told(directory: NodeDirectory) -> None:
    directory.set_up("gpu1", [], "1.0", 10.0)
    # Nothing is known of one that was not asked yet.
    assert directory.absences == []
    directory.set_away("gpu2", "no route", 0.0)
    assert directory.absences == ["the node gpu2 is away since 1970-01-01T00:00:00Z"]


# Nodes that come and go


def test_one_mapping_has_the_sections_of_all_nodes_for_as_long_as_the_directory_is(directory: NodeDirectory) -> None:
    sections = directory.sections
    directory.add("gpu3", SECTION, 10.0)
    directory.configure({"gpu1": SECTION}, 20.0)
    assert sections == {"gpu1": SECTION, "gpu3": SECTION}
    assert set(directory.nodes) == {"gpu1", "gpu3"}
    assert sections is directory.sections
    directory.remove("gpu3")
    assert set(sections) == set(directory.nodes) == {"gpu1"}


def test_a_node_that_is_added_was_not_reached_since_then(directory: NodeDirectory) -> None:
    directory.add("gpu3", SECTION, 1_000_000_000.0)
    with pytest.raises(Busy, match="the node gpu3 is away since 2001-09-09T01:46:40Z: not reached yet"):
        directory.check_agent("gpu3/a")


def test_a_section_of_the_configuration_wins_over_a_discovered_one(directory: NodeDirectory) -> None:
    directory.add("gpu1", OTHER, 10.0)
    assert directory.sections["gpu1"] == SECTION
    directory.remove("gpu1")
    assert directory.sections["gpu1"] == SECTION
    directory.add("gpu3", OTHER, 10.0)
    directory.configure({"gpu3": SECTION}, 20.0)
    assert directory.sections == {"gpu3": SECTION}
    assert [node["configured"] for node in directory.describe()] == [True]
    # It is a node as before when its section goes.
    directory.configure({}, 30.0)
    assert directory.sections == {"gpu3": OTHER}
    assert [node["configured"] for node in directory.describe()] == [False]


def test_removing_what_was_not_discovered_changes_nothing(directory: NodeDirectory) -> None:
    for name in ("gpu1", "gpu3"):
        directory.remove(name)
    assert set(directory.nodes) == {"gpu1", "gpu2"}


def test_a_node_is_forgotten_with_its_agents_when_it_is_removed(directory: NodeDirectory) -> None:
    directory.add("gpu3", SECTION, 10.0)
    directory.set_up("gpu3", ["a"], "1.0", 20.0)
    directory.remove("gpu3")
    assert directory.agents == []
    directory.add("gpu3", SECTION, 30.0)
    assert directory.nodes["gpu3"].agents is None


@pytest.mark.parametrize("section", [OTHER, MOVED])
def test_a_node_with_another_section_keeps_what_is_known_of_it(section: NodeSection, directory: NodeDirectory) -> None:
    directory.set_up("gpu1", ["a"], "1.0", 10.0)
    directory.set_load("gpu1", None, COUNTS)
    directory.configure({"gpu1": section, "gpu2": SECTION}, 20.0)
    node = directory.nodes["gpu1"]
    assert (node.agents, node.version, node.counts) == (("a",), "1.0", COUNTS)
    # Another address may be that of another machine.
    assert (node.up, node.since) == ((True, 10.0) if section == OTHER else (False, 20.0))
    assert directory.set_away("gpu1", "refused", 30.0)


def test_the_first_failure_with_another_section_is_news(directory: NodeDirectory) -> None:
    directory.set_away("gpu1", "the token was refused", 10.0)
    directory.configure({"gpu1": SECTION}, 20.0)
    assert not directory.set_away("gpu1", "the token was refused", 30.0)
    directory.configure({"gpu1": OTHER}, 40.0)
    assert directory.set_away("gpu1", "the token was refused", 50.0)
    assert directory.nodes["gpu1"].since == 0.0


def test_another_source_is_believed_only_until_the_node_has_answered(directory: NodeDirectory) -> None:
    directory.assume("gpu1", ["a", "/"], version="0.9")
    node = directory.nodes["gpu1"]
    assert (node.up, node.agents, node.version) == (False, ("a",), "0.9")
    directory.check_agent("gpu1/a")
    directory.set_up("gpu1", ["b"], "1.0", 10.0)
    directory.set_away("gpu1", "cut", 20.0)
    directory.assume("gpu1", ["a"])
    assert (node.agents, node.version) == (("b",), "1.0")


def test_the_load_of_a_node_is_of_the_time_at_which_it_answers(directory: NodeDirectory) -> None:
    load = {"sessions": 3, "turns": 1, "lag": 0.004}
    assert not directory.nodes["gpu1"].seen
    directory.set_up("gpu1", [], "1.0", 10.0)
    directory.set_load("gpu1", load, COUNTS)
    machine = Machine(8, 0.5)
    directory.set_load("gpu1", load, COUNTS, machine)
    told = directory.describe()[0]["load"].pop("machine")
    assert read_told(told) == machine
    directory.set_load("gpu1", None, COUNTS, machine)
    assert directory.nodes["gpu1"].machine is None
    directory.set_load("gpu1", load, COUNTS)
    directory.set_up("gpu1", [], "1.0", 20.0)
    assert [node["load"] for node in directory.describe()] == [load, None]
    assert [Counts(*(node[name] for name in Counts._fields)) for node in directory.describe()] == [COUNTS, NO_SESSIONS]
    directory.set_away("gpu1", "cut", 30.0)
    assert [node["load"] for node in directory.describe()] == [None, None]
    assert directory.nodes["gpu1"].seen == 20.0
