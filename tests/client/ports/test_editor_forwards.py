"""The ports that are forwarded for an editor, by what its agent says and what listens at the gateway."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, Self

import pytest
import trio

from acp_gateway.client.ports import editor_forwards, forwarding
from acp_gateway.client.ports.editor_forwards import LARGE, MOST, MOST_OFFERED, EditorForwards, Ways
from acp_gateway.client.ports.session_ports import LOOK_INTERVAL
from acp_gateway.errors import CannotListen, Unreachable
from acp_gateway.protocol.gaps import gap
from acp_gateway.terminal.port_lines import Port
from tests.kit.fake_gateway import DESTINATION
from tests.kit.updates import said

pytestmark = pytest.mark.jumps

TOLD = "port 6006 · tb of box is http://127.0.0.1:6006 on this machine."


class Listener:
    """A listener that has been opened."""

    def __init__(self, port: int) -> None:
        self.port = port

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await trio.lowlevel.checkpoint()


class Scene:
    """An editor, its turns, and what listens at the gateway and here."""

    def __init__(self, *, asks: bool, speaks_old: bool = True) -> None:
        self.forwards = EditorForwards(Ways("box", "", self._look, lambda: DESTINATION), asks=asks)
        self.listening: dict[str, list[Port]] = {"s": [Port(6006, "tb")]}
        self.looks: list[str] = []
        self.sent: list[dict[str, Any]] = []
        self.carried: list[tuple[int, int]] = []
        """Ports here and there."""
        self.taken: set[int] = set()
        self.speaks_old = speaks_old

    async def _look(self, session: str) -> list[Port]:
        self.looks.append(session)
        if session not in self.listening:
            raise Unreachable("away")
        return self.listening[session]

    async def listen(self, local: int, port: int, target: str) -> Listener:
        if local in self.taken:
            raise CannotListen(f"port {local} is taken on this machine")
        return Listener(local or 50000)

    async def carry(self, listener: Listener, _: object, port: int, __: object) -> None:
        self.carried.append((listener.port, port))
        await trio.sleep_forever()

    async def says(self, text: str, *turns: str, session: str = "s") -> None:
        await self.receives(update(said(text), session), *turns)

    async def receives(self, message: bytes, *turns: str) -> None:
        self.forwards.receive([message], turns)
        await trio.sleep(5 * LOOK_INTERVAL)

    async def ends_turn(self) -> None:
        await self.receives(b"{}")

    async def answers(self, option: str | None, number: int = 6006) -> bool:
        outcome = {"outcome": "cancelled"} if option is None else {"outcome": "selected", "optionId": option}
        message = {"jsonrpc": "2.0", "id": f"acp-gateway-forward-{number}", "result": {"outcome": outcome}}
        taken = self.forwards.take_response(json.dumps(message).encode())
        await trio.sleep(1)
        return taken

    @property
    def texts(self) -> list[str]:
        """The lines that the user has got."""
        updates = (message["params"]["update"] for message in self.sent if message["method"] == "session/update")
        found = (it["content"]["text"] for it in updates if it["sessionUpdate"] == "agent_message_chunk")
        return [text.removeprefix("\n\n[acp-gateway: ").removesuffix("]\n\n") for text in found]

    @property
    def calls(self) -> list[tuple[str, str]]:
        """Status and text of the last update of each tool call."""
        updates = (message["params"].get("update", {}) for message in self.sent)
        calls = [it for it in updates if it.get("sessionUpdate") == "tool_call_update"]
        return [(it["status"], it["content"][0]["content"]["text"]) for it in calls]

    def sent_by(self, method: str) -> list[dict[str, Any]]:
        return [message for message in self.sent if message["method"] == method]


def update(update: object, session: str = "s") -> bytes:
    return json.dumps({"method": "session/update", "params": {"sessionId": session, "update": update}}).encode()


Open = Callable[..., Any]


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Open:
    @asynccontextmanager
    async def opened(**options: Any) -> AsyncIterator[Scene]:
        scene = Scene(**options)
        monkeypatch.setattr(forwarding, "listen", scene.listen)
        monkeypatch.setattr(forwarding, "forward", scene.carry)
        monkeypatch.setattr(forwarding, "port_of", lambda listener: listener.port)
        async with trio.open_nursery() as nursery:

            def send(messages: list[bytes]) -> None:
                scene.sent += map(json.loads, messages)

            nursery.start_soon(scene.forwards.run, send, gap, lambda: scene.speaks_old)
            yield scene
            nursery.cancel_scope.cancel()

    return opened


async def test_a_port_that_is_offered_and_listens_is_forwarded_and_told_once(opened: Open) -> None:
    async with opened(asks=False) as scene:
        await scene.says("see localhost:60")
        assert scene.looks == []
        await scene.says("06 and localhost:80 ", "s")
        await scene.says("again localhost:6006 ", "s")
        assert (scene.carried, scene.texts, scene.looks) == ([(6006, 6006)], [TOLD], ["s"])
        # What did not listen yet is looked for once more at the end of the turn, and then forgotten.
        scene.listening["s"] = []
        await scene.ends_turn()
        scene.listening["s"] = [Port(80, "")]
        await scene.receives(b"{}", "s")
        assert (scene.looks, len(scene.carried)) == (["s", "s"], 1)
        await scene.says("localhost:80 now", "s")
        assert scene.carried[1:] == [(50000, 80)], "no program passes for a service of the system"


@pytest.mark.parametrize(
    "message",
    [
        update(said("localhost:6006 "), "other"),
        update(said("localhost:6006 ", "user")),
        b'{"method":"x","params":{"sessionId":"s","update":"localhost:6006 "}}',
        b'{"update":[localhost:6006 ',
        update(said("localhost:6006 " + "x" * LARGE)),
    ],
)
async def test_what_is_not_the_sessions_or_not_said_by_its_agent_is_not_forwarded(message: bytes, opened: Open) -> None:
    async with opened(asks=False) as scene:
        await scene.receives(message, "s")
        await scene.ends_turn()
        assert (scene.carried, scene.sent) == ([], [])


async def test_a_port_that_is_taken_here_is_another_one(opened: Open) -> None:
    async with opened(asks=False) as scene:
        scene.taken = {6006}
        await scene.says("localhost:6006 ")
        assert scene.carried == [(50000, 6006)]
        assert "http://127.0.0.1:50000 on" in scene.texts[0]


@pytest.mark.parametrize("asks", [False, True])
async def test_without_a_port_here_that_is_told(asks: bool, opened: Open) -> None:
    async with opened(asks=asks) as scene:
        scene.taken = {0, 6006}
        await scene.says("localhost:6006 ", "s")
        if asks:
            await scene.answers("forward")
            assert [status for status, _ in scene.calls] == ["failed"]
        assert (scene.carried, scene.texts) == (
            [],
            ["port 6006 · tb is not forwarded: port 0 is taken on this machine"],
        )


async def test_the_number_of_ports_is_limited_and_what_is_left_out_is_told_once(opened: Open) -> None:
    async with opened(asks=False) as scene:
        scene.listening["s"] = [Port(port, "") for port in range(2000, 2000 + MOST_OFFERED)]
        offered = " ".join(f"localhost:{port.number}" for port in scene.listening["s"])
        for _ in range(3):
            await scene.says(f"{offered} ", "s")
        assert len(scene.carried) == MOST
        (told,) = [text for text in scene.texts if "left out" in text]
        assert told.startswith(f"port {2000 + MOST} and later ones are left out, as {MOST} are the most: acp-gateway ")


async def test_offers_and_sessions_that_are_remembered_are_limited(opened: Open) -> None:
    async with opened(asks=False) as scene:
        await scene.says(" ".join(f"localhost:{port}" for port in (6006, *range(1, MOST_OFFERED + 1))) + " ", "s")
        assert scene.carried == []
        for number in range(2 * MOST_OFFERED):
            await scene.says("x", session=f"s{number}")
        assert len(scene.forwards._sessions) == MOST_OFFERED


async def test_the_user_is_asked_within_a_turn_and_yes_forwards(opened: Open) -> None:
    async with opened(asks=True) as scene:
        await scene.says("localhost:6006 ")
        assert scene.sent == []
        await scene.receives(b"{}", "s")
        (asked,) = scene.sent_by("session/request_permission")
        assert scene.sent[0]["params"]["update"] == {"sessionUpdate": "tool_call", **asked["params"]["toolCall"]}
        assert asked["params"]["toolCall"]["title"] == "Forward port 6006 · tb of box to this machine"
        assert {one["kind"]: one["optionId"] for one in asked["params"]["options"]} == {
            "allow_once": "forward",
            "reject_once": "not",
        }
        assert scene.carried == []
        assert await scene.answers("forward")
        assert (scene.carried, scene.texts) == ([(6006, 6006)], [TOLD])
        assert scene.calls == [("completed", "http://127.0.0.1:6006")]
        await scene.ends_turn()
        assert scene.sent_by("$/cancel_request") == []


@pytest.mark.parametrize("option", ["not", None])
async def test_no_forwards_nothing_and_is_not_asked_again(option: str | None, opened: Open) -> None:
    async with opened(asks=True) as scene:
        await scene.says("localhost:6006 ", "s")
        assert await scene.answers(option)
        await scene.says("localhost:6006 ", "s")
        assert (scene.carried, scene.texts, scene.calls) == ([], [], [("failed", "Not forwarded.")])
        assert len(scene.sent_by("session/request_permission")) == 1


async def test_a_question_ends_with_its_turn_and_a_late_answer_does_nothing(opened: Open) -> None:
    async with opened(asks=True) as scene:
        await scene.says("localhost:6006 ", "s")
        await scene.ends_turn()
        assert [one["params"] for one in scene.sent_by("$/cancel_request")] == [
            {"requestId": "acp-gateway-forward-6006"}
        ]
        assert scene.calls == [("failed", "Not forwarded, as the turn has ended: acp-gateway forward box 6006")]
        assert await scene.answers("forward")
        assert scene.carried == []


async def test_an_editor_of_version_2_is_told_the_command(opened: Open) -> None:
    async with opened(asks=True, speaks_old=False) as scene:
        await scene.says("localhost:6006 ", "s")
        assert scene.texts == ["a program listens on port 6006 · tb: acp-gateway forward box 6006"]
        assert scene.sent_by("session/request_permission") == scene.carried == []


@pytest.mark.parametrize(
    "message",
    [
        b'{"id":"acp-gateway-forward-6006","method":"session/prompt"}',
        b'{"id":7,"result":"acp-gateway-forward-6006"}',
        b'{"id":7,"result":{"id":"acp-gateway-forward-6006"}}',
        b'"acp-gateway-forward-6006"',
        b'{"id":"acp-gateway-forward-6006"',
        b'{"id":"acp-gateway-forward-\xff","result":{}}',
    ],
)
async def test_other_messages_of_the_editor_pass(message: bytes, opened: Open) -> None:
    async with opened(asks=True) as scene:
        await scene.says("localhost:6006 ", "s")
        assert not scene.forwards.take_response(message)


async def test_a_listener_is_of_loopback_and_ends_with_the_connection() -> None:
    listener = await editor_forwards._listen_near(80, "box")
    async with listener, await editor_forwards._listen_near(forwarding.port_of(listener), "box") as other:
        assert forwarding.port_of(other) != forwarding.port_of(listener) >= 1024
        assert other.socket.getsockname()[0] == "127.0.0.1"
