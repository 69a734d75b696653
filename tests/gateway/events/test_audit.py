"""The audit: entries that are only ever added, in files of bounded size."""

import errno
import fcntl
import json
import logging
import multiprocessing
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.events.audit import (
    MAX_TEXT_LENGTH,
    NO_AUDIT,
    SINGLE,
    WINDOW,
    Audit,
    AuditThrottle,
    entry_line,
    read_audit,
)

MOMENT = 1_800_000_000.1234


def open_audit(path: Path, *, max_size: int = 2**20, files: int = 10, now: float = MOMENT) -> Audit:
    return Audit(path, max_size=max_size, files=files, now=lambda: now)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "audit.jsonl"


def entries(path: Path) -> list[dict[str, Any]]:
    return list(read_audit(path))


def numbers(path: Path) -> list[int]:
    """Return the recorded values of `n`."""
    return [entry["n"] for entry in read_audit(path)]


def test_an_entry_is_a_line_with_time_event_and_details(path: Path) -> None:
    open_audit(path).record("attached", connection="c1", identity="ann", agent=None, resumed=False)
    assert path.read_text() == (
        '{"time":"2027-01-15T08:00:00.123Z","event":"attached","connection":"c1","identity":"ann","resumed":false}\n'
    )


def test_the_file_and_its_directory_are_for_their_owner_alone(path: Path) -> None:
    open_audit(path).record("attached")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_nothing_is_made_before_there_is_something_to_write(path: Path) -> None:
    open_audit(path).close()
    assert not path.parent.exists()


def test_entries_are_added_to_what_is_there(path: Path) -> None:
    first = open_audit(path)
    first.record("a", n=1)
    first.close()
    first.record("a", n=2)
    open_audit(path).record("a", n=3)
    assert numbers(path) == [1, 2, 3]


def test_what_a_terminal_obeys_is_escaped(path: Path) -> None:
    open_audit(path).record("cwd_refused", path="\x1b[2J\x7f\r\n\u202e\ud800é")
    line = path.read_bytes()
    assert line.count(b"\n") == 1
    assert line[:-1].decode("ascii").isprintable()
    assert entries(path)[0]["path"] == "\x1b[2J\x7f\r\n\u202e\ud800é"


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("x" * (MAX_TEXT_LENGTH + 1), "x" * MAX_TEXT_LENGTH + "…"),
        ("x" * MAX_TEXT_LENGTH, "x" * MAX_TEXT_LENGTH),
        (Path("/srv"), "/srv"),
        ([1, "a", None], [1, "a", None]),
        ((True, 2.5), [True, 2.5]),
        ({"k" * 2000: ["v" * 2000]}, {"k" * MAX_TEXT_LENGTH + "…": ["v" * MAX_TEXT_LENGTH + "…"]}),
        (list(range(1000)), list(range(64))),
        ([[[["deep"]]]], [[["…"]]]),
        (float("nan"), "nan"),
        (2**64, "a large number"),
        (-(2**63) + 1, -(2**63) + 1),
    ],
)
def test_values_are_bounded(path: Path, given: object, kept: object) -> None:
    open_audit(path).record("event", value=given)
    assert entries(path)[0]["value"] == kept


def test_a_full_file_is_renamed_and_the_oldest_is_removed(path: Path) -> None:
    audit_log = open_audit(path, max_size=1, files=3)
    for n in range(5):
        audit_log.record("a", n=n)
    assert sorted(file.name for file in path.parent.iterdir()) == ["audit.jsonl.1", "audit.jsonl.2"]
    audit_log.record("a", n=5)
    assert numbers(path) == [4, 5]
    assert json.loads((path.parent / "audit.jsonl.1").read_text())["n"] == 5


def test_a_file_grows_up_to_its_limit(path: Path) -> None:
    audit_log = open_audit(path, max_size=150)
    for n in range(4):
        audit_log.record("a", n=n)
    line = len(entry_line(entries(path)[0])) + 1
    assert path.stat().st_size == 4 * line - (path.parent / "audit.jsonl.1").stat().st_size
    assert 150 <= (path.parent / "audit.jsonl.1").stat().st_size < 150 + line


def test_with_one_file_only_the_newest_entries_are_kept(path: Path) -> None:
    audit_log = open_audit(path, max_size=100, files=1)
    for n in range(5):
        audit_log.record("a", n=n)
    assert numbers(path) == [4]
    assert list(path.parent.iterdir()) == [path]


def test_fewer_files_than_before_remove_the_others(path: Path) -> None:
    many = open_audit(path, max_size=1)
    for n in range(8):
        many.record("a", n=n)
    open_audit(path, max_size=1, files=3).record("a", n=8)
    assert numbers(path) == [7, 8]


def test_a_file_that_another_process_has_renamed_gets_nothing_more(path: Path) -> None:
    one, other = open_audit(path, max_size=100), open_audit(path, max_size=100)
    for n in range(10):
        (one if n % 3 else other).record("a", n=n)
    assert numbers(path) == list(range(10))


def test_a_file_that_was_removed_is_made_again(path: Path) -> None:
    audit_log = open_audit(path)
    audit_log.record("a", n=1)
    path.unlink()
    audit_log.record("a", n=2)
    assert numbers(path) == [2]


def test_while_another_process_renames_nothing_is_renamed_or_waited_for(path: Path) -> None:
    open_audit(path).record("a", n=1)
    with path.open("rb") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        open_audit(path, max_size=1).record("a", n=2)
    assert [file.name for file in path.parent.iterdir()] == ["audit.jsonl"]
    assert numbers(path) == [1, 2]


def _write_many(path: Path, writer: int) -> None:
    audit_log = Audit(path, max_size=5000, files=1000)
    for n in range(200):
        audit_log.record("a", writer=writer, n=n)


def test_processes_that_write_at_once_lose_nothing(path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    writers = [context.Process(target=_write_many, args=(path, writer)) for writer in range(2)]
    for process in writers:
        process.start()
    for process in writers:
        process.join()
    reading = read_audit(path)
    assert sorted((entry["writer"], entry["n"]) for entry in reading) == [(w, n) for w in range(2) for n in range(200)]
    assert reading.damaged == 0


def test_an_unterminated_line_of_another_writer_does_not_spoil_the_next_audit_entry(path: Path) -> None:
    audit_log = open_audit(path)
    audit_log.record("a", n=1)
    with path.open("ab") as other:
        other.write(b'{"time":"2027-')
    audit_log.record("a", n=2)
    reading = read_audit(path)
    assert [entry["n"] for entry in reading] == [1, 2]
    assert reading.damaged == 1


def full_disk(room: int) -> Callable[[int, bytes], int]:
    """`os.write` with that much room left on the disk."""

    def write(file: int, data: bytes, really: Callable[[int, bytes], int] = os.write) -> int:
        nonlocal room
        if not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        written = really(file, data[:room])
        room -= written
        return written

    return write


def test_a_full_disk_is_told_once_and_then_how_much_is_missing(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    audit_log = open_audit(path)
    audit_log.record("a", n=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full_disk(20))
        for n in range(2, 5):
            audit_log.record("a", n=n)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    audit_log.record("a", n=5)
    audit_log.record("a", n=6)
    assert [record.levelname for record in caplog.records] == ["ERROR", "WARNING"]
    assert "it lacks 3 entries" in caplog.text
    reading = read_audit(path)
    found = [(entry["event"], entry.get("n"), entry.get("count")) for entry in reading]
    assert found == [("a", 1, None), ("entries_lost", None, 3), ("a", 5, None), ("a", 6, None)]
    assert reading.damaged == 1


def test_an_audit_directory_that_cannot_be_made_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    audit_log = open_audit(tmp_path / "file" / "audit.jsonl")
    audit_log.record("a")
    audit_log.record("a")
    assert [record.message for record in caplog.records] == [
        f"the audit can't be written, entries are missing in it: File exists: {tmp_path}/file/audit.jsonl"
    ]


def test_a_file_that_cannot_be_renamed_grows_and_that_is_told_once(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(_self: Path, _target: Path) -> None:
        raise OSError(errno.EACCES, "Permission denied")

    audit_log = open_audit(path, max_size=1)
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", refuse)
        audit_log.record("a", n=1)
        audit_log.record("a", n=2)
    assert [record.message for record in caplog.records] == [
        f"the audit's file can't be renamed and grows: Permission denied: {path}"
    ]
    audit_log.record("a", n=3)
    audit_log.record("a", n=4)
    assert numbers(path) == [1, 2, 3, 4]
    assert len(list(path.parent.iterdir())) == 2


def test_a_file_that_others_can_use_is_mended_and_told(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    open_audit(path).record("a", n=1)
    path.chmod(0o644)
    open_audit(path).record("a", n=2)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert caplog.records[0].levelname == "ERROR"
    assert "mode 0644" in caplog.text
    assert numbers(path) == [1, 2]


def test_a_link_is_not_followed(path: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "target"
    target.write_text("")
    path.parent.mkdir()
    path.symlink_to(target)
    open_audit(path).record("a")
    assert target.read_text() == ""
    assert "can't be written" in caplog.text
    with pytest.raises(ConfigError, match="cannot be read"):
        entries(path)


def test_what_is_not_a_file_is_refused(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path.parent.mkdir()
    os.mkfifo(path)
    open_audit(path).record("a")
    assert "is not a file" in caplog.text


def test_a_file_of_another_user_is_refused(
    path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    open_audit(path).record("a", n=1)
    other = os.geteuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: other)
    open_audit(path).record("a", n=2)
    assert "belongs to another user" in caplog.text
    assert numbers(path) == [1]


def test_what_root_writes_for_another_user_belongs_to_that_user(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = []
    path.parent.mkdir()
    owner = path.parent.stat()
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(os, "fchown", lambda _file, uid, gid: given.append((uid, gid)))
    audit_log = open_audit(path)
    audit_log.record("a", n=1)
    audit_log.record("a", n=2)
    assert given == [(owner.st_uid, owner.st_gid)]
    assert numbers(path) == [1, 2]


def test_root_leaves_it_to_the_files_owner_to_rename_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    owners = iter([os.geteuid(), os.geteuid() + 1])
    monkeypatch.setattr(Audit, "_owner", lambda _self: next(owners))
    open_audit(path, max_size=1).record("a", n=1)
    assert [file.name for file in path.parent.iterdir()] == ["audit.jsonl"]


def test_entries_come_oldest_first_over_all_files(path: Path) -> None:
    audit_log = open_audit(path, max_size=1, files=100)
    for n in range(30):
        audit_log.record("a", n=n)
    assert len(list(path.parent.iterdir())) == 30
    assert numbers(path) == list(range(30))


def test_a_file_that_is_renamed_while_it_is_read_is_read_once(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    open_audit(path, max_size=1).record("a", n=0)
    open_audit(path).record("a", n=1)
    really = os.open

    def open_late(name: Path, flags: int, mode: int = 0o777) -> int:
        file = really(name, flags, mode)
        if name == path and not flags & os.O_CREAT and not (path.parent / "audit.jsonl.2").exists():
            (path.parent / "audit.jsonl.1").rename(path.parent / "audit.jsonl.2")
            path.rename(path.parent / "audit.jsonl.1")
        return file

    monkeypatch.setattr(os, "open", open_late)
    assert numbers(path) == [0, 1]


def test_a_gap_in_the_numbers_hides_nothing(path: Path) -> None:
    audit_log = open_audit(path, max_size=1)
    for n in range(3):
        audit_log.record("a", n=n)
    (path.parent / "audit.jsonl.2").unlink()
    assert numbers(path) == [0, 2]


def test_only_what_is_new_enough_is_read(path: Path) -> None:
    for seconds in (10.0, 20.0, 30.0):
        open_audit(path, now=seconds).record("a", n=seconds)
    assert [entry["n"] for entry in read_audit(path, since=20.0)] == [20.0, 30.0]


@pytest.mark.parametrize(
    "line",
    [
        "nothing",
        "\x00",
        "[1]",
        "{}",
        "[" * 100_000,
        '{"time":"x","event":"a"}',
        '{"time":5,"event":"a"}',
        '{"time":"2027-01-15T08:00:00Z","event":null}',
        '{"time":"2027-01-15T08:00:00Z"}',
    ],
    ids=lambda line: line[:40],
)
def test_a_damaged_line_is_passed_over_and_counted(path: Path, line: str) -> None:
    open_audit(path).record("a", n=1)
    with path.open("a") as file:
        file.write(f"{line}\n\n")
    open_audit(path).record("a", n=2)
    reading = read_audit(path)
    assert [entry["n"] for entry in reading] == [1, 2]
    assert reading.damaged == 1


def test_no_audit_at_all_has_no_entries(path: Path) -> None:
    assert entries(path) == []


def test_a_directory_in_its_place_cannot_be_read(path: Path) -> None:
    path.mkdir(parents=True)
    with pytest.raises(ConfigError, match="cannot be read: Is a directory"):
        entries(path)


def test_the_audit_of_nothing_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_args: object) -> int:
        raise AssertionError

    monkeypatch.setattr(os, "open", refuse)
    NO_AUDIT.record("attached", connection="c1")
    NO_AUDIT.close()


# Floods


@pytest.fixture
def audit(path: Path) -> Iterator[Audit]:
    audit = open_audit(path, max_size=1 << 24, files=2)
    yield audit
    audit.close()


def untimed(path: Path) -> list[dict[str, Any]]:
    """Return the entries without their times."""
    return [{name: value for name, value in entry.items() if name != "time"} for entry in read_audit(path)]


async def test_audit_throttle_writes_single_entries_at_once(audit: Audit, path: Path) -> None:
    AuditThrottle(audit).record("attached", identity="ann", agent="demo")
    assert untimed(path) == [{"event": "attached", "identity": "ann", "agent": "demo"}]


async def test_audit_throttle_writes_a_flood_as_one_entry_with_its_count(
    audit: Audit, path: Path, autojump_clock: MockClock
) -> None:
    throttle = AuditThrottle(audit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(throttle.run)
        for number in range(SINGLE + 500):
            throttle.record("cwd_refused", identity="ann", path=f"/{number}")
        assert len(untimed(path)) == SINGLE
        await trio.sleep(WINDOW)
        await wait_all_tasks_blocked()
        assert untimed(path)[SINGLE:] == [{"event": "cwd_refused", "identity": "ann", "count": 500}]
        nursery.cancel_scope.cancel()


async def test_audit_throttle_limits_each_event_and_identity_by_itself(audit: Audit, path: Path) -> None:
    throttle = AuditThrottle(audit)
    for _ in range(SINGLE + 1):
        throttle.record("cwd_refused", identity="ann")
    throttle.record("cwd_refused", identity="bob")
    throttle.record("attached", identity="ann")
    assert [(entry["event"], entry["identity"]) for entry in untimed(path)[SINGLE:]] == [
        ("cwd_refused", "bob"),
        ("attached", "ann"),
    ]


async def test_audit_throttle_writes_single_entries_again_after_a_window(
    audit: Audit, path: Path, autojump_clock: MockClock
) -> None:
    throttle = AuditThrottle(audit)
    for _ in range(SINGLE + 1):
        throttle.record("attached", identity="ann")
    await trio.sleep(WINDOW)
    throttle.record("attached", identity="ann", agent="demo")
    assert untimed(path)[SINGLE:] == [{"event": "attached", "identity": "ann", "agent": "demo"}]


async def test_audit_throttle_always_writes_entries_without_identity(audit: Audit, path: Path) -> None:
    throttle = AuditThrottle(audit)
    for _ in range(SINGLE + 5):
        throttle.record("agent_started", agent="demo")
    assert len(untimed(path)) == SINGLE + 5


async def test_audit_throttle_writes_counts_when_it_is_cancelled(audit: Audit, path: Path) -> None:
    throttle = AuditThrottle(audit)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(throttle.run)
        for _ in range(SINGLE + 3):
            throttle.record("attached", identity="ann")
        nursery.cancel_scope.cancel()
    assert untimed(path)[-1] == {"event": "attached", "identity": "ann", "count": 3}
