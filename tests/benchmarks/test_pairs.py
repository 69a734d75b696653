"""The comparison of speed with another commit: its base, its pairs, its table and its exit code."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from benchmarks import pairs
from benchmarks.bases import FIRST, NoBase, checked_out, describe, find_base
from benchmarks.measuring import Bench
from benchmarks.pairs import ATTEMPTS, DIRECT, HTTP, PAIRS, STARTS, Pairs, Task, compare, report
from tests.kit.machine import needs_git


def git(root: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    for number in (1, 2):
        (tmp_path / "file").write_text(str(number))
        git(tmp_path, "add", "--all")
        git(tmp_path, "commit", "-qm", f"number {number}")
    return tmp_path


@needs_git
def test_the_base_is_the_last_tag_before_this_commit_else_the_first_one(root: Path) -> None:
    assert find_base(root) == FIRST
    git(root, "tag", "v2")
    assert find_base(root) == FIRST
    git(root, "tag", "v1", "HEAD^")
    assert find_base(root) == "v1"


@needs_git
def test_the_base_is_checked_out_while_it_is_compared(root: Path) -> None:
    with checked_out(root, "HEAD^") as folder:
        assert (folder / "file").read_text() == "1"
        assert describe(root, "HEAD^").endswith("number 1")
    assert not folder.exists()
    assert git(root, "worktree", "list").count("\n") == 0
    with pytest.raises(NoBase, match="invalid reference: absent"), checked_out(root, "absent"):
        pass


@pytest.mark.parametrize(
    ("now", "slower", "code"), [(0.98, 36, 0), (0.96, 26, 1), (0.96, 25, 0)], ids=["fast", "slow", "chance"]
)
@pytest.mark.parametrize("measure", ["speed", "processor"])
def test_a_median_below_the_least_ratio_fails_unless_it_is_chance(
    now: float, slower: int, code: int, measure: str, capsys: pytest.CaptureFixture[str]
) -> None:
    same = [(1.0, 1.0)] * 36
    speed = [(1.0, now)] * slower + [(1.0, 2.0)] * (36 - slower)
    processor = [(theirs, ours) for ours, theirs in speed]
    found = {
        "trips": Pairs(speed, same) if measure == "speed" else Pairs(same, processor),
        "updates": Pairs(same, same),
    }
    assert report(found) == code
    told = capsys.readouterr()
    assert told.out.endswith(f"worst: {now:.2f} times the base's speed, trips\n")
    assert told.err == ("less than 0.97 times as fast as the base: trips\n" if code else "")


class Machine:
    """Gateways of both commits that answer as fast as they are told to."""

    def __init__(self, speeds: list[float]) -> None:
        self.speeds = speeds
        """Our speed after each start, as a multiple of the base's; the last one goes on."""
        self.starts = 0
        self.measured: list[tuple[str, str]] = []

    @contextmanager
    def gateways(self, _programs: Any, checkouts: tuple[Path, Path], ways: set[str]) -> Iterator[Any]:
        self.starts += 1
        yield dict.fromkeys(ways, checkouts)

    def measure(self, _bench: Any, task: Task, running: tuple[Path, Path], found: Pairs, _counts: Any) -> None:
        speed = self.speeds[min(self.starts, len(self.speeds)) - 1] if task.way == DIRECT else 1.0
        self.measured.append((task.title, running[1].name))
        found.speed += [(1.0, speed)] * PAIRS
        found.processor += [(1.0, 1.0)] * PAIRS


def compare_on(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> dict[str, Pairs]:
    monkeypatch.setattr(pairs, "_gateways", machine.gateways)
    monkeypatch.setattr(pairs, "_measure", machine.measure)
    bench: Any = Bench(False, 1, {}, None, None, lambda _: None)  # type: ignore[arg-type]
    titles = [next(task.title for task in pairs.TASKS if task.way == way) for way in (DIRECT, HTTP)]
    return compare(bench, Path("base"), Path("now"), titles)


def test_both_commits_are_started_several_times(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([1.0])
    found = compare_on(machine, monkeypatch)
    assert machine.starts == STARTS
    assert [len(each.speed) for each in found.values()] == [STARTS * PAIRS] * 2


def test_what_seems_slower_is_measured_again_and_all_pairs_count(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([0.9] * STARTS + [1.0])
    slow, fine = compare_on(machine, monkeypatch).values()
    assert machine.starts == 2 * STARTS
    assert (len(slow.speed), len(fine.speed)) == (2 * STARTS * PAIRS, STARTS * PAIRS)
    assert not pairs.is_slower(slow)


def test_what_stays_slower_is_measured_a_few_times(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine([0.9])
    slow, _ = compare_on(machine, monkeypatch).values()
    assert machine.starts == ATTEMPTS * STARTS
    assert pairs.is_slower(slow)
