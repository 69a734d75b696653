"""Effort of the fuzzers: a little and always the same in `make test`, much and never the same in `make fuzz`.

`make fuzz` sets `FUZZ_EFFORT`, a factor, draws the seed, and runs each test file that imports `effort`; see `rounds`.
"""

import os
from typing import Final

from hypothesis import HealthCheck, settings

VARIABLE: Final = "FUZZ_EFFORT"
"""Times as many examples, drawn by chance; unset in `make test`."""


def effort(examples: int, *, steps: int = 50) -> settings:
    """Return the settings for a test with so many examples in `make test`. A slow machine is not a failure.

    `steps` is for state machines: the longest sequence of rules in one example.
    """
    factor = os.environ.get(VARIABLE)
    return settings(
        max_examples=examples * int(factor or 1),
        stateful_step_count=steps,
        derandomize=factor is None,
        # What was found is to be written into the test as an example, and not to wait in a hidden file.
        database=None,
        deadline=None,
        print_blob=True,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
