"""The commands `status` and `reload`: what they print of a gateway's answer, and exit codes."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.cli.gateway import status as command
from acp_gateway.client import control, local
from acp_gateway.client.local import LocalGateway
from tests.kit.doubles import run_command as run

STATUS: dict[str, Any] = {
    "version": "1.2.3",
    "pid": 4711,
    "uptime": 3725,
    "memory": 50 * 2**20,
    "config": "/c/config.toml",
    "stateDir": "/s",
    "problems": [],
    "listeners": ["wss://0.0.0.0:7443/acp"],
    "agents": [
        {"name": "a", "pid": 12, "memory": 3 * 2**30, "fence": "landlock", "sessions": 2, "turns": 1}
        | {"connected": 1, "away": 2, "waiting": 3},
        {"name": "b", "pid": None, "memory": None, "sessions": 0, "turns": 0, "connected": 0, "away": 0, "waiting": 0},
        {"name": "c", "pid": None, "memory": None, "url": "tcp://127.0.0.1:1", "sessions": 0, "turns": 0}
        | {"connected": 0, "away": 0, "waiting": 0},
    ],
    "connected": 1,
    "away": 2,
    "waiting": 3,
}


RELOADED = "agents.a: new\nlisten: changed, and needs a restart, which ends the agents\nReloaded.\n"


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Answers of a running gateway to each command; to be changed by tests."""
    answers: dict[str, Any] = {"status": dict(STATUS), "reload": {"problems": []}}

    async def status(self: LocalGateway, *, time_limit: float) -> Any:
        return answers["status"]

    async def reload(self: LocalGateway, *, time_limit: float) -> Any:
        return answers["reload"]

    monkeypatch.setattr(LocalGateway, "status", status)
    monkeypatch.setattr(LocalGateway, "reload", reload)
    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    return answers


def test_status_prints_what_is_lent_to_doors(config: Path, answers: dict[str, Any]) -> None:
    answers["status"]["doors"] = [
        {"name": "home", "parked": 4, "why": None},
        {"name": "lab", "parked": 0, "why": "no answer"},
    ]
    lines = run("status", "--config", config).stdout.splitlines()
    assert lines[-6:-4] == ["door home: 4 connections lent", "door lab: 0 connections lent: no answer"]


def test_status_prints_the_gateway_and_a_row_for_each_agent(config: Path, answers: dict[str, Any]) -> None:
    shown = run("status", "--config", config)
    assert shown.exit_code == 0
    assert shown.stdout.splitlines() == [
        "acp-gateway 1.2.3, process 4711, up 1 h 2 min, 50 MiB: ready",
        "listening on wss://0.0.0.0:7443/acp",
        "configuration: /c/config.toml; state: /s",
        "1 connected, 2 away, 3 waiting for a decision (`acp-gateway sessions` shows them)",
        "AGENT  PID                MEMORY   FENCE     SESSIONS  TURNS  CONNECTED  AWAY  WAITING",
        "a      12                 3.0 GiB  landlock  2         1      1          2     3",
        "b      -                  -        -         0         0      0          0     0",
        "c      tcp://127.0.0.1:1  -        -         0         0      0          0     0",
    ]


HELD = {"memory": 70 * 2**30, "agentType": "claude", "sessionId": "s1", "title": "Train\x1b[2J"}

MACHINE: dict[str, Any] = {
    "cpus": 64,
    "busy": 12.4,
    "memory": {"total": 512 * 2**30, "free": 400 * 2**30},
    "disks": [{"path": "/srv", "total": 4 * 2**40, "free": 2**40}],
    "gpus": [
        {"name": "NVIDIA H100", "use": 0.97, "total": 80 * 2**30, "used": 71 * 2**30, "temperature": 66}
        | {"holders": [HELD, {"memory": 2**30}]},
        {"name": "Old", "use": None, "total": None, "used": None, "temperature": None, "holders": []},
    ],
    "problem": None,
}


def test_status_prints_how_busy_the_machine_is_and_what_holds_its_gpus(config: Path, answers: dict[str, Any]) -> None:
    answers["status"]["machine"] = MACHINE
    lines = run("status", "--config", config).stdout.splitlines()
    assert "\n".join(lines[4:-4]).replace("\n  ", " ") == (
        "machine: 12.4 of 64 processors busy; memory 512 GiB, 400 GiB free; disk of /srv 1.0 TiB of 4.0 TiB free\n"
        "GPU 0 NVIDIA H100: in use, 97% busy, 71 GiB of 80 GiB, 66 °C, claude in session s1 (Train\\x1b[2J) 70 GiB, "
        "other programs 1.0 GiB\n"
        "GPU 1 Old: free"
    )
    answers["status"]["machine"] = MACHINE | {"gpus": [], "problem": "no driver"}
    assert "problem: no driver" in run("status", "--config", config).stdout


def test_lines_of_status_are_wrapped_at_words_in_80_columns(
    config: Path, answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    why = "it does not answer " * 10
    answers["status"] |= {"problems": [why], "stateDir": f"/home/{'a' * 70}", "agents": [], "machine": MACHINE}
    answers["status"] |= {"doors": [{"name": "lab", "parked": 0, "why": why}]}
    answers["status"] |= {"nodes": [{"name": "gpu2", "up": False, "since": "2026-11-22T10:00:00Z", "why": why}]}
    words = run("status", "--config", config).stdout.split()
    monkeypatch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda _: True)
    monkeypatch.setattr("shutil.get_terminal_size", lambda: os.terminal_size((80, 24)))
    shown = run("status", "--config", config).stdout
    assert [line for line in shown.splitlines() if len(line) > 79 and " " in line] == []
    assert shown.split() == words


def test_status_is_ready_with_warnings(config: Path, answers: dict[str, Any]) -> None:
    answers["status"] |= {"ready": True, "problems": ["the directory is lost"]}
    lines = run("status", "--config", config).stdout.splitlines()
    assert lines[0].endswith(": ready")
    assert lines[1] == "problem: the directory is lost"


def test_status_shows_problems_and_escapes_what_is_not_printable(config: Path, answers: dict[str, Any]) -> None:
    answers["status"] |= {"problems": ["disk\x1b full"], "config": None, "memory": None, "waiting": 0, "agents": []}
    lines = run("status", "--config", config).stdout.splitlines()
    assert lines[0].endswith("up 1 h 2 min: NOT READY")
    assert lines[1] == r"problem: disk\x1b full"
    assert "configuration: none; state: /s" in lines
    assert lines[-1] == "1 connected, 2 away, 0 waiting for a decision"


def test_status_counts_nodes_and_tells_why_some_are_away(config: Path, answers: dict[str, Any]) -> None:
    up = {"name": "gpu1", "up": True, "since": "2026-11-22T09:00:00Z", "why": None}
    away = {"name": "gpu2", "up": False, "since": "2026-11-22T10:00:00Z", "why": "no\x1b answer"}
    answers["status"]["nodes"] = [up]
    assert "1 node, 0 away (`acp-gateway nodes` shows them)" in run("status", "--config", config).stdout.splitlines()
    answers["status"]["nodes"] = [up, away]
    lines = run("status", "--config", config).stdout.splitlines()
    assert "2 nodes, 1 away (`acp-gateway doctor` says what to do)" in lines
    assert r"away: node gpu2 since 2026-11-22T10:00:00Z: no\x1b answer" in lines


def test_status_as_json_is_the_answer(config: Path, answers: dict[str, Any]) -> None:
    answers["status"]["later"] = "\x7f"
    shown = run("status", "--config", config, "--json")
    assert json.loads(shown.stdout) == answers["status"]
    assert "\x7f" not in shown.stdout


def test_an_answer_of_another_version_is_an_error_that_names_json(config: Path, answers: dict[str, Any]) -> None:
    del answers["status"]["agents"]
    shown = run("status", "--config", config)
    assert shown.exit_code == 7
    assert "use --json" in shown.stderr


@pytest.mark.parametrize(
    ("seconds", "text"), [(0, "0 s"), (59, "59 s"), (60, "1 min"), (3600, "1 h 0 min"), (90000, "1 d 1 h")]
)
def test_a_duration_has_two_units_at_most(seconds: int, text: str) -> None:
    assert command._duration(seconds) == text


@pytest.mark.parametrize("name", ["status", "reload", "nodes"])
def test_where_no_gateway_runs_the_exit_code_is_6(config: Path, name: str) -> None:
    shown = run(name, "--config", config)
    assert shown.exit_code == 6
    assert "no gateway runs on " in shown.stderr


def test_reload_prints_what_has_changed(config: Path, answers: dict[str, Any]) -> None:
    answers["reload"] |= {"changed": ["agents.a: new"], "restart": ["listen"]}
    done = run("reload", "--config", config)
    assert (done.exit_code, done.stdout, done.stderr) == (0, RELOADED, "")


def test_reload_prints_problems_and_exits_with_3(config: Path, answers: dict[str, Any]) -> None:
    answers["reload"] = {"problems": ["tokens.json: broken\x1b]52;c;AAAA\x07"]}
    done = run("reload", "--config", config)
    assert (done.exit_code, done.stdout, done.stderr) == (3, "", "problem: tokens.json: broken\\x1b]52;c;AAAA\\x07\n")


# Sessions of this machine


def test_sessions_without_a_target_asks_the_gateway_of_this_machine(
    answers: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []

    async def list_sessions(destination: Any, **_: Any) -> control.Listing:
        asked.append((str(destination.address), destination.agent, destination.control))
        return control.Listing([])

    monkeypatch.setattr(control, "list_sessions", list_sessions)
    monkeypatch.setattr(local, "find_local_gateway", lambda _: LocalGateway(Path("/s")))
    assert run("sessions", "--agent", "a").exit_code == 0
    assert asked == [("unix:///s/control", "a", True)]


def test_sessions_without_a_target_where_no_gateway_runs_asks_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "find_local_gateway", lambda _: LocalGateway(tmp_path))
    refused = run("sessions")
    assert refused.exit_code == 2
    assert "name a gateway, as for `connect`: no gateway runs on " in refused.stderr
    refused = run("sessions", "--pin", "x")
    assert refused.exit_code == 2
    assert "--pin is for a gateway elsewhere" in refused.stderr
    refused = run("sessions", "box", "--config", tmp_path / "x.toml")
    assert refused.exit_code == 2
    assert "leave it out, or TARGET" in refused.stderr


def test_sessions_without_a_target_on_a_laptop_names_its_gateways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("acp_gateway.config.load.SYSTEM_CONFIG", tmp_path / "absent")
    hosts = tmp_path / ".config/acp-gateway/hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text('[hosts.box]\nurl = "box"\n[hosts.other]\nurl = "other"\n')
    refused = run("sessions")
    assert refused.exit_code == 2
    assert "which gateway? There are in hosts.toml: box, other" in refused.stderr
    for name in ("watch", "chat", "ping"):
        assert "there are several gateways: name one of box, other" in run(name).stderr
    refused = run("status")
    assert refused.exit_code == 3
    assert "this command runs on the gateway's machine" in refused.stderr


def test_the_only_gateway_of_a_laptop_needs_no_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("acp_gateway.config.load.SYSTEM_CONFIG", tmp_path / "absent")
    hosts = tmp_path / ".config/acp-gateway/hosts.toml"
    hosts.parent.mkdir(parents=True)
    hosts.write_text('[hosts.box]\nurl = "tcp://127.0.0.1:1"\ntoken_file = "absent"\n')
    for name in ("sessions", "watch", "ping"):
        done = run(name)
        assert done.exit_code in (3, 4)
        assert "acp-gateway/absent" in done.output


def test_sessions_of_this_machine_may_be_those_of_another_configuration(config: Path) -> None:
    refused = run("sessions", "--config", config)
    assert refused.exit_code == 2
    assert f"no gateway runs on {config.parent / 'state'}" in refused.stderr


def test_reload_with_json_prints_one_object_on_stdout_and_the_lines_on_stderr(
    config: Path, answers: dict[str, Any]
) -> None:
    answers["reload"] = {"changed": ["agents.a: new"], "restart": ["listen"]}
    done = run("reload", "--config", config, "--json")
    assert (done.exit_code, done.stderr) == (0, RELOADED)
    assert json.loads(done.stdout) == {"changed": ["agents.a: new"], "restart": ["listen"], "problems": []}
    answers["reload"] = {"problems": ["line 1"]}
    done = run("reload", "--config", config, "--json")
    assert (done.exit_code, json.loads(done.stdout)["problems"]) == (3, ["line 1"])


UP = {"name": "gpu1", "url": "wss://gpu1:7443/acp", "up": True, "since": "2026-11-22T09:00:00Z", "why": None}
AWAY = {"name": "gpu2", "configured": False, "url": "wss://gpu2:7443/acp", "up": False, "since": "2026-11-22T10:00:00Z"}
NODES: list[dict[str, Any]] = [
    UP
    | {"version": "1.2.3", "agents": ["opencode", "claude"], "sessions": 3, "turns": 2, "waiting": 1}
    | {"load": {"sessions": 7, "turns": 5, "lag": 0.0123}},
    AWAY | {"why": "no\x1b answer", "version": None, "agents": None, "sessions": 0, "turns": 0, "waiting": 0},
]


@pytest.fixture
def answer(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The answer of a running gateway; to be changed by tests."""
    answer: dict[str, Any] = {"nodes": NODES}

    async def status(self: LocalGateway, *, time_limit: float, nodes: bool) -> Any:
        assert nodes
        return answer

    monkeypatch.setattr(LocalGateway, "status", status)
    monkeypatch.setattr(LocalGateway, "check_running", lambda _: None)
    return answer


def test_nodes_are_rows_with_state_and_cause(config: Path, answer: dict[str, Any]) -> None:
    shown = run("nodes", "--config", config)
    assert shown.exit_code == 0
    assert shown.stdout.startswith("NODE ")
    assert [" ".join(line.split()) for line in shown.stdout.splitlines()[1:]] == [
        "gpu1 config up 2026-11-22 09:00:00 UTC 1.2.3 opencode, claude 7 5 1 12 ms - -",
        r"gpu2 cluster away 2026-11-22 10:00:00 UTC - - 0 0 0 - - no\x1b answer",
    ]


def test_a_node_that_is_up_and_does_not_answer_is_silent(config: Path, answer: dict[str, Any]) -> None:
    answer["nodes"] = [NODES[0] | {"why": "it does not answer now"}]
    row = run("nodes", "--config", config).stdout.splitlines()[1]
    assert row.split()[:3] == ["gpu1", "config", "silent"]
    assert row.endswith("it does not answer now")


def test_a_node_that_is_too_old_is_listed_so(config: Path, answer: dict[str, Any]) -> None:
    answer["nodes"] = [NODES[1] | {"reason": "too_old", "why": "it is too old: upgrade acp-gateway there"}]
    row = run("nodes", "--config", config).stdout.splitlines()[1]
    assert " too old " in row
    assert row.endswith("upgrade acp-gateway there")


def test_a_node_that_tells_no_load_has_the_sessions_of_this_gateway(config: Path, answer: dict[str, Any]) -> None:
    answer["nodes"] = [NODES[0] | {"load": None}]
    row = run("nodes", "--config", config).stdout.splitlines()[1]
    assert " ".join(row.split()).endswith("opencode, claude 3 2 1 - - -")


def test_nodes_are_listed_with_what_is_free_on_their_machines(config: Path, answer: dict[str, Any]) -> None:
    answer["nodes"] = [NODES[0] | {"load": NODES[0]["load"] | {"machine": MACHINE}}]
    row = run("nodes", "--config", config).stdout.splitlines()[1]
    assert row.endswith("1 of 2 GPUs, 52 of 64 CPUs, 400 GiB memory  -")
    answer["nodes"] = [NODES[0] | {"load": NODES[0]["load"] | {"machine": {"cpus": "many"}}}]
    assert run("nodes", "--config", config).stdout.splitlines()[1].split()[-3:] == ["ms", "-", "-"]


def test_nodes_as_json_are_the_answer(config: Path, answer: dict[str, Any]) -> None:
    assert json.loads(run("nodes", "--config", config, "--json").stdout) == NODES


def test_without_nodes_nothing_but_a_hint_is_printed(config: Path, answer: dict[str, Any]) -> None:
    answer["nodes"] = []
    shown = run("nodes", "--config", config)
    assert (shown.exit_code, shown.stdout) == (0, "")
    assert "[nodes.NAME]" in shown.stderr


@pytest.mark.parametrize("nodes", [None, [{}], [NODES[0] | {"since": "x"}]])
def test_an_answer_of_another_version_is_an_error(config: Path, answer: dict[str, Any], nodes: Any) -> None:
    answer["nodes"] = nodes
    assert run("nodes", "--config", config).exit_code == 7
