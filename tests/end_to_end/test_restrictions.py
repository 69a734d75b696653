"""Limits on what clients may ask of an agent, by the real program: workspaces, MCP servers, and amounts.

And what is written down of it for support: a recording, which the program plays.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from acp_gateway.protocol import methods
from acp_gateway.security.token_store import TokenStore
from tests.end_to_end.test_outages import Editor, Message, Stock
from tests.end_to_end.test_shim import assert_told, run_shim
from tests.end_to_end.traces import TRACES
from tests.kit.running import (
    AGENTS,
    ENVIRONMENT,
    PROGRAM,
    WORK,
    RunningGateway,
    lines_of,
    prepare,
    start_gateway,
)

SESSIONS_PER_IDENTITY = 20
SESSIONS = 55

INVALID_PARAMS = -32602
INVALID_REQUEST = -32600

POLICIES = {"memory": "drop", "strict": "deny", "free": "allow", "some": ["tools", "near"]}
"""The `mcp_servers` setting, by the agent."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with two workspaces, and an agent for each thing that may become of MCP servers."""
    directory = tmp_path_factory.mktemp("fences")
    for path in ("alpha/src", "beta/src", "alpha-too"):
        (directory / path).mkdir(parents=True)
    (directory / "alpha" / "file").touch()
    (directory / "alpha" / "out").symlink_to(directory / "beta")
    (directory / "alpha" / "in").symlink_to(directory / "alpha" / "src")
    (directory / "beta" / "back").symlink_to("../alpha")
    agents = "".join(f'[workspaces.{name}]\nroot = "{directory}/{name}"\n' for name in ("alpha", "beta"))
    for name, policy in (POLICIES | {"alone": "drop"}).items():
        (directory / name).mkdir()
        command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / name)]
        agents += f"[agents.{name}]\ncommand = {json.dumps(command)}\nmcp_servers = {json.dumps(policy)}\n"
    agents += 'scope = "connection"\n'
    more = (
        f'default_agent = "memory"\nrecord_dir = "{directory}/recordings"\n'
        f"[limits]\nmax_sessions = {SESSIONS}\nsessions_per_identity = {SESSIONS_PER_IDENTITY}\n"
    )
    running = start_gateway(directory, prepare(directory, agents, more=more))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


@pytest.fixture(scope="module")
def tokens(gateway: RunningGateway) -> dict[str, Path]:
    """A token for each workspace, all of one identity."""
    return {
        name: gateway.save_token("token", "create", "--label", name, "--identity", "ann", "--workspace", name)
        for name in ("alpha", "beta")
    }


def heard_by(gateway: RunningGateway, agent: str) -> list[Message]:
    """Return the messages that an agent has received so far."""
    path = gateway.directory / agent / "heard"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def opened_by(gateway: RunningGateway, agent: str = "memory") -> list[Message]:
    """The parameters with which an agent was asked for new sessions so far."""
    return [message["params"] for message in heard_by(gateway, agent) if message.get("method") == methods.NEW]


# Where an agent works


def test_a_session_is_opened_in_a_workspace_of_the_token_and_nowhere_else(
    gateway: RunningGateway, tokens: dict[str, Path]
) -> None:
    alpha, beta = gateway.directory / "alpha", gateway.directory / "beta"
    good = [alpha, alpha / "src", alpha / "in", f"{alpha}/out/back/src", f"{alpha}//src/."]
    outside = [
        *("/", beta, beta / "src", alpha / "out", alpha / "out" / "src", f"{alpha}-too"),
        *("/nowhere", beta / "nothing", f"{alpha}/out/nothing", "C:\\work"),
    ]
    # Nor where the way leads up, wherever that is: behind a link, agents that shorten a path's text get elsewhere.
    wrong = [alpha / "nothing", alpha / "file", f"{alpha}/src/../src", f"{alpha}/../beta", f"{alpha}/out/..", "src"]
    with Editor(gateway, "wss", "--token-file", str(tokens["alpha"])) as editor:
        before = opened_by(gateway)

        def ask(cwd: object, *more: object) -> Message:
            directories = {"additionalDirectories": [*map(str, more)]} if more else {}
            return editor.ask(methods.NEW, {"cwd": str(cwd), "mcpServers": []} | directories)

        for cwd in good:
            assert "result" in ask(cwd)
            assert "result" in ask(alpha, alpha / "src", cwd)
        expected = [params for cwd in good for params in ({"cwd": str(cwd)}, {"cwd": str(alpha)})]
        assert [{"cwd": params["cwd"]} for params in opened_by(gateway)[len(before) :]] == expected
        before = opened_by(gateway)
        for cwd in outside:
            for error in (ask(cwd)["error"], ask(alpha, alpha / "src", cwd)["error"]):
                assert (error["code"], error["data"]["reason"]) == (INVALID_PARAMS, "outside_workspaces")
                assert error["data"]["allowed"] == [str(alpha)]
                assert f"(allowed: {alpha} (alpha))" in error["message"]
        for cwd in wrong:
            for error in (ask(cwd)["error"], ask(alpha, cwd)["error"]):
                assert (error["code"], error["data"]["reason"]) == (INVALID_PARAMS, "no_such_directory")
        for strange in ("~", "\0", 17, [str(alpha)]):
            params = {"cwd": strange, "mcpServers": []}
            assert editor.ask(methods.NEW, params)["error"]["code"] == INVALID_PARAMS
        assert opened_by(gateway) == before
        # A request that names none gets the first workspace of its token.
        unnamed: list[Message] = [{"cwd": ""}, {"cwd": "."}, {"cwd": None}, {}]
        for params in unnamed:
            made = editor.ask(methods.NEW, params | {"mcpServers": []})["result"]
            assert made["_meta"]["acp-gateway"] == {"cwd": str(alpha)}
        assert [params["cwd"] for params in opened_by(gateway)[len(before) :]] == [str(alpha)] * len(unnamed)
        # Of what is there and what is not, elsewhere, the same is said.
        told = [ask(path)["error"]["message"].replace(str(path), "") for path in (beta / "src", beta / "nothing")]
        assert told[0].partition("--map")[0] == told[1].partition("--map")[0]


def test_a_session_that_only_the_agent_knows_is_loaded_into_a_workspace_and_by_who_may_use_all(
    gateway: RunningGateway,
) -> None:
    (gateway.directory / "memory" / "asleep.session").touch()
    store = TokenStore(gateway.directory / "state")
    narrow = TRACES.note_tokens_in(store.create("narrow", None, None, workspaces=["alpha"])[1])
    params = {"sessionId": "asleep", "mcpServers": []}
    alpha = str(gateway.directory / "alpha")
    with Stock(gateway, narrow) as limited, Editor(gateway) as editor:
        assert "result" in limited.ask("initialize", {"protocolVersion": 1})
        # Its workspace is not known.
        assert limited.ask(methods.LOAD, params | {"cwd": alpha})["error"]["code"] == -32002
        for cwd in ("/", f"{alpha}-too", f"{alpha}/nothing", f"{alpha}/../beta"):
            assert editor.ask(methods.LOAD, params | {"cwd": cwd})["error"]["code"] == INVALID_PARAMS
        assert "asleep" not in json.dumps(heard_by(gateway, "memory"))
        assert "result" in editor.ask(methods.LOAD, params | {"cwd": alpha})


def test_sessions_of_another_workspace_do_not_exist_for_a_token(
    gateway: RunningGateway, tokens: dict[str, Path]
) -> None:
    with ExitStack() as stack:
        alpha, beta = (
            stack.enter_context(Editor(gateway, "wss", "--token-file", str(tokens[name]))) for name in tokens
        )
        sessions = {}
        for name, editor in {"alpha": alpha, "beta": beta}.items():
            opened = editor.ask(methods.NEW, {"cwd": str(gateway.directory / name / "src"), "mcpServers": []})
            sessions[name] = editor.session = opened["result"]["sessionId"]
        for name, other in (("alpha", "beta"), ("beta", "alpha")):
            listed = [one["sessionId"] for one in gateway.sessions(tokens[name])]
            assert sessions[name] in listed
            assert sessions[other] not in listed
        params = {"cwd": str(gateway.directory / "alpha"), "mcpServers": [], "prompt": []}
        for method in (methods.LOAD, methods.RESUME, methods.PROMPT, methods.CLOSE, methods.FORK):
            theirs, unknown = (
                alpha.ask(method, params | {"sessionId": session})["error"] for session in (sessions["beta"], "unknown")
            )
            assert theirs["message"].replace(sessions["beta"], "unknown") == unknown["message"]
            assert theirs["code"] == unknown["code"]
        found = alpha.ask(methods.LIST, {})["result"]["sessions"]
        assert sessions["beta"] not in [one["sessionId"] for one in found]
        alpha.send(method=methods.SESSION_CANCEL, params={"sessionId": sessions["beta"]})
        assert beta.talk("undisturbed") == "end_turn"
        join = gateway.connect_command("wss", "--token-file", str(tokens["alpha"]), "--attach", sessions["beta"])
        assert_told(run_shim(join), 4, "unknown_session", "is open here")


# Tools

SERVERS: dict[str, Message] = {
    "tools": {"command": "/bin/sh", "args": ["-c", "touch /tmp/smuggled"], "env": []},
    "evil": {"type": "stdio", "command": "/bin/sh", "args": [], "env": []},
    "as http": {"type": "http", "url": "https://tools.example", "headers": [], "command": "/bin/sh", "args": []},
    "near": {"type": "http", "url": "http://127.0.0.1:1/mcp", "headers": []},
    "nearer": {"type": "sse", "url": "http://LOCALHOST./sse", "headers": []},
    "number": {"type": "http", "url": "http://0x7f.1/", "headers": []},
    "six": {"type": "http", "url": "http://[::ffff:127.0.0.1]:80/", "headers": []},
    "behind a user": {"type": "sse", "url": "http://tools.example@127.1/", "headers": []},
    "unknown": {"type": "pipe", "url": "x"},
    "far": {"type": "http", "url": "https://tools.example/mcp", "headers": []},
    "farther": {"type": "sse", "url": "https://127.0.0.1.example/sse", "headers": []},
}
"""MCP servers by their names; all but the last two mean the machine where they are started."""

FAR = ["far", "farther"]
LOCAL = [name for name in SERVERS if name not in FAR]


def servers(*names: str) -> list[Message]:
    return [{"name": name} | SERVERS[name] for name in names]


@pytest.mark.parametrize(
    ("agent", "passed"), [("memory", FAR), ("some", ["tools", "near", *FAR]), ("free", [*SERVERS])]
)
def test_mcp_servers_decides_which_servers_reach_the_agent(
    agent: str, passed: list[str], gateway: RunningGateway
) -> None:
    with Editor(gateway, "wss", "--agent", agent) as editor:
        params = {"cwd": str(gateway.directory / "alpha"), "mcpServers": servers(*SERVERS)}
        assert "result" in editor.ask(methods.NEW, params)
        assert opened_by(gateway, agent)[-1]["mcpServers"] == servers(*passed)
        # Where agents look for what the protocol does not have.
        smuggled = {"_meta": {"vendor": {"mcp_servers": servers("evil")}}, "mcpServers": []}
        assert "result" in editor.ask(methods.NEW, params | smuggled)
        assert ("/bin/sh" in json.dumps(opened_by(gateway, agent)[-1])) == (agent == "free")
    if agent != "free":
        # The name alone: what is in the command may be a secret.
        log = gateway.read_log_until(f"{agent}: ")
        while "left out MCP servers" not in log:
            log = gateway.read_log_until(f"{agent}: ")
        assert "'evil'" in log
        assert "/bin/sh" not in "".join(gateway.log)


def test_mcp_servers_deny_refuses_the_session_and_names_the_servers(gateway: RunningGateway) -> None:
    with Editor(gateway, "tcp", "--agent", "strict") as editor:
        params = {"cwd": str(gateway.directory / "alpha"), "mcpServers": []}
        for name in LOCAL:
            error = editor.ask(methods.NEW, params | {"mcpServers": servers("far", name)})["error"]
            assert (error["code"], error["data"]) == (INVALID_PARAMS, {"reason": "mcp_servers"})
            assert f"'{name}'" in error["message"]
            assert "'far'" not in error["message"]
        assert opened_by(gateway, "strict") == []
        assert "result" in editor.ask(methods.NEW, params | {"mcpServers": servers(*FAR)})
        assert [one["mcpServers"] for one in opened_by(gateway, "strict")] == [servers(*FAR)]


# How much


def test_there_are_so_many_sessions_of_one_identity_and_of_all_and_no_more(gateway: RunningGateway) -> None:
    store = TokenStore(gateway.directory / "state")
    params = {"cwd": str(gateway.directory / "alpha"), "mcpServers": []}
    with ExitStack() as stack:
        clients = []
        for identity in ("first", "second", "third"):
            secret = TRACES.note_tokens_in(store.create("crowd", identity, None)[1])
            clients.append(stack.enter_context(Stock(gateway, secret, agent="alone")))
            assert "result" in clients[-1].ask("initialize", {"protocolVersion": 1})
        for _ in range(SESSIONS_PER_IDENTITY):
            assert "result" in clients[0].ask(methods.NEW, params)
        error = clients[0].ask(methods.NEW, params)["error"]
        assert (error["code"], error["data"]) == (INVALID_REQUEST, {"reason": "too_many_sessions"})
        assert f"sessions_per_identity ({SESSIONS_PER_IDENTITY})" in error["message"]
        for client in clients[1:]:
            while "result" in (answer := client.ask(methods.NEW, params)):
                pass
        assert answer["error"]["data"] == {"reason": "too_many_sessions"}
        # A person reads it in the editor.
        with Editor(gateway, "wss", "--agent", "alone") as editor:
            assert f"max_sessions ({SESSIONS})" in editor.ask(methods.NEW, params)["error"]["message"]
            clients[0].leave()
            # Its sessions have ended when its agent has.
            deadline = time.monotonic() + 60
            while "error" in editor.ask(methods.NEW, params):
                assert time.monotonic() < deadline


# For support


class Replayed(Editor):
    """An editor that has started `replay` in the place of `connect`."""

    def __init__(self, recording: Path) -> None:
        self.process = subprocess.Popen(
            [*PROGRAM, "replay", str(recording)],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._meta: Message = {}
        self.log_file = Path(os.devnull)
        self.heard: list[Message] = []
        self._lines = lines_of(self.process)
        # Another number than in the recording, from the first request on.
        self._last_id = 1000


def play(editor: Editor, cwd: Path) -> list[Message]:
    """A short conversation; what the editor has heard in it, without the ids of its own."""
    params = {"cwd": str(cwd), "mcpServers": servers("tools")}
    editor.session = editor.ask(methods.NEW, params)["result"]["sessionId"]
    prompt = editor.prompt("hello", "ask", "good-bye")
    editor.send(id=editor.asked()["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
    assert editor.stop_reason(prompt) == "end_turn"
    assert editor.told == ["hello", "yes", "good-bye"]
    return [
        {name: value for name, value in message.items() if name != "id" or "method" in message}
        for message in editor.heard
    ]


def test_a_recording_is_played_to_an_editor_that_asks_the_same_again(gateway: RunningGateway) -> None:
    folder = gateway.directory / "recordings"
    before = set(folder.iterdir())
    with Editor(gateway, "wss") as editor:
        conversation = play(editor, gateway.directory / "alpha")
    (recording,) = set(folder.iterdir()) - before
    assert os.stat(recording).st_mode & 0o777 == 0o600
    with Replayed(recording) as player:
        assert play(player, gateway.directory / "alpha") == conversation
        # What was not recorded, no agent is there to answer.
        assert "error" in player.ask(methods.NEW, {"cwd": str(WORK), "mcpServers": []})
