"""A search for slow messages: it goes where a byte takes longest.

A message is grown from a plan: who says it, its frame, which is a method with what it needs to be looked into, and a
few patterns that are repeated until it is as large as wanted. Plans are mutated, and kept where what reads the message
takes longer for a byte of it. A plan is a short tuple, and repeats what it found.

`python -m tests.fuzz.slow` is a part of `make fuzz`; it fails where a message takes more than `PER_MIB` and `ALWAYS`,
or more than `AT_MOST`.
Processor time is compared, the least of several runs, and it is measured beside work that is always the same: on a
machine that is slower, or that others use, more is allowed.

SLOW_MINUTES  how long, 2 by default
FUZZ_SEED     repeat the search that had this seed
"""

import gc
import json
import logging
import os
import random
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from acp_gateway.config.schema import LARGEST_MESSAGE
from acp_gateway.gateway.gateway import PROMPT_SIZE
from tests.fuzz.slow_http import Held
from tests.fuzz.slow_plans import HOLES, OF_STRANGERS, SIDES, Plan, mutated, random_plan
from tests.fuzz.slow_sides import steps

PER_MIB: Final = 0.050
ALWAYS: Final = 0.020
AT_MOST: Final = 0.250
"""Seconds for which a message may hold the loop at once: for each MiB of it, besides, and whatever its size."""

USUAL: Final = 0.035
"""Seconds that `_reference` takes on one of two processors of a small virtual machine."""

REPEATS: Final = 5
"""Measurements of a message that seems to be slow; the least counts."""

LARGE: Final = (4 * 2**20, 16 * 2**20, LARGEST_MESSAGE)
"""Bytes of the messages that the slowest plans are tried with at last, up to the largest `max_message_size`."""

GROWN: Final = 2
"""The number of plans for each reader that are tried so: each takes seconds."""

KEPT: Final = 6
"""The number of plans for each reader that are mutated; a reader that is slower than others has no more."""


def _reference() -> float:
    """Return the processor seconds of some work in Python and C."""
    begun = time.thread_time()
    found: dict[bytes, object] = {}
    for number in range(20_000):
        found[str(number).encode()] = json.loads(f'{{"a":[{number}]}}')
    return time.thread_time() - begun


def slowness() -> float:
    """Return how many times the usual time this machine takes at the moment, at least 1."""
    return max(1.0, min(_reference() for _ in range(3)) / USUAL)


def seconds(plan: Plan, times: int = 1) -> float:
    """Return the longest time that the loop is kept at once, in processor seconds, the best of `times` runs."""
    best = float("inf")
    for _ in range(times):
        longest = 0.0
        # What the search itself has left behind is not part of a message.
        gc.collect()
        for step in steps(plan):
            begun = time.thread_time()
            measured = step()
            longest = max(longest, measured if isinstance(measured, Held) else time.thread_time() - begun)
        best = min(best, longest)
    return best


def allowed(size: int, reader: str = "core") -> float:
    """Return the seconds for which a message of so many bytes may hold the loop of its reader."""
    seconds = ALWAYS + PER_MIB * size / 2**20
    # The loop of the client beside an editor is that editor's alone.
    return seconds if reader == "shim" else min(seconds, AT_MOST)


def rate(plan: Plan) -> float:
    """Return which part of what is allowed a message takes; more than 1 only if several measurements say so."""
    limit = allowed(len(plan.text()), plan.reader)
    first = seconds(plan) / limit
    return first if first < 0.7 else seconds(plan, REPEATS) / (limit * slowness())


def slowest(rated: Iterable[tuple[float, Plan]], count: int) -> list[tuple[float, Plan]]:
    """Return so many of the slowest plans for each reader, the slowest first."""
    left = Counter(dict.fromkeys(range(len(SIDES)), count))
    best = []
    for taken, plan in sorted(rated, key=lambda pair: pair[0], reverse=True):
        if left[plan.side] > 0:
            left[plan.side] -= 1
            best.append((taken, plan))
    return best


def search(seed: int, minutes: float, say: Callable[[str], object]) -> list[Plan]:
    """Look for slow messages for so long; those that take too long."""
    chance = random.Random(seed)  # noqa: S311
    end = time.monotonic() + 60 * minutes
    best = [(rate(plan), plan) for plan in (random_plan(chance, 200_000) for _ in range(12))]
    found: list[Plan] = []

    def take(plan: Plan) -> float:
        taken = rate(plan)
        if taken > 1:
            say(f"too slow, {taken:.1f} times what is allowed: {plan}")
            found.append(plan)
        return taken

    while time.monotonic() < end:
        _, parent = chance.choice(best)
        plan = random_plan(chance, 200_000) if chance.random() < 0.3 else mutated(parent, chance)
        taken = take(plan)
        if taken <= 1:
            best = slowest([*best, (taken, plan)], KEPT)
    for taken, plan in slowest(best, 1):
        say(f"{taken:.2f} of what is allowed: {plan}")
    for size in LARGE:
        for _, plan in slowest((pair for pair in best if pair[1].reader not in OF_STRANGERS), GROWN):
            # Most of a large message that passes the check is in long strings.
            for hole in {plan.hole, HOLES.index("string")}:
                large = plan._replace(size=min(size, PROMPT_SIZE) if plan.reader == "browser" else size, hole=hole)
                say(f"{take(large):.2f} of what is allowed, with {size >> 20} MiB: {large}")
    return found


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Return the exit code: 1 where something was found."""
    seed = int(os.environ.get("FUZZ_SEED") or secrets.randbelow(2**32))
    # What is recorded and logged would fill the terminal.
    logging.disable(logging.CRITICAL)
    say(f"slow messages: seed {seed}")
    found = search(seed, float(os.environ.get("SLOW_MINUTES", "2")), say)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
