"""Starts of agents: processes and links, and agents that do not answer `initialize`."""

import logging
import math
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from acp_gateway.config.load import AgentSection
from acp_gateway.core.sessions.session import Role, SessionReach
from acp_gateway.gateway.agent import startup
from acp_gateway.gateway.agent.orphans import ProcessRegistry
from acp_gateway.gateway.agent.process import STDERR_TAIL_LINES, Agent, Launch, Spawner
from acp_gateway.gateway.agent.startup import WARN_AFTER, AgentRunner, Startup, Written
from acp_gateway.transports.memory import memory_message_stream_pair
from tests.kit.doubles import INITIALIZE, FakeAgents, make_config
from tests.kit.hub_scene import HOUR, Scene, running, sharing

pytestmark = pytest.mark.jumps


def make_agent(*command: str) -> Agent:
    return Agent("fake", 4711, memory_message_stream_pair()[0], command)


class Watched:
    """A watch that runs, and whom it has given up."""

    def __init__(self, timeout: float) -> None:
        self.startup = Startup(timeout, self._give_up)
        self.given_up: list[tuple[float, Agent]] = []
        self.why = ""
        self.data: dict[str, Any] = {}
        self.written: Written = {}

    def _give_up(self, agent: Agent, why: str, data: dict[str, Any], written: Written) -> None:
        self.given_up.append((trio.current_time(), agent))
        self.why, self.data, self.written = why, data, written


@asynccontextmanager
async def watching(timeout: float) -> AsyncIterator[Watched]:
    watched = Watched(timeout)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watched.startup.run)
        await wait_all_tasks_blocked()
        yield watched
        nursery.cancel_scope.cancel()


async def test_an_agent_that_does_not_answer_is_warned_of_and_then_given_up(caplog: pytest.LogCaptureFixture) -> None:
    agent = make_agent("opencode")
    async with watching(60.0) as watched:
        began = trio.current_time()
        watched.startup.watch(agent)
        await trio.sleep(WARN_AFTER - 1)
        assert caplog.messages == []
        await trio.sleep(2)
        assert caplog.messages == [
            "agent fake (4711) has not answered initialize for 20 s: opencode is an ACP agent with: opencode acp"
        ]
        await trio.sleep(HOUR)
    assert watched.given_up == [(began + 60.0, agent)]
    assert watched.why == (
        "the agent fake has not answered initialize within 60 s (initialize_timeout) and was stopped: "
        "opencode is an ACP agent with: opencode acp"
    )
    assert watched.data == {"reason": "agent_silent", "agent": "fake"}
    assert watched.written == {"stdout": [], "stderr": []}
    assert len(caplog.messages) == 1


async def test_one_that_answers_is_left_alone(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(60.0) as watched:
        watched.startup.watch(make_agent("cat"))
        await trio.sleep(WARN_AFTER / 2)
        watched.startup.watch(None)
        await trio.sleep(HOUR)
    assert (watched.given_up, caplog.messages) == ([], [])


async def test_one_that_answers_after_the_warning_is_left_alone_as_well() -> None:
    async with watching(60.0) as watched:
        watched.startup.watch(make_agent("cat"))
        await trio.sleep(WARN_AFTER + 1)
        watched.startup.watch(None)
        await trio.sleep(HOUR)
    assert watched.given_up == []


async def test_one_that_is_asked_again_has_all_of_its_time_again() -> None:
    agent = make_agent("cat")
    async with watching(60.0) as watched:
        watched.startup.watch(agent)
        await trio.sleep(50)
        # It has answered with an error, and the next client asks in the same moment.
        watched.startup.watch(None)
        watched.startup.watch(agent)
        began = trio.current_time()
        await trio.sleep(HOUR)
    assert watched.given_up == [(began + 60.0, agent)]


async def test_to_look_at_the_same_one_again_does_not_give_it_more_time() -> None:
    agent = make_agent("cat")
    async with watching(60.0) as watched:
        began = trio.current_time()
        for _ in range(100):
            watched.startup.watch(agent)
            await trio.sleep(1)
    assert watched.given_up[0] == (began + 60.0, agent)


async def test_a_short_time_ends_without_a_warning_before(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(5.0) as watched:
        watched.startup.watch(make_agent("bash"))
        await trio.sleep(HOUR)
    assert len(watched.given_up) == 1
    assert caplog.messages == []


async def test_without_a_limit_it_is_only_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    async with watching(math.inf) as watched:
        watched.startup.watch(make_agent("bash"))
        await trio.sleep(HOUR)
    assert watched.given_up == []
    assert len(caplog.messages) == 1


async def test_what_it_wrote_is_kept_but_for_messages_and_without_secrets_and_colours() -> None:
    agent = make_agent("cat")
    async with watching(60.0) as watched:
        watched.startup.receive_output([b"before it was asked"])
        watched.startup.watch(agent)
        watched.startup.receive_output(
            [b"\x1b[1mWelcome\x1b[0m to \xe2\x80\xaethis!", b"", b'{"jsonrpc":"2.0","method":"x"}', b"{}"]
        )
        watched.startup.receive_output([b"password=hunter2hunter2 TOKEN=abcdefgh", b"[1]", b"x" * 1000])
        agent.stderr_tail.append(b"API_TOKEN=abcdefgh is set")
        await trio.sleep(HOUR)
    stdout = watched.written["stdout"]
    assert stdout[:2] == ["Welcome to \\u202ethis!", "{}"]
    assert "abcdefgh" not in stdout[2]
    assert stdout[3] == "[1]"
    assert len(stdout[4]) < 500
    assert watched.written["stderr"] == ["API_TOKEN=… is set"]


async def test_of_a_flood_only_the_last_lines_are_kept() -> None:
    async with watching(60.0) as watched:
        watched.startup.watch(make_agent("cat"))
        watched.startup.receive_output([b"line %d" % number for number in range(1000)])
        await trio.sleep(HOUR)
    assert watched.written["stdout"] == [f"line {number}" for number in range(1000 - STDERR_TAIL_LINES, 1000)]


# In a hub


@pytest.mark.parametrize("shared", [True, False])
async def test_the_editors_initialize_is_answered_with_what_the_agent_wrote(shared: bool) -> None:
    async with running(Scene(shared=shared, initialize_timeout=60.0), timeout=HOUR) as scene:
        scene.agent.agent.command = ["bash"]
        await scene.editor.send_request(0, "initialize", **INITIALIZE)
        await wait_all_tasks_blocked()
        scene.agent.stream.send_nowait([b"Welcome!"])
        scene.agent.agent.stderr_tail.append(b"bash: jsonrpc: command not found")
        answer = await scene.editor.receive()
        await scene.editor.gone.wait()
        scene.scope.cancel()
    assert answer["error"]["message"] == (
        "the agent fake has not answered initialize within 60 s (initialize_timeout) and was stopped: "
        "bash is a shell, not an agent: name the agent's program, such as opencode acp; "
        "the last it wrote to stdout: Welcome!; "
        "the last it wrote to stderr: bash: jsonrpc: command not found"
    )
    assert answer["error"]["data"] == {
        "reason": "agent_silent",
        "agent": "fake",
        "stdout": ["Welcome!"],
        "stderr": ["bash: jsonrpc: command not found"],
    }
    assert scene.agent.agent.exit_code == -15


async def test_an_observer_is_told_that_it_does_not_answer_and_not_what_it_wrote() -> None:
    async with running(Scene(shared=True, initialize_timeout=60.0), timeout=HOUR) as scene:
        await scene.editor.send_request(0, "initialize", **INITIALIZE)
        await wait_all_tasks_blocked()
        observer = scene.join("eve", role=Role.OBSERVER)
        await observer.send_request(0, "initialize", **INITIALIZE)
        await wait_all_tasks_blocked()
        scene.agent.stream.send_nowait([b"Welcome!"])
        answer = await observer.receive()
        assert "has not answered initialize" in answer["error"]["message"]
        assert "Welcome" not in str(answer)
        assert "Welcome" in str(await scene.editor.receive())
        scene.scope.cancel()


async def test_an_agent_that_is_started_again_has_to_answer_in_time_as_well() -> None:
    agents = FakeAgents()
    async with sharing(agents=agents, initialize_timeout=60.0, timeout=HOUR) as (scene, ann):
        scene.agent.end(1)
        await scene.agent.close()
        await wait_all_tasks_blocked()
        await ann.send_request("new", "session/new", cwd="/srv", mcpServers=[])
        assert (await ann.receive())["error"]["data"]["reason"] == "agent_silent"
        await wait_all_tasks_blocked()
        assert agents.started[1].agent.exit_code == -15


async def test_an_agent_that_has_answered_may_think_for_as_long_as_it_likes() -> None:
    async with sharing(initialize_timeout=60.0, timeout=2 * HOUR) as (scene, ann):
        await scene.open_turn()
        await trio.sleep(HOUR)
        assert scene.agent.unread_when_stopped is None
        assert await ann.waiting() == []


async def test_the_log_says_it_once_that_an_agent_was_given_up(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    async with running(Scene(initialize_timeout=60.0), timeout=HOUR) as scene:
        await scene.editor.send_request(0, "initialize", **INITIALIZE)
        await scene.editor.receive()
    assert len([text for text in caplog.messages if "has not answered initialize within" in text]) == 1


class _Never(trio.TaskStatus[Agent]):
    def started(self, value: Agent | None = None) -> None:
        raise AssertionError(value)


_NEVER = _Never()


async def test_an_agent_starts_by_the_configuration_in_force_and_else_by_the_section_that_its_hub_has(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[tuple[str, ...]] = []

    async def run(launch: Launch, *_: object, **__: object) -> None:
        commands.append(tuple(launch.command))

    monkeypatch.setattr(startup, "run_agent", run)
    config = make_config(tmp_path, agents={"near": AgentSection(command=("new",))})
    runner = AgentRunner(lambda: config, Spawner(ProcessRegistry(tmp_path)), {}, None, lambda *_: None)
    for name in ("near", "removed"):
        await runner.run(name, AgentSection(command=("old",)), SessionReach("me"), task_status=_NEVER)
    assert commands == [("new",), ("old",)]
