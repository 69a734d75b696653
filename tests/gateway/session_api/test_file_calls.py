"""The calls about the files of a session: who may make them, and what they answer."""

import os
import threading
from base64 import b64decode, b64encode
from collections.abc import AsyncIterator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway.config.load import WorkspaceSection
from acp_gateway.gateway.access import Access
from acp_gateway.gateway.agent.process import Spawner
from acp_gateway.gateway.session_api import file_calls
from acp_gateway.made.files_upload import Upload
from acp_gateway.protocol import jsonrpc
from tests.kit.bridging import Bench, Page, running
from tests.kit.doubles import ServingAgents


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = Path(os.path.realpath(tmp_path)) / "project"
    (folder / "plots").mkdir(parents=True)
    (folder / "plots/loss.png").write_bytes(b"\x89PNG")
    (folder / "train.py").write_text("code")
    (folder / ".env").write_text("secret")
    return folder


@pytest.fixture
async def bench(tmp_path: Path, project: Path, spawner: Spawner, loading_agents: ServingAgents) -> AsyncIterator[Bench]:
    async with running(tmp_path, spawner) as bench:
        inside = {"inside": WorkspaceSection(root=project)}
        bench.gateway.services.config = replace(bench.gateway.config, workspaces=inside)
        yield bench


async def opened(bench: Bench, project: Path) -> tuple[Page, str]:
    page = await bench.page(bench.access())
    return page, await page.new_session(cwd=str(project))


async def refused(page: Page, method: str, **params: Any) -> str:
    """The reason why a call is refused."""
    error = (await page.ask(method, **params))["error"]
    assert error["code"] == jsonrpc.INVALID_PARAMS
    reason: str = error["data"]["reason"]
    return reason


async def test_a_folder_is_listed_and_a_file_is_looked_at_and_read_by_range(bench: Bench, project: Path) -> None:
    page, session = await opened(bench, project)
    listed = await page.result("files/folder", sessionId=session)
    assert (listed["path"], listed["base"], listed["more"]) == (str(project), str(project), False)
    assert [(one["name"], one["kind"], one.get("secret")) for one in listed["entries"]] == [
        ("plots", "folder", None),
        (".env", "file", True),
        ("train.py", "file", None),
    ]
    found = await page.result("files/stat", sessionId=session, path="plots/loss.png")
    assert (found["path"], found["kind"], found["size"]) == (f"{project}/plots/loss.png", "file", 4)
    read = await page.result("files/read", sessionId=session, path="plots/loss.png", offset=1, length=2)
    assert (b64decode(read["data"]), read["size"], read["offset"]) == (b"PN", 4, 1)
    again = await page.result("files/read", sessionId=session, path="plots/loss.png")
    assert (b64decode(again["data"]), again["tag"]) == (b"\x89PNG", read["tag"])


@pytest.mark.parametrize(("path", "why"), [("../x", "outside"), (".env", "secret"), ("absent", "not_found")])
async def test_a_refusal_says_why(bench: Bench, project: Path, path: str, why: str) -> None:
    page, session = await opened(bench, project)
    for method in ("files/folder", "files/stat", "files/read"):
        assert await refused(page, method, sessionId=session, path=path) == why


async def test_observers_of_the_identity_read_files_and_write_none(bench: Bench, project: Path) -> None:
    _, session = await opened(bench, project)
    page = await bench.page(bench.access(role="observer"), "observer")
    assert (await page.result("files/stat", sessionId=session, path="train.py"))["size"] == 4
    assert (await page.error("files/create", sessionId=session, path="new", size=0))[0] == jsonrpc.METHOD_NOT_FOUND


async def test_other_identities_reach_no_files(bench: Bench, project: Path) -> None:
    _, session = await opened(bench, project)
    page = await bench.page(bench.access("ben"), "ben")
    assert await refused(page, "files/stat", sessionId=session, path="train.py") == "unknown_session"


async def test_a_guest_reads_files_only_if_its_token_says_so(bench: Bench, project: Path) -> None:
    _, session = await opened(bench, project)
    plain = await bench.page(bench.guest(session), "guest")
    assert await refused(plain, "files/folder", sessionId=session) == "no_files"
    assert await refused(plain, "files/create", sessionId=session, path="new", size=0) == "no_files"
    # As before: who prompts an agent is told the names of files.
    assert (await plain.result("files/list", sessionId=session, query="train"))["files"] == ["train.py"]
    token, _ = bench.gateway.tokens.create_guest(session, role="observer", lifetime=None, files=True)
    allowed = await bench.page(Access.of(token), "allowed")
    assert (await allowed.result("files/stat", sessionId=session, path="train.py"))["size"] == 4


async def test_a_guest_and_a_browser_for_one_session_use_the_files_of_its_folder_alone(
    bench: Bench, project: Path
) -> None:
    others, inner = project.parent / "others", project / "inner"
    for folder in (others, inner):
        folder.mkdir()
        (folder / "a.txt").write_text("another's")
    folders = {"inside": project, "others": others, "inner": inner}
    sections = {name: WorkspaceSection(root=folder) for name, folder in folders.items()}
    bench.gateway.services.config = replace(bench.gateway.config, workspaces=sections)
    page = await bench.page(bench.access(workspaces=["inside"]))
    session = await page.new_session(cwd=str(project / "plots"))
    token, _ = bench.gateway.tokens.create_guest(session, role="controller", lifetime=None, files=True)
    for access in (Access.of(token), replace(bench.access(workspaces=["inside"]), only=session)):
        one = await bench.page(access, "one")
        assert (await one.result("files/stat", sessionId=session, path="loss.png"))["size"] == 4
        for path in (others / "a.txt", inner / "a.txt", project / "train.py", project):
            assert await refused(one, "files/stat", sessionId=session, path=str(path)) == "outside"
        assert await refused(one, "files/create", sessionId=session, path="../new", size=0) == "outside"
    # A workspace that the owner may not use is closed below the session's folder as well.
    above = await page.new_session(cwd=str(project))
    token, _ = bench.gateway.tokens.create_guest(above, role="observer", lifetime=None, files=True)
    one = await bench.page(Access.of(token), "above")
    assert (await one.result("files/stat", sessionId=above, path="train.py"))["size"] == 4
    assert await refused(one, "files/stat", sessionId=above, path="inner/a.txt") == "outside"


async def test_a_folder_that_is_a_link_of_agents_opens_nothing_to_a_guest(bench: Bench, project: Path) -> None:
    page = await bench.page(bench.access())
    session = await page.new_session(cwd=str(project / "plots"))
    token, _ = bench.gateway.tokens.create_guest(session, role="observer", lifetime=None, files=True)
    (project / "plots").rename(project / "moved")
    (project / "plots").symlink_to(project)
    one = await bench.page(Access.of(token), "one")
    assert await refused(one, "files/stat", sessionId=session, path="train.py") == "no_files"


async def test_the_logins_of_agents_are_secret_where_the_home_is_the_workspace(
    bench: Bench, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, session = await opened(bench, project)
    monkeypatch.setenv("HOME", str(project))
    for name in (".claude/history.jsonl", ".codex/config.toml", ".local/share/opencode/log", "own/.credentials.json"):
        (project / name).parent.mkdir(parents=True, exist_ok=True)
        (project / name).write_text("login")
        assert await refused(page, "files/read", sessionId=session, path=name) == "secret"
    listed = await page.result("files/folder", sessionId=session, path="")
    assert {one["name"] for one in listed["entries"] if one.get("secret")} == {".claude", ".codex", ".env"}


async def test_a_token_for_other_workspaces_reaches_no_files(bench: Bench, project: Path) -> None:
    _, session = await opened(bench, project)
    page = await bench.page(bench.access(workspaces=["other"]), "other")
    assert await refused(page, "files/stat", sessionId=session, path="train.py") in ("outside", "unknown_session")


async def test_a_file_of_the_gateway_is_secret_also_in_a_workspace(bench: Bench, project: Path) -> None:
    page, session = await opened(bench, project)
    around = {"around": WorkspaceSection(root=project.parent)}
    bench.gateway.services.config = replace(bench.gateway.config, workspaces=around)
    assert await refused(page, "files/read", sessionId=session, path="../state/tokens.json") == "secret"


async def test_a_workspace_that_another_one_s_agents_can_turn_into_a_link_opens_nothing(
    bench: Bench, project: Path, tmp_path: Path
) -> None:
    page, session = await opened(bench, project)
    (project / "inner").symlink_to(tmp_path)
    nested = {"outer": WorkspaceSection(root=project), "inner": WorkspaceSection(root=project / "inner")}
    bench.gateway.services.config = replace(bench.gateway.config, workspaces=nested)
    assert await refused(page, "files/folder", sessionId=session, path="inner") == "outside"
    assert (await page.result("files/stat", sessionId=session, path="train.py"))["size"] == 4


async def written(page: Page, session: str, path: str, content: bytes, **more: Any) -> dict[str, Any]:
    """Write a file in two parts."""
    created = await page.result("files/create", sessionId=session, path=path, size=len(content), **more)
    half = len(content) // 2
    for offset, part in ((0, content[:half]), (half, content[half:])):
        data = b64encode(part).decode()
        call = {"sessionId": session, "upload": created["upload"], "offset": offset, "data": data}
        assert (await page.result("files/append", **call))["offset"] == offset + len(part)
    done: dict[str, Any] = await page.result("files/finish", sessionId=session, upload=created["upload"])
    return done


async def test_a_new_file_is_written_whole_and_is_in_the_audit(bench: Bench, project: Path) -> None:
    page, session = await opened(bench, project)
    content = os.urandom(300_000)
    done = await written(page, session, "plots/new.bin", content)
    assert (done["path"], done["size"]) == (f"{project}/plots/new.bin", len(content))
    assert (project / "plots/new.bin").read_bytes() == content
    (entry,) = bench.audit.of("file_written")
    assert (entry["path"], entry["identity"], entry["size"]) == (f"{project}/plots/new.bin", "ann", len(content))


async def test_a_file_is_replaced_only_when_asked(bench: Bench, project: Path) -> None:
    page, session = await opened(bench, project)
    assert await refused(page, "files/create", sessionId=session, path="train.py", size=1) == "exists"
    await written(page, session, "train.py", b"better", overwrite=True)
    assert (project / "train.py").read_text() == "better"


async def test_an_upload_of_a_lost_connection_leaves_nothing(bench: Bench, project: Path) -> None:
    page, session = await opened(bench, project)
    created = await page.result("files/create", sessionId=session, path="new.bin", size=9)
    assert len(os.listdir(project)) == 4
    await page.stream.aclose()
    while len(os.listdir(project)) > 3:
        await trio.testing.wait_all_tasks_blocked()
    other, _ = await opened(bench, project)
    call = {"sessionId": session, "upload": created["upload"]}
    assert await refused(other, "files/append", offset=0, data="", **call) == "failed"
    assert await refused(other, "files/finish", **call) == "failed"


async def test_an_upload_whose_client_leaves_while_it_begins_leaves_nothing(
    bench: Bench, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, session = await opened(bench, project)
    begun, may_begin, done = trio.Event(), threading.Event(), threading.Event()
    token = trio.lowlevel.current_trio_token()

    class Slow(Upload):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            token.run_sync_soon(begun.set)
            assert may_begin.wait(60)
            super().__init__(*args, **kwargs)

        def abandon(self) -> None:
            super().abandon()
            done.set()

    monkeypatch.setattr(file_calls, "Upload", Slow)
    call = {"sessionId": session, "path": "new", "size": 9}
    await page.send(id=99, method="files/create", params=call)
    await begun.wait()
    before = len(bench.gateway.connections)
    await page.stream.aclose()
    # The connection ends though the disk does not answer.
    while len(bench.gateway.connections) >= before:
        await trio.lowlevel.checkpoint()
    may_begin.set()
    assert await trio.to_thread.run_sync(done.wait, 60)
    assert sorted(os.listdir(project)) == [".env", "plots", "train.py"]


@pytest.mark.parametrize("stops", ["finish", "abandon"])
async def test_a_disk_that_does_not_answer_keeps_no_connection(
    bench: Bench, project: Path, monkeypatch: pytest.MonkeyPatch, stops: str
) -> None:
    page, session = await opened(bench, project)
    monkeypatch.setattr(file_calls, "DISK_SECONDS", 0.1)
    answers = threading.Event()
    monkeypatch.setattr(Upload, stops, waiting(answers, getattr(Upload, stops)))
    created = await page.result("files/create", sessionId=session, path="new", size=0)
    if stops == "finish":
        call = {"sessionId": session, "upload": created["upload"]}
        assert await refused(page, "files/finish", **call) == "failed"
        assert len(bench.audit.of("file_written")) == 1
    before = len(bench.gateway.connections)
    await page.stream.aclose()
    while len(bench.gateway.connections) >= before:
        await trio.lowlevel.checkpoint()
    answers.set()
    while len(os.listdir(project)) > 3:
        await trio.lowlevel.checkpoint()
    assert not (project / "new").exists()


def waiting(answers: threading.Event, work: Callable[..., Any]) -> Callable[..., Any]:
    """Return some work of a disk that answers when it is told to."""

    def work_later(upload: Upload) -> Any:
        assert answers.wait(60)
        return work(upload)

    return work_later


async def test_uploads_are_bounded_and_their_data_is_base64(bench: Bench, project: Path) -> None:
    page, session = await opened(bench, project)
    for number in range(8):
        created = await page.result("files/create", sessionId=session, path=f"{number}", size=9)
    assert await refused(page, "files/create", sessionId=session, path="9", size=9) == "failed"
    call = {"sessionId": session, "upload": created["upload"], "offset": 0}
    assert await refused(page, "files/append", data="not base64!", **call) == "failed"


async def test_an_upload_is_of_one_session(bench: Bench, project: Path) -> None:
    page, session = await opened(bench, project)
    created = await page.result("files/create", sessionId=session, path="new", size=0)
    other = await page.new_session(cwd=str(project))
    assert await refused(page, "files/finish", sessionId=other, upload=created["upload"]) == "failed"
    await page.result("files/finish", sessionId=session, upload=created["upload"])
