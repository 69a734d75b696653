"""Failures of the gateway, the agent, the shim or the disk in the middle of a turn, as the editor sees them."""

import json
import os
import re
import resource
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner

from acp_gateway.cli.main import main
from acp_gateway.protocol.gaps import MAY_BE_MISSING
from tests.end_to_end.parties import party, run, texts
from tests.end_to_end.switch import Switch
from tests.kit.running import (
    AGENTS,
    ENVIRONMENT,
    WORK,
    RunningGateway,
    lines_of,
    prepare,
    read_fifo,
    run_program,
    start_gateway,
    write_config,
)

Message = dict[str, Any]


class Place:
    """A gateway's directory, for one process after the other, all at the same addresses."""

    def __init__(self, directory: Path, pin: str) -> None:
        self.directory = directory
        self._pin = pin

    def configure(self, gateway: str = "", hooks: str = "") -> None:
        """Set options of `[gateway]` and `[hooks]`."""
        agents = ""
        for name, scope in {"memory": "identity", "alone": "connection"}.items():
            (self.directory / name).mkdir(exist_ok=True)
            command = [sys.executable, str(AGENTS / "remembering_agent.py"), str(self.directory / name)]
            agents += f'[agents.{name}]\ncommand = {json.dumps(command)}\nscope = "{scope}"\neof_grace = 0.1\n'
        write_config(self.directory, f"[hooks]\n{hooks}\n{agents}", more=f'default_agent = "memory"\n{gateway}')

    @contextmanager
    def gateway(self) -> Iterator[RunningGateway]:
        """Run one."""
        gateway = start_gateway(self.directory, self._pin)
        try:
            yield gateway
        finally:
            assert gateway.process.stderr is not None
            if not gateway.process.stderr.closed:
                gateway.stop()

    def gate(self) -> "Gate":
        """Something that the agent can be told to wait for."""
        return Gate()


class Gate:
    """Path of the file for which an agent waits in the middle of its turn."""

    def __init__(self) -> None:
        self.path = tempfile.mkdtemp(dir=WORK) + "/gate"
        os.mkfifo(self.path)
        # For reading too: else opening it would wait for the agent. It stays open until the test's process ends.
        self._descriptor = os.open(self.path, os.O_RDWR)

    @property
    def command(self) -> str:
        """Return the prompt for the agent."""
        return f"gate {self.path}"

    def open(self) -> None:
        """Let it go on."""
        os.write(self._descriptor, b"\n")


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A gateway's directory with certificate and token, and the pin."""
    directory = tmp_path_factory.mktemp("template")
    return directory, prepare(directory, '[agents.none]\ncommand = ["none"]\n')


@pytest.fixture
def place(template: tuple[Path, str], tmp_path: Path) -> Place:
    directory, pin = template
    place = Place(shutil.copytree(directory, tmp_path / "gateway"), pin)
    place.configure()
    return place


class Editor:
    """An editor with a shim that is in a hurry, which has to stay silent on stderr."""

    def __init__(
        self,
        gateway: RunningGateway,
        transport: str = "wss",
        *options: str,
        via: Switch | None = None,
        wants_news: bool = False,
    ) -> None:
        self._meta: Message = {"acp-gateway": {}} if wants_news else {}
        self.log_file = gateway.directory / f"shim-{len(list(gateway.directory.glob('shim-*')))}"
        command = gateway.connect_command(transport, "--log-file", str(self.log_file), *options)
        if via is not None:
            port = urlsplit(gateway.urls[transport]).port
            command = [word.replace(f":{port}", f":{via.port}") for word in command]
        self.process = subprocess.Popen(
            [sys.executable, str(AGENTS / "hurried.py"), os.devnull, *command[3:]],
            env=ENVIRONMENT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.heard: list[Message] = []
        self.session = ""
        self._lines = lines_of(self.process)
        self._read = 0
        self._last_id = 0

    def __enter__(self) -> Self:
        assert "result" in self.ask("initialize", {"protocolVersion": 1, "clientCapabilities": {"_meta": self._meta}})
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        with self.process:
            if kind is not None:
                self.process.kill()
            elif self.process.poll() is None:
                assert self.process.stdin is not None
                assert self.process.stderr is not None
                self.process.stdin.close()
                self.heard += map(json.loads, self._lines)
                assert self.process.stderr.read() == b""
                assert self.process.wait(60) == 0

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    # What it says

    def send(self, **message: Any) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self.process.stdin.flush()

    def request(self, method: str, params: Message) -> int:
        """Ask, and return the id."""
        self._last_id += 1
        self.send(id=self._last_id, method=method, params=params)
        return self._last_id

    def ask(self, method: str, params: Message) -> Message:
        """Ask, and wait for the response."""
        return self.answer(self.request(method, params))

    def open_session(self) -> str:
        self.session = self.ask("session/new", {"cwd": str(WORK), "mcpServers": []})["result"]["sessionId"]
        return self.session

    def load(self, session: str) -> None:
        self.session = session
        assert "result" in self.ask("session/load", {"cwd": str(WORK), "mcpServers": [], "sessionId": session})

    def prompt(self, *blocks: str) -> int:
        """Begin a turn, and return the prompt's id."""
        prompt = [{"type": "text", "text": text} for text in blocks]
        return self.request("session/prompt", {"sessionId": self.session, "prompt": prompt})

    def talk(self, *blocks: str) -> str:
        """A whole turn; why it ended."""
        return self.stop_reason(self.prompt(*blocks))

    # What it hears

    def until(self, condition: Callable[[Message], bool]) -> Message:
        """The first message of this kind; reads on until it is there."""
        for message in self.heard:
            if condition(message):
                return message
        for line in self._lines:
            self.heard.append(json.loads(line))
            if condition(self.heard[-1]):
                return self.heard[-1]
        raise AssertionError(f"the shim has ended; its log:\n{self.log}")

    def answer(self, to: int) -> Message:
        return self.until(lambda message: message.get("id") == to and "method" not in message)

    def stop_reason(self, prompt: int) -> str:
        answer = self.answer(prompt)
        assert "result" in answer, answer
        return str(answer["result"]["stopReason"])

    def was_lost_with_the_gateway(self, prompt: int, text: str) -> bool:
        """Return True if a prompt gets an error that names it by this text, and its reason."""
        error = self.answer(prompt)["error"]
        return error["data"]["reason"] == "gateway_restarted" and f'"{text}"' in error["message"]

    def until_told(self, text: str) -> None:
        self.until(lambda message: said_in(message) == ("agent_message_chunk", text))

    def asked(self) -> Message:
        """The permission that it is asked for, first of all."""
        return self.until(lambda message: message.get("method") == "session/request_permission")

    @property
    def told(self) -> list[str]:
        """Return the agent's updates to it, in order."""
        return [text for kind, text in map(said_in, self.heard) if kind == "agent_message_chunk"]

    def answers_to(self, to: int) -> list[Message]:
        return [message for message in self.heard if message.get("id") == to and "method" not in message]


def said_in(message: Message) -> tuple[str, str]:
    """The kind and the text of an update; empty for all else."""
    if message.get("method") != "session/update":
        return "", ""
    update = message["params"]["update"]
    return update["sessionUpdate"], update.get("content", {}).get("text", "")


class Stock:
    """A client of plain TCP lines, which knows nothing of links that resume unless told to."""

    def __init__(self, gateway: RunningGateway, token: str | None = None, **hello: Any) -> None:
        place = urlsplit(gateway.urls["tcp"])
        assert place.port is not None
        self._socket = socket.create_connection(("127.0.0.1", place.port), 60)
        self._file = self._socket.makefile("rwb")
        self.heard: list[Message] = []
        self.hello = self.ask("_acp-gateway/hello", {"token": token or gateway.token} | hello)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()

    def leave(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def ask(self, method: str, params: Message) -> Message:
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        self._file.write(json.dumps(request).encode() + b"\n")
        self._file.flush()
        while "id" not in (message := json.loads(self._file.readline())):
            self.heard.append(message)
        response: Message = message
        return response

    def read_to_end(self) -> None:
        """Until the gateway has closed the connection."""
        self.heard += map(json.loads, self._file)

    @property
    def told(self) -> list[str]:
        return [text for kind, text in map(said_in, self.heard) if kind == "agent_message_chunk"]


def way_to(gateway: RunningGateway, transport: str = "wss", cuts_after: int = 0) -> Switch:
    port = urlsplit(gateway.urls[transport]).port
    assert port is not None
    return Switch(port, cuts_after)


def described(gateway: RunningGateway, session: str) -> Message:
    """Return the line of `acp-gateway sessions` about one."""
    (found,) = [one for one in gateway.sessions() if one["sessionId"] == session]
    return found


# The gateway


@pytest.mark.parametrize("agent", ["memory", "alone"])
@pytest.mark.parametrize("journal", ["disk", "memory"])
def test_a_gateway_that_is_killed_in_mid_turn_costs_the_editor_that_turn(
    place: Place, journal: str, agent: str
) -> None:
    place.configure(f'journal_storage = "{journal}"')
    gate = place.gate()
    with place.gateway() as gateway, Editor(gateway, "wss", "--agent", agent) as editor:
        session = editor.open_session()
        editor.talk("one")
        prompt = editor.prompt("two", gate.command, "never said")
        editor.until_told("two")
        listing = editor.request("session/list", {})
        # The gateway answers this one by itself: it has the one before.
        assert "result" in editor.ask("session/resume", {"cwd": str(WORK), "sessionId": session})
        if journal == "disk":
            gateway.until_stored('"two"', 2)  # The prompt, and the answer of the agent.
        gateway.process.kill()
        gateway.process.wait(60)
        with place.gateway() as restarted:
            assert editor.was_lost_with_the_gateway(prompt, "two")
            assert editor.answer(listing)["error"]["data"]["reason"] == "outage"
            assert editor.talk("three") == "end_turn"
            assert described(restarted, session)["connected"] == 1
        restarted.process.wait(60)
        with place.gateway():
            assert editor.talk("four") == "end_turn"
    assert [text for text in editor.told if text != MAY_BE_MISSING] == ["one", "two", "three", "four"]
    # The killed gateway had the session open; the one after it was stopped.
    assert editor.told.count(MAY_BE_MISSING) == (1 if journal == "disk" else 2)
    assert len(editor.answers_to(prompt)) == 1
    assert f"the gateway was restarted: the turn in session {session} was ended" in editor.log
    if agent == "alone" and journal == "memory":
        # Where the editor is in the history is not known any more, and the agent tells it all of it again.
        assert re.search(rf"discarded \d+ updates? of session {session}", editor.log)


def test_sessions_from_before_a_restart_are_listed_and_any_client_can_load_them(place: Place) -> None:
    with place.gateway() as gateway, Editor(gateway) as editor:
        session = editor.open_session()
        editor.talk("one")
        editor.talk("two")
        gateway.until_stored('"two"', 2)  # The prompt, and the answer of the agent.
        gateway.process.kill()
        gateway.process.wait(60)
        editor.process.kill()
        editor.process.wait(60)
    with place.gateway() as gateway:
        found = described(gateway, session)
        assert (found["agent"], found["cwd"], found["live"]) == ("memory", str(WORK), False)
        with Stock(gateway) as client:
            client.ask("initialize", {"protocolVersion": 1})
            listed = client.ask("session/list", {})["result"]["sessions"]
            assert [one["sessionId"] for one in listed] == [session]
            assert "result" in client.ask("session/load", {"cwd": str(WORK), "mcpServers": [], "sessionId": session})
            assert client.told == ["one", "two", MAY_BE_MISSING]
            assert described(gateway, session)["live"]


@pytest.mark.parametrize("transport", ["wss", "http"])
def test_what_an_agent_has_lost_of_a_session_is_kept_at_the_gateway(place: Place, transport: str) -> None:
    with place.gateway() as gateway, Editor(gateway) as editor:
        session, silent = editor.open_session(), ""
        editor.talk("one")
        with Stock(gateway) as client:
            client.ask("initialize", {"protocolVersion": 1})
            silent = client.ask("session/new", {"cwd": str(WORK), "mcpServers": []})["result"]["sessionId"]
    kept = place.directory / "memory"
    (kept / f"{session}.session").write_bytes(b"")
    (kept / f"{silent}.session").unlink()

    async def load(gateway: RunningGateway, name: str) -> list[list[str]]:
        async with party(gateway, transport) as client:
            await client.agent.load_session(cwd=str(WORK), session_id=name)
            told = texts(client.updates(name))
            assert await client.prompt(name, "again") == "end_turn"
            return [told, texts(client.updates(name))]

    for name, told in ((session, ["one"]), (silent, [])):
        with place.gateway() as gateway:
            assert run(load(gateway, name)) == [told, [*told, "again"]]


def test_a_gateway_that_is_stopped_and_started_again_is_no_more_than_a_pause(place: Place) -> None:
    gate = place.gate()
    with place.gateway() as gateway, Editor(gateway, wants_news=True) as editor:
        session = editor.open_session()
        editor.talk("one")
        prompt = editor.prompt("two", gate.command)
        editor.until_told("two")
        assert gateway.stop() == 0
        with place.gateway():
            assert editor.was_lost_with_the_gateway(prompt, "two")
            assert editor.talk("three") == "end_turn"
    ends = [message["params"] for message in editor.heard if message.get("params", {}).get("event") == "turn_ended"]
    assert [end["stopReason"] for end in ends] == ["end_turn", None, "end_turn"]
    assert ends[1] == {"sessionId": session, "event": "turn_ended", "stopReason": None, "reason": "gateway_restarted"}
    assert editor.told == ["one", "two", "three"]
    assert f"the gateway was restarted: the turn in session {session} was ended" in editor.log
    # What the editor had seen was known, so that there was nothing to swallow.
    assert f"of session {session}: already seen" not in editor.log


@pytest.mark.parametrize("transport", ["tcp", "ws"])
def test_another_program_at_the_port_of_a_stopped_gateway_gets_no_token(transport: str, place: Place) -> None:
    with place.gateway() as gateway, Editor(gateway, transport) as editor:
        editor.open_session()
        editor.talk("one")
        assert gateway.stop() == 0
        url = gateway.urls[transport]
        with socket.create_server(("127.0.0.1", urlsplit(url).port)) as server, ThreadPoolExecutor(1) as thread:
            prompt = editor.prompt("two")
            heard = [listen_once(server, transport) for _ in range(3)]
            listed = ("sessions", url, "--token-file", gateway.token_file)
            asked = thread.submit(CliRunner().invoke, main, list(map(str, listed)), env=ENVIRONMENT)
            while not asked.done():
                heard.append(listen_once(server, transport))
        assert asked.result().exit_code == 7, asked.result().output
        assert all("hallenge" in text for text in heard if text)
        assert gateway.token not in "".join(heard)
        with place.gateway():
            assert editor.stop_reason(prompt) == "end_turn"


UNPROVEN = {
    "tcp": b'{"jsonrpc":"2.0","id":0,"result":{"proof":"0 127.0.0.1"}}\n',
    "ws": b"HTTP/1.1 401 No\r\nAcp-Gateway-Proof: 0 127.0.0.1\r\nContent-Length: 0\r\n\r\n",
}


def listen_once(server: socket.socket, transport: str) -> str:
    """Return all that the next client says to a wrong proof; "" if none comes soon."""
    server.settimeout(1.0)
    try:
        client = server.accept()[0]
    except TimeoutError:
        return ""
    heard = b""
    # It may have given up before it is answered.
    with client, suppress(ConnectionError):
        client.settimeout(60)
        heard = client.recv(65536)
        client.sendall(UNPROVEN[transport])
        while more := client.recv(65536):
            heard += more
    return heard.decode()


def test_a_session_that_the_agent_does_not_open_again_after_a_restart_is_refused_with_its_reason(place: Place) -> None:
    with place.gateway() as gateway, Editor(gateway) as editor:
        session = editor.open_session()
        editor.talk("one")
        assert gateway.stop() == 0
        (place.directory / "memory" / f"{session}.session").unlink()
        with place.gateway():
            error = editor.answer(editor.prompt("two"))["error"]
    assert error["code"] == -32002
    assert error["message"].endswith("is open on this connection; the agent could not open it: no such session")
    assert f"session {session} is lost: -32002: no such session" in editor.log


# The agent


@pytest.mark.parametrize("agent", ["memory", "alone"])
def test_an_agent_that_is_killed_in_mid_turn_is_an_error_and_the_next_prompt_has_another(
    place: Place, agent: str
) -> None:
    gate = place.gate()
    with place.gateway() as gateway, Editor(gateway, "wss", "--agent", agent) as editor:
        session = editor.open_session()
        prompt = editor.prompt("one", gate.command)
        editor.until_told("one")
        os.kill(gateway.read_agent_pid(agent), signal.SIGKILL)
        error = editor.answer(prompt)["error"]
        assert error["data"]["reason"] == "agent_ended"
        assert "SIGKILL" in error["message"]
        if agent == "alone":
            # The link ends with its agent. A prompt that goes with it would be cancelled: its progress is not known.
            gateway.read_log_until("detached")
        assert editor.talk("two") == "end_turn"
    assert editor.told == ["one", "two"]
    assert len(editor.answers_to(prompt)) == 1
    assert f"the agent has ended (agent_ended): the turn in session {session} was ended" in editor.log


# The shim


def test_a_turn_goes_on_when_the_shim_is_killed_and_the_next_shim_has_the_history(place: Place) -> None:
    gate = place.gate()
    with place.gateway() as gateway:
        with Editor(gateway) as editor:
            session = editor.open_session()
            editor.prompt("one", gate.command, "two")
            editor.until_told("one")
            editor.process.kill()
            editor.process.wait(60)
        gateway.read_log_until("disconnected, keeping its link")
        found = described(gateway, session)
        assert (found["connected"], found["away"], found["turn"]) == (0, 1, True)
        with Editor(gateway) as successor:
            successor.load(session)
            assert successor.told == ["one"]
            gate.open()
            successor.until_told("two")
            assert successor.talk("three") == "end_turn"
        assert successor.told == ["one", "two", "three"]


@pytest.mark.parametrize("transport", ["wss", "tcp+tls"])
def test_messages_larger_than_what_a_connection_carries_arrive_in_parts(transport: str, place: Place) -> None:
    large = "x" * 2_500_000
    with (
        place.gateway() as gateway,
        way_to(gateway, transport, cuts_after=800_000).running() as path,
        Editor(gateway, transport, via=path) as editor,
    ):
        editor.open_session()
        assert editor.talk(large) == "end_turn"
        assert editor.told == [large]
        assert len(path.happened) >= 6


# The disk


def test_a_full_disk_is_an_error_in_the_log_and_a_warning_in_the_list_and_no_more(place: Place) -> None:
    with place.gateway() as gateway, Editor(gateway) as editor:
        session = editor.open_session()
        # A file that may not grow is what a process has of a full disk.
        resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (65536, resource.RLIM_INFINITY))
        assert editor.talk("flood 30") == "end_turn"
        assert len(editor.told) == 30
        said = gateway.read_log_until("ERROR")
        listed = subprocess.run(
            [sys.executable, "-m", "acp_gateway", "sessions", gateway.urls["tcp"], "--token-file", gateway.token_file],
            env=ENVIRONMENT,
            capture_output=True,
            check=True,
            timeout=60,
        )
        assert session.encode() in listed.stdout
        assert b"warning: " in listed.stderr
        assert editor.talk("flood 30", "goes on") == "end_turn"
        assert editor.told[-1] == "goes on"
    assert "sessions.db" in said
    assert [line for line in gateway.log if "ERROR" in line] == [said]
    assert "Traceback" not in "".join(gateway.log)


def test_a_torn_database_is_put_aside_and_the_gateway_serves(place: Place) -> None:
    with place.gateway() as gateway, Editor(gateway) as editor:
        session = editor.open_session()
        editor.talk("one")
    database = place.directory / "state" / "sessions.db"
    whole = database.read_bytes()
    database.write_bytes(whole[: len(whole) // 2] + b"\xff" * (len(whole) // 4))
    with place.gateway() as gateway, Editor(gateway) as editor:
        editor.load(session)
        assert editor.talk("two") == "end_turn"
        assert editor.told == ["one", "two"]
        assert described(gateway, session)["live"]
    assert len(list(database.parent.glob("sessions.db.damaged-*"))) == 1
    assert len([line for line in gateway.log if "ERROR" in line]) == 1


# Tokens


def token_id(gateway: RunningGateway, label: str) -> str:
    rows = run_program("token", "list", "--plain", "--config", gateway.config).splitlines()
    (row,) = [row for row in rows if label in row]
    return row.split()[0]


def test_a_token_that_is_revoked_ends_the_shim_and_a_link_that_is_away(place: Place) -> None:
    with place.gateway() as gateway:
        token = gateway.save_token("token", "create", "--label", "lost")
        with (
            way_to(gateway).running() as way,
            Editor(gateway, "wss", "--token-file", str(token), via=way) as editor,
            Stock(gateway, token.read_text().strip(), resume={}) as away,
        ):
            session = editor.open_session()
            assert "result" in away.ask("initialize", {"protocolVersion": 1})
            assert "result" in away.ask("session/resume", {"cwd": str(WORK), "sessionId": session})
            way.cut()
            gateway.read_log_until("disconnected, keeping its link")
            found = described(gateway, session)
            assert (found["connected"], found["away"]) == (1, 1)
            run_program("token", "revoke", token_id(gateway, "lost"), "--config", gateway.config)
            away.read_to_end()
            away.leave()
            gateway.read_log_until("detached")
            gateway.read_log_until("detached")
            found = described(gateway, session)
            assert (found["connected"], found["away"]) == (0, 0)
            way.mend()
            with pytest.raises(AssertionError, match="the shim has ended"):
                editor.until(lambda _: False)
            assert editor.process.wait(60) == 4
            assert editor.process.stderr is not None
            assert len(editor.process.stderr.read().splitlines()) == 1


# Links that can't be resumed, and what happens while they are away


def test_a_prompt_whose_turn_outlives_the_link_is_answered_on_the_next_one(place: Place) -> None:
    place.configure("away_grace = 0.3")
    gates = [place.gate() for _ in range(3)]
    with place.gateway() as gateway, way_to(gateway).running() as way, Editor(gateway, via=way) as editor:
        editor.open_session()
        prompt = editor.prompt("one", gates[0].command, "two", gates[1].command, "three", gates[2].command, "four")
        editor.until_told("one")
        way.cut()
        gates[0].open()
        gateway.read_log_until("gone: it was away")
        gates[1].open()
        way.mend()
        editor.until_told("three")
        assert editor.answers_to(prompt) == []
        gates[2].open()
        assert editor.stop_reason(prompt) == "end_turn"
        assert editor.talk("five") == "end_turn"
    assert editor.told == ["one", "two", "three", "four", "five"]
    assert len(editor.answers_to(prompt)) == 1


def test_what_is_too_much_for_an_absent_editor_comes_from_the_journal_without_a_gap(place: Place) -> None:
    place.configure("away_limit = 100_000")
    gate = place.gate()
    with place.gateway() as gateway, way_to(gateway).running() as way, Editor(gateway, via=way) as editor:
        editor.open_session()
        prompt = editor.prompt("one", gate.command, "flood 20")
        editor.until_told("one")
        way.cut()
        gateway.read_log_until("disconnected, keeping its link")
        gate.open()
        gateway.read_log_until("away_limit")
        way.mend()
        assert editor.stop_reason(prompt) in ("end_turn", "cancelled")
        assert editor.talk("two") == "end_turn"
    assert "too far behind" in editor.log or "more came for this link" in editor.log
    assert [text[:8] for text in editor.told] == ["one", *(f"{number:08}" for number in range(20)), "two"]


@pytest.mark.slow
def test_a_permission_asked_while_the_editor_is_away_comes_when_it_is_back_and_a_hook_tells(place: Place) -> None:
    told = place.directory / "told"
    os.mkfifo(told)
    hook = json.dumps(["sh", "-c", f"cat > '{told}'"])
    place.configure(hooks=f"on_permission_waiting = {hook}")
    gate = place.gate()
    with place.gateway() as gateway, way_to(gateway).running() as way, Editor(gateway, via=way) as editor:
        session = editor.open_session()
        prompt = editor.prompt("one", gate.command, "two", "ask", "three")
        editor.until_told("one")
        way.cut()
        gateway.read_log_until("disconnected, keeping its link")
        gate.open()
        event = json.loads(read_fifo(told))
        assert (event["event"], event["sessionId"], event["connected"]) == ("permission_waiting", session, 0)
        (waiting,) = described(gateway, session)["waiting"]
        assert waiting["method"] == event["method"] == "session/request_permission"
        way.mend()
        agent_request = editor.asked()
        assert editor.told == ["one", "two"]
        editor.send(id=agent_request["id"], result={"outcome": {"outcome": "selected", "optionId": "yes"}})
        assert editor.stop_reason(prompt) == "end_turn"
    assert editor.told == ["one", "two", "yes", "three"]
    assert len([message for message in editor.heard if message.get("method") == "session/request_permission"]) == 1
    assert "resumed after" in editor.log


def test_of_two_editors_on_one_session_one_is_cut_off_and_both_see_the_same(place: Place) -> None:
    gate = place.gate()
    with (
        place.gateway() as gateway,
        way_to(gateway).running() as way,
        Editor(gateway) as first,
        Editor(gateway, via=way) as second,
    ):
        second.load(first.open_session())
        prompt = first.prompt("one", gate.command, "two", "ask")
        second.until_told("one")
        way.cut()
        gateway.read_log_until("disconnected, keeping its link")
        gate.open()
        first.asked()
        first.until_told("two")
        way.mend()
        second.until_told("two")
        second.send(id=second.asked()["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
        assert first.stop_reason(prompt) == "end_turn"
        first.until(lambda message: message.get("method") == "$/cancel_request")
        assert second.talk("three") == "end_turn"
        first.until_told("three")
    assert first.told == second.told == ["one", "two", "no", "three"]
