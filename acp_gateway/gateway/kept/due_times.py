"""Times at which prompts are to be sent, as people write them: `06:00`, `in 2 h`, RFC 3339, or the end of a limit."""

import re
from datetime import UTC, datetime, timedelta, timezone
from typing import Final

LIMIT: Final = "limit"
"""Word for the end of the limit that the agent has named."""

LATEST: Final = timedelta(days=31)
"""Maximum time ahead: limits of a month are the longest."""

NOT_A_TIME: Final = 'is not a time: write "06:00", "in 2 h", "in 1 h 30 min", "limit", or a date and time with its zone'

_CLOCK: Final = re.compile(r"(\d{1,2}):(\d{2})")

_SPAN: Final = re.compile(
    r"in(?: (?P<days>\d{1,4}) ?d(?:ays?)?)?(?: (?P<hours>\d{1,4}) ?h(?:ours?|rs?)?)?"
    r"(?: (?P<minutes>\d{1,6}) ?m(?:in(?:ute)?s?)?)?"
)


class NoTime(ValueError):
    """A text that names no time at which a prompt can be sent; its message says why."""


def due_time(at: str, now: int, offset: int = 0, limited_until: int | None = None) -> int:
    """Return the time that a text names. Raises `NoTime`.

    Args:
        at: the text.
        now: the present time. All times are in milliseconds since 1970.
        offset: minutes by which the clock of the text is ahead of UTC.
        limited_until: the end of the limit that the agent has named, if it has.
    """
    shown = " ".join(at.split())
    if shown == LIMIT:
        if limited_until is None or limited_until <= now:
            raise NoTime("the agent has named no limit whose end is ahead: give a time")
        return limited_until
    present = datetime.fromtimestamp(now / 1000, UTC)
    found = _read(shown, present, offset)
    if found is None:
        raise NoTime(f"{at!r:.80} {NOT_A_TIME}")
    if found <= present:
        raise NoTime(f"{shown:.80} is over")
    if found - present > LATEST:
        raise NoTime(f"{shown:.80} is more than {LATEST.days} days ahead")
    return round(found.timestamp() * 1000)


def _read(text: str, present: datetime, offset: int) -> datetime | None:
    try:
        if clock := _CLOCK.fullmatch(text):
            here = present.astimezone(timezone(timedelta(minutes=offset)))
            today = here.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
            return today if today > present else today + timedelta(days=1)
        if (span := _SPAN.fullmatch(text.lower())) and any(span.groups()):
            return present + timedelta(**{unit: int(number or 0) for unit, number in span.groupdict().items()})
        named = datetime.fromisoformat(text)
    except (ValueError, OverflowError):
        return None
    return None if named.tzinfo is None else named
