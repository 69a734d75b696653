"""Clocks of tests."""

from datetime import UTC, datetime
from typing import Any

import trio
from trio.testing import MockClock


def run_ahead(*arguments: Any, **options: Any) -> Any:
    """Run as `trio.run` does, with a clock that jumps to the next deadline when no task is ready."""
    return trio.run(*arguments, **options | {"clock": options.get("clock") or MockClock(autojump_threshold=0)})


NOON = datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp()


class Clock:
    """A time that passes when a test says so."""

    def __init__(self, now: float = NOON) -> None:
        self.now = now
        """Seconds since 1970."""

    def __call__(self) -> float:
        return self.now
