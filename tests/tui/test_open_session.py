"""A session of the program, over a link to a gateway in memory."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from acp_gateway.client.shim import LinkState, Settings
from acp_gateway.client.uplink import LinkLoss
from acp_gateway.errors import Forbidden
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.terminal.questions import PAUSE
from acp_gateway.tui.open_session import OpenSession
from tests.fake_gateway import DESTINATION, FakeGateway
from tests.terminal.updates import said
from tests.tui.screens import drawn, press

MODES = {"currentModeId": "code", "availableModes": [{"id": "code", "name": "Code"}, {"id": "plan", "name": "Plan"}]}

OPTIONS = [{"optionId": "a", "name": "Allow", "kind": "allow_once"}]


class Scene:
    """A gateway, a session of it, and the number of changes."""

    def __init__(self, session: str) -> None:
        self.gateway = FakeGateway()
        self.gateway.answers["session/list"] = lambda _: {"result": {"sessions": []}}
        self.gateway.answers["session/new"] = lambda _: {"result": {"sessionId": "s", "modes": MODES}}
        self.gateway.answers["session/set_mode"] = lambda _: {"result": {}}
        self.changes = 0
        self.opened = OpenSession(
            session, "/srv", lambda: DESTINATION, self._settings, self._changed, lines=40, size=100_000
        )

    @property
    def lines(self) -> list[str]:
        return [line for line in drawn(self.opened.transcript_box, (60, 20)) if line]

    def send(self, method: str, **params: object) -> None:
        self.gateway.send(method=method, params={"sessionId": "s", **params})

    def ask(self) -> None:
        params = {"sessionId": "s", "toolCall": {"toolCallId": "t", "title": "Run"}, "options": OPTIONS}
        self.gateway.send(id=7, method="session/request_permission", params=params)

    def _settings(self, link_changed: Callable[[LinkState], None]) -> Settings:
        return Settings(PathMaps([]), 4096, self.gateway.reconnect_settings(), link_changed=link_changed)

    def _changed(self) -> None:
        self.changes += 1


@asynccontextmanager
async def scene(session: str = "s", answers: dict[str, Any] | None = None) -> AsyncIterator[Scene]:
    made = Scene(session)
    made.gateway.answers |= answers or {}
    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            await nursery.start(made.gateway.run)
            nursery.start_soon(made.opened.run)
            yield made
            nursery.cancel_scope.cancel()


async def test_a_joined_session_is_shown_when_its_history_is_complete(autojump_clock: MockClock) -> None:
    async with scene(answers={"session/list": lambda _: None}) as one:
        listed = await one.gateway.receive("session/list")
        one.send("session/update", update=said("hello", "user"))
        await wait_all_tasks_blocked()
        assert (one.lines, one.opened.state) == ([], "opening")
        one.gateway.send(id=listed["id"], result={"sessions": []})
        await wait_all_tasks_blocked()
        assert (one.lines, one.opened.state) == (["> hello"], "ready")
        assert one.opened.was_joined
        assert one.changes > 0


async def test_a_new_session_has_its_directory_and_gets_its_id(autojump_clock: MockClock) -> None:
    async with scene("") as one:
        told = []
        one.opened.when_open = lambda: told.append(one.opened.session)
        assert (await one.gateway.receive("session/new"))["params"]["cwd"] == "/srv"
        await wait_all_tasks_blocked()
        assert (one.opened.session, told, one.opened.was_joined) == ("s", ["s"], False)


async def test_a_prompt_is_shown_and_sent_and_its_turn_is_seen(autojump_clock: MockClock) -> None:
    async with scene() as one:
        assert not one.opened.prompt("too early")
        one.opened.cancel()
        await wait_all_tasks_blocked()
        assert one.opened.prompt("fix it")
        sent = await one.gateway.receive("session/prompt")
        one.send("_acp-gateway/news", event="turn_started", by={"identity": "ann"})
        await wait_all_tasks_blocked()
        assert one.opened.state == "working"
        one.opened.cancel()
        await one.gateway.receive("session/cancel")
        one.gateway.send(id=sent["id"], result={"stopReason": "cancelled"})
        one.send("_acp-gateway/news", event="turn_ended", stopReason="cancelled")
        await wait_all_tasks_blocked()
        assert one.lines == ["> fix it", "-- the turn has ended: cancelled"]
        assert one.opened.state == "ready"


async def test_a_question_is_answered_by_its_key(autojump_clock: MockClock) -> None:
    async with scene() as one:
        await one.gateway.receive("session/list")
        one.ask()
        await wait_all_tasks_blocked()
        assert one.opened.state == "waits for a decision"
        await trio.sleep(PAUSE)
        press(one.opened.question_box, (60,), "y")
        await one.gateway.until(lambda: any(message.get("id") == 7 for message in one.gateway.received))
        assert not one.opened.question_box.selectable()


async def test_a_mode_that_was_set_is_shown(autojump_clock: MockClock) -> None:
    async with scene() as one:
        await one.gateway.receive("session/list")
        await wait_all_tasks_blocked()
        assert one.opened.conversation.mode == "Code"
        one.opened.set_mode("plan")
        assert (await one.gateway.receive("session/set_mode"))["params"]["modeId"] == "plan"
        await wait_all_tasks_blocked()
        assert (one.opened.conversation.mode, one.lines) == ("Plan", ["-- mode: plan"])


async def test_a_lost_connection_is_told_and_prompts_wait_for_the_next_one(autojump_clock: MockClock) -> None:
    async with scene() as one:
        await one.gateway.receive("session/list")
        await wait_all_tasks_blocked()
        one.gateway.down = True
        one.gateway.last.cut()
        await wait_all_tasks_blocked()
        assert one.opened.state == "reconnecting"
        assert one.opened.prompt("later")
        one.gateway.down = False
        await one.gateway.receive("session/prompt")
        assert one.lines == [
            "-- the connection was lost; connecting again",
            "> later",
            "-- connected again",
        ]


async def test_an_agent_that_has_ended_is_started_by_the_next_prompt(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = LinkLoss("the agent has ended", 1011, closed=True)
    monkeypatch.setattr("acp_gateway.client.uplink.loss_by_close", lambda _: ended)
    async with scene() as one:
        await one.gateway.receive("session/list")
        await wait_all_tasks_blocked()
        one.gateway.last.cut(trio.EndOfChannel())
        await wait_all_tasks_blocked()
        assert one.lines[-1] == "-- the agent has ended; the next prompt starts it again"
        assert one.opened.prompt("again")
        await one.gateway.receive("session/prompt")


async def test_a_session_that_can_not_be_opened_says_why(autojump_clock: MockClock) -> None:
    refused = {"error": {"code": -32603, "message": "no\x1b"}}
    async with scene(answers={"session/new": lambda _: refused}) as one:
        await one.gateway.receive("session/new")
        await wait_all_tasks_blocked()
        assert (one.opened.ended, one.opened.state) == (True, "closed")
        assert one.lines == ["-- the session can't be opened: no\\x1b"]
        assert not one.opened.prompt("x")


async def test_a_refused_connection_says_why(autojump_clock: MockClock) -> None:
    async with scene() as one:
        await one.gateway.receive("session/list")
        one.gateway.refusals.append(Forbidden("the token was revoked"))
        one.gateway.last.cut()
        await trio.sleep(1000)
        assert one.opened.ended
        assert one.lines[-1] == "-- the token was revoked"


async def test_closing_ends_it(autojump_clock: MockClock) -> None:
    async with scene() as one:
        await one.gateway.receive("session/list")
        one.opened.close()
        await wait_all_tasks_blocked()
        assert one.opened.ended
