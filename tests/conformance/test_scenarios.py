"""The bundled fixtures, and the scenarios that use them."""

from importlib.resources import files
from pathlib import Path

import pytest

from acp_conformance.client_script import CLIENT_SCENARIOS, NEW_CLIENT_SCENARIOS, NEW_SCENARIOS, SCENARIOS, load_fixture
from acp_gateway.gateway.events.replay import Player, RecordedConnection
from tests.conformance.dialogues import fixture_names
from tests.kit.schemas import check_message


def test_every_fixture_is_played_and_every_scenario_has_one() -> None:
    scenarios = (*SCENARIOS, *CLIENT_SCENARIOS, *NEW_SCENARIOS, *NEW_CLIENT_SCENARIOS)
    assert {scenario.fixture for scenario in scenarios} == set(fixture_names())


@pytest.mark.parametrize("name", fixture_names())
def test_every_fixture_can_be_replayed_and_begins_with_initialize(name: str) -> None:
    recording = RecordedConnection.read(Path(str(files("acp_conformance"))) / "fixtures" / f"{name}.jsonl")
    assert recording.skipped_lines == 0
    assert len(recording.messages) == len(load_fixture(name))
    assert recording.messages[0].message.method == "initialize"
    assert len(Player(recording.messages).receive(recording.messages[0].message.text)) == 1


def test_scenarios_of_one_kind_of_program_have_names_of_their_own() -> None:
    for scenarios in (SCENARIOS, CLIENT_SCENARIOS, NEW_SCENARIOS, NEW_CLIENT_SCENARIOS):
        assert len({scenario.name for scenario in scenarios}) == len(scenarios)


@pytest.mark.parametrize("name", [name for name in fixture_names() if name.startswith("new-")])
def test_fixtures_of_version_2_fit_its_schema(name: str) -> None:
    asked: dict[tuple[bool, str], str] = {}
    for line in load_fixture(name):
        if line.kind == "request":
            asked[line.outgoing, line.key] = line.method
        method = asked.get((not line.outgoing, line.key), "")
        check_message(2, "agent" if line.outgoing else "client", line.value, method)
