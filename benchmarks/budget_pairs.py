"""Compares the cost of one message with that at another commit, by interleaved pairs of runs of `benchmarks.budget`.

The other commit is checked out into a temporary folder, and its own `benchmarks/budget.py` is run there with the
libraries of this environment. A run of one commit follows a run of the other, so that a machine which becomes slower
does so for both; of each step the fastest run counts.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

PAIRS: Final = 5
"""Runs of each commit, and as many more where a step seems to cost too much: two runs of one commit differ by some
percent in a step, also on a quiet machine."""

ALLOWED: Final = 1.25
"""Times of the base's cost that a step may cost."""

NEGLIGIBLE: Final = 0.2
"""Microseconds by which a step may be slower in any case: the resolution of the tables."""

VERSION: Final = "acp_gateway/__init__.py"
"""The file with the version."""

_ROW: Final = re.compile(r"^\| (.*) \| ([0-9.]+) \|$", re.MULTILINE)


class NoBase(Exception):
    """There is nothing to compare with."""


def compare(root: Path, base: str) -> int:
    """Print the table of both commits; return 1 if a step costs more than `ALLOWED` allows, 2 if that can't be told.

    `auto` is the commit that `find_base` returns; before the first release there is none, and the result is 0.
    """
    commit, why = base, "as given"
    if base == "auto":
        try:
            commit, why = find_base(root)
        except NoBase as error:
            print(f"worst: no comparison, {error}")
            return 0
    try:
        with checked_out(root, commit) as other:
            print(f"base: {_git(root, 'log', '-1', '--format=%h %s', commit)} ({why})\n", flush=True)
            ours: dict[str, float] = {}
            theirs: dict[str, float] = {}
            for pair in range(2 * PAIRS):
                if pair == PAIRS and not slower(theirs, ours):
                    break
                for place, fastest in ((other, theirs), (root, ours)):
                    keep_fastest(fastest, run(place))
    except NoBase as error:
        print(f"no comparison: {error}", file=sys.stderr)
        return 2
    return report(theirs, ours)


def report(theirs: Mapping[str, float], ours: Mapping[str, float]) -> int:
    """Print the table and the worst step; return 1 if that costs too much."""
    print("| step | base, µs | now, µs | times |\n|---|---|---|---|")
    for step, cost in ours.items():
        before = theirs.get(step)
        print(f"| {step} | {'-' if before is None else f'{before:.2f}'} | {cost:.2f} | {_times(before, cost)} |")
    common = [step for step in ours if step in theirs]
    if not common:
        print("\nno comparison: the commits have no step in common", file=sys.stderr)
        return 2
    worst = max(common, key=lambda step: ours[step] / max(theirs[step], 1e-9))
    print(f"\nworst: {_times(theirs[worst], ours[worst])} times, {worst}")
    dear = slower(theirs, ours)
    if dear:
        print(f"more than {ALLOWED:g} times the cost of the base: {'; '.join(dear)}", file=sys.stderr)
    return 1 if dear else 0


def slower(theirs: Mapping[str, float], ours: Mapping[str, float]) -> list[str]:
    """Return the steps that cost more than `ALLOWED` allows."""
    common = [step for step in ours if step in theirs]
    return [step for step in common if ours[step] > max(ALLOWED * theirs[step], theirs[step] + NEGLIGIBLE)]


def read_tables(output: str) -> dict[str, float]:
    """Return the microseconds of each step in the tables that a run has printed."""
    return {step: float(cost) for step, cost in _ROW.findall(output)}


def keep_fastest(fastest: dict[str, float], run: Mapping[str, float]) -> None:
    """Add the steps of a run where they were faster than before."""
    for step, cost in run.items():
        fastest[step] = min(cost, fastest.get(step, cost))


def find_base(root: Path) -> tuple[str, str]:
    """Return the last tag before this commit; without one, the parent of the first commit of this version.

    Returns the reason too. Raises `NoBase`.
    """
    try:
        return _git(root, "describe", "--tags", "--abbrev=0", "HEAD^"), "the last tag"
    except NoBase:
        pass
    found = re.search(r'^__version__ = "(.*)"', (root / VERSION).read_text(), re.MULTILINE)
    if found is None:
        raise NoBase(f"{VERSION} has no version")
    commits = _git(root, "log", "--reverse", "--format=%H", f"-S{found[0]}", "--", VERSION).split()
    try:
        parent = _git(root, "rev-parse", "--verify", "--quiet", f"{commits[0]}^")
    except (NoBase, IndexError):
        why = f"there is no tag, and version {found[1]} is that of the first commit: name one with BASE=COMMIT"
        raise NoBase(why) from None
    return parent, f"no tag; the parent of the first commit of version {found[1]}"


@contextmanager
def checked_out(root: Path, commit: str) -> Iterator[Path]:
    """Check a commit out into a temporary folder while the block runs. Raises `NoBase`."""
    with tempfile.TemporaryDirectory(prefix="acp-base-") as directory:
        folder = Path(directory) / "base"
        _git(root, "worktree", "add", "--detach", "--quiet", str(folder), commit)
        try:
            if not (folder / "benchmarks" / "budget.py").exists():
                raise NoBase(f"{commit} has no benchmarks/budget.py")
            yield folder
        finally:
            _git(root, "worktree", "remove", "--force", str(folder))


def run(folder: Path) -> dict[str, float]:
    """Return the microseconds of each step at the commit in a folder. Raises `NoBase` if it can't be measured."""
    # The working directory comes before the installed package.
    command = [sys.executable, "-m", "benchmarks.budget"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoBase(f"benchmarks.budget in {folder} has failed: {done.stderr.strip().splitlines()[-1:]}")
    return read_tables(done.stdout)


def _times(before: float | None, now: float) -> str:
    return "-" if not before else f"{now / before:.2f}"


def _git(root: Path, *words: str) -> str:
    """Return the output of git. Raises `NoBase`, with its words."""
    done = subprocess.run(["git", *words], cwd=root, capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoBase(done.stderr.strip() or f"git {words[0]} has failed")
    return done.stdout.strip()
