"""`tools/release_check` with steps that are made up: it goes on after a failure, and its table has all of them."""

import importlib.machinery
import importlib.util
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from tests.kit.machine import needs_git

TOOL = Path(__file__).parent.parent / "tools" / "release_check"


def load() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("release_check", str(TOOL))
    spec = importlib.util.spec_from_loader("release_check", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["release_check"] = module  # Its dataclasses look themselves up.
    loader.exec_module(module)
    return module


tool: Any = load()


def step(name: str, code: str, minutes: float = 1.0, **environment: str) -> Any:
    return tool.Step(name, (sys.executable, "-c", code), minutes, tool.last("figure (.*)"), environment)


@pytest.fixture(autouse=True)
def of_one_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tool, "commit", lambda: "abc")


def rows(text: str) -> list[list[str]]:
    """Return the cells of the table but for the times."""
    table = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("| ")]
    return [[cell.strip() for at, cell in enumerate(row) if at != 2] for row in table if row[0] != " step "]


def test_all_steps_are_run_after_a_failure_and_the_exit_code_tells_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = [
        step("first", "import os; print('figure 1'); print('figure', os.environ['WORD'])", WORD="a|b"),
        step("second", "import sys; sys.exit('figure 3')"),
        tool.Step("third", ("/absent/program",), 1, str, {}),
        step("fourth", "print('done')"),
    ]
    assert tool.main([], steps, tmp_path) == 1
    told = capsys.readouterr().out
    assert rows(told) == [
        ["first", "passed", "a/b"],
        ["second", "failed (1)", "3"],
        ["third", "cannot run", "/absent/program: No such file or directory"],
        ["fourth", "passed", ""],
    ]
    assert told.startswith("Release check of abc\n")
    assert told.endswith(f"2 of 4 passed, in 0 min. Failed: second, third; the output is in {tmp_path}.\n")
    assert (tmp_path / "second.txt").read_text() == "figure 3\n"


def test_only_and_skip_choose_steps_by_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = [step(name, "") for name in "abc"]
    assert tool.main(["--only", "a", "b", "--skip", "a"], steps, tmp_path) == 0
    assert [row[0] for row in rows(capsys.readouterr().out)] == ["b"]
    with pytest.raises(SystemExit, match="2"):
        tool.main(["--only", "d"], steps, tmp_path)


def test_resume_runs_what_has_not_passed_on_the_same_commit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    count = f"from pathlib import Path; path = Path({str(tmp_path)!r}, 'NAME.runs'); path.open('a').write('x')"
    fails = "; import sys; sys.exit(len(path.read_text()) < 2)"
    steps = [step("good", count.replace("NAME", "good")), step("late", count.replace("NAME", "late") + fails)]

    def runs() -> list[str]:
        return [(tmp_path / f"{name}.runs").read_text() for name in ("good", "late")]

    assert tool.main([], steps, tmp_path) == 1
    assert tool.main(["--resume"], steps, tmp_path) == 0
    assert runs() == ["x", "xx"]
    assert [row[:2] for row in rows(capsys.readouterr().out)][2:] == [["good", "passed"], ["late", "passed"]]
    monkeypatch.setattr(tool, "commit", lambda: "another")
    assert tool.main(["--resume"], steps, tmp_path) == 0
    assert runs() == ["xx", "xxx"]
    (tmp_path / "results.json").write_text("{")
    assert tool.main(["--resume"], steps, tmp_path) == 0


def test_a_step_that_takes_too_long_is_ended_with_what_it_has_started(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # The step ends only if the other end of its pipe does.
    wait = "import sys; sys.stdin.read()"
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {wait!r}], stdin=subprocess.PIPE).wait()"
    assert tool.main([], [step("slow", code, minutes=0.002)], tmp_path) == 1
    assert rows(capsys.readouterr().out)[0][:2] == ["slow", "not done in 0.002 min"]
    # What runs beside another step is slower.
    assert tool.main(["--jobs", "2"], [step("slow", code, minutes=0.002)], tmp_path) == 1
    assert rows(capsys.readouterr().out)[0][:2] == ["slow", "not done in 0.004 min"]


def test_two_steps_run_at_a_time_and_what_measures_runs_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each of the first two ends only if the other runs, the third only if nothing does.
    meet = (
        "from pathlib import Path; here = Path({0!r}); (here / {1!r}).touch()\nwhile not (here / {2!r}).exists(): pass"
    )
    names = {"one": "two", "two": "one"}
    steps = [step(name, meet.format(str(tmp_path), name, other)) for name, other in names.items()]
    leave = f"from pathlib import Path; import sys; sys.exit(Path({str(tmp_path)!r}, 'late').exists())"
    steps.append(tool.Step("alone", (sys.executable, "-c", leave), 1, str, alone=True))
    steps.append(step("late", f"from pathlib import Path; Path({str(tmp_path)!r}, 'late').touch()"))
    assert tool.main(["--jobs", "2"], steps, tmp_path) == 0
    found = [row[0] for row in rows(capsys.readouterr().out)]
    assert sorted(found[:2]) == ["one", "two"]
    assert found[2:] == ["alone", "late"]


@needs_git
def test_the_commit_tells_changes_apart(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh = load()
    monkeypatch.setattr(fresh, "ROOT", tmp_path)
    (tmp_path / "a").write_text("1")
    git = ("git", "-c", "user.name=x", "-c", "user.email=x")
    for words in (("init", "-q"), ("add", "a"), ("commit", "-qm", "a")):
        fresh.subprocess.run((*git, *words), cwd=tmp_path, check=True)
    found = {fresh.commit()}
    for text in ("2", "3"):
        (tmp_path / "a").write_text(text)
        found.add(fresh.commit())
    (tmp_path / "untracked").write_text("1")
    found.add(fresh.commit())
    assert len(found) == 4
    assert all(name.startswith(min(found, key=len)) for name in found)


@pytest.mark.parametrize(
    ("name", "output", "figure"),
    [
        ("test-1", "....\nSKIPPED [1] x\n==== 16136 passed, 3 skipped in 238.10s ====\n", "16136 passed, 3 skipped"),
        ("test-slow", "1 failed, 20 passed, 5 deselected in 3.0s\n", "1 failed, 20 passed"),
        ("test-web", "# pass 401\n# fail 0\n200 passed in 90s\n", "200 passed; 401 passed, 0 failed in Node.js"),
        ("coverage", "a.py 10 0 100%\nTOTAL      5000      0   1800      0   100%\n", "100%"),
        (
            "fuzz",
            "round 1: seed 5, effort 10\nNothing was found in 2 rounds.\nslow\n",
            "Nothing was found in 2 rounds.",
        ),
        ("soak", "soak in /tmp/x, seed 5\nsoak of 600 s with seed 5: 3 cuts; 0 faults\n", "0 faults"),
        ("pauses", "100 kills, p95 1.2 s; 8 prompts; 1 faults\n  a fault\n", "p95 1.2 s; 8 prompts; 1 faults"),
        ("bench-pairs", "| a | 1 |\nworst: 0.98 times the base's speed, trips\n", "0.98 times the base's speed, trips"),
        ("check", "Contracts: 6 kept, 0 broken.\n", "6 kept, 0 broken."),
        (
            "bench-attacks",
            "| attack | ratio | longest stall |\n|---|---|---|\n| heads | 1.2 | 36 ms |\n| bodies | 1 | 137 ms |\n",
            "2 attacks, longest stall 137 ms: bodies",
        ),
        ("bench-attacks", "it failed\n", ""),
        ("bench-attacks", "| attack | longest stall |\n", ""),
    ],
)
def test_the_figure_of_a_step_is_in_its_output(name: str, output: str, figure: str) -> None:
    (found,) = [step.figure(output) for step in tool.STEPS if step.name == name]
    assert found.endswith(figure)
    assert bool(found) == bool(figure)


def test_results_are_kept_as_json(tmp_path: Path) -> None:
    tool.main([], [step("a", "print('figure 5')")], tmp_path)
    kept = json.loads((tmp_path / "results.json").read_text())
    assert (kept["version"], kept["results"][0]["figure"]) == ("abc", "5")
