"""Fuzz until the time is up, as `make fuzz` does: rounds of all fuzzers, each with a seed that is told and repeats it.

Then slow messages are searched for, see `slow`.

FUZZ_MINUTES  how long, 10 by default; the last round may take longer
FUZZ_EFFORT   how many times as many examples a round has as `make test`, 10 by default
FUZZ_SEED     repeat the one round that had this seed, with the same effort and the same code
"""

import os
import re
import secrets
import subprocess
import sys
import time
from pathlib import Path

from tests.fuzz import slow
from tests.fuzz.effort import VARIABLE

TESTS = Path(__file__).parents[1]


def say(text: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def files() -> list[str]:
    """Return the test files whose number of examples is a matter of effort."""
    named = re.compile("^from (hypothesis|tests.fuzz.effort) import ", re.MULTILINE)
    return sorted(str(path) for path in TESTS.rglob("test_*.py") if named.search(path.read_text()))


def run(seed: int, effort: str) -> bool:
    """One round; whether all was well."""
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", f"--hypothesis-seed={seed}", *files()]
    return subprocess.run(command, env=os.environ | {VARIABLE: effort}, check=False).returncode == 0


def main() -> int:
    """Return the exit code: 1 where something was found."""
    effort, repeated = os.environ.get(VARIABLE, "10"), os.environ.get("FUZZ_SEED")
    end = time.monotonic() + 60 * float(os.environ.get("FUZZ_MINUTES", "10"))
    rounds = 0
    while rounds == 0 or (repeated is None and time.monotonic() < end):
        seed = secrets.randbelow(2**32) if repeated is None else int(repeated)
        rounds += 1
        say(f"round {rounds}: seed {seed}, effort {effort}")
        if not run(seed, effort):
            say(f"Something was found. The same again: make fuzz FUZZ_SEED={seed} {VARIABLE}={effort}")
            return 1
    say(f"Nothing was found in {rounds} rounds.")
    return slow.main()


if __name__ == "__main__":
    sys.exit(main())
