"""Ends of usage limits, as agents name them in errors and messages: a table of their wordings.

A limit that is over allows prompts again. Agents tell it to people: in their words, in the zone of some clock, mostly
without a date.
"""

import re
from collections.abc import Callable, Iterable
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final, TypeAlias

from acp_gateway.gateway.kept.due_times import LATEST
from acp_gateway.protocol.text import lookup

Zones: TypeAlias = Callable[[str], tzinfo | None]
"""Returns the zone of a name, or that of the agent's clock for an empty one; None if it is unknown."""

MARGIN: Final = timedelta(minutes=1)
"""Time after the end of a limit until it is believed: clocks differ."""

LAST_UPDATES: Final = 4
"""Number of the last updates of a turn in which the end of a limit is looked for: some follow the message with it."""

LONGEST: Final = 4096
"""Maximum characters of a text in which the end of a limit is looked for. Agents name it in a short message."""

_ABOUT: Final = re.compile(r"limit|quota|capacity", re.IGNORECASE)

_EPOCH: Final = r"(?P<epoch>\d{10})"
_SPAN: Final = (
    r"(?:(?P<days>\d+) ?d(?:ays?)?(?![a-z]) ?)?(?:(?P<hours>\d+) ?h(?:(?:ou)?rs?)?(?![a-z]) ?)?"
    r"(?:(?P<minutes>\d+) ?m(?:in(?:ute)?s?)?(?![a-z]) ?)?(?:(?P<seconds>\d+)(?:\.\d+)? ?s(?:ec(?:ond)?s?)?\b)?"
)
_DATE: Final = r"(?:(?P<month>[A-Z][a-z]{2})[a-z]* (?P<day>\d{1,2})(?:st|nd|rd|th)?(?:, (?P<year>\d{4}))?,? (?:at )?)?"
_CLOCK: Final = r"(?P<hour>\d{1,2})(?::(?P<minute>\d{2}))? ?(?P<half>[ap]m)\b(?: \((?P<zone>[\w/+-]{1,64})\))?"

WORDINGS: Final = tuple(
    re.compile(wording, re.IGNORECASE)
    for wording in (
        # Claude Code: "Claude AI usage limit reached|1749924000".
        rf"limit reached\|{_EPOCH}",
        # Codex, and what passes its errors on: {"type":"usage_limit_reached",…,"resets_at":1777936568}.
        rf"resets_at\W{{1,6}}{_EPOCH}",
        # Providers behind opencode: "Your limit will reset at 2026-04-11 20:30:24".
        r"reset at (?P<date>\d{4}-\d{2}-\d{2})[ T](?P<time>\d{2}:\d{2}(?::\d{2})?)(?P<utc>Z?)",
        # Codex: "or try again in 5 days 22 hours 11 minutes". Copilot: "Please try again in 51 hours", "Please wait 587
        # hours 33 minutes before". Gemini: "Your quota will reset after 18h56m7s", "Please retry in 42.5s".
        rf"(?:again in|reset after|retry in|please wait) {_SPAN}",
        # Claude Code: "resets 1:30am (Asia/Dhaka)", "resets May 5 at 9pm (America/New_York)", "will reset at 9:30 AM".
        # Codex: "try again at Jul 5th, 2026 8:19 PM". Copilot: "to reset on April 20, 2026 at 2:00 AM".
        rf"(?:resets|reset|again) (?:at |on )?{_DATE}{_CLOCK}",
    )
)
"""Wordings in which agents name the end of a limit, the most exact first."""

_MONTHS: Final = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")


def last_words(updates: Iterable[bytes]) -> str:
    """Return the texts of messages in a turn's last updates, without those of updates that are longer than such a text
    can be."""
    # A character takes at most 12 bytes of JSON, and some are around the text.
    short = (update for update in updates if len(update) <= 16 * LONGEST)
    return "".join(lookup.text_at(update, "params", "update", "content", "text") or "" for update in short)


def limit_end(text: str, now: int, zones: Zones) -> int | None:
    """Return the time from which a prompt may be sent again, as a text tells it; None if it tells none, or is long.

    `now` and the result are in milliseconds since 1970.
    """
    told = " ".join(text.split()) if len(text) <= LONGEST else ""
    if _ABOUT.search(told) is None:
        return None
    present = datetime.fromtimestamp(now / 1000, UTC)
    for wording in WORDINGS:
        found = wording.search(told)
        end = None if found is None else _read(found.groupdict(), present, zones)
        if end is not None and present < end <= present + LATEST:
            return round((end + MARGIN).timestamp() * 1000)
    return None


def _read(named: dict[str, str | None], present: datetime, zones: Zones) -> datetime | None:
    try:
        if epoch := named.get("epoch"):
            return datetime.fromtimestamp(int(epoch), UTC)
        if date := named.get("date"):
            zone = UTC if named["utc"] else zones("") or UTC
            return datetime.fromisoformat(f"{date}T{named['time']}").replace(tzinfo=zone)
        if named.get("hour"):
            return _by_clock(named, present, zones)
        span = timedelta(**{unit: int(number) for unit, number in named.items() if number})
        return present + span if span else None
    except (ValueError, OverflowError):
        return None


def _by_clock(named: dict[str, str | None], present: datetime, zones: Zones) -> datetime:
    """Return the next time at which a clock shows what is named. Raises `ValueError`."""
    zone, hour = zones(named["zone"] or "") or zones("") or UTC, int(named["hour"] or 0)
    if hour > 12:
        raise ValueError("a clock with halves of a day has 12 hours")
    hour = hour % 12 + (12 if (named["half"] or "").lower() == "pm" else 0)
    here = present.astimezone(zone).replace(hour=hour, minute=int(named["minute"] or 0), second=0, microsecond=0)
    if not named["month"]:
        return here if here > present else here + timedelta(days=1)
    here = here.replace(month=_MONTHS.index(named["month"].lower()) + 1, day=int(named["day"] or 0))
    if named["year"]:
        return here.replace(year=int(named["year"]))
    return here if here > present else here.replace(year=here.year + 1)
