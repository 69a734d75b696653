"""The example of a hook: what it sends to ntfy, for which events."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parent.parent
SCRIPT = ROOT / "examples" / "hooks" / "ntfy.sh"

LINK = "https://box.example/#/s/s1/r/x7Qd-3"

WAITING = {
    "event": "permission_waiting",
    "sessionId": "s1",
    "agent": "opencode",
    "title": None,
    "connected": 0,
    "method": "session/request_permission",
    "tool": {"toolCallId": "t7", "title": 'Run "make test"; rm\n-rf', "kind": "execute"},
    "requestId": "x7Qd-3",
    "link": LINK,
}
ENDED = {
    "event": "turn_end",
    "sessionId": "s1",
    "agent": "opencode",
    "title": "Fix it",
    "connected": 0,
    "stopReason": "end_turn",
    "seconds": 61.5,
    "link": None,
}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    if shutil.which("jq") is None:
        pytest.skip("jq is not installed")
    (tmp_path / ".config" / "acp-gateway").mkdir(parents=True)
    (tmp_path / ".config" / "acp-gateway" / "ntfy-topic").write_text("long-topic\n")
    (tmp_path / "bin").mkdir()
    curl = tmp_path / "bin" / "curl"
    curl.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$HOME/arguments"\ncat > "$HOME/sent"\n')
    curl.chmod(0o755)
    return tmp_path


def sent_by(home: Path, event: dict[str, Any]) -> Any:
    """Run the script for an event, and return what it sends; None if that is nothing."""
    environment = {"HOME": str(home), "PATH": f"{home / 'bin'}:{os.environ['PATH']}"}
    subprocess.run(["sh", SCRIPT], input=json.dumps(event).encode() + b"\n", env=environment, check=True, timeout=30)
    sent = home / "sent"
    return json.loads(sent.read_text()) if sent.exists() else None


def test_a_waiting_permission_is_sent_with_the_link_to_the_question(home: Path) -> None:
    assert sent_by(home, WAITING) == {
        "topic": "long-topic",
        "title": "opencode waits for you",
        "message": 'Run "make test"; rm\n-rf',
        "priority": 4,
        "click": LINK,
    }
    # Nothing of it is in the arguments of a program.
    assert "make test" not in (home / "arguments").read_text()
    assert (home / "arguments").read_text().endswith("https://ntfy.sh/\n")


def test_a_long_turn_is_sent_without_a_link_where_there_is_no_page(home: Path) -> None:
    message = "Fix it: end_turn"
    assert sent_by(home, ENDED) == {"topic": "long-topic", "title": "opencode is done", "message": message}


def test_a_turn_that_has_failed_is_named_so(home: Path) -> None:
    sent = sent_by(home, ENDED | {"stopReason": None})
    assert sent is not None
    assert sent["message"] == "Fix it: failed"


@pytest.mark.parametrize("event", [ENDED | {"seconds": 59}, WAITING | {"connected": 1}, {"event": "later"}])
def test_nothing_is_sent_while_a_controller_is_connected_or_of_a_short_turn(home: Path, event: dict[str, Any]) -> None:
    assert sent_by(home, event) is None
