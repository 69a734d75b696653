"""No token is anywhere but in its file: what `traces` searches after every module is made to have some here.

The gateway of these tests logs and records all that it can. That nothing of a token is in what it leaves behind is
looked for when all of them are done; the tests see to it that there is something to look through.
"""

import dataclasses
import importlib
import json
import os
import pkgutil
import resource
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest

import acp_gateway
from acp_gateway.client.dialing import Destination
from acp_gateway.config.addresses import parse_address
from acp_gateway.config.load import agent_environment, load_config
from acp_gateway.gateway.access import Access
from acp_gateway.security.token_format import mint
from acp_gateway.security.token_store import TokenStore
from acp_gateway.server.hello import Hello
from tests.end_to_end.test_websocket_peers import status_of
from tests.end_to_end.traces import PIECE, TRACES, Traces, descendants
from tests.kit.doubles import remember_session
from tests.kit.running import (
    AGENTS,
    ENVIRONMENT,
    WORK,
    RunningGateway,
    lines_of,
    prepare,
    run_program,
    sees_processes,
    start_gateway,
)

INITIALIZE = {"protocolVersion": 1, "clientCapabilities": {}}


@pytest.fixture(scope="module", autouse=True)
def forked() -> None:
    """Let processes show in `/proc` the program itself."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway that writes down as much as it can, with an agent that looks around."""
    directory = tmp_path_factory.mktemp("secrets")
    command = [sys.executable, str(AGENTS / "dumping_agent.py"), str(directory / "seen")]
    hook = ["/bin/sh", "-c", f"env >> '{directory}/hooked'"]
    agents = (
        f'[agents.dumping]\ncommand = {json.dumps(command)}\nmcp_servers = "allow"\n'
        f"[hooks]\non_turn_end = {json.dumps(hook)}\n"
    )
    pin = prepare(directory, agents, more=f'record_dir = "{directory}/recordings"')
    running = start_gateway(directory, pin, "--verbose", "--log-bodies")
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


def converse(command: list[str], *messages: dict[str, Any], **variables: str) -> list[dict[str, Any]]:
    """Return the answers of a shim to these messages, each sent once the one before it was answered."""
    with subprocess.Popen(
        command,
        env=ENVIRONMENT | variables,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stderr is not None
        answers = []
        for number, message in enumerate(messages):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", "id": number} | message) + "\n")
            process.stdin.flush()
            answers.append(process.stdout.readline())
        TRACES.look_at_processes()
        process.stdin.close()
        TRACES.note("the stdout of a client", "".join(answers) + process.stdout.read())
        TRACES.note("the stderr of a client", process.stderr.read())
    return [json.loads(answer) for answer in answers]


# The search itself


def in_a_file(folder: Path, traces: Traces, secret: str) -> None:
    (folder / "log").write_text(f"a client came in with {secret} today")


def cut_off_in_a_file(folder: Path, traces: Traces, secret: str) -> None:
    (folder / "log").write_text(f"no such token: {secret[: len('acpgw_') + PIECE]}…")


def without_its_beginning(folder: Path, traces: Traces, secret: str) -> None:
    (folder / "log").write_text(f"no such token: …{secret[-2 * PIECE :]}")


def in_a_database(folder: Path, traces: Traces, secret: str) -> None:
    with closing(sqlite3.connect(folder / "sessions.db")) as database:
        database.execute("CREATE TABLE said (text TEXT)")
        database.execute("INSERT INTO said VALUES (?)", [json.dumps({"env": [{"value": secret}]})])
        database.commit()


def in_a_file_of_two_tokens(folder: Path, traces: Traces, secret: str) -> None:
    (folder / "token").write_text(f"{secret}\n{secret}\n")


def printed(folder: Path, traces: Traces, secret: str) -> None:
    traces.note("a log", f"refused: {secret}")


def on_a_command_line(folder: Path, traces: Traces, secret: str) -> None:
    with subprocess.Popen(["cat", "-", f"/nonexistent/{secret}"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL):
        traces.look_at_processes()


def in_the_environment_of_a_child(folder: Path, traces: Traces, secret: str) -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"TOKEN": secret}):
        traces.look_at_processes()


def handed_on_to_a_grandchild(folder: Path, traces: Traces, secret: str) -> None:
    # It has said a word when it is there, and keeps the variable that its parent was given.
    with subprocess.Popen(
        ["sh", "-c", "sh -c 'echo here; cat'; true"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT | {"ACP_GATEWAY_TOKEN": secret},
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        traces.look_at_processes()


@pytest.mark.parametrize(
    "plant",
    [
        *(in_a_file, cut_off_in_a_file, without_its_beginning, in_a_database, in_a_file_of_two_tokens, printed),
        *(on_a_command_line, in_the_environment_of_a_child, handed_on_to_a_grandchild),
    ],
)
def test_the_search_finds_a_planted_token(plant: Callable[[Path, Traces, str], None], tmp_path: Path) -> None:
    traces = Traces()
    secret = traces.note_tokens_in(f"{mint()}\n").strip()
    assert traces.search(tmp_path) == []
    plant(tmp_path, traces, secret)
    assert traces.search(tmp_path) != []


def test_the_search_leaves_out_token_files_and_what_a_client_was_given(tmp_path: Path) -> None:
    traces = Traces()
    secret = traces.note_tokens_in(mint())
    (tmp_path / "token").write_text(f"{secret}\n")
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env={"ACP_GATEWAY_TOKEN": secret}):
        traces.look_at_processes()
    assert traces.search(tmp_path) == []


def test_the_search_leaves_out_a_fork_that_has_not_started_its_program(tmp_path: Path) -> None:
    traces = Traces()
    secret = traces.note_tokens_in(mint())
    program = "import os; child = os.fork(); child and print(child, flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=ENVIRONMENT | {"ACP_GATEWAY_TOKEN": secret},
    ) as process:
        assert process.stdout is not None
        fork = int(process.stdout.readline())
        assert secret.encode() in Path(f"/proc/{fork}/environ").read_bytes()
        traces.look_at_processes()
        process.communicate(b"\n\n")
    assert traces.search(tmp_path) == []


def test_all_tokens_that_the_program_makes_are_searched_for(gateway: RunningGateway) -> None:
    remember_session(gateway.directory / "state", "some-session")
    made = [
        gateway.token_file,
        gateway.save_token("token", "create", "--label", "noted"),
        gateway.save_token("share", "some-session", "--token"),
    ]
    (row,) = [
        row
        for row in run_program("token", "list", "--plain", "--config", gateway.config).splitlines()
        if "noted" in row
    ]
    made.append(gateway.save_token("token", "rotate", row.split()[0]))
    assert len({path.read_text().strip() for path in made} & TRACES.secrets) == 4


# What is searched


def test_what_is_logged_and_recorded_of_a_session_has_no_secrets_in_it(gateway: RunningGateway) -> None:
    secret = TRACES.note_tokens_in(mint())
    servers = [
        {"name": "tools", "command": "true", "args": [], "env": [{"name": "API_KEY", "value": secret}]},
        {"type": "http", "name": "web", "url": "https://x", "headers": [{"name": "X-Mine", "value": secret}]},
    ]
    answers = converse(
        [*gateway.connect_command("wss"), "--log-file", str(gateway.directory / "shim.log")],
        {"method": "initialize", "params": INITIALIZE},
        {"method": "authenticate", "params": {"methodId": "key", "apiKey": secret, "_meta": {"token": [secret]}}},
        {"method": "session/new", "params": {"cwd": str(WORK), "mcpServers": servers}},
        {"method": "of/some/agent", "params": {"headers": {"Authorization": f"Bearer {secret}"}, "say": f"-{secret}-"}},
    )
    assert ["result" in answer for answer in answers] == 4 * [True]
    (recording,) = (gateway.directory / "recordings").iterdir()
    assert "API_KEY" in recording.read_text()
    gateway.read_log_until("of/some/agent")
    log = "".join(gateway.log)
    assert "bodies are logged" in log
    assert "API_KEY" in log


@sees_processes
def test_an_agent_that_looks_around_sees_no_token(gateway: RunningGateway) -> None:
    command = gateway.connect_command("wss")
    del command[command.index("--token-file") : command.index("--token-file") + 2]
    converse(
        command,
        {"method": "initialize", "params": INITIALIZE},
        {"method": "session/new", "params": {"cwd": str(WORK), "mcpServers": []}},
        {"method": "session/prompt", "params": {"sessionId": "the-only-one", "prompt": []}},
        ACP_GATEWAY_TOKEN=gateway.token,
    )
    seen = (gateway.directory / "seen").read_bytes()
    assert b"PATH=" in seen
    assert b"ACP_GATEWAY_TOKEN" not in seen
    # Of the client as well, which here runs beside it.
    assert b"\0connect\0" in seen
    assert b"\0serve\0" in seen


def test_neither_a_wrong_token_nor_one_with_a_typo_is_repeated(gateway: RunningGateway) -> None:
    wrong = TRACES.note_tokens_in(mint())
    typo = wrong[:-1] + ("a" if wrong[-1] != "a" else "b")
    for transport in ("wss", "tcp+tls"):
        command = gateway.connect_command(transport)
        del command[command.index("--token-file") : command.index("--token-file") + 2]
        command += ["--log-file", str(gateway.directory / "wrong.log")]
        for token, words in ((wrong, "no valid token"), (typo, "checksum")):
            (answer,) = converse(command, {"method": "initialize", "params": INITIALIZE}, ACP_GATEWAY_TOKEN=token)
            assert answer["error"]["data"]["reason"] == "unauthorized"
            assert words in answer["error"]["message"]
    assert "no valid token" in (gateway.directory / "wrong.log").read_text()


def test_a_token_in_the_address_is_refused_and_not_logged(gateway: RunningGateway) -> None:
    url, token = gateway.urls["ws"], gateway.token
    for query in (f"token={token}", f"access_token={token}", f"authorization=Bearer%20{token}", token):
        assert status_of(f"{url}?{query}", []) == 401
    assert status_of(f"{url}/{token}?", []) == 404


def test_no_command_shows_a_token(gateway: RunningGateway) -> None:
    config = ("--config", str(gateway.config))
    (token_id, *_), *_ = (row.split() for row in run_program("token", "list", "--plain", *config).splitlines())
    for command in (("token", "show", token_id), ("check-config",), ("audit",), ("audit", "--json")):
        run_program(*command, *config)
    for options in ((), ("--json",)):
        run_program("sessions", gateway.urls["tcp"], "--token-file", gateway.token_file, *options)
    shown = run_program("connect", gateway.urls["wss"], "--token-file", gateway.token_file, "--print-config", "zed")
    assert str(gateway.token_file) in shown


def test_the_gateway_dumps_no_core_and_its_agents_do_as_they_would_without_it(tmp_path: Path) -> None:
    def soft_limit(pid: int) -> int:
        soft, _ = resource.prlimit(pid, resource.RLIMIT_CORE)
        return soft

    before = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (before[1], before[1]))
    try:
        assert soft_limit(os.getpid()) != 0, "this system allows no core dumps anyway"
        agent = f'[agents.dumping]\ncommand = ["{sys.executable}", "{AGENTS / "dumping_agent.py"}"]\n'
        running = start_gateway(tmp_path, prepare(tmp_path, agent))
    finally:
        resource.setrlimit(resource.RLIMIT_CORE, before)
    try:
        assert soft_limit(running.process.pid) == 0
        with subprocess.Popen(
            running.connect_command("tcp"), env=ENVIRONMENT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        ) as shim:
            assert shim.stdin is not None
            asked = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": INITIALIZE}
            shim.stdin.write(json.dumps(asked).encode() + b"\n")
            shim.stdin.flush()
            assert b"result" in next(lines_of(shim))
            # In bubblewrap there are two more, whose command line has its command, too.
            limits = {
                soft_limit(pid)
                for pid in descendants(running.process.pid)
                if str(AGENTS / "dumping_agent.py").encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
            }
            assert limits == {before[1]}
    finally:
        assert running.stop() == 0, "".join(running.log)


# What could be logged one day


def test_no_object_that_knows_a_token_shows_it(gateway: RunningGateway) -> None:
    store = TokenStore(gateway.directory / "state")
    token = store.authenticate(gateway.token)
    secret = TRACES.note_tokens_in(mint())
    text = gateway.config.read_text().replace(
        "[agents.dumping]", f'[agents.other]\ncommand = ["x"]\nenv = {{ KEY = "{secret}" }}\n[agents.dumping]'
    )
    other = gateway.directory / "other.toml"
    # Not where the search would find what was put there on purpose.
    other.write_text(text.replace("[gateway]", '[gateway]\ndefault_agent = "dumping"'))
    try:
        config = load_config(other)
    finally:
        other.unlink()
    assert agent_environment(config.agents["other"], {})["KEY"] == secret
    address = parse_address(gateway.urls["wss"])
    objects = [
        *(config, config.agents, token, store, Access.of(token), Hello(token=gateway.token)),
        Destination(address, None, gateway.token, None, None, 1),
    ]
    for each in objects:
        TRACES.note(f"repr of {type(each).__name__}", repr(each))
        TRACES.note(f"str of {type(each).__name__}", str(each))


def is_shown(owner: type, name: str) -> bool:
    """Return whether the text of an object has this field, unless a test wrote one without it."""
    if not dataclasses.is_dataclass(owner):
        return "__repr__" not in vars(owner)
    (field,) = [field for field in dataclasses.fields(owner) if field.name == name]
    # What the decorator makes is wrapped.
    return field.repr and hasattr(owner.__repr__, "__wrapped__")


def test_whatever_is_called_a_token_is_left_out_of_the_text_of_its_object() -> None:
    known = []
    for module in pkgutil.walk_packages(acp_gateway.__path__, "acp_gateway."):
        if module.name.endswith("__main__"):
            continue
        for owner in vars(importlib.import_module(module.name)).values():
            if not isinstance(owner, type) or owner.__module__ != module.name:
                continue
            fields: tuple[Any, ...] = ()
            if dataclasses.is_dataclass(owner):
                fields = dataclasses.fields(owner)
            elif issubclass(owner, msgspec.Struct):
                fields = msgspec.structs.fields(owner)
            known += [
                (owner, field.name)
                for field in fields
                if field.name in ("env", "environment")
                or (field.name in ("token", "secret", "shown") and field.type in (str, str | None))
            ]
    assert len(known) >= 5
    assert [f"{owner.__name__}.{name}" for owner, name in known if is_shown(owner, name)] == []
