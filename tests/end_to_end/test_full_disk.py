"""A gateway that is started where `state_dir` has room for no byte: it serves, and says what it cannot keep."""

import os
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from tests.end_to_end import running
from tests.end_to_end.playing import editor, playing_gateway, said
from tests.end_to_end.running import ENVIRONMENT, PROGRAM, start_gateway

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
    return subprocess.run(command, env=ENVIRONMENT, capture_output=True, text=True, check=False).stdout


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
