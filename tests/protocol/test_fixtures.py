"""Fixtures: lines of messages with their direction, written redacted and read verbatim."""

import json
from pathlib import Path

import pytest

from acp_gateway.errors import ConfigError
from acp_gateway.gateway.events.replay import Player, RecordedConnection
from acp_gateway.protocol.fixtures import is_fixture_line, read_line, write_lines

REQUEST = b'{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":1}}'
RESPONSE = b'{"jsonrpc":"2.0","id":1,"result":{"n":1.10}}'


def test_a_fixtures_message_keeps_the_spelling_of_its_members() -> None:
    line = b'{"jsonrpc": "2.0", "direction": "incoming", "id": 1.0, "result": {"n": 1.10}}'
    assert read_line(line) == (False, b'{"jsonrpc":"2.0","id":1.0,"result":{"n": 1.10}}')


@pytest.mark.parametrize("line", [b"", b"x", b"[]", b"{}", b'{"direction":"up"}', b'{"direction":1}'])
def test_a_line_without_a_direction_does_not_belong_in_a_fixture(line: bytes) -> None:
    assert not is_fixture_line(line)
    if line.startswith(b"{"):
        with pytest.raises(ValueError, match="direction"):
            read_line(line)


def test_written_lines_are_read_as_the_same_dialogue() -> None:
    lines = write_lines([(True, REQUEST), (False, RESPONSE)], 1000).splitlines()
    assert [is_fixture_line(line) for line in lines] == [True, True]
    assert [read_line(line) for line in lines] == [(True, REQUEST), (False, RESPONSE)]


def test_secrets_are_redacted_in_a_written_fixture() -> None:
    written = write_lines([(True, b'{"jsonrpc":"2.0","method":"x","params":{"api_key":"hunter2"}}')], 1000)
    assert b"hunter2" not in written
    assert json.loads(written)["params"]["api_key"] == "\u2026"


def test_a_message_above_the_message_size_is_refused_with_its_number() -> None:
    with pytest.raises(ConfigError, match=r"message 2 .*--message-size"):
        write_lines([(True, REQUEST), (False, b'{"x":"%b"}' % (b"y" * 2000))], 1000)


def test_a_fixture_is_replayed_like_a_recording(tmp_path: Path) -> None:
    path = tmp_path / "fixture.jsonl"
    path.write_bytes(write_lines([(True, REQUEST), (False, RESPONSE)], 1000) + b"no message\n")
    fixture = RecordedConnection.read(path)
    assert (fixture.header, fixture.skipped_lines) == ({}, 1)
    assert [planned.message for planned in Player(fixture.messages).receive(REQUEST)] == [RESPONSE]
