"""Observers that send every message there is: none reaches the agent or another client."""

import json
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

import pytest
from acp.meta import AGENT_METHODS, CLIENT_METHODS

from acp_gateway.protocol import methods
from tests.kit.running import AGENTS, WORK, RunningGateway, prepare, sees_processes, start_gateway

Message = dict[str, Any]

OWN = (methods.HELLO, methods.ACK, methods.GOODBYE, methods.ACCESS, methods.NEWS, methods.RESERVED_PREFIX)
"""The gateway's own methods, which no client may send here."""

UNKNOWN = (
    *("session/set_model", "session/steer", "session/", "session/prompt/now", "Session/Prompt", "session/prompt "),
    *(
        "_auth/status_update",
        "craft/drainMidTurnQueue",
        "of/some/agent",
        "$/progress",
        "$/cancel_request",
        "",
        "x" * 5000,
    ),
    *("session\u2028/prompt", "session\\/prompt", "\ud83d", "rpc.discover", "initialized", "shutdown", "exit"),
)
"""Methods that some agents know, or might."""

METHODS = sorted(
    {
        *(*AGENT_METHODS.values(), *CLIENT_METHODS.values(), *OWN, *UNKNOWN),
        *(*methods.CLIENT_METHODS, *methods.CLIENT_NOTIFICATIONS, *methods.AGENT_NOTIFICATIONS),
    }
)

ALLOWED = {methods.LOAD, methods.RESUME, methods.CLOSE, methods.LIST, methods.SESSION_STATUS}
"""Methods that an initialized observer is answered with a result, which the gateway knows by itself."""


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningGateway]:
    """A gateway with an agent that writes down what it gets, and one that climbs."""
    directory = tmp_path_factory.mktemp("observer")
    (directory / "memory").mkdir()
    commands = {
        "memory": [sys.executable, str(AGENTS / "remembering_agent.py"), str(directory / "memory")],
        "climbing": [sys.executable, str(AGENTS / "climbing_agent.py"), f"unix://{directory}/socket"],
    }
    agents = "".join(f"[agents.{name}]\ncommand = {json.dumps(command)}\n" for name, command in commands.items())
    running = start_gateway(directory, prepare(directory, agents, more='default_agent = "memory"'))
    try:
        yield running
    finally:
        assert running.stop() == 0, "".join(running.log)


class Caller:
    """A client of plain lines, which can say what no library would."""

    def __init__(self, gateway: RunningGateway, token: Path, **hello: Any) -> None:
        place = urlsplit(gateway.urls["tcp"])
        assert place.port is not None
        self._socket = socket.create_connection(("127.0.0.1", place.port), 60)
        # Two small messages in a row go at once, whether or not the first has been confirmed.
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._file = self._socket.makefile("rwb")
        self._last_id = 0
        self.heard: list[Message] = []
        self.hello = self.ask(methods.HELLO, {"token": token.read_text().strip()} | hello)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self._socket.close()

    def begin(self, session: str | None = None) -> str:
        """Initialize, and open a session or load the one that is named; its id."""
        assert "result" in self.ask(methods.INITIALIZE, {"protocolVersion": 1})
        if session is None:
            opened: str = self.ask(methods.NEW, {"cwd": str(WORK), "mcpServers": []})["result"]["sessionId"]
            return opened
        assert "result" in self.load(session)
        return session

    def load(self, session: str) -> Message:
        return self.ask(methods.LOAD, {"sessionId": session, "cwd": str(WORK), "mcpServers": []})

    def say(self, **message: Any) -> None:
        """Send a message."""
        self._file.write(json.dumps({"jsonrpc": "2.0"} | message).encode() + b"\n")
        self._file.flush()

    def send(self, method: str, params: Message) -> int:
        """Send a request; its id."""
        self._last_id += 1
        self.say(id=self._last_id, method=method, params=params)
        return self._last_id

    def receive(self) -> Message:
        """The next message."""
        message: Message = json.loads(self._file.readline())
        return message

    def wait_for(self, request: int) -> Message:
        """The answer to a request; what came before it was heard."""
        while (message := self.receive()).get("id") != request or "method" in message:
            self.heard.append(message)
        return message

    def ask(self, method: str, params: Message) -> Message:
        """The answer to a new request."""
        return self.wait_for(self.send(method, params))

    def told(self) -> list[str]:
        """Return the messages of the agent that it received."""
        updates = (message["params"]["update"] for message in self.heard if message.get("method") == "session/update")
        return [each["content"]["text"] for each in updates if each["sessionUpdate"] == "agent_message_chunk"]


@dataclass
class Scene:
    """A turn in which the agent waits for a decision, and who may take it."""

    controller: Caller
    session: str
    prompt: int
    agent_request: Message
    calls: Path

    @property
    def reached_agent(self) -> list[str]:
        """Return method and session of each message that the agent has received so far."""
        return [line.partition(" ")[2] for line in self.calls.read_text().splitlines()]

    def end(self) -> Message:
        """Decide; the answer to the prompt."""
        self.controller.say(id=self.agent_request["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
        return self.controller.wait_for(self.prompt)


@contextmanager
def waiting_turn(gateway: RunningGateway) -> Iterator[Scene]:
    """A new session of the agent that writes down what it gets."""
    with Caller(gateway, gateway.token_file) as controller:
        session = controller.begin()
        text = [{"type": "text", "text": "ask"}]
        prompt = controller.send(methods.PROMPT, {"sessionId": session, "prompt": text})
        agent_request = controller.receive()
        assert agent_request["method"] == methods.REQUEST_PERMISSION
        yield Scene(controller, session, prompt, agent_request, gateway.directory / "memory" / "calls")


@contextmanager
def observer(gateway: RunningGateway, kind: str, session: str) -> Iterator[Caller]:
    """An observer of a session."""
    hello: Message = {}
    match kind:
        case "token":
            token = gateway.save_token("token", "create", "--label", "viewer", "--role", "observer")
        case "guest":
            token = gateway.save_token("share", session, "--token", "--observe")
        case _:
            token, hello = gateway.token_file, {"observe": True}
    with Caller(gateway, token, **hello) as caller:
        caller.begin(session)
        yield caller


@pytest.mark.parametrize("kind", ["token", "guest", "option"])
def test_an_observer_says_everything_and_the_agent_hears_nothing(gateway: RunningGateway, kind: str) -> None:
    # A session that the agent could open, and no client has.
    (gateway.directory / "memory" / "asleep.session").touch()
    with waiting_turn(gateway) as scene, observer(gateway, kind, scene.session) as viewer:
        before = scene.reached_agent
        results = set()
        for session in (scene.session, "asleep", "unknown", None):
            params = {
                "cwd": str(WORK),
                "mcpServers": [],
                "protocolVersion": 1,
                "prompt": [{"type": "text", "text": "pid"}],
            }
            params |= {"requestId": scene.prompt, "modeId": "yolo", "update": {"sessionUpdate": "plan", "entries": []}}
            params |= {} if session is None else {"sessionId": session}
            for method in METHODS:
                viewer.say(method=method, params=params)
                if "result" in viewer.ask(method, params):
                    results.add(method)
                if method == methods.CLOSE:
                    assert "result" in viewer.load(scene.session)
        assert results == ALLOWED
        # The agent gets this behind all that went before it.
        assert scene.end()["result"] == {"stopReason": "end_turn"}
        assert scene.reached_agent == [*before, "response -"]
        assert scene.controller.told() == ["no"]
        assert [message["method"] for message in scene.controller.heard] == ["session/update"]
        assert {message["method"] for message in viewer.heard} == {"session/update"}


@pytest.mark.parametrize("kind", ["token", "guest", "option"])
def test_an_observer_answers_whatever_may_be_asked_and_decides_nothing(gateway: RunningGateway, kind: str) -> None:
    with waiting_turn(gateway) as scene, observer(gateway, kind, scene.session) as viewer:
        before = scene.reached_agent
        for number in (scene.agent_request["id"], *range(60), str(scene.agent_request["id"]), None):
            viewer.say(id=number, result={"outcome": {"outcome": "selected", "optionId": "yes"}})
            viewer.say(id=number, error={"code": -32601, "message": "no"})
        assert "result" in viewer.ask(methods.LIST, {})
        assert scene.end()["result"] == {"stopReason": "end_turn"}
        assert scene.reached_agent == [*before, "response -"]
        assert scene.controller.told() == ["no"]


def test_an_observers_token_does_not_resume_a_controllers_link(gateway: RunningGateway) -> None:
    token = gateway.save_token("token", "create", "--label", "viewer", "--role", "observer")
    with Caller(gateway, gateway.token_file, resume={}) as controller:
        link = controller.hello["result"]["connectionId"]
    again = {"connectionId": link, "received": 0}
    with Caller(gateway, token, resume=again) as viewer:
        assert (viewer.hello["error"]["code"], viewer.hello["error"]["data"]["reason"]) == (410, "unknown")
    with Caller(gateway, gateway.token_file, resume=again) as controller:
        assert controller.hello["result"] == {
            **again,
            "part": "0 00000000",
            "probe": True,
            "limit": f"{16 * 1024 * 1024} max_message_size",
        }


@sees_processes
def test_an_agent_that_runs_the_client_does_not_get_in_to_decide_for_itself(gateway: RunningGateway) -> None:
    with Caller(gateway, gateway.token_file, agent="climbing") as controller:
        prompt = controller.send(methods.PROMPT, {"sessionId": controller.begin(), "prompt": []})
        agent_request = controller.receive()
        while not controller.told():
            controller.heard.append(controller.receive())
        controller.say(id=agent_request["id"], result={"outcome": {"outcome": "selected", "optionId": "no"}})
        controller.wait_for(prompt)
        climbed, decided = controller.told()
    answers = [json.loads(line) for line in climbed.splitlines()]
    assert {answer["error"]["data"]["reason"] for answer in answers} == {"forbidden"}
    assert decided == "no"
