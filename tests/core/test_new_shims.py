"""Shims of editors of version 2 whose links are lost for good, while the gateway and its agent of version 1 go on."""

import json
from collections import deque
from typing import Any

import pytest

from acp_gateway.client.editor_state import Outcome
from acp_gateway.client.recovery import RecoveryState
from acp_gateway.core.multiplexer import Multiplexer
from acp_gateway.core.sessions.registry import Registry
from acp_gateway.core.sessions.session import Client, SessionReach
from tests.kit.scene import Shelf, checks_of, encode, look, make_policy
from tests.kit.schemas import check_message

LIMIT = 1_000_000


class Scene:
    """A gateway and an editor of version 2 with its shim."""

    def __init__(self, **ability: Any) -> None:
        self.ability = ability
        self.multiplexer = Multiplexer("agent", make_policy(journal_limit=LIMIT), Registry("me", Shelf(LIMIT), "run"))
        self.shim = RecoveryState()
        self.open: deque[int] = deque()
        self.told: list[Any] = []
        self.links = 0
        self.asked: dict[int, str] = {}
        self.connect()
        self.ask(0, "initialize", protocolVersion=2, info={"name": "e", "version": "1"}, capabilities={})
        self.ask(1, "session/new", cwd="/srv", mcpServers=[])
        self.take()

    def connect(self) -> None:
        self.links += 1
        self.client = Client("ann", SessionReach("me"), link=f"link{self.links}")
        self.multiplexer.attach(self.client)

    def ask(self, number: int, method: str, **params: Any) -> None:
        self.asked[number] = method
        self.do(self.shim.from_editor([encode(id=number, method=method, params=params)]))

    def prompt(self, number: int) -> None:
        self.ask(number, "session/prompt", sessionId="s", prompt=[{"type": "text", "text": "do"}])

    def do(self, outcome: Outcome) -> None:
        self.told += map(json.loads, outcome.to_editor)
        for text in outcome.to_gateway:
            self.multiplexer.receive_from_client(self.client, text)
        self.deliver()

    def deliver(self) -> None:
        output = self.multiplexer.take_output()
        incoming = list(output.to_clients.get(self.client, ()))
        for message in map(json.loads, output.to_agent):
            if message["method"] == "session/prompt":
                self.open.append(message["id"])
            elif "id" in message:
                result = {"protocolVersion": 1, "agentCapabilities": self.ability, "sessionId": "s"}
                self.multiplexer.receive_from_agent([encode(id=message["id"], result=result)])
                self.deliver()
        for directory_check in checks_of(output):
            self.multiplexer.directories_checked(directory_check, look(directory_check))
            self.deliver()
        if incoming:
            self.do(self.shim.from_gateway(incoming))

    def agent_says(self, text: str) -> None:
        update = {"sessionUpdate": "agent_message_chunk", "content": {"type": "text", "text": text}}
        self.multiplexer.receive_from_agent(
            [encode(method="session/update", params={"sessionId": "s", "update": update})]
        )
        self.deliver()

    def turn_ends(self) -> None:
        self.multiplexer.receive_from_agent([encode(id=self.open.popleft(), result={"stopReason": "max_tokens"})])
        self.deliver()

    def loses_link(self) -> None:
        self.multiplexer.client_gone(self.client)
        self.deliver()

    def returns(self) -> None:
        lost = self.client.link
        assert lost is not None
        self.connect()
        self.do(self.shim.begin_recovery(lost, [], "lost"))
        assert not self.shim.recovering

    def take(self) -> list[Any]:
        """Return what the editor was told since the last time: ids of results, texts, states, all valid."""
        found: list[Any] = []
        for message in self.told:
            check_message(2, "client", message, self.asked.get(message.get("id"), ""))
            update = message.get("params", {}).get("update", {})
            if "id" in message:
                assert "result" in message
                found.append(message["id"])
            elif "state" in update:
                found.append((update["state"], update.get("stopReason")))
            elif update["sessionUpdate"] == "user_message":
                found.append(update["content"][0]["text"])
            elif update["sessionUpdate"] == "agent_message_chunk":
                found.append(update["content"]["text"])
        self.told.clear()
        return found


@pytest.fixture(params=[{"loadSession": True}, {"sessionCapabilities": {"resume": {}}}], ids=["loads", "resumes"])
def scene(request: pytest.FixtureRequest) -> Scene:
    return Scene(**request.param)


ENDED = ("idle", "max_tokens")
IDLE = ("idle", None)
RUNNING = ("running", None)


def test_a_turn_that_goes_on_ends_for_who_was_away(scene: Scene) -> None:
    scene.prompt(2)
    scene.agent_says("a")
    assert scene.take() == [2, "do", RUNNING, "a"]
    scene.loses_link()
    scene.agent_says("b")
    scene.returns()
    assert scene.take() == ["b"]
    scene.agent_says("c")
    scene.turn_ends()
    told = scene.take()
    assert told[:2] == ["c", ENDED]
    assert set(told[2:]) <= {IDLE}
    scene.prompt(3)
    scene.turn_ends()
    assert scene.take() == [3, "do", RUNNING, ENDED]


def test_a_turn_that_ended_during_the_outage_ends_with_its_reason(scene: Scene) -> None:
    scene.prompt(2)
    scene.take()
    scene.loses_link()
    scene.agent_says("b")
    scene.turn_ends()
    scene.returns()
    assert scene.take() == ["b", ENDED]
    assert scene.shim.turns() == []


def test_a_prompt_that_waits_for_its_turn_gets_it(scene: Scene) -> None:
    scene.prompt(2)
    scene.prompt(3)
    assert scene.take() == [2, "do", RUNNING]
    scene.loses_link()
    scene.returns()
    assert scene.take() == [3, "do"]
    scene.turn_ends()
    told = scene.take()
    assert (told[0], told[-1]) == (ENDED, RUNNING)
    scene.turn_ends()
    assert scene.take()[0] == ENDED
    assert scene.shim.turns() == []
