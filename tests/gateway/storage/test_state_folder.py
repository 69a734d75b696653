"""The state folder: links and files of others are refused, and a second gateway."""

import fcntl
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.storage.state_folder import (
    LOCK,
    STATE_FILES,
    check_state_file,
    check_state_folder,
    find_holder,
    find_process,
    holding,
)

HOLD = """
import sys
from pathlib import Path
from acp_gateway.gateway.storage.state_folder import holding
with holding(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir(0o700)
    return folder


def test_a_folder_of_its_user_with_its_files_is_fine(state_dir: Path) -> None:
    check_state_folder(state_dir / "missing")
    check_state_folder(state_dir)
    for name in STATE_FILES:
        (state_dir / name).touch(0o600)
    check_state_folder(state_dir)


def test_a_folder_behind_a_link_is_fine(state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(state_dir)
    check_state_folder(tmp_path / "link")


@pytest.mark.parametrize("mode", [0o777, 0o770, 0o702, 0o1777])
def test_a_folder_that_others_may_write_is_refused_with_the_command_that_mends_it(mode: int, state_dir: Path) -> None:
    state_dir.chmod(mode)
    with pytest.raises(ConfigError) as refused:
        check_state_folder(state_dir)
    assert str(refused.value) == (
        f"gateway.state_dir: other users may replace what is in {state_dir} (mode {mode:04o}): chmod 700 {state_dir}"
    )


@pytest.mark.parametrize("name", STATE_FILES)
def test_a_file_that_is_a_link_is_refused(name: str, state_dir: Path, tmp_path: Path) -> None:
    (state_dir / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="is a link, which is not followed"):
        check_state_folder(state_dir)
    with pytest.raises(ConfigError, match="is a link, which is not followed"):
        check_state_file(state_dir / name)


def test_a_folder_or_file_of_another_user_is_refused(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = os.geteuid() + 1
    real = Path.lstat

    def lstat(path: Path) -> os.stat_result:
        status = list(real(path))
        status[4] = other
        return os.stat_result(status)

    (state_dir / "tokens.json").touch(0o600)
    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(ConfigError, match=f"tokens.json: belongs to another user \\(id {other}\\)"):
        check_state_folder(state_dir)
    monkeypatch.undo()
    monkeypatch.setattr("os.geteuid", lambda: 4711)
    if state_dir.stat().st_uid:
        with pytest.raises(ConfigError, match="belongs to another user"):
            check_state_folder(state_dir)


def test_a_second_gateway_is_refused_with_the_process_of_the_first(state_dir: Path) -> None:
    assert find_holder(state_dir) is None
    with holding(state_dir):
        assert find_holder(state_dir) == f"an acp-gateway runs on {state_dir} (process {os.getpid()})"
        with pytest.raises(ConfigError) as refused, holding(state_dir):
            pass
        assert str(refused.value) == (
            f"gateway.state_dir: another acp-gateway runs on {state_dir} (process {os.getpid()}): stop it, or give "
            "this one a state_dir of its own"
        )
    assert find_holder(state_dir) is None
    with holding(state_dir):
        pass
    assert (state_dir / LOCK).stat().st_mode & 0o777 == 0o600


def test_the_folder_is_free_when_its_gateway_was_killed(state_dir: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(state_dir)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"held\n"
        assert f"(process {holder.pid})" in (find_holder(state_dir) or "")
        with pytest.raises(ConfigError, match=f"process {holder.pid}"), holding(state_dir):
            pass
        holder.kill()
    assert find_holder(state_dir) is None
    with holding(state_dir):
        pass


def test_a_lock_that_is_a_link_is_not_followed(state_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").write_text("x")
    (state_dir / LOCK).symlink_to(tmp_path / "precious")
    with pytest.raises(ConfigError, match="cannot be opened"), holding(state_dir):
        pass
    assert find_holder(state_dir) is None
    assert (tmp_path / "precious").read_text() == "x"


def test_where_the_file_system_has_no_locks_a_gateway_runs_and_says_so(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def flock(_file: int, _operation: int) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("fcntl.flock", flock)
    with holding(state_dir):
        pass
    assert "see to it that no other gateway uses it" in caplog.text


def test_on_a_full_disk_a_gateway_holds_the_folder_and_says_that_its_process_is_not_in_the_lock(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def pwrite(_file: int, _data: bytes, _offset: int) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("os.pwrite", pwrite)
        with holding(state_dir):
            assert f"{state_dir}/gateway.lock cannot be written (No space left on device)" in caplog.text
            assert (find_holder(state_dir), find_process(state_dir)) == (f"an acp-gateway runs on {state_dir}", 0)
            with pytest.raises(ConfigError, match="another acp-gateway runs on"), holding(state_dir):
                pass
            with socket.socket(socket.AF_UNIX) as control:
                monkeypatch.chdir(state_dir)  # The path of a socket may not be long.
                control.bind("control")
                control.listen()
                assert find_process(Path()) == (os.getpid() if hasattr(socket, "SO_PEERCRED") else 0)
    assert find_holder(state_dir) is None


def test_the_next_gateway_needs_no_room_for_its_process(state_dir: Path) -> None:
    with holding(state_dir):
        size = (state_dir / LOCK).stat().st_size
    assert (state_dir / LOCK).stat().st_size == size


def test_a_gateway_starts_while_a_command_looks_who_holds_the_folder(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (state_dir / LOCK).open("wb") as command:
        fcntl.flock(command, fcntl.LOCK_SH)
        monkeypatch.setattr("time.sleep", lambda _seconds: fcntl.flock(command, fcntl.LOCK_UN))
        with holding(state_dir):
            assert find_process(state_dir) == os.getpid()
