"""The checks of both suites: which ones they share, and their names."""

import pytest

from acp_conformance import agent_checks, client_checks
from acp_conformance.client_script import CLIENT_SCENARIOS, SCENARIOS
from acp_conformance.common_judges import common_checks
from acp_conformance.dialogue import Check


@pytest.mark.parametrize("checks", [agent_checks.CHECKS, client_checks.CHECKS])
def test_each_suite_has_each_common_check_and_no_name_twice(checks: tuple[Check, ...]) -> None:
    names = [check.name for check in checks]
    assert set(common_checks(outgoing=True, requests="", notifications="")) <= set(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize(
    ("checks", "scenarios"), [(agent_checks.CHECKS, SCENARIOS), (client_checks.CHECKS, CLIENT_SCENARIOS)]
)
def test_each_check_is_for_scenarios_that_are_played(checks: tuple[Check, ...], scenarios: tuple[object, ...]) -> None:
    played = {getattr(scenario, "name", None) for scenario in scenarios}
    judges = [getattr(check.judge, "keywords", {}) for check in checks]
    assert {judge["scenario"] for judge in judges if "scenario" in judge} <= played
