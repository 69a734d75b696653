"""Reports: the text of the checked program is escaped and cut in each of them."""

import json
from collections.abc import Sequence
from xml.etree import ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_conformance import agent_checks, client_checks
from acp_conformance.client_script import CLIENT_SCENARIOS, SCENARIOS, Scenario, load_fixture
from acp_conformance.dialogue import Check, Dialogue, Verdict
from acp_conformance.report import as_json, as_junit, has_failed, judge, rows, shown, summary
from tests.conformance.dialogues import with_faults
from tests.fuzz.effort import effort

MUST = Check("a", "MUST", "S", "the rule", lambda _: None)
SHOULD = Check("b", "SHOULD", "S", "the rule", lambda _: None)
FAILED = Verdict("failed", "says \x1b[2J", b'{"a":"\x1b]0;x\x07\xff"}', "initialize")


def test_only_a_failed_must_fails_the_whole() -> None:
    assert has_failed([(MUST, FAILED)])
    assert not has_failed([(SHOULD, FAILED), (MUST, Verdict("passed")), (MUST, Verdict("not shown"))])


def test_a_failure_has_a_second_row_with_its_message_escaped() -> None:
    first, second = rows([(MUST, FAILED)])
    assert first == ("failed", "MUST", "a", "S", "says \\x1b[2J")
    assert second == ("", "", "", "initialize", '{"a":"\\x1b]0;x\\x07\ufffd"}')
    assert rows([(MUST, Verdict("passed"))]) == [("passed", "MUST", "a", "S", "the rule")]


def test_a_long_message_is_cut() -> None:
    assert shown(b"x" * 500) == "x" * 500
    assert shown(b"x" * 10_000_000) == "x" * 500 + " …"


def test_the_summary_counts_outcomes() -> None:
    results = [(MUST, FAILED), (SHOULD, FAILED), (MUST, Verdict("not shown")), (MUST, Verdict("passed"))]
    assert summary(results) == "1 passed, 1 MUST and 1 SHOULD failed, 1 not shown"


def test_json_names_rule_reason_and_message() -> None:
    (entry,) = json.loads(json.dumps(as_json([(MUST, FAILED)])))
    assert (entry["check"], entry["outcome"], entry["scenario"]) == ("a", "failed", "initialize")
    assert "\x1b" not in entry["message"]


def test_junit_is_well_formed_with_one_failure_for_a_must() -> None:
    hostile = Verdict("failed", "]]> \x00 <b>\ud800\uffff", b"</failure>\x00", "s")
    results = [(MUST, hostile), (SHOULD, FAILED), (MUST, Verdict("passed"))]
    suite = ET.fromstring(as_junit(results, "check").encode())  # noqa: S314
    assert (suite.get("tests"), suite.get("failures"), suite.get("skipped")) == ("3", "1", "1")
    assert [len(case) for case in suite] == [1, 1, 0]


def test_each_check_is_judged_once() -> None:
    assert judge([MUST, SHOULD], {}) == [(MUST, Verdict("passed")), (SHOULD, Verdict("passed"))]


@pytest.mark.parametrize(
    ("checks", "scenarios", "outgoing"),
    [(agent_checks.CHECKS, SCENARIOS, False), (client_checks.CHECKS, CLIENT_SCENARIOS, True)],
)
@given(seed=st.integers(0, 2**32))
@effort(15)
def test_messages_with_random_faults_are_judged_without_an_error(
    checks: Sequence[Check], scenarios: Sequence[Scenario], seed: int, *, outgoing: bool
) -> None:
    dialogues = {
        scenario.name: Dialogue(with_faults(load_fixture(scenario.fixture), seed + number, outgoing=outgoing))
        for number, scenario in enumerate(scenarios)
    }
    results = judge(checks, dialogues)
    ET.fromstring(as_junit(results, "suite"))  # noqa: S314 - it is written here.
    assert len(rows(results)) >= len(checks)
