"""The command `sessions`: what a gateway lists, in a table and as JSON."""

import json
import os
import re
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.cli.main import main
from acp_gateway.client import control
from tests.kit.doubles import TIMEOUT
from tests.kit.doubles import run_command as run
from tests.kit.wire_sessions import listed

SESSIONS: list[dict[str, Any]] = [
    {
        "sessionId": "s1",
        "agent": "demo",
        "title": "\x1b[2JÜ\x7f\ud83d",
        "cwd": "/srv",
        "owner": "ann",
        "live": True,
        "connected": 1,
        "away": 0,
        "turn": True,
        "fence": None,
        "waiting": [],
    },
    {
        "sessionId": "longer",
        "agent": "other",
        "owner": "bob",
        "live": False,
        "connected": 0,
        "away": 0,
        "turn": False,
        "fence": None,
        "waiting": [{"method": "session/request_permission", "since": "2026-11-22T10:00:00Z"}],
    },
]


@pytest.fixture
def gateway_of(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """Start gateways that accept any token and answer one request with these sessions, or something else; return their
    addresses."""
    threads: list[threading.Thread] = []

    def start(sessions: list[dict[str, Any]] | None, **besides: object) -> str:
        path = tmp_path / f"socket{len(threads)}"
        listener = socket.socket(socket.AF_UNIX)
        listener.settimeout(TIMEOUT)
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            with listener, listener.accept()[0] as sock, sock.makefile("rwb") as lines:
                for result in ({}, [] if sessions is None else listed(sessions, **besides)):
                    request = json.loads(lines.readline())
                    lines.write(json.dumps({"id": request["id"], "result": result}).encode() + b"\n")
                    lines.flush()
                lines.read()

        threads.append(threading.Thread(target=serve))
        threads[-1].start()
        return f"unix://{path}"

    yield start
    for thread in threads:
        thread.join()


def test_sessions_are_listed_a_row_each_and_without_heads_if_plain(gateway_of: Callable[[object], str]) -> None:
    listed = run("sessions", gateway_of(SESSIONS), "--plain")
    assert listed.exit_code == 0
    first, second = listed.stdout.splitlines()
    assert first == r"s1      demo   \x1b[2JÜ\x7f\ud83d  /srv  ann  yes  -  1  0  open  -"
    assert re.fullmatch(
        r"longer  other  - {19}-     bob  no   -  0  0  -     session/request_permission for \d+ (s|min|h|d)", second
    )


def test_sessions_have_bold_heads_on_a_terminal(
    gateway_of: Callable[[object], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    leader, follower = os.openpty()
    with open(leader, "rb", buffering=0) as terminal, open(follower, "w", encoding="cp1252") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        main(["sessions", gateway_of([SESSIONS[0] | {"title": "机"}])], standalone_mode=False)
        stdout.flush()
        shown = b""
        while shown.count(b"\n") < 2:
            shown += terminal.read(4096)
        heads, row = shown.decode().splitlines()
    assert heads == "\x1b[1mID  AGENT  TITLE  CWD   OWNER  LIVE  HISTORY  CONNECTED  AWAY  TURN  WAITS\x1b[0m"
    # What the terminal has no character for is not a reason to fail.
    assert row == "s1  demo   ?      /srv  ann    yes   -        1          0     open  -"


def test_sessions_are_json_for_programs(gateway_of: Callable[..., str]) -> None:
    printed = run("sessions", gateway_of(SESSIONS), "--json")
    assert printed.exit_code == 0
    assert json.loads(printed.stdout) == {"sessions": SESSIONS, "more": 0}
    assert printed.stdout.replace("\n", "").isprintable()
    assert json.loads(run("sessions", gateway_of([], more=12), "--json").stdout) == {"sessions": [], "more": 12}


def test_ports_of_a_sessions_programs_are_a_column_with_the_way_to_one(gateway_of: Callable[..., str]) -> None:
    ports = [{"port": 6006, "program": "tensorboard"}, {"port": 8888, "program": ""}]
    sessions = [SESSIONS[0] | {"sessionId": "gpu2/s1", "ports": ports}, SESSIONS[1]]
    printed = run("sessions", gateway_of(sessions), "--plain")
    assert [line.rpartition("  ")[2] for line in printed.stdout.splitlines()] == ["6006 · tensorboard, 8888", "-"]
    assert printed.stderr == "To see 6006 · tensorboard here: acp-gateway forward HOST 6006 --node gpu2\n"
    asked = json.loads(run("sessions", gateway_of(sessions), "--json").stdout)
    assert asked["sessions"][0]["ports"] == ports


@pytest.mark.parametrize("options", [[], ["--json"]], ids=["table", "json"])
def test_what_is_wrong_with_the_gateway_and_what_is_not_shown_is_said_beside_the_sessions(
    gateway_of: Callable[..., str], options: list[str]
) -> None:
    quiet = run("sessions", gateway_of(SESSIONS), *options)
    assert quiet.stderr == ""
    told = run("sessions", gateway_of(SESSIONS, more=12, problems=["one\nline", "\x1b[2Jx"]), *options)
    assert told.exit_code == 0
    assert told.stderr.splitlines() == [
        "warning: one line",
        r"warning: \x1b[2Jx",
        "Not shown: 12 more, used longer ago: --all lists them; `connect --attach ID` joins these too",
    ]
    assert told.stdout.replace('"more": 12', '"more": 0') == quiet.stdout


def test_only_an_agents_sessions_are_listed_where_it_is_named(gateway_of: Callable[[object], str]) -> None:
    listed = run("sessions", "--plain", gateway_of(SESSIONS), "--agent", "other")
    assert [line.split()[0] for line in listed.stdout.splitlines()] == ["longer"]


def test_where_there_are_no_sessions_that_is_said_and_no_error(gateway_of: Callable[[object], str]) -> None:
    listed = run("sessions", gateway_of([]))
    assert (listed.exit_code, listed.stdout) == (0, "")
    assert len(listed.stderr.splitlines()) == 1


def test_a_gateway_that_cannot_be_asked_for_sessions_is_one_line_and_an_exit_code(
    tmp_path: Path, gateway_of: Callable[[object], str]
) -> None:
    for target, code in ((f"unix://{tmp_path}/absent", 6), (gateway_of(None), 7), ("http://nope", 2)):
        failed = run("sessions", target)
        assert (failed.exit_code, failed.stdout) == (code, "")
        assert len(failed.stderr.splitlines()) == 1


def test_sessions_adopt_of_earlier_versions_says_that_sessions_do_not_move_and_what_to_do() -> None:
    told = run("sessions", "adopt", "gpu1/7f3a9c", "--on", "gpu2", "--force")
    assert (told.exit_code, told.stdout) == (2, "")
    (line,) = told.stderr.splitlines()
    assert "sessions do not move between nodes" in line
    assert "there again when its node is" in line
    assert "the agent of another node lists and loads it" in line


def test_sessions_are_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    async def request(destination: object, method: str, params: dict[str, str], *, time_limit: float) -> object:
        asked.append(f"{method} {params['words']}")
        one = {"sessionId": "s1", "agentType": "demo", "owner": "me", "title": "", "texts": 2, "text": "by \x1b zero"}
        found = [] if params["words"] == "nothing" else [one | ({} if params["words"] != "odd" else {"texts": "2"})]
        missing = ["gpu\x1b2", "gpu3"] if params["words"] == "absent" else []
        return {"found": found, "complete": params["words"] != "early", "missing": missing}

    monkeypatch.setattr(control, "request", request)
    done = run("sessions", "unix:///run/x", "--search", "by zero", "--plain")
    assert done.stdout == "s1  demo  -  2  by \\x1b zero\n"
    assert asked == ["session/search by zero"]
    as_json = json.loads(run("sessions", "unix:///run/x", "--search", "by", "--json").stdout)
    assert (as_json["found"][0]["agent"], as_json["complete"], as_json["missing"]) == ("demo", True, [])
    absent = run("sessions", "unix:///run/x", "--search", "absent", "--json")
    assert "not searched, as they did not answer: gpu\\x1b2, gpu3\n" in absent.stderr
    assert json.loads(absent.stdout)["missing"] == ["gpu\x1b2", "gpu3"]
    assert "still reads former histories" in run("sessions", "unix:///run/x", "--search", "early").stderr
    assert "No session has these words." in run("sessions", "unix:///run/x", "--search", "nothing").stderr
    assert "is not understood" in run("sessions", "unix:///run/x", "--search", "odd").stderr
