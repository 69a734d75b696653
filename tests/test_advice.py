"""The words for a directory that is not there, and for an agent that wants a login."""

import socket
from pathlib import Path
from typing import Any

import pytest

from acp_gateway.advice import PATH_SIZE, check_directory, login_hint
from acp_gateway.config import AgentSection

HOST = socket.gethostname()


# Directories


def test_a_directory_that_is_there_is_no_problem(tmp_path: Path) -> None:
    assert check_directory(str(tmp_path), None) is None


def test_a_directory_that_is_not_there_is_answered_with_the_map_to_add(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = tmp_path / "my home"
    (home / "proj").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    problem = check_directory("/Users/ann/proj", None)
    assert problem is not None
    assert problem.message == (
        f"there is no directory /Users/ann/proj on {HOST}; start the client with the path it has there: "
        f"acp-gateway connect … --map '/Users/ann/proj={home}/proj' (or maps in hosts.toml)"
    )
    assert problem.data == {
        "reason": "no_such_directory",
        "cwd": "/Users/ann/proj",
        "map": f"/Users/ann/proj={home}/proj",
    }


def test_the_agents_own_directory_is_suggested_before_any_other(tmp_path: Path) -> None:
    problem = check_directory(r"C:\Users\ann\proj", str(tmp_path / "proj"))
    assert problem is not None
    assert problem.data["map"] == rf"C:\Users\ann\proj={tmp_path}/proj"


@pytest.mark.parametrize(
    ("folder", "quoted"),
    [
        ("proj", r"C:\Users\ann\proj={}/proj (or"),
        ("my proj", r'"C:\Users\ann\my proj={}/my proj" (or'),
    ],
)
def test_a_map_from_windows_is_quoted_for_its_shell_where_that_is_needed(
    folder: str, quoted: str, tmp_path: Path
) -> None:
    problem = check_directory(rf"C:\Users\ann\{folder}", str(tmp_path / folder))
    assert problem is not None
    assert f"--map {quoted.format(tmp_path)}" in problem.message


def test_a_relative_directory_is_refused_without_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "proj").mkdir()
    problem = check_directory("proj", None)
    assert problem is not None
    assert problem.message == "cwd must be an absolute path, not 'proj'"
    assert problem.data == {"reason": "no_such_directory", "cwd": "proj"}


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    path = str(tmp_path / "file")
    Path(path).touch()
    problem = check_directory(path, None)
    assert problem is not None
    assert problem.message == f"{path} is not a directory"
    assert problem.data == {"reason": "no_such_directory", "cwd": path}


def test_a_path_that_is_longer_than_any_can_be_is_not_repeated() -> None:
    problem = check_directory("/" + "x" * PATH_SIZE, None)
    assert problem is not None
    assert problem.message == f"cwd is longer than a path can be ({PATH_SIZE} characters)"
    assert problem.data == {"reason": "no_such_directory"}
    longest = check_directory("/" + "x" * (PATH_SIZE - 1), None)
    assert longest is not None
    assert longest.message.startswith("there is no directory /xxx")


@pytest.mark.parametrize("cwd", ["/nul\0", "/\ud800", "/a\nb", "", "\0", "\ud800"])
def test_a_directory_that_cannot_be_is_refused_like_one_that_is_not(cwd: str) -> None:
    problem = check_directory(cwd, None)
    assert problem is not None
    assert problem.data["reason"] == "no_such_directory"


def test_a_user_without_a_home_gets_a_suggestion_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    problem = check_directory("/Users/ann/proj", None)
    assert problem is not None
    assert problem.data["map"] == "/Users/ann/proj=/"


# Logging in


TERMINAL = {"id": "t", "type": "terminal", "args": ["--login", "two words"]}
META = {"id": "m", "_meta": {"terminal-auth": {"command": "claude", "args": ["/login"]}}}
KEY = {"id": "k", "name": "API key", "description": "Set ANTHROPIC_API_KEY"}


@pytest.mark.parametrize(
    ("methods", "how"),
    [
        ([], "start `agent 'an argument'` and log in"),
        ([TERMINAL], "run `agent 'an argument' --login 'two words'`"),
        ([KEY, META, TERMINAL], "run `claude /login`"),
        ([KEY, {"description": "or use a browser"}], "Set ANTHROPIC_API_KEY or or use a browser"),
        ([{"description": ""}, {"description": 7}, {}], "start `agent 'an argument'` and log in"),
        ([{"_meta": {"terminal-auth": {"command": 7}}}, {"_meta": "x"}], "start `agent 'an argument'` and log in"),
        ([{"type": "terminal", "args": 7}], "run `agent 'an argument'`"),
        ([{"_meta": {"terminal-auth": {"command": "c", "args": "-x"}}}], "run `c`"),
        ([{"type": "terminal", "args": ["-n", 7]}], "run `agent 'an argument' -n 7`"),
    ],
)
def test_how_to_log_in_is_what_the_agent_says(methods: list[dict[str, Any]], how: str) -> None:
    section = AgentSection(command=("agent", "an argument"))
    assert login_hint(section, methods) == f"On the gateway's machine ({HOST}): {how}, then try again."


def test_how_to_log_in_is_what_the_configuration_says_first_of_all() -> None:
    section = AgentSection(command=("agent",), login="agent login")
    assert login_hint(section, [META, TERMINAL, KEY]) == (
        f"On the gateway's machine ({HOST}): run `agent login`, then try again."
    )
