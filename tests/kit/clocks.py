"""Clocks of tests."""

from typing import Any

import trio
from trio.testing import MockClock


def run_ahead(*arguments: Any, **options: Any) -> Any:
    """Run as `trio.run` does, with a clock that jumps to the next deadline when no task is ready."""
    return trio.run(*arguments, **options | {"clock": options.get("clock") or MockClock(autojump_threshold=0)})
