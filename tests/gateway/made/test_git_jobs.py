"""Jobs in git working trees as processes: in fences, bounded in time, and with nothing of the gateway's environment."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.fence.plan import FenceOptions
from acp_gateway.gateway.made import git_jobs
from acp_gateway.gateway.made.git_jobs import run_job
from acp_gateway.made.changes import Comparison, Done, Refusal, State
from tests.kit.machine import needs_git

pytestmark = needs_git

FENCES = ["off"]
FENCES += ["landlock"] if sys.platform == "linux" and landlock.abi() > 0 else []
FENCES += ["bubblewrap"] if bubblewrap.find() is not None else []


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository with one file, beside a secret."""
    shop = tmp_path / "work/shop"
    shop.mkdir(parents=True)
    subprocess.run(["git", "init", "-q", str(shop)], check=True)
    (shop / "a.txt").write_text("one\n")
    (tmp_path / "secret").write_text("secret\n")
    return shop


def options(value: str, shop: Path) -> FenceOptions | None:
    if value == "off":
        return None
    state = shop.parents[1] / "state"
    (state / "scratch").mkdir(parents=True, exist_ok=True)
    return FenceOptions(
        value=value, workspaces=[(str(shop.parent), True)], private=[str(state)], scratch=str(state / "scratch")
    )


def run(value: str, shop: Path, kind: Any, **job: Any) -> Any:
    store = shop.parents[1] / "state/changes/one/git"
    return run_job("a", options(value, shop), store, str(shop), {**job, "roots": [str(shop.parent)]}, kind)


@pytest.mark.parametrize("value", FENCES)
def test_a_tree_is_marked_compared_and_put_back_in_each_fence(value: str, shop: Path) -> None:
    mark = run(value, shop, State, do="mark")
    assert isinstance(mark, State), mark
    (shop / "a.txt").write_text("two\n")
    found = run(value, shop, Comparison, do="changes", **{"from": mark.tree, "to": None, "head": None})
    (file,) = found.files
    assert (file.path, file.old_text, file.new_text) == ("a.txt", "one\n", "two\n")
    change = {"path": "a.txt", "old": file.old, "new": file.new, "lines": None, "from": mark.tree}
    assert run(value, shop, Done, do="undo", **change) == Done()
    assert (shop / "a.txt").read_text() == "one\n"


@pytest.mark.parametrize("value", FENCES)
def test_a_git_folder_outside_of_the_workspace_is_not_used(value: str, shop: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["git", "init", "-q", str(other)], check=True)
    (shop / ".git").rename(tmp_path / "gone")
    (shop / ".git").write_text(f"gitdir: {other}/.git\n")
    refused = run(value, shop, State, do="mark")
    assert isinstance(refused, Refusal)
    assert "outside of the workspace" in refused.refused or "can't be read" in refused.refused


@pytest.mark.parametrize("value", FENCES)
def test_the_process_gets_nothing_of_the_gateways_environment(
    value: str, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKEN", "secret")
    told = "import json, os; print(json.dumps({'refused': ' '.join(sorted(os.environ))}))"
    monkeypatch.setattr(git_jobs, "_TEXT", told)
    names = run(value, shop, State, do="mark").refused.split()
    assert {"PATH", "HOME"} <= set(names) <= {"PATH", "HOME", "TMPDIR", "PWD", "LC_CTYPE"}


@pytest.mark.parametrize("value", FENCES[1:])
def test_in_a_fence_the_process_reads_nothing_else(
    value: str, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        f"import json\ntry:\n  read = open({str(tmp_path / 'secret')!r}).read()\nexcept OSError as e:\n  read = 'no'\n"
    )
    monkeypatch.setattr(git_jobs, "_TEXT", text + "print(json.dumps({'refused': read}))")
    assert run(value, shop, State, do="mark") == Refusal("no")


@pytest.mark.parametrize("value", FENCES)
def test_what_does_not_end_is_killed_with_its_children(value: str, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # A pipe that nothing writes to, as a repository may have one where git expects a file.
    os.mkfifo(shop / ".gitignore")
    job = {"do": "mark", "roots": [str(shop.parent)]}
    store = shop.parents[1] / "state/git"
    refused = run_job("a", options(value, shop), store, str(shop), job, State, time_limit=2.0)
    assert isinstance(refused, Refusal)
    assert "has not answered within 2 seconds" in refused.refused


@pytest.mark.parametrize("text", ["print('x' * 3000000)", "pass", "print('{}')", "print('[' * 100000)"])
def test_another_answer_than_a_result_is_refused(text: str, shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_jobs, "_TEXT", text)
    monkeypatch.setattr(git_jobs, "RESULT_SIZE", 1 << 20)
    assert isinstance(run("off", shop, State, do="mark"), Refusal)


def test_a_result_that_is_too_large_is_not_told_as_late(shop: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(git_jobs, "_TEXT", "print('x' * 3000000)")
    monkeypatch.setattr(git_jobs, "RESULT_SIZE", 1 << 20)
    refused = run("off", shop, State, do="mark")
    assert "more than 1 MiB" in refused.refused


def test_a_fence_or_store_that_cannot_be_made_is_a_refusal(shop: Path) -> None:
    wrong = FenceOptions(value="on", workspaces=[(str(shop), True)], private=[str(shop)], scratch=str(shop / "s"))
    store = shop.parents[1] / "state/git"
    assert isinstance(run_job("a", wrong, store, str(shop), {"do": "mark", "roots": []}, State), Refusal)
    assert isinstance(run_job("a", None, shop / "a.txt/git", str(shop), {"do": "mark", "roots": []}, State), Refusal)


def test_a_job_is_json_with_any_path(shop: Path) -> None:
    odd = shop / "f\u00fc \udcff"
    odd.mkdir()
    assert json.dumps(str(odd))
    mark = run_job("a", None, shop.parents[1] / "state/git", str(odd), {"do": "mark", "roots": [str(shop)]}, State)
    assert isinstance(mark, State)
