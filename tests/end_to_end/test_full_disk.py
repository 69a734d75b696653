"""A gateway whose `state_dir` has room for no byte, or turns read-only: it serves, and says what it cannot keep."""

import json
import os
import resource
import shutil
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path

import pytest

from tests.end_to_end.playing import editor, playing_gateway, said
from tests.kit import running
from tests.kit.running import ENVIRONMENT, PROGRAM, start_gateway

PLAYS = {"hello": [said("from before")], "more": [said("while full")]}
UNLIMITED = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
LIMITED = (
    "import os, resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (0, -1)); os.execv(sys.argv[1], sys.argv[1:])"
)

Room = Callable[[int], None]
"""Makes room again for a process."""


@contextmanager
def limit_of_size(_state_dir: Path) -> Iterator[Room]:
    """The system lets the gateway write to no file."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(running, "PROGRAM", [sys.executable, "-c", LIMITED, *PROGRAM])
        yield lambda process: resource.prlimit(process, resource.RLIMIT_FSIZE, UNLIMITED) and None


@contextmanager
def full_disk(state_dir: Path) -> Iterator[Room]:
    """The file system is full to its last byte."""
    rest = state_dir / "rest"
    with rest.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(b"x" * 512)
        except OSError:
            pass
    yield lambda _process: rest.unlink()


@pytest.fixture(params=["limit", "disk"])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Callable[[Path], object]]:
    if request.param == "limit":
        if not hasattr(resource, "prlimit"):
            pytest.skip("the system can't change the limits of another process")
        yield limit_of_size
        return
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    mount = ["mount", "-t", "tmpfs", "-o", "size=1m,mode=700", "tmpfs", str(folder)]
    if os.geteuid() or subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("only root may mount a small file system, and not everywhere")
    try:
        yield full_disk
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def doctor(config: Path) -> str:
    command = [*PROGRAM, "doctor", "--config", str(config)]
    ended = subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    return ended.stdout + ended.stderr  # What went wrong is seen where the text is not as expected.


def test_a_gateway_starts_on_a_full_disk_serves_what_it_has_and_names_what_it_cannot_keep(
    filled: Callable[[Path], AbstractContextManager[Room]], tmp_path: Path
) -> None:
    with playing_gateway(tmp_path, PLAYS) as gateway, editor(gateway) as laptop:
        before = laptop.new_session()
        assert laptop.prompt(before, "hello") == "end_turn"
    (tmp_path / "state" / "gateway.lock").write_bytes(b"")  # As a gateway of an earlier version has left it.
    with filled(tmp_path / "state") as make_room:
        gateway = start_gateway(tmp_path, gateway.pin)
        try:
            with editor(gateway) as laptop:
                assert [row["sessionId"] for row in gateway.sessions()] == [before]
                session = laptop.new_session()
                assert laptop.prompt(session, "more") == "end_turn"
                status = running.run_program("status", "--config", gateway.config)
                assert f"problem: {tmp_path}/state/sessions.db: database or disk is full; until it can be" in status
                assert f"ok      gateway   it runs, as process {gateway.process.pid}" in doctor(gateway.config)
                make_room(gateway.process.pid)
        finally:
            assert gateway.stop() == 0, "".join(gateway.log)
    log = "".join(gateway.log)
    assert "gateway.lock cannot be written" in log
    assert log.count("sessions.db: database or disk is full") == 1
    assert "Traceback" not in log
    gateway = start_gateway(tmp_path, gateway.pin)
    try:
        assert {row["sessionId"] for row in gateway.sessions()} == {before, session}
    finally:
        assert gateway.stop() == 0


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A small disk at `state`, which may be mounted again; the folder of the gateway."""
    folder, image = tmp_path / "state", tmp_path / "disk"
    folder.mkdir(0o700)
    with image.open("wb") as file:
        file.truncate(16 * 1024 * 1024)
    make, mount = ["mkfs.ext4", "-q", str(image)], ["mount", "-o", "loop", str(image), str(folder)]
    made = os.geteuid() == 0 and shutil.which(make[0]) is not None
    if not made or any(subprocess.run(it, capture_output=True, check=False).returncode for it in (make, mount)):
        pytest.skip("only root may mount a disk, and not everywhere")
    folder.chmod(0o700)
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def until_known(state_dir: Path, session: str) -> None:
    """Wait for the moment that it takes a gateway to write down that a session is open."""
    deadline = time.monotonic() + 60
    with closing(sqlite3.connect(f"file:{state_dir}/sessions.db?mode=ro", uri=True)) as database:
        while not database.execute("SELECT 1 FROM session WHERE session_id = ?", (session,)).fetchall():
            assert time.monotonic() < deadline
            os.sched_yield()


def test_a_session_that_was_open_when_the_disk_turned_read_only_is_opened_after_a_restart(disk: Path) -> None:
    state_dir = disk / "state"
    plays = {"plays": PLAYS, "resumes": True}
    with playing_gateway(disk, PLAYS) as gateway:
        (disk / "plays.json").write_text(json.dumps(plays))
        with editor(gateway) as laptop:
            session = laptop.new_session()
            until_known(state_dir, session)
            # As after an error of the disk.
            subprocess.run(["mount", "-o", "remount,abort", str(state_dir)], check=True)
            assert laptop.prompt(session, "hello") == "end_turn"
    subprocess.run(["umount", str(state_dir)], check=True)
    subprocess.run(["mount", "-o", "loop", str(disk / "disk"), str(state_dir)], check=True)
    gateway = start_gateway(disk, gateway.pin)
    try:
        assert [row["sessionId"] for row in gateway.sessions()] == [session]
        with editor(gateway) as laptop:
            laptop.call("session/resume", sessionId=session, cwd=str(running.WORK), mcpServers=[])
            assert laptop.prompt(session, "more") == "end_turn"
    finally:
        assert gateway.stop() == 0, "".join(gateway.log)
