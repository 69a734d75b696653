"""Changes on the disk, as a page is told them: marked when a turn begins, and put back by a controller."""

import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.config.load import Config, WorkspaceSection
from acp_gateway.core.sessions.archive import NO_ARCHIVE
from acp_gateway.core.sessions.session import Request, Session
from acp_gateway.core.turns.journal import Journal
from acp_gateway.errors import UsageError
from acp_gateway.fence import bubblewrap, landlock
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.made import disk_changes, git_jobs
from acp_gateway.gateway.made.disk_changes import DiskChanges
from acp_gateway.gateway.made.git_jobs import GitJobs
from acp_gateway.gateway.sessions.session_changes import SessionChanges
from acp_gateway.made.files_rules import FileRefused, Territory
from tests.kit.bridging import Bench, MakeBench, ends_turn, prompted, section
from tests.kit.doubles import make_config
from tests.kit.machine import needs_git

FENCES = ["landlock"] if sys.platform == "linux" and landlock.abi() > 0 else []
FENCES += ["bubblewrap"] if bubblewrap.find() is not None else []

pytestmark = [needs_git, pytest.mark.usefixtures("no_bug_showed")]


@pytest.fixture
def shop(tmp_path: Path) -> Path:
    """A repository with one file."""
    shop = tmp_path / "shop"
    subprocess.run(["git", "init", "-q", str(shop)], check=True)
    (shop / "a.txt").write_text("one\ntwo\n")
    return shop


def changes_in(config: Config) -> DiskChanges:
    return DiskChanges(lambda: config, GitJobs(lambda: config, lambda *_: None), cast("SessionChanges", None))


async def turn(bench: Bench, page: Any, session: str) -> None:
    """A turn has begun, and its mark is made."""
    its = bench.gateway.disk_changes
    found = bench.gateway.registry.by_id(session)[0]
    before = len(disk_changes._read(its._folder(found)).marks)
    await prompted(page, bench.agents[0], session)
    while len(disk_changes._read(its._folder(found)).marks) == before:
        await trio.lowlevel.checkpoint()


async def test_a_turn_and_a_session_are_told_as_they_are_on_the_disk(bench: Bench, shop: Path) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(shop))
    told = await page.result("session/changes", sessionId=session)
    assert told == {"git": False, "why": disk_changes.NOT_MARKED}
    await turn(bench, page, session)
    (shop / "a.txt").write_text("1\ntwo\n")
    await ends_turn(bench.agents[0])
    await page.until_status(session, "completed")
    await turn(bench, page, session)
    (shop / "b.txt").write_text("new\n")
    told = await page.result("session/changes", sessionId=session)
    assert {it["path"]: it["status"] for it in told["files"]} == {"a.txt": "modified", "b.txt": "added"}
    assert ([it["number"] for it in told["marks"]], told["mark"], told["present"]) == ([1, 2], None, True)
    first = await page.result("session/changes", sessionId=session, mark=1)
    assert ([it["path"] for it in first["files"]], first["present"]) == (["a.txt"], False)
    second = await page.result("session/changes", sessionId=session, mark=2)
    assert ([it["path"] for it in second["files"]], second["present"]) == (["b.txt"], True)
    assert "no mark" in (await page.error("session/changes", sessionId=session, mark=9))[1]


async def test_a_controller_puts_back_what_is_there_and_the_audit_says_so(bench: Bench, shop: Path) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(shop))
    await turn(bench, page, session)
    (shop / "a.txt").write_text("1\n2\n")
    (file,) = (await page.result("session/changes", sessionId=session))["files"]
    named = {"sessionId": session, "path": "a.txt", "old": file["old"], "new": file["new"]}
    await page.result("session/undo", **named, lines=[0, 1, 0, 1])
    assert (shop / "a.txt").read_text() == "one\n2\n"
    assert "has changed since" in (await page.error("session/undo", **named))[1]
    (entry,) = bench.audit.of("change_undone")
    assert (entry["path"], entry["whole"], entry["identity"]) == ("a.txt", False, "ann")
    assert (await page.error("session/undo", **named, lines=[1]))[0] == -32602


async def test_what_a_later_turn_has_changed_is_not_put_back_to_an_earlier_one(bench: Bench, shop: Path) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(shop))
    await turn(bench, page, session)
    (shop / "a.txt").write_text("1\n")
    await ends_turn(bench.agents[0])
    await page.until_status(session, "completed")
    await turn(bench, page, session)
    (file,) = (await page.result("session/changes", sessionId=session, mark=1))["files"]
    named = {"sessionId": session, "mark": 1, "path": "a.txt", "old": file["old"], "new": file["new"]}
    assert "on the disk now" in (await page.error("session/undo", **named))[1]


async def test_no_prompt_waits_for_a_look_at_the_changes(
    bench: Bench, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looking, told = trio.Event(), trio.Event()

    async def tell(*_: Any) -> dict[str, Any]:
        looking.set()
        await told.wait()
        return {"git": False, "why": "later"}

    monkeypatch.setattr(bench.gateway.disk_changes, "tell", tell)
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(shop))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(page.result, "session/changes", sessionId=session))
        await looking.wait()
        await prompted(page, bench.agents[0], session)
        told.set()


async def test_a_job_waits_for_one_whose_asker_has_gone(shop: Path, tmp_path: Path) -> None:
    made = make_config(tmp_path / "state", "tcp://127.0.0.1:0", agents={"a": section()})
    its = changes_in(made)
    session, done = Session("a", "s", "ann", Journal(0)), list[str]()
    running, may_end = threading.Event(), threading.Event()

    def first() -> None:
        running.set()
        may_end.wait()
        done.append("first")

    async with trio.open_nursery() as asker:
        asker.start_soon(its._in_thread, session, first)
        await trio.to_thread.run_sync(running.wait)
        asker.cancel_scope.cancel()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(its._in_thread, session, partial(done.append, "second"))
        # Another session waits for neither.
        await its._in_thread(Session("a", "t", "ann", Journal(0)), partial(done.append, "other"))
        may_end.set()
    assert done == ["other", "first", "second"]


async def test_what_hangs_holds_up_no_marks_of_others_and_no_histories(
    bench: Bench, shop: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    its, may_end, may_tell = bench.gateway.disk_changes, threading.Event(), trio.Event()

    async def tell(*_: Any) -> dict[str, Any]:
        await may_tell.wait()
        return {"git": False, "why": "later"}

    monkeypatch.setattr(its, "tell", tell)
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(shop))
    async with trio.open_nursery() as nursery:
        for number in range(2 * disk_changes.WORKERS):
            hung = Session("a", f"hung{number}", "ben", Journal(0))
            nursery.start_soon(its._in_thread, hung, may_end.wait, its._marking if number % 2 else its._looking)
        for number in range(4):
            looking = await bench.page(bench.access(), f"looking{number}")
            nursery.start_soon(partial(looking.result, "session/changes", sessionId=session))
        own = Session("a", "own", "ann", Journal(0))
        assert await its._in_thread(own, lambda: "marked", its._marking) == "marked"
        await page.result("session/export", sessionId=session, format="markdown")
        may_tell.set()
        may_end.set()


async def test_observers_are_not_told_and_put_nothing_back(bench: Bench, shop: Path) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(shop))
    watching = await bench.page(bench.access(role="observer"), "watching")
    named = {"sessionId": session, "path": "a.txt", "old": "", "new": ""}
    for method in ("session/changes", "session/undo"):
        assert "observers" in (await watching.error(method, **named))[1]


async def test_sessions_of_others_are_not_told(bench: Bench, shop: Path) -> None:
    session = await (await bench.page(bench.access())).new_session(cwd=str(shop))
    other = await bench.page(bench.access("ben"), "ben")
    assert (await other.error("session/changes", sessionId=session))[0] == -32602


async def test_outside_of_git_no_process_is_started(
    bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(git_jobs, "run_job", None)
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(tmp_path))
    await bench.gateway.disk_changes.mark(bench.gateway.registry.by_id(session)[0], 1)
    told = await page.result("session/changes", sessionId=session)
    assert told == {"git": False, "why": disk_changes.OUTSIDE}


async def test_an_agent_elsewhere_has_no_disk_here(make_bench: MakeBench, shop: Path) -> None:
    async with make_bench(a=section()) as bench:
        page = await bench.page(bench.access())
        session = bench.gateway.registry.by_id(await page.new_session(cwd=str(shop)))[0]
        session.agent = "gone"
        assert await bench.gateway.disk_changes.tell(session, None, Territory("/", ())) == {
            "git": False,
            "why": disk_changes.LISTENS,
        }


async def test_marks_go_with_their_session(bench: Bench, shop: Path) -> None:
    page = await bench.page(bench.access())
    name = await page.new_session(cwd=str(shop))
    await turn(bench, page, name)
    session = bench.gateway.registry.by_id(name)[0]
    folder = bench.gateway.disk_changes._folder(session)
    assert folder.is_dir()
    await bench.gateway.disk_changes._forget(session)
    assert not folder.exists()


async def test_a_session_has_marks_if_its_id_can_not_be_encoded(shop: Path, its: DiskChanges) -> None:
    session = of("ann", shop)
    session.id = "\ud800\udc80"
    await its.mark(session, 1)
    assert (await its.tell(session, None, all_of(shop)))["git"] is True
    await its._forget(session)
    assert (await its.tell(session, None, all_of(shop)))["git"] is False


@pytest.fixture
def its(shop: Path, tmp_path: Path) -> DiskChanges:
    """Changes of sessions in a workspace with the repository."""
    made = make_config(tmp_path / "state", "tcp://127.0.0.1:0", agents={"a": section()})
    roots = {"shop": WorkspaceSection(root=shop)}
    return changes_in(replace(made, workspaces=roots))


def of(owner: str, cwd: Path, created_at: int = 1) -> Session:
    """A session with the id that all have."""
    session = Session("a", "s", owner, Journal(0))
    session.cwd, session.created_at = str(cwd), created_at
    return session


def all_of(*roots: Path, **rest: Any) -> Territory:
    """The territory of a client that may use these folders."""
    return Territory(str(roots[-1]), tuple(map(real, roots)), **rest)


def real(path: Path) -> str:
    return os.path.realpath(path)


def init(folder: Path) -> str:
    subprocess.run(["git", "init", "-q", str(folder)], check=True)
    (folder / "a.txt").write_text("1\n")
    return str(folder)


async def test_a_session_of_the_same_id_has_its_own_marks(shop: Path, its: DiskChanges) -> None:
    ann, ben, later = of("ann", shop), of("ben", shop), of("ann", shop, 2)
    await its.mark(ann, 1)
    nothing = {"git": False, "why": disk_changes.NOT_MARKED}
    assert await its.tell(ben, None, all_of(shop)) == await its.tell(later, None, all_of(shop)) == nothing
    ann.aside = "#1"
    await its._forget(ben)
    await its._forget(later)
    assert (await its.tell(ann, None, all_of(shop)))["git"] is True


async def test_marks_of_another_working_tree_are_not_compared(shop: Path, its: DiskChanges) -> None:
    session = of("ann", shop)
    await its.mark(session, 1)
    session.cwd = init(shop / "inner")
    assert "another git working tree" in (await its.tell(session, None, all_of(shop)))["why"]
    with pytest.raises(UsageError, match="another git working tree"):
        await its.put_back(session, None, {"path": "a.txt", "old": "", "new": "", "lines": None}, all_of(shop))


def test_the_sessions_marked_least_recently_make_room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk_changes, "MAX_SESSIONS", 3)
    for number in range(4):
        (tmp_path / f"{number}").mkdir()
        os.utime(tmp_path / f"{number}", (number, number))
    disk_changes._make_room(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["2", "3"]


def test_a_file_of_marks_that_is_damaged_counts_as_none(tmp_path: Path) -> None:
    (tmp_path / "marks.json").write_text("{")
    assert disk_changes._read(tmp_path).marks == []


async def test_marks_that_can_not_be_written_are_one_warning(
    shop: Path, its: DiskChanges, caplog: pytest.LogCaptureFixture
) -> None:
    session, changes = of("ann", shop), its._folder(of("ann", shop)).parent
    changes.parent.mkdir(parents=True, exist_ok=True)
    for times in 1, 2:
        changes.touch()
        for at in 1, 2:
            await its.mark(session, at)
        told = f"changes on the disk are not marked until {changes} can be written: "
        assert [it.levelname for it in caplog.records if it.getMessage().startswith(told)] == ["WARNING"] * times
        changes.unlink()
        await its.mark(session, 3)
        assert (await its.tell(session, None, all_of(shop)))["git"] is True
        shutil.rmtree(changes)


@pytest.mark.parametrize("what", ["mark", "_forget"])
async def test_a_bug_in_marks_does_not_end_the_gateway(
    what: str, bench: Bench, shop: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(DiskChanges, what, fail)
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(shop))
    await prompted(page, bench.agents[0], session)
    bench.gateway.changes.remove(bench.gateway.registry.by_id(session)[0])
    while "a bug of the gateway" not in caplog.text:
        await trio.lowlevel.checkpoint()
    caplog.clear()


async def test_of_the_turns_that_begin_during_a_mark_the_latest_is_marked(
    its: DiskChanges, monkeypatch: pytest.MonkeyPatch
) -> None:
    its._changes = changes = SessionChanges(NO_ARCHIVE)
    session, may_end, marked = Session("a", "s", "ann", Journal(0)), trio.Event(), list[object]()

    async def mark(*_: Any) -> None:
        marked.extend(session.turns)
        await may_end.wait()

    monkeypatch.setattr(its, "mark", mark)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(its.run)
        for names in "abc", "d":
            for name in names:
                await wait_all_tasks_blocked()
                session.turns = cast("dict[Request, float]", {name: 0.0})
                changes.note_change(session)
            await wait_all_tasks_blocked()
            may_end.set()
        await wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert marked == ["a", "c", "d"]


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """Another repository."""
    subprocess.run(["git", "init", "-q", str(tmp_path / "other")], check=True)
    return tmp_path / "other"


@pytest.mark.parametrize("value", FENCES)
async def test_an_agents_own_fence_opens_the_workspace_of_the_session_alone(
    value: str, shop: Path, other: Path, tmp_path: Path
) -> None:
    made = make_config(tmp_path / "state", "tcp://127.0.0.1:0", agents={"a": section(fence=value)})
    roots = {"shop": WorkspaceSection(root=shop), "other": WorkspaceSection(root=other)}
    its = changes_in(replace(made, workspaces=roots))
    session = Session("a", "s", "ann", Journal(0))
    session.cwd = str(shop)
    await its.mark(session, 1)
    (shop / "a.txt").write_text("1\n")
    told = await its.tell(session, None, all_of(shop))
    assert [it["path"] for it in told["files"]] == ["a.txt"], told
    session.cwd = str(tmp_path)
    assert "in no workspace" in (await its.tell(session, None, all_of(shop)))["why"]
    # A link of the agent's that leads to another workspace.
    session.cwd = str(shop)
    (shop / ".git").rename(shop / "git")
    (shop / ".git").write_text(f"gitdir: {other}/.git\n")
    why = (await its.tell(session, None, all_of(shop)))["why"]
    assert "outside of the workspace" in why or "can't be read" in why


async def changed_with_inner(shop: Path, its: DiskChanges) -> tuple[Session, dict[str, Any]]:
    session = of("ann", shop)
    (shop / "inner").mkdir()
    await its.mark(session, 1)
    (shop / "a.txt").write_text("1\n")
    (shop / "inner/b.txt").write_text("1\n")
    return session, await told_of(its, session, all_of(shop))


async def told_of(its: DiskChanges, session: Session, territory: Territory) -> dict[str, Any]:
    return {it["path"]: it for it in (await its.tell(session, None, territory))["files"]}


def named(file: dict[str, Any], **members: Any) -> dict[str, Any]:
    return {name: file[name] for name in ("path", "old", "new")} | {"lines": None} | members


async def test_a_workspace_that_is_only_read_is_shown_and_nothing_put_back(shop: Path, its: DiskChanges) -> None:
    session, files = await changed_with_inner(shop, its)
    # The workspace that the session is in, and one below it.
    for read, path in ((real(shop), "a.txt"), (real(shop / "inner"), "inner/b.txt")):
        territory = all_of(shop / "inner", shop, read_only=frozenset([read]))
        assert set(await told_of(its, session, territory)) == {"a.txt", "inner/b.txt"}
        with pytest.raises(UsageError, match="only to be read"):
            await its.put_back(session, None, named(files[path]), territory)
    assert ((shop / "a.txt").read_text(), (shop / "inner/b.txt").read_text()) == ("1\n", "1\n")


async def test_a_token_sees_and_puts_back_nothing_outside_of_its_workspaces(shop: Path, its: DiskChanges) -> None:
    session, files = await changed_with_inner(shop, its)
    around = all_of(shop, others=(real(shop / "inner"),))
    assert set(await told_of(its, session, around)) == {"a.txt"}
    for path in ("inner/b.txt", "inner//b.txt", "./inner/b.txt"):
        with pytest.raises((FileRefused, UsageError)):
            await its.put_back(session, None, named(files["inner/b.txt"], path=path), around)
    assert ((shop / "a.txt").read_text(), (shop / "inner/b.txt").read_text()) == ("1\n", "1\n")


async def test_who_has_one_session_sees_its_folder_alone(shop: Path, its: DiskChanges) -> None:
    (shop / "inner").mkdir()
    session = of("ann", shop / "inner")
    await its.mark(session, 1)
    (shop / "a.txt").write_text("1\n")
    (shop / "inner/b.txt").write_text("1\n")
    files = await told_of(its, session, all_of(shop))
    alone = all_of(shop / "inner")
    assert set(await told_of(its, session, alone)) == {"inner/b.txt"}
    with pytest.raises(FileRefused, match="not in a folder"):
        await its.put_back(session, None, named(files["a.txt"]), alone)
    await its.put_back(session, None, named(files["inner/b.txt"]), alone)
    assert ((shop / "a.txt").read_text(), (shop / "inner/b.txt").exists()) == ("1\n", False)


async def test_files_with_secret_names_are_named_only(shop: Path, its: DiskChanges) -> None:
    session = of("ann", shop)
    await its.mark(session, 1)
    (shop / ".env").write_text("KEY=1\n")
    file = (await told_of(its, session, all_of(shop)))[".env"]
    assert (file["status"], file["why"], file["newText"], file["new"].strip("0")) == ("added", "secret", None, "")
    with pytest.raises(FileRefused, match="may hold a key"):
        await its.put_back(session, None, named(file), all_of(shop))
    assert (shop / ".env").exists()


async def test_a_guest_sees_changes_only_if_its_token_says_so(bench: Bench, shop: Path) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(shop))
    await turn(bench, page, session)
    (shop / "a.txt").write_text("1\n")
    (file,) = (await page.result("session/changes", sessionId=session))["files"]
    guest = await bench.page(bench.guest(session), "guest")
    for method in ("session/changes", "session/undo"):
        params = {"sessionId": session, "path": "a.txt", "old": file["old"], "new": file["new"]}
        assert (await guest.ask(method, **params))["error"]["data"] == {"reason": "no_files"}
    assert (shop / "a.txt").read_text() == "1\n"
    token, _ = bench.gateway.tokens.create_guest(session, role="controller", lifetime=None, files=True)
    allowed = await bench.page(Access.of(token), "allowed")
    told = await allowed.result("session/changes", sessionId=session)
    assert told.get("files") == [file], told
