"""The command `cp`."""

from pathlib import Path
from typing import IO, Any, Self

import pytest

from acp_gateway.client import control
from acp_gateway.client.control import Listing
from acp_gateway.client.copying import gateway_files
from acp_gateway.client.copying.gateway_files import Copied
from acp_gateway.client.dialing import Destination
from acp_gateway.errors import Unreachable
from acp_gateway.made.files_rules import FileRefused
from tests.kit.doubles import run_command as run

BOX = "unix:///run/x"

FILES = {"plots/loss.png": b"\x89PNG\x00", "/data/run.csv": b"a,b\n"}


class FakeFiles:
    """The files of a session, in memory."""

    def __init__(self, destination: Destination, session: str, time_limit: float) -> None:
        self.where = f"{destination.address} {session}"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None: ...

    async def kind(self, path: str) -> str | None:
        return "folder" if path == "data" else "file" if path in FILES else None

    async def download(self, path: str, target: IO[bytes], progress: Any) -> Copied:
        if path == "lost":
            target.write(b"a part")
            raise Unreachable("box: the connection was lost; 6 of 9 bytes had come: run the command again")
        if path not in FILES:
            raise FileRefused("not_found", f"box: {path} does not exist")
        target.write(FILES[path])
        progress(len(FILES[path]), len(FILES[path]))
        return Copied(len(FILES[path]), path.endswith(".csv"))

    async def upload(self, source: IO[bytes], size: int, path: str, *, overwrite: bool, progress: Any) -> str:
        if path in FILES and not overwrite:
            raise FileRefused("exists", f"box: {path} exists already")
        written.append((self.where, path, source.read(size)))
        return path


written: list[tuple[str, str, bytes]] = []


@pytest.fixture(autouse=True)
def box(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A gateway with one session."""
    written.clear()
    monkeypatch.chdir(tmp_path)

    async def list_sessions(*_: Any, **__: Any) -> Listing:
        sessions = [{"sessionId": name, "agent": "a", "cwd": "/", "title": None, "live": True} for name in ("s1",)]
        return Listing(sessions)

    monkeypatch.setattr(control, "list_sessions", list_sessions)
    monkeypatch.setattr(gateway_files, "GatewayFiles", FakeFiles)


def test_cp_downloads_a_file_into_a_folder_under_its_own_name_or_under_another(tmp_path: Path) -> None:
    assert run("cp", f"{BOX}:plots/loss.png", ".").exit_code == 0
    assert (tmp_path / "loss.png").read_bytes() == FILES["plots/loss.png"]
    assert run("cp", f"{BOX}:plots/loss.png", "other.png").exit_code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["loss.png", "other.png"]


def test_cp_replaces_no_file_here_without_force(tmp_path: Path) -> None:
    (tmp_path / "loss.png").write_text("mine")
    done = run("cp", f"{BOX}:plots/loss.png", ".")
    assert (done.exit_code, "--force replaces it" in done.stderr) == (2, True)
    assert (tmp_path / "loss.png").read_text() == "mine"
    assert run("cp", "-f", f"{BOX}:plots/loss.png", ".").exit_code == 0
    assert (tmp_path / "loss.png").read_bytes() == FILES["plots/loss.png"]


def test_cp_writes_a_file_to_stdout_and_warns_of_one_that_has_changed() -> None:
    done = run("cp", f"{BOX}:/data/run.csv", "-")
    assert (done.exit_code, done.stdout) == (0, "a,b\n")
    assert "was written to while it was copied" in done.stderr


@pytest.mark.parametrize(
    ("places", "code", "said"),
    [
        ([f"{BOX}:absent", "."], 4, "does not exist"),
        ([f"{BOX}:lost", "."], 6, "6 of 9 bytes had come"),
        ([f"{BOX}:plots/", "."], 2, "is a folder"),
        ([f"{BOX}:", "."], 2, "is a folder"),
        ([f"{BOX}:plots/loss.png", "absent/"], 2, "is not a folder"),
        ([f"{BOX}:plots/loss.png", "absent/x"], 2, "can't be written"),
        ([f"{BOX}:plots/loss.png", f"{BOX}:/data/run.csv", "one"], 2, "is not a folder"),
        ([f"{BOX}:plots/loss.png"], 2, "where to"),
        (["a", "b"], 2, "one side has to be at a gateway"),
        ([f"{BOX}:a", f"{BOX}:b"], 2, "one side has to be at a gateway"),
        (["absent", f"{BOX}:"], 2, "can't be read"),
        ([".", f"{BOX}:"], 2, "is a folder: pack it"),
        (["--session", "s2", f"{BOX}:a", "."], 2, "there is no session s2; one of: --session s1"),
    ],
)
def test_cp_says_what_is_wrong_and_leaves_no_part(places: list[str], code: int, said: str, tmp_path: Path) -> None:
    done = run("cp", *places)
    assert (done.exit_code, said in done.stderr) == (code, True), done.stderr
    assert list(tmp_path.iterdir()) == []


def test_cp_uploads_files_into_a_folder_or_under_a_name(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a")
    (tmp_path / "b.csv").write_text("b")
    assert run("cp", "a.csv", "b.csv", f"{BOX}:data").exit_code == 0
    assert run("cp", "a.csv", f"{BOX}:").exit_code == 0
    assert run("cp", "a.csv", f"{BOX}:new.csv").exit_code == 0
    assert [(path, content) for _, path, content in written] == [
        ("data/a.csv", b"a"),
        ("data/b.csv", b"b"),
        ("a.csv", b"a"),
        ("new.csv", b"a"),
    ]
    assert {where for where, _, _ in written} == {f"{BOX} s1"}


def test_cp_uploads_stdin_under_a_name_alone() -> None:
    assert run("cp", "-", f"{BOX}:notes.txt", input="notes").exit_code == 0
    assert written[0][1:] == ("notes.txt", b"notes")
    done = run("cp", "-", f"{BOX}:data", input="notes")
    assert (done.exit_code, "name the file" in done.stderr) == (2, True)


def test_cp_replaces_no_file_there_without_force(tmp_path: Path) -> None:
    (tmp_path / "loss.png").write_text("mine")
    done = run("cp", "loss.png", f"{BOX}:plots/loss.png")
    assert (done.exit_code, "exists already: --force replaces it" in done.stderr) == (4, True)
    assert run("cp", "--force", "loss.png", f"{BOX}:plots/loss.png").exit_code == 0
    assert written[0][2] == b"mine"
