"""The commands `audit` and `replay`."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from acp_gateway.cli.main import main
from acp_gateway.config.load import load_config
from acp_gateway.gateway.events.audit import Audit
from acp_gateway.gateway.events.recording import Recorder

MOMENT = 1_800_000_000.0


def audit(config: Path, *arguments: str) -> Result:
    return CliRunner().invoke(main, ["audit", "--config", str(config), *arguments])


def path_of(config: Path) -> Path:
    return load_config(config).gateway.state_dir / "audit.jsonl"


def record(config: Path, event: str, moment: float = MOMENT, **details: object) -> None:
    Audit(path_of(config), max_size=2**20, files=3, now=lambda: moment).record(event, **details)


def test_the_audit_is_shown_a_line_for_each_entry_the_oldest_first(config: Path) -> None:
    record(config, "attached", connection="c1", agent="open code", credential="token 1a2b3c4d", role="")
    record(config, "agent_ended", MOMENT + 1, agent="x", exitCode=-9, more=["a", None])
    first, second = audit(config).stdout.splitlines()
    assert first == (
        '2027-01-15T08:00:00.000Z  attached            connection=c1 agent="open code" '
        'credential="token 1a2b3c4d" role=""'
    )
    assert second == '2027-01-15T08:00:01.000Z  agent_ended         agent=x exitCode=-9 more=["a",null]'


def test_what_a_terminal_obeys_is_shown_as_an_escape(config: Path) -> None:
    record(config, "cwd_refused", path="/tmp/\x1b[2J\x7f\u202e\n")
    raw = '{"time":"2027-01-15T08:00:00Z","event":"\u202e","\u009b2J":"\u009b"}\n'
    # Between a date and a time, Python takes any character.
    raw += '{"time":"2027-01-15\\u001b08:00:00Z","event":"x"}\n'
    with path_of(config).open("a", encoding="utf-8") as file:
        file.write(raw)
    for arguments in ([], ["--json"]):
        shown = audit(config, *arguments).stdout
        assert shown.isascii()
        assert all(line.isprintable() for line in shown.splitlines())
        assert len(shown.splitlines()) == 3


def test_as_json_each_entry_is_its_line(config: Path) -> None:
    record(config, "attached", connection="c1")
    record(config, "detached", connection="c1", why="left")
    assert audit(config, "--json").stdout == path_of(config).read_text()


def test_only_some_events_are_shown_if_asked_for(config: Path) -> None:
    for event in ("attached", "refused", "detached"):
        record(config, event)
    shown = audit(config, "--json", "--event", "attached", "--event", "detached").stdout.splitlines()
    assert [json.loads(line)["event"] for line in shown] == ["attached", "detached"]


def test_an_event_that_there_is_no_is_refused_with_the_one_that_was_meant(config: Path) -> None:
    record(config, "attached")
    for name, words in (("atached", 'did you mean "attached"?'), ("nope", "there are: agent_ended, agent_not")):
        refused = audit(config, "--event", "attached", "--event", name)
        assert (refused.exit_code, refused.stdout) == (2, "")
        assert words in refused.stderr


def test_an_event_of_another_version_is_known_where_the_audit_has_it(config: Path) -> None:
    record(config, "later")
    assert len(audit(config, "--event", "later").stdout.splitlines()) == 1


@pytest.mark.parametrize(
    ("since", "expected"),
    [
        ("2027-01-15T08:00:00Z", ["new"]),
        ("2027-01-15T09:00:00+01:00", ["new"]),
        ("2027-01-15T08:00:01Z", []),
        ("2026-12-31", ["old", "new"]),
    ],
)
def test_only_what_came_after_a_time_is_shown(config: Path, since: str, expected: list[str]) -> None:
    record(config, "old", MOMENT - 3600)
    record(config, "new", MOMENT)
    shown = audit(config, "--json", "--since", since).stdout.splitlines()
    assert [json.loads(line)["event"] for line in shown] == expected


def test_only_what_came_lately_is_shown(config: Path) -> None:
    record(config, "old", time.time() - 7300)
    record(config, "new", time.time() - 7100)
    shown = audit(config, "--json", "--since", "2h").stdout.splitlines()
    assert [json.loads(line)["event"] for line in shown] == ["new"]


@pytest.mark.parametrize("since", ["yesterday", "-1h", "0s", "", "2h 3m"])
def test_a_malformed_time_is_refused_with_examples(config: Path, since: str) -> None:
    result = audit(config, "--since", since)
    assert result.exit_code == 2
    assert "2026-11-22T07:30Z" in result.stderr


def test_damaged_lines_are_counted_and_not_shown(config: Path) -> None:
    record(config, "attached")
    with path_of(config).open("a") as file:
        file.write("torn\n")
    result = audit(config)
    assert len(result.stdout.splitlines()) == 1
    assert result.stderr == "warning: damaged lines in the audit, not shown: 1\n"


def test_without_any_audit_nothing_is_shown(config: Path) -> None:
    result = audit(config)
    assert (result.exit_code, result.output) == (0, "")


def test_an_audit_that_cannot_be_read_is_an_error_in_words(config: Path) -> None:
    path_of(config).mkdir(parents=True)
    result = audit(config)
    assert result.exit_code == 3
    assert result.stderr == f"acp-gateway: {path_of(config)}: cannot be read: Is a directory\n"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    tape = Recorder(tmp_path / "recordings", 10_000).open("c1", {"agent": "opencode"})
    tape.write("from_client", [b'{"jsonrpc":"2.0","id":0,"method":"initialize","params":{}}', b"banner"])
    tape.write("to_client", [b'{"jsonrpc":"2.0","id":0,"result":{"protocolVersion":1}}'])
    (path,) = (tmp_path / "recordings").iterdir()
    return path


def test_a_recordings_agent_answers_on_stdout(recording: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-m", "acp_gateway", "replay", str(recording)],
        input=b'{"jsonrpc":"2.0","id":"a","method":"initialize","params":{}}\n',
        capture_output=True,
        timeout=30,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[2])},
        check=True,
    )
    assert result.stdout == b'{"jsonrpc":"2.0","id":"a","result":{"protocolVersion":1}}\n'
    assert result.stderr == b"warning: lines without a message, left out: 1\n"


def test_what_is_not_a_recording_is_refused_before_anything_is_read(tmp_path: Path) -> None:
    (tmp_path / "r").write_text("hello\n")
    result = CliRunner().invoke(main, ["replay", str(tmp_path / "r")])
    assert result.exit_code == 3
    assert "is not a recording of acp-gateway" in result.stderr


@pytest.mark.parametrize("speed", ["nan", "inf", "-1"])
def test_a_speed_has_to_be_a_number(recording: Path, speed: str) -> None:
    assert CliRunner().invoke(main, ["replay", str(recording), "--speed", speed]).exit_code == 2


def test_an_exported_recording_has_only_messages_with_their_direction_and_is_replayed(
    recording: Path, tmp_path: Path
) -> None:
    exported = CliRunner().invoke(main, ["export-recording", str(recording)])
    assert (exported.exit_code, exported.stderr) == (0, "warning: lines without a message, left out: 1\n")
    assert {json.loads(line)["direction"] for line in exported.stdout.splitlines()} <= {"outgoing", "incoming"}
    (tmp_path / "fixture.jsonl").write_text(exported.stdout)
    again = CliRunner().invoke(main, ["export-recording", str(tmp_path / "fixture.jsonl")])
    assert (again.stdout, again.stderr) == (exported.stdout, "")
