"""Effort of the fuzzers: a little and always the same in `make test`, much and never the same in `make fuzz`.

`make fuzz` sets `FUZZ_EFFORT`, a factor, draws the seed, and runs each test file that uses Hypothesis or `effort`; see
`rounds`. Tests without settings of their own have those of `effort(100)`.
"""

import os
from collections.abc import Sequence
from typing import Final, TypeVar

from hypothesis import HealthCheck, settings

VARIABLE: Final = "FUZZ_EFFORT"
"""Times as many examples, drawn by chance; unset in `make test`."""

SHARE: Final = 0.2
"""Part of the examples that `make test` tries: what more would find is not worth the time of each commit."""

FEW: Final = 10
"""So many examples are all tried, since the first of them are the simplest."""

T = TypeVar("T")


def effort(examples: int, *, steps: int = 50) -> settings:
    """Return the settings for a test with so many examples times the effort. A slow machine is not a failure.

    `steps` is for state machines: the longest sequence of rules in one example.
    """
    factor = os.environ.get(VARIABLE)
    return settings(
        max_examples=max(round(examples * SHARE), min(examples, FEW)) if factor is None else examples * int(factor),
        stateful_step_count=steps,
        derandomize=factor is None,
        # What was found is to be written into the test as an example, and not to wait in a hidden file.
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )


def some(cases: Sequence[T], every: int) -> Sequence[T]:
    """Return all of the cases that a test tries in turn; in `make test` one of so many."""
    return cases if VARIABLE in os.environ else cases[::every]
