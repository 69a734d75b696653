"""Durations on the command line: what is understood, and what each refusal says."""

import pytest

from acp_gateway.config.schema import parse_duration
from acp_gateway.errors import UsageError


@pytest.mark.parametrize(
    ("text", "seconds"), [("1s", 1.0), ("90s", 90.0), ("15m", 900.0), ("2h", 7200.0), ("7d", 604800.0), ("007s", 7.0)]
)
def test_a_number_and_a_unit_are_seconds(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    assert type(parse_duration(text)) is float


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s",
        "10",
        "1.5h",
        "-1s",
        "+1s",
        "1 s",
        " 1s",
        "1s ",
        "1s\n",
        "1H",
        "1w",
        "1h30m",
        "1e3s",
        "never",
        "٣s",
        "²s",
    ],
)
def test_what_is_not_a_duration_is_refused_with_examples_in_one_line(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_duration(text)
    assert str(caught.value) == "expected a whole number and s, m, h or d behind it, such as 90s, 15m, 2h or 7d"


@pytest.mark.parametrize("text", ["0s", "0d", "000m"])
def test_no_time_at_all_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="longer than nothing"):
        parse_duration(text)


def test_ten_years_are_the_longest() -> None:
    assert parse_duration("3650d") == parse_duration("315360000s") == 315360000.0


@pytest.mark.parametrize("text", ["3651d", "87601h", "5256001m", "315360001s", "9" * 5000 + "s"])
def test_more_than_ten_years_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="at most ten years, 3650d"):
        parse_duration(text)
