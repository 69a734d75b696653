"""Recordings: what passed, when and which way, with secrets left out, and never in the way."""

import errno
import json
import logging
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acp_gateway import __version__
from acp_gateway.config.options import GatewaySection
from acp_gateway.gateway.events.recording import (
    BURST,
    MAX_BODY_LENGTH,
    MAX_TEXT_LENGTH,
    LogRecorder,
    Recorder,
    Recorders,
    Share,
    recording_of,
)

MOMENT = 1_800_000_000.1234
PROMPT = b'{"jsonrpc":"2.0","id":1,"method":"session/prompt","params":{"sessionId":"s"}}'
DONE = b'{"jsonrpc":"2.0","id":1,"result":{"stopReason":"end_turn"}}'


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    return tmp_path / "recordings"


def recorder(directory: Path, limit: int = 2**20) -> Recorder:
    """A recorder whose clock advances by a quarter of a second at each reading."""
    ticks: Iterator[float] = (100 + n / 4 for n in range(1000))
    return Recorder(directory, limit, now=lambda: MOMENT, clock=lambda: next(ticks))


def lines(directory: Path) -> list[dict[str, Any]]:
    (path,) = directory.iterdir()
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def test_a_recording_tells_what_it_is_and_then_what_was_said_when_and_by_whom(directory: Path) -> None:
    tape = recorder(directory).open("c1", {"agent": "opencode", "identity": "ann"})
    tape.write("from_client", [PROMPT])
    tape.write("to_client", [DONE, DONE])
    tape.close()
    assert lines(directory) == [
        {
            "acp-gateway-recording": 1,
            "version": __version__,
            "connection": "c1",
            "started": "2027-01-15T08:00:00.123Z",
            "agent": "opencode",
            "identity": "ann",
        },
        {"t": 0.25, "from": "client", "message": json.loads(PROMPT)},
        {"t": 0.5, "from": "agent", "message": json.loads(DONE)},
        {"t": 0.5, "from": "agent", "message": json.loads(DONE)},
    ]


def test_the_file_is_named_by_time_and_connection_and_is_for_its_owner_alone(directory: Path) -> None:
    recorder(directory).open("../c1", {})
    (path,) = directory.iterdir()
    assert path.name == "20270115T080000.123Z-___c1.jsonl"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(directory.stat().st_mode) == 0o700


def test_what_passed_at_once_is_written_at_once(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tape = recorder(directory).open("c1", {})
    written: list[bytes] = []

    def write(_file: int, data: bytes) -> int:
        written.append(data)
        return len(data)

    monkeypatch.setattr(os, "write", write)
    tape.write("to_client", [DONE, DONE])
    assert [data.count(b"\n") for data in written] == [2]


def test_secrets_are_left_out(directory: Path) -> None:
    tape = recorder(directory).open("c1", {"note": "Bearer xyz"})
    tape.write(
        "from_client", [b'{"method":"x","params":{"password":"hunter2","env":[{"name":"A","value":"hunter2"}]}}']
    )
    tape.write("from_client", [b"banner acpgw_hunter2"])
    (path,) = directory.iterdir()
    assert b"hunter2" not in path.read_bytes()
    assert b"xyz" not in path.read_bytes()


@pytest.mark.parametrize(
    ("message", "text"),
    [
        (b"npm banner \xff\x7f", "npm banner \ufffd\x7f"),
        (b"x" * (MAX_TEXT_LENGTH + 1), "x" * MAX_TEXT_LENGTH + "… 1 characters left out"),
        (b' {"password":"hunter2"', "22 bytes that are not JSON"),
        (b'{"method":"_acp-gateway', "23 bytes that are not JSON"),
        (b'["acp-gateway"', "14 bytes that are not JSON"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_what_is_not_json_is_recorded_as_text_unless_it_began_like_a_message(
    directory: Path, message: bytes, text: str
) -> None:
    recorder(directory).open("c1", {}).write("from_client", [message])
    (path,) = directory.iterdir()
    assert lines(directory)[1] == {"t": 0.25, "from": "client", "text": text}
    assert b"\x7f" not in path.read_bytes()


def test_what_is_said_about_the_link_is_left_out(directory: Path) -> None:
    tape = recorder(directory).open("c1", {})
    about_link = [b'{"method":"_acp-gateway/ack","params":{}}', rb'{"method":"_\u0061cp-gateway/ack"}']
    not_about_it = [b'{"method":"x","params":"_acp-gateway/ack"}', b'{"result":"acp-gateway"}']
    tape.write("to_client", about_link)
    tape.write("to_client", about_link + not_about_it)
    assert [line["message"] for line in lines(directory)[1:]] == [json.loads(message) for message in not_about_it]


def test_after_the_limit_nothing_is_recorded_any_more_and_that_is_told_once(
    directory: Path, caplog: pytest.LogCaptureFixture
) -> None:
    recording = recorder(directory, limit=600)
    tape, other = recording.open("c1", {}), recording.open("c2", {})
    for _ in range(10):
        tape.write("from_client", [PROMPT])
        other.write("from_client", [PROMPT])
    recording.open("c3", {}).write("from_client", [PROMPT])
    assert 450 < sum(path.stat().st_size for path in directory.iterdir()) <= 600
    assert [json.loads(line) for path in directory.iterdir() for line in path.read_bytes().splitlines()]
    assert len(list(directory.iterdir())) == 2
    assert [record.message for record in caplog.records] == [
        f"record_limit is reached: nothing more is recorded in {directory}"
    ]


def test_recordings_of_before_count_towards_the_limit(directory: Path) -> None:
    recorder(directory).open("c1", {}).write("from_client", [PROMPT] * 10)
    recorder(directory, limit=1000).open("c2", {})
    assert len(list(directory.iterdir())) == 1


def test_a_link_that_leads_nowhere_does_not_keep_the_others_from_counting(directory: Path) -> None:
    directory.mkdir()
    (directory / "old.jsonl").write_bytes(b"x" * 1000)
    (directory / "link.jsonl").symlink_to("nowhere")
    recorder(directory, 1100).open("c", {}).close()
    assert [path.name for path in directory.iterdir() if path.name not in ("old.jsonl", "link.jsonl")] == []


def no_space(_file: int, data: bytes) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("write", [no_space, lambda _file, data: len(data) - 1], ids=["nothing", "half"])
def test_a_full_disk_ends_the_recording_and_nothing_else(
    directory: Path,
    write: Callable[[int, bytes], int],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    recording = recorder(directory)
    tape, other = recording.open("c1", {}), recording.open("c2", {})
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        tape.write("from_client", [PROMPT])
        other.write("from_client", [PROMPT])
    tape.write("from_client", [DONE])
    tape.close()
    tape.close()
    assert len(caplog.records) == 1
    assert f"can't record in {directory}" in caplog.text
    assert all(path.read_bytes().count(b"\n") == 1 for path in directory.iterdir())


def test_a_directory_that_cannot_be_made_is_told_once_and_nothing_is_recorded(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    tape = recorder(tmp_path / "file" / "recordings").open("c1", {})
    tape.write("from_client", [PROMPT])
    tape.close()
    assert len(caplog.records) == 1
    assert "can't record" in caplog.text


def test_bodies_are_logged_redacted_and_cut(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tape = LogRecorder().open("c1", {})
    tape.write("from_client", [b'{"method":"x","token":"hunter2"}'])
    tape.write("to_client", [DONE, b'{"method":"_acp-gateway/ack"}', b'"' + b"x" * 10_000 + b'"'])
    tape.close()
    first, second, third = [record.message for record in caplog.records]
    assert first == r'c1: <- {"method":"x","token":"\u2026"}'
    assert second == f"c1: -> {DONE.decode()}"
    assert len(third) <= MAX_BODY_LENGTH + 20


def test_several_ways_of_recording_get_the_same(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    tape = Recorders([recorder(directory), LogRecorder()]).open("c1", {"agent": "a"})
    tape.write("from_client", [PROMPT])
    tape.close()
    tape.write("from_client", [PROMPT])
    assert len(lines(directory)) == 2
    assert len(caplog.records) == 2


def test_nothing_is_recorded_unless_asked_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert recording_of(GatewaySection(state_dir=tmp_path), log_bodies=False) is None
    assert caplog.records == []


def test_what_was_asked_for_is_recorded_and_warned_of(directory: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    recording = recording_of(GatewaySection(state_dir=directory, record_dir=directory), log_bodies=True)
    assert recording is not None
    assert [record.levelname for record in caplog.records] == ["WARNING", "WARNING"]
    recording.open("c1", {}).write("from_client", [PROMPT])
    assert lines(directory)[1]["message"] == json.loads(PROMPT)
    assert "c1: <- " in caplog.text


def test_a_message_that_is_too_large_to_look_through_is_told_by_its_method_and_size(directory: Path) -> None:
    message = b'{"method":"session/update","params":"' + b"hunter2" * 100_000 + b'"}'
    recorder(directory).open("c1", {}).write("to_client", [message])
    text = f"{len(message)} bytes of session/update, more than record_message_size"
    assert lines(directory)[1] == {"t": 0.25, "from": "agent", "text": text}


def test_a_message_of_more_than_record_message_size_is_told_by_its_size(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    section = GatewaySection(record_dir=tmp_path, record_message_size=len(PROMPT) - 1)
    recording = recording_of(section, log_bodies=True)
    assert recording is not None
    recording.open("c1", {}).write("from_client", [PROMPT])
    (path,) = tmp_path.glob("*.jsonl")
    for text in (path.read_text(), caplog.text):
        assert f"{len(PROMPT)} bytes of session/prompt, more than record_message_size" in text


def test_looking_through_messages_takes_a_share_of_the_time_and_no_more() -> None:
    now, looked = 0.0, 0

    def look(message: bytes) -> bytes:
        nonlocal now, looked
        now += 0.01
        looked += 1
        return message

    share = Share(0.1, lambda: now)
    told = [share.inspect(b"x", look, lambda _: b"omitted") for _ in range(1000)]
    assert told == [b"x"] * looked + [b"omitted"] * (1000 - looked)
    assert BURST <= looked * 0.01 <= 2 * BURST
    before = looked
    for _ in range(100_000):
        now += 0.001
        share.inspect(b"x", look, lambda _: b"omitted")
    assert abs((looked - before) * 0.01 / now - 0.1) < 0.02


def test_what_was_not_looked_through_is_noted_in_its_place(
    directory: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(Share, "inspect", lambda _share, message, _look, omit: omit(message))
    tape = Recorders([recorder(directory), LogRecorder()]).open("c1", {})
    tape.write("from_client", [b'{"method":"x","a":"hunter2"}'])
    text = "28 bytes, not looked through: recording took more than record_share of the time"
    assert lines(directory)[1]["text"] == text
    assert caplog.records[-1].message.startswith("c1: <- 28 bytes, not looked through")


@pytest.mark.parametrize(
    "message",
    [
        b'{"method":"session/update","params":"' + rb"\ud800" * 200_000 + b'"}',
        b'{"method":"_acp-gateway/x","params":[' + b"[]," * 400_000 + b"0]}",
    ],
    ids=["surrogates", "brackets"],
)
def test_a_large_message_is_not_read_to_find_out_whether_it_is_about_the_link(
    message: bytes, monkeypatch: pytest.MonkeyPatch, directory: Path
) -> None:
    def method_of(_message: bytes) -> str:
        raise AssertionError("it was read")

    monkeypatch.setattr("acp_gateway.gateway.events.recording.method_of", method_of)
    recorder(directory).open("c1", {}).write("to_client", [message])
    assert "more than record_message_size" in lines(directory)[1]["text"]
