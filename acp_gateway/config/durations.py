"""Parses durations of the command line and of configuration files: 90s, 15m, 2h, 7d."""

import re

from acp_gateway.errors import UsageError

DURATION = re.compile(r"([0-9]+)([smhd])")
"""Form of a duration, which may still be too short or too long."""

_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86400}

_MAX_DAYS = 3650
"""Ten years. A longer duration is a typo or means "for ever"; within it every date can be represented."""


def parse_duration(text: str) -> float:
    """Parse a whole number above 0 and one of `s`, `m`, `h`, `d`, at most ten years; return seconds.

    Raises UsageError for anything else.
    """
    match = DURATION.fullmatch(text)
    if match is None:
        raise UsageError("expected a whole number and s, m, h or d behind it, such as 90s, 15m, 2h or 7d")
    # Not int(): it raises ValueError for some thousand digits, which are merely infinite here.
    seconds = float(match[1]) * _SECONDS[match[2]]
    if seconds == 0:
        raise UsageError("a duration has to be longer than nothing, such as 90s, 15m, 2h or 7d")
    if seconds > _MAX_DAYS * _SECONDS["d"]:
        raise UsageError(f"a duration is at most ten years, {_MAX_DAYS}d")
    return seconds
