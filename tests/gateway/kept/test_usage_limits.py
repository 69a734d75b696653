"""Wordings of agents that name the end of a limit, as people have reported them, and texts that name none."""

import json
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acp_gateway.gateway.kept.usage_limits import LONGEST, last_words, limit_end
from acp_gateway.protocol.text import lookup

ZONES: dict[str, tzinfo] = {
    name: timezone(timedelta(hours=hours))
    for name, hours in {
        "": 1,
        "UTC": 0,
        "Asia/Dhaka": 6,
        "Asia/Tokyo": 9,
        "America/New_York": -4,
        "Etc/GMT+5": -5,
        "Asia/Calcutta": 5.5,
    }.items()
}


def end(text: str, now: str) -> str | None:
    present = datetime.fromisoformat(now).replace(tzinfo=UTC)
    found = limit_end(text, round(present.timestamp() * 1000), ZONES.get)
    return None if found is None else f"{datetime.fromtimestamp(found / 1000, UTC):%Y-%m-%dT%H:%M:%S}"


@pytest.mark.parametrize(
    ("text", "now", "expected"),
    [
        # Claude Code
        ("Claude AI usage limit reached|1749924000", "2025-06-14T17:00", "2025-06-14T18:01:00"),
        (
            "Claude usage limit reached. Your limit will reset at 1pm (Etc/GMT+5).",
            *("2025-06-14T17:57", "2025-06-14T18:01:00"),
        ),
        ("5-hour limit reached ∙ resets 2am", "2025-09-04T17:42", "2025-09-05T01:01:00"),
        ("You've hit your limit · resets 1:30am (Asia/Dhaka)", "2026-04-29T14:58", "2026-04-29T19:31:00"),
        ("You've hit your session limit · resets 8:30pm (Asia/Tokyo)", "2026-07-13T11:31", "2026-07-14T11:31:00"),
        ("You've hit your limit · resets May 5 at 9pm (America/New_York)", "2026-05-03T20:54", "2026-05-06T01:01:00"),
        (
            "You've hit your weekly limit · resets Jul 27 at 4:30am (Asia/Calcutta)",
            "2026-07-24T09:00",
            "2026-07-26T23:01:00",
        ),
        ("You've hit your weekly limit · resets Sep 15 at 7pm", "2026-09-08T12:00", "2026-09-15T18:01:00"),
        ("You've hit your weekly limit · resets Jan 2 at 7pm", "2026-12-30T12:00", "2027-01-02T18:01:00"),
        ("You've hit your limit · resets 2pm (UTC)", "2026-02-09T13:59", "2026-02-09T14:01:00"),
        ("You've hit your limit · resets 2pm (Mars/Olympus)", "2026-02-09T12:59", "2026-02-09T13:01:00"),
        ("Weekly limit reached · resets 10am (Asia/Tokyo) · /upgrade", "2025-12-01T00:30", "2025-12-01T01:01:00"),
        (
            "You\u2019ve hit your limit for Claude messages. Limits will reset at 9:30 AM. View your usage details.",
            *("2026-07-22T07:00", "2026-07-22T08:31:00"),
        ),
        # Codex
        (
            (
                "You've hit your usage limit. Upgrade to Pro (https://openai.com/chatgpt/pricing) or try again in "
                "5 days 22 hours 11 minutes."
            ),
            *("2025-09-19T00:00", "2025-09-24T22:12:00"),
        ),
        (
            (
                "You've hit your usage limit. Upgrade to Plus to continue using Codex "
                "(https://chatgpt.com/explore/plus), or try again at Jul 5th, 2026 8:19 PM."
            ),
            *("2026-06-05T20:19", "2026-07-05T19:20:00"),
        ),
        (
            (
                'Codex error: {"type":"error","error":{"type":"usage_limit_reached","message":"The usage limit has '
                'been reached","plan_type":"plus","resets_at":1777936568,"resets_in_seconds":13872},"status_code":429}'
            ),
            *("2026-05-04T19:25", "2026-05-04T23:17:08"),
        ),
        (
            '{"details":"{\\"type\\":\\"usage_limit_reached\\",\\"resets_at\\":1777936568}"}',
            "2026-05-04T19:25",
            "2026-05-04T23:17:08",
        ),
        # Gemini
        (
            "You have exhausted your capacity on this model. Your quota will reset after 18h56m7s.",
            *("2026-03-18T13:31", "2026-03-19T08:28:07"),
        ),
        ("You exceeded your current quota. Please retry in 42.5s.", "2026-03-18T13:31", "2026-03-18T13:32:42"),
        # Copilot
        (
            (
                "Sorry, you've hit a rate limit that restricts the number of Copilot model requests you can make "
                "within a specific time period. Please try again in 51 hours. Please review our Terms of Service"
            ),
            *("2026-04-14T00:00", "2026-04-16T03:01:00"),
        ),
        (
            "Sorry, you have been rate-limited. Please wait 2 minutes before trying again or consider switching.",
            *("2026-04-15T00:00", "2026-04-15T00:03:00"),
        ),
        (
            "Your request was rate-limited. Please wait 587 hours 33 minutes before trying again.",
            "2025-03-13T00:00",
            "2025-04-06T11:34:00",
        ),
        (
            (
                "You've reached your weekly rate limit. Please wait for your limit to reset on April 20, 2026 at "
                "2:00 AM or switch to auto model to continue."
            ),
            *("2026-04-18T12:00", "2026-04-20T01:01:00"),
        ),
        # Providers behind opencode
        (
            "Usage limit reached for 5 hour. Your limit will reset at 2026-04-11 20:30:24",
            *("2026-04-11T16:00", "2026-04-11T19:31:24"),
        ),
    ],
)
def test_the_end_of_a_limit_is_read_from_what_the_agent_says(text: str, now: str, expected: str) -> None:
    assert end(text, now) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "You have exhausted your daily quota on this model.",
        "Error from provider (Console): Rate limit exceeded. Please try again later.",
        "The meeting resets 3pm",
        "usage limit reached|9999999999",
        "the limit resets 14pm or Foo 5 at 9pm",
        "You've hit your limit · resets Feb 31 at 9pm",
        "the limit: please wait a moment, or try again in a while",
    ],
)
def test_what_names_no_time_ahead_names_no_end(text: str) -> None:
    assert end(text, "2026-01-01T12:00") is None


WORDS = (
    "limit ",
    "resets ",
    "again in ",
    "Feb 29 ",
    "at 9pm ",
    "5 days ",
    "9" * 12,
    " (UTC)",
    "reset at 2026-13-41 25:61",
    "|",
)


@given(st.lists(st.sampled_from(WORDS) | st.text(max_size=5), max_size=12))
def test_nothing_that_an_agent_says_is_an_error(parts: Any) -> None:
    found = limit_end("limit " + "".join(parts), 1_800_000_000_000, lambda _: None)
    assert found is None or found > 1_800_000_000_000


def chunk(text: str) -> bytes:
    return json.dumps({"params": {"update": {"content": {"type": "text", "text": text}}}}).encode()


LIMIT = "Please try again in 51 hours: the limit is reached."


def test_a_large_update_hides_no_limit_that_is_named_after_it() -> None:
    now = "2026-09-08T12:00"
    assert end(last_words([chunk("x" * 100_000), chunk(LIMIT)]), now) == "2026-09-10T15:01:00"


def test_no_large_update_is_read_as_messages_of_megabytes_may_end_each_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    monkeypatch.setattr(lookup, "text_at", lambda update, *_: read.append(len(update)))
    updates = [chunk("\U0001f600" * LONGEST), chunk("x" * 5_000_000), chunk("x")]
    assert last_words(updates) == ""
    assert read == [len(updates[0]), len(updates[2])]


def test_a_long_text_names_no_limit() -> None:
    now = "2026-09-08T12:00"
    assert end(LIMIT + " " * (LONGEST - len(LIMIT)), now) == "2026-09-10T15:01:00"
    assert end(LIMIT + "x" * LONGEST, now) is None
