"""Which agent for whom: access, the agents' environment, revocation, and the words for directories and logins."""

import json
import logging
import os
import socket
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from acp_gateway import gateway as gateway_module
from acp_gateway.agent import Spawner
from acp_gateway.auth import TokenStore
from acp_gateway.config import AgentSection
from acp_gateway.errors import Forbidden, UnknownAgent
from acp_gateway.gateway import REVOCATION_INTERVAL, Access, Gateway, check_directory, login_hint
from acp_gateway.leftovers import Ledger
from acp_gateway.transports.base import CloseReason, MessageStream, memory_message_stream_pair
from tests.doubles import OBLIGING_AGENT, PATIENCE, Editor, make_config, open_descriptors, python

HOST = socket.gethostname()

OWNER = Access("owner", None)

ENVIRONMENT = {
    "PATH": os.environ["PATH"],
    "HOME": "/home/ann",
    "LC_ALL": "C.UTF-8",
    "ACP_GATEWAY_TOKEN": "acpgw_of_the_gateway_itself",
    "ACP_GATEWAY_TOKEN_FILE": "/run/token",
    "API_KEY": "for some agents",
    "SSH_AUTH_SOCK": "/run/agent",
}


@pytest.fixture
def tokens(tmp_path: Path) -> TokenStore:
    return TokenStore(tmp_path / "state")


@pytest.fixture
def spawner(tmp_path: Path) -> Iterator[Spawner]:
    with Spawner(Ledger(tmp_path / "state" / "agents")) as spawner:
        yield spawner


class Scene:
    """A gateway with agents as they are configured."""

    def __init__(self, tmp_path: Path, tokens: TokenStore, spawner: Spawner) -> None:
        self._state_dir = tmp_path / "state"
        self.tokens = tokens
        self._spawner = spawner

    def gateway(self, agents: dict[str, AgentSection] | None = None, **settings: Any) -> Gateway:
        config = make_config(self._state_dir, "tcp://127.0.0.1:0", agents=agents, **settings)
        return Gateway(config, self.tokens, self._spawner, ENVIRONMENT)

    def access(self, *agents: str) -> Access:
        return Access.of(self.tokens.create("laptop", "ann", agents or None)[0])


@pytest.fixture
def scene(tmp_path: Path, tokens: TokenStore, spawner: Spawner) -> Scene:
    return Scene(tmp_path, tokens, spawner)


@asynccontextmanager
async def serving(gateway: Gateway, access: Access = OWNER, agent: str = "obliging") -> AsyncIterator[Editor]:
    """An editor that a gateway serves; it leaves at the end of the block."""
    theirs, ours = memory_message_stream_pair()
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(gateway.serve_client, ours, access, agent, "test")
            yield Editor(theirs)
            await theirs.aclose()


# Access


def test_a_client_that_names_no_agent_gets_the_default_one(scene: Scene) -> None:
    section = AgentSection(command=("cat",))
    gateway = scene.gateway({"a": section, "b": section}, default_agent="b")
    assert gateway.choose_agent(OWNER, None) == "b"
    assert gateway.choose_agent(OWNER, "a") == "a"
    assert gateway.choose_agent(scene.access(), None) == "b"
    assert gateway.choose_agent(scene.access("a", "b"), None) == "b"


def test_a_token_for_one_agent_need_not_name_it(scene: Scene) -> None:
    section = AgentSection(command=("cat",))
    gateway = scene.gateway({"a": section, "b": section}, default_agent="b")
    assert gateway.choose_agent(scene.access("a"), None) == "a"


def test_an_agent_that_the_token_does_not_allow_is_refused(scene: Scene) -> None:
    section = AgentSection(command=("cat",))
    gateway = scene.gateway({"a": section, "b": section, "c": section}, default_agent="b")
    with pytest.raises(Forbidden, match="does not allow the agent b"):
        gateway.choose_agent(scene.access("a"), "b")
    with pytest.raises(Forbidden, match="does not allow the agent b"):
        gateway.choose_agent(scene.access("a", "c"), None)


def test_an_agent_that_there_is_not_is_unknown_to_everybody_and_not_repeated_at_length(scene: Scene) -> None:
    gateway = scene.gateway()
    for access in (OWNER, scene.access(), scene.access("nobody")):
        with pytest.raises(UnknownAgent, match="no agent 'nobody'"):
            gateway.choose_agent(access, "nobody")
    with pytest.raises(UnknownAgent) as unknown:
        gateway.choose_agent(OWNER, "x" * 60_000)
    assert len(str(unknown.value)) < 200
    with pytest.raises(UnknownAgent):
        gateway.choose_agent(OWNER, "")


def test_a_token_whose_only_agent_is_gone_from_the_configuration_opens_nothing(scene: Scene) -> None:
    with pytest.raises(UnknownAgent):
        scene.gateway().choose_agent(scene.access("gone"), None)


def test_no_repr_shows_what_is_at_rest_of_a_token(scene: Scene) -> None:
    access = scene.access()
    assert access.token is not None
    assert access.token.sha256 not in repr(access)


# An agent for a client


async def test_a_client_talks_to_the_agent_of_its_choice(scene: Scene) -> None:
    gateway = scene.gateway()
    async with serving(gateway) as editor:
        assert (await editor.initialize())["protocolVersion"] == 1
        response = await editor.request("session/list", {"cursor": None})
        assert response["result"] == {"method": "session/list", "params": {"cursor": None}}


async def test_each_connection_has_an_agent_of_its_own(scene: Scene) -> None:
    gateway = scene.gateway()
    async with serving(gateway) as one, serving(gateway) as other:
        await one.initialize()
        await other.initialize()
        first = (await one.request("test/process"))["result"]["pid"]
        second = (await other.request("test/process"))["result"]["pid"]
        assert first != second
        assert first in gateway.agent_ancestors
        assert second in gateway.agent_ancestors
    assert first not in gateway.agent_ancestors
    assert second not in gateway.agent_ancestors


async def test_an_agent_gets_neither_the_gateways_secrets_nor_anything_that_is_not_for_it(scene: Scene) -> None:
    async with serving(scene.gateway(), scene.access()) as editor:
        await editor.initialize()
        process = (await editor.request("test/process"))["result"]
    assert process["environment"] == {name: ENVIRONMENT[name] for name in ("PATH", "HOME", "LC_ALL")}
    assert not [word for word in process["command"] if "acpgw_" in word]


async def test_an_agent_gets_the_variables_that_are_configured_for_it(scene: Scene, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("FROM_FILE=file\nOVERRIDDEN=file\n")
    keys.chmod(0o600)
    section = AgentSection(
        command=OBLIGING_AGENT,
        env_file=keys,
        env={"OVERRIDDEN": "env", "HOME": "/srv"},
        pass_env=("API_KEY", "MISSING"),
    )
    async with serving(scene.gateway({"obliging": section})) as editor:
        await editor.initialize()
        environment = (await editor.request("test/process"))["result"]["environment"]
    assert environment == {
        "PATH": ENVIRONMENT["PATH"],
        "HOME": "/srv",
        "LC_ALL": "C.UTF-8",
        "API_KEY": "for some agents",
        "FROM_FILE": "file",
        "OVERRIDDEN": "env",
    }


@pytest.mark.parametrize("flaw", ["missing", "mode", "text"])
async def test_an_env_file_that_cannot_be_used_is_an_answer_without_what_is_in_it(
    flaw: str, scene: Scene, tmp_path: Path
) -> None:
    keys = tmp_path / "keys"
    if flaw != "missing":
        keys.write_text("KEY=secret\n" if flaw == "mode" else "secret\n")
        keys.chmod(0o640 if flaw == "mode" else 0o600)
    section = AgentSection(command=OBLIGING_AGENT, env_file=keys)
    async with serving(scene.gateway({"obliging": section})) as editor:
        error = (await editor.request("initialize", {}))["error"]
    assert error["message"].startswith(f"the agent obliging cannot be started: {keys}")
    assert error["data"] == {"reason": "agent_not_started"}
    assert "secret" not in json.dumps(error)


async def test_an_agent_that_cannot_be_started_costs_nothing(scene: Scene) -> None:
    gateway = scene.gateway({"obliging": AgentSection(command=("no-such-agent",))})
    async with serving(gateway) as editor:
        await editor.request("initialize", {})
    before = open_descriptors()
    async with serving(gateway) as editor:
        assert "no-such-agent is not found" in (await editor.request("initialize", {}))["error"]["message"]
        assert await editor.receive_rest() == []
    assert open_descriptors() == before


async def test_an_agent_that_dies_is_reported_with_its_exit_code_and_its_last_words(scene: Scene) -> None:
    async with serving(scene.gateway()) as editor:
        await editor.initialize()
        await editor.request("test/stderr", "Traceback:\nZeroDivisionError\n")
        await editor.send(id="turn", method="session/prompt", params={"sessionId": "s"})
        await editor.send(id="exit", method="test/exit", params=3)
        answers = await editor.receive_rest()
    assert {answer["id"] for answer in answers} == {"turn", "exit"}
    for answer in answers:
        assert answer["error"]["message"] == (
            "the agent obliging ended with exit code 3; the last it wrote to stderr: ZeroDivisionError"
        )
        assert answer["error"]["data"]["stderr"] == ["Traceback:", "ZeroDivisionError"]


async def test_a_line_of_an_agents_above_max_message_size_ends_it(scene: Scene) -> None:
    async with serving(scene.gateway(max_message_size=1000)) as editor:
        await editor.initialize()
        await editor.send(id=1, method="test/raw", params="x" * 900)
        await editor.send(id=2, method="test/raw", params="x" * 900)
        answers = await editor.receive_rest()
    assert [answer["id"] for answer in answers] == [1, 2]
    assert "larger than max_message_size (1000 bytes) allows" in answers[0]["error"]["message"]


async def test_a_client_that_goes_in_the_middle_of_a_prompt_cancels_it(scene: Scene, tmp_path: Path) -> None:
    section = AgentSection(command=(*OBLIGING_AGENT, str(tmp_path / "received")), eof_grace=PATIENCE)
    async with serving(scene.gateway({"obliging": section})) as editor:
        await editor.initialize()
        await editor.send(id="turn", method="session/prompt", params={"sessionId": "s"})
        await editor.request("session/list")
    received = [json.loads(line) for line in (tmp_path / "received").read_text().splitlines()]
    assert [message["method"] for message in received] == [
        "initialize",
        "session/prompt",
        "session/list",
        "session/cancel",
    ]
    assert received[-1]["params"] == {"sessionId": "s"}


async def test_a_client_that_is_cancelled_in_the_middle_of_a_prompt_cancels_it_as_well(
    scene: Scene, tmp_path: Path
) -> None:
    section = AgentSection(command=(*OBLIGING_AGENT, str(tmp_path / "received")), eof_grace=PATIENCE)
    theirs, ours = memory_message_stream_pair()
    editor = Editor(theirs)
    with trio.fail_after(PATIENCE):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(scene.gateway({"a": section}).serve_client, ours, OWNER, "a", "test")
            await editor.initialize()
            await editor.send(id="turn", method="session/prompt", params={"sessionId": "s"})
            await editor.request("session/list")
            nursery.cancel_scope.cancel()
    received = [json.loads(line) for line in (tmp_path / "received").read_text().splitlines()]
    assert received[-1]["method"] == "session/cancel"


async def test_a_client_whose_agent_ignores_everything_is_free_at_last(scene: Scene) -> None:
    code = (
        "import signal, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nsys.stdin.readline()\n"
        'print(\'{"jsonrpc":"2.0","id":1,"result":{}}\', flush=True)\nwhile True: time.sleep(1000)'
    )
    section = AgentSection(command=python(code), eof_grace=0.01, term_grace=0.01)
    async with serving(scene.gateway({"obliging": section})) as editor:
        await editor.initialize()


async def test_a_client_is_logged_when_it_comes_and_when_it_goes_and_never_what_it_says(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, logger="acp_gateway")
    async with serving(scene.gateway(), scene.access()) as editor:
        await editor.initialize()
        await editor.request("session/list", "a secret")
    messages = [record.getMessage() for record in caplog.records if record.name == "acp_gateway.gateway"]
    assert messages == ["test: attached to agent obliging as ann", "test: detached"]
    assert "a secret" not in caplog.text


# Revocation


class SlowToClose(MessageStream):
    """A client that takes its time to go, in a time that jumps."""

    def __init__(self, *, gone: bool = False) -> None:
        super().__init__()
        self._gone = gone
        self.closed_with: list[tuple[CloseReason, str]] = []

    async def _receive_batch(self) -> list[bytes]:
        if self._gone:
            raise trio.EndOfChannel
        return await trio.sleep_forever()

    def send_nowait(self, messages: Sequence[bytes]) -> None:
        raise NotImplementedError

    @property
    def pending_bytes(self) -> int:
        return 0

    async def drain(self, below: int = 0) -> None:
        raise NotImplementedError

    async def run(self) -> None:
        await trio.sleep_forever()

    async def aclose(self, reason: CloseReason = CloseReason.NORMAL, text: str = "") -> None:
        self.closed_with.append((reason, text))
        await trio.sleep(10 * REVOCATION_INTERVAL)


async def test_a_connection_whose_token_is_revoked_is_closed_once_and_no_other(
    scene: Scene, autojump_clock: trio.testing.MockClock, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = scene.gateway()
    revoked, kept = scene.access(), scene.access()
    clients = [SlowToClose(), SlowToClose(), SlowToClose()]
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.enforce_revocations)
        for client, access in zip(clients, (revoked, kept, OWNER), strict=True):
            nursery.start_soon(gateway.serve_client, client, access, "obliging", "test")
        nursery.start_soon(gateway.serve_client, SlowToClose(gone=True), revoked, "obliging", "test")
        await trio.sleep(20 * REVOCATION_INTERVAL)
        assert [client.closed_with for client in clients] == [[], [], []]
        assert revoked.token is not None
        scene.tokens.revoke(revoked.token.id)
        await trio.sleep(1.5 * REVOCATION_INTERVAL)
        gone = (CloseReason.POLICY, "the token is not valid any more")
        assert [client.closed_with for client in clients] == [[gone], [], []]
        await trio.sleep(30 * REVOCATION_INTERVAL)
        assert [client.closed_with for client in clients] == [[gone], [], []]
        nursery.cancel_scope.cancel()
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert warnings == [f"token {revoked.token.id} is not valid any more: closing its connection"]


async def test_a_revoked_connection_stops_its_agent(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gateway_module, "REVOCATION_INTERVAL", 0.001)
    gateway, access = scene.gateway(), scene.access()
    assert access.token is not None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(gateway.enforce_revocations)
        async with serving(gateway, access) as editor:
            await editor.initialize()
            pid = (await editor.request("test/process"))["result"]["pid"]
            scene.tokens.revoke(access.token.id)
            assert await editor.receive_rest() == []
        assert pid not in gateway.agent_ancestors
        nursery.cancel_scope.cancel()


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


def test_a_relative_directory_is_refused_without_a_map(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "proj").mkdir()
    problem = check_directory("proj", None)
    assert problem is not None
    assert problem.message == "cwd must be an absolute path, not 'proj'"
    assert "map" not in problem.data


def test_a_file_is_no_directory(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert check_directory(str(tmp_path / "file"), None) is not None


def test_a_user_without_a_home_gets_a_suggestion_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    problem = check_directory("/Users/ann/proj", None)
    assert problem is not None
    assert problem.data["map"] == "/Users/ann/proj=/"


@pytest.mark.parametrize("cwd", ["/nul\0", "/\ud800", "/" + "x" * 100_000, "/a\nb"])
async def test_a_directory_that_cannot_be_is_refused_like_one_that_is_not(cwd: str, scene: Scene) -> None:
    async with serving(scene.gateway()) as editor:
        await editor.initialize()
        error = (await editor.request("session/new", {"cwd": cwd, "mcpServers": []}))["error"]
    assert error["code"] == -32602
    assert error["data"]["reason"] == "no_such_directory"


async def test_a_session_in_a_directory_that_is_not_there_never_reaches_the_agent(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "proj").mkdir()
    section = AgentSection(command=OBLIGING_AGENT, cwd=tmp_path / "proj")
    async with serving(scene.gateway({"obliging": section})) as editor:
        await editor.initialize()
        error = (await editor.request("session/new", {"cwd": "/Users/ann/proj", "mcpServers": []}))["error"]
        assert error["code"] == -32602
        assert f"--map /Users/ann/proj={tmp_path}/proj" in error["message"]
        result = (await editor.request("session/new", {"cwd": str(tmp_path), "mcpServers": []}))["result"]
        assert result["params"]["cwd"] == str(tmp_path)


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


async def test_an_agent_that_wants_a_login_is_explained_to_the_editor(scene: Scene) -> None:
    code = (
        "import json, sys\n"
        "def answer(**rest):\n"
        "    request = json.loads(sys.stdin.readline())\n"
        "    print(json.dumps({'jsonrpc': '2.0', 'id': request['id'], **rest}), flush=True)\n"
        f"answer(result={{'protocolVersion': 1, 'authMethods': [{KEY!r}, {META!r}]}})\n"
        "answer(error={'code': -32000, 'message': 'Authentication required.'})\nsys.stdin.read()"
    )
    async with serving(scene.gateway({"obliging": AgentSection(command=python(code))})) as editor:
        assert (await editor.initialize())["authMethods"] == [KEY]
        error = (await editor.request("session/list", {}))["error"]
    assert error["message"] == (
        f"Authentication required. On the gateway's machine ({HOST}): run `claude /login`, then try again."
    )
