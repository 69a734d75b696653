"""One prompt: its events, and its link to a gateway in memory."""

import os
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from acp_gateway.cli.client.prompting.sent_prompt import Outcome, SentPrompt, follow_prompt
from acp_gateway.client.shim import LinkState, Settings
from acp_gateway.errors import (
    AccessError,
    AgentError,
    AgentRefused,
    Forbidden,
    GatewayError,
    LimitReached,
    TooOld,
    TurnStopped,
)
from acp_gateway.protocol.not_sent import QUESTION
from acp_gateway.protocol.path_maps import PathMaps
from acp_gateway.terminal.content import Option
from acp_gateway.terminal.dialogue import (
    Answered,
    Asked,
    Closed,
    Decided,
    Dialogue,
    Event,
    Failed,
    Opened,
    Question,
    Queued,
    TurnEnded,
    TurnStarted,
    Updated,
    Withdrawn,
)
from tests.kit.fake_gateway import DESTINATION, FakeGateway
from tests.kit.updates import said

OPENED = Opened("s", (), "")
DONE = Answered("end_turn")
WAY = "`watch gpu/s`"


class Made:
    """A prompt, and what it has told."""

    def __init__(self, *events: Event, joined: str = "", **options: Any) -> None:
        self.told: list[str] = []
        self.dialogue = Dialogue(("prompt", "1"), session=joined, decides=False)
        way = "watch {}".format
        self.it = SentPrompt("go", self.dialogue, self.told.append, way, **{"waits": True} | options)
        # As the dialogue has it when the session is open.
        self.dialogue.session = "s"
        if events:
            self.it.receive([OPENED])
            self.it.receive(events)


def says(text: str, lane: str = "", **members: object) -> Updated:
    return Updated(said(text) | members, lane)


def asks(number: int = 7, title: str = "Run make") -> Asked:
    return Asked(Question(number, {"toolCallId": "t", "title": title}, (Option("a", "Allow", "allow_once"),)))


TOOL = Updated({"sessionUpdate": "tool_call", "toolCallId": "t", "title": "Run make"}, "")


def test_the_prompt_is_sent_once_when_the_session_is_open_and_its_history_is_left_out() -> None:
    made = Made(joined="s")
    assert made.it.receive([says("old"), TurnStarted("ann", running=True), asks()]) == []
    assert (made.it.is_asked, made.dialogue.output) == (True, [])
    assert made.it.receive([OPENED, says("late")]) == [OPENED, says("late")]
    assert [b'"session/prompt"' in message for message in made.dialogue.output] == [True]
    made.it.receive([OPENED])
    assert len(made.dialogue.output) == 1


@pytest.mark.parametrize(
    ("events", "answer"),
    [
        ([says("I "), says("am done.")], "I am done."),
        ([says("I look."), TOOL, says("Done.")], "Done."),
        ([says("Done."), TOOL], "Done."),
        ([says("Done."), says("no", "child"), Updated(said("no", "thought"), "")], "Done."),
        ([says("[acp-gateway: allowed by a rule]"), says("Done.")], "Done."),
        ([says("x" * 40_000), says("y")], "x" * 40_000 + "y"),
        # The turn of another client was before.
        ([says("theirs"), TurnEnded("end_turn", ""), TurnStarted("me"), says("mine")], "mine"),
        ([says("theirs"), TurnStarted("me")], ""),
        ([says("theirs"), TurnEnded("end_turn", ""), TurnStarted("me", running=True), says("mine")], "mine"),
        # A link that was recovered tells that a turn runs, or has ended, again.
        ([says("a"), TurnStarted("me", running=True), says("b"), TurnEnded("end_turn", "")], "ab"),
        ([TOOL], ""),
    ],
)
def test_the_answer_is_the_last_message_of_the_agent_in_the_turn(events: list[Event], answer: str) -> None:
    made = Made(TurnStarted("me"), *events, DONE)
    assert made.it.outcome is not None
    assert (made.it.outcome.stop_reason, made.it.outcome.error, made.it.answer) == ("end_turn", None, answer)


@pytest.mark.parametrize(
    ("end", "kind", "words"),
    [
        (Answered("refusal"), AgentRefused, "the agent refuses the prompt"),
        (Answered("max_tokens"), LimitReached, "limit of the agent: max_tokens"),
        (Answered("max_turn_requests"), LimitReached, "max_turn_requests"),
        (Answered("cancelled"), TurnStopped, "the turn was stopped"),
        (Answered("cancelled", was_sent=False), TurnStopped, "the agent never had it"),
        (Answered("\x1b[1m"), AgentError, r"\x1b[1m"),
        (Answered(""), AgentError, "none"),
        (Closed("the session was deleted"), TurnStopped, "deleted"),
        (Failed("session/prompt", "out of\x1b credit", -32603), AgentError, r"has failed: out of\x1b credit"),
        (Failed("session/prompt", "max_queued_prompts (9) wait already", -32600), AccessError, "refused: max_queued"),
        (Failed("session/prompt", "not for observers", -32601), AccessError, "was refused"),
    ],
)
def test_each_other_end_is_an_error_with_an_exit_code_of_its_own(
    end: Event, kind: type[GatewayError], words: str
) -> None:
    made = Made(end, DONE)
    assert made.it.outcome is not None
    assert type(made.it.outcome.error) is kind
    assert words in str(made.it.outcome.error)


ASKS_FIRST = Asked(
    Question(7, {"toolCallId": f"{QUESTION}1", "title": "Send the prompt?"}, (Option("a", "Send", "allow_once"),))
)
"""A limit on costs is reached: neither a turn begins nor is the prompt in the queue."""


@pytest.mark.parametrize("taken", [TurnStarted("me"), Queued(1, (("me", "go"),)), ASKS_FIRST])
def test_a_prompt_whose_answer_is_not_awaited_is_done_when_the_gateway_has_it(taken: Event) -> None:
    made = Made(waits=False)
    # What has come with the opening was before.
    made.it.receive([OPENED, taken, TurnStarted("ann", running=True)])
    made.it.receive([Queued(0, ()), TurnStarted("ann", running=True), asks()])
    assert made.it.outcome is None
    made.it.receive([taken])
    assert made.it.outcome is not None
    assert made.it.outcome.error is None
    assert Made(taken, waits=True).it.outcome is None


def test_a_question_is_told_with_the_command_that_shows_it_and_its_decision() -> None:
    made = Made(asks(title=""), machine="gpu")
    assert (made.it.is_asked, made.told[-1]) == (True, f"the agent asks: a tool; {WAY} shows the question")
    made.it.receive([TOOL, asks(8, title="")])
    assert made.told[-1] == f"the agent asks: Run make; {WAY} shows the question"
    assert made.it.rest() == f"the agent waits for an answer: Run make; {WAY} shows the question"
    made.it.receive([Decided("ann", "a"), Withdrawn(7), Withdrawn(8)])
    assert (made.it.is_asked, made.told[-1]) == (False, "ann has decided: Allow")
    assert made.it.rest() == f"the gateway may not have the prompt: {WAY} shows session gpu/s"
    made.it.receive([TurnStarted("me")])
    assert made.it.rest() == f"the prompt stays in session gpu/s, and the agent goes on: {WAY} shows it"


def test_an_agent_that_waits_for_a_person_without_a_question_is_asking() -> None:
    state = {"sessionUpdate": "session_info_update", "_meta": {"acp-gateway": {"state": "requires_action"}}}
    assert Made(Updated(state, "")).it.is_asked
    made = Made()
    made.it.receive([Opened("s", (), "", "requires_action")])
    assert made.it.is_asked


@pytest.mark.parametrize(
    ("joined", "machine", "name", "lines"),
    [("", "", "s", ["session s"]), ("", "gpu", "gpu/s", ["session gpu/s"]), ("gpu/s", "", "gpu/s", [])],
)
def test_the_session_has_its_name_in_the_list_and_a_new_one_is_told(
    joined: str, machine: str, name: str, lines: list[str]
) -> None:
    made = Made(joined=joined, machine=machine)
    assert (made.it.session, made.it.rest()) == (joined, "the prompt was not sent")
    (opened,) = made.it.receive([OPENED])
    assert (opened, made.it.session, made.told) == (Opened(name, (), ""), name, lines)


def test_a_prompt_that_waits_and_the_lines_of_the_gateway_are_told_once() -> None:
    made = Made(Queued(2, ()), Queued(1, ()), says("[acp-gateway: allowed]"), joined="s")
    assert made.told == ["the prompt waits for the end of the turn that runs", "[acp-gateway: allowed]"]


def test_a_prompt_for_later_is_done_when_the_gateway_keeps_it_and_not_sent_to_one_that_would_not() -> None:
    made = Made(waits=False, queue={"at": "06:00"})
    made.it.receive([OPENED])
    assert made.it.outcome is not None
    assert (type(made.it.outcome.error), made.dialogue.output) == (TooOld, [])
    made = Made(waits=False, queue={"at": "06:00"})
    made.dialogue.keeps_prompts = True
    made.it.receive([OPENED])
    (prompt,) = made.dialogue.output
    assert b'{"queue": {"at": "06:00"}}' in prompt
    made.it.receive([TurnStarted("ann"), Queued(2, ())])
    assert made.it.outcome is None
    made.it.receive([Answered("cancelled", is_kept=True, due="2026-12-01T05:00:00Z")])
    assert made.it.outcome == Outcome(due="2026-12-01T05:00:00Z")


class Scene:
    """A gateway, and a prompt that is sent to it."""

    def __init__(self) -> None:
        self.gateway = FakeGateway()
        self.gateway.answers["session/list"] = lambda _: {"result": {"sessions": []}}
        self.made = Made(joined="s")
        self.shown: list[Event] = []
        self.result: int | Exception | None = None
        self.ended = trio.Event()
        self.is_closed = False

    async def run(self, timeout: float) -> None:
        try:
            self.result = await follow_prompt(self.made.it, lambda: DESTINATION, self._settings, self._show, timeout)
        except (GatewayError, OSError) as error:
            self.result = error
        self.ended.set()

    async def _show(self, events: list[Event]) -> None:
        await trio.lowlevel.checkpoint()
        if self.is_closed:
            raise BrokenPipeError
        self.shown += events

    def _settings(self, link_changed: Callable[[LinkState], None]) -> Settings:
        return Settings(PathMaps([]), 1_000_000, self.gateway.reconnect_settings(), link_changed=link_changed)


@asynccontextmanager
async def sending(timeout: float = 10_000) -> AsyncIterator[tuple[Scene, Any]]:
    """A scene, and the prompt as its gateway has received it."""
    scene = Scene()
    with trio.fail_after(100_000):
        async with trio.open_nursery() as nursery:
            await nursery.start(scene.gateway.run)
            nursery.start_soon(scene.run, timeout)
            yield scene, await scene.gateway.receive("session/prompt")
            await scene.ended.wait()
            nursery.cancel_scope.cancel()


async def test_the_answer_comes_over_a_connection_that_was_lost_before(autojump_clock: MockClock) -> None:
    async with sending() as (scene, prompt):
        scene.gateway.last.cut()
        scene.gateway.send(method="session/update", params={"sessionId": "s", "update": said("hello")})
        scene.gateway.send(id=prompt["id"], result={"stopReason": "end_turn"})
    assert (scene.result, scene.made.it.answer) == (None, "hello")
    assert scene.shown == [OPENED, says("hello"), DONE]
    assert scene.made.told == ["the connection was lost; connecting again", "connected again"]
    assert len([one for one in scene.gateway.received if one.get("method") == "session/prompt"]) == 1


async def test_a_time_and_a_signal_leave_it_without_an_end_and_cancel_nothing(autojump_clock: MockClock) -> None:
    async with sending(timeout=60) as (scene, _):
        begun = trio.current_time()
    assert (scene.result, scene.made.it.outcome, scene.made.it.is_sent) == (None, None, True)
    assert trio.current_time() - begun <= 60
    for number in (signal.SIGINT, signal.SIGTERM):
        async with sending() as (scene, _):
            os.kill(os.getpid(), number)
        assert (scene.result, scene.made.it.outcome) == (number, None)
        assert "session/cancel" not in [one.get("method") for one in scene.gateway.received]


async def test_what_ends_the_link_is_the_error_and_not_what_answers_the_prompt(autojump_clock: MockClock) -> None:
    async with sending() as (scene, _):
        scene.gateway.refusals.append(Forbidden("the token was revoked"))
        scene.gateway.last.cut()
    assert isinstance(scene.result, Forbidden)


async def test_a_reader_that_has_gone_ends_it(autojump_clock: MockClock) -> None:
    async with sending() as (scene, _):
        scene.is_closed = True
        scene.gateway.send(method="session/update", params={"sessionId": "s", "update": said("hello")})
    assert isinstance(scene.result, BrokenPipeError)
