"""The order in which Trio runs tasks that are ready at the same time. It is random, so a test must not depend on it."""

import sys


def order_tasks(seed: str) -> None:
    """Let the order follow from a seed, where this version of Trio allows that; pytest-trio has it sort them first."""
    source = getattr(sys.modules.get("trio._core._run"), "_r", None)
    if source is not None:
        source.seed(seed)
