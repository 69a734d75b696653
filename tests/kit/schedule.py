"""The order in which Trio runs tasks that are ready at the same time. It is random, so a test must not depend on it."""

import random
import sys


def order_tasks(seed: str) -> None:
    """Let that order follow from a seed, where this version of Trio allows it, and random numbers such as jitter."""
    random.seed(seed)
    source = getattr(sys.modules.get("trio._core._run"), "_r", None)
    if source is not None:
        source.seed(seed)  # Before they are put into this order, tasks are sorted: pytest-trio has asked for that.
