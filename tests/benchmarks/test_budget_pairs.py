"""The comparison of costs with another commit: its base, its tables and its exit code."""

import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks import budget_pairs
from benchmarks.budget_pairs import NoBase, compare, find_base, keep_fastest, read_tables, report

BUDGET = "print('| an update | µs |\\n|---|---|\\n| parsed | {cost} |\\n| framed | 2.00 |')\n"


def git(root: Path, *words: str) -> str:
    command = ["git", "-c", "user.name=x", "-c", "user.email=x@x", *words]
    return subprocess.run(command, cwd=root, check=True, capture_output=True, text=True).stdout.strip()


def commit(root: Path, version: str, cost: float | None) -> str:
    """Make a commit of this version whose parsing costs so much; return it."""
    for folder in ("acp_gateway", "benchmarks"):
        (root / folder).mkdir(exist_ok=True)
        (root / folder / "__init__.py").touch()
    (root / "acp_gateway/__init__.py").write_text(f'__version__ = "{version}"\n')
    if cost is not None:
        (root / "benchmarks/budget.py").write_text(BUDGET.format(cost=cost))
    git(root, "add", "--all")
    git(root, "commit", "-qm", f"{version} {cost}", "--allow-empty")
    return git(root, "rev-parse", "HEAD")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    return tmp_path


def test_the_base_is_the_last_tag_else_the_parent_of_the_first_commit_of_the_version(root: Path) -> None:
    first = commit(root, "0.1.0", 1)
    with pytest.raises(NoBase, match="that of the first commit: name one with BASE=COMMIT"):
        find_base(root)
    before = commit(root, "0.1.0", 2)
    commit(root, "0.2.0", 3)
    commit(root, "0.2.0", 4)
    assert find_base(root) == (before, "no tag; the parent of the first commit of version 0.2.0")
    git(root, "tag", "v0.1.0", first)
    assert find_base(root) == ("v0.1.0", "the last tag")


@pytest.mark.parametrize(("now", "code"), [(1.2, 0), (1.3, 1)])
def test_a_step_that_costs_a_quarter_more_than_at_the_base_fails(
    now: float, code: int, root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    base = commit(root, "0.1.0", 1.0)
    commit(root, "0.1.0", now)
    assert compare(root, base) == code
    told = capsys.readouterr()
    assert f"| parsed | 1.00 | {now:.2f} | {now:.2f} |\n| framed | 2.00 | 2.00 | 1.00 |\n" in told.out
    assert told.out.endswith(f"worst: {now:.2f} times, parsed\n")
    assert ("more than 1.25 times the cost of the base: parsed" in told.err) == bool(code)
    assert git(root, "worktree", "list").count("\n") == 0


def test_what_cannot_be_compared_is_told(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    old = commit(root, "0.1.0", None)
    commit(root, "0.1.0", 1.0)
    for base, why in (
        (old, f"{old} has no benchmarks/budget.py"),
        ("absent", "invalid reference: absent"),
    ):
        assert compare(root, base) == 2
        assert why in capsys.readouterr().err
    assert compare(root, "auto") == 0
    assert capsys.readouterr().out.startswith("worst: no comparison, there is no tag, and version 0.1.0 is")
    (root / "benchmarks/budget.py").write_text("import absent\n")
    assert compare(root, "HEAD") == 2
    assert "No module named 'absent'" in capsys.readouterr().err


def test_each_commit_is_run_in_turn(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(root, "0.1.0", 1.0)
    places: list[str] = []

    def run(folder: Path) -> dict[str, float]:
        places.append("here" if folder == root else "there")
        return {"parsed": 1.0}

    monkeypatch.setattr(budget_pairs, "run", run)
    assert compare(root, "HEAD") == 0
    assert places == ["there", "here"] * budget_pairs.PAIRS


def test_a_step_that_seems_to_cost_too_much_is_measured_again(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    commit(root, "0.1.0", 1.0)
    costs = [1.0, 9.0] * budget_pairs.PAIRS + [1.0] * 2 * budget_pairs.PAIRS
    monkeypatch.setattr(budget_pairs, "run", lambda _: {"parsed": costs.pop(0)})
    assert compare(root, "HEAD") == 0
    assert costs == []


def test_of_each_step_the_fastest_run_counts() -> None:
    fastest: dict[str, Any] = {}
    for output in ("| a | µs |\n|---|---|\n| a: one | 3.00 |\n| b | 2.00 |\n", "| a: one | 1.0 |\n| b | 5.00 |\n"):
        keep_fastest(fastest, read_tables(output))
    assert fastest == {"a: one": 1.0, "b": 2.0}


def test_steps_that_one_commit_lacks_are_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    assert report({"a": 1.0, "old": 1.0}, {"a": 1.0, "new": 9.0}) == 0
    assert "| new | - | 9.00 | - |" in capsys.readouterr().out
    assert report({"old": 1.0}, {"new": 9.0}) == 2
    # The tables round to hundredths.
    assert report({"tiny": 0.01}, {"tiny": 0.02}) == 0
