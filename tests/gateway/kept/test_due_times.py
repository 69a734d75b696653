"""Times of prompts: what people write, on a clock of theirs, from a present that is given."""

from datetime import UTC, datetime

import pytest

from acp_gateway.gateway.kept.due_times import NOT_A_TIME, NoTime, due_time

BERLIN = 60
NEW_YORK = -300


def at(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1000)


NOON = at("2026-11-30T12:00:00")


@pytest.mark.parametrize(
    ("text", "offset", "due"),
    [
        ("14:30", 0, "2026-11-30T14:30:00"),
        ("06:00", 0, "2026-12-01T06:00:00"),
        ("6:00", 0, "2026-12-01T06:00:00"),
        ("12:00", 0, "2026-12-01T12:00:00"),
        ("13:01", BERLIN, "2026-11-30T12:01:00"),
        ("13:00", BERLIN, "2026-12-01T12:00:00"),
        ("06:59", NEW_YORK, "2026-12-01T11:59:00"),
        ("07:01", NEW_YORK, "2026-11-30T12:01:00"),
        ("in 2 h", 0, "2026-11-30T14:00:00"),
        ("in 90 min", BERLIN, "2026-11-30T13:30:00"),
        ("In  1 hour 30 minutes", 0, "2026-11-30T13:30:00"),
        ("in 2d 1h", 0, "2026-12-02T13:00:00"),
        ("in 5m", 0, "2026-11-30T12:05:00"),
        ("2026-12-24T18:00:00+01:00", 0, "2026-12-24T17:00:00"),
        ("2026-12-31T12:00:00Z", 0, "2026-12-31T12:00:00"),
        ("limit", 0, "2026-11-30T17:00:00"),
    ],
)
def test_a_time_is_read_on_the_clock_of_who_writes_it(text: str, offset: int, due: str) -> None:
    assert due_time(text, NOON, offset, at("2026-11-30T17:00:00")) == at(due)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        *(
            (text, NOT_A_TIME)
            for text in ("", "in", "in h", "soon", "25:00", "12:60", "in -1 h", "2026-12-24T18:00:00")
        ),
        ("in 9999 d", "more than 31 days ahead"),
        ("in 0 min", "is over"),
        ("in 32 d", "more than 31 days ahead"),
        ("2026-11-30T12:00:00Z", "is over"),
        ("limit", "no limit"),
    ],
)
def test_what_names_nothing_ahead_is_refused_with_the_reason(text: str, why: str) -> None:
    with pytest.raises(NoTime, match=why.replace("?", ".")):
        due_time(text, NOON)


def test_a_limit_that_is_over_does_not_count() -> None:
    with pytest.raises(NoTime, match="no limit"):
        due_time("limit", NOON, 0, NOON)
