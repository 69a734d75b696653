"""The command `usage`: what a gateway tells that sessions have cost, in a table and as JSON."""

import json
import re
from typing import Any

import pytest

from acp_gateway.cli.gateway import usage as usage_module
from acp_gateway.client import control
from acp_gateway.client.control import UsageAnswer
from acp_gateway.gateway.session_api.requests import SUMS_BY
from tests.kit.doubles import run_command as run

AMOUNTS: dict[str, Any] = dict.fromkeys(("turns", "tokens", "input", "output", "cachedRead", "cachedWrite"), 0)
ROW = AMOUNTS | {"key": "2026-11-30", "title": None, "machine": None, "turns": 2, "tokens": 12_345, "cachedRead": 5}
ROW |= {"costs": {"EUR": 1.5, "USD": 0.125}}
TOTAL = AMOUNTS | {"costs": {"EUR": 1.5, "USD": 0.125}, "turns": 2, "tokens": 12_345, "cachedRead": 5}
ANSWER = UsageAnswer([ROW], TOTAL)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Answer with `ANSWER`, or what a test puts behind it; return what was asked for."""
    asked: list[tuple[str, str]] = []

    async def answer(destination: Any, by: str, since: str, *, time_limit: float) -> UsageAnswer:
        asked.append((by, since))
        return answers.pop() if answers else ANSWER

    monkeypatch.setattr(control, "usage", answer)
    return asked


answers: list[UsageAnswer] = []


def test_sums_are_rows_with_currencies_apart_and_a_total(asked: list[Any]) -> None:
    shown = run("usage", "unix:///tmp/none", "--plain")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines() == [
        "2026-11-30  1.50 EUR, 0.12 USD  2  12,345  0  0  5",
        "total       1.50 EUR, 0.12 USD  2  12,345  0  0  5",
    ]
    ((by, since),) = asked
    assert by == "day"
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", since)


def test_sums_of_sessions_have_titles_and_those_of_nodes_their_machine(asked: list[Any]) -> None:
    there = ROW | {"key": "gpu2/s1", "machine": "gpu2", "title": "\x1b[2JFix"}
    answers.append(UsageAnswer([ROW | {"key": "s1"}, there], TOTAL, 3, ("gpu3",)))
    shown = run("usage", "unix:///tmp/none", "--by", "session", "--since", "2026-11-22")
    heads, first, second, _ = shown.stdout.splitlines()
    assert heads.split() == ["SESSION", "COST", "TURNS", "TOKENS", "INPUT", "OUTPUT", "CACHED", "MACHINE", "TITLE"]
    assert (first.split()[-2:], second.split()[-2:]) == (["-", "-"], ["gpu2", r"\x1b[2JFix"])
    assert "3 more" in shown.stderr
    assert "did not answer: gpu3" in shown.stderr
    assert asked == [("session", "2026-11-22")]


def test_sums_are_json_for_programs(asked: list[Any]) -> None:
    told = json.loads(run("usage", "unix:///tmp/none", "--json", "--by", "agent", "--since", "2026-11-22").stdout)
    assert told == {
        "by": "agent",
        "since": "2026-11-22",
        "rows": [ROW],
        "total": TOTAL,
        "more": 0,
        "missing": [],
    }


def test_nothing_that_was_told_is_a_line_and_a_wrong_day_an_error(asked: list[Any]) -> None:
    answers.append(UsageAnswer([], AMOUNTS | {"costs": {}}))
    shown = run("usage", "unix:///tmp/none", "--since", "2026-11-22")
    assert (shown.stdout, shown.stderr) == ("", "No agent has told a cost or tokens since 2026-11-22.\n")
    wrong = run("usage", "unix:///tmp/none", "--since", "yesterday")
    assert wrong.exit_code != 0
    assert "such as 2026-11-22" in wrong.stderr
    assert usage_module._BY == SUMS_BY
