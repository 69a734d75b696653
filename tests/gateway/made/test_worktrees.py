"""Sessions in git working trees of their own: as clients ask for them, and as a workspace has them made."""

import subprocess
import sys
import threading
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.load import AgentSection, WorkspaceSection
from acp_gateway.core.sessions.session import SessionReach
from acp_gateway.errors import UsageError
from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.gateway.made.git_jobs import GitJobs
from acp_gateway.gateway.made.worktrees import STORES, WORKERS, Worktrees, kept_branch
from acp_gateway.made.changes import NewTree, RemovedTree
from tests.kit.bridging import Bench, MakeBench, prompted, section
from tests.kit.doubles import TIMEOUT, make_config
from tests.kit.machine import needs_git

FENCES = ["off"]
FENCES += ["landlock"] if sys.platform == "linux" and landlock.abi() > 0 else []
FENCES += ["bubblewrap"] if bubblewrap.find() is not None else []

pytestmark = [needs_git, pytest.mark.usefixtures("no_bug_showed")]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository with a commit."""
    shop = tmp_path / "shop"
    (shop / "sub").mkdir(parents=True)
    (shop / "a.txt").write_text("one\n")
    (shop / "sub/b.txt").write_text("two\n")
    git(shop, "init", "-q", "-b", "main")
    git(shop, "add", "-A")
    git(shop, "commit", "-q", "-m", "first")
    return shop


def git(shop: Path, *words: str) -> str:
    user = ("-c", "user.name=ann", "-c", "user.email=ann@example.org")
    return subprocess.run(["git", *user, *words], cwd=shop, check=True, capture_output=True, text=True).stdout


@pytest.fixture
async def work(make_bench: MakeBench, shop: Path) -> AsyncIterator[Bench]:
    """A gateway with the repository for its workspace."""
    async with make_bench() as bench:
        set_workspace(bench, shop)
        yield bench


def set_workspace(bench: Bench, shop: Path, **options: Any) -> None:
    roots = {"shop": WorkspaceSection(root=shop, **options)}
    bench.gateway.config = bench.gateway.services.config = replace(bench.gateway.config, workspaces=roots)


async def test_a_page_starts_a_session_in_a_new_worktree_and_sees_what_changes_there(work: Bench, shop: Path) -> None:
    page = await work.page(work.access())
    session = await page.new_session(cwd=str(shop / "sub"), worktree="fix/it")
    tree = shop / ".worktrees/fix-it"
    opened = await work.agents[0].got("session/new")
    assert opened["params"]["cwd"] == str(tree / "sub")
    (found,) = work.gateway.registry.by_id(session)
    assert (found.cwd, found.workspace) == (str(tree / "sub"), "shop")
    (entry,) = work.audit.of("worktree_made")
    told = (entry["session"], entry["branch"], entry["path"], entry["identity"])
    assert told == (session, "fix/it", str(tree / "sub"), "ann")
    await prompted(page, work.agents[0], session)
    while not (await page.result("session/changes", sessionId=session))["git"]:
        await trio.lowlevel.checkpoint()
    (tree / "a.txt").write_text("1\n")
    (shop / "a.txt").write_text("of another session\n")
    changes = await page.result("session/changes", sessionId=session)
    assert [(it["path"], it["newText"]) for it in changes["files"]] == [("a.txt", "1\n")]
    assert list((work.gateway.config.gateway.state_dir / STORES).iterdir()) == []


async def test_an_editor_asks_for_one_by_meta_and_gets_a_name(work: Bench, shop: Path) -> None:
    editor = work.editor(work.access())
    await editor.initialize()
    meta = {"acp-gateway": {"worktree": ""}}
    result = (await editor.request("session/new", {"cwd": str(shop), "mcpServers": [], "_meta": meta}))["result"]
    told = result["_meta"]["acp-gateway"]
    assert told["cwd"] == str(shop / ".worktrees" / told["worktree"])
    assert told["worktree"].startswith("session-")
    listed = await editor.request("session/list", {"cwd": str(shop)})
    assert [it["sessionId"] for it in listed["result"]["sessions"]] == [result["sessionId"]]


async def test_a_workspace_has_every_new_session_in_one(work: Bench, shop: Path) -> None:
    set_workspace(work, shop, new_sessions="worktree")
    page = await work.page(work.access())
    for _ in range(2):
        await page.new_session(cwd=str(shop))
    trees = sorted(str(path) for path in (shop / ".worktrees").iterdir())
    assert sorted(it.cwd or "" for it in work.gateway.registry) == trees
    # One that is named is meant.
    inside = await page.new_session(cwd=trees[0])
    assert work.gateway.registry.by_id(inside)[0].cwd == trees[0]
    editor = work.editor(work.access())
    await editor.initialize()
    meta = {"acp-gateway": {"worktree": False}}
    await editor.request("session/new", {"cwd": str(shop), "mcpServers": [], "_meta": meta})
    assert len(list((shop / ".worktrees").iterdir())) == 2


async def test_what_hinders_is_one_sentence_and_no_session_is_started(
    work: Bench, shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = await work.page(work.access())

    async def refusal(name: str = "one", cwd: Path = shop) -> str:
        return (await page.error("session/new", cwd=str(cwd), worktree=name))[1]

    assert "a branch or a working tree main already" in await refusal("main")
    assert "can't be the name" in await refusal("../x")
    set_workspace(work, shop / "sub")
    assert "begins above the workspace" in await refusal(cwd=shop / "sub")
    set_workspace(work, shop, access="read")
    assert "only to be read" in await refusal()
    set_workspace(work, tmp_path)
    (tmp_path / "plain").mkdir()
    assert "in no git working tree" in await refusal(cwd=tmp_path / "plain")
    monkeypatch.setenv("PATH", str(tmp_path / "plain"))
    assert "git" in await refusal()
    assert (list(work.gateway.registry), work.audit.of("worktree_made")) == ([], [])
    assert not [path for path in (shop / ".worktrees").iterdir() if path.is_dir()]


async def test_what_an_agent_does_not_open_leaves_no_working_tree(work: Bench, shop: Path) -> None:
    work.agents.session_id = "too long" * 1000
    page = await work.page(work.access())
    await page.error("session/new", cwd=str(shop), worktree="one")
    while (shop / ".worktrees/one").exists() or "one" in git(shop, "branch"):
        await trio.lowlevel.checkpoint()


async def test_one_that_had_no_prompt_goes_as_its_session_is_closed_unless_something_is_not_committed(
    work: Bench, shop: Path, caplog: pytest.LogCaptureFixture
) -> None:
    editor = work.editor(work.access())
    await editor.initialize()
    sessions = []
    for name in ("one", "two"):
        meta = {"acp-gateway": {"worktree": name}}
        new = {"cwd": str(shop), "mcpServers": [], "_meta": meta}
        sessions.append((await editor.request("session/new", new))["result"]["sessionId"])
    (shop / ".worktrees/two/new").touch()
    for session in sessions:
        await editor.request("session/close", {"sessionId": session, "_meta": {"acp-gateway": {"forget": True}}})
    while not work.audit.of("worktree_removed") or "stays" not in caplog.text:
        await trio.lowlevel.checkpoint()
    (entry,) = work.audit.of("worktree_removed")
    told = (entry["session"], entry["path"], entry.get("branch"), entry["identity"])
    assert told == (sessions[0], str(shop / ".worktrees/one"), None, "ann")
    assert [path.name for path in (shop / ".worktrees").iterdir() if path.is_dir()] == ["two"]
    assert "the working tree of an unused session stays: " in caplog.text


async def test_what_others_remove_hinders_none_and_a_full_disk_is_a_reason(work: Bench, shop: Path) -> None:
    page = await work.page(work.access())
    stores = work.gateway.config.gateway.state_dir / STORES
    stores.mkdir()
    (stores / "removed").symlink_to("nowhere")
    await page.new_session(cwd=str(shop), worktree="one")
    (stores / "removed").unlink()
    stores.rmdir()
    stores.write_text("")
    why = (await page.error("session/new", cwd=str(shop), worktree="two"))[1]
    assert why == "The gateway has no room for git's own files: File exists."


async def test_a_bug_while_one_is_removed_ends_its_agent_alone(
    work: Bench, shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Worktrees, "remove", fail)
    work.agents.session_id = "too long" * 1000
    page = await work.page(work.access())
    await page.error("session/new", cwd=str(shop), worktree="one")
    while "internal error, stopped" not in caplog.text:
        await trio.lowlevel.checkpoint()
    caplog.clear()


async def test_a_session_belongs_to_the_workspace_of_its_worktree(work: Bench, shop: Path) -> None:
    roots = {"shop": WorkspaceSection(root=shop), "sub": WorkspaceSection(root=shop / "sub")}
    work.gateway.config = work.gateway.services.config = replace(work.gateway.config, workspaces=roots)
    page = await work.page(work.access())
    session = await page.new_session(cwd=str(shop / "sub"), worktree="one")
    assert work.gateway.registry.by_id(session)[0].workspace == "shop"


async def test_an_observer_starts_none(work: Bench, shop: Path) -> None:
    page = await work.page(work.access(role="observer"))
    assert "only look" in (await page.error("session/new", cwd=str(shop), worktree="one"))[1]
    assert not (shop / ".worktrees").exists()


async def test_a_worktree_is_removed_with_its_session_or_alone_and_never_what_is_not_committed(
    work: Bench, shop: Path
) -> None:
    page = await work.page(work.access())
    one, two = [await page.new_session(cwd=str(shop), worktree=name) for name in ("one", "two")]
    tree = shop / ".worktrees/one"
    (tree / "new").touch()
    for method, more in (("session/delete", {"worktree": True}), ("session/remove_worktree", {})):
        assert "not committed: new" in (await page.error(method, sessionId=one, **more))[1]
    assert (tree.exists(), work.audit.of("worktree_removed")) == (True, [])
    assert work.gateway.registry.by_id(one)[0].live
    (tree / "new").unlink()
    git(tree, "commit", "-q", "--allow-empty", "-m", "second")
    await page.send(id="d", method="session/delete", params={"sessionId": one, "worktree": True})
    kept = (await page.response("d"))["result"]["kept"]
    assert kept == "Its branch one stays: it has a commit that no other branch has."
    assert (tree.exists(), list(work.gateway.registry.by_id(one))) == (False, [])
    assert await page.result("session/remove_worktree", sessionId=two) == {"success": True}
    assert work.gateway.registry.by_id(two)
    entries = [(it["session"], it["path"], it.get("branch")) for it in work.audit.of("worktree_removed")]
    assert entries == [(one, str(tree), "one"), (two, str(shop / ".worktrees/two"), None)]
    plain = await page.new_session(cwd=str(shop))
    assert "no working tree of its own" in (await page.error("session/remove_worktree", sessionId=plain))[1]


async def test_a_worktree_in_use_is_not_removed_nor_by_a_guest(work: Bench, shop: Path) -> None:
    page = await work.page(work.access())
    one = await page.new_session(cwd=str(shop), worktree="one")
    guest = await work.page(work.guest(one), "guest")
    assert "one session only" in (await guest.error("session/remove_worktree", sessionId=one))[1]
    other = await page.new_session(cwd=str(shop / ".worktrees/one/sub"))
    assert "Another session" in (await page.error("session/remove_worktree", sessionId=one))[1]
    await page.result("session/delete", sessionId=other)
    await prompted(page, work.agents[0], one)
    assert "is running" in (await page.error("session/remove_worktree", sessionId=one))[1]
    observer = await work.page(work.access(role="observer"), "observer")
    assert "only look" in (await observer.error("session/remove_worktree", sessionId=one))[1]
    assert (shop / ".worktrees/one/a.txt").exists()


@pytest.mark.parametrize("value", FENCES)
async def test_git_makes_and_removes_one_in_each_fence(value: str, shop: Path, tmp_path: Path) -> None:
    made = make_config(tmp_path / "state", "tcp://127.0.0.1:0", agents={"a": section(fence=value)})
    config = replace(made, workspaces={"shop": WorkspaceSection(root=shop)})
    its = Worktrees(lambda: config, GitJobs(lambda: config, lambda *_: None))
    reach = SessionReach("ann")
    found = await its.make("a", reach, str(shop), "one")
    assert found.directory == str(shop / ".worktrees/one")
    assert git(Path(found.directory), "status", "--short", "--branch") == "## one\n"
    (Path(found.directory) / "new").touch()
    with pytest.raises(UsageError, match="not committed: new"):
        await its.remove("a", reach, found.directory)
    (Path(found.directory) / "new").unlink()
    assert await its.remove("a", reach, found.directory, looks=True) == RemovedTree(None, 0)
    assert await its.remove("a", reach, found.directory) == RemovedTree(None, 0)
    assert git(shop, "branch") == "* main\n"
    # Someone has removed it.
    assert await its.remove("a", reach, found.directory) == RemovedTree(None, 0)
    with pytest.raises(UsageError, match="no working tree of its own"):
        await its.remove("a", reach, str(shop))


async def test_what_is_slow_for_one_identity_holds_up_no_other(
    shop: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, may_end = make_config(tmp_path / "state", "tcp://127.0.0.1:0", agents={"a": section()}), threading.Event()

    def run(_: GitJobs, agent: str, options: AgentSection, reach: SessionReach, *rest: Any, **more: Any) -> NewTree:
        if reach.identity == "ben":
            may_end.wait()
        return NewTree("/shop", "/shop", reach.identity)

    monkeypatch.setattr(GitJobs, "run", run)
    its = Worktrees(lambda: config, GitJobs(lambda: config, lambda *_: None))
    async with trio.open_nursery() as nursery:
        for _ in range(4 * WORKERS):
            nursery.start_soon(its.make, "a", SessionReach("ben"), str(shop), "")
        try:
            with trio.fail_after(TIMEOUT):
                await trio.testing.wait_all_tasks_blocked()
                assert (await its.make("a", SessionReach("ann"), str(shop), "")).branch == "ann"
        finally:
            may_end.set()


def test_a_branch_that_stays_is_told_with_what_it_has() -> None:
    assert kept_branch(RemovedTree(None, 0)) is None
    assert kept_branch(RemovedTree("one", 0)) == "Its branch one stays."
    assert "a commit that" in (kept_branch(RemovedTree("one", 1)) or "")
    assert "2 commits that" in (kept_branch(RemovedTree("one", 2)) or "")
